//! An epoch: runs of events, ranked.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use tidemill_core::stamp::Admission;
use tidemill_core::{Batch, Position, SourceId, Stamp, StreamId};

use super::batches::Closing;
use super::merge;
use crate::pool::{Alone, Pool};
use crate::program::{Answers, Program, Until};

/// What the row of an event that does not stand at its own place has in addition, for [`Epoch::round`].
pub(crate) const ADMITTED: u64 = 1 << 63;

/// Fewer events are looked at, or merged, before another thread has begun.
pub(super) const PIECE: usize = 1024;

/// Events of one stream from one source, by column.
#[derive(Clone, Debug)]
pub struct Run {
    /// The stream that the events are on (after map and filter).
    pub stream: StreamId,
    /// The source partition.
    pub source: SourceId,
    /// The events.
    pub batch: Batch,
    /// Per event: its row in the source.
    pub offsets: Vec<u64>,
    /// Per event: its time, or its admission's when admitted.
    pub times: Vec<i64>,
    /// Set for events that stand at a watermark instead of their own place: the watermark, and
    /// the epoch that admitted them.
    pub admitted: Option<(Position, u64)>,
}

impl Run {
    /// The stamp of an event.
    pub fn stamp(&self, row: usize) -> Stamp {
        let (source, offset) = (self.source, self.offsets[row]);
        match self.admitted {
            Some((at, epoch)) => Stamp::admitted(at, Admission { epoch, source, offset }),
            None => Stamp::of(self.position(row)),
        }
    }

    /// The event's own place among the input events.
    pub fn position(&self, row: usize) -> Position {
        Position { time_us: self.times[row], source: self.source, offset: self.offsets[row] }
    }

    /// The events at these rows.
    pub fn take(&self, rows: &[u32]) -> Run {
        let batch = self.batch.take(rows);
        let offsets = rows.iter().map(|r| self.offsets[*r as usize]).collect();
        let times = rows.iter().map(|r| self.times[*r as usize]).collect();
        Run { batch, offsets, times, ..*self }
    }

    /// Whether its events are in stamp order. Admitted events have one time, and so are in order
    /// of rows.
    pub(crate) fn is_in_order(&self) -> bool {
        self.are_in_order(0..self.times.len())
    }

    /// The same, where every thread looks at a part: it is the first look at the events, which are still in memory.
    pub(crate) fn is_in_order_by(&self, pool: &dyn Pool) -> bool {
        let len = self.times.len();
        let parts = pool.threads().min(len / PIECE);
        if parts < 2 {
            return self.is_in_order();
        }
        let is_in_order = AtomicBool::new(true);
        pool.run(&|part| {
            // With the first one of the next part.
            let rows = len * part / parts..len.min(len * (part + 1) / parts + 1);
            if part < parts && !self.are_in_order(rows) {
                is_in_order.store(false, Ordering::Relaxed);
            }
        });
        is_in_order.into_inner()
    }

    fn are_in_order(&self, rows: Range<usize>) -> bool {
        /// Events that are looked at together.
        const BLOCK: usize = 256;
        let mut at = rows.start;
        while at + 1 < rows.end {
            // With the first one of the next block.
            let block = at..rows.end.min(at + BLOCK + 1);
            let (times, offsets) = (&self.times[block.clone()], &self.offsets[block.clone()]);
            // Without branches: almost every run is in order. Most have no two events at one time, and rows need
            // not be looked at.
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

    /// Puts its events in stamp order.
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

    /// Of a run in order, the row of the first event at or beyond a place.
    pub(crate) fn first_from(&self, place: Position) -> usize {
        let from = self.times.partition_point(|t| *t < place.time_us);
        let ties = self.times[from..].partition_point(|t| *t == place.time_us);
        // Among equal times the source decides, then the row.
        let at = |offset: &u64| (self.source, *offset) < (place.source, place.offset);
        from + self.offsets[from..from + ties].partition_point(at)
    }

    /// Takes away the events from `row` on, without a copy of the others.
    pub(crate) fn split_off(&mut self, row: usize) -> Run {
        let rest = self.slice(row, self.offsets.len() - row);
        self.batch = self.batch.slice(0, row);
        self.offsets.truncate(row);
        self.times.truncate(row);
        rest
    }

    /// The events from `start` on, `len` of them.
    pub fn slice(&self, start: usize, len: usize) -> Run {
        Run {
            batch: self.batch.slice(start, len),
            offsets: self.offsets[start..start + len].to_vec(),
            times: self.times[start..start + len].to_vec(),
            ..*self
        }
    }
}

/// Whether each is more than the one before.
fn are_rising(times: &[i64]) -> bool {
    times.iter().zip(&times[1..]).fold(-1, |all, (a, b)| all & is_less(*a, *b)) < 0
}

/// Below 0 where a number is less than another: the sign of it, as a processor without comparisons of several such numbers
/// has it too. It does two at a time.
pub(super) fn is_less(a: i64, b: i64) -> i64 {
    (a & !b) | (!(a ^ b) & a.wrapping_sub(b))
}

/// Transactions of an epoch that follow one another in its order.
#[derive(Clone, Debug)]
pub(crate) struct Section<'e> {
    /// The epoch.
    pub(crate) epoch: &'e Epoch,
    /// Their places in its order.
    pub(crate) ranks: Range<usize>,
}

impl<'e> Section<'e> {
    /// The transactions.
    pub(crate) fn order(&self) -> &'e [Ranked] {
        &self.epoch.order[self.ranks.clone()]
    }
}

/// A run as one handler sees it: each of its events is one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Index of the run.
    pub run: u32,
    /// Index of the handler.
    pub handler: u32,
}

/// A transaction of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Index of the lane.
    pub lane: u32,
    /// The event's row in the lane's run.
    pub row: u32,
}

/// Events in stamp order, ready to be executed.
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    /// The events.
    pub runs: Vec<Run>,
    /// Runs by handler, in the handlers' declaration order within a run.
    pub lanes: Vec<Lane>,
    /// One entry for each transaction of an input event, in stamp order; the handlers on one
    /// event in declaration order.
    pub order: Vec<Ranked>,
    /// The clock of the cut, in microseconds since 1970.
    pub clock_us: i64,
    /// The events that are the last of their batches.
    pub closings: BTreeSet<Closing>,
    /// By group of streams: how far windows slide when all has been executed.
    pub slides: Vec<Until>,
    /// What its transactions ask of outside. Whoever executes it again gives it what it was told.
    pub answers: Arc<Answers>,
}

impl Epoch {
    /// Ranks events. They may come in any order, in runs and within them; afterwards each run is
    /// in stamp order, so that every lane is walked from front to back.
    pub fn rank(program: &Program, mut runs: Vec<Run>) -> Epoch {
        runs.iter_mut().for_each(Run::put_in_order);
        Epoch::rank_in_order(&Alone, program, runs)
    }

    /// Ranks events of runs each of which is in stamp order.
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

    /// Leaves out events: nobody takes them, and their batches go without.
    pub fn leave_out(&mut self, events: &BTreeSet<(SourceId, u64)>) {
        let (runs, lanes) = (&self.runs, &self.lanes);
        let event = |ranked: &Ranked| {
            let run = &runs[lanes[ranked.lane as usize].run as usize];
            (run.stream, run.source, run.offsets[ranked.row as usize])
        };
        // The last one that stays of a batch is its last; where none does, there is no batch.
        let mut last: Option<Closing> = None;
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

    /// All its transactions.
    pub(crate) fn whole(&self) -> Section<'_> {
        Section { epoch: self, ranks: 0..self.order.len() }
    }

    /// So many transactions from `start` on, or some more: the handlers on one event stay together.
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

    /// Number of input events.
    pub fn events(&self) -> usize {
        self.runs.iter().map(|r| r.batch.len()).sum()
    }

    /// The time in the stamp of a transaction's input event.
    pub fn time_us(&self, ranked: Ranked) -> i64 {
        let run = &self.runs[self.lanes[ranked.lane as usize].run as usize];
        run.admitted.map_or(run.times[ranked.row as usize], |(at, _)| at.time_us)
    }

    /// The stream of a transaction's event.
    pub fn stream(&self, ranked: Ranked) -> StreamId {
        self.runs[self.lanes[ranked.lane as usize].run as usize].stream
    }

    /// A transaction's input event: its source, and its row there.
    pub fn event(&self, ranked: Ranked) -> (SourceId, u64) {
        let run = &self.runs[self.lanes[ranked.lane as usize].run as usize];
        (run.source, run.offsets[ranked.row as usize])
    }

    /// What a transaction's round is known by in the epoch. Of one event there are two where it is the last of a stream and stands,
    /// in a batch, at the end of that.
    pub(crate) fn round(&self, ranked: Ranked) -> (SourceId, u64) {
        let run = &self.runs[self.lanes[ranked.lane as usize].run as usize];
        let admitted = if run.admitted.is_some() { ADMITTED } else { 0 };
        (run.source, run.offsets[ranked.row as usize] | admitted)
    }

    /// The stamp of a transaction's input event.
    pub fn stamp(&self, ranked: Ranked) -> Stamp {
        let lane = self.lanes[ranked.lane as usize];
        self.runs[lane.run as usize].stamp(ranked.row as usize)
    }
}
