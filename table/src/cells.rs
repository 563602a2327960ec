//! Words in memory that begin at a cache line, so that a slot of up to eight words whose size is a
//! power of two never straddles two lines.

/// Zeroed words, aligned to 64 bytes.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    words: Vec<u64>,
    /// Where the aligned part begins.
    start: usize,
    len: usize,
}

const LINE_WORDS: usize = 8;

impl Cells {
    pub(crate) fn zeroed(len: usize) -> Cells {
        // Never pushed to, so the allocation does not move and `start` stays right.
        let words = vec![0; len + LINE_WORDS - 1];
        let start = words.as_ptr().align_offset(64).min(LINE_WORDS - 1);
        Cells { words, start, len }
    }

    #[inline(always)]
    pub(crate) fn words(&self) -> &[u64] {
        &self.words[self.start..self.start + self.len]
    }

    #[inline(always)]
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words[self.start..self.start + self.len]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

impl Clone for Cells {
    fn clone(&self) -> Cells {
        let mut copy = Cells::zeroed(self.len);
        copy.words_mut().copy_from_slice(self.words());
        copy
    }
}

/// Asks the processor to bring the line that holds `words[at]` into its cache.
#[inline(always)]
pub(crate) fn prefetch(words: &[u64], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(word) = words.get(at) {
        // SAFETY: a prefetch is a hint that reads and writes nothing, and the pointer comes from a
        // live reference.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                std::ptr::from_ref(word).cast(),
            );
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (words, at);
}
