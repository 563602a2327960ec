//! The results of transactions, counted.

use std::collections::BTreeMap;

use tidemill_core::{StreamId, Value};
use tidemill_function::{
    Call, ColumnOutput, Counts, EventPlace, Fault, SoleResults, Target, Tid,
    ABORTED as ABORTED_EVENT,
};
use tidemill_txn::execute::HandlerCounts;
use tidemill_txn::program::{Abort, Origin, Program, FAULT};
use tidemill_txn::reasons::by_abort_stream;

use super::slides::ABORTED;

/// The handler of an abort that no event reports.
const UNKNOWN: &str = "-";

/// The streams whose events count.
pub(super) struct Counting {
    /// The handlers, by the streams of their aborts.
    aborted: BTreeMap<StreamId, usize>,
    /// The streams of dead letters, and those of late events of input streams.
    dead: Vec<StreamId>,
    late: Vec<StreamId>,
    /// The stream of aborted slides.
    slides: Option<StreamId>,
}

impl Counting {
    pub fn of(program: &Program) -> Counting {
        let all = || (0..).map(StreamId).zip(&program.streams);
        let is_stream = |name: &str| all().any(|(_, of)| *of.spec.name == *name);
        // Each late event counts once, however many streams it is on.
        let is_input =
            |name: &str| all().any(|(_, of)| of.origin == Origin::Input && *of.spec.name == *name);
        // The streams that the engine adds to another for rows that it takes out.
        let sides = |end: &str, is_of: &dyn Fn(&str) -> bool| {
            let emitted = all().filter(|(_, of)| of.origin == Origin::Emitted);
            let own = emitted.filter(|(_, of)| of.spec.name.strip_suffix(end).is_some_and(is_of));
            own.map(|(id, _)| id).collect()
        };
        let is_slides = |of: &StreamId| {
            let stream = &program.streams[of.index()];
            stream.origin == Origin::Emitted && *stream.spec.name == *ABORTED
        };
        Counting {
            aborted: by_abort_stream(program),
            dead: sides(".dead", &is_stream),
            late: sides(".late", &is_input),
            slides: all().map(|(id, _)| id).find(is_slides),
        }
    }

    /// Counts transactions that were executed by column.
    pub fn columns(
        &self,
        program: &Program,
        handlers: &[HandlerCounts],
        outputs: &[ColumnOutput],
        counts: &mut Counts,
    ) {
        for HandlerCounts { committed, aborted, faults } in handlers {
            counts.ended += committed;
            counts.refused += aborted - faults;
            counts.faults += faults;
        }
        for ColumnOutput { stream, batch, .. } in outputs {
            if let Some(&handler) = self.aborted.get(stream) {
                counts.reasons.count(&program.handlers[handler].name, batch);
            }
        }
    }

    /// Counts events that the sole owner of all rows has executed. Returns the first fault among
    /// them, and its place. `place` is where an event comes from, if that is known.
    pub fn sole(
        &self,
        program: &Program,
        results: &SoleResults,
        outputs: &[ColumnOutput],
        place: &dyn Fn(Tid) -> Option<EventPlace>,
        counts: &mut Counts,
    ) -> Option<(Tid, Fault)> {
        for (stream, why) in &results.refused {
            let mut takers = program.takers(*stream).map(|(handler, _)| handler);
            let only = takers.next().filter(|_| takers.next().is_none());
            abort(program, counts, only, why, None);
        }
        for ColumnOutput { stream, tids, ordinals, batch } in outputs {
            let is_side = self.dead.contains(stream) || self.late.contains(stream);
            if self.slides == Some(*stream) || is_side {
                batch.rows().for_each(|row| self.emitted(program, *stream, &row, counts));
            }
            let Some(&handler) = self.aborted.get(stream) else { continue };
            // The aborts of calls are counted with their results.
            let is_own = |row: &u32| {
                let at = *row as usize;
                ordinals[at] != ABORTED_EVENT || results.calls.binary_search(&tids[at]).is_err()
            };
            let own: Vec<u32> = (0..batch.len() as u32).filter(is_own).collect();
            let batch = &if own.len() == batch.len() { batch.clone() } else { batch.take(&own) };
            counts.reasons.count(&program.handlers[handler].name, batch);
        }
        // A transaction may take several events, and each of them is in the stream of its aborts.
        counts.ended += results.committed;
        counts.refused += results.aborted;
        counts.faults += results.failed;
        let mut first: Option<(Tid, Fault)> = None;
        for (tid, handler, abort) in &results.faults {
            let tid = Tid(*tid);
            let event = place(tid).map(|at| event_named(program, &at, Some(*handler)));
            let fault = name_fault(program, counts, Some(*handler), abort, event.as_deref());
            first = first.filter(|(of, _)| *of <= tid).or(Some((tid, fault)));
        }
        first
    }

    /// Counts an event that a transaction has emitted.
    pub fn emitted(&self, program: &Program, stream: StreamId, row: &[Value], counts: &mut Counts) {
        if let Some(&handler) = self.aborted.get(&stream) {
            if let Some(Value::Str(why)) = row.last() {
                abort(program, counts, Some(handler), &public(why), None);
            }
        } else if self.dead.contains(&stream) {
            counts.dead += 1;
        } else if self.late.contains(&stream) {
            counts.late += 1;
        } else if let (true, [Value::Str(window), Value::Int(end), Value::Str(why)]) =
            (self.slides == Some(stream), row)
        {
            counts.slides += 1;
            counts.slide = Some(format!("window {window}, which ended at {end}: {why}"));
            let of = program.windows.iter().find(|of| of.name == *window);
            let event = format!("a slide of window {window}");
            let owner = of.map(|of| of.owner.index());
            // It is no transaction of a handler, so it counts only among the reasons.
            reason(program, counts, owner, &public(why), Some(&event));
        }
    }
}

/// Whether a call is a request of the engine itself, which counts only if it aborts.
pub(super) fn is_engines(call: &Call, own: &[Target]) -> bool {
    !matches!(call.target, Target::Function(_)) || own.contains(&call.target)
}

/// Names the event of a handler.
pub(super) fn event_named(program: &Program, place: &EventPlace, handler: Option<usize>) -> String {
    let of = handler.map_or(String::new(), |handler| {
        let input = program.root_stream(program.handlers[handler].input);
        format!("source {}/", program.streams[input.index()].spec.name)
    });
    format!("row {} of {of}{} (counted from 0)", place.row, place.name)
}

/// Counts an abort. Returns the fault, if it is one.
pub(super) fn abort(
    program: &Program,
    counts: &mut Counts,
    number: Option<usize>,
    abort: &Abort,
    event: Option<&str>,
) -> Option<Fault> {
    match abort.is_fault() {
        true => counts.faults += 1,
        false => counts.refused += 1,
    }
    reason(program, counts, number, abort, event)
}

/// Counts the reason of an abort. Returns the fault, if it is one.
fn reason(
    program: &Program,
    counts: &mut Counts,
    number: Option<usize>,
    abort: &Abort,
    event: Option<&str>,
) -> Option<Fault> {
    let handler = number.and_then(|number| program.handlers.get(number));
    let name = handler.map_or(UNKNOWN, |handler| &*handler.name);
    counts.reasons.add(name, &abort.public_reason(), 1);
    abort.is_fault().then(|| name_fault(program, counts, number, abort, event))
}

/// Names the last fault, with its line, and returns it.
fn name_fault(
    program: &Program,
    counts: &mut Counts,
    handler: Option<usize>,
    abort: &Abort,
    event: Option<&str>,
) -> Fault {
    let (what, at) = abort.parts();
    let handler = handler.and_then(|number| program.handlers.get(number));
    let name = handler.map_or(UNKNOWN, |handler| &*handler.name);
    // Where the line of the exception is unknown, that of the function is better than none.
    let own = handler.map(|handler| handler.at.as_str()).filter(|at| !at.is_empty());
    let line = at.or(own).map(str::to_owned);
    if let Some(line) = &line {
        counts.reasons.place_at(name, &abort.public_reason(), line);
    }
    let event = event.map(|event| format!(" on {event}")).unwrap_or_default();
    let who = handler.map_or("a function".into(), |of| format!("function {}", of.name));
    let fault = Fault { what: format!("{who} failed{event}: {what}"), line };
    counts.fault = Some(fault.clone());
    fault
}

/// The abort of a public reason.
fn public(reason: &str) -> Abort {
    match reason.strip_prefix(FAULT) {
        Some(what) => Abort::failed(what, None),
        None => Abort::refused(reason),
    }
}
