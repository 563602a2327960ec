//! The versions that a graph has of a row, for windows.
//!
//! They are in a table of their own, after those of the row's table. A version is added there once,
//! when the first window asks for it. All later windows read it there, in the way in which they
//! read those of tables. So a window costs the same in a graph as elsewhere, however many
//! transactions have written the row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tidemill_core::{Key, TableId, Value};
use tidemill_table::{Seq, Table, Versions};

/// The versions of one row.
#[derive(Debug)]
pub(crate) struct Branch {
    table: Table,
    /// The transactions that have written them, in order, and the number of versions after each.
    ends: Vec<(u32, u64)>,
    /// The sequence number of the last version.
    seq: Seq,
}

impl Branch {
    /// Returns the transaction of the last version.
    pub(super) fn last(&self) -> Option<u32> {
        self.ends.last().map(|(txn, _)| *txn)
    }

    /// Returns the number of versions of transactions before this one.
    pub(super) fn before(&self, txn: u32) -> u64 {
        let nth = self.ends.partition_point(|(of, _)| *of < txn);
        nth.checked_sub(1).map_or(0, |last| self.ends[last].1)
    }

    /// Appends a version. A transaction may have several.
    pub(super) fn put(&mut self, txn: u32, key: &[Value], row: Option<&[Value]>, time_us: i64) {
        self.seq += 1;
        self.table.put_at(key, row, self.seq, time_us);
        let end = self.versions(key).map_or(0, |versions| versions.end());
        match self.ends.last_mut() {
            Some((of, last)) if *of == txn => *last = end,
            _ => self.ends.push((txn, end)),
        }
    }

    /// Returns all versions.
    pub(crate) fn versions(&self, key: &[Value]) -> Option<Versions<'_>> {
        self.table.versions(key)
    }
}

/// The branches of the graph's rows over which a window was read.
#[derive(Debug, Default)]
pub(crate) struct Branches(Mutex<HashMap<(TableId, Key), Shared>>);

/// A branch that all writers of a row share.
type Shared = Arc<RwLock<Branch>>;

impl Branches {
    fn with<T>(&self, run: impl FnOnce(&mut HashMap<(TableId, Key), Shared>) -> T) -> T {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the branch of a row, if there is one.
    pub(super) fn of(&self, row: &(TableId, Key)) -> Option<Arc<RwLock<Branch>>> {
        self.with(|all| all.get(row).cloned())
    }

    /// Returns the branch of a row, and creates it if there is none.
    pub(super) fn make(&self, row: &(TableId, Key), table: &Table) -> Arc<RwLock<Branch>> {
        let new = || Branch { table: table.beside(), ends: Vec::new(), seq: 0 };
        self.with(|all| {
            all.entry(row.clone()).or_insert_with(|| Arc::new(RwLock::new(new()))).clone()
        })
    }

    /// Drops the versions of a row from those of this transaction on, because its version has
    /// changed or is new.
    pub(super) fn changes(&self, row: &(TableId, Key), txn: u32) {
        let is_behind = |branch: &Arc<RwLock<Branch>>| {
            branch.read().unwrap_or_else(PoisonError::into_inner).last() >= Some(txn)
        };
        self.with(|all| {
            if all.get(row).is_some_and(is_behind) {
                all.remove(row);
            }
        });
    }
}
