//! How far a list is done.

use crate::schedule::sync::{AtomicUsize, Ordering};

/// How far a list is done; alone in its cache lines, because one thread writes it all the time, and
/// others look at it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Done {
    /// One more than the rank of the last transaction.
    rank: AtomicUsize,
    /// How many transactions.
    count: AtomicUsize,
}

impl Default for Done {
    fn default() -> Done {
        Done { rank: AtomicUsize::new(0), count: AtomicUsize::new(0) }
    }
}

impl Done {
    /// How many transactions are done: nobody reads what their list says of them any more.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether the transaction of this rank is done, which is in the list: what it has written is seen then.
    #[inline(always)]
    pub(super) fn has(&self, rank: u32) -> bool {
        self.rank.load(Ordering::Acquire) > rank as usize
    }

    /// The next transaction, which has this rank, is done, and with it so many are. Only one thread says so.
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

    // SAFETY: who comes there when is what loom looks at.
    unsafe impl Sync for Row {}

    /// Two lists with ranks 0, 2 and 1, 3, each of which waits for the one before: all write one row.
    #[test]
    fn who_waits_for_a_transaction_finds_its_row() {
        loom::model(|| {
            let shared = Arc::new(([Done::default(), Done::default()], Row(Place::new(0))));
            let walk = |nth: usize, (lists, Row(row)): &([Done; 2], Row)| {
                for (count, rank) in [nth as u32, nth as u32 + 2].into_iter().enumerate() {
                    while rank > 0 && !lists[1 - nth].has(rank - 1) {
                        loom::thread::yield_now();
                    }
                    // SAFETY: loom sees whether another thread is there at the same time.
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
            // SAFETY: nobody else is left.
            assert_eq!(unsafe { row.get() }, 4);
            assert_eq!(lists.each_ref().map(Done::count), [2, 2]);
        });
    }
}
