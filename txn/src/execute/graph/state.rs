//! The states of operations (MorphStream, section VI).
//!
//! | state | an operation |
//! | --- | --- |
//! | BLK | is not executed: its dependencies are not executed, or have been undone |
//! | RDY | is taken by a thread, because its turn has come |
//! | EXE | is executed |
//! | ABT | belongs to a transaction with a failing operation: no reader uses its version |
//!
//! | transition | when | where |
//! | --- | --- | --- |
//! | T1 BLK → RDY | all dependencies are EXE | [`States::begin`] |
//! | T2 RDY → EXE | it has been executed, and its input has not changed | [`States::end`] |
//! | T3 BLK → EXE | as T1 and T2, on versions whose transactions may still abort | as T1 and T2 |
//! | T4 → ABT | it fails, or another operation of its transaction does | [`States::stop`] |
//! | T5 EXE, BLK → RDY | its input has changed, so it may be executed again | [`States::again`] |
//! | T6 RDY → BLK | its input has changed while it ran, so it starts again | `again`, `end` |
//!
//! T3 means that no operation waits for logical dependencies.
//!
//! ABT belongs to transactions, and may be undone: an operation that fails on one input may succeed
//! on the right one. Therefore operations of aborted transactions are executed like all others, but
//! no reader uses their versions.
//!
//! One rule makes all of this correct. *A thread that changes what others may have read marks these
//! operations*, with one atomic operation on their state. A thread that finishes an operation does
//! so with another atomic operation, which fails if it has been marked since it began. So when no
//! marks are left, every operation was last executed on the input of the stamp order. By induction
//! from the first operation, that is the serial outcome.

use crate::schedule::sync::{fence, AtomicU32, AtomicU8, Ordering};

const BLK: u8 = 0;
const RDY: u8 = 1;
const EXE: u8 = 2;
/// The mark that the input has changed.
const AGAIN: u8 = 4;

/// The states of a graph's operations.
#[derive(Debug, Default)]
pub(crate) struct States {
    states: Vec<AtomicU8>,
    /// Whether the operation fails. Only the thread that executes it reads this.
    fails: Vec<AtomicU8>,
    /// The number of failing operations of each transaction. It is ABT if there are any.
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

    /// T1, T3, and the end of T5: a thread takes the operation. Returns whether it is the first
    /// time.
    #[inline(always)]
    pub(crate) fn begin(&self, vertex: u32) -> bool {
        // Changes that were made before the mark are visible from here on.
        self.states[vertex as usize].swap(RDY, Ordering::AcqRel) & EXE == 0
    }

    /// T2: it has been executed. Returns `false` (T6) if it has to be executed again.
    #[inline(always)]
    pub(crate) fn end(&self, vertex: u32) -> bool {
        let state = &self.states[vertex as usize];
        state.compare_exchange(RDY, EXE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Marks that the operation's input has changed.
    ///
    /// T5: returns `true` to the one thread that has to have it executed again. T6: if it is being
    /// executed, its thread will notice the mark. An operation that has not been executed yet needs
    /// nothing.
    #[inline]
    pub(crate) fn again(&self, vertex: u32) -> bool {
        self.states[vertex as usize].fetch_or(AGAIN, Ordering::AcqRel) == EXE
    }

    #[inline(always)]
    pub(crate) fn is_executed(&self, vertex: u32) -> bool {
        self.states[vertex as usize].load(Ordering::Acquire) & EXE != 0
    }

    /// T4: sets whether the operation fails. Returns whether the verdict on its transaction has
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
        // A thread that changes something reads verdicts next, to see which operations to notify.
        // Of two threads that do so at once, at least one sees the change of the other. So does
        // every thread that this one notifies.
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

    /// Runs an operation that reads one word, and records the word.
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
                    // A version changes, and its possible readers are notified.
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
            // A unit reads a row that it was not expected to use.
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
