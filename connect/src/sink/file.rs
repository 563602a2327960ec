//! A sink that writes rows into a file.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::write::GzEncoder;
use flate2::Compression;
use tidemill_core::{Batch, Error, Result, Schema};
use tidemill_env::Disk;

use super::target::{check_schema, folder, io_error, Start, Target};
use super::{Sink, SinkPlace};

/// The way in which rows become bytes. The same rows become the same bytes.
pub(super) trait Encode: Send {
    /// Appends the text before the first row.
    fn header(&self, out: &mut Vec<u8>);
    /// Appends rows.
    fn rows(&mut self, batch: &Batch, out: &mut Vec<u8>);
}

/// Writes a file. Rows wait in memory until they are committed.
///
/// A commit hands them to the operating system. For a compressed file it hands them to the
/// compressor, so they may be visible only after a sync. Rows are safe from a power cut when `sync`
/// or `finish` has returned. Rows that are written again after a crash overwrite the same bytes. A
/// compressed file is first cut at the place, because compressing again may give other bytes.
pub(super) struct FileSink<E> {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    schema: Arc<Schema>,
    encode: E,
    /// The output; `None` after the end.
    out: Option<Out>,
    pending: Vec<u8>,
    pending_rows: u64,
    /// The committed rows and bytes.
    rows: u64,
    bytes: u64,
    /// Whether there may be data after the place at which the file was opened.
    unsettled: bool,
    /// Whether the committed rows are durable, and whether the file's name is.
    synced: bool,
    named: bool,
    /// The sink's place at its end.
    last: SinkPlace,
    failed: Option<Error>,
}

enum Out {
    Plain(Target),
    /// Within a member of a gzip file.
    Packed(GzEncoder<Target>),
    /// Between two members.
    Between(Target),
}

impl Out {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Out::Plain(target) => target.write_all(bytes).and_then(|()| target.flush()),
            Out::Packed(packer) => packer.write_all(bytes),
            Out::Between(_) => unreachable!("a member is begun before something is written"),
        }
    }

    /// Returns an output that is ready for writing.
    fn open(self) -> Out {
        match self {
            Out::Between(target) => Out::Packed(GzEncoder::new(target, Compression::fast())),
            other => other,
        }
    }

    /// Returns an output that holds nothing back.
    fn closed(self) -> io::Result<Out> {
        match self {
            Out::Packed(packer) => Ok(Out::Between(packer.finish()?)),
            other => Ok(other),
        }
    }

    fn target(&mut self) -> &mut Target {
        match self {
            Out::Plain(target) | Out::Between(target) => target,
            Out::Packed(packer) => packer.get_mut(),
        }
    }
}

impl<E: Encode> FileSink<E> {
    /// Begins the file with its header, or continues it.
    pub fn open(
        disk: Arc<dyn Disk>,
        path: &Path,
        start: Start,
        schema: Arc<Schema>,
        encode: E,
    ) -> Result<FileSink<E>> {
        let packed = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"));
        let unsettled = matches!(start, Start::At(_));
        let at = match &start {
            Start::At(place) if place.rows > 0 => Some(place.clone()),
            _ => None,
        };
        let mut header = Vec::new();
        if at.is_none() {
            encode.header(&mut header);
        }
        let mut target = match &at {
            Some(place) => Target::resume(&*disk, path, place)?,
            None => Target::create(&*disk, path, start, &header)?,
        };
        let fail = |e: io::Error| io_error(path, &e);
        if packed {
            target.cut().map_err(fail)?;
        }
        let mut out = if packed { Out::Between(target) } else { Out::Plain(target) };
        if at.is_none() {
            out = out.open();
            out.write_all(&header).map_err(fail)?;
        }
        let SinkPlace { rows, bytes, .. } =
            at.unwrap_or(SinkPlace { bytes: header.len() as u64, ..SinkPlace::default() });
        Ok(FileSink {
            disk,
            path: path.into(),
            schema,
            encode,
            out: Some(out),
            pending: Vec::new(),
            pending_rows: 0,
            rows,
            bytes,
            unsettled,
            synced: false,
            named: false,
            last: SinkPlace::default(),
            failed: None,
        })
    }

    fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn guard<T>(&mut self, done: io::Result<T>) -> Result<T> {
        let done = done.map_err(|e| io_error(&self.path, &e));
        if let Err(error) = &done {
            self.failed = Some(error.clone());
        }
        done
    }

    fn place_with(&self, pending: &[u8], rows: u64) -> SinkPlace {
        let end = match &self.out {
            None => return self.last.clone(),
            Some(Out::Plain(target)) => Some(target.end(pending)),
            Some(Out::Between(target)) if pending.is_empty() => Some(target.end(pending)),
            Some(_) => None,
        };
        SinkPlace {
            rows: self.rows + rows,
            bytes: self.bytes + pending.len() as u64,
            end,
            ends: Vec::new(),
        }
    }

    fn try_commit(&mut self) -> io::Result<()> {
        if let Some(out) = self.out.take() {
            self.out.insert(out.open()).write_all(&self.pending)?;
        }
        Ok(())
    }

    fn try_settle(&mut self) -> io::Result<()> {
        match (&mut self.out, self.unsettled) {
            (Some(out), true) => out.target().cut()?,
            _ => return Ok(()),
        }
        self.unsettled = false;
        self.synced = false;
        Ok(())
    }

    fn try_sync(&mut self) -> io::Result<()> {
        if !self.synced {
            if let Some(out) = self.out.take() {
                self.out.insert(out.closed()?).target().sync()?;
            }
        }
        if !self.named {
            self.disk.sync_dir(folder(&self.path))?;
        }
        (self.synced, self.named) = (true, true);
        Ok(())
    }
}

impl<E: Encode> Sink for FileSink<E> {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        self.check()?;
        let origin = self.path.display();
        if self.out.is_none() {
            return Err(Error::internal(format!("{origin} is written after its end")));
        }
        check_schema(&origin.to_string(), &self.schema, batch)?;
        self.encode.rows(batch, &mut self.pending);
        self.pending_rows += batch.len() as u64;
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.check()?;
        if self.pending_rows == 0 {
            return Ok(());
        }
        let done = self.try_commit();
        self.guard(done)?;
        self.rows += std::mem::take(&mut self.pending_rows);
        self.bytes += self.pending.len() as u64;
        self.synced = false;
        self.pending.clear();
        // The memory of one large epoch must not stay for ever.
        self.pending.shrink_to(1 << 20);
        Ok(())
    }

    fn place(&self) -> SinkPlace {
        self.place_with(&self.pending, self.pending_rows)
    }

    fn sync(&mut self) -> Result<SinkPlace> {
        self.check()?;
        if self.out.is_some() {
            let done = self.try_sync();
            self.guard(done)?;
        }
        Ok(self.place_with(&[], 0))
    }

    fn settle(&mut self) -> Result<()> {
        self.check()?;
        let done = self.try_settle();
        self.guard(done)
    }

    fn finish(&mut self) -> Result<()> {
        self.check()?;
        if self.out.is_none() {
            return Ok(());
        }
        self.pending = Vec::new();
        self.pending_rows = 0;
        let done = self.try_settle().and_then(|()| self.try_sync());
        self.guard(done)?;
        self.last = self.place_with(&[], 0);
        self.out = None;
        Ok(())
    }
}
