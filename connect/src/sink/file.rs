//! Rows into a file.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::write::GzEncoder;
use flate2::Compression;
use tidemill_core::{Batch, Error, Kind, Result, Schema};
use tidemill_env::{Disk, WriteFile};

use super::Sink;

/// How rows become bytes.
pub(super) trait Encode: Send {
    /// What stands before the first row.
    fn header(&self, out: &mut Vec<u8>);
    /// Appends rows.
    fn rows(&mut self, batch: &Batch, out: &mut Vec<u8>);
}

/// Writes a file. Rows wait in memory until they are committed.
///
/// A commit hands them to the operating system (of a packed file: to the packer, so they may be
/// seen only at the end); they are safe from a power cut when `finish` has returned.
pub(super) struct FileSink<E> {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    schema: Arc<Schema>,
    encode: E,
    /// `None` after the end.
    out: Option<Out>,
    pending: Vec<u8>,
    failed: Option<Error>,
}

enum Out {
    Plain(Box<dyn WriteFile>),
    Packed(GzEncoder<Box<dyn WriteFile>>),
}

impl Out {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Out::Plain(file) => file.write_all(bytes).and_then(|()| file.flush()),
            Out::Packed(packer) => packer.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        let mut file = match self {
            Out::Plain(file) => file,
            Out::Packed(packer) => packer.finish()?,
        };
        file.flush()?;
        file.sync()
    }
}

impl<E: Encode> FileSink<E> {
    /// Creates the file and writes its header.
    pub fn open(
        disk: Arc<dyn Disk>,
        path: &Path,
        overwrite: bool,
        schema: Arc<Schema>,
        encode: E,
    ) -> Result<FileSink<E>> {
        check_target(&*disk, path, overwrite)?;
        let fail = |e: io::Error| io_error(path, &e);
        disk.create_dir_all(folder(path)).map_err(fail)?;
        let file = disk.create(path).map_err(fail)?;
        let packed = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"));
        let mut out = match packed {
            true => Out::Packed(GzEncoder::new(file, Compression::fast())),
            false => Out::Plain(file),
        };
        let mut header = Vec::new();
        encode.header(&mut header);
        out.write_all(&header).map_err(fail)?;
        let path = path.into();
        Ok(FileSink {
            disk,
            path,
            schema,
            encode,
            out: Some(out),
            pending: Vec::new(),
            failed: None,
        })
    }

    fn guard(&mut self, done: io::Result<()>) -> Result<()> {
        let done = done.map_err(|e| io_error(&self.path, &e));
        if let Err(error) = &done {
            self.failed = Some(error.clone());
        }
        done
    }
}

impl<E: Encode> Sink for FileSink<E> {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        let origin = self.path.display();
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.out.is_none() {
            return Err(Error::internal(format!("{origin} is written after its end")));
        }
        check_schema(&origin.to_string(), &self.schema, batch)?;
        self.encode.rows(batch, &mut self.pending);
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        let done = match &mut self.out {
            Some(out) => out.write_all(&self.pending),
            None => Ok(()),
        };
        self.pending.clear();
        // One large epoch must not hold its memory for ever.
        self.pending.shrink_to(1 << 20);
        self.guard(done)
    }

    fn finish(&mut self) -> Result<()> {
        self.pending = Vec::new();
        let Some(out) = self.out.take() else { return Ok(()) };
        let done = out.finish().and_then(|()| self.disk.sync_dir(folder(&self.path)));
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => self.guard(done),
        }
    }
}

/// The folder that a file is in.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn check_target(disk: &dyn Disk, path: &Path, overwrite: bool) -> Result<()> {
    let shown = path.display();
    match disk.metadata(path) {
        Ok(meta) if meta.is_dir => {
            Err(Error::setting(format!("{shown} is a folder; a sink writes a file")))
        }
        Ok(meta) if meta.len > 0 && !overwrite => {
            Err(Error::setting(format!("{shown} is there already, with {} bytes in it", meta.len))
                .help("--fresh starts anew and replaces it; or write to another file"))
        }
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(io_error(path, &e)),
    }
}

fn io_error(path: &Path, error: &io::Error) -> Error {
    let io = Error::io(format!("writing {}", path.display()), error);
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error { kind: Kind::Resource, ..io }.help("free some space, then run again")
        }
        io::ErrorKind::PermissionDenied => Error { kind: Kind::Resource, ..io }
            .help("let this user write there, or choose another file"),
        io::ErrorKind::NotADirectory => {
            Error { kind: Kind::Setting, ..io }.help("a file is in the way of a folder of the path")
        }
        _ => io,
    }
}

/// Refuses rows of another schema.
pub(super) fn check_schema(origin: &str, schema: &Arc<Schema>, batch: &Batch) -> Result<()> {
    if Arc::ptr_eq(schema, batch.schema()) || schema == batch.schema() {
        return Ok(());
    }
    Err(Error::internal(format!("rows of another schema are written to {origin}")))
}
