//! Writes of a transaction on the general path, and their entries in indexes.

use tidemill_core::{TableId, Value};
use tidemill_table::Table;

use super::effects::Touched;
use super::plain;
use super::General;
use crate::program::hooks::Index;
use crate::program::owned::WindowStore;
use crate::program::Abort;

impl General<'_> {
    /// Prepares a touched row for a write. Returns the row as it is now, if its table has indexes.
    pub(super) fn note(&mut self, at: usize) -> Option<Option<Vec<Value>>> {
        let Touched { table, key, row, .. } = &self.rows[at];
        self.inside.note(*table, key, row.as_deref());
        let indexes = &self.inside.program.hooks().indexes[table.index()];
        (!indexes.is_empty()).then(|| row.clone())
    }

    /// Writes a row and its entries in indexes.
    pub(super) fn write(
        &mut self,
        table: TableId,
        key: Vec<Value>,
        row: Option<Vec<Value>>,
    ) -> Result<(), Abort> {
        if let Some(held) = self.plain(table) {
            let at = self.plain.touch(table, held, plain::word(&key));
            return self.write_plain(table, held, at, &key, row.as_deref());
        }
        let at = self.touch(table, key)?;
        let before = self.note(at);
        (self.rows[at].row, self.rows[at].written) = (row, true);
        before.map_or(Ok(()), |before| self.reindex_touched(at, before.as_deref()))
    }

    /// Writes a row of a table whose rows are used as words, and its entries in indexes.
    pub(super) fn write_plain(
        &mut self,
        table: TableId,
        held: &Table,
        at: usize,
        key: &[Value],
        row: Option<&[Value]>,
    ) -> Result<(), Abort> {
        if self.inside.program.hooks().is_plain(table) {
            self.plain.write(at, held, row);
            return Ok(());
        }
        let before = self.plain.row(at, held);
        self.inside.note(table, key, before.as_deref());
        self.plain.write(at, held, row);
        self.reindex(table, before.as_deref(), row)
    }

    /// Updates the entries of a touched row that has changed.
    pub(super) fn reindex_touched(
        &mut self,
        at: usize,
        before: Option<&[Value]>,
    ) -> Result<(), Abort> {
        let Touched { table, row, .. } = &self.rows[at];
        let (table, row) = (*table, row.clone());
        self.reindex(table, before, row.as_deref())
    }

    /// Updates the entries of a row of a table that has changed.
    fn reindex(
        &mut self,
        table: TableId,
        before: Option<&[Value]>,
        after: Option<&[Value]>,
    ) -> Result<(), Abort> {
        let program = self.inside.program;
        for index in &program.hooks().indexes[table.index()] {
            let entry = |row: Option<&[Value]>| row.and_then(|row| index.entry(program, row));
            let (before, after) = (entry(before), entry(after));
            if before == after {
                continue;
            }
            if let Some(entry) = before {
                self.let_go_present(index, entry)?;
            }
            let Some(entry) = after else { continue };
            if index.is_unique() && self.window_row(index.table, index.key(&entry))?.is_some() {
                let abort = index.is_taken(program, &entry);
                self.inside.fail(&abort);
                return Err(abort);
            }
            match index.is_unique() {
                true => self.put_window_row(index.table, entry)?,
                // The key contains the row's own key, whose entry had another key. So this one does
                // not exist yet.
                false => self.hold_absent(index, entry),
            }
        }
        Ok(())
    }

    /// Adds an entry that is in the table only if this transaction has put it there.
    fn hold_absent(&mut self, index: &Index, entry: Vec<Value>) {
        if let Some(held) = self.plain(index.table) {
            let at = self.plain.touch_absent(index.table, plain::word(index.key(&entry)));
            return self.plain.write(at, held, Some(&entry));
        }
        let at = self.touch_unread(index, &entry, None);
        (self.rows[at].row, self.rows[at].written) = (Some(entry), true);
    }

    /// Removes an entry that is in the table, or that this transaction has put there.
    fn let_go_present(&mut self, index: &Index, entry: Vec<Value>) -> Result<(), Abort> {
        if self.plain(index.table).is_some() {
            return self.remove_window_row(index.table, index.key(&entry));
        }
        let at = self.touch_unread(index, &entry, Some(&entry));
        (self.rows[at].row, self.rows[at].written) = (None, true);
        Ok(())
    }

    /// Returns the place of an entry, which is known without reading it.
    fn touch_unread(&mut self, index: &Index, entry: &[Value], is: Option<&[Value]>) -> usize {
        let (table, key) = (index.table, index.key(entry));
        self.find_touched(table, key).unwrap_or_else(|| {
            let (key, row) = (key.to_vec(), is.map(<[Value]>::to_vec));
            self.push_touched(Touched { table, key, row, written: false })
        })
    }
}
