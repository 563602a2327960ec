use std::sync::Arc;

use tidemill_core::{Column, DataType, Late, StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Aggregate, Builder, Opaque, Tx};

use super::program::SMALL;
use super::run::GrepSum;
use super::*;
use crate::args::ProgramKind;
use crate::events::Events;
use crate::keys::level;
use crate::same::{same_as_reference, Opening};
use crate::{check, run_json, shape};

/// GrepSum as an opaque function that does the same as the Python program.
struct Function {
    form: Form,
    follows: bool,
}

/// The function of transactions that read windows; it does the same as the Python program.
struct Look(Form);

impl Opaque for Look {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let window = self.0.windows.expect("windows are read").window();
        let mut sum = 0;
        for key in &event[1..=WINDOW_KEYS] {
            let key = std::slice::from_ref(key);
            sum += int(&tx.window(TableId(0), key, &window, 1, &Aggregate::Sum)?);
        }
        if sum < int(&event[WINDOW_KEYS + 1]) {
            return Err(Abort::refused(SMALL));
        }
        let inputs = 2 + u16::from(self.0.computed);
        tx.emit(StreamId(2 * inputs - 1), &[event[1].clone(), Value::Int(sum)])
    }
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(i) => *i,
        other => panic!("{other}"),
    }
}

impl Opaque for Function {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let get = |tx: &mut dyn Tx, key: &Value| -> Result<Box<[Value]>, Abort> {
            Ok(tx.get(TableId(0), std::slice::from_ref(key))?.expect("all records are there"))
        };
        let (keys, least) = (&event[1..event.len() - 1], &event[event.len() - 1]);
        let mut rows = Vec::new();
        for key in keys {
            rows.push(get(tx, key)?);
        }
        if self.follows {
            let next = Value::Int(int(&rows[0][1]) % self.form.keys as i64);
            rows.insert(0, get(tx, &next)?);
        }
        let sum: i64 = rows.iter().map(|row| int(&row[1])).sum();
        if sum < int(least) {
            return Err(Abort::refused(SMALL));
        }
        let mut row = rows.swap_remove(0);
        row[1] = Value::Int(self.form.written(sum, rows.len() + 1));
        tx.put(TableId(0), &row)?;
        // The streams are the inputs, their results, and their aborts.
        let inputs = 1 + u16::from(self.form.computed) + u16::from(self.form.windows.is_some());
        tx.emit(StreamId(inputs + u16::from(self.follows)), &row[..2])
    }
}

fn opaques(form: Form) -> Vec<Arc<dyn Opaque>> {
    let function = |follows| Arc::new(Function { form, follows }) as Arc<dyn Opaque>;
    let look = form.windows.map(|_| Arc::new(Look(form)) as Arc<dyn Opaque>);
    let all = [Some(function(false)), form.computed.then(|| function(true)), look];
    all.into_iter().flatten().collect()
}

fn args(options: &str) -> Args {
    check::args("gs", options)
}

fn report(options: &str) -> serde_json::Value {
    check::report("gs", options, opaques(Form::of(&args(options)).unwrap()))
}

#[test]
fn all_programs_and_epochs_come_to_the_same() {
    for form in [
        r#""length":1"#,
        r#""length":2,"skew":0.8"#,
        r#""length":10,"average":true,"overlap":0.5"#,
        r#""length":5,"acyclic":true"#,
        r#""length":3,"computed":0.2,"skew":0.6"#,
        r#""length":2,"computed":1,"average":true"#,
        r#""window":500,"window_every":7,"skew":0.5"#,
        r#""window":3,"window_every":20,"computed":0.2"#,
    ] {
        let programs = ["rust", "traced", "python"];
        let programs = if form.contains("computed") { &programs[1..] } else { &programs[..] };
        let options = format!(r#"{form},"events":2000,"keys":300,"abort":0.1,"repeat":1"#);
        let given = || opaques(Form::of(&args(&options)).unwrap());
        check::all_agree("gs", programs, &options, given);
    }
}

/// Returns a program with a stream that fills the records, and its rows.
fn opening(case: &GrepSum, keys: usize) -> Opening {
    let program = &case.made.parts.program;
    let spec = &program.tables[0];
    let names: Vec<&str> = spec.schema.columns.iter().map(|c| &*c.name).collect();
    let mut b = Builder::new("opening");
    let records = b.table("records", &["id"], spec.schema.columns.clone());
    let at = Column::new("at", DataType::Timestamp);
    let columns = names.iter().map(|name| Column::new(name, DataType::Int));
    let stream = b.stream("opening", std::iter::once(at).chain(columns).collect());
    b.event_time(stream, "at", Late::Side);
    let mut h = b.handler("open", stream);
    let key = h.column("id");
    let row = h.row(records, &[key]);
    for name in &names[1..] {
        let value = h.column(name);
        h.set(row, name, value);
    }
    h.done();
    let with_opening = shape::with_opening(&case.made.parts, b.finish().unwrap()).unwrap();
    (with_opening, (0..keys as u64).map(|key| record(key).map(Value::Int).to_vec()).collect())
}

#[test]
fn the_reference_comes_to_the_same() {
    for form in [
        r#""keys":12,"length":4"#,
        r#""keys":12,"average":true"#,
        r#""keys":12,"computed":0.5,"program":"traced""#,
        r#""keys":100,"window":40,"window_every":3"#,
    ] {
        let args = args(&format!(r#""events":300,"abort":0.2,"epoch":32,{form}"#));
        for program in [ProgramKind::Rust, ProgramKind::Traced, ProgramKind::Python] {
            let args = Args { program, ..args.clone() };
            let case: GrepSum = check::case(&args, opaques(Form::of(&args).unwrap()));
            let opening = opening(&case, args.keys);
            assert!(same_as_reference(&case, 32, Some(opening)) > 0, "{form} {program:?}");
        }
    }
}

#[test]
fn without_cycles_records_are_written_from_lower_levels() {
    let args = args(r#""events":1000,"keys":1000,"skew":0.9,"length":4,"acyclic":true"#);
    let made = events::Made::new(&args, Form::of(&args).unwrap());
    for at in 0..made.count() {
        let keys = made.keys(at);
        assert!(keys[1..].iter().all(|key| level(*key) < level(keys[0])), "{keys:?}");
    }
}

#[test]
fn extra_work_changes_nothing_but_time() {
    let options = r#""events":500,"keys":100,"length":3,"repeat":1"#;
    let (plain, worked) = (report(options), report(&format!(r#"{options},"udf_ns":200"#)));
    assert_eq!(worked["valid"], true);
    for hash in ["state_hash", "output_hash"] {
        assert_eq!(plain[hash], worked[hash]);
    }
}

#[test]
fn wrong_options_are_refused() {
    let cases = [
        (r#""length":0"#, "--length 0"),
        (r#""length":11"#, "1 to 10"),
        (r#""length":5,"keys":4"#, "--keys 4"),
        (r#""window":0"#, "--window 0"),
        (r#""window":9,"window_every":0"#, "--window-every 0"),
        (r#""window_every":9"#, "needs --window"),
        (r#""window":9,"keys":99"#, "--keys 99"),
        (r#""deposits":5"#, "--deposits: gs has no such option"),
        (r#""dynamic":true"#, "--dynamic: gs has no such option"),
        (r#""source":"x""#, "--source: gs has no such option"),
        (r#""program":"python""#, "were not given"),
    ];
    check::are_refused("gs", &cases);
    let other = r#"{"name":"x","tables":[],"streams":[],"sources":[],"handlers":[]}"#;
    let json = r#"{"workload":"gs","program":"traced"}"#;
    let text = run_json(json, Some(other), Vec::new(), &mut |_| {}).unwrap_err().to_string();
    assert!(text.contains("not GrepSum: it has no table records"), "{text}");
}
