//! The blocks of one segment, in order, and their end.
//!
//! This module reads and checks; it writes nothing.

use tidemill_core::Result;
use tidemill_env::Disk;

use crate::dir::Segment;
use crate::errors::{self, Damage};
use crate::format::{seed, u32_at, Head, ALIGN, BLOCK_HEAD_BYTES, BLOCK_MAGIC, BLOCK_MAGIC_AT};
use crate::window::Window;

/// Walks over the blocks of a segment.
pub(crate) struct Blocks {
    pub(crate) segment: Segment,
    window: Window,
    copies: u64,
    header_checksum: u64,
    /// The place of the next block, if there is one.
    pub(crate) at: u64,
    /// The number of its first record.
    pub(crate) number: u64,
    pub(crate) chain: u64,
}

/// The next step of the walk.
pub(crate) enum Next {
    Block(Place),
    /// There is no block here, and none after this place.
    End {
        /// After this byte there are only zeros.
        dirty_to: u64,
    },
}

/// A block with at least one whole copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) head: Head,
    /// The place of the first copy.
    pub(crate) at: u64,
    /// The place of a whole copy.
    pub(crate) whole_at: u64,
    /// The place of the damaged copy.
    pub(crate) damaged_at: Option<u64>,
}

/// The result of a search after a place without a block.
enum Following {
    /// The second copy of the block that should be here.
    Copy(Head),
    /// A whole block begins or has its second copy there.
    Block(u64),
    Nothing {
        dirty_to: u64,
    },
}

/// How much of a file is searched at a time, in bytes.
const SEARCH_BYTES: u64 = 64 << 10;

impl Blocks {
    pub(crate) fn open(disk: &dyn Disk, segment: Segment) -> Result<Blocks> {
        let io = |e| errors::io(&segment.path, "opening the segment", &e);
        let file = disk.open_read(&segment.path).map_err(io)?;
        let header_checksum = segment.header.checksum();
        Ok(Blocks {
            window: Window::new(file, segment.header.length),
            copies: segment.header.kind.copies(),
            header_checksum,
            at: segment.header.kind.blocks_at(),
            number: segment.header.first,
            chain: header_checksum,
            segment,
        })
    }

    /// Returns the next block, and steps over it.
    ///
    /// # Errors
    /// If there is none here but one further on: then this one is damaged.
    pub(crate) fn next(&mut self) -> Result<Next> {
        let place = match self.here()? {
            Some(place) => place,
            None => match self.following()? {
                Following::Nothing { dirty_to } => return Ok(Next::End { dirty_to }),
                Following::Copy(head) => Place {
                    head,
                    at: self.at,
                    whole_at: self.at + head.size(),
                    damaged_at: Some(self.at),
                },
                Following::Block(at) => {
                    let what = format_args!(
                        "record {} should be here, and is not, while there is another block at \
                         byte {at}",
                        self.number
                    );
                    return Err(errors::damaged(&self.segment.path, self.at, what));
                }
            },
        };
        self.at += place.head.size() * self.copies;
        self.number += u64::from(place.head.records);
        self.chain = place.head.checksum;
        Ok(Next::Block(place))
    }

    /// Returns the block at the present place, by its first copy.
    fn here(&mut self) -> Result<Option<Place>> {
        let (at, copies, seed) = (self.at, self.copies, self.seed(self.at));
        let Some(head) = Head::parse(self.get(at, BLOCK_HEAD_BYTES as u64)?, seed) else {
            return Ok(None);
        };
        let size = head.size();
        let fits =
            size.checked_mul(copies).is_some_and(|all| all <= self.segment.header.length - at);
        if !fits || head.first != self.number || head.prev != self.chain {
            return Ok(None);
        }
        let bytes = self.get(at, size * copies)?;
        let (first, second) = bytes.split_at(size as usize);
        if !head.fits(first, seed) {
            return Ok(None);
        }
        let damaged_at = (copies > 1 && first != second).then_some(at + size);
        Ok(Some(Place { head, at, whole_at: at, damaged_at }))
    }

    /// Looks for whole blocks at the present place and after it.
    fn following(&mut self) -> Result<Following> {
        let length = self.segment.header.length;
        let mut dirty_to = self.at;
        let mut from = self.at;
        while from < length {
            let size = SEARCH_BYTES.min(length - from);
            // This includes the rest of a head that begins at the end of this part.
            let part = self.get(from, size + BLOCK_HEAD_BYTES as u64)?;
            // Most of what follows the last block has never been written.
            if is_zero(part) {
                from += size;
                continue;
            }
            let starts = (0..size as usize).step_by(ALIGN);
            let with_magic = starts.filter(|start| {
                part.get(start + BLOCK_MAGIC_AT..start + BLOCK_MAGIC_AT + 4)
                    .is_some_and(|magic| u32_at(magic, 0) == BLOCK_MAGIC)
            });
            let with_magic: Vec<u64> = with_magic.map(|start| from + start as u64).collect();
            if let Some(last) = part[..size as usize].iter().rposition(|byte| *byte != 0) {
                dirty_to = from + last as u64 + 1;
            }
            for at in with_magic {
                match self.block_or_copy_at(at)? {
                    Some((start, head))
                        if start == self.at
                            && at > start
                            && head.first == self.number
                            && head.prev == self.chain =>
                    {
                        return Ok(Following::Copy(head));
                    }
                    Some(_) => return Ok(Following::Block(at)),
                    None => {}
                }
            }
            from += size;
        }
        Ok(Following::Nothing { dirty_to })
    }

    /// Returns a whole block, as first or second copy, at a place, with the place of its first
    /// copy.
    fn block_or_copy_at(&mut self, at: u64) -> Result<Option<(u64, Head)>> {
        let bytes = self.get(at, BLOCK_HEAD_BYTES as u64)?;
        let Some(size) = Head::claimed_size(bytes) else { return Ok(None) };
        let second_of = at.checked_sub(size).filter(|start| self.copies > 1 && *start >= self.at);
        for start in [Some(at), second_of].into_iter().flatten() {
            let seed = self.seed(start);
            let Some(head) = Head::parse(self.get(at, BLOCK_HEAD_BYTES as u64)?, seed) else {
                continue;
            };
            if at + size > self.segment.header.length {
                continue;
            }
            if head.fits(self.get(at, size)?, seed) {
                return Ok(Some((start, head)));
            }
        }
        Ok(None)
    }

    fn seed(&self, at: u64) -> u64 {
        seed(self.header_checksum, at)
    }

    /// Returns bytes of the segment; fewer at its end.
    pub(crate) fn get(&mut self, at: u64, size: u64) -> Result<&[u8]> {
        let io = |e| errors::io(&self.segment.path, "reading the segment", &e);
        self.window.get(at, size).map_err(io)
    }

    pub(crate) fn damage_at(&self, at: u64) -> Damage {
        Damage { path: self.segment.path.clone(), at }
    }
}

/// Whether all bytes are zero. The pieces are large enough for the processor's widest registers.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0)
}
