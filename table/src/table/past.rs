//! Rows as they were in the past.
//!
//! Readers must not see changes that may still be lost. So a table retains the versions since the
//! last durable state. [`Table::seal`] ends an epoch and retains its version log.
//! [`Table::release`] drops the logs that no reader needs any more. This adds no cost to a write:
//! where a log would be emptied, a fresh one is used.
//!
//! The link of a version points into the log of the epoch that wrote the version. Its stamp tells
//! that epoch.

use std::collections::{BinaryHeap, VecDeque};

use tidemill_core::{Batch, Error, Key, Result, Row, Value};

use super::{history_hash, row_hash, Table, KEY, LINK, STAMP, TAKEN};
use crate::layout::HEADER_WORDS;
use crate::version::{Seq, VersionLog, NO_LINK};

/// The number of emptied logs that are retained for the next epochs, because the process already
/// has their memory.
const SPARE_MAX: usize = 2;

/// The logs of sealed epochs.
#[derive(Clone, Debug, Default)]
pub(super) struct Sealed {
    /// The logs, each with its last transaction, oldest first.
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
    /// Ends an epoch as [`Table::commit`] does, but retains older versions, back to the last
    /// [`Table::release`].
    ///
    /// Later writes have higher numbers than `seq`.
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

    /// Makes everything up to `seq` final: no reader needs older versions. Drops the logs that were
    /// sealed up to `seq`.
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

    /// Returns the table as it was after the transaction with number `seq`, or as it is if that
    /// transaction is in the future.
    ///
    /// # Errors
    /// If versions that old have been dropped.
    pub fn as_of(&self, seq: Seq) -> Result<AsOf<'_>> {
        if seq < self.floor {
            return Err(Error::input(format!(
                "table {} as of {seq}: versions below {} have been dropped",
                self.spec.name, self.floor
            )));
        }
        Ok(AsOf { table: self, seq })
    }

    /// Returns the table as it is.
    pub fn newest(&self) -> AsOf<'_> {
        AsOf { table: self, seq: Seq::MAX }
    }

    /// Returns the log that the link of a version with this number points into.
    fn log_of(&self, seq: Seq) -> &VersionLog {
        let logs = &self.sealed.logs;
        let at = logs.partition_point(|(until, _)| *until < seq);
        logs.get(at).map_or(&self.log, |(_, log)| log)
    }
}

impl<'t> AsOf<'t> {
    /// Returns the row with this key (one value for each key column).
    pub fn get(&self, key: &[Value]) -> Option<Row> {
        self.table.slot_of(key).and_then(|slot| self.row(slot))
    }

    /// Returns the row in a slot, if it existed.
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
                // Unlogged words are as they were.
                let rest = &words[HEADER_WORDS + entry.body.len()..];
                let body = || [entry.body, rest].concat();
                return present.then(|| table.make_row(words[KEY], &body(), entry.values));
            }
            (stamp, link) = (entry.stamp, entry.link);
        }
        None
    }

    /// Returns the slots that may have had a row, in no order.
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

    /// Returns all rows, in no order.
    pub(super) fn unordered(self) -> impl Iterator<Item = (u32, Row)> + 't {
        self.slots().filter_map(move |slot| Some((slot, self.row(slot)?)))
    }

    /// Returns all rows, by key.
    pub fn rows(&self) -> Vec<Row> {
        let mut slots: Vec<(Key, u32)> = self.slots().map(|s| (self.table.key(s), s)).collect();
        slots.sort();
        slots.iter().filter_map(|(_, slot)| self.row(*slot)).collect()
    }

    /// Returns the first rows, by key, of those for which `keep` is true: at most `limit`, and
    /// whether there are more.
    ///
    /// It looks at all rows, and holds as many as it returns.
    pub fn select(&self, limit: usize, keep: impl FnMut(&[Value]) -> bool) -> (Vec<Row>, bool) {
        self.select_after(None, limit, keep)
    }

    /// Selects rows as [`AsOf::select`] does, of those whose keys are after a key.
    pub fn select_after(
        &self,
        after: Option<&Key>,
        limit: usize,
        mut keep: impl FnMut(&[Value]) -> bool,
    ) -> (Vec<Row>, bool) {
        let mut first: BinaryHeap<(Key, u32)> = BinaryHeap::new();
        for slot in self.slots() {
            let key = self.table.key(slot);
            let is_full = first.len() > limit;
            if is_full && first.peek().is_some_and(|(last, _)| *last < key) {
                continue;
            }
            if after.is_some_and(|after| key <= *after) {
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

    /// Returns all rows, by key, as a batch.
    pub fn to_batch(&self) -> Batch {
        let rows = self.rows();
        Batch::from_rows(self.table.spec.schema.clone(), rows.iter().map(|r| &r[..]))
    }

    /// Returns the hash of the table's contents.
    ///
    /// It is the sum over each row's canonical encoding with the table's name, and over the
    /// [versions](AsOf::histories) that the table retains of each row. So it depends neither on
    /// layout nor on earlier contents.
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
