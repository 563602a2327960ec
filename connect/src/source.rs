//! What a source is.

use std::sync::Arc;

use tidemill_core::{Batch, Result, Schema};

pub mod contract;
mod place;

pub(crate) use place::RESTORE;
pub use place::{Before, FilePlace, Place};

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
    /// calls; the error stays until [`resume`](Source::resume).
    fn poll(&mut self, rows_max: usize) -> Result<Polled>;

    /// Offset of the next row.
    fn offset(&self) -> u64;

    /// Where the source stands, behind all rows that were handed out.
    fn place(&self) -> Place;

    /// Continues at a place where a source over the same input once stood. What was read before
    /// it is read again, and compared, but not decoded again.
    ///
    /// # Errors
    /// When the input does not begin with what was read then: it is shorter, has changed, or is
    /// another. Also when the rows are not to be had any more, because the source is not
    /// [`replayable`](Source::replayable).
    fn resume(&mut self, place: &Place) -> Result<()>;

    /// Whether rows can be read again after a restart, so that the source is its own log.
    fn replayable(&self) -> bool;

    /// Whether the last [`Polled::Pending`] was the outcome of a look: all that was there when the one
    /// before it was told has been handed out. A source that has to ask somebody else, and does not wait
    /// for the answer, knows it only now and then.
    fn has_looked(&self) -> bool {
        true
    }

    /// Says whom to wake when there may be more after a [`Polled::Pending`]. Sources that are
    /// never pending ignore it.
    fn set_waker(&mut self, _waker: Waker) {}
}

/// What [`Source::poll`] finds.
#[derive(Clone, Debug)]
pub enum Polled {
    /// Rows, at least one (good or bad) unless `rows_max` was 0.
    Rows(Chunk),
    /// Nothing now, perhaps later: all that was there when it was asked has been handed out, if the
    /// source [has looked](Source::has_looked).
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
    /// The file's path, the topic and its partition, or "push".
    pub origin: Arc<str>,
    /// The line (from 1) in which the row begins; of a topic's message its offset there; 0 where there
    /// is neither.
    pub line: u64,
    /// The beginning of the row as it was found, at most [`BadRow::RAW_BYTES_MAX`] bytes, with
    /// replacement characters for what is not UTF-8.
    pub raw: String,
    /// Why, naming the column where one is to blame.
    pub reason: String,
}

impl Chunk {
    /// Number of rows, bad ones included.
    pub fn rows(&self) -> usize {
        self.batch.len() + self.bad.len()
    }

    /// Takes the first `rows` rows off, which are not all.
    pub fn split_off_front(&mut self, rows: usize) -> Chunk {
        // Good and bad rows are each in order, so that the first of both together are known.
        let mut bad = 0;
        while bad < self.bad.len() && bad < rows {
            let good_before = self.offsets.partition_point(|o| *o < self.bad[bad].offset);
            if good_before + bad >= rows {
                break;
            }
            bad += 1;
        }
        let good = rows - bad;
        let rest = self.offsets.split_off(good);
        let rest_bad = self.bad.split_off(bad);
        let first = rest.first().copied().into_iter();
        let next = first.chain(rest_bad.first().map(|b| b.offset)).min();
        let front = Chunk {
            batch: self.batch.slice(0, good),
            offsets: std::mem::replace(&mut self.offsets, rest),
            bad: std::mem::replace(&mut self.bad, rest_bad),
            next_offset: next.unwrap_or(self.next_offset),
        };
        self.batch = self.batch.slice(good, self.batch.len() - good);
        front
    }
}

impl BadRow {
    /// The most bytes that `raw` holds.
    pub const RAW_BYTES_MAX: usize = 1024;
}
