//! One event and all that it triggers, on rows that other owners hold. It is one place in the order:
//! no others run between its transactions, each of which commits or aborts by itself.

use std::collections::BTreeSet;

use tidemill_core::{Row, StreamId, TableId, Value};

use super::store::View;
use super::{OpenBatches, RemoteStore, StoredVersions};
use crate::execute::general::{Effects, General};
use crate::execute::turn;
use crate::order::Groups;
use crate::program::inside::Transaction;
use crate::program::rounds::{Agenda, Emitted, Given, Turns};
use crate::program::{
    firing, reasons, Abort, AbortKind, Answers, Body, Origin, Program, Until, When, WindowId,
};

/// The rounds of a program.
#[derive(Debug)]
pub struct RemoteRounds {
    turns: Turns,
    /// By handler: whether its events may lead to more than one transaction, or to more than its
    /// own steps.
    are_needed: Vec<bool>,
    /// Incomplete batches.
    open: OpenBatches,
    /// Versions of rows.
    versions: StoredVersions,
    /// By stream: the windows that time may end before an event of the stream.
    timed: Vec<Vec<WindowId>>,
    /// Streams whose input events are also returned as outputs.
    passed_on: BTreeSet<StreamId>,
    /// The stream of windows that have slid without their triggers: the window, its end, and the
    /// reason.
    aborted_slides: Option<StreamId>,
}

impl RemoteRounds {
    /// Prepares the rounds of a program. Opaque functions may call the `called` handlers. `open`
    /// has the tables of incomplete batches, and `versions` those of versions. The input events of
    /// `passed_on` streams are returned too.
    ///
    /// # Errors
    /// If the procedures form a cycle.
    pub fn of(
        program: &Program,
        called: &[usize],
        open: OpenBatches,
        versions: StoredVersions,
        passed_on: BTreeSet<StreamId>,
    ) -> tidemill_core::Result<RemoteRounds> {
        let turns = Turns::of(program)?;
        let groups = Groups::of(program)?;
        let of_group = program.timed_windows(&groups);
        let timed: Vec<_> = groups.of.iter().map(|group| of_group[*group].clone()).collect();
        let is_needed = |number: usize| {
            let handler = &program.handlers[number];
            let keeps_versions = program.tables.iter().any(|table| table.history.is_some());
            keeps_versions
                || !timed[handler.input.index()].is_empty()
                || RemoteRounds::triggers_more(program, number)
        };
        let mut are_needed: Vec<bool> = (0..program.handlers.len()).map(is_needed).collect();
        if called.iter().any(|function| are_needed[*function]) {
            for (handler, is_needed) in program.handlers.iter().zip(&mut are_needed) {
                *is_needed |= matches!(handler.body, Body::Opaque(_));
            }
        }
        Ok(RemoteRounds {
            turns,
            are_needed,
            open,
            versions,
            timed,
            passed_on,
            aborted_slides: None,
        })
    }

    /// Whether a handler is a part of more than a transaction with its own steps.
    pub fn triggers_more(program: &Program, number: usize) -> bool {
        let handler = &program.handlers[number];
        handler.is_procedure()
            || program.streams[handler.input.index()].origin != Origin::Input
            || program.windows.iter().any(|window| window.owner.index() == number)
            || !program.triggers_of(number).is_empty()
            || program.emits(number).iter().any(|of| program.handlers_on(*of).next().is_some())
    }

    /// Reports slides whose triggers abort on this stream.
    #[must_use]
    pub fn report_slides_on(self, slides: Option<StreamId>) -> RemoteRounds {
        RemoteRounds { aborted_slides: slides, ..self }
    }

    /// Whether an event of an input stream leads to more than one transaction with its own steps
    /// per handler.
    pub fn is_needed(&self, program: &Program, input: StreamId) -> bool {
        self.is_passed_on(program, input)
            || program.takers(input).any(|(handler, _)| self.are_needed[handler])
    }

    /// Whether the events of an input stream, or of a stream derived from it, are returned as
    /// outputs.
    pub fn is_passed_on(&self, program: &Program, input: StreamId) -> bool {
        self.passed_on.iter().any(|stream| program.root_stream(*stream) == input)
    }

    /// Whether the events of a stream itself are returned as outputs.
    pub(super) fn is_passed(&self, stream: StreamId) -> bool {
        self.passed_on.contains(&stream)
    }

    /// Returns the stream of windows that have slid without their triggers.
    pub(super) fn aborted_slides(&self) -> Option<StreamId> {
        self.aborted_slides
    }

    /// Returns the buffered events of incomplete batches.
    pub(super) fn open(&self) -> &OpenBatches {
        &self.open
    }

    /// Returns the handler that takes each event of an input stream, if it is the only one, takes
    /// nothing else, and no other part needs the event itself or its aborts. The sender then gets the
    /// reason of an abort.
    pub fn only(&self, program: &Program, input: StreamId) -> Option<usize> {
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
        let is_passed_on = self.is_passed_on(program, input);
        (is_only && stream == input && !is_batched && !is_passed_on).then_some(taker)
    }

    /// Executes an event of an input stream. `ends` names streams whose interval, and so batch,
    /// ends with it. Returns all events emitted on the way, after the event itself if its stream is
    /// passed on. Those of the first transaction come first.
    ///
    /// # Errors
    /// If there is [only one](RemoteRounds::only) handler of the event: the reason of its abort.
    /// Also if a map or filter can't compute, or if rows are not available. Then the caller must
    /// discard all writes.
    pub fn run(
        &self,
        program: &Program,
        input: StreamId,
        event: &[Value],
        ends: &[StreamId],
        when: When,
        rows: &mut impl RemoteStore,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        let views = program.views(input, event)?;
        let (answers, only) = (Answers::default(), self.only(program, input));
        let passed_on = views.iter().filter(|(stream, _)| self.passed_on.contains(stream));
        let out = passed_on.map(|(stream, row)| (*stream, row[..].into())).collect();
        let mut round = Round { only, out, ..self.round(program, when, &answers, rows) };
        round.slide(self.timed(input), Until::Time(when.time_us))?;
        let mut agenda = Agenda::default();
        let now = views.iter().filter(|(stream, _)| !self.open.has(*stream));
        let now: Vec<_> = now.map(|(stream, row)| (*stream, &row[..])).collect();
        round.rows.prefetch(&now)?;
        for (handler, stream) in program.takers(input) {
            let view = views.iter().find(|(on, _)| *on == stream);
            if let Some((_, values)) = view.filter(|_| !self.open.has(stream)) {
                round.hand(handler, stream, 0, values, &mut agenda)?;
            }
        }
        for (stream, values) in views.iter().filter(|(stream, _)| self.open.has(*stream)) {
            let (now_us, rows) = (when.now_us, &mut *round.rows);
            let ends = ends.contains(stream);
            let batch = self.open.buffer(program, *stream, values, now_us, ends, rows)?;
            round.batch(*stream, &batch, &mut agenda)?;
        }
        round.turns(agenda)
    }

    /// Executes the buffered events of a stream in batches by arrival time, if they are due.
    /// Returns all events emitted on the way.
    ///
    /// # Errors
    /// If rows are not available. Then the caller must discard all writes.
    pub fn due(
        &self,
        program: &Program,
        stream: StreamId,
        when: When,
        rows: &mut impl RemoteStore,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        let batch = self.open.due(program, stream, when.now_us, rows)?;
        self.batch(program, stream, &batch, when, rows)
    }

    /// Counts an ended source of a stream; after the last of `sources`, executes the buffered
    /// events. Returns all events emitted on the way.
    ///
    /// # Errors
    /// The same as for [`RemoteRounds::due`].
    pub fn end(
        &self,
        program: &Program,
        (stream, sources): (StreamId, i64),
        when: When,
        rows: &mut impl RemoteStore,
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
        rows: &mut impl RemoteStore,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        let (answers, mut agenda) = (Answers::default(), Agenda::default());
        let mut round = self.round(program, when, &answers, rows);
        if !batch.is_empty() {
            round.slide(self.timed(stream), Until::Time(when.time_us))?;
        }
        round.batch(stream, batch, &mut agenda)?;
        round.turns(agenda)
    }

    /// Slides the windows that are due and whose owners take an input stream, or a stream in its
    /// group. Returns all events emitted on the way.
    ///
    /// # Errors
    /// The same as for [`RemoteRounds::due`].
    pub fn slide(
        &self,
        program: &Program,
        stream: StreamId,
        when: When,
        rows: &mut impl RemoteStore,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        self.slide_until(program, (stream, Until::Time(when.time_us)), when, rows)
    }

    /// Counts an ended source of a group of streams. After the last of `sources`, all windows with
    /// rows slide.
    ///
    /// # Errors
    /// The same as for [`RemoteRounds::due`].
    pub fn end_windows(
        &self,
        program: &Program,
        (stream, sources): (StreamId, i64),
        when: When,
        rows: &mut impl RemoteStore,
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
        rows: &mut impl RemoteStore,
    ) -> Result<Vec<(StreamId, Row)>, Abort> {
        let answers = Answers::default();
        let mut round = self.round(program, when, &answers, rows);
        round.slide(self.timed(stream), until)?;
        Ok(round.out)
    }

    /// Begins a round without a client's event.
    fn round<'a, R: RemoteStore>(
        &'a self,
        program: &'a Program,
        when: When,
        answers: &'a Answers,
        rows: &'a mut R,
    ) -> Round<'a, R> {
        let (turns, versions, aborted_slides) = (&self.turns, &self.versions, self.aborted_slides);
        Round {
            program,
            turns,
            versions,
            when,
            answers,
            only: None,
            rows,
            out: Vec::new(),
            aborted_slides,
        }
    }

    /// Returns the tables of events in incomplete batches. An event with such a key is executed at
    /// the key's owner and uses the rows there.
    pub fn waiting(&self) -> impl Iterator<Item = TableId> + '_ {
        self.open.tables()
    }

    /// Returns the windows that time may end before an event of a stream; none for streams that the
    /// engine adds.
    pub fn timed(&self, stream: StreamId) -> &[WindowId] {
        self.timed.get(stream.index()).map_or(&[], Vec::as_slice)
    }

    /// Returns the place of an input stream's buffered events, if handlers take batches of it.
    pub fn waits(&self, program: &Program, input: StreamId) -> Option<(TableId, [Value; 2])> {
        program.takers(input).find_map(|(_, stream)| self.open.place(program, stream))
    }
}

impl<R: RemoteStore> Round<'_, R> {
    /// Gives a batch to all handlers that take batches of a stream.
    fn batch(
        &mut self,
        stream: StreamId,
        events: &[Row],
        agenda: &mut Agenda,
    ) -> Result<(), Abort> {
        let all: Vec<_> = events.iter().map(|event| (stream, &event[..])).collect();
        self.rows.prefetch(&all)?;
        for handler in self.program.handlers_on(stream) {
            for event in events {
                self.hand(handler, stream, 0, event, agenda)?;
            }
        }
        Ok(())
    }

    /// Runs the turns of the procedures with events to take, and returns all emitted events.
    fn turns(mut self, agenda: Agenda) -> Result<Vec<(StreamId, Row)>, Abort> {
        self.all_turns(agenda)?;
        Ok(self.out)
    }

    fn all_turns(&mut self, mut agenda: Agenda) -> Result<(), Abort> {
        while let Some((turn, given)) = agenda.pop() {
            self.turn(turn, given, &mut agenda)?;
        }
        Ok(())
    }

    /// Slides the windows that are due, each in a transaction of its owner and with all that this
    /// triggers.
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
        let overdue = |reason| Abort { kind: AbortKind::Overdue, reason };
        let mut verdict = self.rows.verdict()?.map(overdue);
        let (mut emitted, mut aborted) = (Vec::new(), None);
        for is_quiet in [false, true] {
            let result = match verdict.take() {
                Some(abort) => Err(abort),
                None => self.perform(when, (owner, owner), |tx| {
                    tx.function(|tx| tx.slide_in_time(window, is_quiet))
                }),
            };
            match result {
                Ok(effects) => {
                    emitted = self.commit(effects, when)?;
                    break;
                }
                // A slide without triggers aborts only if it has read rows of several moments. The
                // caller that detects this calls it again.
                Err(abort) if is_quiet || self.rows.are_unavailable() => return Err(abort),
                Err(abort) => aborted = Some(abort),
            }
        }
        if let (Some(aborted_slides), Some(abort)) = (self.aborted_slides, aborted) {
            let name = Value::str(&program.windows[window.index()].name);
            let row = [name, Value::Int(edge), Value::str(&abort.public_reason())];
            self.out.push((aborted_slides, row.into()));
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

struct Round<'a, R> {
    program: &'a Program,
    turns: &'a Turns,
    versions: &'a StoredVersions,
    /// The moment of the next transaction.
    when: When,
    answers: &'a Answers,
    /// The handler whose abort aborts the whole round.
    only: Option<usize>,
    rows: &'a mut R,
    out: Vec<(StreamId, Row)>,
    /// The stream of windows that have slid without their triggers.
    aborted_slides: Option<StreamId>,
}

impl<R: RemoteStore> Round<'_, R> {
    /// Gives an event to a handler: a procedure takes it in its turn with the round's other events,
    /// others at once.
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

    /// Executes one transaction, and depth first everything that its outputs trigger.
    fn transact(
        &mut self,
        index: usize,
        depth: usize,
        event: &[Value],
        agenda: &mut Agenda,
    ) -> Result<(), Abort> {
        let (program, when) = (self.program, self.next());
        let verdict = self.rows.verdict()?;
        let result = match (depth > program.handlers.len(), verdict) {
            (true, _) => Err(reasons::endless()),
            (false, Some(reason)) => Err(Abort { kind: AbortKind::Overdue, reason }),
            (false, None) => self.perform(when, (index, index), |tx| tx.handler(event)),
        };
        let emitted = match result {
            Ok(effects) => self.commit(effects, when)?,
            Err(abort) if self.rows.are_unavailable() => return Err(abort),
            Err(abort) if depth == 0 && self.only == Some(index) => return Err(abort),
            Err(abort) => {
                let row = program.abort_event(index, event, &abort.public_reason());
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

    /// Executes the procedures of a turn as one transaction.
    fn turn(&mut self, number: usize, mut given: Given, agenda: &mut Agenda) -> Result<(), Abort> {
        let (program, turn) = (self.program, &self.turns.all[number]);
        let when = self.next();
        let mut emitted: Vec<Emitted> = Vec::new();
        let result = match self.rows.verdict()? {
            Some(reason) => Err(Abort { kind: AbortKind::Overdue, reason }),
            None => self.perform(when, (turn.step, turn.procedures[0]), |tx| {
                emitted = turn::procedures(program, turn, &mut given, tx)?;
                Ok(())
            }),
        };
        match result {
            Ok(effects) => {
                self.commit(effects, when)?;
            }
            Err(abort) if self.rows.are_unavailable() => return Err(abort),
            Err(abort) if self.only.is_some_and(|only| turn.procedures.contains(&only)) => {
                return Err(abort);
            }
            Err(abort) => emitted = given.aborted(program, turn, &abort.public_reason()),
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

    /// Returns the moment of the next transaction. Each has its own random numbers.
    fn next(&mut self) -> When {
        let when = self.when;
        self.when.chance = when.chance.wrapping_add(1);
        when
    }

    /// Runs a transaction of a handler at a step. Its effects wait for [`Round::commit`].
    fn perform(
        &mut self,
        when: When,
        (step, handler): (usize, usize),
        run: impl FnOnce(&mut General<'_>) -> Result<(), Abort>,
    ) -> Result<Effects, Abort> {
        let (program, moment) = (self.program, when.moment(step, self.answers));
        let view = View::new(self.versions, self.rows);
        let mut tx = General::new(program, &view, handler, &moment);
        let result = run(&mut tx).map(|()| tx.effects());
        view.settled(result).inspect_err(|abort| {
            // A deadline's verdict must be recorded.
            if abort.kind == AbortKind::Overdue {
                self.rows.overdue(&abort.reason);
            }
        })
    }

    /// Writes the effects of a transaction. Returns its events.
    fn commit(
        &mut self,
        effects: Effects,
        when: When,
    ) -> Result<Vec<(StreamId, Vec<Value>)>, Abort> {
        commit(self.program, effects, (self.versions, when.time_us), self.rows)
    }
}

/// Writes the effects of a transaction to their owners, and versions of rows with a history.
/// Returns the transaction's events.
pub(super) fn commit(
    program: &Program,
    mut effects: Effects,
    (versions, time_us): (&StoredVersions, i64),
    rows: &mut impl RemoteStore,
) -> Result<Vec<(StreamId, Vec<Value>)>, Abort> {
    let emitted = std::mem::take(&mut effects.emitted);
    for (table, key, row) in effects.into_written() {
        rows.write(table, &key, row.as_deref())?;
        if let Some(row) = row {
            versions.append(program, (table, &key), &row, time_us, rows)?;
        }
    }
    Ok(emitted)
}
