//! What is in the logs and in the store.

use std::sync::Arc;

use tidemill_core::{Key, Position, Row, StreamId, TableId, Value};
use tidemill_function::{output_bytes, Call, NodeId, Owners, Path, Stored, Tid};
use tidemill_txn::program::{Abort, Asked};

use crate::state::SnapshotId;
use crate::Settings;

/// A process, by a number that nobody else has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u32);

/// What an output takes in a log beside its values, and each of its columns for its name.
const OUTPUT_BYTES: usize = 128;
const COLUMN_BYTES: usize = 32;

/// What a client calls its request.
pub type RequestId = Arc<[u8]>;

/// A request of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What the client calls it; the reply bears it.
    pub id: RequestId,
    /// What it asks for.
    pub call: Call,
}

/// A log partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Generations, cuts and snapshots.
    Cuts,
    /// Requests of a source.
    Input(u32),
    /// Replies and events of the requests of a source, and what outside has said to them.
    Output(u32),
}

/// A record of a log.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A generation begins: nothing of an earlier one is appended behind.
    Generation {
        /// Its number.
        generation: u64,
    },
    /// Requests of clients, one or some, which are of one epoch.
    Requests(Vec<Request>),
    /// Nothing more will come of the source that it is of. Sources end that read what has an end.
    End,
    /// A cut.
    Cut(CutRecord),
    /// A snapshot counts.
    Snapshot(Arc<Manifest>),
    /// What has left of one epoch, one or some.
    Outputs(Vec<Output>),
    /// What somebody outside has said to a function, which goes on when this is durable. It stands in the outputs and is
    /// for nobody but those who execute the transaction again.
    Answer {
        /// The transaction.
        tid: Tid,
        /// What the question is known by within it.
        asked: Asked,
        /// What was said.
        answer: Arc<[u8]>,
    },
}

/// What leaves.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A reply.
    Reply {
        /// To which request.
        tid: Tid,
        /// What its client calls it.
        id: RequestId,
        /// What it came to.
        outcome: Result<Value, Abort>,
    },
    /// An event.
    Event {
        /// Of which request.
        tid: Tid,
        /// The place in it.
        path: Path,
        /// The stream.
        stream: StreamId,
        /// The event.
        row: Row,
    },
}

impl Output {
    /// What it is known by.
    pub fn id(&self) -> (Tid, Option<Path>) {
        match self {
            Output::Reply { tid, .. } => (*tid, None),
            Output::Event { tid, path, .. } => (*tid, Some(path.clone())),
        }
    }

    /// About how many bytes it takes in a log at most.
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

/// A cut: which requests are an epoch, and where its places begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutRecord {
    /// The epoch, from 1.
    pub epoch: u64,
    /// The clock, in microseconds since 1970; it never goes back.
    pub clock_us: i64,
    /// The base of the places (`tidemill_function::Sequencing`).
    pub base: u64,
    /// How many places are taken of each source: as many as it has requests of the one of which it has most; where
    /// there are streams in event time, as many as it may execute of all together.
    pub count: u64,
    /// For each source the first record.
    pub from: Vec<u64>,
    /// For each source the first record behind it.
    pub upto: Vec<u64>,
    /// How far event time has come.
    pub times: Times,
}

/// How far event time has come at a cut; all of it empty where no stream is in event time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// For each [event source](crate::EventSource) the newest time that has come of it.
    pub newest: Vec<Option<i64>>,
    /// For each group of streams the place before which all has come: nothing behind it is executed. It never goes
    /// back.
    pub watermarks: Vec<Position>,
    /// Event sources that did not hold it back, because they had been silent for too long.
    pub idle: Vec<u32>,
    /// Event sources that have ended, and hold nothing back. One of a file that has grown goes on.
    pub ended: Vec<u32>,
    /// How many events have come too late, up to the epoch before; of a manifest up to its own.
    pub late: u64,
}

/// Where what waits of an event source begins: before that nothing of it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which one.
    pub event_source: u32,
    /// The first record.
    pub record: u64,
    /// The newest time of what came of it before that: by it later ones are late.
    pub newest_us: Option<i64>,
}

/// Events that have come and wait for their watermark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parked {
    /// How many.
    pub events: u64,
    /// How many bytes of memory they take, about.
    pub bytes: u64,
    /// How many have come too late instead, in the epoch that was executed last.
    pub late: u64,
}

impl std::iter::Sum for Parked {
    fn sum<I: Iterator<Item = Parked>>(all: I) -> Parked {
        all.fold(Parked::default(), |sum, of| Parked {
            events: sum.events + of.events,
            bytes: sum.bytes + of.bytes,
            late: sum.late + of.late,
        })
    }
}

impl CutRecord {
    /// The base of the next one.
    pub fn next_base(&self) -> u64 {
        self.base + self.count
    }
}

/// Which objects are a snapshot, and what goes on behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The program that its rows are of, and that everything behind it was recorded for.
    pub program: u128,
    /// The generation that has taken it.
    pub generation: u64,
    /// The last epoch that is in it.
    pub epoch: u64,
    /// The clock of its cut.
    pub clock_us: i64,
    /// The base of the next.
    pub base: u64,
    /// For each source the first record that is not in it.
    pub inputs: Vec<u64>,
    /// For each source the first record of which events wait for their watermark, or else the same; empty where no
    /// stream is in event time.
    pub parked: Vec<u64>,
    /// Of each event source of which something waits where that begins. Earlier versions did not say, and others were late
    /// there.
    pub waiting: Option<Vec<Waiting>>,
    /// How far event time has come.
    pub times: Times,
    /// For each source where outputs of later epochs may begin.
    pub outputs: Vec<u64>,
    /// Its objects by name, later ones over earlier ones.
    pub objects: Vec<String>,
    /// What of the outputs has been written elsewhere, as far as was known when it was taken.
    pub written: Arc<Written>,
}

/// How far somebody beside the cluster has written what leaves to where it is to go. It begins there again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// All that has left of requests at lower places is written: of those whose [`behind`] is at most this.
    pub base: u64,
    /// For each source where outputs of others may begin; empty where nobody writes anything.
    pub outputs: Vec<u64>,
    /// What whoever writes has to know to go on.
    pub note: Arc<[u8]>,
}

/// The base behind a request's place.
pub fn behind(tid: Tid, sources: u32) -> u64 {
    (tid.0 - 1) / u64::from(sources) + 1
}

/// All that leaves of some epochs is in the outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Which generation says so. It holds unless a later one begins in the outputs before those ends.
    pub generation: u64,
    /// Whose requests: those of which [`behind`] is at most this.
    pub base: u64,
    /// For each source an offset behind all that leaves of them.
    pub ends: Vec<u64>,
    /// The base behind all that was recorded before the generation began: nobody has written anything of others before.
    pub recorded: u64,
    /// What had been written when the generation began, as far as its snapshot knows.
    pub written: Arc<Written>,
}

impl Manifest {
    /// Which snapshot it is.
    pub fn id(&self) -> SnapshotId {
        (self.generation, self.epoch)
    }

    /// What it is called in the store.
    pub fn name(&self) -> String {
        format!("manifest-{}-{}", self.generation, self.epoch)
    }

    /// For each source the first of the inputs that a recovery reads.
    pub fn inputs_needed(&self) -> impl Iterator<Item = u64> + '_ {
        let parked = self.parked.iter().copied().chain(std::iter::repeat(u64::MAX));
        self.inputs.iter().zip(parked).map(|(input, parked)| (*input).min(parked))
    }

    /// For each source the first of the outputs that a recovery, or whoever writes what leaves, may read.
    pub fn outputs_needed(&self) -> impl Iterator<Item = u64> + '_ {
        let written = self.written.outputs.iter().copied().chain(std::iter::repeat(u64::MAX));
        self.outputs.iter().zip(written).map(|(output, written)| (*output).min(written))
    }

    /// Whether an object may still be needed when this snapshot counts: it is part of it, or of a later one.
    pub fn keeps(&self, name: &str) -> bool {
        let epoch = name.split('-').nth(2).and_then(|epoch| epoch.parse::<u64>().ok());
        let is_later = epoch.is_none_or(|epoch| epoch > self.epoch);
        is_later || self.name() == name || self.objects.iter().any(|own| own == name)
    }
}

/// Rows of a part of a snapshot, or that they have been removed.
pub type PartRows = Arc<Vec<(TableId, Key, Stored)>>;

/// An object of the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A part of a snapshot.
    Part(PartRows),
    /// A manifest.
    Manifest(Arc<Manifest>),
}

/// Who does what in a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The members, each of which is the node of its place.
    pub members: Vec<Member>,
    /// The owners of partitions.
    pub owners: Owners,
}

impl Assignment {
    /// Equal shares.
    pub fn equal(members: Vec<Member>) -> Assignment {
        let owners = Owners::equal(members.len() as u16);
        Assignment { members, owners }
    }

    /// The node of a member.
    pub fn node_of(&self, member: Member) -> Option<NodeId> {
        self.members.iter().position(|m| *m == member).map(|n| NodeId(n as u16))
    }

    /// The node that reads a source: neighbouring sources have one reader, as neighbouring
    /// partitions have one owner where shares are equal. Those that others write are shared out by themselves.
    pub fn reader(&self, source: u32, settings: &Settings) -> NodeId {
        let own = settings.sources - settings.followed;
        let (nth, of) = match source.checked_sub(own) {
            None => (source, own),
            Some(followed) => (followed, settings.followed),
        };
        NodeId((u64::from(nth) * self.members.len() as u64 / u64::from(of)) as u16)
    }
}

/// How a generation begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// Its number.
    pub generation: u64,
    /// Who does what.
    pub assignment: Assignment,
    /// The snapshot that it goes on from; nothing when there is none.
    pub manifest: Arc<Manifest>,
}
