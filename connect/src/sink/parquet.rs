//! A sink that writes Parquet files.
//!
//! A Parquet file can't be read before its end is written. So rows go to part files, each of which
//! gets its name when it is complete. At the end the parts become one file:
//!
//! ```text
//! out.parquet.parts/0000000000000000-4096.parquet     first row in hexadecimal, number of rows
//! out.parquet.parts/0000000000001000-77.parquet
//! out.parquet.parts/.part                             the one that is being written
//! out.parquet                                         at the end; then the parts are removed
//! ```
//!
//! Published rows are never written again: repeated rows after a crash are skipped up to the end of
//! the last part. So the file and its parts always hold the first rows of the output, each once. If
//! parts have rows that are already in the file, a crash has interrupted the merging.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::SchemaRef;
use parquet::arrow::arrow_writer::{ArrowWriter, ArrowWriterOptions};
use parquet::arrow::ArrowSchemaConverter;
use parquet::basic::{Compression, Encoding};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, TypePtr};
use tidemill_core::batch::arrow_schema;
use tidemill_core::{Batch, DataType, Error, Kind, Result, Schema};
use tidemill_env::{Clock, Disk, Env, WriteFile};

use super::target::{check_schema, check_target, folder, io_error, Start};
use super::{Sink, SinkPlace};
use crate::parquet::Chunks;

/// The number of rows after which a part is published.
const PART_ROWS: u64 = 1 << 20;
/// The size in bytes after which a part is published.
const PART_BYTES: usize = 64 << 20;
/// The age in nanoseconds after which a part is published.
const PART_NS: u64 = 10_000_000_000;
/// The part that is being written.
const PART: &str = ".part";
/// The file that is being merged.
const MERGED: &str = ".merged";

/// Writes Parquet files.
pub(super) struct ParquetSink {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    path: PathBuf,
    parts: PathBuf,
    schema: Arc<Schema>,
    arrow: SchemaRef,
    root: TypePtr,
    /// The rows in the file itself.
    merged: u64,
    /// The rows in the file and in parts.
    published: u64,
    /// The committed rows, of which those up to `published` are skipped.
    rows: u64,
    part: Option<Part>,
    pending: Vec<Batch>,
    pending_rows: u64,
    finished: bool,
    failed: Option<Error>,
}

/// The part that is being written, after the published rows.
struct Part {
    writer: ArrowWriter<Box<dyn WriteFile>>,
    rows: u64,
    begun_ns: u64,
}

/// Returns the folder of a file's parts.
pub(super) fn parts(path: &Path) -> PathBuf {
    let mut parts = path.as_os_str().to_owned();
    parts.push(".parts");
    parts.into()
}

/// The faults of the operations below.
enum Fault {
    Io(io::Error),
    Parquet(ParquetError),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}

impl From<ParquetError> for Fault {
    fn from(error: ParquetError) -> Fault {
        match error {
            ParquetError::External(inner) => match inner.downcast::<io::Error>() {
                Ok(io) => Fault::Io(*io),
                Err(inner) => Fault::Parquet(ParquetError::External(inner)),
            },
            other => Fault::Parquet(other),
        }
    }
}

impl ParquetSink {
    /// Begins a new output, or continues one.
    pub fn open(env: &Env, path: &Path, start: Start, schema: &Arc<Schema>) -> Result<ParquetSink> {
        let arrow = Arc::new(arrow_schema(schema));
        let root = ArrowSchemaConverter::new()
            .convert(&arrow)
            .map_err(|e| Error::internal(format!("{} as Parquet: {e}", path.display())))?
            .root_schema_ptr();
        let mut sink = ParquetSink {
            disk: env.disk.clone(),
            clock: env.clock.clone(),
            path: path.into(),
            parts: parts(path),
            schema: schema.clone(),
            arrow,
            root,
            merged: 0,
            published: 0,
            rows: 0,
            part: None,
            pending: Vec::new(),
            pending_rows: 0,
            finished: false,
            failed: None,
        };
        match start {
            Start::New { overwrite } => sink.begin(overwrite)?,
            Start::At(place) => sink.resume(&place)?,
        }
        Ok(sink)
    }

    /// Removes existing files durably, so that a later start doesn't take them for its own.
    fn begin(&mut self, overwrite: bool) -> Result<()> {
        check_target(&*self.disk, &self.path, overwrite)?;
        let parts = self.names()?;
        if !overwrite && parts.iter().any(|path| number(path).is_some()) {
            return Err(Error::setting(format!("{} has files already", self.parts.display()))
                .help(
                    "--fresh (fresh=True) starts again and replaces them; or write to another file",
                ));
        }
        let start = || {
            self.disk.create_dir_all(folder(&self.path))?;
            if self.disk.exists(&self.path)? {
                self.disk.remove(&self.path)?;
            }
            self.disk.sync_dir(folder(&self.path))?;
            self.remove_parts(&parts)
        };
        start().map_err(|e| io_error(&self.path, &e))
    }

    /// Finds the published rows.
    fn resume(&mut self, place: &SinkPlace) -> Result<()> {
        let fail = |e: io::Error| io_error(&self.path, &e);
        self.disk.create_dir_all(folder(&self.path)).map_err(fail)?;
        let there = match self.disk.metadata(&self.path) {
            Ok(meta) => meta.len > 0,
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(fail(e)),
        };
        self.merged = if there { self.rows_of(&self.path)? } else { 0 };
        self.published = self.merged;
        let mut gone = Vec::new();
        for path in self.names()? {
            let Some((first, rows)) = number(&path) else {
                gone.extend(Some(path).filter(|path| is_ours(path)));
                continue;
            };
            if first + rows <= self.merged {
                gone.push(path);
            } else if first != self.published || self.rows_of(&path)? != rows {
                let (parts, next) = (self.parts.display(), self.published);
                return Err(self.other(format!(
                    "{parts} should go on with row {next}, but its next file is {}",
                    path.display()
                )));
            } else {
                self.published += rows;
            }
        }
        if self.published < place.rows {
            let (shown, found, rows) = (self.path.display(), self.published, place.rows);
            return Err(
                self.other(format!("{shown} and its parts have {found} rows instead of {rows}"))
            );
        }
        self.rows = place.rows;
        self.remove(&gone).map_err(|e| io_error(&self.path, &e))?;
        // A visible name need not be durable.
        let store = || {
            if self.published > self.merged {
                self.disk.sync_dir(&self.parts)?;
            }
            self.disk.sync_dir(folder(&self.path))
        };
        store().map_err(|e| io_error(&self.path, &e))
    }

    fn other(&self, what: String) -> Error {
        Error::new(Kind::Io, format!("{what}: that is not what was written before"))
            .help("restore the files as they were, or start again with --fresh (fresh=True)")
    }

    /// Returns the number of rows of a file, which must be one of this sink's.
    fn rows_of(&self, path: &Path) -> Result<u64> {
        let read = || -> Result<ParquetMetaData, Fault> { Ok(self.described(path)?.1) };
        match read() {
            Err(Fault::Io(e)) => Err(io_error(path, &e)),
            Ok(described) if described.file_metadata().schema() == &*self.root => {
                Ok(described.file_metadata().num_rows().max(0) as u64)
            }
            _ => Err(self.other(format!("{} is damaged, or has other columns", path.display()))),
        }
    }

    fn described(&self, path: &Path) -> Result<(Chunks, ParquetMetaData), Fault> {
        let chunks = Chunks::open(&*self.disk, path)?;
        let described = ParquetMetaDataReader::new().parse_and_finish(&chunks)?;
        Ok((chunks, described))
    }

    /// Returns the files in the folder of parts, sorted.
    fn names(&self) -> Result<Vec<PathBuf>> {
        match self.disk.list(&self.parts) {
            Ok(paths) => Ok(paths),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(io_error(&self.path, &e)),
        }
    }

    fn remove(&self, paths: &[PathBuf]) -> io::Result<()> {
        paths.iter().filter(|path| is_ours(path)).try_for_each(|path| self.disk.remove(path))
    }

    /// Removes these parts, which are all parts, and their folder.
    fn remove_parts(&self, paths: &[PathBuf]) -> io::Result<()> {
        self.remove(paths)?;
        match self.disk.sync_dir(&self.parts).and_then(|()| self.disk.remove_dir(&self.parts)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            // Another program has files there, and they stay.
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => other,
        }
    }

    fn properties(&self) -> WriterProperties {
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_max_row_group_row_count(Some(PART_ROWS as usize))
            .set_created_by("tidemill".into());
        // A dictionary pays off for texts. For numbers it takes more time than everything else.
        // Integers are small as differences. Compressing these saves nothing, and would take half
        // of the time of writing and reading.
        for column in &self.schema.columns {
            let path = ColumnPath::from(&*column.name);
            if matches!(column.ty, DataType::Int | DataType::Timestamp) {
                properties = properties
                    .set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED)
                    .set_column_compression(path.clone(), Compression::UNCOMPRESSED);
            }
            if !matches!(column.ty, DataType::Str | DataType::List(_)) {
                properties = properties.set_column_dictionary_enabled(path, false);
            }
        }
        properties.build()
    }

    fn begin_part(&self) -> Result<Part, Fault> {
        self.disk.create_dir_all(&self.parts)?;
        let file = self.disk.create(&self.parts.join(PART))?;
        // The types are plain Parquet types, so Arrow's need not be stored.
        let options = ArrowWriterOptions::new()
            .with_properties(self.properties())
            .with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(file, self.arrow.clone(), options)?;
        Ok(Part { writer, rows: 0, begun_ns: self.clock.monotonic_ns() })
    }

    fn try_commit(&mut self) -> Result<(), Fault> {
        for batch in std::mem::take(&mut self.pending) {
            let (first, rows) = (self.rows, batch.len() as u64);
            self.rows += rows;
            let known = self.published.saturating_sub(first).min(rows) as usize;
            let new = batch.slice(known, batch.len() - known);
            if new.is_empty() {
                continue;
            }
            let mut part = match self.part.take() {
                Some(part) => part,
                None => self.begin_part()?,
            };
            let arrow = new.to_arrow().map_err(|e| ParquetError::General(e.what))?;
            part.writer.write(&arrow)?;
            part.rows += new.len() as u64;
            let bytes = part.writer.in_progress_size() + part.writer.bytes_written();
            let full = part.rows >= PART_ROWS || bytes >= PART_BYTES;
            self.part = Some(part);
            if full {
                self.publish()?;
            }
        }
        let now = self.clock.monotonic_ns();
        match &self.part {
            Some(part) if now.saturating_sub(part.begun_ns) >= PART_NS => self.publish(),
            _ => Ok(()),
        }
    }

    /// Completes the part that is being written, and gives it its name.
    fn publish(&mut self) -> Result<(), Fault> {
        let Some(Part { writer, rows, .. }) = self.part.take() else { return Ok(()) };
        writer.into_inner()?.sync()?;
        let name = format!("{:016x}-{rows}.parquet", self.published);
        self.disk.rename(&self.parts.join(PART), &self.parts.join(name))?;
        // This comes before the next part: there must never be a part without those before it.
        self.disk.sync_dir(&self.parts)?;
        self.published += rows;
        Ok(())
    }

    /// Merges the parts into one file.
    fn merge(&mut self) -> Result<(), Fault> {
        let list = match self.disk.list(&self.parts) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let parts: Vec<&PathBuf> = list.iter().filter(|path| number(path).is_some()).collect();
        let there = self.merged > 0 || self.published == 0 && self.disk.exists(&self.path)?;
        match parts[..] {
            [] if there => {}
            // The part is the file.
            [part] if self.merged == 0 => self.disk.rename(part, &self.path)?,
            _ => {
                self.disk.create_dir_all(&self.parts)?;
                let merged = self.parts.join(MERGED);
                let base = Some(&self.path).filter(|_| self.merged > 0);
                self.copy(base.into_iter().chain(parts.iter().copied()), &merged)?;
                self.disk.rename(&merged, &self.path)?;
            }
        }
        self.disk.sync_dir(folder(&self.path))?;
        self.merged = self.published;
        match self.disk.list(&self.parts) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            left => Ok(self.remove_parts(&left?)?),
        }
    }

    /// Copies the row groups of these files unchanged to a new one.
    fn copy<'a>(&self, from: impl Iterator<Item = &'a PathBuf>, to: &Path) -> Result<(), Fault> {
        let file = self.disk.create(to)?;
        let properties = Arc::new(self.properties());
        let mut writer = SerializedFileWriter::new(file, self.root.clone(), properties)?;
        for path in from {
            let (chunks, described) = self.described(path)?;
            for group in described.row_groups() {
                let mut copy = writer.next_row_group()?;
                for column in group.columns() {
                    let closed = ColumnCloseResult {
                        bytes_written: column.compressed_size().max(0) as u64,
                        rows_written: group.num_rows().max(0) as u64,
                        metadata: column.clone(),
                        bloom_filter: None,
                        column_index: None,
                        offset_index: None,
                    };
                    copy.append_column(&chunks, closed)?;
                }
                copy.close()?;
            }
        }
        Ok(writer.into_inner()?.sync()?)
    }

    fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn guard(&mut self, done: Result<(), Fault>) -> Result<()> {
        let error = match done {
            Ok(()) => return Ok(()),
            Err(Fault::Io(e)) => io_error(&self.path, &e),
            Err(Fault::Parquet(e)) => {
                Error::new(Kind::Io, format!("writing {}: {e}", self.path.display()))
            }
        };
        self.failed = Some(error.clone());
        Err(error)
    }
}

/// Returns the first row and the number of rows from the name of a part.
fn number(path: &Path) -> Option<(u64, u64)> {
    let (first, rows) = path.file_name()?.to_str()?.strip_suffix(".parquet")?.split_once('-')?;
    let first = Some(first).filter(|f| f.len() == 16).map(|f| u64::from_str_radix(f, 16));
    Some((first?.ok()?, rows.parse().ok()?))
}

/// Whether a file in the folder of parts is this sink's, and not one of another program.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    number(path).is_some() || matches!(name, Some(PART | MERGED))
}

impl Sink for ParquetSink {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        self.check()?;
        let origin = self.path.display().to_string();
        if self.finished {
            return Err(Error::internal(format!("{origin} is written after its end")));
        }
        check_schema(&origin, &self.schema, batch)?;
        if !batch.is_empty() {
            self.pending.push(batch.clone());
            self.pending_rows += batch.len() as u64;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.check()?;
        self.pending_rows = 0;
        let done = self.try_commit();
        self.guard(done)
    }

    fn place(&self) -> SinkPlace {
        SinkPlace { rows: self.rows + self.pending_rows, ..SinkPlace::default() }
    }

    fn sync(&mut self) -> Result<SinkPlace> {
        self.check()?;
        let done = self.publish();
        self.guard(done)?;
        Ok(SinkPlace { rows: self.rows, ..SinkPlace::default() })
    }

    /// Checks that no parts follow the rows that were written again. Such parts would be outputs
    /// that were never computed: their cut was not durable.
    fn settle(&mut self) -> Result<()> {
        self.check()?;
        if self.rows >= self.published {
            return Ok(());
        }
        let what = format!(
            "{} and its parts have {} rows, and {} were to be written again",
            self.path.display(),
            self.published,
            self.rows
        );
        let error = self.other(what);
        self.failed = Some(error.clone());
        Err(error)
    }

    fn finish(&mut self) -> Result<()> {
        self.check()?;
        if self.finished {
            return Ok(());
        }
        self.pending = Vec::new();
        self.pending_rows = 0;
        self.settle()?;
        let mut done = self.publish();
        if done.is_ok() && self.published == 0 {
            // A file without rows still has columns.
            done = self.begin_part().map(|part| self.part = Some(part));
            done = done.and_then(|()| self.publish());
        }
        let done = done.and_then(|()| self.merge());
        self.guard(done)?;
        self.finished = true;
        Ok(())
    }
}
