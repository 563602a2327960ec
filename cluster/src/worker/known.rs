//! The outputs that left before a recovery, which must not leave again.

use std::collections::HashSet;

use foldhash::fast::FixedState;
use tidemill_function::{Path, Tid};

use crate::records::Emitted;

/// The identities of outputs that have left.
#[derive(Default)]
pub(super) struct Known {
    pub outputs: HashSet<(Tid, Option<Path>), FixedState>,
    /// Emitted events by column, sorted. There may be very many.
    pub emitted: Vec<(u64, u32)>,
}

impl Known {
    /// Returns the last transaction with an output that has left.
    pub fn last(&self) -> Option<Tid> {
        let outputs = self.outputs.iter().map(|(tid, _)| *tid).max();
        outputs.max(self.emitted.last().map(|(tid, _)| Tid(*tid)))
    }

    /// Returns the events that have not left. Nothing after the last known one has.
    pub fn unknown(&mut self, emitted: Emitted) -> Emitted {
        let (Some(last), Some(first)) = (self.emitted.last(), emitted.ids().next()) else {
            return emitted;
        };
        if *last < first {
            return emitted;
        }
        let is_new = |id: &(u64, u32)| self.emitted.binary_search(id).is_err();
        let rows = (0..).zip(emitted.ids()).filter(|(_, id)| is_new(id)).map(|(row, _)| row);
        let rows: Vec<u32> = rows.collect();
        emitted.take(&rows)
    }
}
