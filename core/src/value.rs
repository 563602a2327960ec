//! Values, rows and keys.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{encode, DataType};

/// One value.
///
/// `PartialEq` and `Hash` compare *state*: bit for bit, except that every NaN is the same NaN.
/// [`crate::rules`] has the meaning of a program's `==`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Value {
    /// Null.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float. JSON has no NaN and no infinities, so these are texts there.
    Float(#[serde(with = "float")] f64),
    /// A text.
    Str(Arc<str>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A timestamp in microseconds since 1970 (UTC).
    Timestamp(i64),
    /// A decimal: units and scale. Its value is `units / 10^scale`.
    Decimal(i64, u8),
    /// A list.
    List(Arc<[Value]>),
    /// A msgpack value, in its encoded form.
    Any(Arc<[u8]>),
}

/// The values of all columns of a schema, in the schema's order.
pub type Row = Box<[Value]>;

impl Value {
    /// Creates a text from a string slice.
    pub fn str(text: &str) -> Value {
        Value::Str(text.into())
    }

    /// Whether this is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// Returns the value as one machine word, or `None` for null and for types without a fixed
    /// width.
    ///
    /// Floats are their bits with one NaN, and decimals their units.
    #[inline]
    pub fn word(&self) -> Option<u64> {
        Some(match self {
            Value::Bool(b) => u64::from(*b),
            Value::Int(i) | Value::Timestamp(i) | Value::Decimal(i, _) => *i as u64,
            Value::Float(f) => canonical_f64(*f).to_bits(),
            _ => return None,
        })
    }

    /// Returns the value of a [word](Value::word). All NaNs become the one NaN. For a type without
    /// words, this is the word as an int.
    #[inline]
    pub fn of_word(ty: &DataType, word: u64) -> Value {
        match ty {
            DataType::Bool => Value::Bool(word != 0),
            DataType::Timestamp => Value::Timestamp(word as i64),
            DataType::Decimal(scale) => Value::Decimal(word as i64, *scale),
            DataType::Float => Value::Float(canonical_f64(f64::from_bits(word))),
            _ => Value::Int(word as i64),
        }
    }

    /// Returns the bytes of heap memory beyond the value itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::Str(s) => s.len() + 16,
            Value::Bytes(b) | Value::Any(b) => b.len() + 16,
            Value::List(l) => {
                16 + l.iter().map(|v| v.heap_bytes() + std::mem::size_of::<Value>()).sum::<usize>()
            }
            _ => 0,
        }
    }
}

/// Floats in JSON.
mod float {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Text {
        Number(f64),
        Other(String),
    }

    pub(super) fn serialize<S: Serializer>(f: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        match f.is_finite() {
            true => f.serialize(serializer),
            false => f.to_string().serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Text::deserialize(deserializer)? {
            Text::Number(f) => Ok(f),
            Text::Other(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Replaces every NaN by one, so that equal state has equal bytes.
pub fn canonical_f64(f: f64) -> f64 {
    if f.is_nan() {
        f64::NAN
    } else {
        f
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        use Value::*;
        match (self, other) {
            (Null, Null) => true,
            (Bool(a), Bool(b)) => a == b,
            (Int(a), Int(b)) | (Timestamp(a), Timestamp(b)) => a == b,
            (Float(a), Float(b)) => canonical_f64(*a).to_bits() == canonical_f64(*b).to_bits(),
            (Str(a), Str(b)) => a == b,
            (Bytes(a), Bytes(b)) | (Any(a), Any(b)) => a == b,
            (Decimal(a, sa), Decimal(b, sb)) => a == b && sa == sb,
            (List(a), List(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Value {}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut bytes = Vec::with_capacity(16);
        encode::value(self, &mut bytes);
        state.write(&bytes);
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Int(i) => write!(f, "{i}"),
            Value::Float(x) => write!(f, "{x:?}"),
            Value::Str(s) => write!(f, "{s:?}"),
            Value::Bytes(b) | Value::Any(b) => {
                f.write_str("0x")?;
                b.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Value::Timestamp(us) => f.write_str(&format_timestamp(*us)),
            Value::Decimal(units, scale) => f.write_str(&format_decimal(*units, *scale)),
            Value::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{item}")?;
                }
                f.write_str("]")
            }
        }
    }
}

/// Formats `units / 10^scale` with exactly `scale` digits after the point.
pub fn format_decimal(units: i64, scale: u8) -> String {
    if scale == 0 {
        return units.to_string();
    }
    let divisor = 10u64.pow(u32::from(scale));
    let magnitude = units.unsigned_abs();
    let sign = if units < 0 { "-" } else { "" };
    let width = usize::from(scale);
    format!("{sign}{}.{:0width$}", magnitude / divisor, magnitude % divisor)
}

/// Formats a timestamp as ISO 8601 in UTC with microseconds. Years outside chrono's range are a
/// number.
pub fn format_timestamp(us: i64) -> String {
    match chrono::DateTime::from_timestamp_micros(us) {
        Some(at) => at.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        None => format!("{us}us"),
    }
}

/// The first and the last timestamp of the years 1 to 9999, for which most calendars are defined.
pub const YEARS: std::ops::RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

/// Checks that a timestamp from outside is in the years 1 to 9999.
///
/// A time beyond them has a wrong unit, and most readers could not read it later.
#[inline]
pub fn check_years(us: i64) -> Result<i64, String> {
    match YEARS.contains(&us) {
        true => Ok(us),
        false => Err(undated(us)),
    }
}

#[cold]
fn undated(us: i64) -> String {
    let at = format_timestamp(us);
    format!("{at} is outside of the years 1 to 9999 (timestamps are in microseconds since 1970)")
}

/// A row's key: the values of its key columns in an encoding whose byte order is the order of the
/// values (see [`encode`]).
///
/// -0.0 and 0.0 are one key, and every NaN is one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub SmallVec<[u8; KEY_INLINE]>);

/// The length in bytes up to which a key needs no heap memory. Two numbers fit.
pub const KEY_INLINE: usize = 24;

impl Key {
    /// Encodes these values as a key, in the order of the table's key columns.
    ///
    /// The caller has refused nulls, because a key has none.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a Value>) -> Key {
        let mut bytes = SmallVec::new();
        for value in values {
            encode::key(value, &mut bytes);
        }
        Key(bytes)
    }

    /// Returns a bound after all keys that begin with this one. It ends with a byte above the tag
    /// that begins every value.
    pub fn prefix_end(&self) -> Key {
        Key(self.0.iter().copied().chain([u8::MAX]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_from_json() {
        for f in [0.0, -0.0, 0.1, 1e300, 5.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let json = serde_json::to_string(&Value::Float(f)).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), Value::Float(f), "{json}");
        }
    }

    #[test]
    fn values_come_back_from_words() {
        let float = |f: f64| (DataType::Float, Value::Float(f));
        let all = [
            (DataType::Bool, Value::Bool(true)),
            (DataType::Int, Value::Int(i64::MIN)),
            (DataType::Timestamp, Value::Timestamp(-1)),
            (DataType::Decimal(3), Value::Decimal(-1500, 3)),
            float(-0.0),
            float(f64::from_bits(f64::NAN.to_bits() | 1)),
        ];
        for (ty, value) in all {
            assert_eq!(Value::of_word(&ty, value.word().unwrap()), value);
        }
        let Value::Float(nan) = Value::of_word(&DataType::Float, f64::NAN.to_bits() | 1) else {
            unreachable!("it is a float")
        };
        assert_eq!(nan.to_bits(), f64::NAN.to_bits());
    }
}
