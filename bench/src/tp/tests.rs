use std::sync::Arc;

use tidemill_core::{StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Opaque, Tx};

use super::program::FAST;
use super::run::Toll;
use super::*;
use crate::args::{Args, ProgramKind};
use crate::same::same_as_reference;
use crate::work::Work;
use crate::{run_json, Given};

/// Toll Processing as an opaque function: what the Python program does.
struct Function;

impl Opaque for Function {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let [_, segment, Value::Int(vehicle), Value::Int(bit), Value::Int(speed)] = event else {
            panic!("{event:?}")
        };
        if *speed >= SPEED_END {
            return Err(Abort::refused(FAST));
        }
        let key = std::slice::from_ref(segment);
        let old = match tx.get(TableId(0), key)?.as_deref() {
            Some([_, Value::Float(mean)]) => *mean,
            _ => 0.0,
        };
        let mean = Value::Float(mean(old, *speed));
        tx.put(TableId(0), &[segment.clone(), mean.clone()])?;
        let (mut words, mut count) = match tx.get(TableId(1), key)?.as_deref() {
            Some([_, Value::Int(low), Value::Int(high), Value::Int(count)]) => {
                ([*low, *high], *count)
            }
            _ => ([0, 0], 0),
        };
        let word = &mut words[usize::from(*vehicle > WORD_VEHICLES)];
        count += i64::from(*word & bit == 0);
        *word |= bit;
        let count = Value::Int(count);
        let [low, high] = words.map(Value::Int);
        tx.put(TableId(1), &[segment.clone(), low, high, count.clone()])?;
        tx.emit(StreamId(1), &[segment.clone(), mean, count])
    }
}

fn opaques() -> Vec<Arc<dyn Opaque>> {
    vec![Arc::new(Function)]
}

fn report(options: &str) -> serde_json::Value {
    let json = format!(r#"{{"workload":"tp",{options}}}"#);
    let text = run_json(&json, None, opaques(), &mut |_| {}).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn all_programs_and_epochs_come_to_the_same() {
    let mut hashes = Vec::new();
    for program in ["rust", "traced", "python"] {
        for epoch in [1, 100, 10_000] {
            let report = report(&format!(
                r#""program":"{program}","epoch":{epoch},"events":4000,"keys":300,"skew":0.8,
                   "overlap":0.2,"abort":0.1,"repeat":2"#
            ));
            assert_eq!(report["valid"], true, "{report}");
            hashes.push((report["state_hash"].clone(), report["output_hash"].clone()));
        }
    }
    hashes.dedup();
    assert_eq!(hashes.len(), 1, "{hashes:?}");
}

#[test]
fn the_reference_comes_to_the_same() {
    let json = r#"{"workload":"tp","events":600,"keys":5,"skew":0.5,"abort":0.2,"epoch":32}"#;
    let args = Args::from_json(json).unwrap();
    for program in [ProgramKind::Rust, ProgramKind::Traced, ProgramKind::Python] {
        let args = Args { program, ..args.clone() };
        let given = Given { program: None, opaques: opaques() };
        let work = Work::calibrated(&tidemill_env::Env::real(), 0);
        let case = Toll::new(&args, given, work).unwrap();
        assert!(same_as_reference(&case, 32, None) > 0, "{program:?}");
    }
}

#[test]
fn the_mean_begins_with_the_first_speed() {
    assert_eq!(mean(0.0, 61), 61.0);
    assert_eq!(mean(61.0, 60), 60.5);
    let bits = (1..=100).map(bit);
    assert!(bits.clone().all(|bit| bit > 0 && bit.count_ones() == 1));
    let low: i64 = bits.clone().take(50).sum();
    let high: i64 = bits.skip(50).sum();
    assert_eq!((low.count_ones(), high.count_ones()), (50, 50));
}

#[test]
fn wrong_options_are_refused() {
    for (options, want) in [
        (r#""length":2"#, "--length: tp has no such option"),
        (r#""acyclic":true"#, "--acyclic: tp has no such option"),
        (r#""program":"python""#, "was not given"),
    ] {
        let json = format!(r#"{{"workload":"tp",{options}}}"#);
        let text = run_json(&json, None, Vec::new(), &mut |_| {}).expect_err(options).to_string();
        assert!(text.contains(want), "{options}: {text}");
    }
}
