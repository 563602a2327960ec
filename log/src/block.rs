//! A block that is being filled.

use crate::format::{block_size, seed, Head, ALIGN, BLOCK_HEAD_BYTES, RECORD_HEAD_BYTES};

/// Records that will be written together.
pub(crate) struct Block {
    /// The number of the first record.
    pub(crate) first: u64,
    pub(crate) records: u32,
    /// The room for the head and the records. A sealed block has padding and a second copy after
    /// `end`.
    bytes: Vec<u8>,
    end: usize,
}

/// The payload in bytes that a block with more than one record may reach.
const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// The largest memory that is retained between commits, in bytes.
const KEPT_BYTES_MAX: usize = 8 << 20;

impl Block {
    /// Creates an empty block in the memory of an earlier one, so that the system need not provide
    /// fresh pages for each commit.
    pub(crate) fn new(first: u64, mut bytes: Vec<u8>) -> Block {
        bytes.clear();
        bytes.resize(BLOCK_HEAD_BYTES, 0);
        Block { first, records: 0, bytes, end: BLOCK_HEAD_BYTES }
    }

    /// Whether a further record of this length belongs in this block, and not in one of its own.
    pub(crate) fn takes(&self, record: usize) -> bool {
        self.records == 0 || self.end + RECORD_HEAD_BYTES + record <= PAYLOAD_BYTES_MAX
    }

    pub(crate) fn push(&mut self, kind: u8, record: &[u8]) {
        self.bytes.truncate(self.end);
        self.bytes.extend((record.len() as u32).to_le_bytes());
        self.bytes.push(kind);
        self.bytes.extend(record);
        self.records += 1;
        self.end = self.bytes.len();
    }

    /// Returns the number of the record after the last one.
    pub(crate) fn end_number(&self) -> u64 {
        self.first + u64::from(self.records)
    }

    /// Returns the length of the payload in bytes.
    fn payload(&self) -> usize {
        self.end - BLOCK_HEAD_BYTES
    }

    /// Returns the length of one copy in bytes.
    pub(crate) fn size(&self) -> u64 {
        block_size(self.payload() as u64)
    }

    /// Writes the head and the copies for a place in a segment. Returns the chain value after them.
    /// May be called again for another place.
    pub(crate) fn seal(&mut self, header_checksum: u64, at: u64, prev: u64, copies: u64) -> u64 {
        let payload = self.payload() as u32;
        let padded = self.end.next_multiple_of(ALIGN);
        self.bytes.truncate(self.end);
        self.bytes.resize(padded, 0);
        let seed = seed(header_checksum, at);
        let checksum = Head::seal(&mut self.bytes, payload, self.records, self.first, prev, seed);
        for _ in 1..copies {
            self.bytes.extend_from_within(..padded);
        }
        checksum
    }

    /// Returns the memory for another block, unless it is so large that it is better freed.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            return Vec::new();
        }
        self.bytes
    }

    /// Returns all copies, as they were sealed.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
