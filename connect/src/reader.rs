//! A source that reads the records of one file.

use std::io;
use std::sync::Arc;

use tidemill_core::{BatchBuilder, Error, Result, Schema};

use crate::input::Input;
use crate::records::{Flaw, Found, Line, Mark, Next, Records, Skipped, Split, Unclosed};
use crate::source::{BadRow, Chunk, Place, Polled, Source, RESTORE};
use crate::text::{cut, shorten};

/// The way in which records become rows.
pub(crate) trait Format: Send {
    /// The way in which bytes become records.
    type Split: Split;

    /// Creates a splitter.
    fn split(&self) -> Self::Split;

    /// Whether the first record is a header.
    fn has_header(&self) -> bool;

    /// The number of lines before the header.
    fn lines_before(&self) -> u64 {
        0
    }

    /// Takes the header, or returns the reason why it does not fit.
    fn header(&mut self, record: &[u8], split: &Self::Split) -> Result<()>;

    /// Appends the record as a row, or appends nothing and returns the reason.
    fn decode(
        &mut self,
        record: &[u8],
        split: &Self::Split,
        rows: &mut BatchBuilder,
    ) -> Result<(), String>;

    /// Whether a record has the usual number of fields, whatever they contain.
    fn has_form(&self, _split: &Self::Split) -> bool {
        true
    }
}

/// The size of records in bytes after which a chunk ends, however many rows were asked for.
const CHUNK_BYTES: u64 = 8 << 20;
/// The largest number of rows of a chunk. Even a short row may add a column's default.
const CHUNK_ROWS: usize = 1 << 16;
/// The longest reason of a bad row, in bytes.
const REASON_BYTES_MAX: usize = 500;

/// A source that reads one file, which may be one of several.
pub(crate) trait FileRows: Source {
    /// Notes that nothing more will be appended to the file.
    fn complete(&mut self) {}
}

/// A file's records as rows.
pub(crate) struct FileSource<F: Format> {
    input: Input,
    format: F,
    schema: Arc<Schema>,
    record_bytes_max: usize,
    unclosed: Unclosed,
    /// The records; `None` before the first poll and after the end. A folder may have more files
    /// than a process may hold open.
    records: Option<Records<F::Split>>,
    /// Whether the header, or a line before it, is still to be read. A followed file may not have
    /// them yet.
    header_due: bool,
    /// The number of lines before the header that are still to be skipped.
    lines_due: u64,
    place: Place,
    offset: u64,
    ended: bool,
    complete: bool,
    failed: Option<Error>,
    rows: BatchBuilder,
}

impl<F: Format> FileSource<F> {
    /// Opens the file and reads its header.
    pub fn open(
        input: Input,
        format: F,
        schema: Arc<Schema>,
        (record_bytes_max, unclosed): (usize, Unclosed),
    ) -> Result<FileSource<F>> {
        let mut source = FileSource {
            input,
            format,
            rows: BatchBuilder::new(schema.clone()),
            schema,
            record_bytes_max,
            unclosed,
            records: None,
            header_due: false,
            lines_due: 0,
            place: Place::start(),
            offset: 0,
            ended: false,
            complete: false,
            failed: None,
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
        let mut bytes = self.input.bytes().map_err(|e| self.io(&e))?;
        if self.complete {
            bytes.complete();
        }
        self.offset = 0;
        self.place = Place::start();
        self.lines_due = self.format.lines_before();
        self.header_due = self.format.has_header() || self.lines_due > 0;
        let (max, unclosed) = (self.record_bytes_max, self.unclosed);
        self.records = Some(Records::new(bytes, self.format.split(), max, unclosed));
        self.take_header()
    }

    /// Reads the header, and the lines before it, if they are due and available.
    fn take_header(&mut self) -> Result<()> {
        let (true, Some(records)) = (self.header_due, &mut self.records) else { return Ok(()) };
        while self.lines_due > 0 {
            match records.skip_line() {
                Ok(Line::Skipped) => self.lines_due -= 1,
                Ok(Line::Pending) => return Ok(()),
                Ok(Line::End) => self.lines_due = 0,
                Err(e) => return Err(self.io(&e)),
            }
        }
        if !self.format.has_header() {
            self.header_due = false;
            return Ok(());
        }
        match records.next() {
            Ok(Next::Found(Found { flaw: Some(flaw), .. })) => {
                let reason = self.flaw_reason(flaw);
                let origin = &self.input.origin;
                return Err(Error::input(format!("{origin}: the header is {reason}"))
                    .help("say header=False when the file has none"));
            }
            Ok(Next::Found(header)) => {
                self.format.header(records.bytes(&header), &records.split)?;
                self.header_due = false;
            }
            Ok(Next::Pending) => {}
            Ok(Next::End) => self.header_due = false,
            Err(e) => return Err(self.io(&e)),
        }
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
            Flaw::OpenTooLong => format!(
                "not complete: a quote is not closed within {} bytes (record_bytes_max)",
                self.record_bytes_max
            ),
        }
    }

    /// Returns the error that ends the file, for a record after which the rest is ambiguous.
    fn ends_at(&self, found: &Found) -> Option<Error> {
        let flaw = found.flaw.filter(|flaw| *flaw != Flaw::TooLong)?;
        if self.unclosed == Unclosed::Skip {
            return None;
        }
        let (origin, line) = (&self.input.origin, found.line);
        let what = format!("{origin}, line {line}: the row is {}", self.flaw_reason(flaw));
        Some(Error::input(what).help(
            "close the quote and run again; unclosed=\"skip\" makes such a line a bad row and reads \
             on with the next one, and quote=\"\" takes quotes as they stand",
        ))
    }

    /// Returns the next record, counted.
    fn next(&mut self) -> Result<Next> {
        self.take_header()?;
        if self.header_due {
            return Ok(Next::Pending);
        }
        let next = self.records.as_mut().expect("the file is open").next();
        if let Ok(Next::Found(_)) = &next {
            self.offset += 1;
        }
        next.map_err(|e| self.io(&e))
    }

    fn bad_row(&self, found: &Found, reason: String) -> BadRow {
        let bytes = self.records.as_ref().expect("the file is open").bytes(found);
        let head = &bytes[..bytes.len().min(BadRow::RAW_BYTES_MAX)];
        let raw = cut(&String::from_utf8_lossy(head), BadRow::RAW_BYTES_MAX).to_string();
        let mut reason = shorten(&reason, REASON_BYTES_MAX).into_owned();
        if found.newlines > 0 {
            let last = found.line + found.newlines;
            reason.push_str(&format!("; by its quotes the row goes on to line {last}"));
        }
        if found.len > bytes.len().max(raw.len()) as u64 + 2 || raw.len() < bytes.len() {
            reason.push_str(&format!("; raw is only the beginning of {} bytes", found.len));
        }
        let (offset, origin, line) = (self.offset - 1, self.input.origin.clone(), found.line);
        BadRow { offset, origin, line, raw, reason }
    }

    /// Returns a bad record. If a stray quote has joined lines that are to be read one by one, it
    /// is only the first line.
    fn without_strays(&mut self, found: Found) -> Found {
        let records = self.records.as_mut().expect("the file is open");
        let is_stray = self.unclosed == Unclosed::Skip
            && found.flaw.is_none()
            && found.newlines > 0
            && !self.format.has_form(&records.split);
        if is_stray {
            records.take_back(&found)
        } else {
            found
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
                Ok(Next::Found(found)) => found,
                Ok(Next::Pending) => break,
                Ok(Next::End) => {
                    self.ended = true;
                    break;
                }
                // Rows that were read before it are returned first.
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            };
            if let Some(error) = self.ends_at(&found) {
                self.offset -= 1;
                self.records.as_mut().expect("the file is open").leave(&found);
                self.failed = Some(error);
                break;
            }
            let decoded = match found.flaw {
                Some(flaw) => Err(self.flaw_reason(flaw)),
                None => {
                    let records = self.records.as_ref().expect("the file is open");
                    self.format.decode(records.bytes(&found), &records.split, &mut self.rows)
                }
            };
            match decoded {
                Ok(()) => {
                    bytes += found.len;
                    offsets.push(self.offset - 1);
                }
                Err(reason) => {
                    let found = self.without_strays(found);
                    bytes += found.len;
                    bad.push(self.bad_row(&found, reason));
                }
            }
        }
        self.settle();
        if offsets.is_empty() && bad.is_empty() && rows_max > 0 {
            return match &self.failed {
                Some(error) => Err(error.clone()),
                None if self.ended => Ok(Polled::End),
                None => Ok(Polled::Pending),
            };
        }
        let batch = self.rows.finish();
        Ok(Polled::Rows(Chunk { batch, offsets, bad, next_offset: self.offset }))
    }

    /// Stores the source's place, and closes the file when all of it was read.
    fn settle(&mut self) {
        if self.offset != self.place.offset {
            let Mark { bytes, checksum, line } =
                self.records.as_mut().expect("the file is open").mark();
            self.place = Place { offset: self.offset, bytes, line, checksum, ..Place::start() };
        }
        if self.ended {
            self.records = None;
        }
    }

    /// Reads up to `place`, without decoding.
    fn go_to(&mut self, place: &Place) -> Result<()> {
        self.failed = None;
        self.ended = false;
        self.start()?;
        if place.offset == 0 {
            return Ok(());
        }
        let Place { bytes, checksum, line, .. } = *place;
        let skipped = match (self.header_due, &mut self.records) {
            (false, Some(records)) => records.skip_to(&Mark { bytes, checksum, line }),
            _ => Ok(Skipped::Short(0)),
        };
        let (origin, rows) = (&self.input.origin, place.offset);
        let what = match skipped.map_err(|e| self.io(&e))? {
            Skipped::Same => {
                self.offset = place.offset;
                self.place = place.clone();
                return Ok(());
            }
            Skipped::Short(found) => {
                format!("{origin} has {found} bytes; {bytes} were read from it before")
            }
            Skipped::Changed => {
                format!("{origin} has changed: its first {rows} rows are not what was read before")
            }
            Skipped::Continued => format!(
                "{origin}: row {} had no newline at its end when it was read before, and is longer now",
                rows - 1
            ),
        };
        Err(Error::input(what).help(RESTORE))
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

    fn place(&self) -> Place {
        self.place.clone()
    }

    fn resume(&mut self, place: &Place) -> Result<()> {
        self.go_to(place).inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn replayable(&self) -> bool {
        true
    }
}

impl<F: Format> FileRows for FileSource<F> {
    fn complete(&mut self) {
        self.complete = true;
        if let Some(records) = &mut self.records {
            records.complete();
        }
    }
}
