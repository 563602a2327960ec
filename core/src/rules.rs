//! The meaning of the operators: the one implementation of the rules in `docs/reference/values.md`.
//!
//! Types are checked once, when a program is built ([`unary_type`], [`binary_type`]). [`unary`] and
//! [`binary`] compute values. A fault (overflow, division by zero, arithmetic on null) aborts the
//! transaction, with the fault as the reason. It is an outcome, never a panic.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::schema::Column;
use crate::types::DataType;
use crate::value::{check_years, format_decimal, format_timestamp, Value};

mod decimal;

pub use decimal::{
    is_number, parse_any_decimal, parse_decimal, parse_number, units, Inexact, Rescale,
};

/// An operator with one operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unary {
    /// `-x` of a number.
    Neg,
    /// `~x` of a boolean.
    Not,
    /// Absolute value of a number.
    Abs,
    /// Whether the operand is null. Besides `==`, it is the only operator that accepts nulls.
    IsNull,
    /// Length: of a text in characters, of bytes in bytes, of a list in items.
    Len,
    /// Text in lower case.
    Lower,
    /// Text in upper case.
    Upper,
    /// Text without white space at its ends.
    Strip,
    /// Conversion to a type.
    Cast(DataType),
}

/// An operator with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binary {
    /// Sum; concatenation of texts, bytes and lists; a timestamp plus microseconds.
    Add,
    /// Difference. The difference of two timestamps is in microseconds.
    Sub,
    /// Product.
    Mul,
    /// True division of integers and floats. Its result is a float.
    Div,
    /// Division of decimals and integers to a decimal of this scale, rounded half to even.
    DivScale(u8),
    /// Division rounded towards minus infinity.
    FloorDiv,
    /// The remainder of [`Binary::FloorDiv`]. It has the divisor's sign.
    Mod,
    /// The smaller operand, or the first if neither is smaller.
    Min,
    /// The larger operand, or the first if neither is larger.
    Max,
    /// Equality. Null equals null and nothing else; NaN equals nothing.
    Eq,
    /// The negation of [`Binary::Eq`].
    Ne,
    /// Whether the first operand is less than the second.
    Lt,
    /// Whether the first operand is less than or equal to the second.
    Le,
    /// Whether the first operand is greater than the second.
    Gt,
    /// Whether the first operand is greater than or equal to the second.
    Ge,
    /// Logical and. Both sides are evaluated.
    And,
    /// Logical or. Both sides are evaluated.
    Or,
    /// Whether the first text begins with the second.
    StartsWith,
    /// Whether the first text ends with the second.
    EndsWith,
    /// Whether the first text contains the second, or the first list the item.
    Contains,
}

/// The reason why an operation has no result, which becomes the reason of the abort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub Cow<'static, str>);

impl Fault {
    /// A result is outside the range of its type.
    pub const OVERFLOW: Fault = Fault(Cow::Borrowed("overflow"));
    /// Division by zero.
    pub const DIVISION_BY_ZERO: Fault = Fault(Cow::Borrowed("division by zero"));
    /// An operand is null where a value is needed.
    pub const NULL: Fault = Fault(Cow::Borrowed("null where a value is needed"));
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn mismatch(what: &str, l: &DataType, r: &DataType) -> String {
    format!("{what} is not defined for {l} and {r}")
}

/// Returns the type of `op` on an operand of type `ty`, or the reason why there is none.
pub fn unary_type(op: &Unary, ty: &DataType) -> Result<DataType, String> {
    use DataType::*;
    let refuse = |what: &str| Err(format!("{what} is not defined for {ty}"));
    match op {
        Unary::Neg if ty.is_number() => Ok(ty.clone()),
        Unary::Neg => refuse("-"),
        Unary::Abs if ty.is_number() => Ok(ty.clone()),
        Unary::Abs => refuse("abs"),
        Unary::Not if *ty == Bool => Ok(Bool),
        Unary::Not => refuse("~ (not)"),
        Unary::IsNull => Ok(Bool),
        Unary::Len if matches!(ty, Str | Bytes | List(_)) => Ok(Int),
        Unary::Len => refuse("length"),
        Unary::Lower | Unary::Upper | Unary::Strip if *ty == Str => Ok(Str),
        Unary::Lower | Unary::Upper | Unary::Strip => refuse("a string function"),
        Unary::Cast(to) => {
            let number = |ty: &DataType| matches!(ty, Int | Float | Decimal(_));
            let possible = ty == to
                || (number(ty) && number(to))
                || matches!(
                    (ty, to),
                    (Bool | Timestamp, Int)
                        | (Int, Timestamp)
                        | (Str, Int | Float | Decimal(_))
                        | (Int | Bool | Decimal(_) | Timestamp, Str)
                );
            if possible {
                Ok(to.clone())
            } else {
                Err(format!("there is no conversion from {ty} to {to}"))
            }
        }
    }
}

/// Returns the type of `op` on operands of types `l` and `r`, or the reason why there is none.
pub fn binary_type(op: Binary, l: &DataType, r: &DataType) -> Result<DataType, String> {
    use DataType::*;
    let name = symbol(op);
    let number = |l: &DataType, r: &DataType| match (l, r) {
        (Int, Int) => Ok(Int),
        (Float, Int | Float) | (Int, Float) => Ok(Float),
        (Decimal(a), Decimal(b)) => Ok(Decimal(*a.max(b))),
        (Decimal(a), Int) | (Int, Decimal(a)) => Ok(Decimal(*a)),
        (Float, Decimal(_)) | (Decimal(_), Float) => Err(format!(
            "{name} mixes {l} and {r}: say which is meant with tm.cast(x, float) or \
             tm.cast(x, tm.decimal(2))"
        )),
        _ => Err(mismatch(name, l, r)),
    };
    match op {
        Binary::Add => match (l, r) {
            (Str, Str) => Ok(Str),
            (Bytes, Bytes) => Ok(Bytes),
            (List(a), List(b)) if a == b => Ok(l.clone()),
            (Timestamp, Int) | (Int, Timestamp) => Ok(Timestamp),
            _ => number(l, r),
        },
        Binary::Sub => match (l, r) {
            (Timestamp, Int) => Ok(Timestamp),
            (Timestamp, Timestamp) => Ok(Int),
            _ => number(l, r),
        },
        Binary::Mul => match (l, r) {
            (Decimal(a), Decimal(b)) if a + b > DataType::SCALE_MAX => Err(format!(
                "{l} * {r} would have {} digits after the point; at most {} are possible: cast one \
                 to a smaller scale first",
                a + b,
                DataType::SCALE_MAX
            )),
            (Decimal(a), Decimal(b)) => Ok(Decimal(a + b)),
            _ => number(l, r),
        },
        Binary::Div => match (l, r) {
            (Int | Float, Int | Float) => Ok(Float),
            (Decimal(_) | Int, Decimal(_) | Int) => {
                Err(format!("{l} / {r} has no scale of its own: write tm.div(a, b, scale=2)"))
            }
            _ => number(l, r),
        },
        Binary::DivScale(scale) => match (l, r) {
            (Decimal(_) | Int, Decimal(_) | Int) if scale <= DataType::SCALE_MAX => {
                Ok(Decimal(scale))
            }
            (Decimal(_) | Int, Decimal(_) | Int) => {
                Err(format!("a decimal's scale is 0 to {}, not {scale}", DataType::SCALE_MAX))
            }
            _ => Err(mismatch("tm.div", l, r)),
        },
        Binary::FloorDiv | Binary::Mod => match (l, r) {
            (Int, Int) => Ok(Int),
            (Int | Float, Int | Float) => Ok(Float),
            _ => Err(mismatch(name, l, r)),
        },
        Binary::Min | Binary::Max => {
            if l == r && l.is_ordered() {
                Ok(l.clone())
            } else {
                number(l, r)
            }
        }
        Binary::Eq | Binary::Ne if l == r => Ok(Bool),
        Binary::Eq | Binary::Ne => number(l, r).map(|_| Bool),
        Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => {
            if l == r && l.is_ordered() {
                Ok(Bool)
            } else {
                number(l, r).map(|_| Bool)
            }
        }
        Binary::And | Binary::Or if *l == Bool && *r == Bool => Ok(Bool),
        Binary::And | Binary::Or => Err(format!(
            "{name} is not defined for {l} and {r}: both must be bool (put comparisons in \
             parentheses: (a > b) & (c > d))"
        )),
        Binary::StartsWith | Binary::EndsWith if *l == Str && *r == Str => Ok(Bool),
        Binary::StartsWith | Binary::EndsWith => Err(mismatch(name, l, r)),
        Binary::Contains => match (l, r) {
            (Str, Str) => Ok(Bool),
            (List(item), r) if **item == *r => Ok(Bool),
            _ => Err(mismatch(name, l, r)),
        },
    }
}

/// Returns the operator as a user writes it.
pub fn symbol(op: Binary) -> &'static str {
    match op {
        Binary::Add => "+",
        Binary::Sub => "-",
        Binary::Mul => "*",
        Binary::Div => "/",
        Binary::DivScale(_) => "tm.div",
        Binary::FloorDiv => "//",
        Binary::Mod => "%",
        Binary::Min => "tm.min",
        Binary::Max => "tm.max",
        Binary::Eq => "==",
        Binary::Ne => "!=",
        Binary::Lt => "<",
        Binary::Le => "<=",
        Binary::Gt => ">",
        Binary::Ge => ">=",
        Binary::And => "&",
        Binary::Or => "|",
        Binary::StartsWith => "startswith",
        Binary::EndsWith => "endswith",
        Binary::Contains => "contains",
    }
}

/// Computes `op` on a value.
pub fn unary(op: &Unary, v: &Value) -> Result<Value, Fault> {
    if let Unary::IsNull = op {
        return Ok(Value::Bool(v.is_null()));
    }
    if v.is_null() {
        return Err(Fault::NULL);
    }
    let neg = |i: i64| i.checked_neg().ok_or(Fault::OVERFLOW);
    Ok(match (op, v) {
        (Unary::Neg, Value::Int(i)) => Value::Int(neg(*i)?),
        (Unary::Neg, Value::Decimal(i, s)) => Value::Decimal(neg(*i)?, *s),
        (Unary::Neg, Value::Float(f)) => Value::Float(-f),
        (Unary::Abs, Value::Int(i)) if *i < 0 => Value::Int(neg(*i)?),
        (Unary::Abs, Value::Decimal(i, s)) if *i < 0 => Value::Decimal(neg(*i)?, *s),
        (Unary::Abs, Value::Int(_) | Value::Decimal(..)) => v.clone(),
        (Unary::Abs, Value::Float(f)) => Value::Float(f.abs()),
        (Unary::Not, Value::Bool(b)) => Value::Bool(!b),
        (Unary::Len, Value::Str(s)) => Value::Int(s.chars().count() as i64),
        (Unary::Len, Value::Bytes(b)) => Value::Int(b.len() as i64),
        (Unary::Len, Value::List(l)) => Value::Int(l.len() as i64),
        (Unary::Lower, Value::Str(s)) => Value::Str(s.to_lowercase().into()),
        (Unary::Upper, Value::Str(s)) => Value::Str(s.to_uppercase().into()),
        (Unary::Strip, Value::Str(s)) => Value::str(s.trim_matches(is_space)),
        (Unary::Cast(to), v) => cast(v, to)?,
        _ => return Err(untyped(v)),
    })
}

/// Whether Python's `str.strip` takes the character for white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

// Only an opaque function, which is untyped, can get here: programs are typed when they are built.
fn untyped(v: &Value) -> Fault {
    Fault(format!("the operator is not defined for {v}").into())
}

/// Computes `op` on two values.
pub fn binary(op: Binary, l: &Value, r: &Value) -> Result<Value, Fault> {
    use Binary::*;
    match op {
        Eq => return Ok(Value::Bool(equal(l, r))),
        Ne => return Ok(Value::Bool(!equal(l, r))),
        _ if l.is_null() || r.is_null() => return Err(Fault::NULL),
        _ => {}
    }
    match op {
        Lt => compare(l, r).map(|o| Value::Bool(o == Some(Ordering::Less))),
        Le => compare(l, r).map(|o| Value::Bool(o.is_some_and(Ordering::is_le))),
        Gt => compare(l, r).map(|o| Value::Bool(o == Some(Ordering::Greater))),
        Ge => compare(l, r).map(|o| Value::Bool(o.is_some_and(Ordering::is_ge))),
        And | Or => match (l, r) {
            (Value::Bool(a), Value::Bool(b)) => {
                Ok(Value::Bool(if op == And { *a && *b } else { *a || *b }))
            }
            _ => Err(untyped(l)),
        },
        Min | Max => {
            let wanted = if op == Min { Ordering::Less } else { Ordering::Greater };
            let taken = if compare(r, l)? == Some(wanted) { r } else { l };
            promote(taken, l, r)
        }
        StartsWith | EndsWith | Contains => match (op, l, r) {
            (StartsWith, Value::Str(a), Value::Str(b)) => Ok(Value::Bool(a.starts_with(&**b))),
            (EndsWith, Value::Str(a), Value::Str(b)) => Ok(Value::Bool(a.ends_with(&**b))),
            (Contains, Value::Str(a), Value::Str(b)) => Ok(Value::Bool(a.contains(&**b))),
            (Contains, Value::List(a), item) => Ok(Value::Bool(a.iter().any(|v| equal(v, item)))),
            _ => Err(untyped(l)),
        },
        _ => arithmetic(op, l, r),
    }
}

/// Converts the chosen one of two values to their common type.
fn promote(taken: &Value, l: &Value, r: &Value) -> Result<Value, Fault> {
    match (l, r) {
        (Value::Float(_), Value::Int(_)) | (Value::Int(_), Value::Float(_)) => {
            cast(taken, &DataType::Float)
        }
        (Value::Decimal(_, a), Value::Decimal(_, b)) => cast(taken, &DataType::Decimal(*a.max(b))),
        (Value::Decimal(_, a), Value::Int(_)) | (Value::Int(_), Value::Decimal(_, a)) => {
            cast(taken, &DataType::Decimal(*a))
        }
        _ => Ok(taken.clone()),
    }
}

fn arithmetic(op: Binary, l: &Value, r: &Value) -> Result<Value, Fault> {
    use Value::*;
    match (l, r) {
        (Int(a), Int(b)) => int_arithmetic(op, *a, *b),
        (Float(a), Float(b)) => float_arithmetic(op, *a, *b),
        (Float(a), Int(b)) => float_arithmetic(op, *a, *b as f64),
        (Int(a), Float(b)) => float_arithmetic(op, *a as f64, *b),
        (Decimal(a, s), Decimal(b, t)) => decimal_arithmetic(op, (*a, *s), (*b, *t)),
        (Decimal(a, s), Int(b)) => decimal_arithmetic(op, (*a, *s), (*b, 0)),
        (Int(a), Decimal(b, t)) => decimal_arithmetic(op, (*a, 0), (*b, *t)),
        (Timestamp(a), Int(b)) | (Int(b), Timestamp(a)) if op == Binary::Add => {
            a.checked_add(*b).map(Timestamp).ok_or(Fault::OVERFLOW)
        }
        (Timestamp(a), Int(b)) if op == Binary::Sub => {
            a.checked_sub(*b).map(Timestamp).ok_or(Fault::OVERFLOW)
        }
        (Timestamp(a), Timestamp(b)) if op == Binary::Sub => {
            a.checked_sub(*b).map(Int).ok_or(Fault::OVERFLOW)
        }
        (Str(a), Str(b)) if op == Binary::Add => {
            bounded(a.len() + b.len())?;
            Ok(Str([&**a, &**b].concat().into()))
        }
        (Bytes(a), Bytes(b)) if op == Binary::Add => {
            bounded(a.len() + b.len())?;
            Ok(Bytes([&**a, &**b].concat().into()))
        }
        (List(a), List(b)) if op == Binary::Add => {
            bounded(l.heap_bytes() + r.heap_bytes())?;
            Ok(List([&**a, &**b].concat().into()))
        }
        _ => Err(untyped(l)),
    }
}

/// The longest text, bytes or list that an operator may produce, in bytes.
///
/// Without this bound, a row that doubles its text with each event would take all memory within
/// forty events.
pub const VALUE_BYTES_MAX: usize = 16 << 20;

fn bounded(bytes: usize) -> Result<(), Fault> {
    if bytes <= VALUE_BYTES_MAX {
        Ok(())
    } else {
        Err(Fault(Cow::Borrowed("a value longer than 16 MiB")))
    }
}

fn int_arithmetic(op: Binary, a: i64, b: i64) -> Result<Value, Fault> {
    let result = match op {
        Binary::Add => a.checked_add(b),
        Binary::Sub => a.checked_sub(b),
        Binary::Mul => a.checked_mul(b),
        Binary::FloorDiv | Binary::Mod | Binary::Div | Binary::DivScale(_) if b == 0 => {
            return Err(Fault::DIVISION_BY_ZERO)
        }
        Binary::FloorDiv => floor_div(a, b),
        Binary::Mod => Some(floor_mod(a, b)),
        Binary::Div => return Ok(Value::Float(int_quotient(i128::from(a), b))),
        Binary::DivScale(scale) => return div_half_even(i128::from(a), 0, i128::from(b), 0, scale),
        _ => None,
    };
    result.map(Value::Int).ok_or(Fault::OVERFLOW)
}

/// Divides and rounds towards minus infinity. Returns `None` on overflow (`i64::MIN // -1`). `b` is
/// not 0.
pub fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

/// Returns the remainder of [`floor_div`]. `b` is not 0.
pub fn floor_mod(a: i64, b: i64) -> i64 {
    let rest = a.wrapping_rem(b);
    if rest != 0 && (rest < 0) != (b < 0) {
        rest + b
    } else {
        rest
    }
}

/// Returns the float nearest to a / b. Dividing two rounded floats would miss it for large
/// integers.
fn int_quotient(a: i128, b: i64) -> f64 {
    const EXACT: u64 = 1 << 53;
    if a.unsigned_abs() <= u128::from(EXACT) && b.unsigned_abs() <= EXACT {
        return a as f64 / b as f64;
    }
    if a == 0 {
        return 0.0;
    }
    let (numerator, divisor) = (a.unsigned_abs(), u128::from(b.unsigned_abs()));
    // At least 64 bits of quotient. A sticky last bit makes the one rounding below right.
    let shift = numerator.leading_zeros();
    let shifted = numerator << shift;
    let quotient = (shifted / divisor) | u128::from(shifted % divisor != 0);
    let magnitude = quotient as f64 / 2f64.powi(shift as i32);
    if (a < 0) == (b < 0) {
        magnitude
    } else {
        -magnitude
    }
}

/// Returns the sum of integers, or of decimals of one scale, from the exact sum of their units.
pub fn sum_of(exact: i128, ty: &DataType) -> Result<Value, Fault> {
    let units = i64::try_from(exact).map_err(|_| Fault::OVERFLOW)?;
    Ok(match ty {
        DataType::Decimal(scale) => Value::Decimal(units, *scale),
        _ => Value::Int(units),
    })
}

/// Returns the mean from the exact sum of the units. `count` is not 0.
///
/// The mean of integers is the nearest float. The mean of decimals has their scale and is rounded
/// half to even.
pub fn mean_of(exact: i128, count: u64, ty: &DataType) -> Value {
    match ty {
        // A mean is between the smallest and the largest value, so it fits.
        DataType::Decimal(scale) => {
            Value::Decimal(round_half_even(exact, i128::from(count)) as i64, *scale)
        }
        _ => Value::Float(int_quotient(exact, count as i64)),
    }
}

fn float_arithmetic(op: Binary, a: f64, b: f64) -> Result<Value, Fault> {
    Ok(Value::Float(match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div | Binary::FloorDiv | Binary::Mod if b == 0.0 => {
            return Err(Fault::DIVISION_BY_ZERO)
        }
        Binary::Div => a / b,
        Binary::FloorDiv => float_div_mod(a, b).0,
        Binary::Mod => float_div_mod(a, b).1,
        _ => return Err(untyped(&Value::Float(a))),
    }))
}

/// Returns the floor division `q` and the remainder `m` of floats. `b` is not 0.
///
/// `a == q * b + m` holds as nearly as floats allow, and `m` has the sign of `b`.
fn float_div_mod(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest != 0.0 {
        if (b < 0.0) != (rest < 0.0) {
            rest += b;
            quotient -= 1.0;
        }
    } else {
        rest = 0f64.copysign(b);
    }
    if quotient != 0.0 {
        let floor = quotient.floor();
        quotient = if quotient - floor > 0.5 { floor + 1.0 } else { floor };
    } else {
        quotient = 0f64.copysign(a / b);
    }
    (quotient, rest)
}

fn decimal_arithmetic(op: Binary, (a, s): (i64, u8), (b, t): (i64, u8)) -> Result<Value, Fault> {
    let scale = s.max(t);
    let wide =
        || -> (i128, i128) { (i128::from(a) * pow10(scale - s), i128::from(b) * pow10(scale - t)) };
    let (units, scale) = match op {
        Binary::Add => (wide().0 + wide().1, scale),
        Binary::Sub => (wide().0 - wide().1, scale),
        Binary::Mul => (i128::from(a) * i128::from(b), s + t),
        Binary::DivScale(_) if b == 0 => return Err(Fault::DIVISION_BY_ZERO),
        Binary::DivScale(scale) => return div_half_even(i128::from(a), s, i128::from(b), t, scale),
        _ => return Err(untyped(&Value::Decimal(a, s))),
    };
    i64::try_from(units).map(|units| Value::Decimal(units, scale)).map_err(|_| Fault::OVERFLOW)
}

/// Returns 10 to the power of `n`, where `n` is at most 36.
pub fn pow10(n: u8) -> i128 {
    10i128.pow(u32::from(n))
}

fn div_half_even(a: i128, s: u8, b: i128, t: u8, scale: u8) -> Result<Value, Fault> {
    // The result is a/10^s / (b/10^t) = a * 10^(scale + t - s) / b, in units of 10^-scale.
    let exponent = i32::from(scale) + i32::from(t) - i32::from(s);
    let overflow = || Fault::OVERFLOW;
    let (numerator, divisor) = if exponent >= 0 {
        (a.checked_mul(pow10(exponent as u8)).ok_or_else(overflow)?, b)
    } else {
        (a, b.checked_mul(pow10((-exponent) as u8)).ok_or_else(overflow)?)
    };
    let units = i64::try_from(round_half_even(numerator, divisor)).map_err(|_| Fault::OVERFLOW)?;
    Ok(Value::Decimal(units, scale))
}

/// Returns the integer nearest to n / d, or the even one of two equally near ones. `d` is not 0.
pub fn round_half_even(n: i128, d: i128) -> i128 {
    let (quotient, rest) = (n / d, n % d);
    let (rest, half) = (rest.unsigned_abs(), d.unsigned_abs());
    let up = match rest.cmp(&(half - rest)) {
        Ordering::Less => false,
        Ordering::Greater => true,
        Ordering::Equal => quotient % 2 != 0,
    };
    match (up, (n < 0) == (d < 0)) {
        (false, _) => quotient,
        (true, true) => quotient + 1,
        (true, false) => quotient - 1,
    }
}

/// Compares as the programs' `==`: null equals only null, NaN equals nothing, numbers compare by
/// value.
pub fn equal(l: &Value, r: &Value) -> bool {
    match (l, r) {
        (Value::Null, Value::Null) => true,
        (Value::Null, _) | (_, Value::Null) => false,
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(x, y)| equal(x, y))
        }
        (Value::Any(a), Value::Any(b)) => a == b,
        _ => matches!(compare(l, r), Ok(Some(Ordering::Equal))),
    }
}

/// Compares two values that are not null. Returns `None` if one is NaN.
pub fn compare(l: &Value, r: &Value) -> Result<Option<Ordering>, Fault> {
    use Value::*;
    Ok(match (l, r) {
        (Null, _) | (_, Null) => return Err(Fault::NULL),
        (Int(a), Int(b)) | (Timestamp(a), Timestamp(b)) => Some(a.cmp(b)),
        (Bool(a), Bool(b)) => Some(a.cmp(b)),
        (Float(a), Float(b)) => a.partial_cmp(b),
        (Int(a), Float(b)) => compare_int_float(*a, *b),
        (Float(a), Int(b)) => compare_int_float(*b, *a).map(Ordering::reverse),
        (Decimal(a, s), Decimal(b, t)) => Some(compare_decimals((*a, *s), (*b, *t))),
        (Decimal(a, s), Int(b)) => Some(compare_decimals((*a, *s), (*b, 0))),
        (Int(a), Decimal(b, t)) => Some(compare_decimals((*a, 0), (*b, *t))),
        (Str(a), Str(b)) => Some(a.cmp(b)),
        (Bytes(a), Bytes(b)) => Some(a.cmp(b)),
        _ => return Err(untyped(l)),
    })
}

fn compare_decimals((a, s): (i64, u8), (b, t): (i64, u8)) -> Ordering {
    let scale = s.max(t);
    (i128::from(a) * pow10(scale - s)).cmp(&(i128::from(b) * pow10(scale - t)))
}

/// Compares exactly, without first rounding an integer beyond 2^53.
fn compare_int_float(i: i64, f: f64) -> Option<Ordering> {
    if f.is_nan() {
        return None;
    }
    // The float is at least 2^63, or below -2^63: outside every integer.
    if f >= 9_223_372_036_854_775_808.0 {
        return Some(Ordering::Less);
    }
    if f < -9_223_372_036_854_775_808.0 {
        return Some(Ordering::Greater);
    }
    let floor = f.floor();
    Some(i.cmp(&(floor as i64)).then(if f > floor { Ordering::Less } else { Ordering::Equal }))
}

/// Converts a value that is not null to a type.
pub fn cast(v: &Value, to: &DataType) -> Result<Value, Fault> {
    use DataType as T;
    let parse = |what: &str| Fault(format!("{v} is not {what}").into());
    Ok(match (v, to) {
        (Value::Null, _) => return Err(Fault::NULL),
        (Value::Int(_), T::Int)
        | (Value::Float(_), T::Float)
        | (Value::Bool(_), T::Bool)
        | (Value::Str(_), T::Str)
        | (Value::Bytes(_), T::Bytes)
        | (Value::Timestamp(_), T::Timestamp)
        | (Value::Any(_), T::Any)
        | (Value::List(_), T::List(_)) => v.clone(),
        (Value::Int(i), T::Float) => Value::Float(*i as f64),
        (Value::Int(i), T::Timestamp) => Value::Timestamp(*i),
        (Value::Int(i), T::Decimal(scale)) => rescale(*i, 0, *scale)?,
        (Value::Int(i), T::Str) => Value::Str(i.to_string().into()),
        (Value::Float(f), T::Int) => {
            let whole = f.trunc();
            // The bounds are exact floats. NaN and infinities fail both.
            if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&whole) {
                Value::Int(whole as i64)
            } else {
                return Err(Fault::OVERFLOW);
            }
        }
        (Value::Float(f), T::Decimal(scale)) if f.is_finite() => {
            // Formatting is exact and rounds half to even. Multiplying would not.
            let text = format!("{:.*}", usize::from(*scale), f);
            parse_decimal(&text, *scale).map_err(|_| Fault::OVERFLOW)?
        }
        (Value::Float(_), T::Decimal(_)) => return Err(Fault::OVERFLOW),
        (Value::Decimal(u, s), T::Decimal(scale)) => rescale(*u, *s, *scale)?,
        (Value::Decimal(u, s), T::Int) => Value::Int((i128::from(*u) / pow10(*s)) as i64),
        (Value::Decimal(u, s), T::Float) => {
            // Conversion by text, because units and power of ten are not both exact floats in
            // general.
            Value::Float(format_decimal(*u, *s).parse().map_err(|_| Fault::OVERFLOW)?)
        }
        (Value::Decimal(u, s), T::Str) => Value::Str(format_decimal(*u, *s).into()),
        (Value::Bool(b), T::Int) => Value::Int(i64::from(*b)),
        (Value::Bool(b), T::Str) => Value::str(if *b { "true" } else { "false" }),
        (Value::Timestamp(us), T::Int) => Value::Int(*us),
        (Value::Timestamp(us), T::Str) => Value::Str(format_timestamp(*us).into()),
        (Value::Str(s), T::Int) => {
            Value::Int(s.trim_matches(is_space).parse().map_err(|_| parse("an integer"))?)
        }
        (Value::Str(s), T::Float) => {
            Value::Float(s.trim_matches(is_space).parse().map_err(|_| parse("a float"))?)
        }
        (Value::Str(s), T::Decimal(scale)) => {
            parse_decimal(s.trim_matches(is_space), *scale).map_err(|why| Fault(why.into()))?
        }
        _ => return Err(Fault(format!("there is no conversion of {v} to {to}").into())),
    })
}

/// Converts `units / 10^from` to a decimal of scale `to`, rounded half to even.
pub fn rescale(units: i64, from: u8, to: u8) -> Result<Value, Fault> {
    let units = i128::from(units);
    let scaled = if to >= from {
        units * pow10(to - from)
    } else {
        round_half_even(units, pow10(from - to))
    };
    i64::try_from(scaled).map(|u| Value::Decimal(u, to)).map_err(|_| Fault::OVERFLOW)
}

/// Converts a value from outside to a value of a column, if nothing is lost.
///
/// An integer becomes a timestamp in microseconds. A decimal is never rounded.
pub fn convert(v: Value, column: &Column) -> Result<Value, String> {
    Ok(match (v, &column.ty) {
        (Value::Int(us) | Value::Timestamp(us), DataType::Timestamp) => {
            Value::Timestamp(check_years(us)?)
        }
        (Value::Decimal(units, from), DataType::Decimal(to)) => {
            let exactly = decimal::units(units < 0, digits(units), -i64::from(from), *to);
            let shown = || format!("'{}'", format_decimal(units, from));
            Value::Decimal(exactly.map_err(|why| why.message(&shown(), *to))?, *to)
        }
        (Value::Int(int), DataType::Decimal(to)) => {
            let exactly = decimal::units(int < 0, digits(int), 0, *to);
            Value::Decimal(exactly.map_err(|why| why.message(&format!("'{int}'"), *to))?, *to)
        }
        (Value::List(items), DataType::List(inner)) => {
            let item = Column { nullable: true, ..Column::new(&column.name, (**inner).clone()) };
            let taken = items
                .iter()
                .enumerate()
                .map(|(i, v)| convert(v.clone(), &item).map_err(|why| format!("item {i}: {why}")));
            Value::List(taken.collect::<Result<_, _>>()?)
        }
        (v, _) => store(&v, column).map_err(|fault| fault.to_string())?,
    })
}

/// Returns the digits of a number, the first one first.
fn digits(int: i64) -> impl Iterator<Item = u8> {
    let (mut digits, mut from, mut left) = ([0; 19], 19, int.unsigned_abs());
    while left > 0 {
        from -= 1;
        digits[from] = (left % 10) as u8;
        left /= 10;
    }
    digits.into_iter().skip(from)
}

/// Converts a value so that it can be stored in a column (see [`DataType::stores_in`]).
///
/// The result has the one canonical NaN. It is null only if the column allows it.
pub fn store(v: &Value, column: &Column) -> Result<Value, Fault> {
    Ok(match (v, &column.ty) {
        (Value::Int(_), DataType::Int)
        | (Value::Bool(_), DataType::Bool)
        | (Value::Str(_), DataType::Str)
        | (Value::Bytes(_), DataType::Bytes)
        | (Value::Timestamp(_), DataType::Timestamp)
        | (Value::Any(_), DataType::Any) => v.clone(),
        (Value::Null, _) if column.nullable => Value::Null,
        (Value::Null, _) => return Err(Fault(format!("null in column '{}'", column.name).into())),
        (Value::Float(f), DataType::Float) => Value::Float(crate::value::canonical_f64(*f)),
        (Value::Decimal(_, s), DataType::Decimal(t)) if s == t => v.clone(),
        (Value::Int(_), DataType::Float | DataType::Decimal(_))
        | (Value::Decimal(..), DataType::Decimal(_)) => cast(v, &column.ty)?,
        (Value::List(items), DataType::List(inner)) => {
            let item = Column { nullable: true, ..Column::new(&column.name, (**inner).clone()) };
            Value::List(items.iter().map(|v| store(v, &item)).collect::<Result<_, _>>()?)
        }
        (_, ty) => {
            return Err(Fault(
                format!("{v} can't be stored in column '{}' of type {ty}", column.name).into(),
            ))
        }
    })
}

#[cfg(test)]
mod tests;
