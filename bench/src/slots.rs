//! The open addressing of the baselines: as small and as fast as a loop of its own would have it.

/// How many events ahead the baselines ask for memory.
pub(crate) const AHEAD: usize = 16;

/// Slots to keys: at most this share is taken.
const LOAD: (usize, usize) = (4, 5);

/// A row of a baseline, its key among its words.
pub(crate) trait Slot: Copy {
    /// A slot that no key has.
    const FREE: Self;

    /// Its key; [`FREE`] when no key has it.
    fn key(&self) -> u64;
}

/// The key of a slot that is free.
pub(crate) const FREE: u64 = u64::MAX;

/// Rows by key. All keys are there from the beginning.
#[derive(Clone, Debug)]
pub(crate) struct Slots<S> {
    /// A power of two of them.
    slots: Vec<S>,
    shift: u32,
}

impl<S: Slot> Slots<S> {
    /// The rows of the keys 0 to `keys` - 1.
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

    /// Multiplicative hashing: consecutive keys fall far apart and evenly.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    /// Asks for the row of a key.
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

    /// The row of a key.
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

    /// The row of a key, to look at.
    pub(crate) fn get(&self, key: u32) -> &S {
        let mut at = self.home(u64::from(key));
        while self.slots[at].key() != u64::from(key) {
            at = (at + 1) & (self.slots.len() - 1);
        }
        &self.slots[at]
    }
}
