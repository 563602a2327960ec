//! A running app. Every call that may wait releases the interpreter lock.

use std::collections::HashMap;
use std::sync::mpsc::{sync_channel, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use serde::Serialize;
use tidemill_core::batch::arrow_schema;
use tidemill_core::{Batch, Error, Schema, Value};
use tidemill_engine::{AppSpec, Mill, Reply, Summary, TrySend};
use tidemill_env::Env;
use tidemill_gateway::{Gateway, Plan};

use crate::errors::{detached, to_python};
use crate::external::PyOutside;
use crate::opaque::functions;
use crate::values::{loose, to_tuple};
use crate::waits::{aside, detach, end, patiently};
use crate::{arrow, batches};

/// A running app, which the package's `Mill` wraps.
#[pyclass(frozen, name = "Mill", module = "tidemill._native")]
pub struct NativeMill {
    running: Arc<Running>,
    schemas: HashMap<String, Arc<Schema>>,
    /// The id of the process that it runs in. A forked child has a different one.
    process: u32,
}

/// An engine, and the gateway for its clients.
struct Running {
    /// The gateway, if the settings ask for it. It ends first.
    gateway: Option<Gateway>,
    mill: Arc<Mill>,
}

/// Returns the spec of an app with its functions: those of the program, followed by those for
/// external work.
pub(crate) fn app_spec(
    py: Python<'_>,
    spec: &str,
    mut opaques: Vec<Py<PyAny>>,
) -> PyResult<AppSpec> {
    let mut spec: AppSpec = serde_json::from_str(spec)
        .map_err(|e| to_python(py, &Error::internal(format!("the app's JSON: {e}"))))?;
    let deadline_us = spec.settings.deadline();
    let AppSpec { program, externals, .. } = &mut spec;
    for external in externals.iter_mut().rev() {
        let answers = program.streams.iter().find(|s| *s.spec.name == *external.answers);
        let (Some(answers), true) = (answers, external.function < opaques.len()) else { continue };
        let function = opaques.swap_remove(external.function);
        let answers = answers.spec.schema.clone();
        external.outside = Some(Arc::new(PyOutside { function, answers }));
    }
    spec.program.opaques = functions(opaques, &spec.program, deadline_us);
    Ok(spec)
}

fn json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|e| Error::internal(format!("writing JSON: {e}")))
}

impl Running {
    /// Ends the engine in one of its ways. Waiting clients are answered before, and are notified of
    /// the end.
    fn end(&self, end: fn(&Mill) -> Result<Summary, Error>) -> Result<Summary, Error> {
        self.gateway.iter().for_each(Gateway::drain);
        let ended = end(&self.mill);
        self.gateway.iter().for_each(Gateway::stop);
        ended
    }
}

#[pymethods]
impl NativeMill {
    #[new]
    fn new(py: Python<'_>, spec: &str, opaques: Vec<Py<PyAny>>) -> PyResult<NativeMill> {
        let spec = app_spec(py, spec, opaques)?;
        let streams = &spec.program.streams;
        let schemas =
            streams.iter().map(|s| (s.spec.name.to_string(), s.spec.schema.clone())).collect();
        let running = aside(py, || {
            let env = Env::real();
            // Refusals come before anything runs.
            let plan = Plan::of(&spec.settings, &env)?;
            let mill = Arc::new(Mill::start(spec, env.clone())?);
            let serve = |plan| mill.logged(|| Gateway::start(plan, mill.clone(), &env));
            let gateway = plan.map(serve).transpose()?;
            Ok(Arc::new(Running { gateway, mill }))
        })?;
        Ok(NativeMill { running, schemas, process: std::process::id() })
    }

    /// Returns the gateway's address, if there is a gateway.
    fn address(&self) -> Option<String> {
        self.running.gateway.as_ref().map(|gateway| gateway.address().to_string())
    }

    /// Sends rows. Returns the number of the row after them, for `acknowledge`.
    fn send(&self, stream: &str, rows: &Bound<'_, PyAny>) -> PyResult<u64> {
        let py = rows.py();
        let schema = self
            .schemas
            .get(stream)
            .ok_or_else(|| PyValueError::new_err(format!("there is no stream {stream}")))?;
        // All rows are converted before the first is sent.
        let batches = batches::from_python(&format!("stream {stream}"), schema, rows)?;
        let mut sent = 0;
        for batch in batches.into_iter().filter(|batch| !batch.is_empty()) {
            let mut left = Some(batch);
            sent = patiently(py, |us| {
                let batch = left.take().expect("it has come back");
                match self.running.mill.send_within(stream, batch, us)? {
                    TrySend::Sent(sent) => Ok(Some(sent)),
                    TrySend::Full(back) => {
                        left = Some(back);
                        Ok(None)
                    }
                }
            })?;
        }
        Ok(sent)
    }

    /// Calls a procedure with a row of arguments. Returns ("returned", row or None), ("aborted",
    /// reason), or ("fault", the exception of its function).
    fn call<'py>(
        &self,
        procedure: &str,
        arguments: &Bound<'py, PyAny>,
    ) -> PyResult<(&'static str, Option<Bound<'py, PyAny>>)> {
        let py = arguments.py();
        let schema = self
            .schemas
            .get(&format!("{procedure}.calls"))
            .ok_or_else(|| PyValueError::new_err(format!("there is no procedure {procedure}")))?;
        let batches = batches::from_python(&format!("procedure {procedure}"), schema, arguments)?;
        let [batch] = <[Batch; 1]>::try_from(batches)
            .map_err(|_| PyValueError::new_err("a call has one row of arguments"))?;
        let (tell, told) = sync_channel(1);
        // The caller may have stopped waiting.
        let then = Box::new(move |reply| drop(tell.try_send(reply)));
        detached(py, || self.running.mill.call_then(procedure, batch, None, then))?;
        let reply = patiently(py, move |us| match told.recv_timeout(Duration::from_micros(us)) {
            Ok(reply) => reply.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::resource("the engine has stopped before the call was answered")
                    .help("the next start shows whether it was executed"))
            }
        })?;
        match reply {
            Reply::Returned(None) => Ok(("returned", None)),
            Reply::Returned(Some(row)) => {
                let row = to_tuple(py, &row)?;
                Ok(("returned", Some(row.into_any())))
            }
            Reply::Aborted(reason) => Ok(("aborted", Some(PyString::new(py, &reason).into_any()))),
            Reply::Faulted { what, at } => {
                let text = at.map_or(what.clone(), |at| format!("{what} ({at})"));
                Ok(("fault", Some(PyString::new(py, &text).into_any())))
            }
            Reply::OtherRequest => Err(to_python(
                py,
                &Error::internal("a call without an id has the id of another one"),
            )),
        }
    }

    fn sent(&self, py: Python<'_>, stream: &str) -> PyResult<u64> {
        detached(py, || self.running.mill.sent(stream))
    }

    fn acknowledge(&self, py: Python<'_>, stream: &str, rows: u64) -> PyResult<()> {
        patiently(py, |us| {
            Ok(self.running.mill.acknowledge_within(stream, rows, us)?.then_some(()))
        })
    }

    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let number = detached(py, || Ok(self.running.mill.ask_to_drain()))?;
        patiently(py, |us| Ok(self.running.mill.drained_within(number, us)?.then_some(())))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let running = self.running.clone();
        aside(py, move || json(&running.end(Mill::finish)?))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<String> {
        let running = self.running.clone();
        aside(py, move || json(&running.end(Mill::stop)?))
    }

    /// Ends like `stop`, but without waiting, for callers that must not wait.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running.clone();
        // No caller is left for the result.
        detach(py, move || drop(running.end(Mill::stop)))
    }

    fn stop_now(&self, py: Python<'_>) -> PyResult<String> {
        let running = self.running.clone();
        aside(py, move || json(&running.end(Mill::stop_now)?))
    }

    fn wait(&self, py: Python<'_>, timeout_us: u64) -> PyResult<bool> {
        let mut left_us = timeout_us;
        patiently(py, |us| {
            let us = us.min(left_us);
            left_us -= us;
            let has_ended = self.running.mill.wait(us)?;
            Ok((has_ended || left_us == 0).then_some(has_ended))
        })
    }

    fn status(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || json(&self.running.mill.status()))
    }

    /// Returns the reasons of the faults so far, as JSON.
    fn faults(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || json(&self.running.mill.faults()))
    }

    fn summary(&self, py: Python<'_>) -> PyResult<String> {
        self.recovered(py)?;
        detached(py, || json(&self.running.mill.summary()?))
    }

    fn table_rows<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        self.recovered(py)?;
        let batch = detached(py, || self.running.mill.table(name))?;
        batches::to_dicts(py, &batch)
    }

    /// Returns one row as a dict, or `None`. Key values that do not fit their columns give no row.
    fn table_row<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        key: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let values = key.iter().map(loose).collect::<Result<Vec<Value>, _>>();
        let values = values.map_err(|fault| PyValueError::new_err(fault.to_string()))?;
        self.recovered(py)?;
        let row = detached(py, || self.running.mill.row(name, &values))?;
        let Some(row) = row else { return Ok(None) };
        let schema = detached(py, || self.running.mill.schema(name))?;
        let batch = Batch::from_rows(schema, [&row[..]]);
        batches::to_dicts(py, &batch)?.get_item(0).map(Some)
    }

    fn table_arrow<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.recovered(py)?;
        let batch = detached(py, || self.running.mill.table(name)?.to_arrow())?;
        arrow::record_batch(py, batch)
    }

    fn output_rows<'py>(
        &self,
        py: Python<'py>,
        stream: &str,
        start: usize,
    ) -> PyResult<Vec<Bound<'py, PyList>>> {
        let batches = detached(py, || self.running.mill.output(stream, start))?;
        batches.iter().map(|batch| batches::to_dicts(py, batch)).collect()
    }

    fn output_arrow<'py>(&self, py: Python<'py>, stream: &str) -> PyResult<Bound<'py, PyAny>> {
        let batches = detached(py, || self.running.mill.output(stream, 0))?;
        let schema: Option<Arc<Schema>> = batches
            .first()
            .map(|b: &Batch| b.schema().clone())
            .or(self.schemas.get(stream).cloned());
        let schema = Arc::new(arrow_schema(schema.as_deref().unwrap_or(&Schema::default())));
        let batches =
            detached(py, || batches.iter().map(Batch::to_arrow).collect::<Result<_, _>>())?;
        arrow::table(py, schema, batches)
    }
}

impl NativeMill {
    /// Waits until the recorded epochs have been executed again. Tables can't be read before.
    fn recovered(&self, py: Python<'_>) -> PyResult<()> {
        patiently(py, |us| Ok(self.running.mill.recovered_within(us)?.then_some(())))
    }
}

impl Drop for NativeMill {
    fn drop(&mut self) {
        let running = self.running.clone();
        if self.process != std::process::id() {
            // The threads and the files of the value belong to the parent process.
            std::mem::forget(running);
            return;
        }
        // Nobody is left for the summary or an error.
        end(move || drop(running.end(Mill::stop)));
    }
}

/// Closes the parent's locks and sockets. A forked child calls this before anything else.
#[pyfunction]
pub fn forked() {
    tidemill_env::forks::forked();
}

/// Describes a program and how it will run, without running it.
#[pyfunction]
pub fn inspect(py: Python<'_>, spec: &str, opaques: Vec<Py<PyAny>>) -> PyResult<String> {
    let spec = app_spec(py, spec, opaques)?;
    detached(py, || Ok(Mill::inspect(&spec)?.to_string()))
}

/// Returns the hash of a token, as a file of tokens has it.
#[pyfunction]
pub fn token_digest(token: &str) -> String {
    tidemill_gateway::digest(token)
}
