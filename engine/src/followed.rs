//! The last changes of tables that clients follow, by epoch, bounded in rows and bytes. They are
//! added at delivery only, so that nothing is visible before its cut is durable.
//!
//! Nothing is retained before a client follows a table, nor over restarts. A client that asks for
//! earlier changes must read the table again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidemill_core::{encode, Key, Row, TableSpec, Value};
use tidemill_function::{Stored, TableChanges};
use tidemill_table::Table;

/// The change of one row in an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct TableChange {
    /// The value of each key column.
    pub key: Vec<Value>,
    /// The row after the epoch, unless it was deleted.
    pub row: Option<Row>,
}

/// The changes of a table after an epoch.
#[derive(Clone, Debug, PartialEq)]
pub enum Changes {
    /// The changes in order, each with its epoch, and the epoch to continue after.
    Are(Vec<(u64, Arc<Vec<TableChange>>)>, u64),
    /// The changes are not known. A client that reads the table now, and continues after this
    /// epoch, misses nothing.
    Unknown(u64),
}

/// The followed tables, by number.
#[derive(Default)]
pub(crate) struct Followed(BTreeMap<usize, Ring>);

#[derive(Default)]
struct Ring {
    /// All changes after this epoch are here, up to `last`.
    since: u64,
    last: u64,
    epochs: VecDeque<(u64, usize, Arc<Vec<TableChange>>)>,
    rows: usize,
    bytes: usize,
}

/// The changes of followed tables in an epoch; `None` where they are too many.
pub(crate) type Noted = Vec<(usize, Option<Arc<Vec<TableChange>>>)>;

impl Followed {
    /// Follows a table from now on.
    pub(crate) fn follow(&mut self, table: usize, left: u64) {
        self.0.entry(table).or_insert_with(|| Ring::after(left));
    }

    /// Returns the changes of these tables by the last executed epoch.
    pub(crate) fn note(&self, tables: &[Table], rows_max: usize) -> Noted {
        let note = |index: &usize| {
            let table = &tables[*index];
            let few = table.superseded() <= rows_max;
            (*index, few.then(|| Arc::new(changes(table))))
        };
        self.0.keys().map(note).collect()
    }

    /// Adds the changes of a durable epoch. They are unknown for a table that was not followed when
    /// it was executed.
    pub(crate) fn push(&mut self, epoch: u64, noted: Noted, rows_max: usize, bytes_max: usize) {
        let noted: BTreeMap<usize, _> = noted.into_iter().collect();
        for (table, ring) in &mut self.0 {
            match noted.get(table) {
                Some(Some(changes)) => ring.push(epoch, changes.clone(), rows_max, bytes_max),
                _ => *ring = Ring::after(epoch),
            }
        }
    }

    /// Whether a table is followed.
    pub(crate) fn has(&self, table: usize) -> bool {
        self.0.contains_key(&table)
    }

    /// Adds the changes of an epoch by the members of a cluster, in which all tables are followed.
    /// `specs` has the declarations of the tables.
    pub(crate) fn push_from(
        &mut self,
        (epoch, all): (u64, Vec<TableChanges>),
        specs: &[TableSpec],
        (rows_max, bytes_max): (usize, usize),
    ) {
        let mut all: BTreeMap<usize, Option<Vec<TableChange>>> = all
            .into_iter()
            .map(|of| {
                (of.table.index(), of.rows.map(|rows| sorted(&specs[of.table.index()], rows)))
            })
            .collect();
        for (table, ring) in self.0.iter_mut().filter(|(_, ring)| epoch > ring.last) {
            match all.remove(table).unwrap_or_else(|| Some(Vec::new())) {
                Some(changes) => ring.push(epoch, changes.into(), rows_max, bytes_max),
                None => *ring = Ring::after(epoch),
            }
        }
    }

    /// The changes after an epoch in a followed table.
    pub(crate) fn since(&self, table: usize, epoch: u64) -> Changes {
        match self.0.get(&table) {
            Some(ring) if (ring.since..=ring.last).contains(&epoch) => {
                let later = ring.epochs.iter().filter(|(at, ..)| *at > epoch);
                Changes::Are(later.map(|(at, _, c)| (*at, c.clone())).collect(), ring.last)
            }
            Some(ring) => Changes::Unknown(ring.last),
            None => Changes::Unknown(epoch),
        }
    }
}

impl Ring {
    /// Creates a ring without changes, after an epoch.
    fn after(epoch: u64) -> Ring {
        Ring { since: epoch, last: epoch, ..Ring::default() }
    }

    fn push(
        &mut self,
        epoch: u64,
        changes: Arc<Vec<TableChange>>,
        rows_max: usize,
        bytes_max: usize,
    ) {
        self.last = epoch;
        if changes.is_empty() {
            return;
        }
        let bytes = changes.iter().map(TableChange::bytes).sum();
        self.rows += changes.len();
        self.bytes += bytes;
        self.epochs.push_back((epoch, bytes, changes));
        while self.rows > rows_max || self.bytes > bytes_max {
            let Some((epoch, bytes, changes)) = self.epochs.pop_front() else { break };
            self.since = epoch;
            self.rows -= changes.len();
            self.bytes -= bytes;
        }
    }
}

impl TableChange {
    fn bytes(&self) -> usize {
        let values = self.key.iter().chain(self.row.iter().flatten());
        values.map(|value| value.heap_bytes() + std::mem::size_of::<Value>()).sum()
    }
}

fn changes(table: &Table) -> Vec<TableChange> {
    let spec = table.spec();
    let change = |c: tidemill_table::Change| TableChange { key: key(spec, &c.key), row: c.row };
    table.changes().into_iter().map(change).collect()
}

/// Returns the last change of each row, in the order of the keys.
fn sorted(spec: &TableSpec, rows: Vec<(Key, Stored)>) -> Vec<TableChange> {
    let last: BTreeMap<Key, Stored> = rows.into_iter().collect();
    let change = |(of, row): (Key, Stored)| TableChange {
        key: key(spec, &of),
        row: row.map(|row| row.to_vec().into()),
    };
    last.into_iter().map(change).collect()
}

/// Decodes the values of a key.
fn key(spec: &TableSpec, key: &Key) -> Vec<Value> {
    let mut bytes = &key.0[..];
    let columns = spec.key.iter().map(|column| &spec.schema.columns[*column]);
    let value = columns.map(|column| encode::decode(&column.ty, &mut bytes));
    value.map(|value| value.unwrap_or(Value::Null)).collect()
}
