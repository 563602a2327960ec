//! A topic that receives the output, and its writers: one beside each coordinator.

use std::sync::Arc;

use tidemill_cluster::{Left, OutputReader, Topic, Written};
use tidemill_core::{Row, StreamId};

use super::log::Log;
use super::script::{ABORTS, EVENTS, LATES};
use super::Dice;

/// The largest number of records in one read.
const READ_MAX: u64 = 8;

/// The written rows by their numbers. A writer first asks whether its row exists.
#[derive(Default)]
pub(super) struct Sink {
    pub rows: Vec<Row>,
    /// The first wrong write, if there was one.
    pub wrong: Option<String>,
}

impl Sink {
    fn write(&mut self, number: usize, row: Row) {
        match self.rows.get(number) {
            None if number == self.rows.len() => self.rows.push(row),
            Some(there) if *there == row => {}
            there => {
                let what = format!("row {number} is {there:?}, but {row:?} is written");
                self.wrong.get_or_insert(what);
            }
        }
    }
}

/// The writer in the process of a coordinator.
pub(super) struct Writer {
    leaving: OutputReader,
    rows: usize,
}

impl Writer {
    /// Continues after the rows that a snapshot records as written.
    pub fn new(written: &Written, sources: u32) -> Writer {
        let wanted: [StreamId; 3] = [EVENTS, ABORTS, LATES];
        let leaving = OutputReader::after(written, sources, wanted.into());
        let rows = written.note[..].try_into().map_or(0, u64::from_le_bytes) as usize;
        Writer { leaving, rows }
    }

    /// Writes the outputs that are ready. Returns `false` if the process dies midway, which happens
    /// at random where it may.
    ///
    /// The last coordinator's writer must know of all rows in the sink as soon as it has passed the
    /// recorded outputs.
    pub fn write(
        &mut self,
        left: &Left,
        log: &Log,
        sink: &mut Sink,
        (dice, may_die, is_last): (&mut Dice, bool, bool),
    ) -> bool {
        while let Some((source, from)) = self.leaving.missing(left) {
            let limit = 1 + dice.below(READ_MAX) as usize;
            let records = log.read(Topic::Output(source), from, Some(limit));
            if records.upto <= from {
                return true;
            }
            self.leaving.take(source, records);
        }
        let Some(ready) = self.leaving.ready(left) else { return true };
        for (_, row) in ready {
            if may_die && dice.below(500) == 0 {
                return false;
            }
            sink.write(self.rows, row);
            self.rows += 1;
        }
        if is_last && left.base >= left.recorded && sink.rows.len() > self.rows {
            let (rows, there) = (self.rows, sink.rows.len());
            sink.wrong.get_or_insert(format!("{there} rows exist, but the writer knows {rows}"));
        }
        true
    }

    /// Returns the record of the written rows.
    pub fn written(&self) -> Arc<Written> {
        let (base, outputs) = self.leaving.place();
        let note = (self.rows as u64).to_le_bytes();
        Arc::new(Written { base, outputs, note: note.into() })
    }
}
