//! The states of operations (MorphStream VI).
//!
//! | state | an operation is |
//! | --- | --- |
//! | BLK | not executed: what it depends on has not been, or has been undone |
//! | RDY | taken up by a thread, because its turn has come |
//! | EXE | executed |
//! | ABT | one of a transaction of which some operation fails: its version counts for nobody |
//!
//! | transition | when | where |
//! | --- | --- | --- |
//! | T1 BLK → RDY | all that it depends on are EXE | [`States::begin`] |
//! | T2 RDY → EXE | it has been executed, and nothing that it read has changed since | [`States::end`] |
//! | T3 BLK → EXE | the same, on versions of transactions of which it is not known yet whether they abort | the same: nobody waits for logical dependencies |
//! | T4 → ABT | it fails, or another operation of its transaction does | [`States::stop`] |
//! | T5 EXE, BLK → RDY | what it read has changed, and it is free to be executed again | [`States::again`] |
//! | T6 RDY → BLK | the same, while it was being executed: it has to begin again | [`States::again`], [`States::end`] |
//!
//! ABT belongs to transactions, and may be taken back: an operation that fails because of what it
//! read may succeed with what it should have read. Therefore operations of aborted transactions are
//! executed like all others; only nobody looks at their versions.
//!
//! One rule makes all of it right: *whoever changes what others may have read marks them*, with one
//! atomic operation on their state, and whoever finishes an operation does so with another, which
//! fails when it has been marked since it began. So when nothing is marked any more, every operation
//! was last executed on what it would have found in stamp order; from the first on, that is the
//! serial outcome.

use crate::schedule::sync::{fence, AtomicU32, AtomicU8, Ordering};

const BLK: u8 = 0;
const RDY: u8 = 1;
const EXE: u8 = 2;
/// What it read has changed.
const AGAIN: u8 = 4;

/// The states of a graph's operations.
#[derive(Debug, Default)]
pub(crate) struct States {
    states: Vec<AtomicU8>,
    /// Whether the operation fails; only whoever executes it looks.
    fails: Vec<AtomicU8>,
    /// Per transaction how many of its operations fail: it is ABT when some do.
    failing: Vec<AtomicU32>,
}

impl States {
    pub(crate) fn clear(&mut self, vertices: usize, txns: usize) {
        self.states.clear();
        self.states.resize_with(vertices, || AtomicU8::new(BLK));
        self.fails.clear();
        self.fails.resize_with(vertices, || AtomicU8::new(0));
        self.failing.clear();
        self.failing.resize_with(txns, || AtomicU32::new(0));
    }

    /// T1, T3, and T5's end: a thread takes the operation up. Whether it is the first time.
    #[inline(always)]
    pub(crate) fn begin(&self, vertex: u32) -> bool {
        // What was changed before it was marked is seen from here on.
        self.states[vertex as usize].swap(RDY, Ordering::AcqRel) & EXE == 0
    }

    /// T2: it has been executed; `false` (T6) when it has to be once more.
    #[inline(always)]
    pub(crate) fn end(&self, vertex: u32) -> bool {
        let state = &self.states[vertex as usize];
        state.compare_exchange(RDY, EXE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// What the operation read has changed. T5: gives `true` to the one who has to see to it that it
    /// is executed again. T6: if it is being executed, its thread will notice. One that has not been
    /// executed yet needs nothing.
    #[inline]
    pub(crate) fn again(&self, vertex: u32) -> bool {
        self.states[vertex as usize].fetch_or(AGAIN, Ordering::AcqRel) == EXE
    }

    #[inline(always)]
    pub(crate) fn is_executed(&self, vertex: u32) -> bool {
        self.states[vertex as usize].load(Ordering::Acquire) & EXE != 0
    }

    /// T4: the operation fails, or no longer does; `true` when the verdict on its transaction has
    /// changed.
    #[inline]
    pub(crate) fn stop(&self, vertex: u32, txn: u32, fails: bool) -> bool {
        let before = self.fails[vertex as usize].load(Ordering::Relaxed) != 0;
        if before == fails {
            return false;
        }
        self.fails[vertex as usize].store(u8::from(fails), Ordering::Relaxed);
        let failing = &self.failing[txn as usize];
        let is_overturned = match fails {
            true => failing.fetch_add(1, Ordering::AcqRel) == 0,
            false => failing.fetch_sub(1, Ordering::AcqRel) == 1,
        };
        // Whoever changes something looks at verdicts next, to see who is to be told. Of two that do
        // so at once at least one sees what the other did; so does everybody who is told by that one.
        fence(Ordering::SeqCst);
        is_overturned
    }

    /// Whether a transaction is ABT, as far as is known.
    #[inline(always)]
    pub(crate) fn is_aborted(&self, txn: u32) -> bool {
        self.failing[txn as usize].load(Ordering::Acquire) != 0
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    /// An operation that reads one word, and what it read last.
    fn run(states: &States, word: &AtomicU32, read: &AtomicU32) {
        states.begin(0);
        loop {
            read.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            if states.end(0) {
                return;
            }
            states.begin(0);
        }
    }

    #[test]
    fn whoever_read_too_early_reads_again() {
        loom::model(|| {
            let mut states = States::default();
            states.clear(1, 1);
            let shared = Arc::new((states, AtomicU32::new(0), AtomicU32::new(0)));
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (states, word, read) = &*shared;
                    // A version changes, and whoever may have read it is told.
                    word.store(1, Ordering::Relaxed);
                    if states.again(0) {
                        run(states, word, read);
                    }
                })
            };
            let (states, word, read) = &*shared;
            run(states, word, read);
            other.join().unwrap();
            assert_eq!(read.load(Ordering::Relaxed), 1);
            assert!(states.is_executed(0));
        });
    }

    #[test]
    fn whoever_sees_an_operation_executed_sees_its_version() {
        loom::model(|| {
            let mut states = States::default();
            states.clear(1, 1);
            let shared = Arc::new((states, AtomicU32::new(0)));
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (states, version) = &*shared;
                    states.begin(0);
                    version.store(7, Ordering::Relaxed);
                    assert!(states.end(0));
                })
            };
            // A unit looks at a row that it was not expected to use.
            let (states, version) = &*shared;
            if states.is_executed(0) {
                assert_eq!(version.load(Ordering::Relaxed), 7);
            }
            other.join().unwrap();
        });
    }

    #[test]
    fn of_two_verdicts_that_meet_one_sees_the_other() {
        loom::model(|| {
            let mut states = States::default();
            states.clear(2, 2);
            let states = Arc::new(states);
            let other = {
                let states = states.clone();
                loom::thread::spawn(move || {
                    assert!(states.stop(0, 0, true));
                    states.is_aborted(1)
                })
            };
            assert!(states.stop(1, 1, true));
            let one = states.is_aborted(0);
            assert!(one | other.join().unwrap());
        });
    }
}
