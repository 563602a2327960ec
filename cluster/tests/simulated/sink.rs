//! A topic that receives the output, and its writers: one beside each coordinator.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_cluster::{Left, OutputReader, Topic, Written};
use tidemill_core::{Row, StreamId};
use tidemill_txn::Program;

use super::log::Log;
use super::script::{ABORTED_MOVES, ABORTS, EVENTS, LATES};
use super::Dice;

/// The largest number of records in one read.
const READ_MAX: u64 = 8;

/// The written rows of each stream by their numbers. A writer first asks whether its row exists.
#[derive(Default)]
pub(super) struct Sink {
    pub rows: BTreeMap<StreamId, Vec<Row>>,
    /// The first wrong write, if there was one.
    pub wrong: Option<String>,
}

impl Sink {
    /// Returns the number of rows of all streams.
    pub fn len(&self) -> usize {
        self.rows.values().map(Vec::len).sum()
    }

    fn write(&mut self, stream: StreamId, number: usize, row: Row) {
        let rows = self.rows.entry(stream).or_default();
        match rows.get(number) {
            None if number == rows.len() => rows.push(row),
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
    /// The number of rows of each stream.
    rows: [usize; 4],
}

/// The streams that are written.
const WRITTEN: [StreamId; 4] = [EVENTS, ABORTS, LATES, ABORTED_MOVES];

impl Writer {
    /// Continues after the rows that a snapshot records as written.
    pub fn new(written: &Written, sources: u32, program: &Program) -> Writer {
        let schema = |of: StreamId| program.streams[of.index()].spec.schema.clone();
        let wanted = WRITTEN.map(|of| (of, schema(of)));
        let leaving = OutputReader::after(written, sources, wanted);
        let note = written.note.as_chunks::<8>().0;
        let of = |nth: usize| note.get(nth).map_or(0, |rows| u64::from_le_bytes(*rows) as usize);
        Writer { leaving, rows: [0, 1, 2, 3].map(of) }
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
        for (stream, batch) in ready {
            let number = WRITTEN.iter().position(|of| *of == stream).expect("it is wanted");
            for row in batch.rows() {
                if may_die && dice.below(500) == 0 {
                    return false;
                }
                sink.write(stream, self.rows[number], row);
                self.rows[number] += 1;
            }
        }
        for (stream, rows) in WRITTEN.iter().zip(self.rows) {
            let there = sink.rows.get(stream).map_or(0, Vec::len);
            if is_last && left.base >= left.recorded && there > rows {
                let what = format!("{there} rows exist, but the writer knows {rows}");
                sink.wrong.get_or_insert(what);
            }
        }
        true
    }

    /// Returns the record of the written rows.
    pub fn written(&self) -> Arc<Written> {
        let (base, outputs) = self.leaving.place();
        let note: Vec<u8> =
            self.rows.iter().flat_map(|rows| (*rows as u64).to_le_bytes()).collect();
        Arc::new(Written { base, outputs, note: note.into() })
    }
}
