//! Bytes cut into records, with a bound on the memory that one record may take.

use std::io::{self, Read};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tidemill_core::encode::Hasher128;

use crate::checksum::Checksum;
use crate::input::Reading;

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

    /// Whether what was scanned last is inside quotes: more of the record, or the end of the input.
    fn is_open(&self) -> bool;

    /// What was scanned last is not inside quotes any more.
    fn close(&mut self);

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
    /// It begins a quoted field that does not end within the most bytes that a record may have.
    OpenTooLong,
}

/// What a quoted field means that does not end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unclosed {
    /// Nobody knows which rows the rest of the file has: reading ends.
    #[default]
    Stop,
    /// The quote is a mistake in its line, which is bad; reading goes on with the next one.
    Skip,
}

/// A record that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    range: Range<usize>,
    /// The line, from 1, in which it begins.
    pub line: u64,
    /// The newlines inside of it.
    pub newlines: u64,
    pub flaw: Option<Flaw>,
    /// Its bytes in the input, newline included.
    pub len: u64,
}

/// What comes next.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    Found(Found),
    /// Nothing now; more of the input may come.
    Pending,
    End,
}

/// A place between two records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// Bytes before it.
    pub bytes: u64,
    /// Of these bytes.
    pub checksum: Checksum,
    /// The line, from 1.
    pub line: u64,
}

/// What [`Records::skip_to`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// The bytes of the mark.
    Same,
    /// Only so many bytes.
    Short(u64),
    /// Other bytes.
    Changed,
    /// The same bytes, but the last record had no newline and goes on now.
    Continued,
}

/// Cuts what it reads into records. Blank lines are none.
pub(crate) struct Records<S> {
    pub split: S,
    read: Reading,
    buf: Vec<u8>,
    /// The part of `buf` that is not consumed yet.
    unread: Range<usize>,
    ended: bool,
    line: u64,
    consumed: u64,
    hasher: Hasher128,
    /// Up to here the bytes of `buf` are in the hash: never further than the next record's start,
    /// and in large pieces, which costs next to nothing.
    hashed: usize,
    /// Behind the last record, once something that is none was consumed behind it.
    mark: Option<Mark>,
    /// What it was when the last record was found.
    before: Option<Mark>,
    record_bytes_max: usize,
    unclosed: Unclosed,
    /// Bytes of the present record that were dropped, because it is too long.
    dropped: u64,
    /// The present record was begun by an earlier call, which found no more input.
    begun: bool,
    /// The beginning of a record that is too long.
    head: Vec<u8>,
}

const BUF_BYTES: usize = 128 << 10;
const READ_BYTES_MIN: usize = 4 << 10;
const HEAD_BYTES: usize = 1024;

impl<S: Split> Records<S> {
    /// Cuts what `read` gives.
    pub fn new(read: Reading, split: S, record_bytes_max: usize, unclosed: Unclosed) -> Self {
        Records {
            split,
            read,
            buf: vec![0; BUF_BYTES],
            unread: 0..0,
            ended: false,
            line: 1,
            consumed: 0,
            hasher: Hasher128::default(),
            hashed: 0,
            mark: None,
            before: None,
            record_bytes_max,
            unclosed,
            dropped: 0,
            begun: false,
            head: Vec::new(),
        }
    }

    /// The place behind the last record; blank lines behind it do not count, so that it is the
    /// same whether they were looked at or not.
    pub fn mark(&mut self) -> Mark {
        self.mark.unwrap_or_else(|| self.mark_at(self.unread.start, self.consumed, self.line))
    }

    fn mark_at(&mut self, place: usize, bytes: u64, line: u64) -> Mark {
        self.hash_to(place);
        Mark { bytes, checksum: Checksum(self.hasher.digest()), line }
    }

    fn hash_to(&mut self, place: usize) {
        self.hasher.update(&self.buf[self.hashed..place]);
        self.hashed = place;
    }

    /// Goes on to a mark that reading the same input once had; it must not be behind.
    pub fn skip_to(&mut self, mark: &Mark) -> io::Result<Skipped> {
        let mut last = b'\n';
        self.mark = None;
        while self.consumed < mark.bytes {
            if self.unread.is_empty() {
                self.fill()?;
                if self.unread.is_empty() {
                    return Ok(Skipped::Short(self.consumed));
                }
            }
            let left = usize::try_from(mark.bytes - self.consumed).unwrap_or(usize::MAX);
            let taken = self.unread.len().min(left);
            self.unread.start += taken;
            self.consumed += taken as u64;
            last = self.buf[self.unread.start - 1];
        }
        self.line = mark.line;
        if self.consumed != mark.bytes || self.mark().checksum != mark.checksum {
            return Ok(Skipped::Changed);
        }
        if last != b'\n' {
            if self.unread.is_empty() {
                self.fill()?;
            }
            if !self.unread.is_empty() {
                return Ok(Skipped::Continued);
            }
        }
        Ok(Skipped::Same)
    }

    /// Nothing is added to the input any more: what is there is all.
    pub fn complete(&mut self) {
        self.read.complete();
    }

    /// The next record.
    pub fn next(&mut self) -> io::Result<Next> {
        loop {
            match self.next_line()? {
                Next::Found(found) if found.flaw.is_none() && S::is_blank(self.bytes(&found)) => {
                    if self.mark.is_none() {
                        let before = self.consumed - found.len;
                        self.mark = Some(self.mark_at(found.range.start, before, found.line));
                    }
                }
                Next::Found(found) => {
                    self.before = self.mark.take();
                    return Ok(Next::Found(found));
                }
                other => return Ok(other),
            }
        }
    }

    /// The bytes of a record, without its newline; of one that is too long its beginning.
    pub fn bytes(&self, found: &Found) -> &[u8] {
        match found.flaw {
            Some(_) if !self.head.is_empty() => &self.head,
            _ => &self.buf[found.range.clone()],
        }
    }

    fn next_line(&mut self) -> io::Result<Next> {
        if !std::mem::take(&mut self.begun) {
            self.split.reset();
            self.head.clear();
            self.dropped = 0;
        }
        let end = loop {
            let mut data = &self.buf[self.unread.clone()];
            if data.is_empty() && self.ended && self.dropped == 0 {
                return Ok(Next::End);
            }
            let there = data.len();
            if self.dropped == 0 {
                // What is found must not depend on how much was read at once: first it is looked at
                // as much as a record may have.
                data = &data[..there.min(self.record_bytes_max + 1)];
            }
            let is_all = data.len() == there;
            if let Some(end) = self.split.scan(data, self.ended && is_all) {
                if self.split.is_open() && self.unclosed == Unclosed::Skip && self.dropped == 0 {
                    return Ok(self.first_line(end, Flaw::Unclosed));
                }
                break end;
            }
            let scanned = self.split.scanned();
            let is_long = scanned > self.record_bytes_max;
            if self.dropped == 0 && is_long && self.split.is_open() {
                let data = &self.buf[self.unread.clone()][..scanned];
                match self.unclosed {
                    Unclosed::Stop => return Ok(self.taken(scanned, Some(Flaw::OpenTooLong))),
                    Unclosed::Skip if data.contains(&b'\n') => {
                        return Ok(self.first_line(scanned, Flaw::OpenTooLong));
                    }
                    // It ends with its line.
                    Unclosed::Skip => self.split.close(),
                }
            }
            if self.dropped > 0 || is_long {
                if self.mark.is_none() {
                    let (consumed, line) = (self.consumed, self.line);
                    self.mark = Some(self.mark_at(self.unread.start, consumed, line));
                }
                self.keep_head(scanned);
                self.dropped += scanned as u64;
                self.unread.start += scanned;
                self.split.drop_scanned();
            }
            if is_all && self.fill()? == Filled::Dry {
                self.begun = true;
                return Ok(Next::Pending);
            }
        };
        let closed = self.buf[self.unread.clone()][..end].last() == Some(&b'\n');
        let content = self.dropped + (end - usize::from(closed)) as u64;
        let flaw = if self.split.is_open() {
            Some(Flaw::Unclosed)
        } else if content > self.record_bytes_max as u64 {
            Some(Flaw::TooLong)
        } else {
            None
        };
        if content > self.record_bytes_max as u64 {
            self.keep_head(end - usize::from(closed));
        }
        Ok(self.taken(end, flaw))
    }

    /// The record that ends so many bytes from here.
    fn taken(&mut self, end: usize, flaw: Option<Flaw>) -> Next {
        let mut range = self.unread.start..self.unread.start + end;
        let closed = self.buf[range.clone()].last() == Some(&b'\n');
        if closed {
            range.end -= 1;
            if self.buf[range.clone()].last() == Some(&b'\r') {
                range.end -= 1;
            }
        }
        self.unread.start += end;
        let len = self.dropped + end as u64;
        self.consumed += len;
        let (line, newlines) = (self.line, self.split.newlines());
        self.line += newlines + u64::from(closed);
        Next::Found(Found { range, line, newlines, flaw, len })
    }

    /// The first line of a record, of which so many bytes are known; what is behind is read as what
    /// it is then.
    fn first_line(&mut self, known: usize, flaw: Flaw) -> Next {
        let data = &self.buf[self.unread.clone()][..known];
        let end = data.iter().position(|b| *b == b'\n').map_or(known, |at| at + 1);
        self.split.reset();
        self.taken(end, Some(flaw))
    }

    /// The place is before the record that was found last, which nobody takes; nothing is read
    /// behind it.
    pub fn leave(&mut self, found: &Found) {
        let before = self.consumed - found.len;
        self.mark = match self.before {
            Some(mark) => Some(mark),
            None => Some(self.mark_at(found.range.start, before, found.line)),
        };
    }

    /// Goes back to behind the first line of the record that was found last.
    pub fn take_back(&mut self, found: &Found) -> Found {
        let data = &self.buf[found.range.clone()];
        let Some(at) = data.iter().position(|b| *b == b'\n') else { return found.clone() };
        let mut range = found.range.start..found.range.start + at;
        let len = at as u64 + 1;
        self.unread.start = range.end + 1;
        self.consumed -= found.len - len;
        self.line = found.line + 1;
        if self.buf[range.clone()].last() == Some(&b'\r') {
            range.end -= 1;
        }
        Found { range, newlines: 0, len, ..found.clone() }
    }

    /// Keeps the next `len` bytes as far as they belong to the head of a record: the same bytes
    /// however large the reads were.
    fn keep_head(&mut self, len: usize) {
        let data = &self.buf[self.unread.clone()][..len];
        let room = HEAD_BYTES - self.head.len();
        self.head.extend_from_slice(&data[..data.len().min(room)]);
    }

    /// Reads more behind what is unread.
    fn fill(&mut self) -> io::Result<Filled> {
        self.hash_to(self.unread.start);
        self.buf.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        self.hashed = 0;
        // A decoder needs room for more than a few bytes.
        if self.buf.len() - self.unread.end < READ_BYTES_MIN {
            self.buf.resize(2 * self.buf.len(), 0);
        }
        loop {
            match self.read.read(&mut self.buf[self.unread.end..]) {
                Ok(0) if self.read.grows() => return Ok(Filled::Dry),
                Ok(0) => self.ended = true,
                Ok(found) => self.unread.end += found,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            return Ok(Filled::More);
        }
    }
}

#[derive(PartialEq, Eq)]
enum Filled {
    /// There is more, or it is known that the input has ended.
    More,
    /// Nothing at present.
    Dry,
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

    fn is_open(&self) -> bool {
        false
    }

    fn close(&mut self) {}

    fn is_blank(record: &[u8]) -> bool {
        record.trim_ascii().is_empty()
    }
}
