//! The report of a run.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use tidemill_txn::schedule::Strategy;

use crate::args::{Args, Durable};
use crate::measure::{max, median, median_ratio, min};
use crate::outputs;

/// The time from the moment an event was due to its answer, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest time.
    pub max: f64,
}

/// A part of a run with its own shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// The options of its shape.
    #[serde(flatten)]
    pub shape: BTreeMap<&'static str, f64>,
    /// The number of its events.
    pub events: usize,
    /// The seconds of its median run.
    pub seconds: f64,
    /// The events per second of its median run.
    pub events_per_s: f64,
    /// The number of epochs that each strategy executed.
    pub ran: BTreeMap<String, usize>,
    /// The median over the repeats of the ratio of its rate to that of the engine's own serial
    /// executor.
    pub ratio_to_serial: f64,
    /// The strategy that was fastest here, among serial execution and the compared ones.
    pub best: String,
    /// The seconds of the median run of `best`.
    pub best_seconds: f64,
}

/// The JSON object of a run. Rates are events per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The workload's name.
    pub workload: String,
    /// The form in which its transactions were written.
    pub program: &'static str,
    /// Workers per process.
    pub threads: usize,
    /// Processes.
    pub processes: usize,
    /// The requested strategy.
    pub strategy: String,
    /// The number of epochs that each strategy executed, where that is known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ran: BTreeMap<String, usize>,
    /// The parts of the time of all runs, in nanoseconds per event, as the first thread measured
    /// them. `cut` and `commit` are of all epochs. Epochs executed in place on several threads also
    /// have their steps. `executed` is the share of the events that the first thread executed, and
    /// `put_off` the share that had to wait.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub spent_ns: BTreeMap<&'static str, f64>,
    /// The nanoseconds that a cache line takes from one core to another and back, before the first
    /// run and after each repeat. Longer times slow down several threads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub between_cores_ns: Vec<f64>,
    /// The number of events in a run.
    pub events: usize,
    /// The seconds of the median run.
    pub seconds: f64,
    /// The rate of the median run.
    pub events_per_s: f64,
    /// The rate of the slowest run.
    pub events_per_s_min: f64,
    /// The rate of the fastest run.
    pub events_per_s_max: f64,
    /// The name of the baseline.
    pub baseline: &'static str,
    /// The rate of the baseline's median run.
    pub baseline_events_per_s: f64,
    /// The nanoseconds per event of the baseline's fastest run.
    pub baseline_ns: f64,
    /// Whether the baseline is as fast as one written for the purpose should be (at most 15 ns per
    /// transaction of `sl`). Null where that is no criterion: with more keys than about 100,000, or
    /// extra work.
    pub baseline_valid: Option<bool>,
    /// The median over the repeats of the ratio of the engine's rate to that of the baseline beside
    /// it.
    pub ratio: f64,
    /// The same ratio to the engine's own serial executor; 1 if that was the requested strategy.
    pub ratio_to_serial: f64,
    /// The rates of all runs, repeat by repeat: of the baseline, the engine's own serial executor,
    /// the requested strategy and the compared ones.
    pub rates: BTreeMap<String, Vec<f64>>,
    /// The durable data.
    pub durable: Durable,
    /// The latency; null without a rate.
    pub latency_ms: Option<Latency>,
    /// The sum of the tables' hashes, in hexadecimal.
    pub state_hash: String,
    /// The hash of all output events, in hexadecimal.
    pub output_hash: String,
    /// Whether the workload's invariant holds in every repeat.
    pub valid: bool,
    /// Further details of the workload.
    #[serde(flatten)]
    pub details: Map<String, Value>,
    /// The parts of the run, if it has several. Then `seconds` is the median of their sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// The ratio of the time of all phases to that of the best strategy in each. A perfect choice
    /// of strategies gives 1. Null without phases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_best: Option<f64>,
}

/// The measurements, run by run. Rates are events per second.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// The number of events in a run.
    pub(crate) events: usize,
    pub(crate) rates: Vec<f64>,
    /// The number of epochs that each strategy executed.
    pub(crate) ran: BTreeMap<String, usize>,
    /// The parts of the time, in nanoseconds per event.
    pub(crate) spent_ns: BTreeMap<&'static str, f64>,
    /// The latencies between cores meanwhile, in nanoseconds.
    pub(crate) between_cores_ns: Vec<f64>,
    /// The name of the baseline.
    pub(crate) baseline: &'static str,
    /// The baseline's rates, each beside one of the engine's.
    pub(crate) baseline_rates: Vec<f64>,
    /// The nanoseconds per event above which the baseline is not valid, where that is known.
    pub(crate) baseline_ns_max: Option<f64>,
    /// The rates of the engine's own serial executor, each beside one of `rates`. Empty if that was
    /// the requested strategy.
    pub(crate) serial_rates: Vec<f64>,
    /// The rates of other strategies, each beside one of `rates`.
    pub(crate) compared: BTreeMap<String, Vec<f64>>,
    pub(crate) latency_ms: Option<Latency>,
    pub(crate) state_hash: String,
    pub(crate) output_hash: String,
    pub(crate) valid: bool,
    pub(crate) details: Map<String, Value>,
    pub(crate) phases: Vec<Phase>,
}

impl Measured {
    /// Returns measurements that are still empty and valid, without outputs.
    pub(crate) fn new(events: usize, baseline: &'static str) -> Measured {
        Measured {
            events,
            rates: Vec::new(),
            ran: BTreeMap::new(),
            spent_ns: BTreeMap::new(),
            between_cores_ns: Vec::new(),
            baseline,
            baseline_rates: Vec::new(),
            baseline_ns_max: None,
            serial_rates: Vec::new(),
            compared: BTreeMap::new(),
            latency_ms: None,
            state_hash: String::new(),
            output_hash: outputs::none(),
            valid: true,
            details: Map::new(),
            phases: Vec::new(),
        }
    }
}

impl Report {
    /// Makes the report of these options and measurements.
    pub(crate) fn of(args: &Args, measured: Measured) -> Report {
        let events_per_s = median(&measured.rates);
        let baseline_ns = 1e9 / max(&measured.baseline_rates);
        let ratio = median_ratio(&measured.rates, &measured.baseline_rates);
        let ratio_to_serial = match measured.serial_rates.is_empty() {
            true => 1.0,
            false => median_ratio(&measured.rates, &measured.serial_rates),
        };
        let seconds = |of: fn(&Phase) -> f64| measured.phases.iter().map(of).sum::<f64>();
        let time_to_best = seconds(|phase| phase.seconds) / seconds(|phase| phase.best_seconds);
        let (events_per_s_min, events_per_s_max) = (min(&measured.rates), max(&measured.rates));
        let baseline_events_per_s = median(&measured.baseline_rates);
        let mut rates = measured.compared;
        rates.insert(measured.baseline.into(), measured.baseline_rates);
        if !measured.serial_rates.is_empty() {
            rates.insert(Strategy::Serial.to_string(), measured.serial_rates);
        }
        rates.insert(args.strategy.clone(), measured.rates);
        Report {
            workload: args.workload.clone(),
            program: args.program.name(),
            threads: args.threads,
            processes: args.processes,
            strategy: args.strategy.clone(),
            ran: measured.ran,
            spent_ns: measured.spent_ns,
            between_cores_ns: measured.between_cores_ns,
            events: measured.events,
            seconds: measured.events as f64 / events_per_s,
            events_per_s,
            events_per_s_min,
            events_per_s_max,
            baseline: measured.baseline,
            baseline_events_per_s,
            baseline_ns,
            baseline_valid: measured.baseline_ns_max.map(|ns| baseline_ns <= ns),
            ratio,
            ratio_to_serial,
            rates,
            durable: args.durable(),
            latency_ms: measured.latency_ms,
            state_hash: measured.state_hash,
            output_hash: measured.output_hash,
            valid: measured.valid,
            details: measured.details,
            time_to_best: (!measured.phases.is_empty()).then_some(time_to_best),
            phases: measured.phases,
        }
    }
}
