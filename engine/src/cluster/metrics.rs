//! The metrics of a cluster.

use std::fmt::Write as _;

use tidemill_host::Status;

/// Returns the metrics of a status in the text format of Prometheus. `requests_open` is the number
/// of requests without replies.
pub(super) fn of(status: Status, requests_open: usize) -> String {
    let (lags, skews) = (status.lag(), status.skew());
    let lag = lags.iter().sum();
    let Status { generation, members, epoch, snapshot, left_out, troubles, buffered, .. } = status;
    let mut text = String::new();
    for (name, kind, help, value) in [
        ("generation", "gauge", "The generation that runs; 0 when none does.", generation),
        ("workers", "gauge", "The workers of the generation.", members.len() as u64),
        (
            "workers_left_out",
            "gauge",
            "Live workers that can't reach members.",
            left_out.len() as u64,
        ),
        (
            "processes_in_trouble",
            "gauge",
            "Processes that wait for a log or a store that does not answer.",
            troubles.len() as u64,
        ),
        ("epoch", "counter", "The last cut.", epoch),
        ("snapshot_epoch", "gauge", "The epoch of the last snapshot.", snapshot),
        ("lag", "gauge", "Requests in no cut yet.", lag),
        ("buffered", "gauge", "Events that wait for their watermark.", buffered.events),
        ("late", "counter", "Late events.", buffered.late),
        ("faults", "counter", "Transactions whose function failed.", status.counts.faults),
        ("requests_open", "gauge", "Requests without replies.", requests_open as u64),
    ] {
        let _ = writeln!(
            text,
            "# HELP tidemill_cluster_{name} {help}\n# TYPE tidemill_cluster_{name} {kind}\n\
             tidemill_cluster_{name} {value}"
        );
    }
    let lags: Vec<f64> = lags.iter().map(|lag| *lag as f64).collect();
    for (name, help, values) in [
        ("source_lag", "Requests of a source in no cut yet.", lags),
        (
            "source_skew",
            "Rate of requests of a source, relative to the mean of all sources.",
            skews,
        ),
    ] {
        let _ = writeln!(
            text,
            "# HELP tidemill_cluster_{name} {help}\n# TYPE tidemill_cluster_{name} gauge"
        );
        for (source, value) in values.into_iter().enumerate() {
            let _ = writeln!(text, "tidemill_cluster_{name}{{source=\"{source}\"}} {value}");
        }
    }
    text
}
