//! The log and the store that the settings name.

use std::path::Path;
use std::sync::Arc;

use tidemill_core::{Error, Result};
use tidemill_durable::{DirStore, Store};
use tidemill_env::Env;

use super::ClusterSettings;

/// Threads that write and read objects.
const STORE_THREADS: usize = 2;

/// The store of snapshots.
///
/// # Errors
/// When it can't be opened.
pub(super) fn store(settings: &ClusterSettings, env: &Env) -> Result<Arc<dyn Store>> {
    let dir = match settings.snapshots.as_deref() {
        None => settings.dir.join("snapshots"),
        Some(text) if text.contains("://") => {
            return Err(Error::setting(format!("snapshots is '{text}', which is no store"))
                .help("give a directory that all processes see"));
        }
        Some(dir) => Path::new(dir).to_owned(),
    };
    Ok(Arc::new(DirStore::open(env, dir, STORE_THREADS)?))
}
