//! Records of a source as a worker reads them: the tasks in them, and their times.

use std::collections::VecDeque;
use std::ops::Range;

use tidemill_core::wire::columns_bytes;
use tidemill_core::{Batch, StreamId, StreamTime};
use tidemill_function::{output_bytes, Call, EventPlace, Functions};
use tidemill_txn::order::Newest;

use crate::event_time::{EventTime, ENDED_US};
use crate::records::{Events, Record, Request, RequestId};

/// The approximate bytes of a task that has been read, besides its values.
const TASK_BYTES: usize = 200;

/// A transaction to execute: a request, or one of those of an event.
pub(super) struct Task {
    /// The client's id, or nothing if nobody waits for the reply.
    pub id: RequestId,
    pub call: Call,
    /// The place that its event comes from, if that is known.
    pub place: Option<EventPlace>,
    /// Whether its event has no transaction before this.
    pub is_first: bool,
}

impl Task {
    /// Returns the approximate bytes of memory that it takes.
    pub fn bytes(&self) -> u64 {
        let Call { key, args, .. } = &self.call;
        (TASK_BYTES + self.id.len() + output_bytes(key) + output_bytes(args)) as u64
    }
}

/// Consecutive events of a stream whose transactions can be executed by column.
pub(super) struct ManyEvents {
    /// The offset of the first one. The others have the same, or the next ones.
    pub at: u64,
    pub is_run: bool,
    pub stream: StreamId,
    pub from: Option<EventPlace>,
    /// The number of transactions of each.
    pub each: u64,
    pub batch: Batch,
    /// Their times, if they are in event time.
    pub times: Option<EventTimes>,
}

/// The times of events in event time that come from one event source.
#[derive(Clone)]
pub(super) struct EventTimes {
    pub event_source: u32,
    pub us: Vec<i64>,
    /// The newest time of the event source before these.
    pub before_us: Option<i64>,
    /// The events that are late by earlier ones of the event source, in order: the row, and the bound
    /// that its time is below.
    pub late: Vec<(u32, i64)>,
}

impl ManyEvents {
    /// Returns the offset after all of them.
    pub fn end(&self) -> u64 {
        self.at + if self.is_run { self.batch.len() as u64 } else { 1 }
    }

    /// Returns the number of their transactions.
    pub fn tasks(&self) -> u64 {
        self.batch.len() as u64 * self.each
    }

    /// Returns the approximate bytes of memory that they take.
    pub fn bytes(&self) -> u64 {
        columns_bytes(&self.batch) as u64
    }

    /// Returns the events with offsets in this range, if there are any.
    pub fn within(self, offsets: Range<u64>) -> Option<ManyEvents> {
        if self.at >= offsets.end || self.end() <= offsets.start {
            return None;
        }
        let from = match self.at < offsets.start {
            true => self.split(offsets.start).1,
            false => self,
        };
        match from.end() > offsets.end {
            true => from.split(offsets.end).0,
            false => Some(from),
        }
    }

    /// Returns the events from an offset on, and those before it.
    fn split(mut self, at: u64) -> (Option<ManyEvents>, ManyEvents) {
        let rows = (at - self.at) as usize;
        let rest_times = self.times.as_mut().map(|times| {
            let us = times.us.split_off(rows);
            let before_us = times.before_us.max(times.us.iter().copied().max());
            let before = times.late.partition_point(|(row, _)| (*row as usize) < rows);
            let mut late = times.late.split_off(before);
            late.iter_mut().for_each(|(row, _)| *row -= rows as u32);
            EventTimes { us, before_us, late, ..*times }
        });
        let rest = ManyEvents {
            at,
            from: self.from.as_ref().map(|from| from.after(rows as u64)),
            batch: self.batch.slice(rows, self.batch.len() - rows),
            times: rest_times,
            ..self
        };
        let before = (rows > 0).then(|| ManyEvents {
            at: self.at,
            from: self.from,
            batch: self.batch.slice(0, rows),
            times: self.times,
            ..rest
        });
        (before, rest)
    }
}

/// Something that has been read and is in no epoch.
pub(super) enum Item {
    Task(Read),
    Events(ManyEvents),
}

impl Item {
    /// Returns the first offset.
    pub fn at(&self) -> u64 {
        match self {
            Item::Task(read) => read.at.0,
            Item::Events(events) => events.at,
        }
    }

    /// Returns the number of transactions.
    pub fn tasks(&self) -> u64 {
        match self {
            Item::Task(_) => 1,
            Item::Events(events) => events.tasks(),
        }
    }

    /// Returns the approximate bytes of memory that it takes.
    pub fn bytes(&self) -> u64 {
        match self {
            Item::Task(read) => read.task.bytes(),
            Item::Events(events) => events.bytes(),
        }
    }
}

/// The items of a source that no epoch has taken, with the number of their transactions and
/// approximately the bytes that they take.
#[derive(Default)]
pub(super) struct Items {
    pub items: VecDeque<Item>,
    pub tasks: u64,
    pub bytes: u64,
}

impl Items {
    /// Adds an item.
    pub fn push(&mut self, item: Item) {
        self.tasks += item.tasks();
        self.bytes += item.bytes();
        self.items.push_back(item);
    }

    /// Takes the next item, or the part of it that is before an offset.
    pub fn next_before(&mut self, upto: u64) -> Option<Item> {
        let next = self.items.pop_front_if(|item| item.at() < upto)?;
        let taken = match next {
            Item::Events(events) if events.end() > upto => {
                let (before, rest) = events.split(upto);
                self.items.push_front(Item::Events(rest));
                Item::Events(before.expect("it begins before"))
            }
            whole => whole,
        };
        self.tasks -= taken.tasks();
        self.bytes -= taken.bytes().min(self.bytes);
        Some(taken)
    }
}

/// Passes the tasks of a record at an offset to `each`, with the offset of each and its number there.
pub(super) fn tasks(
    offset: u64,
    record: Record,
    functions: &dyn Functions,
    mut each: impl FnMut((u64, u32), Task),
) {
    match record {
        Record::Requests(requests) => {
            for (nth, Request { id, call }) in (0..).zip(requests) {
                each((offset, nth), Task { id, call, place: None, is_first: true });
            }
        }
        Record::Events(Events { stream, from, is_run, batch }) => {
            let nobody = RequestId::from([]);
            let mut nth = 0;
            for (row, values) in (0..).zip(batch.rows()) {
                let mut is_first = true;
                nth = if is_run { 0 } else { nth };
                for call in functions.event(stream, &values) {
                    let place = from.as_ref().map(|from| from.after(row));
                    let at = if is_run { offset + row } else { offset };
                    each((at, nth), Task { id: nobody.clone(), call, place, is_first });
                    (nth, is_first) = (nth + 1, false);
                }
            }
        }
        _ => {}
    }
}

/// A task that has been read.
pub(super) struct Read {
    /// The offset of its record, and its number in the record.
    pub at: (u64, u32),
    pub task: Task,
    /// Its event source and its time, if it is an event in event time.
    pub timed: Option<(u32, i64)>,
    /// The bound that its time is below, if it is late by the earlier events of its event source.
    pub late_us: Option<i64>,
    /// The newest time of its event source before its record.
    pub before_us: Option<i64>,
}

impl Read {
    /// Passes a record of a source to `each`, from an offset on: its events by column, or its tasks
    /// one by one.
    pub fn items(
        (source, offset, record): (u32, u64, Record),
        from: u64,
        event_time: &EventTime,
        functions: &dyn Functions,
        mut each: impl FnMut(Item),
    ) {
        // The number of transactions of each event, and the events' times.
        let by_column = |events: &Events| {
            let handlers = functions.by_column(events.stream)?.len() as u64;
            let spec = &functions.program().streams.get(events.stream.index())?.spec;
            let is_like_it = spec.schema == *events.batch.schema();
            // Anyone may have written the events into the log. A null where none may be is
            // refused one by one.
            let has_values = || events.batch.with_schema(&spec.schema).is_ok();
            if events.batch.is_empty() || !is_like_it || !has_values() {
                return None;
            }
            match spec.time {
                StreamTime::Arrival => event_time.is_empty().then_some((handlers, None)),
                StreamTime::Event { column } => {
                    let event_source = event_time.of(source, events.stream)?;
                    // Others may have written the time that is reserved for the end of a source.
                    let us = events.batch.ints(column)?.iter().map(|us| (*us).min(ENDED_US - 1));
                    let (us, is_usual) = (us.collect(), !event_time.has_intervals());
                    let times = EventTimes { event_source, us, before_us: None, late: Vec::new() };
                    is_usual.then_some((handlers, Some(times)))
                }
            }
        };
        let handlers = match &record {
            Record::Events(events) => by_column(events),
            _ => None,
        };
        match (record, handlers) {
            (Record::Events(events), Some((handlers, times))) => {
                let Events { stream, from: place, is_run, batch } = events;
                let many = ManyEvents {
                    at: offset,
                    is_run,
                    stream,
                    from: place,
                    each: handlers,
                    batch,
                    times,
                };
                if many.end() > from {
                    let (_, rest) = match offset < from {
                        true => many.split(from),
                        false => (None, many),
                    };
                    each(Item::Events(rest));
                }
            }
            (record, _) => tasks(offset, record, functions, |at, task| {
                if at.0 >= from {
                    each(Item::Task(Read::new(at, task, source, event_time, functions)));
                }
            }),
        }
    }

    /// Creates the task `at` of a source.
    pub fn new(
        at: (u64, u32),
        task: Task,
        source: u32,
        event_time: &EventTime,
        functions: &dyn Functions,
    ) -> Read {
        let timed = |call: &Call| {
            let (stream, time_us) = functions.timed(call)?;
            // Others may have written this time, which is reserved for the end of a source.
            Some((event_time.of(source, stream)?, time_us.min(ENDED_US - 1)))
        };
        let timed = if event_time.is_empty() { None } else { timed(&task.call) };
        Read { at, task, timed, late_us: None, before_us: None }
    }

    /// Determines whether it is late, given the earlier events.
    pub fn known(mut self, before: &mut [Before]) -> Read {
        if let Some((event_source, _)) = self.timed {
            before[event_source as usize].take(&mut self);
        }
        self
    }
}

/// The earlier events of an event source.
pub(super) struct Before {
    newest: Newest,
    /// The last record, and the newest time before it.
    last: Option<(u64, Option<i64>)>,
}

impl Before {
    /// Creates it for a source with this newest time.
    pub fn new(newest: Newest) -> Before {
        Before { newest, last: None }
    }

    /// Takes the next events, and finds those that are late.
    pub fn take_all(&mut self, times: &mut EventTimes) {
        times.before_us = self.newest.us();
        self.last = None;
        let rows: Vec<u64> = (0..times.us.len() as u64).collect();
        let late = self.newest.take_all(&rows, &times.us);
        times.late = late.into_iter().map(|of| (of.offset as u32, of.bound_us)).collect();
    }

    /// Takes the next event of a record.
    pub fn take(&mut self, read: &mut Read) {
        let Some((_, time_us)) = read.timed else { return };
        let last = self.last.filter(|(record, _)| *record == read.at.0);
        let (_, before_us) = *self.last.insert(last.unwrap_or((read.at.0, self.newest.us())));
        (read.before_us, read.late_us) = (before_us, self.newest.take(time_us));
    }
}
