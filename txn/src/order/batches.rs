//! Batches at the border (S-Store, section 2.2). A batch is a number of events of a stream, or the
//! events of an interval of time. Procedures receive its events together. A batch is whole before
//! any of it is executed. So it lies within one epoch, and its last event is its place in the one
//! order.
//!
//! By count, events of an incomplete batch are buffered until more arrive. By event time no batch
//! stays incomplete, because the watermarks of the stream's group stop at the ends of its
//! intervals. In arrival time a batch arrives when it is whole: with its last event, or when its
//! time has passed since its first. When a stream has ended, its buffered events are a batch, too.
//! In event time that batch stands after all rows of the stream. If the watermark advanced further
//! while the stream was idle, the batch stands at the watermark. In arrival time it stands at the
//! cut that sees the end.

use std::collections::BTreeSet;

use tidemill_core::{Position, SourceId, StreamId, StreamTime};

use super::epoch::Run;
use super::watermark::common;
use crate::program::{Batching, Program};

/// The last event of a batch, on a stream.
pub type BatchEnd = (StreamId, SourceId, u64);

/// The cut in progress.
pub(super) struct Cutting<'c> {
    pub(super) program: &'c Program,
    pub(super) epoch: u64,
    pub(super) clock_us: i64,
    /// Whether a stream will send no more events.
    pub(super) ended: &'c dyn Fn(StreamId) -> bool,
    /// The place of the remaining events of an ended stream in event time, once everything before
    /// it has arrived.
    pub(super) ends: &'c dyn Fn(StreamId) -> Option<Position>,
    /// Gives events in arrival time their place in this cut.
    pub(super) arrived: &'c dyn Fn(Run) -> Run,
}

impl Cutting<'_> {
    /// Moves events of incomplete batches from `ready` to `buffered`, and returns the last event of
    /// each batch.
    pub(super) fn batches(
        &self,
        ready: &mut Vec<Run>,
        buffered: &mut Vec<Run>,
    ) -> BTreeSet<BatchEnd> {
        let mut closings = BTreeSet::new();
        for (index, stream) in self.program.streams.iter().enumerate() {
            let Some(batching) = stream.batch else { continue };
            let id = StreamId(index as u16);
            let (own, rest) = std::mem::take(ready).into_iter().partition(|run| run.stream == id);
            *ready = rest;
            self.stream(id, batching, own, ready, buffered, &mut closings);
        }
        closings
    }

    fn stream(
        &self,
        stream: StreamId,
        batching: Batching,
        mut runs: Vec<Run>,
        ready: &mut Vec<Run>,
        buffered: &mut Vec<Run>,
        closings: &mut BTreeSet<BatchEnd>,
    ) {
        runs.retain(|run| !run.offsets.is_empty());
        let by_arrival = self.by_arrival(stream);
        let end = if by_arrival { None } else { (self.ends)(stream) };
        let is_last = if by_arrival { (self.ended)(stream) } else { end.is_some() };
        let total: usize = runs.iter().map(|run| run.offsets.len()).sum();
        let whole = match batching {
            _ if is_last => total,
            Batching::Count(count) => total - total % count as usize,
            Batching::TimeUs(us) if by_arrival => {
                let first = runs.iter().flat_map(|run| &run.times).min();
                let is_due = first.is_some_and(|first| self.clock_us.saturating_sub(*first) >= us);
                if is_due {
                    total
                } else {
                    0
                }
            }
            Batching::TimeUs(_) => total,
        };
        // Arrivals are of one source, so buffered ones come first.
        let mut rows: Vec<(usize, usize)> = runs
            .iter()
            .enumerate()
            .flat_map(|(run, events)| (0..events.offsets.len()).map(move |row| (run, row)))
            .collect();
        match by_arrival {
            true => rows.sort_by_key(|(run, row)| runs[*run].offsets[*row]),
            false => rows.sort_by_cached_key(|(run, row)| runs[*run].stamp(*row)),
        }
        let event = |(run, row): (usize, usize)| (runs[run].source, runs[run].offsets[row]);
        let ends = |place: usize| match batching {
            _ if place + 1 == whole => true,
            Batching::Count(count) => (place + 1).is_multiple_of(count as usize),
            Batching::TimeUs(_) if by_arrival => false,
            Batching::TimeUs(us) => {
                let interval = |place: usize| {
                    let (run, row) = rows[place];
                    runs[run].stamp(row).at.time_us.div_euclid(us)
                };
                interval(place) != interval(place + 1)
            }
        };
        let ending = (0..whole).filter(|place| ends(*place)).map(|place| event(rows[place]));
        closings.extend(ending.map(|(source, offset)| (stream, source, offset)));
        // The last event of an incomplete final batch moves to the end of the stream.
        let is_left = |count: u64| !total.is_multiple_of(count as usize);
        let left = match (batching, end) {
            (Batching::Count(count), Some(end)) if is_left(count) => {
                rows.last().map(|last| (*last, end))
            }
            _ => None,
        };
        let mut parts = vec![(Vec::new(), Vec::new()); runs.len()];
        for (place, at) in rows.iter().enumerate() {
            let (now, waits) = &mut parts[at.0];
            match place < whole {
                true if left.is_some_and(|(left, _)| left == *at) => {}
                true => now.push(at.1 as u32),
                false => waits.push(at.1 as u32),
            }
        }
        if let Some(((run, row), end)) = left {
            let last = runs[run].take(&[row as u32]);
            let (times, admitted) = (vec![end.time_us], Some((end, self.epoch)));
            ready.push(Run { times, admitted, ..last });
        }
        for (run, (now, waits)) in runs.into_iter().zip(parts) {
            let arrives = |run: Run| if by_arrival { (self.arrived)(run) } else { run };
            if !now.is_empty() {
                ready.push(arrives(run.take(&now)));
            }
            if !waits.is_empty() {
                buffered.push(run.take(&waits));
            }
        }
    }

    fn by_arrival(&self, stream: StreamId) -> bool {
        let root = self.program.root_stream(stream);
        self.program.streams[root.index()].spec.time == StreamTime::Arrival
    }
}

/// Returns, per group, the unit at whose multiples its watermarks stop: the least common multiple
/// of all intervals, in microseconds; 0 without intervals.
pub(super) fn units_us(program: &Program, of: &[usize], len: usize) -> Vec<i64> {
    let mut units = vec![0i64; len];
    for (index, stream) in program.streams.iter().enumerate() {
        let root = &program.streams[program.root_stream(StreamId(index as u16)).index()].spec;
        if let (Some(Batching::TimeUs(us)), StreamTime::Event { .. }) = (stream.batch, &root.time) {
            units[of[index]] = common(units[of[index]], us);
        }
    }
    units
}
