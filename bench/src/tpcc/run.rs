//! NewOrder and Payment as a workload for the harness.

use serde_json::{json, Map, Value as Json};
use tidemill_core::{Batch, Error, Key, Result, Row, TableId, Value};

use super::calls::{self, Call};
use super::program::{self, TABLES};
use super::straight::Straight;
use super::Scale;
use crate::args::{Args, ProgramKind};
use crate::mixed::{self, Mixed};
use crate::report::Report;
use crate::shape::Parts;
use crate::Given;

/// The default number of calls.
pub(super) const CALLS: usize = 200_000;
const WAREHOUSES: usize = 10;
const ITEMS: usize = 100_000;

/// The workload according to the options.
struct Tpcc {
    parts: Parts,
    /// Whether keys of several integers are packed into one.
    is_packed: bool,
    scale: Scale,
    seed: u64,
    calls: Vec<Call>,
}

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let scale = scale(args)?;
    let parts = program::program(args.program, given)?;
    let calls = calls::generate(args.seed, &scale, args.events.unwrap_or(CALLS));
    let (is_packed, seed) = (args.program == ProgramKind::Rust, args.seed);
    mixed::run(args, &Tpcc { parts, is_packed, scale, seed, calls }, progress)
}

fn scale(args: &Args) -> Result<Scale> {
    let (warehouses, items) = (args.warehouses.unwrap_or(WAREHOUSES), args.items.unwrap_or(ITEMS));
    if !(1..=1000).contains(&warehouses) {
        return Err(Error::setting(format!("--warehouses {warehouses}: it must be 1 to 1000")));
    }
    if !(100..=100_000).contains(&items) {
        return Err(Error::setting(format!("--items {items}: it must be 100 to 100000")));
    }
    Ok(Scale { warehouses: warehouses as i64, items: items as i64 })
}

/// The workload for others to execute.
pub(crate) struct Made {
    pub(super) scale: Scale,
    pub(super) seed: u64,
    pub(super) calls: Vec<Call>,
}

impl Made {
    /// Generates this many calls, according to the options.
    pub(crate) fn new(args: &Args, count: usize) -> Result<Made> {
        let scale = scale(args)?;
        Ok(Made { scale, seed: args.seed, calls: calls::generate(args.seed, &scale, count) })
    }

    /// Names all customers by their numbers, for functions without an index.
    pub(crate) fn by_number(mut self) -> Made {
        let straight = Straight::new(self.seed, &self.scale);
        self.calls.iter_mut().for_each(|call| straight.name(call));
        self
    }

    /// Returns the initial rows.
    pub(crate) fn begin(&self) -> Vec<(TableId, Row)> {
        all_rows(&Straight::new(self.seed, &self.scale))
    }

    /// Returns the calls as events, each with the place of its stream.
    pub(crate) fn events(&self) -> Vec<(usize, Row)> {
        self.calls.iter().map(event).collect()
    }

    /// Returns the expected final rows.
    pub(crate) fn end(&self) -> Vec<(TableId, Row)> {
        let mut straight = Straight::new(self.seed, &self.scale);
        straight.run(&self.calls);
        all_rows(&straight)
    }
}

fn all_rows(straight: &Straight) -> Vec<(TableId, Row)> {
    let of = |table: usize| {
        straight.rows(table).into_iter().map(move |row| (TableId(table as u16), row))
    };
    (0..TABLES.len()).flat_map(of).collect()
}

impl Mixed for Tpcc {
    type Straight = Straight;

    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn straight(&self) -> Straight {
        Straight::new(self.seed, &self.scale)
    }

    fn rows(&self, straight: &Straight, table: usize) -> Vec<Row> {
        let rows = straight.rows(table).into_iter();
        match self.is_packed {
            true => rows.map(|row| program::packed_row(table, row)).collect(),
            false => rows.collect(),
        }
    }

    fn calls(&self) -> Vec<(usize, Row)> {
        self.calls.iter().map(event).collect()
    }

    fn execute(&self, straight: &mut Straight) {
        straight.run(&self.calls);
    }

    fn is_right(&self, straight: &Straight, tables: &[Batch]) -> bool {
        let rows = |table: usize| -> Vec<Row> {
            let rows = tables[table].rows();
            match self.is_packed {
                true => rows.map(|row| program::unpacked_row(table, row)).collect(),
                false => rows.collect(),
            }
        };
        let found: Vec<Vec<Row>> = (0..TABLES.len()).map(rows).collect();
        let is_right = |table: usize| {
            let columns = [1, 2, 3, 2, 1, 3, 3, 4, 2][table];
            let key = |row: &Row| Key::of(&row[..columns]);
            mixed::same_rows(straight.rows(table), found[table].clone(), key)
        };
        (0..TABLES.len()).all(is_right) && Straight::is_consistent(&found)
    }

    fn details(&self, straight: &Straight) -> Map<String, Json> {
        let details = json!({
            "warehouses": self.scale.warehouses,
            "refused": straight.aborts,
        });
        details.as_object().expect("it is one").clone()
    }
}

/// Returns a call as an event: the place of its stream, and its columns.
fn event(call: &Call) -> (usize, Row) {
    let int = Value::Int;
    match call {
        Call::NewOrder(order) => {
            let column = |part: fn(&(i64, i64, i64)) -> i64| {
                Value::List(order.lines.iter().map(|line| int(part(line))).collect())
            };
            let row = [
                int(order.warehouse),
                int(order.district),
                int(order.customer),
                column(|line| line.0),
                column(|line| line.1),
                column(|line| line.2),
            ];
            (0, row.into())
        }
        Call::Payment(payment) => {
            let row = [
                int(payment.warehouse),
                int(payment.district),
                int(payment.customer_warehouse),
                int(payment.customer_district),
                int(payment.customer),
                Value::str(&payment.last),
                int(payment.amount),
                int(payment.id),
            ];
            (1, row.into())
        }
    }
}
