//! The calls of an app whose rows have a sole owner, as work for it.

use tidemill_core::{Row, StreamId, StreamTime};
use tidemill_function::Call;
use tidemill_txn::execute::{SoleProgram, SoleWork};
use tidemill_txn::program::{Abort, Body, Origin};

use super::batches::{Batches, Last};
use super::dead::Letters;
use super::once::{not_a_request, Requests};
use super::slides::Slides;
use super::times::Times;
use super::{handler_of, results, AppFunctions, UNREADABLE};
use crate::spec::AppSpec;

/// Whether one worker owns all rows of an app, and executes its events and calls as one process does.
/// That is so if more may follow from an event or a call than its own transaction: transactions of
/// other handlers, of procedures and of triggers, versions of rows, or the event itself as an output.
/// Workers share the rows of all other apps.
pub fn has_sole_owner(spec: &AppSpec) -> bool {
    let program = &spec.program;
    let is_timed_by_several = |(number, stream): (u16, &tidemill_txn::program::Stream)| {
        stream.origin == Origin::Input
            && stream.spec.time != StreamTime::Arrival
            && program.handlers_on(StreamId(number)).count() > 1
    };
    (0..program.handlers.len()).any(|handler| SoleProgram::triggers_more(program, handler))
        || program.tables.iter().any(|table| table.history.is_some())
        || (0..).zip(&program.streams).any(is_timed_by_several)
        || !results::passed_on(program, &spec.sinks).is_empty()
}

impl AppFunctions {
    /// Returns the work of a call. Any client may have written the call into the log.
    ///
    /// # Errors
    /// If the call is refused.
    pub(super) fn work(&self, call: &Call) -> Result<SoleWork, Abort> {
        let unknown = || Abort::refused("there is no such function");
        let event = |stream: StreamId, row: Row| {
            let (stands_us, ends) = (None, [].into());
            SoleWork::Event { stream, row, stands_us, ends }
        };
        let row = |call: &Call| -> Row { call.args[..].into() };
        match call.target {
            UNREADABLE => return Err(self.why_unreadable(call).unwrap_or_else(unknown)),
            Requests::TARGET => {
                return self.work(&Requests::inner(call).ok_or_else(not_a_request)?);
            }
            Letters::TARGET => {
                let letter = self.letters.event(&self.program, call)?;
                return Ok(SoleWork::Emit(vec![letter]));
            }
            Times::LATE => {
                return Ok(SoleWork::Emit(self.times.passed_on(&self.program, call)?));
            }
            Batches::TARGET => {
                return Ok(SoleWork::Due(self.batches.of(call).ok_or_else(unknown)?));
            }
            Batches::LAST => {
                let last = Batches::last_of(&self.program, call).ok_or_else(unknown)?;
                let Last { stream, sources, time_us } = last;
                return Ok(SoleWork::Last { stream, sources, time_us });
            }
            Slides::TARGET => {
                return Ok(SoleWork::Slide(self.slides.of(call).ok_or_else(unknown)?));
            }
            Slides::LAST => {
                let (stream, last) = self.slides.last_of(call).ok_or_else(unknown)?;
                let Last { stream: input, sources, time_us } = last;
                return Ok(SoleWork::LastSlide { stream, input, sources, time_us });
            }
            Batches::ENDING => {
                let found = Batches::ending(&self.program, call).ok_or_else(unknown)?;
                let (stream, ends, event) = found;
                let (row, stands_us) = (row(&event), None);
                return Ok(SoleWork::Event { stream, row, stands_us, ends });
            }
            Times::ADMITTED => {
                let found = Batches::admitted(&self.program, call).ok_or_else(unknown)?;
                let (stream, ends, time_us, event) = found;
                let (row, stands_us) = (row(&event), Some(time_us));
                return Ok(SoleWork::Event { stream, row, stands_us, ends });
            }
            _ => {}
        }
        // Without a time it has no place in the order.
        if self.in_time(call).is_some() && tidemill_function::Functions::timed(self, call).is_none()
        {
            return Err(Abort::refused("the event has no time"));
        }
        let is_input = |stream: &StreamId| {
            self.program.streams[stream.index()].origin == Origin::Input
                && !self.program.calls.contains(stream)
        };
        if let Some(stream) = self.round_of(call.target) {
            let columns = self.program.streams[stream.index()].spec.schema.len();
            return match is_input(&stream) && call.args.len() == columns {
                true => Ok(event(stream, row(call))),
                false => Err(unknown()),
            };
        }
        let (number, is_request) = handler_of(call.target).ok_or_else(unknown)?;
        let handler = self.program.handlers.get(number).filter(|_| is_request);
        let handler = handler.filter(|of| !matches!(of.body, Body::Native(_)));
        let handler = handler.filter(|_| self.has_columns(number, call)).ok_or_else(unknown)?;
        let row: Row = self.row(number, call).into();
        Ok(match self.program.calls.contains(&handler.input) {
            true => SoleWork::Call { handler: number, row },
            false if is_input(&handler.input) => event(handler.input, row),
            false => return Err(unknown()),
        })
    }

    /// Whether a handler takes the calls of this handler that abort. The reason is then stored with a
    /// request, because what that handler has written counts.
    pub(super) fn takes_aborts(&self, call: &Call) -> bool {
        let Some((number, true)) = handler_of(call.target) else { return false };
        let handler = self.program.handlers.get(number);
        handler.is_some_and(|of| self.program.handlers_on(of.aborted).next().is_some())
    }
}
