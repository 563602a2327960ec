//! Operators over columns. The rules of [`tidemill_core::rules`] are the meaning of each.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow_buffer::BooleanBuffer;
use tidemill_core::rules::{self, Binary, Fault, Unary};
use tidemill_core::{DataType, Value};

use super::{by_value, union, ByValue, Many, Values};

/// The largest integer up to which each one is a float.
const EXACT: i64 = 1 << 53;

/// Returns the units of an integer, timestamp or decimal.
pub(super) fn word(value: &Value) -> Option<i64> {
    match value {
        Value::Int(word) | Value::Timestamp(word) | Value::Decimal(word, _) => Some(*word),
        _ => None,
    }
}

/// The operands of a kernel: a slice, or one value for all rows.
#[derive(Clone, Copy)]
enum Operand<'a, T> {
    Many(&'a [T]),
    One(T),
}

impl<T: Copy> Operand<'_, T> {
    #[inline]
    fn get(&self, row: usize) -> T {
        match self {
            Operand::Many(slice) => slice[row],
            Operand::One(value) => *value,
        }
    }
}

/// Calls `$kernel` with the two operands as functions of the row, so that each combination of slice
/// and single value gets a loop of its own.
macro_rules! each {
    ($l:expr, $r:expr, $rows:expr, |$a:ident, $b:ident| $kernel:expr) => {
        match ($l, $r) {
            (Operand::Many(l), Operand::Many(r)) => {
                let (l, r) = (&l[..$rows], &r[..$rows]);
                let ($a, $b) = (|row: usize| l[row], |row: usize| r[row]);
                $kernel
            }
            (Operand::Many(l), Operand::One(r)) => {
                let l = &l[..$rows];
                let ($a, $b) = (|row: usize| l[row], |_: usize| r);
                $kernel
            }
            (Operand::One(l), Operand::Many(r)) => {
                let r = &r[..$rows];
                let ($a, $b) = (|_: usize| l, |row: usize| r[row]);
                $kernel
            }
            (l, r) => {
                let ($a, $b) = (|row: usize| l.get(row), |row: usize| r.get(row));
                $kernel
            }
        }
    };
}

fn words(values: &Values) -> Option<Operand<'_, i64>> {
    Some(match values {
        Values::Many(many) => Operand::Many(many.array.as_primitive_opt::<Int64Type>()?.values()),
        Values::One(value) => Operand::One(word(value)?),
        Values::Nothing => return None,
    })
}

fn floats(values: &Values) -> Option<Operand<'_, f64>> {
    Some(match values {
        Values::Many(many) => Operand::Many(many.array.as_primitive_opt::<Float64Type>()?.values()),
        Values::One(Value::Float(float)) => Operand::One(*float),
        _ => return None,
    })
}

fn texts(values: &Values) -> Option<Texts<'_>> {
    Some(match values {
        Values::Many(many) => Texts::Many(many.array.as_string_opt::<i32>()?),
        Values::One(Value::Str(text)) => Texts::One(text),
        _ => return None,
    })
}

enum Texts<'a> {
    Many(&'a StringArray),
    One(&'a str),
}

impl Texts<'_> {
    #[inline]
    fn get(&self, row: usize) -> &str {
        match self {
            Texts::Many(array) => array.value(row),
            Texts::One(text) => text,
        }
    }
}

fn type_of(values: &Values) -> Option<DataType> {
    match values {
        Values::Many(many) => Some(many.ty.clone()),
        Values::One(value) => crate::program::expr::type_of(value),
        Values::Nothing => None,
    }
}

/// Computes `op` on a column. Returns `None` if the result would be too large.
pub(super) fn unary(op: &Unary, x: &Values, ty: &DataType) -> Option<Values> {
    let many = match x {
        Values::Nothing => return Some(Values::Nothing),
        Values::One(value) => {
            return Some(rules::unary(op, value).map_or(Values::Nothing, Values::One))
        }
        Values::Many(many) => many,
    };
    let rows = many.array.len();
    let bools = |mask: BooleanBuffer, failed| {
        let array = Arc::new(BooleanArray::new(mask, None)) as ArrayRef;
        Some(Values::Many(Many { ty: DataType::Bool, array, failed }))
    };
    if *op == Unary::IsNull {
        let nulls = many.nulls().unwrap_or_else(|| BooleanBuffer::new_unset(rows));
        return bools(nulls, many.failed.clone());
    }
    // All other operators need a value.
    let failed = union(many.failed.clone(), many.nulls());
    let ints = |array: Int64Array, failed| {
        Some(Values::Many(Many { ty: ty.clone(), array: Arc::new(array), failed }))
    };
    let array = &many.array;
    match (op, &many.ty) {
        (Unary::Not, DataType::Bool) => bools(!array.as_boolean().values(), failed),
        (Unary::Neg | Unary::Abs, DataType::Int | DataType::Decimal(_)) => {
            let slice = array.as_primitive::<Int64Type>().values();
            let is_lowest = |row: usize| slice[row] == i64::MIN;
            let lowest = slice.contains(&i64::MIN);
            let lowest = lowest.then(|| BooleanBuffer::collect_bool(rows, is_lowest));
            let compute = if *op == Unary::Neg { i64::wrapping_neg } else { i64::wrapping_abs };
            let computed = slice.iter().map(|word| compute(*word)).collect();
            ints(Int64Array::new(computed, None), union(failed, lowest))
        }
        (Unary::Neg | Unary::Abs, DataType::Float) => {
            let slice = array.as_primitive::<Float64Type>().values();
            let compute = if *op == Unary::Neg { |f: f64| -f } else { f64::abs };
            let computed = slice.iter().map(|float| compute(*float)).collect();
            let array = Arc::new(Float64Array::new(computed, None));
            Some(Values::Many(Many { ty: ty.clone(), array, failed }))
        }
        (Unary::Cast(to), from) if to == from && !matches!(to, DataType::List(_)) => {
            Some(Values::Many(Many { failed, ..many.clone() }))
        }
        (Unary::Cast(DataType::Int), DataType::Timestamp)
        | (Unary::Cast(DataType::Timestamp), DataType::Int) => {
            Some(Values::Many(Many { ty: ty.clone(), array: array.clone(), failed }))
        }
        (Unary::Cast(DataType::Float), DataType::Int) => {
            let slice = array.as_primitive::<Int64Type>().values();
            let computed = slice.iter().map(|int| *int as f64).collect();
            let array = Arc::new(Float64Array::new(computed, None));
            Some(Values::Many(Many { ty: ty.clone(), array, failed }))
        }
        (Unary::Cast(DataType::Int), DataType::Bool) => {
            let mask = array.as_boolean().values();
            ints(Int64Array::new(mask.iter().map(i64::from).collect(), None), failed)
        }
        (Unary::Len, DataType::Str) => {
            let texts = array.as_string::<i32>();
            let count = |row: usize| texts.value(row).chars().count() as i64;
            ints(Int64Array::new((0..rows).map(count).collect(), None), failed)
        }
        (Unary::Len, DataType::Bytes) => {
            let bytes = array.as_binary::<i32>();
            let len = |row: usize| i64::from(bytes.value_length(row));
            ints(Int64Array::new((0..rows).map(len).collect(), None), failed)
        }
        _ => by_value(many, ty, |value| rules::unary(op, value)).map(Values::Many),
    }
}

/// Computes `op` on two columns. Returns `None` if the result would be too large.
pub(super) fn binary(op: Binary, l: &Values, r: &Values, ty: &DataType) -> Option<Values> {
    let rows = match (l, r) {
        (Values::Nothing, _) | (_, Values::Nothing) => return Some(Values::Nothing),
        (Values::One(l), Values::One(r)) => {
            return Some(rules::binary(op, l, r).map_or(Values::Nothing, Values::One))
        }
        (Values::Many(many), _) | (_, Values::Many(many)) => many.array.len(),
    };
    let is_equality = matches!(op, Binary::Eq | Binary::Ne);
    let is_null = |values: &Values| matches!(values, Values::One(Value::Null));
    if is_null(l) || is_null(r) {
        if !is_equality {
            return Some(Values::Nothing);
        }
        let other = if is_null(l) { r } else { l };
        let is = unary(&Unary::IsNull, other, ty)?;
        return if op == Binary::Eq { Some(is) } else { unary(&Unary::Not, &is, ty) };
    }
    let failed = |values: &Values| match values {
        Values::Many(many) => many.failed.clone(),
        _ => None,
    };
    let nulls = |values: &Values| match values {
        Values::Many(many) => many.nulls(),
        _ => None,
    };
    let failed = union(failed(l), failed(r));
    let (no_l, no_r) = (nulls(l), nulls(r));
    let Some(computed) = kernel(op, l, r, rows, ty) else {
        return pair_by_value(op, l, r, rows, ty);
    };
    if !is_equality {
        let failed = union(union(failed, computed.failed), union(no_l, no_r));
        return Some(Values::Many(Many { failed, ..computed }));
    }
    // Null equals null, and nothing else.
    if no_l.is_none() && no_r.is_none() {
        return Some(Values::Many(Many { failed, ..computed }));
    }
    let none = || BooleanBuffer::new_unset(rows);
    let (no_l, no_r) = (no_l.unwrap_or_else(none), no_r.unwrap_or_else(none));
    let (one, both) = (&no_l | &no_r, &no_l & &no_r);
    let mask = computed.array.as_boolean().values();
    let mask = match op {
        Binary::Eq => &(mask & &!&one) | &both,
        _ => &(mask | &one) & &!&both,
    };
    let array = Arc::new(BooleanArray::new(mask, None));
    Some(Values::Many(Many { array, failed, ..computed }))
}

/// Computes `op` on each pair of values by the rules.
fn pair_by_value(op: Binary, l: &Values, r: &Values, rows: usize, ty: &DataType) -> Option<Values> {
    let value = |values: &Values, row: usize| match values {
        Values::One(value) => Ok(value.clone()),
        Values::Many(many) if !many.has_failed(row) => Ok(many.value(row)),
        Values::Many(_) | Values::Nothing => Err(Fault::NULL),
    };
    let mut computed = ByValue::new(ty, rows);
    for row in 0..rows {
        let pair = value(l, row).and_then(|l| Ok((l, value(r, row)?)));
        computed.push(pair.and_then(|(l, r)| rules::binary(op, &l, &r)))?;
    }
    Some(Values::Many(computed.finish(ty)))
}

/// Computes `op` in a loop over the values, whether they are null or not. The rows that have no
/// result are among the failed ones. Returns `None` if there is no such loop.
fn kernel(op: Binary, l: &Values, r: &Values, rows: usize, ty: &DataType) -> Option<Many> {
    use DataType as T;
    let (lt, rt) = (type_of(l)?, type_of(r)?);
    match (&lt, &rt) {
        (T::Bool, T::Bool) => bools(op, l, r, rows),
        (T::Str, T::Str) => {
            let (l, r) = (texts(l)?, texts(r)?);
            let mask = |test: fn(&str, &str) -> bool| {
                BooleanBuffer::collect_bool(rows, |row| test(l.get(row), r.get(row)))
            };
            Some(of_mask(match op {
                Binary::Eq => mask(|l, r| l == r),
                Binary::Ne => mask(|l, r| l != r),
                Binary::Lt => mask(|l, r| l < r),
                Binary::Le => mask(|l, r| l <= r),
                Binary::Gt => mask(|l, r| l > r),
                Binary::Ge => mask(|l, r| l >= r),
                Binary::StartsWith => mask(|l, r| l.starts_with(r)),
                Binary::EndsWith => mask(|l, r| l.ends_with(r)),
                Binary::Contains => mask(|l, r| l.contains(r)),
                _ => return None,
            }))
        }
        (T::Float, T::Float) => of_floats(op, floats(l)?, floats(r)?, rows),
        (T::Float, T::Int) => of_floats(op, floats(l)?, exact(op, r)?, rows),
        (T::Int, T::Float) => of_floats(op, exact(op, l)?, floats(r)?, rows),
        (T::Timestamp, T::Int) | (T::Int, T::Timestamp) => match op {
            Binary::Add | Binary::Sub => of_words(op, words(l)?, words(r)?, rows, ty),
            _ => None,
        },
        (T::Int, T::Int) | (T::Timestamp, T::Timestamp) => {
            of_words(op, words(l)?, words(r)?, rows, ty)
        }
        (T::Decimal(_), T::Decimal(_) | T::Int) | (T::Int, T::Decimal(_)) => {
            let scale = |ty: &T| if let T::Decimal(scale) = ty { *scale } else { 0 };
            let (l, r, s, t) = (words(l)?, words(r)?, scale(&lt), scale(&rt));
            match op {
                Binary::Mul => of_words(op, l, r, rows, ty),
                _ if s == t => of_words(op, l, r, rows, ty),
                _ => of_scaled(op, l, r, (s, t), rows, ty),
            }
        }
        _ => None,
    }
}

fn of_mask(mask: BooleanBuffer) -> Many {
    Many { ty: DataType::Bool, array: Arc::new(BooleanArray::new(mask, None)), failed: None }
}

fn bools(op: Binary, l: &Values, r: &Values, rows: usize) -> Option<Many> {
    let mask = |values: &Values| match values {
        Values::Many(many) => many.array.as_boolean_opt().map(|array| array.values().clone()),
        Values::One(Value::Bool(true)) => Some(BooleanBuffer::new_set(rows)),
        Values::One(Value::Bool(false)) => Some(BooleanBuffer::new_unset(rows)),
        _ => None,
    };
    let (l, r) = (mask(l)?, mask(r)?);
    Some(of_mask(match op {
        Binary::And => &l & &r,
        Binary::Or => &l | &r,
        Binary::Eq => !&(&l ^ &r),
        Binary::Ne => &l ^ &r,
        _ => return None,
    }))
}

/// Returns the integers as floats, if the operator then has the same result. Arithmetic always
/// converts them. Comparisons are exact, so only an integer that is a float may be converted.
fn exact(op: Binary, values: &Values) -> Option<Operand<'_, f64>> {
    match (op, values) {
        (_, Values::One(Value::Int(int))) if (-EXACT..=EXACT).contains(int) => {
            Some(Operand::One(*int as f64))
        }
        _ => None,
    }
}

/// Returns where a test of two operands is true.
macro_rules! mask {
    ($l:expr, $r:expr, $rows:expr, $test:expr) => {
        each!($l, $r, $rows, |a, b| BooleanBuffer::collect_bool($rows, |row| $test(a(row), b(row))))
    };
}

fn of_floats(op: Binary, l: Operand<'_, f64>, r: Operand<'_, f64>, rows: usize) -> Option<Many> {
    macro_rules! floats {
        ($compute:expr) => {
            each!(l, r, rows, |a, b| (0..rows).map(|row| $compute(a(row), b(row))).collect())
        };
    }
    let mut failed = None;
    let computed: Vec<f64> = match op {
        Binary::Add => floats!(|a, b| a + b),
        Binary::Sub => floats!(|a, b| a - b),
        Binary::Mul => floats!(|a, b| a * b),
        Binary::Div => {
            let is_zero = |row: usize| r.get(row) == 0.0;
            let zeros = BooleanBuffer::collect_bool(rows, is_zero);
            failed = Some(zeros).filter(|zeros| zeros.count_set_bits() > 0);
            floats!(|a, b| a / b)
        }
        Binary::Min => floats!(|a, b| if b < a { b } else { a }),
        Binary::Max => floats!(|a, b| if b > a { b } else { a }),
        Binary::Eq => return Some(of_mask(mask!(l, r, rows, |a, b| a == b))),
        Binary::Ne => return Some(of_mask(mask!(l, r, rows, |a, b| a != b))),
        Binary::Lt => return Some(of_mask(mask!(l, r, rows, |a, b| a < b))),
        Binary::Le => return Some(of_mask(mask!(l, r, rows, |a, b| a <= b))),
        Binary::Gt => return Some(of_mask(mask!(l, r, rows, |a, b| a > b))),
        Binary::Ge => return Some(of_mask(mask!(l, r, rows, |a, b| a >= b))),
        _ => return None,
    };
    Some(Many { ty: DataType::Float, array: Arc::new(Float64Array::from(computed)), failed })
}

/// Computes `op` on integers, or on units of one scale. A product may have any scales.
fn of_words(
    op: Binary,
    l: Operand<'_, i64>,
    r: Operand<'_, i64>,
    rows: usize,
    ty: &DataType,
) -> Option<Many> {
    macro_rules! words {
        ($compute:expr) => {
            each!(l, r, rows, |a, b| (0..rows).map(|row| $compute(a(row), b(row))).collect())
        };
    }
    // Results outside the range are rare, so their rows are searched for afterwards.
    macro_rules! checked {
        ($compute:expr, $checked:expr) => {{
            let mut overflows = false;
            let computed: Vec<i64> = words!(|a, b| {
                let (word, is_over) = $compute(a, b);
                overflows |= is_over;
                word
            });
            let is_over = |row: usize| $checked(l.get(row), r.get(row)).is_none();
            (computed, overflows.then(|| BooleanBuffer::collect_bool(rows, is_over)))
        }};
    }
    let (computed, failed) = match op {
        Binary::Add => checked!(i64::overflowing_add, i64::checked_add),
        Binary::Sub => checked!(i64::overflowing_sub, i64::checked_sub),
        Binary::Mul => checked!(i64::overflowing_mul, i64::checked_mul),
        Binary::FloorDiv if *ty == DataType::Int => {
            let quotient = |a: i64, b: i64| if b == 0 { None } else { rules::floor_div(a, b) };
            checked!(|a, b| quotient(a, b).map_or((0, true), |word| (word, false)), quotient)
        }
        Binary::Mod if *ty == DataType::Int => {
            let rest = |a: i64, b: i64| (b != 0).then(|| rules::floor_mod(a, b));
            checked!(|a, b| rest(a, b).map_or((0, true), |word| (word, false)), rest)
        }
        Binary::Min => (words!(|a: i64, b: i64| a.min(b)), None),
        Binary::Max => (words!(|a: i64, b: i64| a.max(b)), None),
        Binary::Eq => return Some(of_mask(mask!(l, r, rows, |a, b| a == b))),
        Binary::Ne => return Some(of_mask(mask!(l, r, rows, |a, b| a != b))),
        Binary::Lt => return Some(of_mask(mask!(l, r, rows, |a, b| a < b))),
        Binary::Le => return Some(of_mask(mask!(l, r, rows, |a, b| a <= b))),
        Binary::Gt => return Some(of_mask(mask!(l, r, rows, |a, b| a > b))),
        Binary::Ge => return Some(of_mask(mask!(l, r, rows, |a, b| a >= b))),
        _ => return None,
    };
    Some(Many { ty: ty.clone(), array: Arc::new(Int64Array::from(computed)), failed })
}

/// Computes `op` on decimals of different scales, or on a decimal and an integer.
fn of_scaled(
    op: Binary,
    l: Operand<'_, i64>,
    r: Operand<'_, i64>,
    (s, t): (u8, u8),
    rows: usize,
    ty: &DataType,
) -> Option<Many> {
    let scale = s.max(t);
    let (by_l, by_r) = (rules::pow10(scale - s), rules::pow10(scale - t));
    let wide = |row: usize| (i128::from(l.get(row)) * by_l, i128::from(r.get(row)) * by_r);
    let mask = |test: fn(Ordering) -> bool| {
        let test = |row: usize| {
            let (a, b) = wide(row);
            test(a.cmp(&b))
        };
        Some(of_mask(BooleanBuffer::collect_bool(rows, test)))
    };
    let compute: fn(i128, i128) -> i128 = match op {
        Binary::Add => |a, b| a + b,
        Binary::Sub => |a, b| a - b,
        Binary::Min => |a, b| if b < a { b } else { a },
        Binary::Max => |a, b| if b > a { b } else { a },
        Binary::Eq => return mask(Ordering::is_eq),
        Binary::Ne => return mask(Ordering::is_ne),
        Binary::Lt => return mask(Ordering::is_lt),
        Binary::Le => return mask(Ordering::is_le),
        Binary::Gt => return mask(Ordering::is_gt),
        Binary::Ge => return mask(Ordering::is_ge),
        _ => return None,
    };
    let units = |row: usize| {
        let (a, b) = wide(row);
        i64::try_from(compute(a, b)).ok()
    };
    let computed: Vec<Option<i64>> = (0..rows).map(units).collect();
    let is_over = |row: usize| computed[row].is_none();
    let failed = computed.contains(&None).then(|| BooleanBuffer::collect_bool(rows, is_over));
    let array = Int64Array::from_iter_values(computed.iter().map(|word| word.unwrap_or(0)));
    Some(Many { ty: ty.clone(), array: Arc::new(array), failed })
}
