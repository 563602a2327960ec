//! Conversion of a function's values to those that tables and streams store, or the abort of its
//! transaction.

use tidemill_core::{encode, rules, Column, EngineUse, Key, StreamId, TableId, TableSpec, Value};

use super::handler::{key_value, Abort};
use super::reasons;
use super::window::{Aggregate, Window};
use super::Program;

/// Converts values to those of columns.
pub(crate) fn values(given: &[Value], columns: &[Column]) -> Result<Vec<Value>, rules::Fault> {
    let mut stored = Vec::with_capacity(given.len());
    for (value, column) in given.iter().zip(columns) {
        stored.push(rules::store(value, column)?);
    }
    Ok(stored)
}

impl Program {
    /// Converts a key of a table.
    pub fn stored_key(&self, table: TableId, key: &[Value]) -> Result<Vec<Value>, Abort> {
        let spec = &self.tables[table.index()];
        match key.len() == spec.key.len() {
            true => leading(spec, key),
            false => Err(reasons::wrong_shape(&spec.name, spec.key.len(), key.len())),
        }
    }

    /// Converts leading key columns of a table, which bound a range.
    pub fn stored_bound(&self, table: TableId, bound: &[Value]) -> Result<Vec<Value>, Abort> {
        let spec = &self.tables[table.index()];
        match bound.len() <= spec.key.len() {
            true => leading(spec, bound),
            false => Err(reasons::wrong_shape(&spec.name, spec.key.len(), bound.len())),
        }
    }

    /// Returns a test of whether a key is from one bound up to but without another. An empty `to` is
    /// no bound.
    ///
    /// # Errors
    /// If a bound is not a valid key value.
    pub fn key_range(
        &self,
        table: TableId,
        from: &[Value],
        to: &[Value],
    ) -> Result<impl Fn(&Key) -> bool + use<>, Abort> {
        let spec = &self.tables[table.index()];
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

    /// Converts a row of a table that programs may write; returns it with its key.
    pub fn stored_row(
        &self,
        table: TableId,
        row: &[Value],
    ) -> Result<(Vec<Value>, Vec<Value>), Abort> {
        let spec = &self.tables[table.index()];
        if row.len() != spec.schema.len() {
            return Err(reasons::wrong_shape(&spec.name, spec.schema.len(), row.len()));
        }
        let mut stored = values(row, &spec.schema.columns)?;
        for column in &spec.key {
            stored[*column] = key_value(stored[*column].clone(), spec)?;
        }
        self.check_writable(table)?;
        let key = spec.key.iter().map(|column| stored[*column].clone()).collect();
        Ok((key, stored))
    }

    /// Converts an event that a handler's function, or a trigger in its transaction, may emit.
    pub(crate) fn stored_event(
        &self,
        (handler, trigger): (usize, Option<usize>),
        stream: StreamId,
        row: &[Value],
    ) -> Result<Vec<Value>, Abort> {
        if !self.may_emit(handler, trigger, stream) {
            let spec = &self.streams[stream.index()].spec;
            return Err(reasons::not_emittable(&spec.name));
        }
        self.stored_output(stream, row)
    }

    /// Converts an event to the columns of its stream.
    pub fn stored_output(&self, stream: StreamId, row: &[Value]) -> Result<Vec<Value>, Abort> {
        let spec = &self.streams[stream.index()].spec;
        if row.len() != spec.schema.len() {
            return Err(reasons::wrong_shape(&spec.name, spec.schema.len(), row.len()));
        }
        Ok(values(row, &spec.schema.columns)?)
    }

    /// Aborts unless functions can see the table: it must not be a window's.
    pub fn check_visible(&self, table: TableId) -> Result<(), Abort> {
        let spec = &self.tables[table.index()];
        match spec.keeps {
            Some(EngineUse::Window) => Err(reasons::is_hidden(spec)),
            _ => Ok(()),
        }
    }

    /// Aborts unless functions can write the table: the engine must not keep it.
    pub fn check_writable(&self, table: TableId) -> Result<(), Abort> {
        let spec = &self.tables[table.index()];
        match spec.keeps {
            Some(_) => Err(reasons::is_of_engine(spec)),
            None => Ok(()),
        }
    }

    /// Aborts unless the table has a history that is long enough for the window.
    pub fn check_window(
        &self,
        table: TableId,
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<(), Abort> {
        let spec = &self.tables[table.index()];
        let checked = window.check(spec).and_then(|()| aggregate.result(spec, column));
        checked.map(|_| ()).map_err(|error| reasons::refused(&error))
    }

    /// Aborts unless the table is ordered and functions can see it.
    pub fn check_ranges(&self, table: TableId) -> Result<(), Abort> {
        let spec = &self.tables[table.index()];
        match spec.ordered {
            true => self.check_visible(table),
            false => Err(reasons::not_ordered(spec)),
        }
    }
}

/// Converts values to those of the leading key columns.
fn leading(spec: &TableSpec, key: &[Value]) -> Result<Vec<Value>, Abort> {
    let columns = spec.key.iter().map(|column| &spec.schema.columns[*column]);
    let mut stored = Vec::with_capacity(key.len());
    for (value, column) in key.iter().zip(columns) {
        stored.push(rules::store(&key_value(value.clone(), spec)?, column)?);
    }
    Ok(stored)
}
