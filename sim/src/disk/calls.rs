//! The calls of a simulated disk, as `env` specifies them.
//!
//! They read the state and apply events to it. The effects of a crash are in `state`.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_core::encode::hash128;
use tidemill_env::{Closed, Disk, FileId, Lock, Meta, NodeKind, ReadFile, WriteFile};

use super::faults::Planned;
use super::state::{Change, Event, Id, NameChange, Node};
use super::{clean, DiskCall, DiskOp, Machine, Shared, SimDisk};

impl Shared {
    /// Makes one call: waits or fails if a stall or fault is due, and logs the call. `body` returns
    /// its result and the number of bytes moved.
    fn call<T>(
        &self,
        op: DiskOp,
        path: &Path,
        body: impl FnOnce(&mut Machine) -> io::Result<(T, usize)>,
    ) -> io::Result<T> {
        let mut machine = self.machine.lock();
        if let Some(gate) = Planned::count(&mut machine.stalls, op, path) {
            drop(machine);
            gate.pass();
            machine = self.machine.lock();
        }
        let result = match Planned::count(&mut machine.faults, op, path) {
            Some(kind) => Err(io::Error::new(kind, "simulated fault")),
            None => body(&mut machine),
        };
        let (result, bytes) = match result {
            Ok((value, bytes)) => (Ok(value), bytes as u64),
            Err(e) => (Err(e), 0),
        };
        machine.calls.push(DiskCall {
            op,
            path: path.to_owned(),
            bytes,
            error: result.as_ref().err().map(io::Error::kind),
        });
        result
    }
}

impl Machine {
    fn change_names(&mut self, shared: &Shared, path: &Path, change: Vec<(PathBuf, Option<Id>)>) {
        self.happens(shared, path, Event::Names(NameChange(change)));
    }

    fn file_or_new(&mut self, shared: &Shared, path: &Path) -> io::Result<Id> {
        match self.state.id(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            other => return other,
        }
        self.state.check_dir(path.parent().unwrap_or(path))?;
        let id = self.state.next_id();
        self.change_names(shared, path, vec![(path.to_owned(), Some(id))]);
        Ok(id)
    }

    /// Returns the number of bytes by which files may still grow.
    fn room(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.state.used()))
    }
}

impl SimDisk {
    /// Opens a file at a position that `at` computes from its length.
    fn open(
        &self,
        op: DiskOp,
        path: &Path,
        at: impl FnOnce(usize) -> io::Result<usize>,
    ) -> io::Result<Handle> {
        let path = clean(path);
        self.shared.call(op, &path, |machine| {
            let id = match op {
                DiskOp::OpenRead => machine.state.id(&path)?,
                _ => machine.file_or_new(&self.shared, &path)?,
            };
            let len = machine.state.file(id).data.len();
            if op == DiskOp::Create && len > 0 {
                machine.happens(&self.shared, &path, Event::Bytes(id, Change::SetLen(0)));
            }
            Ok((
                Handle {
                    shared: self.shared.clone(),
                    boot: machine.boot,
                    path: path.clone(),
                    id,
                    _open: machine.state.file(id).open.clone(),
                    position: at(len)?,
                    is_shared: false,
                },
                0,
            ))
        })
    }
}

impl Disk for SimDisk {
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        Ok(Box::new(self.open(DiskOp::OpenRead, path, |_| Ok(0))?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        Ok(Box::new(self.open(DiskOp::Create, path, |_| Ok(0))?))
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        Ok(Box::new(self.open(DiskOp::OpenAppend, path, Ok)?))
    }

    fn open_shared(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let handle = self.open(DiskOp::OpenAppend, path, Ok)?;
        Ok(Box::new(Handle { is_shared: true, ..handle }))
    }

    fn open_at(&self, path: &Path, at: u64) -> io::Result<Box<dyn WriteFile>> {
        // Positions are signed, as on real systems.
        let at = |_| match i64::try_from(at) {
            Ok(at) => Ok(at as usize),
            Err(_) => Err(ErrorKind::InvalidInput.into()),
        };
        Ok(Box::new(self.open(DiskOp::OpenAt, path, at)?))
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let path = &clean(path);
        self.shared.call(DiskOp::TryLock, path, |machine| {
            let id = machine.file_or_new(&self.shared, path)?;
            if !machine.locked.insert(id) {
                return Ok((None, 0));
            }
            let lock = Held {
                shared: self.shared.clone(),
                boot: machine.boot,
                id,
                _open: machine.state.file(id).open.clone(),
            };
            Ok((Some(Box::new(lock) as Box<dyn Lock>), 0))
        })
    }

    fn try_lock_dir(&self, dir: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let dir = &clean(dir);
        self.shared.call(DiskOp::TryLock, dir, |machine| {
            machine.state.check_dir(dir)?;
            if !machine.locked_dirs.insert(dir.clone()) {
                return Ok((None, 0));
            }
            let (shared, boot) = (self.shared.clone(), machine.boot);
            let lock = HeldDir { shared, boot, dir: dir.clone() };
            Ok((Some(Box::new(lock) as Box<dyn Lock>), 0))
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (&clean(from), &clean(to));
        self.shared.call(DiskOp::Rename, from, |machine| {
            let id = machine.state.id(from)?;
            match machine.state.id(to) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => machine.state.check_dir(to.parent().unwrap_or(to))?,
            }
            if from != to {
                let change = vec![(from.clone(), None), (to.clone(), Some(id))];
                machine.change_names(&self.shared, from, change);
            }
            Ok(((), 0))
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let path = &clean(path);
        self.shared.call(DiskOp::Remove, path, |machine| {
            machine.state.id(path)?;
            machine.change_names(&self.shared, path, vec![(path.clone(), None)]);
            Ok(((), 0))
        })
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = &clean(dir);
        self.shared.call(DiskOp::RemoveDir, dir, |machine| {
            machine.state.check_dir(dir)?;
            if machine.state.names.keys().any(|path| path.parent() == Some(dir))
                || dir.parent().is_none()
            {
                return Err(ErrorKind::DirectoryNotEmpty.into());
            }
            // No crash leaves names in a removed directory.
            machine.happens(&self.shared, dir, Event::SyncDir(dir.clone()));
            machine.change_names(&self.shared, dir, vec![(dir.clone(), None)]);
            Ok(((), 0))
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let clean_dir = &clean(dir);
        self.shared.call(DiskOp::List, clean_dir, |machine| {
            machine.state.check_dir(clean_dir)?;
            let names = machine.state.names.keys();
            let here = names.filter(|path| path.parent() == Some(clean_dir));
            // The map is sorted, so the paths are, too.
            let paths = here.filter_map(|path| Some(dir.join(path.file_name()?)));
            Ok((paths.collect(), 0))
        })
    }

    fn metadata(&self, path: &Path) -> io::Result<Meta> {
        let path = &clean(path);
        self.shared.call(DiskOp::Metadata, path, |machine| {
            // The path identifies a directory, because directories are never renamed.
            let named =
                FileId { device: 0, number: hash128(path.as_os_str().as_encoded_bytes()) as u64 };
            let (len, modified_us, is_dir, id) = match machine.state.node(path)? {
                None => (0, 0, true, named),
                Some(Node::Dir { modified_us }) => (0, *modified_us, true, named),
                Some(Node::File(id)) => {
                    let file = machine.state.file(*id);
                    let id = FileId { device: 1, number: *id };
                    (file.data.len() as u64, file.modified_us, false, id)
                }
            };
            Ok((Meta { len, modified_us, is_dir, is_file: !is_dir, id }, 0))
        })
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let dir = &clean(dir);
        self.shared.call(DiskOp::CreateDirAll, dir, |machine| {
            let mut missing: Vec<PathBuf> = Vec::new();
            for above in dir.ancestors() {
                match machine.state.check_dir(above) {
                    Ok(()) => break,
                    Err(e) if e.kind() == ErrorKind::NotFound => missing.push(above.to_owned()),
                    Err(e) => return Err(e),
                }
            }
            if !missing.is_empty() {
                machine.happens(&self.shared, dir, Event::Directories(missing));
            }
            Ok(((), 0))
        })
    }

    fn node(&self, path: &Path) -> io::Result<NodeKind> {
        // There are no links.
        self.metadata(path).map(|meta| if meta.is_dir { NodeKind::Dir } else { NodeKind::File })
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.metadata(path).map(|_| clean(path))
    }

    fn keep_private(&self, _dir: &Path) {}

    fn close_to_others(&self, dir: &Path) -> io::Result<Closed> {
        // There are no other users.
        self.metadata(dir).map(|_| Closed::default())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = &clean(dir);
        self.shared.call(DiskOp::SyncDir, dir, |machine| {
            machine.state.check_dir(dir)?;
            machine.happens(&self.shared, dir, Event::SyncDir(dir.clone()));
            Ok(((), 0))
        })
    }
}

/// A lock that is held.
struct Held {
    shared: Arc<Shared>,
    boot: u64,
    id: Id,
    _open: Arc<()>,
}

impl Lock for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        let mut machine = self.shared.machine.lock();
        // A crash has freed the lock, and another process may hold it now.
        if self.boot == machine.boot {
            machine.locked.remove(&self.id);
        }
    }
}

/// A lock of a directory that is held.
struct HeldDir {
    shared: Arc<Shared>,
    boot: u64,
    dir: PathBuf,
}

impl Lock for HeldDir {}

impl Drop for HeldDir {
    fn drop(&mut self) {
        let mut machine = self.shared.machine.lock();
        if self.boot == machine.boot {
            machine.locked_dirs.remove(&self.dir);
        }
    }
}

/// An open file, for reading or writing.
struct Handle {
    shared: Arc<Shared>,
    boot: u64,
    path: PathBuf,
    id: Id,
    /// Keeps the file alive after its last name is removed.
    _open: Arc<()>,
    position: usize,
    /// Whether each write goes to the end of the file.
    is_shared: bool,
}

impl Handle {
    fn call<T>(
        &self,
        op: DiskOp,
        body: impl FnOnce(&mut Machine) -> io::Result<(T, usize)>,
    ) -> io::Result<T> {
        self.shared.call(op, &self.path, |machine| {
            if self.boot != machine.boot {
                return Err(io::Error::new(
                    ErrorKind::BrokenPipe,
                    "the file was opened before the crash",
                ));
            }
            body(machine)
        })
    }

    fn file_len(&self) -> io::Result<u64> {
        self.call(DiskOp::Metadata, |machine| {
            Ok((machine.state.file(self.id).data.len() as u64, 0))
        })
    }

    fn happens(&self, machine: &mut Machine, event: Event) {
        machine.happens(&self.shared, &self.path, event);
    }
}

impl Read for Handle {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.call(DiskOp::Read, |machine| {
            let data = &machine.state.file(self.id).data;
            let rest = data.get(self.position..).unwrap_or_default();
            let read = rest.len().min(buf.len());
            buf[..read].copy_from_slice(&rest[..read]);
            Ok((read, read))
        })?;
        self.position += read;
        Ok(read)
    }
}

impl Seek for Handle {
    fn seek(&mut self, pos: SeekFrom) -> io::Result<u64> {
        let (base, offset) = match pos {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(offset) => (self.position as u64, offset),
            SeekFrom::End(offset) => {
                let machine = self.shared.machine.lock();
                if self.boot != machine.boot {
                    return Err(ErrorKind::BrokenPipe.into());
                }
                (machine.state.file(self.id).data.len() as u64, offset)
            }
        };
        let at = base.checked_add_signed(offset).ok_or(ErrorKind::InvalidInput)?;
        self.position = at as usize;
        Ok(at)
    }
}

impl ReadFile for Handle {
    fn len(&self) -> io::Result<u64> {
        self.file_len()
    }
}

impl Write for Handle {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let (written, end) = self.call(DiskOp::Write, |machine| {
            let len = machine.state.file(self.id).data.len();
            let at = if self.is_shared { len } else { self.position };
            let room = usize::try_from(machine.room()).unwrap_or(usize::MAX);
            let mut written = buf.len().min(len.saturating_add(room).saturating_sub(at));
            if written == 0 && !buf.is_empty() {
                return Err(ErrorKind::StorageFull.into());
            }
            if machine.short_writes && written > 1 {
                written = 1 + self.shared.random.below(written as u64) as usize;
            }
            let change = Change::Write { at, bytes: buf[..written].into() };
            self.happens(machine, Event::Bytes(self.id, change));
            Ok(((written, at + written), written))
        })?;
        self.position = end;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl WriteFile for Handle {
    fn sync(&mut self) -> io::Result<()> {
        let result = self.call(DiskOp::Sync, |machine| {
            self.happens(machine, Event::Sync(self.id));
            Ok(((), 0))
        });
        if result.is_err() {
            let mut machine = self.shared.machine.lock();
            if self.boot == machine.boot {
                self.happens(&mut machine, Event::SyncFailed(self.id));
            }
        }
        result
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let new = usize::try_from(len).map_err(|_| ErrorKind::FileTooLarge)?;
        self.call(DiskOp::SetLen, |machine| {
            let old = machine.state.file(self.id).data.len();
            if new > old && (new - old) as u64 > machine.room() {
                return Err(ErrorKind::StorageFull.into());
            }
            self.happens(machine, Event::Bytes(self.id, Change::SetLen(new)));
            Ok(((), 0))
        })?;
        self.position = self.position.min(new);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.file_len()
    }
}
