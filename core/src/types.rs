//! The types of columns.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of a column or an expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataType {
    /// 64-bit signed integer.
    Int,
    /// 64-bit IEEE 754 float.
    Float,
    /// True or false.
    Bool,
    /// Unicode text, ordered by code point.
    Str,
    /// Bytes, ordered bytewise.
    Bytes,
    /// Microseconds since 1970 (UTC).
    Timestamp,
    /// A decimal number: a 64-bit integer times ten to the minus `scale` (0 to 18).
    Decimal(u8),
    /// A list of values of one type.
    List(Box<DataType>),
    /// Any msgpack value; equal when its bytes are equal.
    Any,
}

impl DataType {
    /// The largest scale of a decimal.
    pub const SCALE_MAX: u8 = 18;

    /// Whether a value of this type is one 64-bit word (and so can live in a slot of a table).
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

    /// Whether a value of `self` may be stored in a column of `column`: the same type, or a
    /// conversion that docs/values.md lists (integers into floats and decimals; a decimal into
    /// another scale, rounded half to even).
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
