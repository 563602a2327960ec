//! Functions that the tests of all workloads share.

use std::sync::Arc;

use serde_json::Value;
use tidemill_env::Env;
use tidemill_txn::program::Opaque;

use crate::args::Args;
use crate::run::Case;
use crate::work::Work;
use crate::{run_json, Given};

/// Returns a workload's options, given as the fields of a JSON object.
pub(crate) fn args(workload: &str, options: &str) -> Args {
    Args::from_json(&json(workload, options)).unwrap()
}

fn json(workload: &str, options: &str) -> String {
    format!(r#"{{"workload":"{workload}",{options}}}"#)
}

/// Runs a workload and returns its report.
pub(crate) fn report(workload: &str, options: &str, opaques: Vec<Arc<dyn Opaque>>) -> Value {
    let text = run_json(&json(workload, options), None, opaques, &mut |_| {}).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns a workload without extra work.
pub(crate) fn case<C: Case>(args: &Args, opaques: Vec<Arc<dyn Opaque>>) -> C {
    let work = Work::calibrated(&Env::real(), 0);
    C::new(args, Given { program: None, opaques }, work).unwrap()
}

/// Asserts that programs of these kinds, in epochs of any length, are right and give one state and
/// the same outputs. Returns their reports.
pub(crate) fn all_agree(
    workload: &str,
    programs: &[&str],
    options: &str,
    opaques: impl Fn() -> Vec<Arc<dyn Opaque>>,
) -> Vec<Value> {
    let mut reports = Vec::new();
    for program in programs {
        for epoch in [1, 100, 10_000] {
            let options = format!(r#"{options},"program":"{program}","epoch":{epoch}"#);
            let report = report(workload, &options, opaques());
            assert_eq!(report["valid"], true, "{report}");
            reports.push(report);
        }
    }
    let hashes = |report: &Value| (report["state_hash"].clone(), report["output_hash"].clone());
    let is_first = |report: &Value| hashes(report) == hashes(&reports[0]);
    assert!(reports.iter().all(is_first), "{options}: {reports:?}");
    reports
}

/// Asserts that each of these options is refused with a message that contains this text.
pub(crate) fn are_refused(workload: &str, cases: &[(&str, &str)]) {
    for (options, want) in cases {
        let json = json(workload, options);
        let text = run_json(&json, None, Vec::new(), &mut |_| {}).expect_err(options).to_string();
        assert!(text.contains(want), "{options}: {text}");
    }
}
