//! Tests with Parquet files of other programs.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::builder::*;
use arrow_array::types::*;
use arrow_array::*;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use tidemill_connect::source::contract::{check, Taken};
use tidemill_connect::{sink, FilesSettings, Polled, SinkSettings, Source};
use tidemill_core::{Batch, Column, DataType, Kind, Schema, Value};

use crate::{cases, every_type, good, schema, Folder};

/// Writes columns in row groups of `group` rows.
fn written(folder: &Folder, columns: Vec<(&str, ArrayRef)>, group: usize) -> PathBuf {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    )
    .unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group))
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    folder.put("x.parquet", bytes)
}

fn ints(range: std::ops::Range<i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(range))
}

/// Returns the values of one column `a` of this type, or why a row is bad.
fn column(array: ArrayRef, column: Column) -> Vec<Result<Value, String>> {
    let folder = Folder::new();
    let settings = FilesSettings::new(written(&folder, vec![("a", array)], 3));
    let rows = folder.rows(&settings, &schema(vec![column]));
    rows.into_iter()
        .map(|row| match row {
            Taken::Good(row) => Ok(row[0].clone()),
            Taken::Bad(bad) => {
                assert_eq!(bad.line, 0);
                assert!(bad.raw.starts_with("{\"a\":"), "{}", bad.raw);
                Err(bad.reason)
            }
        })
        .collect()
}

fn of(ty: DataType) -> Column {
    Column::new("a", ty)
}

fn bad(why: &str) -> Result<Value, String> {
    Err(format!("column 'a': {why}"))
}

#[test]
fn integers_and_floats() {
    let int = |i| Ok(Value::Int(i));
    assert_eq!(
        column(Arc::new(Int8Array::from(vec![-1, 2])), of(DataType::Int)),
        [int(-1), int(2)]
    );
    assert_eq!(column(Arc::new(Int32Array::from(vec![7])), of(DataType::Int)), [int(7)]);
    assert_eq!(
        column(Arc::new(UInt64Array::from(vec![1, u64::MAX, 2, 3])), of(DataType::Int)),
        [int(1), bad("'18446744073709551615' is out of range for int"), int(2), int(3)]
    );
    let some = Arc::new(Int64Array::from(vec![Some(1), None]));
    assert_eq!(
        column(some.clone(), of(DataType::Int)),
        [int(1), bad("null, but the column may not be null")]
    );
    assert_eq!(column(some, of(DataType::Int).nullable()), [int(1), Ok(Value::Null)]);
    let floats = Arc::new(Float32Array::from(vec![0.5, -0.0]));
    assert_eq!(
        column(floats, of(DataType::Float)),
        [Ok(Value::Float(0.5)), Ok(Value::Float(-0.0))]
    );
    let ints = Arc::new(UInt16Array::from(vec![9]));
    assert_eq!(column(ints, of(DataType::Float)), [Ok(Value::Float(9.0))]);
}

#[test]
fn timestamps() {
    let at = |us| Ok(Value::Timestamp(us));
    let time = || of(DataType::Timestamp);
    let seconds = Arc::new(TimestampSecondArray::from(vec![1, i64::MAX]));
    assert_eq!(
        column(seconds, time()),
        [at(1_000_000), bad("'9223372036854775807' is out of range for timestamp")]
    );
    let days = Arc::new(Date64Array::from(vec![86_400_000]));
    assert_eq!(column(days, time()), [at(86_400_000_000)]);
    let millis = Arc::new(TimestampMillisecondArray::from(vec![1, i64::MAX]).with_timezone("UTC"));
    assert_eq!(
        column(millis, time()),
        [at(1000), bad("9223372036854775807 is out of range for timestamp")]
    );
    let micros = Arc::new(TimestampMicrosecondArray::from(vec![Some(5), None]));
    assert_eq!(column(micros, time().nullable()), [at(5), Ok(Value::Null)]);
    let nanos = Arc::new(TimestampNanosecondArray::from(vec![5000, 5001]));
    assert_eq!(column(nanos, time()), [at(5), bad("5001 ns is finer than microseconds")]);
    let days = Arc::new(Date32Array::from(vec![1, -1]));
    assert_eq!(column(days, time()), [at(86_400_000_000), at(-86_400_000_000)]);
    // The microseconds of this day, in 64 bits, are those of the last day of 1969.
    let wild = Arc::new(Date32Array::from(vec![213_503_982]));
    assert_eq!(column(wild, time()), [bad("213503982 days are out of range for timestamp")]);
    let texts = Arc::new(StringArray::from(vec!["1970-01-02", "x"]));
    assert_eq!(
        column(texts, time()),
        [at(86_400_000_000), bad("'x' is not an ISO 8601 date or time")]
    );
    assert_eq!(column(ints(3..4), time()), [at(3)]);

    let folder = Folder::new();
    let mut settings = FilesSettings::new(written(&folder, vec![("a", ints(3..4))], 3));
    settings.formats.insert("a".into(), "unix_s".into());
    let rows = good(&folder.rows(&settings, &schema(vec![time()])));
    assert_eq!(rows, [[Value::Timestamp(3_000_000)]]);
}

#[test]
fn decimals() {
    let two = |units| Ok(Value::Decimal(units, 2));
    let of = |scale| of(DataType::Decimal(scale));
    let sized = |units: Vec<i128>, precision, scale| -> ArrayRef {
        let array = Decimal128Array::from(units).with_precision_and_scale(precision, scale);
        Arc::new(array.unwrap())
    };
    assert_eq!(
        column(sized(vec![1, -1250, 1 << 62], 38, 1), of(2)),
        [two(10), two(-12500), bad("'461168601842738790.4' is out of range for decimal(2)")]
    );
    assert_eq!(
        column(sized(vec![1000, 1005], 18, 3), of(2)),
        [two(100), bad("'1.005' has more than 2 digits after the point")]
    );
    assert_eq!(column(sized(vec![7], 5, 2), of(2)), [two(7)]);
    assert_eq!(column(ints(3..4), of(2)), [two(300)]);
    let texts = Arc::new(StringArray::from(vec!["1.5", "z"]));
    assert_eq!(column(texts, of(2))[0], two(150));
}

#[test]
fn texts_bytes_lists_and_any() {
    let text = |s| Ok(Value::str(s));
    let large = Arc::new(LargeStringArray::from(vec!["a", ""]));
    assert_eq!(column(large, of(DataType::Str)), [text("a"), text("")]);
    let views = Arc::new(StringViewArray::from(vec!["a long text of many bytes", "b"]));
    assert_eq!(column(views, of(DataType::Str))[1], text("b"));
    let words: DictionaryArray<Int32Type> = vec!["x", "y", "x"].into_iter().collect();
    assert_eq!(column(Arc::new(words), of(DataType::Str)), [text("x"), text("y"), text("x")]);
    let fixed = FixedSizeBinaryArray::try_from_iter([[1u8, 2], [3, 4]].into_iter()).unwrap();
    let bytes = |b: [u8; 2]| Ok(Value::Bytes(b.to_vec().into()));
    assert_eq!(column(Arc::new(fixed), of(DataType::Bytes)), [bytes([1, 2]), bytes([3, 4])]);
    let json = Arc::new(StringArray::from(vec!["[1]", "{"]));
    let read = column(json, of(DataType::Any));
    assert_eq!(read[0], Ok(Value::Any(vec![0x91, 1].into())));
    assert!(read[1].as_ref().unwrap_err().contains("is not JSON"));
    let mut lists = ListBuilder::new(Int32Builder::new());
    lists.append_value([Some(1), None]);
    lists.append_null();
    let list = DataType::List(Box::new(DataType::Int));
    assert_eq!(
        column(Arc::new(lists.finish()), of(list).nullable()),
        [Ok(Value::List(vec![Value::Int(1), Value::Null].into())), Ok(Value::Null)]
    );
}

#[test]
fn columns_are_found_by_name() {
    let folder = Folder::new();
    let path = written(&folder, vec![("b", ints(10..14)), ("a", ints(0..4)), ("z", ints(0..4))], 3);
    let mut settings = FilesSettings::new(path);
    let columns = |names: &[&str]| {
        schema(names.iter().map(|name| Column::new(name, DataType::Int)).collect())
    };
    let pair = |a, b| vec![Value::Int(a), Value::Int(b)];
    let rows = good(&folder.rows(&settings, &columns(&["a", "b"])));
    assert_eq!(rows, [pair(0, 10), pair(1, 11), pair(2, 12), pair(3, 13)]);
    let mut more = (*columns(&["a"])).clone();
    more.columns.push(Column::new("n", DataType::Int).default(Value::Int(5)));
    assert_eq!(good(&folder.rows(&settings, &Arc::new(more)))[3], pair(3, 5));
    let only_default = schema(vec![Column::new("n", DataType::Int).nullable()]);
    assert_eq!(good(&folder.rows(&settings, &only_default)).len(), 4);

    let refused = |settings: &FilesSettings, schema: &Arc<Schema>| {
        folder.open(settings, schema).map(|_| ()).unwrap_err()
    };
    let error = refused(&settings, &columns(&["bb"]));
    assert_eq!(error.kind, Kind::Input);
    assert!(error.help.contains("did you mean 'b'?"), "{error}");
    let error = refused(&settings, &schema(vec![Column::new("a", DataType::Str)]));
    assert!(error.what.contains("which can't be read as str"), "{error}");
    settings.unknown_fields = Some(tidemill_connect::files::UnknownFields::Refuse);
    assert!(refused(&settings, &columns(&["a", "b"])).what.contains("no column 'z'"));
    settings.unknown_fields = None;
    settings.columns.insert("bb".into(), "b".into());
    assert_eq!(good(&folder.rows(&settings, &columns(&["bb"])))[0], [Value::Int(10)]);
    settings.header = Some(true);
    assert!(refused(&settings, &columns(&["a"])).what.contains("header means nothing"));
    let text = FilesSettings::new(folder.put("y.parquet", "a,b\n1,2\n"));
    assert!(refused(&text, &columns(&["a"])).what.contains("not a Parquet file"));
    let empty = FilesSettings::new(folder.put("y.parquet", ""));
    assert_eq!(refused(&empty, &columns(&["a"])).kind, Kind::Input);
    let follow = FilesSettings { follow: true, ..FilesSettings::new(&settings.path) };
    assert!(refused(&follow, &columns(&["a"])).what.contains("can't be followed"));
}

#[test]
fn many_row_groups_and_places() {
    let folder = Folder::new();
    let settings = FilesSettings::new(written(&folder, vec![("a", ints(0..50_000))], 1_700));
    let columns = schema(vec![of(DataType::Int)]);
    let open = || folder.open(&settings, &columns).unwrap().remove(0).1;
    let mut source = open();
    let mut places = Vec::new();
    while let Polled::Rows(_) = source.poll(3_001).unwrap() {
        places.push(source.place());
    }
    for place in places {
        let mut source = open();
        source.resume(&place).unwrap();
        match source.poll(10).unwrap() {
            Polled::Rows(chunk) => assert_eq!(chunk.batch.ints(0).unwrap()[0], place.offset as i64),
            _ => assert_eq!(place.offset, 50_000),
        }
    }
    let place = source.place();
    written(&folder, vec![("a", ints(1..50_001))], 1_700);
    assert!(open().resume(&place).unwrap_err().what.contains("x.parquet"));
    // The file changes while it is read.
    let mut source = open();
    written(&folder, vec![("a", ints(0..3))], 9);
    assert!(source.poll(10).unwrap_err().what.contains("was changed while it was read"));
}

#[test]
fn what_is_written_is_read() {
    let list = Value::List(vec![Value::str("a"), Value::Null].into());
    let rows: Vec<Vec<Value>> = (0..100)
        .map(|i| {
            let mut row = vec![
                Value::Int(i),
                Value::Float(i as f64 / 3.0),
                Value::Bool(i % 2 == 0),
                Value::str(&format!("text {i}")),
                Value::Bytes(vec![1, i as u8].into()),
                Value::Timestamp(i * 1_000_003),
                Value::Decimal(i64::MAX - i, 2),
                list.clone(),
                Value::Any(vec![0xc0].into()),
            ];
            if i % 7 > 0 {
                row[(i % 9) as usize] = Value::Null;
            }
            row
        })
        .collect();
    let batch = Batch::from_rows(every_type(true), rows.iter().map(|r| &r[..]));
    let folder = Folder::new();
    let out = SinkSettings::new(folder.path("out.parquet"));
    let mut sink = sink::open(&out, batch.schema(), &folder.env, None).unwrap();
    for part in [batch.slice(0, 30), batch.slice(30, 1), batch.slice(31, 69)] {
        sink.write(&part).unwrap();
        sink.commit().unwrap();
        sink.sync().unwrap();
    }
    sink.finish().unwrap();
    let settings = FilesSettings::new(&out.path);
    assert_eq!(good(&folder.rows(&settings, batch.schema())), rows);
}

#[test]
fn a_folder_gets_parquet_files() {
    let folder = Folder::new();
    let bytes = folder.get(&written(&folder, vec![("a", ints(0..5))], 3));
    folder.env.disk.create_dir_all(&folder.path("in")).unwrap();
    let settings = FilesSettings { follow: true, ..FilesSettings::new(folder.path("in")) };
    let columns = schema(vec![of(DataType::Int)]);
    folder.put("in/1.parquet", &bytes);
    let mut source = folder.open(&settings, &columns).unwrap().remove(0).1;
    let read = |source: &mut Box<dyn Source>| {
        let mut rows = Vec::new();
        while let Polled::Rows(chunk) = source.poll(2).unwrap() {
            assert_eq!(chunk.next_offset, source.offset());
            rows.extend_from_slice(chunk.batch.ints(0).unwrap());
        }
        folder.env.clock.sleep_us(6_000);
        rows
    };
    assert_eq!(read(&mut source), [0, 1, 2, 3, 4]);
    let place = source.place();
    folder.put("in/2.parquet", &bytes);
    assert_eq!(read(&mut source), [0, 1, 2, 3, 4]);
    let mut again = folder.open(&settings, &columns).unwrap().remove(0).1;
    again.resume(&place).unwrap();
    assert_eq!(read(&mut again), [0, 1, 2, 3, 4]);
    assert_eq!((again.place(), again.offset()), (source.place(), 10));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(150) as u32, failure_persistence: None, ..Default::default()
    })]

    /// Damage gives an error or is not noticed, because the format has no checksums. It never
    /// panics.
    #[test]
    fn damaged(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let folder = Folder::new();
        let words: ArrayRef = Arc::new(StringArray::from_iter_values((0..40).map(|i| i.to_string())));
        let path = written(&folder, vec![("a", ints(0..40)), ("b", words)], 15);
        let mut bytes = folder.get(&path);
        for (place, byte) in edits {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let settings = FilesSettings::new(folder.put("x.parquet", bytes));
        let columns = schema(vec![of(DataType::Int), Column::new("b", DataType::Str)]);
        if let Ok(mut sources) = folder.open(&settings, &columns) {
            while let Ok(Polled::Rows(_)) = sources[0].1.poll(7) {}
        }
    }
}

#[test]
fn keeps_the_contract_with_bad_rows() {
    let folder = Folder::new();
    let mut numbers = Int64Builder::new();
    (0..100).for_each(|i| numbers.append_option((i % 3 > 0).then_some(i)));
    let settings = FilesSettings::new(written(&folder, vec![("a", Arc::new(numbers.finish()))], 7));
    let columns = schema(vec![of(DataType::Int)]);
    let rows = check(|| folder.open(&settings, &columns).unwrap().remove(0).1);
    assert_eq!((rows.len(), good(&rows).len()), (100, 66));
}
