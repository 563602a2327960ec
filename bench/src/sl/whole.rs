//! End to end: events in files, and the whole engine from files to files. The measured time is that
//! from the start of the engine until outputs are complete and synced. It includes decoding, the
//! dataflow, cuts, execution, versions, encoding, and logs and snapshots where requested.
//!
//! A path `x/sl.parquet` stands for one file per stream: `x/sl.openings.parquet`,
//! `x/sl.deposits.parquet` and `x/sl.transfers.parquet`. Tables are empty when an engine starts, so
//! the openings are first in time and give each key its first balance.

use std::path::{Path, PathBuf};

use serde_json::json;
use tidemill_connect::{sink, FileFormat, SinkSettings};
use tidemill_core::{Batch, Error, Result, StreamId};
use tidemill_engine::{AppSpec, Mill, Settings, SinkDecl, SourceDecl, Summary};
use tidemill_env::Env;
use tidemill_txn::program::Origin;
use tidemill_txn::Program;

use super::events::Event;
use super::program::{with_openings, ACCOUNTS, ASSETS, OPENINGS};
use super::run::Ledger;
use super::tight::Tight;
use super::BALANCE;
use crate::args::Args;
use crate::events::{cuts, epochs, Events, Side};
use crate::execute::{execute, state_hash, Execution};
use crate::report::{Measured, Report};
use crate::run::{baseline_ns_max, is_right, total_ns, Case, Made, BASELINE};
use crate::shape::Parts;

/// The number of rows in one write.
const ROWS: usize = 1 << 16;
/// The interval of snapshots, in microseconds.
const SNAPSHOT_US: i64 = 1_000_000;

/// Returns the file of a stream.
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
    made: &Made<Vec<Event>>,
    path: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    let Made { parts, events, keys, .. } = made;
    let (program, openings) = with_openings(parts)?;
    let schema = &program.streams[openings.index()].spec.schema;
    let rows = (0..*keys as i64).map(|key| [key - *keys as i64, key, BALANCE]);
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
    for (number, input) in parts.inputs.iter().enumerate() {
        let mut of_stream = (0..events.count()).filter(|at| events.stream(*at) == number);
        let mut side = Side::new(input);
        let mut ended = false;
        // A stream without events also has a file.
        let batches = std::iter::from_fn(|| {
            if ended {
                return None;
            }
            while side.len() < ROWS {
                let Some(at) = of_stream.next() else { break };
                side.push(events, at, 0);
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

/// Runs the engine from files, and the baseline.
pub(crate) fn run(
    args: &Args,
    env: &Env,
    case: &Ledger,
    path: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    if !args.prefetches() {
        return Err(Error::setting("--strategy serial-noprefetch: the engine always prefetches"));
    }
    let Made { parts: ledger, events, .. } = case.made();
    let count = events.len();
    let spec = app(args, ledger, path)?;
    let mut after = case.baseline();
    let verdicts = case.run_baseline(&mut after);
    // Execute the same events in memory for the outputs, and compare every balance with the
    // baseline's.
    let epochs = epochs(&[count], args.epoch());
    let cuts = cuts(events, &epochs, &ledger.inputs);
    let done = execute(env, &ledger.program, cuts, case.tables(), Execution::SERIAL)?;
    let mut measured = Measured::new(args.events(), BASELINE);
    measured.baseline_ns_max = baseline_ns_max(args, case);
    measured.valid = is_right(case, &done, verdicts, &after);
    measured.state_hash = state_hash(&done.tables);
    measured.output_hash.clone_from(&done.output_hash);
    let (committed, aborted) = (done.committed + args.keys as u64, done.verdicts.aborted);
    let serial_rate = count as f64 * 1e9 / total_ns(&done.epochs).max(1) as f64;
    drop(done);

    for repeat in 1..=args.repeat {
        let mut again = case.baseline();
        let begun = env.clock.monotonic_ns();
        case.run_baseline(&mut again);
        let ns = env.clock.monotonic_ns() - begun;
        measured.baseline_rates.push(count as f64 * 1e9 / ns.max(1) as f64);
        let (summary, seconds, balances) = run_once(env, &spec, ledger)?;
        let rate = count as f64 / seconds;
        measured.rates.push(rate);
        measured.serial_rates.push(serial_rate);
        let hashes = (&summary.state_hash, &summary.output_hash);
        measured.valid &= hashes == (&measured.state_hash, &measured.output_hash)
            && (summary.committed, summary.refused) == (committed, aborted)
            && (summary.dead, summary.late) == (0, 0)
            && is_balanced(&balances, &after, args.keys);
        progress(&format!(
            "run {repeat} of {}: {:.2} million events a second in {seconds:.2} s and {} epochs",
            args.repeat,
            rate / 1e6,
            summary.epochs,
        ));
    }
    Ok(Report::of(args, measured))
}

/// Returns the app: three input files and, where a folder is given, a file for each output stream.
fn app(args: &Args, ledger: &Parts, path: &str) -> Result<AppSpec> {
    let (program, openings) = with_openings(ledger)?;
    let name = |stream: StreamId| program.streams[stream.index()].spec.name.to_string();
    let inputs = std::iter::once(openings).chain(ledger.inputs.iter().map(|input| input.0));
    let source = |stream| -> Result<SourceDecl> {
        let file = file_of(path, &name(stream))?;
        // Times have the same default format in writing and reading.
        let files = Some(json!({ "path": file }));
        let (stream, at) = (name(stream), String::new());
        Ok(SourceDecl { stream, out_of_orderness_us: 0, idle_us: None, files, kafka: None, at })
    };
    let sources = inputs.map(source).collect::<Result<Vec<_>>>()?;
    let sinks = args.sink.as_ref().map_or(Vec::new(), |folder| sinks(&program, args, folder));
    let settings = Settings {
        fresh: true,
        data_dir: args.sink.as_ref().map(|folder| Path::new(folder).join("data")),
        durable: args.durable().setting(),
        snapshot_us: SNAPSHOT_US,
        ..Settings::default()
    };
    let settings = match args.epoch {
        Some(epoch) => Settings { epoch_rows_max: epoch, ..settings },
        None => settings,
    };
    Ok(AppSpec { sinks, ..AppSpec::new(program, sources, settings) })
}

/// Returns a file for each output stream, except the aborts of openings.
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
        files: Some(json!({ "path": Path::new(folder).join(format!("{name}.{end}")) })),
        kafka: None,
        at: String::new(),
    };
    streams.map(|s| sink(&s.spec.name)).collect()
}

/// Runs once; returns the summary, the seconds, and the final tables.
fn run_once(env: &Env, spec: &AppSpec, ledger: &Parts) -> Result<(Summary, f64, [Batch; 2])> {
    let begun = env.clock.monotonic_ns();
    let mill = Mill::start(spec.clone(), env.clone())?;
    mill.finish()?;
    let seconds = (env.clock.monotonic_ns() - begun) as f64 / 1e9;
    let name = |at: usize| ledger.program.tables[at].name.to_string();
    let table = |at: usize| mill.table(&name(ledger.tables[at].index()));
    let (accounts, assets) = (table(ACCOUNTS), table(ASSETS));
    Ok((mill.summary()?, seconds, [accounts?, assets?]))
}

/// Whether every balance equals the baseline's.
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
