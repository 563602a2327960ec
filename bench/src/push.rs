//! Durable push: rows are sent into a running app, and acknowledged when they are in a durable cut.
//!
//! Each row adds an amount to an account. Without a rate, consecutive batches are sent as fast as
//! the app takes them, and the clock stops when the last row is acknowledged. With a rate, rows are
//! sent one at a time at fixed moments (an open loop), and the time of each until its
//! acknowledgement is measured. If a row is sent late because the one before was slow, its time
//! still counts from the fixed moment.
//!
//! The invariant: every balance equals that of an array in which the same rows were added up.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tidemill_core::{Batch, BatchBuilder, Column, DataType, Error, Result, Value};
use tidemill_engine::{AppSpec, Mill, Settings, SourceDecl};
use tidemill_env::Env;
use tidemill_txn::program::{Builder, NativeTx};
use tidemill_txn::Program;

use crate::args::{Args, Durable, ProgramKind};
use crate::events::push_words;
use crate::report::{Latency, Measured, Report};
use crate::rng::Rng;
use crate::zipf::Zipf;
use crate::Given;

/// Rows of a batch.
const BATCH: usize = 8192;
/// The number of first rows sent at a rate whose latency does not count.
const WARM_UP: usize = 1000;
/// The interval of snapshots, in microseconds.
const SNAPSHOT_US: i64 = 1_000_000;

/// Returns the program, which `recovery` uses, too.
pub(crate) fn program(kind: ProgramKind) -> Result<Program> {
    let mut b = Builder::new("push");
    let balance = Column::new("balance", DataType::Int).default(Value::Int(0));
    let accounts = b.table("accounts", &["id"], vec![Column::new("id", DataType::Int), balance]);
    let columns = ["account", "amount"].map(|name| Column::new(name, DataType::Int));
    let deposits = b.stream("deposits", columns.to_vec());
    match kind {
        ProgramKind::Rust => {
            let rows = [(accounts, &["account"][..])];
            b.native("deposit", deposits, &rows, &[], |tx: &mut NativeTx<'_>| {
                tx.set(0, 1, tx.get(0, 1).checked_add(tx.event(1)).ok_or("overflow")?);
                Ok(())
            });
        }
        ProgramKind::Traced => {
            let mut h = b.handler("deposit", deposits);
            let (account, amount) = (h.column("account"), h.column("amount"));
            let row = h.row(accounts, &[account]);
            let old = h.read(row, "balance");
            let new = h.add(old, amount);
            h.set(row, "balance", new);
            h.done();
        }
        ProgramKind::Python => {
            return Err(Error::setting("--program python: push has no such program here")
                .help("use the command line of the Python package: tidemill bench push"));
        }
    }
    b.finish()
}

/// Runs the workload.
pub(crate) fn run(args: &Args, _: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    let program = program(args.program)?;
    let size = if args.rate.is_some() { 1 } else { args.batch.unwrap_or(BATCH) };
    let (batches, balances) = rows(args, &program, size);
    let mut measured = Measured::new(args.events(), "nothing durable");
    let mut waits = Vec::new();
    for repeat in 1..=args.repeat {
        let mut once = |durable: Durable, waits: &mut Vec<u64>| -> Result<f64> {
            let ended = run_once(args, &env, &program, &batches, durable)?;
            let before = &mut measured.state_hash;
            measured.valid &= ended.balances == balances && ended.events == args.events() as u64;
            measured.valid &= before.is_empty() || *before == ended.state_hash;
            *before = ended.state_hash;
            waits.extend(ended.waits_ns);
            Ok(args.events() as f64 / ended.seconds)
        };
        let (bare, rate) =
            (once(Durable::None, &mut Vec::new())?, once(args.durable(), &mut waits)?);
        measured.baseline_rates.push(bare);
        measured.rates.push(rate);
        progress(&format!(
            "run {repeat} of {}: {:.3} million rows a second, and {:.3} without a log",
            args.repeat,
            rate / 1e6,
            bare / 1e6
        ));
    }
    measured.latency_ms = args.rate.map(|_| latency(&mut waits));
    Ok(Report::of(args, measured))
}

/// Returns the rows in batches, and the resulting balances.
fn rows(args: &Args, program: &Program, size: usize) -> (Vec<Batch>, Vec<Option<i64>>) {
    let mut rng = Rng::new(args.seed);
    let accounts = Zipf::new(args.keys, args.skew, rng.next_u64());
    let mut balances = vec![None; args.keys];
    let schema = &program.streams[0].spec.schema;
    let mut batches = Vec::with_capacity(args.events().div_ceil(size));
    let mut left = args.events();
    while left > 0 {
        let mut builder = BatchBuilder::new(schema.clone());
        for _ in 0..size.min(left) {
            let account = accounts.draw(&mut rng);
            let amount = 1 + rng.below(100) as i64;
            *balances[account as usize].get_or_insert(0) += amount;
            push_words(&mut builder, [account.into(), amount]);
        }
        left -= builder.len();
        batches.push(builder.finish());
    }
    (batches, balances)
}

/// Returns the app.
pub(crate) fn spec(program: &Program, settings: Settings) -> AppSpec {
    let source = SourceDecl::pushed("deposits");
    let (program, sources) = (program.clone(), vec![source]);
    AppSpec::new(program, sources, settings)
}

struct Ended {
    seconds: f64,
    waits_ns: Vec<u64>,
    balances: Vec<Option<i64>>,
    events: u64,
    state_hash: String,
}

fn run_once(
    args: &Args,
    env: &Env,
    program: &Program,
    batches: &[Batch],
    durable: Durable,
) -> Result<Ended> {
    let data = args.sink.as_ref().map(|folder| Path::new(folder).join("data"));
    let settings = Settings {
        fresh: true,
        data_dir: data.filter(|_| durable != Durable::None),
        durable: durable.setting(),
        snapshot_us: SNAPSHOT_US,
        ..Settings::default()
    };
    let mill = Arc::new(Mill::start(spec(program, settings), env.clone())?);
    let begun = env.clock.monotonic_ns();
    let waits_ns = match args.rate {
        None => {
            batches.iter().try_for_each(|batch| mill.send("deposits", batch.clone()).map(drop))?;
            mill.acknowledge("deposits", args.events() as u64)?;
            Vec::new()
        }
        Some(rate) => {
            let batches: Vec<_> = batches.iter().map(|batch| ("deposits", batch.clone())).collect();
            paced(env, &mill, &batches, rate)?
        }
    };
    let seconds = (env.clock.monotonic_ns() - begun) as f64 / 1e9;
    let summary = mill.finish()?;
    let table = mill.table("accounts")?;
    let mut balances = vec![None; args.keys];
    for (key, balance) in table.ints(0).unwrap_or(&[]).iter().zip(table.ints(1).unwrap_or(&[])) {
        balances[*key as usize] = Some(*balance);
    }
    Ok(Ended {
        seconds,
        waits_ns,
        balances,
        events: summary.events,
        state_hash: summary.state_hash,
    })
}

/// Sends batches of one row into streams at a rate. Returns, for each, the time from the moment it
/// was due to its acknowledgement.
pub(crate) fn paced(
    env: &Env,
    mill: &Arc<Mill>,
    batches: &[(&str, Batch)],
    rate: f64,
) -> Result<Vec<u64>> {
    let begun = env.clock.monotonic_ns() + 1_000_000;
    let due = move |nth: usize| begun + (nth as f64 * 1e9 / rate) as u64;
    let (done, waits) = std::sync::mpsc::channel();
    let (clock, acknowledged, count) = (env.clock.clone(), mill.clone(), batches.len());
    let mut sent: BTreeMap<&str, u64> = BTreeMap::new();
    let mut number = |stream| {
        let sent = sent.entry(stream).or_default();
        *sent += 1;
        (stream.to_string(), *sent)
    };
    // The number of each row in its stream.
    let rows: Vec<(String, u64)> = batches.iter().map(|(stream, _)| number(stream)).collect();
    let body = move || {
        let waits = rows.iter().enumerate().map(|(nth, (stream, sent))| {
            acknowledged.acknowledge(stream, *sent)?;
            Ok(clock.monotonic_ns().saturating_sub(due(nth)))
        });
        let _ = done.send(waits.collect::<Result<Vec<u64>>>());
    };
    let thread = env
        .threads
        .spawn("bench-ack", Box::new(body))
        .map_err(|e| Error::io("starting the thread that waits for acknowledgements", &e))?;
    for (nth, (stream, batch)) in batches.iter().enumerate() {
        let now = env.clock.monotonic_ns();
        if due(nth) > now {
            env.clock.sleep_us((due(nth) - now) / 1000);
        }
        mill.send(stream, batch.clone())?;
    }
    let waits = waits.recv().map_err(|_| Error::internal("the waiting thread has ended"))?;
    thread.join().map_err(|panic| Error::internal(format!("waiting: {panic}")))?;
    // The first rows are left out: the file system is still busy with the files of the previous
    // run.
    Ok(waits?.split_off(WARM_UP.min(count / 10)))
}

/// Returns the percentiles of latencies.
pub(crate) fn latency(waits_ns: &mut [u64]) -> Latency {
    waits_ns.sort_unstable();
    let at = |share: f64| {
        let place = ((waits_ns.len() as f64 * share) as usize).min(waits_ns.len() - 1);
        waits_ns[place] as f64 / 1e6
    };
    Latency { p50: at(0.5), p99: at(0.99), max: at(1.0) }
}

#[cfg(test)]
mod tests {
    use crate::run_json;

    #[test]
    fn what_is_pushed_is_acknowledged_and_there() {
        let folder = tempfile::tempdir().unwrap();
        for options in [
            r#""program":"rust","durable":"log","events":20000,"batch":300"#,
            r#""program":"traced","durable":"log+snapshots","events":5000"#,
            r#""program":"rust","durable":"log","events":50,"rate":2000"#,
            r#""program":"rust","events":500"#,
        ] {
            let sink = folder.path().display();
            let json = format!(
                r#"{{"workload":"push","keys":1000,"repeat":2,"sink":"{sink}",{options}}}"#
            );
            let text = run_json(&json, None, Vec::new(), &mut |_| {}).unwrap();
            let report: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(report["valid"], true, "{report}");
            assert_eq!(report["latency_ms"].is_object(), options.contains("rate"), "{report}");
        }
    }
}
