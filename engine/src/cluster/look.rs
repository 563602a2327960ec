//! The newest snapshot of several processes, as the commands read it. Nothing is written or locked, so
//! the processes may run meanwhile. Their snapshots are at most a moment old.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{json, Value};
use tidemill_cluster::wire::take_manifest_object;
use tidemill_cluster::Manifest;
use tidemill_core::{Error, Kind, Result};
use tidemill_durable::{Store, Within};
use tidemill_env::{Disk, Env};
use tidemill_log::{LogKind, LogSpec};

use super::backends::kept_store;
use super::log_of;
use super::program_file::Written;
use super::retained::RingStore;
use super::sinks::Note;
use super::to_one::counts;
use super::upgrade::left;
use crate::process_mode::CLUSTER;
use crate::schema::Left;
use crate::settings::SEGMENT_BYTES_MIN;

/// How often the snapshot is read again when the processes have removed its objects.
const TRIES: usize = 3;
/// The prefix of manifests among the objects.
pub(super) const MANIFEST: &str = "manifest-";

/// The state of several processes in a data directory.
pub(crate) struct LookedAt {
    /// The newest snapshot, with the numbers of rows. It names no sources and sinks.
    pub(crate) left: Left,
    pub(crate) store: Arc<dyn Store>,
    manifest: Manifest,
    /// The folder, and the cluster's name.
    cluster: PathBuf,
    name: String,
    disk: Arc<dyn Disk>,
}

impl LookedAt {
    /// Reads the newest snapshot of a data directory.
    ///
    /// # Errors
    /// When there is none in the directory, or it is damaged.
    pub(crate) fn newest(env: &Env, dir: &Path) -> Result<LookedAt> {
        let cluster = dir.join(CLUSTER);
        let written = Written::read(&*env.disk, &cluster)?.ok_or_else(|| nothing(&cluster))?;
        let (name, root) = (written.name(), kept_store(&cluster, &written, env)?);
        let (is, store): (_, Arc<dyn Store>) = (written.is, Arc::new(Within::new(root, &name)));
        let mut tries = 0;
        loop {
            tries += 1;
            let read = || -> Result<(Left, Manifest)> {
                let manifest = newest(&*store)?.ok_or_else(|| nothing(&cluster))?;
                let mut left = left(&store, &is.app, &manifest)?;
                let run = Note::of(&manifest.written)?.run();
                left.internal.rings = RingStore::open(&store, run)?.1;
                Ok((left, manifest))
            };
            match read() {
                Err(error) if error.kind == Kind::Io && tries < TRIES => {}
                Err(error) => return Err(error),
                Ok((mut left, manifest)) => {
                    left.internal.facts.clock_us = manifest.clock_us;
                    left.internal.facts.counts = counts(&left.stored, &manifest);
                    left.internal.facts.reasons = manifest.counts.reasons.clone();
                    let disk = env.disk.clone();
                    return Ok(LookedAt { left, store, manifest, cluster, name, disk });
                }
            }
        }
    }

    /// Reads everything that counts, and compares all checksums.
    ///
    /// # Errors
    /// When anything is damaged.
    pub(crate) fn verify(&self) -> Result<Value> {
        let (_, records) = self.records()?;
        let (mut files, mut bytes) = (0u64, 0u64);
        crate::serve::count(&*self.disk, &self.cluster, &mut files, &mut bytes)
            .map_err(|e| Error::io(self.cluster.display(), &e))?;
        let rows: u64 = self.left.internal.facts.tables.iter().sum();
        Ok(json!({
            "app": self.left.stored.program.name, "epoch": self.manifest.epoch, "snapshots": 1,
            "rows": rows, "records": records.end - records.start, "files": files, "bytes": bytes,
        }))
    }
}

impl LookedAt {
    /// Reads the served log. Returns its description, and the numbers of its records.
    ///
    /// # Errors
    /// When it is damaged.
    pub(crate) fn records(&self) -> Result<(LogSpec, Range<u64>)> {
        let (dir, kind, app) = (self.cluster.join("log"), LogKind::Cuts, log_of(&self.name));
        let spec = LogSpec { dir, kind, app, segment_bytes: SEGMENT_BYTES_MIN };
        let first = tidemill_log::first(&*self.disk, &spec)?;
        let mut end = first;
        for record in tidemill_log::read(self.disk.clone(), &spec, first)? {
            end = record?.number + 1;
        }
        Ok((spec, first..end))
    }
}

/// Returns the newest of the manifests in a store.
fn newest(store: &dyn Store) -> Result<Option<Manifest>> {
    let mut newest: Option<Manifest> = None;
    let all = store.list("")?.into_iter();
    for object in all.filter(|object| object.name.starts_with(MANIFEST)) {
        // It may have been removed meanwhile, because there is a newer one.
        let Some(bytes) = store.get(&object.name)? else { continue };
        let manifest = take_manifest_object(&bytes).filter(|found| !found.is_of_before());
        let manifest = manifest.ok_or_else(|| {
            let name = object.name;
            let what = format!("{name}, the manifest of a snapshot, is damaged or of an earlier version");
            Error::new(Kind::Io, what).help(
                "start the app with --processes N, which stores an earlier one again; or restore a backup: tidemill restore",
            )
        })?;
        if newest.as_ref().is_none_or(|newest| newest.id() < manifest.id()) {
            newest = Some(manifest);
        }
    }
    Ok(newest)
}

fn nothing(cluster: &Path) -> Error {
    Error::setting(format!("{} has no snapshot", cluster.display()))
        .help("start the app with --processes N, which leaves one")
}
