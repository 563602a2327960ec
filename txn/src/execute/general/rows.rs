//! The source of rows for transactions.

use std::borrow::Cow;
use std::sync::{Arc, RwLock};

use tidemill_core::{Key, Row, TableId, Value};
use tidemill_table::Table;

use crate::execute::graph::Branch;
use crate::program::{Abort, AbortKind, Take};

/// A row that is not known yet. A run that has asked for it does not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsettled;

impl From<Unsettled> for Abort {
    fn from(_: Unsettled) -> Abort {
        Abort { kind: AbortKind::Raised, reason: "a row is not settled yet".into() }
    }
}

/// The versions of a row that a transaction may see, without its own writes.
pub(crate) struct Holder<'a> {
    /// The table with the first versions, if there is one.
    pub(crate) table: Option<&'a Table>,
    /// The graph's versions after those of the table, and their number.
    pub(crate) graph: Option<(Arc<RwLock<Branch>>, u64)>,
    /// The earlier writes of transactions of the same unit.
    pub(crate) before: Vec<&'a [Value]>,
}

impl<'a> Holder<'a> {
    /// Creates the versions of a row if the table has them all.
    pub(crate) fn of(table: &'a Table) -> Holder<'a> {
        Holder { table: Some(table), graph: None, before: Vec::new() }
    }

    /// Creates the versions of a row without any.
    pub(crate) fn none() -> Holder<'a> {
        Holder { table: None, graph: None, before: Vec::new() }
    }
}

/// The bounds of the rows of a table, by values of leading key columns.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bounds<'b> {
    /// Keys from the first bound on and before the second. An empty bound is none.
    Between(&'b [Value], &'b [Value]),
    /// Keys that begin with these values.
    Leading(&'b [Value]),
}

impl Bounds<'_> {
    /// Returns the first key, and the key after the last one. An empty second key is no bound.
    pub(super) fn keys(&self) -> (Key, Key) {
        match self {
            Bounds::Between(from, to) => (Key::of(*from), Key::of(*to)),
            Bounds::Leading(leading) => {
                let from = Key::of(*leading);
                let to = from.prefix_end();
                (from, to)
            }
        }
    }
}

/// Keys in order, or in reverse order.
pub(crate) type Keys<'a> = Box<dyn Iterator<Item = Cow<'a, Key>> + 'a>;

/// Returns keys that are in order, or their reverse.
pub(crate) fn ordered<'a>(
    keys: impl DoubleEndedIterator<Item = &'a Key> + 'a,
    reverse: bool,
) -> Keys<'a> {
    match reverse {
        false => Box::new(keys.map(Cow::Borrowed)),
        true => Box::new(keys.rev().map(Cow::Borrowed)),
    }
}

/// A source of rows for transactions.
pub(crate) trait Rows {
    /// Returns the row with this key, if it exists.
    fn row(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled>;

    /// Returns the row with these key values, if it exists.
    fn row_by(&self, table: TableId, key: &[Value]) -> Result<Option<Row>, Unsettled> {
        self.row(table, &Key::of(key))
    }

    /// Returns the versions of a row that was read before.
    fn holder(&self, table: TableId, key: &Key, values: &[Value]) -> Result<Holder<'_>, Unsettled>;

    /// Returns the keys of a range that have rows, and possibly more. An empty `to` is no bound.
    fn keys<'a>(&'a self, table: TableId, from: &'a Key, to: &'a Key, reverse: bool) -> Keys<'a>;

    /// Returns the row of one of these keys, if it exists.
    fn row_in_range(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        self.row(table, key)
    }

    /// Returns the first or last rows within bounds, from a store that doesn't list its keys.
    fn found(&self, _: TableId, _: Bounds<'_>, _: Take) -> Result<Option<Vec<Row>>, Unsettled> {
        Ok(None)
    }

    /// Returns the table itself, if transactions use it in place.
    fn table(&self, _: TableId) -> Option<&Table> {
        None
    }

    /// Whether a row was asked for that is not known yet.
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

    fn keys<'a>(&'a self, table: TableId, from: &'a Key, to: &'a Key, reverse: bool) -> Keys<'a> {
        ordered(self[table.index()].keys(from, to), reverse)
    }
}
