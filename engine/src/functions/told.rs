//! Events that tell others what a request has come to: what its function returned, and why its transaction aborted. They
//! leave where they are written to a sink.

use std::collections::BTreeSet;

use tidemill_core::{Error, Result, Row, StreamId, Value};
use tidemill_function::Call;
use tidemill_txn::program::{Abort, Program};

use super::once::{Requests, Wanted};
use super::{handler_of, AppFunctions};
use crate::spec::SinkDecl;

/// A stream whose events leave, by its name: one that somebody emits, or one whose events are passed on as they come in.
pub(super) fn stream(program: &Program, name: &str) -> Option<StreamId> {
    let found = program.streams.iter().position(|stream| *stream.spec.name == *name);
    let found = found.map(|index| StreamId(index as u16));
    // Whoever calls is told, and nobody else.
    found.filter(|stream| !program.calls.contains(stream))
}

/// Of the streams that are written those whose events nobody emits: inputs, and what a map or filter makes of them.
pub(super) fn passed_on(program: &Program, sinks: &[SinkDecl]) -> BTreeSet<StreamId> {
    let written = sinks.iter().filter_map(|decl| stream(program, &decl.stream));
    written.filter(|stream| !program.streams[stream.index()].is_output()).collect()
}

/// Refuses sinks of streams whose events do not leave.
///
/// # Errors
/// Names the stream, and the user's line.
pub(super) fn check(program: &Program, sinks: &[SinkDecl]) -> Result<()> {
    crate::outlets::sink_keys(sinks)?;
    let is_missing = |decl: &&SinkDecl| stream(program, &decl.stream).is_none();
    let Some(SinkDecl { stream, at, .. }) = sinks.iter().find(is_missing) else { return Ok(()) };
    let what = format!("stream {stream} is written: that does not run on several processes yet");
    Err(Error::program(what)
        .help("write what calls return, or what of them aborts; or run the app in one process")
        .at(at.clone()))
}

/// Whether somebody takes the calls of a handler that abort. Then one that does ends well for the protocol, because what
/// those who take it write counts.
pub(super) fn takes_aborts(program: &Program, number: usize) -> bool {
    let handler = &program.handlers[number];
    program.calls.contains(&handler.input) && program.handlers_on(handler.aborted).next().is_some()
}

/// What the function of such a call returns when it has aborted for this reason.
pub(super) fn aborted(reason: Value) -> Value {
    Value::List([Value::Bool(false), reason].into())
}

/// The same when it has not.
pub(super) fn returned(value: Value) -> Value {
    Value::List([Value::Bool(true), value].into())
}

/// What such a call has come to, by what its function returned: what it returns itself, or why it has aborted.
pub(super) fn settled(value: Value) -> std::result::Result<Value, String> {
    match &value {
        Value::List(of) => match &of[..] {
            [Value::Bool(true), value] => Ok(value.clone()),
            [Value::Bool(false), Value::Str(reason)] => Err(reason.to_string()),
            _ => Ok(value),
        },
        _ => Ok(value),
    }
}

impl AppFunctions {
    /// Who wants to know what a call has come to.
    pub(super) fn wanted(&self, call: &Call) -> Wanted {
        let number = handler_of(call.target).filter(|(_, is_request)| *is_request);
        let number = number.map(|(number, _)| number);
        let number = number.filter(|number| *number < self.program.handlers.len());
        let output = number.and_then(|number| self.program.handlers[number].output);
        Wanted {
            returned: output.filter(|output| self.written.contains(output)),
            takes_aborts: number.is_some_and(|number| self.takes_aborts[number]),
        }
    }

    /// The last event of a request's transaction, which its own does not emit. Others may have written the request.
    pub(super) fn last(
        &self,
        call: &Call,
        outcome: &std::result::Result<Value, Abort>,
    ) -> Option<(StreamId, Row)> {
        if call.target == Requests::TARGET {
            let inner = Requests::inner(call)?;
            // What it returned it has emitted itself, the first time that it was asked.
            let has_run = outcome.as_ref().is_err_and(|abort| !Requests::is_other(abort));
            let is_call = has_run && inner.target != Requests::TARGET;
            return is_call.then(|| self.last(&inner, outcome)).flatten();
        }
        let is_known = match self.round_of(call.target) {
            Some(stream) => {
                call.args.len() == self.program.streams[stream.index()].spec.schema.len()
            }
            None => handler_of(call.target)
                .is_some_and(|(number, is_request)| is_request && self.is_event(number, call)),
        };
        is_known.then(|| self.replied(call, outcome.clone()).1).flatten()
    }
}
