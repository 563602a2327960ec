//! Inputs and effects of the state machines.

use std::sync::Arc;

use tidemill_core::{Key, LateRow, TableId, TableSpec};
use tidemill_function::{Counts, Fault, Message, NodeId, Stored, TableChanges, TakenRows, Tid};
use tidemill_place::PartitionSet;
use tidemill_snapshot::{DataObject, Work};
use tidemill_txn::program::Asker;

use crate::event_time::RankReport;
use crate::parts::LoadedRows;
use crate::records::{
    Buffered, CutRecord, Form, Manifest, Member, Record, Topic, Waiting, Written,
};

/// The sender or receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// The coordinator, whichever process it is now.
    Coordinator,
    /// A worker.
    Worker(Member),
}

/// The identity of the request that an answer belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// The reason why a record was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A later generation has begun.
    Fenced,
    /// It is unknown whether the record was appended, or will be before a later generation begins.
    Unknown,
}

/// Records that were read from a topic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// The records with their offsets, which may have gaps.
    pub records: Vec<(u64, Record)>,
    /// The end of the range that was read, where the next read begins.
    pub upto: u64,
}

/// Neighbouring records of a source that can be read: their end, and the number of their requests
/// and transactions of events. A piece is one of three: records of the same number of requests each,
/// one record of several, or offsets without a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset after the last record.
    pub end: u64,
    /// The number of requests.
    pub requests: u64,
    /// Whether they are transactions of events that can be executed by column. An epoch takes more of
    /// them.
    pub by_column: bool,
    /// The times of each event source that has events in it. Cuts do not divide a piece with times.
    pub times: Box<[Span]>,
}

/// The times of the events in a piece that belong to one [event source](crate::EventSource).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The event source.
    pub event_source: u32,
    /// The oldest time, in microseconds.
    pub oldest_us: i64,
    /// The newest time, in microseconds.
    pub newest_us: i64,
    /// The first event that is late by those before it.
    pub late: Option<LateRow>,
}

impl Span {
    /// Creates the span of one event.
    pub fn of(event_source: u32, time_us: i64) -> Span {
        Span { event_source, oldest_us: time_us, newest_us: time_us, late: None }
    }

    /// Returns the span with one more event.
    pub fn with(self, time_us: i64) -> Span {
        let (oldest_us, newest_us) = (self.oldest_us.min(time_us), self.newest_us.max(time_us));
        Span { oldest_us, newest_us, ..self }
    }
}

impl Piece {
    /// Returns the number of requests of each offset, given the offset at which it begins. It is 0 for
    /// offsets without a request.
    pub fn each(&self, from: u64) -> u64 {
        self.requests / (self.end - from)
    }

    /// Returns the part that begins at another offset. No cut divides a record there. Times of the
    /// part before have been taken already, so that they may stay.
    pub fn rest(self, from: u64, at: u64) -> Option<Piece> {
        let requests = self.each(from) * self.end.saturating_sub(at);
        (at < self.end).then_some(Piece { requests, ..self })
    }
}

/// An action that a state machine requests.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Sends a message. Messages to one address arrive in their order, or the connection breaks.
    Send {
        /// The receiver.
        to: Address,
        /// The message.
        packet: Packet,
    },
    /// Appends a record durably, unless a later generation has begun in the topic.
    Append {
        /// The identity for the answer.
        token: Token,
        /// The topic.
        topic: Topic,
        /// The generation that the record belongs to.
        generation: u64,
        /// The record.
        record: Record,
    },
    /// Reads from an offset, approximately up to a limit of records and of requests in them.
    /// Without a limit it reads all, in one answer, however many reads that takes.
    Read {
        /// The identity for the answer.
        token: Token,
        /// The topic.
        topic: Topic,
        /// The first offset.
        from: u64,
        /// The approximate maximum number of records and requests.
        limit: Option<usize>,
    },
    /// Stores a manifest, unless there is one of its name.
    PutManifest {
        /// The identity for the answer.
        token: Token,
        /// The manifest.
        manifest: Arc<Manifest>,
    },
    /// Stores changed rows: [`put_part`](crate::put_part).
    PutPart {
        /// The identity for the answer.
        token: Token,
        /// The program and the epoch of the object.
        of: (u128, u64),
        /// The object's name, which was not used before.
        name: String,
        /// The rows.
        rows: Arc<TakenRows>,
    },
    /// Merges objects of a snapshot into a new one: [`merge`](tidemill_snapshot::merge). The answer
    /// is as of `PutPart`.
    Merge {
        /// The identity for the answer.
        token: Token,
        /// The program and the epoch of the object.
        of: (u128, u64),
        /// The object's name, which was not used before.
        name: String,
        /// The objects.
        work: Arc<Work>,
    },
    /// Loads rows of a snapshot: [`load_rows`](crate::load_rows).
    Load {
        /// The identity for the answer.
        token: Token,
        /// The program that the rows belong to.
        program: u128,
        /// Objects of the snapshot.
        objects: Vec<DataObject>,
        /// The partitions.
        partitions: PartitionSet,
        /// The declarations of the tables.
        tables: Arc<[TableSpec]>,
    },
    /// Asks somebody outside, concurrently with everything else, because the answer may take long.
    Ask {
        /// The identity for the answer.
        token: Token,
        /// The question.
        ask: Asker,
    },
    /// Rows of outboxes that are durable. Each asks for work outside, or, if it has been removed,
    /// no longer does. The result of the work comes as a request.
    Outbox {
        /// The last epoch whose changes are in them.
        epoch: u64,
        /// Whether these are all rows of outboxes.
        all: bool,
        /// The rows, by table and key.
        rows: Vec<(TableId, Key, Stored)>,
    },
    /// Clients follow a table. All of its changes by later epochs than this one come.
    Follows {
        /// The table.
        table: TableId,
        /// The epoch.
        since: u64,
    },
    /// The changes of the followed tables by an epoch, which is durable and executed. Tables without
    /// changes are left out.
    Changed {
        /// The epoch.
        epoch: u64,
        /// The changes.
        changes: Vec<TableChanges>,
    },
    /// A snapshot counts. Requests, outputs and cuts before it are no longer needed, nor are
    /// objects of epochs up to it that neither it nor `also` names. No action is required.
    Release {
        /// The snapshot.
        manifest: Arc<Manifest>,
        /// Objects that later snapshots may have.
        also: Vec<String>,
        /// The offset of the snapshot's cut.
        cuts: u64,
    },
    /// The process can't continue and must end. Starting it again is not its concern.
    Stop {
        /// The reason.
        why: &'static str,
    },
    /// There is more to do, which must not hold back the other effects: give it [`Input::GoOn`] after
    /// them.
    GoOn,
    /// The process was asked to end cleanly, and may end now.
    End,
}

/// An event that a state machine reacts to.
#[derive(Clone, Debug)]
pub enum Input {
    /// All effects up to [`Effect::GoOn`] have been performed.
    GoOn,
    /// Time has passed.
    Tick {
        /// The monotonic clock.
        now_us: u64,
        /// The wall clock, which may jump.
        clock_us: i64,
    },
    /// A message has arrived.
    Packet {
        /// The sender.
        from: Address,
        /// The message.
        packet: Packet,
    },
    /// All outputs of some epochs have been written elsewhere, and the next snapshot must record
    /// this. Only for a coordinator.
    Written(Arc<Written>),
    /// Clients follow a table. Only for a coordinator.
    Follow(TableId),
    /// No more requests come to the first sources, which end here. The process must end cleanly when
    /// all of them have been executed, or when there is no worker. Only for a coordinator.
    Drain {
        /// The offset after the last record of each of these sources.
        ends: Vec<u64>,
    },
    /// The process must end cleanly. A worker ends when others have taken over the rows that it
    /// owns, and a coordinator when everything that was executed is in a snapshot.
    Leave,
    /// A connection has broken, so messages may be lost.
    Broken {
        /// The other end of the connection.
        to: Address,
    },
    /// A record is durable at an offset, or was refused.
    Appended {
        /// The identity of the append.
        token: Token,
        /// The record's offset, or the reason of the refusal.
        result: Result<u64, Refused>,
    },
    /// Records were read.
    Records {
        /// The identity of the read.
        token: Token,
        /// The records, or `None` if they could not be read now.
        records: Option<Records>,
    },
    /// An answer from outside.
    Answered {
        /// The identity of the question.
        token: Token,
        /// The answer, or `None` if no one could be asked now.
        answer: Option<Vec<u8>>,
    },
    /// The result of storing a manifest.
    Stored {
        /// The identity of the request.
        token: Token,
        /// Whether the object is stored.
        is_stored: bool,
    },
    /// The result of storing a part, or of a merge.
    PartStored {
        /// The identity of the request.
        token: Token,
        /// The stored part, or `None` if it is unknown whether it is stored.
        part: Option<StoredPart>,
    },
    /// The result of loading rows.
    Loaded {
        /// The identity of the request.
        token: Token,
        /// The rows, or `None` if they could not be read now.
        rows: Option<LoadedRows>,
    },
}

/// A part of a snapshot that is stored: its object, unless it has no rows.
pub type StoredPart = Option<DataObject>;

/// The way to execute a cut. It is not recorded, because the outcome does not depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutPlan {
    /// Whether a snapshot must be taken after it.
    pub takes_snapshot: bool,
    /// The node that executes it alone, if one does and if it can be executed by column.
    pub executes: Option<NodeId>,
    /// The places at which its parts begin, if a transaction in it may have ended a worker. Then
    /// all members begin each part together: [`Packet::Trial`].
    pub parts: Arc<[u64]>,
}

/// A message.
#[derive(Clone, Debug)]
pub enum Packet {
    /// From a worker: it is alive, and belongs to this generation.
    Beat {
        /// The generation, or 0 if it belongs to none.
        generation: u64,
    },
    /// To a worker that is about to join: the newest snapshot, and the division of work in which it
    /// will probably need it, with few records after it.
    Prepare(Arc<Form>),
    /// From a worker: it has read the snapshot.
    Prepared,
    /// To a worker: a generation begins.
    Form(Arc<Form>),
    /// From a worker: it has gone back to the snapshot, and is ready.
    Formed {
        /// The generation.
        generation: u64,
        /// The worker's events that are buffered until the watermark passes them.
        buffered: Buffered,
    },
    /// From a worker: records of a source that can be read.
    Available {
        /// The generation.
        generation: u64,
        /// The source.
        source: u32,
        /// The first offset.
        from: u64,
        /// The records from there.
        pieces: Vec<Piece>,
    },
    /// To a worker: execute this cut.
    Cut {
        /// The generation.
        generation: u64,
        /// The cut.
        cut: Arc<CutRecord>,
        /// The way to execute it.
        plan: CutPlan,
    },
    /// To a worker: cuts up to this epoch are durable.
    Durable {
        /// The generation.
        generation: u64,
        /// The last durable epoch.
        epoch: u64,
        /// The last epoch whose outputs may leave. It is an earlier one if a cut may still be
        /// withdrawn.
        released: u64,
    },
    /// From a worker: it has executed an epoch.
    Executed {
        /// The generation.
        generation: u64,
        /// The epoch.
        epoch: u64,
        /// The worker's buffered events after that epoch.
        buffered: Buffered,
        /// The counts of the transactions that the worker received in that epoch.
        counts: Counts,
        /// The first fault among them that no client learns of, and its transaction.
        fault: Option<(Tid, Fault)>,
        /// The functions that gave another result when they ran again, with the number of times.
        unstable: Vec<(Arc<str>, u64)>,
    },
    /// From a worker: it is about to begin a part of an epoch.
    Trial {
        /// The generation.
        generation: u64,
        /// The epoch.
        epoch: u64,
        /// The number of the part.
        part: u64,
        /// The last transaction whose output had left before.
        left: Tid,
    },
    /// To a worker: all members begin that part now.
    Tried {
        /// The generation.
        generation: u64,
        /// The epoch.
        epoch: u64,
        /// The number of the part.
        part: u64,
    },
    /// From a worker: all of its outputs of some epochs are in the log.
    Left {
        /// The generation.
        generation: u64,
        /// The base after these epochs.
        base: u64,
        /// For each source, an offset after all of these outputs.
        ends: Vec<u64>,
    },
    /// From a worker: the number of its rows that ask for work outside. It has executed up to the
    /// epoch, and all of that is recorded.
    Outside {
        /// The generation.
        generation: u64,
        /// The epoch.
        epoch: u64,
        /// The number of rows.
        rows: u64,
    },
    /// To a worker: clients follow these tables.
    Follow {
        /// The generation.
        generation: u64,
        /// The tables.
        tables: Vec<TableId>,
        /// The last transaction whose changes may have been passed on.
        passed: Tid,
    },
    /// From a worker that has executed an epoch: the changes of followed tables.
    Changed {
        /// The generation.
        generation: u64,
        /// The epoch.
        epoch: u64,
        /// The changes.
        changes: Vec<TableChanges>,
    },
    /// From a worker: its part of a snapshot is stored, and all outputs up to there are in the log.
    Part {
        /// The generation.
        generation: u64,
        /// The last epoch in the snapshot.
        epoch: u64,
        /// The part, or `None` if it could not be stored.
        part: Option<StoredPart>,
        /// For each source, the first offset at which outputs of later epochs may be, as far as the
        /// worker knows.
        outputs: Vec<u64>,
        /// For each event source that it reads and that has buffered events, where these begin.
        waiting: Vec<Waiting>,
    },
    /// To a worker: merge objects of the newest snapshot.
    Merge {
        /// The generation.
        generation: u64,
        /// The epoch of the snapshot.
        epoch: u64,
        /// The name of the new object.
        name: String,
        /// The objects.
        work: Arc<Work>,
    },
    /// From a worker: objects are merged.
    Merged {
        /// The generation.
        generation: u64,
        /// The name of the new object.
        name: String,
        /// The new object, or `None` if it could not be stored.
        part: Option<StoredPart>,
    },
    /// To a worker: the outcome of a snapshot.
    Snapshot {
        /// The generation.
        generation: u64,
        /// The last epoch in the snapshot.
        epoch: u64,
        /// Whether the snapshot counts.
        counts: bool,
    },
    /// From a worker: it has lost the connection to another.
    Lost {
        /// The generation.
        generation: u64,
        /// The other worker.
        member: Member,
    },
    /// To a worker that is alive: a generation begins without it, because it can't reach members.
    LeftOut {
        /// The generation.
        generation: u64,
        /// The members that it has lost repeatedly.
        from: Vec<Member>,
    },
    /// From a worker: it wants to end, as soon as it is no longer needed.
    Leaving,
    /// To a worker that wants to end: it may.
    Released,
    /// Between workers, if there are streams in event time: the requests of an epoch that the
    /// sender received, by rank.
    Ranks {
        /// The generation.
        generation: u64,
        /// The sender's node in the generation.
        from: NodeId,
        /// The epoch.
        epoch: u64,
        /// The counts of each rank.
        ranks: RankReport,
    },
    /// Between workers: a message of a node.
    Node {
        /// The generation.
        generation: u64,
        /// The sender's node in the generation.
        from: NodeId,
        /// The message of the node.
        message: Message,
    },
}
