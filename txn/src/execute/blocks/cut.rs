//! The division of transactions into chunks, and of these into blocks.

use std::ops::Range;

/// The division of transactions into chunks, and of these into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The rank of the first transaction, and the rank after the last.
    pub(super) first: usize,
    end: usize,
    /// The number of transactions in a chunk, which are whole blocks.
    chunk: usize,
    /// The bits of a transaction's place in its block, and of a row's place in its transaction.
    block_bits: u32,
    row_bits: u32,
}

impl Cut {
    /// Divides transactions with at most `widest` rows each.
    ///
    /// A chunk has at most `chunk` transactions with at most `uses` uses of rows, but at least one
    /// block. The length of a block is a power of two.
    pub(super) fn new(
        ranks: Range<usize>,
        widest: usize,
        (chunk, uses): (usize, usize),
        block: usize,
    ) -> Cut {
        let row_bits = widest.max(1).next_power_of_two().trailing_zeros();
        let most = chunk.min(uses >> row_bits).max(block);
        // All chunks have about the same length.
        let chunks = ranks.len().div_ceil(most).max(1);
        let chunk = ranks.len().div_ceil(chunks).max(1).next_multiple_of(block);
        let block_bits = block.trailing_zeros();
        Cut { first: ranks.start, end: ranks.end, chunk, block_bits, row_bits }
    }

    /// Returns the bound of the numbers of row uses in a chunk.
    pub(super) fn uses(&self) -> usize {
        self.chunk << self.row_bits
    }

    /// Returns the number of blocks in a chunk.
    pub(super) fn blocks(&self) -> usize {
        self.chunk >> self.block_bits
    }

    /// Returns the number of all blocks.
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

    /// Returns the transactions of a block.
    pub(super) fn block(&self, block: usize) -> Range<usize> {
        let start = self.start + (block << self.cut.block_bits);
        start..self.end.min(start + (1 << self.cut.block_bits))
    }

    /// Returns the share of one of `threads` threads.
    pub(super) fn share(&self, thread: usize, threads: usize) -> Range<usize> {
        let from = |thread: usize| self.start + (self.end - self.start) * thread / threads;
        from(thread)..from(thread + 1)
    }

    /// Returns the number of a transaction's first use of a row.
    pub(super) fn uses(&self, rank: usize) -> usize {
        (rank - self.start) << self.cut.row_bits
    }

    /// Returns the rank of the transaction that has this use.
    pub(super) fn rank(&self, used: usize) -> usize {
        self.start + (used >> self.cut.row_bits)
    }

    pub(super) fn block_of(&self, rank: usize) -> usize {
        (rank - self.start) >> self.cut.block_bits
    }

    /// Whether two uses of rows belong to one block.
    pub(super) fn is_one_block(&self, one: u32, other: u32) -> bool {
        let bits = self.cut.row_bits + self.cut.block_bits;
        one >> bits == other >> bits
    }

    /// Returns the number of a block among all of the epoch.
    pub(super) fn number_of(&self, block: usize) -> usize {
        ((self.start - self.cut.first) >> self.cut.block_bits) + block
    }
}
