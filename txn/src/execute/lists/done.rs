//! The progress of a list.

use crate::schedule::sync::{AtomicUsize, Ordering};

/// The progress of a list. It has cache lines of its own, because one thread writes it all the
/// time, and others read it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Done {
    /// The rank of the last transaction, plus one.
    rank: AtomicUsize,
    /// The number of transactions.
    count: AtomicUsize,
}

impl Default for Done {
    fn default() -> Done {
        Done { rank: AtomicUsize::new(0), count: AtomicUsize::new(0) }
    }
}

impl Done {
    /// Returns how many transactions are done. No thread reads their entries any more.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether the transaction with this rank, in this list, is done. If so, its writes are
    /// visible.
    #[inline(always)]
    pub(super) fn has(&self, rank: u32) -> bool {
        self.rank.load(Ordering::Acquire) > rank as usize
    }

    /// Records that the next transaction, with this rank, is done, and that `count` transactions
    /// are. Only one thread calls it.
    #[inline(always)]
    pub(super) fn set(&self, rank: u32, count: usize) {
        self.count.store(count, Ordering::Release);
        self.rank.store(rank as usize + 1, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;
    use crate::schedule::sync::Place;

    /// A row that several threads use in turn.
    struct Row(Place<u32>);

    // SAFETY: loom checks which threads access it when.
    unsafe impl Sync for Row {}

    /// Two lists have ranks 0, 2 and 1, 3. All transactions write one row, and each waits for the
    /// one before.
    #[test]
    fn who_waits_for_a_transaction_finds_its_row() {
        loom::model(|| {
            let shared = Arc::new(([Done::default(), Done::default()], Row(Place::new(0))));
            let walk = |nth: usize, (lists, Row(row)): &([Done; 2], Row)| {
                for (count, rank) in [nth as u32, nth as u32 + 2].into_iter().enumerate() {
                    while rank > 0 && !lists[1 - nth].has(rank - 1) {
                        loom::thread::yield_now();
                    }
                    // SAFETY: loom checks that no other thread accesses it at the same time.
                    unsafe {
                        assert_eq!(row.get(), rank);
                        row.set(rank + 1);
                    }
                    lists[nth].set(rank, count + 1);
                }
            };
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || walk(1, &shared))
            };
            walk(0, &shared);
            other.join().unwrap();
            let (lists, Row(row)) = &*shared;
            // SAFETY: no other thread is left.
            assert_eq!(unsafe { row.get() }, 4);
            assert_eq!(lists.each_ref().map(Done::count), [2, 2]);
        });
    }
}
