//! What a run comes to.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use tidemill_txn::schedule::Strategy;

use crate::args::{Args, Durable};
use crate::measure::{max, median, median_ratio, min};
use crate::outputs;

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

/// A part of a run with a shape of its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// What it has of its own, by option.
    #[serde(flatten)]
    pub shape: BTreeMap<&'static str, f64>,
    /// Its events.
    pub events: usize,
    /// Seconds of its median run.
    pub seconds: f64,
    /// Their rate.
    pub events_per_s: f64,
    /// How many epochs each strategy executed.
    pub ran: BTreeMap<String, usize>,
    /// Median over the repeats of its rate to that of the engine's own serial executor.
    pub ratio_to_serial: f64,
    /// The strategy that was fastest here, of serial execution and those that were compared, and the seconds of its
    /// median run.
    pub best: String,
    /// See `best`.
    pub best_seconds: f64,
}

/// The JSON object of a run. Rates are events a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The workload's name.
    pub workload: String,
    /// How its transactions were written.
    pub program: &'static str,
    /// Workers a process.
    pub threads: usize,
    /// Processes.
    pub processes: usize,
    /// How transactions were executed, as asked for.
    pub strategy: String,
    /// How many epochs each strategy executed, where that is known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ran: BTreeMap<String, usize>,
    /// Where the time of all runs went, in nanoseconds an event, as the first thread saw it: `cut` and
    /// `commit` of the epochs; of those executed in place on several threads also the steps. `executed`
    /// is the share of the events that the first thread executed, `put_off` the share that had to wait.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub spent_ns: BTreeMap<&'static str, f64>,
    /// Nanoseconds that a cache line takes from one core to another and back: before the first run, and behind each
    /// repeat. Several threads come to less where that is long.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub between_cores_ns: Vec<f64>,
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
    /// Whether the baseline is as fast as one written for the purpose should be (at most 15 ns a
    /// transaction of `sl`); null where that says nothing: more keys than about 100,000, extra work.
    pub baseline_valid: Option<bool>,
    /// Median over the repeats of the engine's rate to the baseline's beside it.
    pub ratio: f64,
    /// The same to the engine's own serial executor; 1 where that is what ran.
    pub ratio_to_serial: f64,
    /// The rates of all runs, repeat by repeat, by what ran: the baseline, the engine's own serial
    /// executor, the strategy asked for and those it was compared with.
    pub rates: BTreeMap<String, Vec<f64>>,
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
    /// What the workload has to say besides.
    #[serde(flatten)]
    pub details: Map<String, Value>,
    /// Its parts, where it has several; `seconds` is the median of their sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// The time of all phases to that of the best strategy of each: 1 is what nobody could do better who knew
    /// beforehand. Null where there are no phases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_best: Option<f64>,
}

/// What was measured, run by run; rates are events a second.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// Events of one run.
    pub(crate) events: usize,
    pub(crate) rates: Vec<f64>,
    /// How many epochs each strategy executed.
    pub(crate) ran: BTreeMap<String, usize>,
    /// Where the time went, in nanoseconds an event.
    pub(crate) spent_ns: BTreeMap<&'static str, f64>,
    /// How far the cores were from each other, meanwhile.
    pub(crate) between_cores_ns: Vec<f64>,
    /// What the engine is compared with.
    pub(crate) baseline: &'static str,
    /// Its rates, each beside one of the engine's.
    pub(crate) baseline_rates: Vec<f64>,
    /// Nanoseconds an event above which the baseline is not what it should be, where that is known.
    pub(crate) baseline_ns_max: Option<f64>,
    /// Rates of the engine's own serial executor, each beside one of `rates`; none where that is
    /// what ran.
    pub(crate) serial_rates: Vec<f64>,
    /// Rates of other strategies, each beside one of `rates`.
    pub(crate) compared: BTreeMap<String, Vec<f64>>,
    pub(crate) latency_ms: Option<Latency>,
    pub(crate) state_hash: String,
    pub(crate) output_hash: String,
    pub(crate) valid: bool,
    pub(crate) details: Map<String, Value>,
    pub(crate) phases: Vec<Phase>,
}

impl Measured {
    /// Nothing yet, and nothing wrong with it; nothing comes out.
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
    /// Of these options and measurements.
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
