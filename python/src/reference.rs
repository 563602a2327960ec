//! The reference executor, for tests: the meaning of an app, one transaction at a time.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySequence};
use serde_json::Value as Json;
use tidemill_core::{Batch, Error, SourceId, SourceSpec, StreamId};
use tidemill_reference::{CutAt, InputRow};
use tidemill_txn::Program;

use crate::batches;
use crate::errors::{detached, to_python};
use crate::opaque::functions;

/// Returns the program in a spec's JSON, with its opaque functions.
fn program(py: Python<'_>, json: &str, opaques: Vec<Py<PyAny>>) -> PyResult<Program> {
    let mut program = Program::from_json(json).map_err(|e| to_python(py, &e))?;
    program.opaques = functions(opaques, &program, None);
    Ok(program)
}

/// Runs an app's program over events with the reference executor, in one cut. Returns tables and
/// outputs as dicts by name. `events` are (stream, rows) pairs, each one source.
#[pyfunction]
pub fn run_reference<'py>(
    py: Python<'py>,
    spec: &str,
    opaques: Vec<Py<PyAny>>,
    events: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let spec: Json =
        serde_json::from_str(spec).map_err(|e| PyValueError::new_err(e.to_string()))?;
    let mut program = program(py, &spec["program"].to_string(), opaques)?;
    let streams: HashMap<String, usize> =
        program.streams.iter().enumerate().map(|(i, s)| (s.spec.name.to_string(), i)).collect();
    let mut sources = Vec::new();
    for (name, rows) in pairs(events)? {
        let stream = *streams.get(&name).ok_or_else(|| PyValueError::new_err(name.clone()))?;
        let schema = program.streams[stream].spec.schema.clone();
        let batches = batches::from_python(&format!("stream {name}"), &schema, &rows)?;
        let rows = batches.iter().flat_map(|b| b.rows()).enumerate();
        let rows = rows.map(|(i, row)| InputRow { offset: i as u64, values: row.into() });
        sources.push(rows.collect::<Vec<_>>());
        let name = format!("{name}#{}", sources.len()).into();
        let stream = StreamId(stream as u16);
        program.sources.push(SourceSpec { name, stream, out_of_orderness_us: 0, idle_us: None });
    }
    program.check().map_err(|e| to_python(py, &e))?;
    let outcome = detached(py, || {
        let cut = CutAt {
            offsets: sources.iter().map(|s| s.len() as u64).collect(),
            clock_us: 0,
            idle: Vec::new(),
            ended: (0..sources.len() as u32).map(SourceId).collect(),
            ..CutAt::default()
        };
        Ok::<_, Error>(tidemill_reference::run(&program, &sources, &[cut]))
    })?;
    let (tables, outputs) = (PyDict::new(py), PyDict::new(py));
    for (spec, rows) in program.tables.iter().zip(&outcome.tables) {
        let batch = Batch::from_rows(spec.schema.clone(), rows.values().map(|r| &r[..]));
        tables.set_item(&*spec.name, batches::to_dicts(py, &batch)?)?;
    }
    for (stream, rows) in &outcome.outputs {
        let spec = &program.streams[stream.index()].spec;
        let batch = Batch::from_rows(spec.schema.clone(), rows.iter().map(|(_, r)| &r[..]));
        outputs.set_item(&*spec.name, batches::to_dicts(py, &batch)?)?;
    }
    let result = PyDict::new(py);
    result.set_item("tables", tables)?;
    result.set_item("outputs", outputs)?;
    result.set_item("aborts", outcome.aborts)?;
    result.set_item("dead", outcome.dead.len())?;
    Ok(result)
}

/// Extracts any sequence of pairs, for callers that need an order.
fn pairs<'py>(object: &Bound<'py, PyAny>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let sequence = object.cast::<PySequence>()?;
    sequence.try_iter()?.map(|pair| pair?.extract()).collect()
}
