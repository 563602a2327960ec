//! Reading a data object: the index, and rows shard by shard.

use std::ops::Range;
use std::sync::Arc;

use tidemill_core::{Error, Result};
use tidemill_durable::Store;

use super::{check_header, Block, END, ENTRY, FOOTER, HEADER};
use crate::bytes::{checksum, take_short, Taker};
use crate::damage;
use crate::shard::{ShardSet, Spot, SHARDS};

/// The size of an object's end that is read in one piece, in bytes. A longer index costs a second
/// read.
const TAIL_BYTES: u64 = 64 << 10;

/// A data object with its index, verified.
pub(crate) struct DataReader {
    store: Arc<dyn Store>,
    name: String,
    blocks: Vec<Block>,
    /// The blocks of each shard.
    shards: Vec<Range<usize>>,
}

impl DataReader {
    /// Reads the index of an object whose length and root a manifest has.
    pub(crate) fn open(
        store: Arc<dyn Store>,
        name: &str,
        app: u128,
        len: u64,
        root: u64,
    ) -> Result<DataReader> {
        let damaged = |why: &str| damage::damaged(name, why);
        let read = |from: u64, to: u64, more: u64| -> Result<Vec<u8>> {
            let bytes = store.get_range(name, from, to - from + more)?;
            let bytes = bytes.ok_or_else(|| damage::missing(name, "the manifest"))?;
            match bytes.len() as u64 {
                found if found == to - from => Ok(bytes),
                found if found > to - from => Err(damaged("it is longer than it was")),
                found => Err(damage::wrong_length(name, from + found, len)),
            }
        };
        let tail_at = len.saturating_sub(TAIL_BYTES);
        // One byte more is read: a longer object is not ours either.
        let mut tail = read(tail_at, len, 1)?;
        let header = if tail_at == 0 {
            tail.get(..HEADER).map(<[u8]>::to_vec)
        } else {
            Some(read(0, HEADER as u64, 0)?)
        };
        let header = header.ok_or_else(|| damaged("its header is cut off"))?;
        check_header(name, &header, app)?;

        let end = tail.len().checked_sub(FOOTER).ok_or_else(|| damaged("its end is cut off"))?;
        let mut footer = Taker(&tail[end..]);
        let (index_len, found) = footer.u64().zip(footer.u64()).expect("the footer is there");
        if footer.0 != END {
            return Err(damaged("it does not end like a data object"));
        }
        if found != root {
            return Err(damaged("it is not the object that the manifest names, by its checksum"));
        }
        let index_at = (len - FOOTER as u64)
            .checked_sub(index_len)
            .filter(|at| *at >= HEADER as u64 && index_len.is_multiple_of(ENTRY as u64))
            .ok_or_else(|| damaged("its index has an impossible length"))?;
        let index = match index_at.checked_sub(tail_at) {
            Some(at) => &tail[at as usize..end],
            None => {
                tail = read(index_at, len - FOOTER as u64, 0)?;
                &tail[..]
            }
        };
        if checksum(&[&header, index]) != root {
            return Err(damaged("its index fails its checksum"));
        }
        let (blocks, shards) =
            decode_index(index, index_at).ok_or_else(|| damaged("its index is not in order"))?;
        Ok(DataReader { store, name: name.to_owned(), blocks, shards })
    }

    /// Returns the number of rows and deletions.
    pub(crate) fn rows(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.rows)).sum()
    }
}

/// Decodes the blocks, and which of them belong to each shard.
fn decode_index(index: &[u8], end: u64) -> Option<(Vec<Block>, Vec<Range<usize>>)> {
    let mut taker = Taker(index);
    let mut blocks: Vec<Block> = Vec::with_capacity(index.len() / ENTRY);
    let mut at = HEADER as u64;
    while !taker.0.is_empty() {
        let block = Block::decode(&mut taker)?;
        let follows = blocks
            .last()
            .is_none_or(|last| (last.shard(), last.last) <= (block.shard(), block.first));
        let inside = block.first <= block.last && block.first.shard() == block.last.shard();
        if block.at != at || !follows || !inside {
            return None;
        }
        at += u64::from(block.len);
        blocks.push(block);
    }
    let first_of = |shard: usize| blocks.partition_point(|block| block.shard() < shard);
    let shards = (0..SHARDS).map(|shard| first_of(shard)..first_of(shard + 1)).collect();
    (at == end).then_some((blocks, shards))
}

/// Goes through the rows of a data object, shard by shard. Holds one window of the object: some
/// neighbouring blocks, or one.
pub(crate) struct Cursor {
    reader: Arc<DataReader>,
    /// The bytes to read at once, if blocks allow.
    window_max: u64,
    window: Vec<u8>,
    window_at: u64,
    /// The remaining blocks of this shard.
    blocks: Range<usize>,
    /// The shards that will be read. Windows do not reach into others.
    live: ShardSet,
    /// The places in the window where the row after the present one begins, and where the block
    /// ends.
    at: usize,
    end: usize,
    group_rows: u32,
    spot: Spot,
    row_at: usize,
    key: Range<usize>,
    deleted: bool,
}

impl Cursor {
    /// Creates a cursor that reads `window_max` bytes at once, and only data of the shards `live`.
    pub(crate) fn new(reader: Arc<DataReader>, window_max: u64, live: ShardSet) -> Cursor {
        Cursor {
            reader,
            window_max,
            window: Vec::new(),
            window_at: 0,
            blocks: 0..0,
            live,
            at: 0,
            end: 0,
            group_rows: 0,
            spot: Spot(0),
            row_at: 0,
            key: 0..0,
            deleted: false,
        }
    }

    /// Moves before the first row of a shard, which must not be below the present one.
    pub(crate) fn begin(&mut self, shard: usize) {
        self.blocks = self.reader.shards[shard].clone();
        (self.at, self.end, self.group_rows) = (0, 0, 0);
    }

    /// Moves to the next row of the shard. Returns `false` at its end.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<bool> {
        if self.group_rows == 0 && !self.next_group()? {
            return Ok(false);
        }
        self.group_rows -= 1;
        let block = &self.window[..self.end];
        let mut at = self.at;
        let lengths = take_short(block, &mut at).zip(take_short(block, &mut at));
        let Some((key, row)) = lengths else { return Err(self.nonsense()) };
        let left = (self.end - at) as u64;
        if key > left || row > left - key + 1 {
            return Err(self.nonsense());
        }
        self.row_at = self.at;
        self.key = at..at + key as usize;
        self.deleted = row == 0;
        self.at = self.key.end + row.saturating_sub(1) as usize;
        Ok(true)
    }

    #[cold]
    fn next_group(&mut self) -> Result<bool> {
        if self.at == self.end && !self.next_block()? {
            return Ok(false);
        }
        let mut taker = Taker(&self.window[self.at..self.end]);
        let fields = taker.u16().zip(taker.u16()).zip(taker.u32());
        let Some(((table, partition), rows)) = fields.filter(|(_, rows)| *rows > 0) else {
            return Err(self.nonsense());
        };
        self.at = self.end - taker.0.len();
        self.group_rows = rows;
        self.spot = Spot(u32::from(table) << 16 | u32::from(partition));
        Ok(true)
    }

    fn next_block(&mut self) -> Result<bool> {
        let Some(number) = self.blocks.next() else { return Ok(false) };
        let block = &self.reader.blocks[number];
        let (from, to) = (block.at, block.at + u64::from(block.len));
        if from < self.window_at || to > self.window_at + self.window.len() as u64 {
            let mut window_to = to;
            for next in &self.reader.blocks[number + 1..] {
                let next_to = next.at + u64::from(next.len);
                if next_to - from > self.window_max || self.live >> next.shard() & 1 == 0 {
                    break;
                }
                window_to = next_to;
            }
            let DataReader { store, name, .. } = &*self.reader;
            self.window = store
                .get_range(name, from, window_to - from)?
                .ok_or_else(|| damage::missing(name, "the manifest"))?;
            self.window_at = from;
            if (self.window.len() as u64) < window_to - from {
                return Err(damage::damaged(name, "it is shorter than it was"));
            }
        }
        self.at = (from - self.window_at) as usize;
        self.end = (to - self.window_at) as usize;
        if checksum(&[&self.window[self.at..self.end]]) != block.checksum {
            let why = format!("the block at byte {from} fails its checksum");
            return Err(damage::damaged(&self.reader.name, &why));
        }
        Ok(true)
    }

    #[cold]
    fn nonsense(&self) -> Error {
        let at = self.window_at + self.at as u64;
        damage::damaged(&self.reader.name, &format!("there is no row at byte {at}"))
    }

    #[inline]
    pub(crate) fn spot(&self) -> Spot {
        self.spot
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.window[self.key.clone()]
    }

    /// Returns the row; `None` for a deletion.
    #[inline]
    pub(crate) fn row(&self) -> Option<&[u8]> {
        (!self.deleted).then(|| &self.window[self.key.end..self.at])
    }

    /// Returns the row as it is encoded in the block.
    #[inline]
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.window[self.row_at..self.at]
    }
}
