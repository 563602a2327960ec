//! Faults: functions that raised what they did not mean to.
//!
//! A fault aborts its transaction, as every exception does. It is counted apart, told to the log with
//! the user's line, and ends the run where `on_fault` says so. A call is answered instead: whoever
//! calls is told, and nothing is lost without a word.

use std::collections::BTreeSet;

use serde_json::json;
use tidemill_core::Error;
use tidemill_txn::execute::{AbortedSlide, Faulted};
use tidemill_txn::program::{slide_of, Program};

use crate::life::Life;

/// Tells the log: of each handler the first fault of an epoch.
pub(crate) fn tell(life: &Life, program: &Program, faults: &[Faulted]) {
    let mut told = BTreeSet::new();
    for fault in faults.iter().filter(|fault| told.insert(fault.handler)) {
        let (what, at) = fault.abort.parts();
        let of = faults.iter().filter(|other| other.handler == fault.handler).count();
        life.tell(
            "fault",
            json!({
                "handler": program.handlers[fault.handler].name, "source": source(program, fault),
                "offset": offset(fault), "what": what, "line": at, "in_this_epoch": of,
            }),
        );
    }
}

/// Why the run ends at the first of these faults that nobody is told of.
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
        "nothing of this event is committed: mend the function and start again, and the run goes \
         on with it; with on_fault=abort such events are counted, and the run goes on without them",
    );
    Some(match at {
        Some(at) => error.at(at.to_owned()),
        None => error,
    })
}

/// Tells the log of slides whose triggers aborted: no event could be told.
pub(crate) fn tell_slides(life: &Life, program: &Program, slides: &[AbortedSlide]) {
    for AbortedSlide { window, ends_us, abort } in slides {
        let window = &program.windows[window.index()].name;
        let (what, at) = abort.parts();
        let slide = json!({"window": window, "ends": ends_us, "what": what, "line": at});
        life.tell("slide aborted", slide);
    }
}

/// The row of the event, where there is one.
fn offset(fault: &Faulted) -> Option<u64> {
    slide_of(fault.event).is_none().then_some(fault.event.1)
}

fn source<'p>(program: &'p Program, fault: &Faulted) -> &'p str {
    program.sources.get(fault.event.0.index()).map_or("", |source| &source.name)
}
