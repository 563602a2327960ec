//! A log in the files of one process, which serves it to the others, and inputs that others may be
//! unable to read.

mod client;
mod files;
mod lost;
mod server;
mod topic;

pub(crate) use client::RemoteLog;
pub(crate) use files::Raw;
pub use files::{hold, FileLog, SEGMENT_BYTES};
pub(crate) use server::serve;
pub use server::Served;
pub(crate) use topic::{put_topic, take_topic};
