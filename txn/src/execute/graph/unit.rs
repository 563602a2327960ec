//! Transactions on the general path in a graph.
//!
//! Each is one unit with everything that its outputs trigger, and one operation. Computed keys,
//! windows, ranges, functions and cascades are executed in this way.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Key, Row, StreamId, TableId, Value};

use super::hint::{keys_between, KeyRange};
use crate::execute::general::{ordered, Effects, Holder, Keys, Rows, Unsettled};
use crate::execute::serial::call;
use crate::program::{reasons, Abort, Moment, Program};

/// One transaction of a unit.
pub(crate) struct Step {
    pub(crate) handler: usize,
    /// The effects, or the abort event.
    pub(crate) result: Result<Effects, Vec<Value>>,
    /// The abort, if its function has failed.
    pub(crate) fault: Option<Box<Abort>>,
}

/// The outcome of a unit.
#[derive(Default)]
pub(crate) struct Unit {
    /// The transaction and its cascade, depth first.
    pub(crate) steps: Vec<Step>,
    /// The rows that it writes, and the places of their versions: step, and number in the step.
    written: BTreeMap<(TableId, Key), Vec<(usize, usize)>>,
    /// The counted work of running it.
    pub(crate) work: u64,
}

/// A unit that has run, and its reads beyond the expected ones.
pub(crate) struct Ran {
    pub(crate) unit: Arc<Unit>,
    pub(crate) rows: Vec<(TableId, Key)>,
    pub(crate) ranges: Vec<KeyRange>,
}

impl Step {
    /// Returns the events that it emits, by stream.
    pub(crate) fn emitted<'s>(
        &'s self,
        program: &Program,
    ) -> impl Iterator<Item = (StreamId, &'s [Value])> {
        let aborted = program.handlers[self.handler].aborted;
        let (emitted, event) = match &self.result {
            Ok(effects) => (&effects.emitted[..], None),
            Err(event) => (&[][..], Some((aborted, &event[..]))),
        };
        emitted.iter().map(|(stream, row)| (*stream, &row[..])).chain(event)
    }

    /// Whether both have the same outcome.
    pub(crate) fn is_same(&self, other: &Step) -> bool {
        match (&self.result, &other.result) {
            (Ok(a), Ok(b)) => a.same_outcome(b),
            (Err(a), Err(b)) => a == b,
            _ => false,
        }
    }
}

impl Unit {
    /// Runs an event's transaction and its cascade. The result does not count if `rows` could not
    /// return a row.
    pub(crate) fn run(
        program: &Program,
        rows: &dyn Rows,
        event: &[Value],
        moment: &Moment<'_>,
    ) -> Unit {
        let mut unit = Unit::default();
        unit.transact(program, rows, event, moment);
        unit
    }

    fn transact(
        &mut self,
        program: &Program,
        base: &dyn Rows,
        event: &[Value],
        moment: &Moment<'_>,
    ) {
        let (handler, mut work) = (moment.step, 0);
        let result = match moment.stamp.path.len() > program.handlers.len() {
            true => Err(reasons::endless()),
            false => call(program, &Nested { unit: self, base }, handler, event, moment, &mut work),
        };
        self.work += work;
        if base.is_unsettled() {
            return;
        }
        let number = self.steps.len();
        let fault = result.as_ref().err().filter(|abort| abort.is_fault());
        let fault = fault.map(|abort| Box::new(abort.clone()));
        let result =
            result.map_err(|abort| program.abort_event(handler, event, &abort.public_reason()));
        for row in result.iter().flat_map(Effects::written) {
            let versions = self.written.entry((row.table, Key::of(row.key))).or_default();
            versions.push((number, row.number));
        }
        self.steps.push(Step { handler, result, fault });
        let taken = |(stream, row): (StreamId, &[Value])| {
            let handlers: Vec<usize> = program.handlers_on(stream).collect();
            (!handlers.is_empty()).then(|| (handlers, row.to_vec()))
        };
        let set_off: Vec<Option<(Vec<usize>, Vec<Value>)>> =
            self.steps[number].emitted(program).map(taken).collect();
        for (ordinal, (handlers, row)) in
            set_off.into_iter().enumerate().filter_map(|(n, s)| Some((n, s?)))
        {
            let stamp = moment.stamp.derived(handler as u16, ordinal as u32);
            for step in handlers {
                let moment = Moment { stamp: stamp.clone(), step, ..moment.clone() };
                self.transact(program, base, &row, &moment);
                if base.is_unsettled() {
                    return;
                }
            }
        }
    }

    /// Returns the rows that it writes.
    pub(crate) fn written(&self) -> impl Iterator<Item = &(TableId, Key)> {
        self.written.keys()
    }

    /// Returns the versions of a row that it writes: the step, the values of the key, and the row.
    pub(crate) fn versions(
        &self,
        row: &(TableId, Key),
    ) -> impl DoubleEndedIterator<Item = (usize, &[Value], Option<&[Value]>)> {
        let versions = self.written.get(row).into_iter().flatten();
        versions.map(|(step, number)| {
            let effects = self.steps[*step].result.as_ref().expect("it has written something");
            let (key, row) = effects.row(*number);
            (*step, key, row)
        })
    }

    /// Returns a row as the unit leaves it, if it writes the row.
    pub(crate) fn last(&self, row: &(TableId, Key)) -> Option<Option<&[Value]>> {
        self.versions(row).next_back().map(|(_, _, row)| row)
    }
}

/// The rows as the next transaction of a unit sees them.
struct Nested<'u> {
    unit: &'u Unit,
    base: &'u dyn Rows,
}

impl Nested<'_> {
    fn own(&self, table: TableId, key: &Key) -> Option<Option<Row>> {
        if self.unit.written.is_empty() {
            return None;
        }
        self.unit.last(&(table, key.clone())).map(|row| row.map(Row::from))
    }
}

impl Rows for Nested<'_> {
    fn row(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        self.own(table, key).map_or_else(|| self.base.row(table, key), Ok)
    }

    fn row_in_range(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        self.own(table, key).map_or_else(|| self.base.row_in_range(table, key), Ok)
    }

    fn holder(&self, table: TableId, key: &Key, values: &[Value]) -> Result<Holder<'_>, Unsettled> {
        let mut holder = self.base.holder(table, key, values)?;
        if !self.unit.written.is_empty() {
            let versions = self.unit.versions(&(table, key.clone()));
            holder.before = versions.filter_map(|(_, _, row)| row).collect();
        }
        Ok(holder)
    }

    fn keys<'a>(&'a self, table: TableId, from: &'a Key, to: &'a Key, reverse: bool) -> Keys<'a> {
        let own = ordered(keys_between(&self.unit.written, table, from, to), reverse);
        merged(self.base.keys(table, from, to, reverse), own, reverse)
    }

    fn is_unsettled(&self) -> bool {
        self.base.is_unsettled()
    }
}

/// Merges the keys of two sequences in order, or in reverse order. Each key is there once.
pub(crate) fn merged<'a>(one: Keys<'a>, other: Keys<'a>, reverse: bool) -> Keys<'a> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    Box::new(std::iter::from_fn(move || {
        let (a, b) = match (one.peek(), other.peek()) {
            (Some(a), Some(b)) if reverse => (a >= b, b >= a),
            (Some(a), Some(b)) => (a <= b, b <= a),
            _ => (true, true),
        };
        let from_other = if b { other.next() } else { None };
        let from_one = if a { one.next() } else { None };
        from_one.or(from_other)
    }))
}
