//! What epochs look like, from a sample of their transactions.

use super::codes::Codes;
use super::words::KeyFrom;
use crate::order::Epoch;
use crate::schedule::Properties;

/// One of so many transactions: a sample must cost next to nothing.
const EVERY: usize = 128;
/// Transactions of a sample of one epoch, at least and at most.
const SAMPLE: (usize, usize) = (8, 96);
/// So many of them follow one another: they share lines of memory, which nobody has looked at yet.
const TOGETHER: usize = 16;
/// So many transactions tell how many rows are shared. Of short epochs several together do: the fewer there are in a
/// sample, the fewer meet.
const WHOLE: usize = 64;

/// A sample of epochs.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    seen: Seen,
    now: Counts,
    /// What the last whole one said.
    last: Option<Counts>,
}

/// What there is in a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    transactions: usize,
    /// Rows that they use; of these, those that others in the sample use, too.
    rows: usize,
    shared: usize,
}

impl Sample {
    /// What an epoch looks like: aborts, and what is not known beforehand, are for others to say.
    pub(crate) fn properties(&mut self, codes: &Codes, epoch: &Epoch) -> Properties {
        self.look_at(codes, epoch);
        if self.now.transactions >= WHOLE {
            self.last = Some(std::mem::take(&mut self.now));
            self.seen = Seen::default();
        }
        let of = self.last.unwrap_or(self.now);
        let share = |part: usize, of: usize| part as f64 / of.max(1) as f64;
        Properties {
            transactions: epoch.order.len(),
            rows: share(of.rows, of.transactions),
            shared: share(of.shared, of.rows),
            aborts: 0.0,
            unknown: 0.0,
        }
    }

    fn look_at(&mut self, codes: &Codes, epoch: &Epoch) {
        let len = epoch.order.len();
        let sample = (len / EVERY).clamp(SAMPLE.0, SAMPLE.1);
        let together = sample.min(TOGETHER);
        let every = (len * together).div_ceil(sample).max(1);
        for ranked in epoch.order.chunks(every).flat_map(|of| &of[..together.min(of.len())]) {
            let lane = &epoch.lanes[ranked.lane as usize];
            let Some(keys) = codes.keys(lane.handler as usize) else { continue };
            self.now.transactions += 1;
            for (table, key) in keys {
                let key = match key {
                    KeyFrom::Const(word) => Some(*word),
                    KeyFrom::Column(column) => {
                        let ints = epoch.runs[lane.run as usize].batch.ints(usize::from(*column));
                        ints.map(|ints| ints[ranked.row as usize] as u64)
                    }
                };
                self.now.rows += 1;
                let is_shared = key.is_some_and(|key| !self.seen.is_new(*table, key));
                self.now.shared += usize::from(is_shared);
            }
        }
    }
}

/// Rows that were seen, by a few bits of their hashes: good enough for a sample, and no more than a
/// few lines of memory.
#[derive(Debug)]
struct Seen([u64; Seen::WORDS]);

impl Default for Seen {
    fn default() -> Seen {
        Seen([0; Seen::WORDS])
    }
}

impl Seen {
    const WORDS: usize = 512;

    /// Whether a row is seen for the first time.
    fn is_new(&mut self, table: usize, key: u64) -> bool {
        let hash = (key ^ (table as u64) << 56).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bit = hash >> (64 - (Seen::WORDS * 64).ilog2());
        let word = &mut self.0[(bit / 64) as usize];
        let is_new = *word >> (bit % 64) & 1 == 0;
        *word |= 1 << (bit % 64);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidemill_core::{Batch, Column, DataType, Row, SourceId, StreamId, TableId, Value};

    use super::*;
    use crate::order::Run;
    use crate::program::{Builder, NativeTx};
    use crate::Program;

    /// Transactions on two rows each.
    fn program() -> Program {
        let mut b = Builder::new("t");
        let int = |name: &str| Column::new(name, DataType::Int);
        b.table("t", &["k"], vec![int("k"), int("v").default(Value::Int(0))]);
        let input = b.stream("s", vec![int("a"), int("b")]);
        b.source("source", input, 0);
        let rows: [(TableId, &[&str]); 2] = [(TableId(0), &["a"]), (TableId(0), &["b"])];
        b.native("touch", input, &rows, &[], |_: &mut NativeTx<'_>| Ok(()));
        b.finish().unwrap()
    }

    fn epoch(program: &Program, events: impl Iterator<Item = [i64; 2]>) -> Epoch {
        let rows: Vec<Row> = events.map(|event| event.map(Value::Int).into()).collect();
        let run = Run {
            stream: StreamId(0),
            source: SourceId(0),
            batch: Batch::from_rows(
                program.streams[0].spec.schema.clone(),
                rows.iter().map(|row| &row[..]),
            ),
            offsets: (0..rows.len() as u64).collect(),
            times: (0..rows.len() as i64).collect(),
            admitted: None,
        };
        Epoch::rank(program, vec![run])
    }

    /// Every second row is one of ten, all others are used once: of epochs of 200 the sample comes to as many shared
    /// rows as of one of 10,000.
    #[test]
    fn short_epochs_look_like_long_ones() {
        let program = Arc::new(program());
        let codes = Codes::new(program.clone());
        let event = |at: i64| [at % 10, 1_000 + at];
        let long = Sample::default().properties(&codes, &epoch(&program, (0..10_000).map(event)));
        let mut sample = Sample::default();
        let mut short = Vec::new();
        for number in 0..20 {
            let events = (number * 200..(number + 1) * 200).map(event);
            short.push(sample.properties(&codes, &epoch(&program, events)));
        }
        assert_eq!((long.rows, long.transactions), (2.0, 10_000));
        assert!(short.iter().all(|seen| seen.rows == 2.0 && seen.transactions == 200));
        assert!((0.4..=0.5).contains(&long.shared), "{long:?}");
        assert!(short[0].shared < 0.1, "{:?}", short[0]);
        assert!((short[19].shared - long.shared).abs() < 0.1, "{:?} {long:?}", short[19]);
    }
}
