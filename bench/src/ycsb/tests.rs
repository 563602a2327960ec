use crate::args::{Args, ProgramKind};
use crate::check;
use crate::same::same_as_reference;

use super::Transfers;

#[test]
fn all_programs_and_epochs_come_to_the_same() {
    let options = r#""events":4000,"keys":300,"skew":0.8,"abort":0.1,"repeat":2,"durable":"none""#;
    check::all_agree("ycsb-t", &["rust", "traced"], options, Vec::new);
}

#[test]
fn the_whole_engine_comes_to_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for program in ["rust", "traced"] {
        let options = format!(
            r#""events":3000,"keys":50,"skew":0.9,"abort":0.1,"repeat":1,"program":"{program}","sink":"{}""#,
            folder.path().display()
        );
        let report = check::report("ycsb-t", &options, Vec::new());
        assert_eq!(report["valid"], true, "{report}");
        let paced = format!(r#"{options},"rate":20000"#);
        let report = check::report("ycsb-t", &paced, Vec::new());
        assert_eq!(report["valid"], true, "{report}");
        assert!(report["latency_ms"]["p99"].as_f64().unwrap() > 0.0, "{report}");
    }
}

#[test]
fn the_reference_comes_to_the_same() {
    let args = check::args("ycsb-t", r#""events":600,"keys":5,"skew":0.5,"abort":0.2,"epoch":32"#);
    for program in [ProgramKind::Rust, ProgramKind::Traced] {
        let case: Transfers = check::case(&Args { program, ..args.clone() }, Vec::new());
        assert!(same_as_reference(&case, 32, None) > 0, "{program:?}");
    }
}

#[test]
fn wrong_options_are_refused() {
    let cases = [
        (r#""keys":1"#, "--keys 1: it must be 2"),
        (r#""length":2"#, "--length: ycsb-t has no such option"),
        (r#""program":"python""#, "were not given"),
    ];
    check::are_refused("ycsb-t", &cases);
}
