//! The errors of a log: what is wrong, where, and how to mend it.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tidemill_core::{Error, Kind};

/// A damaged copy of data that is stored twice. The other copy is whole, so nothing is lost. The
/// disk may be failing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub path: PathBuf,
    /// The place at which the damaged copy begins, in bytes.
    pub at: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { path, at } = self;
        write!(f, "{}: the copy at byte {at} is damaged; the other one is whole", path.display())
    }
}

/// Returns the error for data that is not as it was written.
pub(crate) fn damaged(path: &Path, at: u64, what: impl fmt::Display) -> Error {
    let path = path.display();
    Error::new(Kind::Io, format!("{path}: damaged at byte {at}: {what}")).help(
        "the log is left as it is; restore this file, or the whole data directory, from a backup",
    )
}

/// Returns the error for a log that ends before records that are known to have been stored.
pub(crate) fn too_few(path: &Path, at: u64, there: u64, needed: u64) -> Error {
    let what = format_args!(
        "the log ends here with {there} records, and {needed} are known to have been stored"
    );
    damaged(path, at, what)
}

/// Returns the error for a failed call of the disk.
pub(crate) fn io(path: &Path, doing: &str, error: &io::Error) -> Error {
    Error::io(format_args!("{}: {doing}", path.display()), error)
}

/// Whether a failed call says that there is no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Returns the error that there is no room for further blocks.
pub(crate) fn full(path: &Path, bytes: u64, error: &io::Error) -> Error {
    let path = path.display();
    Error::resource(format!("{path}: no room for {bytes} more bytes of the log: {error}"))
        .help("free space on this disk; the log is intact, and can go on then")
}

/// Returns the error for a call of a log that has stopped.
pub(crate) fn stopped(dir: &Path, earlier: &Error) -> Error {
    let what = format!("{}: the log has stopped: {}", dir.display(), earlier.what);
    Error::new(earlier.kind, what).help(
        "after a failed write the content of the disk is unknown: start again, \
         so that the log is read from it",
    )
}
