//! Workloads of papers, one file or folder each, with the invariant that each must hold.
//!
//! A workload generates its events from a seed. It runs them in turn through the engine and through
//! a baseline written for it. Then it compares the engine's results with the baseline's, key by
//! key. [`run_json`] is the one entry point. The command line (`tidemill bench`) calls it, and so
//! does this crate's own small program.
//!
//! | file | contents |
//! | --- | --- |
//! | `args` | the options, checked before a run |
//! | `report` | the JSON object of a run |
//! | `rng`, `zipf` | seeded random numbers, keys with skew |
//! | `work` | extra work per operation, calibrated |
//! | `keys` | keys drawn again, keys without cycles |
//! | `events` | events as the sequencer takes them |
//! | `shape` | the parts of a program that a workload refers to |
//! | `ring` | the windows of the baselines |
//! | `slots` | the open addressing of the baselines |
//! | `check`, `same` | functions that the tests of all workloads share; the comparison with the reference |
//! | `execute` | the one place that creates the engine's executor and lets it execute epochs |
//! | `run` | the interface of a workload in memory, and its runs beside the baseline |
//! | `whole` | runs in the whole engine, into which events are pushed |
//! | `mixed` | such runs of calls of several functions |
//! | `outputs` | the hash of all output events |
//! | `measure` | medians and ratios of runs taken in turn |
//! | `sl` | Streaming Ledger |
//! | `gs` | GrepSum |
//! | `tp` | Toll Processing |
//! | `sea` | Stock Exchange Analysis |
//! | `osed` | Online Social Event Detection |
//! | `leaderboard` | Leaderboard Maintenance |
//! | `ycsb` | YCSB-T: transfers, as calls of functions |
//! | `tpcc` | TPC-C's NewOrder and Payment |
//! | `hotel`, `movie` | DeathStarBench's reservations and reviews, by functions in Python |
//! | `calls` | graphs of calls over several owners, each a thread |
//! | `modes` | weak and strong recovery beside each other |
//! | `chain` | a chain of procedures, or of triggers inside one |
//! | `cluster` | clients of several processes, and their comparison |
//! | `push` | rows sent into a running app, and acknowledged |
//! | `http` | calls of a procedure over HTTP |
//! | `recovery` | a start that finds many rows |

mod args;
mod between;
mod calls;
mod chain;
#[cfg(test)]
mod check;
mod cluster;
mod events;
mod execute;
mod gs;
mod hotel;
mod http;
mod keys;
mod leaderboard;
mod measure;
mod mixed;
mod modes;
mod movie;
mod osed;
mod outputs;
mod push;
mod recovery;
mod report;
mod ring;
mod rng;
mod run;
#[cfg(test)]
mod same;
mod sea;
mod shape;
mod sl;
mod slots;
mod tp;
mod tpcc;
mod whole;
mod work;
mod ycsb;
mod zipf;

use std::sync::Arc;

use tidemill_core::error::nearest;
use tidemill_core::{Error, Result};
use tidemill_txn::program::Opaque;

pub use args::{Args, Durable, ProgramKind, DEFAULT_EPOCH};
pub use cluster::{offer_json, Offered, Way};
pub use report::{Latency, Phase, Report};
pub use rng::Rng;
pub use zipf::Zipf;

/// The caller's input besides the options: the program as given by Python.
#[derive(Default)]
pub struct Given<'a> {
    /// The program's JSON, as the tracer wrote it.
    pub program: Option<&'a str>,
    /// The functions of its opaque handlers, by number.
    pub opaques: Vec<Arc<dyn Opaque>>,
}

/// A workload.
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// Its own options, beside those of all workloads.
    pub options: &'static [&'static str],
    run: Run,
}

/// Runs a workload. The last argument receives messages about progress.
type Run = fn(&Args, Given<'_>, &mut dyn FnMut(&str)) -> Result<Report>;

/// All workloads.
pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "sl",
        about: "Streaming Ledger: deposits and transfers over accounts and assets",
        options: &["deposits", "overlap", "dynamic", "compare", "warm-up", "source", "write-source"],
        run: sl::run,
    },
    Workload {
        name: "gs",
        about: "GrepSum: reads records and writes their sum to the first",
        options: &[
            "length",
            "overlap",
            "acyclic",
            "average",
            "computed",
            "compare",
            "warm-up",
            "window",
            "window-every",
        ],
        run: run::of::<gs::GrepSum>,
    },
    Workload {
        name: "tp",
        about: "Toll Processing: the mean speed of road segments and the vehicles seen there",
        options: &["overlap", "compare", "warm-up"],
        run: run::of::<tp::Toll>,
    },
    Workload {
        name: "sea",
        about: "Stock Exchange Analysis: quotes joined with trades by user, over a window",
        options: &["overlap", "window"],
        run: run::of::<sea::Exchange>,
    },
    Workload {
        name: "osed",
        about: "Online Social Event Detection: tweets of six crises, words that burst, clusters that grow",
        options: &["tweets", "window", "compare"],
        run: osed::run,
    },
    Workload {
        name: "leaderboard",
        about: "Leaderboard Maintenance: votes validated, counted and removed by three procedures",
        options: &["candidates", "phones", "every", "batch", "rate", "write-source"],
        run: leaderboard::run,
    },
    Workload {
        name: "ycsb-t",
        about: "YCSB-T: transfers between accounts, each a function that calls another",
        options: &["batch", "rate", "compare"],
        run: whole::of::<ycsb::Transfers>,
    },
    Workload {
        name: "tpcc",
        about: "TPC-C: NewOrder and Payment, functions of districts and warehouses that call others",
        options: &["batch", "rate", "warehouses", "items"],
        run: tpcc::run,
    },
    Workload {
        name: "hotel",
        about: "DeathStarBench's hotels: searches, recommendations, logins and bookings",
        options: &["batch", "rate"],
        run: hotel::run,
    },
    Workload {
        name: "movie",
        about: "DeathStarBench's movies: reviews, composed by functions that nobody awaits",
        options: &["batch", "rate"],
        run: movie::run,
    },
    Workload {
        name: "calls",
        about: "graphs of calls over several owners of keys, with and without cache and prefixes",
        options: &["of", "warehouses", "items"],
        run: calls::run,
    },
    Workload {
        name: "pe-triggers",
        about: "a chain of procedures, each of which feeds the next one",
        options: &["length", "lengths"],
        run: chain::run,
    },
    Workload {
        name: chain::INSIDE,
        about: "a chain of triggers inside of one transaction",
        options: &["length", "lengths"],
        run: chain::run,
    },
    Workload {
        name: "push",
        about: "rows sent into a running app and acknowledged when they are durable",
        options: &["batch", "rate"],
        run: push::run,
    },
    Workload {
        name: "http",
        about: "calls over HTTP, answered when they are durable",
        options: &["beside", "connections", "requests", "serve"],
        run: http::run,
    },
    Workload {
        name: "recovery-modes",
        about: "weak and strong recovery of a chain of procedures: bytes logged, rates of replay",
        options: &["lengths"],
        run: modes::run,
    },
    Workload {
        name: "recovery",
        about: "a start that finds a table of many rows",
        options: &[],
        run: recovery::run,
    },
];

/// Runs a workload and returns the report as JSON.
///
/// `args_json` is an object of options (see [`Args`]). `traced` is the program's JSON for
/// `--program traced` and `--program python`; without it, the same program is built in Rust.
/// `progress` receives messages about progress.
///
/// # Errors When an option is wrong, or the workload can't run with it.
pub fn run_json(
    args_json: &str,
    traced: Option<&str>,
    opaques: Vec<Arc<dyn Opaque>>,
    progress: &mut dyn FnMut(&str),
) -> Result<String> {
    let args = Args::from_json(args_json)?;
    let names = WORKLOADS.iter().map(|w| w.name);
    let workload = WORKLOADS.iter().find(|w| w.name == args.workload).ok_or_else(|| {
        let error = Error::setting(format!("there is no workload '{}'", args.workload));
        match nearest(&args.workload, names.clone()) {
            Some(near) => error.help(format!("did you mean '{near}'?")),
            None => error.help(format!("there are {}", names.collect::<Vec<_>>().join(", "))),
        }
    })?;
    args.only(workload.options)?;
    let report = (workload.run)(&args, Given { program: traced, opaques }, progress)?;
    serde_json::to_string(&report).map_err(|e| Error::internal(format!("writing the report: {e}")))
}
