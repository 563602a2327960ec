//! Transactions get the same answers from outside in all runs of an epoch, whatever the strategy.
//! The next execution also gets them, without asking again.

mod drive;
mod pool;
#[allow(dead_code)]
mod random;

use std::cell::RefCell;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

use drive::{cases, same};
use pool::Threads;
use proptest::prelude::*;
use random::Dice;
use tidemill_core::{Column, DataType, SourceId, TableId, Value};
use tidemill_reference::{CutAt, InputRow};
use tidemill_table::Table;
use tidemill_txn::execute::Executor;
use tidemill_txn::order::Epoch;
use tidemill_txn::program::{Abort, Answers, Asker, Builder, Opaque, Program, QuestionId, Tx};
use tidemill_txn::schedule::Strategy;

/// Adds up the answers about a row's value. The clock outside never gives the same answer twice.
struct Asks {
    clock: Arc<AtomicI64>,
}

impl Opaque for Asks {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let [key, times] = event else { unreachable!("the stream has two columns") };
        let Value::Int(times) = times else { unreachable!("a column of integers") };
        let held = tx.get(TableId(0), std::slice::from_ref(key))?;
        let mut sum = held.map_or(0, |row| match row[1] {
            Value::Int(sum) => sum,
            _ => 0,
        });
        for _ in 0..*times {
            let clock = self.clock.clone();
            let ask = move || clock.fetch_add(1, Ordering::Relaxed).to_le_bytes().to_vec();
            let told = tx.lookup(&sum.to_le_bytes(), &Asker::new(ask))?;
            sum = sum.wrapping_add(i64::from_le_bytes(told[..].try_into().expect("a word")));
        }
        tx.put(TableId(0), &[key.clone(), Value::Int(sum)])
    }
}

fn program(asks: &Arc<Asks>) -> Arc<Program> {
    let ints = |names: &[&str]| names.iter().map(|name| Column::new(name, DataType::Int)).collect();
    let mut b = Builder::new("asks");
    b.table("t", &["id"], ints(&["id", "sum"]));
    let input = b.stream("input", ints(&["id", "times"]));
    b.source("source", input, 0);
    b.opaque("asks", input, asks.clone());
    Arc::new(b.finish().unwrap())
}

proptest! {
    #![proptest_config(cases(30))]

    #[test]
    fn who_runs_again_is_told_the_same(seed: u64) {
        let mut dice = Dice(seed);
        let asks = Arc::new(Asks { clock: Arc::new(AtomicI64::new(1)) });
        let program = program(&asks);
        let rows = 1 + dice.below(60);
        let row = |offset: u64| {
            let values = vec![Value::Int(dice.below(4) as i64), Value::Int(dice.below(4) as i64)];
            InputRow { offset, values }
        };
        let sources = [(0..rows).map(row).collect::<Vec<_>>()];
        let half = CutAt { offsets: vec![rows / 2], clock_us: 0, idle: Vec::new(), ended: Vec::new(), ..Default::default() };
        let end = CutAt { offsets: vec![rows], ended: vec![SourceId(0)], ..half.clone() };
        let cuts = [half, end];
        for strategy in Strategy::all() {
            for threads in [1, 3] {
                let pool = Threads::new(threads);
                let run = |known: Vec<(QuestionId, Arc<[u8]>)>| {
                    let all = RefCell::new(known);
                    let outcome = drive::run(&program, &sources, &cuts, &mut Dice(seed), |seq| {
                        let executor = Executor::new(program.clone(), strategy, 5);
                        let mut executor = executor.with_small_limits().after(seq);
                        let (all, pool) = (&all, &pool);
                        move |tables: &mut [Table], epoch: &Epoch| {
                            let mut epoch = epoch.clone();
                            epoch.answers = Arc::new(Answers::of(all.take()));
                            let outcome = executor.run(pool, tables, &epoch).unwrap();
                            all.replace(epoch.answers.all());
                            outcome
                        }
                    });
                    (outcome, all.into_inner())
                };
                let (first, told) = run(Vec::new());
                let answers = Arc::new(Answers::of(told.clone()));
                let asked = asks.clock.load(Ordering::Relaxed);
                let wanted = tidemill_reference::run_with_answers(&program, &sources, &cuts, &answers);
                prop_assert_eq!(asks.clock.load(Ordering::Relaxed), asked, "{}", strategy);
                same(&wanted, &first);
                let (second, _) = run(told);
                same(&wanted, &second);
            }
        }
    }
}
