//! What a source is.

use std::sync::Arc;

use tidemill_core::{Batch, Result, Schema};

pub mod contract;

/// Wakes whoever polls a source; may be called from any thread, and more often than needed.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// One source partition: rows of one stream, numbered from 0 by `offset`, bad rows included.
///
/// A row keeps its offset for ever: it is part of the stamps of all that follows from the row.
/// Implementations call [`contract::check`] in their tests.
pub trait Source: Send {
    /// The schema of the rows.
    fn schema(&self) -> &Arc<Schema>;

    /// Up to `rows_max` rows from the current offset (bad ones included), without waiting for
    /// input that is not there yet. Fewer rows do not mean that there are no more.
    ///
    /// # Errors
    /// When the source itself fails. Rows before the failure have been handed out by earlier
    /// calls; the error stays until [`seek`](Source::seek).
    fn poll(&mut self, rows_max: usize) -> Result<Polled>;

    /// Offset of the next row.
    fn offset(&self) -> u64;

    /// Continues at this offset.
    ///
    /// # Errors
    /// When that row is not to be had (any more, or any longer): the input has changed, or the
    /// source is not [`replayable`](Source::replayable).
    fn seek(&mut self, offset: u64) -> Result<()>;

    /// Whether rows can be read again after a restart, so that the source is its own log.
    fn replayable(&self) -> bool;

    /// What tells whether a replayable source still holds the same rows; `None` when it can't say.
    /// It may have to read everything once: ask when it is to be recorded or compared.
    ///
    /// # Errors
    /// When the source can't be read.
    fn fingerprint(&self) -> Result<Option<Fingerprint>> {
        Ok(None)
    }

    /// Says whom to wake when there may be more after a [`Polled::Pending`]. Sources that are
    /// never pending ignore it.
    fn set_waker(&mut self, _waker: Waker) {}
}

/// Identity of a source's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Length in bytes.
    pub len: u64,
    /// Checksum of all bytes.
    pub hash: u128,
}

/// What [`Source::poll`] finds.
#[derive(Clone, Debug)]
pub enum Polled {
    /// Rows, at least one (good or bad) unless `rows_max` was 0.
    Rows(Chunk),
    /// Nothing now, perhaps later.
    Pending,
    /// Nothing more, ever.
    End,
}

/// Rows that follow one another in a source.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The rows that could be decoded.
    pub batch: Batch,
    /// The offset of each row of `batch`, ascending.
    pub offsets: Vec<u64>,
    /// The rows that could not be decoded, ascending by offset.
    pub bad: Vec<BadRow>,
    /// The first offset that is not in the chunk.
    pub next_offset: u64,
}

/// A row that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// Its offset.
    pub offset: u64,
    /// The file's path, or "push".
    pub origin: Arc<str>,
    /// The line (from 1) in which the row begins; 0 where there are no lines.
    pub line: u64,
    /// The beginning of the row as it was found, at most [`BadRow::RAW_BYTES_MAX`] bytes, with
    /// replacement characters for what is not UTF-8.
    pub raw: String,
    /// Why, naming the column where one is to blame.
    pub reason: String,
}

impl BadRow {
    /// The most bytes that `raw` holds.
    pub const RAW_BYTES_MAX: usize = 1024;
}
