//! The schema of a stream's rows.

use serde_json::{json, Value};
use tidemill_core::{DataType, Error, Result, Schema};

/// Returns the schema of rows as JSON: a record named after the stream.
///
/// # Errors
/// If Avro can't write a column's name.
pub fn derive(stream: &str, schema: &Schema) -> Result<String> {
    let mut fields = Vec::with_capacity(schema.columns.len());
    for column in &schema.columns {
        if !is_name(&column.name) {
            return Err(Error::setting(format!(
                "column '{}' can't be a field of Avro: names are letters, digits and _, and begin with no \
                 digit",
                column.name
            ))
            .help("map the stream to one with another name for it, or write JSON"));
        }
        let ty = match column.nullable {
            true => nullable(&column.ty),
            false => of(&column.ty),
        };
        let mut field = json!({"name": &*column.name, "type": ty});
        if column.nullable {
            // Readers that know the column use this for rows that were written without it.
            field["default"] = Value::Null;
        }
        fields.push(field);
    }
    Ok(json!({"type": "record", "name": name(stream), "fields": fields}).to_string())
}

/// Names that a record can't have, because they are types.
const TYPES: [&str; 15] = [
    "null", "boolean", "int", "long", "float", "double", "bytes", "string", "record", "enum",
    "array", "map", "union", "fixed", "error",
];

/// Converts a stream's name to one of Avro: `paid.late` becomes `paid_late`.
fn name(stream: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = stream.chars().map(fits).collect();
    let begins_wrong = name.starts_with(|c: char| c.is_ascii_digit()) || name.is_empty();
    match begins_wrong || TYPES.contains(&&*name) {
        true => format!("_{name}"),
        false => name,
    }
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty()
}

fn nullable(ty: &DataType) -> Value {
    json!(["null", of(ty)])
}

fn of(ty: &DataType) -> Value {
    match ty {
        DataType::Int => json!("long"),
        DataType::Float => json!("double"),
        DataType::Bool => json!("boolean"),
        DataType::Str => json!("string"),
        DataType::Bytes => json!("bytes"),
        DataType::Timestamp => json!({"type": "long", "logicalType": "timestamp-micros"}),
        DataType::Decimal(scale) => {
            json!({"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": scale})
        }
        // Items may be null in every list.
        DataType::List(item) => json!({"type": "array", "items": nullable(item)}),
        DataType::Any => json!({"type": "bytes", "logicalType": "msgpack"}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::Column;

    #[test]
    fn streams_have_schemas() {
        let schema = Schema::new(vec![
            Column::new("who", DataType::Str),
            Column::new("amount", DataType::Decimal(2)).nullable(),
        ]);
        assert_eq!(
            derive("paid.late", &schema).unwrap(),
            concat!(
                r#"{"type":"record","name":"paid_late","fields":[{"name":"who","type":"string"},"#,
                r#"{"name":"amount","type":["null",{"type":"bytes","logicalType":"decimal","#,
                r#""precision":19,"scale":2}],"default":null}]}"#
            )
            .parse::<Value>()
            .unwrap()
            .to_string()
        );
        assert_eq!(name("9 lives"), "_9_lives");
        assert_eq!(name("double"), "_double");
        let schema = Schema::new(vec![Column::new("größe", DataType::Int)]);
        let error = derive("s", &schema).unwrap_err();
        assert!(error.what.contains("'größe'"), "{error}");
    }
}
