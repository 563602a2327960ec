//! Epochs at a node that owns all rows, with everything that events and calls trigger.
//!
//! Such a node executes an epoch as one process does: the executor of epochs runs handlers,
//! procedures, triggers, windows and cascades, on tables with versions. Four things differ:
//!
//! - The place of an event is its number in the order of all nodes, and not its source and row.
//! - `map` and `filter` run here, because events arrive as they were read.
//! - Events of incomplete batches are [rows](OpenBatches) between epochs.
//! - A clock that looks for due batches and windows is work with a place in the order, and so is the
//!   end of a source.
//!
//! | file | content |
//! | --- | --- |
//! | `program` | the program, and what derives from it |
//! | `segment` | events and calls as an epoch for the executor |
//! | `open_batches` | the events of incomplete batches, as rows |
//! | `outcome` | outputs and results |

mod open_batches;
mod outcome;
mod program;
mod segment;

use std::sync::Arc;

use tidemill_core::{Batch, Result, Row, StreamId, Value};
use tidemill_table::{Seq, Table};

pub use self::open_batches::OpenBatches;
pub use self::outcome::SoleOutcome;
pub use self::program::SoleProgram;
use self::segment::{take_before, Ahead, Moment, Segment, EVENTS};
use super::{ColumnOutput, ABORTED};
use crate::execute::{questions, Executor, Overdue};
use crate::pool::Pool;
use crate::program::{Abort, Answers, Asker, EventLimit, QuestionId, Until};
use crate::schedule::Strategy;

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

/// The events of an epoch, which are taken from the first place on.
pub struct SoleAhead(Vec<Ahead>);

impl SoleAhead {
    /// Creates it from all events.
    pub fn new(events: Vec<SoleEvents>) -> SoleAhead {
        SoleAhead(events.into_iter().map(Ahead::of).collect())
    }
}

/// The handlers that take events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SoleTakers {
    /// A handler.
    Handler(usize),
    /// All handlers of an input stream. An event and all that it triggers is one place.
    Round(StreamId),
}

/// Work that is a place in the order by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum SoleWork {
    /// A call of a handler. The result is the first value that it returns.
    Call {
        /// The handler.
        handler: usize,
        /// The values of its stream's columns.
        row: Row,
    },
    /// An event of an input stream.
    Event {
        /// The stream.
        stream: StreamId,
        /// The event.
        row: Row,
        /// The time at which it stands, if that is not its own.
        stands_us: Option<i64>,
        /// The streams whose intervals end with it.
        ends: Arc<[StreamId]>,
    },
    /// Events that only leave. Each fits the columns of its stream, and there is one for each stream.
    Emit(Vec<(StreamId, Row)>),
    /// A look whether the buffered events of a stream in batches by arrival time are due.
    Due(StreamId),
    /// The end of a source of a stream in batches. The last of `sources` ends the last batch.
    Last {
        /// The stream.
        stream: StreamId,
        /// The number of its sources.
        sources: i64,
        /// The time of its newest event, if it has one.
        time_us: Option<i64>,
    },
    /// A look whether windows by time are due, of the handlers that take a stream or others of its
    /// group.
    Slide(StreamId),
    /// The end of a source of such a group of streams. The last of `sources` ends its windows.
    LastSlide {
        /// A stream that stands for the group.
        stream: StreamId,
        /// The input stream that ends.
        input: StreamId,
        /// The number of the group's sources.
        sources: i64,
        /// The time of the newest event of the input stream, if it has one.
        time_us: Option<i64>,
    },
}

impl SoleWork {
    /// Whether it has an epoch of its own for the executor.
    fn is_alone(&self) -> bool {
        !matches!(self, SoleWork::Call { .. } | SoleWork::Event { .. } | SoleWork::Emit(_))
    }
}

/// The conditions of an epoch.
#[derive(Clone, Debug, Default)]
pub struct SoleTerms {
    /// The clock of its cut, in microseconds since 1970.
    pub now_us: i64,
    /// The watermark of each stream in event time at the cut before.
    pub marks_us: Arc<[(StreamId, i64)]>,
    /// The functions that a clock has ended in an earlier execution.
    pub overdue: Vec<Overdue>,
    /// Whether a clock may end others.
    pub has_deadlines: bool,
    /// The answers from outside. Those of an earlier execution are known.
    pub answers: Arc<Answers>,
}

/// The executor of such epochs.
pub struct SoleOwner {
    of: Arc<SoleProgram>,
    executor: Executor,
    limit: EventLimit,
}

impl SoleOwner {
    /// Creates the executor. No larger event leaves than the limit says.
    pub fn new(
        of: Arc<SoleProgram>,
        (strategy, rerun_every): (Strategy, u64),
        limit: EventLimit,
    ) -> SoleOwner {
        let mut program = (*of.program).clone();
        program.event_limit = Some(limit.clone());
        SoleOwner { of, executor: Executor::new(program.into(), strategy, rerun_every), limit }
    }

    /// Executes the events of an epoch before a place, which are taken, and work, in the order of
    /// places. `after` is the number of the last version.
    ///
    /// # Errors
    /// If the events do not fit the program. The epoch can't be executed then.
    pub fn run(
        &mut self,
        pool: &dyn Pool,
        (tables, after): (&mut [Table], Seq),
        (events, until): (&mut SoleAhead, u64),
        work: Vec<(u64, SoleWork)>,
        terms: &SoleTerms,
    ) -> Result<SoleOutcome> {
        let mut all = SoleOutcome { seq: after, ..SoleOutcome::default() };
        let of = self.of.clone();
        let moment: Moment<'_> = (terms.now_us, &terms.marks_us);
        let mut work = work.into_iter().peekable();
        loop {
            let mut together = Vec::new();
            while let Some(one) = work.next_if(|(_, work)| !work.is_alone()) {
                together.push(one);
            }
            let alone = work.next();
            let until = alone.as_ref().map_or(until, |(tid, _)| *tid);
            let events = take_before(&mut events.0, until);
            if !events.is_empty() || !together.is_empty() {
                let limit = self.limit.clone();
                let mut segment = Segment::new(&of, moment, &limit);
                segment.add_work(together)?;
                events.into_iter().try_for_each(|events| segment.add(events))?;
                segment.batches(tables);
                let done = self.execute(pool, (tables, all.seq), segment, None, terms)?;
                all.add(done);
            }
            let Some((tid, work)) = alone else { return Ok(all) };
            let done = self.alone(pool, (tables, all.seq), (tid, work), terms)?;
            all.add(done);
        }
    }

    /// Returns the questions to the outside that functions would ask first, if each took its event or
    /// call on the rows as they are now. It changes nothing. Other questions are asked in
    /// [`SoleOwner::run`].
    ///
    /// # Errors
    /// If the events do not fit the program.
    pub fn questions(
        &self,
        tables: &[Table],
        events: &[SoleEvents],
        work: &[(u64, SoleWork)],
        terms: &SoleTerms,
    ) -> Result<Vec<(u64, QuestionId, Asker)>> {
        let mut segment = Segment::new(&self.of, (terms.now_us, &terms.marks_us), &self.limit);
        let together = work.iter().filter(|(_, work)| !work.is_alone());
        segment.add_work(together.cloned().collect())?;
        events.iter().try_for_each(|events| segment.add(events.clone()))?;
        segment.rank();
        let mut epoch = segment.epoch;
        epoch.answers = terms.answers.clone();
        // The row of an event is its place in the order of all nodes.
        let all = (usize::MAX, usize::MAX);
        let found = questions(&self.of.program, tables, &mut epoch, all).into_iter();
        Ok(found.map(|of| (of.event.1, of.asked, of.ask)).collect())
    }

    /// Executes work by itself.
    fn alone(
        &mut self,
        pool: &dyn Pool,
        (tables, after): (&mut [Table], Seq),
        (tid, work): (u64, SoleWork),
        terms: &SoleTerms,
    ) -> Result<SoleOutcome> {
        let (of, limit) = (self.of.clone(), self.limit.clone());
        let moment: Moment<'_> = (terms.now_us, &terms.marks_us);
        let mut segment = Segment::new(&of, moment, &limit);
        let stands = |stream, time_us| of.stands(stream, time_us, moment);
        let next = (&mut *tables, after + 1);
        match work {
            SoleWork::Due(stream) => {
                let us = of.program.batch_by_arrival(stream).unwrap_or(i64::MAX);
                let is_due = |since_us: i64| terms.now_us.saturating_sub(since_us) >= us;
                segment.rest(stream, tid, stands(stream, None), is_due, tables);
            }
            SoleWork::Last { stream, sources, time_us } => {
                if of.open.ends(&of.program, (stream, sources), next) {
                    segment.rest(stream, tid, stands(stream, time_us), |_| true, tables);
                }
            }
            SoleWork::Slide(stream) => segment.slide(stream, Until::Time(stands(stream, None))),
            SoleWork::LastSlide { stream, input, sources, time_us } => {
                if of.open.ends_windows(&of.program, (stream, sources), next) {
                    segment.slide(stream, Until::End(stands(input, time_us)));
                }
            }
            SoleWork::Call { .. } | SoleWork::Event { .. } | SoleWork::Emit(_) => {
                unreachable!("it is executed with others")
            }
        }
        segment.outcome.results.insert(tid, Ok(Value::Null));
        self.execute(pool, (tables, after + 1), segment, Some(tid), terms)
    }

    /// Executes a segment. Outputs without an event after them have the place `alone`.
    fn execute(
        &mut self,
        pool: &dyn Pool,
        (tables, after): (&mut [Table], Seq),
        mut segment: Segment<'_>,
        alone: Option<u64>,
        terms: &SoleTerms,
    ) -> Result<SoleOutcome> {
        let of = self.of.clone();
        segment.rank();
        let Segment { mut epoch, mut outcome, buffered, aborts, values, .. } = segment;
        let before = outcome.refusals();
        epoch.ignores_deadlines = !terms.has_deadlines;
        epoch.answers = terms.answers.clone();
        self.executor.obey(terms.overdue.clone());
        self.executor.skip_to(after);
        let done = self.executor.run(pool, tables, &epoch)?;
        outcome.seq = done.seq + 1;
        for (stream, places, events, since_us) in buffered {
            let to = (&mut *tables, outcome.seq);
            of.open.change_in(&of.program, stream, places, (&events, since_us), to);
        }
        // The place of an event. Where a window slides before a buffered one, it is that of the next.
        let tid_from = |root: usize| {
            let place = |ranked| match epoch.event(ranked) {
                (EVENTS, tid) => Some(tid),
                _ => None,
            };
            let found = epoch.order[root..].iter().find_map(|ranked| place(*ranked));
            found.or(alone).expect("windows slide before events")
        };
        let streams = of.program.streams.len() as u64;
        for output in done.outputs {
            let (aborts, values) =
                (aborts.contains(&output.stream), values.contains(&output.stream));
            let (mut tids, mut ordinals) = (Vec::new(), Vec::new());
            let mut nth = 0;
            for row in 0..output.batch.len() {
                let tid = tid_from(output.origins.root_or_next(row, &done.derived));
                nth = if tids.last() == Some(&tid) { nth + 1 } else { 0 };
                tids.push(tid);
                let ordinal = nth * streams + u64::from(output.stream.0);
                ordinals.push(match aborts || values {
                    true => ABORTED,
                    false => u32::try_from(ordinal).expect("an event has fewer outputs"),
                });
                let Some(result) = outcome.results.get_mut(&tid) else { continue };
                if aborts {
                    let last = output.batch.schema().len() - 1;
                    if let Value::Str(why) = output.batch.value(last, row) {
                        *result = Err(Abort::refused(&*why));
                    }
                } else if values {
                    *result = Ok(output.batch.value(0, row));
                }
            }
            let (stream, batch) = (output.stream, output.batch);
            let output = ColumnOutput { stream, tids, ordinals, batch };
            outcome.add_within(&of.program, output, &self.limit);
        }
        outcome.add_slides(&of, done.aborted_slides, tid_from);
        outcome.transactions = done.counts.iter().map(|of| of.committed + of.aborted).sum();
        outcome.committed = done.counts.iter().map(|of| of.committed).sum();
        for fault in done.faults {
            let own = (fault.event.0 == EVENTS && fault.is_direct).then_some(fault.event.1);
            let is_result = aborts.contains(&of.program.handlers[fault.handler].aborted);
            match own.filter(|_| is_result).and_then(|tid| outcome.results.get_mut(&tid)) {
                Some(result) => *result = Err(fault.abort),
                None => {
                    let place = Some(fault.event).filter(|(source, _)| *source == EVENTS);
                    let tid = place.map_or(alone.unwrap_or(0), |(_, tid)| tid);
                    outcome.faults.push((tid, fault.handler, fault.abort));
                }
            }
        }
        // Those that are results, or refused as a whole, are counted there.
        let (refused, failed) = outcome.refusals();
        let failures = done.counts.iter().map(|of| of.faults).sum::<u64>();
        let aborted = outcome.transactions - outcome.committed - failures;
        outcome.aborted = aborted.saturating_sub(refused - before.0);
        outcome.failed = failures.saturating_sub(failed - before.1);
        outcome.overdue = done.overdue;
        outcome.unstable = done.unstable.into_iter().map(|unstable| unstable.handler).collect();
        Ok(outcome)
    }

    /// Sets how far back versions are needed after an epoch.
    pub fn end(&self, tables: &mut [Table], terms: &SoleTerms) {
        let frontiers_us = self.of.frontiers_us(terms.now_us, &terms.marks_us);
        for (table, frontier_us) in tables.iter_mut().zip(frontiers_us) {
            table.frontier(frontier_us);
        }
    }
}
