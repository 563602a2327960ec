//! The general path: it executes any transaction.
//!
//! It works on an overlay of the touched rows. So an abort leaves nothing to undo, and one commit
//! applies all changes. Rows are values there, except that functions use rows of plain tables as
//! words (`plain`).

mod along;
mod declared;
mod effects;
mod plain;
mod rows;
mod tx;

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;

use tidemill_core::{Key, Row, StreamId, TableId, Value};

pub(crate) use self::effects::Effects;
use self::effects::Touched;
use self::plain::PlainRows;
pub(crate) use self::rows::{ordered, Bounds, Holder, Keys, Rows, Unsettled};
use super::native;
use super::window::Seen;
use super::work;
use crate::program::inside::{Inside, Transaction};
use crate::program::{
    key_value, Abort, Aggregate, Body, Moment, Program, Take, Window, WindowRead,
};
use tidemill_table::Table;

/// The number of rows up to which a scan is faster than hashing.
const ROWS_FEW: usize = 16;

/// A running transaction.
pub(crate) struct General<'a> {
    /// The state of the transaction beside its rows.
    inside: Inside<'a>,
    tables: &'a dyn Rows,
    /// Whether rows of plain tables are used as words, as in functions. Declared transactions use
    /// values.
    uses_words: bool,
    plain: PlainRows,
    rows: Vec<Touched>,
    /// The places of the rows, once there are more than [`ROWS_FEW`].
    by_key: HashMap<(TableId, Key), usize, foldhash::fast::FixedState>,
    /// The rows that were created by setting columns, in order. At the end, all their columns must
    /// have values.
    made: Vec<usize>,
    /// The number of versions and rows of ranges that were read.
    looked: Cell<u64>,
}

impl<'a> General<'a> {
    /// Creates a transaction of a handler at a moment.
    pub(crate) fn new(
        program: &'a Program,
        tables: &'a dyn Rows,
        handler: usize,
        moment: &'a Moment<'a>,
    ) -> General<'a> {
        General {
            inside: Inside::new(program, handler, moment),
            tables,
            uses_words: matches!(program.handlers[handler].body, Body::Opaque(_)),
            plain: PlainRows::default(),
            rows: Vec::new(),
            by_key: HashMap::default(),
            made: Vec::new(),
            looked: Cell::new(0),
        }
    }

    /// Continues as a transaction of another handler, which sees the writes so far. Returns the
    /// emitted events.
    pub(crate) fn go_on(&mut self, handler: usize) -> Vec<(StreamId, Vec<Value>)> {
        self.inside.handler = handler;
        std::mem::take(&mut self.inside.emitted)
    }

    /// Runs the handler, which takes single events.
    pub(crate) fn handler(&mut self, event: &[Value]) -> Result<(), Abort> {
        let program = self.inside.program;
        match &program.handlers[self.inside.handler].body {
            Body::Declared(declared) => self.declared(declared, event),
            Body::Native(native) => {
                let native = &program.natives[*native];
                self.function(|tx| native::general(tx, program, native, event))
            }
            Body::Opaque(opaque) => {
                let function = &program.opaques[*opaque];
                self.function(|tx| function.call(event, tx))
            }
        }
    }

    pub(crate) fn effects(self) -> Effects {
        Effects { rows: self.rows, plain: self.plain, emitted: self.inside.emitted }
    }

    /// Returns the table, if it has plain rows that are used as words.
    fn plain(&self, table: TableId) -> Option<&'a Table> {
        let tables = self.tables;
        tables.table(table).filter(|table| self.uses_words && plain::is_plain(table))
    }

    /// Returns the place of the touched row with this key. Equal keys are one row.
    fn touch(&mut self, table: TableId, key: Vec<Value>) -> Result<usize, Unsettled> {
        if let Some(at) = self.find_touched(table, &key) {
            return Ok(at);
        }
        // A row that can't be read yet leaves no trace.
        let row = self.tables.row_by(table, &key)?.map(Vec::from);
        Ok(self.push_touched(Touched { table, key, row, written: false }))
    }

    fn find_touched(&mut self, table: TableId, key: &[Value]) -> Option<usize> {
        let rows = &self.rows;
        if rows.len() < ROWS_FEW {
            return rows.iter().position(|t| t.table == table && t.key == key);
        }
        if self.by_key.is_empty() {
            let places = rows.iter().enumerate();
            self.by_key.extend(places.map(|(at, row)| ((row.table, Key::of(&row.key)), at)));
        }
        self.by_key.get(&(table, Key::of(key))).copied()
    }

    fn push_touched(&mut self, touched: Touched) -> usize {
        if self.rows.len() >= ROWS_FEW {
            self.by_key.insert((touched.table, Key::of(&touched.key)), self.rows.len());
        }
        self.rows.push(touched);
        self.rows.len() - 1
    }

    /// Computes a window over the versions of a touched row.
    fn over(
        &self,
        at: usize,
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        let Touched { table, key, row, written } = &self.rows[at];
        let own = row.as_deref().filter(|_| *written);
        self.over_row(*table, key, own, (window, column, aggregate))
    }

    /// Computes a window over the versions of a row that a closure has a copy of. `own` has its
    /// columns as the closure has written them.
    pub(crate) fn over_copy(
        &self,
        table: TableId,
        key: &[Value],
        own: Option<&[Value]>,
        read: &WindowRead,
    ) -> Result<Value, Abort> {
        self.over_row(table, key, own, (&read.window, read.column, &read.aggregate))
    }

    fn over_row(
        &self,
        table: TableId,
        key: &[Value],
        own: Option<&[Value]>,
        (window, column, aggregate): (&Window, u16, &Aggregate),
    ) -> Result<Value, Abort> {
        let spec = &self.inside.program.tables[table.index()];
        let time_us = self.inside.moment.time_us();
        let holder = self.tables.holder(table, &Key::of(key), key)?;
        let branch = holder
            .graph
            .as_ref()
            .map(|(branch, count)| (branch.read().unwrap_or_else(PoisonError::into_inner), *count));
        let graph =
            branch.as_ref().and_then(|(branch, count)| Some((branch.versions(key)?, *count)));
        let seen = Seen {
            versions: holder.table.and_then(|table| table.versions(key)),
            graph,
            before: &holder.before,
            own,
            time_us,
        };
        let numbers = seen.window(window, spec.history);
        if let Window::Session { .. } = window {
            self.look(numbers.end - numbers.start);
        }
        seen.made_of(numbers, spec, column, aggregate, &self.looked)
    }

    /// Counts versions and rows of ranges that are read.
    fn look(&self, more: u64) {
        self.looked.set(self.looked.get() + more);
    }

    /// Returns the counted work so far.
    pub(crate) fn work(&self) -> u64 {
        let rows = (self.rows.len() + self.plain.len()) as u64;
        let operations = self.inside.operations() as u64;
        work::TRANSACTION + work::ROW * rows + work::LOOK * self.looked.get() + operations
    }

    /// Returns the first or last rows whose keys are in a range, with the transaction's own writes.
    fn between(
        &self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        take: Take,
    ) -> Result<Vec<Row>, Abort> {
        let spec = &self.inside.program.tables[table.index()];
        let bound = |bound: &[Value]| -> Result<Vec<Value>, Abort> {
            bound.iter().map(|value| key_value(value.clone(), spec)).collect()
        };
        self.range(table, Bounds::Between(&bound(from)?, &bound(to)?), take)
    }

    /// Returns rows within bounds, as [`General::between`] does. The bounds fit the key's columns.
    fn range(&self, table: TableId, bounds: Bounds<'_>, take: Take) -> Result<Vec<Row>, Abort> {
        // Touched rows replace those of the table.
        let (from, to) = &bounds.keys();
        let is_in = |key: &Key| key >= from && (to.0.is_empty() || key < to);
        let touched = self.rows.iter().filter(|touched| touched.table == table);
        let touched =
            touched.map(|touched| (Key::of(&touched.key), touched.row.clone().map(Row::from)));
        let plain = self.plain(table).into_iter().flat_map(|held| self.plain.own(table, held));
        let mut own: Vec<(Key, Option<Row>)> =
            touched.chain(plain).filter(|(key, _)| is_in(key)).collect();
        if let Some(found) = self.tables.found(table, bounds, take.and(own.len()))? {
            self.look(found.len() as u64);
            let columns = &self.inside.program.tables[table.index()].key;
            let key = |row: &Row| Key::of(columns.iter().map(|column| &row[*column]));
            let mut rows: BTreeMap<Key, Option<Row>> =
                found.into_iter().map(|row| (key(&row), Some(row))).collect();
            rows.extend(own);
            return Ok(take.of(rows.into_values().flatten()));
        }
        let in_order = |a: &Key, b: &Key| if take.is_reverse() { b.cmp(a) } else { a.cmp(b) };
        own.sort_by(|a, b| in_order(&a.0, &b.0));
        let mut keys = self.tables.keys(table, from, to, take.is_reverse()).peekable();
        let mut own = own.into_iter().peekable();
        let mut rows = Vec::new();
        while rows.len() < take.limit() {
            self.look(1);
            let order = match (keys.peek(), own.peek()) {
                (Some(held), Some((own, _))) => in_order(held, own),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            if order.is_lt() {
                let key = keys.next().expect("there is one");
                rows.extend(self.tables.row_in_range(table, &key)?);
                continue;
            }
            if order.is_eq() {
                keys.next();
            }
            rows.extend(own.next().and_then(|(_, row)| row));
        }
        Ok(rows)
    }
}
