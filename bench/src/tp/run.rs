//! Toll Processing, ready to run.

use std::sync::Arc;

use tidemill_core::Result;
use tidemill_env::Env;
use tidemill_table::Table;
use tidemill_txn::Program;

use super::events::{self, Event};
use super::program::{self, SPEEDS, VEHICLES};
use super::tight::Tight;
use crate::args::Args;
use crate::events::{Events, Input};
use crate::execute::{empty_tables, words, Verdicts};
use crate::report::Report;
use crate::run::{self, Case};
use crate::shape::Parts;
use crate::work::Work;
use crate::Given;

/// Above this many nanoseconds a transaction the baseline is not tight.
const TIGHT_NS: f64 = 10.0;

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    let case = Toll::new(args, given, Work::calibrated(&env, args.udf_ns))?;
    progress(&format!("tp: {} events over {} keys", args.events(), args.keys));
    run::run(args, &env, &case, progress)
}

/// The workload as the options want it.
pub(super) struct Toll {
    pub(super) parts: Parts,
    pub(super) events: Vec<Event>,
    keys: usize,
    seed: u64,
    work: Work,
}

impl Toll {
    pub(super) fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Toll> {
        let parts = program::program(args.program, given, work)?;
        let events = events::generate(args);
        Ok(Toll { parts, events, keys: args.keys, seed: args.seed, work })
    }
}

impl Case for Toll {
    type Baseline = Tight;

    fn program(&self) -> &Arc<Program> {
        &self.parts.program
    }

    fn inputs(&self) -> &[Input] {
        &self.parts.inputs
    }

    fn events(&self) -> &(impl Events + ?Sized) {
        &self.events[..]
    }

    fn tables(&self) -> Vec<Table> {
        empty_tables(&self.parts.program, self.keys, self.seed)
    }

    fn baseline(&self) -> Tight {
        Tight::new(self.keys)
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(&self.events, self.work)
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS
    }

    /// Every segment that was reported is as in the baseline, and there are no others.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let table = |at: usize| &tables[self.parts.tables[at].index()];
        let (speeds, vehicles) = (table(SPEEDS), table(VEHICLES));
        let is_same = |key: u32| {
            let want = tight.get(key);
            let [low, high] = want.vehicles.map(|word| word as u64);
            let count = low.count_ones() + high.count_ones();
            match count {
                0 => words(speeds, key).is_none() && words(vehicles, key).is_none(),
                _ => {
                    words(speeds, key) == Some(&[want.mean.to_bits()])
                        && words(vehicles, key) == Some(&[low, high, count.into()])
                }
            }
        };
        speeds.len() == vehicles.len() && (0..self.keys as u32).all(is_same)
    }
}
