//! Toll Processing as a case for the harness.

use tidemill_core::Result;
use tidemill_table::Table;

use super::events::{self, Event};
use super::program::{self, SPEEDS, VEHICLES};
use super::tight::Tight;
use crate::args::Args;
use crate::execute::{words, Verdicts};
use crate::run::{Case, Made};
use crate::work::Work;
use crate::Given;

/// The nanoseconds per transaction above which the baseline is not tight.
const TIGHT_NS: f64 = 10.0;

/// The workload according to the options.
pub(crate) struct Toll {
    made: Made<Vec<Event>>,
}

impl Case for Toll {
    type Events = Vec<Event>;
    type Baseline = Tight;

    fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Toll> {
        let parts = program::program(args.program, given, work)?;
        Ok(Toll { made: Made::new(args, parts, events::generate(args), work) })
    }

    fn made(&self) -> &Made<Vec<Event>> {
        &self.made
    }

    fn baseline(&self) -> Tight {
        Tight::new(self.made.keys)
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(&self.made.events, self.made.work)
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS
    }

    /// Compares every reported segment with the baseline's, and checks that there are no others.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let table = |at: usize| self.made.table(tables, at);
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
        speeds.len() == vehicles.len() && (0..self.made.keys as u32).all(is_same)
    }
}
