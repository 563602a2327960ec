//! Stock Exchange Analysis as a case for the harness.

use serde_json::{json, Map, Value};
use tidemill_core::Result;
use tidemill_table::Table;

use super::events::{self, Tuple};
use super::tight::Tight;
use super::{program, window_us, QUOTES, TRADES, TURNOVERS};
use crate::args::Args;
use crate::execute::{words, Verdicts};
use crate::run::{Case, Made};
use crate::work::Work;
use crate::Given;

/// The nanoseconds per event above which the baseline is not tight. Most of the time is memory
/// access: two rings for each user exceed the caches.
const TIGHT_NS: f64 = 60.0;

/// The workload according to the options.
pub(crate) struct Exchange {
    pub(super) made: Made<Vec<Tuple>>,
    pub(super) size_us: i64,
}

impl Case for Exchange {
    type Events = Vec<Tuple>;
    type Baseline = Tight;

    fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Exchange> {
        let size_us = window_us(args)?;
        let parts = program::program(args.program, size_us, given, work)?;
        Ok(Exchange { made: Made::new(args, parts, events::generate(args), work), size_us })
    }

    fn made(&self) -> &Made<Vec<Tuple>> {
        &self.made
    }

    fn baseline(&self) -> Tight {
        Tight::new(self.made.keys)
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(&self.made.events, self.size_us, self.made.work)
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS
    }

    fn details(&self, tight: &Tight) -> Map<String, Value> {
        tight.joined().into_iter().map(|mean| ("window_versions".into(), json!(mean))).collect()
    }

    /// Compares the last tuples, the rate and the number of joins of every user with the
    /// baseline's.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let table = |at: usize| self.made.table(tables, at);
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
        (0..self.made.keys as u32).all(is_same)
    }
}
