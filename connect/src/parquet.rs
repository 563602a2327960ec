//! Parquet files as sources.
//!
//! Rows have no lines and no text of their own: a bad row's text is its values as a JSON object.
//! The file's types are checked when it is opened. A value that does not fit its column only makes
//! its row bad.

use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{DataType as ArrowType, TimeUnit};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::arrow::{parquet_to_arrow_schema, ProjectionMask};
use parquet::basic::{Compression, Type};
use parquet::errors::ParquetError;
use tidemill_core::error::nearest;
use tidemill_core::{Batch, Error, Result, Schema};
use tidemill_env::Disk;

use crate::checksum::Checksum;
use crate::files::{FilesSettings, UnknownFields};
use crate::input::not_readable;
use crate::reader::FileRows;
use crate::row::{rules, Rule};
use crate::source::{BadRow, Chunk, Place, Polled, Source, RESTORE};
use crate::text::{cut, shorten};
use crate::time::TimeFormat;

mod chunks;
mod convert;

pub(crate) use chunks::Chunks;
use convert::{convert, reading, Bad};

/// The largest number of rows that are decoded at a time.
const BATCH_ROWS: usize = 16 << 10;
/// The approximate number of bytes that are decoded at a time.
const BATCH_BYTES: u64 = 8 << 20;
/// The largest size of the texts that are decoded at a time, in bytes. A text that a file has once
/// may occur in all of its rows.
const TEXT_BYTES_MAX: u64 = 1 << 30;
/// The longest reason of a bad row, in bytes.
const REASON_BYTES_MAX: usize = 500;

/// The rows of a Parquet file.
pub(crate) struct ParquetSource {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    origin: Arc<str>,
    schema: Arc<Schema>,
    rules: Vec<Rule>,
    record_bytes_max: usize,
    metadata: ArrowReaderMetadata,
    mask: ProjectionMask,
    /// For each column of the schema, its place among the columns that are read.
    fields: Vec<Option<usize>>,
    /// The file's length, and a checksum of its footer.
    len: u64,
    checksum: Checksum,
    /// The reader; `None` before the first poll and after the end.
    reader: Option<ParquetRecordBatchReader>,
    /// The decoded rows that have not been returned yet.
    decoded: Option<Chunk>,
    offset: u64,
    failed: Option<Error>,
}

impl ParquetSource {
    /// Opens the file and finds the columns of `schema` in it.
    pub fn open(
        disk: Arc<dyn Disk>,
        path: &Path,
        schema: Arc<Schema>,
        settings: &FilesSettings,
    ) -> Result<ParquetSource> {
        let origin: Arc<str> = path.display().to_string().into();
        let chunks = Chunks::open(&*disk, path).map_err(|e| not_readable(&*disk, path, &e))?;
        let checksum = chunks.description().map_err(|e| damaged(&origin, &e))?;
        // Some writers add Arrow types. Without these, a text is always a text, whatever its
        // encoding.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = quiet(|| ArrowReaderMetadata::load(&chunks, options))
            .map_err(|e| damaged(&origin, &e))?;
        let mut rules = rules(&schema, &settings.columns, &settings.formats)?;
        let places = places(&origin, &metadata, &rules, settings)?;
        take_units(&metadata, &mut rules, &places);
        let roots = places.iter().copied().flatten();
        let mask = ProjectionMask::roots(metadata.parquet_schema(), roots);
        unpacks(&origin, &metadata, &mask)?;
        let read = |place: usize| places.iter().flatten().filter(|p| **p < place).count();
        let fields = places.iter().map(|place| place.map(read)).collect();
        let len = chunks.len();
        Ok(ParquetSource {
            disk,
            path: path.into(),
            origin,
            schema,
            rules,
            record_bytes_max: settings.record_bytes_max,
            metadata,
            mask,
            fields,
            len,
            checksum,
            reader: None,
            decoded: None,
            offset: 0,
            failed: None,
        })
    }

    fn rows(&self) -> u64 {
        self.metadata.metadata().file_metadata().num_rows().max(0) as u64
    }

    /// Creates a reader from the present row on. Row groups before it are not read.
    fn start(&mut self) -> Result<ParquetRecordBatchReader> {
        let groups = self.metadata.metadata().row_groups();
        let (mut first, mut skipped) = (0, 0);
        while let Some(group) = groups.get(first) {
            let behind = skipped + group.num_rows().max(0) as u64;
            if behind > self.offset {
                break;
            }
            (first, skipped) = (first + 1, behind);
        }
        let bytes: u64 = groups.iter().map(|g| g.total_byte_size().max(0) as u64).sum();
        let rows = BATCH_BYTES / (bytes / self.rows().max(1)).max(1);
        let open = Chunks::open(&*self.disk, &self.path).map(Chunks::of_pages);
        let chunks = open.map_err(|e| Error::io(format!("reading {}", self.origin), &e))?;
        if chunks.len() != self.len {
            let what = format!("{} was changed while it was read", self.origin);
            return Err(Error::input(what).help(RESTORE));
        }
        let longest = self.longest_text(&chunks).map_err(|e| damaged(&self.origin, &e))?;
        let rows = rows.min(TEXT_BYTES_MAX / longest.max(1));
        let build = || {
            ParquetRecordBatchReaderBuilder::new_with_metadata(chunks, self.metadata.clone())
                .with_projection(self.mask.clone())
                .with_row_groups((first..groups.len()).collect())
                .with_offset((self.offset - skipped) as usize)
                .with_batch_size((rows as usize).clamp(1, BATCH_ROWS))
                .build()
        };
        quiet(build).map_err(|e| damaged(&self.origin, &e))
    }

    /// Returns the largest size of a text that is stored once and used by many rows, over all
    /// columns. No text is longer than all texts of a column chunk together.
    fn longest_text(&self, chunks: &Chunks) -> Result<u64, ParquetError> {
        let mut longest = 0;
        for group in self.metadata.metadata().row_groups() {
            let mut sum = 0;
            for (leaf, column) in group.columns().iter().enumerate() {
                let is_text = column.column_type() == Type::BYTE_ARRAY;
                let place = column.dictionary_page_offset().and_then(|at| u64::try_from(at).ok());
                if let Some(place) = place.filter(|_| is_text && self.mask.leaf_included(leaf)) {
                    sum += chunks.page_bytes(place)?;
                }
            }
            longest = longest.max(sum);
        }
        Ok(longest)
    }

    /// Decodes the next rows.
    fn decode(&mut self) -> Result<Option<Chunk>> {
        if self.offset == self.rows() {
            self.reader = None;
            return Ok(None);
        }
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.start()?,
        };
        let next = quiet(|| reader.next().transpose().map_err(ParquetError::from));
        let arrow = next
            .and_then(|batch| batch.ok_or(ParquetError::EOF("rows are missing".into())))
            .map_err(|e| damaged(&format!("{}, row {}", self.origin, self.offset), &e))?;
        self.reader = Some(reader);
        self.convert(&arrow).map(Some)
    }

    fn convert(&self, arrow: &RecordBatch) -> Result<Chunk> {
        let len = arrow.num_rows();
        let mut bad = Bad::default();
        let columns = self.rules.iter().zip(&self.fields).map(|(rule, field)| match field {
            Some(field) => convert(arrow.column(*field), rule, &mut bad),
            None => convert::defaults(rule, len),
        });
        let columns: Vec<ArrayRef> = columns.collect();
        convert::bound(&columns, &self.rules, self.record_bytes_max, &mut bad);
        let batch = Batch::new(self.schema.clone(), columns, len);
        let first = self.offset;
        let next_offset = first + len as u64;
        if bad.is_empty() {
            let offsets = (first..next_offset).collect();
            return Ok(Chunk { batch, offsets, bad: Vec::new(), next_offset });
        }
        let good: Vec<bool> = (0..len).map(|row| !bad.has(row)).collect();
        let offsets = (0..len).filter(|row| good[*row]).map(|row| first + row as u64).collect();
        let bad_row = |(row, reason): (usize, String)| {
            let (raw, bytes) = self.raw(arrow, row);
            let mut reason = shorten(&reason, REASON_BYTES_MAX).into_owned();
            if raw.len() < bytes {
                reason.push_str(&format!("; raw is only the beginning of {bytes} bytes"));
            }
            let (offset, origin) = (first + row as u64, self.origin.clone());
            BadRow { offset, origin, line: 0, raw, reason }
        };
        let bad = bad.into_rows().map(bad_row).collect();
        Ok(Chunk { batch: batch.filter(&BooleanArray::from(good))?, offsets, bad, next_offset })
    }

    /// Returns the beginning of a row as text, and the size of the whole text in bytes.
    fn raw(&self, arrow: &RecordBatch, row: usize) -> (String, usize) {
        let mut out = Vec::new();
        for (rule, field) in self.rules.iter().zip(&self.fields) {
            let Some(field) = field else { continue };
            out.push(if out.is_empty() { b'{' } else { b',' });
            crate::json::write_string(&rule.field, &mut out);
            out.push(b':');
            convert::show(arrow.column(*field), row, &mut out);
        }
        out.push(b'}');
        let head = &out[..out.len().min(BadRow::RAW_BYTES_MAX)];
        (cut(&String::from_utf8_lossy(head), BadRow::RAW_BYTES_MAX).to_string(), out.len())
    }

    fn read(&mut self, rows_max: usize) -> Result<Polled> {
        if rows_max == 0 {
            return Ok(Polled::Pending);
        }
        let mut chunk = match self.decoded.take() {
            Some(chunk) => chunk,
            None => match self.decode()? {
                Some(chunk) => chunk,
                None => return Ok(Polled::End),
            },
        };
        if chunk.rows() > rows_max {
            let front = chunk.split_off_front(rows_max);
            self.decoded = Some(std::mem::replace(&mut chunk, front));
        }
        self.offset = chunk.next_offset;
        Ok(Polled::Rows(chunk))
    }

    fn go_to(&mut self, place: &Place) -> Result<()> {
        self.failed = None;
        self.reader = None;
        self.decoded = None;
        self.offset = place.offset;
        if place.offset == 0 {
            return Ok(());
        }
        let origin = &self.origin;
        let what = if place.bytes != self.len {
            format!(
                "{origin} has {} bytes; it had {} when it was read before",
                self.len, place.bytes
            )
        } else if place.checksum != self.checksum || place.offset > self.rows() {
            format!("{origin} has changed: it is not what was read before")
        } else {
            return Ok(());
        };
        Err(Error::input(what)
            .help("restore it as it was, or start again with --fresh (fresh=True)"))
    }
}

impl Source for ParquetSource {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.read(rows_max).inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn offset(&self) -> u64 {
        self.offset
    }

    fn place(&self) -> Place {
        match self.offset {
            0 => Place::start(),
            offset => {
                let (bytes, checksum) = (self.len, self.checksum);
                Place { offset, bytes, checksum, ..Place::start() }
            }
        }
    }

    fn resume(&mut self, place: &Place) -> Result<()> {
        self.go_to(place).inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn replayable(&self) -> bool {
        true
    }
}

impl FileRows for ParquetSource {}

/// Returns for each rule its place among the file's columns.
fn places(
    origin: &str,
    metadata: &ArrowReaderMetadata,
    rules: &[Rule],
    settings: &FilesSettings,
) -> Result<Vec<Option<usize>>> {
    let fields = metadata.schema().fields();
    let names = || fields.iter().map(|f| f.name().as_str());
    if settings.unknown_fields == Some(UnknownFields::Refuse) {
        if let Some(name) = names().find(|name| rules.iter().all(|r| r.field != **name)) {
            return Err(Error::input(format!("{origin}: the stream has no column '{name}'")));
        }
    }
    let place = |rule: &Rule| {
        let Rule { name, field, .. } = rule;
        let mut found = names().enumerate().filter(|(_, name)| *name == field).map(|(i, _)| i);
        match (found.next(), found.next()) {
            (Some(place), None) => {
                let why = |why| Error::input(format!("{origin}: column '{field}' {why}"));
                reading(fields[place].data_type(), rule).map_err(why)?;
                Ok(Some(place))
            }
            (Some(_), Some(_)) => {
                Err(Error::input(format!("{origin} has two columns named '{field}'")))
            }
            (None, _) if rule.optional => Ok(None),
            (None, _) => {
                let error = Error::input(format!("{origin} has no column '{field}'"));
                let near = nearest(field, names());
                let all = names().collect::<Vec<_>>().join(", ");
                Err(error.help(match near {
                    Some(near) => {
                        format!("did you mean '{near}'? Say columns={{\"{name}\": \"{near}\"}}")
                    }
                    None => format!("its columns are {}", shorten(&all, 200)),
                }))
            }
        }
    };
    rules.iter().map(place).collect()
}

/// Refuses a file with an unsupported compression.
fn unpacks(origin: &str, metadata: &ArrowReaderMetadata, mask: &ProjectionMask) -> Result<()> {
    for group in metadata.metadata().row_groups() {
        for (leaf, column) in group.columns().iter().enumerate() {
            if column.compression() == Compression::LZO && mask.leaf_included(leaf) {
                let (name, codec) = (column.column_path(), column.compression());
                return Err(Error::input(format!(
                    "{origin}: column {name} is compressed with {codec}"
                ))
                .help(
                    "write the file with zstd, snappy, gzip, lz4, brotli, or without compression",
                ));
            }
        }
    }
    Ok(())
}

/// Takes the unit of times from hints for Arrow. Parquet has no seconds, so some writers store
/// plain integers with such a hint.
fn take_units(metadata: &ArrowReaderMetadata, rules: &mut [Rule], places: &[Option<usize>]) {
    let described = metadata.metadata().file_metadata();
    let hints = described.key_value_metadata();
    let hinted = quiet(|| parquet_to_arrow_schema(described.schema_descr(), hints));
    let Ok(hinted) = hinted else { return };
    for (rule, place) in rules.iter_mut().zip(places) {
        let Some(place) = *place else { continue };
        if metadata.schema().field(place).data_type().is_integer()
            && matches!(rule.time, TimeFormat::Iso)
        {
            match hinted.fields().get(place).map_or(&ArrowType::Null, |f| f.data_type()) {
                ArrowType::Timestamp(TimeUnit::Second, _) => rule.time = TimeFormat::Unix(6),
                ArrowType::Date64 => rule.time = TimeFormat::Unix(3),
                _ => {}
            }
        }
    }
}

/// A damaged file may make the library panic in a place that it holds for impossible.
fn quiet<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    let caught = catch_unwind(AssertUnwindSafe(read));
    caught.unwrap_or_else(|_| Err(ParquetError::General("its bytes contradict each other".into())))
}

/// Returns the error for a file that can't be decoded or read.
pub(crate) fn damaged(origin: &str, error: &ParquetError) -> Error {
    if let ParquetError::External(inner) = error {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            return Error::io(format!("reading {origin}"), io);
        }
    }
    Error::input(format!("{origin} is damaged, or not a Parquet file: {error}"))
        .help("restore the file, or remove it")
}
