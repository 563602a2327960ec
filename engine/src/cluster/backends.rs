//! The log and the store that the settings name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_cluster::Log;
use tidemill_core::{Error, Result};
use tidemill_durable::{DirStore, Store};
use tidemill_env::Env;
use tidemill_kafka::{KafkaLog, KafkaSettings};
use tidemill_s3::{S3Options, S3Store};

use super::format::Json;
use super::program_file::Written;
use super::settings::Cuts;
use super::ClusterSettings;

const KAFKA: &str = "kafka://";
const S3: &str = "s3://";

/// The brokers of a log in Kafka.
pub(super) fn brokers(url: &str) -> Option<&str> {
    url.strip_prefix(KAFKA).map(|brokers| brokers.trim_end_matches('/'))
}

/// Refuses a log or store of an unknown kind, before anything is created.
///
/// # Errors
/// When a setting is wrong, with its name.
pub(super) fn check(settings: &ClusterSettings) -> Result<()> {
    if let Some(url) = settings.log.as_deref().filter(|url| brokers(url).is_none()) {
        return Err(Error::setting(format!("cluster_log is '{url}', which is not a log"))
            .help("give kafka://host:port, or nothing for a log that the coordinator serves"));
    }
    let is_unknown = |at: &&str| at.contains("://") && !at.starts_with(S3);
    if let Some(at) = settings.snapshots.as_deref().filter(is_unknown) {
        return Err(Error::setting(format!("cluster_snapshots is '{at}', which is not a store"))
            .help("give a directory that all processes see, or s3://bucket/prefix"));
    }
    Ok(())
}

/// Opens the log of an app with as many sources `elsewhere`; `None` where the coordinator serves
/// the log. `linger_ms` is how long appends wait for others, or the default.
///
/// # Errors
/// When the log can't be opened.
pub(super) fn log(
    settings: &ClusterSettings,
    name: &str,
    linger_ms: Option<u32>,
    (json, elsewhere): (Json, u32),
    env: &Env,
) -> Result<Option<Arc<dyn Log>>> {
    let Some(brokers) = settings.log.as_deref().and_then(brokers) else { return Ok(None) };
    let mut kafka = KafkaSettings::new(brokers, name, settings.sources);
    kafka.elsewhere = elsewhere;
    kafka.properties.clone_from(&settings.log_options);
    // Outputs that are already in one message do not wait for others.
    let together = (settings.together > 1).then_some(0);
    kafka.linger_ms = linger_ms.or(together).unwrap_or(kafka.linger_ms);
    kafka.replication = settings.log_replication;
    if settings.cuts == Cuts::Coordinator {
        kafka.cuts = None;
    }
    let log = KafkaLog::open(env, kafka, Arc::new(json))?;
    Ok(Some(Arc::new(log)))
}

/// Opens the store of the snapshots of a coordinator's directory, to read it.
///
/// # Errors
/// When it can't be opened.
pub(super) fn kept_store(dir: &Path, written: &Written, env: &Env) -> Result<Arc<dyn Store>> {
    let mut settings = ClusterSettings { dir: dir.to_path_buf(), ..ClusterSettings::default() };
    if let Some(kept) = &written.cluster {
        settings.snapshots.clone_from(&kept.snapshots);
        settings.snapshots_allow_http = kept.allow_http;
    }
    match folder(&settings) {
        Some(folder) => Ok(Arc::new(DirStore::alone(env.disk.clone(), folder))),
        None => in_bucket(&settings),
    }
}

/// Opens the store of snapshots.
///
/// # Errors
/// When it can't be opened.
pub(super) fn store(settings: &ClusterSettings, env: &Env) -> Result<Arc<dyn Store>> {
    let Some(folder) = folder(settings) else { return in_bucket(settings) };
    env.disk.keep_private(&folder);
    Ok(Arc::new(DirStore::shared(env, folder)?))
}

/// The folder of the snapshots, unless they are in a bucket.
fn folder(settings: &ClusterSettings) -> Option<PathBuf> {
    match settings.snapshots.as_deref() {
        None => Some(settings.dir.join("snapshots")),
        Some(url) if url.starts_with(S3) => None,
        Some(folder) => Some(folder.into()),
    }
}

fn in_bucket(settings: &ClusterSettings) -> Result<Arc<dyn Store>> {
    let options = S3Options {
        allow_http: settings.snapshots_allow_http,
        timeout_us: settings.snapshots_timeout_us,
        ..S3Options::default()
    };
    let url = settings.snapshots.as_deref().unwrap_or_default();
    Ok(Arc::new(S3Store::open(url, &options)?))
}
