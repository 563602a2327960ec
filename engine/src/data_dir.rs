//! The data directory: its owner, and the lock of the one process that uses it. See
//! `docs/internals/durability.md` for its contents.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Result};
use tidemill_durable::{DirStore, Store};
use tidemill_env::{hold, Addr, Closed, Disk, Env, Lock};
use tidemill_log::{LogKind, LogSpec};

use crate::emptied::{foreign, is_passing, Emptied, Purpose};
use crate::moves::{self, Way};
use crate::process_mode;

/// The time for a running engine to accept a connection, in microseconds.
const CONNECT_US: u64 = 2_000_000;

/// The version of the directory's layout.
const FORMAT: u32 = 1;

/// The contents of the file `APP`.
#[derive(Debug, Serialize, Deserialize)]
struct Identity {
    format: u32,
    /// The app's id, in hexadecimal.
    app: String,
    name: String,
}

/// A data directory that this process holds.
pub(crate) struct DataDir {
    pub(crate) path: PathBuf,
    /// The app's id.
    pub(crate) app: u128,
    name: String,
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    /// Whether the directory starts empty. This start asked for it, or an earlier start that did
    /// not complete it.
    pub(crate) fresh: bool,
    /// The files that were closed to other users, and those that could not be.
    pub(crate) closed: Closed,
    _lock: Box<dyn Lock>,
}

impl DataDir {
    /// Opens and locks the directory. Creates it when it is missing. `fresh` empties it first.
    ///
    /// # Errors
    /// When another process has it, when it is no data directory or another app's, or one of a
    /// newer version.
    pub(crate) fn open(
        env: &Env,
        path: &Path,
        name: &str,
        fresh: bool,
        segment_bytes: u64,
    ) -> Result<DataDir> {
        let disk = env.disk.clone();
        let shown = path.display();
        let io = |e: std::io::Error| Error::io(format!("data directory {shown}"), &e);
        if fresh {
            process_mode::check_fresh(&*disk, path, Way::One)?;
        }
        disk.keep_private(path);
        disk.create_dir_all(path).map_err(io)?;
        // The lock comes first, so that a process that runs there is not disturbed.
        let lock = hold_free(&*disk, path)?;
        if is_answered(env, path) {
            return Err(taken(path));
        }
        moves::settle(&*disk, path)?;
        let emptied = Emptied { disk: &*disk, path, purpose: Purpose::Data };
        let was_begun = emptied.is_begun()?;
        if fresh && !was_begun {
            emptied.begin()?;
        }
        let fresh = fresh || was_begun;
        if fresh {
            emptied.remove()?;
        }
        let app = match disk.exists(&path.join("APP")).map_err(io)? {
            true => read_identity(&*disk, path, name)?,
            false => {
                let left = emptied.contents()?;
                if let Some(other) = left.iter().find(|name| *name == "cluster") {
                    return Err(foreign(path, &path.join(other), false));
                }
                // Notes of executed events, whose data is gone.
                for name in left.iter().filter(|name| !is_passing(name)) {
                    disk.remove(&path.join(name)).map_err(io)?;
                }
                let random = u128::from(env.random.next_u64()) << 64;
                let app = random | u128::from(env.random.next_u64());
                write_identity(&*disk, path, app, name).map_err(io)?;
                app
            }
        };
        // The directory belongs to this app now.
        let closed = disk.close_to_others(path).map_err(io)?;
        let (path, name) = (path.to_path_buf(), name.to_owned());
        Ok(DataDir { path, app, name, disk, segment_bytes, fresh, closed, _lock: lock })
    }

    /// Notes that the start from scratch is complete, outputs included.
    pub(crate) fn has_begun(&self) -> Result<()> {
        match self.fresh {
            true => {
                let (disk, path, purpose) = (&*self.disk, &*self.path, Purpose::Data);
                Emptied { disk, path, purpose }.end()
            }
            false => Ok(()),
        }
    }

    /// The place of a log.
    pub(crate) fn log(&self, kind: LogKind) -> LogSpec {
        log_spec(&self.path, self.app, kind, self.segment_bytes)
    }

    /// The directory as a reader sees it.
    pub(crate) fn site(&self) -> Site {
        let (path, disk) = (self.path.clone(), self.disk.clone());
        Site { path, app: self.app, name: self.name.clone(), disk }
    }

    /// Opens the store of snapshots. Removes leftovers of a crash.
    pub(crate) fn store(&self) -> Result<Arc<dyn Store>> {
        let store = DirStore::alone(self.disk.clone(), self.path.join("store"));
        store.sweep()?;
        Ok(Arc::new(store))
    }
}

/// The error when another process has the directory.
pub(crate) fn taken(path: &Path) -> Error {
    Error::resource(format!("another process runs on data directory {}", path.display())).help(
        "stop it first, or give this run another data_dir; tidemill status, query and tail work while it runs",
    )
}

/// Locks a data directory.
///
/// # Errors
/// When another process has it, or the disk fails.
pub(crate) fn hold_free(disk: &dyn Disk, path: &Path) -> Result<Box<dyn Lock>> {
    let held = hold(disk, path);
    let held = held.map_err(|e| Error::io(format!("data directory {}", path.display()), &e))?;
    held.ok_or_else(|| taken(path))
}

/// Whether an engine answers there. An engine of an earlier version holds only the file `LOCK`, and
/// no lock at all if that was removed.
fn is_answered(env: &Env, path: &Path) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    match env.net.connect(&Addr::Unix(Site::socket(path)), CONNECT_US) {
        Ok(_) => true,
        // It listens, and is busy.
        Err(e) => matches!(e.kind(), TimedOut | WouldBlock),
    }
}

/// A data directory that is only read, whoever holds it.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) path: PathBuf,
    /// The app's id and its name.
    pub(crate) app: u128,
    pub(crate) name: String,
    pub(crate) disk: Arc<dyn Disk>,
}

impl Site {
    /// Reads the identity of a directory.
    ///
    /// # Errors
    /// When it is no data directory, or one of a newer version.
    pub(crate) fn look(disk: &Arc<dyn Disk>, path: &Path) -> Result<Site> {
        let shown = path.display();
        let io = |e: std::io::Error| Error::io(format!("data directory {shown}"), &e);
        if !disk.exists(&path.join("APP")).map_err(io)? {
            if let Some(error) = process_mode::of_several(&**disk, path)? {
                return Err(error);
            }
            return Err(Error::setting(format!(
                "{shown} is not a data directory: it has no file APP"
            ))
            .help("give the data_dir that the app runs with"));
        }
        let (app, name) = identity(&**disk, path)?;
        Ok(Site { path: path.to_path_buf(), app, name, disk: disk.clone() })
    }

    /// The place of a log.
    pub(crate) fn log(&self, kind: LogKind) -> LogSpec {
        log_spec(&self.path, self.app, kind, 1 << 16)
    }

    /// The store of snapshots.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::new(DirStore::alone(self.disk.clone(), self.path.join("store")))
    }

    /// The address of a running engine.
    pub(crate) fn socket(path: &Path) -> PathBuf {
        path.join("engine.sock")
    }

    /// Makes an empty folder a directory of the same app.
    pub(crate) fn copy_identity(&self, to: &Path) -> Result<()> {
        write_identity(&*self.disk, to, self.app, &self.name)
            .map_err(|e| Error::io(format!("writing {}", to.join("APP").display()), &e))
    }
}

pub(crate) fn log_spec(path: &Path, app: u128, kind: LogKind, segment_bytes: u64) -> LogSpec {
    let dir = path.join(match kind {
        LogKind::Input => "input",
        LogKind::Cuts => "cuts",
    });
    // Cuts are small, and the log has each twice.
    let segment_bytes = match kind {
        LogKind::Input => segment_bytes,
        LogKind::Cuts => segment_bytes.min(4 << 20),
    };
    LogSpec { dir, kind, app, segment_bytes }
}

fn read_identity(disk: &dyn Disk, path: &Path, name: &str) -> Result<u128> {
    let (app, found) = identity(disk, path)?;
    match found == name {
        true => Ok(app),
        false => Err(other_app(path, &found, name)),
    }
}

/// The error when a directory belongs to app `found`, and app `name` opens it.
pub(crate) fn other_app(path: &Path, found: &str, name: &str) -> Error {
    Error::setting(format!(
        "data directory {} belongs to app '{found}', not to '{name}'",
        path.display()
    ))
    .help("give this app its own data_dir; --fresh (fresh=True) starts from scratch in this one")
}

/// Reads the app's id and its name.
fn identity(disk: &dyn Disk, path: &Path) -> Result<(u128, String)> {
    let shown = path.display();
    let file = path.join("APP");
    let mut bytes = Vec::new();
    disk.open_read(&file)
        .and_then(|mut open| std::io::Read::read_to_end(&mut open, &mut bytes))
        .map_err(|e| Error::io(format!("reading {}", file.display()), &e))?;
    let damaged = || {
        Error::setting(format!("{} is damaged", file.display()))
            .help("restore it from a backup of the data directory; --fresh (fresh=True) starts from scratch")
    };
    let identity: Identity = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
    if identity.format > FORMAT {
        return Err(Error::setting(format!(
            "data directory {shown} has format {}, and this version of tidemill knows {FORMAT}",
            identity.format
        ))
        .help("use the version that wrote it, or a newer one"));
    }
    let app = u128::from_str_radix(&identity.app, 16).map_err(|_| damaged())?;
    Ok((app, identity.name))
}

pub(crate) fn write_identity(
    disk: &dyn Disk,
    path: &Path,
    app: u128,
    name: &str,
) -> std::io::Result<()> {
    let identity = Identity { format: FORMAT, app: format!("{app:032x}"), name: name.to_owned() };
    let text = serde_json::to_string_pretty(&identity).expect("it is JSON");
    replace(disk, path, "APP", &text)
}

/// Replaces a file of a folder by this text, in one step.
pub(crate) fn replace(disk: &dyn Disk, dir: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let new = dir.join(format!("{name}.new"));
    let mut file = disk.create(&new)?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync()?;
    drop(file);
    disk.rename(&new, &dir.join(name))?;
    disk.sync_dir(dir)
}
