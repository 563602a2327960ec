use tidemill_core::rules::Binary;
use tidemill_core::{Column, DataType, Value};

use super::*;

fn small() -> Builder {
    let mut b = Builder::new("t");
    b.table("kv", &["k"], vec![Column::new("k", DataType::Int), Column::new("v", DataType::Int)]);
    b.stream("s", vec![Column::new("k", DataType::Int), Column::new("x", DataType::Float)]);
    b
}

fn refused(build: impl FnOnce(&mut Builder)) -> String {
    let mut b = small();
    build(&mut b);
    b.finish().expect_err("the program should be refused").to_string()
}

#[test]
fn a_program_survives_json() {
    let mut b = small();
    let mut h = b.handler("h", StreamId(0));
    let k = h.column("k");
    let row = h.row(tidemill_core::TableId(0), &[k]);
    let v = h.read(row, "v");
    let one = h.int(1);
    let sum = h.add(v, one);
    h.set(row, "v", sum);
    h.output(&[("v", sum)]);
    h.done();
    let program = b.finish().unwrap();
    let json = serde_json::to_string(&program).unwrap();
    let back = Program::from_json(&json).unwrap();
    back.check().unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), json);
}

#[test]
fn wrong_names_say_the_nearest() {
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        h.column("kk");
        h.done();
    });
    assert!(text.contains("has no column 'kk'") && text.contains("did you mean 'k'?"), "{text}");
}

#[test]
fn wrong_types_are_refused() {
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let x = h.column("x");
        h.row(tidemill_core::TableId(0), &[x]);
        h.done();
    });
    assert!(
        text.contains("key column 'k' of table kv is int, but the key given is float"),
        "{text}"
    );
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let (k, x) = (h.column("k"), h.column("x"));
        let row = h.row(tidemill_core::TableId(0), &[k]);
        h.set(row, "v", x);
        h.done();
    });
    assert!(text.contains("'v' is int, but the value given is float"), "{text}");
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let k = h.column("k");
        let row = h.row(tidemill_core::TableId(0), &[k]);
        h.set(row, "k", k);
        h.done();
    });
    assert!(text.contains("part of the key"), "{text}");
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let (k, x) = (h.column("k"), h.column("x"));
        let both = h.binary(Binary::And, k, x);
        h.require(both, "no");
        h.done();
    });
    assert!(text.contains("both must be bool"), "{text}");
}

#[test]
fn new_rows_need_their_columns() {
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let k = h.column("k");
        let row = h.row(tidemill_core::TableId(0), &[k]);
        h.insert(row, &[]);
        h.done();
    });
    assert!(text.contains("needs a value for column 'v'"), "{text}");
}

#[test]
fn handlers_that_feed_each_other_are_refused() {
    let text = refused(|b| {
        let loop_stream = b.emitted("again", vec![Column::new("k", DataType::Int)]);
        for name in ["first", "second"] {
            let mut h = b.handler(name, if name == "first" { StreamId(0) } else { loop_stream });
            let k = h.column("k");
            h.emit(loop_stream, &[k]);
            h.done();
        }
    });
    assert!(text.contains("without end: second -> second"), "{text}");
}

#[test]
fn emitting_into_an_input_is_refused() {
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let (k, x) = (h.column("k"), h.value(Value::Float(1.0)));
        h.emit(StreamId(0), &[k, x]);
        h.done();
    });
    assert!(text.contains("can't emit into it"), "{text}");
}
