//! Starting threads and waiting for them.

use std::any::Any;
use std::fmt;
use std::io;
use std::num::NonZero;
use std::sync::mpsc;

use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// The niceness of a background thread, which gets a tenth of a core that another thread wants.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Starts threads.
pub trait Threads: Send + Sync {
    /// Starts a thread that runs `body`. The name is for people: in panic messages, debuggers, and
    /// `top` (Linux shows its first 15 bytes). The thread logs to where its starter logs.
    ///
    /// # Errors
    /// `InvalidInput` if the name contains a NUL byte, or the operating system's error if it has no
    /// room for another thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Handle>;

    /// Starts a thread for work that no other thread waits for. Where the system can, it uses only
    /// what the others leave of the cores.
    ///
    /// # Errors
    /// As in [`spawn`](Threads::spawn).
    fn spawn_background(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Handle> {
        self.spawn(name, body)
    }

    /// Returns the number of threads that can run at once, at least 1.
    fn cores(&self) -> usize;
}

/// A thread that was started. Dropping the handle lets the thread run on.
pub struct Handle {
    name: String,
    wait: Box<dyn FnOnce() -> Result<(), String> + Send>,
}

impl Handle {
    /// Creates a handle whose [`join`](Handle::join) calls `wait`, for implementations of
    /// [`Threads`].
    pub fn new(name: &str, wait: Box<dyn FnOnce() -> Result<(), String> + Send>) -> Handle {
        Handle { name: name.to_owned(), wait }
    }

    /// Returns the name that the thread was started with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the thread to end.
    ///
    /// # Errors
    /// The panic's message if the thread panicked.
    pub fn join(self) -> Result<(), String> {
        (self.wait)()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The operating system's threads.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealThreads;

impl RealThreads {
    /// Creates access to the operating system's threads.
    pub fn new() -> RealThreads {
        RealThreads
    }
}

impl Threads for RealThreads {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Handle> {
        if name.contains('\0') {
            // The standard library would panic.
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a thread's name contains a NUL byte",
            ));
        }
        // Two engines of one process have different logs, so a thread inherits its own.
        let log = tracing::dispatcher::get_default(Dispatch::clone);
        let body = move || tracing::dispatcher::with_default(&log, body);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        let wait = move || thread.join().map_err(|panic| panic_message(&*panic));
        Ok(Handle::new(name, Box::new(wait)))
    }

    fn spawn_background(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Handle> {
        let yielding = move || {
            // On Linux this affects only this thread. If it is refused, the thread is like any
            // other.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::nice(NICE);
            body();
        };
        self.spawn(name, Box::new(yielding))
    }

    fn cores(&self) -> usize {
        std::thread::available_parallelism().map_or(1, NonZero::get)
    }
}

/// Returns the message of a panic, which is nearly always a string of either kind.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

/// A log that has nothing.
struct Own;

impl Subscriber for Own {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Checks the guarantees of [`Threads`]. Threads that panic on purpose print their message.
///
/// # Panics
/// If a guarantee is broken.
pub fn check(threads: &dyn Threads) {
    assert!(threads.cores() >= 1);

    let (send, receive) = mpsc::channel();
    let started: Vec<Handle> = (0..4)
        .map(|i| {
            let send = send.clone();
            let body = move || send.send(i).expect("the receiver is there");
            threads.spawn(&format!("check-{i}"), Box::new(body)).expect("a thread starts")
        })
        .collect();
    assert_eq!(started[2].name(), "check-2");
    for handle in started {
        assert_eq!(handle.join(), Ok(()));
    }
    // All have been joined, so all have sent.
    let mut seen: Vec<i32> = receive.try_iter().collect();
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3]);

    let inherits = || tracing::dispatcher::get_default(|log| log.is::<Own>());
    let body = Box::new(move || assert!(inherits(), "a thread logs to where its starter logs"));
    let started = tracing::dispatcher::with_default(&Dispatch::new(Own), || {
        [threads.spawn("check-log", body.clone()), threads.spawn_background("check-log", body)]
    });
    for handle in started {
        assert_eq!(handle.expect("a thread starts").join(), Ok(()));
    }

    let text = threads.spawn("check-panic", Box::new(|| panic!("on purpose")));
    assert_eq!(text.expect("a thread starts").join(), Err("on purpose".to_owned()));
    let formatted = threads.spawn("check-panic", Box::new(|| panic!("on purpose {}", 2)));
    assert_eq!(formatted.expect("a thread starts").join(), Err("on purpose 2".to_owned()));

    let refused = threads.spawn("a\0b", Box::new(|| ()));
    assert_eq!(refused.expect_err("a bad name").kind(), io::ErrorKind::InvalidInput);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_threads_keep_the_contract() {
        check(&RealThreads::new());
    }

    #[test]
    fn a_thread_bears_its_name() {
        let body = || assert_eq!(std::thread::current().name(), Some("miller"));
        let handle = RealThreads::new().spawn("miller", Box::new(body));
        assert_eq!(handle.expect("a thread starts").join(), Ok(()));
    }

    #[test]
    fn a_panic_without_text_has_a_message() {
        let handle = RealThreads::new().spawn("odd", Box::new(|| std::panic::panic_any(7)));
        let message = handle.expect("a thread starts").join();
        assert_eq!(message, Err("a panic without a message".to_owned()));
    }
}
