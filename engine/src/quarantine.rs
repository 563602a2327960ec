//! Events that do not reach their transaction: rows that could not be decoded or computed, late
//! events, and events with a verdict. All of it is a function of the events and the cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidemill_core::{Batch, SourceId, StreamId, Value};
use tidemill_flow::Bad;
use tidemill_txn::execute::Overdue;
use tidemill_txn::order::{Epoch, Run};
use tidemill_txn::program::{slide_of, Program};

use crate::outlets::dead_schema;
use crate::records::Verdict;
use crate::stages::FailedList;

/// Takes the quarantined events out of epoch number `at`.
pub(crate) fn set_aside(
    verdicts: &[Verdict],
    at: u64,
    epoch: &mut Epoch,
    bad: &mut Vec<(SourceId, Bad)>,
) {
    if verdicts.is_empty() {
        return;
    }
    let (runs, lanes) = (&epoch.runs, &epoch.lanes);
    let mut told = BTreeSet::new();
    for ranked in &epoch.order {
        let run = &runs[lanes[ranked.lane as usize].run as usize];
        let offset = run.offsets[ranked.row as usize];
        let is_it =
            |v: &&Verdict| (v.source, v.offset) == (run.source, offset) && v.from_epoch <= at;
        let Some(verdict) = verdicts.iter().find(is_it) else { continue };
        if told.insert((run.source, offset)) {
            let event = run.batch.row(ranked.row as usize);
            let values: Vec<String> = event.iter().map(ToString::to_string).collect();
            let (raw, reason) = (values.join(", "), verdict.reason.clone());
            let origin = "engine".into();
            bad.push((run.source, Bad { offset, origin, line: 0, raw, reason }));
        }
    }
    epoch.leave_out(&told);
}

/// Returns the slides with a verdict in epoch number `at`. Their triggers do not run.
pub(crate) fn slides(verdicts: &[Verdict], at: u64) -> Vec<Overdue> {
    let is_slide = |verdict: &&Verdict| {
        verdict.from_epoch <= at && slide_of((verdict.source, verdict.offset)).is_some()
    };
    let slide = |Verdict { source, offset, reason, .. }: &Verdict| Overdue {
        event: (*source, *offset),
        call: 0,
        reason: reason.clone(),
    };
    verdicts.iter().filter(is_slide).map(slide).collect()
}

/// Returns the rows that could not be decoded, and the events that a stage could not compute, up to
/// a cut with these offsets. They are by stream, in order of source and offset.
pub(crate) fn dead(
    program: &Program,
    failed: &FailedList,
    offsets: &[u64],
    bad: Vec<(SourceId, Bad)>,
) -> Vec<(Arc<str>, Batch)> {
    let mut rows: BTreeMap<StreamId, BTreeMap<(SourceId, u64), Vec<Value>>> = BTreeMap::new();
    for (source, bad) in bad {
        let spec = &program.sources[source.index()];
        let row = vec![
            Value::str(&spec.name),
            Value::Int(bad.offset as i64),
            Value::str(&bad.origin),
            Value::Int(bad.line as i64),
            Value::str(&bad.reason),
            Value::str(&bad.raw),
        ];
        rows.entry(spec.stream).or_default().insert((source, bad.offset), row);
    }
    let mut waiting = failed.lock();
    // A stage runs once for each branch after it, and notes the same failure each time.
    let due: BTreeSet<_> =
        waiting.iter().filter(|f| f.offset < offsets[f.source.index()]).cloned().collect();
    waiting.retain(|f| f.offset >= offsets[f.source.index()]);
    drop(waiting);
    for failed in due {
        let spec = &program.sources[failed.source.index()];
        let row = vec![
            Value::str(&spec.name),
            Value::Int(failed.offset as i64),
            Value::str("stage"),
            Value::Int(0),
            Value::str(&failed.reason),
            Value::str(&failed.raw),
        ];
        let rows = rows.entry(failed.stream).or_default();
        rows.insert((failed.source, failed.offset), row);
    }
    rows.into_iter()
        .map(|(stream, rows)| {
            let name = format!("{}.dead", program.streams[stream.index()].spec.name);
            (name.into(), Batch::from_rows(dead_schema(), rows.values().map(|r| &r[..])))
        })
        .collect()
}

/// Returns late events, on their side streams.
pub(crate) fn late(program: &Program, late: Vec<Run>) -> impl Iterator<Item = (Arc<str>, Batch)> {
    let side = |run: Run| {
        let name = format!("{}.late", program.streams[run.stream.index()].spec.name);
        (name.into(), run.batch)
    };
    late.into_iter().map(side).collect::<Vec<_>>().into_iter()
}
