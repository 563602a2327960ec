//! Health and metrics, for the servers that show them.

use std::fmt::Write as _;

use serde_json::{json, Value};

use crate::view::View;

/// Whether the engine is ready: recovered, not stalled, and without error. Also a description for
/// people.
pub(crate) fn health(view: &View) -> (bool, Value) {
    let shared = &view.shared;
    let failed = shared.error().is_some();
    let over = shared.is_over();
    let out = shared.out.lock();
    let (recovering, stalled) = (out.is_recovering, out.stalled.is_some());
    drop(out);
    let ready = !(failed || over || recovering || stalled);
    let said = json!({
        "live": true, "ready": ready, "recovering": recovering, "stalled": stalled,
        "failed": failed, "troubles": shared.troubles.all(),
    });
    (ready, said)
}

/// Returns all metrics in the text format of Prometheus.
pub(crate) fn metrics(view: &View) -> String {
    let status = view.status();
    let now = view.env.clock.monotonic_ns();
    let out = view.shared.out.lock();
    let age = out.snapshot_ns.map(|ns| now.saturating_sub(ns) as f64 / 1e9);
    let (durable, stalls, log) = (out.epoch, out.stalls, out.log.unwrap_or_default());
    let stalled = u64::from(out.stalled.is_some());
    drop(out);
    let executed = view.shared.state.lock().epoch();
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, values: &[(&str, f64)]| {
        let _ = writeln!(text, "# HELP tidemill_{name} {help}\n# TYPE tidemill_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "tidemill_{name}{labels} {value}");
        }
    };
    let count = |n: u64| [("", n as f64)];
    let events = "Input events executed or quarantined.";
    add("events_total", "counter", events, &count(status.events));
    let transactions = "Transactions, aborted ones included.";
    add("transactions_total", "counter", transactions, &count(status.transactions));
    let aborts = "Aborted transactions, without those whose function failed.";
    add("aborts_total", "counter", aborts, &count(status.aborted));
    add("faults_total", "counter", "Transactions whose function failed.", &count(status.faults));
    add("dead_total", "counter", "Rows in dead-letter streams.", &count(status.dead));
    add("late_total", "counter", "Late events.", &count(status.late));
    add("epochs_total", "counter", "Epochs executed.", &count(executed));
    add("durable_epoch", "gauge", "The last durable epoch.", &count(durable));
    add(
        "buffered_events",
        "gauge",
        "Events that wait for their watermark.",
        &count(status.buffered),
    );
    let lag = "How far the slowest watermark is behind the newest event time.";
    add("lag_seconds", "gauge", lag, &[("", status.lag_us as f64 / 1e6)]);
    let bytes = [("{log=\"input\"}", log[0].bytes as f64), ("{log=\"cuts\"}", log[1].bytes as f64)];
    add("log_bytes", "gauge", "Bytes of the logs' files.", &bytes);
    add("snapshots_total", "counter", "Snapshots of this run.", &count(status.snapshots));
    add("snapshot_epoch", "gauge", "The newest snapshot.", &count(status.snapshot_epoch));
    if let Some(age) = age {
        let help = "Seconds since the last snapshot of this run.";
        add("snapshot_age_seconds", "gauge", help, &[("", age)]);
    }
    add("stalls_total", "counter", "How often a write waited for disk space.", &count(stalls));
    add("stalled", "gauge", "Whether a write waits for disk space.", &count(stalled));
    let troubles = "Sources and sinks that can't proceed, for example without their broker.";
    add("troubles", "gauge", troubles, &count(status.troubles.len() as u64));
    text
}
