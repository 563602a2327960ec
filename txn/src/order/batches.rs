//! Batches at the border (S-Store 2.2): so many events of a stream, or those of an interval of time, are
//! given to procedures together. A batch is whole before any of it is executed, so it lies within one
//! epoch, and it has the place of its last event in the one order.
//!
//! By count, what is left over waits, parked, for more to come. By event time nothing is left over,
//! because the watermarks of a stream's group stop at the ends of its intervals. In arrival time a batch
//! arrives when it is whole: with its last event, or when so much time has passed since its first. When a
//! stream has ended, what waits is a batch, too: in event time its place is behind all rows of the stream, and not before
//! the watermark, where that has gone on while the stream was idle; else it is that of the cut that sees the end.

use std::collections::BTreeSet;

use tidemill_core::{Position, SourceId, StreamId, StreamTime};

use super::epoch::Run;
use super::watermark::common;
use crate::program::{Batching, Program};

/// An event that is the last of its batch, on a stream.
pub type Closing = (StreamId, SourceId, u64);

/// The cut that is being made.
pub(super) struct Cutting<'c> {
    pub(super) program: &'c Program,
    pub(super) epoch: u64,
    pub(super) clock_us: i64,
    /// Whether no event of a stream will come any more.
    pub(super) ended: &'c dyn Fn(StreamId) -> bool,
    /// Where what is left of a stream in event time stands, if it has ended and everything before that has come.
    pub(super) ends: &'c dyn Fn(StreamId) -> Option<Position>,
    /// Gives what comes in arrival time its place in this cut.
    pub(super) arrived: &'c dyn Fn(Run) -> Run,
}

impl Cutting<'_> {
    /// Takes out of what is ready all that is not a whole batch yet.
    pub(super) fn batches(&self, ready: &mut Vec<Run>, parked: &mut Vec<Run>) -> BTreeSet<Closing> {
        let mut closings = BTreeSet::new();
        for (index, stream) in self.program.streams.iter().enumerate() {
            let Some(batching) = stream.batch else { continue };
            let id = StreamId(index as u16);
            let (own, rest) = std::mem::take(ready).into_iter().partition(|run| run.stream == id);
            *ready = rest;
            self.stream(id, batching, own, ready, parked, &mut closings);
        }
        closings
    }

    fn stream(
        &self,
        stream: StreamId,
        batching: Batching,
        mut runs: Vec<Run>,
        ready: &mut Vec<Run>,
        parked: &mut Vec<Run>,
        closings: &mut BTreeSet<Closing>,
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
        // Of arrivals, which are of one source, those that have waited come first.
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
        // What is left over in the end has its place there, as its last event.
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
                parked.push(run.take(&waits));
            }
        }
    }

    fn by_arrival(&self, stream: StreamId) -> bool {
        let root = self.program.root_stream(stream);
        self.program.streams[root.index()].spec.time == StreamTime::Arrival
    }
}

/// Of each group, the unit at whose multiples its watermarks stop: the least that all intervals have in
/// common. 0 where there are none.
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
