use tidemill_connect::source::contract::Taken;
use tidemill_connect::{files::UnknownFields, FilesSettings};
use tidemill_core::{Column, DataType, Value};

use crate::{bad, every_type, good, schema, zipped, Folder};

fn read(
    content: impl AsRef<[u8]>,
    columns: Vec<Column>,
    set: impl Fn(&mut FilesSettings),
) -> Vec<Taken> {
    let folder = Folder::new();
    let mut settings = FilesSettings::new(folder.put("x.jsonl", content));
    set(&mut settings);
    folder.rows(&settings, &schema(columns))
}

#[test]
fn every_type_is_read() {
    let folder = Folder::new();
    let content = r#"
{"a":{"k":[1,-1.5]},"i":-7,"f":1,"b":true,"s":"\u00e9\n","y":"0x00ff","t":"2024-02-29T12:00:00Z","d":12.50,"l":["x",null],"more":{"x":[1]}}

 {"i":1e2,"f":"NaN","b":false,"s":"","y":"0x","t":-1,"d":"0.07","l":[],"a":null}
"#;
    let settings = FilesSettings::new(folder.put("x.jsonl", zipped(content.as_bytes())));
    let rows = folder.rows(&settings, &every_type(false));
    assert_eq!(bad(&rows), []);
    let mut any = vec![0x81, 0xa1, b'k', 0x92, 1, 0xcb];
    any.extend((-1.5f64).to_be_bytes());
    let expected = [
        vec![
            Value::Int(-7),
            Value::Float(1.0),
            Value::Bool(true),
            Value::str("é\n"),
            Value::Bytes(vec![0, 255].into()),
            Value::Timestamp(1_709_208_000_000_000),
            Value::Decimal(1250, 2),
            Value::List(vec![Value::str("x"), Value::Null].into()),
            Value::Any(any.into()),
        ],
        vec![
            Value::Int(100),
            Value::Float(f64::NAN),
            Value::Bool(false),
            Value::str(""),
            Value::Bytes(vec![].into()),
            Value::Timestamp(-1),
            Value::Decimal(7, 2),
            Value::List(vec![].into()),
            Value::Any(vec![0xc0].into()),
        ],
    ];
    assert_eq!(good(&rows), expected);
}

#[test]
fn unfit_values_make_bad_rows() {
    let list = DataType::List(Box::new(DataType::Int));
    for (ty, value, reason) in [
        (DataType::Int, "1.5", "'1.5' is not an integer"),
        (DataType::Int, "9223372036854775808", "'9223372036854775808' is out of range for int"),
        (DataType::Int, "\"1\"", "expected a number, found '\"1\"'"),
        (DataType::Int, "null", "null, but the column may not be null"),
        (DataType::Float, "1e999", "'1e999' is out of range for float"),
        (DataType::Float, "\"1\"", "expected a number, found '\"1\"'"),
        (DataType::Bool, "1", "expected true or false, found '1'"),
        (DataType::Str, "1", "expected a string, found '1'"),
        (DataType::Str, r#""\ud800""#, "unexpected end of hex escape at column 8"),
        (DataType::Decimal(2), "1.005", "'1.005' has more than 2 digits after the point"),
        (DataType::Timestamp, "1.5", "'1.5' is not an integer"),
        (list.clone(), "[1,\"x\"]", "item 1: expected a number, found '\"x\"'"),
        (list, "{}", "expected an array, found '{}'"),
        (DataType::Any, r#"{"a":1,"a":2}"#, "the key 'a' is there twice"),
    ] {
        let rows = read(format!("{{\"x\":{value}}}"), vec![Column::new("x", ty)], |_| {});
        assert_eq!(bad(&rows), [(1, &*format!("column 'x': {reason}"))]);
    }
}

#[test]
fn unfit_lines_make_bad_rows() {
    let columns = || vec![Column::new("x", DataType::Int)];
    for (line, reason) in [
        ("{\"x\":1", "EOF while parsing an object at column 6"),
        ("{\"x\":1} 2", "trailing characters at column 9"),
        ("[1]", "invalid type: sequence, expected a JSON object at column 0"),
        ("{}", "column 'x': the field is missing"),
        ("{\"x\":1,\"x\":1}", "the field 'x' is there twice at column 10"),
        ("{'x':1}", "key must be a string at column 2"),
    ] {
        let rows = read(format!("{line}\n{{\"x\":7}}\n"), columns(), |_| {});
        assert_eq!(bad(&rows), [(1, reason)]);
        assert_eq!(good(&rows), [[Value::Int(7)]]);
    }
    let rows = read(b"{\"x\":1,\"y\":\"\xff\"}\n", columns(), |_| {});
    assert!(bad(&rows)[0].1.contains("byte 12"), "{rows:?}");
    let deep = format!("{{\"x\":1,\"y\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(good(&read(&deep, columns(), |_| {})), [[Value::Int(1)]]);
    let any = vec![Column::new("y", DataType::Any)];
    assert!(bad(&read(&deep, any, |_| {}))[0].1.contains("deep"));
    let long = format!("{{\"x\":1,\"y\":\"{}\"}}\n{{\"x\":2}}", "y".repeat(2 << 20));
    let rows = read(long, columns(), |_| {});
    assert_eq!(good(&rows), [[Value::Int(2)]]);
    assert!(bad(&rows)[0].1.starts_with("longer than"));
}

#[test]
fn missing_and_unknown_fields() {
    let columns = || {
        vec![
            Column::new("x", DataType::Int).nullable(),
            Column::new("y", DataType::Int).default(Value::Int(5)),
        ]
    };
    let rows = read("{}\n{\"y\":null}\n{\"z\":1,\"x\":2,\"y\":3}", columns(), |_| {});
    assert_eq!(good(&rows), [[Value::Null, Value::Int(5)], [Value::Int(2), Value::Int(3)]]);
    assert_eq!(bad(&rows), [(2, "column 'y': null, but the column may not be null")]);
    let rows = read("{\"z\":1}\n{\"X name\":4}", columns(), |s| {
        s.unknown_fields = Some(UnknownFields::Refuse);
        s.columns.insert("x".into(), "X name".into());
    });
    assert_eq!(good(&rows), [[Value::Int(4), Value::Int(5)]]);
    assert_eq!(bad(&rows), [(1, "the stream has no column 'z' at column 4")]);
}
