//! What has changed in tables that clients follow, by epoch: the last of it, bounded in rows and
//! bytes. Filled at delivery only, so that nothing is seen before its cut is durable.
//!
//! Nothing is kept of a table before somebody follows it, and nothing over restarts: who asks for more
//! than is there is told to read the table anew.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidemill_core::{encode, Key, Row, TableSpec, Value};
use tidemill_table::Table;

/// What an epoch has changed in one table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableChange {
    /// The value of each key column.
    pub key: Vec<Value>,
    /// The row after the epoch, unless it was deleted.
    pub row: Option<Row>,
}

/// What has changed in a table behind an epoch.
#[derive(Clone, Debug, PartialEq)]
pub enum Changes {
    /// These, in order, each with its epoch; up to an epoch, which is the one to go on behind.
    Are(Vec<(u64, Arc<Vec<TableChange>>)>, u64),
    /// Nobody knows: whoever reads the table now, and goes on behind this epoch, misses nothing.
    Unknown(u64),
}

/// Tables that are followed, by number.
#[derive(Default)]
pub(crate) struct Followed(BTreeMap<usize, Ring>);

#[derive(Default)]
struct Ring {
    /// All behind this epoch is here, up to that one.
    since: u64,
    last: u64,
    epochs: VecDeque<(u64, usize, Arc<Vec<TableChange>>)>,
    rows: usize,
    bytes: usize,
}

/// What an epoch has changed in the tables that are followed; `None` where that is too much to tell.
pub(crate) type Noted = Vec<(usize, Option<Arc<Vec<TableChange>>>)>;

impl Followed {
    /// From now on a table is followed.
    pub(crate) fn follow(&mut self, table: usize, left: u64) {
        self.0.entry(table).or_insert_with(|| Ring::behind(left));
    }

    /// What the epoch that was executed last has changed in those tables.
    pub(crate) fn note(&self, tables: &[Table], rows_max: usize) -> Noted {
        let note = |index: &usize| {
            let table = &tables[*index];
            let few = table.superseded() <= rows_max;
            (*index, few.then(|| Arc::new(changes(table))))
        };
        self.0.keys().map(note).collect()
    }

    /// Takes what a durable epoch has changed. Of a table that was not followed yet when it was executed
    /// nobody knows.
    pub(crate) fn push(&mut self, epoch: u64, noted: Noted, rows_max: usize, bytes_max: usize) {
        let noted: BTreeMap<usize, _> = noted.into_iter().collect();
        for (table, ring) in &mut self.0 {
            match noted.get(table) {
                Some(Some(changes)) => ring.push(epoch, changes.clone(), rows_max, bytes_max),
                _ => *ring = Ring::behind(epoch),
            }
        }
    }

    /// What has changed behind an epoch in a table that is followed.
    pub(crate) fn since(&self, table: usize, epoch: u64) -> Changes {
        match self.0.get(&table) {
            Some(ring) if (ring.since..=ring.last).contains(&epoch) => {
                let behind = ring.epochs.iter().filter(|(at, ..)| *at > epoch);
                Changes::Are(behind.map(|(at, _, c)| (*at, c.clone())).collect(), ring.last)
            }
            Some(ring) => Changes::Unknown(ring.last),
            None => Changes::Unknown(epoch),
        }
    }
}

impl Ring {
    /// Nothing yet, behind an epoch.
    fn behind(epoch: u64) -> Ring {
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

/// The values of a key.
fn key(spec: &TableSpec, key: &Key) -> Vec<Value> {
    let mut bytes = &key.0[..];
    let columns = spec.key.iter().map(|column| &spec.schema.columns[*column]);
    let value = columns.map(|column| encode::decode(&column.ty, &mut bytes));
    value.map(|value| value.unwrap_or(Value::Null)).collect()
}
