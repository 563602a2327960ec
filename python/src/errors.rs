//! Conversion of the engine's errors to the package's exceptions.

use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::prelude::*;
use pyo3::types::PyType;
use tidemill_core::Error;

/// Returns the exception of `tidemill.errors` for this error.
pub fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let class = py
        .import("tidemill.errors")
        .and_then(|m| m.getattr(error.kind.name()))
        .and_then(|c| Ok(c.cast_into::<PyType>()?));
    match class {
        Ok(class) => {
            PyErr::from_type(class, (error.what.clone(), error.help.clone(), error.at.clone()))
        }
        Err(failed) => failed,
    }
}

/// Runs `work` without the interpreter lock. A panic becomes an internal error, so that it never
/// reaches the user.
pub fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    py.detach(|| guarded(work)).map_err(|e| to_python(py, &e))
}

/// Runs `work` and converts a panic to an internal error.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown");
        Err(Error::internal(format!("the engine panicked: {text}")))
    })
}
