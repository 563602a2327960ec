//! Calls of functions under a deadline.
//!
//! Calls are frequent, and few of them take too long. So a call notifies no one: it only leaves its
//! number, which a thread of the package (`deadline.py`) reads now and then. If the same number has
//! been there for too long, that thread interrupts the function, again and again until it returns.

use std::cell::{Cell, OnceCell};
use std::os::raw::c_long;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The state of the call on a thread. The interpreter lock is held at every change of the state,
/// except when the thread ends.
struct Slot {
    /// The thread's id in the interpreter.
    thread: c_long,
    /// Twice the number of the running call, plus one if it was interrupted; or one of the values
    /// below.
    state: AtomicU64,
    limit_us: AtomicI64,
}

/// The state if no call runs.
const IDLE: u64 = 0;

/// The state if the thread has ended.
const GONE: u64 = 1;

/// The state of the call on a thread, as the package reads it.
#[pyclass(frozen, name = "Watched", module = "tidemill._native")]
pub struct Watched(Arc<Slot>);

#[pymethods]
impl Watched {
    /// Returns the number of the running call, and its limit in microseconds.
    fn running(&self) -> Option<(u64, i64)> {
        let state = self.0.state.load(Ordering::Acquire);
        (state > GONE).then(|| (state / 2, self.0.limit_us.load(Ordering::Relaxed)))
    }

    /// Returns the limit of calls in microseconds; nothing if the thread has ended.
    fn limit(&self) -> Option<i64> {
        let is_gone = self.0.state.load(Ordering::Acquire) == GONE;
        (!is_gone).then(|| self.0.limit_us.load(Ordering::Relaxed))
    }

    /// Raises an exception in the call with this number, if it still runs.
    fn interrupt(&self, call: u64, error: &Bound<'_, PyType>) {
        let (running, interrupted) = (call * 2, call * 2 + 1);
        let (set, see) = (Ordering::AcqRel, Ordering::Acquire);
        let state = &self.0.state;
        let was = state.compare_exchange(running, interrupted, set, see).unwrap_or_else(|was| was);
        if was == running || was == interrupted {
            // SAFETY: the lock is held, so the call can't end before this. The call's end clears a
            // pending exception.
            unsafe { ffi::PyThreadState_SetAsyncExc(self.0.thread, error.as_ptr()) };
        }
    }
}

/// The state that a thread owns.
struct Own {
    slot: Arc<Slot>,
    calls: Cell<u64>,
}

impl Drop for Own {
    fn drop(&mut self) {
        self.slot.state.store(GONE, Ordering::Release);
    }
}

thread_local!(static OWN: OnceCell<Own> = const { OnceCell::new() });

impl Own {
    fn new(py: Python<'_>) -> PyResult<Own> {
        let thread = py.import("threading")?.call_method0("get_ident")?.extract::<u64>()? as c_long;
        let (state, limit_us) = (AtomicU64::new(IDLE), AtomicI64::new(0));
        Ok(Own { slot: Arc::new(Slot { thread, state, limit_us }), calls: Cell::new(0) })
    }
}

/// Returns why a call is aborted that exceeded its limit, given in microseconds.
pub fn overdue(limit_us: Option<i64>) -> String {
    format!("the function took longer than {} microseconds", limit_us.unwrap_or_default())
}

/// Waits, and restarts the time of the call on this thread afterwards: a wait does not count. If a
/// call runs, the caller holds the interpreter lock.
pub fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let (set, see) = (Ordering::AcqRel, Ordering::Acquire);
    let pauses = OWN.with(|own| {
        let state = &own.get()?.slot.state;
        // An interrupted call is about to end anyway.
        let runs = |state: u64| (state > GONE && state.is_multiple_of(2)).then_some(IDLE);
        state.fetch_update(set, see, runs).ok()
    });
    let waited = wait();
    if pauses.is_some() {
        OWN.with(|own| {
            let Some(Own { slot, calls }) = own.get() else { return };
            calls.set(calls.get() + 1);
            slot.state.store(calls.get() * 2, Ordering::Release);
        });
    }
    waited
}

/// A call under a deadline. The deadline ends when this is dropped, at the latest.
pub struct Timed(Arc<Slot>);

impl Timed {
    /// Starts the time of a call on this thread, if there is a limit. A call that another call
    /// makes is not timed by itself: it counts for the other call.
    pub fn begin(py: Python<'_>, limit_us: Option<i64>) -> PyResult<Option<Timed>> {
        let Some(limit_us) = limit_us else { return Ok(None) };
        OWN.with(|own| {
            if own.get().is_none() {
                let made = Own::new(py)?;
                own.get_or_init(|| made);
            }
            let Own { slot, calls } = own.get().expect("it was made");
            if slot.state.load(Ordering::Relaxed) != IDLE {
                return Ok(None);
            }
            if slot.limit_us.swap(limit_us, Ordering::Relaxed) != limit_us {
                let watch = py.import("tidemill.deadline")?.getattr("WATCH")?;
                watch.call_method1("look", (Bound::new(py, Watched(slot.clone()))?,))?;
            }
            calls.set(calls.get() + 1);
            slot.state.store(calls.get() * 2, Ordering::Release);
            Ok(Some(Timed(slot.clone())))
        })
    }

    /// Ends the call, and returns whether it was interrupted. `_py` shows that the lock is held.
    pub fn end(self, _py: Python<'_>) -> bool {
        let state = self.0.state.swap(IDLE, Ordering::AcqRel);
        let is_overdue = state != IDLE && state % 2 == 1;
        if is_overdue {
            // SAFETY: the lock is held, and this is the call's thread.
            unsafe { ffi::PyThreadState_SetAsyncExc(self.0.thread, std::ptr::null_mut()) };
        }
        is_overdue
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.0.state.store(IDLE, Ordering::Release);
    }
}
