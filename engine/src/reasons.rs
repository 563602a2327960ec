//! The reasons of aborts, as reports have them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::StreamId;
use tidemill_txn::program::Program;
use tidemill_txn::reasons::{by_abort_stream, CountedReason, Reasons};

use crate::report::ReasonReport;

/// The number of reported reasons.
pub(crate) const REPORTED_MAX: usize = 5;

/// Returns the most frequent reasons.
pub(crate) fn report(reasons: &Reasons) -> Vec<ReasonReport> {
    reasons.sorted().take(REPORTED_MAX).map(of).collect()
}

/// Returns the reasons of all faults that are counted apart, the most frequent one first.
pub(crate) fn faults(reasons: &Reasons) -> Vec<ReasonReport> {
    reasons.faults().map(of).collect()
}

fn of(one: &CountedReason) -> ReasonReport {
    ReasonReport {
        handler: one.handler.clone(),
        reason: one.text().to_owned(),
        count: one.count,
        at: one.at.clone(),
    }
}

/// For each abort stream by name, the handler whose aborts it has.
pub(crate) fn aborting(program: &Program) -> BTreeMap<Arc<str>, String> {
    let named = |(stream, handler): (StreamId, usize)| {
        let name = program.handlers[handler].name.to_string();
        (program.streams[stream.index()].spec.name.clone(), name)
    };
    by_abort_stream(program).into_iter().map(named).collect()
}
