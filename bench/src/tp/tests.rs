use std::sync::Arc;

use tidemill_core::{StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Opaque, Tx};

use super::program::FAST;
use super::run::Toll;
use super::*;
use crate::args::{Args, ProgramKind};
use crate::check;
use crate::same::same_as_reference;

/// Toll Processing as an opaque function that does the same as the Python program.
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

#[test]
fn all_programs_and_epochs_come_to_the_same() {
    let options = r#""events":4000,"keys":300,"skew":0.8,"overlap":0.2,"abort":0.1,"repeat":2"#;
    check::all_agree("tp", &["rust", "traced", "python"], options, opaques);
}

#[test]
fn the_reference_comes_to_the_same() {
    let args = check::args("tp", r#""events":600,"keys":5,"skew":0.5,"abort":0.2,"epoch":32"#);
    for program in [ProgramKind::Rust, ProgramKind::Traced, ProgramKind::Python] {
        let case: Toll = check::case(&Args { program, ..args.clone() }, opaques());
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
    let cases = [
        (r#""length":2"#, "--length: tp has no such option"),
        (r#""acyclic":true"#, "--acyclic: tp has no such option"),
        (r#""program":"python""#, "was not given"),
    ];
    check::are_refused("tp", &cases);
}
