//! Values as JSON for clients of a running engine, and from them.
//!
//! The form is that of JSON-lines files, except that decimals are strings. Most readers of JSON
//! convert numbers to floats, and would round them.

use serde_json::value::RawValue;
use tidemill_core::value::format_decimal;
use tidemill_core::{rules, Column, Row, Schema, Value};

use crate::json;
use crate::time::TimeFormat;

/// Appends a value as JSON.
pub fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Decimal(units, scale) => json::write_string(&format_decimal(*units, *scale), out),
        Value::List(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        value => json::write_value(value, out),
    }
}

/// Appends a row as an object with all columns.
pub fn write_row(schema: &Schema, row: &[Value], out: &mut Vec<u8>) {
    out.push(b'{');
    for (i, (column, value)) in schema.columns.iter().zip(row).enumerate() {
        if i > 0 {
            out.push(b',');
        }
        json::write_string(&column.name, out);
        out.push(b':');
        write(value, out);
    }
    out.push(b'}');
}

/// Rewords a reason why a value was refused, for people: with the kind of the found value. Reasons
/// in dead-letter streams must stay as they are, because they are hashed.
pub fn with_kind(why: &str) -> String {
    let parts = why.split_once("found '");
    let Some((head, found)) = parts.and_then(|(head, rest)| Some((head, rest.strip_suffix('\'')?)))
    else {
        return why.to_owned();
    };
    match found.as_bytes().first() {
        Some(b'"') => format!("{head}found the text {found}"),
        Some(b'-' | b'0'..=b'9') => format!("{head}found the number {found}"),
        Some(b'[') => format!("{head}found the array {found}"),
        Some(b'{') => format!("{head}found the object {found}"),
        _ => format!("{head}found {found}"),
    }
}

/// Parses a column's value from the text of one JSON value.
///
/// # Errors
/// If it is not JSON, or does not fit the column.
pub fn read(text: &str, column: &Column) -> Result<Value, String> {
    let raw = json::checked(text)?;
    if raw == "null" && column.nullable {
        return Ok(Value::Null);
    }
    if raw == "null" {
        return Err("null, but the column may not be null".into());
    }
    let value = json::value(raw, &column.ty, &TimeFormat::Iso)?;
    rules::store(&value, column).map_err(|fault| fault.to_string())
}

/// Parses a row from the text of a JSON object. Missing fields get their column's default, or null.
///
/// # Errors
/// If it is not an object, has unknown fields, lacks required ones, or a value does not fit.
pub fn read_row(text: &str, schema: &Schema) -> Result<Row, String> {
    let mut fields: std::collections::BTreeMap<String, &RawValue> = serde_json::from_str(text)
        .map_err(|e| format!("it is not an object: {}", json::why(&e)))?;
    let mut row = Vec::with_capacity(schema.len());
    for column in &schema.columns {
        let of = |why: String| format!("column '{}': {why}", column.name);
        row.push(match (fields.remove(&*column.name), &column.default) {
            (Some(raw), _) => read(raw.get(), column).map_err(of)?,
            (None, Some(default)) => {
                rules::store(default, column).map_err(|fault| of(fault.to_string()))?
            }
            (None, None) if column.nullable => Value::Null,
            (None, None) => return Err(of("the field is missing".into())),
        });
    }
    match fields.keys().next() {
        None => Ok(row.into()),
        Some(name) => Err(format!("there is no column '{name}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::DataType;

    #[test]
    fn what_is_written_is_read_again() {
        let columns = [
            Column::new("i", DataType::Int),
            Column::new("f", DataType::Float),
            Column::new("s", DataType::Str).nullable(),
            Column::new("d", DataType::Decimal(2)),
            Column::new("t", DataType::Timestamp),
            Column::new("l", DataType::List(Box::new(DataType::Decimal(1)))),
            Column::new("b", DataType::Bytes),
        ];
        let schema = Schema::new(columns.to_vec());
        let list = Value::List([Value::Decimal(15, 1), Value::Null].to_vec().into());
        let row = [
            Value::Int(i64::MAX),
            Value::Float(f64::INFINITY),
            Value::Null,
            Value::Decimal(-1250, 2),
            Value::Timestamp(1),
            list,
            Value::Bytes([1, 255].as_slice().into()),
        ];
        let mut out = Vec::new();
        write_row(&schema, &row, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            r#"{"i":9223372036854775807,"f":"inf","s":null,"d":"-12.50","t":"1970-01-01T00:00:00.000001Z","l":["1.5",null],"b":"0x01ff"}"#
        );
        assert_eq!(&*read_row(&text, &schema).unwrap(), row);
        assert_eq!(read("12.5", &schema.columns[3]), Ok(Value::Decimal(1250, 2)));
        for wrong in ["", "[]", "{}", r#"{"i":1}"#, &text.replace("\"i\"", "\"x\"")] {
            assert!(read_row(wrong, &schema).is_err(), "{wrong}");
        }
    }
}
