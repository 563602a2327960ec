//! Threads that wait for epochs to execute together.

use std::sync::{Arc, Mutex, PoisonError};

use tidemill_core::{Error, Result};
use tidemill_env::{Clock, Env, Handle};
use tidemill_txn::pool::{Members, Pool};

/// The threads beside the calling one. They sleep while there is nothing to do.
pub struct Workers {
    members: Arc<Members>,
    handles: Mutex<Vec<Handle>>,
    clock: Arc<dyn Clock>,
}

impl Workers {
    /// Starts so many threads in all, the caller included.
    ///
    /// # Errors
    /// When the operating system can't start a thread.
    pub fn start(env: &Env, threads: usize) -> Result<Workers> {
        let members = Arc::new(Members::new(threads.max(1) - 1));
        let (handles, clock) = (Mutex::new(Vec::new()), env.clock.clone());
        let workers = Workers { members, handles, clock };
        for number in 1..workers.members.count() {
            let members = workers.members.clone();
            let body = Box::new(move || members.serve(number));
            let name = format!("tidemill-exec-{number}");
            let thread = env.threads.spawn(&name, body);
            let thread = thread.map_err(|e| Error::io("starting a thread to execute on", &e))?;
            workers.handles().push(thread);
        }
        Ok(workers)
    }

    fn handles(&self) -> std::sync::MutexGuard<'_, Vec<Handle>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool for Workers {
    fn threads(&self) -> usize {
        self.members.count()
    }

    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        self.members.run(work);
    }

    fn pause(&self) {
        std::thread::yield_now();
    }

    fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.members.end();
        // A thread that panicked outside of a round has nothing to report.
        self.handles().drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn workers(threads: usize) -> Workers {
        Workers::start(&Env::real(), threads).unwrap()
    }

    #[test]
    fn every_member_is_called_once_a_round() {
        for threads in [1, 2, 5] {
            let workers = workers(threads);
            assert_eq!(workers.threads(), threads);
            let called: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for round in 1..=200 {
                workers.run(&|number| {
                    called[number].fetch_add(1, Ordering::Relaxed);
                });
                // The work of members is visible when the round is over.
                assert!(called.iter().all(|called| called.load(Ordering::Relaxed) == round));
                if round % 100 == 0 {
                    // The pause is so long that they go to sleep.
                    std::thread::park_timeout(std::time::Duration::from_millis(20));
                }
            }
        }
    }

    #[test]
    fn who_panics_takes_the_caller_along_and_nobody_else() {
        let workers = workers(3);
        for panicking in 0..3 {
            let done = AtomicUsize::new(0);
            let round = || {
                workers.run(&|number| {
                    assert_ne!(number, panicking, "this one must");
                    done.fetch_add(1, Ordering::Relaxed);
                });
            };
            assert!(catch_unwind(AssertUnwindSafe(round)).is_err());
            assert_eq!(done.load(Ordering::Relaxed), 2);
        }
        let done = AtomicUsize::new(0);
        workers.run(&|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 3);
    }

    #[test]
    fn threads_end_with_it() {
        let workers = workers(4);
        let shared = Arc::downgrade(&workers.members);
        drop(workers);
        assert!(shared.upgrade().is_none(), "a thread is still there");
    }
}
