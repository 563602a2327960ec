//! The bytes of a log, format version 1. All integers are little-endian, all checksums xxh3-64.
//!
//! A segment is a file `<first>.log`, where `<first>` is the number of its first record in 16
//! hexadecimal digits. It begins with its header. A log of kind *cuts* has the header twice:
//!
//! | at | bytes | |
//! | --- | --- | --- |
//! | 0 | 8 | magic, `TIDELOG\0` |
//! | 8 | 2 | format version |
//! | 10 | 2 | kind: 1 input, 2 cuts |
//! | 12 | 4 | ordinal of the segment in the log, counted from 0 |
//! | 16 | 8 | number of the first record |
//! | 24 | 8 | chain value at the end of the segment before; 0 in the first |
//! | 32 | 8 | length of the file, a multiple of 8 |
//! | 40 | 16 | the app's id |
//! | 56 | 8 | checksum of the bytes before |
//!
//! Magic, version and checksum are at these places in every version, so that a newer version can be
//! distinguished from damage. The blocks follow the header without gaps. In a log of kind *cuts*
//! each of them is stored twice, one copy after the other:
//!
//! | at | bytes | |
//! | --- | --- | --- |
//! | 0 | 8 | checksum of all that follows, padding included |
//! | 8 | 4 | magic, `TIDB` |
//! | 12 | 4 | lower half of the checksum of the bytes 16 to 40 |
//! | 16 | 4 | length of the payload in bytes |
//! | 20 | 4 | number of records, at least 1 |
//! | 24 | 8 | number of the first record |
//! | 32 | 8 | chain value before this block |
//! | 40 | | payload: the records, each as length (4 bytes), kind (1 byte), bytes |
//! | | 0–7 | zeros up to a multiple of 8 |
//!
//! The *chain value* after a block is the block's checksum. Before the first block of a segment it
//! is the checksum of its header. Both checksums of a block have the same seed: the sum of the
//! header's checksum and the block's place in its file. For both copies it is the place of the
//! first one. So a block counts in one place only, and a copy of it that a client has sent as a row
//! does not count.
//!
//! After the last block of a segment there may be the rest of an unfinished one. Everything after
//! that is zeros.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::LogKind;

pub(crate) const VERSION: u16 = 1;
/// The size of one copy of a header, in bytes.
pub(crate) const HEADER_BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"TIDELOG\0";

pub(crate) const BLOCK_HEAD_BYTES: usize = 40;
pub(crate) const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"TIDB");
/// The place of the magic in a block.
pub(crate) const BLOCK_MAGIC_AT: usize = 8;
/// Blocks begin at multiples of this, and segments end at them.
pub(crate) const ALIGN: usize = 8;

pub(crate) const RECORD_HEAD_BYTES: usize = 5;

impl LogKind {
    fn number(self) -> u16 {
        match self {
            LogKind::Input => 1,
            LogKind::Cuts => 2,
        }
    }

    /// Returns how often each block and header is stored.
    pub(crate) fn copies(self) -> u64 {
        match self {
            LogKind::Input => 1,
            LogKind::Cuts => 2,
        }
    }

    /// Returns the place of a segment's first block.
    pub(crate) fn blocks_at(self) -> u64 {
        HEADER_BYTES as u64 * self.copies()
    }
}

/// A segment's header, without the constant parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: LogKind,
    pub(crate) ordinal: u32,
    pub(crate) first: u64,
    pub(crate) chain: u64,
    pub(crate) length: u64,
    pub(crate) app: u128,
}

/// The reason why bytes are not a header of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAHeader {
    Damaged,
    Newer(u16),
    UnknownKind(u16),
}

impl Header {
    /// Returns one copy.
    pub(crate) fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.kind.number().to_le_bytes());
        bytes[12..16].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.chain.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.length.to_le_bytes());
        bytes[40..56].copy_from_slice(&self.app.to_le_bytes());
        let checksum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn checksum(&self) -> u64 {
        u64_at(&self.bytes(), 56)
    }

    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, NotAHeader> {
        if bytes[..8] != MAGIC || u64_at(bytes, 56) != xxh3_64(&bytes[..56]) {
            return Err(NotAHeader::Damaged);
        }
        match u16_at(bytes, 8) {
            0 => return Err(NotAHeader::Damaged),
            VERSION => {}
            newer => return Err(NotAHeader::Newer(newer)),
        }
        let kind = match u16_at(bytes, 10) {
            1 => LogKind::Input,
            2 => LogKind::Cuts,
            other => return Err(NotAHeader::UnknownKind(other)),
        };
        Ok(Header {
            kind,
            ordinal: u32_at(bytes, 12),
            first: u64_at(bytes, 16),
            chain: u64_at(bytes, 24),
            length: u64_at(bytes, 32),
            app: u128::from(u64_at(bytes, 40)) | u128::from(u64_at(bytes, 48)) << 64,
        })
    }
}

/// The content of a block's head, if the head is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) checksum: u64,
    pub(crate) payload: u32,
    pub(crate) records: u32,
    pub(crate) first: u64,
    pub(crate) prev: u64,
}

impl Head {
    /// Parses the head at the beginning of `bytes`, of a block whose checksums have this seed.
    pub(crate) fn parse(bytes: &[u8], seed: u64) -> Option<Head> {
        let bytes = bytes.get(..BLOCK_HEAD_BYTES)?;
        let check = xxh3_64_with_seed(&bytes[16..], seed) as u32;
        let head = Head {
            checksum: u64_at(bytes, 0),
            payload: u32_at(bytes, 16),
            records: u32_at(bytes, 20),
            first: u64_at(bytes, 24),
            prev: u64_at(bytes, 32),
        };
        let whole = u32_at(bytes, BLOCK_MAGIC_AT) == BLOCK_MAGIC && u32_at(bytes, 12) == check;
        (whole && head.records > 0 && head.end().is_some()).then_some(head)
    }

    /// Returns the length of one copy in bytes, by a head that may be damaged.
    pub(crate) fn claimed_size(bytes: &[u8]) -> Option<u64> {
        Some(block_size(u32_at(bytes.get(..BLOCK_HEAD_BYTES)?, 16).into()))
    }

    /// Returns the length of one copy in bytes.
    pub(crate) fn size(&self) -> u64 {
        block_size(self.payload.into())
    }

    /// Returns the number of the record after the last one.
    pub(crate) fn end(&self) -> Option<u64> {
        self.first.checked_add(self.records.into())
    }

    /// Whether the whole block is as it was written. `bytes` are those of one copy.
    pub(crate) fn fits(&self, bytes: &[u8], seed: u64) -> bool {
        xxh3_64_with_seed(&bytes[8..], seed) == self.checksum
    }

    /// Writes the head before an existing payload and padding. Returns the block's checksum.
    pub(crate) fn seal(
        block: &mut [u8],
        payload: u32,
        records: u32,
        first: u64,
        prev: u64,
        seed: u64,
    ) -> u64 {
        block[8..12].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
        block[16..20].copy_from_slice(&payload.to_le_bytes());
        block[20..24].copy_from_slice(&records.to_le_bytes());
        block[24..32].copy_from_slice(&first.to_le_bytes());
        block[32..40].copy_from_slice(&prev.to_le_bytes());
        let check = xxh3_64_with_seed(&block[16..BLOCK_HEAD_BYTES], seed) as u32;
        block[12..16].copy_from_slice(&check.to_le_bytes());
        let checksum = xxh3_64_with_seed(&block[8..], seed);
        block[..8].copy_from_slice(&checksum.to_le_bytes());
        checksum
    }
}

/// Returns the seed of the checksums of a block at this place.
pub(crate) fn seed(header_checksum: u64, at: u64) -> u64 {
    header_checksum.wrapping_add(at)
}

/// Returns the length of one copy of a block, in bytes.
pub(crate) fn block_size(payload: u64) -> u64 {
    (BLOCK_HEAD_BYTES as u64 + payload).next_multiple_of(ALIGN as u64)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        kind: LogKind::Cuts,
        ordinal: 0x0403_0201,
        first: 7,
        chain: 8,
        length: 4096,
        app: 0x1234_5678_9abc_def0_0fed_cba9_8765_4321,
    };

    #[test]
    fn a_header_comes_back_and_any_flip_is_seen() {
        let bytes = HEADER.bytes();
        assert_eq!(Header::parse(&bytes), Ok(HEADER));
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::parse(&bytes), Err(NotAHeader::Damaged));
        }
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let with = |at: usize, value: u16| {
            let mut bytes = HEADER.bytes();
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
            let checksum = xxh3_64(&bytes[..56]);
            bytes[56..].copy_from_slice(&checksum.to_le_bytes());
            Header::parse(&bytes)
        };
        assert_eq!(with(8, 2), Err(NotAHeader::Newer(2)));
        assert_eq!(with(8, 0), Err(NotAHeader::Damaged));
        assert_eq!(with(10, 3), Err(NotAHeader::UnknownKind(3)));
    }

    #[test]
    fn a_block_counts_in_its_place_only_and_any_flip_is_seen() {
        let mut block = vec![0; block_size(13) as usize];
        block[40..53].copy_from_slice(b"\x08\0\0\0\x03payload!");
        let checksum = Head::seal(&mut block, 13, 1, 5, 99, 1000);
        let head = Head::parse(&block, 1000).unwrap();
        assert_eq!(head, Head { checksum, payload: 13, records: 1, first: 5, prev: 99 });
        assert!(head.fits(&block, 1000));
        assert_eq!((head.size(), head.end()), (56, Some(6)));
        assert_eq!(Head::claimed_size(&block), Some(56));
        assert_eq!(Head::parse(&block, 1008), None);
        for bit in 0..block.len() * 8 {
            let mut block = block.clone();
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(!Head::parse(&block, 1000).is_some_and(|head| head.fits(&block, 1000)));
        }
    }
}
