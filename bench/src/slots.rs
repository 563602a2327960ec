//! The open addressing of the baselines: as small and fast as in a special-purpose loop.

/// The number of events by which the baselines prefetch memory ahead.
pub(crate) const AHEAD: usize = 16;

/// The highest load factor: keys to slots.
const LOAD: (usize, usize) = (4, 5);

/// A row of a baseline, with its key among its words.
pub(crate) trait Slot: Copy {
    /// A free slot.
    const FREE: Self;

    /// Returns its key, or [`FREE`] for a free slot.
    fn key(&self) -> u64;
}

/// The key of a free slot.
pub(crate) const FREE: u64 = u64::MAX;

/// Rows by key. All keys exist from the beginning.
#[derive(Clone, Debug)]
pub(crate) struct Slots<S> {
    /// The slots; their number is a power of two.
    slots: Vec<S>,
    shift: u32,
}

impl<S: Slot> Slots<S> {
    /// Creates the rows of the keys 0 to `keys` - 1.
    pub(crate) fn new(keys: usize, row: impl Fn(u64) -> S) -> Slots<S> {
        let bits = (keys * LOAD.1 / LOAD.0).next_power_of_two().trailing_zeros().max(1);
        let mut slots = Slots { slots: vec![S::FREE; 1 << bits], shift: u64::BITS - bits };
        for key in 0..keys as u64 {
            let mut at = slots.home(key);
            while slots.slots[at].key() != FREE {
                at = (at + 1) & (slots.slots.len() - 1);
            }
            slots.slots[at] = row(key);
        }
        slots
    }

    /// Returns the first slot of a key, by multiplicative hashing: consecutive keys are placed far
    /// apart and evenly.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    /// Prefetches the row of a key.
    #[inline(always)]
    pub(crate) fn prefetch(&self, key: u32) {
        let at = self.home(u64::from(key));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is a hint that reads and writes nothing; `home` gives fewer than
        // 64 - `shift` bits, so the address lies within the slots.
        unsafe {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            _mm_prefetch::<_MM_HINT_T0>(self.slots.as_ptr().add(at).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// Returns the row of a key, for a change.
    #[inline(always)]
    pub(crate) fn at(&mut self, key: u32) -> &mut S {
        let (mask, key) = (self.slots.len() - 1, u64::from(key));
        let mut at = self.home(key);
        // SAFETY: `at` is masked with the number of slots less one, a power of two less one.
        unsafe {
            while self.slots.get_unchecked(at & mask).key() != key {
                at += 1;
            }
            self.slots.get_unchecked_mut(at & mask)
        }
    }

    /// Returns the row of a key.
    pub(crate) fn get(&self, key: u32) -> &S {
        let mut at = self.home(u64::from(key));
        while self.slots[at].key() != u64::from(key) {
            at = (at + 1) & (self.slots.len() - 1);
        }
        &self.slots[at]
    }
}
