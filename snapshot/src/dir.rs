//! Objects as files of a directory.
//!
//! An object is written to a temporary file, which is synced and gets the object's name. Then the
//! directory is synced. Temporary files are not objects; a sweep removes those that a crash has
//! left.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_core::{Error, Result};
use tidemill_env::{Disk, WriteFile};

use crate::store::{check_name, is_segment, Object, ObjectWriter, Store};

/// The beginning of temporary files' names. No object has such a name.
const TEMPORARY: &str = ".tmp-";

/// A store in a directory of a disk. Clones are the same store.
///
/// [`put_if_absent`](Store::put_if_absent) knows only the writers of this store, not other
/// processes. So a writer must hold the directory alone. Readers need not.
#[derive(Clone)]
pub struct DirStore(Arc<Inner>);

struct Inner {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    temporaries: AtomicU64,
    /// The directories that are known to exist.
    made: Mutex<BTreeSet<PathBuf>>,
    /// A lock held between the check for a name and its use.
    naming: Mutex<()>,
}

impl DirStore {
    /// Creates a store in the directory `root`, which need not exist yet. Touches nothing.
    pub fn new(disk: Arc<dyn Disk>, root: impl Into<PathBuf>) -> DirStore {
        DirStore(Arc::new(Inner {
            disk,
            root: root.into(),
            temporaries: AtomicU64::new(0),
            made: Mutex::default(),
            naming: Mutex::default(),
        }))
    }

    /// Removes unfinished objects that crashes have left, and makes sure that the visible objects
    /// survive the next crash. The process that holds the directory calls it before it writes.
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
            if name.starts_with(TEMPORARY) {
                found(self.disk.remove(&path)).map_err(|e| failed("removing", &path, &e))?;
            } else if is_segment(&name) {
                let meta = self.disk.metadata(&path).map_err(|e| failed("reading", &path, &e))?;
                if meta.is_dir {
                    self.sweep(&path)?;
                }
            }
        }
        self.disk.sync_dir(dir).map_err(|e| failed("syncing", dir, &e))
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
        if !self.made.lock().contains(&dir) {
            self.disk.create_dir_all(&dir).map_err(|e| failed("making", &dir, &e))?;
            self.made.lock().insert(dir.clone());
        }
        let count = self.temporaries.fetch_add(1, Ordering::Relaxed);
        let temporary = dir.join(format!("{TEMPORARY}{count}"));
        let file = self.disk.create(&temporary).map_err(|e| failed("creating", &temporary, &e))?;
        let left = Some(temporary);
        Ok(DirWriter { store: self.clone(), path, dir, left, file: Some(file) })
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
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut writer = self.0.open(name)?;
        writer.write(bytes)?;
        writer.publish()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let mut writer = self.0.open(name)?;
        let path = writer.path.clone();
        let exists = || self.0.disk.exists(&path).map_err(|e| failed("reading", &path, &e));
        // This is checked before the work as well as under the lock.
        if exists()? {
            return Ok(false);
        }
        writer.write(bytes)?;
        writer.sync()?;
        let naming = self.0.naming.lock();
        if exists()? {
            return Ok(false);
        }
        writer.name()?;
        drop(naming);
        writer.sync_name()?;
        Ok(true)
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
        let dir = match prefix.strip_suffix('/') {
            None => self.0.root.clone(),
            Some(name) => {
                check_name(name)?;
                self.0.path(name)
            }
        };
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
            let what = format!("{} was not written: it failed before", self.path.display());
            return Err(Error::new(tidemill_core::Kind::Io, what));
        };
        act(&mut **file).map_err(|error| {
            self.file = None;
            failed("writing", self.temporary(), &error)
        })
    }

    fn sync(&mut self) -> Result<()> {
        self.with(|file| file.sync())?;
        self.file = None;
        Ok(())
    }

    fn name(&mut self) -> Result<()> {
        let renamed = self.store.disk.rename(self.temporary(), &self.path);
        renamed.map_err(|e| failed("naming", &self.path, &e))?;
        self.left = None;
        Ok(())
    }

    fn sync_name(&self) -> Result<()> {
        self.store.disk.sync_dir(&self.dir).map_err(|e| failed("syncing", &self.dir, &e))
    }

    fn publish(&mut self) -> Result<()> {
        self.sync()?;
        let naming = self.store.clone();
        let naming = naming.naming.lock();
        self.name()?;
        drop(naming);
        self.sync_name()
    }
}

impl ObjectWriter for DirWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.with(|file| file.write_all(bytes))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.publish()
    }
}

impl Drop for DirWriter {
    fn drop(&mut self) {
        if let Some(temporary) = &self.left {
            // If this fails, the next sweep removes it.
            let _ = self.store.disk.remove(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_env::RealDisk;
    use tidemill_sim::{DiskOp, SimEnv};

    fn store(disk: &Arc<tidemill_sim::SimDisk>) -> DirStore {
        DirStore::new(disk.clone(), "/data/store")
    }

    #[test]
    fn a_directory_keeps_the_contract() {
        let dir = tempfile::tempdir().expect("a directory");
        let real = DirStore::new(Arc::new(RealDisk::new()), dir.path().join("some").join("where"));
        crate::contract::store(&real);
        crate::contract::store(&store(&SimEnv::new(1).disk));
    }

    #[test]
    fn files_of_others_are_no_objects() {
        let disk = SimEnv::new(1).disk;
        let store = store(&disk);
        store.put("a/b", b"x").unwrap();
        for name in [".DS_Store", "a/.hidden", "a/name with spaces"] {
            disk.create(&Path::new("/data/store").join(name)).unwrap();
        }
        store.sweep().unwrap();
        let names: Vec<String> = store.list("").unwrap().into_iter().map(|o| o.name).collect();
        assert_eq!(names, ["a/b"]);
        assert!(disk.exists(Path::new("/data/store/.DS_Store")).unwrap(), "not ours to remove");
    }

    /// Whichever call fails, and however the machine stops: objects that were put are there, and
    /// others are whole or absent.
    #[test]
    fn an_object_is_whole_or_absent_wherever_it_fails() {
        let kinds = [ErrorKind::Other, ErrorKind::StorageFull];
        for (nth, how) in (1..40).flat_map(|nth| (0..6).map(move |how| (nth, how))) {
            let disk = SimEnv::new(nth * 10 + how).disk;
            let store = store(&disk);
            store.put("x/old", b"old").unwrap();
            let kind = kinds[how as usize % 2];
            match how / 2 {
                0 => disk.fail_nth(None, nth, kind),
                _ => disk.fail_from(None, nth, kind),
            }
            let put = store.put("x/put", b"put").is_ok();
            let absent = store.put_if_absent("x/absent", b"absent");
            let streamed = store.create("y/streamed").and_then(|mut writer| {
                writer.write(b"str")?;
                writer.write(b"eamed")?;
                writer.finish()
            });
            let _ = store.delete("x/old");
            match how / 2 {
                0 | 1 => disk.crash_torn(),
                _ => disk.crash(),
            }
            let store = self::store(&disk);
            store.sweep().unwrap();
            let check = |name: &str, bytes: &[u8], done: bool| match store.get(name).unwrap() {
                Some(found) => assert_eq!(found, bytes, "{name} is whole"),
                None => assert!(!done, "{name} was put"),
            };
            check("x/put", b"put", put);
            check("x/absent", b"absent", absent.is_ok_and(|new| new));
            check("y/streamed", b"streamed", streamed.is_ok());
            check("x/old", b"old", false);
            for dir in ["/data/store/x", "/data/store/y"] {
                for path in disk.list(Path::new(dir)).unwrap_or_default() {
                    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                    assert!(!name.starts_with('.'), "{name} was swept");
                }
            }
        }
    }

    #[test]
    fn a_failed_sync_is_not_stored_and_not_tried_again() {
        let disk = SimEnv::new(1).disk;
        let store = store(&disk);
        disk.fail_nth(DiskOp::Sync, 1, ErrorKind::Other);
        let error = store.put("a/b", b"x").unwrap_err();
        assert_eq!(error.kind, tidemill_core::Kind::Io);
        assert!(error.what.contains("/data/store/a"), "{error}");
        assert_eq!(store.get("a/b").unwrap(), None);
        assert_eq!(disk.list(Path::new("/data/store/a")).unwrap(), [] as [PathBuf; 0]);

        let mut writer = store.create("a/c").unwrap();
        disk.fail_nth(DiskOp::Write, 1, ErrorKind::StorageFull);
        let full = writer.write(b"x").unwrap_err();
        assert_eq!(full.kind, tidemill_core::Kind::Resource);
        assert!(!full.help.is_empty());
        assert!(writer.write(b"y").is_err());
        assert!(writer.finish().is_err());
        assert_eq!(store.list("").unwrap(), []);
    }
}
