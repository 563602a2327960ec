//! Weak and strong recovery beside each other (S-Store, section 4.2.3). A chain of procedures runs
//! with each mode, and is then restarted on its log.
//!
//! For each length and mode, the report has the forward rate with a synced log, the bytes in the
//! logs, and the rate of replay at a start. The baseline of replay is the same run without a log.
//!
//! The invariant: both modes give the same outputs as the run without a log, and so does the
//! replay.

use std::io::Read;
use std::path::Path;

use serde_json::json;
use tidemill_core::{Batch, BatchBuilder, Error, Result};
use tidemill_engine::{AppSpec, Mill, Recovery, Settings, SourceDecl};
use tidemill_env::Env;
use tidemill_txn::Program;

use crate::args::{Args, Durable, ProgramKind};
use crate::chain;
use crate::events::push_words;
use crate::report::{Measured, Report};
use crate::Given;

/// The default lengths, the number of events, and the number of events sent together.
const LENGTHS: &str = "1,4,16,64";
const EVENTS: usize = 20_000;
const BATCH: usize = 1_000;
/// The interval of checks whether a start is complete, in microseconds.
const LOOK_US: u64 = 500;

/// Runs the workload.
pub(crate) fn run(args: &Args, _: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let (Some(folder), Durable::Log) = (&args.sink, args.durable()) else {
        return Err(Error::setting("--durable: this workload measures the log")
            .help("give --durable log, and a folder with --sink"));
    };
    if args.program != ProgramKind::Rust {
        return Err(Error::setting("--program: the chain is written in Rust only"));
    }
    let (events, env) = (args.events.unwrap_or(EVENTS), Env::real());
    let lengths = chain::lengths(args.lengths.as_deref().unwrap_or(LENGTHS))?;
    let mut measured = Measured::new(events, "the same chain, nothing logged");
    let mut shown = Vec::new();
    for length in lengths {
        let program = chain::program_of(length)?;
        let folder = Path::new(folder).join("data");
        let case = One { env: &env, program: &program, folder: &folder, events };
        let bare = case.forward(None)?;
        for (name, mode) in [("weak", Recovery::Weak), ("strong", Recovery::Strong)] {
            let forward = case.forward(Some(mode))?;
            let bytes = bytes(&env, &folder)?;
            let replay = case.replay(mode)?;
            measured.valid &= forward.hash == bare.hash && replay.hash == bare.hash;
            let [bare, forward, replay] = [&bare, &forward, &replay].map(|r| r.per_s);
            progress(&format!(
                "{length} procedures, {name}: {forward:.0} events/s, {bytes} bytes logged, replay {:.2} \
                 of {bare:.0} without a log",
                replay / bare
            ));
            measured.rates.push(forward);
            measured.baseline_rates.push(bare);
            shown.push(json!({
                "length": length, "recovery": name, "events_per_s": forward, "log_bytes": bytes,
                "replay_per_s": replay, "replay_to_no_log": replay / bare,
            }));
        }
        measured.output_hash = bare.hash;
    }
    measured.details.insert("modes".into(), shown.into());
    Ok(Report::of(args, measured))
}

/// A chain.
struct One<'c> {
    env: &'c Env,
    program: &'c Program,
    folder: &'c Path,
    events: usize,
}

struct Ran {
    per_s: f64,
    hash: String,
}

impl One<'_> {
    fn start(&self, recovery: Option<Recovery>, fresh: bool) -> Result<Mill> {
        let settings = Settings {
            fresh,
            data_dir: recovery.map(|_| self.folder.to_path_buf()),
            durable: Durable::Log.setting(),
            recovery: recovery.unwrap_or_default(),
            rerun_every: 0,
            ..Settings::default()
        };
        let sources = vec![SourceDecl::pushed(chain::FIRST)];
        Mill::start(AppSpec::new(self.program.clone(), sources, settings), self.env.clone())
    }

    fn ran(&self, begun: u64, mill: &Mill) -> Result<Ran> {
        let ns = self.env.clock.monotonic_ns() - begun;
        let per_s = self.events as f64 * 1e9 / ns.max(1) as f64;
        Ok(Ran { per_s, hash: mill.stop()?.output_hash })
    }

    /// Runs all events from scratch; with `recovery`, they are logged and synced.
    fn forward(&self, recovery: Option<Recovery>) -> Result<Ran> {
        let mill = self.start(recovery, true)?;
        let begun = self.env.clock.monotonic_ns();
        for from in (0..self.events).step_by(BATCH) {
            mill.send(chain::FIRST, self.batch(from..self.events.min(from + BATCH)))?;
        }
        mill.acknowledge(chain::FIRST, self.events as u64)?;
        self.ran(begun, &mill)
    }

    /// Starts on the logged events.
    fn replay(&self, recovery: Recovery) -> Result<Ran> {
        let begun = self.env.clock.monotonic_ns();
        let mill = self.start(Some(recovery), false)?;
        while mill.status().recovering {
            self.env.clock.sleep_us(LOOK_US);
        }
        self.ran(begun, &mill)
    }

    fn batch(&self, events: std::ops::Range<usize>) -> Batch {
        let mut builder = BatchBuilder::new(self.program.streams[0].spec.schema.clone());
        events.for_each(|event| push_words(&mut builder, [event as i64]));
        builder.finish()
    }
}

/// Returns the bytes in the logs, without preallocated room.
fn bytes(env: &Env, folder: &Path) -> Result<usize> {
    let mut total = 0;
    for log in ["input", "cuts"] {
        let io = |e: std::io::Error| Error::io(format!("reading the log {log}"), &e);
        for path in env.disk.list(&folder.join(log)).map_err(io)? {
            let mut bytes = Vec::new();
            env.disk
                .open_read(&path)
                .and_then(|mut file| file.read_to_end(&mut bytes))
                .map_err(io)?;
            total += bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use crate::{check, run_json};

    #[test]
    fn weak_logs_do_not_grow_with_the_chain_and_strong_ones_do() {
        let folder = tempfile::tempdir().unwrap();
        let sink = folder.path().display();
        let options = format!(r#""lengths":"1,8","events":2000,"durable":"log","sink":"{sink}""#);
        let json = format!(r#"{{"workload":"recovery-modes",{options}}}"#);
        let text = run_json(&json, None, Vec::new(), &mut |_| {}).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["valid"], true, "{report}");
        let modes = report["modes"].as_array().unwrap();
        let bytes = |at: usize| modes[at]["log_bytes"].as_f64().unwrap();
        // The clock decides the number of epochs, each of which has a record of its cut.
        assert!(bytes(2) < bytes(0) * 2.0, "{report}");
        assert!(bytes(3) > bytes(1) * 3.0, "{report}");
        assert!(bytes(1) > bytes(0), "{report}");
    }

    #[test]
    fn wrong_options_are_named() {
        check::are_refused(
            "recovery-modes",
            &[
                (r#""lengths":"1""#, "--durable"),
                (r#""durable":"log","sink":"x","lengths":"0""#, "0"),
            ],
        );
    }
}
