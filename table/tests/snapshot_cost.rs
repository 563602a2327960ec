//! What a snapshot costs a table, in nanoseconds. Not a test: it prints figures, by
//! `cargo test --release -p tidemill-table --test snapshot_cost -- --ignored --nocapture`.
//! `TIDEMILL_ROWS` sets the number of rows.

use std::sync::Arc;
use std::time::Instant;

use tidemill_core::{Column, DataType, Schema, TableSpec, Value};
use tidemill_table::Table;

#[allow(clippy::disallowed_methods)] // It measures this machine.
fn timed<T>(what: &str, rows: usize, f: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = f();
    let ns = begun.elapsed().as_nanos() as f64;
    println!("{what}: {:.1} ns a row, {:.2} ms", ns / rows.max(1) as f64, ns / 1e6);
    result
}

fn measure(name: &str, spec: TableSpec, row: impl Fn(i64, i64) -> Vec<Value>) {
    let rows: usize =
        std::env::var("TIDEMILL_ROWS").map_or(1_000_000, |rows| rows.parse().unwrap());
    println!("{name}: {rows} rows");
    let spec = Arc::new(spec);
    let mut table = Table::new(spec.clone(), 7);
    table.reserve(rows);
    let key = |row: &[Value]| -> Vec<Value> { spec.key.iter().map(|c| row[*c].clone()).collect() };
    for k in 0..rows as i64 {
        let row = row(k, k);
        table.put(&key(&row), Some(&row), 0);
    }
    table.commit(0);
    table.track();
    for _ in 0..2 {
        let mut copy = table.clone();
        timed("  take all", rows, || copy.take_changes());
    }
    let all = timed("  take all", rows, || table.take_changes());
    timed("  take none", 1, || table.take_changes());
    table.track();
    timed("  take none, looking everywhere", rows, || table.take_changes());
    let mut seq = 0;
    for changed in [100, 10_000, 100_000, 1_000_000].into_iter().filter(|n| *n <= rows) {
        for i in 0..changed as i64 {
            let k = i.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64) as u64 % rows as u64;
            let row = row(k as i64, i);
            seq += 1;
            table.put(&key(&row), Some(&row), seq);
        }
        timed(&format!("  commit {changed}"), changed, || table.commit(seq));
        timed(&format!("  take {changed}"), changed, || table.take_changes());
    }
    let (mut stored, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        timed("  give out, and forget", rows, || {
            all.for_each(|_, key, row| {
                std::hint::black_box((key, row));
            });
        });
    }
    timed("  give out", rows, || {
        all.for_each(|_, key, row| {
            stored.extend_from_slice(key);
            let key = stored.len();
            stored.extend_from_slice(row.unwrap());
            ends.push((key, stored.len()));
        });
    });
    println!("  {} bytes a row taken, {} a row stored", all.bytes() / rows, stored.len() / rows);
    for _ in 0..3 {
        let mut loaded = Table::new(spec.clone(), 9);
        timed("  load", rows, || {
            let mut loading = timed("  make room", rows, || loaded.loading(rows));
            let mut from = 0;
            for (key, row) in &ends {
                loading.row(&stored[from..*key], &stored[*key..*row]).unwrap();
                from = *row;
            }
            loading.finish().unwrap();
        });
        assert_eq!(loaded.len(), rows);
    }
}

#[test]
#[ignore = "prints figures"]
fn figures() {
    let schema = |columns: &[(&str, DataType)]| {
        let columns = columns.iter().map(|(name, ty)| Column::new(name, ty.clone()));
        Arc::new(Schema::new(columns.collect()))
    };
    use DataType::{Decimal, Int, Str};
    measure(
        "int -> decimal",
        TableSpec::new("t", vec![0], schema(&[("k", Int), ("v", Decimal(2))])),
        |k, v| vec![Value::Int(k), Value::Decimal(v, 2)],
    );
    measure(
        "int, int -> int",
        TableSpec::new("t", vec![0, 1], schema(&[("a", Int), ("b", Int), ("v", Int)])),
        |k, v| vec![Value::Int(k / 100), Value::Int(k % 100), Value::Int(v)],
    );
    measure(
        "text -> int, text",
        TableSpec::new("t", vec![0], schema(&[("k", Str), ("v", Int), ("s", Str)])),
        |k, v| {
            let text = |n: i64| Value::str(&format!("customer {n:08}"));
            vec![text(k), Value::Int(v), text(v)]
        },
    );
}
