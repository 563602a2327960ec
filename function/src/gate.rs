//! Who waits for whom, when transactions run again (Styx 6.2).
//!
//! What a transaction has written before, it is expected to write again. Whoever is to read that and comes
//! later in the order waits until it has ended. A wait is always for an earlier one: there is no deadlock.
//! That expectations may be wrong costs time and nothing else.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use tidemill_core::{Key, TableId};

use crate::keyed::Keyed;
use crate::order::{Path, Tid};

/// What somebody is about to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Row(TableId, Key),
    /// From a key on, and before another.
    Range(TableId, Key, Key),
}

/// Who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub tid: Tid,
    /// The call; all that a node does of the transaction when absent.
    pub path: Option<Path>,
}

/// Those who are expected to write a row, in their order.
type Writers = SmallVec<[Tid; 2]>;

fn last_before(tid: Tid, writers: &Writers) -> Option<Tid> {
    let earlier = writers.partition_point(|writer| *writer < tid);
    writers[..earlier].last().copied()
}

#[derive(Default)]
pub(crate) struct Gate {
    /// By table.
    writers: Vec<Keyed<Writers>>,
    /// How often somebody is expected to write.
    rows: usize,
    expected: HashMap<Tid, Vec<(TableId, Key)>, FixedState>,
    waiting: HashMap<Tid, Vec<Waiter>, FixedState>,
}

impl Gate {
    /// A transaction is expected to write a row.
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

    /// An earlier transaction that is expected to write what is to be read, if there is one: of a row's the
    /// last, which mostly ends last.
    pub fn in_the_way(&self, tid: Tid, wishes: &[Wish]) -> Option<Tid> {
        wishes.iter().find_map(|wish| match wish {
            Wish::Row(table, key) => self.writer_before(tid, *table, key),
            Wish::Range(..) if self.rows == 0 => None,
            Wish::Range(table, from, to) => {
                let mut range = self.writers.get(table.index())?.range(from, to);
                range.find_map(|(_, writers)| last_before(tid, writers))
            }
        })
    }

    /// The same for one row.
    pub fn writer_before(&self, tid: Tid, table: TableId, key: &Key) -> Option<Tid> {
        if self.rows == 0 {
            return None;
        }
        last_before(tid, self.writers.get(table.index())?.get(key)?)
    }

    /// Somebody waits for a transaction to end.
    pub fn wait(&mut self, on: Tid, waiter: Waiter) {
        self.waiting.entry(on).or_default().push(waiter);
    }

    /// A transaction has ended, and writes nothing any more. Whoever has waited for it may have somebody
    /// else in the way.
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
