//! The transaction in which a Python function runs, as tables, rows and streams use it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use tidemill_core::rules::{self, Fault};
use tidemill_core::{Schema, StreamId, TableId, Value};
use tidemill_function::Handle;
use tidemill_txn::program::{Abort, AbortKind, Aggregate, Asker, Take, Tx, Window, WindowId};

use crate::attached::attached;
use crate::deadline::{overdue, Timed};
use crate::remote::{unwound, OnNode};
use crate::row::{shown, Row};
use crate::rows::{engine, perform, Borrowed, Rows};
use crate::shapes::{Shapes, TableShape};
use crate::values::{stored, to_python, to_tuple};

/// The transaction in which a function runs. After the call every method raises.
#[pyclass(frozen, subclass, name = "Tx", module = "tidemill._native")]
pub struct NativeTx {
    rows: Mutex<Rows>,
    shapes: OnceLock<Arc<Shapes>>,
    /// On a node: the object that functions are given of it, which refers back to it.
    context: Mutex<Option<Py<PyAny>>>,
}

/// The first byte of an answer that took too long by its own limit.
const OVERDUE: &[u8] = b"!";

impl NativeTx {
    /// Begins the call. The caller takes the transaction back with [`NativeTx::end`].
    pub fn begin(&self, tx: &mut dyn Tx, shapes: &Arc<Shapes>) {
        // SAFETY: only the lifetime changes. The pointer is taken back before `tx` ends, and
        // `NativeTx::with` refuses afterwards.
        let tx = unsafe { std::mem::transmute::<*mut (dyn Tx + '_), *mut (dyn Tx + 'static)>(tx) };
        self.borrow(Borrowed::Engine(tx), shapes);
    }

    /// Begins a turn of a call on a node. Between turns the call keeps the rows that it has found.
    /// The caller takes the node back with [`NativeTx::leave`].
    pub fn enter(&self, node: &mut OnNode<'_>, shapes: &Arc<Shapes>) {
        // SAFETY: only the lifetime changes. The pointer is taken back before `node` ends, and
        // `NativeTx::with` refuses afterwards.
        let node = unsafe { std::mem::transmute::<*mut OnNode<'_>, *mut OnNode<'static>>(node) };
        self.borrow(Borrowed::Node(node), shapes);
    }

    fn borrow(&self, tx: Borrowed, shapes: &Arc<Shapes>) {
        let mut rows = self.rows.lock().unwrap_or_else(|e| e.into_inner());
        rows.tx = Some(tx);
        if !Arc::ptr_eq(&rows.shapes, shapes) {
            rows.shapes = shapes.clone();
        }
        // An object belongs to one program as long as it lives, so shapes that are set are these.
        let _ = self.shapes.set(shapes.clone());
    }

    /// Takes the node back.
    pub fn leave(&self) {
        self.rows.lock().unwrap_or_else(|e| e.into_inner()).tx = None;
    }

    /// Returns the outcome of a turn on a node: the returned value, the abort, if there is one, and
    /// the made calls at these places.
    pub fn outcome(&self, waits: &[usize]) -> (Option<Value>, Option<Abort>, Vec<Handle>) {
        let mut rows = self.rows.lock().unwrap_or_else(|e| e.into_inner());
        let waits = waits.iter().filter_map(|at| rows.made.get(*at).copied()).collect();
        (rows.returned.take(), rows.abort.take(), waits)
    }

    /// Ends the call. Returns the abort of its transaction, if it is known.
    pub fn end(&self) -> Option<Abort> {
        let mut rows = self.rows.lock().unwrap_or_else(|e| e.into_inner());
        let (held, abort) = (std::mem::take(&mut rows.held), rows.abort.take());
        (rows.tx, rows.returned) = (None, None);
        rows.made.clear();
        rows.by_key.clear();
        rows.active.clear();
        // Rows may hold the last reference to this very object.
        drop(rows);
        drop(held);
        abort
    }

    /// Returns the object that functions of entities are given of it, of this class.
    pub fn context<'py>(
        &self,
        running: &Bound<'py, NativeTx>,
        class: &Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = running.py();
        let known = self.take_context();
        let context = known.map_or_else(|| class.call1(py, (running,)), Ok)?;
        self.keep_context(context.clone_ref(py));
        Ok(context.into_bound(py))
    }

    /// Takes that object away.
    pub fn take_context(&self) -> Option<Py<PyAny>> {
        self.context.lock().unwrap_or_else(|e| e.into_inner()).take()
    }

    /// Sets the object that the next function in it is given.
    pub fn keep_context(&self, context: Py<PyAny>) {
        *self.context.lock().unwrap_or_else(|e| e.into_inner()) = Some(context);
    }

    /// Whether no function has run in it.
    pub fn is_new(&self) -> bool {
        self.context.lock().unwrap_or_else(|e| e.into_inner()).is_none()
    }

    /// Whether it belongs to a program with these shapes.
    pub fn is_of(&self, shapes: &Arc<Shapes>) -> bool {
        self.shapes.get().is_some_and(|own| Arc::ptr_eq(own, shapes))
    }

    /// Returns the shapes of tables and streams.
    pub fn shapes(&self, _: Python<'_>) -> PyResult<&Arc<Shapes>> {
        self.shapes.get().ok_or_else(over)
    }

    /// Does something with the rows. The interpreter lock is held: the engine's part here is short
    /// and never waits for another function.
    pub fn with<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Rows) -> Result<T, Abort>,
    ) -> PyResult<T> {
        let mut rows = self.rows()?;
        let result = match &rows.abort {
            Some(abort) => Err(abort.clone()),
            None if rows.is_unwound() => return Err(unwound()),
            None => work(&mut rows),
        };
        result.map_err(|abort| {
            if rows.is_unwound() {
                return unwound();
            }
            rows.abort.get_or_insert_with(|| abort.clone());
            drop(rows);
            raise(py, &abort)
        })
    }

    /// Returns the rows, while the transaction runs.
    fn rows(&self) -> PyResult<MutexGuard<'_, Rows>> {
        // This never waits. The lock's holder would be a function that waits for a trigger or for
        // the outside, and both run on this thread.
        let rows = match self.rows.try_lock() {
            Ok(rows) => rows,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(PyRuntimeError::new_err(
                "the function whose transaction this is waits for a trigger, which has a tx of its own, or \
                 for what outside says, which has none",
            )),
        };
        match rows.tx.is_some() {
            true => Ok(rows),
            false => Err(over()),
        }
    }

    /// Returns the number of a table of the package.
    fn table(&self, table: &Bound<'_, PyAny>) -> PyResult<usize> {
        let tables = &self.shapes(table.py())?.tables;
        let id = number(table, tables.len())?;
        let TableShape { spec, object, .. } = &tables[id];
        if object.get().is_some_and(|known| known.is(table)) {
            return Ok(id);
        }
        let name = table.getattr(intern!(table.py(), "name"))?;
        if name.cast::<PyString>()?.to_str()? != &*spec.name {
            return Err(of_another(table));
        }
        // The object that came first is the most frequent one. An app that was created twice has
        // another one.
        let _ = object.set(table.clone().unbind());
        Ok(id)
    }

    /// Returns the row whose function is about to run. It is its first row.
    pub fn own(
        slf: &Bound<'_, NativeTx>,
        table: &Bound<'_, PyAny>,
        id: usize,
        key: Vec<Value>,
    ) -> PyResult<Py<Row>> {
        let at = slf.get().with(slf.py(), |rows| Ok(rows.find(id, key)))?;
        NativeTx::row_at(slf, table, id, at)
    }

    /// Aborts if a row does not exist.
    pub fn needs(slf: &Bound<'_, NativeTx>, at: usize) -> PyResult<()> {
        slf.get().with(slf.py(), |rows| match rows.loaded(at)?.exists {
            true => Ok(()),
            false => Err(rows.refused(at, "does not exist")),
        })
    }

    /// Returns the one object of the row with this key.
    fn row_at(
        slf: &Bound<'_, NativeTx>,
        table: &Bound<'_, PyAny>,
        id: usize,
        at: usize,
    ) -> PyResult<Py<Row>> {
        let (py, tx) = (slf.py(), slf.get());
        if let Some(row) =
            tx.with(py, |rows| Ok(rows.held[at].object.as_ref().map(|o| o.clone_ref(py))))?
        {
            return Ok(row);
        }
        let row = Row { tx: slf.clone().unbind(), at, table: table.clone().unbind(), id };
        let row = Py::new(py, row)?;
        let kept = row.clone_ref(py);
        tx.with(py, |rows| {
            rows.held[at].object = Some(kept);
            Ok(())
        })?;
        Ok(row)
    }
}

fn over() -> PyErr {
    PyRuntimeError::new_err("the transaction is over: tx and rows can't be kept beyond the handler")
}

fn raise(py: Python<'_>, abort: &Abort) -> PyErr {
    let name = match abort.kind {
        AbortKind::Refused | AbortKind::Overdue => "Abort",
        AbortKind::Fault => "BadValue",
        AbortKind::Raised => "Fault",
    };
    let raised = py
        .import("tidemill.errors")
        .and_then(|m| m.getattr(name))
        .and_then(|class| class.call1((abort.to_string(),)));
    raised.map_or_else(|e| e, PyErr::from_value)
}

/// Returns the number of a table, stream or window of the package, which must be below `len`.
fn number(object: &Bound<'_, PyAny>, len: usize) -> PyResult<usize> {
    let id: usize = object.getattr(intern!(object.py(), "id"))?.extract()?;
    match id < len {
        true => Ok(id),
        false => Err(of_another(object)),
    }
}

fn of_another(object: &Bound<'_, PyAny>) -> PyErr {
    let shown = object.str().map_or_else(|_| "?".into(), |text| text.to_string());
    PyTypeError::new_err(format!("{shown} belongs to another app"))
}

/// Returns the values of a row of a stream or window, in order, with defaults for those that are
/// not given.
fn filled(
    of: &Bound<'_, PyAny>,
    schema: &Schema,
    given: &Bound<'_, PyDict>,
) -> PyResult<Result<Vec<Value>, Abort>> {
    let mut found: Vec<Option<Bound<'_, PyAny>>> = vec![None; schema.len()];
    let mut is_known = true;
    for (name, value) in given.iter() {
        let name = name.cast_into::<PyString>()?;
        let name = name.to_str()?;
        match schema.columns.iter().position(|column| *column.name == *name) {
            Some(column) => found[column] = Some(value),
            None => is_known = false,
        }
    }
    let mut row = Vec::with_capacity(schema.len());
    for (column, value) in schema.columns.iter().zip(found) {
        match (value, &column.default) {
            (Some(value), _) => match stored(&value, column) {
                Ok(value) => row.push(value),
                // Errors of the call come before errors of a value.
                Err(fault) if is_known => return Ok(Err(fault.into())),
                Err(_) => {}
            },
            (None, Some(value)) => row.push(rules::store(value, column).unwrap_or(Value::Null)),
            (None, None) if column.nullable => row.push(Value::Null),
            (None, None) => is_known = false,
        }
    }
    if !is_known {
        let py = of.py();
        py.import("tidemill.opaque")?.getattr("check_row")?.call1((of, given))?;
    }
    Ok(Ok(row))
}

#[pymethods]
impl NativeTx {
    #[new]
    fn new() -> NativeTx {
        NativeTx { rows: Mutex::default(), shapes: OnceLock::new(), context: Mutex::default() }
    }

    /// A row by key. Equal keys give one object.
    fn row(
        slf: &Bound<'_, NativeTx>,
        table: &Bound<'_, PyAny>,
        key: &Bound<'_, PyTuple>,
    ) -> PyResult<Py<Row>> {
        let (py, tx) = (slf.py(), slf.get());
        let id = tx.table(table)?;
        let key = tx.shapes(py)?.tables[id].key(key);
        let at = tx.with(py, |rows| Ok(rows.find(id, key?)))?;
        NativeTx::row_at(slf, table, id, at)
    }

    /// Whether a row exists.
    fn contains(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        key: &Bound<'_, PyTuple>,
    ) -> PyResult<bool> {
        let id = self.table(table)?;
        let key = self.shapes(py)?.tables[id].key(key);
        self.with(py, |rows| {
            let at = rows.find(id, key?);
            Ok(rows.loaded(at)?.exists)
        })
    }

    /// Creates a row. It replaces an existing one only with ``replace``.
    fn insert(
        slf: &Bound<'_, NativeTx>,
        table: &Bound<'_, PyAny>,
        values: &Bound<'_, PyDict>,
        replace: bool,
    ) -> PyResult<Py<Row>> {
        let (py, tx) = (slf.py(), slf.get());
        let id = tx.table(table)?;
        let shape = &tx.shapes(py)?.tables[id];
        let columns = &shape.spec.schema.columns;
        let mut given: Vec<(usize, Bound<'_, PyAny>)> = Vec::with_capacity(columns.len());
        let mut is_right = true;
        for (name, value) in values.iter() {
            let name = name.cast_into::<PyString>()?;
            match shape.columns.get(name.to_str()?) {
                Some(column) => given.push((*column, value)),
                None => is_right = false,
            }
        }
        let is_given = |column: usize| given.iter().any(|(given, _)| *given == column);
        let needed = |column: usize| {
            let spec = &columns[column];
            shape.spec.is_key(column) || (!spec.nullable && spec.default.is_none())
        };
        if !is_right || (0..columns.len()).any(|column| needed(column) && !is_given(column)) {
            // This raises an exception that says what is wrong.
            table.call_method1("row_values", (values, ""))?;
            return Err(PyTypeError::new_err("the table takes other values"));
        }
        let of = |column: &usize| {
            given.iter().find(|(given, _)| given == column).map(|(_, value)| value.clone())
        };
        let key = PyTuple::new(py, shape.spec.key.iter().filter_map(of).collect::<Vec<_>>())?;
        let key = shape.key(&key);
        let key = tx.with(py, |_| key)?;
        // Values are checked before the row is found, like the arguments of a call.
        let mut fresh = shape.spec.missing_row(&key);
        for (column, value) in given.iter().filter(|(column, _)| !shape.spec.is_key(*column)) {
            let value = stored(value, &columns[*column]);
            fresh[*column] = tx.with(py, |_| Ok(value?))?;
        }
        let at = tx.with(py, |rows| {
            let at = rows.find(id, key);
            if rows.loaded(at)?.exists && !replace {
                return Err(rows.refused(at, "exists already"));
            }
            rows.replace(py, at, fresh)?;
            Ok(at)
        })?;
        NativeTx::row_at(slf, table, id, at)
    }

    /// The rows of a range of keys, in key order or reverse. Without ``end``, those that begin with ``start``.
    fn scan<'py>(
        slf: &Bound<'py, NativeTx>,
        table: &Bound<'py, PyAny>,
        start: &Bound<'py, PyTuple>,
        end: Option<&Bound<'py, PyTuple>>,
        limit: Option<&Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let (py, tx) = (slf.py(), slf.get());
        let id = tx.table(table)?;
        let shape = &tx.shapes(py)?.tables[id];
        let (start, end) = (shape.key(start), end.map(|end| shape.key(end)).transpose());
        let found = tx.with(py, |rows| {
            rows.flush(py, Some(id))?;
            let (of, engine) = (TableId(id as u16), engine(&mut rows.tx));
            let found = match end? {
                Some(end) => engine.scan(of, &start?, &end, take(limit, reverse))?,
                None => engine.find(of, &start?, take(limit, reverse))?,
            };
            let mut places = Vec::with_capacity(found.len());
            for row in found {
                let key = shape.spec.key.iter().map(|column| row[*column].clone()).collect();
                let at = rows.find(id, key);
                rows.is(at, row);
                places.push(at);
            }
            Ok(places)
        })?;
        let found: PyResult<Vec<Py<Row>>> =
            found.into_iter().map(|at| NativeTx::row_at(slf, table, id, at)).collect();
        PyList::new(py, found?)
    }

    /// The rows of a range of an index. Without ``end``, those that begin with ``start``.
    fn find<'py>(
        slf: &Bound<'py, NativeTx>,
        index: &Bound<'py, PyAny>,
        start: &Bound<'py, PyTuple>,
        end: Option<&Bound<'py, PyTuple>>,
        limit: Option<&Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let (py, tx) = (slf.py(), slf.get());
        let (table, places) = (index.getattr("table")?, index.getattr("places")?);
        let places: Vec<usize> = places.extract()?;
        let (id, entries) = (tx.table(&table)?, tx.table(&index.getattr("entries")?)?);
        let shape = &tx.shapes(py)?.tables[entries];
        let (start, end) = (shape.key(start), end.map(|end| shape.key(end)).transpose());
        let found = tx.with(py, |rows| {
            rows.flush(py, Some(id))?;
            let (of, engine) = (TableId(entries as u16), engine(&mut rows.tx));
            let found = match end? {
                Some(end) => engine.scan(of, &start?, &end, take(limit, reverse))?,
                None => engine.find(of, &start?, take(limit, reverse))?,
            };
            let key = |entry: &[Value]| places.iter().map(|place| entry[*place].clone()).collect();
            Ok(found.iter().map(|entry| rows.find(id, key(entry))).collect::<Vec<_>>())
        })?;
        let found: PyResult<Vec<Py<Row>>> =
            found.into_iter().map(|at| NativeTx::row_at(slf, &table, id, at)).collect();
        PyList::new(py, found?)
    }

    /// The aggregate of a window over the versions of a row. Window and aggregate are given as
    /// JSON.
    fn read_window<'py>(
        &self,
        py: Python<'py>,
        row: &Bound<'py, Row>,
        column: u16,
        window: &str,
        aggregate: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let json = |e: serde_json::Error| PyRuntimeError::new_err(e.to_string());
        let window: Window = serde_json::from_str(window).map_err(json)?;
        let aggregate: Aggregate = serde_json::from_str(aggregate).map_err(json)?;
        let Row { at, id, .. } = row.get();
        let found = self.with(py, |rows| {
            rows.flush(py, Some(*id))?;
            let (tx, key) = (engine(&mut rows.tx), &rows.held[*at].key);
            tx.window(TableId(*id as u16), key, &window, column, &aggregate)
        })?;
        to_python(py, &found)
    }

    /// Emits an event into a stream: its columns by name.
    fn emit(
        &self,
        py: Python<'_>,
        stream: &Bound<'_, PyAny>,
        values: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let shapes = self.shapes(py)?;
        let id = number(stream, shapes.streams.len())?;
        let row = filled(stream, &shapes.streams[id], values)?;
        self.emit_values(py, id, row)
    }

    /// Emits the one value of a stream that has a single column.
    fn emit_value(
        &self,
        py: Python<'_>,
        stream: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let shapes = self.shapes(py)?;
        let id = number(stream, shapes.streams.len())?;
        let value = stored(value, &shapes.streams[id].columns[0]);
        self.emit_values(py, id, value.map(|value| vec![value]).map_err(Abort::from))
    }

    /// Puts a row into a window.
    fn window_insert(
        &self,
        py: Python<'_>,
        window: &Bound<'_, PyAny>,
        values: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let shapes = self.shapes(py)?;
        let id = number(window, shapes.windows.len())?;
        let row = filled(window, &shapes.windows[id], values)?;
        self.with(py, |rows| {
            let row = row?;
            let insert = |tx: &mut dyn Tx| tx.window_insert(WindowId(id as u16), &row);
            rows.shown(py, shapes.slid[id], insert)
        })
    }

    /// Slides a window by time.
    fn window_advance(&self, py: Python<'_>, window: &Bound<'_, PyAny>) -> PyResult<()> {
        let shapes = self.shapes(py)?;
        let id = number(window, shapes.windows.len())?;
        self.with(py, |rows| {
            rows.shown(py, shapes.slid[id], |tx| tx.window_advance(WindowId(id as u16)))
        })
    }

    /// The active rows of the window with this number.
    fn rows_of_window<'py>(
        &self,
        py: Python<'py>,
        window: u16,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let rows = self.with(py, |rows| engine(&mut rows.tx).window_rows(WindowId(window)))?;
        rows.iter().map(|row| to_tuple(py, row)).collect()
    }

    /// The groups of the window with this number, or the one whose column is given as a tuple.
    fn groups_of_window<'py>(
        &self,
        py: Python<'py>,
        window: u16,
        group: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let shapes = self.shapes(py)?;
        let table = &shapes.tables[usize::from(shapes.groups[usize::from(window)])];
        let group = group.map(|group| table.key(group)).transpose();
        let rows = self.with(py, |rows| {
            let group = group?;
            let group = group.as_ref().and_then(|group| group.first());
            engine(&mut rows.tx).window_groups(WindowId(window), group)
        })?;
        rows.iter().map(|row| to_tuple(py, row)).collect()
    }

    /// Marks the transaction as aborted, whatever its function goes on to do. The first reason
    /// counts.
    fn mark(&self, kind: &str, reason: String) -> PyResult<()> {
        let mut rows = self.rows()?;
        if !rows.is_unwound() {
            rows.abort.get_or_insert(Abort { kind: crate::opaque::kind(kind), reason });
        }
        Ok(())
    }

    /// Writes the changes.
    pub fn write_back(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |rows| {
            rows.refresh(None)?;
            for held in &mut rows.held {
                let spec = &rows.shapes.tables[held.table].spec;
                match held.written(py, spec)? {
                    Ok(write) => perform(&mut rows.tx, held, write)?,
                    Err(column) => {
                        let (row, column) =
                            (shown(spec, &held.key), &spec.schema.columns[column].name);
                        let what = format!("{row} has no value for column '{column}'");
                        return Err(Fault(what.into()).into());
                    }
                }
            }
            Ok(())
        })
    }

    /// The clock of the cut, as a timestamp.
    fn now<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let now_us = self.with(py, |rows| Ok(engine(&mut rows.tx).now_us()))?;
        to_python(py, &Value::Timestamp(now_us))
    }

    /// Returns the answer of a function that asks the outside, as msgpack. The answer is logged,
    /// and a replay uses it without asking. `question` is the text of the question.
    fn ask<'py>(
        &self,
        py: Python<'py>,
        question: &[u8],
        function: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let failed = Arc::new(Mutex::new(None));
        let deadline_us = self.shapes(py)?.deadline_us;
        let (function, fails) = (function.clone().unbind(), failed.clone());
        // On a node another thread asks, and perhaps after the end of this transaction.
        let ask = Asker::new(move || {
            attached(|py| {
                let timed = Timed::begin(py, deadline_us);
                let answer = function.call0(py).and_then(|answer| answer.extract::<Vec<u8>>(py));
                let is_overdue = timed.is_ok_and(|timed| timed.is_some_and(|timed| timed.end(py)));
                if is_overdue {
                    return [OVERDUE, overdue(deadline_us).as_bytes()].concat();
                }
                answer.unwrap_or_else(|error| {
                    *fails.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    Vec::new()
                })
            })
        });
        let answer = self.with(py, |rows| {
            let answer = engine(&mut rows.tx).lookup(question, &ask)?;
            match answer.strip_prefix(OVERDUE) {
                Some(reason) => {
                    let reason = String::from_utf8_lossy(reason).into_owned();
                    Err(Abort { kind: AbortKind::Overdue, reason })
                }
                None => Ok(answer),
            }
        });
        let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        match failed {
            // A missing answer is not reported: the call is over, or its time is up.
            Some(error) => Err(error),
            None => Ok(PyBytes::new(py, &answer?)),
        }
    }

    /// Calls a function of an entity, on a node.
    fn call(
        &self,
        py: Python<'_>,
        function: usize,
        key: &Bound<'_, PyTuple>,
        args: &Bound<'_, PyTuple>,
    ) -> PyResult<usize> {
        self.make_call(py, function, key, args)
    }

    /// Returns the result of a call on a node.
    fn settled<'py>(&self, py: Python<'py>, call: usize) -> PyResult<Bound<'py, PyAny>> {
        self.reply_of(py, call)
    }

    /// The row of the entity whose function runs, on a node.
    fn own_row(slf: &Bound<'_, NativeTx>) -> PyResult<Option<Py<Row>>> {
        slf.get().with(slf.py(), |rows| {
            Ok(rows.held.first().and_then(|held| Some(held.object.as_ref()?.clone_ref(slf.py()))))
        })
    }

    /// The next random number, in two halves: the high one first.
    fn random(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let drawn = self.with(py, |rows| Ok(engine(&mut rows.tx).random()))?;
        Ok(((drawn >> 64) as u64, drawn as u64))
    }
}

impl NativeTx {
    fn emit_values(
        &self,
        py: Python<'_>,
        stream: usize,
        row: Result<Vec<Value>, Abort>,
    ) -> PyResult<()> {
        let shapes = self.shapes(py)?;
        self.with(py, |rows| {
            let row = row?;
            let emit = |tx: &mut dyn Tx| tx.emit(StreamId(stream as u16), &row);
            rows.shown(py, shapes.watched[stream], emit)
        })
    }
}

/// Returns the number of rows that a limit allows. Negative limits allow none.
fn take(limit: Option<&Bound<'_, PyAny>>, reverse: bool) -> Take {
    let of = |limit: &Bound<'_, PyAny>| limit.extract::<u32>().unwrap_or(u32::MAX);
    let limit = limit.map_or(u32::MAX, of);
    if reverse {
        Take::Last(limit)
    } else {
        Take::First(limit)
    }
}
