//! A list that is built and executed at the same time: one thread appends to it, and another one
//! walks it.
//!
//! A published item does not change until its reader is done with it. So the two threads only need
//! counts. Items are in a ring: however long an epoch is, its lists stay in the cache.

use std::mem::MaybeUninit;

use crate::schedule::sync::{AtomicBool, AtomicUsize, CachePadded, Ordering, Place};

/// Items that one thread appends and others read.
#[derive(Debug)]
pub(super) struct Feed<T> {
    /// The ring. Its length is a power of two.
    items: Box<[Place<MaybeUninit<T>>]>,
    published: CachePadded<AtomicUsize>,
    closed: CachePadded<AtomicBool>,
    /// Whether there is an appender.
    taken: AtomicBool,
}

// SAFETY: the one appender writes an item before it is published. From then on it is only read,
// until its place has been freed.
unsafe impl<T: Copy + Send + Sync> Sync for Feed<T> {}

/// The appender of a feed. There is only one.
#[derive(Debug)]
pub(super) struct Appender<'f, T> {
    feed: &'f Feed<T>,
    len: usize,
    /// The item before which none is read any more.
    freed: usize,
}

impl<T: Copy> Feed<T> {
    /// Creates a feed with room for at least `room` items at a time.
    pub(super) fn new(room: usize) -> Feed<T> {
        let items =
            (0..room.next_power_of_two()).map(|_| Place::new(MaybeUninit::uninit())).collect();
        let (published, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let taken = AtomicBool::new(false);
        Feed { items, published: CachePadded(published), closed: CachePadded(closed), taken }
    }

    pub(super) fn room(&self) -> usize {
        self.items.len()
    }

    /// Empties the feed.
    pub(super) fn reset(&mut self) {
        self.published.0 = AtomicUsize::new(0);
        self.closed.0 = AtomicBool::new(false);
        self.taken = AtomicBool::new(false);
    }

    /// Returns the appender.
    ///
    /// # Panics
    /// If there has been one since the last [`Feed::reset`].
    pub(super) fn appender(&self) -> Appender<'_, T> {
        assert!(!self.taken.swap(true, Ordering::Relaxed), "one appends");
        Appender { feed: self, len: 0, freed: 0 }
    }

    /// Returns the place of an item.
    #[inline(always)]
    fn place(&self, at: usize) -> &Place<MaybeUninit<T>> {
        // SAFETY: their number is a power of two, at least one.
        unsafe { self.items.get_unchecked(at & (self.items.len() - 1)) }
    }

    /// Returns how many items may be read.
    #[inline(always)]
    pub(super) fn published(&self) -> usize {
        self.published.0.load(Ordering::Acquire)
    }

    /// Whether nothing more is appended. Ask before [`Feed::published`].
    pub(super) fn is_closed(&self) -> bool {
        self.closed.0.load(Ordering::Acquire)
    }

    /// Returns an item.
    ///
    /// # Safety
    /// [`Feed::published`] has counted it, and it has not been [freed](Appender::free).
    #[inline(always)]
    pub(super) unsafe fn get(&self, at: usize) -> T {
        // SAFETY: the caller guarantees that it has been published and not been freed. So it is
        // written and stays.
        unsafe { self.place(at).get().assume_init() }
    }
}

impl<T: Copy> Appender<'_, T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Frees the places of earlier items, so that they may be overwritten.
    ///
    /// # Safety
    /// No thread reads them any more, and their last reader has told this thread so.
    pub(super) unsafe fn free(&mut self, before: usize) {
        debug_assert!(self.freed <= before && before <= self.len);
        self.freed = before;
    }

    #[inline(always)]
    fn check_room(&self, more: usize) {
        assert!(self.len + more <= self.freed + self.feed.items.len(), "there is room");
    }

    #[inline(always)]
    pub(super) fn push(&mut self, item: T) {
        self.check_room(1);
        // SAFETY: the former item has been freed, this one is not published, and no other thread
        // appends.
        unsafe { self.feed.place(self.len).set(MaybeUninit::new(item)) };
        self.len += 1;
    }

    /// Appends the first `len` of some items. The others may be written, too, but do not count.
    /// Writing a fixed number is faster.
    #[inline(always)]
    pub(super) fn push_first(&mut self, items: &[T], len: usize) {
        self.check_room(items.len());
        for (of, item) in items.iter().enumerate() {
            // SAFETY: as in `push`.
            unsafe { self.feed.place(self.len + of).set(MaybeUninit::new(*item)) };
        }
        self.len += len;
    }

    /// Publishes all items so far.
    pub(super) fn publish(&self) {
        self.feed.published.0.store(self.len, Ordering::Release);
    }

    /// Closes the feed: nothing more is appended.
    pub(super) fn close(&self) {
        self.publish();
        self.feed.closed.0.store(true, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    #[test]
    fn what_is_published_is_there() {
        loom::model(|| {
            let feed = Arc::new(Feed::new(4));
            let reader = {
                let feed = feed.clone();
                loom::thread::spawn(move || {
                    let (mut read, mut sum) = (0, 0);
                    loop {
                        let closed = feed.is_closed();
                        let published = feed.published();
                        while read < published {
                            // SAFETY: it is published.
                            sum += unsafe { feed.get(read) };
                            read += 1;
                        }
                        if closed {
                            return (read, sum);
                        }
                        loom::thread::yield_now();
                    }
                })
            };
            let mut appender = feed.appender();
            appender.push(1);
            appender.publish();
            appender.push_first(&[2, 3, 4], 1);
            appender.push(5);
            appender.close();
            assert_eq!(reader.join().unwrap(), (3, 8));
        });
    }

    /// The ring is shorter than the list. The reader reports how far it is, and the places are used
    /// again.
    #[test]
    fn a_place_is_used_again_once_it_was_read() {
        loom::model(|| {
            let shared = Arc::new((Feed::new(1), AtomicUsize::new(0)));
            let reader = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (feed, done) = &*shared;
                    for at in 0..2 {
                        while feed.published() <= at {
                            loom::thread::yield_now();
                        }
                        // SAFETY: it is published, and freed by the report below.
                        assert_eq!(unsafe { feed.get(at) }, at);
                        done.store(at + 1, Ordering::Release);
                    }
                })
            };
            let (feed, done) = &*shared;
            let mut appender = feed.appender();
            appender.push(0);
            appender.publish();
            while done.load(Ordering::Acquire) < 1 {
                loom::thread::yield_now();
            }
            // SAFETY: the reader has reported it.
            unsafe { appender.free(1) };
            appender.push(1);
            appender.publish();
            reader.join().unwrap();
        });
    }

    /// Lists hand rows over in this way: the writer of a row reports its progress, and the thread
    /// that waits for it finds the write.
    #[test]
    fn a_row_is_handed_over_by_a_count() {
        loom::model(|| {
            let shared = Arc::new((Place::new(0u64), AtomicUsize::new(0)));
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    // SAFETY: the other thread waits until this one reports that it is done.
                    unsafe { shared.0.set(7) };
                    shared.1.store(1, Ordering::Release);
                })
            };
            while shared.1.load(Ordering::Acquire) < 1 {
                loom::thread::yield_now();
            }
            // SAFETY: the writer is done.
            unsafe {
                assert_eq!(shared.0.get(), 7);
                shared.0.set(8);
            }
            other.join().unwrap();
        });
    }
}
