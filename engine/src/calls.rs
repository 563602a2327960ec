//! Calls: events whose results a client waits for (S-Store's pull).
//!
//! A call is a pushed event like any other. So it has a place in the one order, is logged, and is
//! replayed after a crash. Its reply is the result of its transaction, and leaves when the cut is
//! durable. Waiting clients are known only to this process: after a crash there are none.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_connect::push::TrySend;
use tidemill_core::error::nearest;
use tidemill_core::{Batch, Error, Result, Row, Schema, SourceId, StreamId, Value};
use tidemill_txn::execute::Outcome;
use tidemill_txn::order::Epoch;
use tidemill_txn::program::{Abort, Handler, Program};

use crate::requests::{self, Known, Request};
use crate::spec::ProcedureDecl;
use crate::view::{Pushed, View};

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The call committed, and returned this row, if any.
    Returned(Option<Row>),
    /// The call aborted for this reason.
    Aborted(String),
    /// The function failed. Clients do not learn the message or the user's line.
    Faulted {
        /// The message of the exception.
        what: String,
        /// The user's line.
        at: Option<String>,
    },
    /// The call was not executed, because its request id belongs to a different call.
    OtherRequest,
}

impl Reply {
    /// The reply of an aborted transaction.
    pub(crate) fn of(abort: &Abort) -> Reply {
        match abort.is_fault() {
            true => {
                let (what, at) = abort.parts();
                Reply::Faulted { what: what.to_owned(), at: at.map(str::to_owned) }
            }
            false => Reply::Aborted(abort.reason.clone()),
        }
    }
}

/// The source and offset of a call's event, and the reply.
pub(crate) type Answer = ((SourceId, u64), Reply);

/// Receives the reply of a call.
pub type Then = Box<dyn FnOnce(Result<Reply>) + Send>;

/// The clients that wait for replies.
#[derive(Default)]
pub(crate) struct Calls(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    by_event: HashMap<(SourceId, u64), Then>,
    /// Whether the engine has ended, and the error that ended it.
    over: Option<Option<Error>>,
}

impl Calls {
    /// Sends a call and registers the receiver of its reply.
    ///
    /// # Errors
    /// When there is no room for it, or the engine has ended. `then` is not called in these cases.
    pub(crate) fn call(&self, pushed: &Pushed, arguments: Batch, then: Then) -> Result<u64> {
        // The lock is held while sending, so that no reply comes before its receiver is registered.
        // Nothing under this lock may wait for room, because the threads that make room may need
        // the lock.
        let mut waiting = self.0.lock();
        if let Some(error) = &waiting.over {
            return Err(error.clone().unwrap_or_else(|| {
                Error::resource("the engine has stopped: the call was not made")
                    .help("start the app again")
            }));
        }
        let sent = match pushed.handle.try_send(arguments)? {
            TrySend::Sent(sent) => pushed.known + sent,
            TrySend::Full(_) => {
                return Err(Error::resource("too many calls wait to be executed")
                    .help("call again when some of them are done"));
            }
        };
        waiting.by_event.insert((pushed.source, sent - 1), then);
        Ok(sent)
    }

    /// Sends the replies of durable calls.
    pub(crate) fn answer(&self, answers: Vec<Answer>) {
        let mut waiting = self.0.lock();
        if waiting.by_event.is_empty() {
            return;
        }
        let told = answers
            .into_iter()
            .filter_map(|(event, reply)| waiting.by_event.remove(&event).map(|then| (then, reply)));
        let told: Vec<(Then, Reply)> = told.collect();
        drop(waiting);
        told.into_iter().for_each(|(then, reply)| then(Ok(reply)));
    }

    /// Ends all waits, because no further reply will come.
    pub(crate) fn end(&self, error: Option<Error>) {
        let mut waiting = self.0.lock();
        waiting.over = Some(error.clone());
        let error = error.unwrap_or_else(|| {
            Error::resource("the engine has stopped before the call was answered")
                .help("the next start shows whether it was executed")
        });
        let left = std::mem::take(&mut waiting.by_event);
        drop(waiting);
        left.into_values().for_each(|then| then(Err(error.clone())));
    }
}

/// A procedure that clients can call.
#[derive(Clone, Debug)]
pub struct Procedure {
    /// Its name.
    pub name: Arc<str>,
    /// Its parameters.
    pub parameters: Arc<Schema>,
    /// The columns of its return value, if it returns anything.
    pub reply: Option<Arc<Schema>>,
    /// The JSON Schema of its return value, where that is known.
    pub reply_schema: Option<serde_json::Value>,
    /// Its description for people.
    pub about: Option<String>,
    /// The parameter that receives the caller's name.
    pub caller: Option<usize>,
    /// Whether its calls may be [requests](Request).
    pub takes_requests: bool,
    /// The stream of its calls.
    pub(crate) calls: StreamId,
}

/// Finds the procedure of this name.
///
/// # Errors
/// When there is none.
pub(crate) fn named<'p>(
    procedures: &'p BTreeMap<String, Procedure>,
    name: &str,
) -> Result<&'p Procedure> {
    procedures.get(name).ok_or_else(|| {
        let error = Error::program(format!("no procedure '{name}' can be called"));
        match nearest(name, procedures.keys().map(String::as_str)) {
            Some(near) => error.help(format!("did you mean '{near}'?")),
            None => error.help(
                "clients can call procedures without a stream, and functions of entities that are \
                 not private",
            ),
        }
    })
}

/// The procedures of a program that clients can call, by name.
pub(crate) fn procedures(
    program: &Program,
    decls: &BTreeMap<String, ProcedureDecl>,
) -> BTreeMap<String, Procedure> {
    let is_private = |h: &&Handler| decls.get(&*h.name).is_some_and(|decl| decl.private);
    let called = program.handlers.iter().filter(|h| program.calls.contains(&h.input));
    let called = called.filter(|h| !is_private(h));
    let procedure = |handler: &Handler| {
        let schema = |stream: StreamId| program.streams[stream.index()].spec.schema.clone();
        let calls = schema(handler.input);
        let (parameters, takes_requests) = requests::parameters(&calls);
        let parameters = match takes_requests {
            true => Schema::new(calls.columns[..parameters].to_vec()).into(),
            false => calls,
        };
        let reply = handler.output.map(schema);
        let (name, calls) = (handler.name.clone(), handler.input);
        let ProcedureDecl { caller, about, reply: reply_schema, .. } =
            decls.get(&*name).cloned().unwrap_or_default();
        let caller = caller.and_then(|caller| parameters.index_of(&caller));
        let procedure = Procedure {
            name,
            parameters,
            reply,
            reply_schema,
            about,
            caller,
            takes_requests,
            calls,
        };
        (procedure.name.to_string(), procedure)
    };
    called.map(procedure).collect()
}

/// Whether a stream has results, or late or rejected calls, of a private function.
pub(crate) fn is_of_private(
    program: &Program,
    procedures: &BTreeMap<String, Procedure>,
    stream: &str,
) -> bool {
    let of = [".aborted", ".late", ".dead"].iter().find_map(|end| stream.strip_suffix(end));
    let of = of.unwrap_or(stream);
    program.handlers.iter().any(|handler| {
        let calls = &program.streams[handler.input.index()].spec.name;
        (*handler.name == *of || **calls == *of)
            && program.calls.contains(&handler.input)
            && !procedures.contains_key(&*handler.name)
    })
}

/// Whether a stream says nothing to clients. It has the late or rejected events of a stream that
/// only the engine fills: calls and firings of timers. Or it is of a private function.
pub(crate) fn is_of_engine(
    program: &Program,
    procedures: &BTreeMap<String, Procedure>,
    stream: &str,
) -> bool {
    let base = stream.strip_suffix(".late").or(stream.strip_suffix(".dead"));
    let timers = program.timers.iter().map(|timer| &timer.stream);
    let mut filled = program.calls.iter().chain(timers);
    let is_filled =
        |base: &str| filled.any(|filled| *program.streams[filled.index()].spec.name == *base);
    base.is_some_and(is_filled) || is_of_private(program, procedures, stream)
}

/// Returns the stream of a procedure's calls, and the event of this call.
pub(crate) fn callable<'v>(
    view: &'v View,
    procedure: &str,
    arguments: Batch,
    request: Option<Request>,
) -> Result<(&'v Pushed, Batch)> {
    let found = view.procedure(procedure)?;
    if arguments.len() != 1 {
        return Err(Error::program(format!(
            "a call has one row of arguments, not {}",
            arguments.len()
        )));
    }
    if *arguments.schema() != found.parameters {
        return Err(Error::program("the arguments do not match the procedure's parameters"));
    }
    let calls = &view.program.streams[found.calls.index()].spec;
    let pushed = view.pushed(&calls.name)?;
    match pushed.is_over {
        false => Ok((pushed, requests::event(&calls.schema, arguments, request)?)),
        true => Err(Error::program(format!(
            "the calls of {procedure} were ended for good by an earlier run"
        ))
        .help("call stop() instead of finish() when more calls will come; a fresh start deletes all data")),
    }
}

/// Returns the results of the calls of an epoch.
pub(crate) fn answers(program: &Program, epoch: &Epoch, outcome: &Outcome) -> Vec<Answer> {
    let mut answers = Vec::new();
    for stream in &program.calls {
        answers.extend(of_stream(program, *stream, epoch, outcome));
    }
    answers
}

fn of_stream(
    program: &Program,
    stream: StreamId,
    epoch: &Epoch,
    outcome: &Outcome,
) -> HashMap<(SourceId, u64), Reply> {
    let mut replies = HashMap::new();
    let Some(handler) = program.handlers_on(stream).next() else { return replies };
    for ranked in &epoch.order {
        let lane = &epoch.lanes[ranked.lane as usize];
        if lane.handler as usize == handler {
            replies.insert(epoch.event(*ranked), Reply::Returned(None));
        }
    }
    if replies.is_empty() {
        return replies;
    }
    let number = handler;
    let handler = &program.handlers[number];
    let known = requests::answers(program);
    let output_schema = handler.output.map(|stream| &program.streams[stream.index()].spec.schema);
    for output in &outcome.outputs {
        let aborted = output.stream == handler.aborted;
        if Some(output.stream) == known {
            for (row, values) in output.batch.rows().enumerate() {
                let Some(reply) = replies.get_mut(&output.origins.event(row, epoch)) else {
                    continue;
                };
                *reply = match requests::answer(output_schema, &values) {
                    Known::Same(row) => Reply::Returned(row),
                    Known::Other => Reply::OtherRequest,
                };
            }
            continue;
        }
        if !aborted && Some(output.stream) != handler.output {
            continue;
        }
        for (row, values) in output.batch.rows().enumerate() {
            let Some(reply) = replies.get_mut(&output.origins.event(row, epoch)) else { continue };
            *reply = match values.last() {
                Some(Value::Str(reason)) if aborted => Reply::Aborted(reason.to_string()),
                _ => Reply::Returned(Some(values)),
            };
        }
    }
    for fault in outcome.faults.iter().filter(|f| f.is_direct && f.handler == number) {
        if let Some(reply) = replies.get_mut(&fault.event) {
            *reply = Reply::of(&fault.abort);
        }
    }
    replies
}
