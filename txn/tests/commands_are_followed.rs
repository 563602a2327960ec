//! Strong recovery logs enough of each transaction to replay it with the same outcome, without
//! firing any triggers. It detects a transaction that behaves differently in the replay.

mod drive;
mod pool;
#[allow(dead_code)]
mod random;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use drive::{cases, same};
use pool::Threads;
use proptest::prelude::*;
use random::{Dice, Shape};
use tidemill_core::{Column, DataType, SourceId, TableId, Value};
use tidemill_reference::{CutAt, InputRow, Outcome};
use tidemill_table::Table;
use tidemill_txn::execute::{put_commands, take_commands, Executor};
use tidemill_txn::order::Epoch;
use tidemill_txn::program::{Abort, Builder, Opaque, Program, Tx};
use tidemill_txn::schedule::Strategy;

fn one_thread() -> &'static Threads {
    static POOL: OnceLock<Threads> = OnceLock::new();
    POOL.get_or_init(|| Threads::new(1))
}

/// Runs a program with logged transactions and returns the commands of each epoch. It follows given
/// commands.
fn run(
    program: &Arc<Program>,
    sources: &[Vec<InputRow>],
    cuts: &[CutAt],
    dice: &mut Dice,
    followed: Option<Vec<Vec<u8>>>,
) -> (Outcome, Vec<Vec<u8>>) {
    let (logged, followed) = (RefCell::new(Vec::new()), RefCell::new(followed.map(VecDeque::from)));
    let outcome = drive::run(program, sources, cuts, dice, |seq| {
        let executor = Executor::new(program.clone(), Strategy::Adaptive, 5);
        let mut executor = executor.logging().after(seq);
        let (logged, followed) = (&logged, &followed);
        move |tables: &mut [Table], epoch: &Epoch| {
            if let Some(followed) = followed.borrow_mut().as_mut() {
                let bytes = followed.pop_front().expect("there are as many epochs");
                executor.follow(Some(take_commands(program, &bytes).unwrap()));
            }
            let outcome = executor.run(one_thread(), tables, epoch).unwrap();
            logged.borrow_mut().push(put_commands(&outcome.commands));
            outcome
        }
    });
    (outcome, logged.into_inner())
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn following_commands_comes_to_the_same(seed: u64) {
        let mut dice = Dice(seed);
        let shape = Shape { plain: dice.chance(50), orderly: false, histories: true, words: false };
        let program = Arc::new(random::program(&mut dice, shape));
        let sources = random::sources(&mut dice, &program, shape);
        let cuts = random::cuts(&mut dice, &sources, shape);
        let wanted = tidemill_reference::run(&program, &sources, &cuts);
        let (logged, commands) = run(&program, &sources, &cuts, &mut dice, None);
        same(&wanted, &logged);
        let (followed, none) = run(&program, &sources, &cuts, &mut dice, Some(commands.clone()));
        same(&wanted, &followed);
        prop_assert!(none.iter().all(|commands| commands == &put_commands(&[])));
        for bytes in commands.iter().take(2) {
            let cuts = (0..bytes.len()).step_by(7);
            cuts.for_each(|cut| assert!(take_commands(&program, &bytes[..cut]).is_err()));
        }
    }
}

/// Counts its calls, which no input decides.
struct Forgetful(AtomicI64);

impl Opaque for Forgetful {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let calls = self.0.fetch_add(1, Ordering::Relaxed);
        tx.put(TableId(0), &[event[0].clone(), Value::Int(calls)])
    }
}

#[test]
fn a_function_that_does_something_else_is_named() {
    let ints = |names: &[&str]| names.iter().map(|name| Column::new(name, DataType::Int)).collect();
    let mut b = Builder::new("forgets");
    b.table("t", &["id"], ints(&["id", "n"]));
    let input = b.stream("input", ints(&["id"]));
    b.source("source", input, 0);
    b.opaque("forgetful", input, Arc::new(Forgetful(AtomicI64::new(0))));
    let program = Arc::new(b.finish().unwrap());
    let row = |offset: u64| InputRow { offset, values: vec![Value::Int(offset as i64)] };
    let sources = [vec![row(0), row(1)]];
    let cut = CutAt {
        offsets: vec![2],
        clock_us: 0,
        idle: Vec::new(),
        ended: vec![SourceId(0)],
        ..Default::default()
    };
    let mut followed: Option<Vec<u8>> = None;
    let mut said = None;
    for _ in 0..2 {
        let (before, commands) = (followed.take(), RefCell::new(Vec::new()));
        let told = RefCell::new(None);
        drive::run(&program, &sources, std::slice::from_ref(&cut), &mut Dice(1), |seq| {
            let executor = Executor::new(program.clone(), Strategy::Adaptive, 0);
            let mut executor = executor.logging().after(seq);
            let (before, commands, told, program) = (&before, &commands, &told, &program);
            move |tables: &mut [Table], epoch: &Epoch| {
                let follows = before.as_ref().filter(|_| !epoch.order.is_empty());
                executor.follow(follows.map(|bytes| take_commands(program, bytes).unwrap()));
                match executor.run(one_thread(), tables, epoch) {
                    Ok(outcome) => {
                        commands.borrow_mut().extend(outcome.commands.clone());
                        outcome
                    }
                    Err(error) => {
                        *told.borrow_mut() = Some(error.to_string());
                        executor.follow(None);
                        executor.run(one_thread(), tables, epoch).unwrap()
                    }
                }
            }
        });
        followed = Some(put_commands(&commands.into_inner()));
        said = told.into_inner();
    }
    let said = said.expect("it gives a different result");
    assert!(said.contains("forgetful gave a different result"), "{said}");
    assert!(said.contains("row 0 of source source"), "{said}");
}
