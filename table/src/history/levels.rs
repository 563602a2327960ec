//! The extremes of blocks of versions, of blocks of blocks, and so on. The extremes of any range
//! are found in a few blocks of each size.

use std::ops::Range;

/// The number of versions in a block, and of blocks in a block of the next level.
///
/// A window has up to two unfinished blocks of each level, which are scanned. More levels touch
/// more memory.
pub(crate) const FAN: u64 = 8;

/// The blocks of one size, with the lowest and the highest rank of each column in each block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    /// The number of the first stored block.
    first: u64,
    ranks: Vec<u64>,
}

impl Level {
    /// Returns the number after the last block. A block has `width` words.
    pub(crate) fn end(&self, width: usize) -> u64 {
        self.first + (self.ranks.len() / width) as u64
    }

    /// Appends block `number`, the next one, unless it is stored already.
    pub(crate) fn push(&mut self, number: u64, ranks: &[u64]) {
        if self.ranks.is_empty() {
            self.first = number;
        }
        if self.end(ranks.len()) == number {
            self.ranks.extend_from_slice(ranks);
        }
    }

    /// Returns the blocks with these numbers that are stored.
    pub(crate) fn blocks(
        &self,
        numbers: Range<u64>,
        width: usize,
    ) -> impl Iterator<Item = &[u64]> + '_ {
        let from = numbers.start.saturating_sub(self.first) as usize * width;
        let to = numbers.end.saturating_sub(self.first) as usize * width;
        let to = to.min(self.ranks.len());
        self.ranks[from.min(to)..to].chunks_exact(width)
    }

    /// Drops the blocks from `number` on.
    pub(crate) fn truncate(&mut self, number: u64, width: usize) {
        self.ranks.truncate(number.saturating_sub(self.first) as usize * width);
    }

    /// Drops the blocks before `number`.
    pub(crate) fn drop_before(&mut self, number: u64, width: usize) {
        let gone = number.clamp(self.first, self.end(width)) - self.first;
        self.ranks.drain(..gone as usize * width);
        self.first += gone;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.ranks.capacity() * 8
    }
}
