//! Who waits for whom, when transactions run again (Styx 6.2).
//!
//! What a transaction has written before, it is expected to write again. Whoever is to read that and comes
//! later in the order waits until it has ended. A wait is always for an earlier one: there is no deadlock.
//! That expectations may be wrong costs time and nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use foldhash::fast::FixedState;
use tidemill_core::{Key, TableId};

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

#[derive(Default)]
pub(crate) struct Gate {
    writers: BTreeMap<(TableId, Key), BTreeSet<Tid>>,
    expected: HashMap<Tid, Vec<(TableId, Key)>, FixedState>,
    waiting: HashMap<Tid, Vec<Waiter>, FixedState>,
}

impl Gate {
    /// A transaction is expected to write a row.
    pub fn expect(&mut self, tid: Tid, table: TableId, key: Key) {
        if self.writers.entry((table, key.clone())).or_default().insert(tid) {
            self.expected.entry(tid).or_default().push((table, key));
        }
    }

    /// An earlier transaction that is expected to write what is to be read, if there is one: of a row's the
    /// last, which mostly ends last.
    pub fn in_the_way(&self, tid: Tid, wishes: &[Wish]) -> Option<Tid> {
        let last = |writers: &BTreeSet<Tid>| writers.range(..tid).next_back().copied();
        if self.writers.is_empty() {
            return None;
        }
        wishes.iter().find_map(|wish| match wish {
            Wish::Row(table, key) => self.writers.get(&(*table, key.clone())).and_then(last),
            Wish::Range(table, from, to) => {
                let from = Bound::Included((*table, from.clone()));
                let to = Bound::Excluded((*table, to.clone()));
                self.writers.range((from, to)).find_map(|(_, writers)| last(writers))
            }
        })
    }

    /// Somebody waits for a transaction to end.
    pub fn wait(&mut self, on: Tid, waiter: Waiter) {
        self.waiting.entry(on).or_default().push(waiter);
    }

    /// A transaction has ended, and writes nothing any more. Whoever has waited for it may have somebody
    /// else in the way.
    pub fn ended(&mut self, tid: Tid) -> Vec<Waiter> {
        for row in self.expected.remove(&tid).into_iter().flatten() {
            if let Some(writers) = self.writers.get_mut(&row) {
                writers.remove(&tid);
                if writers.is_empty() {
                    self.writers.remove(&row);
                }
            }
        }
        self.waiting.remove(&tid).unwrap_or_default()
    }
}
