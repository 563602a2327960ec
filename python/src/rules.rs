//! The rules of values for Python: types when a program is traced, and results when a function runs
//! with real values. Both use the same implementation, `tidemill_core::rules`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::from_str;
use tidemill_core::rules::{self, Binary, Fault, Unary};
use tidemill_core::DataType;

use crate::values::{loose, to_python};

fn json<'a, T: serde::Deserialize<'a>>(text: &'a str) -> PyResult<T> {
    from_str(text).map_err(|e| PyValueError::new_err(format!("{text}: {e}")))
}

fn type_json(ty: Result<DataType, String>) -> PyResult<String> {
    let ty = ty.map_err(PyValueError::new_err)?;
    serde_json::to_string(&ty).map_err(|e| PyValueError::new_err(e.to_string()))
}

/// Returns the exception `tidemill.errors.BadValue` with this fault's text.
pub fn fault(py: Python<'_>, fault: &Fault) -> PyErr {
    let raised = py
        .import("tidemill.errors")
        .and_then(|m| m.getattr("BadValue"))
        .and_then(|class| class.call1((fault.to_string(),)));
    raised.map_or_else(|e| e, PyErr::from_value)
}

/// Returns the type of an operator's result, as JSON. `ValueError` says why there is none.
#[pyfunction]
pub fn unary_type(op: &str, operand: &str) -> PyResult<String> {
    type_json(rules::unary_type(&json::<Unary>(op)?, &json(operand)?))
}

/// Returns the type of an operator's result, as JSON. `ValueError` says why there is none.
#[pyfunction]
pub fn binary_type(op: &str, left: &str, right: &str) -> PyResult<String> {
    type_json(rules::binary_type(json::<Binary>(op)?, &json(left)?, &json(right)?))
}

/// Computes an operator. A fault is raised.
#[pyfunction]
pub fn unary<'py>(op: &str, operand: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = operand.py();
    let op = json::<Unary>(op)?;
    let result = loose(operand).and_then(|v| rules::unary(&op, &v));
    to_python(py, &result.map_err(|f| fault(py, &f))?)
}

/// Computes an operator. A fault is raised.
#[pyfunction]
pub fn binary<'py>(
    op: &str,
    left: &Bound<'py, PyAny>,
    right: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = left.py();
    let op = json::<Binary>(op)?;
    let result = loose(left).and_then(|l| rules::binary(op, &l, &loose(right)?));
    to_python(py, &result.map_err(|f| fault(py, &f))?)
}

/// Returns the name among `known` that `given` was probably meant to be.
#[pyfunction]
pub fn nearest(given: &str, known: Vec<String>) -> Option<String> {
    tidemill_core::error::nearest(given, known.iter().map(String::as_str)).map(String::from)
}
