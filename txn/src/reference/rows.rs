//! Access to the rows of a transaction: on ordered maps, or stored elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{encode, Key, Row, StreamId, TableId, Value};

use super::Version;
use crate::program::hooks::Index;
use crate::program::{key_value, Abort, Asker, Program};

/// Whether a version is older than the caller needs, given its number, its time, and the number of
/// the next version.
pub type IsUnneeded<'b> = &'b dyn Fn(u64, i64, u64) -> bool;

/// Rows as left by earlier transactions and written by the running one. Keys have a value for each
/// column.
pub trait Rows {
    /// Returns the row with this key.
    ///
    /// # Errors
    /// The reason why the transaction aborts, for this and the following methods.
    fn row(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort>;

    /// Writes or removes a row, and updates its entries in indexes. The row may still lack values.
    ///
    /// # Errors
    /// If another row has its entry in a unique index. Writing the old row again must undo
    /// everything written by then.
    fn write(
        &mut self,
        program: &Program,
        table: TableId,
        key: &[Value],
        row: Option<Row>,
    ) -> Result<(), Abort>;

    /// Returns the rows, in key order, with keys from the first bound (inclusive) to the second
    /// (exclusive). Bounds are leading key columns; an empty one is no bound.
    fn range(
        &mut self,
        program: &Program,
        table: TableId,
        from: &[Value],
        to: &[Value],
    ) -> Result<Vec<Row>, Abort>;

    /// Returns the first `limit` rows, in key order, whose keys begin with these values.
    fn leading(
        &mut self,
        program: &Program,
        table: TableId,
        leading: &[Value],
        limit: usize,
    ) -> Result<Vec<Row>, Abort>;

    /// Returns the versions of a row, oldest first. Versions that are not needed, and all before
    /// them, may be left out.
    ///
    /// # Errors
    /// If the versions are not available now.
    fn versions(
        &mut self,
        program: &Program,
        table: TableId,
        key: &[Value],
        is_behind: IsUnneeded<'_>,
    ) -> Result<Vec<Version>, Abort>;

    /// Announces events that will be executed, so that their rows can be requested together.
    ///
    /// # Errors
    /// If the rows are not available now.
    fn prefetch(
        &mut self,
        program: &Program,
        events: &[(StreamId, &[Value])],
    ) -> Result<(), Abort> {
        let _ = (program, events);
        Ok(())
    }

    /// Returns the external answer to a question, if the store of rows also has the answers.
    fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Option<Arc<[u8]>>, Abort> {
        let _ = (question, ask);
        Ok(None)
    }

    /// Whether a deadline may end a transaction.
    fn has_deadline(&self) -> bool {
        true
    }

    /// Returns the reason why the next transaction took too long in its first run, if the store of
    /// rows knows it.
    fn verdict(&mut self) -> Result<Option<String>, Abort> {
        Ok(None)
    }

    /// Reports that the running transaction takes too long, with the reason. If that must be
    /// recorded first, rows are unavailable until then.
    fn overdue(&mut self, reason: &str) {
        let _ = reason;
    }

    /// Whether rows are unavailable now, so that the work must begin again.
    fn are_unavailable(&self) -> bool {
        false
    }
}

/// Returns a test of whether a key is in a range, as defined by [`Rows::range`].
///
/// # Errors
/// If a bound is not a valid key value.
pub fn between(
    program: &Program,
    table: TableId,
    from: &[Value],
    to: &[Value],
) -> Result<impl Fn(&Key) -> bool, Abort> {
    let spec = &program.tables[table.index()];
    let bytes = |bound: &[Value]| -> Result<Vec<u8>, Abort> {
        let mut bytes = Vec::new();
        for value in bound {
            encode::key(&key_value(value.clone(), spec)?, &mut bytes);
        }
        Ok(bytes)
    };
    let (from, to) = (bytes(from)?, bytes(to)?);
    Ok(move |key: &Key| *key.0 >= from[..] && (to.is_empty() || *key.0 < to[..]))
}

/// The tables themselves. Their indexes are obvious and slow: each write rebuilds an index from all
/// rows, and compares entries to find one that is taken.
pub(super) struct Maps<'a> {
    pub(super) tables: &'a mut Vec<BTreeMap<Key, Row>>,
    pub(super) histories: &'a [BTreeMap<Key, Vec<Version>>],
}

impl Rows for Maps<'_> {
    fn row(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        Ok(self.tables[table.index()].get(&Key::of(key)).cloned())
    }

    fn write(
        &mut self,
        program: &Program,
        table: TableId,
        key: &[Value],
        row: Option<Row>,
    ) -> Result<(), Abort> {
        let key = Key::of(key);
        match row {
            Some(row) => self.tables[table.index()].insert(key.clone(), row),
            None => self.tables[table.index()].remove(&key),
        };
        for index in &program.hooks().indexes[table.index()] {
            self.check_taken(program, index, table, &key)?;
            let rows = self.tables[table.index()].values();
            let entries = rows.filter_map(|row| index.entry(program, row));
            self.tables[index.table.index()] =
                entries.map(|entry| (Key::of(index.key(&entry)), entry.into())).collect();
        }
        Ok(())
    }

    fn range(
        &mut self,
        program: &Program,
        table: TableId,
        from: &[Value],
        to: &[Value],
    ) -> Result<Vec<Row>, Abort> {
        let is_in = between(program, table, from, to)?;
        let rows = self.tables[table.index()].iter();
        Ok(rows.filter(|(key, _)| is_in(key)).map(|(_, row)| row.clone()).collect())
    }

    fn leading(
        &mut self,
        program: &Program,
        table: TableId,
        leading: &[Value],
        limit: usize,
    ) -> Result<Vec<Row>, Abort> {
        let is_found = |row: &&Row| {
            let mut both = leading.iter().zip(&program.tables[table.index()].key);
            both.all(|(value, column)| Key::of([value]) == Key::of([&row[*column]]))
        };
        let rows = self.tables[table.index()].values().filter(is_found);
        Ok(rows.take(limit).cloned().collect())
    }

    fn versions(
        &mut self,
        _: &Program,
        table: TableId,
        key: &[Value],
        _: IsUnneeded<'_>,
    ) -> Result<Vec<Version>, Abort> {
        Ok(self.histories[table.index()].get(&Key::of(key)).cloned().unwrap_or_default())
    }
}

impl Maps<'_> {
    fn check_taken(
        &self,
        program: &Program,
        index: &Index,
        table: TableId,
        key: &Key,
    ) -> Result<(), Abort> {
        let row = self.tables[table.index()].get(key);
        let entry = row.and_then(|row| index.entry(program, row));
        let Some(entry) = entry.filter(|_| index.is_unique()) else { return Ok(()) };
        let has = |other: &Row| {
            let other = index.entry(program, other);
            other.is_some_and(|other| Key::of(index.key(&other)) == Key::of(index.key(&entry)))
        };
        let mut others = self.tables[table.index()].iter().filter(|(other, _)| *other != key);
        match others.any(|(_, other)| has(other)) {
            true => Err(index.is_taken(program, &entry)),
            false => Ok(()),
        }
    }
}
