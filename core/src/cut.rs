//! Cuts, which end epochs.

use serde::{Deserialize, Serialize};

use crate::ids::SourceId;
use crate::stamp::Position;

/// The end of an epoch.
///
/// A cut, the program, the initial state and the inputs together determine the outcome. For
/// programs in event time, a cut elsewhere changes only *when* things happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// The number of the epoch that this cut ends, from 1.
    pub epoch: u64,
    /// The offset of the first row that is *not* in this or an earlier epoch, per source partition.
    pub offsets: Vec<u64>,
    /// The position before which every event has been seen, per stream. Streams that touch a common
    /// table share the lowest one.
    pub watermarks: Vec<Position>,
    /// The engine's clock, in microseconds since 1970. It rises strictly from cut to cut.
    pub clock_us: i64,
    /// The sources that did not hold back the watermark, because they had been silent too long.
    pub idle: Vec<SourceId>,
    /// The sources that have ended and hold nothing back. A file may still grow between two runs.
    pub ended: Vec<SourceId>,
}

/// A row that is late by the earlier rows of its own source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateRow {
    /// The offset of the row in its source.
    pub offset: u64,
    /// The event time of the row, in microseconds.
    pub time_us: i64,
    /// The newest time of the rows before it, minus the source's out-of-orderness. The row is
    /// before this time.
    pub bound_us: i64,
}
