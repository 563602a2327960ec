//! What goes into the machines and comes out of them.

use std::sync::Arc;

use tidemill_core::{Key, LateRow, TableId};
use tidemill_function::{Message, NodeId, Stored};
use tidemill_txn::program::Ask;

use crate::event_time::Ranked;
use crate::records::{
    CutRecord, Form, Manifest, Member, Object, Parked, Record, Topic, Waiting, Written,
};

/// Who a message is for, or from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// The coordinator, whichever process it is now.
    Coordinator,
    /// A worker.
    Worker(Member),
}

/// Which of its wishes an answer belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Why nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A later generation has begun.
    Fenced,
    /// Nobody knows whether it was, or will be before a later generation begins.
    Unknown,
}

/// What was read of a topic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// Records with their offsets, which may have gaps.
    pub records: Vec<(u64, Record)>,
    /// Behind all that was looked at: where the next read begins.
    pub upto: u64,
}

/// Neighbouring records of a source that can be read: where they end, and how many requests are in them. It is
/// one of three: records of one request each, one record of several, or offsets at which there is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Behind the last one.
    pub behind: u64,
    /// How many requests are in it.
    pub requests: u64,
    /// For each event source that has events in it, their times. Cuts do not divide such a piece.
    pub times: Box<[Span]>,
}

/// The times of the events in a piece that are of one [event source](crate::EventSource).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which one.
    pub event_source: u32,
    /// The time of the oldest, in microseconds.
    pub oldest_us: i64,
    /// The time of the newest.
    pub newest_us: i64,
    /// The first one that is late by those before it.
    pub late: Option<LateRow>,
}

impl Span {
    /// That of one event.
    pub fn of(event_source: u32, time_us: i64) -> Span {
        Span { event_source, oldest_us: time_us, newest_us: time_us, late: None }
    }

    /// With one more.
    pub fn with(self, time_us: i64) -> Span {
        let (oldest_us, newest_us) = (self.oldest_us.min(time_us), self.newest_us.max(time_us));
        Span { oldest_us, newest_us, ..self }
    }
}

impl Piece {
    /// Whether it is of records of one request each; it begins at an offset.
    pub fn is_run(&self, from: u64) -> bool {
        self.requests == self.behind - from
    }

    /// What of it is not before another offset, at which no cut divides a record. Times of what is before that have come
    /// already, so that they may stay.
    pub fn rest(self, from: u64, at: u64) -> Option<Piece> {
        let requests =
            if self.is_run(from) { self.behind.saturating_sub(at) } else { self.requests };
        (at < self.behind).then_some(Piece { requests, ..self })
    }
}

/// What a machine wants done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A message. Those to one address arrive in their order, or the connection breaks.
    Send {
        /// To whom.
        to: Address,
        /// What.
        packet: Packet,
    },
    /// Append a record durably, unless a later generation has begun in the topic.
    Append {
        /// For the answer.
        token: Token,
        /// Where.
        topic: Topic,
        /// Whose record it is.
        generation: u64,
        /// The record.
        record: Record,
    },
    /// Read what there is from an offset on, about so many records and requests in them at most; without a limit all of it, in one answer,
    /// however many reads that takes.
    Read {
        /// For the answer.
        token: Token,
        /// Where.
        topic: Topic,
        /// From where on.
        from: u64,
        /// How much.
        limit: Option<usize>,
    },
    /// Put an object, unless there is one of this name.
    Put {
        /// For the answer.
        token: Token,
        /// Its name.
        name: String,
        /// The object.
        object: Object,
    },
    /// Get an object.
    Get {
        /// For the answer.
        token: Token,
        /// Its name.
        name: String,
    },
    /// Ask somebody outside, beside all else: it may take its time.
    Ask {
        /// For the answer.
        token: Token,
        /// How.
        ask: Ask,
    },
    /// Rows of outboxes that are durable: work outside that is to be done, or none any more where a row has gone. What it
    /// comes to is a request.
    Outbox {
        /// Whether no others are there.
        all: bool,
        /// The rows, by table and key.
        rows: Vec<(TableId, Key, Stored)>,
    },
    /// A snapshot counts: requests, outputs and cuts before it are not needed any more, nor are objects of
    /// epochs up to it that it does not name. Nothing has to be done.
    Release {
        /// The snapshot.
        manifest: Arc<Manifest>,
        /// The offset of its cut.
        cuts: u64,
    },
    /// The process can't go on and ends; who starts it again is not its business.
    Stop {
        /// Why.
        why: &'static str,
    },
    /// It was to end in good order, and may.
    End,
}

/// What happens to a machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time has passed.
    Tick {
        /// The monotonic clock.
        now_us: u64,
        /// The wall clock, which may jump.
        clock_us: i64,
    },
    /// A message has come.
    Packet {
        /// From whom.
        from: Address,
        /// What.
        packet: Packet,
    },
    /// All that has left of some epochs is where it is to go: the next snapshot says so. Of a coordinator.
    Written(Arc<Written>),
    /// It is to end in good order: a worker when others have taken over what it owns, a coordinator when all
    /// that was executed is in a snapshot.
    Leave,
    /// A connection has broken: messages may be lost.
    Broken {
        /// To whom it was.
        to: Address,
    },
    /// A record is durable at an offset, or was refused.
    Appended {
        /// Of what.
        token: Token,
        /// How it went.
        result: Result<u64, Refused>,
    },
    /// Records.
    Records {
        /// Of what.
        token: Token,
        /// `None` when they could not be read now.
        records: Option<Records>,
    },
    /// What somebody outside says.
    Answered {
        /// To what.
        token: Token,
        /// `None` when nobody could be asked now.
        answer: Option<Vec<u8>>,
    },
    /// An object is stored, or not.
    Stored {
        /// Of what.
        token: Token,
        /// Whether it is.
        is_stored: bool,
    },
    /// An object; `None` when it could not be read now.
    Got {
        /// Of what.
        token: Token,
        /// The object.
        object: Option<Object>,
    },
}

/// A message.
#[derive(Clone, Debug)]
pub enum Packet {
    /// From a worker: it lives, and is of this generation.
    Beat {
        /// 0 when of none.
        generation: u64,
    },
    /// To a worker that is about to come in: the newest snapshot, which it will need, with little more.
    Prepare(Arc<Manifest>),
    /// From a worker: it has read it.
    Prepared,
    /// To a worker: a generation begins.
    Form(Arc<Form>),
    /// From a worker: it has gone back to the snapshot, and is ready.
    Formed {
        /// Of which generation.
        generation: u64,
        /// What waits at it for its watermark.
        parked: Parked,
    },
    /// From a worker: this can be read of a source.
    Available {
        /// Of which generation.
        generation: u64,
        /// The source.
        source: u32,
        /// The first offset.
        from: u64,
        /// What is there from then on.
        pieces: Vec<Piece>,
    },
    /// To a worker: execute this.
    Cut {
        /// Of which generation.
        generation: u64,
        /// What.
        cut: Arc<CutRecord>,
        /// Whether a snapshot is to be taken behind it, and whether of all rows.
        snapshot: Option<bool>,
    },
    /// To a worker: cuts up to here are durable.
    Durable {
        /// Of which generation.
        generation: u64,
        /// The last of them.
        epoch: u64,
    },
    /// From a worker: it has executed an epoch.
    Executed {
        /// Of which generation.
        generation: u64,
        /// Which.
        epoch: u64,
        /// What waits at it for its watermark behind that.
        parked: Parked,
    },
    /// From a worker: all that it has to append of some epochs is in the outputs.
    Left {
        /// Of which generation.
        generation: u64,
        /// The base behind these epochs.
        base: u64,
        /// For each source an offset behind all of that.
        ends: Vec<u64>,
    },
    /// From a worker: so many rows ask for work outside where it has executed up to an epoch, and all of that is recorded.
    Outside {
        /// Of which generation.
        generation: u64,
        /// The epoch.
        epoch: u64,
        /// How many.
        rows: u64,
    },
    /// From a worker: its part of a snapshot is stored, and all that has left up to there is in the outputs.
    Part {
        /// Of which generation.
        generation: u64,
        /// Behind which epoch.
        epoch: u64,
        /// The object; `None` when it could not be stored.
        name: Option<String>,
        /// How many rows are in it.
        rows: u64,
        /// For each source where outputs of later epochs may begin, as far as the worker knows.
        outputs: Vec<u64>,
        /// Of event sources that it reads and of which events wait for their watermark, where these begin.
        waiting: Vec<Waiting>,
    },
    /// To a worker: what has become of a snapshot.
    Snapshot {
        /// Of which generation.
        generation: u64,
        /// Behind which epoch.
        epoch: u64,
        /// Whether it counts.
        counts: bool,
    },
    /// From a worker: it has lost the connection to another.
    Lost {
        /// Of which generation.
        generation: u64,
        /// To whom.
        member: Member,
    },
    /// To a worker that lives: a generation begins without it, because it can't reach members.
    LeftOut {
        /// Which generation.
        generation: u64,
        /// Whom it has lost again and again.
        from: Vec<Member>,
    },
    /// From a worker: it wants to end, when nobody needs it any more.
    Leaving,
    /// To a worker that wants to: it may end.
    Released,
    /// Between workers, where there are streams in event time: what of an epoch has come in at the sender, in the order
    /// that it has.
    Ranks {
        /// Of which generation.
        generation: u64,
        /// The sender's place in it.
        from: NodeId,
        /// Which epoch.
        epoch: u64,
        /// What there is of each rank.
        ranks: Vec<Ranked>,
    },
    /// Between workers.
    Node {
        /// Of which generation.
        generation: u64,
        /// The sender's place in it.
        from: NodeId,
        /// What one node tells the other.
        message: Message,
    },
}
