//! Every strategy that executes a graph is the reference, bit for bit, on any number of threads.

mod drive;
mod pool;
mod random;

use std::sync::{Arc, OnceLock};

use drive::{cases, same};
use pool::Threads;
use proptest::prelude::*;
use random::{Dice, Shape};
use tidemill_table::Table;
use tidemill_txn::execute::Executor;
use tidemill_txn::order::Epoch;
use tidemill_txn::pool::Pool;
use tidemill_txn::reference;
use tidemill_txn::schedule::Strategy as Executed;

/// The strategies that have a graph.
fn strategies() -> Vec<Executed> {
    let all = Executed::all().into_iter();
    all.filter(|s| matches!(s, Executed::TStream | Executed::Graph(..))).collect()
}

/// Pools of one, two, three and eight threads.
fn pools() -> &'static [Threads] {
    static POOLS: OnceLock<Vec<Threads>> = OnceLock::new();
    POOLS.get_or_init(|| [1, 2, 3, 8].map(Threads::new).into())
}

/// Runs one case with every strategy, each on one of the pools; gives how many transactions were in
/// graphs.
fn check(seed: u64, strategies: &[Executed]) -> usize {
    let mut dice = Dice(seed);
    let shape = Shape { plain: dice.chance(70), orderly: false };
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
                in_graphs.set(in_graphs.get() + executor.ran().in_graphs);
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
        check(seed, &strategies());
    }
}

/// The comparison above would be worth little if random programs were never in graphs.
#[test]
fn random_programs_are_in_graphs() {
    let strategy = ["ns-op-eager".parse().unwrap()];
    let in_graphs: usize = (0..200).map(|seed| check(seed, &strategy)).sum();
    assert!(in_graphs > 2000, "{in_graphs} transactions in graphs");
}
