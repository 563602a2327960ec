//! Where transactions find rows.

use std::borrow::Cow;
use std::sync::{Arc, RwLock};

use tidemill_core::{Key, Row, TableId, Value};
use tidemill_table::Table;

use crate::execute::graph::Branch;
use crate::program::{Abort, AbortKind};

/// A row that can't be told yet: a run that has asked for it counts for nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsettled;

impl From<Unsettled> for Abort {
    fn from(_: Unsettled) -> Abort {
        Abort { kind: AbortKind::Raised, reason: "a row is not settled yet".into() }
    }
}

/// The versions of a row that a transaction may see, without those that it writes itself.
pub(crate) struct Holder<'a> {
    /// The table has the first ones.
    pub(crate) table: &'a Table,
    /// A graph has those behind them: so many.
    pub(crate) graph: Option<(Arc<RwLock<Branch>>, u64)>,
    /// What the transactions of the same unit have written before.
    pub(crate) before: Vec<&'a [Value]>,
}

impl<'a> Holder<'a> {
    /// Where the table has them all.
    pub(crate) fn of(table: &'a Table) -> Holder<'a> {
        Holder { table, graph: None, before: Vec::new() }
    }
}

/// Keys in their order.
pub(crate) type Keys<'a> = Box<dyn Iterator<Item = Cow<'a, Key>> + 'a>;

/// Where transactions find rows.
pub(crate) trait Rows {
    /// The row with this key, if it is there.
    fn row(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled>;

    /// The same, by the values of the key.
    fn row_by(&self, table: TableId, key: &[Value]) -> Result<Option<Row>, Unsettled> {
        self.row(table, &Key::of(key))
    }

    /// The versions of a row that was asked for before.
    fn holder(&self, table: TableId, key: &Key, values: &[Value]) -> Result<Holder<'_>, Unsettled>;

    /// The keys of a range that have rows, and maybe more: up to the end when `to` is empty.
    fn keys<'a>(&'a self, table: TableId, from: &'a Key, to: &'a Key) -> Keys<'a>;

    /// The row of one of these keys, if it is there.
    fn row_in_range(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        self.row(table, key)
    }

    /// The table itself, where transactions use it in place.
    fn table(&self, _: TableId) -> Option<&Table> {
        None
    }

    /// Whether it was asked for a row that it could not tell.
    fn is_unsettled(&self) -> bool {
        false
    }
}

impl Rows for &[Table] {
    fn row_by(&self, table: TableId, key: &[Value]) -> Result<Option<Row>, Unsettled> {
        Ok(self[table.index()].get(key))
    }

    fn table(&self, table: TableId) -> Option<&Table> {
        Some(&self[table.index()])
    }

    fn row(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        Ok(self[table.index()].get_by_key(key))
    }

    fn holder(&self, table: TableId, _: &Key, _: &[Value]) -> Result<Holder<'_>, Unsettled> {
        Ok(Holder::of(&self[table.index()]))
    }

    fn keys<'a>(&'a self, table: TableId, from: &'a Key, to: &'a Key) -> Keys<'a> {
        Box::new(self[table.index()].keys(from, to).map(Cow::Borrowed))
    }
}
