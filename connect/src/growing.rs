//! A file that other programs append to while it is read.

use std::io::{self, Read, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use tidemill_env::{Disk, ReadFile};

use crate::input::read_full;

/// The number of bytes before the end that are compared before more is read after it.
const TAIL_BYTES: usize = 256;
/// A byte order mark, which is not part of the text.
const BOM: &[u8] = "\u{feff}".as_bytes();

/// Reads a file up to its present end, again and again; 0 bytes mean that there is nothing new.
/// Content that was read must stay: a file that is cut, exchanged or rewritten is an error.
///
/// A change in the middle of the file is not noticed here. A later reading from the beginning, as
/// after a crash, notices it.
pub(crate) struct Growing {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Box<dyn ReadFile>,
    at: u64,
    /// The last bytes before `at`.
    tail: Vec<u8>,
    /// Whether the end was reached, and nothing has been appended since.
    dry: bool,
    complete: bool,
    begun: bool,
}

impl Growing {
    /// Creates a reader that begins at the beginning of `file`, which `path` names.
    pub fn new(disk: Arc<dyn Disk>, path: PathBuf, file: Box<dyn ReadFile>) -> Growing {
        let (tail, dry, complete, begun) = (Vec::new(), false, false, false);
        Growing { disk, path, file, at: 0, tail, dry, complete, begun }
    }

    /// Whether more may be appended.
    pub fn grows(&self) -> bool {
        !self.complete
    }

    /// Notes that nothing more will be appended.
    pub fn complete(&mut self) {
        self.complete = true;
    }

    /// Whether the file is longer than the content that was read.
    fn look(&mut self) -> io::Result<bool> {
        let gone = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => other("the file was removed while it was followed"),
            _ => e,
        };
        let named = self.disk.metadata(&self.path).map_err(gone)?.len;
        let here = self.file.len()?;
        if here < self.at {
            return Err(other("the file was cut while it was followed"));
        }
        // The two lengths differ for a moment if something is appended between the two requests.
        if named > here || named < here && self.disk.metadata(&self.path).map_err(gone)?.len < here
        {
            return Err(other("the file was replaced while it was followed"));
        }
        if here == self.at {
            return Ok(false);
        }
        let mut tail = vec![0; self.tail.len()];
        self.file.seek(SeekFrom::Start(self.at - tail.len() as u64))?;
        self.file.read_exact(&mut tail)?;
        if tail != self.tail {
            return Err(other("the file was rewritten while it was followed"));
        }
        Ok(true)
    }

    fn take(&mut self, bytes: &[u8]) {
        self.at += bytes.len() as u64;
        let kept = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let over = (self.tail.len() + kept.len()).saturating_sub(TAIL_BYTES);
        self.tail.drain(..over);
        self.tail.extend_from_slice(kept);
    }
}

fn other(what: &str) -> io::Error {
    io::Error::other(what)
}

impl Read for Growing {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.dry && !self.look()? {
            return Ok(0);
        }
        if !self.begun {
            // The mark arrives at once or not at all, like the line that it precedes.
            let mut head = [0; BOM.len()];
            let found = read_full(&mut self.file, &mut head)?;
            if found < BOM.len() && !self.complete && BOM.starts_with(&head[..found]) {
                self.file.seek(SeekFrom::Start(0))?;
                self.dry = true;
                return Ok(0);
            }
            self.begun = true;
            let skipped = if head == BOM { BOM.len() as u64 } else { 0 };
            self.file.seek(SeekFrom::Start(skipped))?;
            self.at = skipped;
        }
        let found = self.file.read(buf)?;
        self.dry = found == 0;
        self.take(&buf[..found]);
        Ok(found)
    }
}
