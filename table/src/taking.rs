//! Taking a slot for a missing row, while other threads search for theirs.
//!
//! Slots are taken one at a time, under a lock, and stay taken. A search needs no lock: once a slot
//! is seen as taken, its key and stamp are there. A search that ends at a free slot may have to be
//! repeated under the lock.

use std::sync::atomic::Ordering;

use crate::table::{KEY, LINK, SNAPPED, STAMP, TAKEN};
use crate::version::{stamp_word, NO_LINK};

/// The headers of a table's slots, by number. Other threads may read a word while it is written.
pub(crate) trait Headers {
    /// Reads a word of a slot's header.
    fn look(&self, slot: usize, word: usize, order: Ordering) -> u64;
    /// Writes a word of a slot's header.
    fn show(&self, slot: usize, word: usize, value: u64, order: Ordering);
}

/// Returns the slot of a key, or the free one where the search for it ends. The search begins at
/// `home`.
///
/// Some slots are always free. Their number is one more than `mask`.
pub(crate) fn search(slots: &impl Headers, home: usize, mask: usize, key: u64) -> usize {
    let mut slot = home;
    loop {
        // The key of a slot is there once the slot is taken, and stays.
        let link = slots.look(slot, LINK, Ordering::Acquire);
        if link & TAKEN == 0 || slots.look(slot, KEY, Ordering::Relaxed) == key {
            return slot;
        }
        slot = (slot + 1) & mask;
    }
}

/// Whether a slot that was found is the key's. A slot that was free during the search may have
/// another key now.
pub(crate) fn is_of(slots: &impl Headers, slot: usize, key: u64) -> bool {
    let taken = slots.look(slot, LINK, Ordering::Acquire) & TAKEN != 0;
    taken && slots.look(slot, KEY, Ordering::Relaxed) == key
}

/// Takes a free slot for a key whose row does not exist. The caller holds the lock.
pub(crate) fn take(slots: &impl Headers, slot: usize, key: u64) {
    slots.show(slot, KEY, key, Ordering::Relaxed);
    slots.show(slot, STAMP, stamp_word(0, false), Ordering::Relaxed);
    // No snapshot has to learn of a row that never existed.
    let link = u64::from(NO_LINK) << 32 | TAKEN | SNAPPED;
    slots.show(slot, LINK, link, Ordering::Release);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicU64;
    use loom::sync::{Arc, Mutex};

    use super::*;

    const SLOTS: usize = 4;
    const STALE: u64 = 77;

    /// A slot's key and stamp, and its link.
    ///
    /// A reader of key and stamp has seen that the slot is taken: loom finds a read during a write.
    struct Header {
        words: [UnsafeCell<u64>; 2],
        link: AtomicU64,
    }

    struct Modelled(Vec<Header>);

    // SAFETY: as said at `Header`; the test checks that it holds.
    unsafe impl Sync for Modelled {}

    impl Headers for Modelled {
        fn look(&self, slot: usize, word: usize, order: Ordering) -> u64 {
            let header = &self.0[slot];
            match word {
                LINK => header.link.load(order),
                // SAFETY: loom checks whether another thread writes meanwhile.
                _ => header.words[word].with(|word| unsafe { *word }),
            }
        }

        fn show(&self, slot: usize, word: usize, value: u64, order: Ordering) {
            let header = &self.0[slot];
            match word {
                LINK => header.link.store(value, order),
                // SAFETY: as above.
                _ => header.words[word].with_mut(|word| unsafe { *word = value }),
            }
        }
    }

    /// Places a key as [`crate::Opened::find_or_place`] does.
    fn place(slots: &Modelled, lock: &Mutex<()>, key: u64) -> usize {
        let mut slot = search(slots, 0, SLOTS - 1, key);
        if !is_of(slots, slot, key) {
            let _lock = lock.lock().unwrap();
            slot = search(slots, 0, SLOTS - 1, key);
            if !is_of(slots, slot, key) {
                take(slots, slot, key);
            }
        }
        slot
    }

    /// Two threads place keys whose searches begin at one slot, one of them the same key. Each key
    /// has one slot, which every thread finds, with the stamp of a missing row.
    #[test]
    fn a_key_has_one_slot_whoever_places_it() {
        loom::model(|| {
            // The key and stamp of a free slot are arbitrary.
            let words = || [STALE, STALE].map(UnsafeCell::new);
            let slot = |_| Header { words: words(), link: AtomicU64::new(0) };
            let slots = (0..SLOTS).map(slot).collect();
            let shared = Arc::new((Modelled(slots), Mutex::new(())));
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || [7, 8].map(|key| place(&shared.0, &shared.1, key)))
            };
            let mine = [8, STALE].map(|key| place(&shared.0, &shared.1, key));
            for (slot, key) in mine.into_iter().zip([8, STALE]) {
                assert!(is_of(&shared.0, slot, key));
                assert_eq!(shared.0.look(slot, STAMP, Ordering::Relaxed), stamp_word(0, false));
            }
            let theirs = other.join().unwrap();
            assert_eq!(theirs[1], mine[0], "the key that both threads have placed");
            assert!(theirs[0] != mine[0] && theirs[0] != mine[1] && mine[0] != mine[1]);
        });
    }
}
