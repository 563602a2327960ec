//! Words in memory that begin at a cache line, so that a slot of up to eight words whose size is a
//! power of two never straddles two lines.

use crate::pages;

/// A cache line of words.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u64; LINE_WORDS]);

const LINE_WORDS: usize = 8;

/// Zeroed words, aligned to 64 bytes; whole cache lines of them.
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
    /// At least `len` words.
    pub(crate) fn zeroed(len: usize) -> Cells {
        let mut lines = pages::with_capacity(len.div_ceil(LINE_WORDS));
        lines.resize(len.div_ceil(LINE_WORDS), Line([0; LINE_WORDS]));
        Cells { lines }
    }

    #[inline(always)]
    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: a line is eight words and nothing else, without padding, and a vector holds its
        // items one after another.
        unsafe {
            std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * LINE_WORDS)
        }
    }

    /// The first word. Asking for it again leaves earlier pointers good.
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

/// Asks the processor to bring the line that holds `words[at]` into its cache.
#[inline(always)]
pub fn prefetch(words: &[u64], at: usize) {
    prefetch_address(words.as_ptr().wrapping_add(at));
}

/// Asks the processor to bring the line at an address into its cache, should there be one.
#[inline(always)]
pub fn prefetch_address<T>(word: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it reads and writes nothing, and an address that is not mapped
    // is ignored.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(word.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// As [`prefetch_address`], for a line that is going to be written: no other core keeps a copy.
#[inline(always)]
pub fn prefetch_to_write<T>(word: *const T) {
    // By its name: the compiler takes its own hint to write for one to read unless it may count on a processor newer than
    // the oldest one with 64 bits.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; a processor with 64 bits that does not know the instruction does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}
