//! Settings: data, from file < environment < flag. Unknown ones are errors.

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Result};

/// What a user may set. Names end in their unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Worker threads; one a core when 0.
    pub workers: usize,
    /// An epoch closes as soon as the engine is idle and input waits. Otherwise only rows, bytes or
    /// time close it.
    pub epoch_idle: bool,
    /// An epoch closes at this many rows (and what its sources read at the same time).
    pub epoch_rows_max: usize,
    /// Rows that have been read and not yet taken into an epoch stay below this many bytes; at
    /// half of them the epoch closes.
    pub epoch_bytes_max: usize,
    /// An epoch closes this long after its first row was seen, in microseconds of the engine's
    /// clock.
    pub epoch_us_max: i64,
    /// Tables, parked events and kept outputs together stay below this many bytes; beyond it
    /// admission stops with an error that names the table.
    pub memory_bytes_max: usize,
    /// Rows that wait for the watermark stay below this many bytes: the source that is ahead in
    /// time is paused.
    pub parked_bytes_max: usize,
    /// Every n-th transaction of an opaque handler is run twice and compared; 0 never.
    pub rerun_every: u64,
    /// Replaces existing output files.
    pub fresh: bool,
    /// Remembers every cut of the run, for tests and for comparing runs.
    pub keep_cuts: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            workers: 0,
            epoch_idle: true,
            epoch_rows_max: 65_536,
            epoch_bytes_max: 64 << 20,
            epoch_us_max: 5_000,
            memory_bytes_max: 8 << 30,
            parked_bytes_max: 256 << 20,
            rerun_every: 64,
            fresh: false,
            keep_cuts: false,
        }
    }
}

impl Settings {
    /// Refuses what can't work.
    pub fn check(&self) -> Result<()> {
        let positive = [
            ("epoch_rows_max", self.epoch_rows_max as i64),
            ("epoch_bytes_max", self.epoch_bytes_max as i64),
            ("epoch_us_max", self.epoch_us_max),
            ("memory_bytes_max", self.memory_bytes_max as i64),
            ("parked_bytes_max", self.parked_bytes_max as i64),
        ];
        for (name, value) in positive {
            if value <= 0 {
                return Err(Error::setting(format!("{name} must be positive, not {value}")));
            }
        }
        if self.workers > 256 {
            return Err(Error::setting(format!("workers is at most 256, not {}", self.workers)));
        }
        Ok(())
    }
}
