use std::sync::Arc;

use tidemill_core::rules::Binary;
use tidemill_core::{Batch, Column, DataType, SourceId, StreamId, TableId, Value};
use tidemill_table::Table;

use super::{NativeTx, Outcome, Path, Serial};
use crate::order::{Epoch, Run};
use crate::program::Builder;
use crate::Program;

/// Creates a program that moves `x` from row `a` to row `b`.
///
/// It writes both against their order and before the verdict, and emits an event, all of which an
/// abort must undo. Rows `a` and `b` may be the same.
fn program() -> Program {
    let mut b = Builder::new("t");
    let int = |name: &str| Column::new(name, DataType::Int);
    let value = int("v").default(Value::Int(100));
    b.table("t", &["k"], vec![int("k"), value, int("n").default(Value::Int(0))]);
    let input = b.stream("s", vec![int("a"), int("b"), int("x")]);
    b.source("source", input, 0);
    let moved = b.emitted("moved", vec![int("a"), int("left")]);
    let body = |tx: &mut NativeTx<'_>| {
        let x = tx.event(2);
        tx.set(1, 1, tx.get(1, 1) + x);
        tx.set(0, 1, tx.get(0, 1) - x);
        tx.set(1, 2, tx.get(1, 2) + 1);
        // The key can't be set.
        tx.set(0, 0, 12345);
        tx.emit(0, &[tx.get(0, 0), tx.get(0, 1)]);
        if tx.get(0, 1) < 0 {
            return Err("too little");
        }
        Ok(())
    };
    let rows: [(TableId, &[&str]); 2] = [(TableId(0), &["a"]), (TableId(0), &["b"])];
    b.native("move", input, &rows, &[moved], body);
    b.finish().unwrap()
}

fn run(mut serial: Serial, program: &Program, events: &[[i64; 3]]) -> (Vec<Table>, Outcome) {
    let stream = StreamId(0);
    let rows: Vec<Vec<Value>> = events.iter().map(|e| e.map(Value::Int).to_vec()).collect();
    let schema = program.streams[0].spec.schema.clone();
    let run = Run {
        stream,
        source: SourceId(0),
        batch: Batch::from_rows(schema, rows.iter().map(|r| &r[..])),
        offsets: (0..events.len() as u64).collect(),
        times: vec![0; events.len()],
        admitted: None,
    };
    let spec = program.tables[0].clone();
    let mut tables = vec![Table::new(spec.into(), 3)];
    let outcome = serial.run(&mut tables, &Epoch::rank(program, vec![run])).unwrap();
    (tables, outcome)
}

/// A program has very many handlers, each of which increments a counter of its own by its own step.
#[test]
fn thousands_of_declared_handlers() {
    const HANDLERS: i64 = 3000;
    let mut b = Builder::new("many");
    let int = |name: &str| Column::new(name, DataType::Int);
    let value = int("v").default(Value::Int(0));
    b.table("t", &["k"], vec![int("k"), value, int("n").default(Value::Int(0))]);
    let input = b.stream("s", vec![int("a"), int("b"), int("x")]);
    b.source("source", input, 0);
    for number in 0..HANDLERS {
        let mut h = b.handler(&format!("h{number}"), input);
        let (key, limit, x) = (h.int(number), h.int(number / 2), h.column("x"));
        let row = h.row(TableId(0), &[key]);
        let old = h.read(row, "v");
        let low = h.binary(Binary::Le, old, limit);
        h.require(low, "too much");
        let new = h.add(old, x);
        h.set(row, "v", new);
        h.done();
    }
    let program = Arc::new(b.finish().unwrap());
    let serial = || Serial::new(program.clone(), 0);
    assert!(serial().paths().iter().all(|path| *path == Path::Words));
    let events = [[0, 0, 700], [0, 0, 1], [0, 0, i64::MAX]];
    let (fast, a) = run(serial(), &program, &events);
    let (slow, b) = run(serial().general_only(), &program, &events);
    assert_eq!(fast[0].rows(), slow[0].rows());
    assert_eq!(a.counts, b.counts);
    let aborted: u64 = a.counts.iter().map(|counts| counts.aborted).sum();
    assert!(aborted > 1000, "{aborted}");
}

#[test]
fn a_closure_that_aborts_leaves_nothing() {
    let program = Arc::new(program());
    let mut x = 7u64;
    let mut below = |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((x >> 33) % n) as i64
    };
    // Few keys, so that most rows exist and keys are often equal, and some are new.
    let events: Vec<[i64; 3]> =
        (0..2000).map(|i| [below(5 + i / 100), below(5 + i / 100), below(120)]).collect();
    let serial = || Serial::new(program.clone(), 0);
    let (fast, a) = run(serial(), &program, &events);
    let (slow, b) = run(serial().general_only(), &program, &events);
    assert_eq!(fast[0].rows(), slow[0].rows());
    assert_eq!(a.counts, b.counts);
    assert!(a.counts[0].aborted > 200 && a.counts[0].committed > 200, "{:?}", a.counts);
    assert_eq!(a.outputs.len(), b.outputs.len());
    for (a, b) in a.outputs.iter().zip(&b.outputs) {
        assert_eq!((a.stream, &a.origins.of), (b.stream, &b.origins.of));
        assert_eq!(a.batch.rows().collect::<Vec<_>>(), b.batch.rows().collect::<Vec<_>>());
    }
    // The past is unchanged, too: an abort leaves no version.
    for key in 0..25 {
        for seq in (0..2000).step_by(37) {
            let key = [Value::Int(key)];
            let [fast, slow] = [&fast, &slow].map(|t| t[0].as_of(seq).unwrap().get(&key));
            assert_eq!(fast, slow);
        }
    }
}
