//! `tidemill-bench WORKLOAD [--option value]...`: the benchmarks without Python. Progress goes to
//! stderr, and the report to stdout as one line of JSON.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use serde_json::{Map, Value};

#[global_allocator]
static MEMORY: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let run = parse(&args).and_then(|json| {
        tidemill_bench::run_json(&json, None, Vec::new(), &mut |line| eprintln!("{line}"))
            .map_err(|e| e.to_string())
    });
    match run {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Options without a value.
const SWITCHES: &[&str] = &["acyclic", "average", "dynamic", "requests"];

/// Options with text values, even if they look like numbers.
const TEXTS: &[&str] = &["lengths", "log", "sink", "snapshots", "source", "tweets", "write_source"];

/// Returns the options as a JSON object: `--udf-ns 5` becomes `"udf_ns": 5`.
fn parse(args: &[String]) -> Result<String, String> {
    let Some((workload, mut rest)) = args.split_first() else {
        let names: Vec<&str> = tidemill_bench::WORKLOADS.iter().map(|w| w.name).collect();
        return Err(format!(
            "usage: tidemill-bench WORKLOAD [--option value]...\nworkloads: {}",
            names.join(", ")
        ));
    };
    let mut object = Map::new();
    object.insert("workload".into(), Value::from(workload.as_str()));
    while let Some((option, tail)) = rest.split_first() {
        let Some(name) = option.strip_prefix("--") else {
            return Err(format!("'{option}' is not an option"));
        };
        if name == "json" {
            // JSON is the only format of reports.
            rest = tail;
            continue;
        }
        let name = name.replace('-', "_");
        if SWITCHES.contains(&&*name) {
            object.insert(name, true.into());
            rest = tail;
            continue;
        }
        let Some((value, tail)) = tail.split_first() else {
            return Err(format!("{option} needs a value"));
        };
        let number = value.parse::<u64>().map(Value::from);
        let number = number.or_else(|_| value.parse::<f64>().map(Value::from)).ok();
        let number = number.filter(|_| !TEXTS.contains(&&*name));
        object.insert(name, number.unwrap_or_else(|| value.as_str().into()));
        rest = tail;
    }
    Ok(Value::Object(object).to_string())
}
