//! Events and calls as an epoch for the executor.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_core::{Batch, Error, Result, Row, SourceId, StreamId, StreamTime, Value};
use tidemill_table::Table;

use super::program::View;
use super::{SoleEvents, SoleOutcome, SoleProgram, SoleTakers, SoleWork};
use crate::execute::ColumnOutput;
use crate::order::{Epoch, Lane, Ranked, Run};
use crate::program::{Abort, Batching, ColumnStage, EventLimit, Program, Until};

/// The source of all events.
pub(super) const EVENTS: SourceId = SourceId(0);
/// The bits for the number of a buffered event. Its offset begins with the place of a later event.
const BUFFERED_BITS: u32 = 21;

/// The source of the events of a stream that were buffered before.
fn buffered(stream: StreamId) -> SourceId {
    SourceId(1 + u32::from(stream.0))
}

/// The moment of an epoch: the clock of its cut, and the watermark of each stream in event time at
/// the cut before.
pub(super) type Moment<'m> = (i64, &'m [(StreamId, i64)]);

/// A transaction: the place of its event, its handler, and the lane and row of the event.
type Entry = (u64, u32, Ranked);

/// Events, each with its place and its time.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    pub tids: Vec<u64>,
    pub times: Vec<i64>,
    pub batch: Batch,
}

/// Changes of the buffered events of a stream: how many are removed, the number of the first new
/// one, the new ones, and the time since which the first one waits.
type Buffered = (StreamId, (i64, i64), Vec<Row>, i64);

/// An epoch that is being prepared.
pub(super) struct Segment<'p> {
    of: &'p SoleProgram,
    moment: Moment<'p>,
    limit: &'p EventLimit,
    pub epoch: Epoch,
    entries: Vec<Entry>,
    pub outcome: SoleOutcome,
    /// The events of streams in batches.
    batched: BTreeMap<StreamId, Vec<Timed>>,
    /// The events that end intervals.
    ends: BTreeSet<(StreamId, u64)>,
    /// The changes of buffered events.
    pub buffered: Vec<Buffered>,
    /// The streams of aborts and of return values that are the result of an event or a call.
    pub aborts: BTreeSet<StreamId>,
    pub values: BTreeSet<StreamId>,
}

/// Rows that come one by one, for the same handlers.
#[derive(Default)]
struct Rows {
    tids: Vec<u64>,
    rows: Vec<Vec<Value>>,
    stands_us: Vec<Option<i64>>,
}

impl<'p> Segment<'p> {
    pub fn new(of: &'p SoleProgram, moment: Moment<'p>, limit: &'p EventLimit) -> Segment<'p> {
        Segment {
            of,
            moment,
            limit,
            epoch: Epoch { clock_us: moment.0, ..Epoch::default() },
            entries: Vec::new(),
            outcome: SoleOutcome::default(),
            batched: BTreeMap::new(),
            ends: BTreeSet::new(),
            buffered: Vec::new(),
            aborts: BTreeSet::new(),
            values: BTreeSet::new(),
        }
    }

    /// Adds work of which each piece is a place in the order. Each gets a result.
    pub fn add_work(&mut self, work: Vec<(u64, SoleWork)>) -> Result<()> {
        let program = &self.of.program;
        let mut by_taker: BTreeMap<SoleTakers, Rows> = BTreeMap::new();
        for (tid, work) in work {
            let (takers, row, stands_us) = match work {
                SoleWork::Call { handler, row } => (SoleTakers::Handler(handler), row, None),
                SoleWork::Event { stream, row, stands_us, ends } => {
                    self.ends.extend(ends.iter().map(|of| (*of, tid)));
                    (SoleTakers::Round(stream), row, stands_us)
                }
                SoleWork::Emit(events) => {
                    self.outcome.results.insert(tid, Ok(Value::Null));
                    for (stream, row) in events {
                        let schema = program.streams[stream.index()].spec.schema.clone();
                        let batch = Batch::from_rows(schema, [&row[..]]);
                        let (tids, ordinals) = (vec![tid], vec![stream.0.into()]);
                        self.outcome.outputs.push(ColumnOutput { stream, tids, ordinals, batch });
                    }
                    continue;
                }
                other => return Err(Error::internal(format!("{other:?} has a step of its own"))),
            };
            let stream = takers.stream(program).ok_or_else(|| takers.wrong("there is none"))?;
            let row = match program.stored_output(stream, &row) {
                Ok(row) => row,
                Err(abort) => {
                    self.outcome.results.insert(tid, Err(abort));
                    continue;
                }
            };
            self.outcome.results.insert(tid, Ok(Value::Null));
            let rows = by_taker.entry(takers).or_default();
            rows.tids.push(tid);
            rows.rows.push(row);
            rows.stands_us.push(stands_us);
        }
        for (takers, Rows { tids, rows, stands_us }) in by_taker {
            let stream = takers.stream(program).expect("it has one");
            let schema = program.streams[stream.index()].spec.schema.clone();
            let batch = Batch::from_rows(schema, rows.iter().map(|row| &row[..]));
            self.add_at(SoleEvents { takers, tids, batch }, &stands_us)?;
        }
        Ok(())
    }

    /// Adds events.
    pub fn add(&mut self, events: SoleEvents) -> Result<()> {
        self.add_at(events, &[])
    }

    /// Adds events, of which some stand at a time that is not their own.
    fn add_at(&mut self, events: SoleEvents, stands_us: &[Option<i64>]) -> Result<()> {
        let SoleEvents { takers, tids, batch } = events;
        let program = &self.of.program;
        let stream = takers.stream(program).ok_or_else(|| takers.wrong("there is none"))?;
        let spec = &program.streams[stream.index()].spec;
        let batch = batch.with_schema(&spec.schema).map_err(|why| takers.wrong(&why))?;
        if tids.len() != batch.len() || !tids.is_sorted_by(|a, b| a < b) {
            return Err(takers.wrong("their places do not rise, or are others"));
        }
        let stands = |time_us: Option<i64>| self.of.stands(stream, time_us, self.moment);
        let mut times = match spec.time {
            StreamTime::Arrival => vec![stands(None); tids.len()],
            StreamTime::Event { column } => {
                let times = batch.ints(column).ok_or_else(|| takers.wrong("they have no times"))?;
                match self.moment.1.is_empty() {
                    true => times.to_vec(),
                    false => times.iter().map(|time_us| stands(Some(*time_us))).collect(),
                }
            }
        };
        for (time, stands_us) in times.iter_mut().zip(stands_us) {
            *time = stands_us.map_or(*time, |stands_us| stands(Some(stands_us)));
        }
        let events = Timed { tids, times, batch };
        match takers {
            SoleTakers::Handler(handler) => {
                self.aborts.insert(program.handlers[handler].aborted);
                self.values.extend(program.handlers[handler].output);
                self.run(stream, EVENTS, events, &[handler]);
            }
            SoleTakers::Round(input) => self.round(input, events),
        }
        Ok(())
    }

    /// Adds events of an input stream for all of its handlers.
    fn round(&mut self, input: StreamId, events: Timed) {
        let program = &self.of.program;
        self.aborts.extend(self.of.only(input).map(|only| program.handlers[only].aborted));
        // The node that has received an event puts it among the dead letters if it is in `failed`.
        let (views, _failed) = self.of.views(input, &events);
        let views: Vec<View> = [(input, events)].into_iter().chain(views).collect();
        // Events that leave as they are have a limit, too.
        let mut long: BTreeMap<u64, Abort> = BTreeMap::new();
        for (stream, events) in views.iter().filter(|(stream, _)| self.of.is_passed(*stream)) {
            if !has_words(program, *stream) {
                let refused = |(tid, row): (&u64, Row)| Some((*tid, self.limit.refuses(&row)?));
                long.extend(events.tids.iter().zip(events.batch.rows()).filter_map(refused));
            }
        }
        if !long.is_empty() {
            let (_, events) = &views[0];
            let is_good = |(_, tid): &(u32, &u64)| !long.contains_key(tid);
            let good: Vec<u32> = (0..).zip(&events.tids).filter(is_good).map(|of| of.0).collect();
            let events = events.take(&good, None);
            long.into_iter().for_each(|(tid, why)| self.outcome.refuse(tid, input, why));
            return self.round(input, events);
        }
        for (stream, events) in views {
            if self.of.is_passed(stream) && !events.tids.is_empty() {
                let ordinals = vec![u32::from(stream.0); events.tids.len()];
                let (tids, batch) = (events.tids.clone(), events.batch.clone());
                self.outcome.outputs.push(ColumnOutput { stream, tids, ordinals, batch });
            }
            if self.of.open.has(stream) {
                self.batched.entry(stream).or_default().push(events);
                continue;
            }
            let handlers: Vec<usize> = program.handlers_on(stream).collect();
            self.run(stream, EVENTS, events, &handlers);
        }
    }

    /// Adds a run of events that each of these handlers takes.
    fn run(&mut self, stream: StreamId, source: SourceId, events: Timed, handlers: &[usize]) {
        if events.tids.is_empty() || handlers.is_empty() {
            return;
        }
        let run = self.epoch.runs.len() as u32;
        let Timed { tids: offsets, times, batch } = events;
        let is_buffered = source != EVENTS;
        for handler in handlers {
            let lane = self.epoch.lanes.len() as u32;
            self.epoch.lanes.push(Lane { run, handler: *handler as u32 });
            // Buffered events come before all others.
            let place = |tid: u64| if is_buffered { 0 } else { tid };
            let entry =
                |(row, tid): (u32, &u64)| (place(*tid), *handler as u32, Ranked { lane, row });
            self.entries.extend((0..).zip(&offsets).map(entry));
        }
        self.epoch.runs.push(Run { stream, source, batch, offsets, times, admitted: None });
    }

    /// Adds the buffered events of a stream, which all stand at one time.
    fn add_buffered(&mut self, stream: StreamId, tid: u64, time_us: i64, events: &[Row]) {
        let program = &self.of.program;
        let schema = program.streams[stream.index()].spec.schema.clone();
        let batch = Batch::from_rows(schema, events.iter().map(|row| &row[..]));
        let tids = (0..events.len() as u64).map(|nth| (tid << BUFFERED_BITS) + nth).collect();
        let events = Timed { tids, times: vec![time_us; batch.len()], batch };
        let handlers: Vec<usize> = program.handlers_on(stream).collect();
        self.run(stream, buffered(stream), events, &handlers);
    }

    /// Adds the whole batches of all streams, and buffers other events.
    pub fn batches(&mut self, tables: &[Table]) {
        for (stream, events) in std::mem::take(&mut self.batched) {
            self.batch(stream, events, tables);
        }
    }

    fn batch(&mut self, stream: StreamId, parts: Vec<Timed>, tables: &[Table]) {
        let (program, open, now_us) = (&self.of.program, &self.of.open, self.moment.0);
        let (count, since_us) = open.count_in(program, stream, tables).unwrap_or((0, now_us));
        let mut events: Vec<(u64, usize, u32)> = Vec::new();
        for (part, of) in parts.iter().enumerate() {
            events.extend((0..).zip(&of.tids).map(|(row, tid)| (*tid, part, row)));
        }
        events.sort_by_key(|(tid, ..)| *tid);
        let ends: Vec<usize> = match program.streams[stream.index()].batch {
            Some(Batching::Count(of)) => {
                let of = usize::try_from(of).unwrap_or(usize::MAX).max(1);
                let before = count as usize % of;
                (0..events.len()).filter(|nth| (before + nth + 1).is_multiple_of(of)).collect()
            }
            Some(Batching::TimeUs(_)) if self.of.is_by_event_time(stream) => {
                let ends = |nth: &usize| self.ends.contains(&(stream, events[*nth].0));
                (0..events.len()).filter(ends).collect()
            }
            // Later events of the epoch have the same clock, so only the first can end a batch.
            Some(Batching::TimeUs(us)) => {
                let is_due = count > 0 && now_us.saturating_sub(since_us) >= us;
                (0..usize::from(is_due && !events.is_empty())).collect()
            }
            None => (0..events.len()).collect(),
        };
        let whole = ends.last().map_or(0, |last| last + 1);
        let closes = |nth: &usize| (stream, EVENTS, events[*nth].0);
        self.epoch.closings.extend(ends.iter().map(closes));
        let row = |(_, part, row): &(u64, usize, u32)| parts[*part].batch.row(*row as usize);
        let left: Vec<Row> = events[whole..].iter().map(row).collect();
        let (removed, from) = match whole {
            0 => (0, count),
            _ => (count, 0),
        };
        let since_us = if from > 0 { since_us } else { now_us };
        if whole > 0 && count > 0 {
            let before = open.events_in(program, stream, count, tables);
            // No window slides before them, because that happened when they arrived.
            self.add_buffered(stream, events[0].0, i64::MIN, &before);
        }
        // Where each part's whole batches end.
        let mut rows = vec![0; parts.len()];
        events[..whole].iter().for_each(|(_, part, _)| rows[*part] += 1);
        let handlers: Vec<usize> = program.handlers_on(stream).collect();
        for (mut part, rows) in parts.into_iter().zip(rows) {
            part.tids.truncate(rows);
            part.times.truncate(rows);
            part.batch = part.batch.slice(0, rows);
            self.run(stream, EVENTS, part, &handlers);
        }
        self.buffered.push((stream, (removed, from), left, since_us));
    }

    /// Adds the buffered events of a stream as a batch that stands at a time, if there are any, and
    /// if they are due.
    pub fn rest(
        &mut self,
        stream: StreamId,
        tid: u64,
        time_us: i64,
        is_due: impl Fn(i64) -> bool,
        tables: &[Table],
    ) {
        let (program, open) = (&self.of.program, &self.of.open);
        let Some((count, _)) = open
            .count_in(program, stream, tables)
            .filter(|(count, since_us)| *count > 0 && is_due(*since_us))
        else {
            return;
        };
        let events = open.events_in(program, stream, count, tables);
        self.add_buffered(stream, tid, time_us, &events);
        let last = (tid << BUFFERED_BITS) + count as u64 - 1;
        self.epoch.closings.insert((stream, buffered(stream), last));
        self.buffered.push((stream, (count, 0), Vec::new(), self.moment.0));
    }

    /// Slides the windows of a stream's group up to a limit after the events.
    pub fn slide(&mut self, stream: StreamId, until: Until) {
        let groups = &self.of.groups;
        self.epoch.slides = vec![Until::Time(i64::MIN); groups.len];
        self.epoch.slides[groups.of[stream.index()]] = until;
    }

    /// Puts the transactions in order.
    pub fn rank(&mut self) {
        // The events of each run are in order, which this sort makes use of.
        self.entries.sort_by_key(|(tid, handler, _)| (*tid, *handler));
        self.epoch.order = self.entries.iter().map(|(.., ranked)| *ranked).collect();
    }
}

impl SoleTakers {
    /// Returns the stream of the events, if there is one.
    fn stream(self, program: &Program) -> Option<StreamId> {
        match self {
            SoleTakers::Handler(handler) => program.handlers.get(handler).map(|of| of.input),
            SoleTakers::Round(stream) => (stream.index() < program.streams.len()).then_some(stream),
        }
    }

    fn wrong(self, what: &str) -> Error {
        Error::internal(format!("events for {self:?}: {what}"))
    }
}

impl Timed {
    /// Returns the events at these rows, or with these columns instead of their own.
    fn take(&self, rows: &[u32], columns: Option<Batch>) -> Timed {
        let tids = rows.iter().map(|row| self.tids[*row as usize]).collect();
        let times = rows.iter().map(|row| self.times[*row as usize]).collect();
        let batch = columns.unwrap_or_else(|| self.batch.take(rows));
        Timed { tids, times, batch }
    }

    /// Applies a stage. Adds the places of events that it can't compute to `failed`.
    pub(super) fn view(&self, stage: &ColumnStage, failed: &mut Vec<u64>) -> Timed {
        let Some(applied) = stage.apply(&self.batch) else {
            // Its columns would be too large.
            let (mut kept, mut rows) = (Vec::new(), Vec::new());
            for (nth, event) in (0..).zip(self.batch.rows()) {
                match stage.stage().apply(stage.schema(), &event) {
                    Ok(Some(row)) => {
                        kept.push(nth);
                        rows.push(row);
                    }
                    Ok(None) => {}
                    Err(_) => failed.push(self.tids[nth as usize]),
                }
            }
            let rows = rows.iter().map(|row| &row[..]);
            let batch = Batch::from_rows(stage.schema().clone(), rows);
            return self.take(&kept, Some(batch));
        };
        failed.extend(applied.failed.iter().map(|row| self.tids[*row]));
        let made = applied.mapped.as_ref().unwrap_or(&self.batch);
        let fits = |made: Batch| {
            made.with_schema(stage.schema()).expect("a stage gives the columns of its stream")
        };
        if applied.keep.false_count() == 0 {
            return Timed { batch: fits(made.clone()), ..self.clone() };
        }
        let rows: Vec<u32> = applied.keep.values().set_indices().map(|row| row as u32).collect();
        self.take(&rows, Some(fits(made.take(&rows))))
    }
}

/// Whether all columns of a stream are words that are never null. Its events are short.
pub(super) fn has_words(program: &Program, stream: StreamId) -> bool {
    let columns = &program.streams[stream.index()].spec.schema.columns;
    columns.iter().all(|column| column.ty.is_word() && !column.nullable)
}

/// Events that wait for their segment.
pub(super) struct Ahead {
    events: SoleEvents,
    /// The number of those that have been taken.
    taken: usize,
}

impl Ahead {
    pub fn of(events: SoleEvents) -> Ahead {
        Ahead { events, taken: 0 }
    }

    /// Takes the events before a place.
    fn before(&mut self, until: u64) -> Option<SoleEvents> {
        let SoleEvents { takers, tids, batch } = &self.events;
        let from = self.taken;
        self.taken += tids[from..].partition_point(|tid| *tid < until);
        let tids = &tids[from..self.taken];
        let batch = || batch.slice(from, tids.len());
        (!tids.is_empty()).then(|| SoleEvents {
            takers: *takers,
            tids: tids.to_vec(),
            batch: batch(),
        })
    }
}

/// Takes the events before a place.
pub(super) fn take_before(events: &mut [Ahead], until: u64) -> Vec<SoleEvents> {
    events.iter_mut().filter_map(|of| of.before(until)).collect()
}
