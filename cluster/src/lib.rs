//! Several processes that execute one order: membership, cuts, snapshots and recovery, as state machines.
//!
//! ```text
//!  clients ──append──▶ inputs (a log partition for each source)
//!                         │ read by the worker that the source is assigned to
//!                         ▼
//!  coordinator ──cut──▶ workers ◀──calls, conflicts──▶ workers        an epoch: `tidemill_function::Node`
//!       │ append          │ append, once the cut is durable
//!       ▼                 ▼
//!     cuts             outputs (replies and events)          store: parts of snapshots, then the manifest
//! ```
//!
//! **A generation** is one set of members with one map of partitions. Whoever is lost, slow for longer than
//! its lease, or new, begins the next one: the coordinator fences the logs with its number, so that nobody of
//! an earlier one appends anything from then on; all members go back to the last snapshot, and execute the
//! recorded cuts again. Then nothing differs from a run without a failure, because cuts, inputs and places in
//! the order are the same.
//!
//! **What counts is in the log.** A cut is made when it is appended; workers execute it meanwhile, but no
//! reply and no event leaves before. What has left is in the outputs, and is not appended twice. A snapshot
//! counts when its manifest has been put and a record of the cuts names it; before that every part is stored,
//! and all that the epochs up to it have sent is in the outputs.
//!
//! This crate must not know sockets, files, threads, clocks, timely or Python: a [`Worker`] and a
//! [`Coordinator`] take inputs and give [`Effect`]s.

mod coordinator;
mod effect;
mod event_time;
mod leaving;
mod records;
mod state;
pub mod wire;
mod worker;

pub use coordinator::{Coordinator, LeftOut, Progress, SourceProgress, WrongClock};
pub use effect::{Address, Effect, Input, Packet, Piece, Records, Refused, Span, Token};
pub use event_time::{
    EventSource, EventTime, Interval, LateEvent, Rank, Ranked, ENDED_US, INTERVALS_MAX,
};
pub use leaving::Leaving;
pub use records::{
    behind, Assignment, CutRecord, Form, Left, Manifest, Member, Object, Output, Parked, PartRows,
    Record, Request, RequestId, Times, Topic, Waiting, Written,
};
pub use state::{SnapshotId, State};
pub use worker::Worker;

use std::sync::Arc;

/// What may be chosen; the same for all processes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What tells the program from others.
    pub program: u128,
    /// How many sources there are; as long as the logs live, always the same.
    pub sources: u32,
    /// So many of them, the last, are partitions of topics that others write.
    pub followed: u32,
    /// Who is silent for so long is no member any more.
    pub lease_us: u64,
    /// How often members say that they live.
    pub beat_us: u64,
    /// A generation that has not formed by then gives way to the next.
    pub form_us: u64,
    /// So many requests of a source are in one epoch at most, or those of one record.
    pub epoch_max: u64,
    /// So many outputs are one record at most.
    pub outputs_max: usize,
    /// Whether somebody writes elsewhere what leaves: then the coordinator is told of which epochs all has left, and
    /// [`told`](tidemill_function::Functions::told) is asked what requests have come to.
    pub tells_left: bool,
    /// A snapshot is begun every so many epochs,
    pub snapshot_every: u64,
    /// and this long after the last one at the earliest.
    pub snapshot_us: u64,
    /// After so many objects the next snapshot is a whole one; sooner where most of it is changes.
    pub objects_max: usize,
    /// Streams in event time.
    pub event_time: Arc<EventTime>,
    /// Sources that had ended and go on, each with the first record of what is new. Until that has come others wait for it.
    pub goes_on: Arc<[(u32, u64)]>,
    /// Where events that wait for their watermark take more, of all workers together, no more are taken of sources that
    /// are ahead of others.
    pub parked_bytes_max: u64,
    /// A clock that is further ahead of the last cut's, in microseconds, than time has gone by since is taken for a wrong one.
    pub clock_jump_us_max: i64,
    /// Of the protocol of functions.
    pub function: tidemill_function::Settings,
}
