//! The order of an epoch with events in event time: which events are executed, and the place of
//! each.
//!
//! The buffered events depend only on the inputs and the recorded watermarks. They are the events
//! up to a snapshot's cut that are not before its watermark. So they are in no snapshot, and are
//! read again. Which of them are late depends on earlier events of their event sources. The
//! snapshot records the newest time of each event source where its buffered events begin.

use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;

use tidemill_core::{Late, Position, StreamId};
use tidemill_function::{Functions, NodeId, Sequencing};
use tidemill_txn::order::Newest;

use super::read::{Before, Read, Task};
use super::run::Parts;
use crate::event_time::{EventTime, Rank, Ranked};
use crate::records::{Buffered, CutRecord, Manifest, Waiting};

/// The place of an event in its group: its position, and its number in its record.
type At = (Position, u32);

/// A buffered event.
struct Waits {
    task: Task,
    /// The newest time of its event source before its record.
    before_us: Option<i64>,
    /// Whether it has the time at which its source stood, because it is late.
    is_late: bool,
}

/// A request that is executed in an epoch: its rank, its place among those of that rank, its
/// source, and its streams with intervals.
struct Placed {
    rank: Rank,
    at: (u64, u32),
    source: u32,
    on: u64,
    task: Task,
}

/// The part of a worker that ranks requests.
pub(super) struct Ranks {
    event_time: Arc<EventTime>,
    /// The watermark of the last cut, by group.
    watermarks: Vec<Position>,
    /// The buffered events by group, and the bytes that all of them take.
    waiting: Vec<BTreeMap<At, Waits>>,
    bytes: u64,
    /// Where the buffered events after the snapshot begin, by event source: the first record, and
    /// the state before it.
    again: Vec<Option<(u64, Before)>>,
    /// The times of late events of the last cut, by group: the watermarks of the cut before. `late`
    /// counts them.
    late_at: Vec<Position>,
    late: u64,
    /// The requests of the next epoch that this worker received.
    own: Option<Vec<Placed>>,
    /// The reports of others for epochs that have not begun here.
    reported: BTreeMap<u64, BTreeMap<NodeId, Vec<Ranked>>>,
}

impl Ranks {
    /// Creates the state after a snapshot, without buffered events.
    pub fn after(event_time: Arc<EventTime>, manifest: &Manifest) -> Ranks {
        let times = &manifest.times;
        let again = event_time.sources().iter().zip(0..).map(|(of, nth)| {
            let waiting = manifest.waiting.iter().flatten();
            let own = waiting.into_iter().find(|waiting| waiting.event_source == nth)?;
            Some((own.record, Before::new(Newest::after(own.newest_us, of.out_of_orderness_us))))
        });
        let again = again.collect();
        let watermarks = match times.watermarks.is_empty() {
            true => event_time.begin().watermarks,
            false => times.watermarks.clone(),
        };
        let waiting = watermarks.iter().map(|_| BTreeMap::new()).collect();
        let (own, reported, late_at) = (None, BTreeMap::new(), watermarks.clone());
        Ranks { event_time, watermarks, waiting, bytes: 0, again, late_at, late: 0, own, reported }
    }

    /// Returns the group of an event and its place in it.
    fn place(&self, (event_source, time_us): (u32, i64), (record, nth): (u64, u32)) -> (usize, At) {
        let group = self.event_time.sources()[event_source as usize].group;
        (group, (self.event_time.position(event_source, time_us, record), nth))
    }

    /// Returns the time at which an event is executed. An event that is late by earlier ones gets
    /// the time at which its source stood, or `None` if it is not admitted.
    fn stands(&self, (event_source, time_us): (u32, i64), late_us: Option<i64>) -> Option<i64> {
        let admits = self.event_time.sources()[event_source as usize].late == Late::Admit;
        match late_us {
            Some(_) if !admits => None,
            Some(late_us) => Some(late_us),
            None => Some(time_us),
        }
    }

    /// Takes a request of the snapshot's cut. Only events can be buffered. Events before the
    /// watermark were executed, or were late.
    pub fn restore(&mut self, mut read: Read) {
        let Some((event_source, time_us)) = read.timed else { return };
        let Some((from, before)) = &mut self.again[event_source as usize] else { return };
        if read.at.0 < *from {
            return;
        }
        before.take(&mut read);
        let Some(stands_us) = self.stands((event_source, time_us), read.late_us) else { return };
        let (group, at) = self.place((event_source, stands_us), read.at);
        if at.0 >= self.watermarks[group] {
            self.buffer(group, at, read);
        }
    }

    fn buffer(&mut self, group: usize, at: At, read: Read) {
        let Read { task, before_us, late_us, .. } = read;
        self.bytes += task.bytes();
        let waits = Waits { task, before_us, is_late: late_us.is_some() };
        self.waiting[group].insert(at, waits);
    }

    /// Returns the buffered events.
    pub fn buffered(&self) -> Buffered {
        let events = self.waiting.iter().map(|waiting| waiting.len() as u64).sum();
        Buffered { events, bytes: self.bytes, late: self.late }
    }

    /// Returns where the buffered events of each event source begin.
    pub fn first(&self) -> Vec<Waiting> {
        let mut first: BTreeMap<u32, Waiting> = BTreeMap::new();
        for ((position, _), waits) in self.waiting.iter().flatten() {
            let (event_source, record) = (position.source.0, position.offset);
            let one = Waiting { event_source, record, newest_us: waits.before_us };
            let of = first.entry(event_source).or_insert(one);
            if record < of.record {
                *of = one;
            }
        }
        first.into_values().collect()
    }

    /// Whether the requests of the next epoch have been taken.
    pub fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// Takes the requests of a cut that this worker received, each with its source. Returns the
    /// report for the others.
    pub fn take(
        &mut self,
        cut: &CutRecord,
        requests: Vec<(u32, Read)>,
        functions: &dyn Functions,
    ) -> Vec<Ranked> {
        self.late_at = replace(&mut self.watermarks, cut.times.watermarks.clone());
        self.late = 0;
        let has_intervals = self.event_time.has_intervals();
        let on = |task: &Task| match has_intervals {
            true => functions.intervals(&task.call),
            false => 0,
        };
        let mut placed = Vec::new();
        for (source, read) in requests {
            let at = read.at;
            let (rank, task) = match read.timed {
                None => (Rank::Arrival(source), read.task),
                Some(timed) => {
                    self.late += u64::from(read.late_us.is_some());
                    let stands = self.stands(timed, read.late_us).map(|stands_us| {
                        let (group, place) = self.place((timed.0, stands_us), at);
                        (group, place, place.0 >= self.late_at[group])
                    });
                    if let Some((group, place, true)) = stands {
                        self.buffer(group, place, read);
                        continue;
                    }
                    self.late += u64::from(read.late_us.is_none());
                    let Task { call, .. } = read.task;
                    (Rank::Late(timed.0), Task { call: functions.late(call), ..read.task })
                }
            };
            placed.push(Placed { rank, at, source, on: on(&task), task });
        }
        for (waiting, watermark) in self.waiting.iter_mut().zip(&self.watermarks) {
            let later = waiting.split_off(&(*watermark, 0));
            for ((position, nth), Waits { mut task, is_late, .. }) in replace(waiting, later) {
                self.bytes -= task.bytes();
                let event_source = position.source.0;
                let source = self.event_time.sources()[event_source as usize].source;
                let rank = Rank::OnTime(position.time_us, event_source);
                let (at, on) = ((position.offset, nth), on(&task));
                if is_late {
                    task.call = functions.admitted(task.call, position.time_us);
                }
                placed.push(Placed { rank, at, source, on, task });
            }
        }
        placed.sort_by_key(|placed| (placed.rank, placed.at));
        let ranked = |some: &[Placed]| Ranked {
            rank: some[0].rank,
            count: some.len() as u32,
            on: some.iter().fold(0, |on, one| on | one.on),
        };
        let ranks = placed.chunk_by(|one, other| one.rank == other.rank).map(ranked).collect();
        self.own = Some(placed);
        ranks
    }

    /// Takes the report of another worker.
    pub fn receive(&mut self, epoch: u64, from: NodeId, ranks: Vec<Ranked>) {
        self.reported.entry(epoch).or_default().insert(from, ranks);
    }

    /// Returns the requests of the next epoch, each with its place, and the number of places of all
    /// workers together. Returns `None` until this many others have reported. If a watermark
    /// advances far at once, the epoch is long. Then it is executed in parts of `part_max`, the
    /// same at all workers.
    pub fn places(
        &mut self,
        epoch: u64,
        order: Sequencing,
        others: usize,
        part_max: u64,
        functions: &dyn Functions,
    ) -> Option<(Parts, u64)> {
        let reported = self.reported.get(&epoch).map_or(0, BTreeMap::len);
        if reported < others {
            return None;
        }
        let mut own = self.own.take()?;
        let reported = self.reported.remove(&epoch).unwrap_or_default();
        let mut before: Vec<Ranked> = reported.into_values().flatten().collect();
        before.sort_unstable_by_key(|ranked| ranked.rank);
        self.close(&mut own, &before, functions);
        let of_others: u64 = before.iter().map(|ranked| u64::from(ranked.count)).sum();
        let total = own.len() as u64 + of_others;
        let mut parts = Vec::new();
        parts.resize_with(total.div_ceil(part_max).max(1) as usize, Vec::new);
        let (mut before, mut place) = (before.into_iter().peekable(), 0);
        for Placed { rank, source, task, .. } in own {
            while let Some(other) = before.next_if(|other| other.rank < rank) {
                place += u64::from(other.count);
            }
            let nth = ((place / part_max) as usize).min(parts.len() - 1);
            let part: &mut Vec<_> = &mut parts[nth];
            part.push((order.tid(source, place), task));
            place += 1;
        }
        Some((parts, total))
    }

    /// Marks the events that end intervals, given the ranks of other workers' events.
    fn close(&self, own: &mut [Placed], others: &[Ranked], functions: &dyn Functions) {
        if !self.event_time.has_intervals() {
            return;
        }
        let mine = own.iter().enumerate().map(|(nth, placed)| (placed.rank, placed.on, Some(nth)));
        let mut all: Vec<(Rank, u64, Option<usize>)> =
            mine.chain(others.iter().map(|ranked| (ranked.rank, ranked.on, None))).collect();
        // All requests of one rank are at one worker.
        all.sort_by_key(|(rank, ..)| *rank);
        let ranks = all.iter().map(|(rank, on, _)| (*rank, *on));
        for (place, streams) in self.event_time.endings(ranks, &self.late_at) {
            if let Some(nth) = all[place].2 {
                let call = &mut own[nth].task.call;
                *call = functions.closes(call.clone(), streams);
            }
        }
    }

    /// Returns the time that requests without a time of their own get in the last epoch, by stream
    /// in event time.
    pub fn marks_us(&self) -> Arc<[(StreamId, i64)]> {
        self.event_time.marks_us(&self.late_at)
    }
}

#[cfg(test)]
mod tests;
