//! A program as a sole owner of all rows executes it.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidemill_core::{Batch, Position, Result, StreamId, StreamTime};

use super::segment::Timed;
use super::OpenBatches;
use crate::order::Groups;
use crate::program::{ColumnStage, Origin, Program};

/// A program whose epochs a sole owner of all rows executes.
#[derive(Debug)]
pub struct SoleProgram {
    pub(super) program: Arc<Program>,
    /// Incomplete batches.
    pub(super) open: OpenBatches,
    /// Streams whose input events are also outputs.
    passed_on: BTreeSet<StreamId>,
    /// The stream of windows that have slid without their triggers: the window, its end, and the
    /// reason.
    pub(super) aborted_slides: Option<StreamId>,
    pub(super) groups: Groups,
    /// How the events of derived streams are computed, by stream.
    stages: Vec<Option<ColumnStage>>,
}

/// The events of an input stream on it or on a stream that is derived from it.
pub(super) type View = (StreamId, Timed);

impl SoleProgram {
    /// The tables of incomplete batches.
    pub fn open_batches(&self) -> &OpenBatches {
        &self.open
    }

    /// Prepares a program. `open` has the tables of incomplete batches. The input events of
    /// `passed_on` streams are outputs, too. Slides whose triggers abort are reported on the stream
    /// `aborted_slides`.
    ///
    /// # Errors
    /// If streams have no common time, or an expression of the program has no type. A checked program
    /// has neither.
    pub fn new(
        program: Arc<Program>,
        open: OpenBatches,
        passed_on: BTreeSet<StreamId>,
        aborted_slides: Option<StreamId>,
    ) -> Result<SoleProgram> {
        let schema = |stream: StreamId| &program.streams[stream.index()].spec.schema;
        let stage = |number: usize| match &program.streams[number].origin {
            Origin::Derived { from, stage } => {
                let to = schema(StreamId(number as u16)).clone();
                ColumnStage::new(stage, schema(*from), to).map(Some)
            }
            _ => Ok(None),
        };
        let stages = (0..program.streams.len()).map(stage).collect::<Result<_>>()?;
        let groups = Groups::of(&program)?;
        Ok(SoleProgram { program, open, passed_on, aborted_slides, groups, stages })
    }

    /// Whether a handler is a part of more than a transaction with its own steps.
    pub fn triggers_more(program: &Program, number: usize) -> bool {
        let handler = &program.handlers[number];
        handler.is_procedure()
            || program.streams[handler.input.index()].origin != Origin::Input
            || program.windows.iter().any(|window| window.owner.index() == number)
            || !program.triggers_of(number).is_empty()
            || program.emits(number).iter().any(|of| program.handlers_on(*of).next().is_some())
            || program.handlers_on(handler.aborted).next().is_some()
    }

    /// Returns the program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Whether the events of an input stream, or of a stream derived from it, are outputs.
    pub fn is_passed_on(&self, input: StreamId) -> bool {
        self.passed_on.iter().any(|stream| self.program.root_stream(*stream) == input)
    }

    /// Whether the events of a stream itself are outputs.
    pub(super) fn is_passed(&self, stream: StreamId) -> bool {
        self.passed_on.contains(&stream)
    }

    /// Returns the handler that takes each event of an input stream, if it is the only one, takes
    /// nothing else, and no other part needs the event itself or its aborts. The sender then gets the
    /// reason of an abort.
    pub fn only(&self, input: StreamId) -> Option<usize> {
        let program = &self.program;
        let mut takers = program.takers(input);
        let (taker, stream) = takers.next()?;
        let aborted = program.handlers[taker].aborted;
        let is_only = takers.next().is_none() && program.handlers_on(aborted).next().is_none();
        // An abort of a procedure is also that of the other events that it takes.
        let mut nested = program.nested.iter().flat_map(|nested| &nested.procedures);
        let takes_more = !program.handlers[taker].more.is_empty()
            || nested.any(|procedure| procedure.index() == taker);
        let is_only = is_only && !takes_more;
        let is_batched = program.streams[stream.index()].batch.is_some();
        (is_only && stream == input && !is_batched && !self.is_passed_on(input)).then_some(taker)
    }

    /// Returns the time at which an event of a stream stands. That is its own time, or the watermark
    /// at the previous cut, if it is late or has none. It is the clock where no stream that shares a
    /// table has event time.
    pub(super) fn stands(
        &self,
        stream: StreamId,
        time_us: Option<i64>,
        (now_us, marks_us): (i64, &[(StreamId, i64)]),
    ) -> i64 {
        match self.mark_us(self.groups.of[stream.index()], marks_us) {
            None => now_us,
            Some(mark_us) => time_us.map_or(mark_us, |time_us| time_us.max(mark_us)),
        }
    }

    /// Returns the watermark of a group of streams, if it has event time.
    fn mark_us(&self, group: usize, marks_us: &[(StreamId, i64)]) -> Option<i64> {
        let is_of = |(stream, _): &&(StreamId, i64)| self.groups.of[stream.index()] == group;
        marks_us.iter().find(is_of).map(|(_, mark_us)| *mark_us)
    }

    /// Returns, by table, the time before which nothing can be read or written any more.
    pub(super) fn frontiers_us(&self, now_us: i64, marks_us: &[(StreamId, i64)]) -> Vec<i64> {
        let at = |group: &usize| Position {
            time_us: self.mark_us(*group, marks_us).unwrap_or(i64::MIN),
            ..Position::MIN
        };
        let watermarks: Vec<Position> = self.groups.of.iter().map(at).collect();
        self.groups.frontiers_us(&watermarks, now_us)
    }

    /// Whether batches of a stream are intervals of event time.
    pub(super) fn is_by_event_time(&self, stream: StreamId) -> bool {
        let root = self.program.root_stream(stream);
        self.program.streams[root.index()].spec.time != StreamTime::Arrival
    }

    /// Returns the events of all streams that are derived from an input stream, each with the place
    /// of the input event. Also returns the places of events that a stream's map or filter can't
    /// compute. They do not reach that stream.
    pub(super) fn views(&self, input: StreamId, events: &Timed) -> (Vec<View>, Vec<u64>) {
        let (mut views, mut failed): (Vec<View>, Vec<u64>) = (Vec::new(), Vec::new());
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
            let view = before.view(stage, &mut failed);
            views.push((StreamId(number as u16), view));
        }
        (views, failed)
    }

    /// Returns the events of an input stream that do not reach all derived streams, because a map or
    /// filter can't compute: their rows, ascending.
    pub fn failed_rows(&self, input: StreamId, batch: &Batch) -> Vec<usize> {
        let (tids, times) = ((0..batch.len() as u64).collect(), vec![0; batch.len()]);
        let (_, failed) = self.views(input, &Timed { tids, times, batch: batch.clone() });
        let failed: BTreeSet<usize> = failed.into_iter().map(|row| row as usize).collect();
        failed.into_iter().collect()
    }
}
