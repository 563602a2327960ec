//! The outputs that left before a recovery, which must not leave again.

use std::collections::HashSet;

use foldhash::fast::FixedState;
use tidemill_function::{Path, Tid};

use crate::records::{Emitted, Output};

/// The identities of outputs that have left.
#[derive(Default)]
pub(super) struct Known {
    pub outputs: HashSet<(Tid, Option<Path>), FixedState>,
    /// Events that leave by column, sorted. There may be very many.
    pub emitted: Vec<(u64, u32)>,
}

impl Known {
    /// Adds an output that is not in columns. Earlier versions wrote all events in this way.
    pub fn add(&mut self, output: &Output) {
        match output.id() {
            (tid, Some(path)) if path.len() == 1 => self.emitted.push((tid.0, path[0])),
            id => drop(self.outputs.insert(id)),
        }
    }

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidemill_core::{Batch, Column, DataType, Schema, StreamId, Value};

    use super::*;

    fn events(tids: &[u64]) -> Emitted {
        let schema = Arc::new(Schema::new(vec![Column::new("id", DataType::Int)]));
        let rows: Vec<[Value; 1]> = tids.iter().map(|tid| [Value::Int(*tid as i64)]).collect();
        let batch = Batch::from_rows(schema, rows.iter().map(|row| &row[..]));
        Emitted { stream: StreamId(0), tids: tids.to_vec(), ordinals: vec![0; tids.len()], batch }
    }

    #[test]
    fn events_of_earlier_versions_do_not_leave_by_column_again() {
        let event = |tid, path: &[u32]| Output::Event {
            tid: Tid(tid),
            path: path.into(),
            stream: StreamId(0),
            row: [Value::Int(tid as i64)].into(),
        };
        let mut known = Known::default();
        known.add(&event(7, &[0]));
        known.add(&event(3, &[0]));
        known.add(&event(9, &[1, 0]));
        known.emitted.extend(events(&[5]).ids());
        known.emitted.sort_unstable();
        assert_eq!(known.last(), Some(Tid(9)));
        let left = known.unknown(events(&[3, 4, 5, 6, 7, 8]));
        assert_eq!(left.tids, [4, 6, 8]);
        assert_eq!(left.batch.ints(0).unwrap(), [4, 6, 8]);
        // An event of a call within a transaction is no event of a column.
        assert_eq!(known.unknown(events(&[9])).tids, [9]);
        assert!(known.outputs.remove(&event(9, &[1, 0]).id()));
    }
}
