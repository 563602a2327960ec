//! Bytes cut into records, with a bound on the memory that one record may take.

use std::io::{self, Read};
use std::ops::Range;

/// Finds the end of a record. It is fed the record's bytes from its beginning, more of them with
/// each call, and goes on where it stopped.
pub(crate) trait Split: Send {
    /// Scans on in `data`; the place behind the record and its newline, or `None` when more bytes
    /// are needed. With `last` there are no more.
    fn scan(&mut self, data: &[u8], last: bool) -> Option<usize>;

    /// Forgets the record: the next bytes begin a new one.
    fn reset(&mut self);

    /// How far the record has been scanned; all bytes up to here were seen.
    fn scanned(&self) -> usize;

    /// The bytes scanned so far are dropped, because the record is too long: only its end matters.
    fn drop_scanned(&mut self);

    /// Newlines inside the record.
    fn newlines(&self) -> u64;

    /// Whether the input ended inside quotes.
    fn unclosed(&self) -> bool;

    /// Whether the record (without its newline) is a blank line, which is no record.
    fn is_blank(record: &[u8]) -> bool;
}

/// What is wrong with a record as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// It has more bytes than allowed.
    TooLong,
    /// It begins a quoted field that does not end before the file does.
    Unclosed,
}

/// A record that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    range: Range<usize>,
    /// The line, from 1, in which it begins.
    pub line: u64,
    pub flaw: Option<Flaw>,
    /// Its bytes in the input, newline included.
    pub len: u64,
}

/// Cuts what it reads into records. Blank lines are none.
pub(crate) struct Records<S> {
    pub split: S,
    read: Box<dyn Read + Send>,
    buf: Vec<u8>,
    /// The part of `buf` that is not consumed yet.
    unread: Range<usize>,
    ended: bool,
    line: u64,
    consumed: u64,
    record_bytes_max: usize,
    /// The beginning of a record that is too long.
    head: Vec<u8>,
}

const BUF_BYTES: usize = 128 << 10;
const READ_BYTES_MIN: usize = 4 << 10;
const HEAD_BYTES: usize = 1024;

impl<S: Split> Records<S> {
    /// Cuts what `read` gives, whose first byte is in line `line`.
    pub fn new(read: Box<dyn Read + Send>, split: S, line: u64, record_bytes_max: usize) -> Self {
        Records {
            split,
            read,
            buf: vec![0; BUF_BYTES],
            unread: 0..0,
            ended: false,
            line,
            consumed: 0,
            record_bytes_max,
            head: Vec::new(),
        }
    }

    /// Bytes of all records so far, and of what was between them.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// The line in which the next record begins.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next record; `None` at the end.
    pub fn next(&mut self) -> io::Result<Option<Found>> {
        loop {
            match self.next_line()? {
                Some(found) if found.flaw.is_none() && S::is_blank(self.bytes(&found)) => {}
                other => return Ok(other),
            }
        }
    }

    /// The bytes of a record, without its newline; of one that is too long its beginning.
    pub fn bytes(&self, found: &Found) -> &[u8] {
        match found.flaw {
            Some(Flaw::TooLong) => &self.head,
            _ => &self.buf[found.range.clone()],
        }
    }

    fn next_line(&mut self) -> io::Result<Option<Found>> {
        self.split.reset();
        self.head.clear();
        let mut dropped = 0u64;
        let end = loop {
            let data = &self.buf[self.unread.clone()];
            if data.is_empty() && self.ended && dropped == 0 {
                return Ok(None);
            }
            if let Some(end) = self.split.scan(data, self.ended) {
                break end;
            }
            let scanned = self.split.scanned();
            if dropped > 0 || scanned > self.record_bytes_max {
                self.keep_head(scanned);
                dropped += scanned as u64;
                self.unread.start += scanned;
                self.split.drop_scanned();
            }
            self.fill()?;
        };
        let mut range = self.unread.start..self.unread.start + end;
        let closed = self.buf[range.clone()].last() == Some(&b'\n');
        let content = dropped + (end - usize::from(closed)) as u64;
        let flaw = if content > self.record_bytes_max as u64 {
            self.keep_head(end - usize::from(closed));
            Some(Flaw::TooLong)
        } else {
            self.split.unclosed().then_some(Flaw::Unclosed)
        };
        if closed {
            range.end -= 1;
            if self.buf[range.clone()].last() == Some(&b'\r') {
                range.end -= 1;
            }
        }
        self.unread.start += end;
        let len = dropped + end as u64;
        self.consumed += len;
        let line = self.line;
        self.line += self.split.newlines() + u64::from(closed);
        Ok(Some(Found { range, line, flaw, len }))
    }

    /// Keeps the next `len` bytes as far as they belong to the head of a record: the same bytes
    /// however large the reads were.
    fn keep_head(&mut self, len: usize) {
        let data = &self.buf[self.unread.clone()][..len];
        let room = HEAD_BYTES - self.head.len();
        self.head.extend_from_slice(&data[..data.len().min(room)]);
    }

    /// Reads more behind what is unread.
    fn fill(&mut self) -> io::Result<()> {
        self.buf.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        // A decoder needs room for more than a few bytes.
        if self.buf.len() - self.unread.end < READ_BYTES_MIN {
            self.buf.resize(2 * self.buf.len(), 0);
        }
        loop {
            match self.read.read(&mut self.buf[self.unread.end..]) {
                Ok(0) => self.ended = true,
                Ok(found) => self.unread.end += found,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            return Ok(());
        }
    }
}

/// One record a line.
#[derive(Default)]
pub(crate) struct Lines {
    scanned: usize,
}

impl Split for Lines {
    fn scan(&mut self, data: &[u8], last: bool) -> Option<usize> {
        match data[self.scanned..].iter().position(|b| *b == b'\n') {
            Some(place) => {
                self.scanned += place;
                Some(self.scanned + 1)
            }
            None => {
                self.scanned = data.len();
                last.then_some(data.len())
            }
        }
    }

    fn reset(&mut self) {
        self.scanned = 0;
    }

    fn scanned(&self) -> usize {
        self.scanned
    }

    fn drop_scanned(&mut self) {
        self.scanned = 0;
    }

    fn newlines(&self) -> u64 {
        0
    }

    fn unclosed(&self) -> bool {
        false
    }

    fn is_blank(record: &[u8]) -> bool {
        record.trim_ascii().is_empty()
    }
}
