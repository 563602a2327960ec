//! Transactions that run whole at one node, as they would in one process, with rows fetched from
//! their owners. They are declared handlers whose rows are not known from the event, and rounds in
//! which an event triggers more than one transaction.

use std::sync::Arc;

use tidemill_core::{Row, StreamId, Value};
use tidemill_function::{Activation, Call, Context, Step, Stop};
use tidemill_txn::execute::{transact, RemoteRounds};
use tidemill_txn::program::{Handler, Program, When};

use super::batches::Last;
use super::likely::Likely;
use super::results;
use super::rows::OnNodes;
use super::times::Times;

/// The work to execute.
pub(super) enum What {
    /// The transaction of a handler.
    Handler(usize),
    /// The round of an event of a stream.
    Round(StreamId),
    /// The round of an event that ends intervals of these streams.
    Ending(StreamId, Arc<[StreamId]>),
    /// The round of a late event that ends intervals of these streams and stands at this time.
    Admitted(StreamId, Arc<[StreamId]>, i64),
    /// The round of a call of a handler, which returns the result of its own transaction.
    Replies { handler: usize, takes_aborts: bool },
    /// The round of a batch of a stream, if it is due.
    Due(StreamId),
    /// The round of the last batch of a stream, when its last source has ended.
    Last(Last),
    /// The due slides of windows by time, of the handlers that take a stream.
    Slides(StreamId),
    /// The slides of all windows with rows, when the last source of these streams has ended.
    LastSlides(StreamId, Last),
}

/// The execution of a transaction or round.
pub(super) struct Whole {
    program: Arc<Program>,
    rounds: Arc<RemoteRounds>,
    times: Arc<Times>,
    likely: Arc<Likely>,
    what: What,
    event: Arc<[Value]>,
}

impl Whole {
    pub(super) fn new(
        (program, rounds, times, likely): (
            &Arc<Program>,
            &Arc<RemoteRounds>,
            &Arc<Times>,
            &Arc<Likely>,
        ),
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

    /// The stream that the event came in by.
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
        let mut rows = OnNodes::new(context, likely);
        let done = match what {
            What::Handler(handler) => transact(program, *handler, event, when, &mut rows),
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

/// Returns the return value of a handler's call, whose round has these events. Where a handler
/// takes its aborts, [`results::settled`] splits the value. The caller emits the returned value
/// itself.
fn settle(handler: &Handler, takes_aborts: bool, events: &mut Vec<(StreamId, Row)>) -> Value {
    let Handler { aborted, output, .. } = handler;
    if let Some((_, event)) = events.iter().find(|(stream, _)| takes_aborts && stream == aborted) {
        return results::aborted(event.last().cloned().unwrap_or(Value::Null));
    }
    let place = events.iter().position(|(stream, _)| Some(*stream) == *output);
    let row = place.map(|place| events.remove(place).1);
    let value = row.and_then(|row| row.first().cloned()).unwrap_or(Value::Null);
    if takes_aborts {
        results::returned(value)
    } else {
        value
    }
}
