//! The progress of blocks, and the barrier of threads between planning and execution.

use crate::schedule::sync::{AtomicU64, AtomicUsize, CachePadded, Ordering};

/// The progress of the blocks that are executed at a time.
///
/// The numbers of transactions rise for ever. So nothing has to be cleared when a place is reused
/// for another block.
#[derive(Debug, Default)]
pub(super) struct Done(Box<[CachePadded<AtomicU64>]>);

impl Done {
    /// Creates the progress of `blocks` blocks at a time.
    pub(super) fn new(blocks: usize) -> Done {
        Done((0..blocks).map(|_| CachePadded::default()).collect())
    }

    /// Returns how many blocks there may be at a time.
    pub(super) fn room(&self) -> usize {
        self.0.len()
    }

    /// Whether the transaction with this number, in this block, is done. If so, its writes are
    /// visible.
    #[inline(always)]
    pub(super) fn has(&self, block: usize, number: u64) -> bool {
        self.0[block].0.load(Ordering::Acquire) >= number
    }

    /// Records that the block is done up to the transaction with this number.
    #[inline(always)]
    pub(super) fn set(&self, block: usize, number: u64) {
        self.0[block].0.store(number, Ordering::Release);
    }
}

/// A barrier that threads pass over and over. It has a count of passes for each thread.
///
/// A count that all of them raise would move from core to core as often as there are threads.
#[derive(Debug)]
pub(super) struct Meeting(Box<[CachePadded<AtomicU64>]>);

impl Meeting {
    /// Creates a barrier for `threads` threads.
    pub(super) fn new(threads: usize) -> Meeting {
        Meeting((0..threads).map(|_| CachePadded::default()).collect())
    }

    /// Records that a thread has arrived for this time. The first time is 1.
    ///
    /// Its earlier work is visible to a thread that finds that all [are here](Meeting::are_here).
    pub(super) fn reach(&self, thread: usize, time: u64) {
        self.0[thread].0.store(time, Ordering::Release);
    }

    /// Whether all threads have arrived for this time.
    pub(super) fn are_here(&self, time: u64) -> bool {
        self.0.iter().all(|count| count.0.load(Ordering::Acquire) >= time)
    }
}

/// The next block to take. There is one for chunks of even and one for those of odd number.
#[derive(Debug, Default)]
pub(super) struct Next(CachePadded<AtomicUsize>);

impl Next {
    /// Begins with this block: those before it are taken.
    pub(super) fn begin(&self, block: usize) {
        self.0 .0.store(block, Ordering::Relaxed);
    }

    /// Takes a block. Its number may be beyond the last one.
    #[inline(always)]
    pub(super) fn take(&self) -> usize {
        self.0 .0.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;
    use crate::plan::blocks::{Cells, Links, Use};
    use crate::schedule::sync::Place;

    /// Rows that several threads use in turn.
    struct Rows([Place<u32>; 2]);

    // SAFETY: loom checks which threads access them when.
    unsafe impl Sync for Rows {}

    fn wait(holds: impl Fn() -> bool) {
        while !holds() {
            loom::thread::yield_now();
        }
    }

    /// Two chunks have two blocks of one transaction each, and all write the same row. Each thread
    /// plans a chunk's links in its turn. Every block that is taken is executed once.
    #[test]
    fn who_waits_for_a_block_finds_its_row_and_every_block_is_taken_once() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let links = [Links::new(2, false), Links::new(2, false)];
            let next = [Next::default(), Next::default()];
            next[0].begin(0);
            let shared = Arc::new((
                (links, next, Meeting::new(2), Done::new(2)),
                Rows([Place::new(0), Place::new(0)]),
            ));
            let walk = |thread: usize, shared: &((_, _, _, _), Rows)| {
                let ((links, next, meeting, done), Rows([row, _])): &(
                    ([Links; 2], [Next; 2], Meeting, Done),
                    Rows,
                ) = shared;
                for chunk in 0..2 {
                    meeting.reach(thread, 2 * chunk as u64 + 1);
                    wait(|| meeting.are_here(2 * chunk as u64 + 1));
                    if thread == chunk {
                        let mut cells = Cells::default();
                        cells.begin(2);
                        for at in 0..2 {
                            let used = Use::of(5, true, at);
                            cells.link::<false>(used, &links[chunk], |_, _| false);
                        }
                        next[(chunk + 1) % 2].begin(0);
                    }
                    meeting.reach(thread, 2 * chunk as u64 + 2);
                    wait(|| meeting.are_here(2 * chunk as u64 + 2));
                    loop {
                        let block = next[chunk % 2].take();
                        if block >= 2 {
                            break;
                        }
                        let number = |block: usize| (2 * chunk + block + 1) as u64;
                        let is_over = |before: usize| done.has(before, number(before));
                        wait(|| links[chunk].open(block, is_over).is_none());
                        // SAFETY: loom checks that no other thread accesses it at the same time.
                        unsafe {
                            assert_eq!(u64::from(row.get()) + 1, number(block));
                            row.set(row.get() + 1);
                        }
                        done.set(block, number(block));
                    }
                }
            };
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || walk(1, &shared))
            };
            walk(0, &shared);
            other.join().unwrap();
            let (_, Rows([row, _])) = &*shared;
            // SAFETY: no other thread is left.
            assert_eq!(unsafe { row.get() }, 4);
        });
    }
}
