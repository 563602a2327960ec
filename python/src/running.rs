//! Requests to a running engine, and to the data of a stopped one.

use std::path::Path;
use std::sync::Mutex;

use pyo3::prelude::*;
use tidemill_engine::{Next, Replies, Way};
use tidemill_env::Env;

use crate::errors::detached;
use crate::mill::app_spec;

/// The time between two checks for signals, in microseconds.
const LOOK_US: u64 = 200_000;

/// The lines of a reply; see `docs/internals/protocol.md`.
#[pyclass(frozen, name = "Replies", module = "tidemill._native")]
pub struct NativeReplies(Mutex<Replies>);

#[pymethods]
impl NativeReplies {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Waits without the interpreter lock, and checks for signals from time to time.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            let next = detached(py, || {
                let mut replies = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                Ok(replies.within(LOOK_US))
            })?;
            match next {
                Next::Line(line) => return Ok(Some(line)),
                Next::End => return Ok(None),
                Next::Waiting => py.check_signals()?,
            }
        }
    }
}

/// Sends a request to the engine of a data directory, running or stopped.
#[pyfunction]
pub fn ask(py: Python<'_>, data_dir: &str, request: &str) -> PyResult<NativeReplies> {
    let replies =
        detached(py, || Ok(tidemill_engine::ask(&Env::real(), Path::new(data_dir), request)))?;
    Ok(NativeReplies(Mutex::new(replies)))
}

/// Returns the files that `--fresh` would delete in a data directory, or in a coordinator's.
#[pyfunction]
pub fn fresh_deletes(py: Python<'_>, path: &str, is_coordinator: bool) -> PyResult<Vec<String>> {
    detached(py, || tidemill_engine::fresh_deletes(&Env::real(), Path::new(path), is_coordinator))
}

/// Returns the settings, as JSON, with which a killed run must be finished before the app goes on in
/// one process or on several: in the other way. Returns `None` if there is no such run.
#[pyfunction]
pub fn unfinished(py: Python<'_>, data_dir: &str, on_several: bool) -> PyResult<Option<String>> {
    let wanted = if on_several { Way::Several } else { Way::One };
    let find = || Ok(tidemill_engine::unfinished(&Env::real(), Path::new(data_dir), wanted));
    Ok(detached(py, find)?.map(|settings| settings.to_string()))
}

/// Returns the changes of an upgrade of a data directory to this app, as JSON.
#[pyfunction]
pub fn schema_diff(
    py: Python<'_>,
    spec: &str,
    opaques: Vec<Py<PyAny>>,
    data_dir: &str,
) -> PyResult<String> {
    let spec = app_spec(py, spec, opaques)?;
    detached(py, || {
        Ok(tidemill_engine::schema_diff(&Env::real(), Path::new(data_dir), &spec)?.to_string())
    })
}

/// Returns what is wrong with directives for the log and how to mend them, or `None`.
#[pyfunction]
pub fn log_fault(directives: &str) -> Option<(String, String)> {
    tidemill_engine::log_filter(directives).err().map(|error| (error.what, error.help))
}
