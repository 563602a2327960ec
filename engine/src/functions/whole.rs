//! Transactions that run whole at one node, as they would in one process, with the rows of others fetched: those of
//! declared handlers whose rows are not known from the event, and rounds, in which an event sets off more than one.

use std::sync::Arc;

use tidemill_core::{Row, StreamId, Value};
use tidemill_function::{Activation, Call, Context, Step, Stop};
use tidemill_txn::program::Program;
use tidemill_txn::reference::{self, Rounds, When};

use super::rows::OnNodes;
use super::times::Times;

/// What is executed.
pub(super) enum What {
    /// The transaction of a handler.
    Handler(usize),
    /// All that comes of an event of a stream.
    Round(StreamId),
    /// The same, where what a handler's transaction puts into this stream is the reply.
    Replies(StreamId, StreamId),
    /// The same of an event with which intervals of these streams end.
    Ending(StreamId, Arc<[StreamId]>),
    /// All that comes of a batch of a stream, if it is due.
    Due(StreamId),
}

/// One that runs.
pub(super) struct Whole {
    program: Arc<Program>,
    rounds: Arc<Rounds>,
    times: Arc<Times>,
    what: What,
    event: Arc<[Value]>,
}

impl Whole {
    pub(super) fn new(
        program: &Arc<Program>,
        rounds: &Arc<Rounds>,
        times: &Arc<Times>,
        what: What,
        call: &Call,
        is_keyed: bool,
    ) -> Whole {
        let event = match is_keyed {
            true => call.key.iter().chain(call.args.iter()).cloned().collect(),
            false => call.args.clone(),
        };
        let (program, rounds, times) = (program.clone(), rounds.clone(), times.clone());
        Whole { program, rounds, times, what, event }
    }

    /// The stream that what is executed came by.
    fn input(&self) -> StreamId {
        match self.what {
            What::Handler(handler) => self.program.handlers[handler].input,
            What::Round(stream)
            | What::Replies(stream, _)
            | What::Ending(stream, _)
            | What::Due(stream) => stream,
        }
    }
}

impl Activation for Whole {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let time_us = self.times.stands(self.input(), &self.event, context);
        let Whole { program, rounds, what, event, .. } = self;
        let when = When { now_us: context.now_us(), time_us, chance: context.random() };
        let mut rows = OnNodes::new(context, rounds.kept());
        let done = match what {
            What::Handler(handler) => {
                reference::transact(program, *handler, event, when, &mut rows)
            }
            What::Due(stream) => rounds.due(program, *stream, when, &mut rows),
            What::Round(stream) | What::Replies(stream, _) => {
                rounds.run(program, *stream, event, &[], when, &mut rows)
            }
            What::Ending(stream, ends) => {
                rounds.run(program, *stream, event, ends, when, &mut rows)
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
