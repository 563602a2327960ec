//! Workloads of the papers, one file each, with the invariant that each must keep.
//!
//! A workload makes its events from a seed, runs them through the engine and through a baseline
//! written for it alone, run by run in turn, and checks what the engine came to against the
//! baseline, key by key. [`run_json`] is the one entry point; the command line (`tidemill bench`)
//! calls it, and so does this crate's own small program.
//!
//! | file | what it is |
//! | --- | --- |
//! | `args` | the options, checked before anything runs |
//! | `report` | the JSON object that a run comes to |
//! | `rng`, `zipf` | seeded random numbers, keys with skew |
//! | `work` | extra work per operation, calibrated |
//! | `outputs` | the hash of all output events |
//! | `measure` | medians and ratios of runs taken in turn |
//! | `sl` | Streaming Ledger |
//! | `push` | rows sent into a running app, and acknowledged |
//! | `recovery` | a start that finds many rows |

mod args;
mod measure;
mod outputs;
mod push;
mod recovery;
mod report;
mod rng;
mod sl;
mod work;
mod zipf;

use std::sync::Arc;

use tidemill_core::error::nearest;
use tidemill_core::{Error, Result};
use tidemill_txn::program::Opaque;

pub use args::{Args, Durable, ProgramKind, Strategy, DEFAULT_EPOCH};
pub use report::{Latency, Report};
pub use rng::Rng;
pub use zipf::Zipf;

/// What the caller brings besides the options: the program as Python made it.
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
    /// What it is, in a line.
    pub about: &'static str,
    run: Run,
}

/// Runs a workload; the last argument is told of progress.
type Run = fn(&Args, Given<'_>, &mut dyn FnMut(&str)) -> Result<Report>;

/// All workloads.
pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "sl",
        about: "Streaming Ledger: deposits and transfers over accounts and assets",
        run: sl::run,
    },
    Workload {
        name: "push",
        about: "rows sent into a running app and acknowledged when they are durable",
        run: push::run,
    },
    Workload {
        name: "recovery",
        about: "a start that finds a table of many rows",
        run: recovery::run,
    },
];

/// Runs a workload: `args_json` is an object of options (see [`Args`]), the result is the report
/// as JSON. `traced` is the program's JSON for `--program traced` and `--program python`; without
/// it the same program is built in Rust. `progress` gets a line now and then.
///
/// # Errors
/// When an option is wrong, or the workload can't run with it.
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
    let report = (workload.run)(&args, Given { program: traced, opaques }, progress)?;
    serde_json::to_string(&report).map_err(|e| Error::internal(format!("writing the report: {e}")))
}
