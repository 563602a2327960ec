//! Conversion of the file's columns to the stream's columns, a column at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, Float64Array, Int64Array};
use arrow_buffer::i256;
use arrow_schema::{DataType as ArrowType, TimeUnit};
use tidemill_core::batch::{any_of, value_of, ColumnBuilder};
use tidemill_core::rules::{self, Rescale};
use tidemill_core::value::{canonical_f64, check_years};
use tidemill_core::{Column, DataType, Value};

use crate::row::{too_long, Rule};
use crate::text::{self, quoted};
use crate::time::TimeFormat;
use crate::{json, msgpack};

/// The rows that can't be read, each with its first reason.
#[derive(Default)]
pub(super) struct Bad(BTreeMap<usize, String>);

impl Bad {
    fn add(&mut self, row: usize, rule: &Rule, why: &str) {
        self.0.entry(row).or_insert_with(|| format!("column '{}': {why}", rule.field));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, row: usize) -> bool {
        self.0.contains_key(&row)
    }

    pub fn into_rows(self) -> impl Iterator<Item = (usize, String)> {
        self.0.into_iter()
    }
}

/// Refuses a type of the file from which a column can't be read.
pub(super) fn reading(from: &ArrowType, rule: &Rule) -> Result<(), String> {
    use ArrowType as A;
    let fits = match (&rule.ty, from) {
        (_, A::Null) => true,
        (DataType::List(inner), A::List(item)) => {
            let item_rule = Rule {
                name: rule.name.clone(),
                field: rule.field.clone(),
                ty: (**inner).clone(),
                nullable: true,
                optional: false,
                default: Value::Null,
                time: TimeFormat::Iso,
            };
            return reading(item.data_type(), &item_rule);
        }
        (DataType::Int | DataType::Float | DataType::Timestamp, from) if from.is_integer() => true,
        (DataType::Decimal(_), from) => {
            from.is_integer() || from.is_decimal() || matches!(from, A::Utf8)
        }
        (DataType::Float, A::Float32 | A::Float64) => true,
        (DataType::Timestamp, A::Timestamp(..) | A::Date32 | A::Utf8) => true,
        (DataType::Bool, A::Boolean) => true,
        (DataType::Str, A::Utf8) => true,
        (DataType::Bytes, A::Binary | A::FixedSizeBinary(_)) => true,
        (DataType::Any, A::FixedSizeBinary(_)) => false,
        (DataType::Any, from) => packs(from),
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => Err(format!("is of type {from}, which can't be read as {}", rule.ty)),
    }
}

/// Whether values of a type have a form in msgpack.
fn packs(from: &ArrowType) -> bool {
    use ArrowType as A;
    match from {
        A::Null | A::Boolean | A::Float32 | A::Float64 => true,
        A::Utf8 | A::Binary | A::FixedSizeBinary(_) | A::Timestamp(..) | A::Date32 => true,
        A::List(item) | A::Map(item, _) => packs(item.data_type()),
        A::Struct(fields) => fields.iter().all(|field| packs(field.data_type())),
        other => other.is_integer() || other.is_decimal(),
    }
}

/// Returns a column of defaults, for a file without the column.
pub(super) fn defaults(rule: &Rule, len: usize) -> ArrayRef {
    let mut builder = ColumnBuilder::new(&rule.ty);
    (0..len).for_each(|_| builder.push(&rule.default));
    builder.finish()
}

/// Converts a column. Bad rows get arbitrary values.
pub(super) fn convert(array: &ArrayRef, rule: &Rule, bad: &mut Bad) -> ArrayRef {
    if !rule.nullable && array.logical_null_count() > 0 {
        let nulls = array.logical_nulls();
        for row in (0..array.len()).filter(|r| nulls.as_ref().is_some_and(|n| n.is_null(*r))) {
            bad.add(row, rule, "null, but the column may not be null");
        }
    }
    match &rule.ty {
        DataType::Int => integers(array, rule, bad, Some),
        DataType::Float if array.data_type().is_integer() => {
            let ints = integers(array, rule, bad, Some);
            let ints = ints.as_primitive::<Int64Type>();
            Arc::new(ints.unary::<_, Float64Type>(|i| i as f64))
        }
        DataType::Float => floats(array),
        DataType::Timestamp => timestamps(array, rule, bad),
        DataType::Decimal(scale) => decimals(array, *scale, rule, bad),
        DataType::Bool | DataType::Str | DataType::Bytes
            if *array.data_type() == tidemill_core::batch::inner_type(&rule.ty) =>
        {
            array.clone()
        }
        _ => one_by_one(array, rule, bad),
    }
}

/// Marks rows as bad if their texts, bytes and lists together are longer than a row may be. The
/// same holds if one of them is longer than a value may be.
pub(super) fn bound(columns: &[ArrayRef], rules: &[Rule], row_max: usize, bad: &mut Bad) {
    let ends = |array: &ArrayRef| match array.data_type() {
        ArrowType::Utf8 => Some(array.as_string::<i32>().offsets().clone()),
        ArrowType::Binary => Some(array.as_binary::<i32>().offsets().clone()),
        _ => None,
    };
    let found = columns.iter().zip(rules);
    let found: Vec<_> = found.filter_map(|(array, rule)| Some((ends(array)?, rule))).collect();
    let len_of = |ends: &[i32]| (ends[ends.len() - 1] - ends[0]) as usize;
    let max = row_max.min(rules::VALUE_BYTES_MAX);
    if found.iter().map(|(ends, _)| len_of(ends)).sum::<usize>() <= max {
        return;
    }
    for row in 0..columns.first().map_or(0, |column| column.len()) {
        let mut sum = 0;
        for (ends, rule) in &found {
            let len = len_of(&ends[row..=row + 1]);
            sum += len;
            if len > rules::VALUE_BYTES_MAX {
                bad.add(row, rule, &too_long(len));
            }
            if sum > row_max {
                let why = format!("longer than {row_max} bytes (record_bytes_max), up to here");
                bad.add(row, rule, &why);
                break;
            }
        }
    }
}

/// Applies `f` to every value. If it gives nothing, the row is bad for the reason from `why`.
fn primitives<T: ArrowPrimitiveType>(
    array: &dyn Array,
    rule: &Rule,
    bad: &mut Bad,
    f: impl Fn(T::Native) -> Option<i64>,
    why: impl Fn(T::Native) -> String,
) -> ArrayRef {
    let array = array.as_primitive::<T>();
    let mut fits = true;
    let convert = |v: &T::Native| {
        let value = f(*v);
        fits &= value.is_some();
        value.unwrap_or_default()
    };
    let values: Vec<i64> = array.values().iter().map(convert).collect();
    // The value at a null does not matter, and it usually fits.
    if !fits {
        for (row, value) in array.iter().enumerate() {
            if let Some(value) = value.filter(|v| f(*v).is_none()) {
                bad.add(row, rule, &why(value));
            }
        }
    }
    Arc::new(Int64Array::new(values.into(), array.nulls().cloned()))
}

/// Converts integers of any width, each by `f`.
fn integers(
    array: &ArrayRef,
    rule: &Rule,
    bad: &mut Bad,
    f: impl Fn(i64) -> Option<i64>,
) -> ArrayRef {
    macro_rules! of {
        ($ty:ty) => {
            primitives::<$ty>(
                array,
                rule,
                bad,
                |v| i64::try_from(v).ok().and_then(&f),
                |v| format!("'{v}' is out of range for {}", rule.ty),
            )
        };
    }
    match array.data_type() {
        ArrowType::Int64 if rule.ty == DataType::Int => array.clone(),
        ArrowType::Int64 => of!(Int64Type),
        ArrowType::Int32 => of!(Int32Type),
        ArrowType::Int16 => of!(Int16Type),
        ArrowType::Int8 => of!(Int8Type),
        ArrowType::UInt64 => of!(UInt64Type),
        ArrowType::UInt32 => of!(UInt32Type),
        ArrowType::UInt16 => of!(UInt16Type),
        ArrowType::UInt8 => of!(UInt8Type),
        _ => one_by_one(array, rule, bad),
    }
}

fn floats(array: &ArrayRef) -> ArrayRef {
    let floats: Float64Array = match array.data_type() {
        ArrowType::Float32 => {
            array.as_primitive::<Float32Type>().unary(|f| canonical_f64(f.into()))
        }
        ArrowType::Float64 => array.as_primitive::<Float64Type>().unary(canonical_f64),
        _ => Float64Array::new_null(array.len()),
    };
    Arc::new(floats)
}

fn timestamps(array: &ArrayRef, rule: &Rule, bad: &mut Bad) -> ArrayRef {
    let range = |v: i64| format!("{v} is out of range for timestamp");
    let in_years = |us: i64| check_years(us).ok();
    match array.data_type() {
        ArrowType::Timestamp(TimeUnit::Microsecond, _) => {
            primitives::<TimestampMicrosecondType>(array, rule, bad, in_years, range)
        }
        ArrowType::Timestamp(TimeUnit::Second, _) => {
            let us = |v: i64| v.checked_mul(1_000_000).and_then(in_years);
            primitives::<TimestampSecondType>(array, rule, bad, us, range)
        }
        ArrowType::Timestamp(TimeUnit::Millisecond, _) => {
            let us = |v: i64| v.checked_mul(1000).and_then(in_years);
            primitives::<TimestampMillisecondType>(array, rule, bad, us, range)
        }
        ArrowType::Timestamp(TimeUnit::Nanosecond, _) => {
            let us = |v: i64| (v % 1000 == 0).then_some(v / 1000);
            // 64 bits hold no nanoseconds outside of the years 1 to 9999 that could be stored.
            let finer = |v| format!("{v} ns is finer than microseconds");
            primitives::<TimestampNanosecondType>(array, rule, bad, us, finer)
        }
        ArrowType::Date32 => {
            let us = |days: i32| in_years(i64::from(days).saturating_mul(86_400_000_000));
            let range = |days: i32| format!("{days} days are out of range for timestamp");
            primitives::<Date32Type>(array, rule, bad, us, range)
        }
        from if from.is_integer() => {
            // The unit is that of the column's format, and microseconds without a format.
            let factor = match rule.time {
                TimeFormat::Unix(digits) => 10i64.pow(digits.into()),
                _ => 1,
            };
            integers(array, rule, bad, |v| v.checked_mul(factor).and_then(in_years))
        }
        _ => one_by_one(array, rule, bad),
    }
}

fn decimals(array: &ArrayRef, scale: u8, rule: &Rule, bad: &mut Bad) -> ArrayRef {
    macro_rules! of {
        ($ty:ty, $from:expr, $exactly:expr) => {{
            let rescale = Rescale::new($from, scale);
            let exactly = |v| $exactly(&rescale, v);
            primitives::<$ty>(
                array,
                rule,
                bad,
                |v| exactly(v).ok(),
                |v| match exactly(v) {
                    Err(why) => rescale.message(&v.to_string(), why),
                    Ok(_) => unreachable!("it is exact"),
                },
            )
        }};
    }
    match array.data_type() {
        ArrowType::Decimal32(_, from) => {
            of!(Decimal32Type, *from, |r: &Rescale, v: i32| r.exactly(v.into()))
        }
        ArrowType::Decimal64(_, from) => {
            of!(Decimal64Type, *from, |r: &Rescale, v: i64| r.exactly(v.into()))
        }
        ArrowType::Decimal128(_, from) => {
            of!(Decimal128Type, *from, |r: &Rescale, v: i128| r.exactly(v))
        }
        ArrowType::Decimal256(_, from) => {
            of!(Decimal256Type, *from, |r: &Rescale, v: i256| r.by_digits(&v.to_string()))
        }
        from if from.is_integer() => {
            integers(array, rule, bad, |v| v.checked_mul(10i64.pow(scale.into())))
        }
        _ => one_by_one(array, rule, bad),
    }
}

fn one_by_one(array: &ArrayRef, rule: &Rule, bad: &mut Bad) -> ArrayRef {
    let mut builder = ColumnBuilder::new(&rule.ty);
    for row in 0..array.len() {
        match value_in(&**array, row, &rule.ty).and_then(|v| fit(v, &rule.ty, &rule.time)) {
            Ok(value) => builder.push(&value),
            Err(why) => {
                bad.add(row, rule, &why);
                builder.push_null();
            }
        }
    }
    builder.finish()
}

/// Returns one value of an array for a column of a type. Texts for `any` are JSON, and bytes are
/// msgpack, which [`fit`] reads. All others are packed here.
fn value_in(array: &dyn Array, row: usize, ty: &DataType) -> Result<Value, String> {
    match (ty, array.data_type()) {
        (DataType::Any, ArrowType::Utf8 | ArrowType::Binary) => value_of(array, row),
        (DataType::Any, _) => any_of(array, row),
        (DataType::List(inner), ArrowType::List(_)) if !array.is_null(row) => {
            let items = array.as_list::<i32>().value(row);
            let item =
                |row| value_in(&*items, row, inner).map_err(|why| format!("item {row}: {why}"));
            Ok(Value::List((0..items.len()).map(item).collect::<Result<_, _>>()?))
        }
        _ => value_of(array, row),
    }
}

fn fit(value: Value, ty: &DataType, time: &TimeFormat) -> Result<Value, String> {
    Ok(match (value, ty) {
        (Value::Str(text), DataType::Timestamp) => Value::Timestamp(time.read(&text)?),
        (Value::Str(text), DataType::Decimal(scale)) => {
            Value::Decimal(text::decimal(&text, *scale)?, *scale)
        }
        (Value::Str(text), DataType::Any) => {
            let mut bytes = Vec::new();
            msgpack::from_json(json::checked(&text)?, &mut bytes)?;
            Value::Any(bytes.into())
        }
        (Value::Bytes(bytes), DataType::Any) => {
            tidemill_core::msgpack::check(&bytes)?;
            Value::Any(bytes)
        }
        (Value::List(items), DataType::List(inner)) => {
            let items = items.iter().map(|item| fit(item.clone(), inner, &TimeFormat::Iso));
            Value::List(items.collect::<Result<_, _>>()?)
        }
        (value, ty) => {
            let (column, shown) = (Column::new("", ty.clone()).nullable(), value.to_string());
            let why = |why: String| match why.contains("can't be stored") {
                true => format!("{} is no {ty}", quoted(&shown)),
                false => why,
            };
            rules::convert(value, &column).map_err(why)?
        }
    })
}

/// Appends a value as JSON, for people.
pub(super) fn show(array: &ArrayRef, row: usize, out: &mut Vec<u8>) {
    match value_of(&**array, row).or_else(|_| any_of(&**array, row)) {
        Ok(value) => json::write_value(&value, out),
        Err(why) => json::write_string(&why, out),
    }
}
