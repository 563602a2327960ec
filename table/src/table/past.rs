//! Rows as they were.
//!
//! Who reads must not see what may still be lost, so a table keeps the versions since the last
//! state that is safe: [`Table::seal`] ends an epoch and puts its version log aside,
//! [`Table::release`] lets go of those that no reader can want any more. Writing costs nothing more
//! for it: where a log would be emptied, another one is taken.
//!
//! The link of a version leads into the log of the epoch that wrote it, and its stamp says which
//! one that is.

use std::collections::{BinaryHeap, VecDeque};

use tidemill_core::{Batch, Error, Key, Result, Row, Value};

use super::{history_hash, row_hash, Table, KEY, LINK, STAMP, TAKEN};
use crate::layout::HEADER_WORDS;
use crate::version::{Seq, VersionLog, NO_LINK};

/// Emptied logs that are kept, so that the next epochs find memory that the process has already.
const SPARE_MAX: usize = 2;

/// The logs that were put aside.
#[derive(Clone, Debug, Default)]
pub(super) struct Sealed {
    /// With the last transaction of each; oldest first.
    logs: VecDeque<(Seq, VersionLog)>,
    spare: Vec<VersionLog>,
}

impl Sealed {
    pub(super) fn logs_mut(&mut self) -> impl Iterator<Item = &mut VersionLog> {
        self.logs.iter_mut().map(|(_, log)| log)
    }

    pub(super) fn bytes(&self) -> usize {
        self.logs.iter().map(|(_, log)| log).chain(&self.spare).map(VersionLog::bytes).sum()
    }
}

/// A table as it was after a transaction.
#[derive(Clone, Copy, Debug)]
pub struct AsOf<'t> {
    pub(super) table: &'t Table,
    pub(super) seq: Seq,
}

impl Table {
    /// As [`Table::commit`], but older versions may still be wanted: back to the last
    /// [`Table::release`]. What is written from now on bears higher numbers.
    pub fn seal(&mut self, seq: Seq) {
        self.mark_written();
        if self.log.len(self.logged) > 0 {
            let empty = self.sealed.spare.pop().unwrap_or_default();
            self.sealed.logs.push_back((seq, std::mem::replace(&mut self.log, empty)));
        }
        if self.shape.is_some() {
            self.aging.seal(seq);
        }
    }

    /// Everything up to `seq` is final, and no reader needs older versions. Those go that were
    /// sealed up to it.
    pub fn release(&mut self, seq: Seq) {
        let Sealed { logs, spare } = &mut self.sealed;
        while logs.front().is_some_and(|(until, _)| *until <= seq) {
            let Some((until, mut log)) = logs.pop_front() else { break };
            self.floor = until;
            if spare.len() < SPARE_MAX {
                log.clear();
                spare.push(log);
            }
        }
        if self.shape.is_some() {
            self.aging.release(seq);
            self.sweep();
        }
    }

    /// The table as it was after the transaction with number `seq`; as it is, when that is yet to
    /// come.
    ///
    /// # Errors
    /// When versions that old are gone.
    pub fn as_of(&self, seq: Seq) -> Result<AsOf<'_>> {
        if seq < self.floor {
            return Err(Error::input(format!(
                "table {} as of {seq}: versions below {} are gone",
                self.spec.name, self.floor
            )));
        }
        Ok(AsOf { table: self, seq })
    }

    /// The table as it is.
    pub fn newest(&self) -> AsOf<'_> {
        AsOf { table: self, seq: Seq::MAX }
    }

    /// The log that the link of a version with this number leads into.
    fn log_of(&self, seq: Seq) -> &VersionLog {
        let logs = &self.sealed.logs;
        let at = logs.partition_point(|(until, _)| *until < seq);
        logs.get(at).map_or(&self.log, |(_, log)| log)
    }
}

impl<'t> AsOf<'t> {
    /// The row with this key (one value for each key column).
    pub fn get(&self, key: &[Value]) -> Option<Row> {
        self.table.slot_of(key).and_then(|slot| self.row(slot))
    }

    /// The row in a slot, if it was there.
    fn row(&self, slot: u32) -> Option<Row> {
        let table = self.table;
        let words = &table.slots.words()[slot as usize * table.stride..][..table.stride];
        let (mut stamp, mut link) = (words[STAMP], (words[LINK] >> 32) as u32);
        if stamp >> 1 <= self.seq {
            return table.row(slot);
        }
        while link != NO_LINK {
            let log = table.log_of(stamp >> 1);
            let entry = log.entry(link, table.logged, table.layout.values);
            if entry.stamp >> 1 <= self.seq {
                let present = entry.stamp & 1 == 1;
                // What is not logged is as it was.
                let rest = &words[HEADER_WORDS + entry.body.len()..];
                let body = || [entry.body, rest].concat();
                return present.then(|| table.make_row(words[KEY], &body(), entry.values));
            }
            (stamp, link) = (entry.stamp, entry.link);
        }
        None
    }

    /// The slots in which there may have been a row, in no order.
    fn slots(&self) -> impl Iterator<Item = u32> + 't {
        let (stride, seq) = (self.table.stride, self.seq);
        let slots = self.table.slots.words().chunks_exact(stride).enumerate();
        slots
            .filter(move |(_, words)| {
                let (link, stamp) = (words[LINK], words[STAMP]);
                link & TAKEN != 0 && (stamp & 1 == 1 || stamp >> 1 > seq)
            })
            .map(|(slot, _)| slot as u32)
    }

    /// All rows, in no order.
    pub(super) fn unordered(self) -> impl Iterator<Item = (u32, Row)> + 't {
        self.slots().filter_map(move |slot| Some((slot, self.row(slot)?)))
    }

    /// All rows, by key.
    pub fn rows(&self) -> Vec<Row> {
        let mut slots: Vec<(Key, u32)> = self.slots().map(|s| (self.table.key(s), s)).collect();
        slots.sort();
        slots.iter().filter_map(|(_, slot)| self.row(*slot)).collect()
    }

    /// The first rows, by key, of those that `keep` wants: at most `limit`, and whether there are
    /// more. Looks at all rows, and holds as many as it gives.
    pub fn select(&self, limit: usize, mut keep: impl FnMut(&[Value]) -> bool) -> (Vec<Row>, bool) {
        let mut first: BinaryHeap<(Key, u32)> = BinaryHeap::new();
        for slot in self.slots() {
            let key = self.table.key(slot);
            let is_full = first.len() > limit;
            if is_full && first.peek().is_some_and(|(last, _)| *last < key) {
                continue;
            }
            if self.row(slot).is_some_and(|row| keep(&row)) {
                first.push((key, slot));
                if first.len() > limit + 1 {
                    first.pop();
                }
            }
        }
        let more = first.len() > limit;
        let slots = first.into_sorted_vec();
        (slots.iter().take(limit).filter_map(|(_, slot)| self.row(*slot)).collect(), more)
    }

    /// All rows, by key, as a batch.
    pub fn to_batch(&self) -> Batch {
        let rows = self.rows();
        Batch::from_rows(self.table.spec.schema.clone(), rows.iter().map(|r| &r[..]))
    }

    /// The hash of the table's contents: of each row's canonical encoding with the table's name,
    /// and of the [versions](AsOf::histories) that the table keeps of each row, summed, so that it
    /// depends neither on layout nor on what else there has been.
    pub fn state_hash(&self) -> u128 {
        let (name, mut bytes) = (&*self.table.spec.name, Vec::new());
        let rows = self
            .unordered()
            .fold(0, |sum: u128, (_, row)| sum.wrapping_add(row_hash(name, &row, &mut bytes)));
        self.histories().fold(rows, |sum, (key, versions)| {
            sum.wrapping_add(history_hash(name, &key, &versions, &mut bytes))
        })
    }
}
