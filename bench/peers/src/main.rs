//! Leaderboard Maintenance on PostgreSQL and SQLite beside Tidemill: the same votes in the same
//! order, with outcomes checked against the same tables.
//!
//! ```text
//! tidemill-peers [--tidemill PATH] [--repeat N] [--without SYSTEM or SETTING] [WORKLOAD OPTIONS]...
//! ```
//!
//! All other options go to `tidemill bench leaderboard`, which writes the votes. Systems run in
//! turn, repeat by repeat. Each prints a line of JSON. The last line has the ratios of Tidemill's
//! programs to all others: medians over the repeats. Replies are durable on all systems, except as
//! `relaxed` says.

mod postgres;
mod show;
mod sqlite;
mod tidemill;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{json, Map, Value};

use show::{Ended, Show, Wrong};

/// The numbers of votes in a grouped transaction, for PostgreSQL and for SQLite. More votes slow
/// down PostgreSQL, because each leaves versions of the same rows that can't be removed before the
/// end.
const FEW: usize = 100;
const MANY: usize = 1000;

fn main() -> ExitCode {
    match Run::of(std::env::args().skip(1).collect()).and_then(|run| run.all()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A system with its setting.
#[derive(Clone, Copy)]
struct System {
    name: &'static str,
    setting: &'static str,
    /// The guarantee that the setting gives up, if any.
    relaxed: &'static str,
}

const LOST: &str = "the last acknowledged votes may be lost";
const TOGETHER: &str = "many votes share a transaction and its acknowledgement";

const SYSTEMS: [System; 8] = [
    System { name: "tidemill", setting: "rust", relaxed: "" },
    System { name: "tidemill", setting: "python", relaxed: "" },
    System { name: "postgresql", setting: "synchronous_commit=on", relaxed: "" },
    System { name: "postgresql", setting: "synchronous_commit=off", relaxed: LOST },
    System { name: "postgresql", setting: "100 votes a transaction", relaxed: TOGETHER },
    System { name: "sqlite", setting: "synchronous=FULL", relaxed: "" },
    System { name: "sqlite", setting: "synchronous=NORMAL", relaxed: LOST },
    System { name: "sqlite", setting: "1000 votes a transaction", relaxed: TOGETHER },
];

struct Run {
    tidemill: PathBuf,
    repeat: usize,
    without: Vec<String>,
    shape: Vec<String>,
}

impl Run {
    fn of(args: Vec<String>) -> Result<Run, Wrong> {
        let (tidemill, without, shape) = (".venv/bin/tidemill".into(), Vec::new(), Vec::new());
        let mut run = Run { tidemill, repeat: 3, without, shape };
        let mut args = args.into_iter();
        while let Some(option) = args.next() {
            let value = args.next().ok_or(format!("{option} needs a value"))?;
            match &*option {
                "--tidemill" => run.tidemill = value.into(),
                "--repeat" => run.repeat = value.parse()?,
                "--without" => run.without.push(value),
                _ => run.shape.extend([option, value]),
            }
        }
        Ok(run)
    }

    fn all(&self) -> Result<bool, Wrong> {
        let folder = tempfile::Builder::new().prefix("tidemill-peers").tempdir()?;
        // The server in the folder runs as another user.
        std::fs::set_permissions(
            folder.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )?;
        let votes = folder.path().join("votes.csv");
        let mut shape = self.shape.clone();
        shape.extend(["--write-source".into(), votes.display().to_string()]);
        eprintln!("the votes");
        tidemill::run(&self.tidemill, "rust", &folder.path().join("first"), &shape)?;
        let show = Show::read(&votes)?;
        let systems: Vec<System> = SYSTEMS
            .into_iter()
            .filter(|s| !self.without.iter().any(|w| [s.name, s.setting].contains(&&**w)))
            .collect();
        let mut server = match systems.iter().any(|system| system.name == "postgresql") {
            true => Some(postgres::Server::start(folder.path())?),
            false => None,
        };
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); systems.len()];
        let mut valid = vec![true; systems.len()];
        for repeat in 1..=self.repeat {
            for (at, system) in systems.iter().enumerate() {
                let (rate, is_right) = self.once(*system, &show, folder.path(), server.as_mut())?;
                let (name, setting) = (system.name, system.setting);
                eprintln!(
                    "run {repeat} of {}: {name}, {setting}: {rate:.0} votes a second",
                    self.repeat
                );
                rates[at].push(rate);
                valid[at] &= is_right;
            }
        }
        drop(server);
        for ((system, rates), valid) in systems.iter().zip(&rates).zip(&valid) {
            let relaxed = (!system.relaxed.is_empty()).then_some(system.relaxed);
            let line = json!({
                "workload": "leaderboard", "system": system.name, "setting": system.setting,
                "relaxed": relaxed, "votes": show.votes.len(), "votes_per_s": median(rates),
                "rates": rates, "valid": valid,
            });
            println!("{line}");
        }
        println!("{}", json!({ "workload": "leaderboard", "ratios": ratios(&systems, &rates) }));
        Ok(valid.iter().all(|valid| *valid))
    }

    /// Runs once; returns the rate, and whether the outcome is right.
    fn once(
        &self,
        system: System,
        show: &Show,
        folder: &Path,
        server: Option<&mut postgres::Server>,
    ) -> Result<(f64, bool), Wrong> {
        let checked = |ended: Ended| {
            let right =
                show.check(&ended).inspect_err(|wrong| eprintln!("{}: {wrong}", system.name));
            (show.votes.len() as f64 / ended.seconds, right.is_ok())
        };
        let group = match (system.relaxed == TOGETHER, system.name) {
            (true, "sqlite") => MANY,
            (true, _) => FEW,
            _ => 1,
        };
        Ok(match (system.name, server) {
            ("tidemill", _) => {
                let sink = folder.join("tidemill");
                let report = tidemill::run(&self.tidemill, system.setting, &sink, &self.shape)?;
                let rate = report["events_per_s"].as_f64().ok_or("the report has no rate")?;
                (rate, report["valid"] == Value::Bool(true))
            }
            ("postgresql", Some(server)) => {
                let commit = system.setting.strip_prefix("synchronous_commit=").unwrap_or("on");
                let ended = server.run(show, commit, group);
                checked(ended.map_err(|e| format!("{e}\n{}", postgres::log(folder)))?)
            }
            _ => {
                let synchronous = system.setting.strip_prefix("synchronous=").unwrap_or("FULL");
                checked(sqlite::run(folder, show, synchronous, group)?)
            }
        })
    }
}

/// Returns the ratios of the rates of Tidemill's programs to all others: medians over the repeats.
fn ratios(systems: &[System], rates: &[Vec<f64>]) -> Map<String, Value> {
    let mut ratios = Map::new();
    let named = |system: &System| format!("{}, {}", system.name, system.setting);
    for (own, own_rates) in systems.iter().zip(rates).filter(|(s, _)| s.name == "tidemill") {
        let to: BTreeMap<String, f64> = (systems.iter().zip(rates))
            .filter(|(system, _)| system.name != "tidemill")
            .map(|(system, rates)| {
                let pairs: Vec<f64> = own_rates.iter().zip(rates).map(|(a, b)| a / b).collect();
                (named(system), median(&pairs))
            })
            .collect();
        ratios.insert(named(own), json!(to));
    }
    ratios
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
