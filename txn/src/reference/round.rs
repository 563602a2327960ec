//! One event and all that it sets off, on rows that others hold: what `Machine` makes of an event, where there is one
//! event and not a table more than it needs. It is one place in the order: nobody sees anything between its
//! transactions, each of which commits or aborts by itself.

use std::collections::BTreeSet;

use tidemill_core::{Row, StreamId, TableId, Value};

use super::alone::When;
use super::kept::Kept;
use super::open::Open;
use super::rows::Rows;
use super::work::{Was, Work};
use crate::order::Groups;
use crate::program::inside::Transaction;
use crate::program::rounds::{Agenda, Emitted, Given, Turns};
use crate::program::{
    firing, reasons, Abort, AbortKind, Answers, Body, Handler, Origin, Program, Until, WindowId,
};

/// The rounds of a program.
#[derive(Debug)]
pub struct Rounds {
    turns: Turns,
    /// By handler: whether more than one transaction, or more than its own steps, may come of an event.
    are_needed: Vec<bool>,
    /// Batches that are not whole yet.
    open: Open,
    /// Versions of rows.
    kept: Kept,
    /// By stream: the windows that time ends before an event of it.
    timed: Vec<Vec<WindowId>>,
    /// Streams whose events are among those that are given, too, though nobody emits them.
    passed_on: BTreeSet<StreamId>,
    /// Where it is told which windows have slid without their triggers: the window, when it ended, and why.
    told: Option<StreamId>,
}

impl Rounds {
    /// Those of a program, where opaque functions call those of these handlers, batches wait there, versions are kept there,
    /// and somebody wants the events of these streams as they come in.
    ///
    /// # Errors
    /// When procedures wait for one another.
    pub fn of(
        program: &Program,
        called: &[usize],
        open: Open,
        kept: Kept,
        passed_on: BTreeSet<StreamId>,
    ) -> tidemill_core::Result<Rounds> {
        let turns = Turns::of(program)?;
        let feeds = |stream: &StreamId| program.handlers_on(*stream).next().is_some();
        let groups = Groups::of(program)?;
        let of_group = program.timed_windows(&groups);
        let timed: Vec<_> = groups.of.iter().map(|group| of_group[*group].clone()).collect();
        let is_needed = |number: usize| {
            let handler = &program.handlers[number];
            let keeps_versions = program.tables.iter().any(|table| table.history.is_some());
            keeps_versions
                || !timed[handler.input.index()].is_empty()
                || handler.is_procedure()
                || program.streams[handler.input.index()].origin != Origin::Input
                || program.windows.iter().any(|window| window.owner.index() == number)
                || !program.set_off(number).is_empty()
                || program.emits(number).iter().any(feeds)
        };
        let mut are_needed: Vec<bool> = (0..program.handlers.len()).map(is_needed).collect();
        if called.iter().any(|function| are_needed[*function]) {
            for (handler, is_needed) in program.handlers.iter().zip(&mut are_needed) {
                *is_needed |= matches!(handler.body, Body::Opaque(_));
            }
        }
        Ok(Rounds { turns, are_needed, open, kept, timed, passed_on, told: None })
    }

    /// The same, and slides whose triggers abort are told on this stream.
    #[must_use]
    pub fn telling(self, slides: Option<StreamId>) -> Rounds {
        Rounds { told: slides, ..self }
    }

    /// Whether what comes of an event of an input stream is more than one transaction of each handler on it, with its
    /// own steps.
    pub fn is_needed(&self, program: &Program, input: StreamId) -> bool {
        self.is_passed_on(program, input)
            || Rounds::takers(program, input).any(|(handler, _)| self.are_needed[handler])
    }

    /// Whether somebody wants the events of an input stream, or of a part of it, as they come in.
    pub fn is_passed_on(&self, program: &Program, input: StreamId) -> bool {
        self.passed_on.iter().any(|stream| program.root_stream(*stream) == input)
    }

    /// Those who take an event of an input stream, each with the stream that it is on for them.
    pub fn takers(
        program: &Program,
        input: StreamId,
    ) -> impl Iterator<Item = (usize, StreamId)> + '_ {
        let of = move |number: usize| {
            let inputs = program.handlers[number].inputs();
            let is_of = move |stream: StreamId| {
                let derived =
                    matches!(program.streams[stream.index()].origin, Origin::Derived { .. });
                stream == input || derived && program.root_stream(stream) == input
            };
            inputs.filter(move |i| is_of(i.stream)).map(move |input| (number, input.stream))
        };
        (0..program.handlers.len()).flat_map(of)
    }

    /// The handler that takes each event that comes by a stream, where there is one only and nobody waits for the event
    /// itself or for what of it aborts: whoever sent an event is told then why it did.
    pub fn only(&self, program: &Program, input: StreamId) -> Option<usize> {
        let mut takers = Rounds::takers(program, input);
        let (taker, stream) = takers.next()?;
        let aborted = program.handlers[taker].aborted;
        let is_only = takers.next().is_none() && program.handlers_on(aborted).next().is_none();
        let is_batched = program.streams[stream.index()].batch.is_some();
        let is_passed_on = self.is_passed_on(program, input);
        (is_only && stream == input && !is_batched && !is_passed_on).then_some(taker)
    }

    /// Executes an event of an input stream, with which intervals of some streams may end whose events are one batch, and
    /// gives all events that are emitted on the way, behind the event itself where somebody wants that. Those of the first
    /// transaction come first.
    ///
    /// # Errors
    /// Where there is [only one](Rounds::only) who takes the event: why its transaction aborts. Also when a map or
    /// filter can't compute, and when rows are not to be had: then nothing of what was written may count.
    pub fn run(
        &self,
        program: &Program,
        input: StreamId,
        event: &[Value],
        ends: &[StreamId],
        when: When,
        rows: &mut impl Rows,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        let views = views(program, input, event)?;
        let (answers, only) = (Answers::default(), self.only(program, input));
        let (turns, answers, kept) = (&self.turns, &answers, &self.kept);
        let passed_on = views.iter().filter(|(stream, _)| self.passed_on.contains(stream));
        let out = passed_on.map(|(stream, row)| (*stream, row[..].into())).collect();
        let mut round =
            Round { program, turns, kept, when, answers, only, rows, out, told: self.told };
        round.slide(self.timed(input), Until::Time(when.time_us))?;
        let mut agenda = Agenda::default();
        let now = views.iter().filter(|(stream, _)| !self.open.has(*stream));
        let now: Vec<_> = now.map(|(stream, row)| (*stream, &row[..])).collect();
        round.rows.comes(program, &now)?;
        for (handler, stream) in Rounds::takers(program, input) {
            let view = views.iter().find(|(on, _)| *on == stream);
            if let Some((_, values)) = view.filter(|_| !self.open.has(stream)) {
                round.hand(handler, stream, 0, values, &mut agenda)?;
            }
        }
        for (stream, values) in views.iter().filter(|(stream, _)| self.open.has(*stream)) {
            let (now_us, rows) = (when.now_us, &mut *round.rows);
            let ends = ends.contains(stream);
            let batch = self.open.come(program, *stream, values, now_us, ends, rows)?;
            round.batch(*stream, &batch, &mut agenda)?;
        }
        round.turns(agenda)
    }

    /// Executes what waits of a stream whose batches are whole after some time, if that has passed, and gives all events
    /// that are emitted on the way.
    ///
    /// # Errors
    /// When rows are not to be had: then nothing of what was written may count.
    pub fn due(
        &self,
        program: &Program,
        stream: StreamId,
        when: When,
        rows: &mut impl Rows,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        let batch = self.open.due(program, stream, when.now_us, rows)?;
        self.batch(program, stream, &batch, when, rows)
    }

    /// Executes what waits of a stream when the last one of so many sources of it has ended, and gives all events that are
    /// emitted on the way.
    ///
    /// # Errors
    /// As [`Rounds::due`].
    pub fn end(
        &self,
        program: &Program,
        (stream, sources): (StreamId, i64),
        when: When,
        rows: &mut impl Rows,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        let batch = self.open.end(program, stream, sources, rows)?;
        self.batch(program, stream, &batch, when, rows)
    }

    fn batch(
        &self,
        program: &Program,
        stream: StreamId,
        batch: &[Row],
        when: When,
        rows: &mut impl Rows,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        let (answers, mut agenda) = (Answers::default(), Agenda::default());
        let mut round = self.round(program, when, &answers, rows);
        if !batch.is_empty() {
            round.slide(self.timed(stream), Until::Time(when.time_us))?;
        }
        round.batch(stream, batch, &mut agenda)?;
        round.turns(agenda)
    }

    /// Windows slide whose owners take what comes of an input stream, or of one with which that shares a table, and whose time
    /// has come: gives all events that are emitted on the way.
    ///
    /// # Errors
    /// As [`Rounds::due`].
    pub fn slide(
        &self,
        program: &Program,
        stream: StreamId,
        when: When,
        rows: &mut impl Rows,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        self.slide_until(program, (stream, Until::Time(when.time_us)), when, rows)
    }

    /// One of so many sources of these streams has ended. With the last of them all windows slide that hold rows.
    ///
    /// # Errors
    /// As [`Rounds::due`].
    pub fn end_windows(
        &self,
        program: &Program,
        (stream, sources): (StreamId, i64),
        when: When,
        rows: &mut impl Rows,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        match self.open.ends_windows(program, stream, sources, rows)? {
            true => self.slide_until(program, (stream, Until::End(when.time_us)), when, rows),
            false => Ok(Vec::new()),
        }
    }

    fn slide_until(
        &self,
        program: &Program,
        (stream, until): (StreamId, Until),
        when: When,
        rows: &mut impl Rows,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        let answers = Answers::default();
        let mut round = self.round(program, when, &answers, rows);
        round.slide(self.timed(stream), until)?;
        Ok(round.out)
    }

    /// A round that no event of a client has begun.
    fn round<'a, R: Rows>(
        &'a self,
        program: &'a Program,
        when: When,
        answers: &'a Answers,
        rows: &'a mut R,
    ) -> Round<'a, R> {
        let (turns, kept, told) = (&self.turns, &self.kept, self.told);
        Round { program, turns, kept, when, answers, only: None, rows, out: Vec::new(), told }
    }

    /// The tables of events that wait to be batches: what comes with a key of one is executed there, and uses what is there.
    pub fn waiting(&self) -> impl Iterator<Item = TableId> + '_ {
        self.open.tables()
    }

    /// The windows that time ends before an event of a stream; none before those of streams that were added.
    pub fn timed(&self, stream: StreamId) -> &[WindowId] {
        self.timed.get(stream.index()).map_or(&[], Vec::as_slice)
    }

    /// The versions of rows.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Where the events of an input stream wait of which somebody takes batches.
    pub fn waits(&self, program: &Program, input: StreamId) -> Option<(TableId, [Value; 2])> {
        Rounds::takers(program, input).find_map(|(_, stream)| self.open.place(program, stream))
    }
}

impl<R: Rows> Round<'_, R> {
    /// All who take batches of a stream take this one.
    fn batch(
        &mut self,
        stream: StreamId,
        events: &[Row],
        agenda: &mut Agenda,
    ) -> Result<(), Abort> {
        let all: Vec<_> = events.iter().map(|event| (stream, &event[..])).collect();
        self.rows.comes(self.program, &all)?;
        for handler in self.program.handlers_on(stream) {
            for event in events {
                self.hand(handler, stream, 0, event, agenda)?;
            }
        }
        Ok(())
    }

    /// The turns of the procedures that have something to take; all that was emitted.
    fn turns(mut self, agenda: Agenda) -> Result<Vec<(StreamId, Row)>, Abort> {
        self.all_turns(agenda)?;
        Ok(self.out)
    }

    fn all_turns(&mut self, mut agenda: Agenda) -> Result<(), Abort> {
        while let Some((turn, given)) = agenda.next() {
            self.turn(turn, given, &mut agenda)?;
        }
        Ok(())
    }

    /// Windows slide whose time has come, each in a transaction of its owner and with all that this sets off.
    fn slide(&mut self, windows: &[WindowId], until: Until) -> Result<(), Abort> {
        let (only, time_us) = (self.only.take(), self.when.time_us);
        loop {
            let (program, rows) = (self.program, &mut *self.rows);
            let mut row = |table: TableId, key: &[Value]| rows.row(table, key);
            let Some((window, edge)) = firing::due(program, windows, until, &mut row)? else {
                break;
            };
            self.when.time_us = edge;
            self.slide_one(window, edge)?;
        }
        (self.only, self.when.time_us) = (only, time_us);
        Ok(())
    }

    fn slide_one(&mut self, window: WindowId, edge: i64) -> Result<(), Abort> {
        let (program, when) = (self.program, self.next());
        let owner = program.windows[window.index()].owner.index();
        let moment = when.moment(owner, self.answers);
        let overdue = |reason| Abort { kind: AbortKind::Overdue, reason };
        let mut verdict = self.rows.verdict()?.map(overdue);
        let (mut emitted, mut aborted) = (Vec::new(), None);
        for is_quiet in [false, true] {
            let mut work = Work::new(program, self.rows, owner, &moment);
            let result = match verdict.take() {
                Some(abort) => Err(abort),
                None => work
                    .function(|work| work.slide_in_time(window, is_quiet))
                    .inspect_err(|abort| work.judge(abort)),
            };
            let (undo, events) = (work.undo, work.inside.emitted);
            match result {
                Ok(()) => {
                    self.kept.append(program, &undo, when.time_us, self.rows)?;
                    emitted = events;
                    break;
                }
                Err(abort) => {
                    self.undo(undo, &abort)?;
                    // What it has read is of several moments: whoever finds that out calls it again.
                    if is_quiet {
                        return Err(abort);
                    }
                    aborted = Some(abort);
                }
            }
        }
        if let (Some(told), Some(abort)) = (self.told, aborted) {
            let name = Value::str(&program.windows[window.index()].name);
            let row = [name, Value::Int(edge), Value::str(&abort.told())];
            self.out.push((told, row.into()));
        }
        let mut agenda = Agenda::default();
        for (stream, row) in emitted {
            self.out.push((stream, row[..].into()));
            for next in program.handlers_on(stream) {
                self.hand(next, stream, 1, &row, &mut agenda)?;
            }
        }
        self.all_turns(agenda)
    }
}

/// The streams that an event of an input stream is on, with its columns there.
///
/// # Errors
/// When a map or filter can't compute.
pub fn views(
    program: &Program,
    root: StreamId,
    event: &[Value],
) -> Result<Vec<(StreamId, Vec<Value>)>, Abort> {
    let mut views = vec![(root, event.to_vec())];
    for (index, stream) in program.streams.iter().enumerate() {
        let Origin::Derived { from, stage } = &stream.origin else { continue };
        let Some((_, values)) = views.iter().find(|(on, _)| on == from) else { continue };
        let view = stage.apply(&stream.spec.schema, values);
        let view = view.map_err(|fault| {
            let name = &stream.spec.name;
            Abort::refused(format!("the event can't come to stream {name}: {fault}"))
        })?;
        views.extend(view.map(|view| (StreamId(index as u16), view)));
    }
    Ok(views)
}

struct Round<'a, R> {
    program: &'a Program,
    turns: &'a Turns,
    kept: &'a Kept,
    /// That of the next transaction.
    when: When,
    answers: &'a Answers,
    /// Whose abort is that of all.
    only: Option<usize>,
    rows: &'a mut R,
    out: Vec<(StreamId, Row)>,
    /// As in [`Rounds`].
    told: Option<StreamId>,
}

impl<R: Rows> Round<'_, R> {
    /// A handler takes an event: now, or, with all others of the round, when it is its turn.
    fn hand(
        &mut self,
        handler: usize,
        stream: StreamId,
        depth: usize,
        event: &[Value],
        agenda: &mut Agenda,
    ) -> Result<(), Abort> {
        if self.program.handlers[handler].is_procedure() {
            agenda.add(self.turns, handler, stream, event.into());
            return Ok(());
        }
        self.transact(handler, depth, event, agenda)
    }

    /// One transaction, and depth first everything that its outputs set off.
    fn transact(
        &mut self,
        index: usize,
        depth: usize,
        event: &[Value],
        agenda: &mut Agenda,
    ) -> Result<(), Abort> {
        let (program, when) = (self.program, self.next());
        let moment = when.moment(index, self.answers);
        let verdict = self.rows.verdict()?;
        let mut work = Work::new(program, self.rows, index, &moment);
        let result = match (depth > program.handlers.len(), verdict) {
            (true, _) => Err(reasons::endless()),
            (false, Some(reason)) => Err(Abort { kind: AbortKind::Overdue, reason }),
            (false, None) => work.handler(event).inspect_err(|abort| work.judge(abort)),
        };
        let (undo, emitted) = (work.undo, work.inside.emitted);
        let emitted = match result {
            Ok(()) => {
                self.kept.append(program, &undo, when.time_us, self.rows)?;
                emitted
            }
            Err(abort) => {
                self.undo(undo, &abort)?;
                if depth == 0 && self.only == Some(index) {
                    return Err(abort);
                }
                let row = program.abort_event(index, event, &abort.told());
                vec![(program.handlers[index].aborted, row)]
            }
        };
        for (stream, row) in emitted {
            self.out.push((stream, row[..].into()));
            for next in program.handlers_on(stream) {
                self.hand(next, stream, depth + 1, &row, agenda)?;
            }
        }
        Ok(())
    }

    /// The procedures of a turn, as one transaction.
    fn turn(&mut self, number: usize, mut given: Given, agenda: &mut Agenda) -> Result<(), Abort> {
        let (program, turn) = (self.program, &self.turns.all[number]);
        let when = self.next();
        let moment = when.moment(turn.step, self.answers);
        let verdict = self.rows.verdict()?;
        let mut work = Work::new(program, self.rows, turn.procedures[0], &moment);
        let overdue = |reason| Abort { kind: AbortKind::Overdue, reason };
        let (mut emitted, mut aborted): (Vec<Emitted>, _) = (Vec::new(), verdict.map(overdue));
        for (place, index) in turn.procedures.iter().enumerate() {
            if aborted.is_some() {
                break;
            }
            let handler: &Handler = &program.handlers[*index];
            let Some(batches) = given.batches(handler, place) else { continue };
            let Body::Opaque(opaque) = handler.body else {
                unreachable!("the program was checked")
            };
            work.inside.handler = *index;
            let function = &program.opaques[opaque];
            if let Err(abort) = work.function(|work| function.call_batch(&batches, work)) {
                work.judge(&abort);
                aborted = Some(abort);
                continue;
            }
            let events = std::mem::take(&mut work.inside.emitted);
            for (stream, row) in &events {
                for (place, next) in turn.procedures.iter().enumerate() {
                    if program.handlers_on(*stream).any(|taking| taking == *next) {
                        given.add(place, *stream, row[..].into(), false);
                    }
                }
            }
            emitted.push((place, events));
        }
        let undo = work.undo;
        if aborted.is_none() {
            self.kept.append(program, &undo, when.time_us, self.rows)?;
        }
        if let Some(abort) = aborted {
            self.undo(undo, &abort)?;
            if self.only.is_some_and(|only| turn.procedures.contains(&only)) {
                return Err(abort);
            }
            emitted = given.aborted(program, turn, &abort.told());
        }
        for (stream, row) in emitted.into_iter().flat_map(|(_, events)| events) {
            self.out.push((stream, row[..].into()));
            for next in program.handlers_on(stream) {
                if !turn.procedures.contains(&next) {
                    self.hand(next, stream, 1, &row, agenda)?;
                }
            }
        }
        Ok(())
    }

    /// When the next transaction is. Each has random numbers of its own.
    fn next(&mut self) -> When {
        let when = self.when;
        self.when.chance = when.chance.wrapping_add(1);
        when
    }

    /// Rows become what they were before a transaction that has aborted.
    fn undo(&mut self, undo: Vec<Was>, abort: &Abort) -> Result<(), Abort> {
        if self.rows.are_gone() {
            return Err(abort.clone());
        }
        for (table, key, was) in undo.into_iter().rev() {
            self.rows.write(self.program, table, &key, was)?;
        }
        Ok(())
    }
}
