//! Written files read back as the same rows.

use proptest::prelude::*;
use tidemill_connect::source::contract::check;
use tidemill_connect::{sink, FilesSettings, SinkSettings};
use tidemill_core::{Batch, DataType, Value};

use crate::{bad, cases, every_type, good, Folder};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab \",;\n\r\t\\\\\u{feff}é€\u{1f600}\0]{0,12}",
        any::<String>(),
        prop::sample::select(vec!["", "null", "NA", "\\N", "0x", "NaN", "\"\"", " ", "\u{feff}"])
            .prop_map(str::to_string),
    ]
}

/// Generates a msgpack value that JSON can hold.
fn msgpack() -> impl Strategy<Value = Vec<u8>> {
    let float = any::<f64>().prop_filter("JSON has no other floats", |f| f.is_finite());
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        float.prop_map(Into::into),
        text().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Into::into),
            prop::collection::btree_map(text(), inner, 0..20)
                .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
        ]
    })
    .prop_map(|json| {
        let mut bytes = Vec::new();
        encode(&json, &mut bytes);
        bytes
    })
}

/// Appends the shortest msgpack of a JSON value, in a second implementation: small sizes only.
fn encode(json: &serde_json::Value, out: &mut Vec<u8>) {
    use serde_json::Value as Json;
    let text = |s: &str, out: &mut Vec<u8>| {
        match s.len() {
            len @ 0..=31 => out.push(0xa0 + len as u8),
            len @ 32..=255 => out.extend([0xd9, len as u8]),
            len => out.extend([0xda, (len >> 8) as u8, len as u8]),
        }
        out.extend(s.as_bytes());
    };
    let head = |len: usize, short: u8, long: u8, out: &mut Vec<u8>| match len {
        0..=15 => out.push(short + len as u8),
        _ => out.extend([long, (len >> 8) as u8, len as u8]),
    };
    match json {
        Json::Null => out.push(0xc0),
        Json::Bool(b) => out.push(0xc2 + u8::from(*b)),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i @ -32..=127), _) => out.push(i as u8),
            (Some(i @ -128..=-33), _) => out.extend([0xd0, i as u8]),
            (Some(i @ -32768..=-129), _) => {
                out.push(0xd1);
                out.extend((i as i16).to_be_bytes());
            }
            (Some(i @ -2147483648..=-32769), _) => {
                out.push(0xd2);
                out.extend((i as i32).to_be_bytes());
            }
            (Some(i), None) => {
                out.push(0xd3);
                out.extend(i.to_be_bytes());
            }
            (_, Some(u @ 0..=255)) => out.extend([0xcc, u as u8]),
            (_, Some(u @ 256..=65535)) => out.extend([0xcd, (u >> 8) as u8, u as u8]),
            (_, Some(u)) if u <= u64::from(u32::MAX) => {
                out.push(0xce);
                out.extend((u as u32).to_be_bytes());
            }
            (_, Some(u)) => {
                out.push(0xcf);
                out.extend(u.to_be_bytes());
            }
            (None, None) => {
                out.push(0xcb);
                out.extend(n.as_f64().unwrap().to_be_bytes());
            }
        },
        Json::String(s) => text(s, out),
        Json::Array(items) => {
            head(items.len(), 0x90, 0xdc, out);
            items.iter().for_each(|item| encode(item, out));
        }
        Json::Object(entries) => {
            head(entries.len(), 0x80, 0xde, out);
            for (key, value) in entries {
                text(key, out);
                encode(value, out);
            }
        }
    }
}

fn value(ty: &DataType, nullable: bool) -> BoxedStrategy<Value> {
    let value = match ty {
        DataType::Int => any::<i64>().prop_map(Value::Int).boxed(),
        DataType::Float => prop_oneof![
            any::<f64>(),
            prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e16]),
        ]
        .prop_map(|f| Value::Float(tidemill_core::value::canonical_f64(f)))
        .boxed(),
        DataType::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        DataType::Str => text().prop_map(|s| Value::str(&s)).boxed(),
        DataType::Bytes => {
            prop::collection::vec(any::<u8>(), 0..9).prop_map(|b| Value::Bytes(b.into())).boxed()
        }
        DataType::Timestamp => {
            prop_oneof![tidemill_core::value::YEARS, 0..4_000_000_000_000_000i64]
                .prop_map(Value::Timestamp)
                .boxed()
        }
        DataType::Decimal(s) => {
            let s = *s;
            any::<i64>().prop_map(move |u| Value::Decimal(u, s)).boxed()
        }
        DataType::List(inner) => prop::collection::vec(self::value(inner, true), 0..4)
            .prop_map(|items| Value::List(items.into()))
            .boxed(),
        DataType::Any => msgpack()
            // In a JSON line the null of `any` is that of its column.
            .prop_filter("nil", move |bytes| !(nullable && bytes == &[0xc0]))
            .prop_map(|bytes| Value::Any(bytes.into()))
            .boxed(),
    };
    if nullable {
        prop_oneof![1 => Just(Value::Null), 4 => value].boxed()
    } else {
        value
    }
}

fn rows(nullable: bool) -> impl Strategy<Value = Vec<Vec<Value>>> {
    let columns: Vec<_> =
        every_type(nullable).columns.iter().map(|c| value(&c.ty, nullable)).collect();
    prop::collection::vec(columns, 0..6)
}

fn round(name: &str, nullable: bool, rows: &[Vec<Value>], null: Option<&str>) {
    let folder = Folder::new();
    let schema = every_type(nullable);
    let mut out = SinkSettings::new(folder.path(name));
    out.null = null.map(str::to_string);
    let mut sink = sink::open(&out, &schema, &folder.env, None).unwrap();
    for part in rows.chunks(2) {
        let batch = Batch::from_rows(schema.clone(), part.iter().map(|r| &r[..]));
        sink.write(&batch).unwrap();
        sink.commit().unwrap();
    }
    sink.finish().unwrap();
    let mut back = FilesSettings::new(&out.path);
    back.nulls = null.map(|null| vec![null.to_string()]);
    let taken = check(|| folder.open(&back, &schema).unwrap().remove(0).1);
    assert_eq!(bad(&taken), []);
    assert_eq!(good(&taken), rows);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(60) as u32, failure_persistence: None, ..Default::default() })]

    #[test]
    fn csv(rows in rows(true)) {
        round("x.csv", true, &rows, None);
        round("x.csv", true, &rows, Some("\\N"));
    }

    #[test]
    fn csv_without_nulls(rows in rows(false)) {
        round("x.tsv.gz", false, &rows, None);
    }

    #[test]
    fn jsonl(rows in rows(true)) {
        round("x.jsonl", true, &rows, None);
    }

    #[test]
    fn jsonl_without_nulls(rows in rows(false)) {
        round("x.jsonl.gz", false, &rows, None);
    }
}
