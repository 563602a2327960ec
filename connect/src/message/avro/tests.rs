use std::collections::HashMap;

use apache_avro::types::Value as Theirs;
use proptest::prelude::*;
use tidemill_core::{Batch, BatchBuilder, Column, DataType, Schema, Value};

use super::*;
use crate::files::UnknownFields;
use crate::message::{Message, MessageFormat, MessageRows, MessageSettings, MessageValues};

/// Schemas that exist, and no others.
#[derive(Debug, Default)]
struct Known(HashMap<u32, Arc<AvroSchema>>);

impl Schemas for Known {
    fn schema(&self, id: u32) -> Asked {
        match self.0.get(&id) {
            Some(schema) => Asked::Found(schema.clone()),
            None if id == 404 => Asked::Refused("there is no schema 404".into()),
            None => Asked::Later,
        }
    }
}

fn known(text: &str) -> MessageSettings {
    let schema = Arc::new(AvroSchema::parse(&[text]).unwrap());
    let schemas = Some(Arc::new(Known([(7, schema)].into())) as Arc<dyn Schemas>);
    MessageSettings { format: MessageFormat::Avro, schemas, ..MessageSettings::default() }
}

fn decode(
    schema: &Arc<Schema>,
    settings: &MessageSettings,
    value: &[u8],
) -> Result<Vec<Value>, String> {
    let mut rows = BatchBuilder::new(schema.clone());
    let mut decoder = MessageRows::new(schema, settings).unwrap();
    let message = Message { value: Some(value), ..Message::default() };
    if !decoder.is_ready(&message) {
        return Err("later".into());
    }
    let done = decoder.decode(&message, &mut rows);
    let batch = rows.finish();
    assert_eq!(batch.len(), usize::from(done.is_ok()), "a bad row leaves nothing");
    done.map(|()| batch.row(0).to_vec())
}

fn encoded(schema: &Arc<Schema>, avro: &AvroSchema, row: &[Value]) -> Vec<u8> {
    let batch = Batch::from_rows(schema.clone(), std::iter::once(row));
    let records = AvroValues::new(schema, 7, avro).unwrap();
    let values = MessageValues::avro(schema, records, &[]).unwrap();
    let mut bytes = Vec::new();
    values.value(&batch, 0, &mut bytes);
    bytes
}

fn any_type() -> impl Strategy<Value = DataType> {
    let plain = prop_oneof![
        Just(DataType::Int),
        Just(DataType::Float),
        Just(DataType::Bool),
        Just(DataType::Str),
        Just(DataType::Bytes),
        Just(DataType::Timestamp),
        (0..=18u8).prop_map(DataType::Decimal),
        Just(DataType::Any),
    ];
    plain.prop_recursive(2, 4, 1, |inner| inner.prop_map(|item| DataType::List(Box::new(item))))
}

fn any_value(ty: &DataType, nullable: bool) -> BoxedStrategy<Value> {
    let float = prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-0.0), -1e300..1e300f64];
    let value = match ty {
        DataType::Int => any::<i64>().prop_map(Value::Int).boxed(),
        DataType::Float => float.prop_map(Value::Float).boxed(),
        DataType::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        DataType::Str => ".{0,20}".prop_map(|text| Value::str(&text)).boxed(),
        DataType::Bytes => {
            prop::collection::vec(any::<u8>(), 0..40).prop_map(|b| Value::Bytes(b.into())).boxed()
        }
        DataType::Timestamp => tidemill_core::value::YEARS.prop_map(Value::Timestamp).boxed(),
        DataType::Decimal(scale) => {
            let scale = *scale;
            any::<i64>().prop_map(move |units| Value::Decimal(units, scale)).boxed()
        }
        DataType::Any => {
            let json = |(int, len): (i64, usize)| match len {
                0..10 => int.to_string(),
                10..40 => format!("\"{}\"", "x".repeat(len)),
                _ => format!("[true, null, 1.5, {{\"k\": {int}}}]"),
            };
            let pack = |text: String| {
                let mut bytes = Vec::new();
                crate::msgpack::from_json(&text, &mut bytes).unwrap();
                Value::Any(bytes.into())
            };
            (any::<i64>(), 0..50usize).prop_map(json).prop_map(pack).boxed()
        }
        DataType::List(item) => prop::collection::vec(any_value(item, true), 0..5)
            .prop_map(|items| Value::List(items.into()))
            .boxed(),
    };
    match nullable {
        true => prop_oneof![1 => Just(Value::Null), 3 => value].boxed(),
        false => value,
    }
}

/// Generates a schema and a row of it.
fn any_row() -> impl Strategy<Value = (Arc<Schema>, Vec<Value>)> {
    prop::collection::vec((any_type(), any::<bool>()), 1..8).prop_flat_map(|types| {
        let row: Vec<_> = types.iter().map(|(ty, nullable)| any_value(ty, *nullable)).collect();
        let column = |(i, (ty, nullable))| Column { nullable, ..Column::new(&format!("c{i}"), ty) };
        let columns = types.into_iter().enumerate().map(column).collect();
        (Just(Arc::new(Schema::new(columns))), row)
    })
}

/// Converts a value to that of another implementation.
fn theirs(value: &Value, nullable: bool) -> Theirs {
    let plain = match value {
        Value::Null => return Theirs::Union(0, Box::new(Theirs::Null)),
        Value::Bool(bool) => Theirs::Boolean(*bool),
        Value::Int(int) => Theirs::Long(*int),
        Value::Float(float) => Theirs::Double(*float),
        Value::Str(text) => Theirs::String(text.to_string()),
        Value::Bytes(bytes) | Value::Any(bytes) => Theirs::Bytes(bytes.to_vec()),
        Value::Timestamp(us) => Theirs::TimestampMicros(*us),
        Value::Decimal(units, _) => {
            Theirs::Decimal(apache_avro::Decimal::from(decimal::bytes(*units).as_ref()))
        }
        Value::List(items) => Theirs::Array(items.iter().map(|item| theirs(item, true)).collect()),
    };
    match nullable {
        true => Theirs::Union(1, Box::new(plain)),
        false => plain,
    }
}

/// A schema with everything that Avro has.
const ALL: &str = r#"{"type": "record", "name": "Node", "fields": [
    {"name": "a", "type": ["null", "Node"]},
    {"name": "b", "type": {"type": "array", "items": ["null", "long", "Node"]}},
    {"name": "c", "type": {"type": "map", "values": "Node"}},
    {"name": "d", "type": {"type": "enum", "name": "E", "symbols": ["x", "y"]}},
    {"name": "e", "type": {"type": "fixed", "name": "F", "size": 3}},
    {"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}},
    {"name": "g", "type": "float"},
    {"name": "h", "type": {"type": "array", "items": "null"}},
    {"name": "i", "type": {"type": "bytes", "logicalType": "msgpack"}}]}"#;

proptest! {
    #[test]
    fn rows_come_back((schema, row) in any_row()) {
        let text = derive("s", &schema).unwrap();
        let avro = AvroSchema::parse(&[&text]).unwrap();
        let bytes = encoded(&schema, &avro, &row);
        prop_assert_eq!(decode(&schema, &known(&text), &bytes).unwrap(), row);
    }

    /// The other implementation reads our records, and writes the same ones.
    #[test]
    fn others_read_and_write_alike((schema, row) in any_row()) {
        let text = derive("s", &schema).unwrap();
        let avro = AvroSchema::parse(&[&text]).unwrap();
        let bytes = encoded(&schema, &avro, &row);
        let their_schema = apache_avro::Schema::parse_str(&text).unwrap();
        let fields = row.iter().zip(&schema.columns);
        let fields = fields.map(|(value, c)| (c.name.to_string(), theirs(value, c.nullable)));
        let record = Theirs::Record(fields.collect());
        let written = apache_avro::to_avro_datum(&their_schema, record.clone()).unwrap();
        prop_assert_eq!(&written[..], &bytes[HEAD..]);
        let read = apache_avro::from_avro_datum(&their_schema, &mut &bytes[HEAD..], None).unwrap();
        // NaN is not equal to itself.
        prop_assert_eq!(format!("{read:?}"), format!("{record:?}"));
    }

    #[test]
    fn any_bytes_are_a_row_or_a_reason(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..6u8], 0..80),
        ty in any_type(),
    ) {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        for skipped in names {
            let column = |name: &&str| (*name != skipped).then(|| match *name {
                "f" => Column::new(name, DataType::Decimal(4)),
                "h" => Column::new(name, ty.clone()),
                _ => Column::new(name, DataType::Any),
            });
            let schema = Arc::new(Schema::new(names.iter().filter_map(column).collect()));
            let value = [&[0, 0, 0, 0, 7], &bytes[..]].concat();
            if let Err(why) = decode(&schema, &known(ALL), &value) {
                prop_assert!(!why.is_empty());
            }
        }
    }
}

fn record(fields: &str) -> String {
    format!(r#"{{"type": "record", "name": "r", "fields": [{fields}]}}"#)
}

/// Reads a record of one field as a column of a type.
fn read_as(ty: DataType, field: &str, bytes: &[u8]) -> Result<Value, String> {
    let schema = Arc::new(Schema::new(vec![Column::new("x", ty)]));
    let text = record(&format!(r#"{{"name": "x", "type": {field}}}"#));
    let value = [&[0, 0, 0, 0, 7], bytes].concat();
    decode(&schema, &known(&text), &value).map(|mut row| row.remove(0))
}

#[test]
fn values_are_taken_where_they_fit() {
    let logical = |ty: &str, name: &str| format!(r#"{{"type": "{ty}", "logicalType": "{name}"}}"#);
    let float = 1.5f32.to_le_bytes();
    // The type that it is read as, its schema, its bytes, and the value.
    let cases: Vec<(DataType, String, &[u8], Value)> = vec![
        (DataType::Int, r#""int""#.into(), &[3], Value::Int(-2)),
        (DataType::Float, r#""int""#.into(), &[4], Value::Float(2.0)),
        (DataType::Float, r#""long""#.into(), &[4], Value::Float(2.0)),
        (DataType::Float, r#""float""#.into(), &float, Value::Float(1.5)),
        (DataType::Str, r#""bytes""#.into(), b"\x04ab", Value::str("ab")),
        (DataType::Bytes, r#""string""#.into(), b"\x04ab", Value::Bytes(b"ab"[..].into())),
        (
            DataType::Str,
            r#"{"type": "enum", "name": "e", "symbols": ["no", "yes"]}"#.into(),
            &[2],
            Value::str("yes"),
        ),
        (
            DataType::Str,
            r#"{"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}"#.into(),
            &[0x12; 16],
            Value::str("12121212-1212-1212-1212-121212121212"),
        ),
        (DataType::Timestamp, logical("long", "timestamp-millis"), &[4], Value::Timestamp(2000)),
        (DataType::Timestamp, logical("long", "timestamp-micros"), &[4], Value::Timestamp(2)),
        (
            DataType::Timestamp,
            logical("long", "local-timestamp-millis"),
            &[4],
            Value::Timestamp(2000),
        ),
        (
            DataType::Timestamp,
            logical("int", "date"),
            &[4],
            Value::Timestamp(2 * 86_400_000_000),
        ),
        (DataType::Timestamp, r#""long""#.into(), &[4], Value::Timestamp(2)),
        (
            DataType::Timestamp,
            r#""string""#.into(),
            b"\x281970-01-01T00:00:01Z",
            Value::Timestamp(1_000_000),
        ),
        (DataType::Decimal(2), r#""int""#.into(), &[4], Value::Decimal(200, 2)),
        (DataType::Decimal(2), r#""float""#.into(), &float, Value::Decimal(150, 2)),
        (DataType::Decimal(2), r#""string""#.into(), b"\x062.5", Value::Decimal(250, 2)),
        (
            DataType::Decimal(2),
            r#"{"type": "fixed", "name": "d", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 1}"#
                .into(),
            &[0xff, 0xfe],
            Value::Decimal(-20, 2),
        ),
        (DataType::Int, r#"["null", "string", "long"]"#.into(), &[4, 2], Value::Int(1)),
        // Blocks of an array, one of them with its length in bytes.
        (
            DataType::List(Box::new(DataType::Int)),
            r#"{"type": "array", "items": "int"}"#.into(),
            &[2, 2, 3, 4, 4, 6, 0],
            Value::List(vec![Value::Int(1), Value::Int(2), Value::Int(3)].into()),
        ),
    ];
    for (ty, field, bytes, value) in cases {
        assert_eq!(read_as(ty.clone(), &field, bytes), Ok(value), "{field} as {ty}");
    }
    let nested = r#"{"type": "record", "name": "p", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "m", "type": {"type": "map", "values": "boolean"}}]}"#;
    let Value::Any(found) = read_as(DataType::Any, nested, &[0, 2, 2, b'k', 1, 0]).unwrap() else {
        panic!("any");
    };
    let mut json = Vec::new();
    crate::msgpack::to_json(&found, &mut json);
    let json = String::from_utf8(json).unwrap();
    assert_eq!(json, r#"{"at":"1970-01-01T00:00:00.000000Z","m":{"k":true}}"#);
}

#[test]
fn what_does_not_fit_is_a_reason() {
    let why = |ty: DataType, field: &str, bytes: &[u8]| read_as(ty, field, bytes).unwrap_err();
    assert_eq!(
        why(DataType::Int, r#""string""#, b"\x02a"),
        "column 'x': expected int, and the schema says string"
    );
    assert!(why(DataType::Int, r#"["null", "long"]"#, &[0]).contains("may not be null"));
    assert!(why(DataType::Int, r#"["null", "long"]"#, &[4]).contains("no branch 2"));
    assert!(why(DataType::Str, r#""string""#, b"\x02\xff").contains("UTF-8"));
    assert!(why(DataType::Bool, r#""boolean""#, &[2]).contains("ends too early, or is not"));
    assert!(why(DataType::Int, r#""long""#, &[]).contains("ends too early"));
    assert!(why(DataType::Int, r#""long""#, &[2, 2]).contains("1 bytes follow"));
    assert!(why(DataType::Int, r#""long""#, &[0xff; 11]).contains("64 bits"));
    assert!(
        why(DataType::Int, r#""int""#, &[0xff, 0xff, 0xff, 0xff, 0x7f]).contains("out of range")
    );
    let nanos = r#"{"type": "long", "logicalType": "timestamp-nanos"}"#;
    assert!(why(DataType::Timestamp, nanos, &[2]).contains("finer"));

    let schema = Arc::new(Schema::new(vec![Column::new("n", DataType::Int)]));
    let settings = known(&record(r#"{"name": "m", "type": "long"}"#));
    let why =
        |value: &[u8], settings: &MessageSettings| decode(&schema, settings, value).unwrap_err();
    assert_eq!(why(&[0, 0, 0, 0, 7, 2], &settings), "column 'n': the field is missing");
    assert!(why(b"{\"n\": 1}", &settings).contains("but with the byte 123"));
    assert!(why(&[0, 0, 0], &settings).contains("3 bytes"));
    assert_eq!(why(&[0, 0, 0, 0, 9, 2], &settings), "later");
    assert_eq!(why(&[0, 0, 0, 1, 148, 2], &settings), "there is no schema 404");
    let both = known(&record(r#"{"name": "n", "type": "long"}, {"name": "m", "type": "long"}"#));
    assert_eq!(decode(&schema, &both, &[0, 0, 0, 0, 7, 2, 4]).unwrap(), [Value::Int(1)]);
    let refuse = MessageSettings { unknown_fields: UnknownFields::Refuse, ..both };
    assert_eq!(why(&[0, 0, 0, 0, 7, 2, 4], &refuse), "the stream has no column 'm'");
    assert!(why(&[0, 0, 0, 0, 7, 2], &known(r#""long""#)).contains("not a record, but long"));
}

#[test]
fn lengths_that_lie_cost_nothing() {
    // The zigzag encoding of the largest number, and of the smallest.
    let (max, min) = ([0xfe, 255, 255, 255, 255, 255, 255, 255, 255, 1], [0xff; 9]);
    let min = [&min[..], &[1]].concat();
    let nulls = r#"{"type": "array", "items": "null"}"#;
    let longs = r#"{"type": "array", "items": "long"}"#;
    let text = r#""string""#;
    for field in [nulls, longs, text, r#"{"type": "map", "values": "null"}"#] {
        for bytes in [&max[..], &min[..], &[&min[..], &max[..]].concat()] {
            for ty in [DataType::List(Box::new(DataType::Int)), DataType::Str, DataType::Any] {
                let why = read_as(ty, field, bytes).unwrap_err();
                assert!(!why.is_empty());
            }
            // This also holds if no column needs it.
            let schema = Arc::new(Schema::new(vec![Column::new("n", DataType::Int).nullable()]));
            let text = record(&format!(r#"{{"name": "x", "type": {field}}}"#));
            let value = [&[0, 0, 0, 0, 7], bytes].concat();
            assert!(decode(&schema, &known(&text), &value).is_err());
        }
    }
    // The schema is deeper than the stack would allow.
    let deep =
        r#"{"type": "record", "name": "l", "fields": [{"name": "next", "type": ["null", "l"]}]}"#;
    let why = read_as(DataType::Any, deep, &[2; 100_000]).unwrap_err();
    assert!(why.contains("deep"), "{why}");
    // Records that double at each level, and have no bytes.
    let mut doubles = r#"{"type": "record", "name": "r0", "fields": []}"#.to_owned();
    for n in 1..40 {
        doubles = format!(
            r#"{{"type": "record", "name": "r{n}", "fields": [{{"name": "a", "type": {doubles}}},
               {{"name": "b", "type": "r{}"}}]}}"#,
            n - 1
        );
    }
    assert!(read_as(DataType::Any, &doubles, &[]).unwrap_err().contains("more parts"));
    let fixed = format!(r#"{{"type": "fixed", "name": "f", "size": {}}}"#, usize::MAX);
    assert!(read_as(DataType::Bytes, &fixed, &[1]).unwrap_err().contains("too early"));
}

#[test]
fn columns_have_to_fit_a_schema_that_is_given() {
    let schema = Arc::new(Schema::new(vec![
        Column::new("n", DataType::Int),
        Column::new("d", DataType::Decimal(2)).nullable(),
    ]));
    let fits = |fields: &str| {
        let avro = AvroSchema::parse(&[&record(fields)]).unwrap();
        AvroValues::new(&schema, 7, &avro).map(drop).map_err(|error| error.what)
    };
    let n = r#"{"name": "n", "type": "long"}"#;
    let d = r#"{"name": "d", "type": [
        {"type": "fixed", "name": "f", "size": 12, "logicalType": "decimal", "precision": 20, "scale": 2}, "null"]}"#;
    assert!(fits(n).unwrap_err().contains("no field for column 'd'"));
    assert!(fits(&format!("{n}, {}", r#"{"name": "d", "type": "bytes"}"#))
        .unwrap_err()
        .contains("may be null"));
    assert!(fits(&format!("{d}, {}", n.replace("long", "int")))
        .unwrap_err()
        .contains("the schema says int"));
    let other = d.replace("\"scale\": 2", "\"scale\": 3");
    assert!(fits(&format!("{n}, {other}")).unwrap_err().contains("decimal with scale 3"));
    let more = r#"{"name": "more", "type": "long"}"#;
    assert!(fits(&format!("{n}, {d}, {more}"))
        .unwrap_err()
        .contains("no column for its field 'more'"));
    let more = r#"{"name": "more", "type": ["string", "null"]}"#;
    let text = record(&format!("{d}, {more}, {n}"));
    let avro = AvroSchema::parse(&[&text]).unwrap();
    for units in [-3, i64::MAX] {
        let row = [Value::Int(5), Value::Decimal(units, 2)];
        let bytes = encoded(&schema, &avro, &row);
        assert_eq!(bytes.len(), HEAD + 1 + 12 + 1 + 1);
        assert_eq!(decode(&schema, &known(&text), &bytes).unwrap(), row);
    }
    let row = [Value::Int(5), Value::Null];
    assert_eq!(encoded(&schema, &avro, &row)[HEAD..], [2, 2, 10]);
}
