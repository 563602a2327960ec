//! Rows as the last epoch left them.

use std::sync::Arc;

use tidemill_core::{Key, TableId, Value};

use crate::keyed::Keyed;
use crate::order::Tid;

/// A row, or `None` if there is no such row.
pub type Stored = Option<Arc<[Value]>>;

/// The rows of a node between epochs.
pub trait Store {
    /// Returns a row as the last epoch left it.
    fn get(&self, table: TableId, key: &Key) -> Stored;

    /// Passes the rows from one key up to but without another to `each`, in key order, until it
    /// returns `false`.
    fn range(
        &self,
        table: TableId,
        from: &Key,
        to: &Key,
        each: &mut dyn FnMut(&Key, &Arc<[Value]>) -> bool,
    );

    /// Sets or removes a row that a transaction of the epoch has written. For each row, these calls
    /// come in the order of the transactions.
    fn apply(&mut self, tid: Tid, table: TableId, key: &Key, row: Stored);
}

/// Rows in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    tables: Vec<Keyed<Arc<[Value]>>>,
}

impl Rows {
    /// Creates this many empty tables.
    pub fn new(tables: usize) -> Rows {
        Rows { tables: (0..tables).map(|_| Keyed::default()).collect() }
    }

    /// Retains the rows for which `keeps` returns `true`.
    pub fn retain(&mut self, mut keeps: impl FnMut(TableId, &Key) -> bool) {
        for (table, rows) in self.tables.iter_mut().enumerate() {
            rows.retain(|key| keeps(TableId(table as u16), key));
        }
    }

    /// Returns all rows, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (TableId, &Key, &Arc<[Value]>)> + '_ {
        self.tables.iter().enumerate().flat_map(|(table, rows)| {
            let table = TableId(table as u16);
            rows.iter().map(move |(key, row)| (table, key, row))
        })
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
        for (key, row) in self.tables[table.index()].range(from, to) {
            if !each(key, row) {
                return;
            }
        }
    }

    fn apply(&mut self, _: Tid, table: TableId, key: &Key, row: Stored) {
        let table = &mut self.tables[table.index()];
        match row {
            Some(row) => table.insert(key, row),
            None => table.remove(key),
        };
    }
}
