//! Cuts: what ends an epoch.

use serde::{Deserialize, Serialize};

use crate::ids::SourceId;
use crate::stamp::Position;

/// A cut ends an epoch. Together with the program, the initial state and the inputs it determines
/// the outcome; cutting elsewhere changes nothing but *when*, for programs in event time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Number of the epoch that this cut ends, from 1.
    pub epoch: u64,
    /// Per source partition: the offset of the first row that is *not* in this or an earlier epoch.
    pub offsets: Vec<u64>,
    /// Per stream: every event before this position has been seen. Streams that touch a common
    /// table share the lowest.
    pub watermarks: Vec<Position>,
    /// The engine's clock in microseconds since 1970; strictly rising from cut to cut.
    pub clock_us: i64,
    /// Sources that did not hold the watermark back, because they had been silent too long.
    pub idle: Vec<SourceId>,
    /// Sources that have ended: they hold nothing back. A file may still grow between two runs.
    pub ended: Vec<SourceId>,
}

/// A row that is late by the earlier rows of its own source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateRow {
    /// Its place in the source.
    pub offset: u64,
    /// Its time.
    pub time_us: i64,
    /// The newest time of the rows before it, less the disorder of the source: the row is before that.
    pub bound_us: i64,
}
