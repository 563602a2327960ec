//! Streaming Ledger, ready to run.

use std::sync::Arc;

use tidemill_core::{Error, Result, Value};
use tidemill_env::Env;
use tidemill_table::Table;
use tidemill_txn::Program;

use super::events::{self, Event};
use super::mix::{mixes, Mix, PHASES};
use super::program::{self, ACCOUNTS, ASSETS};
use super::tight::Tight;
use super::{whole, AMOUNT, BALANCE};
use crate::args::Args;
use crate::events::{Events, Input};
use crate::execute::{empty_tables, fill, words, Verdicts};
use crate::report::Report;
use crate::run::{self, Case, PhaseShape};
use crate::shape::Parts;
use crate::work::Work;
use crate::Given;

/// Above this many nanoseconds a transaction the baseline is not tight.
const TIGHT_NS: f64 = 15.0;

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    let ledger = Ledger::new(args, given, Work::calibrated(&env, args.udf_ns))?;
    progress(&format!("sl: {} events over {} keys", args.events(), args.keys));
    if let Some(path) = &args.write_source {
        whole::write(&env, &ledger.parts, &ledger.events, args.keys, path, progress)?;
    }
    match &args.source {
        Some(path) => whole::run(args, &env, &ledger, path, progress),
        None => run::run(args, &env, &ledger, progress),
    }
}

/// The workload as the options want it.
pub(crate) struct Ledger {
    pub(crate) parts: Parts,
    pub(crate) events: Vec<Event>,
    mixes: Vec<Mix>,
    keys: usize,
    seed: u64,
    work: Work,
}

impl Ledger {
    pub(crate) fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Ledger> {
        let parts = program::ledger(args.program, given, work)?;
        if args.dynamic && (args.skew, args.abort) != (0.0, 0.0) {
            return Err(Error::setting("--dynamic: skew and aborts are what its phases change")
                .help("leave out --skew and --abort"));
        }
        if args.dynamic && args.events() < PHASES {
            let what = format!("--events {}: --dynamic has {PHASES} phases", args.events());
            return Err(Error::setting(what));
        }
        let (events, mixes) = (events::generate(args), mixes(args));
        Ok(Ledger { parts, events, mixes, keys: args.keys, seed: args.seed, work })
    }
}

impl Case for Ledger {
    type Baseline = Tight;

    fn program(&self) -> &Arc<Program> {
        &self.parts.program
    }

    fn inputs(&self) -> &[Input] {
        &self.parts.inputs
    }

    fn events(&self) -> &(impl Events + ?Sized) {
        &self.events[..]
    }

    fn phases(&self) -> Vec<PhaseShape> {
        self.mixes.iter().map(|mix| mix.shape()).collect()
    }

    fn tables(&self) -> Vec<Table> {
        let mut tables = empty_tables(&self.parts.program, self.keys, self.seed);
        for table in &mut tables {
            fill(table, self.keys, |key| [Value::Int(key), Value::Int(BALANCE)]);
        }
        tables
    }

    fn baseline(&self) -> Tight {
        Tight::new(self.keys)
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(&self.events, self.work)
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS
    }

    /// Every balance is the baseline's, and totals have changed by deposits only.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let table = |at: usize| &tables[self.parts.tables[at].index()];
        let (accounts, assets) = (table(ACCOUNTS), table(ASSETS));
        let mut totals = [0i128; 2];
        let same_balances = (0..self.keys as u32).all(|key| {
            let balance = |table| words(table, key).map(|words| words[0] as i64);
            let held = (balance(accounts), balance(assets));
            let (Some(account), Some(asset)) = held else { return false };
            totals[0] += i128::from(account);
            totals[1] += i128::from(asset);
            (account, asset) == tight.get(key)
        });
        let deposits = self.events.iter().filter(|e| e.is_deposit()).count() as i128;
        let total = self.keys as i128 * i128::from(BALANCE) + deposits * i128::from(AMOUNT);
        same_balances
            && totals == [total; 2]
            && (accounts.len(), assets.len()) == (self.keys, self.keys)
    }
}
