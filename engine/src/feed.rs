//! A source as the flow sees it. It adds event times, notes its positions, and logs rows that it
//! can't give a second time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crossbeam_channel::Sender;
use parking_lot::Mutex;
use tidemill_connect::{Place, Polled as Read, Source};
use tidemill_core::{Batch, Error, Result, SourceId};
use tidemill_env::Clock;
use tidemill_flow::{Bad, Chunk, Ingress, Polled};
use tidemill_txn::order::Newest;

use crate::deliver::Item;
use crate::records;

/// The positions of a source after each poll, until a cut has taken them. The gate bounds their
/// number.
pub(crate) type Places = Arc<Mutex<VecDeque<Place>>>;

/// The channel that pushed rows go to first.
pub(crate) struct ToLog {
    pub(crate) items: Sender<Item>,
    /// The rows before this one came from the log.
    pub(crate) from: u64,
}

/// The time between two checks of files without new rows, in nanoseconds. A check is a few system
/// calls, so idle files cost next to nothing.
const LOOK_NS: u64 = 5_000_000;
/// The check of a folder with many files takes long. This is the ratio of other time to the time of
/// checks.
const LOOK_SHARE: u64 = 50;

/// The times when followed files are checked.
pub(crate) struct Pace {
    pub(crate) clock: Arc<dyn Clock>,
    /// The earliest time of the next check, in nanoseconds of the monotonic clock.
    pub(crate) look_ns: u64,
}

/// Reads a source and adds each row's event time.
pub(crate) struct Feed {
    pub(crate) id: SourceId,
    pub(crate) source: Box<dyn Source>,
    /// The column of the event time, if the stream has one.
    pub(crate) time: Option<usize>,
    /// The newest of the times so far.
    pub(crate) newest: Newest,
    pub(crate) places: Option<Places>,
    pub(crate) log: Option<ToLog>,
    /// The pace of a source that never ends and does not report new rows.
    pub(crate) pace: Option<Pace>,
    /// How many polls have found nothing.
    pub(crate) empty_polls: Arc<AtomicU64>,
}

impl Ingress for Feed {
    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        let from = self.pace.as_ref().map_or(0, |pace| pace.clock.monotonic_ns());
        if self.pace.as_ref().is_some_and(|pace| from < pace.look_ns) {
            return Ok(Polled::Pending);
        }
        let chunk = match self.source.poll(rows_max)? {
            Read::Rows(chunk) => chunk,
            Read::Pending => {
                if let Some(pace) = &mut self.pace {
                    let now = pace.clock.monotonic_ns();
                    pace.look_ns = now + LOOK_NS.max(LOOK_SHARE * (now - from));
                }
                if self.source.has_looked() {
                    self.empty_polls.fetch_add(1, Ordering::AcqRel);
                }
                return Ok(Polled::Pending);
            }
            Read::End => return Ok(Polled::End),
        };
        if let Some(log) = self.log.as_ref().filter(|log| chunk.next_offset > log.from) {
            // This comes before the flow gets the rows, so that the cut that covers them comes
            // after them.
            let (record, next_offset) = (records::put_rows(self.id, &chunk), chunk.next_offset);
            let item = Item::Rows { source: self.id, next_offset, record };
            log.items.send(item).map_err(|_| stopped())?;
        }
        if let Some(places) = &self.places {
            places.lock().push_back(self.source.place());
        }
        let times = times(&chunk.batch, self.time)?;
        let (mut time_max, mut late) = (None, Vec::new());
        if self.time.is_some() {
            late = self.newest.take_all(&chunk.offsets, &times);
            // This is the newest time of this source; that of a stream is the newest of its
            // sources.
            time_max = self.newest.us();
        }
        let bad = chunk.bad.into_iter().map(|b| Bad {
            offset: b.offset,
            origin: Arc::clone(&b.origin),
            line: b.line,
            raw: b.raw,
            reason: b.reason,
        });
        Ok(Polled::Rows(Chunk {
            bad: bad.collect(),
            offsets: chunk.offsets,
            next_offset: chunk.next_offset,
            batch: chunk.batch,
            times,
            time_max,
            late,
        }))
    }

    fn offset(&self) -> u64 {
        self.source.offset()
    }
}

/// The error when the delivery has ended by an error of its own.
pub(crate) fn stopped() -> Error {
    Error::internal("the engine's delivery has stopped")
}

/// The event times of rows; zeros where the stream has none.
pub(crate) fn times(batch: &Batch, column: Option<usize>) -> Result<Vec<i64>> {
    match column {
        None => Ok(vec![0; batch.len()]),
        Some(column) => batch
            .ints(column)
            .map(<[i64]>::to_vec)
            .ok_or_else(|| Error::internal("a source gave a row without its time")),
    }
}
