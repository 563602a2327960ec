//! Runs in memory: the engine and the baseline in turn, and their results.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Value};
use tidemill_core::{Error, Result};
use tidemill_env::Env;
use tidemill_table::Table;
use tidemill_txn::execute::Timing;
use tidemill_txn::schedule::Strategy;

use crate::args::Args;
use crate::between::round_trip_ns;
use crate::events::{epochs, Arrivals, Events};
use crate::execute::{empty_tables, execute, state_hash, Done, EpochDone, Execution, Verdicts};
use crate::measure::{median, median_ratio};
use crate::report::{Measured, Phase, Report};
use crate::shape::Parts;
use crate::work::Work;
use crate::Given;

/// The name of every workload's baseline.
pub(crate) const BASELINE: &str = "tight loop";
/// The largest number of keys for which a baseline's speed is checked.
const TIGHT_KEYS: usize = 122_880;

/// A workload made from the options: a program, its events, and the parameters of both.
#[derive(Clone, Debug)]
pub(crate) struct Made<E> {
    pub(crate) parts: Parts,
    pub(crate) events: E,
    pub(crate) keys: usize,
    pub(crate) seed: u64,
    pub(crate) work: Work,
}

impl<E> Made<E> {
    pub(crate) fn new(args: &Args, parts: Parts, events: E, work: Work) -> Made<E> {
        Made { parts, events, keys: args.keys, seed: args.seed, work }
    }

    /// Returns the table at this place among the workload's.
    pub(crate) fn table<'t>(&self, tables: &'t [Table], at: usize) -> &'t Table {
        &tables[self.parts.tables[at].index()]
    }
}

/// A workload according to the options, with a baseline written only for it.
pub(crate) trait Case: Sized {
    /// The type of its events.
    type Events: Events;
    /// The type of the baseline's state.
    type Baseline: Clone;

    /// Creates the workload that the options ask for.
    fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Self>;

    /// Returns the program and events.
    fn made(&self) -> &Made<Self::Events>;

    /// Returns the number of transactions, including those on emitted events.
    fn transactions(&self) -> usize {
        self.made().events.count()
    }

    /// Returns the parts of the run with their own shapes.
    fn phases(&self) -> Vec<PhaseShape> {
        vec![PhaseShape { shape: BTreeMap::new(), events: self.made().events.count() }]
    }

    /// Adds the rows that exist before the first event.
    fn fill(&self, _: &mut [Table]) {}

    /// Returns the tables before the first event.
    fn tables(&self) -> Vec<Table> {
        let Made { parts, keys, seed, .. } = self.made();
        let mut tables = empty_tables(&parts.program, *keys, *seed);
        self.fill(&mut tables);
        tables
    }

    /// Returns the baseline before the first event.
    fn baseline(&self) -> Self::Baseline;

    /// Executes all events with the baseline. This time is measured.
    fn run_baseline(&self, baseline: &mut Self::Baseline) -> Verdicts;

    /// Returns the nanoseconds per event above which the baseline is not tight. This holds without
    /// extra work, for a table that fits into the caches.
    fn baseline_ns_max(&self) -> f64;

    /// Whether the invariant holds: every row equals the baseline's, and further conditions hold.
    fn holds(&self, baseline: &Self::Baseline, tables: &[Table]) -> bool;

    /// Returns the hash of all outputs, if the baseline has outputs.
    fn output_hash(&self, _: &Self::Baseline) -> Option<String> {
        None
    }

    /// Returns further details for the report, from the baseline after the last event.
    fn details(&self, _: &Self::Baseline) -> Map<String, Value> {
        Map::new()
    }
}

/// Creates the workload that the options ask for, and runs it.
pub(crate) fn of<C: Case>(
    args: &Args,
    given: Given<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let env = Env::real();
    let case: C = made(args, &env, given, progress)?;
    run(args, &env, &case, progress)
}

/// Creates the workload that the options ask for.
pub(crate) fn made<C: Case>(
    args: &Args,
    env: &Env,
    given: Given<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<C> {
    let case = C::new(args, given, Work::calibrated(env, args.udf_ns))?;
    progress(&format!(
        "{}: {} events over {} keys",
        args.workload,
        case.made().events.count(),
        args.keys
    ));
    Ok(case)
}

/// A part of a run.
#[derive(Clone, Debug)]
pub(crate) struct PhaseShape {
    /// The options of its shape.
    pub(crate) shape: BTreeMap<&'static str, f64>,
    /// The number of its events.
    pub(crate) events: usize,
}

/// Whether verdicts and rows equal the baseline's.
pub(crate) fn is_right<C: Case>(
    case: &C,
    done: &Done,
    verdicts: Verdicts,
    baseline: &C::Baseline,
) -> bool {
    done.committed + done.verdicts.aborted == case.transactions() as u64
        && done.verdicts == verdicts
        && case.output_hash(baseline).is_none_or(|hash| hash == done.output_hash)
        && case.holds(baseline, &done.tables)
}

/// Returns the nanoseconds per event above which the baseline is not tight, where that is known.
pub(crate) fn baseline_ns_max(args: &Args, case: &impl Case) -> Option<f64> {
    (args.keys <= TIGHT_KEYS && args.udf_ns == 0).then(|| case.baseline_ns_max())
}

/// Runs in turn the baseline, the serial executor, the requested strategy and the compared ones.
/// The serial executor is left out if it is the requested strategy.
pub(crate) fn run<C: Case>(
    args: &Args,
    env: &Env,
    case: &C,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let how = Execution::of(args)?;
    let mut others: Vec<Execution> = Vec::new();
    for other in args.compared()?.into_iter().map(|strategy| Execution::by(strategy, args.threads))
    {
        if ![Execution::SERIAL, how].contains(&other) && !others.contains(&other) {
            others.push(other);
        }
    }
    let shapes = case.phases();
    let counts: Vec<usize> = shapes.iter().map(|phase| phase.events).collect();
    let epochs = epochs(&counts, args.epoch());
    let Made { parts, events, .. } = case.made();
    let arrivals = Arrivals::of(events, &epochs, &parts.inputs);
    let (tables, first) = (case.tables(), case.baseline());

    let count = events.count();
    let cold = cold_epochs(args, &epochs)?;
    let timed = epochs[cold..].iter().map(|(_, events)| events.len()).sum::<usize>();
    let rate = |count: usize, ns: u64| count as f64 * 1e9 / ns.max(1) as f64;
    let mut measured = Measured::new(count, BASELINE);
    measured.baseline_ns_max = baseline_ns_max(args, case);
    let (mut runs, mut serial_runs) = (Vec::new(), Vec::new());
    let mut other_runs: Vec<Runs> = vec![Vec::new(); others.len()];
    if args.threads > 1 {
        measured.between_cores_ns.push(round_trip_ns(env)?);
    }
    for repeat in 1..=args.repeat {
        let mut after = first.clone();
        let begun = env.clock.monotonic_ns();
        let verdicts = case.run_baseline(&mut after);
        let baseline_rate = rate(count, env.clock.monotonic_ns() - begun);
        measured.baseline_rates.push(baseline_rate);

        let mut once = |how: Execution| -> Result<Done> {
            let mut done = execute(env, &parts.program, arrivals.cuts(), tables.clone(), how)?;
            done.epochs.drain(..cold);
            measured.valid &= is_right(case, &done, verdicts, &after);
            if repeat == 1 && measured.state_hash.is_empty() {
                measured.details = case.details(&after);
                // Only the first run sets the hashes. Later runs are compared with the baseline,
                // row by row.
                measured.state_hash = state_hash(&done.tables);
                measured.output_hash.clone_from(&done.output_hash);
            }
            measured.valid &= measured.output_hash == done.output_hash;
            Ok(done)
        };
        if how != Execution::SERIAL {
            let done = once(Execution::SERIAL)?;
            measured.serial_rates.push(rate(timed, total_ns(&done.epochs)));
            serial_runs.push(done.epochs);
        }
        let done = once(how)?;
        let engine_rate = rate(timed, total_ns(&done.epochs));
        measured.rates.push(engine_rate);
        runs.push(done.epochs);
        for (other, runs) in others.iter().zip(&mut other_runs) {
            let done = once(*other)?;
            let other_rate = rate(timed, total_ns(&done.epochs));
            let name = other.strategy.to_string();
            measured.compared.entry(name).or_default().push(other_rate);
            runs.push(done.epochs);
        }
        if args.threads > 1 {
            measured.between_cores_ns.push(round_trip_ns(env)?);
        }
        progress(&format!(
            "run {repeat} of {}: {:.1} ns a transaction, the baseline {:.1}",
            args.repeat,
            1e9 / engine_rate,
            1e9 / baseline_rate,
        ));
    }
    measured.ran = ran(runs.iter().flatten().copied());
    measured.spent_ns = spent_ns(runs.iter().flatten(), timed * args.repeat);
    if shapes.len() > 1 {
        let phase_of: Vec<usize> = epochs.iter().map(|(phase, _)| *phase).collect();
        let phases = shapes.into_iter().enumerate();
        let names = others.iter().map(|other| other.strategy.to_string());
        let fixed: Vec<(String, &Runs)> = [(Strategy::Serial.to_string(), &serial_runs)]
            .into_iter()
            .chain(names.zip(&other_runs))
            .collect();
        let phase = |(at, shape)| phase(at, shape, &phase_of, &runs, &fixed);
        measured.phases = phases.map(phase).collect();
    }
    Ok(Report::of(args, measured))
}

/// Returns the number of epochs before the measured ones.
fn cold_epochs(args: &Args, epochs: &[(usize, Range<usize>)]) -> Result<usize> {
    let cold = args.warm_up.div_ceil(args.epoch());
    if cold < epochs.len() {
        return Ok(cold);
    }
    let what = format!("--warm-up {}: it leaves no epoch to measure", args.warm_up);
    Err(Error::setting(what).help("give a number below --events"))
}

pub(crate) fn total_ns(epochs: &[EpochDone]) -> u64 {
    epochs.iter().map(|epoch| epoch.ns).sum()
}

/// Returns the number of epochs that each strategy executed.
fn ran(epochs: impl Iterator<Item = EpochDone>) -> BTreeMap<String, usize> {
    let mut ran = BTreeMap::new();
    for epoch in epochs {
        *ran.entry(epoch.strategy.to_string()).or_default() += 1;
    }
    ran
}

/// Returns the parts of the time by name, per event. The executed and the deferred events are
/// counts.
fn spent_ns<'e>(
    epochs: impl Iterator<Item = &'e EpochDone>,
    events: usize,
) -> BTreeMap<&'static str, f64> {
    let mut spent = BTreeMap::new();
    for EpochDone { cut_ns, commit_ns, timing, .. } in epochs {
        let cut = [("cut", *cut_ns), ("commit", *commit_ns)];
        for (name, ns) in timing.iter().flat_map(Timing::fields).chain(cut) {
            *spent.entry(name).or_insert(0.0) += ns as f64 / events as f64;
        }
    }
    spent
}

/// The epochs of several runs.
type Runs = Vec<Vec<EpochDone>>;

/// Returns the results of a phase. `phase_of` has the phase of each epoch. The first of `fixed` is
/// serial execution.
fn phase(
    at: usize,
    PhaseShape { shape, events }: PhaseShape,
    phase_of: &[usize],
    runs: &Runs,
    fixed: &[(String, &Runs)],
) -> Phase {
    let of_phase = |run: &Vec<EpochDone>| -> Vec<EpochDone> {
        let epochs = run.iter().zip(phase_of).filter(|(_, phase)| **phase == at);
        epochs.map(|(epoch, _)| *epoch).collect()
    };
    let rates = |runs: &Runs| -> Vec<f64> {
        let ns = runs.iter().map(|run| total_ns(&of_phase(run)).max(1));
        ns.map(|ns| events as f64 * 1e9 / ns as f64).collect()
    };
    let engine = rates(runs);
    let ran = ran(runs.iter().flat_map(of_phase));
    let events_per_s = median(&engine);
    let (_, serial_runs) = fixed[0];
    let serial = rates(serial_runs);
    // Serial execution does not run beside itself.
    let asked = serial.is_empty().then(|| (fixed[0].0.clone(), events_per_s));
    let others = fixed.iter().filter(|(_, runs)| !runs.is_empty());
    let medians = others.map(|(name, runs)| (name.clone(), median(&rates(runs)))).chain(asked);
    let (best, best_per_s) =
        medians.max_by(|one, other| one.1.total_cmp(&other.1)).expect("one ran at least");
    Phase {
        shape,
        events,
        seconds: events as f64 / events_per_s,
        events_per_s,
        ran,
        ratio_to_serial: if serial.is_empty() { 1.0 } else { median_ratio(&engine, &serial) },
        best,
        best_seconds: events as f64 / best_per_s,
    }
}
