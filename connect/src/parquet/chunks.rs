//! A file of the disk as the Parquet library reads files.

use std::io::{self, BufReader, Read, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};
use tidemill_env::{Disk, ReadFile};

use crate::checksum::Checksum;

/// How a Parquet file ends: the length of its description, and four letters.
const FOOTER_BYTES: u64 = 8;
/// Bytes that are read at once where the library reads byte by byte: headers of pages.
const BUFFER_BYTES: usize = 4 << 10;

/// An open file. Its readers share one position, and set it before they read.
#[derive(Clone)]
pub(crate) struct Chunks {
    file: Arc<Mutex<Box<dyn ReadFile>>>,
    len: u64,
}

impl Chunks {
    pub fn open(disk: &dyn Disk, path: &Path) -> io::Result<Chunks> {
        let file = disk.open_read(path)?;
        let len = file.len()?;
        Ok(Chunks { file: Arc::new(Mutex::new(file)), len })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// The checksum of what describes the file, at its end: the places, sizes and statistics of all
    /// its parts.
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
        Ok(BufReader::with_capacity(BUFFER_BYTES, From { chunks: self.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        match self.read(start, length) {
            Ok(bytes) => Ok(bytes.into()),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ParquetError::EOF("it names bytes behind its end".into()))
            }
            Err(e) => Err(ParquetError::External(Box::new(e))),
        }
    }
}

/// Reads from a place on.
pub(crate) struct From {
    chunks: Chunks,
    at: u64,
}

impl Read for From {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut file = self.chunks.file.lock();
        file.seek(SeekFrom::Start(self.at))?;
        let found = file.read(buf)?;
        self.at += found as u64;
        Ok(found)
    }
}
