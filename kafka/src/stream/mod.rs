//! Topics as sources and sinks of streams.
//!
//! **A source** is a partition of a topic. Tidemill numbers its rows, bad ones included, because
//! the topic's offsets have gaps. A [`Place`](tidemill_connect::Place) holds both the number and
//! the offset. It also holds the checksum of the last message, which shows whether the topic was
//! recreated. The topic is the source's own log: rows are read again after a restart. So messages
//! must be retained for as long as a recovery may need them, and a compacted topic is refused.
//!
//! **A sink** appends rows with a header that identifies each ([`ID`]). After a crash it reads the
//! ends of the partitions back, from the offsets in the last snapshot, and appends the missing
//! rows. A broker may accept messages of a dead process only later. Where this must not happen, the
//! sink writes transactions of Kafka; the broker then refuses the messages of the dead process.
//!
//! **Values in Avro** need a schema registry. A source fetches the writers' schemas on another
//! thread, and waits while a schema is unknown. A sink has its own schema registered before it
//! writes.
//!
//! **A broker that is away** holds up the run but does not end it: see
//! [`Troubles`](tidemill_connect::Troubles). Queues are bounded in bytes on both sides.
//!
//! This module must not know the meaning of rows.

mod begin;
mod listen;
mod records;
mod send;
mod settings;
mod sink;
mod source;
mod tail;
mod watch;

pub use settings::{Begin, SinkSchema, TopicSink, TopicSource};
pub use sink::{open as open_sink, RowIds};
pub use source::{open as open_sources, Numbers, Opened};

/// The header with the id of a row: the app and its data directory, the stream, and the row's
/// number, as `app-0123456789abcdef/stream/17`. The id is the same in every write of the row.
pub const ID: &str = "tidemill-id";
