//! The waits between threads that walk a graph together.

use super::sync::{spin_loop, AtomicBool, AtomicUsize, Ordering};
use crate::pool::Pool;

/// The meeting point of some threads.
///
/// Waits here take microseconds, so threads spin. If another thread panics, a waiting thread panics
/// too, because it could wait forever.
pub(crate) struct Gang<'a> {
    pool: &'a dyn Pool,
    threads: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    poisoned: AtomicBool,
}

/// The number of spins before other threads run: there may be fewer cores than threads.
const SPINS: u32 = 200;

impl<'a> Gang<'a> {
    pub(crate) fn new(pool: &'a dyn Pool) -> Gang<'a> {
        Gang {
            pool,
            threads: pool.threads(),
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            poisoned: AtomicBool::new(false),
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Waits for all other threads to arrive here.
    pub(crate) fn meet(&self) {
        let round = self.round.load(Ordering::Relaxed);
        // Everything before any arrival happens before any departure.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
        } else {
            self.wait(|| self.round.load(Ordering::Acquire) != round);
        }
    }

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// If another thread has panicked.
    #[inline]
    pub(crate) fn wait(&self, mut so: impl FnMut() -> bool) {
        let mut turns = 0;
        while !so() {
            self.pause(&mut turns);
        }
    }

    /// Runs one turn of a wait.
    #[cold]
    pub(crate) fn pause(&self, turns: &mut u32) {
        assert!(
            !self.poisoned.load(Ordering::Relaxed),
            "another thread of this epoch has panicked"
        );
        *turns += 1;
        match turns.is_multiple_of(SPINS) {
            true => self.pool.pause(),
            false => spin_loop(),
        }
    }

    /// Returns a guard for a thread that others wait for. If the thread panics, it drops the guard
    /// without [`Guard::done`], and the waiting threads panic too.
    pub(crate) fn guard(&self) -> Guard<'_> {
        Guard(self)
    }
}

/// The guard of [`Gang::guard`].
pub(crate) struct Guard<'a>(&'a Gang<'a>);

impl Guard<'_> {
    /// Ends the guard: no thread waits for this one any longer.
    pub(crate) fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.poisoned.store(true, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
pub(super) mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    /// Two threads, which the model starts.
    pub(crate) struct Two;

    impl Pool for Two {
        fn threads(&self) -> usize {
            2
        }

        fn run(&self, _: &(dyn Fn(usize) + Sync)) {
            unreachable!("the model starts its threads")
        }

        fn now_ns(&self) -> u64 {
            0
        }

        fn pause(&self) {
            loom::thread::yield_now();
        }
    }

    #[test]
    fn what_was_done_before_a_meeting_is_seen_behind_it() {
        loom::model(|| {
            let shared = Arc::new((Gang::new(&Two), AtomicUsize::new(0), AtomicUsize::new(0)));
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (gang, mine, others) = &*shared;
                    mine.store(1, Ordering::Relaxed);
                    gang.meet();
                    assert_eq!(others.load(Ordering::Relaxed), 1);
                    gang.meet();
                })
            };
            let (gang, others, mine) = &*shared;
            mine.store(1, Ordering::Relaxed);
            gang.meet();
            assert_eq!(others.load(Ordering::Relaxed), 1);
            gang.meet();
            other.join().unwrap();
        });
    }
}
