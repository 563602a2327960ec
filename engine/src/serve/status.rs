//! The status and the description of a run.

use std::collections::BTreeMap;

use serde_json::{json, Value};
use tidemill_core::Result;

use crate::inspect::describe;
use crate::requests::shown;
use crate::rings::Rings;
use crate::view::View;

/// Returns the `status` of a running engine.
pub(super) fn running(view: &View) -> Value {
    let executed = view.shared.state.lock().epoch();
    let (error, ended) = (view.shared.error(), view.shared.is_over());
    let seconds = view.seconds();
    let reasons = crate::reasons::report(&view.shared.reasons.lock());
    let out = view.shared.out.lock();
    let mut said = json!(view.status_at(&out, seconds, ended));
    let (state, why) = match (&error, &out.stalled) {
        (Some(error), _) => ("failed", Some(error.what.clone())),
        (None, Some(error)) => ("stalled", Some(error.what.clone())),
        _ if out.is_recovering => ("recovering", None),
        _ if ended || out.is_last => ("ended", None),
        _ if view.shared.stop_wanted() => ("stopping", None),
        _ => ("running", None),
    };
    let now = view.env.clock.monotonic_ns();
    let age = out.snapshot_ns.map(|ns| now.saturating_sub(ns) as f64 / 1e9);
    let log = out.log.map(|[input, cuts]| json!({"input": input, "cuts": cuts}));
    let more = json!({
        "reasons": reasons, "app": view.program.name, "state": state, "why": why, "epoch": out.epoch,
        "executed_epoch": executed, "snapshot_age_s": age, "stalls": out.stalls, "log": log,
        "http": view.http.get(), "process": std::process::id(),
    });
    drop(out);
    if let (Some(said), Value::Object(more)) = (said.as_object_mut(), more) {
        said.remove("stalled");
        said.remove("ended");
        said.extend(more);
    }
    said
}

/// Returns the `inspect` of a running engine.
pub(super) fn inspect(view: &View) -> Result<Value> {
    let mut said = describe(&view.program, &view.decls, &[])?;
    let state = view.shared.state.lock();
    let rows = state.as_of(view.shared.delivered_epoch()).rows.clone();
    drop(state);
    let out = view.shared.out.lock();
    let (offsets, outputs) = (out.offsets.clone(), out.outputs.clone());
    drop(out);
    add(&mut said, &view.program, &rows, &offsets, outputs);
    streams(&mut said, &view.shared.rings.lock());
    said["status"] = running(view);
    said["epochs"] = view.shared.recent.report().into();
    Ok(said)
}

/// Adds the numbers of rows to a program's description.
pub(crate) fn add(
    said: &mut Value,
    program: &tidemill_txn::program::Program,
    rows: &[usize],
    offsets: &[u64],
    outputs: BTreeMap<String, u64>,
) {
    if let Some(tables) = said["tables"].as_array_mut() {
        tables.iter_mut().zip(rows).for_each(|(table, rows)| table["rows"] = json!(rows));
    }
    let sources = program.sources.iter().zip(offsets);
    said["sources"] = sources
        .map(|(source, offset)| {
            let stream = &program.streams[source.stream.index()].spec.name;
            json!({"name": source.name, "stream": stream, "offset": offset})
        })
        .collect();
    said["outputs"] = json!(shown(outputs));
}

/// Adds the rows of dead-letter and late streams.
pub(crate) fn streams(said: &mut Value, rings: &Rings) {
    for (kind, suffix) in [("dead", ".dead"), ("late", ".late")] {
        let of =
            rings.dlq().filter_map(|(name, ring)| Some((name.strip_suffix(suffix)?, ring.next())));
        said[kind] = json!(of.collect::<BTreeMap<_, _>>());
    }
}
