use std::sync::Arc;

use tidemill_core::{StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Aggregate, Opaque, Tx, Window};

use super::program::NOTHING;
use super::run::Exchange;
use super::*;
use crate::args::ProgramKind;
use crate::check;
use crate::run::Case;
use crate::same::same_as_reference;

/// A handler as an opaque function, as a Python program would have it.
struct Function {
    side: usize,
    size_us: i64,
}

impl Opaque for Function {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let [_, stock, user, Value::Int(amount), Value::Int(price)] = event else {
            panic!("{event:?}")
        };
        if *amount <= 0 {
            return Err(Abort::refused(NOTHING));
        }
        let ints = [*amount, *price, amount * price].map(Value::Int);
        let row: Vec<Value> = [user.clone(), stock.clone()].into_iter().chain(ints).collect();
        tx.put(TableId(self.side as u16), &row)?;
        let (window, key) = (Window::Sliding { size_us: self.size_us }, std::slice::from_ref(user));
        let mut sum = |side: usize| -> Result<i64, Abort> {
            let sum = tx.window(TableId(side as u16), key, &window, 4, &Aggregate::Sum)?;
            let Value::Int(sum) = sum else { panic!("{sum}") };
            Ok(sum)
        };
        let (quoted, traded) = (sum(QUOTES)?, sum(TRADES)?);
        if let Some(rate) = rate(quoted, traded).map(Value::Float) {
            let joins = match tx.get(TableId(TURNOVERS as u16), key)?.as_deref() {
                Some([_, _, Value::Int(joins)]) => *joins,
                _ => 0,
            };
            let row = [user.clone(), rate.clone(), Value::Int(joins + 1)];
            tx.put(TableId(TURNOVERS as u16), &row)?;
            tx.emit(StreamId(2 + self.side as u16), &[user.clone(), rate])?;
        }
        Ok(())
    }
}

fn opaques(size_us: i64) -> Vec<Arc<dyn Opaque>> {
    let function = |side| Arc::new(Function { side, size_us }) as Arc<dyn Opaque>;
    [QUOTES, TRADES].map(function).to_vec()
}

fn args(options: &str) -> Args {
    check::args("sea", options)
}

fn case(args: &Args) -> Exchange {
    check::case(args, opaques(window_us(args).unwrap()))
}

#[test]
fn all_programs_and_epochs_come_to_the_same() {
    for form in [r#""window":500"#, r#""window":40,"skew":0.9"#, r#""overlap":0.5"#] {
        let options = format!(r#"{form},"events":3000,"keys":50,"abort":0.1,"repeat":1"#);
        let given = || opaques(window_us(&args(&options)).unwrap());
        let programs = ["rust", "traced", "python"];
        for report in check::all_agree("sea", &programs, &options, given) {
            assert!(report["window_versions"].as_f64().unwrap() > 2.0, "{report}");
        }
    }
}

#[test]
fn the_reference_comes_to_the_same() {
    let args = args(r#""events":600,"keys":10,"window":30,"abort":0.1"#);
    for program in [ProgramKind::Rust, ProgramKind::Traced, ProgramKind::Python] {
        let case = case(&Args { program, ..args.clone() });
        assert!(same_as_reference(&case, 32, None) > 0, "{program:?}");
    }
}

/// Compares the baseline, and so the engine, with a search through all events for each event.
#[test]
fn rates_are_those_of_all_tuples_in_the_window() {
    let case = case(&args(r#""events":2000,"keys":20,"window":60,"abort":0.1"#));
    let mut tight = case.baseline();
    case.run_baseline(&mut tight);
    for user in 0..20 {
        let of_user =
            |at: &usize| case.made.events[*at].user == user && case.made.events[*at].amount > 0;
        let (mut last, mut joins) = (0.0, 0);
        for now in (0..case.made.events.len()).filter(of_user) {
            let sum = |side: usize| -> i64 {
                let window = (now + 1).saturating_sub(case.size_us as usize)..=now;
                let own = window.filter(of_user).map(|at| case.made.events[at]);
                own.filter(|tuple| usize::from(tuple.side) == side).map(|tuple| tuple.value()).sum()
            };
            let (quoted, traded) = (sum(QUOTES), sum(TRADES));
            if quoted > 0 && traded > 0 {
                last = quoted.min(traded) as f64 / quoted.max(traded) as f64;
                joins += 1;
            }
        }
        let found = tight.get(user);
        assert_eq!((found.rate, found.joins), (last, joins), "user {user}");
        assert!(joins > 0 && last <= 1.0);
    }
}

#[test]
fn wrong_options_are_refused() {
    let cases = [
        (r#""window":0"#, "--window 0"),
        (r#""window":1000001"#, "1 to 1000000"),
        (r#""length":2"#, "--length: sea has no such option"),
        (r#""program":"python""#, "not written in Python"),
    ];
    check::are_refused("sea", &cases);
}
