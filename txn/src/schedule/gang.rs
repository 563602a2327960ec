//! Threads that walk a graph together: where they wait for one another.

use super::sync::{spin_loop, AtomicBool, AtomicUsize, Ordering};
use crate::pool::Pool;

/// The meeting point of some threads.
///
/// Whoever waits here does so for microseconds, so it spins; should one of the others panic, it
/// panics too, because what it waits for may never come.
pub(crate) struct Gang<'a> {
    pool: &'a dyn Pool,
    threads: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    poisoned: AtomicBool,
}

/// Turns of a spinning wait before others are let run: there may be fewer cores than threads.
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

    /// Waits for all others to come here.
    pub(crate) fn meet(&self) {
        let round = self.round.load(Ordering::Relaxed);
        // Everything that happened before anyone came here, happened before anyone leaves.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
        } else {
            self.wait(|| self.round.load(Ordering::Acquire) != round);
        }
    }

    /// Waits until something is so.
    ///
    /// # Panics
    /// When another thread has panicked.
    #[inline]
    pub(crate) fn wait(&self, mut so: impl FnMut() -> bool) {
        let mut turns = 0;
        while !so() {
            self.pause(&mut turns);
        }
    }

    /// One turn of a wait.
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

    /// To be held while others may wait: they are told when its holder panics and so drops it
    /// without being [done](Guard::done).
    pub(crate) fn guard(&self) -> Guard<'_> {
        Guard(self)
    }
}

/// See [`Gang::guard`].
pub(crate) struct Guard<'a>(&'a Gang<'a>);

impl Guard<'_> {
    /// Nobody waits for this thread any more.
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
