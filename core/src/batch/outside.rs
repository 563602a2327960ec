//! Arrow arrays from outside, as columns.
//!
//! They may hold anything, even invalid Arrow. So they are validated in full before any value is
//! read.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, Float64Array, Int64Array, StringArray,
};
use arrow_schema::{DataType as ArrowType, Field, TimeUnit};

use super::{constant_column, inner_type, ColumnBuilder};
use crate::msgpack;
use crate::rules::{self, Rescale};
use crate::schema::Column;
use crate::types::DataType;
use crate::value::{canonical_f64, check_years, Value};

/// The metadata key with the name of the type that an array stands for, where that is not its own.
const EXTENSION: &str = "ARROW:extension:name";
/// The extension types whose values are the array's own.
const PLAIN_EXTENSIONS: [&str; 2] = ["arrow.json", "arrow.uuid"];

/// Whether a column is the unnamed index of a data frame, which only numbers the rows.
pub(super) fn is_unnamed_index(name: &str) -> bool {
    let level = name.strip_prefix("__index_level_").and_then(|rest| rest.strip_suffix("__"));
    level.is_some_and(|level| !level.is_empty() && level.bytes().all(|b| b.is_ascii_digit()))
}

/// Converts such an array to a column, or returns the reason why it can't. `first` is the number of
/// the array's first row.
pub(super) fn column(
    array: &ArrayRef,
    field: &Field,
    column: &Column,
    first: usize,
) -> Result<ArrayRef, String> {
    let name = &column.name;
    let extension = field.metadata().get(EXTENSION).map(String::as_str);
    if let Some(other) = extension.filter(|name| !PLAIN_EXTENSIONS.contains(name)) {
        return Err(format!(
            "column '{name}' has the type {other}, which is not supported for {}: convert it first",
            column.ty
        ));
    }
    check(array).map_err(|(row, why)| match row {
        Some(row) => format!("column '{name}', row {}: it is not valid Arrow: {why}", first + row),
        None => format!("column '{name}' is not valid Arrow: {why}"),
    })?;
    let array = plain(array).map_err(|why| format!("column '{name}': {why}"))?;
    let nulls = array.logical_null_count();
    if nulls > 0 && !column.nullable {
        return Err(format!(
            "the data has {nulls} nulls in column '{name}', which may not be null"
        ));
    }
    if let Some(made) = at_once(&array, column) {
        return made.map_err(|(row, why)| bad(name, first + row, &why));
    }
    let mut builder = ColumnBuilder::new(&column.ty);
    for row in 0..array.len() {
        let value = one(&*array, row, column).map_err(|why| bad(name, first + row, &why))?;
        builder.push(&value);
    }
    Ok(builder.finish())
}

fn bad(column: &str, row: usize, why: &str) -> String {
    format!("the data does not fit column '{column}', row {row}: {why}")
}

/// Checks that an array is what its type says: offsets, lengths, texts, keys of dictionaries. The
/// error has the number of the row that is wrong, if it is one row.
fn check(array: &ArrayRef) -> Result<(), (Option<usize>, String)> {
    let Err(error) = array.to_data().validate_full() else { return Ok(()) };
    // Searches for the first row whose prefix of the array is wrong.
    let is_wrong = |rows: usize| array.slice(0, rows).to_data().validate_full().is_err();
    let (mut right, mut wrong) = (0, array.len());
    while wrong - right > 1 {
        let rows = right + (wrong - right) / 2;
        match is_wrong(rows) {
            true => wrong = rows,
            false => right = rows,
        }
    }
    let row = (wrong > 0 && is_wrong(wrong) && !is_wrong(wrong - 1)).then(|| wrong - 1);
    let why = error.to_string();
    Err((row, why.strip_prefix("Invalid argument error: ").unwrap_or(&why).to_owned()))
}

/// The most bytes of texts or bytes that one column of a batch may have.
const COLUMN_BYTES_MAX: usize = i32::MAX as usize;

/// Returns the array without a dictionary, and with 32-bit offsets.
fn plain(array: &ArrayRef) -> Result<ArrayRef, String> {
    let array = match array.as_any_dictionary_opt() {
        Some(dictionary) => {
            let taken = arrow_select::take::take(dictionary.values(), dictionary.keys(), None);
            taken.map_err(|e| e.to_string())?
        }
        None => array.clone(),
    };
    let is_long = || "it has more than 2 GiB: send fewer rows at a time".to_owned();
    let fits = |bytes: usize| (bytes <= COLUMN_BYTES_MAX).then_some(()).ok_or_else(is_long);
    Ok(match array.data_type() {
        ArrowType::LargeUtf8 => {
            let texts = array.as_string::<i64>();
            fits(texts.value_data().len())?;
            Arc::new(texts.iter().collect::<StringArray>())
        }
        ArrowType::Utf8View => {
            let texts = array.as_string_view();
            fits(texts.iter().flatten().map(str::len).sum())?;
            Arc::new(texts.iter().collect::<StringArray>())
        }
        ArrowType::LargeBinary => {
            let bytes = array.as_binary::<i64>();
            fits(bytes.value_data().len())?;
            Arc::new(bytes.iter().collect::<BinaryArray>())
        }
        ArrowType::BinaryView => {
            let bytes = array.as_binary_view();
            fits(bytes.iter().flatten().map(<[u8]>::len).sum())?;
            Arc::new(bytes.iter().collect::<BinaryArray>())
        }
        ArrowType::FixedSizeBinary(_) => {
            let bytes = array.as_fixed_size_binary();
            fits(bytes.value_data().len())?;
            Arc::new(bytes.iter().collect::<BinaryArray>())
        }
        _ => array,
    })
}

type AtOnce = Result<ArrayRef, (usize, String)>;

/// Returns the column, or the row that is refused and the reason.
fn at_once(array: &ArrayRef, column: &Column) -> Option<AtOnce> {
    use ArrowType as A;
    macro_rules! each {
        ($ty:ty, $f:expr) => {
            Some(primitives::<$ty>(array, $f))
        };
    }
    macro_rules! whole {
        ($($arrow:pat => $ty:ty),*; $f:expr) => {
            match array.data_type() {
                $($arrow => each!($ty, |v| $f(i64::from(v))),)*
                _ => None,
            }
        };
    }
    let ints = |f: fn(i64) -> Result<i64, String>| {
        whole!(A::Int8 => Int8Type, A::Int16 => Int16Type, A::Int32 => Int32Type, A::Int64 => Int64Type,
               A::UInt8 => UInt8Type, A::UInt16 => UInt16Type, A::UInt32 => UInt32Type; f)
    };
    match (array.data_type(), &column.ty) {
        (A::Null, _) => {
            let nulls = std::iter::repeat_n(&Value::Null, array.len());
            Some(Ok(constant_column(&column.ty, nulls)))
        }
        (A::Int64, DataType::Int) => Some(Ok(array.clone())),
        (A::UInt64, DataType::Int) => {
            each!(UInt64Type, |v| { i64::try_from(v).map_err(|_| format!("{v} is out of range")) })
        }
        (_, DataType::Int) => ints(Ok),
        (A::Float64, DataType::Float) => Some(Ok(canonical(array))),
        (A::Float32, DataType::Float) => {
            let wide = array.as_primitive::<Float32Type>();
            Some(Ok(Arc::new(wide.unary::<_, Float64Type>(|f| canonical_f64(f.into())))))
        }
        (A::Timestamp(unit, _), DataType::Timestamp) => match unit {
            TimeUnit::Second => each!(TimestampSecondType, |v| micros(v, TimeUnit::Second)),
            TimeUnit::Millisecond => {
                each!(TimestampMillisecondType, |v| micros(v, TimeUnit::Millisecond))
            }
            TimeUnit::Microsecond => each!(TimestampMicrosecondType, check_years),
            TimeUnit::Nanosecond => {
                each!(TimestampNanosecondType, |v| micros(v, TimeUnit::Nanosecond))
            }
        },
        (_, DataType::Timestamp) => ints(check_years),
        (A::Decimal128(_, from), DataType::Decimal(to)) => {
            let rescale = Rescale::new(*from, *to);
            each!(Decimal128Type, |v: i128| {
                rescale.exactly(v).map_err(|why| rescale.message(&v.to_string(), why))
            })
        }
        (from, ty)
            if *from == inner_type(ty)
                && !matches!(ty, DataType::List(_) | DataType::Any | DataType::Decimal(_)) =>
        {
            Some(Ok(array.clone()))
        }
        _ => None,
    }
}

/// Applies `f` to every value that is not null, and stops at the first value that it refuses.
fn primitives<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    f: impl Fn(T::Native) -> Result<i64, String>,
) -> AtOnce {
    let array = array.as_primitive::<T>();
    let mut values = Vec::with_capacity(array.len());
    for (row, value) in array.values().iter().enumerate() {
        values.push(match f(*value) {
            Ok(value) => value,
            // The value at a null does not matter.
            Err(_) if array.is_null(row) => 0,
            Err(why) => return Err((row, why)),
        });
    }
    Ok(Arc::new(Int64Array::new(values.into(), array.nulls().cloned())))
}

/// Returns floats with the one canonical NaN. Copies nothing if there is no other NaN.
fn canonical(array: &ArrayRef) -> ArrayRef {
    let floats: &Float64Array = array.as_primitive();
    let is_other = |f: &f64| f.is_nan() && f.to_bits() != f64::NAN.to_bits();
    match floats.values().iter().any(is_other) {
        true => Arc::new(floats.unary::<_, Float64Type>(canonical_f64)),
        false => array.clone(),
    }
}

/// Converts a time in another unit to microseconds.
fn micros(value: i64, unit: TimeUnit) -> Result<i64, String> {
    let us = match unit {
        TimeUnit::Second => value.checked_mul(1_000_000),
        TimeUnit::Millisecond => value.checked_mul(1_000),
        TimeUnit::Microsecond => Some(value),
        TimeUnit::Nanosecond if value % 1_000 == 0 => Some(value / 1_000),
        TimeUnit::Nanosecond => {
            return Err(format!("{value}ns is not a whole number of microseconds"));
        }
    };
    check_years(us.ok_or_else(|| format!("{value} is out of range for a timestamp"))?)
}

/// Returns one value of a column.
fn one(array: &dyn Array, row: usize, column: &Column) -> Result<Value, String> {
    if column.ty == DataType::Any && !array.is_null(row) {
        return any_of(array, row);
    }
    if let (DataType::List(inner), Some(items)) = (&column.ty, items(array, row)) {
        if has_any(inner) {
            let item = Column::new(&column.name, (**inner).clone()).nullable();
            let value = |row| one(&items, row, &item).map_err(|why| format!("item {row}: {why}"));
            return Ok(Value::List((0..items.len()).map(value).collect::<Result<_, _>>()?));
        }
    }
    let value = match (array.data_type(), &column.ty) {
        (ArrowType::Decimal32(_, from), DataType::Decimal(to)) => {
            let rescale = Rescale::new(*from, *to);
            let units = i128::from(array.as_primitive::<Decimal32Type>().value(row));
            return decimal(&rescale, units, *to, array.is_null(row));
        }
        (ArrowType::Decimal64(_, from), DataType::Decimal(to)) => {
            let rescale = Rescale::new(*from, *to);
            let units = i128::from(array.as_primitive::<Decimal64Type>().value(row));
            return decimal(&rescale, units, *to, array.is_null(row));
        }
        (ArrowType::Decimal256(_, from), DataType::Decimal(to)) if !array.is_null(row) => {
            let rescale = Rescale::new(*from, *to);
            let units = array.as_primitive::<Decimal256Type>().value(row).to_string();
            let exactly = rescale.by_digits(&units);
            let units = exactly.map_err(|why| rescale.message(&units, why))?;
            return Ok(Value::Decimal(units, *to));
        }
        _ => value_of(array, row)?,
    };
    rules::convert(value, column)
}

/// Whether a type is `any`, or a list of it.
fn has_any(ty: &DataType) -> bool {
    match ty {
        DataType::Any => true,
        DataType::List(inner) => has_any(inner),
        _ => false,
    }
}

/// Returns one value of an array as a value of type `any`; null as null. Bytes are msgpack already,
/// as in Tidemill's own batches.
pub fn any_of(array: &dyn Array, row: usize) -> Result<Value, String> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    if let ArrowType::Binary = array.data_type() {
        let bytes = array.as_binary::<i32>().value(row);
        return msgpack::check(bytes).map(|()| Value::Any(bytes.into()));
    }
    let mut packed = Vec::new();
    pack(array, row, &mut packed, msgpack::DEPTH_MAX)?;
    match packed[..] {
        [NIL] => Ok(Value::Null),
        _ => Ok(Value::Any(packed.into())),
    }
}

/// The msgpack of null.
const NIL: u8 = 0xc0;

fn decimal(rescale: &Rescale, units: i128, to: u8, is_null: bool) -> Result<Value, String> {
    if is_null {
        return Ok(Value::Null);
    }
    let exactly = rescale.exactly(units);
    let units = exactly.map_err(|why| rescale.message(&units.to_string(), why))?;
    Ok(Value::Decimal(units, to))
}

/// Returns the reason why an Arrow type has no values for Tidemill.
pub fn refusal(ty: &ArrowType) -> String {
    match ty {
        ArrowType::Duration(_) | ArrowType::Interval(_) => {
            format!("a column can't hold a span of time ({ty}): send a number in the unit you mean")
        }
        ArrowType::Time32(_) | ArrowType::Time64(_) => {
            format!("a column can't hold a time of day ({ty})")
        }
        ty => format!("Arrow's type {ty} is not supported"),
    }
}

/// Returns one value of an array of any supported type, or the reason why it is not supported.
pub fn value_of(array: &dyn Array, row: usize) -> Result<Value, String> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    macro_rules! int {
        ($ty:ty) => {
            Value::Int(i64::from(array.as_primitive::<$ty>().value(row)))
        };
    }
    macro_rules! time {
        ($ty:ty, $unit:ident) => {
            Value::Timestamp(micros(array.as_primitive::<$ty>().value(row), TimeUnit::$unit)?)
        };
    }
    macro_rules! decimal {
        ($ty:ty, $scale:expr) => {
            of_decimal(&array.as_primitive::<$ty>().value(row).to_string(), *$scale)?
        };
    }
    Ok(match array.data_type() {
        ArrowType::Null => Value::Null,
        ArrowType::Int8 => int!(Int8Type),
        ArrowType::Int16 => int!(Int16Type),
        ArrowType::Int32 => int!(Int32Type),
        ArrowType::Int64 => int!(Int64Type),
        ArrowType::UInt8 => int!(UInt8Type),
        ArrowType::UInt16 => int!(UInt16Type),
        ArrowType::UInt32 => int!(UInt32Type),
        ArrowType::UInt64 => {
            let wide = array.as_primitive::<UInt64Type>().value(row);
            Value::Int(i64::try_from(wide).map_err(|_| format!("{wide} is out of range"))?)
        }
        ArrowType::Float32 => {
            Value::Float(canonical_f64(array.as_primitive::<Float32Type>().value(row).into()))
        }
        ArrowType::Float64 => {
            Value::Float(canonical_f64(array.as_primitive::<Float64Type>().value(row)))
        }
        ArrowType::Boolean => Value::Bool(array.as_boolean().value(row)),
        ArrowType::Utf8 => Value::str(array.as_string::<i32>().value(row)),
        ArrowType::LargeUtf8 => Value::str(array.as_string::<i64>().value(row)),
        ArrowType::Utf8View => Value::str(array.as_string_view().value(row)),
        ArrowType::Binary => Value::Bytes(array.as_binary::<i32>().value(row).into()),
        ArrowType::LargeBinary => Value::Bytes(array.as_binary::<i64>().value(row).into()),
        ArrowType::BinaryView => Value::Bytes(array.as_binary_view().value(row).into()),
        ArrowType::FixedSizeBinary(_) => {
            Value::Bytes(array.as_fixed_size_binary().value(row).into())
        }
        ArrowType::Timestamp(TimeUnit::Second, _) => time!(TimestampSecondType, Second),
        ArrowType::Timestamp(TimeUnit::Millisecond, _) => {
            time!(TimestampMillisecondType, Millisecond)
        }
        ArrowType::Timestamp(TimeUnit::Microsecond, _) => {
            time!(TimestampMicrosecondType, Microsecond)
        }
        ArrowType::Timestamp(TimeUnit::Nanosecond, _) => time!(TimestampNanosecondType, Nanosecond),
        ArrowType::Date32 => {
            let days = i64::from(array.as_primitive::<Date32Type>().value(row));
            Value::Timestamp(check_years(days.saturating_mul(86_400_000_000))?)
        }
        ArrowType::Date64 => time!(Date64Type, Millisecond),
        ArrowType::Decimal32(_, scale) => decimal!(Decimal32Type, scale),
        ArrowType::Decimal64(_, scale) => decimal!(Decimal64Type, scale),
        ArrowType::Decimal128(_, scale) => decimal!(Decimal128Type, scale),
        ArrowType::Decimal256(_, scale) => decimal!(Decimal256Type, scale),
        ArrowType::Dictionary(..) | ArrowType::RunEndEncoded(..) => match entry(array, row)? {
            Some((values, row)) => value_of(values, row)?,
            None => Value::Null,
        },
        other => match items(array, row) {
            Some(items) => list(&*items)?,
            None => return Err(refusal(other)),
        },
    })
}

/// Returns the items of a list in an array of any kind of lists.
fn items(array: &dyn Array, row: usize) -> Option<ArrayRef> {
    if array.is_null(row) {
        return None;
    }
    Some(match array.data_type() {
        ArrowType::List(_) => array.as_list::<i32>().value(row),
        ArrowType::LargeList(_) => array.as_list::<i64>().value(row),
        ArrowType::ListView(_) => array.as_list_view::<i32>().value(row),
        ArrowType::LargeListView(_) => array.as_list_view::<i64>().value(row),
        ArrowType::FixedSizeList(..) => array.as_fixed_size_list().value(row),
        _ => return None,
    })
}

fn list(items: &dyn Array) -> Result<Value, String> {
    let item = |row| value_of(items, row).map_err(|why| format!("item {row}: {why}"));
    Ok(Value::List((0..items.len()).map(item).collect::<Result<_, _>>()?))
}

/// Returns the values of a dictionary or of runs, and the row in them.
fn entry(array: &dyn Array, row: usize) -> Result<Option<(&dyn Array, usize)>, String> {
    macro_rules! of_run {
        ($ty:ty) => {
            if let Some(runs) = array.as_run_opt::<$ty>() {
                return Ok(Some((&**runs.values(), runs.get_physical_index(row))));
            }
        };
    }
    of_run!(Int16Type);
    of_run!(Int32Type);
    of_run!(Int64Type);
    let dictionary = array.as_any_dictionary();
    Ok(match value_of(dictionary.keys(), row)? {
        Value::Int(key) => Some((&**dictionary.values(), usize::try_from(key).unwrap_or(0))),
        _ => None,
    })
}

fn of_decimal(units: &str, scale: i8) -> Result<Value, String> {
    // The scale stays as it is, up to the largest scale of Tidemill's decimals.
    let to = u8::try_from(scale).unwrap_or(0).min(DataType::SCALE_MAX);
    let rescale = Rescale::new(scale, to);
    let exactly = rescale.by_digits(units);
    Ok(Value::Decimal(exactly.map_err(|why| rescale.message(units, why))?, to))
}

/// Appends a value as msgpack.
fn pack(array: &dyn Array, row: usize, out: &mut Vec<u8>, depth: usize) -> Result<(), String> {
    let deeper = depth.checked_sub(1).ok_or("a value is nested too deep")?;
    if array.is_null(row) {
        out.push(NIL);
        return Ok(());
    }
    let items = match array.data_type() {
        ArrowType::UInt64 => {
            msgpack::put_unsigned(array.as_primitive::<UInt64Type>().value(row), out);
            return Ok(());
        }
        ArrowType::Dictionary(..) | ArrowType::RunEndEncoded(..) => {
            return match entry(array, row)? {
                Some((values, row)) => pack(values, row, out, deeper),
                None => {
                    out.push(NIL);
                    Ok(())
                }
            }
        }
        ArrowType::Struct(fields) => {
            let start = out.len();
            for (field, values) in fields.iter().zip(array.as_struct().columns()) {
                msgpack::put_str(field.name(), out);
                pack(values, row, out, deeper)
                    .map_err(|why| format!("field '{}': {why}", field.name()))?;
            }
            return msgpack::insert_head(out, start, fields.len(), 0x80, 0xde);
        }
        ArrowType::Map(..) => return pack_map(&array.as_map().value(row), out, deeper),
        _ => match items(array, row) {
            Some(items) => items,
            None => {
                msgpack::put(&value_of(array, row)?, out);
                return Ok(());
            }
        },
    };
    let start = out.len();
    for row in 0..items.len() {
        pack(&*items, row, out, deeper).map_err(|why| format!("item {row}: {why}"))?;
    }
    msgpack::insert_head(out, start, items.len(), 0x90, 0xdc)
}

fn pack_map(
    entries: &arrow_array::StructArray,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), String> {
    let (start, mut keys) = (out.len(), Vec::with_capacity(entries.len()));
    for row in 0..entries.len() {
        let from = out.len();
        pack(entries.column(0), row, out, depth)?;
        keys.push(out[from..].to_vec());
        pack(entries.column(1), row, out, depth)?;
    }
    keys.sort_unstable();
    match keys.windows(2).any(|two| two[0] == two[1]) {
        true => Err("a map has the same key twice".into()),
        false => msgpack::insert_head(out, start, entries.len(), 0x80, 0xde),
    }
}
