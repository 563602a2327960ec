//! Rows as the last epoch has left them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use tidemill_core::{Key, TableId, Value};

use crate::order::Tid;

/// A row, or that there is none.
pub type Stored = Option<Arc<[Value]>>;

/// Where a node keeps its rows between epochs.
pub trait Store {
    /// A row as the last epoch has left it.
    fn get(&self, table: TableId, key: &Key) -> Stored;

    /// The rows from a key on, and before another, in key order, until `each` says `false`.
    fn range(
        &self,
        table: TableId,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(&Key, &Arc<[Value]>) -> bool,
    );

    /// Sets or removes a row: what a transaction of the epoch has left there. For each row these come in
    /// the order of the transactions.
    fn apply(&mut self, tid: Tid, table: TableId, key: &Key, row: Stored);
}

/// Rows in memory, in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// By table.
    pub tables: Vec<BTreeMap<Key, Arc<[Value]>>>,
}

impl Rows {
    /// So many empty tables.
    pub fn new(tables: usize) -> Rows {
        Rows { tables: vec![BTreeMap::new(); tables] }
    }
}

impl Store for Rows {
    fn get(&self, table: TableId, key: &Key) -> Stored {
        self.tables[table.index()].get(key).cloned()
    }

    fn range(
        &self,
        table: TableId,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(&Key, &Arc<[Value]>) -> bool,
    ) {
        let range = (Bound::Included(from), Bound::Excluded(to));
        for (key, row) in self.tables[table.index()].range::<Key, _>(range) {
            if !each(key, row) {
                return;
            }
        }
    }

    fn apply(&mut self, _: Tid, table: TableId, key: &Key, row: Stored) {
        let table = &mut self.tables[table.index()];
        match row {
            Some(row) => table.insert(key.clone(), row),
            None => table.remove(key),
        };
    }
}
