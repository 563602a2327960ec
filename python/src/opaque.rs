//! Opaque functions: a Python function as a [`tidemill_txn::program::Opaque`].

use std::cell::RefCell;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::iterator::PySendResult;
use pyo3::types::{PyDict, PyIterator, PyList, PyNone, PyString, PyTuple, PyType};
use tidemill_core::Value;
use tidemill_txn::program::{Abort, AbortKind, EventBatch, Opaque, Tx};
use tidemill_txn::Program;

use crate::attached::attached;
use crate::deadline::{overdue, Timed};
use crate::shapes::Shapes;
use crate::transaction::NativeTx;
use crate::values::{to_python, to_tuple};

/// A Python function as an opaque function. It takes (event as a tuple, transaction) and returns
/// None, or (kind, reason) for an abort. The package's `opaque.py` creates it from the user's
/// function.
pub struct PyOpaque {
    function: Py<PyAny>,
    shapes: Arc<Shapes>,
}

/// Returns the opaque functions of a program. With a deadline, a call may be overdue. A trigger's
/// time counts for the function that has caused it. Triggers of a declared transaction have a
/// deadline of their own.
pub fn functions(
    opaques: Vec<Py<PyAny>>,
    program: &Program,
    deadline_us: Option<i64>,
) -> Vec<Arc<dyn Opaque>> {
    let mut shapes = Shapes::of(program);
    shapes.deadline_us = deadline_us;
    let shapes = Arc::new(shapes);
    let function =
        |function| Arc::new(PyOpaque { function, shapes: shapes.clone() }) as Arc<dyn Opaque>;
    opaques.into_iter().map(function).collect()
}

/// Returns the result of a coroutine that waits for nothing from outside.
#[pyfunction]
pub fn finished<'py>(coroutine: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match sent(coroutine)? {
        PySendResult::Return(value) => Ok(value),
        PySendResult::Next(_) => Err(waits_outside(coroutine)?),
    }
}

/// Runs a coroutine until it ends or waits.
pub fn sent<'py>(coroutine: &Bound<'py, PyAny>) -> PyResult<PySendResult<'py>> {
    // SAFETY: the object need not be an iterator, because coroutines are none. Sending fails with
    // an exception if the object does not support it.
    let sent = unsafe { coroutine.cast_unchecked::<PyIterator>() };
    sent.send(&PyNone::get(coroutine.py()))
}

/// Ends a coroutine that waits for something for which no transaction waits.
pub fn waits_outside(coroutine: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    coroutine.call_method0("close")?;
    Ok(PyTypeError::new_err(
        "an async function awaits something that is not there yet: a transaction waits for \
         nothing from outside; fetch it before, and send it as an event or a parameter",
    ))
}

/// Returns the kind of an abort by the package's name.
pub fn kind(name: &str) -> AbortKind {
    match name {
        "refused" => AbortKind::Refused,
        "value" => AbortKind::Fault,
        _ => AbortKind::Raised,
    }
}

/// The package's `Event`.
static EVENT: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Creates an event for functions, with its columns as attributes.
fn event<'py>(
    py: Python<'py>,
    names: &[Py<PyString>],
    values: &[Value],
) -> PyResult<Bound<'py, PyAny>> {
    let class = EVENT.import(py, "tidemill.opaque", "Event")?;
    // SAFETY: the class is a Python class without `__new__`, so its objects only need to be
    // allocated, and have a dict. Both calls return new references, or null with an exception set.
    let (event, columns) = unsafe {
        let event =
            ffi::PyType_GenericNew(class.as_type_ptr(), std::ptr::null_mut(), std::ptr::null_mut());
        let event = Bound::from_owned_ptr_or_err(py, event)?;
        let columns = ffi::PyObject_GenericGetDict(event.as_ptr(), std::ptr::null_mut());
        (event, Bound::from_owned_ptr_or_err(py, columns)?)
    };
    let columns = columns.cast_into::<PyDict>()?;
    for (name, value) in names.iter().zip(values) {
        columns.set_item(name, to_python(py, value)?)?;
    }
    Ok(event)
}

/// The package's `Running`, which is a [`NativeTx`].
static RUNNING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

thread_local! {
    /// The objects of the thread's last transactions that no function has kept.
    static SPARE: RefCell<Vec<Py<NativeTx>>> = const { RefCell::new(Vec::new()) };
}

/// The largest number of spare objects. On a node, calls wait for each other, and each has its own.
const SPARE_MAX: usize = 16;

/// Returns a transaction in which a function can run. The caller returns it with [`spare`].
pub fn running<'py>(py: Python<'py>, shapes: &Arc<Shapes>) -> PyResult<Bound<'py, NativeTx>> {
    // The objects of other programs have other shapes.
    while let Some(spare) = SPARE.with_borrow_mut(Vec::pop) {
        if spare.get().is_of(shapes) {
            return Ok(spare.into_bound(py));
        }
    }
    let class = RUNNING.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("tidemill.opaque")?.getattr("Running")?.unbind())
    })?;
    Ok(class.bind(py).call0()?.cast_into::<NativeTx>()?)
}

/// Takes back the object of a finished transaction for another one, unless a function has kept it.
pub fn spare(running: Bound<'_, NativeTx>) {
    // SAFETY: it is an object, and the interpreter lock is held.
    if unsafe { ffi::Py_REFCNT(running.as_ptr()) } == 1 {
        keep(running);
    }
}

/// Takes back an object that no function has kept.
pub fn keep(running: Bound<'_, NativeTx>) {
    if SPARE.with_borrow(Vec::len) < SPARE_MAX {
        SPARE.with_borrow_mut(|spares| spares.push(running.unbind()));
    } else {
        drop(running.get().take_context());
    }
}

/// A lent transaction. It is taken back however its function ends, including by a panic that passes
/// through the interpreter.
struct Begun<'a>(Option<&'a NativeTx>);

impl Begun<'_> {
    /// Ends the transaction. Returns its abort, if there is one.
    fn end(mut self) -> Option<Abort> {
        self.0.take().and_then(NativeTx::end)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        drop(self.0.take().and_then(NativeTx::end));
    }
}

impl PyOpaque {
    /// Calls the function, or a method of it, with the `given` object and the transaction.
    fn run(
        &self,
        tx: &mut dyn Tx,
        method: Option<&str>,
        given: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>>,
    ) -> Result<(), Abort> {
        let raised = |e: PyErr| Abort { kind: AbortKind::Raised, reason: e.to_string() };
        attached(|py| {
            let running = running(py, &self.shapes).map_err(raised)?;
            let deadline_us = self.shapes.deadline_us.filter(|_| tx.has_deadline());
            running.get().begin(tx, &self.shapes);
            let begun = Begun(Some(running.get()));
            let function = self.function.bind(py);
            let given = given(py);
            let timed = Timed::begin(py, deadline_us).map_err(raised)?;
            let outcome = given.and_then(|given| match method {
                None => function.call1((given, &running)),
                Some(method) => function.call_method1(method, (given, &running)),
            });
            let is_overdue = timed.is_some_and(|timed| timed.end(py));
            let abort = begun.end();
            spare(running);
            let outcome = outcome.and_then(|outcome| match outcome.is_none() {
                true => Ok(None),
                false => outcome.extract::<(String, String)>().map(Some),
            });
            if is_overdue {
                // The function's result does not count, because its progress depends on the
                // machine.
                let reason = overdue(deadline_us);
                return Err(Abort { kind: AbortKind::Overdue, reason });
            }
            match (outcome, abort) {
                // The first abort counts, whatever the function has done with it.
                (_, Some(abort)) => Err(abort),
                (Ok(Some((why, reason))), None) => Err(Abort { kind: kind(&why), reason }),
                (Ok(None), None) => Ok(()),
                (Err(error), None) => Err(raised(error)),
            }
        })
    }
}

impl Opaque for PyOpaque {
    fn may_be_overdue(&self) -> bool {
        self.shapes.deadline_us.is_some()
    }

    fn has_one_lock(&self) -> bool {
        true
    }

    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        self.run(tx, None, |py| Ok(to_tuple(py, event)?.into_any()))
    }

    fn call_batch(&self, batches: &[EventBatch], tx: &mut dyn Tx) -> Result<(), Abort> {
        self.run(tx, Some("call_batch"), |py| {
            let of = |batch: &EventBatch| {
                let names = self.shapes.names_of(py, batch.stream.index());
                let events: PyResult<Vec<_>> =
                    batch.events.iter().map(|e| event(py, names, e)).collect();
                PyList::new(py, events?)
            };
            let batches: PyResult<Vec<_>> = batches.iter().map(of).collect();
            Ok(PyTuple::new(py, batches?)?.into_any())
        })
    }
}
