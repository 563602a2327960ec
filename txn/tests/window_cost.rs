//! What windows cost closures, in nanoseconds. Not a test: it prints figures, by
//! `cargo test --release -p tidemill-txn --test window_cost -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Instant;

use tidemill_core::{Batch, Column, DataType, History, SourceId, StreamId, TableId, Value};
use tidemill_table::Table;
use tidemill_txn::execute::{Path, Serial};
use tidemill_txn::order::{Epoch, Run};
use tidemill_txn::program::{Aggregate, Builder, NativeTx, Program, Window};

/// Rows that a reading transaction has.
const ROWS: usize = 8;
/// Events of an epoch: few, so that most epochs run undisturbed on a machine with other work.
const EPOCH: usize = 500;

fn program(history: Option<History>, window: Option<(Window, Aggregate)>) -> Arc<Program> {
    let mut b = Builder::new("windows");
    let number = |name: &str| Column::new(name, DataType::Int).default(Value::Int(0));
    let table = b.table("t", &["id"], vec![Column::new("id", DataType::Int), number("n")]);
    if let Some(history) = history {
        b.history(table, history);
    }
    let names: Vec<String> = (0..ROWS).map(|k| format!("k{k}")).collect();
    let columns = || names.iter().map(|name| Column::new(name, DataType::Int)).collect();
    let (writes, reads) = (b.stream("writes", columns()), b.stream("reads", columns()));
    let sums = b.emitted("sums", vec![Column::new("sum", DataType::Int)]);
    let add = |tx: &mut NativeTx<'_>| {
        tx.set(0, 1, tx.get(0, 1).wrapping_add(tx.event(1)) & 0xffff);
        Ok(())
    };
    b.native("add", writes, &[(table, &["k0"])], &[], add);
    let keys: [[&str; 1]; ROWS] = std::array::from_fn(|k| [names[k].as_str()]);
    let rows: [(TableId, &[&str]); ROWS] = std::array::from_fn(|k| (table, &keys[k][..]));
    match window {
        Some((window, aggregate)) => {
            let read = b.window_read(table, "n", window, aggregate);
            let sum = move |tx: &mut NativeTx<'_>| {
                let mut sum = 0;
                for row in 0..ROWS {
                    sum += tx.window(row, &read)?.unwrap_or(0);
                }
                tx.emit(0, &[sum]);
                Ok(())
            };
            b.native("sum", reads, &rows, &[sums], sum);
        }
        None => {
            let sum = |tx: &mut NativeTx<'_>| {
                let sum = (0..ROWS).map(|row| tx.get(row, 1)).sum();
                tx.emit(0, &[sum]);
                Ok(())
            };
            b.native("sum", reads, &rows, &[sums], sum);
        }
    }
    Arc::new(b.finish().unwrap())
}

struct Bench {
    program: Arc<Program>,
    tables: Vec<Table>,
    serial: Serial,
    now_us: i64,
    seed: u64,
}

impl Bench {
    fn new(program: Arc<Program>) -> Bench {
        let spec = Arc::new(program.tables[0].clone());
        let serial = Serial::new(program.clone(), 0);
        assert!(serial.paths().iter().all(|path| *path == Path::Native));
        Bench { tables: vec![Table::new(spec, 7)], serial, program, now_us: 0, seed: 1 }
    }

    /// Runs an epoch; its nanoseconds.
    #[allow(clippy::disallowed_methods)] // It measures this machine.
    fn epoch(&mut self, stream: u16, keys: u64) -> f64 {
        let schema = self.program.streams[usize::from(stream)].spec.schema.clone();
        let mut rows = Vec::new();
        for _ in 0..EPOCH {
            let mut key = || {
                self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                Value::Int((self.seed >> 33) as i64 % keys as i64)
            };
            rows.push((0..ROWS).map(|_| key()).collect::<Vec<Value>>());
        }
        let run = Run {
            stream: StreamId(stream),
            source: SourceId(0),
            batch: Batch::from_rows(schema, rows.iter().map(|row| &row[..])),
            offsets: (0..EPOCH as u64).collect(),
            // Reads take no time, so that windows stay as full as they are.
            times: (1..=EPOCH as i64).map(|n| self.now_us + n * i64::from(stream == 0)).collect(),
            admitted: None,
        };
        self.now_us = *run.times.last().unwrap();
        let epoch = Epoch::rank(&self.program, vec![run]);
        let begun = Instant::now();
        let done = self.serial.run(&mut self.tables, &epoch).unwrap();
        let ns = begun.elapsed().as_nanos() as f64;
        self.tables[0].frontier(self.now_us);
        self.tables[0].commit(done.seq);
        ns / EPOCH as f64
    }

    /// The lower quartile of so many epochs.
    fn quartile(&mut self, stream: u16, keys: u64, epochs: usize) -> f64 {
        let mut found: Vec<f64> = (0..epochs).map(|_| self.epoch(stream, keys)).collect();
        found.sort_by(f64::total_cmp);
        found[epochs / 4]
    }
}

#[test]
#[ignore = "prints figures"]
fn figures() {
    for keys in [1_024, 100_000] {
        let history = History { time_us: Some(100_000), versions: None };
        let mut without = Bench::new(program(None, None));
        let mut with = Bench::new(program(Some(history), None));
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..800 {
            a.push(without.epoch(0, keys));
            b.push(with.epoch(0, keys));
        }
        let last = |ns: &mut Vec<f64>| {
            let rest = &mut ns[400..];
            rest.sort_by(f64::total_cmp);
            rest[100]
        };
        println!("{keys} keys: a write {:.0} ns, with a history {:.0}", last(&mut a), last(&mut b));
        println!("  a plain read {:.0} ns", with.quartile(1, keys, 300) / ROWS as f64);
        for aggregate in [Aggregate::Sum, Aggregate::Count, Aggregate::Last, Aggregate::Max] {
            let mut line = format!("  {aggregate:?}:");
            for size_us in [1_000, 10_000, 100_000] {
                let window = (Window::Sliding { size_us }, aggregate.clone());
                let mut bench = Bench::new(program(Some(history), Some(window)));
                bench.quartile(0, keys, 400);
                let ns = bench.quartile(1, keys, 300) / ROWS as f64;
                line += &format!(" {ns:.0} ns ({size_us} us)");
            }
            println!("{line}");
        }
    }
}
