//! Removal of records that are no longer needed.

use std::io::ErrorKind;

use tidemill_core::Result;

use crate::errors;
use crate::open::Log;

impl Log {
    /// Removes the segments all of whose records have numbers below `below`. Returns their number.
    /// Later records stay, and so do earlier ones in the same segment. The segment that is being
    /// written always stays.
    ///
    /// # Errors
    /// If a file can't be removed, it and later ones still exist, and the log continues. If the
    /// directory can't be synced, the log has stopped.
    pub fn trim(&mut self, below: u64) -> Result<u64> {
        self.check_alive()?;
        let mut removed = 0;
        while self.segments.get(1).is_some_and(|second| second.header.first <= below) {
            let Some(path) = self.segments.front().map(|first| first.path.clone()) else { break };
            match self.disk.remove(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(errors::io(&path, "removing a segment", &e));
                }
                _ => {}
            }
            // They are removed one by one: a crash must not leave an older segment and lose a newer
            // one.
            if let Err(e) = self.disk.sync_dir(&self.spec.dir) {
                let error = errors::io(&self.spec.dir, "syncing the directory", &e);
                return Err(self.stop(error));
            }
            self.segments.pop_front();
            removed += 1;
        }
        Ok(removed)
    }
}
