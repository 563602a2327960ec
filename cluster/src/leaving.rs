//! What leaves, in the one order: for whoever writes it somewhere else.
//!
//! In the outputs what leaves of one epoch may stand behind what leaves of the next. So nothing is handed over before
//! all that leaves of its epoch is known to be there ([`Left`]).

use std::collections::{BTreeMap, BTreeSet};

use tidemill_core::{Row, StreamId};
use tidemill_function::{Path, Tid};

use crate::effect::Records;
use crate::records::{behind, Left, Output, Record, Written};

/// An event that is not handed over yet, and the offset of its record.
struct Waiting {
    at: u64,
    stream: StreamId,
    row: Row,
}

/// Reads outputs, and hands over the events of some streams in their order, each once.
pub struct Leaving {
    wanted: BTreeSet<StreamId>,
    /// All of lower places has been handed over.
    base: u64,
    /// For each source behind what was read, and the last generation that has begun in it.
    read: Vec<u64>,
    begun: Vec<u64>,
    waiting: BTreeMap<(Tid, Path), (u32, Waiting)>,
}

impl Leaving {
    /// Those of some streams, on behind what is written.
    pub fn behind(written: &Written, sources: u32, wanted: BTreeSet<StreamId>) -> Leaving {
        let mut read = written.outputs.clone();
        read.resize(sources as usize, 0);
        let begun = vec![0; sources as usize];
        Leaving { wanted, base: written.base, read, begun, waiting: BTreeMap::new() }
    }

    /// What is to be read before more can be handed over: a source, and from where on. Nothing when all of it has been.
    pub fn missing(&self, left: &Left) -> Option<(u32, u64)> {
        let is_missing = |(_, (read, end)): &(u32, (&u64, &u64))| read < end;
        let sources = (0..).zip(self.read.iter().zip(&left.ends));
        sources.into_iter().find(is_missing).map(|(source, (read, _))| (source, *read))
    }

    /// Takes what was read of a source.
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
                        if self.wanted.contains(&stream) && behind(tid, sources) > self.base {
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

    /// All events of which no epoch has more, in their order. `None` where a later generation has begun, be it of another
    /// coordinator: then what is there may not be all, and that one will say so.
    pub fn ready(&mut self, left: &Left) -> Option<Vec<(StreamId, Row)>> {
        if self.missing(left).is_some() || self.begun.iter().any(|of| *of > left.generation) {
            return None;
        }
        self.base = self.base.max(left.base);
        let sources = self.read.len() as u32;
        let mut ready = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            if behind(first.key().0, sources) > self.base {
                break;
            }
            let (_, Waiting { stream, row, .. }) = first.remove();
            ready.push((stream, row));
        }
        Some(ready)
    }

    /// For each source behind what was read.
    pub fn read(&self) -> &[u64] {
        &self.read
    }

    /// Where it would go on, when all that was handed over is written.
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
        let mut leaving = Leaving::behind(&Written::default(), 2, [STREAM].into());
        let begins = |generation| Record::Generation { generation };
        // Places 1 to 4 are behind the base 2, those of the next epoch behind 3.
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
        // What waits is read again by whoever goes on.
        assert_eq!(leaving.place(), (2, vec![1, 2]));
        // One that has left before comes again: it was handed over.
        leaving.take(1, read(vec![(2, Record::Outputs(vec![event(2, STREAM)]))], 3));
        // A later generation has begun: it is the one to say what is there.
        leaving.take(0, read(vec![(4, begins(2))], 5));
        assert_eq!(leaving.ready(&left(1, 3, [5, 3])), None);
        assert_eq!(numbers(leaving.ready(&left(2, 3, [5, 3]))), Some(vec!["5".into()]));
        assert_eq!(leaving.place(), (3, vec![5, 3]));
    }
}
