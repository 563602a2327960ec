//! The progress of the threads: three counts that they wait for.

use crate::schedule::sync::{AtomicUsize, CachePadded, Ordering};

/// A count of rounds.
#[derive(Debug, Default)]
struct Count(CachePadded<AtomicUsize>);

impl Count {
    fn has_reached(&self, count: usize) -> bool {
        self.0 .0.load(Ordering::Acquire) >= count
    }

    fn set(&self, count: usize) {
        self.0 .0.store(count, Ordering::Release);
    }
}

/// The progress of one thread: in how many rounds it has reserved its rows, executed its share, and
/// settled its deferred transactions.
#[derive(Debug, Default)]
struct Of {
    reserved: Count,
    executed: Count,
    settled: Count,
}

/// The progress of all threads.
#[derive(Debug)]
pub(super) struct Progress(Vec<Of>);

impl Progress {
    pub(super) fn new(threads: usize) -> Progress {
        Progress((0..threads).map(|_| Of::default()).collect())
    }

    /// Records that a thread has reserved the rows of its share of a round.
    pub(super) fn reserved(&self, thread: usize, round: usize) {
        self.0[thread].reserved.set(round + 1);
    }

    /// Records that a thread has executed its share of a round, except deferred transactions.
    pub(super) fn executed(&self, thread: usize, round: usize) {
        self.0[thread].executed.set(round + 1);
    }

    /// Records that a thread has executed its deferred transactions of a round.
    pub(super) fn settled(&self, thread: usize, round: usize) {
        self.0[thread].settled.set(round + 1);
    }

    /// Whether a thread may read the reservations of earlier threads in a round, and then execute
    /// its share.
    ///
    /// If so, all transactions of earlier rounds that were not deferred are done. The transactions
    /// that this and earlier threads have deferred are done, too.
    pub(super) fn may_execute(&self, thread: usize, round: usize) -> bool {
        self.0.iter().all(|of| of.executed.has_reached(round))
            && self.0[..thread].iter().all(|of| of.reserved.has_reached(round + 1))
    }

    /// Whether all transactions of earlier rounds are done, including deferred ones.
    pub(super) fn are_settled(&self, round: usize) -> bool {
        // The last thread settles after all others.
        self.0[self.0.len() - 1].settled.has_reached(round)
    }

    /// Whether a thread may execute its deferred transactions of a round. If so, all that were not
    /// deferred are done, and those that earlier threads have deferred.
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

    /// There are two shares a round. One transaction of the second share uses a row of the first
    /// one, and is deferred. Another one, in the first round, does not. The first thread's share
    /// has a transaction that conflicts with the deferred one of the round before. It waits if that
    /// is not settled yet. Lists of marks (here the number of their round) are written in turns:
    /// while one is read, no thread writes it.
    #[test]
    fn a_row_is_used_by_one_at_a_time_and_reservations_are_seen() {
        const ROUNDS: usize = 3;
        // A thread that polls again and again has too many interleavings to try them all.
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
                        // SAFETY: the second thread defers the transaction that uses it, and has
                        // settled it.
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
                    // SAFETY: the first thread's share does not use it, and its next one has not
                    // begun.
                    unsafe { other.set(other.get() + 1) };
                }
                progress.executed(1, round);
                wait(|| progress.may_settle(1, round));
                // SAFETY: the first thread is done with this round and waits with the next one.
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
