//! A file of the disk, in the form in which the Parquet library reads files.

use std::io::{self, BufReader, Read, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};
use tidemill_env::{Disk, ReadFile};

use crate::checksum::Checksum;

/// The size of a Parquet file's end: the length of its footer, and four letters.
const FOOTER_BYTES: u64 = 8;
/// The number of bytes that are read at once where the library reads single bytes: headers of
/// pages.
const BUFFER_BYTES: usize = 4 << 10;
/// The largest uncompressed size of a page, in bytes. A file of a few kilobytes may claim to have
/// gigabytes.
pub(super) const PAGE_BYTES_MAX: u64 = 128 << 20;
/// The number of bytes of a header that contain its first two fields.
const HEAD_BYTES: u64 = 16;
/// The first byte of a page's header: the first field is a number. The second field begins with the
/// same byte.
const FIELD: u8 = 0x15;

/// An open file. Its readers share one position, and set it before they read.
#[derive(Clone)]
pub(crate) struct Chunks {
    file: Arc<Mutex<Box<dyn ReadFile>>>,
    len: u64,
    /// Whether pages are read from it. Then a reader from some position reads a page there, which
    /// must not be too large.
    has_pages: bool,
}

impl Chunks {
    pub fn open(disk: &dyn Disk, path: &Path) -> io::Result<Chunks> {
        let file = disk.open_read(path)?;
        let len = file.len()?;
        Ok(Chunks { file: Arc::new(Mutex::new(file)), len, has_pages: false })
    }

    /// Returns the same file for reading pages.
    pub fn of_pages(self) -> Chunks {
        Chunks { has_pages: true, ..self }
    }

    /// Returns the uncompressed size, in bytes, of the page that begins at a position.
    pub fn page_bytes(&self, start: u64) -> Result<u64> {
        let len = self.len.saturating_sub(start).min(HEAD_BYTES);
        page_bytes(&self.get_bytes(start, len as usize)?)
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the checksum of the footer at the file's end: the places, sizes and statistics of
    /// all parts.
    pub fn description(&self) -> Result<Checksum> {
        let short = || ParquetError::EOF("it is too short".into());
        let start = self.len.checked_sub(FOOTER_BYTES).ok_or_else(short)?;
        let footer = self.get_bytes(start, FOOTER_BYTES as usize)?;
        let len = u32::from_le_bytes([footer[0], footer[1], footer[2], footer[3]]);
        let start = start.checked_sub(len.into()).ok_or_else(short)?;
        Ok(Checksum::of(&self.get_bytes(start, (self.len - start) as usize)?))
    }

    fn read(&self, start: u64, len: usize) -> io::Result<Vec<u8>> {
        if start.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len];
        let mut file = self.file.lock();
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Chunks {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> Result<BufReader<From>> {
        let from = From { chunks: self.clone(), at: start, is_header: self.has_pages };
        Ok(BufReader::with_capacity(BUFFER_BYTES, from))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        match self.read(start, length) {
            Ok(bytes) => Ok(bytes.into()),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ParquetError::EOF("it refers to bytes after its end".into()))
            }
            Err(e) => Err(ParquetError::External(Box::new(e))),
        }
    }
}

/// Returns the uncompressed size of a page, from the first bytes of its header: its type and its
/// size.
fn page_bytes(head: &[u8]) -> Result<u64> {
    let strange = || ParquetError::General("a page has no header".into());
    let mut rest = head;
    let mut field = || -> Option<u64> {
        rest = rest.strip_prefix(&[FIELD])?;
        let mut number = 0;
        for nth in 0..5 {
            let (byte, behind) = rest.split_first()?;
            rest = behind;
            number |= u64::from(byte & 0x7f) << (7 * nth);
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    };
    let (Some(_), Some(size)) = (field(), field()) else { return Err(strange()) };
    // Signed numbers are zigzag-encoded, so that small ones are short.
    let bytes = if size & 1 == 0 { size / 2 } else { return Err(strange()) };
    match bytes <= PAGE_BYTES_MAX {
        true => Ok(bytes),
        false => Err(ParquetError::General(format!(
            "a page has {bytes} bytes, unpacked, and may have {PAGE_BYTES_MAX}"
        ))),
    }
}

/// Reads from a position on.
pub(crate) struct From {
    chunks: Chunks,
    at: u64,
    /// Whether the next read begins with a page's header. A caller that gets a reader need not read
    /// from it.
    is_header: bool,
}

impl Read for From {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut file = self.chunks.file.lock();
        file.seek(SeekFrom::Start(self.at))?;
        let found = file.read(buf)?;
        if std::mem::take(&mut self.is_header) {
            page_bytes(&buf[..found]).map_err(io::Error::other)?;
        }
        self.at += found as u64;
        Ok(found)
    }
}
