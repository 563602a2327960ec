//! Files in memory, and what goes wrong with files.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tidemill_env::{Clock, Disk, Lock, Meta, ReadFile, WriteFile};

use crate::{SimClock, SimRandom};

/// A disk in memory that tells what was written from what was synced.
///
/// It keeps twice what a machine keeps once: what the programs see, and what a crash would leave.
/// [`sync`](WriteFile::sync) moves the bytes of one file from the first to the second,
/// [`sync_dir`](Disk::sync_dir) the names of one directory.
///
/// Every call of the [`Disk`] and of its files is counted, logged, and may be made to fail.
///
/// Harsher than most real disks, as far as their promises allow it: syncing a file does not store
/// its name, and bytes whose sync has failed are never stored, though a later sync succeeds.
pub struct SimDisk {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    clock: Arc<SimClock>,
    random: SimRandom,
}

#[derive(Default)]
struct State {
    /// What the programs see.
    names: BTreeMap<PathBuf, Node>,
    /// What a crash leaves. Always: `durable` with `pending` applied is `names`.
    durable: BTreeMap<PathBuf, Node>,
    pending: Vec<NameChange>,
    /// Counts the crashes: handles of an earlier boot are dead.
    boot: u64,
    capacity: Option<u64>,
    faults: Vec<Fault>,
    calls: Vec<DiskCall>,
}

#[derive(Clone)]
enum Node {
    Dir { modified_us: i64 },
    File(File),
}

/// Locked only while the state is locked, except where one thread owns the file alone.
type File = Arc<Mutex<Inode>>;

#[derive(Default)]
struct Inode {
    /// What the programs see.
    data: Vec<u8>,
    /// What a crash leaves. `synced` with `pending` applied is `data`, until a sync fails.
    synced: Vec<u8>,
    pending: Vec<Change>,
    modified_us: i64,
    /// Whether somebody holds its lock.
    locked: bool,
}

/// A change of a file's bytes.
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    SetLen(usize),
}

impl Change {
    fn apply(&self, data: &mut Vec<u8>) {
        match self {
            // Also what a torn write may come to. Writing nothing does not extend a file.
            Change::Write { bytes, .. } if bytes.is_empty() => {}
            Change::Write { at, bytes } => {
                let end = at + bytes.len();
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[*at..end].copy_from_slice(bytes);
            }
            Change::SetLen(len) => data.resize(*len, 0),
        }
    }
}

/// A change of names that a crash keeps or loses as one: each path with what it names from now on.
struct NameChange(Vec<(PathBuf, Option<File>)>);

impl NameChange {
    fn apply(self, names: &mut BTreeMap<PathBuf, Node>) {
        for (path, file) in self.0 {
            match file {
                Some(file) => names.insert(path, Node::File(file)),
                None => names.remove(&path),
            };
        }
    }
}

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiskOp {
    /// [`Disk::open_read`]
    OpenRead,
    /// [`Disk::create`]
    Create,
    /// [`Disk::open_append`]
    OpenAppend,
    /// [`Disk::open_at`]
    OpenAt,
    /// [`Disk::try_lock`]
    TryLock,
    /// [`Disk::rename`]
    Rename,
    /// [`Disk::remove`]
    Remove,
    /// [`Disk::list`]
    List,
    /// [`Disk::metadata`], and `len` of an open file
    Metadata,
    /// [`Disk::create_dir_all`]
    CreateDirAll,
    /// [`Disk::sync_dir`]
    SyncDir,
    /// A read of an open file
    Read,
    /// A write to an open file
    Write,
    /// [`WriteFile::set_len`]
    SetLen,
    /// [`WriteFile::sync`]
    Sync,
}

/// A call that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCall {
    /// What was called.
    pub op: DiskOp,
    /// The file or directory; the old name in a rename.
    pub path: PathBuf,
    /// The bytes read or written; 0 in other calls.
    pub bytes: u64,
    /// How it failed, if it did.
    pub error: Option<ErrorKind>,
}

struct Fault {
    /// `None`: any.
    op: Option<DiskOp>,
    /// Calls that still succeed.
    after: u64,
    kind: ErrorKind,
    /// Whether all further calls fail, too.
    stays: bool,
}

impl SimDisk {
    /// An empty disk. The clock dates changes; the numbers choose what is left by
    /// [`crash_torn`](SimDisk::crash_torn).
    pub fn new(clock: Arc<SimClock>, random: SimRandom) -> SimDisk {
        SimDisk { shared: Arc::new(Shared { state: Mutex::default(), clock, random }) }
    }

    /// The machine stops and starts again, and all that was not synced is lost: bytes, and names
    /// created, renamed or removed. Open files fail from now on; faults are forgotten.
    pub fn crash(&self) {
        self.restart(|_| false);
    }

    /// As [`crash`](SimDisk::crash), but by chance some of what was not synced is left: of the
    /// changes of names a number of the first; of the writes any, in whole or cut short, so that
    /// there may be zeros where one is missing before another.
    pub fn crash_torn(&self) {
        self.restart(|random| random.below(2) == 0);
    }

    fn restart(&self, keep: impl Fn(&SimRandom) -> bool) {
        let random = &self.shared.random;
        let mut guard = self.shared.state.lock();
        let state = &mut *guard;
        for change in std::mem::take(&mut state.pending) {
            // File systems log changes of names and store them in order.
            if !keep(random) {
                break;
            }
            change.apply(&mut state.durable);
        }
        for node in state.durable.values_mut() {
            let Node::File(file) = node else { continue };
            let mut old = file.lock();
            let mut data = std::mem::take(&mut old.synced);
            for mut change in std::mem::take(&mut old.pending) {
                if !keep(random) {
                    continue;
                }
                if let Change::Write { bytes, .. } = &mut change {
                    if !keep(random) {
                        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
                    }
                }
                change.apply(&mut data);
            }
            let inode = Inode {
                synced: data.clone(),
                data,
                pending: Vec::new(),
                modified_us: old.modified_us,
                locked: false,
            };
            drop(old);
            *file = Arc::new(Mutex::new(inode));
        }
        state.names = state.durable.clone();
        state.boot += 1;
        state.faults.clear();
    }

    /// Limits the bytes that all files may have together; `None` lifts the limit. What is there
    /// already stays. A write that fits in part writes that part.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.state.lock().capacity = bytes;
    }

    /// The bytes that all files have together.
    pub fn used(&self) -> u64 {
        self.shared.state.lock().used()
    }

    /// Lets the `nth` call from now on fail, counted from 1: of this kind, or of any with `None`.
    /// A call that fails has no other effect, save that a failed sync loses the bytes concerned.
    /// Several faults count side by side.
    pub fn fail_nth(&self, op: impl Into<Option<DiskOp>>, nth: u64, kind: ErrorKind) {
        self.add_fault(op.into(), nth, kind, false);
    }

    /// As [`fail_nth`](SimDisk::fail_nth), with all further ones failing as well, until a crash or
    /// [`clear_faults`](SimDisk::clear_faults). With any kind of call, and a crash after it: the
    /// machine stops before that call.
    pub fn fail_from(&self, op: impl Into<Option<DiskOp>>, nth: u64, kind: ErrorKind) {
        self.add_fault(op.into(), nth, kind, true);
    }

    fn add_fault(&self, op: Option<DiskOp>, nth: u64, kind: ErrorKind, stays: bool) {
        assert!(nth > 0, "calls are counted from 1");
        self.shared.state.lock().faults.push(Fault { op, after: nth - 1, kind, stays });
    }

    /// Forgets all faults; the capacity stays.
    pub fn clear_faults(&self) {
        self.shared.state.lock().faults.clear();
    }

    /// Inverts a bit of a file: bit `bit % 8` (from the lowest) of byte `bit / 8`. Programs see it
    /// at once; it survives a crash where the byte does.
    ///
    /// # Errors
    /// `NotFound` when there is no such file, `InvalidInput` when it has no such byte.
    pub fn flip_bit(&self, path: &Path, bit: u64) -> io::Result<()> {
        let state = self.shared.state.lock();
        let file = state.file(&clean(path))?;
        let mut inode = file.lock();
        let (byte, mask) = ((bit / 8) as usize, 1 << (bit % 8));
        if byte >= inode.data.len() {
            return Err(ErrorKind::InvalidInput.into());
        }
        inode.data[byte] ^= mask;
        if let Some(synced) = inode.synced.get_mut(byte) {
            *synced ^= mask;
        }
        for change in &mut inode.pending {
            if let Change::Write { at, bytes } = change {
                if let Some(byte) = byte.checked_sub(*at).and_then(|i| bytes.get_mut(i)) {
                    *byte ^= mask;
                }
            }
        }
        Ok(())
    }

    /// All calls since the last time that this was called, in order, failed ones included. Seeking
    /// and flushing are no calls.
    pub fn take_calls(&self) -> Vec<DiskCall> {
        std::mem::take(&mut self.shared.state.lock().calls)
    }
}

/// One way to write each path: without `.` and `..`. (There are no links, so that `..` is plain.)
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

/// The top of all absolute paths, or of all relative ones.
fn is_top(path: &Path) -> bool {
    path.parent().is_none()
}

impl State {
    /// `None` for a top directory, which is always there.
    fn node(&self, path: &Path) -> io::Result<Option<&Node>> {
        if is_top(path) {
            return Ok(None);
        }
        if let Some(node) = self.names.get(path) {
            return Ok(Some(node));
        }
        // A file where a directory should be is told apart from nothing at all.
        let in_the_way = path.ancestors().skip(1).find_map(|above| self.names.get(above));
        Err(match in_the_way {
            Some(Node::File(_)) => ErrorKind::NotADirectory.into(),
            _ => ErrorKind::NotFound.into(),
        })
    }

    fn file(&self, path: &Path) -> io::Result<&File> {
        match self.node(path)? {
            Some(Node::File(file)) => Ok(file),
            _ => Err(ErrorKind::IsADirectory.into()),
        }
    }

    fn check_dir(&self, path: &Path) -> io::Result<()> {
        match self.node(path)? {
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            _ => Ok(()),
        }
    }

    fn file_or_new(&mut self, path: &Path, now_us: i64) -> io::Result<File> {
        match self.file(path) {
            Ok(file) => return Ok(file.clone()),
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            Err(_) => {}
        }
        self.check_dir(path.parent().unwrap_or(path))?;
        let file = File::default();
        file.lock().modified_us = now_us;
        self.change_names(vec![(path.to_owned(), Some(file.clone()))]);
        Ok(file)
    }

    fn change_names(&mut self, change: Vec<(PathBuf, Option<File>)>) {
        NameChange(change.clone()).apply(&mut self.names);
        self.pending.push(NameChange(change));
    }

    /// Stores the changes of names in a directory, and with them all that concern the same paths
    /// elsewhere: a rename is stored on both sides, and behind what led to it.
    fn sync_names(&mut self, dir: &Path) {
        let mut paths: Vec<PathBuf> = Vec::new();
        let mut stored = vec![false; self.pending.len()];
        loop {
            let mut grown = false;
            for (change, stored) in self.pending.iter().zip(&mut stored) {
                let concerned = |(path, _): &(PathBuf, Option<File>)| {
                    path.parent() == Some(dir) || paths.contains(path)
                };
                if !*stored && change.0.iter().any(concerned) {
                    *stored = true;
                    grown = true;
                    paths.extend(change.0.iter().map(|(path, _)| path.clone()));
                }
            }
            if !grown {
                break;
            }
        }
        let pending = std::mem::take(&mut self.pending);
        for (change, stored) in pending.into_iter().zip(stored) {
            if stored {
                change.apply(&mut self.durable);
            } else {
                self.pending.push(change);
            }
        }
    }

    fn used(&self) -> u64 {
        let len = |node: &Node| match node {
            Node::Dir { .. } => 0,
            Node::File(file) => file.lock().data.len() as u64,
        };
        self.names.values().map(len).sum()
    }

    /// Bytes by which files may still grow.
    fn room(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.used()))
    }

    /// Counts a call; the error that it has to fail with, if any.
    fn fault(&mut self, op: DiskOp) -> Option<ErrorKind> {
        let mut kind = None;
        self.faults.retain_mut(|fault| {
            if fault.op.is_some_and(|of| of != op) {
                return true;
            }
            if fault.after > 0 {
                fault.after -= 1;
                return true;
            }
            kind = kind.or(Some(fault.kind));
            fault.stays
        });
        kind
    }
}

impl Shared {
    /// Makes one call: fails it if it is to fail, logs it. `body` returns its result and the
    /// number of bytes moved.
    fn call<T>(
        &self,
        op: DiskOp,
        path: &Path,
        body: impl FnOnce(&mut State) -> io::Result<(T, usize)>,
    ) -> io::Result<T> {
        let mut state = self.state.lock();
        let result = match state.fault(op) {
            Some(kind) => Err(io::Error::new(kind, "simulated fault")),
            None => body(&mut state),
        };
        let (result, bytes) = match result {
            Ok((value, bytes)) => (Ok(value), bytes as u64),
            Err(e) => (Err(e), 0),
        };
        state.calls.push(DiskCall {
            op,
            path: path.to_owned(),
            bytes,
            error: result.as_ref().err().map(io::Error::kind),
        });
        result
    }

    fn now_us(&self) -> i64 {
        self.clock.now_us()
    }
}

impl SimDisk {
    fn handle(&self, state: &State, path: &Path, file: File, position: usize) -> Handle {
        Handle {
            shared: self.shared.clone(),
            boot: state.boot,
            path: path.to_owned(),
            file,
            position,
        }
    }
}

impl Disk for SimDisk {
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let path = &clean(path);
        self.shared.call(DiskOp::OpenRead, path, |state| {
            let file = state.file(path)?.clone();
            let handle = self.handle(state, path, file, 0);
            Ok((Box::new(handle) as Box<dyn ReadFile>, 0))
        })
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let path = &clean(path);
        self.shared.call(DiskOp::Create, path, |state| {
            let now_us = self.shared.now_us();
            let file = state.file_or_new(path, now_us)?;
            if !file.lock().data.is_empty() {
                file.lock().change(Change::SetLen(0), now_us);
            }
            let handle = self.handle(state, path, file, 0);
            Ok((Box::new(handle) as Box<dyn WriteFile>, 0))
        })
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let path = &clean(path);
        self.shared.call(DiskOp::OpenAppend, path, |state| {
            let file = state.file_or_new(path, self.shared.now_us())?;
            let end = file.lock().data.len();
            let handle = self.handle(state, path, file, end);
            Ok((Box::new(handle) as Box<dyn WriteFile>, 0))
        })
    }

    fn open_at(&self, path: &Path, at: u64) -> io::Result<Box<dyn WriteFile>> {
        let path = &clean(path);
        self.shared.call(DiskOp::OpenAt, path, |state| {
            let file = state.file_or_new(path, self.shared.now_us())?;
            // As the system: positions are signed.
            let at = i64::try_from(at).map_err(|_| ErrorKind::InvalidInput)?;
            let handle = self.handle(state, path, file, at as usize);
            Ok((Box::new(handle) as Box<dyn WriteFile>, 0))
        })
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let path = &clean(path);
        self.shared.call(DiskOp::TryLock, path, |state| {
            let file = state.file_or_new(path, self.shared.now_us())?;
            if std::mem::replace(&mut file.lock().locked, true) {
                return Ok((None, 0));
            }
            let lock = Held { shared: self.shared.clone(), file };
            Ok((Some(Box::new(lock) as Box<dyn Lock>), 0))
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (&clean(from), &clean(to));
        self.shared.call(DiskOp::Rename, from, |state| {
            let file = state.file(from)?.clone();
            match state.file(to) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => state.check_dir(to.parent().unwrap_or(to))?,
            }
            if from != to {
                state.change_names(vec![(from.clone(), None), (to.clone(), Some(file))]);
            }
            Ok(((), 0))
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let path = &clean(path);
        self.shared.call(DiskOp::Remove, path, |state| {
            state.file(path)?;
            state.change_names(vec![(path.clone(), None)]);
            Ok(((), 0))
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let clean_dir = &clean(dir);
        self.shared.call(DiskOp::List, clean_dir, |state| {
            state.check_dir(clean_dir)?;
            let names = state.names.keys();
            let here = names.filter(|path| path.parent() == Some(clean_dir));
            // Sorted, since the map is.
            let paths = here.filter_map(|path| Some(dir.join(path.file_name()?)));
            Ok((paths.collect(), 0))
        })
    }

    fn metadata(&self, path: &Path) -> io::Result<Meta> {
        let path = &clean(path);
        self.shared.call(DiskOp::Metadata, path, |state| {
            let (len, modified_us, is_dir) = match state.node(path)? {
                None => (0, 0, true),
                Some(Node::Dir { modified_us }) => (0, *modified_us, true),
                Some(Node::File(file)) => {
                    let inode = file.lock();
                    (inode.data.len() as u64, inode.modified_us, false)
                }
            };
            let meta = Meta { len, modified_us, is_dir };
            Ok((meta, 0))
        })
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let dir = &clean(dir);
        self.shared.call(DiskOp::CreateDirAll, dir, |state| {
            let mut missing: Vec<&Path> = Vec::new();
            for above in dir.ancestors() {
                match state.check_dir(above) {
                    Ok(()) => break,
                    Err(e) if e.kind() == ErrorKind::NotFound => missing.push(above),
                    Err(e) => return Err(e),
                }
            }
            let modified_us = self.shared.now_us();
            for dir in missing {
                // The promise is kept by syncing the parent, which stores its other names as well.
                if let Some(parent) = dir.parent() {
                    state.sync_names(parent);
                }
                let node = Node::Dir { modified_us };
                state.names.insert(dir.to_owned(), node.clone());
                state.durable.insert(dir.to_owned(), node);
            }
            Ok(((), 0))
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = &clean(dir);
        self.shared.call(DiskOp::SyncDir, dir, |state| {
            state.check_dir(dir)?;
            state.sync_names(dir);
            Ok(((), 0))
        })
    }
}

impl Inode {
    fn change(&mut self, change: Change, now_us: i64) {
        change.apply(&mut self.data);
        self.pending.push(change);
        self.modified_us = now_us;
    }
}

/// A lock that is held. After a crash the file is another one, which nobody has locked.
struct Held {
    shared: Arc<Shared>,
    file: File,
}

impl Lock for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        let _state = self.shared.state.lock();
        self.file.lock().locked = false;
    }
}

/// An open file, for reading or writing.
struct Handle {
    shared: Arc<Shared>,
    boot: u64,
    path: PathBuf,
    file: File,
    position: usize,
}

impl Handle {
    fn call<T>(
        &self,
        op: DiskOp,
        body: impl FnOnce(&State, MutexGuard<'_, Inode>) -> io::Result<(T, usize)>,
    ) -> io::Result<T> {
        self.shared.call(op, &self.path, |state| {
            if self.boot != state.boot {
                return Err(io::Error::new(
                    ErrorKind::BrokenPipe,
                    "the file was opened before the crash",
                ));
            }
            body(state, self.file.lock())
        })
    }

    fn file_len(&self) -> io::Result<u64> {
        self.call(DiskOp::Metadata, |_, inode| Ok((inode.data.len() as u64, 0)))
    }
}

impl Read for Handle {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.call(DiskOp::Read, |_, inode| {
            let rest = inode.data.get(self.position..).unwrap_or_default();
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
            SeekFrom::End(offset) => (self.file.lock().data.len() as u64, offset),
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
        let at = self.position;
        let now_us = self.shared.now_us();
        let written = self.call(DiskOp::Write, |state, inode| {
            let len = inode.data.len();
            // Counting what is used locks all files.
            drop(inode);
            let room = usize::try_from(state.room()).unwrap_or(usize::MAX);
            let written = buf.len().min(len.saturating_add(room).saturating_sub(at));
            if written == 0 && !buf.is_empty() {
                return Err(ErrorKind::StorageFull.into());
            }
            let bytes = buf[..written].to_owned();
            self.file.lock().change(Change::Write { at, bytes }, now_us);
            Ok((written, written))
        })?;
        self.position += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl WriteFile for Handle {
    fn sync(&mut self) -> io::Result<()> {
        let result = self.call(DiskOp::Sync, |_, mut inode| {
            let Inode { synced, pending, .. } = &mut *inode;
            for change in pending.drain(..) {
                change.apply(synced);
            }
            Ok(((), 0))
        });
        if result.is_err() {
            // As Linux does: the bytes count as written, whether the disk has them or not.
            self.file.lock().pending.clear();
        }
        result
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let new = usize::try_from(len).map_err(|_| ErrorKind::FileTooLarge)?;
        let now_us = self.shared.now_us();
        self.call(DiskOp::SetLen, |state, inode| {
            let old = inode.data.len();
            drop(inode);
            if new > old && (new - old) as u64 > state.room() {
                return Err(ErrorKind::StorageFull.into());
            }
            self.file.lock().change(Change::SetLen(new), now_us);
            Ok(((), 0))
        })?;
        self.position = self.position.min(new);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.file_len()
    }
}

#[cfg(test)]
mod tests;
