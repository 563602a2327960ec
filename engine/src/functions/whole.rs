//! Transactions that run whole at one node, as they would in one process, with the rows of others fetched: those of
//! declared handlers whose rows are not known from the event, and rounds, in which an event sets off more than one.

use std::sync::Arc;

use tidemill_core::{Row, StreamId, Value};
use tidemill_function::{Activation, Call, Context, Step, Stop};
use tidemill_txn::program::Program;
use tidemill_txn::reference::{self, Rounds, When};

use super::rows::OnNodes;

/// What is executed.
#[derive(Clone, Copy)]
pub(super) enum What {
    /// The transaction of a handler.
    Handler(usize),
    /// All that comes of an event of a stream.
    Round(StreamId),
    /// The same, where what a handler's transaction puts into this stream is the reply.
    Replies(StreamId, StreamId),
}

/// One that runs.
pub(super) struct Whole {
    program: Arc<Program>,
    rounds: Arc<Rounds>,
    what: What,
    event: Arc<[Value]>,
}

impl Whole {
    pub(super) fn new(
        program: &Arc<Program>,
        rounds: &Arc<Rounds>,
        what: What,
        call: &Call,
        is_keyed: bool,
    ) -> Whole {
        let event = match is_keyed {
            true => call.key.iter().chain(call.args.iter()).cloned().collect(),
            false => call.args.clone(),
        };
        Whole { program: program.clone(), rounds: rounds.clone(), what, event }
    }
}

impl Activation for Whole {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let Whole { program, rounds, what, event } = self;
        let when = When { now_us: context.now_us(), chance: context.random() };
        let mut rows = OnNodes::new(context);
        let done = match *what {
            What::Handler(handler) => reference::transact(program, handler, event, when, &mut rows),
            What::Round(stream) | What::Replies(stream, _) => {
                rounds.run(program, stream, event, when, &mut rows)
            }
        };
        let mut events = done.map_err(|abort| rows.why(abort))?;
        let reply = match *what {
            What::Replies(_, output) => take(&mut events, output),
            _ => Value::Null,
        };
        for (stream, row) in events {
            context.emit(stream, &row)?;
        }
        Ok(Step::Done(reply))
    }
}

/// The reply: the first event of a stream, which is sent by whoever has called.
fn take(events: &mut Vec<(StreamId, Row)>, output: StreamId) -> Value {
    let Some(place) = events.iter().position(|(stream, _)| *stream == output) else {
        return Value::Null;
    };
    let (_, row) = events.remove(place);
    row.first().cloned().unwrap_or(Value::Null)
}
