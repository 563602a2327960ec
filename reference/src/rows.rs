//! The reference's rows, in ordered maps.

use std::collections::BTreeMap;

use tidemill_core::{Key, Row, TableId, Value};
use tidemill_txn::program::{Abort, Index, Take};
use tidemill_txn::Program;

/// A version of a row: its number among the row's versions, its time, and the row.
pub type Version = (u64, i64, Row);

/// The tables themselves. Their indexes are obvious and slow: each write rebuilds an index from all
/// rows, and compares entries to find one that is taken.
pub(super) struct Maps<'a> {
    pub(super) tables: &'a mut Vec<BTreeMap<Key, Row>>,
    pub(super) histories: &'a [BTreeMap<Key, Vec<Version>>],
}

impl Maps<'_> {
    /// Returns the row with this key.
    pub(super) fn row(&self, table: TableId, key: &[Value]) -> Option<Row> {
        self.tables[table.index()].get(&Key::of(key)).cloned()
    }

    /// Writes or removes a row, and updates its entries in indexes.
    pub(super) fn write(
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
        for index in program.indexes(table) {
            self.check_taken(program, index, table, &key)?;
            let rows = self.tables[table.index()].values();
            let entries = rows.filter_map(|row| index.entry(program, row));
            self.tables[index.table.index()] =
                entries.map(|entry| (Key::of(index.key(&entry)), entry.into())).collect();
        }
        Ok(())
    }

    /// Returns the rows, in key order, with keys from the first bound (inclusive) to the second
    /// (exclusive).
    pub(super) fn range(
        &self,
        program: &Program,
        table: TableId,
        from: &[Value],
        to: &[Value],
    ) -> Result<Vec<Row>, Abort> {
        let is_in = program.key_range(table, from, to)?;
        let rows = self.tables[table.index()].iter();
        Ok(rows.filter(|(key, _)| is_in(key)).map(|(_, row)| row.clone()).collect())
    }

    /// Returns the first or last rows whose keys begin with these values.
    pub(super) fn leading(
        &self,
        program: &Program,
        table: TableId,
        leading: &[Value],
        take: Take,
    ) -> Vec<Row> {
        let is_found = |row: &&Row| {
            let mut both = leading.iter().zip(&program.tables[table.index()].key);
            both.all(|(value, column)| Key::of([value]) == Key::of([&row[*column]]))
        };
        let rows = self.tables[table.index()].values().filter(is_found);
        take.of(rows.cloned())
    }

    /// Returns the versions of a row, oldest first.
    pub(super) fn versions(&self, table: TableId, key: &[Value]) -> Vec<Version> {
        self.histories[table.index()].get(&Key::of(key)).cloned().unwrap_or_default()
    }

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
