//! Rows of a table, by key or by a filter.

use std::sync::Arc;

use serde_json::json;
use serde_json::value::RawValue;
use tidemill_connect::values;
use tidemill_core::value::format_timestamp;
use tidemill_core::{Column, DataType, Error, Result, Row, Schema, TableSpec, Value};
use tidemill_table::AsOf;
use tidemill_txn::program::Program;

use super::filter::Filter;
use super::{Answer, Fields, Reply};
use crate::past::{Moment, Past};
use crate::requests::is_hidden;
use crate::shared::State;
use crate::view::known;

/// The rows of an answer by default, and the most.
const LIMIT: usize = 1000;
const LIMIT_MAX: usize = 100_000;

/// A query as it was requested.
pub(crate) struct Query {
    table: String,
    key: Option<Box<RawValue>>,
    filter: Option<String>,
    limit: usize,
    pub(crate) as_of: Option<Moment>,
}

/// A query, resolved for a table of the program.
pub(crate) struct Plan {
    index: usize,
    spec: TableSpec,
    key: Option<Vec<Value>>,
    filter: Option<Filter>,
    limit: usize,
}

/// The found rows.
pub(crate) struct Rows {
    rows: Vec<Row>,
    more: bool,
    as_of: u64,
    clock_us: i64,
    /// The recorded cuts that the rows do not include.
    unreplayed: u64,
}

impl Query {
    pub(crate) fn take(fields: &mut Fields) -> Result<Query> {
        Ok(Query {
            table: fields.need("table")?,
            key: fields.raw("key"),
            filter: fields.take("filter")?,
            limit: fields.limit(LIMIT, LIMIT_MAX)?,
            as_of: fields.raw("as_of").map(|raw| moment(raw.get())).transpose()?,
        })
    }

    pub(crate) fn plan(&self, program: &Program) -> Result<Plan> {
        let shown = program.tables.iter().filter(|t| !is_hidden(&t.name));
        let names = shown.map(|t| &*t.name);
        let index =
            program.tables.iter().position(|t| *t.name == *self.table).ok_or_else(|| {
                Error::setting(format!("there is no table {}", self.table)).help(known(
                    &self.table,
                    names,
                    "table",
                ))
            })?;
        let spec = program.tables[index].clone();
        let key = self.key.as_ref().map(|raw| key(&spec, raw)).transpose()?;
        let filter =
            self.filter.as_ref().map(|text| Filter::parse(text, &spec.schema)).transpose()?;
        Ok(Plan { index, spec, key, filter, limit: self.limit })
    }
}

/// Parses an epoch or a time.
fn moment(raw: &str) -> Result<Moment> {
    if let Ok(epoch) = raw.parse() {
        return Ok(Moment::Epoch(epoch));
    }
    let column = Column::new("as_of", DataType::Timestamp);
    match (raw.starts_with('"'), values::read(raw, &column)) {
        (true, Ok(Value::Timestamp(us))) => Ok(Moment::Time(us)),
        _ => Err(Error::input(format!("as_of={raw} is neither an epoch nor a time"))
            .help("give an epoch (a number), or a time as \"2026-01-31T12:00:00Z\"")),
    }
}

/// Parses a value for each key column.
fn key(spec: &TableSpec, raw: &RawValue) -> Result<Vec<Value>> {
    let parts: Vec<&RawValue> = match spec.key.len() {
        1 if !raw.get().starts_with('[') => vec![raw],
        _ => serde_json::from_str(raw.get())
            .map_err(|_| Error::input("a key is a value, or an array of them"))?,
    };
    if parts.len() != spec.key.len() {
        return Err(Error::input(format!(
            "a key of table {} has {} columns, not {}",
            spec.name,
            spec.key.len(),
            parts.len()
        )));
    }
    let columns = spec.key.iter().map(|c| &spec.schema.columns[*c]);
    let value = |(raw, column): (&&RawValue, &Column)| {
        values::read(raw.get(), column)
            .map_err(|why| Error::input(format!("key column '{}': {why}", column.name)))
    };
    parts.iter().zip(columns).map(value).collect()
}

/// Describes a schema in the head of an answer.
pub(crate) fn columns(schema: &Schema) -> serde_json::Value {
    let column = |c: &Column| json!({"name": c.name, "type": c.ty.to_string()});
    schema.columns.iter().map(column).collect()
}

impl Plan {
    pub(crate) fn is_point(&self) -> bool {
        self.key.is_some()
    }

    pub(crate) fn head(&self, reply: &mut Reply<'_>) -> Answer {
        let schema: &Arc<Schema> = &self.spec.schema;
        let key: Vec<&str> = self.spec.key.iter().map(|c| &*schema.columns[*c].name).collect();
        reply.line(&json!({"table": self.spec.name, "columns": columns(schema), "key": key}))
    }

    /// Finds the rows in tables of an earlier time.
    pub(crate) fn past(&self, past: &Past) -> Rows {
        let table = past.tables[self.index].newest();
        self.select(&table, past.epoch, past.clock_us, past.unreplayed)
    }

    /// Finds the rows in the engine's tables, as of the last epoch that has left the engine.
    ///
    /// # Errors
    /// When `epoch` is a different one.
    pub(crate) fn present(&self, state: &State, epoch: u64) -> Result<Rows> {
        let at = state.as_of(epoch);
        let table = state.tables[self.index].as_of(at.seq)?;
        Ok(self.select(&table, at.epoch, at.clock_us, 0))
    }

    fn select(&self, table: &AsOf<'_>, as_of: u64, clock_us: i64, unreplayed: u64) -> Rows {
        let keep = |row: &[Value]| self.filter.as_ref().is_none_or(|filter| filter.keeps(row));
        let (rows, more) = match &self.key {
            Some(key) => {
                let row = table.get(key).filter(|row| keep(row));
                (row.into_iter().take(self.limit).collect(), false)
            }
            None => table.select(self.limit, keep),
        };
        Rows { rows, more, as_of, clock_us, unreplayed }
    }

    pub(crate) fn rows(&self, rows: &Rows, reply: &mut Reply<'_>) -> Answer {
        for row in &rows.rows {
            let mut line = b"{\"row\":".to_vec();
            values::write_row(&self.spec.schema, row, &mut line);
            line.push(b'}');
            reply.raw(line)?;
        }
        let mut end = json!({
            "rows": rows.rows.len(), "more": rows.more, "as_of": rows.as_of,
            "clock": format_timestamp(rows.clock_us),
        });
        if rows.unreplayed > 0 {
            end["behind"] = json!(rows.unreplayed);
        }
        reply.end(end)
    }
}
