//! The functions of an app as the nodes that execute them see them.

use std::sync::Arc;

use tidemill_cluster::wire::put_value;
use tidemill_connect::{values, BadRow};
use tidemill_core::{Batch, Key, Row, StreamId, TableId, Value};
use tidemill_function::{
    Activation, Call, Changes, ColumnOutput, Context, Counts, EventPlace, Fault, Functions, RowAt,
    SoleResults, Step, Stop, Tid,
};
use tidemill_table::{Seq, Table};
use tidemill_txn::execute::{HandlerCounts, SoleProgram, SoleWork};
use tidemill_txn::program::{Abort, Body, Origin, Program, Stream};

use super::batches::{Batches, Last};
use super::dead::Letters;
use super::declared::Declared;
use super::once::Requests;
use super::slides::Slides;
use super::times::Times;
use super::{counts, handler_of, AppFunctions, UNREADABLE};

impl Functions for AppFunctions {
    fn program(&self) -> &Program {
        &self.program
    }

    fn begin_kept(&self, call: &Call) -> std::result::Result<Box<dyn Activation>, Abort> {
        Ok(self.begins.keep(self.begin(call)?))
    }

    fn begin(&self, call: &Call) -> std::result::Result<Box<dyn Activation>, Abort> {
        let unknown = || Abort::refused("there is no such function");
        match call.target {
            UNREADABLE => return Err(self.why_unreadable(call).unwrap_or_else(unknown)),
            Requests::TARGET => return self.requests.begin(call, |inner| self.returned(inner)),
            Letters::TARGET => {
                let letter = self.letters.event(&self.program, call)?;
                return Ok(Box::new(Emits(vec![letter])));
            }
            Times::LATE => {
                return Ok(Box::new(Emits(self.times.passed_on(&self.program, call)?)));
            }
            _ => {}
        }
        // Any client may have written the event into the log. Without a time it has no place in the
        // order.
        if self.in_time(call).is_some() && self.timed(call).is_none() {
            return Err(Abort::refused("the event has no time"));
        }
        let (number, is_request) = handler_of(call.target).ok_or_else(unknown)?;
        let handler = self.program.handlers.get(number).ok_or_else(unknown)?;
        match handler.body {
            Body::Opaque(function) => self.begins.begin(function, call, is_request),
            Body::Declared(_) if self.has_columns(number, call) => Ok(Box::new(Declared {
                program: self.program.clone(),
                times: self.times.clone(),
                likely: self.likely.clone(),
                handler: number,
                event: call.args.clone(),
            })),
            Body::Declared(_) | Body::Native(_) => Err(unknown()),
        }
    }

    fn event(&self, stream: StreamId, row: &[Value]) -> Vec<Call> {
        // Anybody may have written the event into the log.
        let is_input = |of: &Stream| of.origin == Origin::Input;
        if !self.program.streams.get(stream.index()).is_some_and(is_input) {
            return vec![self.unreadable("there is no such stream")];
        }
        let calls = AppFunctions::event(self, stream, row);
        calls.unwrap_or_else(|error| vec![self.unreadable(&error.what)])
    }

    fn dead_letter(&self, call: &Call, place: Option<&EventPlace>, reason: &str) -> Option<Call> {
        let (stream, values) = self.event_of(call)?;
        let EventPlace { name, row } = place?;
        self.letters.has(stream).then(|| {
            let values: Vec<String> = values.iter().map(ToString::to_string).collect();
            let bad = BadRow {
                offset: *row,
                origin: "engine".into(),
                line: 0,
                raw: values.join(", "),
                reason: reason.into(),
            };
            self.dead(stream, name, &bad)
        })
    }

    fn stage_letters(
        &self,
        stream: StreamId,
        batch: &Batch,
        place: &dyn Fn(usize) -> EventPlace,
    ) -> Vec<(usize, StreamId, Row)> {
        if !self.letters.has_stages_of(&self.program, stream) {
            return Vec::new();
        }
        let of_row = |row: usize| {
            let event = batch.row(row);
            let letters = self.letters.of_stages(&self.program, (stream, &event), &place(row));
            letters.into_iter().map(move |(stream, letter)| (row, stream, letter))
        };
        // Without a sole owner no handler takes events of derived streams.
        let failed = self.sole.as_ref().map(|sole| sole.failed_rows(stream, batch));
        failed.unwrap_or_else(|| (0..batch.len()).collect()).into_iter().flat_map(of_row).collect()
    }

    fn stage_letters_of(&self, call: &Call, place: &EventPlace) -> Vec<(StreamId, Row)> {
        if self.letters.is_without_stages() {
            return Vec::new();
        }
        let inner = (call.target == Requests::TARGET).then(|| Requests::inner(call)).flatten();
        let call = inner.as_ref().unwrap_or(call);
        let event = self.event_of(call).filter(|(stream, values)| self.is_row(*stream, values));
        event.map_or_else(Vec::new, |(stream, values)| {
            self.letters.of_stages(&self.program, (stream, &values), place)
        })
    }

    fn refusal(&self, reason: &str) -> Call {
        self.aborts(reason)
    }

    fn count(
        &self,
        call: &Call,
        outcome: &std::result::Result<Value, Abort>,
        (place, is_first): (Option<&EventPlace>, bool),
        counts: &mut Counts,
    ) -> Option<Fault> {
        let inner = (call.target == Requests::TARGET).then(|| Requests::inner(call)).flatten();
        let own = [Batches::TARGET, Batches::LAST, Slides::TARGET, Slides::LAST];
        let is_engines = counts::is_engines(inner.as_ref().unwrap_or(call), &own);
        counts.events += u64::from(is_first && !is_engines);
        // The transactions of a sole owner are counted by their handlers.
        let is_counted = self.sole.is_some() && self.is_event(inner.as_ref().unwrap_or(call));
        match outcome {
            Ok(_) => {
                counts.ended += u64::from(!is_engines && !is_counted);
                None
            }
            Err(abort) => {
                let handler = self.handler_of_call(call);
                let event = place.map(|at| counts::event_named(&self.program, at, handler));
                let fault = counts::abort(&self.program, counts, handler, abort, event.as_deref());
                // The caller of a function gets its fault.
                fault.filter(|_| !self.is_called(call))
            }
        }
    }

    fn by_column(&self, stream: StreamId) -> Option<&[usize]> {
        self.by_column.get(stream.index())?.as_deref()
    }

    fn has_columns(&self) -> bool {
        self.by_column.iter().any(Option::is_some)
    }

    fn sole(&self) -> Option<Arc<SoleProgram>> {
        self.sole.clone()
    }

    fn sole_work(&self, call: &Call) -> std::result::Result<SoleWork, Abort> {
        self.work(call)
    }

    fn asks_outside(&self) -> bool {
        self.asks_outside
    }

    fn request_id(&self, call: &Call) -> Option<Key> {
        Requests::id(call)
    }

    fn known_result(
        &self,
        call: &Call,
        tables: &[Table],
        now_us: i64,
    ) -> Option<std::result::Result<Value, Abort>> {
        self.requests.known(call, tables, now_us)
    }

    fn remember(
        &self,
        call: &Call,
        result: &std::result::Result<Value, Abort>,
        to: (&mut [Table], Seq),
        now_us: i64,
    ) {
        self.requests.remember(call, result, |inner| self.takes_aborts(inner), to, now_us);
    }

    fn handler_call(&self, handler: usize, row: &[Value]) -> Call {
        if let Some(stream) = handler.checked_sub(self.program.handlers.len()) {
            let mut calls = Functions::event(self, StreamId(stream as u16), row);
            return calls.pop().expect("an event has a round");
        }
        self.made(handler, row).unwrap_or_else(|error| self.unreadable(&error.what))
    }

    fn count_columns(
        &self,
        handlers: &[HandlerCounts],
        outputs: &[ColumnOutput],
        counts: &mut Counts,
    ) {
        self.counting.columns(&self.program, handlers, outputs, counts);
    }

    fn count_sole(
        &self,
        results: &SoleResults,
        outputs: &[ColumnOutput],
        place: &dyn Fn(Tid) -> Option<EventPlace>,
        counts: &mut Counts,
    ) -> Option<(Tid, Fault)> {
        self.counting.sole(&self.program, results, outputs, place, counts)
    }

    fn function_name(&self, call: &Call) -> Arc<str> {
        let handler = self.handler_of_call(call);
        handler.map_or("-".into(), |handler| self.program.handlers[handler].name.clone())
    }

    fn is_copied(&self, stream: StreamId) -> bool {
        self.written.contains(&stream)
    }

    fn count_emitted(&self, stream: StreamId, row: &[Value], counts: &mut Counts) {
        self.counting.emitted(&self.program, stream, row, counts);
    }

    fn timed(&self, call: &Call) -> Option<(StreamId, i64)> {
        if call.target == Batches::LAST {
            let Last { stream, time_us, .. } = Batches::last_of(&self.program, call)?;
            let root = self.program.root_stream(stream);
            return time_us.filter(|_| self.times.has(root)).map(|time_us| (root, time_us));
        }
        if call.target == Slides::LAST {
            let (_, Last { stream, time_us, .. }) = self.slides.last_of(call)?;
            let time_us = time_us.filter(|_| self.times.has(stream));
            return time_us.map(|time_us| (stream, time_us));
        }
        let stream = self.in_time(call)?;
        Some((stream, self.times.of(stream, &call.args)?))
    }

    fn late(&self, call: Call) -> Call {
        match self.in_time(&call) {
            Some(stream) => self.times.late(stream, call),
            None => call,
        }
    }

    fn intervals(&self, call: &Call) -> u64 {
        let stream = self.round_of(call.target).filter(|stream| self.times.has(*stream));
        let Some(stream) = stream else { return 0 };
        let is_of = |(_, of): &(u32, StreamId)| self.program.root_stream(*of) == stream;
        let mut of = (0..).zip(self.intervals.iter().copied()).filter(is_of).peekable();
        if of.peek().is_none() || !self.is_row(stream, &call.args) {
            return 0;
        }
        let views = self.program.views(stream, &call.args);
        let is_on = |of| views.on.iter().any(|(on, _)| *on == of);
        of.filter(|(_, of)| is_on(*of)).fold(0, |bits, (bit, _)| bits | 1 << bit)
    }

    fn admitted(&self, call: Call, time_us: i64) -> Call {
        // Without windows the time of the event is not visible.
        let Program { tables, windows, .. } = &*self.program;
        let has_times = tables.iter().any(|table| table.history.is_some()) || !windows.is_empty();
        match self.round_of(call.target).filter(|_| has_times) {
            Some(stream) => Times::admitted(stream, time_us, call),
            None => call,
        }
    }

    fn closes(&self, call: Call, streams: u64) -> Call {
        if call.target == Times::ADMITTED {
            return Times::admitted_ends(call, streams);
        }
        match self.round_of(call.target) {
            Some(stream) => Batches::ends(stream, streams, call),
            None => call,
        }
    }

    fn outboxes(&self) -> &[TableId] {
        &self.outboxes
    }

    fn output_bytes(&self, values: &[Value]) -> usize {
        let (mut own, mut json) = (Vec::new(), Vec::new());
        for value in values {
            put_value(value, &mut own);
            values::write(value, &mut json);
            json.push(b',');
        }
        own.len() + json.len()
    }

    fn result_event(
        &self,
        call: &Call,
        outcome: &std::result::Result<Value, Abort>,
    ) -> Option<(StreamId, Row)> {
        // A sole owner has emitted it.
        if self.written.is_empty() || self.sole.is_some() {
            return None;
        }
        let (stream, row) = self.last(call, outcome)?;
        let is_written = self.written.contains(&stream);
        // Any client may have written values into the log that fit no column.
        let row = self.program.stored_output(stream, &row).ok().filter(|_| is_written)?;
        Some((stream, row.into()))
    }

    fn declares(&self) -> bool {
        self.alone.iter().any(Option::is_some)
    }

    fn declared(&self, call: &Call) -> Option<Vec<RowAt>> {
        let (handler, _) = handler_of(call.target)?;
        let alone = self.alone.get(handler)?.as_ref()?;
        let has_no_time = self.in_time(call).is_some() && self.timed(call).is_none();
        let is_row = self.is_row(self.program.handlers[handler].input, &call.args);
        if !is_row || has_no_time {
            return None;
        }
        let rows = alone.mentions(&self.program, &call.args).into_iter();
        Some(rows.map(|(table, key, writes)| RowAt { table, key, writes }).collect())
    }

    fn run_declared(
        &self,
        call: &Call,
        rows: &[RowAt],
        are: &[Option<Arc<[Value]>>],
    ) -> std::result::Result<Changes, Abort> {
        let (handler, _) = handler_of(call.target).expect("it is declared");
        let alone = self.alone[handler].as_ref().expect("it is declared");
        let keys = rows.iter().map(|row| (row.table, &row.key));
        let (rows, events) = alone.run(&self.program, &call.args, keys, are)?;
        Ok(Changes { rows, value: None, events })
    }
}

/// A call that only emits events.
struct Emits(Vec<(StreamId, Row)>);

impl Activation for Emits {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        for (stream, row) in &self.0 {
            context.emit(*stream, row)?;
        }
        Ok(Step::Done(Value::Null))
    }
}
