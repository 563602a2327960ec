use tidemill_connect::sink::{self, contract};
use tidemill_connect::source::contract::read_on;
use tidemill_connect::{FilesSettings, SinkSettings};
use tidemill_core::{Batch, Column, DataType, Kind, Value};

use crate::{every_type, good, schema, Folder};

fn sample() -> Batch {
    let rows: Vec<Vec<Value>> = (0..6)
        .map(|i| {
            vec![
                Value::Int(i),
                Value::Float(0.1),
                Value::Bool(i % 2 == 0),
                if i == 0 { Value::Null } else { Value::str("x,\"y\"") },
                Value::Bytes(vec![1, 255].into()),
                Value::Timestamp(1_709_208_000_000_000),
                Value::Decimal(-1250, 2),
                Value::List(vec![Value::str("a"), Value::Null].into()),
                Value::Any(vec![0x81, 0xa1, b'k', 0xc3].into()),
            ]
        })
        .collect();
    Batch::from_rows(every_type(true), rows.iter().map(|r| &r[..]))
}

#[test]
fn file_sinks_keep_the_contract() {
    for name in ["deep/er/x.csv", "x.csv.gz", "x.jsonl", "x.ndjson.gz", "x.parquet"] {
        let make = || -> contract::Made {
            let folder = Folder::new();
            let path = folder.path(name);
            let sink = sink::open(&SinkSettings::new(&path), &every_type(true), &folder.env, None);
            let seen = move || {
                let settings = FilesSettings::new(&path);
                // A compressed file whose writer is gone has no end, and no visible rows.
                let Ok(mut sources) = folder.open(&settings, &every_type(true)) else {
                    return Vec::new();
                };
                let rows = read_on(&mut *sources[0].1, 100);
                good(&rows).into_iter().map(Into::into).collect()
            };
            (sink.unwrap(), Box::new(seen))
        };
        contract::check(make, &sample());
    }
}

fn written(name: &str, batch: &Batch, set: impl Fn(&mut SinkSettings)) -> String {
    let folder = Folder::new();
    let mut settings = SinkSettings::new(folder.path(name));
    set(&mut settings);
    let mut sink = sink::open(&settings, batch.schema(), &folder.env, None).unwrap();
    sink.write(batch).unwrap();
    sink.commit().unwrap();
    let text = String::from_utf8(folder.get(&settings.path)).unwrap();
    sink.finish().unwrap();
    assert_eq!(text.as_bytes(), folder.get(&settings.path), "a commit can be seen");
    text
}

#[test]
fn what_the_files_look_like() {
    let batch = sample().slice(0, 2);
    assert_eq!(
        written("x.csv", &batch, |_| {}),
        "i,f,b,s,y,t,d,l,a\n\
         0,0.1,true,,0x01ff,2024-02-29T12:00:00.000000Z,-12.50,\"[\"\"a\"\",null]\",\"{\"\"k\"\":true}\"\n\
         1,0.1,false,\"x,\"\"y\"\"\",0x01ff,2024-02-29T12:00:00.000000Z,-12.50,\"[\"\"a\"\",null]\",\
         \"{\"\"k\"\":true}\"\n"
    );
    assert_eq!(
        written("x.jsonl", &batch.slice(0, 1), |_| {}),
        "{\"i\":0,\"f\":0.1,\"b\":true,\"s\":null,\"y\":\"0x01ff\",\
         \"t\":\"2024-02-29T12:00:00.000000Z\",\"d\":-12.50,\"l\":[\"a\",null],\"a\":{\"k\":true}}\n"
    );
    let text = schema(vec![
        Column::new(" a", DataType::Str).nullable(),
        Column::new("b", DataType::Str).nullable(),
    ]);
    let rows = [
        [Value::str(""), Value::Null],
        [Value::str("-"), Value::str("a;b")],
        [Value::str("a,b"), Value::str("\r")],
    ];
    let batch = Batch::from_rows(text, rows.iter().map(|r| &r[..]));
    let odd = |s: &mut SinkSettings| {
        s.delimiter = Some(';');
        s.null = Some("-".into());
    };
    assert_eq!(written("x.csv", &batch, odd), "\" a\";b\n\"\";-\n\"-\";\"a;b\"\na,b;\"\r\"\n");
    assert_eq!(written("x.tsv", &batch.slice(0, 1), |s| s.header = Some(false)), "\"\"\t\n");
}

#[test]
fn one_column_keeps_its_nulls() {
    let ints = schema(vec![Column::new("a", DataType::Int).nullable()]);
    let rows = [[Value::Null], [Value::Int(1)]];
    let batch = Batch::from_rows(ints.clone(), rows.iter().map(|r| &r[..]));
    let folder = Folder::new();
    let settings = FilesSettings::new(folder.put("x.csv", written("x.csv", &batch, |_| {})));
    assert_eq!(good(&folder.rows(&settings, &ints)), rows.map(|r| r.to_vec()));

    let texts = schema(vec![Column::new("a", DataType::Str).nullable()]);
    let mut settings = SinkSettings::new(folder.path("y.csv"));
    let error = sink::open(&settings, &texts, &folder.env, None).map(|_| ()).unwrap_err();
    assert!(error.help.contains("null="), "{error}");
    settings.null = Some("\\N".into());
    sink::open(&settings, &texts, &folder.env, None).unwrap();
}

#[test]
fn targets_are_checked() {
    let folder = Folder::new();
    let open = |settings: &SinkSettings| sink::open(settings, sample().schema(), &folder.env, None);
    let mut settings = SinkSettings::new(folder.put("x.csv", "precious"));
    let error = open(&settings).map(|_| ()).unwrap_err();
    assert_eq!(error.kind, Kind::Setting);
    assert!(error.help.contains("--fresh (fresh=True) starts again and replaces it"), "{error}");
    assert_eq!(folder.get(&settings.path), b"precious");
    settings.overwrite = true;
    drop(open(&settings).unwrap());
    assert!(folder.get(&settings.path).starts_with(b"i,f"));
    drop(open(&SinkSettings::new(folder.put("empty.csv", ""))).unwrap());
    // A sink that was stopped before the first row has left its header, or less.
    for name in ["header.csv", "header.csv.gz"] {
        let settings = SinkSettings::new(folder.path(name));
        open(&settings).unwrap().finish().unwrap();
        let header = folder.get(&settings.path);
        for len in [header.len(), header.len() / 2] {
            folder.put(name, &header[..len]);
            drop(open(&settings).unwrap());
        }
        let mut sink = open(&settings).unwrap();
        sink.write(&sample()).unwrap();
        sink.commit().unwrap();
        sink.finish().unwrap();
        assert!(open(&settings).is_err());
    }

    let kind = |path| open(&SinkSettings::new(path)).map(|_| ()).unwrap_err().kind;
    folder.env.disk.create_dir_all(&folder.path("dir.csv")).unwrap();
    assert_eq!(kind(folder.path("dir.csv")), Kind::Setting);
    assert_eq!(kind(folder.path("x.csv/y.csv")), Kind::Setting);
    assert_eq!(kind(folder.path("x.orc")), Kind::Setting);
    settings.null = Some(",".into());
    assert!(open(&settings).is_err());
    let mut json = SinkSettings::new(folder.path("x.jsonl"));
    json.header = Some(true);
    assert!(open(&json).is_err());
    let typo = SinkSettings::from_json(r#"{"path": "x", "overwrit": true}"#).unwrap_err();
    assert_eq!(typo.help, "did you mean 'overwrite'?");
    let other = schema(vec![Column::new("z", DataType::Int)]);
    let mut sink = open(&SinkSettings::new(folder.path("z.csv"))).unwrap();
    assert!(sink.write(&Batch::from_rows(other, [&[Value::Int(1)][..]])).is_err());
}
