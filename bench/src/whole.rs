//! Events pushed into the whole engine.
//!
//! Without a rate, events are sent in consecutive batches, and the clock stops when the last one is
//! acknowledged. With a rate, they are sent one at a time, and the time of each until its
//! acknowledgement is measured. In both cases each is a transaction of its own.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tidemill_core::{Batch, BatchBuilder, Result};
use tidemill_engine::{AppSpec, Mill, Settings, SourceDecl, Summary};
use tidemill_env::Env;

use crate::args::{Args, Durable};
use crate::events::{push_words, Events};
use crate::push::{latency, paced};
use crate::report::{Measured, Report};
use crate::run::{self, baseline_ns_max, Case, BASELINE};
use crate::Given;

/// The number of events in a batch.
const BATCH: usize = 8192;
/// The interval of snapshots, in microseconds.
const SNAPSHOT_US: i64 = 1_000_000;

/// A workload that the whole engine can run.
pub(crate) trait Whole: Case {
    /// Returns the number of first events that are sent before the clock starts. All others are on
    /// one stream.
    fn prepared(&self) -> usize {
        0
    }

    /// Whether every row of every table of the workload, by number, is right.
    fn is_right(&self, baseline: &Self::Baseline, tables: &[Batch]) -> bool;
}

/// Creates the workload that the options ask for, and runs it in the whole engine. Without
/// durability and rate, the executor gets epochs instead.
pub(crate) fn of<C: Whole>(
    args: &Args,
    given: Given<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let env = Env::real();
    let case: C = run::made(args, &env, given, progress)?;
    run(args, &env, &case, progress)
}

/// Runs an existing workload.
pub(crate) fn run<C: Whole>(
    args: &Args,
    env: &Env,
    case: &C,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    match args.durable() == Durable::None && args.rate.is_none() {
        true => run::run(args, env, case, progress),
        false => pushed(args, env, case, progress),
    }
}

/// Runs the engine and the baseline in turn.
fn pushed<C: Whole>(
    args: &Args,
    env: &Env,
    case: &C,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let (all, prepared) = (case.made().events.count(), case.prepared());
    let events = all - prepared;
    let rate = |ns: u64| events as f64 * 1e9 / ns.max(1) as f64;
    let size = if args.rate.is_some() { 1 } else { args.batch.unwrap_or(BATCH) };
    let sent = [batches(case, 0..prepared, prepared), batches(case, prepared..all, size)];
    let mut measured = Measured::new(events, BASELINE);
    measured.baseline_ns_max = baseline_ns_max(args, case);
    let mut waits = Vec::new();
    for repeat in 1..=args.repeat {
        let mut baseline = case.baseline();
        let begun = env.clock.monotonic_ns();
        case.run_baseline(&mut baseline);
        measured.baseline_rates.push(rate(env.clock.monotonic_ns() - begun));
        let ended = run_once(args, env, case, &sent)?;
        measured.rates.push(rate(ended.ns));
        waits.extend(ended.waits_ns);
        if repeat == 1 {
            measured.state_hash.clone_from(&ended.summary.state_hash);
            let wanted = case.output_hash(&baseline);
            measured.output_hash = wanted.unwrap_or_else(|| ended.summary.output_hash.clone());
            measured.details = case.details(&baseline);
        }
        let hashes = [&ended.summary.state_hash, &ended.summary.output_hash];
        measured.valid &= hashes == [&measured.state_hash, &measured.output_hash]
            && ended.summary.transactions == case.transactions() as u64
            && case.is_right(&baseline, &ended.tables);
        progress(&format!(
            "run {repeat} of {}: {:.3} million events a second, {} of them an epoch",
            args.repeat,
            rate(ended.ns) / 1e6,
            events / ended.summary.epochs.max(1) as usize,
        ));
    }
    measured.latency_ms = args.rate.map(|_| latency(&mut waits));
    Ok(Report::of(args, measured))
}

/// Events to be sent, all on one stream.
struct Sent {
    stream: String,
    events: usize,
    batches: Vec<Batch>,
}

fn batches<C: Whole>(case: &C, range: Range<usize>, size: usize) -> Option<Sent> {
    if range.is_empty() {
        return None;
    }
    let made = case.made();
    let (id, schema) = &made.parts.inputs[made.events.stream(range.start)];
    let stream = made.parts.program.streams[id.index()].spec.name.to_string();
    let mut batches = Vec::with_capacity(range.len().div_ceil(size));
    for from in range.clone().step_by(size) {
        let mut builder = BatchBuilder::new(schema.clone());
        for at in from..range.end.min(from + size) {
            push_words(&mut builder, made.events.words(at));
        }
        batches.push(builder.finish());
    }
    Some(Sent { stream, events: range.len(), batches })
}

struct Ended {
    ns: u64,
    waits_ns: Vec<u64>,
    summary: Summary,
    tables: Vec<Batch>,
}

fn run_once<C: Whole>(
    args: &Args,
    env: &Env,
    case: &C,
    [before, timed]: &[Option<Sent>; 2],
) -> Result<Ended> {
    let settings = settings(args)?;
    let parts = &case.made().parts;
    let mut program = (*parts.program).clone();
    program.sources.clear();
    let name = |id: &tidemill_core::StreamId| &*parts.program.streams[id.index()].spec.name;
    let sources = parts.inputs.iter().map(|(id, _)| SourceDecl::pushed(name(id))).collect();
    let mill = Arc::new(Mill::start(AppSpec::new(program, sources, settings), env.clone())?);
    if let Some(Sent { stream, events, batches }) = before {
        batches.iter().try_for_each(|batch| mill.send(stream, batch.clone()).map(drop))?;
        mill.acknowledge(stream, *events as u64)?;
    }
    let begun = env.clock.monotonic_ns();
    let waits_ns = match (timed, args.rate) {
        (None, _) => Vec::new(),
        (Some(Sent { stream, events, batches }), None) => {
            batches.iter().try_for_each(|batch| mill.send(stream, batch.clone()).map(drop))?;
            mill.acknowledge(stream, *events as u64)?;
            Vec::new()
        }
        (Some(Sent { stream, batches, .. }), Some(rate)) => {
            let batches: Vec<_> = batches.iter().map(|batch| (&**stream, batch.clone())).collect();
            paced(env, &mill, &batches, rate)?
        }
    };
    let ns = env.clock.monotonic_ns() - begun;
    let summary = mill.finish()?;
    let tables = parts.tables.iter().map(|id| mill.table(&parts.program.tables[id.index()].name));
    Ok(Ended { ns, waits_ns, summary, tables: tables.collect::<Result<_>>()? })
}

/// Returns the engine's settings according to the options.
pub(crate) fn settings(args: &Args) -> Result<Settings> {
    let settings = Settings {
        workers: args.threads,
        fresh: true,
        data_dir: args.sink.as_ref().map(|folder| Path::new(folder).join("data")),
        durable: args.durable().setting(),
        snapshot_us: SNAPSHOT_US,
        strategy: args.strategy()?.to_string(),
        ..Settings::default()
    };
    let settings = match args.epoch {
        Some(epoch) => Settings { epoch_rows_max: epoch, ..settings },
        None => settings,
    };
    Ok(settings)
}
