//! A simulated disk: files in memory, and the faults of files.

mod calls;
mod faults;
mod state;
mod trace;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_env::{Clock, Random};

use crate::{SimClock, SimRandom};

pub use faults::{Stall, Which};
pub use trace::{Image, Left, Trace};

use faults::{Fault, Planned, Wait};
use state::{Event, Id, State};
use trace::Step;

/// A disk in memory that separates written from synced data.
///
/// It has two copies of its contents: one that the programs see, and one that a crash would leave.
/// [`sync`](tidemill_env::WriteFile::sync) copies the bytes of one file from the first to the
/// second, and [`sync_dir`](tidemill_env::Disk::sync_dir) the names of one directory.
///
/// The disk counts and logs every call of [`Disk`](tidemill_env::Disk) and of its files. A test can
/// make calls fail or wait.
///
/// It is harsher than most real disks, as far as their promises allow: syncing a file does not
/// store its name. Bytes whose sync has failed are never stored, even if a later sync succeeds.
pub struct SimDisk {
    shared: Arc<Shared>,
}

struct Shared {
    machine: Mutex<Machine>,
    clock: Arc<SimClock>,
    random: SimRandom,
}

#[derive(Default)]
struct Machine {
    state: State,
    /// The number of crashes: handles of an earlier boot are dead.
    boot: u64,
    /// The files with a lock that is held.
    locked: BTreeSet<Id>,
    /// The directories with a lock that is held.
    locked_dirs: BTreeSet<PathBuf>,
    capacity: Option<u64>,
    short_writes: bool,
    faults: Vec<Fault>,
    stalls: Vec<Wait>,
    calls: Vec<DiskCall>,
    trace: Option<Trace>,
}

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiskOp {
    /// [`Disk::open_read`](tidemill_env::Disk::open_read)
    OpenRead,
    /// [`Disk::create`](tidemill_env::Disk::create)
    Create,
    /// [`Disk::open_append`](tidemill_env::Disk::open_append), and
    /// [`Disk::open_shared`](tidemill_env::Disk::open_shared)
    OpenAppend,
    /// [`Disk::open_at`](tidemill_env::Disk::open_at)
    OpenAt,
    /// [`Disk::try_lock`](tidemill_env::Disk::try_lock)
    TryLock,
    /// [`Disk::rename`](tidemill_env::Disk::rename)
    Rename,
    /// [`Disk::remove`](tidemill_env::Disk::remove)
    Remove,
    /// [`Disk::remove_dir`](tidemill_env::Disk::remove_dir)
    RemoveDir,
    /// [`Disk::list`](tidemill_env::Disk::list)
    List,
    /// [`Disk::metadata`](tidemill_env::Disk::metadata), and `len` of an open file
    Metadata,
    /// [`Disk::create_dir_all`](tidemill_env::Disk::create_dir_all)
    CreateDirAll,
    /// [`Disk::sync_dir`](tidemill_env::Disk::sync_dir)
    SyncDir,
    /// A read of an open file
    Read,
    /// A write to an open file
    Write,
    /// [`WriteFile::set_len`](tidemill_env::WriteFile::set_len)
    SetLen,
    /// [`WriteFile::sync`](tidemill_env::WriteFile::sync)
    Sync,
}

/// A call of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCall {
    /// The kind of the call.
    pub op: DiskOp,
    /// The file or directory; the old name in a rename.
    pub path: PathBuf,
    /// The number of bytes read or written; 0 in other calls.
    pub bytes: u64,
    /// The kind of the error, if the call failed.
    pub error: Option<ErrorKind>,
}

impl SimDisk {
    /// Creates an empty disk.
    ///
    /// `clock` dates changes. `random` decides what [`crash_torn`](SimDisk::crash_torn) leaves, and
    /// the length of short writes.
    pub fn new(clock: Arc<SimClock>, random: SimRandom) -> SimDisk {
        SimDisk::with_state(clock, random, State::default())
    }

    fn with_state(clock: Arc<SimClock>, random: SimRandom, state: State) -> SimDisk {
        let machine = Mutex::new(Machine { state, ..Machine::default() });
        SimDisk { shared: Arc::new(Shared { machine, clock, random }) }
    }

    /// Stops the machine and starts it again. All unsynced changes are lost: bytes, and names
    /// created, renamed or removed.
    ///
    /// Open files fail from now on, and locks are free. Faults, stalls and a recording are dropped.
    pub fn crash(&self) {
        self.crash_to(Left::Synced);
    }

    /// As [`crash`](SimDisk::crash), but some unsynced changes survive at random.
    ///
    /// Of the changes of names, a random number of the first ones survives. Writes survive
    /// independently: in whole, cut short, or with sectors of 512 bytes missing. A missing sector
    /// before a surviving one reads as zeros.
    pub fn crash_torn(&self) {
        self.crash_to(Left::Chance(self.shared.random.next_u64()));
    }

    /// As [`crash`](SimDisk::crash), with a choice of the unsynced changes that survive.
    pub fn crash_to(&self, left: Left) {
        let mut machine = self.shared.machine.lock();
        machine.state = machine.state.after_crash(left);
        machine.restart();
    }

    /// Ends the process while the machine goes on: nothing is lost, and unsynced changes stay
    /// unsynced. Otherwise as [`crash`](SimDisk::crash).
    pub fn kill(&self) {
        self.shared.machine.lock().restart();
    }

    /// Limits the total bytes of all files; `None` lifts the limit. Existing bytes stay. A write
    /// that fits in part writes that part.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.machine.lock().capacity = bytes;
    }

    /// Returns the total bytes of all files.
    pub fn used(&self) -> u64 {
        self.shared.machine.lock().state.used()
    }

    /// Makes the `nth` call from now on fail, counted from 1.
    ///
    /// `which` selects calls of a kind, or any with `None`, or only those [under](DiskOp::under) a
    /// path. A failed call has no other effect, except that a failed sync loses the bytes
    /// concerned. Several faults count independently.
    pub fn fail_nth(&self, which: impl Into<Which>, nth: u64, kind: ErrorKind) {
        let fault = Planned::new(which.into(), nth, false, kind);
        self.shared.machine.lock().faults.push(fault);
    }

    /// As [`fail_nth`](SimDisk::fail_nth), but all later calls fail as well, until a crash or
    /// [`clear_faults`](SimDisk::clear_faults). With any kind of call and a crash after it, the
    /// machine stops before that call.
    pub fn fail_from(&self, which: impl Into<Which>, nth: u64, kind: ErrorKind) {
        let fault = Planned::new(which.into(), nth, true, kind);
        self.shared.machine.lock().faults.push(fault);
    }

    /// Removes all faults; the capacity, stalls and short writes stay.
    pub fn clear_faults(&self) {
        self.shared.machine.lock().faults.clear();
    }

    /// Makes the `nth` call from now on wait before it does anything, as calls of a slow disk do.
    pub fn stall_nth(&self, which: impl Into<Which>, nth: u64) -> Stall {
        self.stall(which.into(), nth, false)
    }

    /// As [`stall_nth`](SimDisk::stall_nth), but all later calls wait as well.
    pub fn stall_from(&self, which: impl Into<Which>, nth: u64) -> Stall {
        self.stall(which.into(), nth, true)
    }

    fn stall(&self, which: Which, nth: u64, stays: bool) -> Stall {
        let gate = Arc::default();
        let wait = Planned::new(which, nth, stays, Arc::clone(&gate));
        self.shared.machine.lock().stalls.push(wait);
        Stall(gate)
    }

    /// Sets whether writes may take only a part of their bytes, at least one. This is legal, and
    /// rare on real disks.
    pub fn set_short_writes(&self, short: bool) {
        self.shared.machine.lock().short_writes = short;
    }

    /// Inverts a bit of a file: bit `bit % 8` (from the lowest) of byte `bit / 8`. Programs see the
    /// change at once. It survives a crash if the byte does.
    ///
    /// # Errors `NotFound` when there is no such file, `InvalidInput` when it has no such byte.
    pub fn flip_bit(&self, path: &Path, bit: u64) -> io::Result<()> {
        let path = &clean(path);
        let mut machine = self.shared.machine.lock();
        let id = machine.state.id(path)?;
        let byte = (bit / 8) as usize;
        if byte >= machine.state.file(id).data.len() {
            return Err(ErrorKind::InvalidInput.into());
        }
        machine.happens(&self.shared, path, Event::Flip(id, byte, 1 << (bit % 8)));
        Ok(())
    }

    /// Truncates a file to `len` bytes, as an outsider would. The rest is stored at once.
    ///
    /// # Errors `NotFound` when there is no such file, `InvalidInput` when it is not longer.
    pub fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        let path = &clean(path);
        let mut machine = self.shared.machine.lock();
        let id = machine.state.id(path)?;
        if len >= machine.state.file(id).data.len() as u64 {
            return Err(ErrorKind::InvalidInput.into());
        }
        machine.happens(&self.shared, path, Event::Cut(id, len as usize));
        Ok(())
    }

    /// Exchanges two files, as an outsider would. All changes of names are stored at once.
    ///
    /// # Errors `NotFound` when there is no such file.
    pub fn swap(&self, a: &Path, b: &Path) -> io::Result<()> {
        let (a, b) = (clean(a), clean(b));
        let mut machine = self.shared.machine.lock();
        machine.state.id(&a)?;
        machine.state.id(&b)?;
        machine.happens(&self.shared, &a.clone(), Event::Swap(a, b));
        Ok(())
    }

    /// Returns all calls since the last call of this function, in order, including failed ones.
    /// Seeking and flushing do not count as calls.
    pub fn take_calls(&self) -> Vec<DiskCall> {
        std::mem::take(&mut self.shared.machine.lock().calls)
    }

    /// Records every change of the disk from now on, until [`take_trace`](SimDisk::take_trace).
    /// An earlier recording is dropped.
    pub fn record(&self) {
        let mut machine = self.shared.machine.lock();
        let base = machine.state.clone();
        let clock = self.shared.clock.clone();
        machine.trace = Some(Trace { base, clock, steps: Vec::new() });
    }

    /// Adds a mark to the recording, if there is one. The images of later crashes have the mark,
    /// for example to show that something was acknowledged.
    pub fn mark(&self, number: u64) {
        self.shared.machine.lock().happens(&self.shared, Path::new(""), Event::Mark(number));
    }

    /// Ends the recording and returns it.
    ///
    /// # Panics When nothing is being recorded.
    pub fn take_trace(&self) -> Trace {
        self.shared.machine.lock().trace.take().expect("a recording")
    }
}

impl Machine {
    fn restart(&mut self) {
        self.boot += 1;
        self.locked.clear();
        self.locked_dirs.clear();
        self.faults.clear();
        self.stalls.clear();
        self.trace = None;
    }

    fn happens(&mut self, shared: &Shared, path: &Path, event: Event) {
        let now_us = shared.clock.now_us();
        self.state.apply(&event, now_us);
        if let Some(trace) = &mut self.trace {
            trace.steps.push(Step { now_us, path: path.to_owned(), event });
        }
    }
}

/// Returns the canonical form of a path, without `.` and `..`. There are no links, so `..` is
/// plain.
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

#[cfg(test)]
mod tests;
