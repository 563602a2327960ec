//! Emptying one of the engine's directories, for a start from scratch. The step is either done or
//! not done.
//!
//! From the moment when the directory has the file `FRESH`, everything else in it no longer counts,
//! and outputs are replaced. The file goes when the start from scratch is complete. A start that
//! finds it, with `--fresh` or without, completes the rest. Links are removed, and never followed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tidemill_core::{Error, Result};
use tidemill_env::{Disk, Env, Lock, NodeKind};

use crate::crash_guard;
use crate::data_dir::replace;
use crate::moves::MOVE;
use crate::process_mode::CLUSTER;

/// The file that marks a start from scratch.
const FRESH: &str = "FRESH";
/// The file of an earlier version with the same purpose: the renamed file `APP`.
const RENAMED: &str = "APP.old";

/// Returns the names that `--fresh` would delete in a directory, sorted. It changes nothing.
///
/// # Errors
/// When the directory has something that the engine has not made.
pub fn fresh_deletes(env: &Env, path: &Path, is_coordinator: bool) -> Result<Vec<String>> {
    let purpose = if is_coordinator { Purpose::Coordinator } else { Purpose::Data };
    Emptied { disk: &*env.disk, path, purpose }.contents()
}

/// The purpose of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The data of an app in one process, and perhaps a coordinator's directory.
    Data,
    /// A coordinator's directory.
    Coordinator,
}

impl Purpose {
    /// The names of the data of an app in one process.
    pub(crate) const OF_ONE: [&'static str; 8] =
        ["APP", RENAMED, "BEGINS", "cuts", "input", "store", "trial", "deaths"];

    /// The names in it, without temporary files that are to get these names, and without files that
    /// only show a running process.
    fn names(self) -> &'static [&'static str] {
        match self {
            Purpose::Data => &[
                "APP", RENAMED, "BEGINS", "cuts", "input", "store", "trial", "deaths", CLUSTER,
                MOVE,
            ],
            Purpose::Coordinator => &["program", "feeds", "log", "snapshots", "counts", "http"],
        }
    }

    /// The files that identify it as the engine's.
    fn signs(self) -> &'static [&'static str] {
        match self {
            Purpose::Data => &["APP", RENAMED, FRESH],
            Purpose::Coordinator => &["program", FRESH],
        }
    }
}

/// A directory to empty.
pub(crate) struct Emptied<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) path: &'a Path,
    pub(crate) purpose: Purpose,
}

impl Emptied<'_> {
    fn fail(&self, error: &std::io::Error) -> Error {
        Error::io(format!("emptying the directory {}", self.path.display()), error)
    }

    fn has(&self, name: &str) -> Result<bool> {
        match self.disk.node(&self.path.join(name)) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(self.fail(&e)),
        }
    }

    /// Whether emptying has begun and is not complete.
    pub(crate) fn is_begun(&self) -> Result<bool> {
        let has_renamed = self.purpose == Purpose::Data && self.has(RENAMED)?;
        Ok(self.has(FRESH)? || has_renamed && !self.has("APP")?)
    }

    /// Whether the directory identifies itself as the engine's.
    fn is_ours(&self) -> Result<bool> {
        for sign in self.purpose.signs() {
            if self.has(sign)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Refuses a folder that belongs to something else. Other faults are found by the code that
    /// opens it. It changes nothing.
    ///
    /// # Errors
    /// When it is not empty, and nothing identifies it as the engine's.
    pub(crate) fn check_whose(&self) -> Result<()> {
        let is_dir = self.disk.metadata(self.path).is_ok_and(|meta| meta.is_dir);
        match is_dir && !self.is_ours()? {
            true => self.contents().map(drop),
            false => Ok(()),
        }
    }

    /// Returns the names that would be deleted, sorted.
    ///
    /// # Errors
    /// When there is something that the engine has not made.
    pub(crate) fn contents(&self) -> Result<Vec<String>> {
        let paths = match self.disk.list(self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|e| self.fail(&e))?,
        };
        let is_ours = self.is_ours()?;
        let mut names = Vec::new();
        for path in &paths {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_known = is_passing(name)
                || is_ours && self.purpose.names().contains(&name.trim_end_matches(".new"))
                || self.is_left(path, name);
            if !is_known {
                return Err(foreign(self.path, path, is_ours));
            }
            if !matches!(name, "LOCK" | FRESH) {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Whether a file is a leftover in a directory that lost its identity, or did not get one yet.
    /// Earlier versions left such files, and so does a start that ended early.
    fn is_left(&self, path: &Path, name: &str) -> bool {
        let whole = name.trim_end_matches(".new");
        match (self.purpose, whole) {
            (Purpose::Data, "trial" | "deaths") => crash_guard::is_note(self.disk, path, whole),
            (Purpose::Data, CLUSTER) => {
                let inner = Emptied { path, purpose: Purpose::Coordinator, ..*self };
                self.disk.node(path).is_ok_and(|node| node == NodeKind::Dir)
                    && inner.contents().is_ok()
            }
            (Purpose::Coordinator, "log") => {
                // Only files with names of a log's files count.
                let is_of_log = |path: &PathBuf| {
                    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
                    let is_file = self.disk.node(path).is_ok_and(|node| node == NodeKind::File);
                    let is_segment = stem.len() == 16 && u64::from_str_radix(stem, 16).is_ok();
                    is_file && (is_segment || stem == "LAST")
                };
                self.disk.list(path).is_ok_and(|paths| paths.iter().all(is_of_log))
            }
            _ => false,
        }
    }

    /// Marks the directory. From here on its contents no longer count.
    ///
    /// # Errors
    /// When there is something that the engine has not made. Nothing has changed then.
    pub(crate) fn begin(&self) -> Result<()> {
        self.contents()?;
        let _held = self.hold()?;
        replace(self.disk, self.path, FRESH, "outputs and data are being replaced\n")
            .map_err(|e| self.fail(&e))
    }

    /// Locks the directory inside that has a lock of its own.
    fn hold(&self) -> Result<Option<Box<dyn Lock>>> {
        let cluster = self.path.join(CLUSTER);
        let lock = cluster.join("LOCK");
        let is_dir = self.disk.node(&cluster).is_ok_and(|node| node == NodeKind::Dir);
        if self.purpose != Purpose::Data || !is_dir || self.disk.node(&lock).is_err() {
            return Ok(None);
        }
        let held = self.disk.try_lock(&lock).map_err(|e| self.fail(&e))?;
        match held {
            Some(held) => Ok(Some(held)),
            None => Err(Error::resource(format!("a coordinator runs in {}", cluster.display()))
                .help("stop it first; nothing was changed")),
        }
    }

    /// Removes the contents that no longer count.
    ///
    /// # Errors
    /// When a process runs on a part of it, or the disk fails. It can be repeated.
    pub(crate) fn remove(&self) -> Result<()> {
        let _held = self.hold()?;
        for path in self.disk.list(self.path).map_err(|e| self.fail(&e))? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_own =
                is_passing(name) || self.purpose.names().contains(&name.trim_end_matches(".new"));
            if is_own && !matches!(name, "LOCK" | FRESH) {
                remove_all(self.disk, &path).map_err(|e| self.fail(&e))?;
            }
        }
        self.disk.sync_dir(self.path).map_err(|e| self.fail(&e))
    }

    /// Notes that the start from scratch is complete.
    pub(crate) fn end(&self) -> Result<()> {
        let removed = match self.disk.remove(&self.path.join(FRESH)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        };
        removed.and_then(|()| self.disk.sync_dir(self.path)).map_err(|e| self.fail(&e))
    }
}

/// Whether a file only shows a running or starting process. It may be in a directory that belongs
/// to no app yet.
pub(crate) fn is_passing(name: &str) -> bool {
    const NAMES: [&str; 7] =
        ["LOCK", "APP.new", "BEGINS.new", "FRESH", "FRESH.new", "program.new", "engine.sock"];
    NAMES.contains(&name) || name.starts_with(".sock-")
}

/// The error for a directory with something that the engine has not made.
pub(crate) fn foreign(path: &Path, other: &Path, is_ours: bool) -> Error {
    let (path, other) = (path.display(), other.display());
    match is_ours {
        true => Error::setting(format!("{path} contains {other}, which the engine did not make"))
            .help("move it away, then start again; nothing was changed"),
        false => Error::setting(format!(
            "{path} is not a data directory: it has no file APP, but {other}"
        ))
        .help("give an empty or new folder"),
    }
}

/// Removes a file or link, or a folder with its contents. A link's target stays.
pub(crate) fn remove_all(disk: &dyn Disk, path: &Path) -> std::io::Result<()> {
    match disk.node(path) {
        Ok(NodeKind::Dir) => {
            for inner in disk.list(path)? {
                remove_all(disk, &inner)?;
            }
            disk.remove_dir(path)
        }
        Ok(_) => disk.remove(path),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}
