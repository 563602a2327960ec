//! An epoch: ranked runs of events.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use tidemill_core::stamp::Admission;
use tidemill_core::{Batch, Position, SourceId, Stamp, StreamId};

use super::batches::BatchEnd;
use super::merge;
use crate::pool::{Pool, SingleThread};
use crate::program::{Answers, Program, Until};

/// A flag in the row number of [`Epoch::round`], for events that do not stand at their own place.
pub(crate) const ADMITTED: u64 = 1 << 63;

/// The fewest events for which a second thread pays off, in checks and merges.
pub(super) const PIECE: usize = 1024;

/// The events of one stream from one source, by column.
#[derive(Clone, Debug)]
pub struct Run {
    /// The stream of the events, after map and filter.
    pub stream: StreamId,
    /// The source partition.
    pub source: SourceId,
    /// The events.
    pub batch: Batch,
    /// Per event: its row in the source.
    pub offsets: Vec<u64>,
    /// Per event: its time, or that of its admission.
    pub times: Vec<i64>,
    /// The watermark and the epoch of admission, for events that stand at a watermark instead of
    /// their own place.
    pub admitted: Option<(Position, u64)>,
}

impl Run {
    /// Returns the stamp of an event.
    pub fn stamp(&self, row: usize) -> Stamp {
        let (source, offset) = (self.source, self.offsets[row]);
        match self.admitted {
            Some((at, epoch)) => Stamp::admitted(at, Admission { epoch, source, offset }),
            None => Stamp::of(self.position(row)),
        }
    }

    /// Returns an event's own place among the input events.
    pub fn position(&self, row: usize) -> Position {
        Position { time_us: self.times[row], source: self.source, offset: self.offsets[row] }
    }

    /// Returns the events at these rows.
    pub fn take(&self, rows: &[u32]) -> Run {
        let batch = self.batch.take(rows);
        let offsets = rows.iter().map(|r| self.offsets[*r as usize]).collect();
        let times = rows.iter().map(|r| self.times[*r as usize]).collect();
        Run { batch, offsets, times, ..*self }
    }

    /// Whether the events are in stamp order. Admitted events have one time, so the order of rows
    /// decides.
    pub(crate) fn is_in_order(&self) -> bool {
        self.are_in_order(0..self.times.len())
    }

    /// Like [`Run::is_in_order`], with a part for each thread. This is the first access to the
    /// events, which are not in the processors' caches.
    pub(crate) fn is_in_order_by(&self, pool: &dyn Pool) -> bool {
        let len = self.times.len();
        let parts = pool.threads().min(len / PIECE);
        if parts < 2 {
            return self.is_in_order();
        }
        let is_in_order = AtomicBool::new(true);
        pool.run(&|part| {
            // Includes the first event of the next part.
            let rows = len * part / parts..len.min(len * (part + 1) / parts + 1);
            if part < parts && !self.are_in_order(rows) {
                is_in_order.store(false, Ordering::Relaxed);
            }
        });
        is_in_order.into_inner()
    }

    fn are_in_order(&self, rows: Range<usize>) -> bool {
        /// The number of events that are checked together.
        const BLOCK: usize = 256;
        let mut at = rows.start;
        while at + 1 < rows.end {
            // Includes the first event of the next block.
            let block = at..rows.end.min(at + BLOCK + 1);
            let (times, offsets) = (&self.times[block.clone()], &self.offsets[block.clone()]);
            // Without branches, because almost every run is in order. Most runs have no two events
            // at one time, so rows need no check.
            if !are_rising(times) {
                let pairs = times.windows(2).zip(offsets.windows(2));
                let rising =
                    |(t, o): (&[i64], &[u64])| (t[0] < t[1]) | ((t[0] == t[1]) & (o[0] < o[1]));
                if !pairs.fold(true, |all, pair| all & rising(pair)) {
                    return false;
                }
            }
            at = block.end - 1;
        }
        true
    }

    /// Puts the events in stamp order.
    pub(crate) fn put_in_order(&mut self) {
        if !self.is_in_order() {
            let mut rows: Vec<u32> = (0..self.times.len() as u32).collect();
            self.sort_rows(&mut rows);
            *self = self.take(&rows);
        }
    }

    /// Puts rows in the order of their events' stamps.
    pub(crate) fn sort_rows(&self, rows: &mut [u32]) {
        rows.sort_by_key(|&r| (self.times[r as usize], self.offsets[r as usize]));
    }

    /// Returns the row of the first event at or after a place. The run must be in order.
    pub(crate) fn first_from(&self, place: Position) -> usize {
        let from = self.times.partition_point(|t| *t < place.time_us);
        let ties = self.times[from..].partition_point(|t| *t == place.time_us);
        // Among equal times the source decides, then the row.
        let at = |offset: &u64| (self.source, *offset) < (place.source, place.offset);
        from + self.offsets[from..from + ties].partition_point(at)
    }

    /// Splits off the events from `row` on, without copying the others.
    pub(crate) fn split_off(&mut self, row: usize) -> Run {
        let rest = self.slice(row, self.offsets.len() - row);
        self.batch = self.batch.slice(0, row);
        self.offsets.truncate(row);
        self.times.truncate(row);
        rest
    }

    /// Returns `len` events from `start` on.
    pub fn slice(&self, start: usize, len: usize) -> Run {
        Run {
            batch: self.batch.slice(start, len),
            offsets: self.offsets[start..start + len].to_vec(),
            times: self.times[start..start + len].to_vec(),
            ..*self
        }
    }
}

/// Whether each time is greater than the one before.
fn are_rising(times: &[i64]) -> bool {
    times.iter().zip(&times[1..]).fold(-1, |all, (a, b)| all & is_less(*a, *b)) < 0
}

/// Returns a negative number if `a < b`, else one that is not negative. It computes the sign from
/// bits, because some processors lack comparisons of several such numbers at once.
pub(super) fn is_less(a: i64, b: i64) -> i64 {
    (a & !b) | (!(a ^ b) & a.wrapping_sub(b))
}

/// Consecutive transactions of an epoch.
#[derive(Clone, Debug)]
pub(crate) struct Section<'e> {
    /// The epoch.
    pub(crate) epoch: &'e Epoch,
    /// The range of places in the epoch's order.
    pub(crate) ranks: Range<usize>,
}

impl<'e> Section<'e> {
    /// Returns the transactions.
    pub(crate) fn order(&self) -> &'e [Ranked] {
        &self.epoch.order[self.ranks.clone()]
    }
}

/// A run as one handler sees it: each of its events is one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The index of the run.
    pub run: u32,
    /// The index of the handler.
    pub handler: u32,
}

/// A transaction of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The index of the lane.
    pub lane: u32,
    /// The event's row in the lane's run.
    pub row: u32,
}

/// Events in stamp order, ready for execution.
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    /// The events.
    pub runs: Vec<Run>,
    /// Runs by handler. Within a run, handlers are in declaration order.
    pub lanes: Vec<Lane>,
    /// One entry for each transaction of an input event, in stamp order. The handlers of one event
    /// are in declaration order.
    pub order: Vec<Ranked>,
    /// The clock of the cut, in microseconds since 1970.
    pub clock_us: i64,
    /// The last events of batches.
    pub closings: BTreeSet<BatchEnd>,
    /// The limits of slides after the epoch's transactions, by group of streams.
    pub slides: Vec<Until>,
    /// The answers from outside that its transactions ask for. A replay starts with the recorded
    /// answers.
    pub answers: Arc<Answers>,
    /// Whether no clock ends its functions, because outputs of it have left. They were computed as
    /// if no function took too long, beside those that are known to.
    pub ignores_deadlines: bool,
    /// The [salt](crate::program::Moment::salt) of random numbers.
    pub salt: u64,
}

impl Epoch {
    /// Ranks events, which may be in any order, in runs and within them. Afterwards each run is in
    /// stamp order, so that every lane is walked from front to back.
    pub fn rank(program: &Program, mut runs: Vec<Run>) -> Epoch {
        runs.iter_mut().for_each(Run::put_in_order);
        Epoch::rank_in_order(&SingleThread, program, runs)
    }

    /// Ranks the events of runs that are in stamp order each.
    pub(crate) fn rank_in_order(pool: &dyn Pool, program: &Program, runs: Vec<Run>) -> Epoch {
        debug_assert!(runs.iter().all(Run::is_in_order));
        let mut lanes = Vec::new();
        for (run, events) in runs.iter().enumerate() {
            for handler in program.handlers_on(events.stream) {
                lanes.push(Lane { run: run as u32, handler: handler as u32 });
            }
        }
        let order = merge::order(pool, &runs, &lanes);
        Epoch { runs, lanes, order, ..Epoch::default() }
    }

    /// Leaves out events: they are not executed, and their batches do without them.
    pub fn leave_out(&mut self, events: &BTreeSet<(SourceId, u64)>) {
        let (runs, lanes) = (&self.runs, &self.lanes);
        let event = |ranked: &Ranked| {
            let run = &runs[lanes[ranked.lane as usize].run as usize];
            (run.stream, run.source, run.offsets[ranked.row as usize])
        };
        // The last remaining event of a batch becomes its last. If none remains, the batch
        // vanishes.
        let mut last: Option<BatchEnd> = None;
        for stream in self.closings.iter().map(|closing| closing.0).collect::<BTreeSet<_>>() {
            for at in self.order.iter().map(event).filter(|at| at.0 == stream) {
                let stays = !events.contains(&(at.1, at.2));
                let closes = self.closings.contains(&at);
                last = if stays { Some(at) } else { last };
                if closes {
                    self.closings.remove(&at);
                    self.closings.extend(last.take());
                }
            }
            last = None;
        }
        self.order.retain(|ranked| {
            let (_, source, offset) = event(ranked);
            !events.contains(&(source, offset))
        });
    }

    /// Returns all transactions.
    pub(crate) fn whole(&self) -> Section<'_> {
        Section { epoch: self, ranks: 0..self.order.len() }
    }

    /// Returns `transactions` transactions from `start` on, or more: the handlers of one event stay
    /// together.
    pub(crate) fn section(&self, start: usize, transactions: usize) -> Section<'_> {
        let mut end = (start + transactions).min(self.order.len());
        let event = |at: usize| {
            let Ranked { lane, row } = self.order[at];
            (self.lanes[lane as usize].run, row)
        };
        while start < end && end < self.order.len() && event(end) == event(end - 1) {
            end += 1;
        }
        Section { epoch: self, ranks: start..end }
    }

    /// Returns the number of input events.
    pub fn events(&self) -> usize {
        self.runs.iter().map(|r| r.batch.len()).sum()
    }

    /// Returns the time in the stamp of a transaction's input event.
    pub fn time_us(&self, ranked: Ranked) -> i64 {
        let run = &self.runs[self.lanes[ranked.lane as usize].run as usize];
        run.admitted.map_or(run.times[ranked.row as usize], |(at, _)| at.time_us)
    }

    /// Returns the stream of a transaction's event.
    pub fn stream(&self, ranked: Ranked) -> StreamId {
        self.runs[self.lanes[ranked.lane as usize].run as usize].stream
    }

    /// Returns a transaction's input event: its source and its row there.
    pub fn event(&self, ranked: Ranked) -> (SourceId, u64) {
        let run = &self.runs[self.lanes[ranked.lane as usize].run as usize];
        (run.source, run.offsets[ranked.row as usize])
    }

    /// Returns the identity of a transaction's round in the epoch. One event can have two rounds:
    /// if it is the last of its stream, its final batch stands at the end of the stream.
    pub(crate) fn round(&self, ranked: Ranked) -> (SourceId, u64) {
        let run = &self.runs[self.lanes[ranked.lane as usize].run as usize];
        let admitted = if run.admitted.is_some() { ADMITTED } else { 0 };
        (run.source, run.offsets[ranked.row as usize] | admitted)
    }

    /// Returns the stamp of a transaction's input event.
    pub fn stamp(&self, ranked: Ranked) -> Stamp {
        let lane = self.lanes[ranked.lane as usize];
        self.runs[lane.run as usize].stamp(ranked.row as usize)
    }
}
