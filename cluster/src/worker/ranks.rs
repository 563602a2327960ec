//! The order of an epoch with events in event time: which events are executed, and the place of
//! each.
//!
//! The buffered events depend only on the inputs and the recorded watermarks. They are the events
//! up to a snapshot's cut that are not before its watermark. So they are in no snapshot, and are
//! read again. Which of them are late depends on earlier events of their event sources. The
//! snapshot records the newest time of each event source where its buffered events begin.

mod timed;

use std::collections::BTreeMap;
use std::mem::replace;
use std::ops::Range;
use std::sync::Arc;

use tidemill_core::{Late, Position, StreamId};
use tidemill_function::{Functions, NodeId, Sequencing};
use tidemill_txn::order::Newest;

use self::timed::TimedEvents;
use super::read::{Before, EventTimes, Item, ManyEvents, Read, Task};
use super::run::PartWork;
use crate::event_time::{EventTime, Rank, RankReport, Ranked};
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
    /// Those that can be executed by column, by group.
    columns: Vec<Vec<TimedEvents>>,
    /// Where the buffered events after the snapshot begin, by event source: the first record, and
    /// the state before it.
    again: Vec<Option<(u64, Before)>>,
    /// The times of late events of the last cut, by group: the watermarks of the cut before. `late`
    /// counts them.
    late_at: Vec<Position>,
    late: u64,
    /// The requests of the next epoch that this worker received.
    own: Option<Own>,
    /// The reports of others for epochs that have not begun here.
    reported: BTreeMap<u64, BTreeMap<NodeId, RankReport>>,
}

/// The requests of an epoch that this worker received: each by itself, or by column from the first
/// one in event time on. Those before are not in event time, or late.
enum Own {
    Each(Vec<Placed>),
    ByColumn(Vec<Placed>, Vec<TimedEvents>),
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
        let columns = watermarks.iter().map(|_| Vec::new()).collect();
        let (own, reported, late_at) = (None, BTreeMap::new(), watermarks.clone());
        Ranks {
            event_time,
            watermarks,
            waiting,
            bytes: 0,
            columns,
            again,
            late_at,
            late: 0,
            own,
            reported,
        }
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

    /// Takes requests of the snapshot's cuts: those of a record with offsets in this range. Only
    /// events can be buffered. Events before the watermark were executed, or were late.
    pub fn restore(&mut self, item: Item, within: Range<u64>, functions: &dyn Functions) {
        match item {
            Item::Task(read) if within.contains(&read.at.0) => self.restore_one(read),
            Item::Task(_) => {}
            Item::Events(events) => self.restore_events(events, within, functions),
        }
    }

    /// Takes events by column. They are buffered by column again, because that decides how they are
    /// executed.
    fn restore_events(
        &mut self,
        events: ManyEvents,
        within: Range<u64>,
        functions: &dyn Functions,
    ) {
        let Some(EventTimes { event_source, .. }) = events.times else { return };
        let Some((from, before)) = &mut self.again[event_source as usize] else { return };
        let within = within.start.max(*from)..within.end;
        let Some(mut events) = events.within(within) else { return };
        before.take_all(events.times.as_mut().expect("they are in event time"));
        let (mut events, late) = TimedEvents::new(events);
        let event_time = self.event_time.clone();
        for read in late.into_iter().flat_map(|late| late.reads(&event_time, functions)) {
            self.restore_known(read);
        }
        let group = event_time.sources()[event_source as usize].group;
        events.take_before(self.watermarks[group]);
        if events.len() > 0 {
            self.columns[group].push(events);
        }
    }

    fn restore_one(&mut self, mut read: Read) {
        let Some((event_source, _)) = read.timed else { return };
        let Some((from, before)) = &mut self.again[event_source as usize] else { return };
        if read.at.0 < *from {
            return;
        }
        before.take(&mut read);
        self.restore_known(read);
    }

    /// Takes an event that may be late.
    fn restore_known(&mut self, read: Read) {
        let Some((event_source, time_us)) = read.timed else { return };
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
        let waiting: u64 = self.waiting.iter().map(|waiting| waiting.len() as u64).sum();
        let columns = || self.columns.iter().flatten();
        let events = waiting + columns().map(TimedEvents::tasks).sum::<u64>();
        let bytes = self.bytes + columns().map(TimedEvents::bytes).sum::<u64>();
        Buffered { events, bytes, late: self.late, tables: 0 }
    }

    /// Returns where the buffered events of each event source begin.
    pub fn first(&self) -> Vec<Waiting> {
        let waiting = self.waiting.iter().flatten().map(|((position, _), waits)| Waiting {
            event_source: position.source.0,
            record: position.offset,
            newest_us: waits.before_us,
        });
        let columns = self.columns.iter().flatten().filter_map(|events| {
            let (event_source, (record, newest_us)) = (events.event_source, events.first()?);
            Some(Waiting { event_source, record, newest_us })
        });
        let mut first: BTreeMap<u32, Waiting> = BTreeMap::new();
        for one in waiting.chain(columns) {
            let of = first.entry(one.event_source).or_insert(one);
            if one.record < of.record {
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
    /// report for the others. If the worker `is_alone`, it reads all event sources.
    pub fn take(
        &mut self,
        cut: &CutRecord,
        requests: Vec<(u32, Item)>,
        is_alone: bool,
        functions: &dyn Functions,
    ) -> RankReport {
        self.late_at = replace(&mut self.watermarks, cut.times.watermarks.clone());
        self.late = 0;
        let mut placed = Vec::new();
        for (source, item) in requests {
            match item {
                Item::Task(read) => self.take_one(source, read, &mut placed, functions),
                Item::Events(events) => {
                    let (mut events, late) = TimedEvents::new(events);
                    let event_time = self.event_time.clone();
                    let group = event_time.sources()[events.event_source as usize].group;
                    let mut alone = Vec::new();
                    alone.extend(late.map(|late| late.reads(&event_time, functions)));
                    // Some are late because the source was idle.
                    let idle = events.take_before(self.late_at[group]);
                    alone.extend(idle.map(|late| late.reads(&event_time, functions)));
                    for read in alone.into_iter().flatten() {
                        self.take_one(source, read, &mut placed, functions);
                    }
                    if events.len() > 0 {
                        self.columns[group].push(events);
                    }
                }
            }
        }
        let mut due = Vec::new();
        for (columns, watermark) in self.columns.iter_mut().zip(&self.watermarks) {
            due.extend(columns.iter_mut().filter_map(|events| events.take_before(*watermark)));
            columns.retain(|events| events.len() > 0);
        }
        for (waiting, watermark) in self.waiting.iter_mut().zip(&self.watermarks) {
            let later = waiting.split_off(&(*watermark, 0));
            for ((position, nth), waits) in replace(waiting, later) {
                self.bytes -= waits.task.bytes();
                placed.push(due_task(&self.event_time, (position, nth), waits, functions));
            }
        }
        let by_column = placed.iter().all(|placed| is_early(placed.rank));
        let own = match by_column {
            true => {
                placed.sort_by_key(|placed| (placed.rank, placed.at));
                Own::ByColumn(placed, due)
            }
            false => Own::Each(self.each(due, placed, functions)),
        };
        let ranks = match &own {
            Own::Each(placed) => ranks_of(placed),
            // The others have no events in event time, so they need only the number.
            Own::ByColumn(early, due) if is_alone => {
                let count = due.iter().map(TimedEvents::tasks).sum::<u64>() as u32;
                let rank = Rank::OnTime(i64::MIN, 0);
                let mut ranks = ranks_of(early);
                ranks.extend((count > 0).then_some(Ranked { rank, count, on: 0 }));
                ranks
            }
            Own::ByColumn(early, due) => {
                let mut ranks = ranks_of(early);
                for (nth, row) in in_order(due) {
                    let (rank, each) = (due[nth].rank(row), due[nth].each() as u32);
                    match ranks.last_mut().filter(|last| last.rank == rank) {
                        Some(last) => last.count += each,
                        None => ranks.push(Ranked { rank, count: each, on: 0 }),
                    }
                }
                ranks
            }
        };
        self.own = Some(own);
        RankReport { ranks, by_column }
    }

    /// Takes a request of a cut: it is executed now, or buffered.
    fn take_one(
        &mut self,
        source: u32,
        read: Read,
        placed: &mut Vec<Placed>,
        functions: &dyn Functions,
    ) {
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
                    return self.buffer(group, place, read);
                }
                self.late += u64::from(read.late_us.is_none());
                let Task { call, .. } = read.task;
                (Rank::Late(timed.0), Task { call: functions.late(call), ..read.task })
            }
        };
        placed.push(Placed { rank, at, source, on: on(&self.event_time, &task, functions), task });
    }

    /// Returns all requests of an epoch by themselves, in their order.
    fn each(
        &self,
        due: Vec<TimedEvents>,
        mut placed: Vec<Placed>,
        functions: &dyn Functions,
    ) -> Vec<Placed> {
        for events in due {
            for read in events.reads(&self.event_time, functions) {
                let timed = read.timed.expect("it is in event time");
                let (_, at) = self.place(timed, read.at);
                let Read { task, before_us, .. } = read;
                let waits = Waits { task, before_us, is_late: false };
                placed.push(due_task(&self.event_time, at, waits, functions));
            }
        }
        placed.sort_by_key(|placed| (placed.rank, placed.at));
        placed
    }

    /// Takes the report of another worker.
    pub fn receive(&mut self, epoch: u64, from: NodeId, report: RankReport) {
        self.reported.entry(epoch).or_default().insert(from, report);
    }

    /// Returns the requests of the next epoch, each with its place, and the number of places of all
    /// workers together. Returns `None` until this many others have reported. If a watermark
    /// advances far at once, the epoch is long. Then it is executed in parts of `part_max`, or of
    /// `columns_max` by column, the same at all workers.
    pub fn places(
        &mut self,
        epoch: u64,
        order: Sequencing,
        others: usize,
        (part_max, columns_max): (u64, u64),
        functions: &dyn Functions,
    ) -> Option<(Vec<PartWork>, u64)> {
        let reported = self.reported.get(&epoch).map_or(0, BTreeMap::len);
        if reported < others {
            return None;
        }
        let own = self.own.take()?;
        let reported = self.reported.remove(&epoch).unwrap_or_default();
        let by_column = reported.values().all(|report| report.by_column);
        let mut before: Vec<Ranked> =
            reported.into_values().flat_map(|report| report.ranks).collect();
        before.sort_unstable_by_key(|ranked| ranked.rank);
        let of_others: u64 = before.iter().map(|ranked| u64::from(ranked.count)).sum();
        let mut own = match own {
            Own::ByColumn(early, due) if by_column => {
                let on_time = due.iter().map(TimedEvents::tasks).sum::<u64>();
                let total = early.len() as u64 + on_time + of_others;
                let most = (part_max, columns_max);
                return Some((self.by_column(early, due, before, order, most), total));
            }
            Own::ByColumn(early, due) => self.each(due, early, functions),
            Own::Each(placed) => placed,
        };
        self.close(&mut own, &before, functions);
        let total = own.len() as u64 + of_others;
        let mut parts = Vec::new();
        parts.resize_with(total.div_ceil(part_max).max(1) as usize, PartWork::default);
        let (mut before, mut place) = (before.into_iter().peekable(), 0);
        for Placed { rank, source, task, .. } in own {
            while let Some(other) = before.next_if(|other| other.rank < rank) {
                place += u64::from(other.count);
            }
            let nth = ((place / part_max) as usize).min(parts.len() - 1);
            parts[nth].tasks.push((order.tid(source, place), task));
            place += 1;
        }
        Some((parts, total))
    }

    /// Returns the parts of an epoch whose events in event time are executed by column, given the ranks
    /// of other workers' requests. Parts with all others come first, of `early_max` at most. All
    /// workers have the same parts.
    fn by_column(
        &self,
        early: Vec<Placed>,
        due: Vec<TimedEvents>,
        before: Vec<Ranked>,
        order: Sequencing,
        (early_max, columns_max): (u64, u64),
    ) -> Vec<PartWork> {
        let of = |is: bool| {
            let others = before.iter().filter(move |other| is_early(other.rank) == is);
            others.map(|other| u64::from(other.count)).sum::<u64>()
        };
        let first = early.len() as u64 + of(true);
        let on_time = due.iter().map(TimedEvents::tasks).sum::<u64>() + of(false);
        let early_parts = first.div_ceil(early_max) as usize;
        let column_parts = on_time.div_ceil(columns_max).max(u64::from(early_parts == 0)) as usize;
        let mut parts = Vec::new();
        parts.resize_with(early_parts + column_parts, PartWork::default);
        let (mut others, mut place) = (before.into_iter().peekable(), 0);
        for Placed { rank, source, task, .. } in early {
            while let Some(other) = others.next_if(|other| other.rank < rank) {
                place += u64::from(other.count);
            }
            parts[(place / early_max) as usize].tasks.push((order.tid(source, place), task));
            place += 1;
        }
        let source =
            |events: &TimedEvents| self.event_time.sources()[events.event_source as usize].source;
        let sources: Vec<u32> = due.iter().map(source).collect();
        let mut places: Vec<Vec<u64>> =
            due.iter().map(|events| Vec::with_capacity(events.len())).collect();
        for (nth, row) in in_order(&due) {
            while let Some(other) = others.next_if(|other| other.rank < due[nth].rank(row)) {
                place += u64::from(other.count);
            }
            places[nth].push(place);
            place += due[nth].each();
        }
        let step = u64::from(order.sources);
        for ((mut events, places), source) in due.into_iter().zip(places).zip(sources) {
            let mut left = &places[..];
            while let Some(at) = left.first() {
                let part = (at - first) / columns_max;
                let count = left.partition_point(|place| (place - first) / columns_max == part);
                let (now, rest) = left.split_at(count);
                let tids = now.iter().map(|place| order.tid(source, *place).0).collect();
                let run = events.take_first(count).run(tids, step);
                parts[early_parts + part as usize].runs.push(run);
                left = rest;
            }
        }
        parts
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

/// Whether requests of a rank come before all events that are on time.
fn is_early(rank: Rank) -> bool {
    !matches!(rank, Rank::OnTime(..))
}

/// Returns the streams with intervals that a request belongs to.
fn on(event_time: &EventTime, task: &Task, functions: &dyn Functions) -> u64 {
    match event_time.has_intervals() {
        true => functions.intervals(&task.call),
        false => 0,
    }
}

/// Returns an event that the watermark has passed.
fn due_task(
    event_time: &EventTime,
    (position, nth): At,
    waits: Waits,
    functions: &dyn Functions,
) -> Placed {
    let Waits { mut task, is_late, .. } = waits;
    let event_source = position.source.0;
    let source = event_time.sources()[event_source as usize].source;
    let rank = Rank::OnTime(position.time_us, event_source);
    let (at, on) = ((position.offset, nth), on(event_time, &task, functions));
    if is_late {
        task.call = functions.admitted(task.call, position.time_us);
    }
    Placed { rank, at, source, on, task }
}

/// Returns the ranks of requests that are in order.
fn ranks_of(placed: &[Placed]) -> Vec<Ranked> {
    let ranked = |some: &[Placed]| Ranked {
        rank: some[0].rank,
        count: some.len() as u32,
        on: some.iter().fold(0, |on, one| on | one.on),
    };
    placed.chunk_by(|one, other| one.rank == other.rank).map(ranked).collect()
}

/// Returns the events of all in the order of their ranks: the number among all, and the event.
fn in_order(all: &[TimedEvents]) -> Vec<(usize, usize)> {
    let mut numbers: Vec<usize> = (0..all.len()).collect();
    numbers.sort_by_key(|nth| all[*nth].position(0));
    let follow = |pair: &[usize]| {
        let (one, other) = (&all[pair[0]], &all[pair[1]]);
        one.position(one.len() - 1) < other.position(0)
    };
    let follow_each_other = numbers.windows(2).all(follow);
    let each = numbers.into_iter().flat_map(|nth| (0..all[nth].len()).map(move |row| (nth, row)));
    let mut each: Vec<(usize, usize)> = each.collect();
    if !follow_each_other {
        // The events of each are in order, which this sort makes use of.
        each.sort_by_key(|(nth, row)| all[*nth].position(*row));
    }
    each
}

#[cfg(test)]
mod tests;
