//! Indexes, in the obvious way: one is made anew from all rows whenever one of them is written, and an
//! entry is taken when some other row has it.

use std::collections::BTreeMap;

use tidemill_core::{Key, Row, TableId, Value};

use super::work::Work;
use crate::program::hooks::Index;
use crate::program::inside::{Inside, Transaction};
use crate::program::owned::Held;
use crate::program::Abort;

impl Work<'_> {
    /// A row has been written.
    pub(super) fn reindex(&mut self, table: TableId, key: &Key) -> Result<(), Abort> {
        for index in &self.inside.program.hooks().indexes[table.index()] {
            let others = self.tables[table.index()].iter().filter(|(other, _)| *other != key);
            let others: Vec<Row> = others.map(|(_, row)| row.clone()).collect();
            if let Err(abort) = self.check_taken(index, table, key, &others) {
                self.inside.fail(&abort);
                return Err(abort);
            }
            self.make(table, index);
        }
        Ok(())
    }

    fn check_taken(
        &self,
        index: &Index,
        table: TableId,
        key: &Key,
        others: &[Row],
    ) -> Result<(), Abort> {
        let row = self.tables[table.index()].get(key);
        let entry = row.and_then(|row| index.entry(self.inside.program, row));
        let Some(entry) = entry.filter(|_| index.is_unique()) else { return Ok(()) };
        let has = |other: &Row| {
            let other = index.entry(self.inside.program, other);
            other.is_some_and(|other| Key::of(index.key(&other)) == Key::of(index.key(&entry)))
        };
        match others.iter().any(has) {
            true => Err(index.is_taken(self.inside.program, &entry)),
            false => Ok(()),
        }
    }

    /// Makes an index anew.
    fn make(&mut self, table: TableId, index: &Index) {
        let rows = self.tables[table.index()].values();
        let entries = rows.filter_map(|row| index.entry(self.inside.program, row));
        let entries: BTreeMap<Key, Row> =
            entries.map(|entry| (Key::of(index.key(&entry)), entry.into())).collect();
        self.tables[index.table.index()] = entries;
    }
}

impl Held for Work<'_> {
    fn held(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        Ok(self.tables[table.index()].get(&Key::of(key)).cloned())
    }

    fn hold(&mut self, table: TableId, row: Vec<Value>) -> Result<(), Abort> {
        let spec = &self.inside.program.tables[table.index()];
        let key = Key::of(spec.key.iter().map(|column| &row[*column]));
        self.tables[table.index()].insert(key, row.into());
        Ok(())
    }

    fn let_go(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        self.tables[table.index()].remove(&Key::of(key));
        Ok(())
    }

    fn all(&mut self, table: TableId) -> Result<Vec<Row>, Abort> {
        Ok(self.tables[table.index()].values().cloned().collect())
    }
}

impl<'a> Transaction<'a> for Work<'a> {
    fn inside(&mut self) -> &mut Inside<'a> {
        &mut self.inside
    }
}
