//! The blocks of slots that a snapshot has to scan.
//!
//! A bit in the slot itself says whether it has changed since the last snapshot, and writing it
//! there costs nothing. But in a large table with few changes, scanning every slot takes far longer
//! than copying the changes. So blocks of slots are marked.
//!
//! Marking on each write takes 6 instructions a row, which is 21 of 375 in a transaction of the
//! ledger. So it is done at commit, from the version log (2 to 5 ns a version), and only where it
//! pays. Small tables are scanned in full. A large table is no longer marked until the next
//! snapshot, once marking has taken as long as scanning all slots. So the cost is at most twice
//! that of knowing in advance which way is cheaper.

use std::ops::Range;

/// The number of words in a block: 1 KiB. Half of that saves nothing. (Tests have blocks in small
/// tables, too.)
pub(crate) const BLOCK_WORDS: usize = if cfg!(test) { 16 } else { 128 };

/// The most words of slots with which a table is scanned in full: 8 MiB, in half a millisecond.
const WHOLE_WORDS: usize = if cfg!(test) { 64 } else { 1 << 20 };

/// A byte for each block of slots: 1 if a slot that begins in it may have changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirtyBlocks {
    /// The marks, or empty while all slots are to be scanned.
    blocks: Vec<u8>,
    /// The number of versions that may still be marked before all slots are to be scanned.
    budget: usize,
}

impl DirtyBlocks {
    /// Creates marks by which all slots are to be scanned.
    pub(crate) fn all() -> DirtyBlocks {
        DirtyBlocks::default()
    }

    /// Clears all marks, for a table with `slots` slots of `stride` words.
    pub(crate) fn clean(mut self, slots: usize, stride: usize) -> DirtyBlocks {
        let words = slots * stride;
        if words <= WHOLE_WORDS {
            return DirtyBlocks::all();
        }
        self.blocks.clear();
        self.blocks.resize(words.div_ceil(BLOCK_WORDS), 0);
        DirtyBlocks { blocks: self.blocks, budget: slots }
    }

    /// Whether `versions` more versions are worth marking. If not, none is marked from now on.
    pub(crate) fn takes(&mut self, versions: usize) -> bool {
        if self.blocks.is_empty() {
            return false;
        }
        if versions > self.budget {
            *self = DirtyBlocks::all();
            return false;
        }
        self.budget -= versions;
        true
    }

    /// Marks the block of the slot that begins at this word.
    #[inline(always)]
    pub(crate) fn mark(&mut self, base: usize) {
        if let Some(block) = self.blocks.get_mut(base / BLOCK_WORDS) {
            *block = 1;
        }
    }

    /// Returns the runs of slots to scan, of `slots` slots of `stride` words.
    pub(crate) fn runs(
        &self,
        slots: usize,
        stride: usize,
    ) -> impl Iterator<Item = Range<usize>> + '_ {
        let first = move |block: usize| (block * BLOCK_WORDS).div_ceil(stride).min(slots);
        let whole = self.blocks.is_empty().then_some(0..slots);
        let mut at = 0;
        let marked = std::iter::from_fn(move || {
            // Most blocks are clean, and many of them are compared at once.
            while self.blocks[at..].first_chunk() == Some(&[0u8; 64]) {
                at += 64;
            }
            let from = at + self.blocks[at..].iter().position(|block| *block != 0)?;
            let run = self.blocks[from..].iter().take_while(|block| **block != 0).count();
            at = from + run;
            Some(first(from)..first(at))
        });
        whole.into_iter().chain(marked)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.blocks.capacity()
    }
}
