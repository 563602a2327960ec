use std::sync::Arc;

use proptest::prelude::*;
use tidemill_core::{Batch, BatchBuilder, Column, DataType, Schema, Value};

use super::*;

fn schema(columns: Vec<Column>) -> Arc<Schema> {
    Arc::new(Schema::new(columns))
}

fn nullable(name: &str, ty: DataType) -> Column {
    Column { nullable: true, ..Column::new(name, ty) }
}

fn all_types() -> Arc<Schema> {
    schema(vec![
        nullable("int", DataType::Int),
        nullable("float", DataType::Float),
        nullable("bool", DataType::Bool),
        nullable("str", DataType::Str),
        nullable("bytes", DataType::Bytes),
        nullable("at", DataType::Timestamp),
        nullable("amount", DataType::Decimal(2)),
        nullable("list", DataType::List(Box::new(DataType::Int))),
        nullable("any", DataType::Any),
    ])
}

fn decoded(
    schema: &Arc<Schema>,
    settings: &MessageSettings,
    message: &Message<'_>,
) -> Result<Vec<Value>, String> {
    let mut rows = BatchBuilder::new(schema.clone());
    let mut decoder = MessageRows::new(schema, settings).unwrap();
    let done = decoder.decode(message, &mut rows);
    let batch = rows.finish();
    assert_eq!(batch.len(), usize::from(done.is_ok()), "a bad row leaves nothing");
    done.map(|()| batch.row(0).to_vec())
}

fn there_and_back(format: MessageFormat, row: &[Value]) -> Vec<Value> {
    let schema = all_types();
    let batch = Batch::from_rows(schema.clone(), std::iter::once(row));
    let values = MessageValues::new(&schema, format, &[]).unwrap();
    let mut bytes = Vec::new();
    values.value(&batch, 0, &mut bytes);
    let settings = MessageSettings { format, ..MessageSettings::default() };
    let message = Message { value: Some(&bytes), ..Message::default() };
    decoded(&schema, &settings, &message).unwrap()
}

fn any_row() -> impl Strategy<Value = Vec<Value>> {
    let float = prop_oneof![Just(f64::NAN), Just(f64::INFINITY), -1e300..1e300f64];
    let list = prop::collection::vec(any::<i64>().prop_map(Value::Int), 0..40);
    let text = ".{0,40}";
    let maybe = |value: Value, is: bool| if is { value } else { Value::Null };
    (
        (any::<i64>(), float, any::<bool>(), text, prop::collection::vec(any::<u8>(), 0..300)),
        (-60_000_000_000_000_000i64..200_000_000_000_000_000, any::<i64>(), list, any::<u8>()),
        any::<u16>(),
    )
        .prop_map(move |((int, float, bool, text, bytes), (at, units, list, any), is)| {
            let values = [
                Value::Int(int),
                Value::Float(tidemill_core::value::canonical_f64(float)),
                Value::Bool(bool),
                Value::Str(text.as_str().into()),
                Value::Bytes(bytes.into()),
                Value::Timestamp(at),
                Value::Decimal(units, 2),
                Value::List(list.into_iter().collect()),
                Value::Any(vec![any & 0x7f].into()),
            ];
            let of = |(i, value)| maybe(value, is >> i & 1 == 1);
            values.into_iter().enumerate().map(of).collect()
        })
}

proptest! {
    #[test]
    fn rows_come_back(row in any_row()) {
        prop_assert_eq!(&there_and_back(MessageFormat::Msgpack, &row), &row);
        prop_assert_eq!(&there_and_back(MessageFormat::Json, &row), &row);
    }

    #[test]
    fn any_bytes_are_a_row_or_a_reason(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let schema = all_types();
        for format in [MessageFormat::Json, MessageFormat::Msgpack] {
            let settings = MessageSettings { format, ..MessageSettings::default() };
            let message = Message { value: Some(&bytes), ..Message::default() };
            if let Err(why) = decoded(&schema, &settings, &message) {
                prop_assert!(!why.is_empty());
            }
        }
    }
}

#[test]
fn columns_come_from_beside_the_value() {
    let schema = schema(vec![
        Column::new("who", DataType::Str),
        Column::new("n", DataType::Int),
        Column::new("at", DataType::Timestamp),
        Column::new("ms", DataType::Int),
        Column::new("place", DataType::Int),
        Column::new("part", DataType::Int),
        nullable("trace", DataType::Bytes),
    ]);
    let meta = [
        ("who", "key"),
        ("at", "timestamp"),
        ("ms", "timestamp"),
        ("place", "offset"),
        ("part", "partition"),
        ("trace", "header:trace"),
    ];
    let meta = meta.map(|(column, from)| (column.to_owned(), from.to_owned())).into();
    let settings = MessageSettings { meta, ..MessageSettings::default() };
    let message = Message {
        key: Some(b"me"),
        value: Some(b"{\"n\": 7}"),
        headers: vec![("trace", b"\xff"), ("trace", b"\x01")],
        timestamp_ms: Some(5),
        partition: 3,
        offset: 9,
    };
    let row = decoded(&schema, &settings, &message).unwrap();
    let text = row.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(row[1], Value::Int(7), "{text}");
    assert_eq!((&row[2], &row[3]), (&Value::Timestamp(5000), &Value::Int(5)));
    assert_eq!((&row[4], &row[5]), (&Value::Int(9), &Value::Int(3)));
    assert_eq!(row[6], Value::Bytes(vec![1].into()));
    let why = |message| decoded(&schema, &settings, &message).unwrap_err();
    let without = Message { headers: vec![], ..message.clone() };
    assert_eq!(decoded(&schema, &settings, &without).unwrap()[6], Value::Null);
    let error = why(Message { key: None, ..message.clone() });
    assert_eq!(error, "column 'who': the message has none, and the column may not be null");
    assert!(why(Message { key: Some(b"\xff"), ..message.clone() }).contains("UTF-8"));
    assert!(why(Message { value: None, ..message.clone() }).contains("tombstone"));
    assert!(why(Message { value: Some(b"{}"), ..message }).contains("column 'n'"));
}

#[test]
fn a_value_may_be_taken_as_it_is() {
    let schema = schema(vec![nullable("raw", DataType::Bytes)]);
    let meta = [("raw".to_owned(), "value".to_owned())].into();
    let settings = MessageSettings { meta, ..MessageSettings::default() };
    let message = Message { value: Some(b"\x00 no JSON"), ..Message::default() };
    let row = decoded(&schema, &settings, &message).unwrap();
    assert_eq!(row[0], Value::Bytes(b"\x00 no JSON"[..].into()));
    assert_eq!(decoded(&schema, &settings, &Message::default()).unwrap()[0], Value::Null);
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let schema = schema(vec![Column::new("n", DataType::Int), Column::new("s", DataType::Str)]);
    let refused = |column: &str, from: &str| {
        let meta = [(column.to_owned(), from.to_owned())].into();
        let settings = MessageSettings { meta, ..MessageSettings::default() };
        let error = MessageRows::new(&schema, &settings).err().expect("a refusal");
        assert_eq!(error.kind, tidemill_core::Kind::Setting, "{error}");
        error.to_string()
    };
    assert!(refused("x", "key").contains("x"));
    assert!(refused("n", "header:").contains("header:NAME"));
    assert!(refused("n", "topic").contains("topic"));
    assert!(refused("s", "offset").contains("type str"));
    assert!(refused("s", "timestamp").contains("type str"));
    let error = MessageValues::new(&schema, MessageFormat::Json, &["m".into()]).err().unwrap();
    assert_eq!(error.kind, tidemill_core::Kind::Setting);
}

#[test]
fn keys_are_text() {
    let schema = all_types();
    let row = [
        Value::Int(-7),
        Value::Float(1.5),
        Value::Bool(true),
        Value::Str("a\"b".into()),
        Value::Bytes(vec![0, 255].into()),
        Value::Timestamp(0),
        Value::Decimal(150, 2),
        Value::Null,
        Value::Null,
    ];
    let batch = Batch::from_rows(schema.clone(), std::iter::once(&row[..]));
    let key = |columns: &[&str]| {
        let names: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
        let values = MessageValues::new(&schema, MessageFormat::Json, &names).unwrap();
        let mut out = Vec::new();
        values.key(&batch, 0, &mut out).then_some(out)
    };
    assert_eq!(key(&["int"]).as_deref(), Some(&b"-7"[..]));
    assert_eq!(key(&["str"]).as_deref(), Some(&b"a\"b"[..]));
    assert_eq!(key(&["bytes"]).as_deref(), Some(&[0, 255][..]));
    assert_eq!(key(&["amount"]).as_deref(), Some(&b"1.50"[..]));
    assert_eq!(key(&["int", "str"]).as_deref(), Some(&br#"[-7,"a\"b"]"#[..]));
    assert_eq!(key(&["list"]), None);
    assert_eq!(key(&[]), None);
}

#[test]
fn msgpack_of_others_is_read() {
    let schema = schema(vec![
        Column::new("at", DataType::Timestamp),
        Column::new("d", DataType::Decimal(1)),
        Column::new("f", DataType::Float),
    ]);
    let settings = MessageSettings { format: MessageFormat::Msgpack, ..MessageSettings::default() };
    let read = |parts: &[&[u8]]| {
        let bytes = parts.concat();
        let message = Message { value: Some(&bytes), ..Message::default() };
        decoded(&schema, &settings, &message)
    };
    let at: &[u8] = &[0xa2, b'a', b't', 0xd6, 0xff, 0, 0, 0, 2];
    let d: &[u8] = &[0xa1, b'd', 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0];
    let f: &[u8] = &[0xa1, b'f', 0xca, 0x3f, 0x80, 0, 0];
    let row = read(&[&[0x83], at, d, f]).unwrap();
    assert_eq!(row, [Value::Timestamp(2_000_000), Value::Decimal(15, 1), Value::Float(1.0)]);
    assert!(read(&[&[0x82], at, d]).unwrap_err().contains("column 'f'"));
    assert!(read(&[&[0x84], at, d, f, f]).unwrap_err().contains("twice"));
    assert!(read(&[&[0x83], at, d, f, &[0]]).unwrap_err().contains("follow"));
    assert!(read(&[&[0x93], &[1, 2, 3]]).unwrap_err().contains("not a map"));
}
