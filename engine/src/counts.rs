//! Counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidemill_txn::execute::{HandlerCounts, Outcome};
use tidemill_txn::order::{Epoch, Run};
use tidemill_txn::program::Program;

/// The counts up to a cut.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    pub(crate) epochs: u64,
    pub(crate) dead: u64,
    pub(crate) late: u64,
    #[serde(rename = "parked")] // The name in data of earlier versions.
    pub(crate) buffered: u64,
    pub(crate) lag_us: i64,
    pub(crate) handlers: Vec<HandlerCounts>,
    /// The transactions on several processes, which do not count by handler.
    #[serde(default)]
    pub(crate) on_several: HandlerCounts,
    /// By handler, the first event that showed hidden non-determinism, and how often it showed.
    pub(crate) unstable: BTreeMap<usize, (String, u64)>,
}

impl Counts {
    /// The counts before the first epoch.
    pub(crate) fn none(program: &Program) -> Counts {
        let handlers = vec![HandlerCounts::default(); program.handlers.len()];
        Counts { handlers, ..Counts::default() }
    }

    /// Returns the counts of all handlers together.
    pub(crate) fn of_all(&self) -> HandlerCounts {
        let mut all = self.on_several;
        for handler in &self.handlers {
            all.committed += handler.committed;
            all.aborted += handler.aborted;
            all.faults += handler.faults;
        }
        all
    }

    /// Adds an epoch: its events and their results, late events, rows that could not be decoded
    /// (`bad`), and rows in dead-letter streams (`dead`).
    pub(crate) fn add(
        &mut self,
        program: &Program,
        epoch: &Epoch,
        outcome: &Outcome,
        late: &[Run],
        bad: usize,
        dead: usize,
    ) {
        // Each event counts once, however many streams it is on.
        let once = |run: &&Run| program.root_stream(run.stream) == run.stream;
        let rows = |runs: &[Run]| runs.iter().filter(once).map(|r| r.offsets.len() as u64).sum();
        let (events, late): (u64, u64) = (rows(&epoch.runs), rows(late));
        self.epochs += 1;
        self.events += bad as u64 + events + late;
        self.late += late;
        self.dead += dead as u64;
        for (total, epoch) in self.handlers.iter_mut().zip(&outcome.counts) {
            total.committed += epoch.committed;
            total.aborted += epoch.aborted;
            total.faults += epoch.faults;
        }
        for unstable in &outcome.unstable {
            let entry = self.unstable.entry(unstable.handler);
            let event = (unstable.stamp.source(), unstable.stamp.offset());
            entry.or_insert_with(|| (program.event_named(event), 0)).1 += 1;
        }
    }
}
