//! The one guarantee, executed slowly: all transactions one at a time, in the one order.
//!
//! > The outcome — table contents, outputs, aborts — is a function of the program, the initial
//! > state, the inputs and the recorded cuts.
//!
//! This file is the definition, together with `work.rs` for a single transaction. It is the best
//! documentation of the semantics. Tests compare every fast path with it, bit for bit. It is only
//! for tests: nothing that runs an app may depend on it. It shares these parts with the fast paths:
//!
//! - the rules of values (`tidemill_core::rules`)
//! - the meaning of map and filter ([`tidemill_txn::program::Stage::apply`])
//! - the groups of streams that share a watermark ([`Groups`])
//! - [`tidemill_txn::meaning`]: the order of turns in a round, the inside of a transaction, windows
//!   that slide as time passes, and the call of a closure on copies of its rows
//!
//! All else is its own. It walks expressions from the root each time, and its tables are ordered
//! maps. An abort restores a copy of all tables. The order is a sort by stamp, and watermarks are
//! computed from all events so far. So it finds errors in slots, versions, histories, indexes,
//! compiled programs, merging, buffering and batching. It can't find an error in a shared part;
//! these have tests of their own.

mod batches;
mod rows;
mod single_transaction;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use tidemill_core::stamp::Admission;
use tidemill_core::{
    Key, Late, Position, Row, SourceId, Stamp, StreamId, StreamTime, TableId, Value,
};
use tidemill_txn::meaning::{firing, slides, Agenda, Emitted, Given, Moment, Transaction, Turns};
use tidemill_txn::order::Groups;
use tidemill_txn::program::{reasons, Answers, Body, Origin, Until, WindowId};
use tidemill_txn::Program;

use self::rows::Maps;
pub use self::rows::Version;
pub use self::single_transaction::{run_single, Done};
use self::work::Work;

/// A decoded row of a source.
#[derive(Clone, Debug, PartialEq)]
pub struct InputRow {
    /// The row's number in the source. Rows that could not be decoded leave gaps.
    pub offset: u64,
    /// The row's values.
    pub values: Vec<Value>,
}

/// The part of a cut that the outcome depends on. Watermarks follow from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CutAt {
    /// Per source: the offset of the first row after the cut.
    pub offsets: Vec<u64>,
    /// The clock, in microseconds.
    pub clock_us: i64,
    /// Sources that count as idle.
    pub idle: Vec<SourceId>,
    /// Sources that have ended.
    pub ended: Vec<SourceId>,
    /// Per stream: an upper bound on the watermark at this cut. `None` if only the rows decide it.
    pub watermarks_max: Option<Vec<Position>>,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Per table: its rows by key.
    pub tables: Vec<BTreeMap<Key, Row>>,
    /// Per table: the versions of its rows by key, oldest first. After the run, these are the
    /// versions that the history retains.
    pub histories: Vec<BTreeMap<Key, Vec<Version>>>,
    /// Per stream: its output events in order, with their stamps.
    pub outputs: BTreeMap<StreamId, Vec<(Stamp, Row)>>,
    /// Per stream (input or derived): the late events.
    pub late: BTreeMap<StreamId, Vec<Row>>,
    /// Events that a map or filter could not compute: the stream, the offset, the reason.
    pub dead: Vec<(StreamId, u64, String)>,
    /// Per cut: the watermark of each stream.
    pub watermarks: Vec<Vec<Position>>,
    /// The number of transactions, aborted ones included.
    pub transactions: u64,
    /// The number of aborted transactions.
    pub aborts: u64,
    /// The first late event of a stream with `late="error"`, if there was one. The run ends there.
    pub late_error: Option<(StreamId, u64)>,
}

/// A ready event, with its columns on each of its streams.
struct Coming {
    stamp: Stamp,
    source: SourceId,
    offset: u64,
    views: Vec<(StreamId, Vec<Value>)>,
    /// The streams that have a batch which ends with this event.
    closes: Vec<StreamId>,
}

/// Runs a program over its sources, with these cuts.
pub fn run(program: &Program, sources: &[Vec<InputRow>], cuts: &[CutAt]) -> Outcome {
    run_with_answers(program, sources, cuts, &Answers::default())
}

/// Like [`run`], with known answers from outside.
pub fn run_with_answers(
    program: &Program,
    sources: &[Vec<InputRow>],
    cuts: &[CutAt],
    answers: &Answers,
) -> Outcome {
    let groups = Groups::of(program).expect("the program was checked");
    let turns = Turns::of(program).expect("the program was checked");
    let outcome = Outcome::default();
    let open = batches::Open::new(program);
    let timed = program.timed_windows(&groups);
    let mut machine = Machine { program, turns, clock_us: 0, open, answers, outcome };
    machine.outcome.tables = vec![BTreeMap::new(); program.tables.len()];
    machine.outcome.histories = vec![BTreeMap::new(); program.tables.len()];
    let mut taken = vec![0usize; sources.len()];
    let mut waiting: Vec<(Position, &InputRow)> = Vec::new();
    let mut marks = vec![Position::MIN; groups.len];
    let mut clock = i64::MIN;
    for (index, cut) in cuts.iter().enumerate() {
        let epoch = index as u64 + 1;
        clock = cut.clock_us.max(clock.saturating_add(1));
        // The rows since the last cut.
        let mut fresh: Vec<(SourceId, &InputRow)> = Vec::new();
        for (source, rows) in sources.iter().enumerate() {
            while taken[source] < rows.len() && rows[taken[source]].offset < cut.offsets[source] {
                fresh.push((SourceId(source as u32), &rows[taken[source]]));
                taken[source] += 1;
            }
        }
        let before = marks.clone();
        let mut is_held = vec![false; groups.len];
        for (group, mark) in marks.iter_mut().enumerate() {
            let come = watermark(program, &groups, group, sources, cut).max(*mark);
            let max = cut.watermarks_max.as_ref().and_then(|of_stream| {
                let of_stream = groups.of.iter().zip(of_stream);
                of_stream.filter(|(of, _)| **of == group).map(|(_, max)| *max).next()
            });
            *mark = max.unwrap_or(come).min(come).max(*mark);
            is_held[group] = *mark < come;
        }
        // The place of each event that is ready now.
        let mut ready: Vec<(Stamp, SourceId, &InputRow)> = Vec::new();
        for (source, row) in fresh {
            let stream = program.sources[source.index()].stream;
            let spec = &program.streams[stream.index()].spec;
            let group = groups.of[stream.index()];
            let admission = Admission { epoch, source, offset: row.offset };
            let StreamTime::Event { column } = spec.time else {
                let stamp = if groups.event_time[group] {
                    Stamp::admitted(before[group], admission)
                } else {
                    let offset = row.offset;
                    Stamp::of(Position { time_us: clock, source, offset })
                };
                ready.push((stamp, source, row));
                continue;
            };
            let time_us = time(&row.values[column]);
            let own = own_watermark(program, sources, source, row.offset, column);
            let is_late = own.is_some_and(|own| time_us < own);
            let time_us = match (spec.late, own) {
                (Late::Admit, Some(own)) => time_us.max(own),
                _ => time_us,
            };
            let at = Position { time_us, source, offset: row.offset };
            // A row can be late without being late by its own source, but only if that source did
            // not hold the watermark back.
            if at >= before[group] && (!is_late || spec.late == Late::Admit) {
                waiting.push((at, row));
                continue;
            }
            match spec.late {
                Late::Side => machine.side(stream, row),
                Late::Admit => ready.push((Stamp::admitted(before[group], admission), source, row)),
                Late::Error => {
                    machine.outcome.late_error = Some((stream, row.offset));
                    return machine.outcome;
                }
            }
        }
        waiting.retain(|(at, row)| {
            let stream = program.sources[at.source.index()].stream;
            let now = *at < marks[groups.of[stream.index()]];
            if now {
                ready.push((Stamp::of(*at), at.source, row));
            }
            !now
        });
        ready.sort_by(|a, b| a.0.cmp(&b.0));
        machine.clock_us = clock;
        let mut coming = Vec::new();
        for (stamp, source, row) in ready {
            let views = machine.views(program.sources[source.index()].stream, row);
            coming.push(Coming { stamp, source, offset: row.offset, views, closes: Vec::new() });
        }
        let waits = |stream: StreamId| {
            let root = program.root_stream(stream);
            waiting.iter().any(|(at, _)| program.sources[at.source.index()].stream == root)
        };
        let place = |stream: StreamId, source, offset| {
            let group = groups.of[stream.index()];
            let admission = Admission { epoch, source, offset };
            match (
                end(program, program.root_stream(stream), sources, cut),
                groups.event_time[group],
            ) {
                // Time may have advanced while the stream was idle.
                (Some(end), _) => Stamp::admitted(end.max(before[group]), admission),
                (None, true) => Stamp::admitted(before[group], admission),
                (None, false) => Stamp::of(Position { time_us: clock, source, offset }),
            }
        };
        // A stream in event time is over when everything up to its end has arrived.
        let is_over = |stream: StreamId| {
            let root = program.root_stream(stream);
            let mut own = program.sources.iter().enumerate().filter(|(_, of)| of.stream == root);
            let has_ended = own.all(|(id, _)| cut.ended.contains(&SourceId(id as u32)));
            let end = end(program, root, sources, cut);
            has_ended
                && !waits(stream)
                && end.is_none_or(|end| end <= marks[groups.of[root.index()]])
        };
        machine.open.close(program, clock, &mut coming, &is_over, &place);
        for event in coming {
            let group = groups.of[program.sources[event.source.index()].stream.index()];
            machine.fire(&timed[group], Until::Time(event.stamp.at.time_us));
            machine.event(event);
        }
        let ended = |group: usize, source| cut.ended.contains(&source) && !is_held[group];
        let until = slides::until(program, &groups, &marks, (clock, &|_| None), &ended);
        for (windows, until) in timed.iter().zip(until) {
            machine.fire(windows, until);
        }
        let of_stream = groups.of.iter().map(|g| marks[*g]).collect();
        machine.outcome.watermarks.push(of_stream);
    }
    if let Some(marks) = machine.outcome.watermarks.last() {
        let frontiers = groups.frontiers_us(marks, clock);
        machine.forget(&frontiers);
    }
    machine.outcome
}

fn time(value: &Value) -> i64 {
    match value {
        Value::Timestamp(t) | Value::Int(t) => *t,
        other => unreachable!("{other} as a time: the program was checked"),
    }
}

/// Returns the newest time of a source's rows before one of them.
fn newest(sources: &[Vec<InputRow>], source: SourceId, before: u64, column: usize) -> Option<i64> {
    let rows = sources[source.index()].iter().filter(|row| row.offset < before);
    rows.map(|row| time(&row.values[column])).max()
}

/// Returns the time before which a row of a source is late: the newest time of the rows before it,
/// less the out-of-orderness.
fn own_watermark(
    program: &Program,
    sources: &[Vec<InputRow>],
    source: SourceId,
    row: u64,
    column: usize,
) -> Option<i64> {
    let out_of_orderness_us = program.sources[source.index()].out_of_orderness_us;
    newest(sources, source, row, column).map(|newest| newest.saturating_sub(out_of_orderness_us))
}

/// Returns the place after all rows of a stream in event time up to a cut.
fn end(
    program: &Program,
    stream: StreamId,
    sources: &[Vec<InputRow>],
    cut: &CutAt,
) -> Option<Position> {
    let StreamTime::Event { column } = program.streams[stream.index()].spec.time else {
        return None;
    };
    let own = program.sources.iter().enumerate().filter(|(_, of)| of.stream == stream);
    let end = |(index, _): (usize, _)| {
        let (source, offset) = (SourceId(index as u32), cut.offsets[index]);
        let time_us = newest(sources, source, offset, column)?;
        Some(Position { time_us, source, offset })
    };
    own.filter_map(end).max()
}

/// Returns the place before which everything of a group has arrived, given the events up to the
/// cut. It is not after the received events, except that intervals in which streams end are over.
fn watermark(
    program: &Program,
    groups: &Groups,
    group: usize,
    sources: &[Vec<InputRow>],
    cut: &CutAt,
) -> Position {
    // Only sources that may still send hold the watermark back.
    let mut held = Vec::new();
    let mut free = Vec::new();
    let (mut has_source, mut all_ended) = (false, true);
    for (index, spec) in program.sources.iter().enumerate() {
        let source = SourceId(index as u32);
        let stream = &program.streams[spec.stream.index()].spec;
        let StreamTime::Event { column } = stream.time else { continue };
        if groups.of[spec.stream.index()] != group {
            continue;
        }
        has_source = true;
        let offset = cut.offsets[index];
        let newest = newest(sources, source, offset, column);
        all_ended &= cut.ended.contains(&source);
        if cut.ended.contains(&source) || cut.idle.contains(&source) {
            free.extend(newest.map(|time_us| Position { time_us, source, offset }));
        } else {
            held.push(newest.map_or(Position::MIN, |t| Position {
                time_us: t.saturating_sub(spec.out_of_orderness_us),
                source,
                offset,
            }));
        }
    }
    if !has_source {
        return Position::MAX;
    }
    let whole = |mark| batches::whole(program, groups, group, mark);
    match (held.into_iter().min(), free.into_iter().max()) {
        (Some(mark), _) => whole(mark),
        (None, Some(end)) if all_ended => batches::over(program, groups, group, end),
        (None, Some(end)) => whole(end),
        (None, None) => Position::MIN,
    }
}

struct Machine<'a> {
    program: &'a Program,
    /// The order of procedures in a round.
    turns: Turns,
    /// The clock of the cut.
    clock_us: i64,
    /// The events of incomplete batches.
    open: batches::Open,
    answers: &'a Answers,
    outcome: Outcome,
}

impl<'a> Machine<'a> {
    fn moment(&self, stamp: &Stamp, step: usize) -> Moment<'a> {
        Moment {
            now_us: self.clock_us,
            stamp: stamp.clone(),
            step,
            answers: self.answers,
            ignores_deadlines: false,
            salt: 0,
        }
    }

    /// Returns the streams that an event of an input stream is on, with its columns there. If a
    /// stage can't compute, the event does not get to that stream or those derived from it, and
    /// counts as dead.
    fn views(&mut self, root: StreamId, row: &InputRow) -> Vec<(StreamId, Vec<Value>)> {
        let mut views = vec![(root, row.values.clone())];
        // Derived streams are declared after their origin.
        for (index, stream) in self.program.streams.iter().enumerate() {
            let Origin::Derived { from, stage } = &stream.origin else { continue };
            let Some((_, values)) = views.iter().find(|(s, _)| s == from) else { continue };
            let id = StreamId(index as u16);
            match stage.apply(&stream.spec.schema, values) {
                Ok(Some(view)) => views.push((id, view)),
                Ok(None) => {}
                Err(fault) => self.outcome.dead.push((id, row.offset, fault.to_string())),
            }
        }
        views
    }

    /// Removes the versions that the histories do not retain.
    fn forget(&mut self, frontiers_us: &[i64]) {
        for (index, table) in self.program.tables.iter().enumerate() {
            let history = table.history.unwrap_or_default();
            let from = history.retained_from(frontiers_us[index]);
            self.outcome.histories[index].retain(|_, versions| {
                let len = versions.len() as u64;
                versions.retain(|(number, time, _)| {
                    from.is_some_and(|from| *time >= from)
                        || history.versions.is_some_and(|kept| number + kept >= len)
                });
                // Without retained versions of a row, their number is unknown.
                let base = versions.first().map_or(0, |version| version.0);
                if history.versions.is_none() {
                    versions.iter_mut().for_each(|version| version.0 -= base);
                }
                !versions.is_empty()
            });
        }
    }

    fn side(&mut self, root: StreamId, row: &InputRow) {
        for (stream, values) in self.views(root, row) {
            self.outcome.late.entry(stream).or_default().push(values.into());
        }
    }

    /// Executes one input event. First its transactions run in the handlers' declaration order,
    /// each with its cascade. Then the procedures of its round run, in the order of their turns.
    fn event(&mut self, event: Coming) {
        let Coming { stamp, views, .. } = &event;
        let mut agenda = Agenda::default();
        for handler in 0..self.program.handlers.len() {
            for input in self.program.handlers[handler].inputs() {
                let view = views.iter().find(|(s, _)| *s == input.stream);
                if self.program.streams[input.stream.index()].batch.is_some() {
                    continue;
                }
                if let Some((stream, values)) = view {
                    self.hand(handler, *stream, stamp, values, &mut agenda);
                }
            }
        }
        for (stream, batch) in self.open.take(&event) {
            for handler in self.program.handlers_on(stream) {
                for values in &batch {
                    self.hand(handler, stream, stamp, values, &mut agenda);
                }
            }
        }
        while let Some((turn, given)) = agenda.pop() {
            self.turn(turn, given, stamp, &mut agenda);
        }
    }

    /// Gives an event to a handler: a procedure takes it in its turn with the round's other events,
    /// others at once.
    fn hand(
        &mut self,
        handler: usize,
        stream: StreamId,
        stamp: &Stamp,
        event: &[Value],
        agenda: &mut Agenda,
    ) {
        match self.program.handlers[handler].is_procedure() {
            true => agenda.add(&self.turns, handler, stream, event.into()),
            false => self.transact(handler, stamp, event, agenda),
        }
    }

    /// Records an emitted event and executes what it triggers.
    fn emit(&mut self, stream: StreamId, row: &[Value], stamp: &Stamp, agenda: &mut Agenda) {
        let outputs = self.outcome.outputs.entry(stream).or_default();
        outputs.push((stamp.clone(), row.into()));
        for next in self.program.handlers_on(stream) {
            self.hand(next, stream, stamp, row, agenda);
        }
    }

    /// Executes the procedures of a turn as one transaction.
    fn turn(&mut self, number: usize, mut given: Given, stamp: &Stamp, agenda: &mut Agenda) {
        let turn = self.turns.all[number].clone();
        let before = self.outcome.tables.clone();
        let moment = self.moment(stamp, turn.step);
        let Outcome { tables, histories, .. } = &mut self.outcome;
        let mut rows = Maps { tables, histories };
        let mut work = Work::new(self.program, &mut rows, turn.procedures[0], &moment);
        let (mut emitted, mut aborted): (Vec<Emitted>, _) = (Vec::new(), None);
        for (place, index) in turn.procedures.iter().enumerate() {
            let handler = &self.program.handlers[*index];
            let Some(batches) = given.batches(handler, place) else { continue };
            let Body::Opaque(opaque) = handler.body else {
                unreachable!("the program was checked")
            };
            work.inside.handler = *index;
            let function = &self.program.opaques[opaque];
            if let Err(abort) = work.function(|work| function.call_batch(&batches, work)) {
                aborted = Some(abort);
                break;
            }
            let events = std::mem::take(&mut work.inside.emitted);
            for (stream, row) in &events {
                for (place, next) in turn.procedures.iter().enumerate() {
                    if self.program.handlers_on(*stream).any(|taking| taking == *next) {
                        given.add(place, *stream, row[..].into(), false);
                    }
                }
            }
            emitted.push((place, events));
        }
        let written = work.written;
        match aborted {
            None => self.append(written, stamp.at.time_us),
            Some(abort) => {
                self.outcome.tables = before;
                emitted = given.aborted(self.program, &turn, &abort.public_reason());
                self.outcome.aborts += emitted.len() as u64;
            }
        }
        self.outcome.transactions += emitted.len() as u64;
        for (place, events) in emitted {
            for (ordinal, (stream, row)) in events.into_iter().enumerate() {
                let derived = stamp.derived((turn.step + place) as u16, ordinal as u32);
                let outputs = self.outcome.outputs.entry(stream).or_default();
                outputs.push((derived.clone(), row.clone().into()));
                for next in self.program.handlers_on(stream) {
                    if !turn.procedures.contains(&next) {
                        self.hand(next, stream, &derived, &row, agenda);
                    }
                }
            }
        }
    }

    /// Slides the windows that are due, each in a transaction of its owner and with all that this
    /// triggers.
    fn fire(&mut self, windows: &[WindowId], until: Until) {
        loop {
            let tables = &self.outcome.tables;
            let mut row = |table: TableId, key: &[Value]| {
                Ok::<_, Infallible>(tables[table.index()].get(&Key::of(key)).cloned())
            };
            let Ok(due) = firing::due(self.program, windows, until, &mut row);
            let Some((window, edge)) = due else { return };
            let owner = self.program.windows[window.index()].owner.index();
            let stamp = firing::stamp(window, edge);
            let moment = self.moment(&stamp, owner);
            self.outcome.transactions += 1;
            let before = self.outcome.tables.clone();
            let mut emitted = Vec::new();
            for is_quiet in [false, true] {
                let Outcome { tables, histories, .. } = &mut self.outcome;
                let mut rows = Maps { tables, histories };
                let mut work = Work::new(self.program, &mut rows, owner, &moment);
                let result = work.function(|work| work.slide_in_time(window, is_quiet));
                if result.is_ok() {
                    emitted = work.inside.emitted;
                    let written = work.written;
                    self.append(written, edge);
                    break;
                }
                self.outcome.tables = before.clone();
                self.outcome.aborts += 1;
            }
            let mut agenda = Agenda::default();
            for (ordinal, (stream, row)) in emitted.into_iter().enumerate() {
                let derived = stamp.derived(owner as u16, ordinal as u32);
                self.emit(stream, &row, &derived, &mut agenda);
            }
            while let Some((turn, given)) = agenda.pop() {
                self.turn(turn, given, &stamp, &mut agenda);
            }
        }
    }

    /// Executes one transaction, and depth first everything that its outputs trigger.
    fn transact(&mut self, index: usize, stamp: &Stamp, event: &[Value], agenda: &mut Agenda) {
        let handler = &self.program.handlers[index];
        let before = self.outcome.tables.clone();
        let moment = self.moment(stamp, index);
        let Outcome { tables, histories, .. } = &mut self.outcome;
        let mut rows = Maps { tables, histories };
        let mut work = Work::new(self.program, &mut rows, index, &moment);
        let result = match stamp.path.len() > self.program.handlers.len() {
            true => Err(reasons::endless()),
            false => work.handler(event),
        };
        let emitted = match result {
            Ok(()) => {
                let (written, emitted) = (work.written, work.inside.emitted);
                self.append(written, stamp.at.time_us);
                emitted
            }
            Err(abort) => {
                self.outcome.tables = before;
                self.outcome.aborts += 1;
                let row = self.program.abort_event(index, event, &abort.public_reason());
                vec![(handler.aborted, row)]
            }
        };
        self.outcome.transactions += 1;
        for (ordinal, (stream, row)) in emitted.into_iter().enumerate() {
            let derived = stamp.derived(index as u16, ordinal as u32);
            self.emit(stream, &row, &derived, agenda);
        }
    }
}

impl Machine<'_> {
    /// Appends a version of each row that a transaction has written and not deleted.
    fn append(&mut self, written: BTreeSet<(TableId, Key)>, time_us: i64) {
        for (table, key) in written {
            let table = table.index();
            if self.program.tables[table].history.is_none() {
                continue;
            }
            if let Some(row) = self.outcome.tables[table].get(&key) {
                let versions = self.outcome.histories[table].entry(key).or_default();
                versions.push((versions.len() as u64, time_us, row.clone()));
            }
        }
    }
}
