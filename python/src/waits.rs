//! Waiting for the engine: without the interpreter lock, and so that signals are noticed.
//!
//! Native code that waits does not see Ctrl-C. So nothing waits longer than [`LOOK_US`] at a time; what
//! can't be cut into pieces runs on a thread of its own, and is left to itself when whoever waits goes.

use std::ops::Deref;
use std::sync::mpsc::{sync_channel, RecvTimeoutError};
use std::time::Duration;

use pyo3::prelude::*;
use tidemill_core::Error;
use tidemill_env::Env;

use crate::errors::{detached, guarded, to_python};

/// How often signals are looked for, in microseconds.
pub const LOOK_US: u64 = 50_000;

/// Asks again and again until there is an answer; each time `ask` may wait for so many microseconds.
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

/// Runs what may take long on a thread of its own, and waits for it. When a signal ends the waiting it
/// goes on, and what it comes to is dropped there.
pub fn aside<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    // Nothing waits in it: what nobody takes is dropped by who has it, without the interpreter lock.
    let (tell, told) = sync_channel(0);
    let body = move || {
        // Nobody may be left to be told.
        let _ = tell.send(guarded(work));
    };
    alone(py, body)?;
    patiently(py, move |us| match told.recv_timeout(Duration::from_micros(us)) {
        Ok(done) => done.map(Some),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(Error::internal("a thread has ended early")),
    })
}

/// Runs something on a thread of its own that nobody waits for.
pub fn alone(py: Python<'_>, body: impl FnOnce() + Send + 'static) -> PyResult<()> {
    let thread = Env::real().threads.spawn("tidemill-wait", Box::new(body));
    let error = |e| to_python(py, &Error::io("starting a thread", &e));
    thread.map(drop).map_err(error)
}

/// What is dropped without the interpreter lock: threads that end then may need it.
pub struct Unlocked<T: Send>(Option<T>);

impl<T: Send> Unlocked<T> {
    /// Holds it.
    pub fn new(held: T) -> Unlocked<T> {
        Unlocked(Some(held))
    }
}

impl<T: Send> Deref for Unlocked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: Send> Drop for Unlocked<T> {
    fn drop(&mut self) {
        let held = self.0.take();
        // Where the interpreter has ended it has no lock.
        let _ = Python::try_attach(|py| py.detach(move || drop(held)));
    }
}
