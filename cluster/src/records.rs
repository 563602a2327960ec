//! Records of the logs and objects of the store.

use std::sync::Arc;

use tidemill_core::wire::columns_bytes;
use tidemill_core::{Batch, Position, Row, StreamId, Value};
use tidemill_function::{
    output_bytes, Call, Counts, EventPlace, NodeId, Owners, Path, SnapshotId, Tid,
};
use tidemill_place::{Partition, PartitionSet, PARTITIONS};
use tidemill_snapshot::DataObject;
use tidemill_txn::program::{Abort, QuestionId};

use crate::Settings;

/// A process, by a number that no other process has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u32);

/// The bytes that an output takes in a log besides its values, and those of each column's name.
const OUTPUT_BYTES: usize = 128;
const COLUMN_BYTES: usize = 32;

/// The identity of a verdict among the answers from outside: its transaction has ended the processes of
/// workers, and is not executed.
pub const POISON: QuestionId = u128::from_le_bytes(*b"poisonous to run");

/// The id that a client gives to its request.
pub type RequestId = Arc<[u8]>;

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The client's id, which the reply carries. It is empty if nobody waits for a reply. Then there
    /// is none.
    pub id: RequestId,
    /// The requested call.
    pub call: Call,
}

/// Consecutive events of one stream, by column. Nobody waits for replies.
#[derive(Clone, Debug)]
pub struct Events {
    /// The stream.
    pub stream: StreamId,
    /// The place that the first one comes from, if it is known. The others follow it there.
    pub from: Option<EventPlace>,
    /// Whether each event has an offset of its own. Then those of the others follow that of the
    /// record. Otherwise the record has one offset, and all of its events belong to one epoch.
    pub is_run: bool,
    /// The events.
    pub batch: Batch,
}

impl Events {
    /// Returns the number of offsets that they take.
    pub fn offsets(&self) -> u64 {
        if self.is_run {
            self.batch.len() as u64
        } else {
            1
        }
    }
}

impl PartialEq for Events {
    fn eq(&self, other: &Events) -> bool {
        (self.stream, &self.from, self.is_run) == (other.stream, &other.from, other.is_run)
            && self.batch.schema() == other.batch.schema()
            && self.batch.rows().eq(other.batch.rows())
    }
}

/// A log partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Generations, cuts and snapshots.
    Cuts,
    /// Requests of a source.
    Input(u32),
    /// Replies and events of the requests of a source, and answers from outside.
    Output(u32),
}

/// A record of a log.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A generation begins: no record of an earlier one is appended after this.
    Generation {
        /// Its number.
        generation: u64,
    },
    /// One or more requests of clients, which all belong to one epoch.
    Requests(Vec<Request>),
    /// Events.
    Events(Events),
    /// The end of the source. Only sources that read a finite input end.
    End,
    /// A cut.
    Cut(CutRecord),
    /// Cuts are withdrawn, because a function failed in the first of them, and nothing of them has
    /// left.
    Withdrawn {
        /// The epoch of the first one. The next cut has it again,
        epoch: u64,
        /// and places from this base on. So the records of withdrawn transactions, such as answers
        /// from outside, belong to no other ones.
        base: u64,
    },
    /// A snapshot counts.
    Snapshot(Arc<Manifest>),
    /// One or more outputs of one epoch.
    Outputs(Vec<Output>),
    /// Events that transactions of one epoch have emitted.
    Emitted(Emitted),
    /// An answer from outside to a function, which continues when this is durable. It is among the
    /// outputs, but is only for those that execute the transaction again.
    Answer {
        /// The transaction.
        tid: Tid,
        /// The identity of the question within its transaction.
        asked: QuestionId,
        /// The answer.
        answer: Arc<[u8]>,
    },
}

/// Emitted events of one stream, by column. The place of each in its transaction is one number.
#[derive(Clone, Debug)]
pub struct Emitted {
    /// The stream.
    pub stream: StreamId,
    /// For each event, the transaction that emitted it. They are in the order of the transactions
    pub tids: Vec<u64>,
    /// and of their places there.
    pub ordinals: Vec<u32>,
    /// The events.
    pub batch: Batch,
}

impl Emitted {
    /// Returns the events from `from` up to but without `to`.
    pub fn slice(&self, from: usize, to: usize) -> Emitted {
        Emitted {
            stream: self.stream,
            tids: self.tids[from..to].to_vec(),
            ordinals: self.ordinals[from..to].to_vec(),
            batch: self.batch.slice(from, to - from),
        }
    }

    /// Returns the events at these places, which ascend.
    pub fn take(&self, rows: &[u32]) -> Emitted {
        if rows.len() == self.tids.len() {
            return self.clone();
        }
        Emitted {
            stream: self.stream,
            tids: rows.iter().map(|row| self.tids[*row as usize]).collect(),
            ordinals: rows.iter().map(|row| self.ordinals[*row as usize]).collect(),
            batch: self.batch.take(rows),
        }
    }

    /// Returns the identities of the events.
    pub fn ids(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.tids.iter().copied().zip(self.ordinals.iter().copied())
    }

    /// Returns approximately the bytes that it takes in a log.
    pub fn log_bytes(&self) -> usize {
        columns_bytes(&self.batch) + 8 * self.tids.len()
    }
}

impl PartialEq for Emitted {
    fn eq(&self, other: &Emitted) -> bool {
        (self.stream, &self.tids, &self.ordinals) == (other.stream, &other.tids, &other.ordinals)
            && self.batch.schema() == other.batch.schema()
            && self.batch.rows().eq(other.batch.rows())
    }
}

/// An output.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A reply.
    Reply {
        /// The request's transaction.
        tid: Tid,
        /// The client's id of the request.
        id: RequestId,
        /// The result.
        outcome: Result<Value, Abort>,
    },
    /// An event.
    Event {
        /// The transaction that emitted it.
        tid: Tid,
        /// The place in the transaction.
        path: Path,
        /// The stream.
        stream: StreamId,
        /// The event.
        row: Row,
    },
}

impl Output {
    /// Returns the identity of the output.
    pub fn id(&self) -> (Tid, Option<Path>) {
        match self {
            Output::Reply { tid, .. } => (*tid, None),
            Output::Event { tid, path, .. } => (*tid, Some(path.clone())),
        }
    }

    /// Returns an approximate upper bound of the bytes that it takes in a log.
    pub(crate) fn log_bytes(&self) -> usize {
        match self {
            Output::Reply { id, outcome: Ok(value), .. } => {
                OUTPUT_BYTES + 8 * id.len() + output_bytes(std::slice::from_ref(value))
            }
            Output::Reply { id, outcome: Err(abort), .. } => {
                OUTPUT_BYTES + 8 * (id.len() + abort.reason.len())
            }
            Output::Event { path, row, .. } => {
                OUTPUT_BYTES + 16 * path.len() + COLUMN_BYTES * row.len() + output_bytes(row)
            }
        }
    }
}

/// A cut: the requests of an epoch, and the place where its order begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutRecord {
    /// The epoch, from 1.
    pub epoch: u64,
    /// The clock, in microseconds since 1970. It never goes back.
    pub clock_us: i64,
    /// The base of the places (`tidemill_function::Sequencing`).
    pub base: u64,
    /// The number of places for each source: the highest number of requests that any source has. If
    /// there are streams in event time, it is the number of requests that may be executed of all
    /// sources together.
    pub count: u64,
    /// The first record of each source.
    pub from: Vec<u64>,
    /// The end of the records of each source.
    pub upto: Vec<u64>,
    /// The progress of event time.
    pub times: Times,
    /// Whether a [sole owner](tidemill_function::Functions::sole) of all rows, if there is one, executes
    /// all of the epoch, calls and events alike. In earlier versions it did not, and outputs had other
    /// places.
    pub by_owner: bool,
    /// Whether a function that fails in it ends the run.
    pub stops_on_fault: bool,
}

/// The progress of event time at a cut. All lists are empty if no stream is in event time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The newest time that each [event source](crate::EventSource) has delivered.
    pub newest: Vec<Option<i64>>,
    /// The position of each group of streams before which all events have arrived. No event after
    /// it is executed. It never goes back.
    pub watermarks: Vec<Position>,
    /// Event sources that did not hold back the watermark, because they were silent for too long.
    pub idle: Vec<u32>,
    /// Event sources that have ended, and hold nothing back. The source of a file that has grown
    /// continues.
    pub ended: Vec<u32>,
    /// The number of late events up to the epoch before. In a manifest, up to its own epoch.
    pub late: u64,
}

/// The first record of an event source that has buffered events. No earlier record of it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The event source.
    pub event_source: u32,
    /// The first record.
    pub record: u64,
    /// The newest time that the event source delivered before that record. It decides which later
    /// events are late.
    pub newest_us: Option<i64>,
}

/// Events that are buffered until the watermark passes them, and the memory of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffered {
    /// The number of events.
    pub events: u64,
    /// The approximate bytes of memory that they take.
    pub bytes: u64,
    /// The number of late events in the epoch that was executed last.
    pub late: u64,
    /// The bytes of memory that the worker's tables take.
    pub tables: u64,
}

impl std::iter::Sum for Buffered {
    fn sum<I: Iterator<Item = Buffered>>(all: I) -> Buffered {
        all.fold(Buffered::default(), |sum, of| Buffered {
            events: sum.events + of.events,
            bytes: sum.bytes + of.bytes,
            late: sum.late + of.late,
            tables: sum.tables + of.tables,
        })
    }
}

impl CutRecord {
    /// Returns the base of the next cut.
    pub fn next_base(&self) -> u64 {
        self.base + self.count
    }
}

/// The objects of a snapshot, and the state from which execution continues after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// The program of its rows, for which everything after it was recorded.
    pub program: u128,
    /// The generation that took it.
    pub generation: u64,
    /// The last epoch in it.
    pub epoch: u64,
    /// The clock of its cut, in microseconds since 1970.
    pub clock_us: i64,
    /// The base of the next cut.
    pub base: u64,
    /// The first record of each source that is not in it.
    pub inputs: Vec<u64>,
    /// The first record of each source that has buffered events, else the same as in `inputs`. It
    /// is empty if no stream is in event time.
    pub buffered: Vec<u64>,
    /// Where the buffered events of each event source begin. Earlier versions did not record this,
    /// and other events were late there.
    pub waiting: Option<Vec<Waiting>>,
    /// The progress of event time.
    pub times: Times,
    /// For each source, the first offset at which outputs of later epochs may be.
    pub outputs: Vec<u64>,
    /// Its data objects, in the order in which they apply.
    pub objects: Vec<DataObject>,
    /// The outputs that had been written elsewhere, as far as was known when it was taken.
    pub written: Arc<Written>,
    /// The counts of all transactions in it. Earlier versions did not record them.
    pub counts: Arc<Counts>,
}

/// The progress of a writer that copies outputs to another place. It continues from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The base up to which all outputs have been written: those of requests whose [`base_after`]
    /// is at most this.
    pub base: u64,
    /// For each source, the first offset at which other outputs may be. It is empty if outputs are
    /// not written elsewhere.
    pub outputs: Vec<u64>,
    /// The state that the writer needs to continue.
    pub note: Arc<[u8]>,
}

/// Returns the base after a request's place.
pub fn base_after(tid: Tid, sources: u32) -> u64 {
    (tid.0 - 1) / u64::from(sources) + 1
}

/// A statement that all outputs of some epochs are in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The generation that makes the statement. It holds unless a later one begins in the outputs
    /// before `ends`.
    pub generation: u64,
    /// The base up to which it holds: for outputs of requests whose [`behind`] is at most this.
    pub base: u64,
    /// For each source, an offset after all of these outputs.
    pub ends: Vec<u64>,
    /// The base after all that was recorded before the generation began. No other outputs were
    /// written before.
    pub recorded: u64,
    /// The outputs that had been written when the generation began, as far as its snapshot knows.
    pub written: Arc<Written>,
}

impl Manifest {
    /// Returns the identity of the snapshot.
    pub fn id(&self) -> SnapshotId {
        (self.generation, self.epoch)
    }

    /// Returns the manifest's name in the store.
    pub fn name(&self) -> String {
        format!("manifest-{}-{}", self.generation, self.epoch)
    }

    /// Returns the first input of each source that a recovery reads.
    pub fn inputs_needed(&self) -> impl Iterator<Item = u64> + '_ {
        let buffered = self.buffered.iter().copied().chain(std::iter::repeat(u64::MAX));
        self.inputs.iter().zip(buffered).map(|(input, buffered)| (*input).min(buffered))
    }

    /// Returns the first output of each source that a recovery, or a writer of outputs, may read.
    pub fn outputs_needed(&self) -> impl Iterator<Item = u64> + '_ {
        let written = self.written.outputs.iter().copied().chain(std::iter::repeat(u64::MAX));
        self.outputs.iter().zip(written).map(|(output, written)| (*output).min(written))
    }

    /// Whether an object may still be needed when this snapshot counts, because it belongs to it or
    /// to a later one.
    pub fn keeps(&self, name: &str) -> bool {
        let epoch = name.split('-').nth(2).and_then(|epoch| epoch.parse::<u64>().ok());
        let is_later = epoch.is_none_or(|epoch| epoch > self.epoch);
        is_later || self.name() == name || self.objects.iter().any(|own| own.name == name)
    }

    /// Whether it counts instead of another one, which was recorded before it.
    pub fn replaces(&self, other: &Manifest) -> bool {
        let is_converted = other.is_of_before() && self.epoch == other.epoch;
        self.epoch > other.epoch || is_converted
    }

    /// Whether its objects are parts in the format of earlier versions, of which only the names are
    /// known. They are converted before anything else.
    pub fn is_of_before(&self) -> bool {
        self.objects.iter().any(|object| object.len == 0)
    }
}

/// The division of work in a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The members. The place of a member is the number of its node.
    pub members: Vec<Member>,
    /// The owners of the partitions.
    pub owners: Owners,
}

impl Assignment {
    /// Creates equal shares.
    pub fn equal(members: Vec<Member>) -> Assignment {
        let owners = Owners::equal(members.len() as u16);
        Assignment { members, owners }
    }

    /// Divides the rows for an app: equal shares, or all rows for the first member.
    pub fn of(members: Vec<Member>, settings: &Settings) -> Assignment {
        match settings.has_sole_owner && !members.is_empty() {
            true => {
                let owners = Owners::all_of(members.len() as u16, NodeId(0));
                Assignment { members, owners }
            }
            false => Assignment::equal(members),
        }
    }

    /// Returns the node of a member.
    pub fn node_of(&self, member: Member) -> Option<NodeId> {
        self.members.iter().position(|m| *m == member).map(|n| NodeId(n as u16))
    }

    /// Returns the partitions of a node.
    pub fn partitions(&self, node: NodeId) -> PartitionSet {
        let all = (0..PARTITIONS).map(Partition);
        all.filter(|partition| self.owners.of(*partition) == node).collect()
    }

    /// Returns the node that reads a source. Neighbouring sources have one reader, as neighbouring
    /// partitions have one owner if shares are equal. Sources that others write are divided
    /// separately.
    pub fn reader(&self, source: u32, settings: &Settings) -> NodeId {
        let own = settings.sources - settings.followed;
        let (nth, of) = match source.checked_sub(own) {
            None => (source, own),
            Some(followed) => (followed, settings.followed),
        };
        NodeId((u64::from(nth) * self.members.len() as u64 / u64::from(of)) as u16)
    }
}

/// The beginning of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// Its number.
    pub generation: u64,
    /// The division of work.
    pub assignment: Assignment,
    /// The snapshot from which it continues. It is empty if there is none.
    pub manifest: Arc<Manifest>,
}
