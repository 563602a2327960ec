//! Kafka: topics as sources and sinks of streams (see [`stream`]), and logs of a cluster as topics.
//!
//! # Logs
//!
//! One topic holds the inputs and one the outputs, with a partition for each source; a third one holds the
//! cuts, in its first partition, unless they are in a log of their own. What is in inputs and outputs is for
//! people and for other systems: a [`Format`] says how a request is read and a reply is written. Cuts are
//! Tidemill's own.
//!
//! **Fencing** needs no transactions of Kafka. Every record of cuts and outputs bears its generation in the
//! header [`GENERATION`], and the record with which a generation begins bears its number in the header
//! [`BEGINS`], too. A record counts unless a higher generation has begun before it: whoever reads decides it
//! alike, because all see one order. A writer of cuts is answered when all before its record has been seen: where the
//! record is at the first offset that has not been, nobody else has appended, and it need not be read back. So what a process that was given up still sends is in the topic, and counts for nobody;
//! consumers of the outputs that are not Tidemill have to look at the two headers as well.
//!
//! Outputs are many: their writers are answered when they are there, whether they count or not. That is enough.
//! What a worker is told of them matters only when a snapshot goes by it. The record of that snapshot is in the
//! cuts before a later generation begins there, and it begins there before it begins in the outputs: so all
//! outputs that the snapshot goes by are before that beginning, and count.
//!
//! **No holes.** Within a generation the records of a topic are in the order of the calls, and none is there
//! without those before it: the producer is idempotent, and one that has failed is given up with all that it
//! still had. Its generation appends nothing more, the next one does so with a new producer.
//!
//! **What is kept.** Cuts are deleted when the log is trimmed. Inputs and outputs are kept for as long as their
//! topics say; when something has gone that is still needed, [`KafkaLog::lost`] says so.
//!
//! This crate must not know what requests and replies look like, nor what is done with them.

mod append;
mod asks;
mod client;
mod fence;
mod hash;
mod log;
mod message;
mod read;
mod registry;
mod security;
mod settings;
pub mod stream;
mod topics;

pub use client::{Client, Heard};
pub use hash::partition_of_key;
pub use log::KafkaLog;
pub use message::{Format, Outgoing};
pub use settings::{Followed, KafkaSettings};

/// The header with the generation of a record of cuts or outputs, in decimal digits.
pub const GENERATION: &str = "tidemill-generation";

/// The header of a record with which a generation begins: its number, in decimal digits.
pub const BEGINS: &str = "tidemill-begins";

/// The header with the version of the bytes of a cut, in decimal digits.
pub const VERSION: &str = "tidemill-version";
