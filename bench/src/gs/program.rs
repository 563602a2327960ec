//! The transactions of GrepSum, in all the ways they can be written.

use std::sync::Arc;

use tidemill_core::rules::Binary;
use tidemill_core::{Column, DataType, Error, Late, Result, StreamId, TableId, Value};
use tidemill_txn::program::{Builder, ExprId, HandlerBuilder, NativeTx, Opaque, RowHandle};
use tidemill_txn::Program;

use super::{with_length, Form, LENGTH_MAX, MODULUS, WORDS};
use crate::args::ProgramKind;
use crate::shape::{self, Parts};
use crate::work::Work;
use crate::Given;

/// Why a transaction aborts.
pub(super) const SMALL: &str = "the sum is too small";

/// Names of the records' columns; the first is the key.
const COLUMNS: [&str; WORDS] = [
    "id", "value", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11", "p12",
    "p13", "p14",
];
/// Names of the keys in an event.
const KEYS: [&str; LENGTH_MAX] =
    ["key0", "key1", "key2", "key3", "key4", "key5", "key6", "key7", "key8", "key9"];

/// The program as the options want it.
pub(super) fn program(
    kind: ProgramKind,
    form: Form,
    given: Given<'_>,
    work: Work,
) -> Result<Parts> {
    let frame = Frame::new(form).builder.finish()?;
    let program = match (kind, given.program) {
        (ProgramKind::Rust, _) if form.computed => {
            return Err(Error::setting("--computed: a closure is handed its rows before it runs")
                .help("use --program traced or python"));
        }
        (ProgramKind::Rust, _) => with_length!(form.length, N => native::<N>(form, work))?,
        (ProgramKind::Traced, None) => declared(form)?,
        (ProgramKind::Python, None) => opaque(form, given.opaques)?,
        (_, Some(json)) => {
            let mut program = Program::from_json(json)?;
            program.opaques = given.opaques;
            program
        }
    };
    shape::find("GrepSum", program, &frame)
}

/// What all ways have in common: the table and the input streams.
struct Frame {
    builder: Builder,
    records: TableId,
    sums: StreamId,
    /// Where a key is computed.
    follows: Option<StreamId>,
}

impl Frame {
    fn new(form: Form) -> Frame {
        let mut b = Builder::new("gs");
        let column = |(at, name): (usize, &&str)| match at {
            0 => Column::new(name, DataType::Int),
            _ => Column::new(name, DataType::Int).default(Value::Int(0)),
        };
        let columns = COLUMNS.iter().enumerate().map(column).collect();
        let records = b.table("records", &COLUMNS[..1], columns);
        let mut stream = |name: &str, keys: usize| {
            let ints = KEYS[..keys].iter().chain(&["least"]);
            let ints = ints.map(|name| Column::new(name, DataType::Int));
            let columns = std::iter::once(Column::new("at", DataType::Timestamp)).chain(ints);
            let stream = b.stream(name, columns.collect());
            b.event_time(stream, "at", Late::Side);
            stream
        };
        let sums = stream("sums", form.length);
        let follows = form.computed.then(|| stream("follows", 1));
        Frame { builder: b, records, sums, follows }
    }

    /// The stream of what a handler comes to, for programs that emit by name.
    fn emitted(&mut self, name: &str) -> StreamId {
        let columns = ["key", "value"].map(|c| Column::new(c, DataType::Int));
        self.builder.emitted(name, columns.to_vec())
    }
}

/// A Rust closure over the words of `N` records.
fn native<const N: usize>(form: Form, work: Work) -> Result<Program> {
    let mut frame = Frame::new(form);
    let summed = frame.emitted("sum");
    let rows: [(TableId, &[&str]); N] =
        std::array::from_fn(|row| (frame.records, &KEYS[row..=row]));
    let body = move |tx: &mut NativeTx<'_>| {
        let (mut sum, mut worked) = (0, 0);
        for row in 0..N {
            let value = tx.get(row, 1);
            worked = work.run(value, worked);
            sum += value;
        }
        if sum < tx.event(N + 1) {
            return Err(SMALL);
        }
        let value = form.written(sum, N);
        tx.set(0, 1, value);
        tx.emit(0, &[tx.event(1), value]);
        Ok(())
    };
    frame.builder.native("sum", frame.sums, &rows, &[summed], body);
    frame.builder.finish()
}

/// Operations known before they run: what the tracer makes of the Python program.
fn declared(form: Form) -> Result<Program> {
    let Frame { mut builder, records, sums, follows } = Frame::new(form);
    let mut h = builder.handler("sum", sums);
    let keys: Vec<ExprId> = KEYS[..form.length].iter().map(|key| h.column(key)).collect();
    let rows: Vec<RowHandle> = keys.iter().map(|key| h.row(records, &[*key])).collect();
    let mut sum = h.read(rows[0], "value");
    for row in &rows[1..] {
        let value = h.read(*row, "value");
        sum = h.add(sum, value);
    }
    write(&mut h, form, rows[0], keys[0], sum, form.length);
    h.done();

    if let Some(follows) = follows {
        let mut h = builder.handler("follow", follows);
        let key = h.column(KEYS[0]);
        let row = h.row(records, &[key]);
        let value = h.read(row, "value");
        let count = h.int(form.keys as i64);
        let next = h.binary(Binary::Mod, value, count);
        let row = h.row(records, &[next]);
        let there = h.read(row, "value");
        let sum = h.add(value, there);
        write(&mut h, form, row, next, sum, 2);
        h.done();
    }
    builder.finish()
}

/// Writes what `count` values come to, unless their sum is too small.
fn write(
    h: &mut HandlerBuilder<'_>,
    form: Form,
    row: RowHandle,
    key: ExprId,
    sum: ExprId,
    count: usize,
) {
    let least = h.column("least");
    let enough = h.ge(sum, least);
    h.require(enough, SMALL);
    let (op, by) = match form.average {
        true => (Binary::FloorDiv, count as i64),
        false => (Binary::Mod, MODULUS),
    };
    let by = h.int(by);
    let value = h.binary(op, sum, by);
    h.set(row, "value", value);
    h.output(&[("key", key), ("value", value)]);
}

/// Opaque functions: one for sums, and one for computed keys where there are such transactions.
/// They emit into the streams behind the inputs.
fn opaque(form: Form, functions: Vec<Arc<dyn Opaque>>) -> Result<Program> {
    let mut frame = Frame::new(form);
    let inputs = [Some(("sum", frame.sums)), frame.follows.map(|stream| ("follow", stream))];
    let inputs: Vec<(&str, StreamId)> = inputs.into_iter().flatten().collect();
    if functions.len() != inputs.len() {
        return Err(Error::setting("--program python: its functions were not given")
            .help("use the command line of the Python package: tidemill bench gs"));
    }
    inputs.iter().for_each(|(name, _)| {
        frame.emitted(name);
    });
    for ((name, stream), function) in inputs.into_iter().zip(functions) {
        frame.builder.opaque(name, stream, function);
    }
    frame.builder.finish()
}
