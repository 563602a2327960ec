//! A list as it is made and executed at once: one thread appends to it, another one walks it.
//!
//! What has been published is never changed, so the two need nothing but a count; and nothing moves,
//! because there is room for the whole epoch from the start.

use std::mem::MaybeUninit;

use crate::schedule::sync::{AtomicBool, AtomicUsize, Ordering, Place};

/// A word that one thread writes and others look at, alone in its cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Alone<T>(T);

/// Items that one thread appends and others read.
#[derive(Debug)]
pub(super) struct Feed<T> {
    items: Box<[Place<MaybeUninit<T>>]>,
    published: Alone<AtomicUsize>,
    closed: Alone<AtomicBool>,
    /// Somebody appends.
    taken: AtomicBool,
}

// SAFETY: an item is written once, by the one appender, before it is published, and only read from
// then on.
unsafe impl<T: Copy + Send + Sync> Sync for Feed<T> {}

/// Who appends to a feed: there is one.
#[derive(Debug)]
pub(super) struct Appender<'f, T> {
    feed: &'f Feed<T>,
    len: usize,
}

impl<T: Copy> Feed<T> {
    /// With room for so many items.
    pub(super) fn new(room: usize) -> Feed<T> {
        let items = (0..room).map(|_| Place::new(MaybeUninit::uninit())).collect();
        let (published, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let taken = AtomicBool::new(false);
        Feed { items, published: Alone(published), closed: Alone(closed), taken }
    }

    pub(super) fn room(&self) -> usize {
        self.items.len()
    }

    /// Begins anew.
    pub(super) fn reset(&mut self) {
        self.published.0 = AtomicUsize::new(0);
        self.closed.0 = AtomicBool::new(false);
        self.taken = AtomicBool::new(false);
    }

    /// Who appends to it.
    ///
    /// # Panics
    /// When there is somebody already since the last [`Feed::reset`].
    pub(super) fn appender(&self) -> Appender<'_, T> {
        assert!(!self.taken.swap(true, Ordering::Relaxed), "one appends");
        Appender { feed: self, len: 0 }
    }

    /// How many items may be read.
    #[inline(always)]
    pub(super) fn published(&self) -> usize {
        self.published.0.load(Ordering::Acquire)
    }

    /// Whether nothing more is appended. Ask before [`Feed::published`].
    pub(super) fn is_closed(&self) -> bool {
        self.closed.0.load(Ordering::Acquire)
    }

    /// An item.
    ///
    /// # Safety
    /// It was among those that [`Feed::published`] has counted.
    #[inline(always)]
    pub(super) unsafe fn get(&self, at: usize) -> T {
        debug_assert!(at < self.items.len());
        // SAFETY: it has been published, says the caller, so it is written and stays.
        unsafe { self.items.get_unchecked(at).get().assume_init() }
    }
}

impl<T: Copy> Appender<'_, T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(super) fn push(&mut self, item: T) {
        let place = &self.feed.items[self.len];
        // SAFETY: it is not published, and nobody else appends.
        unsafe { place.set(MaybeUninit::new(item)) };
        self.len += 1;
    }

    /// Appends the first `len` of some items. The others may be written, too, which is faster when
    /// their number is known, but do not count.
    #[inline(always)]
    pub(super) fn push_first(&mut self, items: &[T], len: usize) {
        let places = &self.feed.items[self.len..][..items.len()];
        for (place, item) in places.iter().zip(items) {
            // SAFETY: as in `push`.
            unsafe { place.set(MaybeUninit::new(*item)) };
        }
        self.len += len;
    }

    /// Everything up to here may be read.
    pub(super) fn publish(&self) {
        self.feed.published.0.store(self.len, Ordering::Release);
    }

    /// That was all.
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

    /// As lists hand rows over: who has written one says how far it is, and who waits for that finds
    /// what was written.
    #[test]
    fn a_row_is_handed_over_by_a_count() {
        loom::model(|| {
            let shared = Arc::new((Place::new(0u64), AtomicUsize::new(0)));
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    // SAFETY: the other one waits until this is said to be done.
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
