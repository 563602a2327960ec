//! Runs of the engine and of the baseline in turn, and what they come to.

use tidemill_core::{Error, Result, Value};
use tidemill_env::Env;
use tidemill_table::Table;
use tidemill_txn::execute::Serial;
use tidemill_txn::order::{CutInput, Sequencer};

use super::events::{self, Arrivals, Event};
use super::program::{self, Ledger};
use super::tight::Tight;
use super::whole;
use super::{AMOUNT, BALANCE};
use crate::args::{Args, Strategy};
use crate::measure::{max, median, median_ratio, min};
use crate::outputs::OutputHash;
use crate::report::Report;
use crate::work::Work;
use crate::Given;

/// Above this many nanoseconds a transaction, at [`TIGHT_KEYS`] keys or fewer, the baseline is not
/// tight.
pub(crate) const TIGHT_NS: f64 = 15.0;
pub(crate) const TIGHT_KEYS: usize = 122_880;

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    if args.length.is_some() {
        return Err(Error::setting("--length: transactions of sl have 2 and 4 operations"));
    }
    let env = Env::real();
    let strategy = args.strategy()?;
    let work = Work::calibrated(&env, args.udf_ns);
    let ledger = program::ledger(args.program, given, work)?;
    progress(&format!("sl: {} events over {} keys", args.events, args.keys));
    let events = events::generate(args);
    if let Some(path) = &args.write_source {
        whole::write(&env, &ledger, &events, args.keys, path, progress)?;
    }
    if let Some(path) = &args.source {
        return whole::run(args, &env, &ledger, &events, work, path, progress);
    }
    let arrivals = Arrivals::of(&events, args.epoch(), &ledger.inputs);
    let (tables, tight) = (load(&ledger, args), Tight::new(args.keys));
    let beside = (strategy == Strategy::SerialNoPrefetch).then_some(Strategy::Serial);

    let rate = |ns: u64| args.events as f64 * 1e9 / ns.max(1) as f64;
    let (mut rates, mut serial_rates, mut tight_rates) = (Vec::new(), Vec::new(), Vec::new());
    let mut hashes: Option<(String, String)> = None;
    let mut valid = true;
    for repeat in 1..=args.repeat {
        let mut after = tight.clone();
        let begun = env.clock.monotonic_ns();
        after.run(&events, work);
        tight_rates.push(rate(env.clock.monotonic_ns() - begun));

        if let Some(beside) = beside {
            let done = execute(&env, &ledger, arrivals.cuts(), tables.clone(), beside)?;
            serial_rates.push(rate(done.ns));
        }
        let done = execute(&env, &ledger, arrivals.cuts(), tables.clone(), strategy)?;
        rates.push(rate(done.ns));
        valid &= holds(&ledger, &events, &after, &done, args.keys);
        let state = match &hashes {
            // Every key was compared with the baseline's, so the state is the first repeat's.
            Some((state, _)) => state.clone(),
            None => state_hash(&done.tables),
        };
        let now = (state, done.output_hash);
        valid &= *hashes.get_or_insert_with(|| now.clone()) == now;
        progress(&format!(
            "run {repeat} of {}: {:.1} ns a transaction, the baseline {:.1}",
            args.repeat,
            1e9 / rates[repeat - 1],
            1e9 / tight_rates[repeat - 1],
        ));
    }

    let (state_hash, output_hash) = hashes.unwrap_or_default();
    let baseline_ns = 1e9 / max(&tight_rates);
    let events_per_s = median(&rates);
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
        baseline_valid: (args.keys <= TIGHT_KEYS && args.udf_ns == 0)
            .then_some(baseline_ns <= TIGHT_NS),
        ratio: median_ratio(&rates, &tight_rates),
        ratio_to_serial: match beside {
            Some(_) => median_ratio(&rates, &serial_rates),
            None => 1.0,
        },
        durable: args.durable,
        latency_ms: None,
        state_hash,
        output_hash,
        valid,
    })
}

/// What a run of the engine comes to.
pub(crate) struct Done {
    /// Time spent in cuts, execution and commits.
    pub(crate) ns: u64,
    pub(crate) tables: Vec<Table>,
    pub(crate) output_hash: String,
    pub(crate) committed: u64,
    pub(crate) aborted: u64,
    aborted_times: u64,
}

/// The tables with all keys and their first balance.
pub(crate) fn load(ledger: &Ledger, args: &Args) -> Vec<Table> {
    let tables = ledger.program.tables.iter().enumerate();
    tables
        .map(|(index, spec)| {
            let mut table = Table::new(spec.clone().into(), args.seed ^ index as u64);
            table.reserve(args.keys);
            for key in 0..args.keys as i64 {
                let row = [Value::Int(key), Value::Int(BALANCE)];
                table.put(&row[..1], Some(&row), 0);
            }
            table.commit(0);
            table
        })
        .collect()
}

/// Executes all events: cut by cut, execution and commit on the clock, hashing off it.
pub(crate) fn execute(
    env: &Env,
    ledger: &Ledger,
    cuts: impl Iterator<Item = CutInput>,
    mut tables: Vec<Table>,
    strategy: Strategy,
) -> Result<Done> {
    let program = &ledger.program;
    let mut sequencer = Sequencer::new(program.clone())?;
    let mut serial = Serial::new(program.clone(), 0);
    if strategy == Strategy::SerialNoPrefetch {
        serial = serial.without_prefetch();
    }
    let mut hash = OutputHash::new(program);
    let (mut ns, mut committed, mut aborted, mut aborted_times) = (0, 0, 0, 0);
    for input in cuts {
        let begun = env.clock.monotonic_ns();
        let sequenced = sequencer.cut(input)?;
        let outcome = serial.run(&mut tables, &sequenced.epoch)?;
        tables.iter_mut().for_each(|table| table.commit(outcome.seq));
        ns += env.clock.monotonic_ns() - begun;
        hash.add(&outcome.outputs);
        committed += outcome.counts.iter().map(|c| c.committed).sum::<u64>();
        aborted += outcome.counts.iter().map(|c| c.aborted).sum::<u64>();
        for output in outcome.outputs.iter().filter(|o| o.stream == ledger.aborted) {
            let times = output.batch.ints(0).unwrap_or(&[]);
            aborted_times += times.iter().map(|t| *t as u64).sum::<u64>();
        }
    }
    if !sequencer.is_drained() {
        return Err(Error::internal("events are left over when all sources have ended"));
    }
    let output_hash = hash.finish();
    Ok(Done { ns, tables, output_hash, committed, aborted, aborted_times })
}

/// Whether the invariant holds: verdicts and every balance are the baseline's, and totals have
/// changed by deposits only.
pub(crate) fn holds(
    ledger: &Ledger,
    events: &[Event],
    tight: &Tight,
    done: &Done,
    keys: usize,
) -> bool {
    let same_verdicts = done.committed + done.aborted == events.len() as u64
        && (done.aborted, done.aborted_times) == (tight.aborted, tight.aborted_times);
    let (accounts, assets) =
        (&done.tables[ledger.accounts.index()], &done.tables[ledger.assets.index()]);
    let mut totals = [0i128; 2];
    let same_balances = (0..keys as u32).all(|key| {
        let held = (balance(accounts, key), balance(assets, key));
        let (Some(account), Some(asset)) = held else { return false };
        totals[0] += i128::from(account);
        totals[1] += i128::from(asset);
        (account, asset) == tight.get(key)
    });
    let deposits = events.iter().filter(|e| e.is_deposit()).count() as i128;
    let total = keys as i128 * i128::from(BALANCE) + deposits * i128::from(AMOUNT);
    same_verdicts
        && same_balances
        && totals == [total; 2]
        && (accounts.len(), assets.len()) == (keys, keys)
}

fn balance(table: &Table, key: u32) -> Option<i64> {
    let key = u64::from(key);
    let base = table.find(key, table.hash(key))?;
    table.is_present(base).then(|| table.body(base)[0] as i64)
}

/// The hashes of all tables, in hexadecimal.
pub(crate) fn state_hash(tables: &[Table]) -> String {
    let sum = tables.iter().fold(0u128, |sum, table| sum.wrapping_add(table.state_hash()));
    format!("{sum:032x}")
}
