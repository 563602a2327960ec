//! Reports of a run: its status and its summary.

use std::collections::BTreeMap;

use serde::Serialize;

/// The status of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// The number of epochs so far.
    pub epoch: u64,
    /// Input events executed or quarantined so far.
    pub events: u64,
    /// Transactions so far, aborted ones included.
    pub transactions: u64,
    /// Aborted transactions, without those whose function failed.
    pub aborted: u64,
    /// Transactions whose function failed.
    pub faults: u64,
    /// Rows in dead-letter streams.
    pub dead: u64,
    /// Late events.
    pub late: u64,
    /// Events that wait for their watermark.
    pub buffered: u64,
    /// How far the slowest watermark is behind the newest event time that was read, in
    /// microseconds, or in units of the time column when that is an int.
    pub lag_us: i64,
    /// Seconds since the start.
    pub seconds: f64,
    /// Events per second since the start.
    pub events_per_s: f64,
    /// Whether all input has ended and everything is done.
    pub ended: bool,
    /// Whether recorded epochs are being replayed.
    pub recovering: bool,
    /// The reason why nothing can be written at present: the disk is full. Reading continues.
    pub stalled: Option<String>,
    /// Reports of blocked sources and sinks, by name, such as unreachable brokers. They continue by
    /// themselves.
    pub troubles: BTreeMap<String, String>,
    /// The epoch of the newest snapshot; 0 when there is none.
    pub snapshot_epoch: u64,
    /// Snapshots taken since the start.
    pub snapshots: u64,
    /// The last epoch that was recorded before the start.
    pub known_epoch: u64,
    /// The rows of all sources up to that epoch.
    pub known_rows: u64,
}

/// The size of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LogReport {
    /// The number of the first retained record.
    pub(crate) first: u64,
    /// The number of the next record.
    pub(crate) next: u64,
    pub(crate) bytes: u64,
}

/// The summary of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The app's name.
    pub app: String,
    /// Input events, executed or late, and rows that could not be decoded. Buffered events count
    /// when they are executed.
    pub events: u64,
    /// Transactions, aborted ones included.
    pub transactions: u64,
    /// Committed transactions.
    pub committed: u64,
    /// Aborted transactions, without those whose function failed.
    pub refused: u64,
    /// Transactions whose function failed: it raised an exception that it did not mean to.
    pub faults: u64,
    /// Rows in dead-letter streams.
    pub dead: u64,
    /// Late events.
    pub late: u64,
    /// Epochs.
    pub epochs: u64,
    /// Seconds from the start to the end.
    pub seconds: f64,
    /// Events per second.
    pub events_per_s: f64,
    /// The handlers, in declaration order.
    pub handlers: Vec<HandlerReport>,
    /// The tables.
    pub tables: Vec<TableReport>,
    /// The rows of each output stream.
    pub outputs: BTreeMap<String, u64>,
    /// The most frequent reasons of aborts.
    pub reasons: Vec<ReasonReport>,
    /// Handlers that gave different results when they ran again on the same input.
    pub unstable: Vec<UnstableReport>,
    /// Hash of all tables, independent of layout and history: 32 hexadecimal digits.
    pub state_hash: String,
    /// Hash of all outputs in order, stream by stream: 32 hexadecimal digits.
    pub output_hash: String,
}

/// The counts of a handler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HandlerReport {
    /// Its name.
    pub name: String,
    /// How it is executed: `words`, `values`, `native` or `opaque`.
    pub path: String,
    /// Committed transactions.
    pub committed: u64,
    /// Aborted transactions, without those whose function failed.
    pub aborted: u64,
    /// Transactions whose function failed.
    pub faults: u64,
}

/// A reason of aborts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonReport {
    /// The handler.
    pub handler: String,
    /// The reason, with `#` in place of numbers where these differ.
    pub reason: String,
    /// The number of aborts.
    pub count: u64,
    /// The user's line of a failed function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// The size of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableReport {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: u64,
    /// Its memory, in bytes.
    pub bytes: u64,
}

/// Hidden non-determinism: a handler that gave different results when it ran again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnstableReport {
    /// The handler.
    pub handler: String,
    /// The user's line.
    pub at: String,
    /// The first event or slide of a window that showed it, in words.
    pub event: String,
    /// How often it showed among the transactions that were run twice.
    pub times: u64,
}
