//! What a run comes to.

use serde::Serialize;

use crate::args::Durable;

/// Time from the moment an event was meant to be sent to its answer, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Half of the events are faster.
    pub p50: f64,
    /// 99 of 100 events are faster.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

/// The JSON object of a run. Rates are events a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The workload's name.
    pub workload: &'static str,
    /// How its transactions were written.
    pub program: &'static str,
    /// Workers a process.
    pub threads: usize,
    /// Processes.
    pub processes: usize,
    /// How transactions were executed, as asked for.
    pub strategy: String,
    /// Events of one run.
    pub events: usize,
    /// Seconds of the median run.
    pub seconds: f64,
    /// The median run's rate.
    pub events_per_s: f64,
    /// The slowest run's.
    pub events_per_s_min: f64,
    /// The fastest run's.
    pub events_per_s_max: f64,
    /// What the engine is compared with.
    pub baseline: &'static str,
    /// The rate of its median run.
    pub baseline_events_per_s: f64,
    /// Nanoseconds an event of the baseline's fastest run.
    pub baseline_ns: f64,
    /// Whether the baseline is as fast as one written for the purpose should be: at most 15 ns a
    /// transaction; null where that figure says nothing (more keys than about 100,000, extra work).
    pub baseline_valid: Option<bool>,
    /// Median over the repeats of the engine's rate to the baseline's beside it.
    pub ratio: f64,
    /// The same to the engine's own serial executor; 1 where that is what ran.
    pub ratio_to_serial: f64,
    /// What was durable.
    pub durable: Durable,
    /// Null where no rate is given.
    pub latency_ms: Option<Latency>,
    /// Sum of the tables' hashes, in hexadecimal.
    pub state_hash: String,
    /// Hash of all output events, in hexadecimal.
    pub output_hash: String,
    /// Whether the workload's invariant holds, in every repeat.
    pub valid: bool,
}
