//! Kafka: topics as sources and sinks of streams (see [`stream`]), and topics as logs of a cluster.
//!
//! # Logs
//!
//! One topic holds the inputs and one the outputs, with a partition for each source. A third one
//! holds the cuts, in its first partition, unless they are in a log of their own. Inputs and
//! outputs are for people and other systems: a [`Format`] says how a request is read and a reply is
//! written. Cuts are Tidemill's own.
//!
//! **Fencing** needs no transactions of Kafka. Every record of cuts and outputs has its generation
//! in the header [`GENERATION`]. The record with which a generation begins also has its number in
//! the header [`BEGINS`]. A record counts unless a higher generation has begun before it. All
//! readers decide this alike, because they all see the same order. A writer of cuts is answered
//! when all records before its own have been seen. If the record is at the first unseen offset, no
//! other process has appended, and it need not be read back. So records that an abandoned process
//! still sends are in the topic, but do not count. Consumers of the outputs that are not Tidemill
//! must check the two headers, too.
//!
//! Outputs are many: their writers are answered when the records are stored, whether they count or
//! not. That is enough. A worker's answers matter only when a snapshot relies on them. The record
//! of that snapshot is in the cuts before a later generation begins there. And a generation begins
//! in the cuts before it begins in the outputs. So all outputs on which the snapshot relies are
//! before that beginning, and count.
//!
//! **No holes.** Within a generation the records of a topic are in the order of the calls, and none
//! is stored without those before it. The producer is idempotent. A producer that fails is
//! abandoned with all records that it still holds. Its generation appends nothing more; the next
//! one does so with a new producer.
//!
//! **Retention.** Cuts are deleted when the log is trimmed. Inputs and outputs are retained for as
//! long as their topics say. If records that are still needed have gone, [`KafkaLog::lost`] says
//! so.
//!
//! This crate must not know the form of requests and replies, nor what is done with them.

mod append;
mod client;
mod fence;
mod hash;
mod log;
mod message;
mod read;
mod registry;
mod report;
mod requests;
mod security;
mod settings;
pub mod stream;
mod topics;

pub use client::{Client, OnMessage};
pub use hash::partition_of_key;
pub use log::KafkaLog;
pub use message::{Format, Outgoing};
pub use settings::KafkaSettings;

/// The header with the generation of a record of cuts or outputs, in decimal digits.
pub const GENERATION: &str = "tidemill-generation";

/// The header of a record with which a generation begins: the generation's number, in decimal
/// digits.
pub const BEGINS: &str = "tidemill-begins";

/// The header with the version of a cut's encoding, in decimal digits.
pub const VERSION: &str = "tidemill-version";
