//! A note of the last segment: a small file beside the segments that shows whether the last one is
//! missing.
//!
//! The file `LAST` is replaced atomically and durably, after a segment has got its name and before
//! the first block is written there. So if it names a missing segment, records may be missing. A
//! crash leaves it naming the segment before, at most. Logs of earlier versions have no such file,
//! and get one when they are opened.
//!
//! | at | bytes | |
//! | --- | --- | --- |
//! | 0 | 8 | magic, `TIDELAST` |
//! | 8 | 2 | format version |
//! | 10 | 2 | zeros |
//! | 12 | 4 | ordinal of the segment in the log, counted from 0 |
//! | 16 | 8 | number of its first record |
//! | 24 | 16 | the app's id |
//! | 40 | 8 | checksum (xxh3-64) of the bytes before |

use std::io::{self, ErrorKind, Read};
use std::path::Path;

use tidemill_core::{Error, Kind, Result};
use tidemill_env::Disk;
use xxhash_rust::xxh3::xxh3_64;

use crate::dir::{self, Segment};
use crate::errors;
use crate::format::{u16_at, u32_at, u64_at};
use crate::open::Log;
use crate::LogSpec;

const NAME: &str = "LAST";
pub(crate) const NEW: &str = "LAST.new";
const BYTES: usize = 48;
const MAGIC: [u8; 8] = *b"TIDELAST";
const VERSION: u16 = 1;

/// The last segment that was begun, by its ordinal and its first record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Last {
    ordinal: u32,
    first: u64,
}

impl Last {
    fn of(segment: &Segment) -> Last {
        Last { ordinal: segment.header.ordinal, first: segment.header.first }
    }

    fn bytes(self, app: u128) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.to_le_bytes());
        bytes[24..40].copy_from_slice(&app.to_le_bytes());
        let checksum = xxh3_64(&bytes[..40]);
        bytes[40..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8], app: u128) -> Option<Last> {
        let whole = bytes.len() == BYTES
            && bytes[..8] == MAGIC
            && u16_at(bytes, 8) == VERSION
            && bytes[24..40] == app.to_le_bytes()
            && u64_at(bytes, 40) == xxh3_64(&bytes[..40]);
        whole.then(|| Last { ordinal: u32_at(bytes, 12), first: u64_at(bytes, 16) })
    }
}

/// Reads the file; nothing if there is none. A damaged file counts as none: it matters only if
/// something else is missing, and opening writes it again.
pub(crate) fn read(disk: &dyn Disk, spec: &LogSpec) -> Result<Option<Last>> {
    let path = spec.dir.join(NAME);
    let mut bytes = Vec::new();
    let read =
        disk.open_read(&path).and_then(|file| file.take(2 * BYTES as u64).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(Last::parse(&bytes, spec.app)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(errors::io(&path, "reading which segment is the last", &e)),
    }
}

/// Refuses segments that end before the last one that was begun.
pub(crate) fn check(spec: &LogSpec, segments: &[Segment], last: Option<Last>) -> Result<()> {
    let Some(last) = last else { return Ok(()) };
    if segments.last().is_some_and(|segment| segment.header.ordinal >= last.ordinal) {
        return Ok(());
    }
    let path = dir::path_of(&spec.dir, last.first);
    let what = format!(
        "{}: this segment of the log is missing, and so are the records that it holds, from {} on",
        path.display(),
        last.first
    );
    Err(Error::new(Kind::Io, what).help(
        "the log is left as it is; restore this file, or the whole data directory, from a \
         backup",
    ))
}

/// Writes durably which segment is the last.
pub(crate) fn write(disk: &dyn Disk, spec: &LogSpec, segment: &Segment) -> io::Result<()> {
    let new = spec.dir.join(NEW);
    let write = |path: &Path| {
        let mut file = disk.create(path)?;
        file.write_all(&Last::of(segment).bytes(spec.app))?;
        file.sync()
    };
    let written = write(&new).and_then(|()| disk.rename(&new, &spec.dir.join(NAME)));
    if written.is_err() {
        // The unfinished file is removed to free space. If that fails, the next try overwrites it.
        let _ = disk.remove(&new);
    }
    written?;
    disk.sync_dir(&spec.dir)
}

impl Log {
    /// Whether the file that was found names the last segment.
    pub(crate) fn is_noted(&self, found: Option<Last>) -> bool {
        self.segments.back().map(Last::of) == found
    }

    /// Writes durably which segment is the last, if that is not written yet.
    pub(crate) fn note_last(&mut self) -> Result<()> {
        let Some(segment) = self.segments.back().filter(|_| !self.last_is_noted) else {
            return Ok(());
        };
        if let Err(e) = write(&*self.disk, &self.spec, segment) {
            let path = self.spec.dir.join(NAME);
            if errors::is_full(&e) {
                return Err(errors::full(&path, BYTES as u64, &e));
            }
            let error = errors::io(&path, "writing which segment is the last", &e);
            return Err(self.stop(error));
        }
        self.last_is_noted = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_and_any_flip_is_seen() {
        let last = Last { ordinal: 7, first: 1 << 40 };
        let bytes = last.bytes(5);
        assert_eq!(Last::parse(&bytes, 5), Some(last));
        assert_eq!(Last::parse(&bytes, 6), None, "another app's");
        for cut in 0..BYTES {
            assert_eq!(Last::parse(&bytes[..cut], 5), None);
        }
        for bit in 0..BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Last::parse(&bytes, 5), None);
        }
    }
}
