//! The Python binding of the benchmarks.
//!
//! The library also has the module `_native`, because it includes the crate `python`. A process
//! that measures loads this module from here, so it has one engine: see `tidemill_bench`.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use tidemill_bench::Way;
use tidemill_core::Error;
use tidemill_engine::Settings;
use tidemill_txn::Program;

use tidemill_python::{app_functions, detached, functions, to_python, NativeCluster};

/// Runs a benchmark. Returns its line of JSON. `program` is the workload's program from the
/// package, with its opaque functions. `progress` is called with lines for people.
#[pyfunction]
fn bench(
    py: Python<'_>,
    arguments: &str,
    program: Option<&str>,
    opaques: Vec<Py<PyAny>>,
    progress: Py<PyAny>,
) -> PyResult<String> {
    let opaques = match program {
        Some(json) => {
            let program = Program::from_json(json).map_err(|e| to_python(py, &e))?;
            functions(opaques, &program, Settings::default().deadline())
        }
        None => Vec::new(),
    };
    let mut report = |line: &str| {
        // A progress line that can't be shown does not end the run.
        let _ = Python::attach(|py| progress.call1(py, (line,)));
    };
    detached(py, || tidemill_bench::run_json(arguments, program, opaques, &mut report))
}

/// Sends the requests of a benchmark to a running cluster, and compares the results. It uses the
/// request server of a coordinator in this process, or else the topics of `kafka`: the brokers, the
/// cluster's name, and properties of librdkafka. Returns a line of JSON.
#[pyfunction]
#[pyo3(signature = (spec, opaques, arguments, offered, progress, cluster=None, kafka=None))]
#[allow(clippy::too_many_arguments)] // Python passes them by name.
fn offer(
    py: Python<'_>,
    spec: &str,
    opaques: Vec<Py<PyAny>>,
    arguments: &str,
    offered: &str,
    progress: Py<PyAny>,
    cluster: Option<&Bound<'_, NativeCluster>>,
    kafka: Option<(String, String, BTreeMap<String, String>)>,
) -> PyResult<String> {
    let (_, functions) = app_functions(py, spec, opaques)?;
    let way = match (cluster, kafka) {
        (Some(cluster), _) => Way::RequestServer(cluster.get().running()),
        (None, Some((brokers, cluster, properties))) => Way::Kafka { brokers, cluster, properties },
        (None, None) => {
            return Err(to_python(py, &Error::internal("neither a coordinator nor Kafka is given")))
        }
    };
    let mut report = |line: &str| {
        // A progress line that can't be shown does not end the run.
        let _ = Python::attach(|py| progress.call1(py, (line,)));
    };
    detached(py, || tidemill_bench::offer_json(arguments, offered, &functions, way, &mut report))
}

/// The compiled half of the package, described in `_bench.pyi`.
#[pymodule]
mod _bench {
    #[pymodule_export]
    use super::{bench, offer};
}
