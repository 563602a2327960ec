//! Words in memory that begin at a cache line.
//!
//! So a slot of up to eight words whose size is a power of two never straddles two lines.

use crate::pages;

/// A cache line of words.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u64; LINE_WORDS]);

const LINE_WORDS: usize = 8;

/// Zeroed words in whole cache lines, aligned to 64 bytes.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    lines: Vec<Line>,
}

impl Clone for Cells {
    fn clone(&self) -> Cells {
        let mut lines = pages::with_capacity(self.lines.len());
        lines.extend_from_slice(&self.lines);
        Cells { lines }
    }
}

impl Cells {
    /// Creates at least `len` words.
    pub(crate) fn zeroed(len: usize) -> Cells {
        let mut lines = pages::with_capacity(len.div_ceil(LINE_WORDS));
        lines.resize(len.div_ceil(LINE_WORDS), Line([0; LINE_WORDS]));
        Cells { lines }
    }

    #[inline(always)]
    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: a line is eight words and nothing else, without padding. A vector holds its items
        // one after another.
        unsafe {
            std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * LINE_WORDS)
        }
    }

    /// Returns a pointer to the first word. Asking for it again leaves earlier pointers valid.
    #[inline(always)]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u64 {
        self.lines.as_mut_ptr().cast()
    }

    #[inline(always)]
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        let words = self.lines.len() * LINE_WORDS;
        // SAFETY: as in `words`; the slice borrows `self` mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), words) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lines.capacity() * std::mem::size_of::<Line>()
    }
}

/// Asks the processor to bring the line of `words[at]` into its cache.
#[inline(always)]
pub fn prefetch(words: &[u64], at: usize) {
    prefetch_address(words.as_ptr().wrapping_add(at));
}

/// Asks the processor to bring the line at an address into its cache, if there is such a line.
#[inline(always)]
pub fn prefetch_address<T>(word: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is a hint. It reads and writes nothing, and an unmapped address is
    // ignored.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(word.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = word;
}

/// Prefetches like [`prefetch_address`], for a line that will be written: no other core retains a
/// copy.
#[inline(always)]
pub fn prefetch_to_write<T>(word: *const T) {
    // The instruction is given by name. The compiler turns its own write hint into a read hint,
    // unless it may rely on a newer processor than the oldest 64-bit one.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above; a 64-bit processor that does not know the instruction does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = word;
}
