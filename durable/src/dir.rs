//! Objects as files of a directory.
//!
//! An object is written to a temporary file, which is synced and gets the object's name unless that
//! is taken. Then the directory is synced. Temporary files are not objects; a sweep removes those
//! that crashes have left.

use std::io::{self, ErrorKind, Read, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_core::{Error, Kind, Result};
use tidemill_env::{Disk, Env, Lock, WriteFile};

use crate::store::{check_name, is_segment, name_of_prefix, Object, ObjectWriter, Store};

/// The beginning of temporary files' names. No object has such a name.
const TEMPORARY: &str = ".tmp-";
/// The file whose lock is held while a name is given, where several processes write.
const NAMING: &str = ".naming";
/// The age at which no process can still be writing a temporary file, in microseconds.
const STALE_US: i64 = 86_400_000_000;
/// The time for which a put waits for the lock of names, which is held only briefly, in seconds.
const LOCK_WAIT_S: u64 = 10;
/// The pause before the lock is requested again, in microseconds.
const LOCK_AGAIN_US: u64 = 200;

/// A store in a directory of a disk. Clones are the same store. Any process may read.
#[derive(Clone)]
pub struct DirStore(Arc<Inner>);

struct Inner {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    writers: Writers,
    /// Held by the thread of this process that gives a name.
    naming: Mutex<()>,
}

/// The processes that write to the directory.
enum Writers {
    /// This process alone, with the number of its temporary files so far.
    One(AtomicU64),
    /// Several processes.
    Several(Env),
}

impl DirStore {
    /// Creates a store in the directory `root`, to which no other process writes. The directory
    /// need not exist yet. Touches nothing.
    pub fn alone(disk: Arc<dyn Disk>, root: impl Into<PathBuf>) -> DirStore {
        DirStore::new(disk, root.into(), Writers::One(AtomicU64::new(0)))
    }

    /// Opens a store in the directory `root`, to which several processes of one machine may write.
    /// Several machines may, if the file system has locks for all of them. Creates the directory if
    /// it is missing, and sweeps it.
    ///
    /// # Errors
    /// If the directory can't be created or written.
    pub fn shared(env: &Env, root: impl Into<PathBuf>) -> Result<DirStore> {
        let root = root.into();
        let open = || {
            let opening = |e| failed("opening the store", &root, &e);
            env.disk.create_dir_all(&root).map_err(opening)?;
            let store =
                DirStore::new(env.disk.clone(), root.clone(), Writers::Several(env.clone()));
            store.sweep()?;
            Ok(store)
        };
        open().map_err(|error: Error| match &*error.help {
            "" => error.help(
                "create the directory where all processes reach it, and let them write to it",
            ),
            _ => error,
        })
    }

    fn new(disk: Arc<dyn Disk>, root: PathBuf, writers: Writers) -> DirStore {
        DirStore(Arc::new(Inner { disk, root, writers, naming: Mutex::default() }))
    }

    /// Removes unfinished objects that crashes have left, and makes sure that the visible objects
    /// survive the next crash. The only writing process calls it before it writes.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn sweep(&self) -> Result<()> {
        self.0.sweep(&self.0.root)
    }
}

impl Inner {
    fn path(&self, name: &str) -> PathBuf {
        // The whole name is not joined at once, because names have slashes on every system.
        name.split('/').fold(self.root.clone(), |path, segment| path.join(segment))
    }

    fn sweep(&self, dir: &Path) -> Result<()> {
        let Some(paths) = found(self.disk.list(dir)).map_err(|e| failed("listing", dir, &e))?
        else {
            return Ok(());
        };
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with(TEMPORARY) && !is_segment(&name) {
                continue;
            }
            // Another process may have removed it since.
            let meta =
                found(self.disk.metadata(&path)).map_err(|e| failed("reading", &path, &e))?;
            let Some(meta) = meta else { continue };
            if name.starts_with(TEMPORARY) {
                if self.is_left(meta.modified_us) {
                    found(self.disk.remove(&path)).map_err(|e| failed("removing", &path, &e))?;
                }
            } else if meta.is_dir {
                self.sweep(&path)?;
            }
        }
        self.disk.sync_dir(dir).map_err(|e| failed("syncing", dir, &e))
    }

    /// Whether a crash has left a temporary file that was last changed at this time.
    fn is_left(&self, modified_us: i64) -> bool {
        match &self.writers {
            Writers::One(_) => true,
            Writers::Several(env) => env.clock.now_us() - modified_us > STALE_US,
        }
    }

    /// Lists all objects in a directory and below.
    fn list(&self, dir: &Path, prefix: &str, objects: &mut Vec<Object>) -> Result<()> {
        let Some(paths) = found(self.disk.list(dir)).map_err(|e| failed("listing", dir, &e))?
        else {
            return Ok(());
        };
        for path in paths {
            let Some(segment) = path.file_name().and_then(|n| n.to_str()) else { continue };
            if !is_segment(segment) {
                continue;
            }
            // The file may have been removed since.
            let meta =
                found(self.disk.metadata(&path)).map_err(|e| failed("reading", &path, &e))?;
            let name = format!("{prefix}{segment}");
            match meta {
                None => {}
                Some(meta) if meta.is_dir => self.list(&path, &format!("{name}/"), objects)?,
                Some(meta) => objects.push(Object { name, len: meta.len }),
            }
        }
        Ok(())
    }

    fn open(self: &Arc<Inner>, name: &str) -> Result<DirWriter> {
        check_name(name)?;
        let path = self.path(name);
        let dir = path.parent().expect("it lies in the root").to_owned();
        let temporary = dir.join(self.temporary());
        let created = match found(self.disk.create(&temporary)) {
            // It is the first object of this directory.
            Ok(None) => {
                self.disk.create_dir_all(&dir).map_err(|e| failed("making", &dir, &e))?;
                self.disk.create(&temporary)
            }
            Ok(Some(file)) => Ok(file),
            Err(error) => Err(error),
        };
        let file = created.map_err(|e| failed("creating", &temporary, &e))?;
        let left = Some(temporary);
        Ok(DirWriter { store: self.clone(), path, dir, left, file: Some(file) })
    }

    /// Returns a name that no other temporary file has.
    fn temporary(&self) -> String {
        match &self.writers {
            Writers::One(count) => {
                format!("{TEMPORARY}{}", count.fetch_add(1, Ordering::Relaxed))
            }
            Writers::Several(env) => format!("{TEMPORARY}{:016x}", env.random.next_u64()),
        }
    }

    /// Takes the lock that all writing processes share, if there are several.
    fn lock(&self) -> Result<Option<Box<dyn Lock>>> {
        let Writers::Several(env) = &self.writers else { return Ok(None) };
        let path = self.root.join(NAMING);
        let until_ns = env.clock.monotonic_ns() + LOCK_WAIT_S * 1_000_000_000;
        loop {
            let lock = self.disk.try_lock(&path).map_err(|e| failed("locking", &path, &e))?;
            if lock.is_some() {
                return Ok(lock);
            }
            if env.clock.monotonic_ns() > until_ns {
                let path = path.display();
                let held = format!("other processes have held the lock {path} for {LOCK_WAIT_S} s");
                return Err(Error::new(Kind::Io, held).help(
                    "end the process that holds it; if there is none, check the file system",
                ));
            }
            env.clock.sleep_us(LOCK_AGAIN_US);
        }
    }

    /// Reads from a file, if there is one.
    fn read(&self, name: &str, from: u64, len: Option<u64>) -> Result<Option<Vec<u8>>> {
        check_name(name)?;
        let path = self.path(name);
        let read = || {
            let mut file = self.disk.open_read(&path)?;
            let rest = file.len()?.saturating_sub(from);
            let len = len.map_or(rest, |len| len.min(rest));
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
            file.take(len).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        found(read()).map_err(|e| failed("reading", &path, &e))
    }
}

/// Returns `None` in place of the error that there is no such file.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> Error {
    let what = format!("{doing} {}", path.display());
    if error.kind() == ErrorKind::StorageFull {
        return Error::resource(format!("{what}: {error}")).help("free space on that disk");
    }
    Error::io(what, error)
}

impl Store for DirStore {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let mut writer = self.0.open(name)?;
        writer.write(bytes)?;
        writer.publish()
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(self.0.open(name)?))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.0.read(name, 0, None)
    }

    fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Vec<u8>>> {
        self.0.read(name, from, Some(len))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        let dir =
            name_of_prefix(prefix)?.map_or_else(|| self.0.root.clone(), |name| self.0.path(name));
        let mut objects = Vec::new();
        self.0.list(&dir, prefix, &mut objects)?;
        // Directories have another order than names: `a-b` precedes `a/b`.
        objects.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(objects)
    }

    fn delete(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let path = self.0.path(name);
        if found(self.0.disk.remove(&path)).map_err(|e| failed("removing", &path, &e))?.is_some() {
            let dir = path.parent().expect("it lies in the root");
            self.0.disk.sync_dir(dir).map_err(|e| failed("syncing", dir, &e))?;
        }
        Ok(())
    }
}

/// A file that is becoming an object.
struct DirWriter {
    store: Arc<Inner>,
    path: PathBuf,
    dir: PathBuf,
    /// The temporary file, while there is one.
    left: Option<PathBuf>,
    /// The file; `None` after a failure, and when it is complete.
    file: Option<Box<dyn WriteFile>>,
}

impl DirWriter {
    fn temporary(&self) -> &Path {
        self.left.as_deref().unwrap_or(&self.path)
    }

    /// Does something to the file. A failure ends it: after a failed sync, a later one may succeed
    /// without having stored the bytes.
    fn with<T>(&mut self, act: impl FnOnce(&mut dyn WriteFile) -> io::Result<T>) -> Result<T> {
        let Some(file) = &mut self.file else {
            let what =
                format!("{} can't be written: an earlier write to it failed", self.path.display());
            return Err(Error::new(Kind::Io, what));
        };
        act(&mut **file).map_err(|error| {
            self.file = None;
            failed("writing", self.temporary(), &error)
        })
    }

    /// Gives the file its name, unless that is taken.
    fn publish(&mut self) -> Result<bool> {
        self.with(|file| file.sync())?;
        self.file = None;
        let store = self.store.clone();
        let thread = store.naming.lock();
        let process = store.lock()?;
        if store.disk.exists(&self.path).map_err(|e| failed("reading", &self.path, &e))? {
            return Ok(false);
        }
        let renamed = store.disk.rename(self.temporary(), &self.path);
        renamed.map_err(|e| failed("naming", &self.path, &e))?;
        self.left = None;
        drop((process, thread));
        store.disk.sync_dir(&self.dir).map_err(|e| failed("syncing", &self.dir, &e))?;
        Ok(true)
    }
}

impl ObjectWriter for DirWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.with(|file| file.write_all(bytes))
    }

    fn finish(mut self: Box<Self>) -> Result<bool> {
        self.publish()
    }
}

impl Drop for DirWriter {
    fn drop(&mut self) {
        if let Some(temporary) = &self.left {
            // If this fails, a later sweep removes it.
            let _ = self.store.disk.remove(temporary);
        }
    }
}

#[cfg(test)]
mod tests;
