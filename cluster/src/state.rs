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
    changed: BTreeSet<(TableId, Key)>,
}

impl State {
    /// These rows, none of which has changed.
    pub fn new(rows: Rows) -> State {
        State { rows, changed: BTreeSet::new() }
    }

    /// Takes what has changed, or all rows; in either case those that have been removed, too.
    pub fn take(&mut self, all: bool) -> Vec<(TableId, Key, Stored)> {
        let mut keys = std::mem::take(&mut self.changed);
        if all {
            for (n, rows) in self.rows.tables.iter().enumerate() {
                keys.extend(rows.keys().map(|key| (TableId(n as u16), key.clone())));
            }
        }
        let row = |(table, key): (TableId, Key)| {
            let row = self.rows.get(table, &key);
            (table, key, row)
        };
        keys.into_iter().map(row).collect()
    }

    /// What has been taken counts as changed again.
    pub fn put_back(&mut self, taken: impl IntoIterator<Item = (TableId, Key)>) {
        self.changed.extend(taken);
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
        self.changed.insert((table, key.clone()));
        self.rows.apply(tid, table, key, row);
    }
}
