//! A log in the files of one process, which serves it to the others.

mod client;
mod files;
mod lost;
mod server;
mod topic;

pub(crate) use client::RemoteLog;
pub(crate) use files::Raw;
pub use files::{hold, FileLog};
pub(crate) use server::serve;
pub(crate) use topic::{put_topic, take_topic};
