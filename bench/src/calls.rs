//! Graphs of calls over several owners of keys (`tidemill_function`), each a thread: transfers (`--of ycsb-t`) or
//! TPC-C (`--of tpcc`), with what the protocol can do and without.
//!
//! Each thread owns equal shares of the partitions, and takes the requests whose first entity it owns. Epochs
//! have `--epoch` requests (1,000). Nothing is durable: this measures the protocol alone, and where each part of
//! it pays. Side by side in each repeat:
//!
//! | run | |
//! | --- | --- |
//! | `all` | as it is |
//! | `no-cache` | a re-run makes its calls one after the other again (Styx 6.3) |
//! | `no-prefix` | keys of several columns are placed by all of them (Styx 8.1) |
//! | `neither` | |
//!
//! What must hold: all rows of all owners together are those of the baseline, in every run.
//!
//! | file | what it is |
//! | --- | --- |
//! | `drive` | nodes on threads |
//! | `transfer` | the functions of YCSB-T |
//! | `order` | those of TPC-C |

mod drive;
mod order;
mod transfer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{json, Map, Value as Json};
use tidemill_core::{Error, Key, Result, Row, TableId, Value};
use tidemill_env::Env;
use tidemill_function::{Call, Functions, Settings};

use crate::args::Args;
use crate::report::{Measured, Report};
use crate::run::BASELINE;
use crate::Given;

/// Requests of a run and of an epoch, where nobody says.
const REQUESTS: usize = 200_000;
const EPOCH: usize = 1_000;

/// A workload over owners.
trait Graphs {
    /// Its program, with or without prefixes of keys that choose the partition.
    fn functions(&self, prefix: bool) -> Arc<dyn Functions>;
    /// What is there at the beginning.
    fn rows(&self) -> Vec<(TableId, Row)>;
    /// The requests in their order.
    fn requests(&self) -> Vec<Call>;
    /// Executes all requests; the rows then.
    fn straight(&self) -> Vec<(TableId, Row)>;
}

/// Runs the workload.
pub(crate) fn run(args: &Args, _: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    let count = args.events.unwrap_or(REQUESTS);
    let graphs: Box<dyn Graphs> = match args.of.as_deref().unwrap_or("ycsb-t") {
        "ycsb-t" => Box::new(transfer::Transfers::new(args, count)),
        "tpcc" => Box::new(order::Orders::new(args, count)?),
        other => {
            return Err(Error::setting(format!("--of {other}: there is no such graph of calls"))
                .help("it is ycsb-t or tpcc"));
        }
    };
    let epoch = args.epoch.unwrap_or(EPOCH);
    let (begin, requests) = (graphs.rows(), graphs.requests());
    let begun = env.clock.monotonic_ns();
    let wanted = by_key(graphs.as_ref(), graphs.straight());
    let rate = |ns: u64| count as f64 * 1e9 / ns.max(1) as f64;
    let baseline = rate(env.clock.monotonic_ns() - begun);
    let mut measured = Measured::new(count, BASELINE);
    let mut counted = Map::new();
    for repeat in 1..=args.repeat {
        measured.baseline_rates.push(baseline);
        for (name, cache, prefix) in [
            ("all", true, true),
            ("no-cache", false, true),
            ("no-prefix", true, false),
            ("neither", false, false),
        ] {
            let settings = Settings { cache, ..Settings::default() };
            let functions = graphs.functions(prefix);
            let ended =
                drive::run(&env, args.threads, functions, settings, &begin, &requests, epoch)?;
            let rate = rate(ended.ns);
            measured.valid &= by_key(graphs.as_ref(), ended.rows) == wanted;
            measured.valid &= ended.replies == count;
            match name {
                "all" => measured.rates.push(rate),
                _ => measured.compared.entry(name.into()).or_default().push(rate),
            }
            let each = |n: u64| n as f64 / count as f64;
            let counts = json!({
                "rounds_an_epoch": ended.counters.rounds as f64 / ended.counters.epochs as f64,
                "calls_a_request": each(ended.counters.calls),
                "cached_a_request": each(ended.counters.cached),
                "messages_a_request": each(ended.counters.messages),
            });
            counted.insert(name.into(), counts);
            progress(&format!("run {repeat} of {}, {name}: {rate:.0} a second", args.repeat));
        }
    }
    measured.details.insert("protocol".into(), Json::Object(counted));
    Ok(Report::of(args, measured))
}

/// Rows by table and key.
fn by_key(graphs: &dyn Graphs, rows: Vec<(TableId, Row)>) -> BTreeMap<(TableId, Key), Row> {
    let functions = graphs.functions(true);
    let key = |table: TableId, row: &[Value]| {
        let spec = &functions.program().tables[table.index()];
        Key::of(spec.key.iter().map(|&column| &row[column]))
    };
    rows.into_iter().map(|(table, row)| ((table, key(table, &row)), row)).collect()
}
