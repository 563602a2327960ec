//! Opaque functions: a Python function as a [`tidemill_txn::program::Opaque`].

use std::sync::{Arc, Mutex, TryLockError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tidemill_core::{Row, Schema, StreamId, TableId, Value};
use tidemill_txn::program::{
    Abort, AbortKind, Aggregate, EventBatch, Opaque, Tx, Window, WindowId,
};
use tidemill_txn::Program;

use crate::rules::fault;
use crate::values::{stored, to_tuple};

/// The transaction that an opaque function runs in. It lives as long as the call: kept beyond it,
/// every method raises.
#[pyclass(frozen, name = "Tx", module = "tidemill._native")]
pub struct NativeTx {
    state: Mutex<State>,
    shapes: Arc<Shapes>,
}

struct State {
    /// The engine's transaction while the call runs.
    tx: Option<Borrowed>,
    /// The first abort that the engine answered with. A function that catches the exception does
    /// not undo it.
    abort: Option<Abort>,
}

/// The transaction of the call that is running, without its lifetime.
struct Borrowed(*mut (dyn Tx + 'static));

// SAFETY: the pointer is used under the state's mutex only, and taken away (see `PyOpaque::call`)
// before the borrow it was made from ends. What stands behind it is not bound to a thread while
// the mutex serialises its users: the calling thread waits for the function meanwhile.
unsafe impl Send for Borrowed {}

/// Columns of the tables and streams of a program.
pub struct Shapes {
    tables: Vec<(Arc<Schema>, Vec<usize>)>,
    streams: Vec<Arc<Schema>>,
    windows: Vec<Arc<Schema>>,
    /// By window: the table of its groups.
    groups: Vec<u16>,
}

impl Shapes {
    /// Those of this program.
    pub fn of(program: &Program) -> Shapes {
        Shapes {
            tables: program.tables.iter().map(|t| (t.schema.clone(), t.key.clone())).collect(),
            streams: program.streams.iter().map(|s| s.spec.schema.clone()).collect(),
            windows: program.windows.iter().map(|w| w.schema.clone()).collect(),
            groups: program.windows.iter().map(|w| w.groups.0).collect(),
        }
    }

    fn window(&self, window: u16) -> PyResult<&Schema> {
        let schema = self.windows.get(usize::from(window));
        schema.map(|s| &**s).ok_or_else(|| PyRuntimeError::new_err("there is no such window"))
    }

    fn key(&self, table: u16, key: &Bound<'_, PyTuple>) -> PyResult<Vec<Value>> {
        let (schema, columns) = self
            .tables
            .get(usize::from(table))
            .ok_or_else(|| PyRuntimeError::new_err("there is no such table"))?;
        let mut values = Vec::with_capacity(columns.len());
        for (value, column) in key.iter().zip(columns) {
            let column = &schema.columns[*column];
            values.push(stored(&value, column).map_err(|f| fault(key.py(), &f))?);
        }
        Ok(values)
    }

    fn row(schema: &Schema, row: &Bound<'_, PyTuple>) -> PyResult<Vec<Value>> {
        if row.len() != schema.len() {
            return Err(PyRuntimeError::new_err("a row has a value for every column"));
        }
        row.iter()
            .zip(&schema.columns)
            .map(|(value, column)| stored(&value, column).map_err(|f| fault(row.py(), &f)))
            .collect()
    }
}

impl NativeTx {
    /// Runs `work` on the transaction. The interpreter lock is held: what the engine does here is
    /// short and never waits for another function.
    fn with<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut dyn Tx) -> Result<T, Abort>,
    ) -> PyResult<T> {
        // Never waits: whoever holds it is a function that is waiting for a trigger, which is this
        // thread.
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(PyRuntimeError::new_err(
                "the function whose transaction this is waits for a trigger: use the trigger's \
                     own tx",
            )),
        };
        if let Some(abort) = &state.abort {
            return Err(raise(py, abort));
        }
        let Some(Borrowed(tx)) = state.tx else {
            return Err(PyRuntimeError::new_err(
                "the transaction is over: tx and rows can't be kept beyond the handler",
            ));
        };
        // SAFETY: `tx` is set, so the call whose borrow it was made from is still running, and
        // the mutex makes this the only use.
        let result = work(unsafe { &mut *tx });
        result.map_err(|abort| {
            let error = raise(py, &abort);
            state.abort = Some(abort);
            error
        })
    }
}

fn raise(py: Python<'_>, abort: &Abort) -> PyErr {
    let name = match abort.kind {
        AbortKind::Refused | AbortKind::Raised | AbortKind::Overdue => "Abort",
        AbortKind::Fault => "Fault",
    };
    let raised = py
        .import("tidemill.errors")
        .and_then(|m| m.getattr(name))
        .and_then(|class| class.call1((abort.reason.clone(),)));
    raised.map_or_else(|e| e, PyErr::from_value)
}

#[pymethods]
impl NativeTx {
    /// The row with this key, or None when it is missing.
    fn get<'py>(
        &self,
        py: Python<'py>,
        table: u16,
        key: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let key = self.shapes.key(table, key)?;
        let row: Option<Row> = self.with(py, |tx| tx.get(TableId(table), &key))?;
        row.map(|row| to_tuple(py, &row)).transpose()
    }

    /// What a window over the versions of a row comes to; window and aggregate as JSON.
    fn window<'py>(
        &self,
        py: Python<'py>,
        table: u16,
        key: &Bound<'py, PyTuple>,
        column: u16,
        window: &str,
        aggregate: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let json = |e: serde_json::Error| PyRuntimeError::new_err(e.to_string());
        let window: Window = serde_json::from_str(window).map_err(json)?;
        let aggregate: Aggregate = serde_json::from_str(aggregate).map_err(json)?;
        let key = self.shapes.key(table, key)?;
        let found =
            self.with(py, |tx| tx.window(TableId(table), &key, &window, column, &aggregate))?;
        to_tuple(py, &[found])?.get_item(0)
    }

    /// The first rows whose keys are in a range, in key order.
    fn scan<'py>(
        &self,
        py: Python<'py>,
        table: u16,
        from: &Bound<'py, PyTuple>,
        to: &Bound<'py, PyTuple>,
        limit: usize,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let (from, to) = (self.shapes.key(table, from)?, self.shapes.key(table, to)?);
        let rows = self.with(py, |tx| tx.scan(TableId(table), &from, &to, limit))?;
        rows.iter().map(|row| to_tuple(py, row)).collect()
    }

    /// The first rows that have these leading key columns, in key order.
    fn find<'py>(
        &self,
        py: Python<'py>,
        table: u16,
        leading: &Bound<'py, PyTuple>,
        limit: usize,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let leading = self.shapes.key(table, leading)?;
        let rows = self.with(py, |tx| tx.find(TableId(table), &leading, limit))?;
        rows.iter().map(|row| to_tuple(py, row)).collect()
    }

    /// Puts a row into a window.
    fn window_insert(&self, py: Python<'_>, window: u16, row: &Bound<'_, PyTuple>) -> PyResult<()> {
        let row = Shapes::row(self.shapes.window(window)?, row)?;
        self.with(py, |tx| tx.window_insert(WindowId(window), &row))
    }

    /// Slides a window by time.
    fn window_advance(&self, py: Python<'_>, window: u16) -> PyResult<()> {
        self.with(py, |tx| tx.window_advance(WindowId(window)))
    }

    /// The active rows of a window.
    fn window_rows<'py>(&self, py: Python<'py>, window: u16) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        self.shapes.window(window)?;
        let rows = self.with(py, |tx| tx.window_rows(WindowId(window)))?;
        rows.iter().map(|row| to_tuple(py, row)).collect()
    }

    /// The groups of a window, or the one whose column is given as a tuple.
    fn window_groups<'py>(
        &self,
        py: Python<'py>,
        window: u16,
        group: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        self.shapes.window(window)?;
        let table = self.shapes.groups[usize::from(window)];
        let group = group.map(|group| self.shapes.key(table, group)).transpose()?;
        let group = group.as_ref().and_then(|group| group.first());
        let rows = self.with(py, |tx| tx.window_groups(WindowId(window), group))?;
        rows.iter().map(|row| to_tuple(py, row)).collect()
    }

    /// Makes or replaces a whole row.
    fn put(&self, py: Python<'_>, table: u16, row: &Bound<'_, PyTuple>) -> PyResult<()> {
        let (schema, _) = self
            .shapes
            .tables
            .get(usize::from(table))
            .ok_or_else(|| PyRuntimeError::new_err("there is no such table"))?;
        let row = Shapes::row(schema, row)?;
        self.with(py, |tx| tx.put(TableId(table), &row))
    }

    /// Removes a row.
    fn delete(&self, py: Python<'_>, table: u16, key: &Bound<'_, PyTuple>) -> PyResult<()> {
        let key = self.shapes.key(table, key)?;
        self.with(py, |tx| tx.delete(TableId(table), &key))
    }

    /// Emits an event.
    fn emit(&self, py: Python<'_>, stream: u16, row: &Bound<'_, PyTuple>) -> PyResult<()> {
        let schema = self
            .shapes
            .streams
            .get(usize::from(stream))
            .ok_or_else(|| PyRuntimeError::new_err("there is no such stream"))?;
        let row = Shapes::row(schema, row)?;
        self.with(py, |tx| tx.emit(StreamId(stream), &row))
    }

    /// The clock of the cut, as a timestamp.
    fn now<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let now_us = self.with(py, |tx| Ok(tx.now_us()))?;
        to_tuple(py, &[Value::Timestamp(now_us)])?.get_item(0)
    }

    /// The next random number, in two halves: the high one first.
    fn random(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let drawn = self.with(py, |tx| Ok(tx.random()))?;
        Ok(((drawn >> 64) as u64, drawn as u64))
    }
}

/// A Python function as an opaque function. It takes (event as a tuple, transaction) and gives
/// None, or (kind, reason) for an abort: the package's `opaque.py` makes it of the user's.
pub struct PyOpaque {
    function: Py<PyAny>,
    shapes: Arc<Shapes>,
    has_deadline: bool,
}

impl PyOpaque {
    /// Of this callable.
    pub fn new(function: Py<PyAny>, shapes: Arc<Shapes>, has_deadline: bool) -> PyOpaque {
        PyOpaque { function, shapes, has_deadline }
    }
}

/// The opaque functions of a program; with a deadline a call may be overdue.
pub fn functions(
    opaques: Vec<Py<PyAny>>,
    program: &Program,
    has_deadline: bool,
) -> Vec<Arc<dyn Opaque>> {
    let shapes = Arc::new(Shapes::of(program));
    let function = |f| Arc::new(PyOpaque::new(f, shapes.clone(), has_deadline)) as Arc<dyn Opaque>;
    opaques.into_iter().map(function).collect()
}

impl PyOpaque {
    /// Calls the function, or a method of it, with what is `given` and the transaction.
    fn run(
        &self,
        tx: &mut dyn Tx,
        method: Option<&str>,
        given: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>>,
    ) -> Result<(), Abort> {
        let raised = |reason: String| Abort { kind: AbortKind::Raised, reason };
        // SAFETY: only the lifetime changes. The pointer is taken back below before `tx` ends, and
        // `NativeTx::with` refuses afterwards.
        let borrowed =
            unsafe { std::mem::transmute::<*mut (dyn Tx + '_), *mut (dyn Tx + 'static)>(tx) };
        Python::attach(|py| {
            let state = State { tx: Some(Borrowed(borrowed)), abort: None };
            let native = NativeTx { state: Mutex::new(state), shapes: self.shapes.clone() };
            let native = Py::new(py, native).map_err(|e| raised(e.to_string()))?;
            let function = self.function.bind(py);
            let outcome = given(py).and_then(|given| match method {
                None => function.call1((given, native.clone_ref(py))),
                Some(method) => function.call_method1(method, (given, native.clone_ref(py))),
            });
            let abort = {
                let mut state = native.get().state.lock().unwrap_or_else(|e| e.into_inner());
                state.tx = None;
                state.abort.take()
            };
            if let Some(abort) = abort {
                return Err(abort);
            }
            let outcome = outcome.map_err(|e| raised(e.to_string()))?;
            if outcome.is_none() {
                return Ok(());
            }
            let (kind, reason): (String, String) =
                outcome.extract().map_err(|e: PyErr| raised(e.to_string()))?;
            let kind = match kind.as_str() {
                "refused" => AbortKind::Refused,
                "fault" => AbortKind::Fault,
                "overdue" => AbortKind::Overdue,
                _ => AbortKind::Raised,
            };
            Err(Abort { kind, reason })
        })
    }
}

impl Opaque for PyOpaque {
    fn may_be_overdue(&self) -> bool {
        self.has_deadline
    }

    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        self.run(tx, None, |py| Ok(to_tuple(py, event)?.into_any()))
    }

    fn call_batch(&self, batches: &[EventBatch], tx: &mut dyn Tx) -> Result<(), Abort> {
        self.run(tx, Some("call_batch"), |py| {
            let of = |batch: &EventBatch| {
                let events: PyResult<Vec<_>> =
                    batch.events.iter().map(|e| to_tuple(py, e)).collect();
                PyList::new(py, events?)
            };
            let batches: PyResult<Vec<_>> = batches.iter().map(of).collect();
            Ok(PyTuple::new(py, batches?)?.into_any())
        })
    }
}
