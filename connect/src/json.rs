//! Values from JSON, and as JSON.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::value::RawValue;
use tidemill_core::value::{check_years, format_decimal, format_timestamp};
use tidemill_core::{DataType, Value};

use crate::msgpack;
use crate::row::{Rule, Scratch, Slot};
use crate::text::{self, quoted};
use crate::time::TimeFormat;

/// Returns the text as one JSON value, without the white space around it.
pub(crate) fn checked(text: &str) -> Result<&str, String> {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(raw) => Ok(raw.get()),
        Err(e) => Err(format!("{} is not JSON: {}", quoted(text), why(&e))),
    }
}

/// Returns serde_json's reason, with the column but without the line, which is always 1.
pub(crate) fn why(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((what, _)) => format!("{what} at column {}", error.column()),
        None => text,
    }
}

/// Decodes a column's value from one JSON value that was checked to be JSON.
pub(crate) fn slot(raw: &str, rule: &Rule, scratch: &mut Scratch) -> Result<Slot, String> {
    if raw == "null" {
        return match (rule.nullable, &rule.ty) {
            (true, _) => Ok(Slot::Null),
            (false, DataType::Any) => scratch.write(|out| msgpack::from_json(raw, out)),
            (false, _) => Err("null, but the column may not be null".into()),
        };
    }
    match &rule.ty {
        DataType::Int => int(raw).map(Slot::Int),
        DataType::Float => float(raw).map(Slot::Float),
        DataType::Bool => bool(raw).map(Slot::Bool),
        DataType::Str => match plain_string(raw) {
            Some(text) => Ok(scratch.copy(text)),
            None => string(raw).map(|text| scratch.copy(&text)),
        },
        DataType::Bytes => {
            let text = string(raw)?;
            scratch.write(|out| text::bytes(&text, out))
        }
        DataType::Timestamp => timestamp(raw, &rule.time).map(Slot::Int),
        DataType::Decimal(scale) => decimal(raw, *scale).map(Slot::Int),
        DataType::List(_) => {
            let list = value(raw, &rule.ty, &rule.time)?;
            scratch.list(&list)
        }
        DataType::Any => scratch.write(|out| msgpack::from_json(raw, out)),
    }
}

/// Decodes a value of a type that is not null: an item of a list, or a value by itself.
pub(crate) fn value(raw: &str, ty: &DataType, time: &TimeFormat) -> Result<Value, String> {
    Ok(match ty {
        DataType::Int => Value::Int(int(raw)?),
        DataType::Float => Value::Float(float(raw)?),
        DataType::Bool => Value::Bool(bool(raw)?),
        DataType::Str => Value::Str(string(raw)?.into()),
        DataType::Bytes => {
            let mut bytes = Vec::new();
            text::bytes(&string(raw)?, &mut bytes)?;
            Value::Bytes(bytes.into())
        }
        DataType::Timestamp => Value::Timestamp(timestamp(raw, time)?),
        DataType::Decimal(scale) => Value::Decimal(decimal(raw, *scale)?, *scale),
        DataType::Any => {
            let mut bytes = Vec::new();
            msgpack::from_json(raw, &mut bytes)?;
            Value::Any(bytes.into())
        }
        DataType::List(inner) => {
            if !raw.starts_with('[') {
                return Err(format!("expected an array, found {}", quoted(raw)));
            }
            let items: Vec<&RawValue> = serde_json::from_str(raw).map_err(|e| why(&e))?;
            let item = |(i, raw): (usize, &&RawValue)| match raw.get() {
                "null" => Ok(Value::Null),
                raw => value(raw, inner, time).map_err(|why| format!("item {i}: {why}")),
            };
            Value::List(items.iter().enumerate().map(item).collect::<Result<_, _>>()?)
        }
    })
}

fn number(raw: &str) -> Result<&str, String> {
    match raw.as_bytes().first() {
        Some(b'-' | b'0'..=b'9') => Ok(raw),
        _ => Err(format!("expected a number, found {}", quoted(raw))),
    }
}

fn int(raw: &str) -> Result<i64, String> {
    let number = number(raw)?;
    match number.parse() {
        Ok(int) => Ok(int),
        // The number has a fraction of zeros or an exponent, or is wrong.
        Err(_) => text::decimal(number, 0).map_err(|why| match why.contains("out of range") {
            true => format!("{} is out of range for int", quoted(number)),
            false => format!("{} is not an integer", quoted(number)),
        }),
    }
}

fn float(raw: &str) -> Result<f64, String> {
    match plain_string(raw) {
        Some(text) => match text::float(text) {
            Ok(float) if !float.is_finite() => Ok(float),
            _ => Err(format!("expected a number, found {}", quoted(raw))),
        },
        None => text::float(number(raw)?),
    }
}

fn bool(raw: &str) -> Result<bool, String> {
    match raw {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("expected true or false, found {}", quoted(raw))),
    }
}

fn decimal(raw: &str, scale: u8) -> Result<i64, String> {
    text::decimal(plain_string(raw).map_or_else(|| number(raw), Ok)?, scale)
}

fn timestamp(raw: &str, time: &TimeFormat) -> Result<i64, String> {
    if raw.starts_with('"') {
        return time.read(&string(raw)?);
    }
    let number = number(raw)?;
    match time {
        // The column's own unit applies, if it has one.
        TimeFormat::Unix(_) => time.read(number),
        _ => check_years(int(number)?),
    }
}

/// Returns the content of a string without escapes.
fn plain_string(raw: &str) -> Option<&str> {
    let text = raw.strip_prefix('"')?.strip_suffix('"')?;
    (!text.contains('\\')).then_some(text)
}

/// Returns the content of a string.
pub(crate) fn string(raw: &str) -> Result<String, String> {
    match plain_string(raw) {
        Some(text) => Ok(text.into()),
        None if raw.starts_with('"') => serde_json::from_str(raw).map_err(|e| why(&e)),
        None => Err(format!("expected a string, found {}", quoted(raw))),
    }
}

/// Appends a text as a JSON string.
pub(crate) fn write_string(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a text is JSON, and memory takes it");
}

/// Appends a float as text, with the fewest digits that read back as the same float.
pub(crate) fn float_text(float: f64, out: &mut Vec<u8>) {
    write!(out, "{float:?}").expect("memory takes it");
}

/// Appends an integer.
pub(crate) fn write_int(int: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(int).as_bytes());
}

/// Appends a float as JSON. NaN and the infinities are strings.
pub(crate) fn write_float(float: f64, out: &mut Vec<u8>) {
    if float.is_finite() {
        float_text(float, out);
    } else {
        write!(out, "\"{float:?}\"").expect("memory takes it");
    }
}

/// Appends bytes as text.
pub(crate) fn bytes_text(bytes: &[u8], out: &mut Vec<u8>) {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("0x");
    for byte in bytes {
        write!(text, "{byte:02x}").expect("memory takes it");
    }
    out.extend_from_slice(text.as_bytes());
}

/// Appends a value as JSON.
pub(crate) fn write_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(b) => out.extend_from_slice(if *b { b"true" } else { b"false" }),
        Value::Int(i) => write_int(*i, out),
        Value::Float(f) => write_float(*f, out),
        Value::Str(s) => write_string(s, out),
        Value::Timestamp(us) => write_string(&format_timestamp(*us), out),
        Value::Decimal(units, scale) => {
            out.extend_from_slice(format_decimal(*units, *scale).as_bytes())
        }
        Value::Bytes(b) => {
            out.push(b'"');
            bytes_text(b, out);
            out.push(b'"');
        }
        Value::Any(b) => msgpack::to_json(b, out),
        Value::List(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_value(item, out);
            }
            out.push(b']');
        }
    }
}
