//! How transactions are cut: into chunks, and these into blocks.

use std::ops::Range;

/// How transactions are cut: into chunks, and these into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The rank of the first transaction, and of the one behind the last.
    pub(super) first: usize,
    end: usize,
    /// Transactions of a chunk: whole blocks.
    chunk: usize,
    /// Bits of a transaction's place in its block, and of a row's place in its transaction.
    block_bits: u32,
    row_bits: u32,
}

impl Cut {
    /// Of transactions of so many rows at most, so many of which, that use so many rows, are a chunk at
    /// most; a power of two of them is a block.
    pub(super) fn new(
        ranks: Range<usize>,
        widest: usize,
        (chunk, uses): (usize, usize),
        block: usize,
    ) -> Cut {
        let row_bits = widest.max(1).next_power_of_two().trailing_zeros();
        let most = chunk.min(uses >> row_bits).max(block);
        // All are of about the same length.
        let chunks = ranks.len().div_ceil(most).max(1);
        let chunk = ranks.len().div_ceil(chunks).max(1).next_multiple_of(block);
        let block_bits = block.trailing_zeros();
        Cut { first: ranks.start, end: ranks.end, chunk, block_bits, row_bits }
    }

    /// Uses of rows are numbered in a chunk, below this.
    pub(super) fn uses(&self) -> usize {
        self.chunk << self.row_bits
    }

    /// Blocks of a chunk.
    pub(super) fn blocks(&self) -> usize {
        self.chunk >> self.block_bits
    }

    /// All blocks.
    pub(super) fn all_blocks(&self) -> usize {
        (self.end - self.first).div_ceil(1 << self.block_bits)
    }

    pub(super) fn chunks(&self) -> usize {
        (self.end - self.first).div_ceil(self.chunk)
    }

    pub(super) fn chunk(&self, number: usize) -> Chunk {
        let start = self.first + number * self.chunk;
        Chunk { cut: *self, number, start, end: self.end.min(start + self.chunk) }
    }
}

/// A chunk of the transactions, by their ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    cut: Cut,
    pub(super) number: usize,
    start: usize,
    end: usize,
}

impl Chunk {
    pub(super) fn blocks(&self) -> usize {
        (self.end - self.start).div_ceil(1 << self.cut.block_bits)
    }

    /// The transactions of a block.
    pub(super) fn block(&self, block: usize) -> Range<usize> {
        let start = self.start + (block << self.cut.block_bits);
        start..self.end.min(start + (1 << self.cut.block_bits))
    }

    /// A thread's share, of so many.
    pub(super) fn share(&self, thread: usize, threads: usize) -> Range<usize> {
        let from = |thread: usize| self.start + (self.end - self.start) * thread / threads;
        from(thread)..from(thread + 1)
    }

    /// The number of a transaction's first use of a row.
    pub(super) fn uses(&self, rank: usize) -> usize {
        (rank - self.start) << self.cut.row_bits
    }

    /// The rank of the transaction whose use this is.
    pub(super) fn rank(&self, used: usize) -> usize {
        self.start + (used >> self.cut.row_bits)
    }

    pub(super) fn block_of(&self, rank: usize) -> usize {
        (rank - self.start) >> self.cut.block_bits
    }

    /// Whether two uses of rows are those of one block.
    pub(super) fn is_one_block(&self, one: u32, other: u32) -> bool {
        let bits = self.cut.row_bits + self.cut.block_bits;
        one >> bits == other >> bits
    }

    /// The number of a block among all of the epoch.
    pub(super) fn number_of(&self, block: usize) -> usize {
        ((self.start - self.cut.first) >> self.cut.block_bits) + block
    }
}
