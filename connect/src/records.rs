//! Bytes split into records, with a bound on the memory of one record.

use std::io::{self, Read};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tidemill_core::encode::Hasher128;

use crate::checksum::Checksum;
use crate::input::Reading;

/// Finds the end of a record. It gets the record's bytes from the beginning, more of them with each
/// call, and continues where it stopped.
pub(crate) trait Split: Send {
    /// Scans on in `data`. Returns the place after the record and its newline, or `None` if more
    /// bytes are needed. With `last` there are no more.
    fn scan(&mut self, data: &[u8], last: bool) -> Option<usize>;

    /// Forgets the record: the next bytes begin a new one.
    fn reset(&mut self);

    /// Returns how far the record has been scanned.
    fn scanned(&self) -> usize;

    /// Notes that the bytes scanned so far are dropped, because the record is too long. Only its
    /// end matters.
    fn drop_scanned(&mut self);

    /// Returns the number of newlines in the record.
    fn newlines(&self) -> u64;

    /// Whether the scan ended inside quotes: there is more of the record, or the input ends.
    fn is_open(&self) -> bool;

    /// Ends the open quotes.
    fn close(&mut self);

    /// Whether the record, without its newline, is a blank line, which is not a record.
    fn is_blank(record: &[u8]) -> bool;
}

/// A flaw of a record as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// It has more bytes than allowed.
    TooLong,
    /// It begins a quoted field that does not end before the file does.
    Unclosed,
    /// It begins a quoted field that does not end within the largest size of a record.
    OpenTooLong,
}

/// The treatment of a quoted field that does not end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unclosed {
    /// Reading ends, because the rows in the rest of the file are ambiguous.
    #[default]
    Stop,
    /// The quote counts as an error in its line, which is bad. Reading continues with the next
    /// line.
    Skip,
}

/// A record that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    range: Range<usize>,
    /// The line, from 1, in which it begins.
    pub line: u64,
    /// The number of newlines in it.
    pub newlines: u64,
    pub flaw: Option<Flaw>,
    /// Its size in the input in bytes, including the newline.
    pub len: u64,
}

/// The result of reading on.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    Found(Found),
    /// No record now, but the input may grow.
    Pending,
    End,
}

/// A place between two records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// The number of bytes before it.
    pub bytes: u64,
    /// The checksum of these bytes.
    pub checksum: Checksum,
    /// The line, from 1.
    pub line: u64,
}

/// The result of [`Records::skip_to`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// The input has the bytes of the mark.
    Same,
    /// The input has only this many bytes.
    Short(u64),
    /// The input has other bytes.
    Changed,
    /// The input has the same bytes, but the last record had no newline and continues now.
    Continued,
}

/// The result of [`Records::skip_line`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Skipped,
    /// The line has no end yet, but the input may grow.
    Pending,
    End,
}

/// Splits its input into records. Blank lines are not records.
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
    /// The end of the part of `buf` that is in the hash. It is never beyond the next record's
    /// start, and moves in large pieces, which costs next to nothing.
    hashed: usize,
    /// The place after the last record, once a blank line was consumed after it.
    mark: Option<Mark>,
    /// The value of `mark` when the last record was found.
    before: Option<Mark>,
    record_bytes_max: usize,
    unclosed: Unclosed,
    /// The bytes of the present record that were dropped, because it is too long.
    dropped: u64,
    /// Whether an earlier call, which found no more input, has begun the present record.
    begun: bool,
    /// The beginning of a record that is too long.
    head: Vec<u8>,
}

const BUF_BYTES: usize = 128 << 10;
const READ_BYTES_MIN: usize = 4 << 10;
const HEAD_BYTES: usize = 1024;

impl<S: Split> Records<S> {
    /// Creates a splitter of the bytes that `read` gives.
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

    /// Returns the place after the last record. Blank lines after it do not count, so the place is
    /// the same whether they were read or not.
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

    /// Moves on to a mark from an earlier reading of the same input. The mark must not be before
    /// the present place.
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
        if last != b'\n' && !self.is_at_newline()? {
            return Ok(Skipped::Continued);
        }
        Ok(Skipped::Same)
    }

    /// Skips the rest of a line, whatever is in it.
    pub fn skip_line(&mut self) -> io::Result<Line> {
        loop {
            let data = &self.buf[self.unread.clone()];
            let end = data.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(data.len(), |at| at + 1);
            self.unread.start += taken;
            self.consumed += taken as u64;
            if end.is_some() {
                self.line += 1;
                return Ok(Line::Skipped);
            }
            if self.ended {
                return Ok(Line::End);
            }
            if self.fill()? == Filled::Dry {
                return Ok(Line::Pending);
            }
        }
    }

    /// Whether a newline or the end of the input comes next. The newline may have been added to a
    /// last record that had none: alone it is a blank line.
    fn is_at_newline(&mut self) -> io::Result<bool> {
        // A newline has up to two bytes.
        while self.unread.len() < 2 && !self.ended {
            if self.fill()? == Filled::Dry {
                break;
            }
        }
        let next = &self.buf[self.unread.clone()];
        Ok(next.is_empty() || next.starts_with(b"\n") || next.starts_with(b"\r\n"))
    }

    /// Notes that nothing more will be appended to the input.
    pub fn complete(&mut self) {
        self.read.complete();
    }

    /// Returns the next record.
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

    /// Returns the bytes of a record without its newline. For a record that is too long it is the
    /// beginning.
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
                // The result must not depend on how much was read at once. So the scan first sees
                // as many bytes as a record may have.
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
                    // The record ends with its line.
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

    /// Takes the record that ends after this many bytes.
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

    /// Takes the first line of a record of which this many bytes are known. The rest is read as
    /// further lines.
    fn first_line(&mut self, known: usize, flaw: Flaw) -> Next {
        let data = &self.buf[self.unread.clone()][..known];
        let end = data.iter().position(|b| *b == b'\n').map_or(known, |at| at + 1);
        self.split.reset();
        self.taken(end, Some(flaw))
    }

    /// Moves the place before the record that was found last, which is not taken. Nothing is read
    /// after it.
    pub fn leave(&mut self, found: &Found) {
        let before = self.consumed - found.len;
        self.mark = match self.before {
            Some(mark) => Some(mark),
            None => Some(self.mark_at(found.range.start, before, found.line)),
        };
    }

    /// Moves back to the end of the first line of the record that was found last.
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

    /// Stores the next `len` bytes as far as they belong to the head of a record: the same bytes
    /// for any size of reads.
    fn keep_head(&mut self, len: usize) {
        let data = &self.buf[self.unread.clone()][..len];
        let room = HEAD_BYTES - self.head.len();
        self.head.extend_from_slice(&data[..data.len().min(room)]);
    }

    /// Reads more after the unread bytes.
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
    /// There is more, or the input has ended.
    More,
    /// There is nothing at present.
    Dry,
}

/// A splitter with one record a line.
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
