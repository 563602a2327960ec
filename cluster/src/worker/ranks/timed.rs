//! Events in event time by column, in the order of their times.

use std::cmp::Ordering;

use tidemill_core::wire::columns_bytes;
use tidemill_core::{Batch, Position, SourceId, StreamId};
use tidemill_function::{EventPlace, Functions};

use crate::event_time::{EventTime, Rank};
use crate::worker::read::{ManyEvents, Read, Task};
use crate::worker::run::EventRun;

/// The bytes of an event besides its columns.
const EVENT_BYTES: u64 = 24;

/// Events of one stream and event source, in the order of their times and offsets.
pub(super) struct TimedEvents {
    pub event_source: u32,
    stream: StreamId,
    from: Option<EventPlace>,
    /// Whether each event has an offset of its own.
    is_run: bool,
    each: u64,
    batch: Batch,
    times_us: Vec<i64>,
    offsets: Vec<u64>,
    /// The newest time of the event source before the record of each event.
    before_us: Vec<Option<i64>>,
    /// The distance of each event from `from`.
    rows: Vec<u64>,
}

/// Events that are late by earlier events of their event source, in the order of their rows.
pub(super) struct LateEvents {
    events: TimedEvents,
    /// The bound that the time of each is below.
    bounds_us: Vec<i64>,
}

impl LateEvents {
    /// Returns the events as tasks that have been read.
    pub fn reads(self, event_time: &EventTime, functions: &dyn Functions) -> Vec<Read> {
        let LateEvents { events, bounds_us } = self;
        let reads = events.rows_read(event_time, functions).into_iter();
        let late = |(row, read)| Read { late_us: Some(bounds_us[row]), ..read };
        reads.map(late).collect()
    }
}

impl TimedEvents {
    /// Puts events in order, apart from those that are late by earlier events of their source.
    pub fn new(events: ManyEvents) -> (TimedEvents, Option<LateEvents>) {
        let ManyEvents { at, is_run, stream, from, each, batch, times } = events;
        let times = times.expect("they are in event time");
        let len = batch.len() as u64;
        let mut newest_us = times.before_us;
        let mut before = |time_us: &i64| {
            let before_us = newest_us;
            if is_run {
                newest_us = newest_us.max(Some(*time_us));
            }
            before_us
        };
        let before_us: Vec<Option<i64>> = times.us.iter().map(&mut before).collect();
        let offsets = (0..len).map(|row| if is_run { at + row } else { at }).collect();
        let (event_source, rows) = (times.event_source, (0..len).collect());
        let (times_us, late) = (times.us, times.late);
        let all = TimedEvents {
            event_source,
            stream,
            from,
            is_run,
            each,
            batch,
            times_us,
            offsets,
            before_us,
            rows,
        };
        if late.is_empty() && all.times_us.is_sorted() {
            return (all, None);
        }
        let mut order: Vec<u32> = Vec::with_capacity(len as usize);
        let mut next = late.iter().map(|(row, _)| *row).peekable();
        order.extend((0..len as u32).filter(|row| next.next_if_eq(row).is_none()));
        order.sort_by_key(|row| all.times_us[*row as usize]);
        let (rows, bounds_us): (Vec<u32>, Vec<i64>) = late.into_iter().unzip();
        let late = (!rows.is_empty()).then(|| LateEvents { events: all.at(&rows), bounds_us });
        (all.at(&order), late)
    }

    /// Returns the events at these rows.
    fn at(&self, rows: &[u32]) -> TimedEvents {
        let rows_of = || rows.iter().map(|row| *row as usize);
        TimedEvents {
            from: self.from.clone(),
            batch: self.batch.take(rows),
            times_us: rows_of().map(|row| self.times_us[row]).collect(),
            offsets: rows_of().map(|row| self.offsets[row]).collect(),
            before_us: rows_of().map(|row| self.before_us[row]).collect(),
            rows: rows_of().map(|row| self.rows[row]).collect(),
            ..*self
        }
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.times_us.len()
    }

    /// Returns the number of their transactions.
    pub fn tasks(&self) -> u64 {
        self.len() as u64 * self.each
    }

    /// Returns the number of transactions of each.
    pub fn each(&self) -> u64 {
        self.each
    }

    /// Returns the approximate bytes of memory that they take.
    pub fn bytes(&self) -> u64 {
        columns_bytes(&self.batch) as u64 + EVENT_BYTES * self.len() as u64
    }

    /// Returns the position of an event.
    pub fn position(&self, row: usize) -> Position {
        let (time_us, source) = (self.times_us[row], SourceId(self.event_source));
        Position { time_us, source, offset: self.offsets[row] }
    }

    /// Returns the rank of an event.
    pub fn rank(&self, row: usize) -> Rank {
        Rank::OnTime(self.times_us[row], self.event_source)
    }

    /// Returns the first record that has any of these events, and the newest time before it.
    pub fn first(&self) -> Option<(u64, Option<i64>)> {
        self.offsets.iter().copied().zip(self.before_us.iter().copied()).min_by_key(|of| of.0)
    }

    /// Takes the events before a watermark.
    pub fn take_before(&mut self, watermark: Position) -> Option<TimedEvents> {
        let earlier = self.times_us.partition_point(|us| *us < watermark.time_us);
        let same = self.times_us[earlier..].partition_point(|us| *us == watermark.time_us);
        let offsets = &self.offsets[earlier..earlier + same];
        let count = earlier
            + match self.event_source.cmp(&watermark.source.0) {
                Ordering::Less => same,
                Ordering::Equal => offsets.partition_point(|at| *at < watermark.offset),
                Ordering::Greater => 0,
            };
        (count > 0).then(|| self.take_first(count))
    }

    /// Takes the first `count` events.
    pub fn take_first(&mut self, count: usize) -> TimedEvents {
        let rest = TimedEvents {
            from: self.from.clone(),
            batch: self.batch.slice(count, self.len() - count),
            times_us: self.times_us.split_off(count),
            offsets: self.offsets.split_off(count),
            before_us: self.before_us.split_off(count),
            rows: self.rows.split_off(count),
            ..*self
        };
        let mut taken = std::mem::replace(self, rest);
        taken.batch = taken.batch.slice(0, count);
        taken
    }

    /// Returns the events as tasks that have been read, each with its place in its record.
    pub fn reads(self, event_time: &EventTime, functions: &dyn Functions) -> Vec<Read> {
        self.rows_read(event_time, functions).into_iter().map(|(_, read)| read).collect()
    }

    /// Returns such tasks, each with the number of its event.
    fn rows_read(self, event_time: &EventTime, functions: &dyn Functions) -> Vec<(usize, Read)> {
        let source = event_time.sources()[self.event_source as usize].source;
        let mut reads = Vec::with_capacity(self.len());
        for row in 0..self.len() {
            let mut is_first = true;
            let nth = if self.is_run { 0 } else { self.rows[row] * self.each };
            let calls = functions.event(self.stream, &self.batch.row(row));
            for (call, nth) in calls.into_iter().zip(nth..) {
                let place = self.from.as_ref().map(|from| from.after(self.rows[row]));
                let task = Task { id: [].into(), call, place, is_first };
                let at = (self.offsets[row], nth as u32);
                let mut read = Read::new(at, task, source, event_time, functions);
                read.before_us = self.before_us[row];
                reads.push((row, read));
                is_first = false;
            }
        }
        reads
    }

    /// Returns the events as a run of an epoch, given the places of their first transactions.
    pub fn run(self, tids: Vec<u64>, step: u64) -> EventRun {
        EventRun::new(
            tids,
            step,
            (self.stream, self.each),
            self.batch,
            (self.from, Some(self.rows)),
        )
    }
}
