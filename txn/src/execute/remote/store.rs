//! The contract of a store of rows that other owners hold, and such a store as the general path
//! sees it.

use std::cell::RefCell;

use tidemill_core::{Key, Row, StreamId, TableId, Value};

use crate::execute::general::{Bounds, Effects, Holder, Keys, Rows, Unsettled};
use crate::program::{Abort, Take};

/// Rows that other owners hold, as earlier transactions have left them. Keys have a value for each
/// column.
pub trait RemoteStore {
    /// Returns the row with this key.
    ///
    /// # Errors
    /// The reason why the transaction aborts, for this and the following methods.
    fn row(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort>;

    /// Writes or removes a row as it is. The caller also writes the row's entries in indexes.
    fn write(&mut self, table: TableId, key: &[Value], row: Option<&[Value]>) -> Result<(), Abort>;

    /// Returns the first or last rows with keys from the first bound (inclusive) to the second
    /// (exclusive). Bounds are leading key columns; an empty one is no bound.
    fn range(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        take: Take,
    ) -> Result<Vec<Row>, Abort>;

    /// Returns the first or last rows whose keys begin with these values.
    fn leading(&mut self, table: TableId, leading: &[Value], take: Take)
        -> Result<Vec<Row>, Abort>;

    /// Announces the event that will be executed, so that its rows can be requested together.
    fn prefetch(&mut self, stream: StreamId, event: &[Value]) -> Result<(), Abort>;
}

/// Such a store as a source of rows for one transaction.
pub(super) struct View<'r, S> {
    store: RefCell<&'r mut S>,
    /// The first error of the store. It ends the transaction, even if a function ignores it.
    failed: RefCell<Option<Abort>>,
}

impl<'r, S: RemoteStore> View<'r, S> {
    pub(super) fn new(store: &'r mut S) -> View<'r, S> {
        View { store: RefCell::new(store), failed: RefCell::new(None) }
    }

    /// Uses the store, unless that has failed before.
    fn uses<T>(&self, run: impl FnOnce(&mut S) -> Result<T, Abort>) -> Result<T, Unsettled> {
        let mut failed = self.failed.borrow_mut();
        if failed.is_some() {
            return Err(Unsettled);
        }
        run(&mut self.store.borrow_mut()).map_err(|abort| {
            *failed = Some(abort);
            Unsettled
        })
    }

    /// Returns the result of a transaction: the store's error, if there was one.
    pub(super) fn settled(self, result: Result<Effects, Abort>) -> Result<Effects, Abort> {
        match self.failed.into_inner() {
            Some(abort) => Err(abort),
            None => result,
        }
    }
}

impl<S: RemoteStore> Rows for View<'_, S> {
    fn row(&self, _: TableId, _: &Key) -> Result<Option<Row>, Unsettled> {
        unreachable!("it lists no keys, so rows are named by values")
    }

    fn row_by(&self, table: TableId, key: &[Value]) -> Result<Option<Row>, Unsettled> {
        self.uses(|store| store.row(table, key))
    }

    fn holder(&self, _: TableId, _: &Key, _: &[Value]) -> Result<Holder<'_>, Unsettled> {
        Ok(Holder::none())
    }

    fn keys<'a>(&'a self, _: TableId, _: &'a Key, _: &'a Key, _: bool) -> Keys<'a> {
        unreachable!("it finds all rows of a range")
    }

    fn found(
        &self,
        table: TableId,
        bounds: Bounds<'_>,
        take: Take,
    ) -> Result<Option<Vec<Row>>, Unsettled> {
        let found = self.uses(|store| match bounds {
            Bounds::Between(from, to) => store.range(table, from, to, take),
            Bounds::Leading(leading) => store.leading(table, leading, take),
        });
        found.map(Some)
    }
}
