//! Indexes, triggers and windows, in the obvious way: an index is made anew from all rows whenever one is
//! written, and an entry is taken when some other row has it.

use std::collections::BTreeMap;

use tidemill_core::{Keeps, Key, Row, StreamId, TableId, Value};

use super::work::Work;
use crate::program::hooks::{self, Index};
use crate::program::owned::{self, Frame, Held, Slid};
use crate::program::{reasons, Abort, OwnedWindow, WindowId};

impl<'a> Work<'a> {
    /// Runs a function, and then the triggers on rows that it has written.
    pub(super) fn function(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        let before = std::mem::take(&mut self.changed);
        let result = run(self).and_then(|()| self.fire_changed());
        self.changed = before;
        self.failed.clone().map_or(result, Err)
    }

    /// What a row is now is kept before it is written.
    pub(super) fn note(&mut self, table: TableId, key: &[Value]) {
        let held = self.tables[table.index()].get(&Key::of(key)).cloned();
        if !self.changed.iter().any(|(t, k, _)| (*t, k) == (table, &Key::of(key))) {
            self.changed.push((table, Key::of(key), held));
        }
    }

    /// A row has been written.
    pub(super) fn reindex(&mut self, table: TableId, key: &Key) -> Result<(), Abort> {
        for index in &self.program.hooks().indexes[table.index()] {
            let others = self.tables[table.index()].iter().filter(|(other, _)| *other != key);
            let others: Vec<Row> = others.map(|(_, row)| row.clone()).collect();
            if let Err(abort) = self.check_taken(index, table, key, &others) {
                self.failed.get_or_insert(abort.clone());
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
        let entry = row.and_then(|row| index.entry(self.program, row));
        let Some(entry) = entry.filter(|_| index.is_unique()) else { return Ok(()) };
        let has = |other: &Row| {
            let other = index.entry(self.program, other);
            other.is_some_and(|other| Key::of(index.key(&other)) == Key::of(index.key(&entry)))
        };
        match others.iter().any(has) {
            true => Err(index.is_taken(self.program, &entry)),
            false => Ok(()),
        }
    }

    /// Makes an index anew.
    fn make(&mut self, table: TableId, index: &Index) {
        let rows = self.tables[table.index()].values();
        let entries = rows.filter_map(|row| index.entry(self.program, row));
        let entries: BTreeMap<Key, Row> =
            entries.map(|entry| (Key::of(index.key(&entry)), entry.into())).collect();
        self.tables[index.table.index()] = entries;
    }

    fn fire_changed(&mut self) -> Result<(), Abort> {
        let program = self.program;
        for (table, key, before) in std::mem::take(&mut self.changed) {
            for number in &program.hooks().written[table.index()] {
                let after = self.tables[table.index()].get(&key).cloned();
                let on = program.triggers[*number].on;
                if let Some(event) = hooks::change(on, before.as_deref(), after.as_deref()) {
                    self.fire(*number, &event)?;
                }
            }
        }
        Ok(())
    }

    /// Something is emitted, and sets off its triggers.
    pub(super) fn emit_checked(&mut self, stream: StreamId, row: Vec<Value>) -> Result<(), Abort> {
        self.emitted.push((stream, row.clone()));
        let triggers = &self.program.hooks().emitted[stream.index()];
        triggers.iter().try_for_each(|trigger| self.fire(*trigger, &row))
    }

    fn fire(&mut self, number: usize, event: &[Value]) -> Result<(), Abort> {
        let program = self.program;
        let trigger = &program.triggers[number];
        let outer = self.trigger.replace(number);
        self.depth += 1;
        let result = match self.depth > hooks::DEPTH_MAX {
            true => Err(reasons::too_deep(&trigger.name)),
            false => self.function(|tx| program.opaques[trigger.function].call(event, tx)),
        };
        self.depth -= 1;
        self.trigger = outer;
        if let Err(abort) = &result {
            self.failed.get_or_insert(abort.clone());
        }
        result
    }

    pub(super) fn check_visible(&self, table: TableId) -> Result<(), Abort> {
        let spec = &self.program.tables[table.index()];
        match spec.keeps {
            Some(Keeps::Window) => Err(reasons::is_hidden(spec)),
            _ => Ok(()),
        }
    }

    pub(super) fn check_writable(&self, table: TableId) -> Result<(), Abort> {
        let spec = &self.program.tables[table.index()];
        match spec.keeps {
            Some(_) => Err(reasons::is_kept(spec)),
            None => Ok(()),
        }
    }

    /// A window of the handler's own.
    pub(super) fn owned(&mut self, window: WindowId) -> Result<&'a OwnedWindow, Abort> {
        reasons::count(&mut self.operations, 1)?;
        let owned = &self.program.windows[window.index()];
        match owned.owner.index() == self.handler {
            true => Ok(owned),
            false => Err(owned::not_owner(self.program, owned)),
        }
    }

    /// Does something to a window that may slide it.
    pub(super) fn slide(
        &mut self,
        window: WindowId,
        run: impl FnOnce(&mut Frame<'_>, &mut Self, i64, &mut Slid<'_, Self>) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        let program = self.program;
        let owned = &program.windows[window.index()];
        if self.sliding.contains(&window) {
            return Err(reasons::is_sliding(&owned.name));
        }
        self.sliding.push(window);
        let mut slid = |tx: &mut Self, event: Vec<Value>| -> Result<(), Abort> {
            let triggers = &program.hooks().slid[window.index()];
            triggers.iter().try_for_each(|trigger| tx.fire(*trigger, &event))
        };
        let time_us = self.moment.time_us();
        let result =
            Frame::of(owned, self).and_then(|mut frame| run(&mut frame, self, time_us, &mut slid));
        self.sliding.pop();
        if let Err(abort) = &result {
            self.failed.get_or_insert(abort.clone());
        }
        result
    }
}

impl Held for Work<'_> {
    fn held(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        Ok(self.tables[table.index()].get(&Key::of(key)).cloned())
    }

    fn hold(&mut self, table: TableId, row: Vec<Value>) -> Result<(), Abort> {
        let spec = &self.program.tables[table.index()];
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
