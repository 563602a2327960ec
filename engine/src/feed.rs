//! A source as the flow sees it: with event times, its places noted, and what it can't give a second
//! time on its way to the input log.

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

/// The places of a source behind each poll, until a cut has taken them. Bounded by what the gate
/// lets in.
pub(crate) type Places = Arc<Mutex<VecDeque<Place>>>;

/// Where pushed rows go before anything else.
pub(crate) struct ToLog {
    pub(crate) items: Sender<Item>,
    /// Rows before this one came from the log.
    pub(crate) from: u64,
}

/// Time between two looks at files that have nothing new, in nanoseconds: a few calls of the system
/// each, so that idle files cost next to nothing.
const LOOK_NS: u64 = 5_000_000;
/// A folder of many files takes long to look at: so much more of the time is spent on other things.
const LOOK_SHARE: u64 = 50;

/// When files that are followed are looked at.
pub(crate) struct Pace {
    pub(crate) clock: Arc<dyn Clock>,
    /// Not again before.
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
    /// For a source that goes on for ever without saying when there is more.
    pub(crate) pace: Option<Pace>,
    /// How often we have looked, and there was nothing to read.
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
            // Before the flow has them, so that a cut that covers them comes behind them.
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
            // As far as this source has come: whoever wants the newest of all takes the newest of these.
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

/// What comes of sending to a delivery that has ended by an error of its own.
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
