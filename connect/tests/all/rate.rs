//! How fast files are decoded and written; run with `--ignored --nocapture rate`.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array};
use tidemill_connect::{sink, FilesSettings, Polled, SinkSettings};
use tidemill_core::{Batch, Column, DataType, Schema};

use crate::{schema, Folder};

const ROWS: u64 = 2_000_000;

fn payments() -> Arc<Schema> {
    schema(vec![
        Column::new("at", DataType::Timestamp),
        Column::new("src", DataType::Int),
        Column::new("dst", DataType::Int),
        Column::new("amount", DataType::Decimal(2)),
        Column::new("note", DataType::Str),
    ])
}

#[test]
#[ignore = "a measurement"]
fn rate() {
    let folder = Folder::new();
    let mut csv = String::from("at,src,dst,amount,note\n");
    let mut jsonl = String::new();
    for i in 0..ROWS {
        let (s, d) = (i * 7919 % 100_000, i * 104_729 % 100_000);
        let at = format!(
            "2024-02-29T{:02}:{:02}:{:02}.{:06}Z",
            i / 3600 % 24,
            i / 60 % 60,
            i % 60,
            i % 1_000_000
        );
        csv.push_str(&format!("{at},{s},{d},{}.{:02},note {}\n", i % 900, i % 100, i % 50));
        jsonl.push_str(&format!(
            "{{\"at\":\"{at}\",\"src\":{s},\"dst\":{d},\"amount\":{}.{:02},\"note\":\"note {}\"}}\n",
            i % 900, i % 100, i % 50
        ));
    }
    let clock = folder.env.clock.clone();
    let mut batches: Vec<Batch> = Vec::new();
    for (name, content) in [("x.csv", &csv), ("x.jsonl", &jsonl)] {
        let settings = FilesSettings::new(folder.put(name, content));
        for _ in 0..2 {
            batches.clear();
            let mut source = folder.open(&settings, &payments()).unwrap().remove(0).1;
            let start = clock.monotonic_ns();
            while let Polled::Rows(chunk) = source.poll(8192).unwrap() {
                assert!(chunk.bad.is_empty());
                batches.push(chunk.batch);
            }
            report(name, "read", source.offset(), content.len(), clock.monotonic_ns() - start);
        }
    }
    for name in ["out.csv", "out.jsonl", "out.parquet"] {
        let settings = SinkSettings::new(folder.path(name));
        let mut sink = sink::open(&settings, &payments(), &folder.env, None).unwrap();
        let start = clock.monotonic_ns();
        for batch in &batches {
            sink.write(batch).unwrap();
            sink.commit().unwrap();
        }
        let taken = clock.monotonic_ns() - start;
        sink.finish().unwrap();
        report(name, "write", ROWS, folder.get(&settings.path).len(), taken);
    }
}

#[test]
#[ignore = "a measurement"]
fn rate_of_parquet() {
    const ROWS: i64 = 10_000_000;
    let folder = Folder::new();
    let clock = folder.env.clock.clone();
    let names = ["a", "b", "c", "d", "e"];
    let ints = schema(names.map(|name| Column::new(name, DataType::Int)).to_vec());
    let batch = |first: i64| {
        let column = |k: i64| -> ArrayRef {
            let value = |i| (first + i) * k % 100_003;
            Arc::new(Int64Array::from_iter_values((0..10_000).map(value)))
        };
        Batch::new(ints.clone(), [1, 7919, 104_729, 31, 5].map(column).to_vec(), 10_000)
    };
    let batches: Vec<Batch> = (0..100).map(|i| batch(i * 10_000)).collect();
    let settings = SinkSettings::new(folder.path("x.parquet"));
    let mut sink = sink::open(&settings, &ints, &folder.env, None).unwrap();
    let start = clock.monotonic_ns();
    for i in 0..(ROWS / 10_000) as usize {
        sink.write(&batches[i % batches.len()]).unwrap();
        sink.commit().unwrap();
    }
    sink.sync().unwrap();
    let written = clock.monotonic_ns() - start;
    let start = clock.monotonic_ns();
    sink.finish().unwrap();
    let merged = clock.monotonic_ns() - start;
    let bytes = folder.get(&settings.path).len();
    report("x.parquet", "write", ROWS as u64, bytes, written);
    report("x.parquet", "merge", ROWS as u64, bytes, merged);
    for _ in 0..3 {
        let settings = FilesSettings::new(&settings.path);
        let mut source = folder.open(&settings, &ints).unwrap().remove(0).1;
        let start = clock.monotonic_ns();
        while let Polled::Rows(chunk) = source.poll(16_384).unwrap() {
            assert!(chunk.bad.is_empty());
        }
        report("x.parquet", "read", source.offset(), bytes, clock.monotonic_ns() - start);
    }
}

fn report(name: &str, what: &str, rows: u64, bytes: usize, ns: u64) {
    let seconds = ns as f64 / 1e9;
    let rate = rows as f64 / seconds / 1e6;
    println!("{what} {name}: {rate:.2} million rows/s, {:.0} MB/s", bytes as f64 / seconds / 1e6);
}
