//! Topics as sources and sinks of streams.
//!
//! **A source** is a partition of a topic. Its rows are numbered by Tidemill, bad ones included, because
//! offsets in the topic have gaps; a [`Place`](tidemill_connect::Place) holds both, and the checksum of the
//! last message, by which a topic that was made anew is told from the one that was read. The topic is the
//! source's own log: rows are read again after a restart, so messages must be kept for as long as a recovery
//! may need them, and a topic that is compacted is refused.
//!
//! **A sink** appends rows with a header that names each ([`ID`]). After a crash it reads back the ends of
//! the partitions, from offsets on that the last snapshot knows, and appends what is not there. A dead
//! process may have sent something that the broker takes only afterwards: where that must not be, the sink
//! writes transactions of Kafka, with which the broker refuses what a dead one has left behind.
//!
//! **Values in Avro** need a registry of schemas: a source fetches those of the writers on a thread beside it
//! and waits where one is not known yet, a sink has its own registered before it writes.
//!
//! **A broker that is away** holds up, and ends nothing: see [`Troubles`](tidemill_connect::Troubles).
//! Queues have ends in bytes on both sides.
//!
//! This part must not know what rows are for.

mod begin;
mod follow;
mod listen;
mod records;
mod send;
mod settings;
mod sink;
mod source;
mod tail;
mod watch;

pub use follow::FollowedTopic;
pub use settings::{Begin, SinkSchema, TopicSink, TopicSource};
pub use sink::{open as open_sink, RowIds};
pub use source::open as open_sources;

/// The header with the id of a row: the app and its data directory, the stream, and the row's number, as
/// `app-0123456789abcdef/stream/17`. It is the same however often the row is written.
pub const ID: &str = "tidemill-id";
