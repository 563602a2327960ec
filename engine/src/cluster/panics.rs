//! Panics of threads as errors. Nothing waits for a thread that panics, so its process reports why
//! it ends.

use std::panic::{catch_unwind, AssertUnwindSafe};

use tidemill_core::{Error, Result};
use tidemill_env::{panic_message, Env, Handle};

/// Does the work of a thread. The work shares only flags and reasons with other threads, and a
/// panic can't leave these half written.
///
/// # Errors
/// The errors of the work. After a panic, an error with the thread's name and the message of the
/// panic.
pub(super) fn catch_panic(thread: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(Error::internal(format!("the thread of {thread}: {}", panic_message(&*panic))))
    })
}

/// Starts a thread that reads sources until `read` returns. `fails` gets the error of a panic.
///
/// # Errors
/// When the thread can't be started.
pub(super) fn spawn_reader(
    env: &Env,
    (thread, what): (&str, &'static str),
    read: impl FnOnce() + Send + 'static,
    fails: impl FnOnce(Error) + Send + 'static,
) -> Result<Handle> {
    let run = move || {
        let read = || {
            read();
            Ok(())
        };
        if let Err(error) = catch_panic(what, read) {
            fails(error);
        }
    };
    let thread = env.threads.spawn(thread, Box::new(run));
    thread.map_err(|e| Error::io("starting a thread", &e))
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Error, Kind};

    use super::catch_panic;

    #[test]
    fn a_panic_is_an_error_that_names_its_thread() {
        assert!(catch_panic("sinks", || Ok(())).is_ok());
        let failed = catch_panic("sinks", || Err(Error::resource("no room"))).unwrap_err();
        assert_eq!(failed.what, "no room");
        let failed = catch_panic("sinks", || panic!("row {} is gone", 7)).unwrap_err();
        assert_eq!(failed.kind, Kind::Internal);
        assert_eq!(failed.what, "the thread of sinks: row 7 is gone");
    }
}
