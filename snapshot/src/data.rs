//! Data objects: changed rows in order, in blocks with checksums.
//!
//! All integers are little-endian; checksums are xxh3-64.
//!
//! ```text
//! header   magic "TIDEDATA", version u16, zeros (6 bytes), app u128, epoch u64        40 bytes
//! blocks   groups of rows, one after the other; see below
//! index    for each block: table and partition of its first row (u16, u16) and of its
//!          last, place u64, length u32, number of rows u32, checksum u64              32 bytes each
//! footer   length of the index u64, root u64, magic "TIDEEND\0"                       24 bytes
//!
//! group    table u16, partition u16, number of rows u32, rows
//! row      length of the key, length of the row + 1 or 0 for a deletion, key, row
//! ```
//!
//! The two lengths are in the short form of `bytes.rs`. The root is the checksum of header and
//! index, so it covers the whole object. Manifests contain it.
//!
//! Rows are sorted by shard, table, partition and key, and no key occurs twice. A block has rows of
//! one shard, so that a shard can be read by itself. The blocks follow one another without gaps.
//! Keys and rows are bytes; this module does not know their meaning.

mod read;
mod write;

pub(crate) use read::{Cursor, DataReader};
pub(crate) use write::{put_row, DataWriter, Written};

use crate::bytes::Taker;
use crate::damage;
use crate::shard::Spot;
use crate::VERSION;
use tidemill_core::Result;
use tidemill_place::PARTITIONS;

const MAGIC: &[u8; 8] = b"TIDEDATA";
const END: &[u8; 8] = b"TIDEEND\0";
const HEADER: usize = 40;
const ENTRY: usize = 32;
const FOOTER: usize = 24;
/// The size in bytes at which a block is complete.
const BLOCK_BYTES: usize = 128 << 10;

fn header(app: u128, epoch: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[16..32].copy_from_slice(&app.to_le_bytes());
    header[32..].copy_from_slice(&epoch.to_le_bytes());
    header
}

/// Refuses a header that is not one of this app.
fn check_header(name: &str, header: &[u8], app: u128) -> Result<()> {
    let mut taker = Taker(header);
    let mut fields = || Some((taker.bytes(8)?, taker.u16()?, taker.bytes(6)?, taker.u128()?));
    match fields() {
        Some((magic, ..)) if magic != MAGIC => {
            Err(damage::damaged(name, "it does not begin like a data object"))
        }
        Some((_, version, ..)) if version > VERSION => Err(damage::newer(name, version)),
        Some((_, _, _, found)) if found != app => Err(damage::other_app(name, found, app)),
        Some(_) => Ok(()),
        None => Err(damage::damaged(name, "its header is cut off")),
    }
}

/// A block, as the index has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    first: Spot,
    last: Spot,
    at: u64,
    len: u32,
    rows: u32,
    checksum: u64,
}

impl Block {
    fn encode(&self, out: &mut Vec<u8>) {
        for spot in [self.first, self.last] {
            out.extend_from_slice(&spot.table().0.to_le_bytes());
            out.extend_from_slice(&spot.partition().0.to_le_bytes());
        }
        out.extend_from_slice(&self.at.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.rows.to_le_bytes());
        out.extend_from_slice(&self.checksum.to_le_bytes());
    }

    fn decode(taker: &mut Taker<'_>) -> Option<Block> {
        let mut spot = || {
            let (table, partition) = (taker.u16()?, taker.u16()?);
            let inside = partition < PARTITIONS;
            inside.then(|| {
                Spot::new(tidemill_core::TableId(table), tidemill_place::Partition(partition))
            })
        };
        Some(Block {
            first: spot()?,
            last: spot()?,
            at: taker.u64()?,
            len: taker.u32()?,
            rows: taker.u32()?,
            checksum: taker.u64()?,
        })
    }

    fn shard(&self) -> usize {
        self.first.shard()
    }
}
