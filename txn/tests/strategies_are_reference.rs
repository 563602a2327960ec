//! Every strategy equals the reference, bit for bit, on any number of threads.

mod drive;
mod pool;
mod random;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use drive::{cases, same};
use pool::Threads;
use proptest::prelude::*;
use random::{Dice, Shape};
use tidemill_core::rules::Binary;
use tidemill_core::{Batch, Column, DataType, History, Late, SourceId, TableId, Value};
use tidemill_reference::InputRow;
use tidemill_table::Table;
use tidemill_txn::execute::Executor;
use tidemill_txn::order::{Epoch, Run};
use tidemill_txn::pool::Pool;
use tidemill_txn::program::{Abort, Aggregate, Builder, Expr, Opaque, Take, Tx, Window};
use tidemill_txn::schedule::{ExecutionMode, Strategy as Executed};

/// Returns pools of one to eight threads.
fn pools() -> &'static [Threads] {
    static POOLS: OnceLock<Vec<Threads>> = OnceLock::new();
    POOLS.get_or_init(|| (1..=8).map(Threads::new).collect())
}

/// Runs one case with every strategy, each on one of the pools. Returns how many transactions were
/// executed in parallel.
fn check(seed: u64, strategies: &[Executed]) -> usize {
    check_within(seed, strategies, None)
}

/// Like [`check`], with a limit of work at which graphs are given up.
fn check_within(seed: u64, strategies: &[Executed], limit: Option<u64>) -> usize {
    let mut dice = Dice(seed);
    let histories = dice.chance(30);
    let words = dice.chance(30);
    let shape = Shape { plain: words || dice.chance(70), orderly: false, histories, words };
    let program = Arc::new(random::program(&mut dice, shape));
    let sources = random::sources(&mut dice, &program, shape);
    let mut cuts = random::cuts(&mut dice, &sources, shape);
    if dice.chance(50) {
        let slides_max = 1 + dice.below(4) as i64;
        cuts = drive::held_back(&program, &sources, &cuts, &mut dice, slides_max);
    }
    let wanted = tidemill_reference::run(&program, &sources, &cuts);
    let in_parallel = std::cell::Cell::new(0);
    let mut sums: Option<BTreeMap<usize, u64>> = None;
    for strategy in strategies {
        let pool = dice.pick(pools());
        let written = RefCell::new(BTreeMap::<usize, u64>::new());
        let got = drive::run(&program, &sources, &cuts, &mut dice, |seq| {
            let executor = Executor::new(program.clone(), *strategy, 3);
            let mut executor = executor.after(seq).with_small_limits();
            if let Some(limit) = limit {
                executor = executor.giving_up_after(limit);
            }
            let (in_parallel, written) = (&in_parallel, &written);
            move |tables: &mut [Table], epoch: &Epoch| {
                let outcome = executor.run(pool, tables, epoch).unwrap();
                in_parallel.set(in_parallel.get() + executor.ran().in_parallel);
                for (handler, sum) in &outcome.written {
                    let all = &mut *written.borrow_mut();
                    let all = all.entry(*handler).or_default();
                    *all = all.wrapping_add(*sum);
                }
                outcome
            }
        });
        let threads = pool.threads();
        let told = std::panic::catch_unwind(|| same(&wanted, &got));
        assert!(told.is_ok(), "{strategy} on {threads} threads, seed {seed}");
        // Hashes report the writes of functions. They include the numbers of transactions.
        let written = written.into_inner();
        let wanted = sums.get_or_insert_with(|| written.clone());
        assert_eq!(*wanted, written, "{strategy} on {threads} threads, seed {seed}");
    }
    in_parallel.get()
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn any_program_any_cuts_any_strategy(seed: u64) {
        check(seed, &Executed::all());
    }
}

proptest! {
    #![proptest_config(cases(40))]

    /// Wherever a graph is given up, it leaves nothing behind.
    #[test]
    fn graphs_are_given_up_anywhere(seed: u64, limit in 0..4_000u64) {
        let graphs = |strategy: &Executed| {
            matches!(strategy, Executed::TStream | Executed::Graph(..) | Executed::Adaptive)
        };
        let strategies: Vec<Executed> = Executed::all().into_iter().filter(graphs).collect();
        check_within(seed, &strategies, Some(limit));
    }
}

/// Checks that random programs are executed in graphs.
#[test]
fn random_programs_are_in_graphs() {
    let strategy = ["ns-op-eager".parse().unwrap()];
    let in_parallel: usize = (0..200).map(|seed| check(seed, &strategy)).sum();
    assert!(in_parallel > 800, "{in_parallel} transactions in graphs");
}

/// Checks that random programs are executed by all options of the adaptive strategy.
#[test]
fn random_programs_are_in_rounds_and_lists() {
    for strategy in ["adaptive", "rounds", "blocks", "lists"] {
        let strategies = [strategy.parse().unwrap()];
        let in_parallel: usize = (0..200).map(|seed| check(seed, &strategies)).sum();
        assert!(in_parallel > 3000, "{strategy}: {in_parallel} transactions in parallel");
    }
}

/// A function that panics on one event.
struct TooMuch;

impl Opaque for TooMuch {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        if event[0] == Value::Int(150) {
            // Like `panic!`, without a message on the console.
            std::panic::resume_unwind(Box::new("this event is too much"));
        }
        tx.put(TableId(0), &[event[1].clone(), event[0].clone()])
    }
}

/// Makes an epoch of 300 events on 7 keys for a function, and a table of two columns for it.
fn three_hundred(function: Arc<dyn Opaque>) -> (Arc<tidemill_txn::Program>, Epoch) {
    let mut b = Builder::new("one function");
    let ints = |names: [&str; 2]| names.map(|name| Column::new(name, DataType::Int)).to_vec();
    b.table("t", &["k"], ints(["k", "n"]));
    let input = b.stream("input", ints(["at", "k"]));
    b.event_time(input, "at", Late::Side);
    b.source("rows", input, 0);
    b.opaque("count", input, function);
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
    (program, epoch)
}

/// A function that panics aborts, like a closure, and the epoch continues.
#[test]
fn a_function_that_panics_aborts() {
    let (program, epoch) = three_hundred(Arc::new(TooMuch));
    let mut first = None;
    for strategy in std::iter::once(Executed::Serial).chain(Executed::all()) {
        for pool in pools() {
            let mut executor = Executor::new(program.clone(), strategy, 0).with_small_limits();
            let mut tables = vec![Table::new(Arc::new(program.tables[0].clone()), 1)];
            let outcome = executor.run(pool, &mut tables, &epoch).unwrap();
            let outputs = outcome.outputs.iter().map(|output| &output.batch);
            let outputs = outputs.flat_map(|batch| (0..batch.len()).map(|row| batch.row(row)));
            let outputs: Vec<_> = outputs.map(|row| row.to_vec()).collect();
            let mut rows: Vec<_> = tables[0].rows().iter().map(|row| row.to_vec()).collect();
            rows.sort_by_key(|row| row[0].to_string());
            let reason = Value::str("fault: the function panicked: this event is too much");
            let aborted = &outputs[0];
            assert!(aborted.contains(&Value::Int(150)) && aborted.contains(&reason), "{aborted:?}");
            assert_eq!((outputs.len(), rows.len()), (1, 7));
            let wanted = first.get_or_insert_with(|| (outputs.clone(), rows.clone()));
            assert_eq!(*wanted, (outputs, rows), "{strategy} on {} threads", pool.threads());
        }
    }
}

/// Transfers between few rows, a third of which abort depending on other transfers. Most
/// speculative executions have to be undone.
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
    let cut = |until: u64| tidemill_reference::CutAt {
        offsets: vec![until],
        clock_us: 0,
        idle: Vec::new(),
        ended: if until == 2400 { vec![SourceId(0)] } else { Vec::new() },
        ..Default::default()
    };
    let (sources, cuts) = ([rows], [cut(800), cut(810), cut(2400)]);
    let wanted = tidemill_reference::run(&program, &sources, &cuts);
    assert!(wanted.aborts > 600, "{} aborts", wanted.aborts);
    for strategy in Executed::all() {
        let pool = dice.pick(pools());
        let in_parallel = std::cell::Cell::new(0);
        let got = drive::run(&program, &sources, &cuts, &mut dice, |seq| {
            let executor = Executor::new(program.clone(), strategy, 0).after(seq);
            let mut executor = executor.with_small_limits();
            let in_parallel = &in_parallel;
            move |tables: &mut [Table], epoch: &Epoch| {
                let outcome = executor.run(pool, tables, epoch).unwrap();
                in_parallel.set(in_parallel.get() + executor.ran().in_parallel);
                outcome
            }
        });
        same(&wanted, &got);
        if matches!(strategy, Executed::TStream | Executed::Graph(..)) {
            assert!(in_parallel.get() > 2000, "{} in graphs", in_parallel.get());
        }
    }
}

/// A function that behaves differently each time.
#[derive(Default)]
struct Counter(AtomicI64);

impl Opaque for Counter {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let calls = self.0.fetch_add(1, Ordering::Relaxed);
        tx.put(TableId(0), &[event[1].clone(), Value::Int(calls)])
    }
}

/// As many calls are compared as in serial execution, and all differences are reported.
#[test]
fn functions_that_are_none_are_told() {
    let (program, epoch) = three_hundred(Arc::new(Counter::default()));
    for strategy in Executed::all() {
        for pool in pools() {
            let mut executor = Executor::new(program.clone(), strategy, 3);
            let mut tables = vec![Table::new(Arc::new(program.tables[0].clone()), 1)];
            let outcome = executor.run(pool, &mut tables, &epoch).unwrap();
            assert_eq!(outcome.unstable.len(), 100, "{strategy}");
            assert_eq!((outcome.seq, tables[0].len()), (300, 7), "{strategy}");
        }
    }
}

/// Follows pointers and changes them. Its path is rarely the same as on the state before the epoch.
/// Sometimes it creates a row, or counts those of a range.
struct Bender;

impl Opaque for Bender {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let [_, Value::Int(k), Value::Int(x)] = event else { unreachable!() };
        let get = |tx: &mut dyn Tx, k: i64| -> Result<[i64; 2], Abort> {
            let row = tx.get(TableId(0), &[Value::Int(k)])?;
            Ok(row.map_or([k + 1, 0], |row| match (&row[1], &row[2]) {
                (Value::Int(next), Value::Int(n)) => [*next, *n],
                _ => unreachable!(),
            }))
        };
        let put = |tx: &mut dyn Tx, k: i64, row: [i64; 2]| {
            tx.put(TableId(0), &[k, row[0], row[1]].map(Value::Int))
        };
        let [next, n] = get(tx, *k)?;
        if n % 13 == 12 {
            return Err(Abort::refused(format!("{k} is worn out")));
        }
        let [then, m] = get(tx, next)?;
        if x % 7 == 0 {
            let take = if x % 2 == 0 { Take::Last(8) } else { Take::First(8) };
            let range = tx.scan(TableId(0), &[Value::Int(*k)], &[Value::Int(k + 20)], take)?;
            let seen = range.iter().fold(m, |seen, row| match row[..] {
                [Value::Int(key), _, Value::Int(n)] => (seen * 3 + key + n) % 1000,
                _ => unreachable!(),
            });
            put(tx, next, [then, seen])?;
        } else if x % 11 == 0 {
            tx.delete(TableId(0), &[Value::Int(next)])?;
        } else {
            put(tx, next, [then, m + 1])?;
        }
        put(tx, *k, [(next + x).rem_euclid(200), n + 1])
    }
}

/// Most hints are wrong here. So most transactions are settled at the end, or wait for all earlier
/// ones.
#[test]
fn functions_that_go_astray() {
    let mut b = Builder::new("astray");
    let int = |name: &str| Column::new(name, DataType::Int);
    let columns = vec![int("k"), int("next"), int("n").default(Value::Int(0))];
    let table = b.table("t", &["k"], columns);
    b.ordered(table);
    b.history(table, History { time_us: None, versions: Some(5) });
    let mut columns = vec![Column::new("at", DataType::Timestamp)];
    columns.extend([int("k"), int("x")]);
    let input = b.stream("input", columns);
    b.event_time(input, "at", Late::Side);
    b.source("rows", input, 0);
    let rare = b.filter("rare", input, |exprs, _| {
        let (x, ten) = (exprs.push(Expr::Column(2)), exprs.push(Expr::Const(Value::Int(10))));
        exprs.push(Expr::Binary(Binary::Lt, x, ten))
    });
    b.opaque("bend", rare, Arc::new(Bender));
    // The same accesses by declared operations, with a window.
    let mut h = b.handler("follow", input);
    let k = h.column("k");
    let row = h.row(table, &[k]);
    let next = h.read(row, "n");
    let other = h.row(table, &[next]);
    let sum = h.window(other, "n", Window::Last { versions: 3 }, Aggregate::Sum);
    let limit = h.int(400);
    let low = h.binary(Binary::Lt, sum, limit);
    h.require(low, "too much");
    let x = h.column("x");
    let more = h.add(sum, x);
    h.update(other, &[("n", more)]);
    h.output(&[("sum", sum)]);
    h.done();
    let program = Arc::new(b.finish().unwrap());
    let mut dice = Dice(5);
    let rows: Vec<InputRow> = (0..1500)
        .map(|offset| {
            let (k, x) = (dice.below(150) as i64, dice.below(40) as i64);
            let values = vec![Value::Timestamp(offset as i64), Value::Int(k), Value::Int(x)];
            InputRow { offset, values }
        })
        .collect();
    let cut = |until: u64| tidemill_reference::CutAt {
        offsets: vec![until],
        clock_us: 0,
        idle: Vec::new(),
        ended: if until == 1500 { vec![SourceId(0)] } else { Vec::new() },
        ..Default::default()
    };
    let (sources, cuts) = ([rows], [cut(400), cut(410), cut(800), cut(1500)]);
    let wanted = tidemill_reference::run(&program, &sources, &cuts);
    assert!(wanted.aborts > 100, "{} aborts", wanted.aborts);
    for strategy in Executed::all() {
        let pool = dice.pick(pools());
        let (in_parallel, all) = (std::cell::Cell::new(0), wanted.transactions as usize);
        let got = drive::run(&program, &sources, &cuts, &mut dice, |seq| {
            let mut executor = Executor::new(program.clone(), strategy, 5).after(seq);
            let in_parallel = &in_parallel;
            move |tables: &mut [Table], epoch: &Epoch| {
                let outcome = executor.run(pool, tables, epoch).unwrap();
                in_parallel.set(in_parallel.get() + executor.ran().in_parallel);
                outcome
            }
        });
        same(&wanted, &got);
        if matches!(strategy, Executed::TStream | Executed::Graph(..)) {
            let in_parallel = in_parallel.get();
            assert!((all / 50..all).contains(&in_parallel), "{in_parallel} of {all} in graphs");
        }
    }
}

/// Adds to a row given by one of the event's columns, and counts its calls.
struct Adds {
    column: usize,
    calls: AtomicI64,
    has_one_lock: bool,
}

impl Opaque for Adds {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let key = &event[self.column];
        let n = tx.get(TableId(0), std::slice::from_ref(key))?.map(|row| row[1].clone());
        let n = if let Some(Value::Int(n)) = n { n } else { 0 };
        tx.put(TableId(0), &[key.clone(), Value::Int(n + 1)])
    }

    fn has_one_lock(&self) -> bool {
        self.has_one_lock
    }
}

fn adds(column: usize, has_one_lock: bool) -> Arc<Adds> {
    Arc::new(Adds { column, calls: AtomicI64::new(0), has_one_lock })
}

/// A function's result on the committed state counts if no earlier transaction has written what it
/// read. Then the function is called once.
#[test]
fn functions_on_rows_of_their_own_are_called_once() {
    for (column, rows, least, most) in [(0, 300, 300, 300), (1, 7, 300 + 293, 600)] {
        for strategy in Executed::all().into_iter().filter(|s| matches!(s, Executed::Graph(..))) {
            for pool in pools() {
                let function = adds(column, false);
                let (program, epoch) = three_hundred(function.clone());
                let mut executor = Executor::new(program.clone(), strategy, 0);
                let mut tables = vec![Table::new(Arc::new(program.tables[0].clone()), 1)];
                executor.run(pool, &mut tables, &epoch).unwrap();
                assert_eq!((executor.ran().in_parallel, tables[0].len()), (300, rows));
                let calls = function.calls.load(Ordering::Relaxed);
                assert!((least..=most).contains(&calls), "{strategy}: {calls} calls");
            }
        }
    }
}

/// The adaptive strategy puts functions into a graph, unless they can only run one at a time.
#[test]
fn adaptive_has_graphs_for_functions() {
    let pool = &pools()[1];
    assert!(pool.threads() > 1);
    let ran = |has_one_lock, is_trying: bool| {
        let (program, epoch) = three_hundred(adds(0, has_one_lock));
        let executor = Executor::new(program.clone(), Executed::Adaptive, 0);
        let mut executor = if is_trying { executor.with_small_limits() } else { executor };
        let ran = |_| {
            let mut tables = vec![Table::new(Arc::new(program.tables[0].clone()), 1)];
            executor.run(pool, &mut tables, &epoch).unwrap();
            executor.ran().clone()
        };
        (0..2).map(ran).collect::<Vec<_>>()
    };
    let tried = ran(false, true);
    assert_eq!(tried[0].strategy, Executed::Serial);
    assert_eq!(tried[1].strategy.to_string(), "ns-op-eager");
    let (seen, expected, among) = tried[1].chosen.unwrap();
    assert_eq!((seen.unknown, among), (1.0, ExecutionMode::NOT_IN_PLACE));
    assert!(expected.graph_ns > 0.0);
    let locked = ran(true, false);
    assert_eq!(
        (locked[0].strategy, &*locked[0].why),
        (Executed::Serial, "functions run one at a time")
    );
}
