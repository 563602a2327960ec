//! Several processes that execute one order: membership, cuts, snapshots and recovery, as state
//! machines.
//!
//! ```text
//!  clients ──append──▶ inputs (a log partition for each source)
//!                         │ read by the worker that the source is assigned to
//!                         ▼
//!  coordinator ──cut──▶ workers ◀──calls, conflicts──▶ workers     (each epoch: a `Node` of
//!       │ append          │ append, once the cut is durable           `tidemill_function`)
//!       ▼                 ▼
//!     cuts             outputs (replies and events)     store: parts of a snapshot, its manifest
//! ```
//!
//! **A generation** is one set of members with one map of partitions. A member that is lost, that
//! is silent for longer than its lease, or that is new causes the next generation. The coordinator
//! fences the logs with the new number, so no member of an earlier generation can append anything
//! from then on. All members go back to the last snapshot, and execute the recorded cuts again. The
//! result equals that of a run without a failure, because cuts, inputs and places in the order are
//! the same.
//!
//! **Only the log counts.** A cut is made when it is appended. Workers execute it meanwhile, but no
//! reply and no event leaves before. Outputs that have left are in the log of outputs, and are not
//! appended twice. A snapshot counts when its manifest is stored and a record of the cuts names it.
//! Before that, every part is stored, and all outputs of the epochs up to it are in the log.
//!
//! This crate must not know sockets, files, threads, clocks or Python. A [`Worker`] and a
//! [`Coordinator`] take inputs and give [`Effect`]s. A [`Log`] is only a trait here.

mod coordinator;
mod effect;
mod event_time;
mod log;
mod output_reader;
mod parts;
mod records;
mod split_log;
pub mod wire;
mod worker;

pub use coordinator::{Coordinator, LeftOut, Progress, SourceProgress, Suspicion, WrongClock};
pub use effect::{
    Address, CutPlan, Effect, Input, Packet, Piece, Records, Refused, Span, StoredPart, Token,
};
pub use event_time::{
    EventSource, EventTime, Interval, LateEvent, Rank, RankReport, Ranked, ENDED_US, INTERVALS_MAX,
};
pub use log::{Log, Then, ThenEach};
pub use output_reader::OutputReader;
pub use parts::{load_rows, put_part, LoadedRows};
pub use records::{
    base_after, Assignment, Buffered, CutRecord, Emitted, Events, Form, Left, Manifest, Member,
    Output, Record, Request, RequestId, Times, Topic, Waiting, Written, POISON,
};
pub use split_log::SplitLog;
pub use tidemill_function::{Counts, EventPlace, Fault, SnapshotId};
pub use worker::Worker;

use std::sync::Arc;

/// The settings, the same for all processes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The identity of the program.
    pub program: u128,
    /// A random number that nobody else knows. It decides where rows are in tables, so that no client
    /// can choose keys that collide.
    pub seed: u64,
    /// The number of sources. It stays the same as long as the logs exist.
    pub sources: u32,
    /// The number of sources, the last ones, that are partitions of topics which others write.
    pub followed: u32,
    /// The silence after which a process is no longer a member, in microseconds.
    pub lease_us: u64,
    /// The interval at which members send beats, in microseconds.
    pub beat_us: u64,
    /// The time after which a generation that has not formed is replaced by the next, in
    /// microseconds.
    pub form_us: u64,
    /// The maximum number of requests of a source in one epoch. A record with more is an epoch's
    /// share by itself.
    pub epoch_max: u64,
    /// The same for epochs of events that are executed by column only.
    pub columns_max: u64,
    /// Whether one worker owns all rows, because the app suits a
    /// [sole owner](tidemill_function::Functions::sole).
    pub has_sole_owner: bool,
    /// Whether such an epoch is executed by all workers or by one of them in turn, instead of in the
    /// faster way. For tests.
    pub alternates: bool,
    /// The maximum number of outputs in one record, and approximately that of their bytes.
    pub outputs_max: usize,
    /// See `outputs_max`.
    pub output_bytes: usize,
    /// Whether outputs are also written elsewhere. Then the coordinator learns which epochs have
    /// left completely, and [`result_event`](tidemill_function::Functions::result_event) gives the results of
    /// requests.
    pub copies_outputs: bool,
    /// The number of epochs between the beginnings of two snapshots,
    pub snapshot_every: u64,
    /// and the minimum time between them, in microseconds.
    pub snapshot_us: u64,
    /// The streams in event time.
    pub event_time: Arc<EventTime>,
    /// Whether a fault that no client learns of ends the run, before anything of its epoch leaves.
    /// Only the coordinator needs to know.
    pub stops_on_fault: bool,
    /// Sources that had ended and continue, each with its first new record. Until that is read,
    /// others wait for the source.
    pub resumed: Arc<[(u32, u64)]>,
    /// The maximum bytes of buffered events of all workers together. Above it, no more events are
    /// taken from sources that are ahead of others.
    pub buffered_bytes_max: u64,
    /// The maximum bytes of memory of tables and buffered events, of all workers together. Beyond it
    /// the coordinator ends.
    pub memory_bytes_max: u64,
    /// The maximum jump of the clock ahead of the last cut's, in microseconds, beyond the time that
    /// has passed since. A larger jump means that the clock is wrong.
    pub clock_jump_us_max: i64,
    /// The number of workers in a row that may die of a transaction. Then it is not executed.
    pub deaths_max: u32,
    /// The settings of the function protocol.
    pub function: tidemill_function::Settings,
}
