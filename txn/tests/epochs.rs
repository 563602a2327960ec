//! Programs and epochs as text, through one function: `t1: read a, write b`.
//!
//! Each line is one transaction, in the order of the lines; `---` is a cut. Keys are letters of one
//! table with a value that is 0 at first. These are the steps:
//!
//! - `read k` adds the value to the sum of reads so far;
//! - `write k` sets it to that sum plus one;
//! - `require k >= n` aborts unless it holds;
//! - `insert k` aborts if the row exists;
//! - `delete k` removes the row;
//! - `emit k` emits the value.
//!
//! Every executor runs every text, and must give the same result as the reference. The texts name
//! no type of the engine, so that they survive redesigns.

use std::sync::Arc;

use expect_test::{expect, Expect};
use tidemill_core::{Batch, Column, DataType, Key, Late, Row, SourceId, StreamId, Value};
use tidemill_reference::{CutAt, InputRow};
use tidemill_table::Table;
use tidemill_txn::execute::{Executor, Outcome, Serial};
use tidemill_txn::order::{CutInput, Epoch, Run, Sequencer};
use tidemill_txn::pool::SingleThread;
use tidemill_txn::program::{Builder, HandlerBuilder, Program};
use tidemill_txn::schedule::Strategy;

fn check(text: &str, expect: Expect) {
    let (program, cuts) = parse(text);
    let program = Arc::new(program);
    let rows = |i: usize| vec![InputRow { offset: 0, values: vec![Value::Int(i as i64)] }];
    let sources: Vec<Vec<InputRow>> = (0..program.sources.len()).map(rows).collect();
    let outcome = tidemill_reference::run(&program, &sources, &cuts);
    let table: Vec<Row> = outcome.tables[0].values().cloned().collect();
    let outputs = |stream: StreamId| -> Vec<Row> {
        let rows = outcome.outputs.get(&stream).into_iter().flatten();
        rows.map(|(_, row)| row.clone()).collect()
    };
    let wanted = show(&program, &table, &outputs);
    let mut serial = Serial::new(program.clone(), 0);
    let words = run(&program, &cuts, &mut |tables, epoch| serial.run(tables, epoch).unwrap());
    assert_eq!(wanted, words, "over words");
    let mut serial = Serial::new(program.clone(), 0).general_only();
    let values = run(&program, &cuts, &mut |tables, epoch| serial.run(tables, epoch).unwrap());
    assert_eq!(wanted, values, "over values");
    for strategy in Strategy::all() {
        let mut executor = Executor::new(program.clone(), strategy, 0).with_small_limits();
        let mut execute = |tables: &mut [Table], epoch: &Epoch| {
            executor.run(&SingleThread, tables, epoch).unwrap()
        };
        assert_eq!(wanted, run(&program, &cuts, &mut execute), "{strategy}");
    }
    expect.assert_eq(&wanted);
}

fn parse(text: &str) -> (Program, Vec<CutAt>) {
    let mut b = Builder::new("text");
    let value = Column::new("v", DataType::Int).default(Value::Int(0));
    let table = b.table("t", &["k"], vec![Column::new("k", DataType::Int), value]);
    let mut ends = Vec::new();
    let mut count = 0;
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        if line == "---" {
            ends.push(count);
            continue;
        }
        let (name, steps) = line.split_once(':').expect("t1: steps");
        let at = vec![Column::new("at", DataType::Int)];
        let stream = b.stream(&format!("in {name}"), at);
        b.event_time(stream, "at", Late::Error);
        b.source(name, stream, 0);
        let out = vec![Column::new("v", DataType::Int)];
        let out = b.emitted(&format!("out {name}"), out);
        let mut h = b.handler(name, stream);
        let mut sum = h.int(0);
        for step in steps.split(',').map(str::trim) {
            let words: Vec<&str> = step.split(' ').collect();
            let key = h.int(i64::from(words[1].as_bytes()[0]));
            let row = h.row(table, &[key]);
            match &words[..] {
                ["read", _] => {
                    let value = h.read(row, "v");
                    sum = h.add(sum, value);
                }
                ["write", _] => {
                    let next = plus_one(&mut h, sum);
                    h.set(row, "v", next);
                }
                ["require", _, ">=", n] => {
                    let value = h.read(row, "v");
                    let limit = h.int(n.parse().unwrap());
                    let enough = h.ge(value, limit);
                    h.require(enough, &format!("{} < {n}", words[1]));
                }
                ["insert", _] => h.insert(row, &[]),
                ["delete", _] => h.delete(row),
                ["emit", _] => {
                    let value = h.read(row, "v");
                    h.emit(out, &[value]);
                }
                other => panic!("{other:?} is no step"),
            }
        }
        h.done();
        count += 1;
    }
    ends.push(count);
    // A source has delivered its one row, or it is idle.
    let cuts = ends.iter().map(|&end| CutAt {
        offsets: (0..count).map(|i| u64::from(i < end)).collect(),
        clock_us: 0,
        idle: (end..count).map(|i| SourceId(i as u32)).collect(),
        ended: (0..end).map(|i| SourceId(i as u32)).collect(),
        ..Default::default()
    });
    (b.finish().unwrap(), cuts.collect())
}

fn plus_one(
    h: &mut HandlerBuilder<'_>,
    sum: tidemill_txn::program::ExprId,
) -> tidemill_txn::program::ExprId {
    let one = h.int(1);
    h.add(sum, one)
}

type Execute<'a> = dyn FnMut(&mut [Table], &Epoch) -> Outcome + 'a;

fn run(program: &Arc<Program>, cuts: &[CutAt], execute: &mut Execute<'_>) -> String {
    let mut sequencer = Sequencer::new(program.clone()).unwrap();
    let mut tables = vec![Table::new(Arc::new(program.tables[0].clone()), 1)];
    let mut outputs: Vec<Vec<Row>> = vec![Vec::new(); program.streams.len()];
    let mut before = vec![0; program.sources.len()];
    for cut in cuts {
        let fresh = (0..before.len()).filter(|i| cut.offsets[*i] > before[*i]);
        let runs = fresh.map(|i| {
            let stream = program.sources[i].stream;
            let schema = program.streams[stream.index()].spec.schema.clone();
            Run {
                stream,
                source: SourceId(i as u32),
                batch: Batch::from_rows(schema, [&[Value::Int(i as i64)][..]]),
                offsets: vec![0],
                times: vec![i as i64],
                admitted: None,
            }
        });
        let input = CutInput {
            runs: runs.collect(),
            offsets: cut.offsets.clone(),
            times_max: (0..before.len())
                .map(|i| (cut.offsets[i] > 0).then_some(i as i64))
                .collect(),
            late: Vec::new(),
            clock_us: cut.clock_us,
            idle: cut.idle.clone(),
            ended: cut.ended.clone(),
            ..CutInput::default()
        };
        before.clone_from(&cut.offsets);
        let epoch = sequencer.cut(&SingleThread, input).unwrap().epoch;
        let outcome = execute(&mut tables, &epoch);
        for output in outcome.outputs {
            outputs[output.stream.index()].extend(output.batch.rows());
        }
        tables[0].commit(outcome.seq);
    }
    show(program, &tables[0].rows(), &|stream: StreamId| outputs[stream.index()].clone())
}

fn show(program: &Program, table: &[Row], outputs: &dyn Fn(StreamId) -> Vec<Row>) -> String {
    let mut text = String::new();
    for handler in &program.handlers {
        text += &format!("{}:", handler.name);
        match outputs(handler.aborted).first() {
            Some(row) => text += &format!(" aborted: {}", row[row.len() - 1]),
            None => text += " committed",
        }
        let name = format!("out {}", handler.name);
        let out = program.streams.iter().position(|s| *s.spec.name == *name).unwrap();
        for row in outputs(StreamId(out as u16)) {
            text += &format!(", emitted {}", row[0]);
        }
        text.push('\n');
    }
    let mut rows: Vec<&Row> = table.iter().collect();
    rows.sort_by_key(|row| Key::of([&row[0]]));
    for row in rows {
        let Value::Int(key) = row[0] else { unreachable!() };
        text += &format!("{} = {}\n", key as u8 as char, row[1]);
    }
    text
}

#[test]
fn a_later_transaction_reads_what_an_earlier_one_wrote() {
    check(
        "t1: write a
         t2: read a, write b
         t3: read a, read b, write c",
        expect![[r#"
            t1: committed
            t2: committed
            t3: committed
            a = 1
            b = 2
            c = 4
        "#]],
    );
}

#[test]
fn an_abort_leaves_nothing() {
    check(
        "t1: write a
         t2: read a, write a, emit a, require a >= 3, write b
         t3: read a, write c, emit c",
        expect![[r#"
            t1: committed
            t2: aborted: "a < 3"
            t3: committed, emitted 2
            a = 1
            c = 2
        "#]],
    );
}

#[test]
fn equal_keys_are_one_row() {
    check(
        "t1: write a
         t2: read a, write b, read b, write b, emit b",
        expect![[r#"
            t1: committed
            t2: committed, emitted 4
            a = 1
            b = 4
        "#]],
    );
}

#[test]
fn the_first_failing_step_gives_the_reason() {
    check(
        "t1: insert a, require a >= 1, require b >= 2
         t2: insert b, insert b, require a >= 1",
        expect![[r#"
            t1: aborted: "a < 1"
            t2: aborted: "t[98] exists already"
        "#]],
    );
}

#[test]
fn rows_come_and_go_over_cuts() {
    check(
        "t1: insert a, write b
         ---
         t2: delete a, delete z, read b, write b
         t3: insert a, emit b
         ---
         t4: insert a",
        expect![[r#"
            t1: committed
            t2: committed
            t3: committed, emitted 2
            t4: aborted: "t[97] exists already"
            a = 0
            b = 2
        "#]],
    );
}
