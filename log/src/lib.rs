//! Durable logs: what is appended and committed is there again after any crash, or the log is
//! refused.
//!
//! A log is a sequence of records, numbered from 0: a kind and bytes. A [`Log`] appends to it and
//! trims it, [`read`] gives the records back, [`copy`](copy()) copies them. [`Log::commit`] groups what was appended into one
//! block and returns when it is durable.
//!
//! A log has one writer, who holds a lock elsewhere. What is on disk is described in
//! `docs/durability.md`, with the invariants, and to the byte in `format.rs`.
//!
//! - Nothing that was committed is ever missing or different without an error that names the file
//!   and the place. What cannot be told from a write that a crash has interrupted, at the very end
//!   of a log of kind [`Input`](LogKind::Input), is told by who knows better: see [`Log::open`] and
//!   [`Reader::needing`].
//! - After a failed write or sync a log refuses everything: nobody knows what is on the disk, and
//!   the one safe way on is to open it again. A full disk is found before, and is no such failure.
//!
//! This crate does not know what records mean, when to commit, what a snapshot needs, or what to do
//! about a refused log.

mod again;
mod append;
mod block;
mod commit;
mod copy;
mod dir;
mod format;
mod last;
mod open;
mod read;
mod refuse;
mod room;
mod segment;
#[cfg(test)]
mod tests;
mod trim;
mod window;

use std::path::PathBuf;

pub use append::RECORD_BYTES_MAX;
pub use copy::copy;
pub use dir::is_begun;
pub use open::Log;
pub use read::{read, Reader};
pub use refuse::Damage;

/// Which log, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSpec {
    /// The directory that holds the segments of this log, and which of them is the last.
    pub dir: PathBuf,
    /// What the log is for.
    pub kind: LogKind,
    /// The app whose log it is. Opening another app's log is refused.
    pub app: u128,
    /// The length of a segment's file in bytes. A block that needs more gets a longer segment. May
    /// be another one each time that the log is opened.
    pub segment_bytes: u64,
}

/// What a log is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogKind {
    /// Rows and verdicts. Each block is stored once: the cut log vouches for how many records there
    /// must be.
    Input,
    /// Cuts. Nobody vouches for the last one, so that each block and each header is stored twice:
    /// no single damaged place takes a record away.
    Cuts,
}

/// A record of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place in the log, from 0.
    pub number: u64,
    /// What it is, to those who know.
    pub kind: u8,
    /// Its bytes.
    pub bytes: Vec<u8>,
}
