//! Calls: events of which somebody waits for what they come to (S-Store's pull).
//!
//! A call is a pushed event like any other, so it has a place in the one order, is logged, and is
//! executed again after a crash. Its reply is what its transaction came to, and leaves when the cut
//! is durable. Whoever waits is known in this process only: after a crash nobody does.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_connect::push::TrySend;
use tidemill_core::error::nearest;
use tidemill_core::{Batch, Error, Result, Row, Schema, SourceId, StreamId, Value};
use tidemill_txn::execute::Outcome;
use tidemill_txn::order::Epoch;
use tidemill_txn::program::{Abort, Handler, Program, FAULT};

use crate::requests::{self, Known, Request};
use crate::view::{Pushed, View};

/// What a call came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// It committed, and returned this row, if any.
    Returned(Option<Row>),
    /// It aborted, and why.
    Aborted(String),
    /// Its function failed: what it raised, and the user's line, which clients are not told.
    Faulted {
        /// What it raised.
        what: String,
        /// Where.
        at: Option<String>,
    },
    /// It was not executed: its request id is that of another call.
    OtherRequest,
}

impl Reply {
    /// Of a transaction that aborted.
    pub(crate) fn of(abort: &Abort) -> Reply {
        match abort.is_fault() {
            true => {
                let (what, at) = abort.parts();
                Reply::Faulted { what: what.to_owned(), at: at.map(str::to_owned) }
            }
            false => Reply::Aborted(abort.reason.clone()),
        }
    }

    /// Of one whose abort event has this reason.
    pub(crate) fn told(reason: String) -> Reply {
        match reason.strip_prefix(FAULT) {
            Some(what) => Reply::Faulted { what: what.to_owned(), at: None },
            None => Reply::Aborted(reason),
        }
    }
}

/// The call whose event stands there, and its reply.
pub(crate) type Answer = ((SourceId, u64), Reply);

/// Who is told.
pub type Then = Box<dyn FnOnce(Result<Reply>) + Send>;

/// Who waits for replies.
#[derive(Default)]
pub(crate) struct Calls(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    by_event: HashMap<(SourceId, u64), Then>,
    /// Why nobody can wait any more.
    over: Option<Error>,
}

impl Calls {
    /// Sends a call, of which somebody waits for the reply.
    ///
    /// # Errors
    /// When there is no room for it, or the engine has ended; `then` is not told then.
    pub(crate) fn call(&self, pushed: &Pushed, arguments: Batch, then: Then) -> Result<u64> {
        // Held while it is sent: no reply comes before somebody waits for it. Nothing waits for room
        // under this lock, because those who make room may want it.
        let mut waiting = self.0.lock();
        if let Some(error) = &waiting.over {
            return Err(error.clone());
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

    /// These are done, and durable.
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

    /// No reply will come any more.
    pub(crate) fn end(&self, error: Option<Error>) {
        let error = error.unwrap_or_else(|| {
            Error::resource("the engine has stopped before the call was answered")
                .help("whether it was executed is seen after the next start")
        });
        let mut waiting = self.0.lock();
        waiting.over = Some(error.clone());
        let left = std::mem::take(&mut waiting.by_event);
        drop(waiting);
        left.into_values().for_each(|then| then(Err(error.clone())));
    }
}

/// A procedure that can be called.
#[derive(Clone, Debug)]
pub struct Procedure {
    /// Its name.
    pub name: Arc<str>,
    /// Its parameters.
    pub parameters: Arc<Schema>,
    /// What it returns, if anything.
    pub reply: Option<Arc<Schema>>,
    /// Whether its calls may be [requests](Request).
    pub takes_requests: bool,
    /// The stream of its calls.
    pub(crate) calls: StreamId,
}

/// The procedure of this name.
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
            None => error.help("those that take no stream can be"),
        }
    })
}

/// The procedures of a program that can be called, by name.
pub(crate) fn procedures(program: &Program) -> BTreeMap<String, Procedure> {
    let called = program.handlers.iter().filter(|h| program.calls.contains(&h.input));
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
        (name.to_string(), Procedure { name, parameters, reply, takes_requests, calls })
    };
    called.map(procedure).collect()
}

/// Where calls of a procedure go, and the event of this one.
pub(crate) fn callable<'v>(
    view: &'v View,
    procedure: &str,
    arguments: Batch,
    request: Option<Request>,
) -> Result<(&'v Pushed, Batch)> {
    let found = view.procedure(procedure)?;
    if arguments.len() != 1 {
        return Err(Error::program(format!("a call is one event, not {}", arguments.len())));
    }
    if *arguments.schema() != found.parameters {
        return Err(Error::program("the arguments are not of the procedure's columns"));
    }
    let calls = &view.program.streams[found.calls.index()].spec;
    let pushed = view.pushed(&calls.name)?;
    match pushed.is_over {
        false => Ok((pushed, requests::event(&calls.schema, arguments, request)?)),
        true => Err(Error::program(format!(
            "the calls of {procedure} were ended for good by an earlier run"
        ))
        .help("stop instead of finishing when more will come; a fresh start forgets everything")),
    }
}

/// What the calls of an epoch came to.
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
