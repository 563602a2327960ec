//! Rows and events of integers give the same results as their values. The reference converts them
//! from values; executors store rows as words if possible.

mod drive;
mod pool;
#[allow(dead_code)]
mod random;

use std::sync::Arc;

use drive::{cases, same};
use pool::Threads;
use proptest::prelude::*;
use random::Dice;
use tidemill_core::{Column, DataType, SourceId, StreamId, TableId, Value};
use tidemill_reference::{CutAt, InputRow};
use tidemill_table::Table;
use tidemill_txn::execute::Executor;
use tidemill_txn::order::Epoch;
use tidemill_txn::program::{Abort, Builder, On, Opaque, Program, Tx};
use tidemill_txn::schedule::Strategy;

/// The number of tables: of integers, with the key as last column, with an index, with a unique
/// index, with a trigger, with nulls, with other columns, and an index.
const TABLES: usize = 8;

/// Uses a row of a table as integers, in various ways.
struct Uses {
    output: StreamId,
}

impl Opaque for Uses {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let int = |at: usize| match event[at] {
            Value::Int(int) => int,
            _ => unreachable!("columns of integers"),
        };
        let [table, key, way] = [int(0), int(1), int(2)];
        let table = TableId(table as u16);
        let found: Option<[i64; 2]> = tx.ints(table, key)?;
        let behind = table == TableId(1);
        let row = |n: i64| if behind { [n, key] } else { [key, n] };
        let n = found.map_or(0, |[a, b]| if behind { a } else { b });
        match way {
            0 => tx.put_ints(table, &row(n + 1))?,
            1 => tx.delete(table, &[Value::Int(key)])?,
            2 => {
                tx.put_ints(table, &row(n + 5))?;
                tx.delete(table, &[Value::Int(key)])?;
                tx.put_ints(table, &row(n + 3))?;
            }
            3 => tx.put(table, &row(n * 2).map(Value::Int))?,
            4 => tx.put_ints(table, &[key, n, n])?,
            5 => drop(tx.ints::<3>(table, key)?),
            6 => tx.put(table, &[Value::Int(key), Value::Null])?,
            _ => {}
        }
        let now: Option<[i64; 2]> = tx.ints(table, key)?;
        let columns = if way == 7 { 1 } else { 2 };
        tx.emit_ints(self.output, &now.unwrap_or([-1, -1])[..columns])
    }
}

/// Counts changes.
struct Counts;

impl Opaque for Counts {
    fn call(&self, _: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let counted = tx.ints(TableId(0), 99)?.map_or(0, |[_, n]| n);
        tx.put_ints(TableId(0), &[99, counted + 1])
    }
}

fn program() -> Arc<Program> {
    let int = |name: &str| Column::new(name, DataType::Int);
    let two = || vec![int("id"), int("n")];
    let mut b = Builder::new("ints");
    b.table("plain", &["id"], two());
    b.table("behind", &["id"], vec![int("n"), int("id")]);
    let indexed = b.table("indexed", &["id"], two());
    let unique = b.table("unique", &["id"], two());
    let watched = b.table("watched", &["id"], two());
    b.table("nulls", &["id"], vec![int("id"), int("n").nullable()]);
    b.table("others", &["id"], vec![int("id"), Column::new("n", DataType::Float)]);
    // Functions can't write it.
    b.index("indexed.by_n", indexed, &["n"], false);
    b.index("unique.by_n", unique, &["n"], true);
    let on = On::Written { table: watched, insert: true, update: true, delete: true };
    b.trigger("counts", on, &[], Arc::new(Counts));
    let input = b.stream("input", vec![int("table"), int("key"), int("way")]);
    b.source("source", input, 0);
    b.returning("uses", input, two(), |output| Arc::new(Uses { output }));
    Arc::new(b.finish().unwrap())
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn as_integers_or_as_values(seed: u64) {
        let mut dice = Dice(seed);
        let program = program();
        let rows = 20 + dice.below(100);
        let row = |offset: u64| {
            let values = [TABLES as u64, 4, 9].map(|below| Value::Int(dice.below(below) as i64));
            InputRow { offset, values: values.to_vec() }
        };
        let sources = [(0..rows).map(row).collect::<Vec<_>>()];
        let half = CutAt { offsets: vec![rows / 2], clock_us: 0, idle: Vec::new(), ended: Vec::new(), ..Default::default() };
        let end = CutAt { offsets: vec![rows], ended: vec![SourceId(0)], ..half.clone() };
        let cuts = [half, end];
        let wanted = tidemill_reference::run(&program, &sources, &cuts);
        for strategy in Strategy::all() {
            for threads in [1, 3] {
                let pool = Threads::new(threads);
                let found = drive::run(&program, &sources, &cuts, &mut Dice(seed), |seq| {
                    let executor = Executor::new(program.clone(), strategy, 5);
                    let mut executor = executor.with_small_limits().after(seq);
                    let pool = &pool;
                    move |tables: &mut [Table], epoch: &Epoch| {
                        executor.run(pool, tables, epoch).unwrap()
                    }
                });
                same(&wanted, &found);
            }
        }
    }
}
