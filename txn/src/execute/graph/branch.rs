//! The versions that a graph has of a row, for windows. They stand in a table of their own, behind those of the row's
//! table: a version comes there once, when the first window asks for it, and all later windows read it there, as they
//! read those of tables. So a window costs in a graph what it costs elsewhere, however many have written the row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tidemill_core::{Key, TableId, Value};
use tidemill_table::{Seq, Table, Versions};

/// The versions of one row.
#[derive(Debug)]
pub(crate) struct Branch {
    table: Table,
    /// The transactions that have written them, in order, and how many versions there are behind each.
    ends: Vec<(u32, u64)>,
    /// That of the last version, where a number is needed.
    seq: Seq,
}

impl Branch {
    /// The transaction of the last version.
    pub(super) fn last(&self) -> Option<u32> {
        self.ends.last().map(|(txn, _)| *txn)
    }

    /// How many versions there are of transactions before this one.
    pub(super) fn before(&self, txn: u32) -> u64 {
        let nth = self.ends.partition_point(|(of, _)| *of < txn);
        nth.checked_sub(1).map_or(0, |last| self.ends[last].1)
    }

    /// A version comes to the end; a transaction may have several.
    pub(super) fn put(&mut self, txn: u32, key: &[Value], row: Option<&[Value]>, time_us: i64) {
        self.seq += 1;
        self.table.put_at(key, row, self.seq, time_us);
        let end = self.versions(key).map_or(0, |versions| versions.end());
        match self.ends.last_mut() {
            Some((of, last)) if *of == txn => *last = end,
            _ => self.ends.push((txn, end)),
        }
    }

    /// All versions.
    pub(crate) fn versions(&self, key: &[Value]) -> Option<Versions<'_>> {
        self.table.versions(key)
    }
}

/// Those of a graph's rows of which somebody has asked for a window.
#[derive(Debug, Default)]
pub(crate) struct Branches(Mutex<HashMap<(TableId, Key), Shared>>);

/// What all who write a row have of it.
type Shared = Arc<RwLock<Branch>>;

impl Branches {
    fn with<T>(&self, run: impl FnOnce(&mut HashMap<(TableId, Key), Shared>) -> T) -> T {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// That of a row, if there is one.
    pub(super) fn of(&self, row: &(TableId, Key)) -> Option<Arc<RwLock<Branch>>> {
        self.with(|all| all.get(row).cloned())
    }

    /// The same; a new one if there is none.
    pub(super) fn make(&self, row: &(TableId, Key), table: &Table) -> Arc<RwLock<Branch>> {
        let new = || Branch { table: table.beside(), ends: Vec::new(), seq: 0 };
        self.with(|all| {
            all.entry(row.clone()).or_insert_with(|| Arc::new(RwLock::new(new()))).clone()
        })
    }

    /// A version of a row is no longer what it was, or has come to be, of this transaction: what is there of it and behind
    /// it has gone.
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
