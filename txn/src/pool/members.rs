//! The members of a pool: how a call wakes waiting threads, and how the caller learns that they are
//! done. Others start the threads.

use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::PoisonError;

use crate::schedule::sync::{
    spin_loop, yield_now, AtomicBool, AtomicUsize, CachePadded, Condvar, Mutex, MutexGuard,
    Ordering, Place,
};

/// The number of polls for more work before a thread sleeps: about a millisecond. So no thread
/// sleeps while epochs follow one another. Waking a thread costs some tens of microseconds, also on
/// the waking thread. That is a tenth of an epoch of ten thousand cheap transactions.
const SPINS: u32 = if cfg!(loom) { 1 } else { 20_000 };

/// The number of polls after which other threads run in between: there may be fewer cores than
/// threads.
const SPINS_ALONE: u32 = if cfg!(loom) { 0 } else { 1_000 };

/// The shared state of threads that work together. The caller is one of them, with the number 0.
#[derive(Debug)]
pub struct Members {
    /// The last round that each other member has finished.
    others: Box<[CachePadded<AtomicUsize>]>,
    /// The work of a round. It is written before the round begins and read while it lasts.
    work: Place<Option<Work>>,
    /// The number of rounds so far.
    round: AtomicUsize,
    /// Whether a call is in progress.
    is_called: AtomicBool,
    /// Held by a thread that goes to sleep, and by the thread that wakes it.
    sleep: Mutex<()>,
    called: Condvar,
    ended: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: only `work` is not thread-safe by itself. The caller writes it while no member works.
// Members read it in a round, which begins after the write. The caller begins the next round when
// all are done.
unsafe impl Sync for Members {}

/// The work lent to the threads for a round.
#[derive(Clone, Copy, Debug)]
struct Work(*const (dyn Fn(usize) + Sync));

// SAFETY: any thread may call the work, and it lives until all are done.
unsafe impl Send for Work {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Work runs outside all locks, so no panic leaves a lock's data inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Members {
    /// Makes the state for the caller and `others` threads, each of which has to
    /// [serve](Members::serve).
    pub fn new(others: usize) -> Members {
        Members {
            others: (0..others).map(|_| CachePadded(AtomicUsize::new(0))).collect(),
            work: Place::new(None),
            round: AtomicUsize::new(0),
            is_called: AtomicBool::new(false),
            sleep: Mutex::new(()),
            called: Condvar::new(),
            ended: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    /// Returns the number of members, the caller included.
    pub fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// Runs the member with this number, from 1 on. It works whenever it is called, until the
    /// [end](Members::end).
    pub fn serve(&self, number: usize) {
        let mut seen = 0;
        while let Some((work, round)) = self.next(seen) {
            seen = round;
            // SAFETY: `run` waits in any case until this member is done.
            let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*work.0)(number) }));
            if let Err(panic) = done {
                lock(&self.panic).get_or_insert(panic);
            }
            self.others[number - 1].0.store(round, Ordering::Release);
        }
    }

    /// Waits for the next round's work; returns `None` when there will be none.
    fn next(&self, seen: usize) -> Option<(Work, usize)> {
        let has_ended = || self.ended.load(Ordering::Relaxed);
        let is_called = || self.round.load(Ordering::Acquire) != seen;
        let mut spin = 0;
        while spin < SPINS && !is_called() && !has_ended() {
            spin += 1;
            match spin > SPINS_ALONE && spin.is_multiple_of(64) {
                true => yield_now(),
                false => spin_loop(),
            }
        }
        if !is_called() {
            let mut sleep = lock(&self.sleep);
            while !is_called() && !has_ended() {
                sleep = self.called.wait(sleep).unwrap_or_else(PoisonError::into_inner);
            }
        }
        // SAFETY: no thread writes in a round that this member has not finished.
        let work = if is_called() { unsafe { self.work.get() } } else { None };
        work.map(|work| (work, self.round.load(Ordering::Relaxed)))
    }

    /// Calls `work` on every member, here with the number 0, and returns when all are done.
    ///
    /// # Panics
    /// If a member panicked; all of them have ended by then. Also if it is called within a round.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes. Members no longer call `work` once all of them are
        // done, and this function does not return before.
        let lent = Work(unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(
                work,
            )
        });
        assert!(!self.is_called.swap(true, Ordering::Acquire), "one epoch at a time");
        // SAFETY: no other caller is here, and all members are done with the round before.
        unsafe { self.work.set(Some(lent)) };
        let round = self.round.load(Ordering::Relaxed) + 1;
        self.round.store(round, Ordering::Release);
        // A member that was about to sleep has either seen the round, or sleeps by now.
        drop(lock(&self.sleep));
        self.called.notify_all();
        let mine = catch_unwind(AssertUnwindSafe(|| work(0)));
        let mut spins = 0;
        for other in &self.others {
            while other.0.load(Ordering::Acquire) < round {
                spins += 1;
                match spins < SPINS_ALONE {
                    true => spin_loop(),
                    false => yield_now(),
                }
            }
        }
        self.is_called.store(false, Ordering::Release);
        let theirs = lock(&self.panic).take();
        if let Some(panic) = mine.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Ends the calls: all serving members return.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(lock(&self.sleep));
        self.called.notify_all();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;

    /// The caller sees what a member did in a round, and members see what the caller did before the
    /// next round. Sleeping members are woken, also for the end.
    #[test]
    fn rounds_are_seen_and_members_end() {
        // Polling in a loop leads to too many orders to try them all.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let members = Arc::new(Members::new(1));
            let other = {
                let members = members.clone();
                loom::thread::spawn(move || members.serve(1))
            };
            let done = [AtomicUsize::new(0), AtomicUsize::new(0)];
            for round in 1..=2 {
                members.run(&|number| {
                    // Earlier rounds are over for all members.
                    assert!(done[1 - number].load(Ordering::Relaxed) >= round - 1);
                    assert_eq!(done[number].fetch_add(1, Ordering::Relaxed), round - 1);
                });
                assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == round));
            }
            members.end();
            other.join().unwrap();
        });
    }

    #[test]
    fn members_end_that_were_never_called() {
        loom::model(|| {
            let members = Arc::new(Members::new(1));
            let other = {
                let members = members.clone();
                loom::thread::spawn(move || members.serve(1))
            };
            members.end();
            other.join().unwrap();
        });
    }
}
