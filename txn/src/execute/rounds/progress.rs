//! How far the threads are: the three counts that they wait for.

use crate::schedule::sync::{Alone, AtomicUsize, Ordering};

/// A count of rounds.
#[derive(Debug, Default)]
struct Count(Alone<AtomicUsize>);

impl Count {
    fn has_reached(&self, count: usize) -> bool {
        self.0 .0.load(Ordering::Acquire) >= count
    }

    fn set(&self, count: usize) {
        self.0 .0.store(count, Ordering::Release);
    }
}

/// Of one thread: of how many rounds it has reserved its rows, executed its share, and settled what
/// of it was put off.
#[derive(Debug, Default)]
struct Of {
    reserved: Count,
    executed: Count,
    settled: Count,
}

/// How far all threads are.
#[derive(Debug)]
pub(super) struct Progress(Vec<Of>);

impl Progress {
    pub(super) fn new(threads: usize) -> Progress {
        Progress((0..threads).map(|_| Of::default()).collect())
    }

    /// A thread has reserved what its share of a round uses.
    pub(super) fn reserved(&self, thread: usize, round: usize) {
        self.0[thread].reserved.set(round + 1);
    }

    /// A thread has executed its share of a round, but for what is put off.
    pub(super) fn executed(&self, thread: usize, round: usize) {
        self.0[thread].executed.set(round + 1);
    }

    /// A thread has executed what it had put off in a round.
    pub(super) fn settled(&self, thread: usize, round: usize) {
        self.0[thread].settled.set(round + 1);
    }

    /// Whether a thread may look at what earlier threads have reserved in a round, and then execute
    /// its share: of the rounds before all is done that was not put off, and what it and earlier threads
    /// have put off.
    pub(super) fn may_execute(&self, thread: usize, round: usize) -> bool {
        self.0.iter().all(|of| of.executed.has_reached(round))
            && self.0[..thread].iter().all(|of| of.reserved.has_reached(round + 1))
    }

    /// Whether all is done of the rounds before, also what was put off.
    pub(super) fn are_settled(&self, round: usize) -> bool {
        // The last thread settles when all others have.
        self.0[self.0.len() - 1].settled.has_reached(round)
    }

    /// Whether a thread may execute what it has put off in a round: all that was not put off is done,
    /// and what others have put off before.
    pub(super) fn may_settle(&self, thread: usize, round: usize) -> bool {
        let before = thread.checked_sub(1).map(|before| &self.0[before]);
        before.is_none_or(|before| before.settled.has_reached(round + 1))
            && self.0.iter().all(|of| of.executed.has_reached(round + 1))
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;
    use crate::schedule::sync::Place;

    fn wait(holds: impl Fn() -> bool) {
        while !holds() {
            loom::thread::yield_now();
        }
    }

    /// Two shares a round. Of the second one a transaction uses a row of the first one, and is put off;
    /// another one, in the first round, does not. The first thread's share has a transaction that meets what
    /// was put off in the round before, and waits, if that is not settled when it looks. Lists of marks, here the round that
    /// they are of, are written in turns: while one is looked at, nobody writes it.
    #[test]
    fn a_row_is_used_by_one_at_a_time_and_reservations_are_seen() {
        const ROUNDS: usize = 3;
        // Whoever looks again and again makes too many orders to try them all.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let lists = || [0, 1].map(|_| Place::new(usize::MAX));
            let rows = [Place::new(0u64), Place::new(0u64)];
            let shared = Arc::new((Progress::new(2), lists(), lists(), rows));
            let first = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (progress, reserved, put_off, [one, other]) = &*shared;
                    for round in 0..ROUNDS {
                        // SAFETY: as `reserve` says.
                        unsafe { reserved[round % 2].set(round) };
                        progress.reserved(0, round);
                        wait(|| progress.may_execute(0, round));
                        if !progress.are_settled(round) {
                            // SAFETY: as `execute` says.
                            unsafe { assert_eq!(put_off[(round - 1) % 2].get(), round - 1) };
                            wait(|| progress.are_settled(round));
                        }
                        if round > 0 {
                            // SAFETY: the share of the round before that uses it is done.
                            unsafe { assert_eq!(other.get(), 1) };
                        }
                        // SAFETY: the second one puts off what uses it, and has settled it.
                        unsafe { one.set(one.get() + 1) };
                        progress.executed(0, round);
                        progress.settled(0, round);
                    }
                })
            };
            let (progress, reserved, put_off, [one, other]) = &*shared;
            for round in 0..ROUNDS {
                progress.reserved(1, round);
                wait(|| progress.may_execute(1, round));
                // SAFETY: as `look` says.
                unsafe {
                    assert_eq!(reserved[round % 2].get(), round);
                    put_off[round % 2].set(round);
                }
                if round == 0 {
                    // SAFETY: the first one's share does not use it, and its next one is not begun.
                    unsafe { other.set(other.get() + 1) };
                }
                progress.executed(1, round);
                wait(|| progress.may_settle(1, round));
                // SAFETY: the first one is done with this round and waits with the next one.
                unsafe {
                    assert_eq!(one.get(), 2 * round as u64 + 1);
                    one.set(2 * round as u64 + 2);
                }
                progress.settled(1, round);
            }
            first.join().unwrap();
        });
    }
}
