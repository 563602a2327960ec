//! The transactions of Stock Exchange Analysis in all forms.

use std::sync::Arc;

use tidemill_core::rules::Binary;
use tidemill_core::{Column, DataType, Error, History, Late, Result, StreamId, TableId, Value};
use tidemill_txn::program::{Aggregate, Builder, NativeTx, Opaque, Window};
use tidemill_txn::Program;

use super::{rate, QUOTES, TRADES};
use crate::args::ProgramKind;
use crate::shape::{self, Parts};
use crate::work::Work;
use crate::Given;

/// The reason of an abort.
pub(super) const NOTHING: &str = "it is of nothing";

/// The names of the handlers, by the number of their stream.
const HANDLERS: [&str; 2] = ["quote", "trade"];

/// Returns the program according to the options.
pub(super) fn program(
    kind: ProgramKind,
    size_us: i64,
    given: Given<'_>,
    work: Work,
) -> Result<Parts> {
    let program = match (kind, given.program) {
        (ProgramKind::Rust, _) => native(size_us, work)?,
        (ProgramKind::Traced, None) => declared(size_us)?,
        (ProgramKind::Python, None) => opaque(size_us, given.opaques)?,
        (_, Some(json)) => {
            let mut program = Program::from_json(json)?;
            program.opaques = given.opaques;
            program
        }
    };
    shape::find_only("Stock Exchange Analysis", program, &Frame::new(size_us).builder.finish()?)
}

/// The parts that all forms share: the tables and the input streams.
struct Frame {
    builder: Builder,
    /// The index of each stream.
    indexes: [TableId; 2],
    turnovers: TableId,
    streams: [StreamId; 2],
    window: Window,
}

impl Frame {
    fn new(size_us: i64) -> Frame {
        let mut b = Builder::new("sea");
        let int = |name: &str| Column::new(name, DataType::Int);
        let zero = |name: &str| int(name).default(Value::Int(0));
        let index = |b: &mut Builder, name: &str| {
            let columns =
                vec![int("user"), zero("stock"), zero("amount"), zero("price"), zero("value")];
            let table = b.table(name, &["user"], columns);
            b.history(table, History { time_us: Some(size_us), versions: None });
            table
        };
        let indexes = ["quotes", "trades"].map(|name| index(&mut b, name));
        let rate = Column::new("rate", DataType::Float).default(Value::Float(0.0));
        let turnovers = b.table("turnovers", &["user"], vec![int("user"), rate, zero("joins")]);
        let streams = ["quoted", "traded"].map(|name| {
            let at = Column::new("at", DataType::Timestamp);
            let ints = ["stock", "user", "amount", "price"].map(int);
            let stream = b.stream(name, std::iter::once(at).chain(ints).collect());
            b.event_time(stream, "at", Late::Side);
            stream
        });
        let window = Window::Sliding { size_us };
        Frame { builder: b, indexes, turnovers, streams, window }
    }

    /// Adds the stream of a handler's turnover rates, for programs that emit by name.
    fn emitted(&mut self, name: &str) -> StreamId {
        let columns = [("user", DataType::Int), ("rate", DataType::Float)];
        let column = |(name, ty): (&str, DataType)| Column::new(name, ty);
        self.builder.emitted(name, columns.map(column).to_vec())
    }
}

/// Builds Rust closures over the words of rows.
fn native(size_us: i64, work: Work) -> Result<Program> {
    let mut frame = Frame::new(size_us);
    let emitted = HANDLERS.map(|name| frame.emitted(name));
    for (own, other) in [(QUOTES, TRADES), (TRADES, QUOTES)] {
        let sums = [own, other].map(|side| {
            let (table, window) = (frame.indexes[side], frame.window);
            frame.builder.window_read(table, "value", window, Aggregate::Sum)
        });
        let rows: [(TableId, &[&str]); 3] = [
            (frame.indexes[own], &["user"]),
            (frame.indexes[other], &["user"]),
            (frame.turnovers, &["user"]),
        ];
        let body = move |tx: &mut NativeTx<'_>| {
            let [stock, user, amount, price] = [1, 2, 3, 4].map(|column| tx.event(column));
            if amount <= 0 {
                return Err(NOTHING);
            }
            tx.set(0, 1, stock);
            tx.set(0, 2, amount);
            tx.set(0, 3, price);
            tx.set(0, 4, amount * price);
            let this = tx.window(0, &sums[0])?.unwrap_or(0);
            let that = tx.window(1, &sums[1])?.unwrap_or(0);
            work.run(that, work.run(this, 0));
            if let Some(rate) = rate(this, that) {
                let rate = rate.to_bits() as i64;
                tx.set(2, 1, rate);
                tx.set(2, 2, tx.get(2, 2) + 1);
                tx.emit(0, &[user, rate]);
            }
            Ok(())
        };
        let (name, input) = (HANDLERS[own], frame.streams[own]);
        let handler = frame.builder.native(name, input, &rows, &[emitted[own]], body);
        let (index, turnover): (&[&str], &[&str]) =
            (&["stock", "amount", "price", "value"], &["rate", "joins"]);
        frame.builder.sets(handler, &[(0, index), (2, turnover)]);
    }
    frame.builder.finish()
}

/// Builds declared transactions, as the tracer makes them of a Python program.
fn declared(size_us: i64) -> Result<Program> {
    let Frame { mut builder, indexes, turnovers, streams, window } = Frame::new(size_us);
    for (own, other) in [(QUOTES, TRADES), (TRADES, QUOTES)] {
        let mut h = builder.handler(HANDLERS[own], streams[own]);
        let [stock, user, amount, price] =
            ["stock", "user", "amount", "price"].map(|column| h.column(column));
        let (zero, one) = (h.int(0), h.int(1));
        let is_some = h.binary(Binary::Gt, amount, zero);
        h.require(is_some, NOTHING);
        let index = h.row(indexes[own], &[user]);
        let value = h.binary(Binary::Mul, amount, price);
        for (column, value) in
            [("stock", stock), ("amount", amount), ("price", price), ("value", value)]
        {
            h.set(index, column, value);
        }
        let this = h.window(index, "value", window, Aggregate::Sum);
        let index = h.row(indexes[other], &[user]);
        let that = h.window(index, "value", window, Aggregate::Sum);
        let (less, more) = (h.binary(Binary::Min, this, that), h.binary(Binary::Max, this, that));
        let joins = h.binary(Binary::Gt, less, zero);
        let rate = h.binary(Binary::Div, less, more);
        let turnover = h.row(turnovers, &[user]);
        h.set(turnover, "rate", rate);
        h.when(joins);
        let before = h.read(turnover, "joins");
        let count = h.add(before, one);
        h.set(turnover, "joins", count);
        h.when(joins);
        h.output(&[("user", user), ("rate", rate)]);
        h.when(joins);
        h.done();
    }
    builder.finish()
}

/// Builds the program with opaque functions. They emit into the streams after the inputs.
fn opaque(size_us: i64, functions: Vec<Arc<dyn Opaque>>) -> Result<Program> {
    let Ok(functions) = <[Arc<dyn Opaque>; 2]>::try_from(functions) else {
        return Err(Error::setting("--program python: sea is not written in Python")
            .help("use --program rust or traced"));
    };
    let mut frame = Frame::new(size_us);
    HANDLERS.iter().for_each(|name| {
        frame.emitted(name);
    });
    for ((name, stream), function) in HANDLERS.into_iter().zip(frame.streams).zip(functions) {
        frame.builder.opaque(name, stream, function);
    }
    frame.builder.finish()
}
