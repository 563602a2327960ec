//! Streaming Ledger as a case for the harness.

use tidemill_core::{Error, Result, Value};
use tidemill_env::Env;
use tidemill_table::Table;

use super::events::{self, Event};
use super::mix::{mixes, Mix, PHASES};
use super::program::{self, ACCOUNTS, ASSETS};
use super::tight::Tight;
use super::{whole, AMOUNT, BALANCE};
use crate::args::Args;
use crate::execute::{fill, words, Verdicts};
use crate::report::Report;
use crate::run::{self, Case, Made, PhaseShape};
use crate::work::Work;
use crate::Given;

/// The nanoseconds per transaction above which the baseline is not tight.
const TIGHT_NS: f64 = 15.0;

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    let ledger: Ledger = run::made(args, &env, given, progress)?;
    if let Some(path) = &args.write_source {
        whole::write(&env, &ledger.made, path, progress)?;
    }
    match &args.source {
        Some(path) => whole::run(args, &env, &ledger, path, progress),
        None => run::run(args, &env, &ledger, progress),
    }
}

/// The workload according to the options.
pub(crate) struct Ledger {
    pub(super) made: Made<Vec<Event>>,
    mixes: Vec<Mix>,
}

impl Case for Ledger {
    type Events = Vec<Event>;
    type Baseline = Tight;

    fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Ledger> {
        let parts = program::ledger(args.program, given, work)?;
        if args.dynamic && (args.skew, args.abort) != (0.0, 0.0) {
            return Err(Error::setting("--dynamic: its phases set skew and aborts")
                .help("leave out --skew and --abort"));
        }
        if args.dynamic && args.events() < PHASES {
            let what = format!("--events {}: --dynamic has {PHASES} phases", args.events());
            return Err(Error::setting(what));
        }
        let made = Made::new(args, parts, events::generate(args), work);
        Ok(Ledger { made, mixes: mixes(args) })
    }

    fn made(&self) -> &Made<Vec<Event>> {
        &self.made
    }

    fn phases(&self) -> Vec<PhaseShape> {
        self.mixes.iter().map(|mix| mix.shape()).collect()
    }

    fn fill(&self, tables: &mut [Table]) {
        for table in tables {
            fill(table, self.made.keys, |key| [Value::Int(key), Value::Int(BALANCE)]);
        }
    }

    fn baseline(&self) -> Tight {
        Tight::new(self.made.keys)
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(&self.made.events, self.made.work)
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS
    }

    /// Compares every balance with the baseline's, and checks that totals have changed by deposits
    /// only.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let Made { events, keys, .. } = &self.made;
        let [accounts, assets] = [ACCOUNTS, ASSETS].map(|at| self.made.table(tables, at));
        let mut totals = [0i128; 2];
        let same_balances = (0..*keys as u32).all(|key| {
            let balance = |table| words(table, key).map(|words| words[0] as i64);
            let held = (balance(accounts), balance(assets));
            let (Some(account), Some(asset)) = held else { return false };
            totals[0] += i128::from(account);
            totals[1] += i128::from(asset);
            (account, asset) == tight.get(key)
        });
        let deposits = events.iter().filter(|e| e.is_deposit()).count() as i128;
        let total = *keys as i128 * i128::from(BALANCE) + deposits * i128::from(AMOUNT);
        same_balances && totals == [total; 2] && (accounts.len(), assets.len()) == (*keys, *keys)
    }
}
