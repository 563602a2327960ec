//! Votes pushed into the whole engine. Without a rate they are sent in batches, one behind the other, and
//! the clock stops when the last one is acknowledged; with a rate one at a time, and the time of each to
//! its acknowledgement is measured. However they are sent, each is a transaction of its own.

use std::path::Path;
use std::sync::Arc;

use tidemill_core::{Batch, BatchBuilder, Result};
use tidemill_engine::{AppSpec, Mill, Settings, SourceDecl, Summary};
use tidemill_env::Env;

use super::program::{CANDIDACIES, CAST};
use super::run::Leaderboard;
use crate::args::Args;
use crate::events::{push_words, Events};
use crate::push::{latency, paced};
use crate::report::{Measured, Report};
use crate::run::{baseline_ns_max, Case, BASELINE};

/// Votes of a batch.
const BATCH: usize = 8192;
/// How often snapshots are taken.
const SNAPSHOT_US: i64 = 1_000_000;

/// Runs the engine and the baseline in turn.
pub(super) fn run(
    args: &Args,
    env: &Env,
    case: &Leaderboard,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let votes = case.made.events.votes.len();
    let rate = |ns: u64| votes as f64 * 1e9 / ns.max(1) as f64;
    let size = if args.rate.is_some() { 1 } else { args.batch.unwrap_or(BATCH) };
    let [candidacies, cast] = batches(case, size);
    let mut measured = Measured::new(votes, BASELINE);
    measured.baseline_ns_max = baseline_ns_max(args, case);
    measured.output_hash = case.straight.output_hash(&case.made.parts.program);
    let mut waits = Vec::new();
    for repeat in 1..=args.repeat {
        let mut tight = case.baseline();
        let begun = env.clock.monotonic_ns();
        case.run_baseline(&mut tight);
        measured.baseline_rates.push(rate(env.clock.monotonic_ns() - begun));
        let ended = run_once(args, env, case, &candidacies, &cast)?;
        measured.rates.push(rate(ended.ns));
        waits.extend(ended.waits_ns);
        if measured.state_hash.is_empty() {
            measured.state_hash.clone_from(&ended.summary.state_hash);
            measured.details = case.details(&tight);
        }
        let hashes = [&ended.summary.state_hash, &ended.summary.output_hash];
        measured.valid &= case.is_tight_right(&tight)
            && hashes == [&measured.state_hash, &measured.output_hash]
            && ended.summary.transactions == case.transactions() as u64
            && is_right(case, &ended.tables);
        progress(&format!(
            "run {repeat} of {}: {:.3} million votes a second, {} of them an epoch",
            args.repeat,
            rate(ended.ns) / 1e6,
            votes / ended.summary.epochs.max(1) as usize,
        ));
    }
    measured.latency_ms = args.rate.map(|_| latency(&mut waits));
    Ok(Report::of(args, measured))
}

/// Candidacies and votes as they are sent.
fn batches(case: &Leaderboard, size: usize) -> [Vec<Batch>; 2] {
    let (events, inputs) = (&case.made.events, &case.made.parts.inputs);
    let (candidates, all) = (events.candidates, events.count());
    [(0..candidates, candidates), (candidates..all, size)].map(|(range, size)| {
        let mut batches = Vec::with_capacity(range.len().div_ceil(size));
        for from in range.clone().step_by(size) {
            let mut builder = BatchBuilder::new(inputs[events.stream(from)].1.clone());
            for at in from..range.end.min(from + size) {
                push_words(&mut builder, events.words(at));
            }
            batches.push(builder.finish());
        }
        batches
    })
}

struct Ended {
    ns: u64,
    waits_ns: Vec<u64>,
    summary: Summary,
    tables: Vec<Batch>,
}

fn run_once(
    args: &Args,
    env: &Env,
    case: &Leaderboard,
    candidacies: &[Batch],
    cast: &[Batch],
) -> Result<Ended> {
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
    let mut program = (*case.made.parts.program).clone();
    program.sources.clear();
    let sources = [CANDIDACIES, CAST].map(SourceDecl::pushed).to_vec();
    let spec = AppSpec::new(program, sources, settings);
    let mill = Arc::new(Mill::start(spec, env.clone())?);
    // They stand before the first vote comes.
    for batch in candidacies {
        let sent = mill.send(CANDIDACIES, batch.clone())?;
        mill.acknowledge(CANDIDACIES, sent)?;
    }
    let begun = env.clock.monotonic_ns();
    let waits_ns = match args.rate {
        None => {
            cast.iter().try_for_each(|batch| mill.send(CAST, batch.clone()).map(drop))?;
            mill.acknowledge(CAST, case.made.events.votes.len() as u64)?;
            Vec::new()
        }
        Some(rate) => paced(env, &mill, CAST, cast, rate)?,
    };
    let ns = env.clock.monotonic_ns() - begun;
    let summary = mill.finish()?;
    let tables = case.straight.tables().into_iter().map(|(name, _)| mill.table(name));
    Ok(Ended { ns, waits_ns, summary, tables: tables.collect::<Result<_>>()? })
}

/// Whether every row of every table is that of the straight loop.
fn is_right(case: &Leaderboard, tables: &[Batch]) -> bool {
    let wanted = case.straight.tables();
    wanted.iter().zip(tables).all(|((_, rows), table)| {
        let mut found: Vec<_> = table.rows().map(Vec::from).collect();
        found.sort_by(|a, b| tidemill_core::Key::of(a).cmp(&tidemill_core::Key::of(b)));
        found == *rows
    })
}
