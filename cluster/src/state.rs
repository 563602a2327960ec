//! The rows of a worker, and which of them a snapshot has not got.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidemill_core::{Key, TableId, Value};
use tidemill_function::{Rows, Store, Stored, Tid};

/// Rows, and those that have changed since they were last taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The rows.
    pub rows: Rows,
    /// By table.
    changed: Vec<BTreeSet<Key>>,
}

impl State {
    /// These rows, none of which has changed.
    pub fn new(rows: Rows) -> State {
        let changed = vec![BTreeSet::new(); rows.tables.len()];
        State { rows, changed }
    }

    /// Takes what has changed, or all rows; in either case those that have been removed, too.
    pub fn take(&mut self, all: bool) -> Vec<(TableId, Key, Stored)> {
        let mut taken = Vec::new();
        for (n, keys) in self.changed.iter_mut().enumerate() {
            let (table, mut keys) = (TableId(n as u16), std::mem::take(keys));
            if all {
                keys.extend(self.rows.tables[n].keys().cloned());
            }
            taken.extend(keys.into_iter().map(|key| {
                let row = self.rows.get(table, &key);
                (table, key, row)
            }));
        }
        taken
    }

    /// What has been taken counts as changed again.
    pub fn put_back(&mut self, taken: impl IntoIterator<Item = (TableId, Key)>) {
        for (table, key) in taken {
            self.changed[table.index()].insert(key);
        }
    }
}

impl Store for State {
    fn get(&self, table: TableId, key: &Key) -> Stored {
        self.rows.get(table, key)
    }

    fn range(
        &self,
        table: TableId,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(&Key, &Arc<[Value]>) -> bool,
    ) {
        self.rows.range(table, from, to, each);
    }

    fn apply(&mut self, tid: Tid, table: TableId, key: &Key, row: Stored) {
        let changed = &mut self.changed[table.index()];
        // What is hot is there already.
        if !changed.contains(key) {
            changed.insert(key.clone());
        }
        self.rows.apply(tid, table, key, row);
    }
}
