//! The transactions of GrepSum in all forms.

use std::sync::Arc;

use tidemill_core::rules::Binary;
use tidemill_core::{Column, DataType, Error, History, Late, Result, StreamId, TableId, Value};
use tidemill_txn::program::{
    Abort, Aggregate, Builder, ExprId, HandlerBuilder, NativeTx, Opaque, RowHandle, Tx, Window,
};
use tidemill_txn::Program;

use super::{with_length, Form, Windows, MODULUS, WINDOW_KEYS, WORDS};
use crate::args::ProgramKind;
use crate::shape::{self, Parts};
use crate::work::Work;
use crate::Given;

/// The reason of an abort.
pub(super) const SMALL: &str = "the sum is too small";

/// The names of the records' columns; the first is the key.
const COLUMNS: [&str; WORDS] = [
    "id", "value", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11", "p12",
    "p13", "p14",
];

/// Returns the names of the keys in an event.
fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key{number}")).collect()
}

/// Returns the program according to the options.
pub(super) fn program(
    kind: ProgramKind,
    form: Form,
    given: Given<'_>,
    work: Work,
) -> Result<Parts> {
    let frame = Frame::new(form).builder.finish()?;
    let program = match (kind, given.program) {
        (ProgramKind::Rust, _) => with_length!(form.length, N => native::<N>(form, work))?,
        (ProgramKind::Traced, None) => declared(form)?,
        (ProgramKind::Python, None) => opaque(form, given.opaques)?,
        (_, Some(json)) => {
            let mut program = Program::from_json(json)?;
            program.opaques = given.opaques;
            program
        }
    };
    shape::find_only("GrepSum", program, &frame)
}

/// The parts that all forms share: the table and the input streams.
struct Frame {
    builder: Builder,
    records: TableId,
    sums: StreamId,
    /// The stream of events with a computed key.
    follows: Option<StreamId>,
    /// The stream of events that read windows.
    reads: Option<(StreamId, Windows)>,
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
        if let Some(Windows { size_us, .. }) = form.windows {
            b.history(records, History { time_us: Some(size_us), versions: None });
        }
        let mut stream = |name: &str, count: usize| {
            let ints = keys(count).into_iter().chain(["least".into()]);
            let ints = ints.map(|name| Column::new(&name, DataType::Int));
            let columns = std::iter::once(Column::new("at", DataType::Timestamp)).chain(ints);
            let stream = b.stream(name, columns.collect());
            b.event_time(stream, "at", Late::Side);
            stream
        };
        let sums = stream("sums", form.length);
        let follows = form.computed.then(|| stream("follows", 1));
        let reads = form.windows.map(|windows| (stream("reads", WINDOW_KEYS), windows));
        Frame { builder: b, records, sums, follows, reads }
    }

    /// Adds the stream of a handler's results, for programs that emit by name.
    fn emitted(&mut self, name: &str) -> StreamId {
        let columns = ["key", "value"].map(|c| Column::new(c, DataType::Int));
        self.builder.emitted(name, columns.to_vec())
    }
}

/// Builds closures over the words of `N` records and of windows. A record with a computed key is
/// known only to a function.
fn native<const N: usize>(form: Form, work: Work) -> Result<Program> {
    let mut frame = Frame::new(form);
    let summed = frame.emitted("sum");
    let followed = frame.follows.map(|_| frame.emitted("follow"));
    let looked = frame.reads.is_some().then(|| frame.emitted("look"));
    let names = keys(N.max(WINDOW_KEYS));
    let names: Vec<[&str; 1]> = names.iter().map(|name| [&**name]).collect();
    let rows: [(TableId, &[&str]); N] = std::array::from_fn(|row| (frame.records, &names[row][..]));
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
    let sum = frame.builder.native("sum", frame.sums, &rows, &[summed], body);
    frame.builder.sets(sum, &[(0, &["value"])]);
    if let (Some(follows), Some(followed)) = (frame.follows, followed) {
        let follow = Follow { form, work, records: frame.records, followed };
        frame.builder.opaque("follow", follows, Arc::new(follow));
    }
    if let (Some((reads, windows)), Some(looked)) = (frame.reads, looked) {
        let (window, aggregate) = (windows.window(), Aggregate::Sum);
        let read = frame.builder.window_read(frame.records, "value", window, aggregate);
        let rows: [(TableId, &[&str]); WINDOW_KEYS] =
            std::array::from_fn(|row| (frame.records, &names[row][..]));
        let body = move |tx: &mut NativeTx<'_>| {
            let (mut sum, mut worked) = (0, 0);
            for row in 0..WINDOW_KEYS {
                let value = tx.window(row, &read)?.unwrap_or(0);
                worked = work.run(value, worked);
                sum += value;
            }
            if sum < tx.event(WINDOW_KEYS + 1) {
                return Err(SMALL);
            }
            tx.emit(0, &[tx.event(1), sum]);
            Ok(())
        };
        let look = frame.builder.native("look", reads, &rows, &[looked], body);
        frame.builder.sets(look, &[]);
    }
    frame.builder.finish()
}

/// The function of transactions with a computed key. A closure receives its rows before it runs, so
/// it can't follow a key in a record.
struct Follow {
    form: Form,
    work: Work,
    records: TableId,
    followed: StreamId,
}

impl Opaque for Follow {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let [_, Value::Int(key), Value::Int(least)] = *event else {
            unreachable!("the stream has these columns")
        };
        let mut row = [0; WORDS];
        let value = |row: &[i64; WORDS], is_there| match is_there {
            true => Ok(row[1]),
            false => Err(Abort::refused("there is no such record")),
        };
        let is_there = tx.get_ints(self.records, key, &mut row)?;
        let first = value(&row, is_there)?;
        let next = first % self.form.keys as i64;
        let is_there = tx.get_ints(self.records, next, &mut row)?;
        let there = value(&row, is_there)?;
        self.work.run(there, self.work.run(first, 0));
        let sum = first + there;
        if sum < least {
            return Err(Abort::refused(SMALL));
        }
        row[1] = self.form.written(sum, 2);
        tx.put_ints(self.records, &row)?;
        tx.emit(self.followed, &[Value::Int(next), Value::Int(row[1])])
    }
}

impl Windows {
    /// Returns the window that is read of each record.
    pub(super) fn window(self) -> Window {
        Window::Sliding { size_us: self.size_us }
    }
}

/// Builds declared transactions, as the tracer makes them of the Python program.
fn declared(form: Form) -> Result<Program> {
    let Frame { mut builder, records, sums, follows, reads } = Frame::new(form);
    let mut h = builder.handler("sum", sums);
    let names = keys(WINDOW_KEYS.max(form.length));
    let keys: Vec<ExprId> = names[..form.length].iter().map(|key| h.column(key)).collect();
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
        let key = h.column(&names[0]);
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
    if let Some((reads, windows)) = reads {
        let mut h = builder.handler("look", reads);
        let (first, mut sum) = (h.column(&names[0]), None);
        for name in &names[..WINDOW_KEYS] {
            let key = h.column(name);
            let row = h.row(records, &[key]);
            let value = h.window(row, "value", windows.window(), Aggregate::Sum);
            sum = Some(sum.map_or(value, |sum| h.add(sum, value)));
        }
        let (sum, least) = (sum.expect("there are keys"), h.column("least"));
        let enough = h.ge(sum, least);
        h.require(enough, SMALL);
        h.output(&[("key", first), ("value", sum)]);
        h.done();
    }
    builder.finish()
}

/// Writes the result of `count` values, unless their sum is too small.
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

/// Builds the program with opaque functions: one for sums, and one each for computed keys and for
/// windows where there are such transactions. They emit into the streams after the inputs.
fn opaque(form: Form, functions: Vec<Arc<dyn Opaque>>) -> Result<Program> {
    let mut frame = Frame::new(form);
    let inputs = [
        Some(("sum", frame.sums)),
        frame.follows.map(|stream| ("follow", stream)),
        frame.reads.map(|(stream, _)| ("look", stream)),
    ];
    let inputs: Vec<(&str, StreamId)> = inputs.into_iter().flatten().collect();
    if functions.len() != inputs.len() {
        return Err(Error::setting("--program python: the functions were not given")
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
