//! The waits between transactions that run again (Styx, section 6.2).
//!
//! A transaction is expected to write again what it wrote before. A later transaction that is to
//! read this waits until the writer has ended. A wait is always for an earlier transaction, so
//! there is no deadlock. Wrong expectations cost only time.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use tidemill_core::{Key, TableId};

use crate::keyed::Keyed;
use crate::order::{Path, Tid};

/// Rows that are about to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Row(TableId, Key),
    /// The rows from one key up to but without another.
    Range(TableId, Key, Key),
}

/// A call or a part of a transaction that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub tid: Tid,
    /// The place of the call, or `None` for all that a node does of the transaction.
    pub path: Option<Path>,
}

/// The transactions that are expected to write a row, in their order.
type Writers = SmallVec<[Tid; 2]>;

fn last_before(tid: Tid, writers: &Writers) -> Option<Tid> {
    let earlier = writers.partition_point(|writer| *writer < tid);
    writers[..earlier].last().copied()
}

#[derive(Default)]
pub(crate) struct Gate {
    /// The writers of each row, by table.
    writers: Vec<Keyed<Writers>>,
    /// The number of expected writes.
    rows: usize,
    expected: HashMap<Tid, Vec<(TableId, Key)>, FixedState>,
    waiting: HashMap<Tid, Vec<Waiter>, FixedState>,
}

impl Gate {
    /// Notes that a transaction is expected to write a row.
    pub fn expect(&mut self, tid: Tid, table: TableId, key: Key) {
        if self.writers.len() <= table.index() {
            self.writers.resize_with(table.index() + 1, Keyed::default);
        }
        let writers = self.writers[table.index()].entry(key.clone());
        if let Err(at) = writers.binary_search(&tid) {
            writers.insert(at, tid);
            self.rows += 1;
            self.expected.entry(tid).or_default().push((table, key));
        }
    }

    /// Returns an earlier transaction that is expected to write what is to be read, if there is
    /// one. Of the writers of a row, this is the last, which usually ends last.
    pub fn in_the_way(&self, tid: Tid, wishes: &[Access]) -> Option<Tid> {
        wishes.iter().find_map(|wish| match wish {
            Access::Row(table, key) => self.writer_before(tid, *table, key),
            Access::Range(..) if self.rows == 0 => None,
            Access::Range(table, from, to) => {
                let mut range = self.writers.get(table.index())?.range(from, to);
                range.find_map(|(_, writers)| last_before(tid, writers))
            }
        })
    }

    /// Returns the last earlier transaction that is expected to write this row.
    pub fn writer_before(&self, tid: Tid, table: TableId, key: &Key) -> Option<Tid> {
        if self.rows == 0 {
            return None;
        }
        last_before(tid, self.writers.get(table.index())?.get(key)?)
    }

    /// Notes that a call or part waits for a transaction to end.
    pub fn wait(&mut self, on: Tid, waiter: Waiter) {
        self.waiting.entry(on).or_default().push(waiter);
    }

    /// Notes that a transaction has ended and writes nothing more. Returns those that waited for
    /// it, which may have to wait for another one.
    pub fn ended(&mut self, tid: Tid) -> Vec<Waiter> {
        if self.rows == 0 && self.waiting.is_empty() {
            return Vec::new();
        }
        for (table, key) in self.expected.remove(&tid).into_iter().flatten() {
            let rows = &mut self.writers[table.index()];
            if let Some(writers) = rows.get_mut(&key) {
                writers.retain(|writer| *writer != tid);
                self.rows -= 1;
                if writers.is_empty() {
                    rows.remove(&key);
                }
            }
        }
        self.waiting.remove(&tid).unwrap_or_default()
    }
}
