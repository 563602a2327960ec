//! Moves of an app's state from one way to run to the other: from one process to several, and back.
//!
//! In one process the state is in the data directory itself, and on several in its folder `cluster`
//! (`process_mode.rs`). A start in the other way takes the newest snapshot, stores it in its own
//! form, and removes the old state. The contents are the same: rows and their versions, windows,
//! request ids, the positions of files and outputs, watermarks, and counts. `cluster/from_one.rs` and
//! `cluster/to_one.rs` convert it.
//!
//! The file `MOVE` makes this one step. While it says that the move is not done, the new state does
//! not count, and the next start removes it. From the moment when the file says that the move is
//! done, the old state does not count, and the next start removes what is left of it.

use std::io::{ErrorKind, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Result};
use tidemill_env::Disk;

use crate::data_dir::replace;
use crate::emptied::{remove_all, Emptied, Purpose};
use crate::process_mode::CLUSTER;

/// The file that describes a move.
pub(crate) const MOVE: &str = "MOVE";

/// A way to run an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// In one process.
    One,
    /// On several processes.
    Several,
}

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Move {
    /// The way to run whose state is being made.
    to: Way,
    is_done: bool,
}

impl Move {
    /// Begins a move. From here on, a state for the way `to` does not count until the move is done.
    ///
    /// # Errors
    /// When the disk fails.
    pub(crate) fn begin(disk: &dyn Disk, dir: &Path, to: Way) -> Result<Move> {
        let begun = Move { to, is_done: false };
        begun.write(disk, dir)?;
        Ok(begun)
    }

    /// Ends a move: the new state counts, and the old one is removed.
    ///
    /// # Errors
    /// When the disk fails. The next start completes it.
    pub(crate) fn end(self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        Move { is_done: true, ..self }.write(disk, dir)?;
        settle(disk, dir)
    }

    /// The way to run whose state counts.
    pub(crate) fn counts(self) -> Way {
        match (self.to, self.is_done) {
            (to, true) => to,
            (Way::One, false) => Way::Several,
            (Way::Several, false) => Way::One,
        }
    }

    fn write(self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let text = serde_json::to_string(&self).expect("it is JSON");
        replace(disk, dir, MOVE, &text).map_err(|e| Error::io(dir.join(MOVE).display(), &e))
    }

    /// Reads the file of a directory, if a move was interrupted there.
    ///
    /// # Errors
    /// When it can't be read.
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Move>> {
        let path = dir.join(MOVE);
        let mut text = String::new();
        match disk.open_read(&path).and_then(|mut file| file.read_to_string(&mut text)) {
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(e) => return Err(Error::io(path.display(), &e)),
        }
        serde_json::from_str(&text).map(Some).map_err(|_| {
            Error::setting(format!("{} is damaged", path.display())).help(
                "it says whether the state for one process or for several counts: restore a backup of the data directory",
            )
        })
    }
}

/// Removes the state that does not count after an interrupted move, if there was one. The caller
/// holds the directory.
///
/// # Errors
/// When the disk fails. It can be repeated.
pub(crate) fn settle(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let Some(of) = Move::read(disk, dir)? else { return Ok(()) };
    let fail = |e: &std::io::Error| Error::io(format!("the data directory {}", dir.display()), e);
    match of.counts() {
        Way::One => {
            let path = &dir.join(CLUSTER);
            if disk.exists(path).map_err(|e| fail(&e))? {
                Emptied { disk, path, purpose: Purpose::Coordinator }.remove()?;
            }
        }
        Way::Several => {
            for name in Purpose::OF_ONE {
                remove_all(disk, &dir.join(name)).map_err(|e| fail(&e))?;
            }
        }
    }
    disk.sync_dir(dir).and_then(|()| disk.remove(&dir.join(MOVE))).map_err(|e| fail(&e))?;
    disk.sync_dir(dir).map_err(|e| fail(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_state_is_left_after_an_interrupted_move() {
        for (to, is_done, left) in [
            (Way::Several, false, ["APP", "cuts"]),
            (Way::Several, true, ["cluster", "log"]),
            (Way::One, false, ["cluster", "log"]),
            (Way::One, true, ["APP", "cuts"]),
        ] {
            let env = tidemill_sim::SimEnv::new(1).env();
            let (disk, dir) = (&*env.disk, Path::new("/data"));
            for folder in ["cuts", "store", "cluster/log"] {
                disk.create_dir_all(&dir.join(folder)).unwrap();
            }
            for file in ["APP", "LOCK", "cuts/1", "store/1", "cluster/LOCK", "cluster/log/1"] {
                disk.create(&dir.join(file)).unwrap();
            }
            Move { to, is_done }.write(disk, dir).unwrap();
            settle(disk, dir).unwrap();
            let [there, inner] = left;
            assert!(disk.exists(&dir.join(there)).unwrap(), "{to:?} {is_done}");
            let is_one = there == "APP";
            let inner = if is_one { dir.join(inner) } else { dir.join("cluster").join(inner) };
            assert!(disk.exists(&inner).unwrap());
            assert_eq!(disk.exists(&dir.join("APP")).unwrap(), is_one);
            assert_eq!(disk.exists(&dir.join("cluster/log")).unwrap(), !is_one);
            assert!(!disk.exists(&dir.join(MOVE)).unwrap());
            settle(disk, dir).unwrap();
        }
    }
}
