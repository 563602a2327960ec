//! Faults: functions that raised what they did not mean to.
//!
//! A fault aborts its transaction, as every exception does. It is counted apart, told to the log with
//! the user's line, and ends the run where `on_fault` says so. A call is answered instead: whoever
//! calls is told, and nothing is lost without a word.

use std::collections::BTreeSet;

use serde_json::json;
use tidemill_core::Error;
use tidemill_txn::execute::Faulted;
use tidemill_txn::program::Program;

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
                "offset": fault.event.1, "what": what, "line": at, "in_this_epoch": of,
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
        "function {} failed on row {} of source {}: {what}",
        program.handlers[fault.handler].name,
        fault.event.1,
        source(program, fault),
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

fn source<'p>(program: &'p Program, fault: &Faulted) -> &'p str {
    program.sources.get(fault.event.0.index()).map_or("", |source| &source.name)
}
