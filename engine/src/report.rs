//! What a run is doing and has done.

use std::collections::BTreeMap;

use serde::Serialize;

/// Where a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// Epochs so far.
    pub epoch: u64,
    /// Input events executed or set aside so far.
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
    pub parked: u64,
    /// How far the slowest watermark is behind the newest event time that was read, in
    /// microseconds (units of the time column when that is an int).
    pub lag_us: i64,
    /// Seconds since the start.
    pub seconds: f64,
    /// Events a second since the start.
    pub events_per_s: f64,
    /// Whether all input has ended and everything is done.
    pub ended: bool,
    /// Whether what was recorded before is being executed again.
    pub recovering: bool,
    /// Why nothing can be written at present: the disk is full. Reading goes on.
    pub stalled: Option<String>,
    /// What holds sources and sinks up, by who says it: brokers that are away. It goes on by itself.
    pub troubles: BTreeMap<String, String>,
    /// The epoch of the newest snapshot; 0 when there is none.
    pub snapshot_epoch: u64,
    /// Snapshots taken since the start.
    pub snapshots: u64,
    /// The last epoch that was recorded before the start.
    pub known_epoch: u64,
    /// The rows of all sources up to there.
    pub known_rows: u64,
}

/// How much there is of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LogReport {
    /// The number of the first record that is kept.
    pub(crate) first: u64,
    /// The number of the next one.
    pub(crate) next: u64,
    pub(crate) bytes: u64,
}

/// What a run has done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The app's name.
    pub app: String,
    /// Input events, executed or late, and rows that could not be decoded. Events that wait for their time count when
    /// they are executed.
    pub events: u64,
    /// Transactions, aborted ones included.
    pub transactions: u64,
    /// Committed transactions.
    pub committed: u64,
    /// Transactions that aborted, without those whose function failed.
    pub refused: u64,
    /// Transactions whose function failed: it raised what it did not mean to.
    pub faults: u64,
    /// Rows in dead-letter streams.
    pub dead: u64,
    /// Late events.
    pub late: u64,
    /// Epochs.
    pub epochs: u64,
    /// Seconds from the start to the end.
    pub seconds: f64,
    /// Events a second.
    pub events_per_s: f64,
    /// By handler, in declaration order.
    pub handlers: Vec<HandlerReport>,
    /// By table.
    pub tables: Vec<TableReport>,
    /// Rows by output stream.
    pub outputs: BTreeMap<String, u64>,
    /// The commonest reasons why transactions aborted.
    pub reasons: Vec<ReasonReport>,
    /// Handlers that did something else when they ran again on the same input.
    pub unstable: Vec<UnstableReport>,
    /// Hash of all tables, independent of layout and history: 32 hexadecimal digits.
    pub state_hash: String,
    /// Hash of all outputs in order, stream by stream: 32 hexadecimal digits.
    pub output_hash: String,
}

/// What a handler has done.
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

/// Why transactions aborted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonReport {
    /// Of which handler.
    pub handler: String,
    /// The reason; with `#` in place of numbers where these differ.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// Where the function failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// What a table holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableReport {
    /// Its name.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Bytes of memory.
    pub bytes: u64,
}

/// Hidden non-determinism: a handler that did something else when it ran again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnstableReport {
    /// The handler.
    pub handler: String,
    /// The user's line.
    pub at: String,
    /// The first event that showed it, or slide of a window, in words.
    pub event: String,
    /// How often it showed among the transactions that were run twice.
    pub times: u64,
}
