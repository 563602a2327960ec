//! The planner's input about each transaction, computed in blocks and ahead of time: the rows that
//! it uses, by cell and by slot.

use super::walk::SlotAt;
use crate::execute::lane::Lane;
use crate::plan::lists::{Planner, Use};

/// The number of events of a lane that are staged at a time.
const BLOCK: usize = 16;
/// The distance from a block's first event at which events are staged, in events.
const AHEAD: usize = 2 * BLOCK;
/// The number of staged events that are retained.
const RING: usize = 4 * BLOCK;

/// The staged events of a lane.
#[derive(Debug)]
pub(super) struct Stage {
    rows: usize,
    /// The number of `rows`, rounded up to whole groups.
    width: usize,
    /// The uses of the staged events, row by row.
    uses: Vec<Use>,
    slots: Vec<SlotAt>,
    /// The event before which all are staged.
    staged_to: usize,
    /// The event from which staging must continue.
    stage_at: usize,
    /// The number of partitions, if cells are partitions.
    partitions: Option<usize>,
}

impl Stage {
    /// Creates the stage of a lane whose handler writes these of its rows.
    pub(super) fn new(writes: &[bool], planner: &Planner, partitions: Option<usize>) -> Stage {
        let rows = writes.len();
        let width = rows.next_multiple_of(Use::GROUP);
        let mut uses = vec![planner.no_use(); width * RING];
        for uses in uses.chunks_exact_mut(width.max(1)) {
            for (used, writes) in uses.iter_mut().zip(writes) {
                *used = Use::of(0, *writes || partitions.is_some());
            }
        }
        let slots = vec![SlotAt(std::ptr::null_mut()); width * RING];
        Stage { rows, width, uses, slots, staged_to: 0, stage_at: 0, partitions }
    }

    /// Returns the uses of the transaction on an event, in whole groups, and its slots with the
    /// number that counts. Events must be requested in their order.
    #[inline(always)]
    pub(super) fn of(
        &mut self,
        event: usize,
        lane: &Lane<'_>,
        planner: &Planner,
    ) -> (&[Use], (usize, &[SlotAt])) {
        if event >= self.stage_at {
            self.go_on(event, lane, planner);
        }
        let from = event % RING * self.width;
        (&self.uses[from..from + self.width], (self.rows, &self.slots[from..from + self.width]))
    }

    #[inline(never)]
    fn go_on(&mut self, event: usize, lane: &Lane<'_>, planner: &Planner) {
        let end = lane.batch.len();
        self.staged_to = self.staged_to.max(event);
        self.stage_at = (event / BLOCK + 1) * BLOCK;
        let mask = planner.cells() as u64 - 1;
        let partitions = self.partitions.map(|partitions| partitions as u64);
        while self.staged_to < (self.stage_at + AHEAD).min(end) {
            let from = self.staged_to;
            self.staged_to = ((from / BLOCK + 1) * BLOCK).min(end);
            let first = from % RING * self.width;
            for of in 0..self.rows {
                let mut at = first + of;
                lane.homes_of(of, from..self.staged_to, |home, hash| {
                    let cell = match partitions {
                        None => (hash & mask) as u32,
                        Some(partitions) => ((hash >> 32) % partitions) as u32,
                    };
                    tidemill_table::prefetch_to_write(planner.cell_address(cell));
                    self.uses[at].cell = cell;
                    self.slots[at] = SlotAt(home);
                    at += self.width;
                });
            }
        }
        lane.ask_ahead(event);
    }
}
