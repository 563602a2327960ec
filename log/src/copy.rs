//! Copies of a log that is being written.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use tidemill_core::{Error, Result};
use tidemill_env::Disk;

use crate::dir::{self, Segment};
use crate::errors;
use crate::format::{seed, Head, Header};
use crate::last;
use crate::segment::{Blocks, Next, Place};
use crate::LogSpec;

/// The bytes that are copied at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Copies segments into the directory `to`, which need not exist. Returns the number of bytes
/// written.
///
/// The copy has the segments with records from number `from` on, up to the whole block with the
/// last record before number `until`. The log may be appended to in the meantime, but not be
/// trimmed. The copy of its last segment ends with a block: the room for further blocks is not
/// copied. The copy is durable when this returns.
///
/// # Errors
/// If the log has fewer records or is damaged, or if the disk fails or is full.
pub fn copy(disk: &dyn Disk, spec: &LogSpec, from: u64, until: u64, to: &Path) -> Result<u64> {
    disk.create_dir_all(to).map_err(|e| errors::io(to, "making the directory", &e))?;
    let mut segments = dir::list(disk, spec)?.segments;
    let behind = segments.partition_point(|segment| segment.header.first <= from);
    segments.drain(..behind.saturating_sub(1));
    let mut bytes = 0;
    let mut end = segments.first().map_or(0, |segment| segment.header.first);
    let mut segments = segments.into_iter().peekable();
    let mut copied = None;
    while let Some(segment) = segments.next() {
        let (records, blocks_end) = blocks_until(disk, &segment, until)?;
        end = records;
        let is_last = end >= until || segments.peek().is_none();
        bytes += match is_last {
            true => copy_last(disk, &segment, blocks_end, to)?,
            false => copy_segment(disk, &segment, blocks_end, to)?,
        };
        copied = Some(segment);
        if is_last {
            break;
        }
    }
    if end < until {
        let what =
            format_args!("the log has {end} records here, and {until} are known to be there");
        return Err(errors::damaged(&spec.dir, 0, what));
    }
    disk.sync_dir(to).map_err(|e| errors::io(to, "syncing the directory", &e))?;
    if let Some(segment) = copied {
        let spec = LogSpec { dir: to.to_owned(), ..spec.clone() };
        let io = |e| errors::io(to, "writing which segment is the last", &e);
        last::write(disk, &spec, &segment).map_err(io)?;
    }
    Ok(bytes)
}

/// Returns the end of the block after which there are `until` records, or of the segment's last
/// block. Also returns the number after it.
fn blocks_until(disk: &dyn Disk, segment: &Segment, until: u64) -> Result<(u64, u64)> {
    let mut blocks = Blocks::open(disk, segment.clone())?;
    while blocks.number < until {
        if let Next::End { .. } = blocks.next()? {
            break;
        }
    }
    Ok((blocks.number, blocks.at))
}

/// Copies a segment that another one follows, whose header names the last block of this one.
fn copy_segment(disk: &dyn Disk, segment: &Segment, len: u64, to: &Path) -> Result<u64> {
    let path = path_in(segment, to);
    let length = segment.header.length;
    let reading = |e| errors::io(&segment.path, "reading the segment", &e);
    let writing = |e| not_written(&path, length, &e);
    let mut source = disk.open_read(&segment.path).map_err(reading)?.take(len);
    let mut copy = disk.create(&path).map_err(writing)?;
    let mut piece = vec![0; PIECE_BYTES.min(len as usize)];
    let mut left = len;
    while left > 0 {
        let wanted = piece.len().min(left as usize);
        source.read_exact(&mut piece[..wanted]).map_err(reading)?;
        copy.write_all(&piece[..wanted]).map_err(writing)?;
        left -= wanted as u64;
    }
    crate::room::write_zeros(&mut *copy, length - len).map_err(writing)?;
    copy.sync().map_err(writing)?;
    Ok(length)
}

/// Copies the last segment up to `end`, as a segment of that length. The checksums of blocks depend
/// on the header, so they are computed again.
fn copy_last(disk: &dyn Disk, segment: &Segment, end: u64, to: &Path) -> Result<u64> {
    let path = path_in(segment, to);
    let header = Header { length: end, ..segment.header };
    let copies = header.kind.copies();
    let writing = |e| not_written(&path, end, &e);
    let mut copy = disk.create(&path).map_err(writing)?;
    copy.write_all(&header.bytes().repeat(copies as usize)).map_err(writing)?;
    let mut blocks = Blocks::open(disk, segment.clone())?;
    let mut chain = header.checksum();
    while blocks.at < end {
        let Next::Block(Place { head, at, whole_at, .. }) = blocks.next()? else { break };
        let mut block = blocks.get(whole_at, head.size())?.to_vec();
        let seed = seed(header.checksum(), at);
        chain = Head::seal(&mut block, head.payload, head.records, head.first, chain, seed);
        copy.write_all(&block.repeat(copies as usize)).map_err(writing)?;
    }
    copy.sync().map_err(writing)?;
    Ok(end)
}

fn path_in(segment: &Segment, to: &Path) -> PathBuf {
    to.join(segment.path.file_name().unwrap_or_default())
}

fn not_written(path: &Path, bytes: u64, error: &std::io::Error) -> Error {
    match errors::is_full(error) {
        true => errors::full(path, bytes, error),
        false => errors::io(path, "writing the copy", error),
    }
}
