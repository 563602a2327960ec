//! The transaction of Toll Processing in all forms.

use std::sync::Arc;

use tidemill_core::rules::Binary;
use tidemill_core::{Column, DataType, Error, Late, Result, StreamId, TableId, Value};
use tidemill_txn::program::{Builder, NativeTx, Opaque};
use tidemill_txn::Program;

use super::{bit, mean, SPEED_END, WORD_VEHICLES};
use crate::args::ProgramKind;
use crate::shape::{self, Parts};
use crate::work::Work;
use crate::Given;

/// The reason of an abort.
pub(super) const FAST: &str = "nothing is so fast";

/// The places of the tables among the parts of the program.
pub(super) const SPEEDS: usize = 0;
pub(super) const VEHICLES: usize = 1;

/// Returns the program according to the options.
pub(super) fn program(kind: ProgramKind, given: Given<'_>, work: Work) -> Result<Parts> {
    let program = match (kind, given.program) {
        (ProgramKind::Rust, _) => native(work)?,
        (ProgramKind::Traced, None) => declared()?,
        (ProgramKind::Python, None) => opaque(given.opaques)?,
        (_, Some(json)) => {
            let mut program = Program::from_json(json)?;
            program.opaques = given.opaques;
            program
        }
    };
    shape::find_only("Toll Processing", program, &Frame::new().builder.finish()?)
}

/// The parts that all forms share: the tables and the input stream.
struct Frame {
    builder: Builder,
    speeds: TableId,
    vehicles: TableId,
    reports: StreamId,
}

impl Frame {
    fn new() -> Frame {
        let mut b = Builder::new("tp");
        let int = |name: &str| Column::new(name, DataType::Int);
        let zero = |name: &str| int(name).default(Value::Int(0));
        let mean = Column::new("mean", DataType::Float).default(Value::Float(0.0));
        let speeds = b.table("speeds", &["segment"], vec![int("segment"), mean]);
        let columns = vec![int("segment"), zero("low"), zero("high"), zero("count")];
        let vehicles = b.table("vehicles", &["segment"], columns);
        let at = Column::new("at", DataType::Timestamp);
        let ints = ["segment", "vehicle", "bit", "speed"].map(int);
        let reports = b.stream("reports", std::iter::once(at).chain(ints).collect());
        b.event_time(reports, "at", Late::Side);
        Frame { builder: b, speeds, vehicles, reports }
    }

    /// Adds the output stream, for programs that emit by name.
    fn emitted(&mut self) -> StreamId {
        let column = |(name, ty): (&str, DataType)| Column::new(name, ty);
        let columns =
            [("segment", DataType::Int), ("mean", DataType::Float), ("count", DataType::Int)];
        self.builder.emitted("report", columns.map(column).to_vec())
    }
}

/// Builds a Rust closure over the words of rows.
fn native(work: Work) -> Result<Program> {
    let mut frame = Frame::new();
    let reported = frame.emitted();
    let rows: [(TableId, &[&str]); 2] =
        [(frame.speeds, &["segment"]), (frame.vehicles, &["segment"])];
    let body = move |tx: &mut NativeTx<'_>| {
        let (vehicle, speed) = (tx.event(2), tx.event(4));
        if speed >= SPEED_END {
            return Err(FAST);
        }
        let new = mean(f64::from_bits(tx.get(0, 1) as u64), speed).to_bits() as i64;
        let worked = work.run(new, 0);
        tx.set(0, 1, new);
        let word = if vehicle > WORD_VEHICLES { 2 } else { 1 };
        let (before, bit) = (tx.get(1, word), bit(vehicle));
        work.run(before | bit, worked);
        tx.set(1, word, before | bit);
        let count = tx.get(1, 3) + i64::from(before & bit == 0);
        tx.set(1, 3, count);
        tx.emit(0, &[tx.event(1), new, count]);
        Ok(())
    };
    frame.builder.native("report", frame.reports, &rows, &[reported], body);
    frame.builder.finish()
}

/// Builds a declared transaction, as the tracer makes it of the Python program.
fn declared() -> Result<Program> {
    let Frame { mut builder, speeds, vehicles, reports } = Frame::new();
    let mut h = builder.handler("report", reports);
    let [segment, vehicle, bit, speed] =
        ["segment", "vehicle", "bit", "speed"].map(|c| h.column(c));
    let end = h.int(SPEED_END);
    let is_slow = h.binary(Binary::Lt, speed, end);
    h.require(is_slow, FAST);

    let row = h.row(speeds, &[segment]);
    let old = h.read(row, "mean");
    let (none, two) = (h.value(Value::Float(0.0)), h.int(2));
    let is_first = h.binary(Binary::Eq, old, none);
    let sum = h.add(old, speed);
    let half = h.binary(Binary::Div, sum, two);
    let first = h.add(none, speed);
    let mean = h.choose(is_first, first, half);
    h.set(row, "mean", mean);

    let row = h.row(vehicles, &[segment]);
    let [low, high, count] = ["low", "high", "count"].map(|c| h.read(row, c));
    let last = h.int(WORD_VEHICLES);
    let is_low = h.binary(Binary::Le, vehicle, last);
    let word = h.choose(is_low, low, high);
    // The word without the lower bits is odd if the bit is set.
    let shifted = h.binary(Binary::FloorDiv, word, bit);
    let is_set = h.binary(Binary::Mod, shifted, two);
    let one = h.int(1);
    let come = h.sub(one, is_set);
    let added = h.binary(Binary::Mul, come, bit);
    let word = h.add(word, added);
    let (new_low, new_high) = (h.choose(is_low, word, low), h.choose(is_low, high, word));
    h.set(row, "low", new_low);
    h.set(row, "high", new_high);
    let count = h.add(count, come);
    h.set(row, "count", count);
    h.output(&[("segment", segment), ("mean", mean), ("count", count)]);
    h.done();
    builder.finish()
}

/// Builds the program with an opaque function. It emits into the stream after the input.
fn opaque(functions: Vec<Arc<dyn Opaque>>) -> Result<Program> {
    let Ok([report]) = <[Arc<dyn Opaque>; 1]>::try_from(functions) else {
        return Err(Error::setting("--program python: its function was not given")
            .help("use the command line of the Python package: tidemill bench tp"));
    };
    let mut frame = Frame::new();
    frame.emitted();
    frame.builder.opaque("report", frame.reports, report);
    frame.builder.finish()
}
