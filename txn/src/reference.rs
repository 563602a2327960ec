//! The one guarantee, executed slowly: all transactions one at a time, in the one order.
//!
//! > The outcome — table contents, outputs, aborts — is a function of the program, the initial
//! > state, the inputs and the recorded cuts.
//!
//! This file is the definition; every fast path is tested against it, bit for bit. What it shares
//! with them: the rules of values (`tidemill_core::rules`), the meaning of a map or filter
//! ([`crate::program::Stage::apply`]), which streams share a watermark ([`Groups`]), whose turn it is in a
//! round ([`crate::program::rounds`]), and how a closure is called on copies of its rows. All else is its own: expressions are walked from the root each time, tables
//! are ordered maps, an abort restores a copy of all of them, the order is a sort by stamp, and
//! watermarks are computed from the events seen so far. So it catches what goes wrong in slots,
//! versions, histories, indexes, compiled programs, merging, parking and batching; what it can't catch is a mistake in
//! what is shared, for which there are tests beside it.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_core::stamp::Admission;
use tidemill_core::{
    encode, rules, Column, DataType, Key, Late, Position, Row, SourceId, Stamp, StreamId,
    StreamTime, TableId, TableSpec, Value,
};

use crate::execute::{on_frames, OnFrames};
use crate::order::Groups;
use crate::program::rounds::{Agenda, Emitted, Given, Turns};
use crate::program::{
    evaluate, key_value, reasons, Abort, Aggregate, Body, Declared, Native, Op, Origin, Program,
    RowId, Scope, Tx, VarId, Window, WindowRead,
};

/// One row of a source, decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct InputRow {
    /// Its place in the source; rows that could not be decoded leave a gap.
    pub offset: u64,
    /// Its values.
    pub values: Vec<Value>,
}

/// A cut, as far as it is an input of the outcome; watermarks follow from it.
#[derive(Clone, Debug, PartialEq)]
pub struct CutAt {
    /// Per source: the offset of the first row beyond the cut.
    pub offsets: Vec<u64>,
    /// The clock in microseconds.
    pub clock_us: i64,
    /// Sources held idle.
    pub idle: Vec<SourceId>,
    /// Sources that have ended.
    pub ended: Vec<SourceId>,
}

/// A version of a row: its number among the versions of the row, its time, and the row.
pub type Version = (u64, i64, Row);

/// What a run comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Per table: its rows by key.
    pub tables: Vec<BTreeMap<Key, Row>>,
    /// Per table: the versions of its rows by key, oldest first. In the end these are what the
    /// history keeps.
    pub histories: Vec<BTreeMap<Key, Vec<Version>>>,
    /// Per stream: its output events in order, with their stamps.
    pub outputs: BTreeMap<StreamId, Vec<(Stamp, Row)>>,
    /// Per stream (input or derived): the events that came too late.
    pub late: BTreeMap<StreamId, Vec<Row>>,
    /// Events that a map or filter could not compute: its stream, the offset, the reason.
    pub dead: Vec<(StreamId, u64, String)>,
    /// Per cut: the watermark of each stream.
    pub watermarks: Vec<Vec<Position>>,
    /// Transactions, aborted ones included.
    pub transactions: u64,
    /// Aborted transactions.
    pub aborts: u64,
    /// The first late event of a stream that wants an error, when there was one: the run ends
    /// there.
    pub late_error: Option<(StreamId, u64)>,
}

/// Runs a program over its sources with these cuts.
pub fn run(program: &Program, sources: &[Vec<InputRow>], cuts: &[CutAt]) -> Outcome {
    let groups = Groups::of(program).expect("the program was checked");
    let turns = Turns::of(program).expect("the program was checked");
    let mut machine = Machine { program, turns, outcome: Outcome::default() };
    machine.outcome.tables = vec![BTreeMap::new(); program.tables.len()];
    machine.outcome.histories = vec![BTreeMap::new(); program.tables.len()];
    let mut taken = vec![0usize; sources.len()];
    let mut waiting: Vec<(Position, &InputRow)> = Vec::new();
    let mut marks = vec![Position::MIN; groups.len];
    let mut clock = i64::MIN;
    for (index, cut) in cuts.iter().enumerate() {
        let epoch = index as u64 + 1;
        clock = cut.clock_us.max(clock.saturating_add(1));
        // What has come since the last cut.
        let mut fresh: Vec<(SourceId, &InputRow)> = Vec::new();
        for (source, rows) in sources.iter().enumerate() {
            while taken[source] < rows.len() && rows[taken[source]].offset < cut.offsets[source] {
                fresh.push((SourceId(source as u32), &rows[taken[source]]));
                taken[source] += 1;
            }
        }
        let before = marks.clone();
        for (group, mark) in marks.iter_mut().enumerate() {
            *mark = watermark(program, &groups, group, sources, cut).max(*mark);
        }
        // Each event's place, if it is ready now.
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
            let at = Position { time_us: time(&row.values[column]), source, offset: row.offset };
            if at >= before[group] {
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
        for (stamp, source, row) in ready {
            let stream = program.sources[source.index()].stream;
            machine.event(stream, &stamp, row);
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

/// The place before which everything of a group has come, as the events up to the cut have it.
fn watermark(
    program: &Program,
    groups: &Groups,
    group: usize,
    sources: &[Vec<InputRow>],
    cut: &CutAt,
) -> Position {
    let mut live = Vec::new();
    let mut idle = Vec::new();
    let mut all_ended = true;
    for (index, spec) in program.sources.iter().enumerate() {
        let source = SourceId(index as u32);
        let stream = &program.streams[spec.stream.index()].spec;
        let StreamTime::Event { column } = stream.time else { continue };
        if groups.of[spec.stream.index()] != group || cut.ended.contains(&source) {
            continue;
        }
        all_ended = false;
        let offset = cut.offsets[index];
        let newest = sources[index]
            .iter()
            .filter(|row| row.offset < offset)
            .map(|row| time(&row.values[column]))
            .max();
        if cut.idle.contains(&source) {
            idle.extend(newest.map(|time_us| Position { time_us, source, offset }));
        } else {
            live.push(newest.map_or(Position::MIN, |t| Position {
                time_us: t.saturating_sub(spec.disorder_us),
                source,
                offset,
            }));
        }
    }
    if all_ended {
        return Position::MAX;
    }
    live.into_iter().min().or(idle.into_iter().max()).unwrap_or(Position::MIN)
}

struct Machine<'a> {
    program: &'a Program,
    /// In which order procedures run in a round.
    turns: Turns,
    outcome: Outcome,
}

impl Machine<'_> {
    /// The streams that an event of an input stream is on, with its columns there. Where a stage
    /// can't compute, the event does not come to that stream or those behind it, and is noted as
    /// dead.
    fn views(&mut self, root: StreamId, row: &InputRow) -> Vec<(StreamId, Vec<Value>)> {
        let mut views = vec![(root, row.values.clone())];
        // Derived streams are declared after what they come from.
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

    /// Takes from the histories what they do not keep.
    fn forget(&mut self, frontiers_us: &[i64]) {
        for (index, table) in self.program.tables.iter().enumerate() {
            let history = table.history.unwrap_or_default();
            let from = history.kept_from(frontiers_us[index]);
            self.outcome.histories[index].retain(|_, versions| {
                let len = versions.len() as u64;
                versions.retain(|(number, time, _)| {
                    from.is_some_and(|from| *time >= from)
                        || history.versions.is_some_and(|kept| number + kept >= len)
                });
                // Where nothing may be kept of a row, nobody knows how many versions there were.
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

    /// One input event: its transactions in the handlers' declaration order, each with its cascade;
    /// then the procedures of its round, in the order of their turns.
    fn event(&mut self, root: StreamId, stamp: &Stamp, row: &InputRow) {
        let (views, mut agenda) = (self.views(root, row), Agenda::default());
        for handler in 0..self.program.handlers.len() {
            for input in self.program.handlers[handler].inputs() {
                if let Some((stream, values)) = views.iter().find(|(s, _)| *s == input.stream) {
                    self.hand(handler, *stream, stamp, values, &mut agenda);
                }
            }
        }
        while let Some((turn, given)) = agenda.next() {
            self.turn(turn, given, stamp, &mut agenda);
        }
    }

    /// A handler takes an event: now, or, with all others of the round, when it is its turn.
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

    /// Something was emitted: an output, and whatever it sets off.
    fn emit(&mut self, stream: StreamId, row: &[Value], stamp: &Stamp, agenda: &mut Agenda) {
        let outputs = self.outcome.outputs.entry(stream).or_default();
        outputs.push((stamp.clone(), row.into()));
        for next in self.program.handlers_on(stream) {
            self.hand(next, stream, stamp, row, agenda);
        }
    }

    /// The procedures of a turn, as one transaction.
    fn turn(&mut self, number: usize, mut given: Given, stamp: &Stamp, agenda: &mut Agenda) {
        let turn = self.turns.all[number].clone();
        let before = self.outcome.tables.clone();
        let mut work = Work {
            program: self.program,
            tables: &mut self.outcome.tables,
            histories: &self.outcome.histories,
            time_us: stamp.at.time_us,
            written: BTreeSet::new(),
            handler: turn.procedures[0],
            emitted: Vec::new(),
            operations: 0,
        };
        let (mut emitted, mut aborted): (Vec<Emitted>, _) = (Vec::new(), None);
        for (place, index) in turn.procedures.iter().enumerate() {
            let handler = &self.program.handlers[*index];
            let Some(batches) = given.batches(handler, place) else { continue };
            let Body::Opaque(opaque) = handler.body else {
                unreachable!("the program was checked")
            };
            work.handler = *index;
            if let Err(abort) = self.program.opaques[opaque].call_batch(&batches, &mut work) {
                aborted = Some(abort);
                break;
            }
            let events = std::mem::take(&mut work.emitted);
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
                emitted = given.aborted(self.program, &turn, &abort.reason);
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

    /// One transaction, and depth first everything that its outputs set off.
    fn transact(&mut self, index: usize, stamp: &Stamp, event: &[Value], agenda: &mut Agenda) {
        let handler = &self.program.handlers[index];
        let before = self.outcome.tables.clone();
        let mut work = Work {
            program: self.program,
            tables: &mut self.outcome.tables,
            histories: &self.outcome.histories,
            time_us: stamp.at.time_us,
            written: BTreeSet::new(),
            handler: index,
            emitted: Vec::new(),
            operations: 0,
        };
        let result = match &handler.body {
            _ if stamp.path.len() > self.program.handlers.len() => Err(reasons::endless()),
            Body::Declared(declared) => work.declared(declared, event),
            Body::Native(native) => work.native(&self.program.natives[*native], event),
            Body::Opaque(opaque) => self.program.opaques[*opaque].call(event, &mut work),
        };
        let emitted = match result {
            Ok(()) => {
                let (written, emitted) = (work.written, work.emitted);
                self.append(written, stamp.at.time_us);
                emitted
            }
            Err(abort) => {
                self.outcome.tables = before;
                self.outcome.aborts += 1;
                let mut row = event.to_vec();
                row.push(Value::str(&abort.reason));
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
    /// The rows that a transaction has written and left there are versions now. A deletion is none.
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

/// One transaction at work, on the tables themselves.
struct Work<'a> {
    program: &'a Program,
    tables: &'a mut Vec<BTreeMap<Key, Row>>,
    histories: &'a [BTreeMap<Key, Vec<Version>>],
    time_us: i64,
    /// The rows it has written.
    written: BTreeSet<(TableId, Key)>,
    /// Whose it is.
    handler: usize,
    emitted: Vec<(StreamId, Vec<Value>)>,
    /// Of functions, until now.
    operations: usize,
}

struct Variables<'a> {
    event: &'a [Value],
    vars: Vec<Value>,
}

impl Scope for Variables<'_> {
    fn column(&self, column: u16) -> Value {
        self.event[usize::from(column)].clone()
    }

    fn var(&self, var: VarId) -> Value {
        self.vars.get(var.index()).cloned().unwrap_or(Value::Null)
    }
}

impl Work<'_> {
    fn declared(&mut self, declared: &Declared, event: &[Value]) -> Result<(), Abort> {
        let mut scope = Variables { event, vars: Vec::new() };
        let mut made: Vec<(TableId, Vec<Value>)> = Vec::new();
        for step in &declared.steps {
            let eval = |id| evaluate(&declared.exprs, id, &scope);
            if let Some(when) = step.when {
                match eval(when)? {
                    Value::Bool(true) => {}
                    Value::Bool(false) => continue,
                    _ => return Err(rules::Fault::NULL.into()),
                }
            }
            let key = match step.op.row() {
                Some(row) => self.key(declared, row, &scope)?,
                None => Vec::new(),
            };
            let table = step.op.row().map(|row| declared.rows[row.index()].table);
            let spec = table.map(|t| &self.program.tables[t.index()]);
            let held = match table {
                Some(table) => self.tables[table.index()].get(&Key::of(&key)).cloned(),
                None => None,
            };
            let assign = |row: &mut Vec<Value>, values: &[(u16, _)]| -> Result<(), Abort> {
                for (column, value) in values {
                    let column = usize::from(*column);
                    let spec = &spec.expect("it has a row").schema.columns[column];
                    row[column] = rules::store(&eval(*value)?, spec)?;
                }
                Ok(())
            };
            match &step.op {
                Op::Read { column, var, .. } => {
                    let row = held.map_or_else(|| spec.unwrap().missing_row(&key), Vec::from);
                    let value = row[usize::from(*column)].clone();
                    set_var(&mut scope.vars, *var, value);
                }
                Op::Exists { var, .. } => {
                    set_var(&mut scope.vars, *var, Value::Bool(held.is_some()));
                }
                Op::Window { window, column, aggregate, var, .. } => {
                    let value = self.over(table.unwrap(), &key, window, *column, aggregate)?;
                    set_var(&mut scope.vars, *var, value);
                }
                Op::Range { table, from, to, column, aggregate, var } => {
                    let bound = |ids: &[_]| ids.iter().map(|id| eval(*id)).collect();
                    let (from, to): (Result<Vec<_>, _>, Result<Vec<_>, _>) =
                        (bound(from), bound(to));
                    let rows = self.between(*table, &from?, &to?)?;
                    let spec = &self.program.tables[table.index()];
                    let value = made_of(rows, spec, *column, aggregate)?;
                    set_var(&mut scope.vars, *var, value);
                }
                Op::Require { cond, reason } => match eval(*cond)? {
                    Value::Bool(true) => {}
                    Value::Bool(false) => {
                        return Err(match eval(*reason)? {
                            Value::Str(reason) => Abort::refused(&*reason),
                            _ => rules::Fault::NULL.into(),
                        })
                    }
                    _ => return Err(rules::Fault::NULL.into()),
                },
                Op::Set { column, value, .. } => {
                    let spec = spec.unwrap();
                    let mut row = match held {
                        Some(row) => Vec::from(row),
                        None => {
                            made.push((table.unwrap(), key.clone()));
                            spec.missing_row(&key)
                        }
                    };
                    assign(&mut row, &[(*column, *value)])?;
                    self.write(table.unwrap(), &key, row);
                }
                Op::Insert { values, .. } | Op::Upsert { values, .. } => {
                    let spec = spec.unwrap();
                    let mut row = spec.missing_row(&key);
                    assign(&mut row, values)?;
                    if held.is_some() && matches!(step.op, Op::Insert { .. }) {
                        return Err(reasons::exists(spec, &key));
                    }
                    self.write(table.unwrap(), &key, row);
                }
                Op::Update { values, .. } => {
                    let spec = spec.unwrap();
                    let there = held.is_some();
                    let mut row = held.map_or_else(|| spec.missing_row(&key), Vec::from);
                    assign(&mut row, values)?;
                    if !there {
                        return Err(reasons::missing(spec, &key));
                    }
                    self.write(table.unwrap(), &key, row);
                }
                Op::Delete { .. } => {
                    self.write_none(table.unwrap(), &key);
                }
                Op::Emit { stream, values } => {
                    let columns = &self.program.streams[stream.index()].spec.schema.columns;
                    let row: Result<Vec<Value>, rules::Fault> = values
                        .iter()
                        .zip(columns)
                        .map(|(value, column)| rules::store(&eval(*value)?, column))
                        .collect();
                    self.emitted.push((*stream, row?));
                }
            }
        }
        // A row that came to be by setting its columns must have them all in the end.
        for (table, key) in made {
            let spec = &self.program.tables[table.index()];
            if let Some(row) = self.tables[table.index()].get(&Key::of(&key)) {
                let columns = spec.schema.columns.iter().zip(row.iter());
                for (index, (column, value)) in columns.enumerate() {
                    if value.is_null() && !column.nullable {
                        return Err(reasons::no_value(spec, &key, index));
                    }
                }
            }
        }
        Ok(())
    }

    fn key(&self, declared: &Declared, row: RowId, scope: &Variables) -> Result<Vec<Value>, Abort> {
        let row = &declared.rows[row.index()];
        let spec = &self.program.tables[row.table.index()];
        row.key.iter().map(|id| key_value(evaluate(&declared.exprs, *id, scope)?, spec)).collect()
    }

    fn native(&mut self, native: &Native, event: &[Value]) -> Result<(), Abort> {
        let event_words: Vec<u64> = event.iter().map(|v| v.word().expect("checked")).collect();
        let (mut words, mut bases, mut keys) =
            (Vec::new(), Vec::new(), Vec::<(TableId, Vec<Value>)>::new());
        let mut present = 0u128;
        for (index, row) in native.rows.iter().enumerate() {
            let spec = &self.program.tables[row.table.index()];
            let key: Result<Vec<Value>, Abort> = row
                .key
                .iter()
                .map(|id| key_value(evaluate(&native.exprs, *id, event)?, spec))
                .collect();
            let key = key?;
            let held = self.tables[row.table.index()].get(&Key::of(&key));
            present |= u128::from(held.is_some()) << index;
            let same = keys.iter().position(|(t, k)| (*t, k) == (row.table, &key));
            match same {
                Some(same) => bases.push(bases[same]),
                None => {
                    bases.push(words.len() as u32);
                    let row = held.map_or_else(|| spec.missing_row(&key), |r| r.to_vec());
                    for value in row {
                        words.push(value.word().ok_or_else(|| reasons::missing(spec, &key))?);
                    }
                }
            }
            keys.push((row.table, key));
        }
        let windows = |row: usize, own: Option<Vec<Value>>, read: &WindowRead| {
            let (table, key): &(TableId, Vec<Value>) = &keys[row];
            self.over_copy(*table, key, own, &read.window, read.column, &read.aggregate)
        };
        let (program, frames) = (self.program, &mut words);
        let done = on_frames(program, native, &event_words, frames, &bases, present, &windows);
        let OnFrames { dirty, emitted } = done.map_err(Abort::refused)?;
        for (index, (table, key)) in keys.iter().enumerate() {
            if dirty >> index & 1 == 1 {
                let columns = &self.program.tables[table.index()].schema.columns;
                let row = columns
                    .iter()
                    .enumerate()
                    .map(|(i, column)| word_value(&column.ty, words[bases[index] as usize + i]));
                let row = row.collect();
                self.write(*table, key, row);
            }
        }
        let mut rest = &emitted[..];
        while let Some((stream, tail)) = rest.split_first() {
            let stream = native.emits[*stream as usize];
            let columns = &self.program.streams[stream.index()].spec.schema.columns;
            let (row, tail) = tail.split_at(columns.len());
            let row = columns.iter().zip(row).map(|(c, w)| word_value(&c.ty, *w)).collect();
            self.emitted.push((stream, row));
            rest = tail;
        }
        Ok(())
    }
}

/// What an aggregate makes of the values of a column.
fn made_of(
    rows: impl IntoIterator<Item = Row>,
    spec: &TableSpec,
    column: u16,
    aggregate: &Aggregate,
) -> Result<Value, Abort> {
    let rows: Vec<Row> = rows.into_iter().collect();
    if let Aggregate::Fold(fold) = aggregate {
        return rows.iter().try_fold(fold.start(), |state, row| {
            let scope = Variables { event: row, vars: vec![state] };
            Ok(evaluate(&fold.exprs, fold.step, &scope)?)
        });
    }
    let Column { ty, .. } = &spec.schema.columns[usize::from(column)];
    let all: Vec<Value> = rows.iter().map(|row| row[usize::from(column)].clone()).collect();
    let values: Vec<&Value> = all.iter().filter(|value| !value.is_null()).collect();
    let exact = || values.iter().map(|v| i128::from(v.word().expect("a number") as i64)).sum();
    let floats = || {
        values.iter().fold(0.0, |sum, v| match v {
            Value::Float(f) => sum + f,
            _ => unreachable!("the program was checked"),
        })
    };
    let order = |value: &&&Value| {
        let mut bytes = Vec::new();
        encode::value(value, &mut bytes);
        bytes
    };
    Ok(match aggregate {
        Aggregate::Count => Value::Int(values.len() as i64),
        Aggregate::Sum if *ty == DataType::Float => Value::Float(floats()),
        Aggregate::Sum => rules::sum_of(exact(), ty)?,
        Aggregate::Avg if values.is_empty() => Value::Null,
        Aggregate::Avg if *ty == DataType::Float => Value::Float(floats() / values.len() as f64),
        Aggregate::Avg => rules::mean_of(exact(), values.len() as u64, ty),
        Aggregate::Min => values.iter().min_by_key(order).map_or(Value::Null, |v| (*v).clone()),
        Aggregate::Max => values.iter().max_by_key(order).map_or(Value::Null, |v| (*v).clone()),
        Aggregate::First => all.first().cloned().unwrap_or(Value::Null),
        Aggregate::Last => all.last().cloned().unwrap_or(Value::Null),
        Aggregate::Fold(_) => unreachable!("handled above"),
    })
}

/// The value of a word; floats get their one NaN.
pub(crate) fn word_value(ty: &tidemill_core::DataType, word: u64) -> Value {
    use tidemill_core::DataType;
    match ty {
        DataType::Bool => Value::Bool(word != 0),
        DataType::Timestamp => Value::Timestamp(word as i64),
        DataType::Decimal(scale) => Value::Decimal(word as i64, *scale),
        DataType::Float => Value::Float(tidemill_core::value::canonical_f64(f64::from_bits(word))),
        _ => Value::Int(word as i64),
    }
}

fn set_var(vars: &mut Vec<Value>, var: VarId, value: Value) {
    if vars.len() <= var.index() {
        vars.resize(var.index() + 1, Value::Null);
    }
    vars[var.index()] = value;
}

impl Tx for Work<'_> {
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        reasons::count(&mut self.operations, 1)?;
        let key = self.checked_key(table, key)?;
        Ok(self.tables[table.index()].get(&Key::of(&key)).cloned())
    }

    fn window(
        &mut self,
        table: TableId,
        key: &[Value],
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        reasons::count(&mut self.operations, 1)?;
        let key = self.checked_key(table, key)?;
        let spec = &self.program.tables[table.index()];
        let checked = window.check(spec).and_then(|()| aggregate.result(spec, column));
        checked.map_err(|error| reasons::refused(&error))?;
        self.over(table, &key, window, column, aggregate)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        limit: usize,
    ) -> Result<Vec<Row>, Abort> {
        reasons::count(&mut self.operations, 1)?;
        if !self.program.tables[table.index()].ordered {
            return Err(reasons::not_ordered(&self.program.tables[table.index()]));
        }
        let (from, to) = (self.checked_bound(table, from)?, self.checked_bound(table, to)?);
        let rows: Vec<Row> = self.between(table, &from, &to)?.into_iter().take(limit).collect();
        reasons::count(&mut self.operations, rows.len())?;
        Ok(rows)
    }

    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Abort> {
        reasons::count(&mut self.operations, 1)?;
        let spec = &self.program.tables[table.index()];
        if row.len() != spec.schema.len() {
            return Err(reasons::wrong_shape(&spec.name, spec.schema.len(), row.len()));
        }
        let stored: Result<Vec<Value>, rules::Fault> =
            row.iter().zip(&spec.schema.columns).map(|(v, c)| rules::store(v, c)).collect();
        let mut stored = stored?;
        for column in &spec.key {
            stored[*column] = key_value(stored[*column].clone(), spec)?;
        }
        let key: Vec<Value> = spec.key.iter().map(|c| stored[*c].clone()).collect();
        self.write(table, &key, stored);
        Ok(())
    }

    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        reasons::count(&mut self.operations, 1)?;
        let key = self.checked_key(table, key)?;
        self.write_none(table, &key);
        Ok(())
    }

    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Abort> {
        reasons::count(&mut self.operations, 1)?;
        let spec = &self.program.streams[stream.index()];
        let handler = &self.program.handlers[self.handler];
        let may = |emits: &Vec<StreamId>| emits.contains(&stream);
        let is_open = spec.origin == Origin::Emitted && handler.emits.as_ref().is_none_or(may);
        if Some(stream) != handler.output && !is_open {
            return Err(reasons::not_emittable(&spec.spec.name));
        }
        let columns = &spec.spec.schema.columns;
        if row.len() != columns.len() {
            return Err(reasons::wrong_shape(&spec.spec.name, columns.len(), row.len()));
        }
        let stored: Result<Vec<Value>, rules::Fault> =
            row.iter().zip(columns).map(|(v, c)| rules::store(v, c)).collect();
        self.emitted.push((stream, stored?));
        Ok(())
    }
}

impl Work<'_> {
    fn write(&mut self, table: TableId, key: &[Value], row: Vec<Value>) {
        self.written.insert((table, Key::of(key)));
        self.tables[table.index()].insert(Key::of(key), row.into());
    }

    fn write_none(&mut self, table: TableId, key: &[Value]) {
        self.written.insert((table, Key::of(key)));
        self.tables[table.index()].remove(&Key::of(key));
    }

    /// What a window comes to. All versions are there, whatever the history keeps: a program can't
    /// see what is gone.
    fn over(
        &self,
        table: TableId,
        key: &[Value],
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        let is_written = self.written.contains(&(table, Key::of(key)));
        let own = self.tables[table.index()].get(&Key::of(key)).filter(|_| is_written);
        let own = own.map(|row| row.to_vec());
        self.over_copy(table, key, own, window, column, aggregate)
    }

    /// The same, with the row as the transaction has written it.
    fn over_copy(
        &self,
        table: TableId,
        key: &[Value],
        own: Option<Vec<Value>>,
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        let (spec, key) = (&self.program.tables[table.index()], Key::of(key));
        let now = self.time_us;
        let mut versions = self.histories[table.index()].get(&key).cloned().unwrap_or_default();
        versions.extend(own.map(|row| (versions.len() as u64, now, row.into())));
        let len = versions.len() as u64;
        let wide = i128::from;
        if let Window::Session { gap_us } = window {
            // It may not go further back than the history does.
            let from = spec.history.and_then(|h| h.kept_from(now)).unwrap_or(now);
            let (mut last, mut first) = (now, versions.len());
            while first > 0 {
                let time = versions[first - 1].1;
                if time < from || wide(last) - wide(time) > wide(*gap_us) {
                    break;
                }
                (last, first) = (time, first - 1);
            }
            versions.drain(..first);
        }
        let floor = |size: i64| wide(now).div_euclid(wide(size)) * wide(size);
        versions.retain(|(number, time, _)| {
            let time = wide(*time);
            match *window {
                Window::Sliding { size_us } => time > wide(now) - wide(size_us),
                Window::Tumbling { size_us } => time >= floor(size_us),
                Window::Hopping { size_us, slide_us } => {
                    time >= floor(slide_us) - wide(size_us) && time < floor(slide_us)
                }
                Window::Session { .. } => true,
                Window::Last { versions } => number + versions >= len,
                Window::TumblingVersions { versions } => {
                    number / versions == len.saturating_sub(1) / versions
                }
            }
        });
        made_of(versions.into_iter().map(|(_, _, row)| row), spec, column, aggregate)
    }

    /// The rows whose keys are in a range, in key order.
    fn between(&self, table: TableId, from: &[Value], to: &[Value]) -> Result<Vec<Row>, Abort> {
        let spec = &self.program.tables[table.index()];
        let bytes = |bound: &[Value]| -> Result<Vec<u8>, Abort> {
            let mut bytes = Vec::new();
            for value in bound {
                encode::key(&key_value(value.clone(), spec)?, &mut bytes);
            }
            Ok(bytes)
        };
        let (from, to) = (bytes(from)?, bytes(to)?);
        let rows = self.tables[table.index()].iter();
        Ok(rows
            .filter(|(key, _)| *key.0 >= from[..] && (to.is_empty() || *key.0 < to[..]))
            .map(|(_, row)| row.clone())
            .collect())
    }

    fn checked_bound(&self, table: TableId, bound: &[Value]) -> Result<Vec<Value>, Abort> {
        let spec = &self.program.tables[table.index()];
        if bound.len() > spec.key.len() {
            return Err(reasons::wrong_shape(&spec.name, spec.key.len(), bound.len()));
        }
        let columns = spec.key.iter().map(|column| &spec.schema.columns[*column]);
        let stored = bound
            .iter()
            .zip(columns)
            .map(|(value, column)| Ok(rules::store(&key_value(value.clone(), spec)?, column)?));
        stored.collect()
    }
    fn checked_key(&self, table: TableId, key: &[Value]) -> Result<Vec<Value>, Abort> {
        let spec = &self.program.tables[table.index()];
        if key.len() != spec.key.len() {
            return Err(reasons::wrong_shape(&spec.name, spec.key.len(), key.len()));
        }
        key.iter()
            .zip(&spec.key)
            .map(|(value, column)| {
                let value = key_value(value.clone(), spec)?;
                Ok(rules::store(&value, &spec.schema.columns[*column])?)
            })
            .collect()
    }
}
