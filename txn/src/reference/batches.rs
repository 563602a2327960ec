//! Batches at the border: the events of each stream are kept until one comes with which a batch ends.

use std::collections::BTreeMap;

use tidemill_core::{Position, SourceId, Stamp, StreamId, StreamTime, Value};

use super::Coming;
use crate::order::Groups;
use crate::program::{Batching, Program};

/// By stream: what has come since its last batch.
pub(super) struct Open(BTreeMap<StreamId, Waiting>);

#[derive(Default)]
struct Waiting {
    events: Vec<(SourceId, u64, Vec<Value>)>,
    /// When the first of them came.
    since: i64,
}

impl Open {
    pub(super) fn new(program: &Program) -> Open {
        let all = program.streams.iter().enumerate();
        let batched = all.filter(|(_, stream)| stream.batch.is_some());
        Open(batched.map(|(id, _)| (StreamId(id as u16), Waiting::default())).collect())
    }

    /// Says with which of the events that are ready in this cut batches end. Where one ends without any,
    /// because time has passed or no more will come, what has waited has its place in this cut; in event time,
    /// where the stream ends.
    pub(super) fn close(
        &mut self,
        program: &Program,
        clock_us: i64,
        coming: &mut Vec<Coming>,
        is_over: &dyn Fn(StreamId) -> bool,
        place: &dyn Fn(StreamId, SourceId, u64) -> Stamp,
    ) {
        let mut alone: Vec<Coming> = Vec::new();
        for (stream, waiting) in &mut self.0 {
            let root = program.root_stream(*stream);
            let by_arrival = program.streams[root.index()].spec.time == StreamTime::Arrival;
            let is_last = is_over(*stream);
            let is_on = |event: &Coming| event.views.iter().any(|(s, _)| s == stream);
            let own: Vec<usize> = (0..coming.len()).filter(|at| is_on(&coming[*at])).collect();
            if waiting.events.is_empty() {
                waiting.since = clock_us;
            }
            let mut ends: Vec<usize> = Vec::new();
            let mut rest_ends = is_last;
            match program.streams[stream.index()].batch.expect("it has one") {
                Batching::Count(count) => {
                    let open = waiting.events.len();
                    let is_full = |nth: &usize| (open + nth + 1).is_multiple_of(count as usize);
                    ends.extend((0..own.len()).filter(is_full).map(|nth| own[nth]));
                    rest_ends &= !(open + own.len()).is_multiple_of(count as usize);
                }
                Batching::TimeUs(us) if by_arrival => {
                    let is_due = clock_us.saturating_sub(waiting.since) >= us;
                    rest_ends |= is_due && open_or(own.len(), waiting) > 0;
                }
                Batching::TimeUs(us) => {
                    let interval = |at: &usize| coming[*at].stamp.at.time_us.div_euclid(us);
                    let two = own.windows(2).filter(|two| interval(&two[0]) != interval(&two[1]));
                    ends.extend(two.map(|two| two[0]));
                    ends.extend(own.last());
                }
            }
            if rest_ends && open_or(own.len(), waiting) > 0 {
                if by_arrival && own.is_empty() {
                    // Alone they are in the order of their sources.
                    waiting.events.sort_by_key(|event| (event.0, event.1));
                }
                let of = |event: &Coming| (event.source, event.offset);
                let last = own.last().map(|last| of(&coming[*last]));
                let last = last.or(waiting.events.last().map(|event| (event.0, event.1)));
                let (source, offset) = last.expect("something waits");
                let ends_with_it = by_arrival || ends.last() == own.last();
                match own.last().filter(|_| ends_with_it) {
                    Some(last) => ends.push(*last),
                    None => {
                        let (stamp, closes) = (place(*stream, source, offset), vec![*stream]);
                        // Of one event several streams may be parts, which end together.
                        match alone.iter_mut().find(|other| other.stamp == stamp) {
                            Some(other) => other.closes.push(*stream),
                            None => {
                                let views = Vec::new();
                                alone.push(Coming { stamp, source, offset, views, closes });
                            }
                        }
                    }
                }
            }
            ends.dedup();
            ends.into_iter().for_each(|at| coming[at].closes.push(*stream));
        }
        coming.extend(alone);
        coming.sort_by(|a, b| a.stamp.cmp(&b.stamp));
    }

    /// An event comes: the batches that end with it.
    pub(super) fn take(&mut self, event: &Coming) -> Vec<(StreamId, Vec<Vec<Value>>)> {
        for (stream, values) in &event.views {
            if let Some(waiting) = self.0.get_mut(stream) {
                waiting.events.push((event.source, event.offset, values.clone()));
            }
        }
        let batch = |stream: &StreamId| {
            let waiting = self.0.get_mut(stream).expect("it comes in batches");
            let events = std::mem::take(&mut waiting.events).into_iter();
            (*stream, events.map(|(_, _, values)| values).collect())
        };
        event.closes.iter().map(batch).collect()
    }
}

fn open_or(coming: usize, waiting: &Waiting) -> usize {
    coming + waiting.events.len()
}

/// How long the intervals of event time are in which streams of a group come.
fn intervals(program: &Program, groups: &Groups, group: usize) -> Vec<i64> {
    let intervals = program.streams.iter().enumerate().filter_map(|(id, stream)| {
        let root = program.root_stream(StreamId(id as u16));
        let by_event = program.streams[root.index()].spec.time != StreamTime::Arrival;
        match stream.batch {
            Some(Batching::TimeUs(us)) if by_event && groups.of[id] == group => Some(us),
            _ => None,
        }
    });
    intervals.collect()
}

/// A group's watermark where its streams come in intervals of event time: none is cut in two.
pub(super) fn whole(program: &Program, groups: &Groups, group: usize, mark: Position) -> Position {
    let intervals = intervals(program, groups, group);
    if intervals.is_empty() || mark == Position::MIN {
        return mark;
    }
    // The latest time that is a multiple of all.
    let is_whole = |time: &i64| intervals.iter().all(|us| time.rem_euclid(*us) == 0);
    let widest = *intervals.iter().max().expect("there is one");
    let last = mark.time_us.div_euclid(widest).saturating_mul(widest);
    let down = std::iter::successors(Some(last), |time| time.checked_sub(widest));
    let time_us = down.into_iter().find(is_whole).unwrap_or(i64::MIN);
    Position { time_us, source: SourceId(0), offset: 0 }
}

/// A group's watermark where all of its streams end: the intervals that are open there are over.
pub(super) fn over(program: &Program, groups: &Groups, group: usize, end: Position) -> Position {
    let intervals = intervals(program, groups, group);
    let Some(widest) = intervals.iter().max() else { return end };
    let is_whole = |time: &i64| intervals.iter().all(|us| time.rem_euclid(*us) == 0);
    let first = end.time_us.div_euclid(*widest).saturating_add(1).saturating_mul(*widest);
    let up = std::iter::successors(Some(first), |time| time.checked_add(*widest));
    let time_us = up.into_iter().find(is_whole).unwrap_or(i64::MAX);
    Position { time_us, source: SourceId(0), offset: 0 }
}
