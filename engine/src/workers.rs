//! Threads that wait for epochs to execute together.

use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tidemill_core::{Error, Result};
use tidemill_env::{Clock, Env, Handle};
use tidemill_txn::pool::Pool;

/// Looks that a thread takes for more work before it sleeps: about a millisecond. While one epoch
/// follows the other nobody sleeps; waking a thread takes some tens of microseconds, on the thread that
/// wakes it, too, which is a tenth of an epoch of ten thousand cheap transactions.
const SPINS: u32 = 20_000;

/// After so many of them, others are let run in between: there may be fewer cores than threads.
const SPINS_ALONE: u32 = 1_000;

/// Threads beside the one that calls; they sleep while there is nothing to do.
pub struct Workers {
    shared: Arc<Shared>,
    /// Beside the caller.
    others: usize,
    handles: Mutex<Vec<Handle>>,
    clock: Arc<dyn Clock>,
}

struct Shared {
    /// What is to be done, and how often there has been something.
    job: Mutex<Job>,
    /// As in the job, to be looked at without the lock.
    round: AtomicUsize,
    /// Members that are not done with this round.
    left: AtomicUsize,
    called: Condvar,
    ended: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Default)]
struct Job {
    work: Option<Work>,
    round: usize,
}

/// What is lent to the threads for a round.
#[derive(Clone, Copy)]
struct Work(*const (dyn Fn(usize) + Sync));

// SAFETY: what it points to may be called from every thread, and is there until all are done.
unsafe impl Send for Work {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Work is called outside of all locks, so none is ever left in the middle of something.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// So many threads in all, the caller included.
    ///
    /// # Errors
    /// What the operating system says when it has no room for a thread.
    pub fn start(env: &Env, threads: usize) -> Result<Workers> {
        let shared = Arc::new(Shared {
            job: Mutex::new(Job::default()),
            round: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            called: Condvar::new(),
            ended: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let (handles, clock) = (Mutex::new(Vec::new()), env.clock.clone());
        let mut workers = Workers { shared, others: 0, handles, clock };
        for number in 1..threads.max(1) {
            let shared = workers.shared.clone();
            let body = Box::new(move || shared.work(number));
            let name = format!("tidemill-exec-{number}");
            let thread = env.threads.spawn(&name, body);
            let thread = thread.map_err(|e| Error::io("starting a thread to execute on", &e))?;
            lock(&workers.handles).push(thread);
            workers.others += 1;
        }
        Ok(workers)
    }
}

impl Shared {
    /// A thread's life.
    fn work(&self, number: usize) {
        let mut seen = 0;
        while let Some((work, round)) = self.next(seen) {
            seen = round;
            // SAFETY: `Workers::run` waits until this member is done, whatever happens.
            let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*work.0)(number) }));
            if let Err(panic) = done {
                lock(&self.panic).get_or_insert(panic);
            }
            self.left.fetch_sub(1, Ordering::Release);
        }
    }

    /// The next round's work; nothing when there will be none.
    fn next(&self, seen: usize) -> Option<(Work, usize)> {
        for spin in 0..SPINS {
            if self.round.load(Ordering::Acquire) != seen || self.ended.load(Ordering::Relaxed) {
                break;
            }
            match spin > SPINS_ALONE && spin.is_multiple_of(64) {
                true => std::thread::yield_now(),
                false => std::hint::spin_loop(),
            }
        }
        let mut job = lock(&self.job);
        loop {
            if self.ended.load(Ordering::Relaxed) {
                return None;
            }
            match job.work {
                Some(work) if job.round != seen => return Some((work, job.round)),
                _ => job = self.called.wait(job).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Pool for Workers {
    fn threads(&self) -> usize {
        self.others + 1
    }

    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: the lifetime is forgotten, not outlived: nobody calls it any more once all members
        // are done, and until then this function does not return.
        let lent = Work(unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(
                work,
            )
        });
        {
            let mut job = lock(&shared.job);
            assert!(job.work.is_none(), "one epoch at a time");
            shared.left.store(self.others, Ordering::Relaxed);
            job.work = Some(lent);
            job.round += 1;
            shared.round.store(job.round, Ordering::Release);
            shared.called.notify_all();
        }
        let mine = catch_unwind(AssertUnwindSafe(|| work(0)));
        let mut spins = 0;
        while shared.left.load(Ordering::Acquire) > 0 {
            spins += 1;
            match spins < SPINS_ALONE {
                true => std::hint::spin_loop(),
                false => self.pause(),
            }
        }
        lock(&shared.job).work = None;
        let theirs = lock(&shared.panic).take();
        if let Some(panic) = mine.err().or(theirs) {
            resume_unwind(panic);
        }
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
        {
            let _job = lock(&self.shared.job);
            self.shared.ended.store(true, Ordering::Relaxed);
            self.shared.called.notify_all();
        }
        // A thread that panicked outside of a round has nothing left to say.
        lock(&self.handles).drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
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
                // What members have done is seen when the round is over.
                assert!(called.iter().all(|called| called.load(Ordering::Relaxed) == round));
                if round % 100 == 0 {
                    // So long that they go to sleep.
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
        let shared = Arc::downgrade(&workers.shared);
        drop(workers);
        assert!(shared.upgrade().is_none(), "a thread is still there");
    }
}
