//! Handlers: the transactions that events become.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Row, StreamId, TableId, Value};

use super::answers::Asker;
use super::expr::{Block, ExprId};
use super::ints;
use super::owned::WindowId;
use super::take::Take;
use super::window::{Aggregate, Window};
use crate::execute::{run_native, End, Lane, NativeCode, NativeTx, Turns};

/// A variable of a declared transaction, by number. One read sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VarId(pub u16);

impl VarId {
    /// Returns the number as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A row that a declared transaction mentions, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RowId(pub u16);

impl RowId {
    /// Returns the number as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A handler. Each event of `input` becomes one transaction; for a *procedure*, each batch does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handler {
    /// Its name, unique among the handlers.
    pub name: Arc<str>,
    /// The stream whose events it takes.
    pub input: StreamId,
    /// How many of the stream's events form one transaction.
    #[serde(default, skip_serializing_if = "Takes::is_each")]
    pub takes: Takes,
    /// The other streams that a procedure takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Input>,
    /// The streams that an opaque function may emit into beside its output, if declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emits: Option<Vec<StreamId>>,
    /// The work of its transactions.
    pub body: Body,
    /// The stream of its return values, if it returns any.
    #[serde(default)]
    pub output: Option<StreamId>,
    /// The stream of its aborted events.
    pub aborted: StreamId,
    /// The reason for the path it takes, for `inspect`: "traced", or why tracing failed.
    #[serde(default)]
    pub why: String,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

/// How many events form one transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Takes {
    /// Each event is one transaction, and all that it triggers runs before the next event.
    #[default]
    Each,
    /// All events of a round form one transaction. Such a handler is a procedure; see
    /// [`rounds`](super::rounds).
    Batch,
}

impl Takes {
    fn is_each(&self) -> bool {
        *self == Takes::Each
    }
}

/// A stream that a procedure takes beside its first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The stream.
    pub stream: StreamId,
    /// The stream of its events when the procedure aborts.
    pub aborted: StreamId,
}

/// The events of one stream that a procedure takes at once, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct EventBatch {
    /// The stream.
    pub stream: StreamId,
    /// The events; empty if only other streams had events in this round.
    pub events: Vec<Row>,
}

impl Handler {
    /// Returns the streams that the handler takes, in declaration order, each with the stream of
    /// its events when the handler aborts.
    pub fn inputs(&self) -> impl Iterator<Item = Input> + '_ {
        let first = Input { stream: self.input, aborted: self.aborted };
        [first].into_iter().chain(self.more.iter().copied())
    }

    /// Whether the handler is a procedure.
    pub fn is_procedure(&self) -> bool {
        self.takes == Takes::Batch
    }
}

/// The work of a handler's transactions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Operations known before the transaction runs.
    Declared(Declared),
    /// A closure on rows that are known before it runs: an index into [`super::Program::natives`].
    Native(usize),
    /// A function that finds its accesses by running: an index into [`super::Program::opaques`].
    Opaque(usize),
}

/// A declared transaction: steps in program order over rows and expressions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// The expressions of keys and steps.
    pub exprs: Block,
    /// The rows that steps mention.
    pub rows: Vec<RowRef>,
    /// The steps, in program order.
    pub steps: Vec<Step>,
}

/// A row by table and key. Two references with equal keys are the same row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowRef {
    /// The table.
    pub table: TableId,
    /// One expression for each key column. They use only variables that are set before the row's
    /// first step.
    pub key: Vec<ExprId>,
    /// The user's line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
}

/// One step of a declared transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The operation.
    pub op: Op,
    /// The condition under which the step happens. Otherwise the step's expressions are not
    /// evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<ExprId>,
    /// The user's line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
}

/// The operation of a step. Operations act in program order and see the transaction's own writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Sets a variable to a column of a row. A missing row has the column's default, or null.
    Read {
        /// The row.
        row: RowId,
        /// The column.
        column: u16,
        /// The variable.
        var: VarId,
    },
    /// Sets a variable to whether the row exists.
    Exists {
        /// The row.
        row: RowId,
        /// The variable.
        var: VarId,
    },
    /// Sets a variable to the aggregate of a window over the row's versions.
    Window {
        /// The row.
        row: RowId,
        /// The window.
        window: Window,
        /// The column of the versions.
        column: u16,
        /// The aggregate of the column's values.
        aggregate: Aggregate,
        /// The variable.
        var: VarId,
    },
    /// Sets a variable to the aggregate of the rows in a range of keys, in key order.
    Range {
        /// The table.
        table: TableId,
        /// Leading key columns of the range's first key; empty for the table's first row.
        from: Vec<ExprId>,
        /// Leading key columns of the first key after the range; empty for the end of the table.
        to: Vec<ExprId>,
        /// The column of the rows.
        column: u16,
        /// The aggregate of the column's values.
        aggregate: Aggregate,
        /// The variable.
        var: VarId,
    },
    /// Aborts the transaction with a reason unless the condition is true.
    Require {
        /// The condition.
        cond: ExprId,
        /// The reason, a text.
        reason: ExprId,
    },
    /// Sets one column. A missing row is first created with its defaults.
    Set {
        /// The row.
        row: RowId,
        /// The column, which is not part of the key.
        column: u16,
        /// The value.
        value: ExprId,
    },
    /// Creates a row; aborts if it exists.
    Insert {
        /// The row.
        row: RowId,
        /// Columns outside the key with their values. The others get their defaults.
        values: Vec<(u16, ExprId)>,
    },
    /// Sets columns of a row; aborts if it is missing.
    Update {
        /// The row.
        row: RowId,
        /// Columns outside the key with their values. The others stay.
        values: Vec<(u16, ExprId)>,
    },
    /// Creates a row or replaces the whole row.
    Upsert {
        /// The row.
        row: RowId,
        /// Columns outside the key with their values. The others get their defaults.
        values: Vec<(u16, ExprId)>,
    },
    /// Removes a row; does nothing if it is missing.
    Delete {
        /// The row.
        row: RowId,
    },
    /// Emits an event.
    Emit {
        /// The stream.
        stream: StreamId,
        /// One expression for each column of the stream.
        values: Vec<ExprId>,
    },
}

impl Op {
    /// Returns the row that the operation reads or writes.
    pub fn row(&self) -> Option<RowId> {
        match self {
            Op::Read { row, .. }
            | Op::Exists { row, .. }
            | Op::Window { row, .. }
            | Op::Set { row, .. }
            | Op::Insert { row, .. }
            | Op::Update { row, .. }
            | Op::Upsert { row, .. }
            | Op::Delete { row } => Some(*row),
            Op::Range { .. } | Op::Require { .. } | Op::Emit { .. } => None,
        }
    }

    /// Returns the variable that the operation sets.
    pub fn var(&self) -> Option<VarId> {
        match self {
            Op::Read { var, .. }
            | Op::Exists { var, .. }
            | Op::Window { var, .. }
            | Op::Range { var, .. } => Some(*var),
            _ => None,
        }
    }

    /// Returns the table that the operation reads by a range of keys.
    pub fn range(&self) -> Option<TableId> {
        match self {
            Op::Range { table, .. } => Some(*table),
            _ => None,
        }
    }

    /// Whether the operation writes its row.
    pub fn writes(&self) -> bool {
        matches!(
            self,
            Op::Set { .. }
                | Op::Insert { .. }
                | Op::Update { .. }
                | Op::Upsert { .. }
                | Op::Delete { .. }
        )
    }
}

/// The reason why a transaction aborted: an outcome, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The origin of the abort.
    pub kind: AbortKind,
    /// The reason, as in the abort event.
    pub reason: String,
}

/// The origin of an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortKind {
    /// A refusal by the program: a `require`, an insert over an existing row, `tm.Abort`.
    Refused,
    /// A rule of values: overflow, null, division by zero.
    Fault,
    /// A *fault*: an exception that an opaque function did not mean to raise, or a panic. See
    /// [`Abort::failed`].
    Raised,
    /// A deadline: a function took too long. This does not follow from the event, so the engine
    /// records it before it releases any output, and a replay
    /// [obeys](crate::execute::Executor::obey) the record.
    Overdue,
}

impl Abort {
    /// Makes a refusal.
    pub fn refused(reason: impl Into<String>) -> Abort {
        Abort { kind: AbortKind::Refused, reason: reason.into() }
    }

    /// Makes a fault from what a function raised and, if known, the user's line. The line is for
    /// the function's author: no event and no client gets it.
    pub fn failed(what: impl Into<String>, at: Option<&str>) -> Abort {
        let mut reason = what.into();
        if let Some(at) = at {
            reason.push(AT);
            reason.push_str(at);
        }
        Abort { kind: AbortKind::Raised, reason }
    }

    /// Whether the abort is a fault and not a refusal.
    pub fn is_fault(&self) -> bool {
        self.kind == AbortKind::Raised
    }

    /// Returns what the failed function raised, and the user's line if known.
    pub fn parts(&self) -> (&str, Option<&str>) {
        match self.reason.rsplit_once(AT) {
            Some((what, at)) if self.is_fault() => (what, Some(at)),
            _ => (&self.reason, None),
        }
    }

    /// Returns the public reason: a fault is marked as one, and the user's line is left out.
    pub fn public_reason(&self) -> Cow<'_, str> {
        match self.is_fault() {
            true => format!("{FAULT}{}", self.parts().0).into(),
            false => (&*self.reason).into(),
        }
    }
}

/// The prefix of a fault's public reason.
pub const FAULT: &str = "fault: ";

/// The separator between what a function raised and the user's line. No text contains it.
const AT: char = '\u{1e}';

impl From<tidemill_core::rules::Fault> for Abort {
    fn from(fault: tidemill_core::rules::Fault) -> Abort {
        Abort { kind: AbortKind::Fault, reason: fault.to_string() }
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (what, Some(at)) => write!(f, "{what} ({at})"),
            (what, None) => f.write_str(what),
        }
    }
}

/// The most operations of functions in one transaction: reads, writes, events, and rows of ranges.
/// A transaction with more aborts; without a bound it might never end.
pub const OPERATIONS_MAX: usize = 1_000_000;

/// The operations of an opaque function inside its transaction. It sees its own writes.
pub trait Tx {
    /// Returns the row with this key (one value for each key column), or `None` if it is missing.
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort>;
    /// Reads the row with this integer key into `row`, which has a place for each column. Returns
    /// `false` if the row is missing. Aborts if the row has another number of columns or one that
    /// is not an integer.
    fn get_ints(&mut self, table: TableId, key: i64, row: &mut [i64]) -> Result<bool, Abort> {
        ints::get(self, table, key, row)
    }
    /// Returns the aggregate of a window over the versions of the row with this key. Aborts if the
    /// table's history is too short for the window, or if the column has no such aggregate.
    fn window(
        &mut self,
        table: TableId,
        key: &[Value],
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort>;
    /// Returns the first or last rows with keys from `from` (inclusive) to `to` (exclusive). Each
    /// bound gives leading key columns; an empty one is no bound. Aborts if the table is not
    /// ordered.
    fn scan(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        take: Take,
    ) -> Result<Vec<Row>, Abort>;
    /// Returns the first or last rows whose leading key columns have these values. This finds the
    /// row of an index, or the rows of a prefix. Aborts if the table is not ordered.
    fn find(&mut self, table: TableId, leading: &[Value], take: Take) -> Result<Vec<Row>, Abort>;
    /// Creates or replaces a whole row; aborts if a value does not fit its column.
    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Abort>;
    /// Writes a row of integers, like [`Tx::put`].
    fn put_ints(&mut self, table: TableId, row: &[i64]) -> Result<(), Abort> {
        ints::put(self, table, row)
    }
    /// Removes a row; does nothing if it is missing.
    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort>;
    /// Announces that the function has changed its copy of the row with this key and will write it
    /// later. This keeps triggers in the order of the function's writes.
    fn will_write(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        let _ = (table, key);
        Ok(())
    }
    /// Emits an event with a value for each column; aborts if a value does not fit.
    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Abort>;
    /// Emits an event of integers, like [`Tx::emit`].
    fn emit_ints(&mut self, stream: StreamId, row: &[i64]) -> Result<(), Abort> {
        ints::emit(self, stream, row)
    }
    /// Puts a row into a window that belongs to the handler. The window may then slide once or, by
    /// time, several times. Aborts if a value does not fit its column.
    fn window_insert(&mut self, window: WindowId, row: &[Value]) -> Result<(), Abort>;
    /// Slides a window by time up to the transaction's time.
    fn window_advance(&mut self, window: WindowId) -> Result<(), Abort>;
    /// Returns the active rows of a window, in the order of their arrival.
    fn window_rows(&mut self, window: WindowId) -> Result<Vec<Row>, Abort>;
    /// Returns the groups of a window's active rows, in order, or only the given group, which may
    /// have no active rows. Each result holds the group (0 in a window without groups), the number
    /// of rows, and the aggregates.
    fn window_groups(&mut self, window: WindowId, group: Option<&Value>)
        -> Result<Vec<Row>, Abort>;
    /// Returns the time of the transaction's place in the one order, in microseconds since 1970 or
    /// in the unit of an int time column.
    fn time_us(&self) -> i64;
    /// Returns the clock of the cut, in microseconds since 1970. Every run of the transaction sees
    /// the same clock.
    fn now_us(&self) -> i64;
    /// Returns the transaction's next random number: a hash of its event's source and row, the path
    /// from there, and the count. Every run of the transaction gets the same numbers. They are not
    /// for secrets: anyone who knows the event can compute them.
    fn random(&mut self) -> u128;
    /// Whether a deadline may end the transaction's function ([`AbortKind::Overdue`]).
    fn has_deadline(&self) -> bool {
        true
    }
    /// Returns the external answer to a question, at most one mebibyte. `ask` gets it from outside.
    /// The engine logs the answer. A re-run that asks the same question at the same count gets the
    /// logged answer without asking. The epoch waits for the answer. Effects of `ask` on the
    /// outside may happen twice.
    fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Arc<[u8]>, Abort>;
}

/// A handler that finds its accesses by running. It must depend only on the event and on what it
/// reads through `tx`. The engine compares re-runs and reports a handler that does not.
pub trait Opaque: Send + Sync {
    /// Runs one transaction.
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort>;

    /// Whether a call may abort because it takes too long.
    fn may_be_overdue(&self) -> bool {
        false
    }

    /// Whether calls can't run in parallel because their interpreter has a global lock. More
    /// threads gain nothing then.
    fn has_one_lock(&self) -> bool {
        false
    }

    /// Runs one transaction of a procedure on one batch per input stream, in the order in which it
    /// names the streams. The default takes the events one by one, stream after stream.
    fn call_batch(&self, batches: &[EventBatch], tx: &mut dyn Tx) -> Result<(), Abort> {
        batches.iter().flat_map(|batch| &batch.events).try_for_each(|event| self.call(event, tx))
    }
}

/// A native handler: rows with keys from the event, and a closure over their words. In every table
/// and stream that it touches, each column is one word and never null. So the closure computes on
/// integers and floats without conversion.
#[derive(Clone)]
pub struct Native {
    /// The expressions of the keys: event columns and constants only.
    pub exprs: Block,
    /// The rows, by the closure's row numbers.
    pub rows: Vec<RowRef>,
    /// The streams it may emit into, by the closure's numbers.
    pub emits: Vec<StreamId>,
    /// The columns that it may set, by row. `None` allows all columns of all rows.
    pub sets: Option<Vec<Vec<usize>>>,
    /// The closure.
    pub(crate) body: Arc<dyn NativeBody>,
}

impl Native {
    /// Whether the closure may set any column of this row.
    pub(crate) fn writes(&self, row: usize) -> bool {
        self.sets.as_ref().is_none_or(|sets| !sets[row].is_empty())
    }

    /// Whether the closure may set this column of this row.
    pub(crate) fn may_set(&self, row: usize, column: usize) -> bool {
        self.sets.as_ref().is_none_or(|sets| sets[row].contains(&column))
    }
}

/// The closure of a native handler.
///
/// It is a trait of its own and not `Fn`, so that the executor's loop is compiled together with
/// each closure. Setting a column then takes a few inlined instructions.
pub(crate) trait NativeBody: Send + Sync {
    /// Runs the closure on rows.
    ///
    /// # Safety
    /// The same conditions as for [`run_native`].
    unsafe fn run(&self, turns: &mut Turns<'_>, lane: &mut Lane<'_>, code: &NativeCode) -> End;
}

/// A closure on `N` rows.
pub(crate) struct OnRows<F, const N: usize>(pub(crate) F);

impl<F, const N: usize> NativeBody for OnRows<F, N>
where
    F: Fn(&mut NativeTx<'_>) -> Result<(), &'static str> + Send + Sync,
{
    unsafe fn run(&self, turns: &mut Turns<'_>, lane: &mut Lane<'_>, code: &NativeCode) -> End {
        // SAFETY: the caller upholds the conditions of `run_native`.
        unsafe { run_native::<N>(turns, lane, code, &self.0) }
    }
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Native").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// Returns a value as part of a key: -0.0 becomes 0.0, and null aborts.
pub fn key_value(value: Value, table: &tidemill_core::TableSpec) -> Result<Value, Abort> {
    match value {
        Value::Null => Err(super::reasons::null_key(table)),
        Value::Float(0.0) => Ok(Value::Float(0.0)),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_line_goes_with_a_fault_and_nobody_is_told_it() {
        let fault = Abort::failed("KeyError: 'x'", Some("app.py:7"));
        assert!(fault.is_fault());
        assert_eq!(fault.parts(), ("KeyError: 'x'", Some("app.py:7")));
        assert_eq!(fault.public_reason(), "fault: KeyError: 'x'");
        assert_eq!(fault.to_string(), "KeyError: 'x' (app.py:7)");
        let panic = Abort::failed("it panicked", None);
        assert_eq!(
            (panic.parts(), &*panic.public_reason()),
            (("it panicked", None), "fault: it panicked")
        );
        let refused = Abort::refused("fault: so they say");
        assert!(!refused.is_fault());
        assert_eq!((refused.parts().1, &*refused.public_reason()), (None, "fault: so they say"));
    }
}
