//! Stock Exchange Analysis, ready to run.

use std::sync::Arc;

use serde_json::{json, Map, Value};
use tidemill_core::Result;
use tidemill_env::Env;
use tidemill_table::Table;
use tidemill_txn::Program;

use super::events::{self, Tuple};
use super::tight::Tight;
use super::{program, window_us, QUOTES, TRADES, TURNOVERS};
use crate::args::Args;
use crate::events::{Events, Input};
use crate::execute::{empty_tables, words, Verdicts};
use crate::report::Report;
use crate::run::{self, Case};
use crate::shape::Parts;
use crate::work::Work;
use crate::Given;

/// Above this many nanoseconds an event the baseline is not tight: most of it is memory, and two rings
/// for each user are more than a cache has.
const TIGHT_NS: f64 = 60.0;

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    let case = Exchange::new(args, given, Work::calibrated(&env, args.udf_ns))?;
    progress(&format!("sea: {} events over {} users", args.events(), args.keys));
    run::run(args, &env, &case, progress)
}

/// The workload as the options want it.
pub(super) struct Exchange {
    pub(super) parts: Parts,
    pub(super) events: Vec<Tuple>,
    pub(super) size_us: i64,
    keys: usize,
    seed: u64,
    work: Work,
}

impl Exchange {
    pub(super) fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Exchange> {
        let size_us = window_us(args)?;
        let parts = program::program(args.program, size_us, given, work)?;
        let events = events::generate(args);
        Ok(Exchange { parts, events, size_us, keys: args.keys, seed: args.seed, work })
    }
}

impl Case for Exchange {
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
        tight.run(&self.events, self.size_us, self.work)
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS
    }

    fn details(&self, tight: &Tight) -> Map<String, Value> {
        tight.joined().into_iter().map(|mean| ("window_versions".into(), json!(mean))).collect()
    }

    /// The last tuples, the rate and the number of joins of every user are the baseline's.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let table = |at: usize| &tables[self.parts.tables[at].index()];
        let is_same = |key: u32| {
            let want = tight.get(key);
            let tuples = [QUOTES, TRADES].into_iter().all(|side| {
                let want = want.last[side]
                    .map(|t| [t.stock.into(), t.amount.into(), t.price.into(), t.value() as u64]);
                words(table(side), key) == want.as_ref().map(|words| &words[..])
            });
            let rate = [want.rate.to_bits(), want.joins as u64];
            tuples && words(table(TURNOVERS), key) == (want.joins > 0).then_some(&rate[..])
        };
        (0..self.keys as u32).all(is_same)
    }
}
