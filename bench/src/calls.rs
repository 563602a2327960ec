//! Graphs of calls over several owners of keys (`tidemill_function`), with one thread per owner:
//! transfers (`--of ycsb-t`) or TPC-C (`--of tpcc`), with and without features of the protocol.
//!
//! Each thread owns an equal share of the partitions, and receives the requests whose first entity
//! it owns. Epochs have `--epoch` requests (1,000). Nothing is durable: the workload measures only
//! the protocol, and the effect of each feature. These variants run side by side in each repeat:
//!
//! | run | |
//! | --- | --- |
//! | `all` | all features |
//! | `no-cache` | a re-run makes its calls one after the other again (Styx, section 6.3) |
//! | `no-prefix` | keys of several columns are placed by all columns (Styx, section 8.1) |
//! | `neither` | neither feature |
//!
//! The invariant: in every run, the rows of all owners together are those of the baseline.
//!
//! | file | contents |
//! | --- | --- |
//! | `drive` | nodes on threads |
//! | `transfer` | the functions of YCSB-T |
//! | `order` | the functions of TPC-C |

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

/// The default numbers of requests in a run and in an epoch.
const REQUESTS: usize = 200_000;
const EPOCH: usize = 1_000;

/// A workload over several owners.
trait Graphs {
    /// Returns its functions. With `prefix`, a prefix of a key chooses the partition.
    fn functions(&self, prefix: bool) -> Arc<dyn Functions>;
    /// Returns the initial rows.
    fn rows(&self) -> Vec<(TableId, Row)>;
    /// Returns the requests in their order.
    fn requests(&self) -> Vec<Call>;
    /// Executes all requests in a straight loop and returns the final rows.
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
            return Err(Error::setting(format!("--of {other}: no such graph of calls"))
                .help("use ycsb-t or tpcc"));
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

/// Returns the rows by table and key.
fn by_key(graphs: &dyn Graphs, rows: Vec<(TableId, Row)>) -> BTreeMap<(TableId, Key), Row> {
    let functions = graphs.functions(true);
    let key = |table: TableId, row: &[Value]| {
        let spec = &functions.program().tables[table.index()];
        Key::of(spec.key.iter().map(|&column| &row[column]))
    };
    rows.into_iter().map(|(table, row)| ((table, key(table, &row)), row)).collect()
}
