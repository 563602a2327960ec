//! Data on its way: chunks from a source, parcels of rows, and reports of how far a source has been
//! read.

use std::sync::Arc;

use arrow_array::{Array, BooleanArray};
use tidemill_core::{Batch, LateRow, Result, SourceId, StreamId};

/// Rows just read and decoded by an [`Ingress`](crate::Ingress).
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The good rows.
    pub batch: Batch,
    /// The place of each row in the source, rising.
    pub offsets: Vec<u64>,
    /// The event time of each row, or 0 if the stream has none.
    pub times: Vec<i64>,
    /// Rows that could not be decoded. They have offsets, too.
    pub bad: Vec<Bad>,
    /// The first offset after this chunk, including bad rows.
    pub next_offset: u64,
    /// The newest event time up to the end of this chunk.
    pub time_max: Option<i64>,
    /// The rows that are late by the earlier ones of the source, in order.
    pub late: Vec<LateRow>,
}

/// Rows of one stream, on their way from a source to the transactions.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// The source of the rows.
    pub source: SourceId,
    /// The stream of the rows.
    pub stream: StreamId,
    /// The rows.
    pub batch: Batch,
    /// The place of each row in the source, rising.
    pub offsets: Vec<u64>,
    /// The event time of each row, or 0 if the stream has none.
    pub times: Vec<i64>,
}

impl Parcel {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Returns the memory that it holds, in bytes.
    pub fn bytes(&self) -> u64 {
        let words = self.offsets.len() + self.times.len();
        (size_of::<Parcel>() + self.batch.bytes() + words * size_of::<u64>()) as u64
    }

    /// Returns the rows for which `keep` is true, as a filter does.
    pub fn retain(self, keep: &BooleanArray) -> Result<Parcel> {
        if keep.true_count() == self.len() {
            return Ok(self);
        }
        // A null is not true.
        let keep = &match keep.nulls() {
            Some(nulls) => BooleanArray::new(keep.values() & nulls.inner(), None),
            None => keep.clone(),
        };
        let rows: Vec<usize> = keep.values().set_indices().collect();
        fn selected<T: Copy>(all: &[T], rows: &[usize]) -> Vec<T> {
            rows.iter().map(|row| all[*row]).collect()
        }
        Ok(Parcel {
            batch: self.batch.filter(keep)?,
            offsets: selected(&self.offsets, &rows),
            times: selected(&self.times, &rows),
            ..self
        })
    }
}

/// A row that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    /// Its place in the source.
    pub offset: u64,
    /// The name of what holds it, for people, such as a file's name or a connection's address.
    pub origin: Arc<str>,
    /// Its line there.
    pub line: u64,
    /// The row as it was read.
    pub raw: String,
    /// The reason why it is bad.
    pub reason: String,
}

/// The progress of a source. It does not depend on what filters drop later. So watermarks and
/// lateness, which follow from it, do not either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The source.
    pub source: SourceId,
    /// The first offset that has not been read.
    pub next_offset: u64,
    /// The number of rows that were read, including bad ones.
    pub rows: u64,
    /// The newest event time up to here.
    pub time_max: Option<i64>,
    /// The rows that are late by the earlier ones, in order.
    pub late: Vec<LateRow>,
    /// Whether the source has ended.
    pub ended: bool,
    /// The bad rows.
    pub bad: Vec<Bad>,
}

impl Report {
    /// Returns the memory that it holds, in bytes.
    pub fn bytes(&self) -> u64 {
        let bad = |b: &Bad| size_of::<Bad>() + b.raw.len() + b.reason.len();
        let late = size_of::<LateRow>() * self.late.len();
        (size_of::<Report>() + self.bad.iter().map(bad).sum::<usize>() + late) as u64
    }

    /// Adds a later report.
    pub(crate) fn absorb(&mut self, later: Report) {
        self.next_offset = self.next_offset.max(later.next_offset);
        self.rows += later.rows;
        self.time_max = self.time_max.max(later.time_max);
        self.late.extend(later.late);
        self.ended |= later.ended;
        self.bad.extend(later.bad);
    }
}
