//! How threads that wait for an epoch are called to it, and how whoever called knows that they are done.
//! Who starts them is others' business.

use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::PoisonError;

use crate::schedule::sync::{
    spin_loop, yield_now, Alone, AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering,
    Place,
};

/// Looks that a thread takes for more work before it sleeps: about a millisecond. While one epoch
/// follows the other nobody sleeps; waking a thread takes some tens of microseconds, on the thread that
/// wakes it, too, which is a tenth of an epoch of ten thousand cheap transactions.
const SPINS: u32 = if cfg!(loom) { 1 } else { 20_000 };

/// After so many of them, others are let run in between: there may be fewer cores than threads.
const SPINS_ALONE: u32 = if cfg!(loom) { 0 } else { 1_000 };

/// Threads that work together, as they see each other: the caller is one of them, and has the number 0.
#[derive(Debug)]
pub struct Members {
    /// Of those beside the caller: the last round that each is done with.
    others: Box<[Alone<AtomicUsize>]>,
    /// What is to be done: written before the round begins, read while it lasts.
    work: Place<Option<Work>>,
    /// How often there has been something.
    round: AtomicUsize,
    /// Somebody calls.
    is_called: AtomicBool,
    /// Held by whoever goes to sleep, and by whoever wakes.
    sleep: Mutex<()>,
    called: Condvar,
    ended: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` is all that is not shared by itself. The caller writes it while no member has anything to do, and they
// read it in a round that it has begun behind that; it begins the next one when all are done.
unsafe impl Sync for Members {}

/// What is lent to the threads for a round.
#[derive(Clone, Copy, Debug)]
struct Work(*const (dyn Fn(usize) + Sync));

// SAFETY: what it points to may be called from every thread, and is there until all are done.
unsafe impl Send for Work {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Work is called outside of all locks, so none is ever left in the middle of something.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Members {
    /// The caller and so many others, each of which has to [serve](Members::serve).
    pub fn new(others: usize) -> Members {
        Members {
            others: (0..others).map(|_| Alone(AtomicUsize::new(0))).collect(),
            work: Place::new(None),
            round: AtomicUsize::new(0),
            is_called: AtomicBool::new(false),
            sleep: Mutex::new(()),
            called: Condvar::new(),
            ended: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    /// How many there are, the caller included.
    pub fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// The life of the thread with this number, from 1 on: it works whenever it is called, until all is at an
    /// [end](Members::end).
    pub fn serve(&self, number: usize) {
        let mut seen = 0;
        while let Some((work, round)) = self.next(seen) {
            seen = round;
            // SAFETY: `run` waits until this member is done, whatever happens.
            let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*work.0)(number) }));
            if let Err(panic) = done {
                lock(&self.panic).get_or_insert(panic);
            }
            self.others[number - 1].0.store(round, Ordering::Release);
        }
    }

    /// The next round's work; nothing when there will be none.
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
        // SAFETY: where a round has begun that this member is not done with, nobody writes.
        let work = if is_called() { unsafe { self.work.get() } } else { None };
        work.map(|work| (work, self.round.load(Ordering::Relaxed)))
    }

    /// Calls `work` on every member, here with the number 0, and returns when all are done.
    ///
    /// # Panics
    /// When a member panicked; all of them have ended by then. And when it is called within a round.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: the lifetime is forgotten, not outlived: nobody calls it any more once all members
        // are done, and until then this function does not return.
        let lent = Work(unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(
                work,
            )
        });
        assert!(!self.is_called.swap(true, Ordering::Acquire), "one epoch at a time");
        // SAFETY: nobody else is here, and all members are done with the round before.
        unsafe { self.work.set(Some(lent)) };
        let round = self.round.load(Ordering::Relaxed) + 1;
        self.round.store(round, Ordering::Release);
        // Who was about to sleep has either seen the round, or sleeps by now.
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

    /// Nobody is called any more: whoever serves returns.
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

    /// What one member has done in a round is seen by the caller behind it, and what the caller has done
    /// before the next one by the members; and whoever sleeps is woken, also to end.
    #[test]
    fn rounds_are_seen_and_members_end() {
        // Whoever looks again and again makes too many orders to try them all.
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
                    // The rounds before are over for everybody.
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
