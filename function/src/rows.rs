//! A node's rows, as the last epoch left them.

mod undo;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Key, TableId, TableSpec, Value};
use tidemill_place::PartitionSet;
use tidemill_table::{Before, Change, Loading, Seq, Table};

use self::undo::{Kept, Undo, UndoLayer};
use crate::order::Tid;

pub use self::undo::{SnapshotId, TakenRows};

/// The factor from one seed to the next (Knuth).
const NEXT_SEED: u64 = 6_364_136_223_846_793_005;

/// A row, or `None` if there is no such row.
pub type Stored = Option<Arc<[Value]>>;

/// The most versions of an epoch for which the changes of a followed table are noted, and the most
/// bytes of them.
const FOLLOWED_MAX: usize = 1 << 14;
const FOLLOWED_BYTES_MAX: usize = 4 << 20;

/// The rows of a table that an epoch has changed, in an order in which they can be set. They are
/// `None` if they were too many.
#[derive(Clone, Debug, PartialEq)]
pub struct TableChanges {
    /// The table.
    pub table: TableId,
    /// The keys with the rows.
    pub rows: Option<Vec<(Key, Stored)>>,
}

/// The rows of a node's partitions, in tables.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    tables: Vec<Table>,
    /// The seed of the tables. Others of the same rows have another one: rows in the order of the
    /// slots of one table are in no order in another.
    seed: u64,
    /// The number of the last version. Numbers of versions rise with the order of transactions, and
    /// no others see them.
    last: Seq,
    /// The least difference of a version's number to its transaction's place.
    ahead: u64,
    undo: Undo,
    /// Changes of tables with a history. Rows with versions do not go back to a snapshot.
    kept: Kept,
    /// The tables whose changes are noted, with those of the present epoch.
    followed: BTreeMap<TableId, Option<Vec<Change>>>,
}

impl Rows {
    /// Creates empty tables. `seed` decides where rows are in them, and should be secret, so that no
    /// client can choose keys that collide.
    pub fn new(tables: &[TableSpec], seed: u64) -> Rows {
        let table = |spec: &TableSpec| {
            let mut table = Table::new(spec.clone().into(), seed);
            table.track();
            table
        };
        let tables = tables.iter().map(table).collect();
        Rows { tables, seed, ..Rows::default() }
    }

    /// Notes the changes of these tables, too, from now on.
    pub fn follow(&mut self, tables: &[TableId]) {
        for table in tables {
            self.followed.entry(*table).or_insert_with(|| Some(Vec::new()));
        }
    }

    /// Whether it notes the changes of any table.
    pub(crate) fn follows(&self) -> bool {
        !self.followed.is_empty()
    }

    /// Follows no table any more.
    pub(crate) fn unfollow(&mut self) {
        self.followed.clear();
    }

    /// Takes the noted changes of rows of these partitions. Tables without any are left out.
    pub fn take_changes(&mut self, own: &PartitionSet) -> Vec<TableChanges> {
        let take = |(table, noted): (&TableId, &mut Option<Vec<Change>>)| {
            let of = |change: Change| (change.key, change.row.map(Into::into));
            let noted = noted.replace(Vec::new());
            let own = |noted: Vec<Change>| {
                noted.into_iter().filter(|of| own.contains(of.partition)).map(of).collect()
            };
            TableChanges { table: *table, rows: noted.map(own) }
        };
        let all = self.followed.iter_mut().map(take);
        all.filter(|of| of.rows.as_ref().is_none_or(|rows| !rows.is_empty())).collect()
    }

    /// Returns the tables, for an executor that continues after the number of the last version. It
    /// reports its own last number to [`Rows::has_executed`].
    pub(crate) fn tables_mut(&mut self) -> (&mut [Table], Seq) {
        (&mut self.tables, self.last)
    }

    /// Notes that an executor has written versions up to a number, for transactions up to a place.
    pub(crate) fn has_executed(&mut self, last: Seq, tid: Tid) {
        self.last = self.last.max(last);
        self.ahead = self.ahead.max(self.last.saturating_sub(tid.0));
    }

    /// Returns the tables.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Retains the rows for which `keeps` returns `true`.
    pub fn retain(&mut self, mut keeps: impl FnMut(TableId, &Key) -> bool) {
        self.seed = self.seed.wrapping_mul(NEXT_SEED).wrapping_add(1);
        for (number, table) in (0..).zip(&mut self.tables) {
            let mut kept = Table::new(table.spec().clone(), self.seed);
            kept.track();
            kept.reserve(table.len());
            for (key, row) in table.entries().filter(|(key, _)| keeps(TableId(number), key)) {
                kept.put_by_key(&key, Some(&row), 0);
            }
            *table = kept;
        }
    }

    /// Returns all rows, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (TableId, Key, Arc<[Value]>)> + '_ {
        (0..).zip(&self.tables).flat_map(|(number, table)| {
            table.entries().map(move |(key, row)| (TableId(number), key, row.into()))
        })
    }

    /// Prepares to load the rows of a snapshot into these tables, which don't have them.
    pub fn loading(&mut self) -> Vec<Loading<'_>> {
        self.tables.iter_mut().map(|table| table.loading(0)).collect()
    }

    /// Adds the rows of other partitions.
    pub fn add(&mut self, other: Rows) {
        if self.tables.iter().all(Table::is_empty) {
            self.tables = other.tables;
            return;
        }
        for (table, other) in self.tables.iter_mut().zip(other.tables) {
            table.reserve(other.len());
            other.entries().for_each(|(key, row)| table.put_by_key(&key, Some(&row), 0));
        }
    }

    /// Removes a row that a later part of a snapshot does not have.
    pub fn remove(&mut self, table: TableId, key: &Key) {
        self.tables[table.index()].put_by_key(key, None, 0);
    }

    /// Returns a row as the last epoch left it.
    pub fn get(&self, table: TableId, key: &Key) -> Stored {
        self.tables[table.index()].get_by_key(key)
    }

    /// Passes the rows from one key up to but without another to `each`, until it returns `false`.
    /// They are in key order, or in reverse order.
    pub fn range(
        &self,
        table: TableId,
        from: &Key,
        to: &Key,
        reverse: bool,
        each: &mut dyn FnMut(&Key, &Arc<[Value]>) -> bool,
    ) {
        let table = &self.tables[table.index()];
        let pass = |key: &Key| {
            let row = table.get_by_key(key).expect("it is in the order of keys");
            each(key, &row)
        };
        // An empty bound has no rows before it. To the table, it would be no bound.
        if to <= from {
            return;
        }
        if !table.spec().ordered {
            let within = |(key, _): (Key, _)| (*from <= key && key < *to).then_some(key);
            let mut keys: Vec<Key> = table.entries().filter_map(within).collect();
            keys.sort_unstable();
            match reverse {
                false => keys.iter().all(pass),
                true => keys.iter().rev().all(pass),
            };
            return;
        }
        let mut keys = table.keys(from, to);
        match reverse {
            false => keys.all(pass),
            true => keys.rev().all(pass),
        };
    }

    /// Sets or removes a row that a transaction of the epoch has written. For each row, these calls
    /// come in the order of the transactions.
    pub fn apply(&mut self, tid: Tid, table: TableId, key: &Key, row: Stored) {
        let seq = tid.0 + self.ahead;
        self.last = self.last.max(seq);
        self.tables[table.index()].put_by_key(key, row.as_deref(), seq);
    }

    /// Ends an epoch: all that its transactions have written was applied.
    pub fn end_epoch(&mut self) {
        for (table, noted) in &mut self.followed {
            let table = &self.tables[table.index()];
            match noted {
                Some(noted) if table.superseded() <= FOLLOWED_MAX => noted.extend(table.changes()),
                _ => *noted = None,
            }
            let bytes = noted.iter().flatten().map(change_bytes).sum::<usize>();
            if bytes > FOLLOWED_BYTES_MAX {
                *noted = None;
            }
        }
        match self.undo.layers.last_mut() {
            None => self.tables.iter_mut().for_each(|table| table.commit(self.last)),
            Some(UndoLayer { before, .. }) => {
                before.resize_with(self.tables.len(), Before::default);
                for (table, before) in self.tables.iter_mut().zip(before) {
                    match table.spec().history {
                        None => table.commit_keeping(self.last, before),
                        Some(_) => table.commit(self.last),
                    }
                }
            }
        }
    }
}

impl PartialEq for Rows {
    fn eq(&self, other: &Rows) -> bool {
        self.tables.iter().map(Table::rows).eq(other.tables.iter().map(Table::rows))
    }
}

/// The approximate bytes of a change.
fn change_bytes(change: &Change) -> usize {
    let row = change.row.iter().flatten();
    let values = row.map(|value| value.heap_bytes() + std::mem::size_of::<Value>());
    change.key.0.len() + values.sum::<usize>()
}
