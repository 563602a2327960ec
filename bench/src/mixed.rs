//! Calls of several functions, pushed into the whole engine over tables that are filled before the
//! clock starts.
//!
//! Without a rate, calls are sent in consecutive batches, and the clock stops when the last one is
//! acknowledged. With a rate, they are sent one at a time, and the time of each until its
//! acknowledgement is measured. In both cases each is a transaction of its own.

use std::sync::Arc;

use serde_json::{Map, Value as Json};
use tidemill_core::{Batch, Error, Key, Result, Row, StreamId, TableId};
use tidemill_engine::{AppSpec, Mill, SourceDecl, Summary};
use tidemill_env::Env;
use tidemill_txn::program::Builder;
use tidemill_txn::Program;

use crate::args::{Args, ProgramKind};
use crate::push::{latency, paced};
use crate::report::{Measured, Report};
use crate::run::BASELINE;
use crate::shape::{self, Parts};
use crate::whole::settings;
use crate::Given;

/// Calls of a batch.
const BATCH: usize = 4096;

/// A workload of such calls.
pub(crate) trait Mixed {
    /// The baseline's rows.
    type Straight;

    /// Returns the program, with the tables and streams of the workload.
    fn parts(&self) -> &Parts;

    /// Returns the initial rows.
    fn straight(&self) -> Self::Straight;

    /// Returns the rows of a table, by its place.
    fn rows(&self, straight: &Self::Straight, table: usize) -> Vec<Row>;

    /// Returns the calls in their order: the place of the stream, and the event.
    fn calls(&self) -> Vec<(usize, Row)>;

    /// Executes all calls in their order.
    fn execute(&self, straight: &mut Self::Straight);

    /// Whether all tables equal the baseline's.
    fn is_right(&self, straight: &Self::Straight, tables: &[Batch]) -> bool;

    /// Returns further details for the report.
    fn details(&self, straight: &Self::Straight) -> Map<String, Json>;
}

/// Returns the program of a workload whose functions are in Python.
pub(crate) fn given(args: &Args, given: Given<'_>) -> Result<Program> {
    let workload = &args.workload;
    let wrong = |what: String| {
        let help = format!("use the Python package: tidemill bench {workload} --program python");
        Err(Error::setting(what).help(help))
    };
    match (args.program, given.program) {
        (ProgramKind::Python, Some(json)) => {
            let mut program = Program::from_json(json)?;
            program.opaques = given.opaques;
            Ok(program)
        }
        (ProgramKind::Python, None) => {
            wrong("--program python: the functions were not given".into())
        }
        (kind, _) => {
            wrong(format!("--program {}: {workload} has its functions in Python", kind.name()))
        }
    }
}

/// Whether two lists have the same rows, in any order.
pub(crate) fn same_rows(wanted: Vec<Row>, found: Vec<Row>, key: impl Fn(&Row) -> Key) -> bool {
    let mut wanted: Vec<(Key, Row)> = wanted.into_iter().map(|row| (key(&row), row)).collect();
    let mut there: Vec<(Key, Row)> = found.into_iter().map(|row| (key(&row), row)).collect();
    wanted.sort_by(|a, b| a.0.cmp(&b.0));
    there.sort_by(|a, b| a.0.cmp(&b.0));
    wanted == there
}

/// Runs the engine and the baseline in turn.
pub(crate) fn run(
    args: &Args,
    workload: &impl Mixed,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let env = Env::real();
    let parts = workload.parts();
    let mut straight = workload.straight();
    let (program, filled) = filling(parts, |table| !workload.rows(&straight, table).is_empty())?;
    let rows: Vec<(String, Batch)> = filled
        .iter()
        .flat_map(|(table, stream)| {
            let spec = &program.streams[stream.index()].spec;
            let rows = workload.rows(&straight, *table);
            let batch =
                |rows: &[Row]| Batch::from_rows(spec.schema.clone(), rows.iter().map(|row| &**row));
            let name = spec.name.to_string();
            rows.chunks(BATCH).map(|rows| (name.clone(), batch(rows))).collect::<Vec<_>>()
        })
        .collect();
    let calls = workload.calls();
    let size = if args.rate.is_some() { 1 } else { args.batch.unwrap_or(BATCH) };
    let calls_sent = pieces(parts, &calls, size);
    let rate = |ns: u64| calls.len() as f64 * 1e9 / ns.max(1) as f64;
    let mut measured = Measured::new(calls.len(), BASELINE);
    let mut waits = Vec::new();
    let begun = env.clock.monotonic_ns();
    workload.execute(&mut straight);
    let baseline = rate(env.clock.monotonic_ns() - begun);
    measured.details = workload.details(&straight);
    for repeat in 1..=args.repeat {
        measured.baseline_rates.push(baseline);
        let ended = run_once(args, &env, (parts, &program), &rows, &calls_sent)?;
        measured.rates.push(rate(ended.ns));
        waits.extend(ended.waits_ns);
        if repeat == 1 {
            measured.state_hash.clone_from(&ended.summary.state_hash);
            measured.output_hash.clone_from(&ended.summary.output_hash);
        }
        let hashes = [&ended.summary.state_hash, &ended.summary.output_hash];
        measured.valid &= hashes == [&measured.state_hash, &measured.output_hash]
            && workload.is_right(&straight, &ended.tables);
        progress(&format!(
            "run {repeat} of {}: {:.0} calls a second, {} of them an epoch",
            args.repeat,
            rate(ended.ns),
            calls.len() / ended.summary.epochs.max(1) as usize,
        ));
    }
    measured.latency_ms = args.rate.map(|_| latency(&mut waits));
    Ok(Report::of(args, measured))
}

/// Returns the program with a stream for each table with initial rows. The stream's handler fills
/// the table.
fn filling(
    parts: &Parts,
    has_rows: impl Fn(usize) -> bool,
) -> Result<(Program, Vec<(usize, StreamId)>)> {
    let mut all = parts.clone();
    let mut filled = Vec::new();
    for table in (0..parts.tables.len()).filter(|table| has_rows(*table)) {
        let mut b = Builder::new("filling");
        for id in &parts.tables {
            let spec = &parts.program.tables[id.index()];
            let key = spec.key.iter().map(|&c| &*spec.schema.columns[c].name).collect::<Vec<_>>();
            b.table(&spec.name, &key, spec.schema.columns.clone());
        }
        let spec = &parts.program.tables[parts.tables[table].index()];
        let columns = spec.schema.columns.clone();
        let stream = b.stream(&format!("filling.{}", spec.name), columns.clone());
        let mut h = b.handler(&format!("fill.{}", spec.name), stream);
        let key: Vec<_> =
            spec.key.iter().map(|&c| h.column(&spec.schema.columns[c].name)).collect();
        let row = h.row(TableId(table as u16), &key);
        let values: Vec<_> = (0..columns.len())
            .filter(|c| !spec.key.contains(c))
            .map(|c| (&*columns[c].name, h.column(&columns[c].name)))
            .collect();
        h.insert(row, &values);
        h.done();
        let (program, stream) = shape::with_opening(&all, b.finish()?)?;
        all.program = Arc::new(program);
        filled.push((table, stream));
    }
    Ok(((*all.program).clone(), filled))
}

/// Returns calls in batches; each stream's calls keep their order.
fn pieces(parts: &Parts, calls: &[(usize, Row)], size: usize) -> Vec<(String, Batch)> {
    let mut sent = Vec::new();
    for calls in calls.chunks(size) {
        for (at, (id, schema)) in parts.inputs.iter().enumerate() {
            let own: Vec<&Row> =
                calls.iter().filter(|(of, _)| *of == at).map(|(_, row)| row).collect();
            if !own.is_empty() {
                let name = parts.program.streams[id.index()].spec.name.to_string();
                sent.push((name, Batch::from_rows(schema.clone(), own.iter().map(|row| &***row))));
            }
        }
    }
    sent
}

struct Ended {
    ns: u64,
    waits_ns: Vec<u64>,
    summary: Summary,
    tables: Vec<Batch>,
}

/// Sends batches, and waits until all are acknowledged.
fn send(mill: &Mill, batches: &[(String, Batch)]) -> Result<()> {
    let mut sent = std::collections::BTreeMap::<&str, u64>::new();
    for (stream, batch) in batches {
        mill.send(stream, batch.clone())?;
        *sent.entry(stream).or_default() += batch.len() as u64;
    }
    sent.into_iter().try_for_each(|(stream, count)| mill.acknowledge(stream, count))
}

fn run_once(
    args: &Args,
    env: &Env,
    (parts, program): (&Parts, &Program),
    rows: &[(String, Batch)],
    calls: &[(String, Batch)],
) -> Result<Ended> {
    let name = |id: &StreamId| &*parts.program.streams[id.index()].spec.name;
    let mut names: Vec<&str> = parts.inputs.iter().map(|(id, _)| name(id)).collect();
    rows.iter().for_each(|(stream, _)| {
        if !names.contains(&&**stream) {
            names.push(stream);
        }
    });
    let sources = names.into_iter().map(SourceDecl::pushed).collect();
    let app = AppSpec::new(program.clone(), sources, settings(args)?);
    let mill = Arc::new(Mill::start(app, env.clone())?);
    send(&mill, rows)?;
    let begun = env.clock.monotonic_ns();
    let waits_ns = match args.rate {
        None => {
            send(&mill, calls)?;
            Vec::new()
        }
        Some(rate) => {
            let calls: Vec<_> = calls.iter().map(|(name, call)| (&**name, call.clone())).collect();
            paced(env, &mill, &calls, rate)?
        }
    };
    let ns = env.clock.monotonic_ns() - begun;
    let summary = mill.finish()?;
    let tables = parts.tables.iter().map(|id| mill.table(&parts.program.tables[id.index()].name));
    Ok(Ended { ns, waits_ns, summary, tables: tables.collect::<Result<_>>()? })
}
