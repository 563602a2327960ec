//! Threads of the engine in the interpreter.
//!
//! A thread that Python does not know gets a thread state when it comes in and loses it when it goes, each
//! time: with a stack of frames that the system must make anew. The engine's threads come three times a
//! transaction, so each keeps its state as long as it lives.

use std::cell::OnceCell;

use pyo3::ffi;
use pyo3::prelude::*;

/// A thread state that was made for this thread.
struct Kept;

impl Kept {
    /// Makes one, where the thread has none.
    fn new() -> Option<Kept> {
        // SAFETY: the interpreter runs, because a function of it is about to be called. `Ensure` makes the
        // state and takes the lock; `SaveThread` gives the lock back and leaves the state to be found by the
        // next `Ensure`.
        unsafe {
            if !ffi::PyGILState_GetThisThreadState().is_null() {
                return None;
            }
            ffi::PyGILState_Ensure();
            ffi::PyEval_SaveThread();
        }
        Some(Kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the state was entered once by `new`, and is entered here for the second time, with the
        // lock. The first release leaves it once without giving up the lock, the second ends it and does.
        unsafe {
            if ffi::Py_IsInitialized() != 0 {
                ffi::PyGILState_Ensure();
                ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_LOCKED);
                ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_UNLOCKED);
            }
        }
    }
}

/// As [`Python::attach`], of a thread that comes again.
pub fn attached<T>(work: impl for<'py> FnOnce(Python<'py>) -> T) -> T {
    thread_local!(static KEPT: OnceCell<Option<Kept>> = const { OnceCell::new() });
    KEPT.with(|kept| {
        kept.get_or_init(Kept::new);
    });
    Python::attach(work)
}
