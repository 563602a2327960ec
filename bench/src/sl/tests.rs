#![allow(clippy::disallowed_methods)] // This test reads the files that it has written.

use std::sync::Arc;

use tidemill_core::{TableId, Value};
use tidemill_txn::program::{Abort, Opaque, Tx};

use super::program::{self, OPAQUE_OUTPUTS, POOR};
use super::run::Ledger;
use super::*;
use crate::args::{Args, ProgramKind};
use crate::same::same_as_reference;
use crate::work::Work;
use crate::{check, run_json, Given};

/// The ledger as an opaque function that does the same as the Python program.
enum Function {
    Deposit,
    Transfer,
}

impl Opaque for Function {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let int = |v: &Value| match v {
            Value::Int(i) => *i,
            other => panic!("{other}"),
        };
        let get = |tx: &mut dyn Tx, table: u16, key: &Value| -> Result<i64, Abort> {
            let row = tx.get(TableId(table), std::slice::from_ref(key))?;
            Ok(row.map_or(0, |row| int(&row[1])))
        };
        let put = |tx: &mut dyn Tx, table: u16, key: &Value, balance: i64| {
            tx.put(TableId(table), &[key.clone(), Value::Int(balance)])
        };
        match self {
            Function::Deposit => {
                let amount = int(&event[3]);
                let balance = get(tx, 0, &event[1])? + amount;
                put(tx, 0, &event[1], balance)?;
                let asset = get(tx, 1, &event[2])? + amount;
                put(tx, 1, &event[2], asset)?;
                tx.emit(OPAQUE_OUTPUTS[0], &[event[1].clone(), Value::Int(balance)])
            }
            Function::Transfer => {
                let amount = int(&event[5]);
                let (balance, asset) = (get(tx, 0, &event[1])?, get(tx, 1, &event[2])?);
                if balance < amount || asset < amount {
                    return Err(Abort::refused(POOR));
                }
                put(tx, 0, &event[1], balance - amount)?;
                put(tx, 1, &event[2], asset - amount)?;
                for (table, key) in [(0, &event[3]), (1, &event[4])] {
                    let to = get(tx, table, key)? + amount;
                    put(tx, table, key, to)?;
                }
                tx.emit(OPAQUE_OUTPUTS[1], &[event[1].clone(), Value::Int(balance - amount)])
            }
        }
    }
}

fn opaques() -> Vec<Arc<dyn Opaque>> {
    vec![Arc::new(Function::Deposit), Arc::new(Function::Transfer)]
}

fn report(options: &str) -> serde_json::Value {
    check::report("sl", options, opaques())
}

#[test]
fn all_programs_and_epochs_come_to_the_same() {
    let options = r#""events":4000,"keys":300,"skew":0.8,"abort":0.1,"repeat":2"#;
    check::all_agree("sl", &["rust", "traced", "python"], options, opaques);
}

#[test]
fn mixes_without_one_kind_run() {
    for deposits in [0, 100] {
        let options = r#""events":1000,"keys":50,"repeat":1,"epoch":64"#;
        let report = report(&format!(r#"{options},"deposits":{deposits}"#));
        assert_eq!(report["valid"], true, "{report}");
    }
}

#[test]
fn the_report_has_what_the_contract_names() {
    let report =
        report(r#""events":2000,"keys":100,"repeat":2,"strategy":"serial-noprefetch","udf_ns":3"#);
    let names = "workload program threads processes strategy events seconds events_per_s \
                 events_per_s_min events_per_s_max baseline baseline_events_per_s ratio \
                 ratio_to_serial latency_ms state_hash output_hash valid baseline_valid";
    for name in names.split_whitespace() {
        assert!(report.get(name).is_some(), "no {name} in {report}");
    }
    assert_eq!(report["valid"], true);
    assert!(report["ratio_to_serial"].as_f64().unwrap() > 0.0);
}

#[test]
fn strategies_are_compared() {
    let shape = r#""events":2000,"keys":100,"epoch":500,"abort":0.1,"threads":2,"repeat":2"#;
    let names = |options: &str| -> Vec<String> {
        let report = report(&format!("{shape},{options}"));
        assert_eq!(report["valid"], true, "{report}");
        let rates = report["rates"].as_object().unwrap();
        assert!(rates.values().all(|runs| runs.as_array().unwrap().len() == 2), "{report}");
        rates.keys().cloned().collect()
    };
    let own = r#""strategy":"adaptive","compare":"tstream, adaptive,serial,tstream""#;
    assert_eq!(names(own), ["adaptive", "serial", "tight loop", "tstream"]);
    // Every strategy except the adaptive one, and the baseline.
    assert_eq!(names(r#""strategy":"serial","compare":"all""#).len(), 19);
}

#[test]
fn wrong_options_are_refused() {
    let run = |options: &str, program: Option<&str>| {
        run_json(&format!("{{{options}}}"), program, Vec::new(), &mut |_| {})
            .expect_err(options)
            .to_string()
    };
    assert!(run(r#""workload":"sk""#, None).contains("there is no workload 'sk'"));
    assert!(run(r#""workload":"sl","length":3"#, None).contains("--length"));
    assert!(run(r#""workload":"sl","program":"python""#, None).contains("were not given"));
    let other = r#"{"name":"x","tables":[],"streams":[],"sources":[],"handlers":[]}"#;
    let text = run(r#""workload":"sl","program":"traced""#, Some(other));
    assert!(text.contains("not Streaming Ledger: it has no table accounts"), "{text}");
}

#[test]
fn a_program_given_as_json_is_taken() {
    let ledger = program::ledger(
        ProgramKind::Traced,
        Given::default(),
        Work::calibrated(&tidemill_env::Env::real(), 0),
    )
    .unwrap();
    let json = serde_json::to_string(&*ledger.program).unwrap();
    let options = r#"{"workload":"sl","program":"traced","events":500,"keys":20,"repeat":1}"#;
    let run = |program| run_json(options, program, Vec::new(), &mut |_| {}).unwrap();
    let hashes = |text: String| -> (serde_json::Value, serde_json::Value) {
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        (report["state_hash"].clone(), report["output_hash"].clone())
    };
    assert_eq!(hashes(run(Some(&json))), hashes(run(None)));
}

#[test]
fn the_reference_comes_to_the_same() {
    let args = check::args("sl", r#""events":300,"keys":12,"skew":0.5,"abort":0.2,"epoch":32"#);
    for program in [ProgramKind::Rust, ProgramKind::Traced, ProgramKind::Python] {
        let args = Args { program, ..args.clone() };
        let ledger: Ledger = check::case(&args, opaques());
        let rows = (0..args.keys as i64).map(|key| vec![Value::Int(key), Value::Int(BALANCE)]);
        let opening = (program::with_openings(&ledger.made.parts).unwrap(), rows.collect());
        assert!(same_as_reference(&ledger, args.epoch(), Some(opening)) > 0, "{program:?}");
    }
}

#[test]
fn phases_are_told_apart() {
    let options = r#""events":2600,"keys":200,"dynamic":true,"repeat":2,"epoch":64"#;
    let report = report(options);
    assert_eq!(report["valid"], true, "{report}");
    let phases = report["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 13);
    let sum: u64 = phases.iter().map(|phase| phase["events"].as_u64().unwrap()).sum();
    assert_eq!(sum, 2600);
    for phase in phases {
        assert!(phase["seconds"].as_f64().unwrap() > 0.0, "{phase}");
        assert!(phase["ran"]["serial"].as_u64().unwrap() > 0);
        assert_eq!(phase["best"], "serial");
    }
    // Beside the adaptive strategy, serial execution is the best. Without it, serial execution is
    // the only one.
    assert!(report["time_to_best"].as_f64().unwrap() > 0.0);
    let serial = self::report(&format!("{options},\"strategy\":\"serial\""));
    assert_eq!(serial["time_to_best"], 1.0);
    let options = format!("{options},\"strategy\":\"adaptive\",\"compare\":\"lists,s-store\"");
    let report = self::report(&options);
    let phases = report["phases"].as_array().unwrap();
    let sum = |field: &str| phases.iter().map(|phase| phase[field].as_f64().unwrap()).sum::<f64>();
    let wanted = sum("seconds") / sum("best_seconds");
    assert!((report["time_to_best"].as_f64().unwrap() - wanted).abs() < 1e-9);
    for phase in phases {
        assert!(["serial", "lists", "s-store"].contains(&phase["best"].as_str().unwrap()));
    }
    for refused in [r#""skew":0.5"#, r#""abort":0.5"#, r#""events":12"#] {
        let options = format!(r#""dynamic":true,{refused}"#);
        check::are_refused("sl", &[(&options, "--dynamic")]);
    }
}

#[test]
fn epochs_that_warm_up_are_executed_but_not_counted() {
    let all = report(r#""events":2600,"keys":200,"repeat":1,"epoch":100"#);
    let some = report(r#""events":2600,"keys":200,"repeat":1,"epoch":100,"warm_up":950"#);
    assert_eq!([&all["ran"]["serial"], &some["ran"]["serial"]], [26, 16]);
    for same in ["state_hash", "output_hash", "valid"] {
        assert_eq!(all[same], some[same], "{same}");
    }
    let refused = [r#""events":100,"warm_up":100"#, r#""dynamic":true,"warm_up":1"#];
    check::are_refused("sl", &refused.map(|options| (options, "--warm-up")));
}

#[test]
fn from_files_to_files_it_comes_to_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let made = r#""events":5000,"keys":200,"skew":0.6,"abort":0.1"#;
    let want = report(&format!(r#"{made},"repeat":1"#));
    for (end, program, durable, out) in [
        ("parquet", "rust", "log+snapshots", "parquet"),
        ("csv", "traced", "log", "csv"),
        ("jsonl.gz", "python", "none", "jsonl"),
    ] {
        let path = at(&format!("sl.{end}"));
        let written = report(&format!(r#"{made},"repeat":1,"write_source":"{path}""#));
        assert_eq!(written["valid"], true, "{written}");
        let report = report(&format!(
            r#"{made},"repeat":2,"program":"{program}","durable":"{durable}","source":"{path}",
               "sink":"{}","sink_format":"{out}","epoch":700"#,
            at(program)
        ));
        assert_eq!(report["valid"], true, "{report}");
        assert_eq!(report["durable"], durable);
        for hash in ["state_hash", "output_hash"] {
            assert_eq!(report[hash], want[hash], "{program} {hash}");
        }
        let mut sink: Vec<String> = std::fs::read_dir(at(program))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(out))
            .collect();
        sink.sort();
        let names = ["deposit.aborted", "deposit", "transfer.aborted", "transfer"];
        assert_eq!(sink, names.map(|name| format!("{name}.{out}")), "{program}");
    }
    // Events that differ from those in the files are detected.
    let path = at("sl.parquet");
    let report = report(&format!(r#"{made},"repeat":1,"seed":43,"source":"{path}""#));
    assert_eq!(report["valid"], false);
}
