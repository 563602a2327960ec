//! A worker of a cluster.

use std::sync::Arc;

use tidemill_core::Result;
use tidemill_env::Env;
use tidemill_host::WorkerProcess;

use super::doors::store;
use super::settings::address;
use super::ClusterSettings;
use crate::functions::{AppFunctions, Begins};
use crate::spec::AppSpec;

/// Joins the cluster whose coordinator is at an address, and executes its part of the app from then on.
///
/// # Errors
/// When a setting is wrong, something of the app does not run on several processes, or nobody can listen.
pub fn join(
    spec: &AppSpec,
    begins: Arc<dyn Begins>,
    settings: &ClusterSettings,
    secret: &[u8],
    coordinator: &str,
    env: &Env,
) -> Result<WorkerProcess> {
    let host = settings.host(spec, secret)?;
    let functions = AppFunctions::new(spec, begins)?;
    let at = address("join", coordinator)?;
    WorkerProcess::start(env, host, at, functions, None, store(settings, env)?)
}
