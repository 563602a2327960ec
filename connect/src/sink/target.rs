//! Files that sinks write to: whether writing is allowed, and the place in them.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use tidemill_core::encode::Hasher128;
use tidemill_core::{Batch, Error, Kind, Result, Schema};
use tidemill_env::{Disk, WriteFile};

use super::{FileEnd, SinkPlace};
use crate::checksum::Checksum;

/// The bytes that are read at a time when a file is compared with its checksum.
const PIECE_BYTES: usize = 1 << 18;

/// The number of bytes by which a short text may grow when it is compressed.
const PACKED_BYTES: u64 = 64;

/// The first bytes of a compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The start of a sink.
#[derive(Clone, Debug)]
pub(super) enum Start {
    /// With a new file.
    New { overwrite: bool },
    /// At a place in an earlier file.
    At(SinkPlace),
}

/// A file that is written, and the hash of its content.
pub(super) struct Target {
    file: Box<dyn WriteFile>,
    at: u64,
    hash: Hasher128,
}

impl Target {
    /// Creates the file, or begins it again.
    ///
    /// About the content before a place without rows nothing is known. So nothing is compared, and
    /// nothing is cut before it was written again. A file that holds only the header that it would
    /// get counts as new.
    pub fn create(disk: &dyn Disk, path: &Path, start: Start, header: &[u8]) -> Result<Target> {
        let fail = |e: io::Error| io_error(path, &e);
        let file = match start {
            Start::New { overwrite } => {
                let overwrite = overwrite || holds_at_most(disk, path, header).map_err(fail)?;
                check_target(disk, path, overwrite)?;
                disk.create_dir_all(folder(path)).map_err(fail)?;
                disk.create(path).map_err(fail)?
            }
            Start::At(_) => {
                disk.create_dir_all(folder(path)).map_err(fail)?;
                disk.open_at(path, 0).map_err(fail)?
            }
        };
        Ok(Target { file, at: 0, hash: Hasher128::default() })
    }

    /// Opens the file after its earlier content, all of which is read and compared.
    pub fn resume(disk: &dyn Disk, path: &Path, place: &SinkPlace) -> Result<Target> {
        let shown = path.display();
        let Some(end) = place.end else {
            return Err(Error::internal(format!(
                "{shown} is to be continued after row {}, which is not a place where it can be \
                 continued",
                place.rows
            )));
        };
        let fail = |e: io::Error| io_error(path, &e);
        let refuse = |what: String| {
            let rows = place.rows;
            Err(Error::new(
                Kind::Io,
                format!("{shown} {what}, after {rows} rows were written to it"),
            )
            .help("restore it as it was, or start again with --fresh (fresh=True)"))
        };
        let mut file = match disk.open_read(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return refuse("was removed".into()),
            other => other.map_err(fail)?,
        };
        let len = file.len().map_err(fail)?;
        if len < end.len {
            return refuse(format!("has {len} bytes instead of {}", end.len));
        }
        let mut hash = Hasher128::default();
        let mut piece = vec![0; end.len.min(PIECE_BYTES as u64) as usize];
        let mut left = end.len;
        while left > 0 {
            let wanted = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            file.read_exact(&mut piece[..wanted]).map_err(fail)?;
            hash.update(&piece[..wanted]);
            left -= wanted as u64;
        }
        if Checksum(hash.digest()) != end.checksum {
            return refuse("was changed, or another file has its name".into());
        }
        Ok(Target { file: disk.open_at(path, end.len).map_err(fail)?, at: end.len, hash })
    }

    /// Returns the present end, or the end after these bytes.
    pub fn end(&self, pending: &[u8]) -> FileEnd {
        let mut hash = self.hash.clone();
        hash.update(pending);
        FileEnd { len: self.at + pending.len() as u64, checksum: Checksum(hash.digest()) }
    }

    /// Cuts off the content after the present end.
    pub fn cut(&mut self) -> io::Result<()> {
        match self.file.len()? > self.at {
            true => self.file.set_len(self.at),
            false => Ok(()),
        }
    }

    /// Makes the written content durable.
    pub fn sync(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.sync()
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.at += written as u64;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Returns the folder that a file is in.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Whether a file holds a header, or less: its writer was stopped before the first row.
fn holds_at_most(disk: &dyn Disk, path: &Path, header: &[u8]) -> io::Result<bool> {
    let mut file = match disk.metadata(path) {
        Ok(meta) if !meta.is_dir && meta.len <= header.len() as u64 + PACKED_BYTES => {
            disk.open_read(path)?
        }
        Ok(_) => return Ok(false),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    let mut found = Vec::new();
    file.read_to_end(&mut found)?;
    if found.starts_with(&GZIP) {
        let mut unpacked = Vec::new();
        // Its end may be missing.
        let _ = MultiGzDecoder::new(&found[..]).read_to_end(&mut unpacked);
        found = unpacked;
    }
    Ok(header.starts_with(&found))
}

pub(super) fn check_target(disk: &dyn Disk, path: &Path, overwrite: bool) -> Result<()> {
    let shown = path.display();
    match disk.metadata(path) {
        Ok(meta) if meta.is_dir => {
            Err(Error::setting(format!("{shown} is a folder; a sink writes a file")))
        }
        Ok(meta) if meta.len > 0 && !overwrite => {
            Err(Error::setting(format!("{shown} is there already, with {} bytes in it", meta.len))
                .help(
                    "--fresh (fresh=True) starts again and replaces it; or write to another file",
                ))
        }
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(io_error(path, &e)),
    }
}

pub(super) fn io_error(path: &Path, error: &io::Error) -> Error {
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
