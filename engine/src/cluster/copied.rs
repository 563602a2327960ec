//! Copies of the state of several processes, running or stopped.
//!
//! The log is copied up to a record that was durable. The objects of its newest snapshot follow.
//! Everything that was answered before is among these. The retained rows of streams are copied
//! before the log, so that it has the transactions that caused them. Processes that run may remove
//! objects and records meanwhile, when there is a newer snapshot. Then the copy begins again.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use tidemill_cluster::wire::put_manifest_object;
use tidemill_cluster::Manifest;
use tidemill_core::{Error, Kind, Result};
use tidemill_durable::{name_taken, DirStore, Store, Within};
use tidemill_env::Env;
use tidemill_host::FileLog;
use tidemill_log::{LogKind, LogSpec};

use super::program_file::Written;
use super::retained::{is_retained, RingStore};
use super::sinks::Note;
use super::upgrade::Found;
use super::{address, backends, log_of};
use crate::emptied::{is_passing, remove_all};
use crate::process_mode::CLUSTER;
use crate::serve::{copy_files, copy_object};
use crate::settings::SEGMENT_BYTES_MIN;

/// How often a copy is begun. Objects stay for the next try, so each try has less to copy.
const TRIES: usize = 50;
/// The pause before it is begun again, in microseconds.
const AGAIN_US: u64 = 20_000;

/// Copies the state of several processes from a data directory to another folder, which `begin`
/// makes once nothing speaks against a copy. The copy has its snapshots in itself, wherever those of
/// the processes are.
///
/// # Errors
/// When the log is in Kafka, there is no snapshot, anything is damaged, or the disk fails.
pub(crate) fn copy<T>(
    env: &Env,
    (from, to): (&Path, &Path),
    begin: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let (cluster, target) = (from.join(CLUSTER), to.join(CLUSTER));
    let written = Written::read(&*env.disk, &cluster)?;
    let written = written.filter(|written| written.becomes.is_none()).ok_or_else(|| {
        let what = format!("the last start or upgrade in {} was not completed", cluster.display());
        Error::setting(what).help("start the app with --processes N once more")
    })?;
    let log = cluster.join("log");
    if !env.disk.exists(&log).map_err(|e| Error::io(log.display(), &e))? {
        let what = format!("{} has no log, which may be in Kafka", cluster.display());
        return Err(Error::setting(what).help(
            "back up the topics and the snapshots with their own tools, while the app is stopped",
        ));
    }
    let begun = begin()?;
    let (mut tries, mut last) = (0, String::new());
    loop {
        tries += 1;
        match copy_once(env, &written, (&cluster, &target)) {
            // Whatever was removed is another object each time. The same error again lasts.
            Err(error) if error.kind == Kind::Io && tries < TRIES && error.what != last => {
                last = error.what;
                let log = target.join("log");
                remove_all(&*env.disk, &log).map_err(|e| Error::io(log.display(), &e))?;
                env.clock.sleep_us(AGAIN_US);
            }
            done => return done.map(|()| begun),
        }
    }
}

/// Copies an object, unless an earlier try has copied it.
fn copy_new(from: &dyn Store, to: &dyn Store, name: &str) -> Result<()> {
    match to.get_range(name, 0, 0)? {
        Some(_) => Ok(()),
        None => copy_object(from, to, name),
    }
}

fn copy_once(env: &Env, written: &Written, (from, to): (&Path, &Path)) -> Result<()> {
    let disk = &env.disk;
    let is_own =
        |name: &str| matches!(name, "log" | "program" | "snapshots") || name == address::FILE;
    // The marks of files are older than the log. So they have all positions that its cuts need.
    copy_files(&**disk, from, to, &|name| !is_own(name) && !is_passing(name))?;
    let name = written.name();
    let source = Within::new(backends::kept_store(from, written, env)?, &name);
    let target = DirStore::alone(disk.clone(), to.join("snapshots"));
    let target: Arc<dyn Store> = Arc::new(Within::new(Arc::new(target), &name));
    let all = source.list("")?.into_iter().map(|object| object.name);
    let mut wanted: BTreeSet<String> = all.filter(|name| is_retained(name)).collect();
    wanted.iter().try_for_each(|name| copy_new(&source, &*target, name))?;
    let manifest = copy_log(env, &name, (from, to))?;
    for object in &manifest.objects {
        copy_new(&source, &*target, &object.name)?;
        wanted.insert(object.name.clone());
    }
    check_retained(&target, &manifest)?;
    for object in target.list("")?.into_iter().filter(|object| !wanted.contains(&object.name)) {
        target.delete(&object.name)?;
    }
    // The one in the store may have been removed meanwhile.
    let mut bytes = Vec::new();
    put_manifest_object(&manifest, &mut bytes);
    if manifest.epoch > 0 && !target.put(&manifest.name(), &bytes)? {
        return Err(name_taken(&manifest.name()));
    }
    // The app comes at the end: a folder without it holds no state.
    written.clone().with_own_snapshots().write(&**disk, to)
}

/// Copies the log, and returns the manifest of its newest snapshot.
fn copy_log(env: &Env, name: &str, (from, to): (&Path, &Path)) -> Result<Arc<Manifest>> {
    let (disk, kind, app) = (&env.disk, LogKind::Cuts, log_of(name));
    let spec = LogSpec { dir: from.join("log"), kind, app, segment_bytes: SEGMENT_BYTES_MIN };
    let first = tidemill_log::first(&**disk, &spec)?;
    let mut end = first;
    for record in tidemill_log::read(disk.clone(), &spec, first)? {
        end = record?.number + 1;
    }
    let target = to.join("log");
    tidemill_log::copy(&**disk, &spec, first, end, &target)?;
    let copied = LogSpec { dir: target.clone(), ..spec };
    if tidemill_log::first(&**disk, &copied)? != first {
        let what = format!("the log was trimmed after record {first} while it was copied");
        return Err(Error::new(Kind::Io, what));
    }
    let held = tidemill_host::hold(env, to)?;
    let log = FileLog::open(env, target, app, held, SEGMENT_BYTES_MIN)?;
    Found::read(&log)?.manifest.ok_or_else(|| {
        Error::setting("the state has no snapshot yet")
            .help("wait until there is one: the status has snapshot_epoch")
    })
}

/// Checks that the copied rows of streams are at least those that the snapshot needs.
fn check_retained(store: &Arc<dyn Store>, manifest: &Manifest) -> Result<()> {
    let note = Note::of(&manifest.written)?;
    let (_, rings) = RingStore::open(store, note.run())?;
    let next = |stream: &str| rings.iter().find(|of| of.stream == *stream).map_or(0, |of| of.next);
    let has_all = note.rows().all(|(stream, rows)| rows <= next(stream));
    match has_all {
        true => Ok(()),
        false => {
            let epoch = manifest.epoch;
            let what =
                format!("rows of streams were stored while they were copied, for epoch {epoch}");
            Err(Error::new(Kind::Io, what))
        }
    }
}
