//! Batches at the border. The events of each stream are buffered until one arrives that ends a
//! batch.

use std::collections::BTreeMap;

use tidemill_core::{Position, SourceId, Stamp, StreamId, StreamTime, Value};
use tidemill_txn::order::Groups;
use tidemill_txn::program::Batching;
use tidemill_txn::Program;

use super::Coming;

/// The events since the last batch, by stream.
pub(super) struct Open(BTreeMap<StreamId, Waiting>);

#[derive(Default)]
struct Waiting {
    events: Vec<(SourceId, u64, Vec<Value>)>,
    /// The clock when the first of them arrived.
    since: i64,
}

impl Open {
    pub(super) fn new(program: &Program) -> Open {
        let all = program.streams.iter().enumerate();
        let batched = all.filter(|(_, stream)| stream.batch.is_some());
        Open(batched.map(|(id, _)| (StreamId(id as u16), Waiting::default())).collect())
    }

    /// Marks the ready events of this cut that end batches. A batch may also end without such an
    /// event: time has passed, or no more events will arrive. Then its buffered events get a place
    /// in this cut; in event time, the place where the stream ends.
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
                    // Without new events, they are in the order of their sources.
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
                        // One event can be on several derived streams, whose batches end together.
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

    /// Adds an event and returns the batches that end with it.
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

/// Returns the lengths of the intervals of event time that batch the streams of a group, in
/// microseconds.
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

/// Returns a group's watermark, moved back so that it splits no interval of event time.
pub(super) fn whole(program: &Program, groups: &Groups, group: usize, mark: Position) -> Position {
    let intervals = intervals(program, groups, group);
    if intervals.is_empty() || mark == Position::MIN {
        return mark;
    }
    // The latest time that is a multiple of all lengths.
    let is_whole = |time: &i64| intervals.iter().all(|us| time.rem_euclid(*us) == 0);
    let widest = *intervals.iter().max().expect("there is one");
    let last = mark.time_us.div_euclid(widest).saturating_mul(widest);
    let down = std::iter::successors(Some(last), |time| time.checked_sub(widest));
    let time_us = down.into_iter().find(is_whole).unwrap_or(i64::MIN);
    Position { time_us, source: SourceId(0), offset: 0 }
}

/// Returns a group's watermark after all of its streams have ended. Open intervals are over.
pub(super) fn over(program: &Program, groups: &Groups, group: usize, end: Position) -> Position {
    let intervals = intervals(program, groups, group);
    let Some(widest) = intervals.iter().max() else { return end };
    let is_whole = |time: &i64| intervals.iter().all(|us| time.rem_euclid(*us) == 0);
    let first = end.time_us.div_euclid(*widest).saturating_add(1).saturating_mul(*widest);
    let up = std::iter::successors(Some(first), |time| time.checked_add(*widest));
    let time_us = up.into_iter().find(is_whole).unwrap_or(i64::MAX);
    Position { time_us, source: SourceId(0), offset: 0 }
}
