//! Which blocks of slots a snapshot has to look at.
//!
//! Whether a slot has changed since the last snapshot stands in the slot itself, where writing it
//! costs nothing. But looking at every slot of a large table of which little has changed takes far
//! longer than copying what has, so blocks of slots are marked. Marking while rows are written takes
//! 6 instructions a row, which are 21 of 375 in a transaction of the ledger. So it is done at
//! commit, from the version log (2 to 5 ns a version), and only where it pays: small tables are
//! looked at whole, and a table of which so many rows were written that marking them took as long as
//! looking at all slots is marked no further until the next snapshot. So it costs at most twice what
//! it had cost to know in advance which way is cheaper.

use std::ops::Range;

/// Words of a block: 1 KiB; half of that saves nothing. (Tests have blocks in small tables, too.)
pub(crate) const BLOCK_WORDS: usize = if cfg!(test) { 16 } else { 128 };

/// Tables with at most so many words of slots are looked at whole: 8 MiB, in half a millisecond.
const WHOLE_WORDS: usize = if cfg!(test) { 64 } else { 1 << 20 };

/// A byte for each block of slots: 1 when a slot that begins in it may have changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirtyBlocks {
    /// None while all slots are to be looked at.
    blocks: Vec<u8>,
    /// How many more versions may be marked before all slots are to be looked at.
    budget: usize,
}

impl DirtyBlocks {
    /// Everything is to be looked at.
    pub(crate) fn all() -> DirtyBlocks {
        DirtyBlocks::default()
    }

    /// Nothing is any more, of a table with `slots` slots of `stride` words.
    pub(crate) fn clean(mut self, slots: usize, stride: usize) -> DirtyBlocks {
        let words = slots * stride;
        if words <= WHOLE_WORDS {
            return DirtyBlocks::all();
        }
        self.blocks.clear();
        self.blocks.resize(words.div_ceil(BLOCK_WORDS), 0);
        DirtyBlocks { blocks: self.blocks, budget: slots }
    }

    /// Whether `versions` more versions are worth marking; if not, none is from now on.
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

    /// The slot that begins at this word may have changed.
    #[inline(always)]
    pub(crate) fn mark(&mut self, base: usize) {
        if let Some(block) = self.blocks.get_mut(base / BLOCK_WORDS) {
            *block = 1;
        }
    }

    /// Runs of slots to be looked at, of `slots` slots of `stride` words.
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
