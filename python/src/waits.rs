//! Waiting for the engine without the interpreter lock, and with checks for signals.
//!
//! Native code that waits does not see Ctrl-C. So nothing waits longer than [`LOOK_US`] at a time.
//! Work that can't be divided runs on a thread of its own, which continues alone if its caller
//! leaves.

use std::ops::Deref;
use std::sync::mpsc::{sync_channel, RecvTimeoutError};
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;
use tidemill_core::Error;
use tidemill_env::Env;

use crate::errors::{detached, guarded, to_python};

/// The time between two checks for signals, in microseconds.
pub const LOOK_US: u64 = 50_000;

/// Repeats `ask` until there is an answer. Each call may wait for this many microseconds.
pub fn patiently<T: Send>(
    py: Python<'_>,
    mut ask: impl FnMut(u64) -> Result<Option<T>, Error> + Send,
) -> PyResult<T> {
    loop {
        if let Some(found) = detached(py, || ask(LOOK_US))? {
            return Ok(found);
        }
        py.check_signals()?;
    }
}

/// Runs long work on a thread of its own, and waits for it. If a signal ends the wait, the work
/// continues, and its result is dropped there.
pub fn aside<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    // The channel holds nothing. If the caller is gone, the thread drops the result, without the
    // interpreter lock.
    let (tell, told) = sync_channel(0);
    let body = move || {
        // The caller may be gone.
        let _ = tell.send(guarded(work));
    };
    detach(py, body)?;
    patiently(py, move |us| match told.recv_timeout(Duration::from_micros(us)) {
        Ok(done) => done.map(Some),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(Error::internal("a thread has ended early")),
    })
}

/// Runs something on a thread of its own, without waiting for it.
pub fn detach(py: Python<'_>, body: impl FnOnce() + Send + 'static) -> PyResult<()> {
    let thread = Env::real().threads.spawn("tidemill-wait", Box::new(body));
    let error = |e| to_python(py, &Error::io("starting a thread", &e));
    thread.map(drop).map_err(error)
}

/// Ends something on behalf of a destructor, and waits for it. Python calls destructors where it
/// can't raise: if a signal's handler raises, the work continues alone, and the error is printed.
///
/// While the interpreter ends, no other thread gets its lock any more. A function that such a
/// thread runs never returns then, so nothing is ended, and the process takes the rest with it.
pub fn end(work: impl FnOnce() + Send + 'static) {
    let mut work = Some(work);
    Python::try_attach(|py| {
        // An exception may be under way: a value on the stack of the frame that raised it ends
        // here. No call into Python may see it, and it must be there again at the end.
        let raised = PyErr::take(py);
        if !is_ending(py) {
            let work = work.take();
            let waited = aside(py, move || {
                work.into_iter().for_each(|work| work());
                Ok(())
            });
            if let Err(error) = waited {
                error.write_unraisable(py, None);
            }
        }
        if let Some(raised) = raised {
            raised.restore(py);
        }
    });
    // Without this, the last reference to an engine would wait for it.
    std::mem::forget(work);
}

/// Returns whether the interpreter is ending. At the very end it no longer knows.
fn is_ending(py: Python<'_>) -> bool {
    // SAFETY: the lock is held. The reference is borrowed, or null without an exception.
    let asked = unsafe {
        Bound::from_borrowed_ptr_or_opt(py, ffi::PySys_GetObject(c"is_finalizing".as_ptr()))
    };
    asked.is_none_or(|asked| asked.call0().and_then(|is| is.is_truthy()).unwrap_or(true))
}

/// A value that is dropped without the interpreter lock, because threads that end with it may need
/// the lock.
pub struct Unlocked<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Unlocked<T> {
    /// Wraps a value.
    pub fn new(held: T) -> Unlocked<T> {
        Unlocked(Some(held))
    }
}

impl<T: Send + 'static> Deref for Unlocked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: Send + 'static> Drop for Unlocked<T> {
    fn drop(&mut self) {
        let held = self.0.take();
        end(move || drop(held));
    }
}
