//! Durable logs: appended and committed records are there again after any crash, or the log is
//! refused.
//!
//! A log is a sequence of records, numbered from 0. Each has a kind and bytes. A [`Log`] appends to
//! it and trims it, [`read`] returns the records, [`copy`](copy()) copies them. [`Log::commit`]
//! groups the appended records into one block and returns when it is durable.
//!
//! A log has one writer, which holds a lock elsewhere. `docs/internals/durability.md` describes the
//! data on disk and the invariants, and `format.rs` has the exact bytes.
//!
//! - No committed record is ever missing or different without an error that names the file and the
//!   place. There is one case that the log itself can't decide: damage at the very end of a log of
//!   kind [`Input`](LogKind::Input) may look like a write that a crash has interrupted. There the
//!   caller's count of records decides: see [`Log::open`] and [`Reader::needing`].
//! - After a failed write or sync a log refuses everything: the content of the disk is unknown, and
//!   the only safe way on is to open the log again. A full disk is found earlier, and does not
//!   count as such a failure.
//!
//! This crate does not know the meaning of records, when to commit, the needs of a snapshot, or the
//! remedy for a refused log.

mod append;
mod block;
mod commit;
mod copy;
mod dir;
mod errors;
mod format;
mod last;
mod open;
mod read;
mod rewrite;
mod room;
mod segment;
#[cfg(test)]
mod tests;
mod trim;
mod window;

use std::path::PathBuf;

pub use append::RECORD_BYTES_MAX;
pub use copy::copy;
pub use dir::{first, is_begun};
pub use errors::Damage;
pub use open::Log;
pub use read::{read, Reader};

/// The description of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSpec {
    /// The directory that holds the segments of this log, and the note of the last one.
    pub dir: PathBuf,
    /// The kind of log.
    pub kind: LogKind,
    /// The app to which the log belongs. Opening another app's log is refused.
    pub app: u128,
    /// The length of a segment's file in bytes. A block that needs more gets a longer segment. It
    /// may differ each time that the log is opened.
    pub segment_bytes: u64,
}

/// The kind of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogKind {
    /// Rows and verdicts. Each block is stored once: the cut log says how many records there must
    /// be.
    Input,
    /// Cuts. No other log says how many there must be, so each block and each header is stored
    /// twice: no single damaged place removes a record.
    Cuts,
}

/// A record of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The place in the log, from 0.
    pub number: u64,
    /// The kind, whose meaning the caller knows.
    pub kind: u8,
    /// The bytes.
    pub bytes: Vec<u8>,
}
