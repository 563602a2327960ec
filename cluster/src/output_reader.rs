//! Outputs in the one order, for a writer that copies them elsewhere.
//!
//! In the log, outputs of one epoch may come after outputs of the next. So none are handed over
//! before all outputs of their epoch are known to be there ([`Left`]).

use std::collections::{BTreeMap, BTreeSet};

use tidemill_core::{Row, StreamId};
use tidemill_function::{Path, Tid};

use crate::effect::Records;
use crate::records::{base_after, Left, Output, Record, Written};

/// An event that has not been handed over, and the offset of its record.
struct Waiting {
    at: u64,
    stream: StreamId,
    row: Row,
}

/// Reads outputs, and hands over the events of some streams in their order, each once.
pub struct OutputReader {
    wanted: BTreeSet<StreamId>,
    /// The base up to which all events have been handed over.
    base: u64,
    /// The end of what was read of each source, and the last generation that has begun in it.
    read: Vec<u64>,
    begun: Vec<u64>,
    waiting: BTreeMap<(Tid, Path), (u32, Waiting)>,
}

impl OutputReader {
    /// Creates a reader of some streams that continues after what has been written.
    pub fn after(written: &Written, sources: u32, wanted: BTreeSet<StreamId>) -> OutputReader {
        let mut read = written.outputs.clone();
        read.resize(sources as usize, 0);
        let begun = vec![0; sources as usize];
        OutputReader { wanted, base: written.base, read, begun, waiting: BTreeMap::new() }
    }

    /// Returns what must be read before more can be handed over: a source and an offset. Returns
    /// `None` if everything has been read.
    pub fn missing(&self, left: &Left) -> Option<(u32, u64)> {
        let is_missing = |(_, (read, end)): &(u32, (&u64, &u64))| read < end;
        let sources = (0..).zip(self.read.iter().zip(&left.ends));
        sources.into_iter().find(is_missing).map(|(source, (read, _))| (source, *read))
    }

    /// Takes records that were read of a source.
    pub fn take(&mut self, source: u32, Records { records, upto }: Records) {
        let (nth, sources) = (source as usize, self.read.len() as u32);
        let from = self.read[nth];
        for (at, record) in records.into_iter().filter(|(at, _)| *at >= from) {
            match record {
                Record::Generation { generation } => {
                    self.begun[nth] = self.begun[nth].max(generation);
                }
                Record::Outputs(outputs) => {
                    for output in outputs {
                        let Output::Event { tid, path, stream, row } = output else { continue };
                        if self.wanted.contains(&stream) && base_after(tid, sources) > self.base {
                            let waiting = Waiting { at, stream, row };
                            self.waiting.entry((tid, path)).or_insert((source, waiting));
                        }
                    }
                }
                _ => {}
            }
        }
        self.read[nth] = upto.max(from);
    }

    /// Returns all events of complete epochs, in their order. Returns `None` if a later generation
    /// has begun, perhaps of another coordinator. Then the log may be incomplete, and the later
    /// generation makes its own statement.
    pub fn ready(&mut self, left: &Left) -> Option<Vec<(StreamId, Row)>> {
        if self.missing(left).is_some() || self.begun.iter().any(|of| *of > left.generation) {
            return None;
        }
        self.base = self.base.max(left.base);
        let sources = self.read.len() as u32;
        let mut ready = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            if base_after(first.key().0, sources) > self.base {
                break;
            }
            let (_, Waiting { stream, row, .. }) = first.remove();
            ready.push((stream, row));
        }
        Some(ready)
    }

    /// Returns the place where it would continue if all that was handed over is written.
    pub fn place(&self) -> (u64, Vec<u64>) {
        let mut outputs = self.read.clone();
        for (source, Waiting { at, .. }) in self.waiting.values() {
            let first = &mut outputs[*source as usize];
            *first = (*first).min(*at);
        }
        (self.base, outputs)
    }
}

#[cfg(test)]
mod tests {
    use tidemill_core::Value;

    use super::*;

    const STREAM: StreamId = StreamId(1);

    fn event(tid: u64, stream: StreamId) -> Output {
        let row = [Value::Int(tid as i64)].into();
        Output::Event { tid: Tid(tid), path: Path::new(), stream, row }
    }

    fn left(generation: u64, base: u64, ends: [u64; 2]) -> Left {
        let written = Written::default().into();
        Left { generation, base, ends: ends.into(), recorded: 0, written }
    }

    fn read(records: Vec<(u64, Record)>, upto: u64) -> Records {
        Records { records, upto }
    }

    #[test]
    fn events_are_handed_over_in_their_order_when_their_epochs_have_left() {
        let mut leaving = OutputReader::after(&Written::default(), 2, [STREAM].into());
        let begins = |generation| Record::Generation { generation };
        // Places 1 to 4 belong to epochs up to base 2, those of the next epoch up to base 3.
        let first =
            [event(5, STREAM), event(3, STREAM), event(1, StreamId(2))].map(|one| vec![one]);
        let mut records = vec![(0, begins(1))];
        records.extend((1..).zip(first.map(Record::Outputs)));
        let now = left(1, 2, [4, 2]);
        assert_eq!(leaving.missing(&now), Some((0, 0)));
        leaving.take(0, read(records, 4));
        assert_eq!(leaving.missing(&now), Some((1, 0)));
        assert_eq!(leaving.ready(&now), None);
        let second = Record::Outputs(vec![event(4, STREAM), event(2, STREAM)]);
        leaving.take(1, read(vec![(0, begins(1)), (1, second)], 2));
        let numbers = |rows: Option<Vec<(StreamId, Row)>>| -> Option<Vec<String>> {
            Some(rows?.iter().map(|(_, row)| row[0].to_string()).collect())
        };
        assert_eq!(numbers(leaving.ready(&now)), Some(vec!["2".into(), "3".into(), "4".into()]));
        // Events that were not handed over are read again after a restart.
        assert_eq!(leaving.place(), (2, vec![1, 2]));
        // An event that was handed over before appears again, and is ignored.
        leaving.take(1, read(vec![(2, Record::Outputs(vec![event(2, STREAM)]))], 3));
        // A later generation has begun, so only its statement counts.
        leaving.take(0, read(vec![(4, begins(2))], 5));
        assert_eq!(leaving.ready(&left(1, 3, [5, 3])), None);
        assert_eq!(numbers(leaving.ready(&left(2, 3, [5, 3]))), Some(vec!["5".into()]));
        assert_eq!(leaving.place(), (3, vec![5, 3]));
    }
}
