//! Threads for tests, which start once and wait for work.

#![allow(clippy::disallowed_methods)] // Tests get their threads here.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use tidemill_txn::pool::Pool;

type Work = *const (dyn Fn(usize) + Sync);

struct Job {
    /// The work, and the number of rounds so far.
    work: Option<Work>,
    round: u64,
    running: usize,
    panicked: bool,
    ends: bool,
}

// SAFETY: all threads may use the value behind the pointer. They use it only while `run`, which
// borrows it, waits.
unsafe impl Send for Job {}

/// A pool of threads; see [`Pool`].
pub struct Threads {
    /// Tests that share the threads take turns.
    turn: Mutex<()>,
    job: Arc<(Mutex<Job>, Condvar)>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    pub fn new(threads: usize) -> Threads {
        let job = Job { work: None, round: 0, running: 0, panicked: false, ends: false };
        let job = Arc::new((Mutex::new(job), Condvar::new()));
        let member = |number: usize| {
            let job = job.clone();
            std::thread::spawn(move || {
                let (lock, changed) = &*job;
                let mut seen = 0;
                loop {
                    let mut job = lock.lock().unwrap();
                    while job.round == seen && !job.ends {
                        job = changed.wait(job).unwrap();
                    }
                    if job.ends {
                        return;
                    }
                    seen = job.round;
                    let work = job.work.expect("a round has work");
                    drop(job);
                    // SAFETY: `run` waits until this member is done.
                    let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(number) }));
                    let mut job = lock.lock().unwrap();
                    job.running -= 1;
                    job.panicked |= done.is_err();
                    changed.notify_all();
                }
            })
        };
        let handles = (1..threads).map(member).collect();
        Threads { turn: Mutex::new(()), job, handles }
    }
}

impl Pool for Threads {
    fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    fn pause(&self) {
        std::thread::yield_now();
    }

    fn now_ns(&self) -> u64 {
        // Time advances, but results must not depend on how far.
        static NOW: AtomicU64 = AtomicU64::new(0);
        NOW.fetch_add(100, Ordering::Relaxed)
    }

    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        let turn = self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (lock, changed) = &*self.job;
        let mut job = lock.lock().unwrap();
        // SAFETY: only the lifetime changes, and this call waits for all threads that use it.
        job.work =
            Some(unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Work>(work) });
        (job.round, job.running, job.panicked) = (job.round + 1, self.handles.len(), false);
        drop(job);
        changed.notify_all();
        let done = catch_unwind(AssertUnwindSafe(|| work(0)));
        let mut job = lock.lock().unwrap();
        while job.running > 0 {
            job = changed.wait(job).unwrap();
        }
        job.work = None;
        let panicked = job.panicked;
        drop((job, turn));
        match done {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => assert!(!panicked, "a member of the pool panicked"),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.job.0.lock().unwrap().ends = true;
        self.job.1.notify_all();
        self.handles.drain(..).for_each(|handle| handle.join().unwrap());
    }
}
