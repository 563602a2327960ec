//! Recovery: the time of a start that finds a table of many rows.
//!
//! Each row of the table comes from one pushed row. With `--durable log+snapshots`, the engine is
//! stopped then, and the start loads the snapshot that the stop has left. With `--durable log`
//! there is no snapshot, and the start replays all cuts. The clock runs from the start until all
//! acknowledged rows are recovered. The baseline pushes the same rows into an engine that stores
//! nothing.
//!
//! The invariant: the recovered table is bit for bit the old one.

use std::path::Path;

use tidemill_core::{Batch, BatchBuilder, Error, Result};
use tidemill_engine::{AppSpec, Mill, Settings};
use tidemill_env::Env;

use crate::args::{Args, Durable};
use crate::events::push_words;
use crate::push;
use crate::report::{Measured, Report};
use crate::Given;

/// Rows of a batch.
const BATCH: usize = 1 << 16;
/// The interval of checks whether a start is complete, in microseconds.
const LOOK_US: u64 = 1_000;

/// Runs the workload.
pub(crate) fn run(args: &Args, _: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let (Some(folder), true) = (&args.sink, args.durable() != Durable::None) else {
        return Err(Error::setting("--durable none: there is nothing to recover")
            .help("give --durable log or log+snapshots, and a folder with --sink"));
    };
    let env = Env::real();
    let data = Path::new(folder).join("data");
    let settings = |fresh: bool, durable: Durable| Settings {
        fresh,
        data_dir: Some(data.clone()).filter(|_| durable != Durable::None),
        durable: durable.setting(),
        // No snapshots during the run, so that only the start is measured.
        snapshot_us: 300_000_000_000_000,
        ..Settings::default()
    };
    let program = push::program(args.program)?;
    let spec = |settings| -> AppSpec { push::spec(&program, settings) };
    let mut measured = Measured::new(args.keys, "pushed again, nothing durable");
    let now = || env.clock.monotonic_ns();
    let rate = |ns: u64| args.keys as f64 * 1e9 / ns.max(1) as f64;
    for repeat in 1..=args.repeat {
        let fill = |durable: Durable| -> Result<(u64, String)> {
            let mill = Mill::start(spec(settings(true, durable)), env.clone())?;
            let begun = now();
            for from in (0..args.keys).step_by(BATCH) {
                mill.send("deposits", batch(&program, from..args.keys.min(from + BATCH)))?;
            }
            mill.acknowledge("deposits", args.keys as u64)?;
            Ok((now() - begun, mill.stop()?.state_hash))
        };
        let (bare_ns, wanted) = fill(Durable::None)?;
        measured.baseline_rates.push(rate(bare_ns));
        measured.valid &= fill(args.durable())?.1 == wanted;
        let begun = now();
        let mill = Mill::start(spec(settings(false, args.durable())), env.clone())?;
        while mill.status().recovering {
            env.clock.sleep_us(LOOK_US);
        }
        let ns = now() - begun;
        measured.rates.push(rate(ns));
        let ended = mill.stop()?;
        measured.valid &= ended.state_hash == wanted && ended.events == args.keys as u64;
        measured.state_hash = wanted;
        let seconds = ns as f64 / 1e9;
        progress(&format!(
            "run {repeat} of {}: {} rows are recovered after {seconds:.3} s",
            args.repeat, args.keys
        ));
    }
    Ok(Report::of(args, measured))
}

/// Returns a batch with a row for each account.
fn batch(program: &tidemill_txn::Program, accounts: std::ops::Range<usize>) -> Batch {
    let mut builder = BatchBuilder::new(program.streams[0].spec.schema.clone());
    for account in accounts {
        push_words(&mut builder, [account as i64, 1 + account as i64 % 100]);
    }
    builder.finish()
}

#[cfg(test)]
mod tests {
    use crate::run_json;

    #[test]
    fn what_was_there_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        for options in [
            r#""program":"rust","durable":"log","keys":100000"#,
            r#""program":"traced","durable":"log+snapshots","keys":70000"#,
        ] {
            let sink = folder.path().display();
            let json = format!(r#"{{"workload":"recovery","repeat":1,"sink":"{sink}",{options}}}"#);
            let text = run_json(&json, None, Vec::new(), &mut |_| {}).unwrap();
            let report: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(report["valid"], true, "{report}");
        }
        let nothing = r#"{"workload":"recovery"}"#;
        let refused = run_json(nothing, None, Vec::new(), &mut |_| {}).unwrap_err();
        assert!(refused.what.contains("nothing to recover"), "{refused}");
    }
}
