//! External work: a Python function as a [`tidemill_engine::Outside`].

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyTuple};
use tidemill_core::{Schema, Value};
use tidemill_engine::{GivesUp, Outside};

use crate::values::{stored, to_tuple};

/// A Python function for external work. It takes a row of the outbox, and a function that says
/// whether its answer is no longer needed. It returns the columns of the answer. The package's
/// `external.py` creates it from the user's function.
pub struct PyOutside {
    pub function: Py<PyAny>,
    /// The stream of answers.
    pub answers: Arc<Schema>,
}

impl PyOutside {
    fn call(&self, py: Python<'_>, asked: &[Value], gives_up: GivesUp) -> PyResult<Vec<Value>> {
        let gives_up = PyCFunction::new_closure(py, None, None, move |_, _| gives_up())?;
        let said = self.function.bind(py).call1((to_tuple(py, asked)?, gives_up))?;
        let mut row = Vec::with_capacity(self.answers.len());
        for (value, column) in said.cast::<PyTuple>()?.iter().zip(&self.answers.columns[1..]) {
            let value = stored(&value, column);
            row.push(value.map_err(|fault| PyValueError::new_err(fault.to_string()))?);
        }
        Ok(row)
    }
}

impl Outside for PyOutside {
    fn call(&self, asked: &[Value], gives_up: GivesUp) -> Vec<Value> {
        Python::attach(|py| {
            self.call(py, asked, gives_up).unwrap_or_else(|error| {
                // The last column is for the error.
                let mut row = vec![Value::Null; self.answers.len() - 2];
                row.push(Value::str(&error.to_string()));
                row
            })
        })
    }
}
