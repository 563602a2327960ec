//! Where the rows of a transaction are: on ordered maps, or with others.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{encode, Key, Row, StreamId, TableId, Value};

use super::Version;
use crate::program::hooks::Index;
use crate::program::{key_value, Abort, Ask, Program};

/// Whether a version is behind what somebody wants: its number, its time, and the number of the next one to come.
pub type Behind<'b> = &'b dyn Fn(u64, i64, u64) -> bool;

/// Rows, as the transactions before have left them and the one that runs has written them. Keys have a value for each
/// column.
pub trait Rows {
    /// The row with this key.
    ///
    /// # Errors
    /// Why the transaction aborts; as for all that follow.
    fn row(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort>;

    /// A row becomes this, and its entries in indexes go along. It may not have all its values yet.
    ///
    /// # Errors
    /// When some other row has its entry in a unique index. Nothing may have been written then that is not undone by
    /// writing what was there.
    fn write(
        &mut self,
        program: &Program,
        table: TableId,
        key: &[Value],
        row: Option<Row>,
    ) -> Result<(), Abort>;

    /// The rows whose keys are not before the first bound and are before the second one, without bound where it is
    /// empty, in key order. Bounds are leading columns.
    fn range(
        &mut self,
        program: &Program,
        table: TableId,
        from: &[Value],
        to: &[Value],
    ) -> Result<Vec<Row>, Abort>;

    /// The first `limit` rows, in key order, whose keys begin so.
    fn leading(
        &mut self,
        program: &Program,
        table: TableId,
        leading: &[Value],
        limit: usize,
    ) -> Result<Vec<Row>, Abort>;

    /// The versions that a row has had, oldest first. Those that nobody wants need not be there, nor any before them.
    ///
    /// # Errors
    /// When they are not to be had now.
    fn versions(
        &mut self,
        program: &Program,
        table: TableId,
        key: &[Value],
        is_behind: Behind<'_>,
    ) -> Result<Vec<Version>, Abort>;

    /// These events are to be executed, whose rows may be asked for together.
    ///
    /// # Errors
    /// When they are not to be had now.
    fn comes(&mut self, program: &Program, events: &[(StreamId, &[Value])]) -> Result<(), Abort> {
        let _ = (program, events);
        Ok(())
    }

    /// What outside says to a question, where whoever has the rows has the answers, too.
    fn lookup(&mut self, question: &[u8], ask: &Ask) -> Result<Option<Arc<[u8]>>, Abort> {
        let _ = (question, ask);
        Ok(None)
    }

    /// Whether a clock may end a transaction.
    fn has_deadline(&self) -> bool {
        true
    }

    /// Why the next transaction took too long the first time, where whoever has the rows knows that.
    fn verdict(&mut self) -> Result<Option<String>, Abort> {
        Ok(None)
    }

    /// The transaction that has begun last takes too long, for this reason. Where that has to be recorded first, rows
    /// are not to be had meanwhile.
    fn overdue(&mut self, reason: &str) {
        let _ = reason;
    }

    /// Whether rows are not to be had now, and all has to be begun again.
    fn are_gone(&self) -> bool {
        false
    }
}

/// Whether a key is in a range of rows, as [`Rows::range`] has it.
///
/// # Errors
/// When a bound is no value of a key.
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

/// The tables themselves. Indexes are kept in the obvious way: one is made anew from all rows whenever one of them is
/// written, and an entry is taken when some other row has it.
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
        _: Behind<'_>,
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
