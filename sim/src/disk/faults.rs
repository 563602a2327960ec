//! Calls that fail, and calls that wait.
//!
//! This part selects calls by kind, path and number, independent of their effects.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::DiskOp;

/// The calls that a fault or a stall concerns. Convert it from a [`DiskOp`], or from `None` for any
/// call.
#[derive(Debug, Clone, Default)]
pub struct Which {
    op: Option<DiskOp>,
    under: Option<PathBuf>,
}

impl Which {
    /// Selects all calls.
    pub fn any() -> Which {
        Which::default()
    }

    /// Selects only the calls on this path or below it.
    pub fn under(mut self, path: impl AsRef<Path>) -> Which {
        self.under = Some(super::clean(path.as_ref()));
        self
    }

    fn is(&self, op: DiskOp, path: &Path) -> bool {
        let op = self.op.is_none_or(|of| of == op);
        op && self.under.as_ref().is_none_or(|under| path.starts_with(under))
    }
}

impl DiskOp {
    /// Selects the calls of this kind on a path or below it.
    pub fn under(self, path: impl AsRef<Path>) -> Which {
        Which::from(self).under(path)
    }
}

impl From<DiskOp> for Which {
    fn from(op: DiskOp) -> Which {
        Which { op: Some(op), under: None }
    }
}

impl From<Option<DiskOp>> for Which {
    fn from(op: Option<DiskOp>) -> Which {
        Which { op, under: None }
    }
}

/// An effect on selected calls.
pub(super) struct Planned<T> {
    which: Which,
    /// The number of calls that are still spared.
    after: u64,
    /// Whether all further calls are affected, too.
    stays: bool,
    what: T,
}

pub(super) type Fault = Planned<ErrorKind>;
pub(super) type Wait = Planned<Arc<Gate>>;

impl<T: Clone> Planned<T> {
    pub(super) fn new(which: Which, nth: u64, stays: bool, what: T) -> Planned<T> {
        assert!(nth > 0, "calls are counted from 1");
        Planned { which, after: nth - 1, stays, what }
    }

    /// Counts a call and returns its effect, from the first planned one that applies.
    pub(super) fn count(all: &mut Vec<Planned<T>>, op: DiskOp, path: &Path) -> Option<T> {
        let mut what = None;
        all.retain_mut(|planned| {
            if !planned.which.is(op, path) {
                return true;
            }
            if planned.after > 0 {
                planned.after -= 1;
                return true;
            }
            what.get_or_insert_with(|| planned.what.clone());
            planned.stays
        });
        what
    }
}

/// The gate at which stalled calls wait.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    waiting: u64,
    open: bool,
}

impl Gate {
    /// Waits until the gate is open.
    pub(super) fn pass(&self) {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.changed.notify_all();
        while !state.open {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
    }
}

/// Waiting calls of a disk, each of which blocks its thread until this releases them or is dropped.
/// The disk serves all other calls meanwhile.
pub struct Stall(pub(super) Arc<Gate>);

/// The longest real time that a test waits for an expected call.
const PATIENCE: Duration = Duration::from_secs(60);

impl Stall {
    /// Returns the number of waiting calls.
    pub fn waiting(&self) -> u64 {
        self.0.state.lock().waiting
    }

    /// Blocks until a call is waiting.
    ///
    /// # Panics When none is waiting after a minute.
    pub fn wait(&self) {
        let mut state = self.0.state.lock();
        while state.waiting == 0 {
            let timeout = self.0.changed.wait_for(&mut state, PATIENCE);
            assert!(!timeout.timed_out(), "no call reached the stall");
        }
    }

    /// Releases the waiting calls, and lets later ones pass.
    pub fn release(&self) {
        self.0.state.lock().open = true;
        self.0.changed.notify_all();
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.release();
    }
}
