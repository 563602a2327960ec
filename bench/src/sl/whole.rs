//! End to end: events in files, and the whole engine from files to files. On the clock is all of it,
//! from the start of the engine until outputs are complete and synced: decoding, the dataflow, cuts,
//! execution, versions, logs and snapshots where wanted, encoding.
//!
//! A path `x/sl.parquet` stands for one file for each stream: `x/sl.openings.parquet`,
//! `x/sl.deposits.parquet` and `x/sl.transfers.parquet`. Tables are empty when an engine starts, so
//! the openings come first in time and give each key its first balance.

use std::path::{Path, PathBuf};

use serde_json::json;
use tidemill_connect::{sink, FileFormat, SinkSettings};
use tidemill_core::{Batch, Error, Result, StreamId};
use tidemill_engine::{AppSpec, Mill, Settings, SinkDecl, SourceDecl, Summary};
use tidemill_env::Env;
use tidemill_txn::program::Origin;
use tidemill_txn::Program;

use super::events::{self, Event, Side};
use super::program::{with_openings, Ledger, OPENINGS};
use super::run::{execute, holds, load, state_hash, TIGHT_KEYS, TIGHT_NS};
use super::tight::Tight;
use super::BALANCE;
use crate::args::{Args, Strategy};
use crate::measure::{max, median, median_ratio, min};
use crate::report::Report;
use crate::work::Work;

/// Rows that are written at a time.
const ROWS: usize = 1 << 16;
/// How often snapshots are taken.
const SNAPSHOT_US: i64 = 1_000_000;

/// The file of a stream.
fn file_of(path: &str, stream: &str) -> Result<PathBuf> {
    let path = Path::new(path);
    let wrong = || {
        Error::setting(format!("{}: the name does not tell the format", path.display()))
            .help("end it with .parquet, .csv or .jsonl")
    };
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(wrong)?;
    FileFormat::of(path).ok_or_else(wrong)?;
    let packed = name.strip_suffix(".gz").unwrap_or(name);
    let dot = packed.rfind('.').ok_or_else(wrong)?;
    Ok(path.with_file_name(format!("{}.{stream}{}", &name[..dot], &name[dot..])))
}

/// Writes the events to files, and the openings of the tables.
pub(crate) fn write(
    env: &Env,
    ledger: &Ledger,
    events: &[Event],
    keys: usize,
    path: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    let (program, openings) = with_openings(ledger)?;
    let schema = &program.streams[openings.index()].spec.schema;
    let rows = (0..keys as i64).map(|key| [key - keys as i64, key, BALANCE]);
    let rows: Vec<[i64; 3]> = rows.collect();
    let filled = rows.chunks(ROWS).map(|rows| {
        let mut builder = tidemill_core::BatchBuilder::new(schema.clone());
        for row in rows {
            let [at, id, balance] = *row;
            use tidemill_core::Value::{Int, Timestamp};
            builder.push(&[Timestamp(at), Int(id), Int(balance)]);
        }
        builder.finish()
    });
    write_stream(env, &file_of(path, OPENINGS.0)?, filled)?;
    let inputs = &ledger.inputs;
    for (input, is_deposit) in [(&inputs.deposits, true), (&inputs.transfers, false)] {
        let mut of_stream = (0i64..).zip(events).filter(|(_, e)| e.is_deposit() == is_deposit);
        let mut side = Side::new(input);
        let mut ended = false;
        // A stream without events has a file all the same.
        let batches = std::iter::from_fn(|| {
            if ended {
                return None;
            }
            while side.len() < ROWS {
                let Some((at, event)) = of_stream.next() else { break };
                side.push(at, event, 0);
            }
            ended = side.len() < ROWS;
            Some(side.batch())
        });
        let stream = &program.streams[input.0.index()].spec.name;
        write_stream(env, &file_of(path, stream)?, batches)?;
    }
    progress(&format!("sl: {} events and {keys} openings are in {path}", events.len()));
    Ok(())
}

fn write_stream(env: &Env, path: &Path, mut batches: impl Iterator<Item = Batch>) -> Result<()> {
    let first = batches.next().ok_or_else(|| Error::internal("a stream without a batch"))?;
    let mut settings = SinkSettings::new(path);
    settings.overwrite = true;
    let mut sink = sink::open(&settings, first.schema(), env, None)?;
    for batch in std::iter::once(first).chain(batches) {
        sink.write(&batch)?;
        sink.commit()?;
    }
    sink.finish()
}

/// Runs the engine from files, and what it is compared with.
pub(crate) fn run(
    args: &Args,
    env: &Env,
    ledger: &Ledger,
    events: &[Event],
    work: Work,
    path: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    if args.strategy()? == Strategy::SerialNoPrefetch {
        return Err(Error::setting("--strategy serial-noprefetch: the engine always prefetches"));
    }
    let spec = app(args, ledger, path)?;
    let mut after = Tight::new(args.keys);
    after.run(events, work);
    // The same events in memory: outputs, and every balance against the loop's.
    let cuts = events::cuts(events, args.epoch(), &ledger.inputs);
    let done = execute(env, ledger, cuts, load(ledger, args), Strategy::Serial)?;
    let mut valid = holds(ledger, events, &after, &done, args.keys);
    let want = (state_hash(&done.tables), done.output_hash.clone());
    let (committed, aborted) = (done.committed + args.keys as u64, done.aborted);
    let serial_rate = events.len() as f64 * 1e9 / done.ns.max(1) as f64;
    drop(done);

    let (mut rates, mut serial_rates, mut tight_rates) = (Vec::new(), Vec::new(), Vec::new());
    for repeat in 1..=args.repeat {
        let mut again = Tight::new(args.keys);
        let begun = env.clock.monotonic_ns();
        again.run(events, work);
        let ns = env.clock.monotonic_ns() - begun;
        tight_rates.push(events.len() as f64 * 1e9 / ns.max(1) as f64);
        let (summary, seconds, balances) = run_once(env, &spec, ledger)?;
        rates.push(events.len() as f64 / seconds);
        serial_rates.push(serial_rate);
        valid &= (&summary.state_hash, &summary.output_hash) == (&want.0, &want.1)
            && (summary.committed, summary.refused) == (committed, aborted)
            && (summary.dead, summary.late) == (0, 0)
            && is_balanced(&balances, &after, args.keys);
        progress(&format!(
            "run {repeat} of {}: {:.2} million events a second in {seconds:.2} s and {} epochs",
            args.repeat,
            rates[repeat - 1] / 1e6,
            summary.epochs,
        ));
    }
    let baseline_ns = 1e9 / max(&tight_rates);
    let events_per_s = median(&rates);
    let is_small = args.keys <= TIGHT_KEYS && args.udf_ns == 0;
    Ok(Report {
        workload: "sl",
        program: args.program.name(),
        threads: args.threads,
        processes: args.processes,
        strategy: args.strategy.clone(),
        events: args.events,
        seconds: args.events as f64 / events_per_s,
        events_per_s,
        events_per_s_min: min(&rates),
        events_per_s_max: max(&rates),
        baseline: "tight loop",
        baseline_events_per_s: median(&tight_rates),
        baseline_ns,
        baseline_valid: is_small.then_some(baseline_ns <= TIGHT_NS),
        ratio: median_ratio(&rates, &tight_rates),
        ratio_to_serial: median_ratio(&rates, &serial_rates),
        durable: args.durable,
        latency_ms: None,
        state_hash: want.0,
        output_hash: want.1,
        valid,
    })
}

/// The app: three files in, and where a folder is given a file for each stream that comes out.
fn app(args: &Args, ledger: &Ledger, path: &str) -> Result<AppSpec> {
    let (program, openings) = with_openings(ledger)?;
    let name = |stream: StreamId| program.streams[stream.index()].spec.name.to_string();
    let inputs = [openings, ledger.inputs.deposits.0, ledger.inputs.transfers.0];
    let sources = inputs.map(|stream| -> Result<SourceDecl> {
        let file = file_of(path, &name(stream))?;
        // Times are written as CSV and JSON have them, and read so.
        let files = Some(json!({ "path": file }));
        let (stream, at) = (name(stream), String::new());
        Ok(SourceDecl { stream, disorder_us: 0, idle_us: None, files, at })
    });
    let sources = sources.into_iter().collect::<Result<Vec<_>>>()?;
    let sinks = args.sink.as_ref().map_or(Vec::new(), |folder| sinks(&program, args, folder));
    let settings = Settings {
        fresh: true,
        data_dir: args.sink.as_ref().map(|folder| Path::new(folder).join("data")),
        durable: args.durable.setting(),
        snapshot_us: SNAPSHOT_US,
        ..Settings::default()
    };
    let settings = match args.epoch {
        Some(epoch) => Settings { epoch_rows_max: epoch, ..settings },
        None => settings,
    };
    Ok(AppSpec { program, sources, sinks, keep: Vec::new(), settings })
}

/// A file for each stream that comes out, but for what an opening could abort with.
fn sinks(program: &Program, args: &Args, folder: &str) -> Vec<SinkDecl> {
    let end = match args.sink_format {
        FileFormat::Parquet => "parquet",
        FileFormat::Csv => "csv",
        FileFormat::Jsonl => "jsonl",
    };
    let is_out = |origin: &Origin| !matches!(origin, Origin::Input | Origin::Derived { .. });
    let streams = program.streams.iter().filter(|s| is_out(&s.origin));
    let streams = streams.filter(|s| &*s.spec.name != "open.aborted");
    let sink = |name: &str| SinkDecl {
        stream: name.into(),
        files: json!({ "path": Path::new(folder).join(format!("{name}.{end}")) }),
        at: String::new(),
    };
    streams.map(|s| sink(&s.spec.name)).collect()
}

/// One run: what it came to, how long it took, and the tables in the end.
fn run_once(env: &Env, spec: &AppSpec, ledger: &Ledger) -> Result<(Summary, f64, [Batch; 2])> {
    let begun = env.clock.monotonic_ns();
    let mill = Mill::start(spec.clone(), env.clone())?;
    mill.finish()?;
    let seconds = (env.clock.monotonic_ns() - begun) as f64 / 1e9;
    let name = |at: usize| ledger.program.tables[at].name.to_string();
    let [accounts, assets] = [ledger.accounts, ledger.assets].map(|t| mill.table(&name(t.index())));
    Ok((mill.summary()?, seconds, [accounts?, assets?]))
}

/// Whether every balance is the loop's.
fn is_balanced([accounts, assets]: &[Batch; 2], tight: &Tight, keys: usize) -> bool {
    let balances = |batch: &Batch| -> Option<Vec<i64>> {
        let mut balances = vec![i64::MIN; keys];
        for (key, balance) in batch.ints(0)?.iter().zip(batch.ints(1)?) {
            *balances.get_mut(*key as usize)? = *balance;
        }
        (batch.len() == keys).then_some(balances)
    };
    let (Some(accounts), Some(assets)) = (balances(accounts), balances(assets)) else {
        return false;
    };
    (0..keys).all(|key| tight.get(key as u32) == (accounts[key], assets[key]))
}
