//! Transactions that run whole at one node, as they would in one process, with the rows of others fetched: those of
//! declared handlers whose rows are not known from the event, and rounds, in which an event sets off more than one.

use std::sync::Arc;

use tidemill_core::{Row, StreamId, Value};
use tidemill_function::{Activation, Call, Context, Step, Stop};
use tidemill_txn::program::{Handler, Program};
use tidemill_txn::reference::{self, Rounds, When};

use super::batches::Last;
use super::likely::Likely;
use super::rows::OnNodes;
use super::times::Times;
use super::told;

/// What is executed.
pub(super) enum What {
    /// The transaction of a handler.
    Handler(usize),
    /// All that comes of an event of a stream.
    Round(StreamId),
    /// The same of an event with which intervals of these streams end.
    Ending(StreamId, Arc<[StreamId]>),
    /// The same of one that is late, and stands at this time.
    Admitted(StreamId, Arc<[StreamId]>, i64),
    /// All that comes of a call of a handler, which is told what its own transaction has come to.
    Replies { handler: usize, takes_aborts: bool },
    /// All that comes of a batch of a stream, if it is due.
    Due(StreamId),
    /// All that comes of the last batch of a stream, when the last of its sources has ended.
    Last(Last),
    /// All that comes of windows by time whose time has come, of those who take a stream.
    Slides(StreamId),
    /// The same of all that hold rows, when the last source has ended of this stream and of others beside it.
    LastSlides(StreamId, Last),
}

/// One that runs.
pub(super) struct Whole {
    program: Arc<Program>,
    rounds: Arc<Rounds>,
    times: Arc<Times>,
    likely: Arc<Likely>,
    what: What,
    event: Arc<[Value]>,
}

impl Whole {
    pub(super) fn new(
        (program, rounds, times, likely): (&Arc<Program>, &Arc<Rounds>, &Arc<Times>, &Arc<Likely>),
        what: What,
        call: &Call,
        is_keyed: bool,
    ) -> Whole {
        let event = match is_keyed {
            true => call.key.iter().chain(call.args.iter()).cloned().collect(),
            false => call.args.clone(),
        };
        let (program, rounds) = (program.clone(), rounds.clone());
        let (times, likely) = (times.clone(), likely.clone());
        Whole { program, rounds, times, likely, what, event }
    }

    /// The stream that what is executed came by.
    fn input(&self) -> StreamId {
        match self.what {
            What::Handler(handler) | What::Replies { handler, .. } => {
                self.program.handlers[handler].input
            }
            What::Round(stream)
            | What::Ending(stream, _)
            | What::Admitted(stream, ..)
            | What::Due(stream)
            | What::Slides(stream) => stream,
            What::Last(Last { stream, .. }) | What::LastSlides(_, Last { stream, .. }) => stream,
        }
    }
}

impl Activation for Whole {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let input = self.input();
        let time_us = match &self.what {
            What::Due(_) | What::Slides(_) => self.times.stands(input, None, context),
            What::Last(Last { time_us, .. }) | What::LastSlides(_, Last { time_us, .. }) => {
                self.times.stands(input, *time_us, context)
            }
            What::Admitted(.., time_us) => self.times.stands(input, Some(*time_us), context),
            _ => self.times.stands(input, self.times.of(input, &self.event), context),
        };
        let Whole { program, rounds, likely, what, event, .. } = self;
        let when = When { now_us: context.now_us(), time_us, chance: context.random() };
        let mut rows = OnNodes::new(context, rounds.kept(), likely);
        let done = match what {
            What::Handler(handler) => {
                reference::transact(program, *handler, event, when, &mut rows)
            }
            What::Due(stream) => rounds.due(program, *stream, when, &mut rows),
            What::Last(Last { stream, sources, .. }) => {
                rounds.end(program, (*stream, *sources), when, &mut rows)
            }
            What::Slides(stream) => rounds.slide(program, *stream, when, &mut rows),
            What::LastSlides(stream, Last { sources, .. }) => {
                rounds.end_windows(program, (*stream, *sources), when, &mut rows)
            }
            What::Round(_) | What::Replies { .. } => {
                rounds.run(program, input, event, &[], when, &mut rows)
            }
            What::Ending(stream, ends) | What::Admitted(stream, ends, _) => {
                rounds.run(program, *stream, event, ends, when, &mut rows)
            }
        };
        let mut events = done.map_err(|abort| rows.why(abort))?;
        let reply = match *what {
            What::Replies { handler, takes_aborts } => {
                settle(&program.handlers[handler], takes_aborts, &mut events)
            }
            _ => Value::Null,
        };
        for (stream, row) in events {
            context.emit(stream, &row)?;
        }
        Ok(Step::Done(reply))
    }
}

/// What the function of a call of a handler returns whose round has these events: where somebody takes what of it aborts, as
/// [`told::settled`] reads it. What the call returned is sent by whoever has called.
fn settle(handler: &Handler, takes_aborts: bool, events: &mut Vec<(StreamId, Row)>) -> Value {
    let Handler { aborted, output, .. } = handler;
    if let Some((_, event)) = events.iter().find(|(stream, _)| takes_aborts && stream == aborted) {
        return told::aborted(event.last().cloned().unwrap_or(Value::Null));
    }
    let place = events.iter().position(|(stream, _)| Some(*stream) == *output);
    let row = place.map(|place| events.remove(place).1);
    let value = row.and_then(|row| row.first().cloned()).unwrap_or(Value::Null);
    if takes_aborts {
        told::returned(value)
    } else {
        value
    }
}
