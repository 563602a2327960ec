//! An app on several processes: its coordinator, and workers. Every call that may wait releases the
//! interpreter lock.

use std::sync::Arc;

use pyo3::prelude::*;

use tidemill_core::Error;
use tidemill_engine::{join, App, Cluster, ClusterSettings, JoinedWorker};
use tidemill_env::Env;
use tidemill_gateway::{Gateway, Plan};
use tidemill_host::Ended;

use crate::errors::{detached, to_python};
use crate::remote::app_functions;
use crate::waits::{aside, end, Unlocked};

fn settings(py: Python<'_>, json: &str) -> PyResult<ClusterSettings> {
    serde_json::from_str(json)
        .map_err(|e| to_python(py, &Error::setting(format!("settings of the cluster: {e}"))))
}

/// A coordinator in this process.
#[pyclass(frozen, name = "Cluster", module = "tidemill._native")]
pub struct NativeCluster {
    /// The gateway for clients, if the settings ask for it. It ends first.
    gateway: Unlocked<Option<Arc<Gateway>>>,
    cluster: Unlocked<Arc<Cluster>>,
}

#[pymethods]
impl NativeCluster {
    #[new]
    fn new(
        py: Python<'_>,
        spec: &str,
        opaques: Vec<Py<PyAny>>,
        cluster: &str,
        secret: Vec<u8>,
    ) -> PyResult<NativeCluster> {
        let (chosen, (spec, functions)) =
            (settings(py, cluster)?, app_functions(py, spec, opaques)?);
        let (gateway, cluster) = aside(py, move || {
            let env = Env::real();
            // Refusals come before anything runs.
            let plan = Plan::of(&spec.settings, &env)?;
            let cluster = Cluster::start(&spec, functions, &chosen, &secret, &env)?;
            let app: Arc<dyn App> = Arc::new(cluster.clients());
            let serve = |plan| cluster.logged(|| Gateway::start(plan, app, &env));
            let gateway = plan.map(serve).transpose()?;
            Ok((gateway.map(Arc::new), cluster))
        })?;
        Ok(NativeCluster { gateway: Unlocked::new(gateway), cluster: Unlocked::new(cluster) })
    }

    /// Returns the address at which workers join.
    #[getter]
    fn address(&self) -> String {
        self.cluster.address()
    }

    /// Returns the gateway's address, if there is a gateway.
    #[getter]
    fn http(&self) -> Option<String> {
        self.gateway.as_ref().map(|gateway| gateway.address().to_string())
    }

    /// Returns the state of the cluster, as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || Ok(self.cluster.status_json().to_string()))
    }

    /// Ends the cluster: first waiting clients are answered, then a snapshot is taken. Returns
    /// whether everything is in the snapshot. If no input except files that were read to their ends
    /// can follow (`more_input` is false), sinks are complete then.
    #[pyo3(signature = (more_input=true))]
    fn stop(&self, py: Python<'_>, more_input: bool) -> PyResult<bool> {
        let (gateway, cluster) = (Option::clone(&self.gateway), Arc::clone(&self.cluster));
        aside(py, move || {
            gateway.iter().for_each(|gateway| gateway.drain());
            gateway.iter().for_each(|gateway| gateway.stop());
            cluster.leave(more_input)
        })
    }
}

impl NativeCluster {
    /// Returns the coordinator.
    pub fn running(&self) -> Arc<Cluster> {
        Arc::clone(&self.cluster)
    }
}

/// A worker in this process.
#[pyclass(frozen, name = "Worker", module = "tidemill._native")]
pub struct NativeWorker {
    /// The gateway for clients, if the settings ask for it.
    gateway: Unlocked<Option<Arc<Gateway>>>,
    worker: Unlocked<Arc<JoinedWorker>>,
}

#[pymethods]
impl NativeWorker {
    #[new]
    fn new(
        py: Python<'_>,
        spec: &str,
        opaques: Vec<Py<PyAny>>,
        cluster: &str,
        secret: Vec<u8>,
        coordinator: &str,
    ) -> PyResult<NativeWorker> {
        let (chosen, (spec, functions)) =
            (settings(py, cluster)?, app_functions(py, spec, opaques)?);
        let coordinator = coordinator.to_owned();
        let (gateway, worker) = aside(py, move || {
            let env = Env::real();
            // Refusals come before anything runs.
            let plan = Plan::of(&spec.settings, &env)?;
            let worker = join(&spec, functions, &chosen, &secret, &coordinator, &env)?;
            let app: Arc<dyn App> = Arc::new(worker.clients.clone());
            let serve = |plan| worker.logged(|| Gateway::start(plan, app, &env));
            let gateway = plan.map(serve).transpose()?;
            Ok((gateway.map(Arc::new), Arc::new(worker)))
        })?;
        Ok(NativeWorker { gateway: Unlocked::new(gateway), worker: Unlocked::new(worker) })
    }

    /// Returns the gateway's address, if there is a gateway.
    #[getter]
    fn http(&self) -> Option<String> {
        self.gateway.as_ref().map(|gateway| gateway.address().to_string())
    }

    /// Returns the worker's number, as other processes show it.
    #[getter]
    fn number(&self) -> String {
        format!("{:08x}", self.worker.process.number())
    }

    /// Returns the address at which others reach the worker.
    #[getter]
    fn address(&self) -> String {
        self.worker.process.address().to_string()
    }

    /// Returns the worker's state, in words.
    fn status(&self) -> String {
        self.worker.process.status()
    }

    /// Returns what the worker waits for in vain, in words: a log or a store that does not answer.
    fn trouble(&self) -> Option<String> {
        self.worker.process.trouble()
    }

    /// Ends the worker when the others continue without it, and after a while if they don't. First
    /// its waiting clients are answered.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let (gateway, worker) = (Option::clone(&self.gateway), Arc::clone(&self.worker));
        aside(py, move || {
            gateway.iter().for_each(|gateway| gateway.drain());
            worker.process.leave();
            gateway.iter().for_each(|gateway| gateway.stop());
            Ok(())
        })
    }

    /// Waits this many seconds for the worker's end. Returns ("stopped", "refused" or "failed",
    /// why) if it has ended.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<(&'static str, String)>> {
        let wait_us = (seconds.max(0.0) * 1e6) as u64;
        let ended = detached(py, || Ok(self.worker.process.wait(wait_us)))?;
        Ok(ended.map(|ended| match ended {
            Ended::Stopped => ("stopped", String::new()),
            Ended::Refused(why) => ("refused", why),
            Ended::Failed(why) => ("failed", why),
        }))
    }
}

impl Drop for NativeWorker {
    fn drop(&mut self) {
        let (gateway, worker) = (Option::clone(&self.gateway), Arc::clone(&self.worker));
        end(move || {
            gateway.iter().for_each(|gateway| gateway.stop());
            worker.process.end();
        });
    }
}
