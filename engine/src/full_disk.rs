//! A disk for outputs. When it is full, writers wait until there is space, in one process as on
//! several.
//!
//! A write on a full disk has written nothing, so it is repeated unchanged. A failed sync is
//! different, and is never repeated.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use tidemill_core::Error;
use tidemill_env::{Clock, Closed, Disk, Env, Lock, Meta, NodeKind, ReadFile, WriteFile};

use crate::shared::Shared;

/// The pause between two checks of a full disk, in microseconds.
pub(crate) const FULL_US: u64 = 100_000;

/// Receives reports about writers that wait for disk space.
pub(crate) trait SpaceWaiter: Send + Sync {
    /// Whether writers should stop waiting.
    fn gives_up(&self) -> bool;

    /// Reports that a writer waits, and why.
    fn stall(&self, error: Error);

    /// Reports that no writer waits any more.
    fn has_room(&self);
}

impl SpaceWaiter for Shared {
    fn gives_up(&self) -> bool {
        Shared::gives_up(self)
    }

    fn stall(&self, error: Error) {
        Shared::stall(self, error);
    }

    fn has_room(&self) {
        Shared::has_room(self);
    }
}

/// The receiver of reports about waiting. It is set when the engine exists, and no writer waits
/// before.
pub(crate) type SpaceWaits = Arc<OnceLock<Weak<dyn SpaceWaiter>>>;

/// The environment, with a disk that waits when it is full.
pub(crate) fn patient(env: &Env, waits: &SpaceWaits) -> Env {
    let (disk, clock, waits) = (env.disk.clone(), env.clock.clone(), waits.clone());
    Env { disk: Arc::new(Patient { disk, room: Room { clock, waits } }), ..env.clone() }
}

#[derive(Clone)]
struct Room {
    clock: Arc<dyn Clock>,
    waits: SpaceWaits,
}

impl Room {
    /// Repeats a call until the disk is not full.
    fn wait<T>(&self, path: &Path, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut waited = None;
        loop {
            let error = match call() {
                Err(error) if is_full(&error) => error,
                done => {
                    waited.inspect(|waiting: &Arc<dyn SpaceWaiter>| waiting.has_room());
                    return done;
                }
            };
            let waiting = self.waits.get().and_then(Weak::upgrade);
            let Some(waiting) = waiting.filter(|waiting| !waiting.gives_up()) else {
                return Err(error);
            };
            waiting.stall(
                Error::resource(format!(
                    "{}: no room for more of the output: {error}",
                    path.display()
                ))
                .help("free space on this disk; the written output is intact, and writing then continues"),
            );
            waited = Some(waiting);
            self.clock.sleep_us(FULL_US);
        }
    }
}

/// Whether a failed call found the disk full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

struct Patient {
    disk: Arc<dyn Disk>,
    room: Room,
}

impl Patient {
    fn file(
        &self,
        path: &Path,
        open: impl FnMut() -> io::Result<Box<dyn WriteFile>>,
    ) -> io::Result<Box<dyn WriteFile>> {
        let file = self.room.wait(path, open)?;
        Ok(Box::new(File { file, path: path.into(), room: self.room.clone() }))
    }
}

impl Disk for Patient {
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.disk.open_read(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        self.file(path, || self.disk.create(path))
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        self.file(path, || self.disk.open_append(path))
    }

    fn open_shared(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        self.file(path, || self.disk.open_shared(path))
    }

    fn open_at(&self, path: &Path, at: u64) -> io::Result<Box<dyn WriteFile>> {
        self.file(path, || self.disk.open_at(path, at))
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.disk.try_lock(path)
    }

    fn try_lock_dir(&self, dir: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.disk.try_lock_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.room.wait(to, || self.disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.disk.list(dir)
    }

    fn metadata(&self, path: &Path) -> io::Result<Meta> {
        self.disk.metadata(path)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.room.wait(dir, || self.disk.create_dir_all(dir))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn node(&self, path: &Path) -> io::Result<NodeKind> {
        self.disk.node(path)
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.disk.resolve(path)
    }

    fn keep_private(&self, dir: &Path) {
        self.disk.keep_private(dir);
    }

    fn close_to_others(&self, dir: &Path) -> io::Result<Closed> {
        self.disk.close_to_others(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }
}

struct File {
    file: Box<dyn WriteFile>,
    path: PathBuf,
    room: Room,
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.room.wait(&self.path, || self.file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl WriteFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.room.wait(&self.path, || self.file.set_len(len))
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
