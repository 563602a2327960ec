//! Thread states for the engine's threads in the interpreter.
//!
//! A thread that Python does not know gets a thread state at each entry, and loses it when it
//! leaves. The state includes a stack of frames, which the system must allocate each time. The
//! engine's threads enter three times a transaction, so each of them keeps its state as long as it
//! lives.

use std::cell::OnceCell;

use pyo3::ffi;
use pyo3::prelude::*;

/// A thread state that was created for this thread.
struct Attachment;

impl Attachment {
    /// Creates a thread state, if the thread has none.
    fn new() -> Option<Attachment> {
        // SAFETY: the interpreter runs, because a function of it is about to be called. `Ensure`
        // creates the state and takes the lock. `SaveThread` releases the lock and leaves the state
        // for the next `Ensure`.
        unsafe {
            if !ffi::PyGILState_GetThisThreadState().is_null() {
                return None;
            }
            ffi::PyGILState_Ensure();
            ffi::PyEval_SaveThread();
        }
        Some(Attachment)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // SAFETY: `new` entered the state once, and it is entered here for the second time, with
        // the lock. The first release leaves it once without releasing the lock. The second one
        // ends it and releases the lock.
        unsafe {
            if ffi::Py_IsInitialized() != 0 {
                ffi::PyGILState_Ensure();
                ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_LOCKED);
                ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_UNLOCKED);
            }
        }
    }
}

/// Attaches to the interpreter like [`Python::attach`], for a thread that enters repeatedly.
pub fn attached<T>(work: impl for<'py> FnOnce(Python<'py>) -> T) -> T {
    thread_local!(static KEPT: OnceCell<Option<Attachment>> = const { OnceCell::new() });
    KEPT.with(|kept| {
        kept.get_or_init(Attachment::new);
    });
    Python::attach(work)
}
