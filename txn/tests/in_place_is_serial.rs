//! Rounds and lists give the same results as the serial executor: outputs with their stamps,
//! versions of every row, and counts. This holds even if they give up, or execute only parts of
//! epochs.

mod pool;

use std::sync::Arc;

use pool::Threads;
use tidemill_core::{Batch, Column, DataType, SourceId, StreamId, TableId, Value};
use tidemill_table::Table;
use tidemill_txn::execute::{self, Executor, Outcome, Serial};
use tidemill_txn::order::{Epoch, Run};
use tidemill_txn::pool::Pool;
use tidemill_txn::program::{Builder, NativeTx, Program};
use tidemill_txn::schedule::Strategy;

/// Makes a program that moves money between rows of two tables, reads balances, and adds with
/// possible overflow. The rows may be the same, missing, or lack the money.
fn program(declared_moves: bool) -> Program {
    let mut b = Builder::new("t");
    let int = |name: &str| Column::new(name, DataType::Int);
    for table in ["left", "right"] {
        let hundred = |name: &str| int(name).default(Value::Int(100));
        b.table(table, &["k"], vec![int("k"), hundred("v"), hundred("same"), hundred("too")]);
    }
    let (left, right) = (TableId(0), TableId(1));
    let moves = b.stream("moves", vec![int("a"), int("b"), int("x")]);
    b.source("moves", moves, 0);
    let asks = b.stream("asks", vec![int("a"), int("b"), int("x")]);
    b.source("asks", asks, 0);
    if declared_moves {
        let mut h = b.handler("move", moves);
        let (a, to, x) = (h.column("a"), h.column("b"), h.column("x"));
        let (from, to) = (h.row(left, &[a]), h.row(right, &[to]));
        let held = h.read(from, "v");
        let enough = h.ge(held, x);
        h.require(enough, "too little");
        let less = h.sub(held, x);
        h.set(from, "v", less);
        let there = h.read(to, "v");
        let more = h.add(there, x);
        h.set(to, "v", more);
        h.output(&[("a", a), ("less", less), ("more", more)]);
        h.done();
    } else {
        let moved = b.emitted("moved", vec![int("a"), int("less"), int("more")]);
        let body = |tx: &mut NativeTx<'_>| {
            let x = tx.event(2);
            tx.set(0, 1, tx.get(0, 1) - x);
            tx.set(1, 1, tx.get(1, 1) + x);
            tx.emit(0, &[tx.event(0), tx.get(0, 1), tx.get(1, 1)]);
            if tx.get(0, 1) < 0 {
                return Err("too little");
            }
            // After everything that must be undone.
            assert!(x != 41, "nobody moves 41");
            Ok(())
        };
        let rows: [(TableId, &[&str]); 2] = [(left, &["a"]), (left, &["b"])];
        let moving = b.native("move", moves, &rows, &[moved], body);
        b.sets(moving, &[(0, &["v"]), (1, &["v"])]);
    }
    let mut h = b.handler("ask", asks);
    let (a, other) = (h.column("a"), h.column("b"));
    let (row, other) = (h.row(left, &[a]), h.row(right, &[other]));
    let (one, two) = (h.read(row, "v"), h.read(other, "v"));
    let sum = h.add(one, two);
    h.output(&[("sum", sum)]);
    h.done();
    b.finish().unwrap()
}

/// Random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

fn epoch(program: &Program, dice: &mut Dice, events: usize, keys: u64, from: i64) -> Epoch {
    let mut rows: [Vec<[i64; 3]>; 2] = Default::default();
    let mut times: [Vec<i64>; 2] = Default::default();
    for time in 0..events as i64 {
        let stream = usize::from(dice.next(3) == 0);
        let mut key = || dice.next(keys) as i64;
        let (a, b) = (key(), key());
        rows[stream].push([a, b, dice.next(60) as i64]);
        times[stream].push(from + time);
    }
    let run = |stream: usize| {
        let schema = program.streams[stream_of(program, stream).index()].spec.schema.clone();
        let values: Vec<Vec<Value>> =
            rows[stream].iter().map(|row| row.map(Value::Int).to_vec()).collect();
        Run {
            stream: stream_of(program, stream),
            source: SourceId(stream as u32),
            batch: Batch::from_rows(schema, values.iter().map(|row| &row[..])),
            offsets: times[stream].iter().map(|time| *time as u64).collect(),
            times: times[stream].clone(),
            admitted: None,
        }
    };
    Epoch::rank(program, vec![run(0), run(1)])
}

fn stream_of(program: &Program, source: usize) -> StreamId {
    program.sources[source].stream
}

fn tables(program: &Program) -> Vec<Table> {
    let tables = execute::tables(program, 7);
    assert!(tables.iter().all(|table| table.logged_words() <= 4), "at most one column is written");
    tables
}

fn shown(epoch: &Epoch, outcome: &Outcome) -> Vec<String> {
    let mut shown = vec![format!("{:?} {}", outcome.counts, outcome.seq)];
    for output in &outcome.outputs {
        for (at, row) in output.batch.rows().enumerate() {
            let stamp = output.origins.stamp(at, epoch, &outcome.derived);
            shown.push(format!("{:?} {stamp:?} {row:?}", output.stream));
        }
    }
    shown
}

/// Returns every row as of these transactions, and as it is now.
fn versions(tables: &[Table], seqs: impl Iterator<Item = u64>) -> Vec<String> {
    let of = |seq: u64| tables.iter().map(move |t| format!("{:?}", t.as_of(seq).unwrap().rows()));
    seqs.flat_map(of).chain(tables.iter().map(|t| format!("{:?}", t.rows()))).collect()
}

/// Returns how many of four epochs the strategy executed. For the adaptive strategy, it counts
/// epochs of which a part ran in parallel.
fn check(
    strategy: Strategy,
    declared: bool,
    threads: &Threads,
    keys: u64,
    events: usize,
    seed: u64,
) -> usize {
    let program = Arc::new(program(declared));
    let mut dice = Dice(seed);
    let (mut expected, mut found) = (tables(&program), tables(&program));
    let mut serial = Serial::new(program.clone(), 0);
    let executor = Executor::new(program.clone(), strategy, 0);
    // Then each option executes a part of each epoch in turn, and lists have little room.
    let plans_anything = strategy == Strategy::Adaptive || (seed / 4).is_multiple_of(2);
    let mut executor = if plans_anything { executor.with_small_limits() } else { executor };
    let mut in_place = 0;
    for number in 0..4 {
        let epoch = epoch(&program, &mut dice, events, keys, number * 1_000_000);
        let a = serial.run(&mut expected, &epoch).unwrap();
        let b = executor.run(threads, &mut found, &epoch).unwrap();
        let count = threads.threads();
        let case = format!("{strategy} {declared} {count} threads, {keys} keys, seed {seed}");
        assert_eq!(shown(&epoch, &a), shown(&epoch, &b), "{case}");
        // A graph leaves only the last version of a row.
        let len = if strategy == Strategy::Adaptive { 1 } else { 20 };
        let seqs = || (a.seq - events as u64..=a.seq).rev().step_by(events / 20).take(len);
        assert_eq!(versions(&expected, seqs()), versions(&found, seqs()), "{case}");
        for tables in [&mut expected, &mut found] {
            tables.iter_mut().for_each(|table| table.commit(a.seq));
        }
        let ran = executor.ran();
        in_place += match strategy {
            Strategy::Adaptive => usize::from(ran.in_parallel > 0 && ran.in_parallel < events),
            _ => usize::from(ran.strategy == strategy),
        };
    }
    in_place
}

#[test]
fn they_do_what_the_serial_executor_does() {
    // Miri is thousands of times slower.
    let (threads, seeds): (&[usize], _) = if cfg!(miri) { (&[2], 2) } else { (&[2, 3, 8], 20) };
    let pools: Vec<Threads> = threads.iter().map(|threads| Threads::new(*threads)).collect();
    for strategy in [Strategy::Rounds, Strategy::Blocks, Strategy::Lists, Strategy::Adaptive] {
        let mut in_place = 0;
        for seed in 0..seeds {
            for threads in &pools {
                let keys = [1, 3, 30, 1000][seed as usize % 4];
                let events = 30 + 20 * seed as usize;
                in_place += check(strategy, seed % 2 == 0, threads, keys, events, seed);
            }
        }
        // Few epochs are given up: those with too little room for missing rows.
        let epochs = 4 * pools.len() * seeds as usize;
        let least = epochs * 5 / 6;
        assert!(in_place > least, "only {in_place} of {epochs} epochs were executed in {strategy}");
    }
}

/// Makes a program whose transaction sends as many events as its own event says, and one more
/// elsewhere. At -1 it aborts after sending, and at -2 it panics.
fn sending() -> Program {
    let mut b = Builder::new("t");
    let int = |name: &str| Column::new(name, DataType::Int);
    b.table("sums", &["k"], vec![int("k"), int("v").default(Value::Int(0))]);
    for name in ["moves", "asks"] {
        let stream = b.stream(name, vec![int("a"), int("b"), int("x")]);
        b.source(name, stream, 0);
        let [sent, always] = ["sent", "always"]
            .map(|to| b.emitted(&format!("{name}_{to}"), vec![int("a"), int("v")]));
        let body = |tx: &mut NativeTx<'_>| {
            tx.set(0, 1, tx.get(0, 1) + tx.event(1));
            let times = tx.event(2);
            for _ in 0..if times < 0 { 1 } else { times } {
                tx.emit(0, &[tx.event(0), tx.get(0, 1)]);
            }
            tx.emit(1, &[tx.event(0), tx.get(0, 1)]);
            assert!(times != -2, "nobody sends so many");
            if times == -1 {
                Err("not to be sent")
            } else {
                Ok(())
            }
        };
        b.native(name, stream, &[(TableId(0), &["a"])], &[sent, always], body);
    }
    b.finish().unwrap()
}

/// Outputs written to their places at once equal those of the serial executor, even with aborts and
/// with transactions that suddenly send more or less than one event. Then the epoch is executed
/// again, and for a while no places are predicted.
#[test]
fn outputs_that_have_places() {
    const EVENTS: usize = 400;
    for strategy in [Strategy::Rounds, Strategy::Blocks] {
        for threads in &[2, 3].map(Threads::new) {
            let program = Arc::new(sending());
            let mut dice = Dice(5);
            let (mut expected, mut found) =
                (execute::tables(&program, 7), execute::tables(&program, 7));
            let mut serial = Serial::new(program.clone(), 0);
            let mut executor = Executor::new(program.clone(), strategy, 0);
            let mut in_vain = Vec::new();
            for number in 0..48 {
                let usual = epoch(&program, &mut dice, EVENTS, 5000, number as i64 * 1_000_000);
                let unusual = |row: usize| match (number, row) {
                    (2, 20) => -1,
                    (3, 30) => -2,
                    (5, 40) => 0,
                    (30, 50) => 2,
                    (41 | 42, _) if row.is_multiple_of(3) => -1,
                    (43, _) => row as i64 % 3,
                    _ => 1,
                };
                let with_times = |run: &Run| {
                    let row = |(at, row): (usize, Box<[Value]>)| {
                        let mut row = row.into_vec();
                        row[2] = Value::Int(unusual(at));
                        row
                    };
                    let rows: Vec<Vec<Value>> = run.batch.rows().enumerate().map(row).collect();
                    let rows = rows.iter().map(|row| &row[..]);
                    Run { batch: Batch::from_rows(run.batch.schema().clone(), rows), ..run.clone() }
                };
                // Buffered events of a stream are in a run of their own.
                let buffered = 30;
                let runs = usual.runs.iter().map(with_times);
                let runs = runs.flat_map(|run| {
                    [run.slice(buffered, run.times.len() - buffered), run.slice(0, buffered)]
                });
                let epoch = Epoch::rank(&program, runs.collect());
                let a = serial.run(&mut expected, &epoch).unwrap();
                let b = executor.run(threads, &mut found, &epoch).unwrap();
                assert_eq!(shown(&epoch, &a), shown(&epoch, &b), "{strategy}, epoch {number}");
                let seqs = || (a.seq - EVENTS as u64..=a.seq).rev().step_by(20);
                assert_eq!(versions(&expected, seqs()), versions(&found, seqs()), "{number}");
                for tables in [&mut expected, &mut found] {
                    tables.iter_mut().for_each(|table| table.commit(a.seq));
                }
                if executor.ran().strategy != strategy {
                    in_vain.push((number, executor.ran().why.to_string()));
                }
            }
            let short = in_vain.iter().filter(|(_, why)| why.contains("general path")).count();
            in_vain.retain(|(_, why)| !why.contains("general path"));
            let why = "transactions sent other events than those before";
            assert_eq!(in_vain, [5, 30].map(|number| (number, why.to_string())), "{strategy}");
            assert!(short <= 2, "rows that were missing found no room {short} times");
        }
    }
}
