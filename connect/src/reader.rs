//! A source that reads the records of one file.

use std::io;
use std::sync::Arc;

use tidemill_core::{BatchBuilder, Error, Kind, Result, Schema};

use crate::input::Input;
use crate::records::{Flaw, Found, Records, Split};
use crate::source::{BadRow, Chunk, Fingerprint, Polled, Source};
use crate::text::{cut, shorten};

/// How records become rows.
pub(crate) trait Format: Send {
    /// How bytes become records.
    type Split: Split;

    /// A new splitter.
    fn split(&self) -> Self::Split;

    /// Whether the first record is a header.
    fn has_header(&self) -> bool;

    /// Takes the header; the reason when it does not fit.
    fn header(&mut self, record: &[u8], split: &Self::Split) -> Result<()>;

    /// Appends the record as a row, or appends nothing and says why.
    fn decode(
        &mut self,
        record: &[u8],
        split: &Self::Split,
        rows: &mut BatchBuilder,
    ) -> Result<(), String>;
}

/// Rows between two places that a later seek may begin at.
const MARK_ROWS: u64 = 1 << 16;
/// A chunk ends after this many bytes of records, however many rows were asked for.
const CHUNK_BYTES: u64 = 8 << 20;
/// A chunk has at most this many rows, because each may add a column's default, however short it is.
const CHUNK_ROWS: usize = 1 << 16;
/// The longest reason of a bad row, in bytes.
const REASON_BYTES_MAX: usize = 500;

/// A place at which reading can begin.
#[derive(Clone, Copy)]
struct Mark {
    offset: u64,
    place: u64,
    line: u64,
}

/// A file's records as rows.
pub(crate) struct FileSource<F: Format> {
    input: Input,
    format: F,
    schema: Arc<Schema>,
    record_bytes_max: usize,
    /// `None` before the first poll and after the end: a folder may have more files than a process
    /// may hold open.
    records: Option<Open<F::Split>>,
    offset: u64,
    ended: bool,
    failed: Option<Error>,
    marks: Vec<Mark>,
    rows: BatchBuilder,
}

struct Open<S> {
    records: Records<S>,
    /// The place in the file of the first byte of `records`, when that has a meaning.
    base: Option<u64>,
}

impl<F: Format> FileSource<F> {
    /// Opens the file and reads its header.
    pub fn open(
        input: Input,
        format: F,
        schema: Arc<Schema>,
        record_bytes_max: usize,
    ) -> Result<FileSource<F>> {
        let mut source = FileSource {
            input,
            format,
            rows: BatchBuilder::new(schema.clone()),
            schema,
            record_bytes_max,
            records: None,
            offset: 0,
            ended: false,
            failed: None,
            marks: Vec::new(),
        };
        source.start()?;
        source.records = None;
        Ok(source)
    }

    fn io(&self, error: &io::Error) -> Error {
        Error::io(format!("reading {}, row {}", self.input.origin, self.offset), error)
            .help("the file was damaged or changed while it was read; restore it and run again")
    }

    /// Begins at the first row.
    fn start(&mut self) -> Result<()> {
        let bytes = self.input.bytes(None).map_err(|e| self.io(&e))?;
        let mut records = Records::new(bytes.read, self.format.split(), 1, self.record_bytes_max);
        self.offset = 0;
        if self.format.has_header() {
            if let Some(header) = records.next().map_err(|e| self.io(&e))? {
                if let Some(flaw) = header.flaw {
                    let reason = self.flaw_reason(flaw);
                    let origin = &self.input.origin;
                    return Err(Error::input(format!("{origin}: the header is {reason}"))
                        .help("say header=False when the file has none"));
                }
                self.format.header(records.bytes(&header), &records.split)?;
            }
        }
        self.records = Some(Open { records, base: bytes.base });
        Ok(())
    }

    fn start_at(&mut self, mark: Mark) -> Result<()> {
        let bytes = self.input.bytes(Some(mark.place)).map_err(|e| self.io(&e))?;
        let split = self.format.split();
        let records = Records::new(bytes.read, split, mark.line, self.record_bytes_max);
        self.offset = mark.offset;
        self.records = Some(Open { records, base: bytes.base });
        Ok(())
    }

    fn flaw_reason(&self, flaw: Flaw) -> String {
        match flaw {
            Flaw::TooLong => format!(
                "longer than {} bytes (record_bytes_max); is a quote or a newline missing?",
                self.record_bytes_max
            ),
            Flaw::Unclosed => {
                "not complete: a quote is not closed before the end of the file".into()
            }
        }
    }

    /// The next record, counted.
    fn next(&mut self) -> Result<Option<Found>> {
        let open = self.records.as_mut().expect("the file is open");
        if self.offset.is_multiple_of(MARK_ROWS)
            && self.marks.last().is_none_or(|m| m.offset < self.offset)
        {
            if let Some(base) = open.base {
                let place = base + open.records.consumed();
                self.marks.push(Mark { offset: self.offset, place, line: open.records.line() });
            }
        }
        match open.records.next() {
            Ok(Some(found)) => {
                self.offset += 1;
                Ok(Some(found))
            }
            Ok(None) => Ok(None),
            Err(e) => Err(self.io(&e)),
        }
    }

    fn bad_row(&self, found: &Found, reason: String) -> BadRow {
        let open = self.records.as_ref().expect("the file is open");
        let bytes = open.records.bytes(found);
        let head = &bytes[..bytes.len().min(BadRow::RAW_BYTES_MAX)];
        let raw = cut(&String::from_utf8_lossy(head), BadRow::RAW_BYTES_MAX).to_string();
        BadRow {
            offset: self.offset - 1,
            origin: self.input.origin.clone(),
            line: found.line,
            raw,
            reason: shorten(&reason, REASON_BYTES_MAX).into_owned(),
        }
    }

    fn read(&mut self, rows_max: usize) -> Result<Polled> {
        if self.records.is_none() {
            self.start()?;
        }
        let rows_max = rows_max.min(CHUNK_ROWS);
        let mut offsets = Vec::new();
        let mut bad = Vec::new();
        let mut bytes = 0;
        while offsets.len() + bad.len() < rows_max && bytes < CHUNK_BYTES {
            let found = match self.next() {
                Ok(Some(found)) => found,
                Ok(None) => {
                    self.ended = true;
                    self.records = None;
                    break;
                }
                // What was read before goes out first.
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            };
            bytes += found.len;
            let decoded = match found.flaw {
                Some(flaw) => Err(self.flaw_reason(flaw)),
                None => {
                    let records = &self.records.as_ref().expect("the file is open").records;
                    self.format.decode(records.bytes(&found), &records.split, &mut self.rows)
                }
            };
            match decoded {
                Ok(()) => offsets.push(self.offset - 1),
                Err(reason) => bad.push(self.bad_row(&found, reason)),
            }
        }
        if offsets.is_empty() && bad.is_empty() && rows_max > 0 {
            return match &self.failed {
                Some(error) => Err(error.clone()),
                None => Ok(Polled::End),
            };
        }
        let batch = self.rows.finish();
        Ok(Polled::Rows(Chunk { batch, offsets, bad, next_offset: self.offset }))
    }

    /// Brings the reader to `offset`, from the nearest place before it.
    fn go_to(&mut self, offset: u64) -> Result<()> {
        let forward = self.records.is_some() && self.failed.is_none() && offset >= self.offset;
        let mark = self.marks.iter().rev().find(|m| m.offset <= offset).copied();
        self.failed = None;
        self.ended = false;
        match mark {
            _ if forward && mark.is_none_or(|m| m.offset <= self.offset) => {}
            Some(mark) => self.start_at(mark)?,
            None => self.start()?,
        }
        while self.offset < offset {
            if self.next()?.is_none() {
                let (origin, rows) = (&self.input.origin, self.offset);
                let what = format!("{origin} has {rows} rows, yet row {offset} was read before");
                return Err(Error::input(what)
                    .help("the file was replaced or cut; restore it, or start anew"));
            }
        }
        Ok(())
    }
}

impl<F: Format> Source for FileSource<F> {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.ended {
            return Ok(Polled::End);
        }
        self.read(rows_max).inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn offset(&self) -> u64 {
        self.offset
    }

    fn seek(&mut self, offset: u64) -> Result<()> {
        if offset == self.offset && self.failed.is_none() {
            return Ok(());
        }
        self.go_to(offset).inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn replayable(&self) -> bool {
        true
    }

    fn fingerprint(&self) -> Result<Option<Fingerprint>> {
        match self.input.fingerprint() {
            Ok(fingerprint) => Ok(Some(fingerprint)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(Error::new(Kind::Io, format!("{} has gone", self.input.origin)))
            }
            Err(e) => Err(Error::io(format!("reading {}", self.input.origin), &e)),
        }
    }
}
