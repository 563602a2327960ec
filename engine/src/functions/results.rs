//! Events that carry the result of a request: the return value of its function, or the reason of
//! its abort. They leave the cluster where a sink takes them.

use std::collections::BTreeSet;

use tidemill_core::{Error, Result, Row, StreamId, Value};
use tidemill_function::Call;
use tidemill_txn::program::{Abort, Program};

use super::once::Requests;
use super::{handler_of, AppFunctions};
use crate::spec::SinkDecl;

/// Finds a stream by name whose events may leave: an emitted one, or one that passes its events on.
pub(super) fn stream(program: &Program, name: &str) -> Option<StreamId> {
    let found = program.streams.iter().position(|stream| *stream.spec.name == *name);
    let found = found.map(|index| StreamId(index as u16));
    // The events of a call are for its caller only.
    found.filter(|stream| !program.calls.contains(stream))
}

/// Of the streams with sinks, those that no function emits: inputs, maps and filters.
pub(super) fn passed_on(program: &Program, sinks: &[SinkDecl]) -> BTreeSet<StreamId> {
    let written = sinks.iter().filter_map(|decl| stream(program, &decl.stream));
    written.filter(|stream| !program.streams[stream.index()].is_output()).collect()
}

/// Refuses sinks of streams whose events can't leave.
///
/// # Errors
/// An error that names the stream and the user's line.
pub(super) fn check(program: &Program, sinks: &[SinkDecl]) -> Result<()> {
    crate::outlets::sink_keys(sinks)?;
    let is_missing = |decl: &&SinkDecl| stream(program, &decl.stream).is_none();
    let Some(SinkDecl { stream, at, .. }) = sinks.iter().find(is_missing) else { return Ok(()) };
    let what = format!("a sink of stream {stream}: that does not run on several processes yet");
    Err(Error::program(what)
        .help("give sinks to the results or aborts of calls only, or run the app in one process")
        .at(at.clone()))
}

impl AppFunctions {
    /// Returns the stream of a call's return value, where that is written to a sink.
    pub(super) fn returned(&self, call: &Call) -> Option<StreamId> {
        let (number, _) = handler_of(call.target).filter(|(_, is_request)| *is_request)?;
        let output = self.program.handlers.get(number)?.output;
        output.filter(|output| self.written.contains(output))
    }

    /// Returns the last event of a request's transaction, which the function itself does not emit.
    /// Any client may have written the request into the log.
    pub(super) fn last(
        &self,
        call: &Call,
        outcome: &std::result::Result<Value, Abort>,
    ) -> Option<(StreamId, Row)> {
        if call.target == Requests::TARGET {
            let inner = Requests::inner(call)?;
            // The return value was emitted by the call's first execution.
            let has_run = outcome.as_ref().is_err_and(|abort| !Requests::is_other(abort));
            return has_run.then(|| self.last(&inner, outcome)).flatten();
        }
        let is_known = match self.round_of(call.target) {
            Some(stream) => {
                call.args.len() == self.program.streams[stream.index()].spec.schema.len()
            }
            None => handler_of(call.target)
                .is_some_and(|(number, is_request)| is_request && self.has_columns(number, call)),
        };
        is_known.then(|| self.replied(call, outcome.clone()).1).flatten()
    }
}
