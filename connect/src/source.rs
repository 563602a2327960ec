//! The contract of sources.

use std::sync::Arc;

use tidemill_core::{Batch, Result, Schema};

pub mod contract;
mod place;

pub(crate) use place::RESTORE;
pub use place::{Before, FilePlace, Place};

/// Wakes the thread that polls a source. It may be called from any thread, and more often than
/// needed.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// One source partition: rows of one stream, numbered from 0 by `offset`, bad rows included.
///
/// A row always has the same offset, which is part of the stamps of everything that follows from
/// the row. Implementations call [`contract::check`] in their tests.
pub trait Source: Send {
    /// Returns the schema of the rows.
    fn schema(&self) -> &Arc<Schema>;

    /// Returns up to `rows_max` rows from the current offset (bad ones included), without waiting
    /// for input. Fewer rows do not mean that there are no more.
    ///
    /// # Errors
    /// If the source itself fails. Earlier calls have returned the rows before the failure. The
    /// error stays until [`resume`](Source::resume).
    fn poll(&mut self, rows_max: usize) -> Result<Polled>;

    /// Returns the offset of the next row.
    fn offset(&self) -> u64;

    /// Returns the source's place, after all rows that were returned.
    fn place(&self) -> Place;

    /// Continues at a place that a source over the same input once had. The input before it is read
    /// again and compared, but not decoded again.
    ///
    /// # Errors
    /// If the input does not begin with the same data: it is shorter or different. Also if the rows
    /// are no longer available, because the source is not [`replayable`](Source::replayable).
    fn resume(&mut self, place: &Place) -> Result<()>;

    /// Whether rows can be read again after a restart, so that the source is its own log.
    fn replayable(&self) -> bool;

    /// Whether the last [`Polled::Pending`] was the result of a look: everything that was there at
    /// the [`Polled::Pending`] before it has been returned. A source that asks another process, and
    /// does not wait for the answer, knows this only now and then.
    fn has_looked(&self) -> bool {
        true
    }

    /// Sets the waker to call when there may be more after a [`Polled::Pending`]. Sources that are
    /// never pending ignore it.
    fn set_waker(&mut self, _waker: Waker) {}
}

/// The result of [`Source::poll`].
#[derive(Clone, Debug)]
pub enum Polled {
    /// Rows, at least one (good or bad) unless `rows_max` was 0.
    Rows(Chunk),
    /// Nothing now, but perhaps later. If the source [has looked](Source::has_looked), everything
    /// that was there at that look has been returned.
    Pending,
    /// Nothing more, ever.
    End,
}

/// Consecutive rows of a source.
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
    /// The row's offset.
    pub offset: u64,
    /// The file's path, the topic and its partition, or "push".
    pub origin: Arc<str>,
    /// The line (from 1) in which the row begins, or the offset of a topic's message; 0 where there
    /// is neither.
    pub line: u64,
    /// The beginning of the raw row, at most [`BadRow::RAW_BYTES_MAX`] bytes, with replacement
    /// characters for invalid UTF-8.
    pub raw: String,
    /// The reason, with the column's name if a column is the cause.
    pub reason: String,
}

impl Chunk {
    /// Returns the number of rows, bad ones included.
    pub fn rows(&self) -> usize {
        self.batch.len() + self.bad.len()
    }

    /// Splits off the first `rows` rows, which must not be all of them.
    pub fn split_off_front(&mut self, rows: usize) -> Chunk {
        // Good and bad rows are each in order, so the first rows of both together are known.
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
    /// The largest size of `raw`, in bytes.
    pub const RAW_BYTES_MAX: usize = 1024;
}
