//! Holding a directory, so that one process at a time works there.

use std::io;
use std::path::Path;

use crate::disk::{Disk, Lock};

/// The file whose lock stands for its directory's.
const LOCK: &str = "LOCK";

/// A directory that is held.
struct Held {
    _file: Box<dyn Lock>,
    _dir: Option<Box<dyn Lock>>,
}

impl Lock for Held {}

/// Takes a directory: its own lock, and that of the file `LOCK` in it, which is made when missing.
/// `None` when another holder has one of them; then nothing has changed.
///
/// Only the directory's own lock holds when somebody removes files in it. Earlier versions of Tidemill
/// know the file alone, and some file systems have locks of files only.
///
/// # Errors
/// `NotFound` when the directory does not exist; failing calls.
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
