//! Epochs of events at a node that owns all rows, with everything that the events trigger.
//!
//! Such a node executes an epoch as one process does: events come by column, and the executor of
//! epochs runs their handlers, procedures, triggers and cascades. Three things differ:
//!
//! - The place of an event is its number in the order of all nodes, and not its source and row.
//! - `map` and `filter` run here, because events arrive as they were read.
//! - Events of incomplete batches are [rows](OpenBatches). So they survive whatever rows survive,
//!   and events that come as calls find them, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Batch, Error, Result, Row, SourceId, StreamId, StreamTime, Value};
use tidemill_table::{Seq, Table};

use super::{ColumnOutput, RemoteRounds, ABORTED};
use crate::execute::{AbortedSlide, Executor, Overdue};
use crate::order::{Epoch, Lane, Ranked, Run};
use crate::pool::Pool;
use crate::program::reasons::{shortened, REASON_BYTES_MAX};
use crate::program::{
    Abort, Answers, Batching, Body, ColumnStage, EventLimit, Handler, Origin, Program,
};
use crate::schedule::Strategy;

/// The source of all events, and that of events that were buffered before.
const EVENTS: SourceId = SourceId(0);
const BUFFERED: SourceId = SourceId(1);

/// A program whose events a sole owner of all rows executes by column.
pub struct SoleProgram {
    program: Arc<Program>,
    rounds: Arc<RemoteRounds>,
    /// How the events of derived streams are computed, by stream.
    stages: Vec<Option<ColumnStage>>,
}

/// Events of a stream, each with its place.
#[derive(Clone, Debug)]
pub struct SoleEvents {
    /// The handlers that take them.
    pub takers: SoleTakers,
    /// The places of the events, ascending.
    pub tids: Vec<u64>,
    /// The events.
    pub batch: Batch,
}

/// The handlers that take events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SoleTakers {
    /// A handler, whose transactions have places of their own.
    Handler(usize),
    /// All handlers of an input stream. An event and all that it triggers is one place.
    Round(StreamId),
}

/// The outcome of an epoch.
#[derive(Debug, Default)]
pub struct SoleOutcome {
    /// The outputs, by stream.
    pub outputs: Vec<ColumnOutput>,
    /// The events that a `map` or `filter` can't compute: the place, the input stream, and why.
    pub refused: Vec<(u64, StreamId, Abort)>,
    /// Transactions whose functions failed: the handler and the abort.
    pub faults: Vec<(usize, Abort)>,
    /// Functions that a clock has ended.
    pub overdue: Vec<Overdue>,
    /// The number of transactions.
    pub transactions: u64,
    /// The number of the last version.
    pub seq: Seq,
}

/// The conditions of an epoch, beside its events.
pub struct SoleTerms {
    /// The clock of its cut, in microseconds since 1970.
    pub now_us: i64,
    /// The functions that a clock has ended in an earlier execution.
    pub overdue: Vec<Overdue>,
    /// Whether a clock may end others.
    pub has_deadlines: bool,
    /// The answers from outside. Those of an earlier execution are known.
    pub answers: Arc<Answers>,
}

impl SoleProgram {
    /// Prepares a program with its rounds.
    ///
    /// # Errors
    /// If an expression of the program has no type. A checked program has none.
    pub fn new(program: Arc<Program>, rounds: Arc<RemoteRounds>) -> Result<SoleProgram> {
        let schema = |stream: StreamId| &program.streams[stream.index()].spec.schema;
        let stage = |number: usize| match &program.streams[number].origin {
            Origin::Derived { from, stage } => {
                let to = schema(StreamId(number as u16)).clone();
                ColumnStage::new(stage, schema(*from), to).map(Some)
            }
            _ => Ok(None),
        };
        let stages = (0..program.streams.len()).map(stage).collect::<Result<_>>()?;
        Ok(SoleProgram { program, rounds, stages })
    }

    /// Whether one owner of all rows suits a program: its work is declared, or is that of
    /// procedures, which run one after the other anyway. Functions are left out, because nodes
    /// share their work.
    pub fn suits(program: &Program) -> bool {
        let is_shared = |handler: &Handler| {
            matches!(handler.body, Body::Opaque(_) | Body::Native(_)) && !handler.is_procedure()
        };
        !program.handlers.iter().any(is_shared)
            && program.tables.iter().all(|table| table.history.is_none())
    }
}

/// The executor of such epochs.
pub struct SoleOwner {
    of: Arc<SoleProgram>,
    executor: Executor,
    limit: EventLimit,
}

/// A transaction of an epoch that is being prepared: the place of its event, its handler, and the
/// lane and row of the event.
type Entry = (u64, u32, Ranked);

/// An epoch that is being prepared.
#[derive(Default)]
struct Preparing {
    epoch: Epoch,
    entries: Vec<Entry>,
    outcome: SoleOutcome,
    /// The events of streams in batches.
    batched: BTreeMap<StreamId, Vec<Timed>>,
    /// Streams of aborts that are the result of an event.
    results: Vec<StreamId>,
}

/// Events, each with its place and its time.
#[derive(Clone)]
struct Timed {
    tids: Vec<u64>,
    times: Vec<i64>,
    batch: Batch,
}

/// The events of an input stream on it or on a stream that is derived from it.
type View = (StreamId, Timed);

/// Changes of the buffered events of a stream: how many are removed, the number of the first new
/// one, the new ones, and the time since which the first one waits.
type Buffered = (StreamId, (i64, i64), Vec<Row>, i64);

impl SoleOwner {
    /// Creates the executor. No larger event leaves than the limit says.
    pub fn new(of: Arc<SoleProgram>, strategy: Strategy, limit: EventLimit) -> SoleOwner {
        let mut program = (*of.program).clone();
        program.event_limit = Some(limit.clone());
        SoleOwner { of, executor: Executor::new(program.into(), strategy, 0), limit }
    }

    /// Executes the events of an epoch. `after` is the number of the last version.
    ///
    /// # Errors
    /// If the events do not fit the program. Nothing has run then.
    pub fn run(
        &mut self,
        pool: &dyn Pool,
        (tables, after): (&mut [Table], Seq),
        events: Vec<SoleEvents>,
        SoleTerms { now_us, overdue, has_deadlines, answers }: SoleTerms,
    ) -> Result<SoleOutcome> {
        let of = self.of.clone();
        let mut preparing = Preparing::default();
        let Preparing { epoch, .. } = &mut preparing;
        (epoch.clock_us, epoch.ignores_deadlines, epoch.answers) =
            (now_us, !has_deadlines, answers);
        for events in events {
            preparing.add(&of, events, now_us, &self.limit)?;
        }
        let mut buffered = Vec::new();
        for (stream, events) in std::mem::take(&mut preparing.batched) {
            buffered.push(preparing.batch(&of, (stream, events), tables, now_us));
        }
        let Preparing { mut epoch, mut entries, mut outcome, results, .. } = preparing;
        // The events of each run are in order, which this sort makes use of.
        entries.sort_by_key(|(tid, handler, _)| (*tid, *handler));
        epoch.order = entries.iter().map(|(.., ranked)| *ranked).collect();
        self.executor.obey(overdue);
        self.executor.skip_to(after);
        let done = self.executor.run(pool, tables, &epoch)?;
        outcome.seq = done.seq + 1;
        for (stream, places, events, since_us) in buffered {
            let to = (&mut *tables, outcome.seq);
            of.rounds.open().change_in(&of.program, stream, places, (&events, since_us), to);
        }
        // The place of an event. Where a window slides before a buffered one, it is that of the next.
        let tid_from = |root: usize| {
            let place = |ranked: &Ranked| {
                let run = &epoch.runs[epoch.lanes[ranked.lane as usize].run as usize];
                (run.source == EVENTS).then(|| run.offsets[ranked.row as usize])
            };
            epoch.order[root..].iter().find_map(place).expect("windows slide before events")
        };
        let streams = of.program.streams.len() as u64;
        for output in done.outputs {
            let is_result = results.contains(&output.stream);
            let (mut tids, mut ordinals) = (Vec::new(), Vec::new());
            let mut nth = 0;
            for row in 0..output.batch.len() {
                let tid = tid_from(output.origins.root_or_next(row, &done.derived));
                nth = if tids.last() == Some(&tid) { nth + 1 } else { 0 };
                tids.push(tid);
                let ordinal = nth * streams + u64::from(output.stream.0);
                ordinals.push(match is_result {
                    true => ABORTED,
                    false => u32::try_from(ordinal).expect("an event has fewer outputs"),
                });
            }
            let (stream, batch) = (output.stream, output.batch);
            let output = ColumnOutput { stream, tids, ordinals, batch };
            outcome.add_within(&of.program, output, &self.limit);
        }
        outcome.add_slides(&of, done.aborted_slides, tid_from);
        outcome.transactions = done.counts.iter().map(|of| of.committed + of.aborted).sum();
        outcome.faults = done.faults.into_iter().map(|of| (of.handler, of.abort)).collect();
        outcome.overdue = done.overdue;
        Ok(outcome)
    }
}

impl Preparing {
    /// Adds events.
    fn add(
        &mut self,
        of: &SoleProgram,
        events: SoleEvents,
        now_us: i64,
        limit: &EventLimit,
    ) -> Result<()> {
        let SoleEvents { takers, tids, batch } = events;
        let program = &of.program;
        let wrong = |what: String| Error::internal(format!("events for {takers:?}: {what}"));
        let stream = match takers {
            SoleTakers::Handler(handler) => program.handlers.get(handler).map(|of| of.input),
            SoleTakers::Round(stream) => (stream.index() < program.streams.len()).then_some(stream),
        };
        let stream = stream.ok_or_else(|| wrong("there is no such taker".into()))?;
        let batch = batch.with_schema(&program.streams[stream.index()].spec.schema);
        let batch = batch.map_err(wrong)?;
        if tids.len() != batch.len() || !tids.is_sorted_by(|a, b| a < b) {
            return Err(wrong("their places do not rise, or are others".into()));
        }
        // The time of an event is not below the watermark at the cut before. That of an event without
        // a time of its own is the clock.
        let times = match program.streams[stream.index()].spec.time {
            StreamTime::Arrival => vec![now_us; tids.len()],
            StreamTime::Event { column } => {
                let times =
                    batch.ints(column).ok_or_else(|| wrong("their times are none".into()))?;
                times.to_vec()
            }
        };
        let events = Timed { tids, times, batch };
        match takers {
            SoleTakers::Handler(handler) => {
                self.results.push(program.handlers[handler].aborted);
                self.run(stream, events, &[handler]);
            }
            SoleTakers::Round(input) => self.round(of, input, events, limit),
        }
        Ok(())
    }

    /// Adds events of an input stream for all of its handlers.
    fn round(&mut self, of: &SoleProgram, input: StreamId, events: Timed, limit: &EventLimit) {
        let (program, rounds) = (&of.program, &of.rounds);
        let only = rounds.only(program, input);
        self.results.extend(only.map(|only| program.handlers[only].aborted));
        let (events, views) = match of.views(input, &events) {
            Ok(views) => (events, views),
            // Others than these have all views.
            Err(failed) => {
                let mut good = Vec::new();
                let mut failed = failed.into_iter().peekable();
                for (row, tid) in events.tids.iter().enumerate() {
                    match failed.next_if(|(of, _)| *of == row) {
                        Some((_, abort)) => self.outcome.refused.push((*tid, input, abort)),
                        None => good.push(row as u32),
                    }
                }
                let events = events.take(&good, None);
                let views = of.views(input, &events).expect("the others have all views");
                (events, views)
            }
        };
        let views: Vec<View> = [(input, events)].into_iter().chain(views).collect();
        // Events that leave as they are have a limit, too.
        let mut long: BTreeMap<u64, Abort> = BTreeMap::new();
        for (stream, events) in views.iter().filter(|(stream, _)| rounds.is_passed(*stream)) {
            if !has_words(program, *stream) {
                let refused = |(tid, row): (&u64, Row)| Some((*tid, limit.refuses(&row)?));
                long.extend(events.tids.iter().zip(events.batch.rows()).filter_map(refused));
            }
        }
        if !long.is_empty() {
            let (_, events) = &views[0];
            let is_good = |(_, tid): &(u32, &u64)| !long.contains_key(tid);
            let good: Vec<u32> = (0..).zip(&events.tids).filter(is_good).map(|of| of.0).collect();
            let events = events.take(&good, None);
            self.outcome.refused.extend(long.into_iter().map(|(tid, why)| (tid, input, why)));
            return self.round(of, input, events, limit);
        }
        for (stream, events) in views {
            if rounds.is_passed(stream) && !events.tids.is_empty() {
                let ordinals = vec![u32::from(stream.0); events.tids.len()];
                let (tids, batch) = (events.tids.clone(), events.batch.clone());
                self.outcome.outputs.push(ColumnOutput { stream, tids, ordinals, batch });
            }
            if rounds.open().has(stream) {
                self.batched.entry(stream).or_default().push(events);
                continue;
            }
            let handlers: Vec<usize> = program.handlers_on(stream).collect();
            self.run(stream, events, &handlers);
        }
    }

    /// Adds a run of events that each of these handlers takes.
    fn run(&mut self, stream: StreamId, events: Timed, handlers: &[usize]) {
        if events.tids.is_empty() || handlers.is_empty() {
            return;
        }
        let run = self.add_run(stream, EVENTS, events);
        for handler in handlers {
            let lane = self.add_lane(run, *handler);
            let tids = &self.epoch.runs[run as usize].offsets;
            let entry = |(row, tid): (u32, &u64)| (*tid, *handler as u32, Ranked { lane, row });
            self.entries.extend((0..).zip(tids).map(entry));
        }
    }

    fn add_run(&mut self, stream: StreamId, source: SourceId, events: Timed) -> u32 {
        let Timed { tids: offsets, times, batch } = events;
        self.epoch.runs.push(Run { stream, source, batch, offsets, times, admitted: None });
        self.epoch.runs.len() as u32 - 1
    }

    fn add_lane(&mut self, run: u32, handler: usize) -> u32 {
        self.epoch.lanes.push(Lane { run, handler: handler as u32 });
        self.epoch.lanes.len() as u32 - 1
    }

    /// Adds the whole batches of a stream. Returns the changes of its buffered events.
    fn batch(
        &mut self,
        of: &SoleProgram,
        (stream, parts): (StreamId, Vec<Timed>),
        tables: &[Table],
        now_us: i64,
    ) -> Buffered {
        let (program, open) = (&of.program, of.rounds.open());
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
        let handlers: Vec<usize> = program.handlers_on(stream).collect();
        let left =
            events[whole..].iter().map(|(_, part, row)| parts[*part].batch.row(*row as usize));
        let left: Vec<Row> = left.collect();
        let (removed, from) = match whole {
            0 => (0, count),
            _ => (count, 0),
        };
        let since_us = if from > 0 { since_us } else { now_us };
        if whole > 0 && count > 0 {
            let before = open.events_in(program, stream, count, tables);
            let schema = program.streams[stream.index()].spec.schema.clone();
            let batch = Batch::from_rows(schema, before.iter().map(|row| &row[..]));
            // No window slides before them, because that happened when they arrived.
            let times = vec![i64::MIN; batch.len()];
            let events = Timed { tids: (0..count as u64).collect(), times, batch };
            let run = self.add_run(stream, BUFFERED, events);
            for handler in &handlers {
                let lane = self.add_lane(run, *handler);
                let entry = |row: u32| (0, *handler as u32, Ranked { lane, row });
                self.entries.extend((0..count as u32).map(entry));
            }
        }
        // Where each part's whole batches end.
        let mut rows = vec![0; parts.len()];
        events[..whole].iter().for_each(|(_, part, _)| rows[*part] += 1);
        for (mut part, rows) in parts.into_iter().zip(rows) {
            part.tids.truncate(rows);
            part.times.truncate(rows);
            part.batch = part.batch.slice(0, rows);
            self.run(stream, part, &handlers);
        }
        (stream, (removed, from), left, since_us)
    }
}

impl SoleProgram {
    /// Returns the events of all streams that are derived from an input stream, each with the place
    /// of the input event.
    ///
    /// # Errors
    /// The rows for which a stream can't be computed, in order, and why.
    fn views(&self, input: StreamId, events: &Timed) -> Result<Vec<View>, Vec<(usize, Abort)>> {
        let mut views: Vec<View> = Vec::new();
        let mut failed = false;
        for (number, stage) in self.stages.iter().enumerate() {
            let Some(stage) = stage else { continue };
            let Origin::Derived { from, .. } = &self.program.streams[number].origin else {
                continue;
            };
            let before = match views.iter().find(|(on, _)| on == from) {
                Some((_, events)) => events,
                None if *from == input => events,
                None => continue,
            };
            let Some(view) = before.view(stage) else {
                failed = true;
                break;
            };
            views.push((StreamId(number as u16), view));
        }
        if !failed {
            return Ok(views);
        }
        let why =
            |(row, event): (usize, Row)| Some((row, self.program.views(input, &event).err()?));
        Err(events.batch.rows().enumerate().filter_map(why).collect())
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

    /// Applies a stage. Returns `None` if it can't be computed for a row.
    fn view(&self, stage: &ColumnStage) -> Option<Timed> {
        let Some(applied) = stage.apply(&self.batch) else {
            // Its columns would be too large.
            let (mut kept, mut rows) = (Vec::new(), Vec::new());
            for (nth, event) in (0..).zip(self.batch.rows()) {
                if let Some(row) = stage.stage().apply(stage.schema(), &event).ok()? {
                    kept.push(nth);
                    rows.push(row);
                }
            }
            let rows = rows.iter().map(|row| &row[..]);
            let batch = Batch::from_rows(stage.schema().clone(), rows);
            return Some(self.take(&kept, Some(batch)));
        };
        if !applied.failed.is_empty() {
            return None;
        }
        let made = applied.mapped.as_ref().unwrap_or(&self.batch);
        let made = made.with_schema(stage.schema()).ok()?;
        if applied.keep.false_count() == 0 {
            return Some(Timed { batch: made, ..self.clone() });
        }
        let rows: Vec<u32> = applied.keep.values().set_indices().map(|row| row as u32).collect();
        Some(self.take(&rows, Some(made.take(&rows))))
    }
}

/// Whether all columns of a stream are words that are never null. Its events are short.
fn has_words(program: &Program, stream: StreamId) -> bool {
    let columns = &program.streams[stream.index()].spec.schema.columns;
    columns.iter().all(|column| column.ty.is_word() && !column.nullable)
}

impl SoleOutcome {
    /// Adds an output. Reasons of aborts may have data that a client has sent, so long ones are cut
    /// off. If the event is too long even then, it does not leave, and is refused.
    fn add_within(&mut self, program: &Program, output: ColumnOutput, limit: &EventLimit) {
        let is_aborts = |of: &&Handler| of.inputs().any(|input| input.aborted == output.stream);
        let Some(handler) = program.handlers.iter().find(is_aborts) else {
            return self.outputs.push(output);
        };
        let reason = output.batch.schema().len() - 1;
        let is_long = |row: usize| match output.batch.value(reason, row) {
            Value::Str(why) => why.len() > REASON_BYTES_MAX,
            _ => false,
        };
        if has_words(program, handler.input) && !(0..output.batch.len()).any(is_long) {
            return self.outputs.push(output);
        }
        let ColumnOutput { stream, tids, ordinals, batch } = output;
        let mut kept = ColumnOutput { stream, tids: Vec::new(), ordinals: Vec::new(), batch };
        let mut rows: Vec<Row> = Vec::new();
        for ((tid, ordinal), mut row) in tids.into_iter().zip(ordinals).zip(kept.batch.rows()) {
            if let Some(Value::Str(why)) = row.last_mut() {
                *why = shortened(why.to_string()).as_str().into();
            }
            match limit.refuses(&row) {
                Some(why) => self.refused.push((tid, handler.input, why)),
                None => {
                    kept.tids.push(tid);
                    kept.ordinals.push(ordinal);
                    rows.push(row);
                }
            }
        }
        if !rows.is_empty() {
            let schema = kept.batch.schema().clone();
            kept.batch = Batch::from_rows(schema, rows.iter().map(|row| &row[..]));
            self.outputs.push(kept);
        }
    }

    /// Adds the windows that have slid without their triggers, with the place of the next event.
    fn add_slides(
        &mut self,
        of: &SoleProgram,
        slides: Vec<AbortedSlide>,
        tid_from: impl Fn(usize) -> u64,
    ) {
        let Some(stream) = of.rounds.aborted_slides().filter(|_| !slides.is_empty()) else {
            return;
        };
        let mut rows: Vec<[Value; 3]> = Vec::new();
        let (mut tids, mut ordinals) = (Vec::new(), Vec::new());
        for AbortedSlide { window, ends_us, abort, before } in slides {
            let name = Value::str(&of.program.windows[window.index()].name);
            rows.push([name, Value::Int(ends_us), Value::str(&abort.public_reason())]);
            let tid = tid_from(before);
            let nth = tids.iter().rev().take_while(|of| **of == tid).count();
            tids.push(tid);
            ordinals.push((nth * of.program.streams.len()) as u32 + u32::from(stream.0));
        }
        let schema = of.program.streams[stream.index()].spec.schema.clone();
        let batch = Batch::from_rows(schema, rows.iter().map(|row| &row[..]));
        self.outputs.push(ColumnOutput { stream, tids, ordinals, batch });
    }
}
