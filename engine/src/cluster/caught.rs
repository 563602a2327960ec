//! A thread that panics ends with an error, like one that fails: nobody waits for it, and its process says why it ends.

use std::panic::{catch_unwind, AssertUnwindSafe};

use tidemill_core::{Error, Result};
use tidemill_env::panic_message;

/// Does the work of a thread. What the work shares with others holds flags and reasons only, which a panic can't leave
/// half written.
///
/// # Errors
/// Those of the work; and when it panics, with the thread's name and what the panic said.
pub(super) fn caught(thread: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(Error::internal(format!("the thread of {thread}: {}", panic_message(&*panic))))
    })
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Error, Kind};

    use super::caught;

    #[test]
    fn a_panic_is_an_error_that_names_its_thread() {
        assert!(caught("sinks", || Ok(())).is_ok());
        let failed = caught("sinks", || Err(Error::resource("no room"))).unwrap_err();
        assert_eq!(failed.what, "no room");
        let failed = caught("sinks", || panic!("row {} is gone", 7)).unwrap_err();
        assert_eq!(failed.kind, Kind::Internal);
        assert_eq!(failed.what, "the thread of sinks: row 7 is gone");
    }
}
