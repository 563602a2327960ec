//! Every strategy is the reference, bit for bit, on any number of threads.

mod drive;
mod pool;
mod random;

use std::sync::{Arc, OnceLock};

use drive::{cases, same};
use pool::Threads;
use proptest::prelude::*;
use random::{Dice, Shape};
use tidemill_core::{Batch, Column, DataType, Late, SourceId, TableId, Value};
use tidemill_table::Table;
use tidemill_txn::execute::Executor;
use tidemill_txn::order::{Epoch, Run};
use tidemill_txn::pool::Pool;
use tidemill_txn::program::{Builder, NativeTx};
use tidemill_txn::reference::{self, InputRow};
use tidemill_txn::schedule::Strategy as Executed;

/// Pools of one, two, three and eight threads.
fn pools() -> &'static [Threads] {
    static POOLS: OnceLock<Vec<Threads>> = OnceLock::new();
    POOLS.get_or_init(|| [1, 2, 3, 8].map(Threads::new).into())
}

/// Runs one case with every strategy, each on one of the pools; gives how many transactions were in
/// graphs.
fn check(seed: u64, strategies: &[Executed]) -> usize {
    let mut dice = Dice(seed);
    let histories = dice.chance(30);
    let shape = Shape { plain: dice.chance(70), orderly: false, histories };
    let program = Arc::new(random::program(&mut dice, shape));
    let sources = random::sources(&mut dice, &program, shape);
    let cuts = random::cuts(&mut dice, &sources, shape);
    let wanted = reference::run(&program, &sources, &cuts);
    let in_graphs = std::cell::Cell::new(0);
    for strategy in strategies {
        let pool = dice.pick(pools());
        let got = drive::run(&program, &sources, &cuts, &mut dice, |seq| {
            let executor = Executor::new(program.clone(), *strategy, 3);
            let mut executor = executor.after(seq).planning_anything();
            let in_graphs = &in_graphs;
            move |tables: &mut [Table], epoch: &Epoch| {
                let outcome = executor.run(pool, tables, epoch).unwrap();
                in_graphs.set(in_graphs.get() + executor.ran().in_parallel);
                outcome
            }
        });
        let threads = pool.threads();
        let told = std::panic::catch_unwind(|| same(&wanted, &got));
        assert!(told.is_ok(), "{strategy} on {threads} threads, seed {seed}");
    }
    in_graphs.get()
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn any_program_any_cuts_any_strategy(seed: u64) {
        check(seed, &Executed::all());
    }
}

/// The comparison above would be worth little if random programs were never in graphs.
#[test]
fn random_programs_are_in_graphs() {
    let strategy = ["ns-op-eager".parse().unwrap()];
    let in_graphs: usize = (0..200).map(|seed| check(seed, &strategy)).sum();
    assert!(in_graphs > 800, "{in_graphs} transactions in graphs");
}

/// A closure that panics ends the epoch on all threads: nobody waits for it for ever.
#[test]
fn a_panic_reaches_all_threads() {
    let mut b = Builder::new("panics");
    let n = Column::new("n", DataType::Int).default(Value::Int(0));
    let table = b.table("t", &["k"], vec![Column::new("k", DataType::Int), n]);
    let columns = vec![Column::new("at", DataType::Int), Column::new("k", DataType::Int)];
    let input = b.stream("input", columns);
    b.event_time(input, "at", Late::Side);
    b.source("rows", input, 0);
    let rows: [(TableId, &[&str]); 1] = [(table, &["k"])];
    b.native("count", input, &rows, &[], |tx: &mut NativeTx<'_>| {
        assert!(tx.event(0) != 150, "this event is too much");
        tx.set(0, 1, tx.get(0, 1) + 1);
        Ok(())
    });
    let program = Arc::new(b.finish().unwrap());
    let schema = program.streams[input.index()].spec.schema.clone();
    let rows: Vec<[Value; 2]> = (0..300).map(|at| [at, at % 7].map(Value::Int)).collect();
    let run = Run {
        stream: input,
        source: SourceId(0),
        batch: Batch::from_rows(schema, rows.iter().map(|row| &row[..])),
        offsets: (0..300).collect(),
        times: (0..300).collect(),
        admitted: None,
    };
    let epoch = Epoch::rank(&program, vec![run]);
    for strategy in Executed::all() {
        for pool in pools() {
            let mut executor = Executor::new(program.clone(), strategy, 0);
            let mut tables = vec![Table::new(Arc::new(program.tables[0].clone()), 1)];
            let run = || executor.run(pool, &mut tables, &epoch).map(|_| ());
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            assert!(ended.is_err(), "{strategy} on {} threads", pool.threads());
        }
    }
}

/// Transfers between few rows, a third of which abort because of what others did or did not do:
/// most of what is executed on guesses has to be taken back.
#[test]
fn aborts_that_depend_on_aborts() {
    let mut b = Builder::new("transfers");
    let n = Column::new("n", DataType::Int).default(Value::Int(40));
    let table = b.table("t", &["k"], vec![Column::new("k", DataType::Int), n]);
    let mut columns = vec![Column::new("at", DataType::Timestamp)];
    columns.extend(["from", "to", "also", "amount"].map(|c| Column::new(c, DataType::Int)));
    let input = b.stream("input", columns);
    b.event_time(input, "at", Late::Side);
    b.source("rows", input, 0);
    let mut h = b.handler("transfer", input);
    let amount = h.column("amount");
    let [from, to, also] = ["from", "to", "also"].map(|c| {
        let key = h.column(c);
        h.row(table, &[key])
    });
    for (row, is_paid) in [(to, true), (also, false)] {
        let have = h.read(row, "n");
        let more = h.add(have, amount);
        let more = if is_paid { more } else { h.sub(more, amount) };
        h.set(row, "n", more);
    }
    let have = h.read(from, "n");
    let enough = h.ge(have, amount);
    h.require(enough, "too little");
    let left = h.sub(have, amount);
    h.set(from, "n", left);
    h.output(&[("left", left)]);
    h.done();
    let program = Arc::new(b.finish().unwrap());
    let mut dice = Dice(11);
    let rows: Vec<InputRow> = (0..2400)
        .map(|offset| {
            let first = dice.below(12) as i64;
            let keys = [first, (first + 1 + dice.below(5) as i64) % 12, (first + 7) % 12];
            let amount = dice.below(50) as i64;
            let mut values = vec![Value::Timestamp(offset as i64)];
            values.extend(keys.into_iter().chain([amount]).map(Value::Int));
            InputRow { offset, values }
        })
        .collect();
    let cut = |until: u64| reference::CutAt {
        offsets: vec![until],
        clock_us: 0,
        idle: Vec::new(),
        ended: if until == 2400 { vec![SourceId(0)] } else { Vec::new() },
    };
    let (sources, cuts) = ([rows], [cut(800), cut(810), cut(2400)]);
    let wanted = reference::run(&program, &sources, &cuts);
    assert!(wanted.aborts > 600, "{} aborts", wanted.aborts);
    for strategy in Executed::all() {
        let pool = dice.pick(pools());
        let in_graphs = std::cell::Cell::new(0);
        let got = drive::run(&program, &sources, &cuts, &mut dice, |seq| {
            let executor = Executor::new(program.clone(), strategy, 0).after(seq);
            let mut executor = executor.planning_anything();
            let in_graphs = &in_graphs;
            move |tables: &mut [Table], epoch: &Epoch| {
                let outcome = executor.run(pool, tables, epoch).unwrap();
                in_graphs.set(in_graphs.get() + executor.ran().in_parallel);
                outcome
            }
        });
        same(&wanted, &got);
        if matches!(strategy, Executed::TStream | Executed::Graph(..)) {
            assert!(in_graphs.get() > 2000, "{} in graphs", in_graphs.get());
        }
    }
}
