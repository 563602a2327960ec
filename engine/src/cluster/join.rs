//! A worker of a cluster.

use std::sync::Arc;

use tidemill_cluster::Log;
use tidemill_core::Result;
use tidemill_env::Env;
use tidemill_host::{WorkerLogs, WorkerProcess};
use tracing::dispatcher::with_default;
use tracing::Dispatch;

use super::backends::{self, log, store};
use super::clients::Requests;
use super::coordinate::open_log;
use super::feeds::{self, NearRows};
use super::format::Json;
use super::questions::Away;
use super::settings::address;
use super::topics::Topics;
use super::{fingerprint, Clients, ClusterSettings};
use crate::external::OutboxesOnNode;
use crate::functions::AppFunctions;
use crate::logging;
use crate::process_mode;
use crate::spec::AppSpec;
use crate::workers::Workers;

/// A worker in this process.
pub struct JoinedWorker {
    /// The worker.
    pub process: Arc<WorkerProcess>,
    /// The worker's process as the app's clients see it.
    pub clients: Clients,
    log: Dispatch,
}

impl JoinedWorker {
    /// Runs something that logs to the process's log.
    pub fn logged<T>(&self, body: impl FnOnce() -> T) -> T {
        with_default(&self.log, body)
    }
}

/// Joins the cluster whose coordinator is at an address, and executes its part of the app from then
/// on.
///
/// # Errors
/// When a setting is wrong, the store can't be opened, or the address is not available.
pub fn join(
    spec: &AppSpec,
    functions: Arc<AppFunctions>,
    settings: &ClusterSettings,
    secret: &[u8],
    coordinator: &str,
    env: &Env,
) -> Result<JoinedWorker> {
    let log = open_log(spec, settings, env)?;
    let begin = || begin(spec, functions, settings, secret, coordinator, env);
    let (process, clients) = with_default(&log, || begin().inspect_err(logging::failed))?;
    Ok(JoinedWorker { process, clients, log })
}

fn begin(
    spec: &AppSpec,
    functions: Arc<AppFunctions>,
    settings: &ClusterSettings,
    secret: &[u8],
    coordinator: &str,
    env: &Env,
) -> Result<(Arc<WorkerProcess>, Clients)> {
    spec.settings.check()?;
    logging::started(&spec.program.name, Some(&settings.dir), &spec.settings);
    backends::check(settings)?;
    process_mode::for_worker(&*env.disk, &settings.dir)?;
    let topics = Topics::open(spec, &functions, settings, env)?;
    let read = topics.read();
    let host = settings.host(spec, &read, secret, env)?;
    let at = address("join", coordinator)?;
    let json = Json::new(functions.clone(), fingerprint(spec));
    let (first, end) = (settings.sources, host.machine.sources);
    let log = log(settings, &host.cluster, None, (json, end - first), env)?;
    let files = end - feeds::count(spec)..end;
    let mut logs = WorkerLogs { log, inputs: Vec::new() };
    if !read.is_empty() {
        let rows: Arc<dyn Log> = Arc::new(topics.start(first, &functions, env)?);
        logs.inputs.push((first..files.start, rows));
    }
    let near = match files.is_empty() {
        true => None,
        false => Some(NearRows::start(spec, &functions, files.start, env)?),
    };
    logs.inputs.extend(near.iter().map(|near| (files.clone(), near.log.clone() as _)));
    let outboxes = OutboxesOnNode::of(spec, &functions, settings.sources, env)?;
    let threads = match spec.settings.workers {
        0 => env.threads.cores(),
        threads => threads,
    };
    let pool = Arc::new(Workers::start(env, threads)?);
    let store = store(settings, env)?;
    let on = (functions.clone() as _, pool as _);
    let worker = WorkerProcess::start(env, host, at, on, logs, store, outboxes)?;
    let worker = Arc::new(worker);
    near.iter().for_each(|near| near.has(worker.coordinator()));
    let server = worker.request_server(env, settings.sources);
    let requests = Requests::new(spec, &functions, settings, server, env);
    let away = Away::new(worker.clone(), requests.clone());
    let clients = requests.with(Arc::new(away));
    Ok((worker, clients))
}
