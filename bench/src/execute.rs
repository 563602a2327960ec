//! The one place that creates the engine's executor and lets it execute epochs.

use std::sync::Arc;

use tidemill_core::{Error, Result, Value};
use tidemill_engine::Workers;
use tidemill_env::Env;
use tidemill_table::Table;
use tidemill_txn::execute::{tables, Executor, Ran, Timing};
use tidemill_txn::order::{CutInput, Groups, Sequencer};
use tidemill_txn::program::Origin;
use tidemill_txn::schedule::Strategy;
use tidemill_txn::Program;

use crate::args::Args;
use crate::outputs::OutputHash;

/// The way in which a run is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Execution {
    pub(crate) strategy: Strategy,
    pub(crate) threads: usize,
    pub(crate) prefetches: bool,
}

impl Execution {
    /// Execution by the engine's own serial executor, for comparisons.
    pub(crate) const SERIAL: Execution =
        Execution { strategy: Strategy::Serial, threads: 1, prefetches: true };

    /// Returns the execution that the options ask for.
    pub(crate) fn of(args: &Args) -> Result<Execution> {
        Ok(Execution {
            prefetches: args.prefetches(),
            ..Execution::by(args.strategy()?, args.threads)
        })
    }

    /// Returns the execution by a strategy on this many threads. The serial executor has one.
    pub(crate) fn by(strategy: Strategy, threads: usize) -> Execution {
        let threads = if strategy == Strategy::Serial { 1 } else { threads };
        Execution { strategy, threads, prefetches: true }
    }
}

/// The outcome of a run of the engine.
pub(crate) struct Done {
    /// One element for each cut.
    pub(crate) epochs: Vec<EpochDone>,
    pub(crate) tables: Vec<Table>,
    pub(crate) output_hash: String,
    pub(crate) committed: u64,
    pub(crate) verdicts: Verdicts,
}

/// The execution of an epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochDone {
    /// The time spent in the cut, execution and commit, in nanoseconds.
    pub(crate) ns: u64,
    /// The parts of `ns` in the cut and in the commit.
    pub(crate) cut_ns: u64,
    pub(crate) commit_ns: u64,
    pub(crate) strategy: Strategy,
    /// The parts of the time of execution, if it was in place on several threads.
    pub(crate) timing: Option<Timing>,
}

/// The aborted transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    pub(crate) aborted: u64,
    /// The sum of their times. The times are the events' places, so the sum identifies the
    /// transactions.
    pub(crate) aborted_times: u64,
}

impl Verdicts {
    /// Records that the transaction on the event at this place aborts.
    #[inline(always)]
    pub(crate) fn abort(&mut self, at: usize) {
        self.aborted += 1;
        self.aborted_times += at as u64;
    }
}

/// Executes all events cut by cut. The time of execution and commit is measured, that of hashing is
/// not.
pub(crate) fn execute(
    env: &Env,
    program: &Arc<Program>,
    cuts: impl Iterator<Item = CutInput>,
    mut tables: Vec<Table>,
    how: Execution,
) -> Result<Done> {
    let mut sequencer = Sequencer::new(program.clone())?;
    let groups = Groups::of(program)?;
    let pool = Workers::start(env, how.threads)?;
    let mut executor = Executor::new(program.clone(), how.strategy, 0);
    if !how.prefetches {
        executor = executor.without_prefetch();
    }
    let mut hash = OutputHash::new(program);
    let (mut epochs, mut committed, mut verdicts) = (Vec::new(), 0, Verdicts::default());
    for input in cuts {
        // Threads stay awake where epochs follow one another. Here they sleep while outputs are
        // hashed, so they are woken first.
        executor.awake(&pool).run(&|_| ());
        let begun = env.clock.monotonic_ns();
        let sequenced = sequencer.cut(executor.awake(&pool), input)?;
        let cut = env.clock.monotonic_ns();
        let outcome = executor.run(&pool, &mut tables, &sequenced.epoch)?;
        let executed = env.clock.monotonic_ns();
        let frontiers_us = groups.frontiers_us(&sequenced.cut.watermarks, sequenced.cut.clock_us);
        for (table, frontier_us) in tables.iter_mut().zip(frontiers_us) {
            table.frontier(frontier_us);
            table.commit(outcome.seq);
        }
        let end = env.clock.monotonic_ns();
        let Ran { strategy, timing, .. } = *executor.ran();
        let (cut_ns, commit_ns) = (cut - begun, end - executed);
        epochs.push(EpochDone { ns: end - begun, cut_ns, commit_ns, strategy, timing });
        hash.add(&outcome.outputs);
        committed += outcome.counts.iter().map(|c| c.committed).sum::<u64>();
        verdicts.aborted += outcome.counts.iter().map(|c| c.aborted).sum::<u64>();
        let is_abort = |origin: &Origin| matches!(origin, Origin::Aborted(_));
        for output in &outcome.outputs {
            if is_abort(&program.streams[output.stream.index()].origin) {
                let times = output.batch.ints(0).unwrap_or(&[]);
                verdicts.aborted_times += times.iter().map(|t| *t as u64).sum::<u64>();
            }
        }
    }
    if !sequencer.is_drained() {
        return Err(Error::internal("events remain although all sources have ended"));
    }
    Ok(Done { epochs, tables, output_hash: hash.finish(), committed, verdicts })
}

/// Returns empty tables with room for `keys` rows each.
pub(crate) fn empty_tables(program: &Program, keys: usize, seed: u64) -> Vec<Table> {
    let mut tables = tables(program, seed);
    tables.iter_mut().for_each(|table| table.reserve(keys));
    tables
}

/// Adds a row for each key to a table, as part of the state before the first event. The key is the
/// row's first column.
pub(crate) fn fill<const N: usize>(
    table: &mut Table,
    keys: usize,
    row: impl Fn(i64) -> [Value; N],
) {
    for key in 0..keys as i64 {
        let row = row(key);
        table.put(&row[..1], Some(&row), 0);
    }
    table.commit(0);
}

/// Returns the words of a row after its key, if the row exists.
pub(crate) fn words(table: &Table, key: u32) -> Option<&[u64]> {
    let key = u64::from(key);
    let base = table.find(key, table.hash(key))?;
    table.is_present(base).then(|| table.body(base))
}

/// Returns the sum of the hashes of all tables, in hexadecimal.
pub(crate) fn state_hash(tables: &[Table]) -> String {
    let sum = tables.iter().fold(0u128, |sum, table| sum.wrapping_add(table.state_hash()));
    format!("{sum:032x}")
}
