//! The columns of a program, for functions that run with real values.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use tidemill_core::rules::Fault;
use tidemill_core::{Column, Schema, TableId, TableSpec, Value};
use tidemill_txn::program::{Abort, On};
use tidemill_txn::Program;

use crate::values::stored;

/// The columns of the tables, streams and windows of a program.
#[derive(Default)]
pub struct Shapes {
    pub tables: Vec<TableShape>,
    pub streams: Vec<Arc<Schema>>,
    /// The names of the streams' columns, once they were asked for.
    names: Vec<OnceLock<Vec<Py<PyString>>>>,
    pub windows: Vec<Arc<Schema>>,
    /// The table of each window's groups.
    pub groups: Vec<u16>,
    /// Whether triggers see the events of each stream.
    pub watched: Vec<bool>,
    /// Whether triggers see slides of each window, or rows that enter it.
    pub slid: Vec<bool>,
    /// The calling interface of each handler, if it is a function of an entity and functions run on
    /// nodes.
    pub functions: Vec<Option<FunctionShape>>,
    /// The longest time for a function, and for its requests to the outside, in microseconds.
    pub deadline_us: Option<i64>,
}

/// A function of an entity, as its callers need it.
pub struct FunctionShape {
    pub name: Arc<str>,
    pub table: usize,
    pub parameters: Vec<Column>,
}

/// A table, as rows need it.
pub struct TableShape {
    pub spec: TableSpec,
    /// The columns by name.
    pub columns: Names,
    /// The columns that are attributes of rows.
    pub attributes: Names,
    /// For each column, whether it is in a unique index. Empty if there is no such index.
    pub unique: Vec<bool>,
    /// Whether triggers see changes of rows.
    pub watched: bool,
    /// The package's table, once it was seen.
    pub object: OnceLock<Py<PyAny>>,
}

/// Columns by name.
type Names = HashMap<Arc<str>, usize, foldhash::fast::FixedState>;

/// The attributes of rows that are not columns. The package refuses columns with these names, and
/// with those that all Python objects have.
const METHODS: [&str; 4] = ["delete", "exists", "over", "update"];

impl Shapes {
    /// Returns the shapes of this program.
    pub fn of(program: &Program) -> Shapes {
        let on = |is: &dyn Fn(On) -> bool| program.triggers.iter().any(|t| is(t.on));
        let streams = 0..program.streams.len();
        let windows = 0..program.windows.len();
        Shapes {
            tables: (0..program.tables.len() as u16).map(|t| TableShape::of(program, t)).collect(),
            streams: program.streams.iter().map(|s| s.spec.schema.clone()).collect(),
            names: streams.clone().map(|_| OnceLock::new()).collect(),
            windows: program.windows.iter().map(|w| w.schema.clone()).collect(),
            groups: program.windows.iter().map(|w| w.groups.0).collect(),
            watched: streams
                .map(|s| on(&|on| matches!(on, On::Emitted(stream) if stream.index() == s)))
                .collect(),
            slid: windows
                .map(|w| on(&|on| matches!(on, On::Slid(of) | On::Inserted(of) if of.index() == w)))
                .collect(),
            functions: Vec::new(),
            deadline_us: None,
        }
    }
}

impl Shapes {
    /// Returns the names of a stream's columns.
    pub fn names_of(&self, py: Python<'_>, stream: usize) -> &[Py<PyString>] {
        self.names[stream].get_or_init(|| {
            let columns = self.streams[stream].columns.iter();
            columns.map(|column| PyString::intern(py, &column.name).unbind()).collect()
        })
    }
}

impl TableShape {
    fn of(program: &Program, table: u16) -> TableShape {
        let (table, spec) = (TableId(table), &program.tables[usize::from(table)]);
        let mut unique = Vec::new();
        for index in program.indexes(table).iter().filter(|index| index.is_unique()) {
            unique.resize(spec.schema.len(), false);
            index.by().iter().for_each(|column| unique[*column] = true);
        }
        let is_watched = |on: On| matches!(on, On::Written { table: of, .. } if of == table);
        let watched = program.triggers.iter().any(|trigger| is_watched(trigger.on));
        let names = spec.schema.columns.iter().enumerate();
        let columns: Names = names.map(|(index, column)| (column.name.clone(), index)).collect();
        let mut attributes = columns.clone();
        attributes.retain(|name, _| !METHODS.contains(&&**name));
        let (spec, object) = (spec.clone(), OnceLock::new());
        TableShape { spec, columns, attributes, unique, watched, object }
    }

    /// Converts leading key columns to stored values.
    pub fn key(&self, given: &Bound<'_, PyTuple>) -> Result<Vec<Value>, Abort> {
        let mut key = Vec::with_capacity(given.len());
        for (value, column) in given.iter_borrowed().zip(&self.spec.key) {
            if value.is_none() {
                return Err(Fault(format!("null in the key of {}", self.spec.name).into()).into());
            }
            key.push(match stored(&value, &self.spec.schema.columns[*column])? {
                Value::Float(0.0) => Value::Float(0.0),
                value => value,
            });
        }
        Ok(key)
    }
}
