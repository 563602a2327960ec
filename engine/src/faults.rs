//! Faults: exceptions that functions did not mean to raise.
//!
//! A fault aborts its transaction, as every exception does. It is counted apart, and logged with
//! the user's line. It ends the run where `on_fault` says so, unless a client waits for the reply:
//! the client gets the fault instead. So nothing is lost silently.

use std::collections::BTreeSet;

use tidemill_core::Error;
use tidemill_txn::execute::{AbortedSlide, Faulted};
use tidemill_txn::program::{slide_of, Program};
use tracing::warn;

/// Logs the first fault of each handler in an epoch.
pub(crate) fn report(program: &Program, faults: &[Faulted]) {
    let mut told = BTreeSet::new();
    for fault in faults.iter().filter(|fault| told.insert(fault.handler)) {
        let (what, at) = fault.abort.parts();
        let of = faults.iter().filter(|other| other.handler == fault.handler).count();
        let (handler, source) = (&*program.handlers[fault.handler].name, source(program, fault));
        warn!(
            target: "tidemill::function",
            handler, source, offset = offset(fault), what, line = at, in_this_epoch = of, "fault"
        );
    }
}

/// Returns the error that ends the run, for the first of these faults that no client learns of.
pub(crate) fn stops(program: &Program, faults: &[Faulted]) -> Option<Error> {
    let is_answered = |fault: &Faulted| {
        fault.is_direct && program.calls.contains(&program.handlers[fault.handler].input)
    };
    let fault = faults.iter().find(|fault| !is_answered(fault))?;
    let (what, at) = fault.abort.parts();
    let error = Error::program(format!(
        "function {} failed on {}: {what}",
        program.handlers[fault.handler].name,
        program.event_named(fault.event),
    ))
    .help(
        "nothing of this event is committed: correct the function and start again, and the run \
         continues with the event; with on_fault=abort (--set on_fault=abort for a command) such \
         events are counted, and the run continues without them",
    );
    Some(match at {
        Some(at) => error.at(at.to_owned()),
        None => error,
    })
}

/// Logs slides whose triggers aborted, because no event reports them.
pub(crate) fn report_slides(program: &Program, slides: &[AbortedSlide]) {
    for AbortedSlide { window, ends_us, abort, .. } in slides {
        let window = &*program.windows[window.index()].name;
        let (what, at) = abort.parts();
        let ends = *ends_us;
        warn!(target: "tidemill::function", window, ends, what, line = at, "slide aborted");
    }
}

/// The row of the event, if there is one.
fn offset(fault: &Faulted) -> Option<u64> {
    slide_of(fault.event).is_none().then_some(fault.event.1)
}

fn source<'p>(program: &'p Program, fault: &Faulted) -> &'p str {
    program.sources.get(fault.event.0.index()).map_or("", |source| &source.name)
}
