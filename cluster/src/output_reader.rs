//! Outputs in the one order, for a writer that copies them elsewhere.
//!
//! In the log, outputs of one epoch may come after outputs of the next. So none are handed over
//! before all outputs of their epoch are known to be there ([`Left`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Batch, Row, Schema, StreamId};
use tidemill_function::{Path, Tid};

use crate::effect::Records;
use crate::records::{base_after, Emitted, Left, Output, Record, Written};

/// Events of a stream that have not been handed over.
struct Waiting {
    schema: Arc<Schema>,
    /// Events by column, each with its source and the offset of its record.
    runs: Vec<(u32, u64, Emitted)>,
    /// Single events, each with its source and the offset of its record.
    singles: BTreeMap<(Tid, Path), (u32, u64, Row)>,
}

/// Reads outputs, and hands over the events of some streams in their order, each once.
pub struct OutputReader {
    /// The base up to which all events have been handed over.
    base: u64,
    /// The end of what was read of each source, and the last generation that has begun in it.
    read: Vec<u64>,
    begun: Vec<u64>,
    waiting: BTreeMap<StreamId, Waiting>,
}

impl OutputReader {
    /// Creates a reader of some streams that continues after what has been written.
    pub fn after(
        written: &Written,
        sources: u32,
        wanted: impl IntoIterator<Item = (StreamId, Arc<Schema>)>,
    ) -> OutputReader {
        let mut read = written.outputs.clone();
        read.resize(sources as usize, 0);
        let begun = vec![0; sources as usize];
        let nothing = |schema| Waiting { schema, runs: Vec::new(), singles: BTreeMap::new() };
        let waiting = wanted.into_iter().map(|(stream, schema)| (stream, nothing(schema)));
        OutputReader { base: written.base, read, begun, waiting: waiting.collect() }
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
        let (from, base) = (self.read[nth], self.base);
        for (at, record) in records.into_iter().filter(|(at, _)| *at >= from) {
            match record {
                Record::Generation { generation } => {
                    self.begun[nth] = self.begun[nth].max(generation);
                }
                Record::Outputs(outputs) => {
                    for output in outputs {
                        let Output::Event { tid, path, stream, row } = output else { continue };
                        let Some(waiting) = self.waiting.get_mut(&stream) else { continue };
                        if base_after(tid, sources) > base {
                            waiting.singles.entry((tid, path)).or_insert((source, at, row));
                        }
                    }
                }
                Record::Emitted(emitted) => {
                    let Some(waiting) = self.waiting.get_mut(&emitted.stream) else { continue };
                    let rows = emitted.tids.len();
                    let first = upto_base(&emitted, base, sources);
                    if first < rows {
                        assert_eq!(emitted.batch.schema(), &waiting.schema, "the stream's columns");
                        waiting.runs.push((source, at, emitted.slice(first, rows)));
                    }
                }
                _ => {}
            }
        }
        self.read[nth] = upto.max(from);
    }

    /// Returns all events of complete epochs, in their order, by stream. Returns `None` if a later
    /// generation has begun, perhaps of another coordinator. Then the log may be incomplete, and the
    /// later generation makes its own statement.
    pub fn ready(&mut self, left: &Left) -> Option<Vec<(StreamId, Batch)>> {
        if self.missing(left).is_some() || self.begun.iter().any(|of| *of > left.generation) {
            return None;
        }
        self.base = self.base.max(left.base);
        let (base, sources) = (self.base, self.read.len() as u32);
        let ready = |(stream, waiting): (&StreamId, &mut Waiting)| {
            Some((*stream, waiting.ready(base, sources)?))
        };
        Some(self.waiting.iter_mut().filter_map(ready).collect())
    }

    /// Returns the place where it would continue if all that was handed over is written.
    pub fn place(&self) -> (u64, Vec<u64>) {
        let mut outputs = self.read.clone();
        for waiting in self.waiting.values() {
            let singles = waiting.singles.values().map(|(source, at, _)| (source, at));
            let runs = waiting.runs.iter().map(|(source, at, _)| (source, at));
            for (source, at) in singles.chain(runs) {
                let first = &mut outputs[*source as usize];
                *first = (*first).min(*at);
            }
        }
        (self.base, outputs)
    }
}

/// Returns the number of events, from the first on, that are within a base.
fn upto_base(emitted: &Emitted, base: u64, sources: u32) -> usize {
    emitted.tids.partition_point(|tid| base_after(Tid(*tid), sources) <= base)
}

impl Waiting {
    /// Takes the events within a base, in their order.
    fn ready(&mut self, base: u64, sources: u32) -> Option<Batch> {
        let mut parts: Vec<Emitted> = Vec::new();
        for (source, at, run) in std::mem::take(&mut self.runs) {
            let (count, rows) = (upto_base(&run, base, sources), run.tids.len());
            if count < rows {
                self.runs.push((source, at, run.slice(count, rows)));
            }
            if count > 0 {
                parts.push(if count < rows { run.slice(0, count) } else { run });
            }
        }
        let (mut tids, mut ordinals, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(first) = self.singles.first_entry() {
            let (tid, path) = first.key();
            if base_after(*tid, sources) > base {
                break;
            }
            tids.push(tid.0);
            ordinals.push(path.first().copied().unwrap_or_default());
            rows.push(first.remove().2);
        }
        if !rows.is_empty() {
            let batch = Batch::from_rows(self.schema.clone(), rows.iter().map(|row| &row[..]));
            // No single event has the first number of another in its path, so their order stays.
            parts.push(Emitted { stream: StreamId(0), tids, ordinals, batch });
        }
        merged(&parts, usize::from(!rows.is_empty()))
    }
}

/// Merges events of one stream. Events that are there twice are taken once, except among the events
/// of the last `apart` parts.
fn merged(parts: &[Emitted], apart: usize) -> Option<Batch> {
    if let [part] = parts {
        return Some(part.batch.clone());
    }
    let mut order: Vec<(u64, u32, u32, u32)> = Vec::new();
    for (nth, part) in (0..).zip(parts) {
        order.extend((0..).zip(part.ids()).map(|(row, (tid, ordinal))| (tid, ordinal, nth, row)));
    }
    // This sort merges runs that are in order.
    order.sort();
    let last = (parts.len() - apart) as u32;
    order.dedup_by(|b, a| (a.0, a.1) == (b.0, b.1) && b.2 < last);
    let batches: Vec<&Batch> = parts.iter().map(|part| &part.batch).collect();
    let rows: Vec<(u32, u32)> = order.into_iter().map(|(.., nth, row)| (nth, row)).collect();
    (!rows.is_empty()).then(|| Batch::interleave(&batches, &rows))
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Column, DataType, Value};

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
        let schema = Arc::new(Schema::new(vec![Column::new("id", DataType::Int)]));
        let wanted = [(STREAM, schema.clone())];
        let mut leaving = OutputReader::after(&Written::default(), 2, wanted);
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
        assert!(leaving.ready(&now).is_none());
        let second = Record::Outputs(vec![event(4, STREAM), event(2, STREAM)]);
        leaving.take(1, read(vec![(0, begins(1)), (1, second)], 2));
        let numbers = |ready: Option<Vec<(StreamId, Batch)>>| -> Option<Vec<i64>> {
            Some(ready?.iter().flat_map(|(_, batch)| batch.ints(0).unwrap().to_vec()).collect())
        };
        assert_eq!(numbers(leaving.ready(&now)), Some(vec![2, 3, 4]));
        // Events that were not handed over are read again after a restart.
        assert_eq!(leaving.place(), (2, vec![1, 2]));
        // An event that was handed over before appears again, and is ignored.
        leaving.take(1, read(vec![(2, Record::Outputs(vec![event(2, STREAM)]))], 3));
        // A later generation has begun, so only its statement counts.
        leaving.take(0, read(vec![(4, begins(2))], 5));
        assert!(leaving.ready(&left(1, 3, [5, 3])).is_none());
        assert_eq!(numbers(leaving.ready(&left(2, 3, [5, 3]))), Some(vec![5]));
        assert_eq!(leaving.place(), (3, vec![5, 3]));
        // Events by column come between single ones, and those that are there twice come once.
        let columns = |tids: &[u64]| {
            let rows: Vec<[Value; 1]> = tids.iter().map(|tid| [Value::Int(*tid as i64)]).collect();
            let batch = Batch::from_rows(schema.clone(), rows.iter().map(|row| &row[..]));
            let (tids, ordinals) = (tids.to_vec(), vec![0; tids.len()]);
            Record::Emitted(Emitted { stream: STREAM, tids, ordinals, batch })
        };
        let single = Record::Outputs(vec![event(10, STREAM)]);
        leaving.take(0, read(vec![(5, columns(&[5, 7, 11, 13])), (6, columns(&[7]))], 7));
        leaving.take(1, read(vec![(3, columns(&[8])), (4, single)], 5));
        assert_eq!(numbers(leaving.ready(&left(2, 6, [7, 5]))), Some(vec![7, 8, 10, 11]));
        assert_eq!(leaving.place(), (6, vec![5, 5]));
        assert_eq!(numbers(leaving.ready(&left(2, 7, [7, 5]))), Some(vec![13]));
    }
}
