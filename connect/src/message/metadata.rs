//! Data beside a message's value as columns, and columns as keys.

use std::io::Write as _;

use tidemill_core::value::{format_decimal, format_timestamp};
use tidemill_core::{DataType, Error, Result, Value};

use super::Message;
use crate::json;
use crate::row::{Rule, Scratch, Slot};
use crate::text;

/// The origin of a column's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Metadata {
    Key,
    Value,
    Timestamp,
    Partition,
    Offset,
    Header(String),
}

impl Metadata {
    /// Parses a setting.
    pub fn parse(from: &str, rule: &Rule) -> Result<Metadata> {
        let beside = match from {
            "key" => Metadata::Key,
            "value" => Metadata::Value,
            "timestamp" => Metadata::Timestamp,
            "partition" => Metadata::Partition,
            "offset" => Metadata::Offset,
            _ => match from.strip_prefix("header:") {
                Some(name) if !name.is_empty() => Metadata::Header(name.to_owned()),
                _ => {
                    return Err(Error::setting(format!(
                        "meta: column '{}' takes '{from}', which a message does not have",
                        rule.name
                    ))
                    .help("give key, value, timestamp, partition, offset, or header:NAME"));
                }
            },
        };
        let fits = match beside {
            Metadata::Timestamp => matches!(rule.ty, DataType::Timestamp | DataType::Int),
            Metadata::Partition | Metadata::Offset => rule.ty == DataType::Int,
            _ => !matches!(rule.ty, DataType::List(_)),
        };
        match fits {
            true => Ok(beside),
            false => Err(Error::setting(format!(
                "meta: column '{}' is of type {}, which can't hold the message's {from}",
                rule.name, rule.ty
            ))
            .help("make timestamp a timestamp, or an int of milliseconds, and partition and offset ints")),
        }
    }

    /// Decodes the column's value.
    pub fn slot(
        &self,
        message: &Message<'_>,
        rule: &Rule,
        scratch: &mut Scratch,
    ) -> Result<Slot, String> {
        let bytes = match self {
            Metadata::Timestamp => {
                let ms = message.timestamp_ms.map(|ms| match rule.ty {
                    DataType::Int => Ok(ms),
                    _ => ms.checked_mul(1000).ok_or_else(|| format!("{ms} ms is out of range")),
                });
                return ms.map_or_else(|| missing(rule), |ms| ms.map(Slot::Int));
            }
            Metadata::Partition => return Ok(Slot::Int(i64::from(message.partition))),
            Metadata::Offset => {
                return i64::try_from(message.offset)
                    .map(Slot::Int)
                    .map_err(|_| format!("{} is out of range", message.offset));
            }
            Metadata::Key => message.key,
            Metadata::Value => message.value,
            Metadata::Header(name) => {
                // The last header of a name counts.
                message.headers.iter().rev().find(|(n, _)| n == name).map(|(_, value)| *value)
            }
        };
        match bytes {
            Some(bytes) => from_bytes(bytes, rule, scratch),
            None => missing(rule),
        }
    }
}

fn missing(rule: &Rule) -> Result<Slot, String> {
    match rule.optional {
        true => Ok(Slot::Default),
        false => Err("the message has none, and the column may not be null".into()),
    }
}

/// Decodes a column's value from bytes: bytes unchanged, and all other types from their text.
fn from_bytes(bytes: &[u8], rule: &Rule, scratch: &mut Scratch) -> Result<Slot, String> {
    if rule.ty == DataType::Bytes {
        return scratch.write(|out| {
            out.extend_from_slice(bytes);
            Ok(())
        });
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|e| format!("byte {} is not valid UTF-8", e.valid_up_to()))?;
    match &rule.ty {
        DataType::Str => Ok(scratch.copy(text)),
        DataType::Int => text::int(text).map(Slot::Int),
        DataType::Float => text::float(text).map(Slot::Float),
        DataType::Bool => text::bool(text).map(Slot::Bool),
        DataType::Timestamp => rule.time.read(text).map(Slot::Int),
        DataType::Decimal(scale) => text::decimal(text, *scale).map(Slot::Int),
        _ => json::slot(json::checked(text)?, rule, scratch),
    }
}

/// Appends a value as a key. Returns `false` if it is null.
pub(super) fn key_text(value: &Value, ty: &DataType, out: &mut Vec<u8>) -> bool {
    match value {
        Value::Null => return false,
        Value::Str(text) => out.extend_from_slice(text.as_bytes()),
        Value::Bytes(bytes) => out.extend_from_slice(bytes),
        Value::Int(int) => write!(out, "{int}").expect("memory takes it"),
        Value::Bool(bool) => write!(out, "{bool}").expect("memory takes it"),
        Value::Float(float) => json::float_text(*float, out),
        Value::Timestamp(us) => out.extend_from_slice(format_timestamp(*us).as_bytes()),
        Value::Decimal(units, scale) => {
            out.extend_from_slice(format_decimal(*units, *scale).as_bytes());
        }
        value => {
            debug_assert!(matches!(ty, DataType::List(_) | DataType::Any));
            json::write_value(value, out);
        }
    }
    true
}
