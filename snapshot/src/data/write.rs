//! Writing a data object.

use tidemill_core::{Error, Result};
use tidemill_durable::{name_taken, ObjectWriter, Store};

use super::{header, Block, BLOCK_BYTES, END, FOOTER, HEADER};
use crate::bytes::{checksum, put_short};
use crate::shard::{Spot, SHARDS};

/// Appends a row, or a deletion, in the encoding of blocks.
#[inline]
pub(crate) fn put_row(key: &[u8], row: Option<&[u8]>, out: &mut Vec<u8>) {
    put_short(key.len() as u64, out);
    put_short(row.map_or(0, |row| row.len() as u64 + 1), out);
    out.extend_from_slice(key);
    out.extend_from_slice(row.unwrap_or_default());
}

/// Writes rows in order. Holds one block and the index.
pub(crate) struct DataWriter {
    name: String,
    out: Box<dyn ObjectWriter>,
    header: [u8; HEADER],
    index: Vec<u8>,
    /// The place where the block begins.
    at: u64,
    block: Vec<u8>,
    /// The number of rows in the block.
    rows: u32,
    /// The first and the last row of the block.
    spots: Option<(Spot, Spot)>,
    /// The place in the block of the group's number of rows.
    group: usize,
    group_rows: u32,
    shards: [u64; SHARDS],
}

/// The properties of a written object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// The length in bytes.
    pub(crate) len: u64,
    /// The checksum that covers the object.
    pub(crate) root: u64,
    /// The bytes of blocks by shard.
    pub(crate) shards: [u64; SHARDS],
}

impl DataWriter {
    pub(crate) fn create(
        store: &dyn Store,
        name: &str,
        app: u128,
        epoch: u64,
    ) -> Result<DataWriter> {
        let mut out = store.create(name)?;
        let header = header(app, epoch);
        out.write(&header)?;
        Ok(DataWriter {
            name: name.to_owned(),
            out,
            header,
            index: Vec::new(),
            at: HEADER as u64,
            block: Vec::with_capacity(BLOCK_BYTES + BLOCK_BYTES / 8),
            rows: 0,
            spots: None,
            group: 0,
            group_rows: 0,
            shards: [0; SHARDS],
        })
    }

    /// Appends a row in the encoding of [`put_row`].
    #[inline]
    pub(crate) fn push(&mut self, spot: Spot, row: &[u8]) -> Result<()> {
        match self.spots {
            Some((_, last)) if last == spot && self.block.len() < BLOCK_BYTES => {}
            _ => self.begin(spot)?,
        }
        self.block.extend_from_slice(row);
        self.rows += 1;
        self.group_rows += 1;
        Ok(())
    }

    /// Begins a group, and a block where one is due.
    #[cold]
    fn begin(&mut self, spot: Spot) -> Result<()> {
        self.end_group();
        if let Some((first, last)) = self.spots {
            if (last.shard(), last) > (spot.shard(), spot) {
                return Err(Error::internal("rows of a snapshot are not in order"));
            }
            if self.block.len() >= BLOCK_BYTES || last.shard() != spot.shard() {
                self.end_block(first, last)?;
            }
        }
        let first = self.spots.map_or(spot, |(first, _)| first);
        self.spots = Some((first, spot));
        self.block.extend_from_slice(&spot.table().0.to_le_bytes());
        self.block.extend_from_slice(&spot.partition().0.to_le_bytes());
        self.group = self.block.len();
        self.block.extend_from_slice(&[0; 4]);
        Ok(())
    }

    fn end_group(&mut self) {
        if self.group_rows > 0 {
            self.block[self.group..][..4].copy_from_slice(&self.group_rows.to_le_bytes());
            self.group_rows = 0;
        }
    }

    fn end_block(&mut self, first: Spot, last: Spot) -> Result<()> {
        let len = u32::try_from(self.block.len()).map_err(|_| {
            Error::resource("a row of more than 4 GB does not fit into a snapshot")
                .help("split it into several rows")
        })?;
        let checksum = checksum(&[&self.block]);
        let block = Block { first, last, at: self.at, len, rows: self.rows, checksum };
        block.encode(&mut self.index);
        self.out.write(&self.block)?;
        self.at += u64::from(len);
        self.shards[first.shard()] += u64::from(len);
        self.rows = 0;
        self.spots = None;
        self.block.clear();
        Ok(())
    }

    /// Writes the rest and puts the object.
    pub(crate) fn finish(mut self) -> Result<Written> {
        self.end_group();
        if let Some((first, last)) = self.spots {
            self.end_block(first, last)?;
        }
        let root = checksum(&[&self.header, &self.index]);
        let len = self.at + (self.index.len() + FOOTER) as u64;
        let mut end = std::mem::take(&mut self.index);
        let index_len = end.len() as u64;
        end.extend_from_slice(&index_len.to_le_bytes());
        end.extend_from_slice(&root.to_le_bytes());
        end.extend_from_slice(END);
        self.out.write(&end)?;
        if !self.out.finish()? {
            return Err(name_taken(&self.name));
        }
        Ok(Written { len, root, shards: self.shards })
    }
}
