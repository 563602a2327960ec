//! The types of columns.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of a column or an expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataType {
    /// A 64-bit signed integer.
    Int,
    /// A 64-bit IEEE 754 float.
    Float,
    /// True or false.
    Bool,
    /// A Unicode text, ordered by code point.
    Str,
    /// Bytes, ordered by byte value.
    Bytes,
    /// Microseconds since 1970 (UTC).
    Timestamp,
    /// A decimal number: a 64-bit integer divided by ten to the power of the scale (0 to 18).
    Decimal(u8),
    /// A list of values of one type.
    List(Box<DataType>),
    /// Any msgpack value. Two are equal if their bytes are equal.
    Any,
}

impl DataType {
    /// The largest scale of a decimal.
    pub const SCALE_MAX: u8 = 18;

    /// Whether a value of this type is one 64-bit word, and so can be in a slot of a table.
    pub fn is_word(&self) -> bool {
        !matches!(self, DataType::Str | DataType::Bytes | DataType::List(_) | DataType::Any)
    }

    /// Whether arithmetic is defined on it.
    pub fn is_number(&self) -> bool {
        matches!(self, DataType::Int | DataType::Float | DataType::Decimal(_))
    }

    /// Whether `<` is defined on it.
    pub fn is_ordered(&self) -> bool {
        !matches!(self, DataType::List(_) | DataType::Any)
    }

    /// Whether a value of this type may be stored in a column of type `column`.
    ///
    /// The types are the same, or `docs/reference/values.md` lists the conversion: integers to
    /// floats and decimals, a decimal to another scale, rounded half to even.
    pub fn stores_in(&self, column: &DataType) -> bool {
        use DataType::*;
        self == column
            || matches!((self, column), (Int, Float) | (Int, Decimal(_)) | (Decimal(_), Decimal(_)))
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataType::Int => f.write_str("int"),
            DataType::Float => f.write_str("float"),
            DataType::Bool => f.write_str("bool"),
            DataType::Str => f.write_str("str"),
            DataType::Bytes => f.write_str("bytes"),
            DataType::Timestamp => f.write_str("timestamp"),
            DataType::Decimal(scale) => write!(f, "decimal({scale})"),
            DataType::List(inner) => write!(f, "list({inner})"),
            DataType::Any => f.write_str("any"),
        }
    }
}
