//! The interface of a transaction on the general path to functions.

use std::sync::Arc;

use tidemill_core::{Row, StreamId, TableId, Value};

use super::{plain, Bounds, General};
use crate::program::inside::{Inside, Transaction};
use crate::program::owned::WindowStore;
use crate::program::{ints, Abort, Aggregate, Asker, Take, Tx, Window, WindowId};

impl Tx for General<'_> {
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        self.inside.count(1)?;
        let program = self.inside.program;
        program.check_visible(table)?;
        if let Some(held) = self.plain(table) {
            if let Some(key) = plain::key_as_is(&program.tables[table.index()], key) {
                let at = self.plain.touch(table, held, key);
                return Ok(self.plain.row(at, held));
            }
        }
        let key = program.stored_key(table, key)?;
        self.window_row(table, &key)
    }

    fn get_ints(&mut self, table: TableId, key: i64, row: &mut [i64]) -> Result<bool, Abort> {
        let Some(held) = self.plain(table).filter(|held| held.has_int_rows(row.len())) else {
            return ints::get(self, table, key, row);
        };
        self.inside.count(1)?;
        self.inside.program.check_visible(table)?;
        let at = self.plain.touch(table, held, key as u64);
        let body = self.plain.body(at, held);
        body.into_iter().for_each(|body| held.read_ints(key, body, row));
        Ok(body.is_some())
    }

    fn window(
        &mut self,
        table: TableId,
        key: &[Value],
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        self.inside.count(1)?;
        let key = self.inside.program.stored_key(table, key)?;
        self.inside.program.check_window(table, window, column, aggregate)?;
        let at = self.touch(table, key)?;
        self.over(at, window, column, aggregate)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        take: Take,
    ) -> Result<Vec<Row>, Abort> {
        self.inside.count(1)?;
        let program = self.inside.program;
        program.check_ranges(table)?;
        let (from, to) = (program.stored_bound(table, from)?, program.stored_bound(table, to)?);
        let rows = self.between(table, &from, &to, take)?;
        self.inside.count(rows.len())?;
        Ok(rows)
    }

    fn find(&mut self, table: TableId, leading: &[Value], take: Take) -> Result<Vec<Row>, Abort> {
        self.inside.count(1)?;
        let program = self.inside.program;
        program.check_ranges(table)?;
        let leading = program.stored_bound(table, leading)?;
        let rows = self.range(table, Bounds::Leading(&leading), take)?;
        self.inside.count(rows.len())?;
        Ok(rows)
    }

    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Abort> {
        self.inside.count(1)?;
        let program = self.inside.program;
        if let Some(held) = self.plain(table) {
            let spec = &program.tables[table.index()];
            if let Some(key) = plain::row_as_is(spec, row).filter(|_| spec.keeps.is_none()) {
                let at = self.plain.touch(table, held, key);
                let key = std::slice::from_ref(&row[spec.key[0]]);
                return self.write_plain(table, held, at, key, Some(row));
            }
        }
        let (key, row) = program.stored_row(table, row)?;
        self.write(table, key, Some(row))
    }

    fn put_ints(&mut self, table: TableId, row: &[i64]) -> Result<(), Abort> {
        let program = self.inside.program;
        let is_plain =
            program.hooks().is_plain(table) && program.tables[table.index()].keeps.is_none();
        let held = self.plain(table).filter(|held| is_plain && held.has_int_rows(row.len()));
        let Some(held) = held else { return ints::put(self, table, row) };
        self.inside.count(1)?;
        let at = self.plain.touch(table, held, row[held.spec().key[0]] as u64);
        self.plain.write_ints(at, held, row);
        Ok(())
    }

    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        self.inside.count(1)?;
        let key = self.inside.program.stored_key(table, key)?;
        self.inside.program.check_writable(table)?;
        self.write(table, key, None)
    }

    fn will_write(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        self.first_write(table, key)
    }

    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Abort> {
        self.emit_given(stream, row)
    }

    fn window_insert(&mut self, window: WindowId, row: &[Value]) -> Result<(), Abort> {
        self.insert_into(window, row)
    }

    fn window_advance(&mut self, window: WindowId) -> Result<(), Abort> {
        self.advance(window)
    }

    fn window_rows(&mut self, window: WindowId) -> Result<Vec<Row>, Abort> {
        self.active_rows(window)
    }

    fn window_groups(
        &mut self,
        window: WindowId,
        group: Option<&Value>,
    ) -> Result<Vec<Row>, Abort> {
        self.active_groups(window, group)
    }

    fn time_us(&self) -> i64 {
        self.inside.moment.time_us()
    }

    fn now_us(&self) -> i64 {
        self.inside.moment.now_us
    }

    fn random(&mut self) -> u128 {
        self.inside.random()
    }

    fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Arc<[u8]>, Abort> {
        self.inside.lookup(question, ask)
    }

    fn has_deadline(&self) -> bool {
        !self.inside.moment.ignores_deadlines
    }
}

impl WindowStore for General<'_> {
    fn window_row(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        if let Some(held) = self.plain(table) {
            let at = self.plain.touch(table, held, plain::word(key));
            return Ok(self.plain.row(at, held));
        }
        let at = self.touch(table, key.to_vec())?;
        Ok(self.rows[at].row.clone().map(Row::from))
    }

    fn put_window_row(&mut self, table: TableId, row: Vec<Value>) -> Result<(), Abort> {
        let spec = &self.inside.program.tables[table.index()];
        let key: Vec<Value> = spec.key.iter().map(|column| row[*column].clone()).collect();
        if let Some(held) = self.plain(table) {
            let at = self.plain.touch(table, held, plain::word(&key));
            self.plain.write(at, held, Some(&row));
            return Ok(());
        }
        let at = self.touch(table, key)?;
        (self.rows[at].row, self.rows[at].written) = (Some(row), true);
        Ok(())
    }

    fn remove_window_row(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        if let Some(held) = self.plain(table) {
            let at = self.plain.touch(table, held, plain::word(key));
            self.plain.write(at, held, None);
            return Ok(());
        }
        let at = self.touch(table, key.to_vec())?;
        (self.rows[at].row, self.rows[at].written) = (None, true);
        Ok(())
    }

    fn all(&mut self, table: TableId) -> Result<Vec<Row>, Abort> {
        self.range(table, Bounds::Leading(&[]), Take::ALL)
    }
}

impl<'a> Transaction<'a> for General<'a> {
    fn inside(&mut self) -> &mut Inside<'a> {
        &mut self.inside
    }
}
