//! Holding a directory, so that one process at a time works there.

use std::io;
use std::path::Path;

use crate::disk::{Disk, Lock};

/// The file whose lock represents that of its directory.
const LOCK: &str = "LOCK";

/// A directory that is held.
struct Held {
    _file: Box<dyn Lock>,
    _dir: Option<Box<dyn Lock>>,
}

impl Lock for Held {}

/// Takes a directory: its own lock, and that of the file `LOCK` in it, which is created if missing.
/// Returns `None` if another holder has one of them, and then changes nothing.
///
/// Only the directory's own lock holds when files in it are removed. Earlier versions of Tidemill
/// use the file alone, and some file systems have locks of files only.
///
/// # Errors
/// `NotFound` if the directory does not exist, or the error of a failed call.
pub fn hold(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Box<dyn Lock>>> {
    let own = match disk.try_lock_dir(dir) {
        Ok(Some(own)) => Some(own),
        Ok(None) => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::Unsupported => None,
        Err(e) => return Err(e),
    };
    let file = disk.try_lock(&dir.join(LOCK))?;
    Ok(file.map(|file| Box::new(Held { _file: file, _dir: own }) as Box<dyn Lock>))
}
