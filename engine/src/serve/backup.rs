//! Copies of a data directory: making them, restoring them, and verifying one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{json, Value};
use tidemill_core::{Error, Result};
use tidemill_durable::{name_taken, DirStore, Store};
use tidemill_env::{Disk, Env, Lock};
use tidemill_log::LogKind;
use tidemill_snapshot::{epochs, load, newest, open_at, Manifest, Part};

use crate::begins::StartPositions;
use crate::cluster::{self, LookedAt};
use crate::data_dir::{taken, Site};
use crate::needed;
use crate::stored::Stored;
use crate::view::View;

/// The bytes of an object that are copied at a time.
const PIECE_BYTES: u64 = 4 << 20;

/// How often a waiting thread checks whether it should go on waiting.
const LOOK: Duration = Duration::from_millis(50);

/// Copies a new snapshot of a running engine, with the necessary part of the logs.
pub(super) fn running(view: &View, to: &Path, stops: &dyn Fn() -> Result<()>) -> Result<Value> {
    let Some((site, _)) = &view.site else {
        return Err(Error::internal("a running engine without a data directory got a request"));
    };
    check_target((&site.disk, &site.path), to)?;
    let Some(_held) = view.shared.copying.try_lock_for(LOOK) else {
        return Err(Error::resource("another backup is being made").help("wait for it"));
    };
    let manifest = match view.settings.durable {
        crate::settings::Durable::LogAndSnapshots => {
            force(view, stops)?;
            newest(&*site.store(), site.app)?
        }
        _ => None,
    };
    // These parts are durable, so they can't change while they are copied.
    let log = view.shared.out.lock().log;
    let [input, cuts] = log.map_or([0, 0], |logs| logs.map(|log| log.next));
    let cuts = manifest.as_ref().map_or(cuts, |m| m.head.cut_next);
    copy(site, manifest.as_ref(), input, cuts, to)
}

/// Requests a snapshot and waits for it.
fn force(view: &View, stops: &dyn Fn() -> Result<()>) -> Result<()> {
    let shared = &view.shared;
    let executed = shared.state.lock().epoch();
    let mut out = shared.out.lock();
    let before = out.snapshot_epoch;
    out.snapshot_error = None;
    shared.force.store(true, std::sync::atomic::Ordering::Release);
    view.gate.wake();
    // A snapshot that was under way may be older than the last executed epoch.
    while out.snapshot_epoch < executed.max(before + 1) {
        if let Some(error) = out.snapshot_error.as_ref().or(out.stalled.as_ref()) {
            return Err(error.clone());
        }
        stops()?;
        if let Some(error) = shared.error() {
            return Err(error);
        }
        if shared.is_over() {
            return Err(Error::resource("the run has ended").help("ask again: it is stopped now"));
        }
        shared.delivered.wait_for(&mut out, LOOK);
    }
    Ok(())
}

/// Copies the data directory of a stopped engine.
pub(crate) fn stopped(site: &Site, to: &Path) -> Result<Value> {
    check_target((&site.disk, &site.path), to)?;
    let manifest = newest(&*site.store(), site.app)?;
    let (input, cuts) = manifest.as_ref().map_or((0, 0), |m| (m.head.input_next, m.head.cut_next));
    let (input, cuts) = needed::ends(site, (input, cuts))?;
    copy(site, manifest.as_ref(), input, cuts, to)
}

/// Restores a backup.
pub(crate) fn restore(disk: &Arc<dyn Disk>, from: &Path, to: &Path) -> Result<Value> {
    let site = Site::look(disk, from)
        .map_err(|error| error.help("give the folder that a backup was made into"))?;
    stopped(&site, to)
}

/// Copies the state of several processes from a data directory to another folder.
pub(crate) fn copy_several(env: &Env, from: &Path, to: &Path) -> Result<Value> {
    let disk = &env.disk;
    check_target((disk, from), to)?;
    let _target = cluster::copy(env, (from, to), || begin_copy((disk, from), to))?;
    let mut report = LookedAt::newest(env, to)?.verify()?;
    report["to"] = json!(to);
    Ok(report)
}

/// Copies the files of a folder whose names at its top are wanted.
pub(crate) fn copy_files(
    disk: &dyn Disk,
    from: &Path,
    to: &Path,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Result<()> {
    let io = |path: &Path, e: &std::io::Error| Error::io(path.display(), e);
    disk.create_dir_all(to).map_err(|e| io(to, &e))?;
    for path in disk.list(from).map_err(|e| io(from, &e))? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !is_wanted(name) {
            continue;
        }
        let target = to.join(name);
        if disk.metadata(&path).map_err(|e| io(&path, &e))?.is_dir {
            copy_files(disk, &path, &target, &|_| true)?;
            continue;
        }
        let mut read = disk.open_read(&path).map_err(|e| io(&path, &e))?;
        let mut written = disk.create(&target).map_err(|e| io(&target, &e))?;
        std::io::copy(&mut read, &mut written).map_err(|e| io(&target, &e))?;
        written.sync().map_err(|e| io(&target, &e))?;
    }
    disk.sync_dir(to).map_err(|e| io(to, &e))
}

/// Refuses a folder that is not empty, that is inside the copied directory, or whose place depends
/// on the current directory.
fn check_target((disk, path): (&Arc<dyn Disk>, &Path), to: &Path) -> Result<()> {
    if !to.is_absolute() {
        let what = format!("'{}' is not an absolute path", to.display());
        return Err(Error::setting(what)
            .help("give an absolute path, because the engine may run in another folder"));
    }
    let io = |e: std::io::Error| Error::io(to.display(), &e);
    if disk.destination(to).map_err(io)?.starts_with(disk.resolve(path).map_err(io)?) {
        let (to, from) = (to.display(), path.display());
        return Err(Error::setting(format!("{to} is inside {from}, the directory to copy"))
            .help("give a folder elsewhere"));
    }
    let found = match disk.list(to) {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io(e)),
    };
    match found.iter().find(|path| !path.ends_with("LOCK")) {
        None => Ok(()),
        Some(other) => Err(Error::setting(format!(
            "{} is not empty: it contains {}",
            to.display(),
            other.display()
        ))
        .help("give an empty or a new folder")),
    }
}

/// Makes the folder of a copy, and locks it. The lock keeps other engines from starting there during
/// the copy. Not every file system has one.
fn begin_copy(from: (&Arc<dyn Disk>, &Path), to: &Path) -> Result<Option<Box<dyn Lock>>> {
    let disk = from.0;
    let io = |e: std::io::Error| Error::io(to.display(), &e);
    disk.keep_private(to);
    disk.create_dir_all(to).map_err(io)?;
    disk.close_to_others(to).map_err(io)?;
    let held = match disk.try_lock_dir(to) {
        Ok(Some(held)) => Some(held),
        Ok(None) => return Err(taken(to)),
        Err(e) if e.kind() == std::io::ErrorKind::Unsupported => None,
        Err(e) => return Err(io(e)),
    };
    check_target(from, to)?;
    Ok(held)
}

fn copy(
    site: &Site,
    manifest: Option<&Manifest>,
    input: u64,
    cuts: u64,
    to: &Path,
) -> Result<Value> {
    let disk = &site.disk;
    let _held = begin_copy((disk, &site.path), to)?;
    let from = manifest.map_or((0, 0), |m| (m.head.input_next, m.head.cut_next));
    for (kind, from, until) in [(LogKind::Cuts, from.1, cuts), (LogKind::Input, from.0, input)] {
        let log = site.log(kind);
        let dir = to.join(log.dir.file_name().unwrap_or_default());
        tidemill_log::copy(&**disk, &log, from, until.max(from), &dir)?;
    }
    if let Some(manifest) = manifest {
        let (source, target) = (site.store(), DirStore::alone(disk.clone(), to.join("store")));
        let objects = manifest.objects.iter().map(|object| object.name.clone());
        // The manifest comes last, as always.
        for name in objects.chain([manifest.internal.name.clone(), manifest.name()]) {
            copy_object(&*source, &target, &name)?;
        }
    }
    StartPositions::copy(&**disk, &site.path, to)?;
    // The identity comes at the end: a folder without one is no data directory.
    site.copy_identity(to)?;
    let copied = Site::look(disk, to)?;
    let mut report = verify(&copied)?;
    report["to"] = json!(to);
    Ok(report)
}

pub(crate) fn copy_object(source: &dyn Store, target: &dyn Store, name: &str) -> Result<()> {
    let mut writer = target.create(name)?;
    let mut at = 0;
    loop {
        let piece = source.get_range(name, at, PIECE_BYTES)?;
        let piece = piece.ok_or_else(|| {
            Error::new(tidemill_core::Kind::Io, format!("{name} is missing in the snapshots"))
        })?;
        writer.write(&piece)?;
        at += piece.len() as u64;
        if (piece.len() as u64) < PIECE_BYTES {
            return match writer.finish()? {
                true => Ok(()),
                false => Err(name_taken(name)),
            };
        }
    }
}

/// Reads everything that counts in a data directory, and compares all checksums.
pub(crate) fn verify(site: &Site) -> Result<Value> {
    let store = site.store();
    let mut from = (0, 0);
    let (mut rows, mut last) = (0u64, None);
    let all = epochs(&*store)?;
    for (index, epoch) in all.iter().enumerate() {
        let manifest = open_at(&*store, site.app, *epoch)?;
        manifest.internal(&*store)?;
        // Versions of rows follow the rows, and are not counted.
        let program = Stored::parse(&manifest.head.program).map(|stored| stored.program);
        let tables = program.map_or(usize::MAX, |program| program.tables.len());
        rows = 0;
        load(&store, &manifest, |row| {
            rows += u64::from(matches!(Part::of(row.table, tables), Part::Row(_)));
            Ok(())
        })?;
        if index == 0 {
            from = (manifest.head.input_next, manifest.head.cut_next);
        }
        last = Some(*epoch);
    }
    let (input, cuts) = needed::ends(site, from)?;
    let (mut files, mut bytes) = (0u64, 0u64);
    count(&*site.disk, &site.path, &mut files, &mut bytes)
        .map_err(|e| Error::io(site.path.display(), &e))?;
    Ok(json!({
        "app": site.name, "epoch": last, "snapshots": all.len(), "rows": rows, "input": input,
        "cuts": cuts, "files": files, "bytes": bytes,
    }))
}

/// Counts the files of a folder, and their bytes.
pub(crate) fn count(
    disk: &dyn Disk,
    dir: &Path,
    files: &mut u64,
    bytes: &mut u64,
) -> std::io::Result<()> {
    for path in disk.list(dir)? {
        let meta = disk.metadata(&path)?;
        match meta.is_dir {
            true => count(disk, &path, files, bytes)?,
            false => {
                *files += 1;
                *bytes += meta.len;
            }
        }
    }
    Ok(())
}
