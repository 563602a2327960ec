//! Handlers: what one transaction does.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Row, StreamId, TableId, Value};

use super::answers::Ask;
use super::expr::{Block, ExprId};
use super::ints;
use super::owned::WindowId;
use super::window::{Aggregate, Window};
use crate::execute::{run_native, End, Lane, NativeCode, NativeTx, Turns};

/// A variable of a declared transaction, by number: set by one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VarId(pub u16);

impl VarId {
    /// As an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A row that a declared transaction mentions, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RowId(pub u16);

impl RowId {
    /// As an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A handler: each event of `input` becomes one transaction; or, of a *procedure*, each batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handler {
    /// Its name, unique among the handlers.
    pub name: Arc<str>,
    /// The stream whose events it takes.
    pub input: StreamId,
    /// How many of them are one transaction.
    #[serde(default, skip_serializing_if = "Takes::is_each")]
    pub takes: Takes,
    /// The other streams that a procedure takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Input>,
    /// The streams that an opaque function may emit into, beside its output, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emits: Option<Vec<StreamId>>,
    /// What it does.
    pub body: Body,
    /// The stream of what it returns, if it returns anything.
    #[serde(default)]
    pub output: Option<StreamId>,
    /// The stream of its aborted events.
    pub aborted: StreamId,
    /// Why it takes the path it takes, for `inspect`: "traced", or what could not be.
    #[serde(default)]
    pub why: String,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

/// How many events are one transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Takes {
    /// Each is one, and what it sets off comes before the next.
    #[default]
    Each,
    /// All of one round are one: then the handler is a procedure. See [`rounds`](super::rounds).
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
    /// Where its events go when the procedure aborts.
    pub aborted: StreamId,
}

/// Events of one stream that a procedure takes at once, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct EventBatch {
    /// The stream.
    pub stream: StreamId,
    /// The events; none where only other streams had some.
    pub events: Vec<Row>,
}

impl Handler {
    /// The streams that it takes, in the order of their declaration, and where their events go when
    /// it aborts.
    pub fn inputs(&self) -> impl Iterator<Item = Input> + '_ {
        let first = Input { stream: self.input, aborted: self.aborted };
        [first].into_iter().chain(self.more.iter().copied())
    }

    /// Whether it is a procedure.
    pub fn is_procedure(&self) -> bool {
        self.takes == Takes::Batch
    }
}

/// What a handler does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Operations known before it runs.
    Declared(Declared),
    /// Rows known before it runs and a closure: index into [`super::Program::natives`].
    Native(usize),
    /// A function that finds its accesses by running: index into [`super::Program::opaques`].
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
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// A row by table and key. Two of them may turn out to be one row: equal keys are one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowRef {
    /// The table.
    pub table: TableId,
    /// One expression for each key column; they use only variables set before the row's first step.
    pub key: Vec<ExprId>,
    /// The user's line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
}

/// One step of a declared transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What it does.
    pub op: Op,
    /// Only when this is true. Expressions of a step that does not happen are not evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<ExprId>,
    /// The user's line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
}

/// What a step does. Operations act in program order and see the transaction's own writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Sets a variable to a column of a row; of a missing row, to the column's default or null.
    Read {
        /// The row.
        row: RowId,
        /// The column.
        column: u16,
        /// The variable.
        var: VarId,
    },
    /// Sets a variable to whether the row is there.
    Exists {
        /// The row.
        row: RowId,
        /// The variable.
        var: VarId,
    },
    /// Sets a variable to what a window over the row's versions comes to.
    Window {
        /// The row.
        row: RowId,
        /// Which versions.
        window: Window,
        /// The column of theirs.
        column: u16,
        /// What is made of it.
        aggregate: Aggregate,
        /// The variable.
        var: VarId,
    },
    /// Sets a variable to what the rows of a range of keys come to, in key order.
    Range {
        /// The table.
        table: TableId,
        /// Leading key columns of the first key; from the table's first row when empty.
        from: Vec<ExprId>,
        /// Leading key columns of the first key behind the range; to its last row when empty.
        to: Vec<ExprId>,
        /// The rows' column.
        column: u16,
        /// What is made of it.
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
    /// Sets one column; a missing row is made with its defaults first.
    Set {
        /// The row.
        row: RowId,
        /// The column; not one of the key.
        column: u16,
        /// The value.
        value: ExprId,
    },
    /// Makes a row; aborts when it is there already.
    Insert {
        /// The row.
        row: RowId,
        /// Columns outside the key and their values; the others get their defaults.
        values: Vec<(u16, ExprId)>,
    },
    /// Sets columns of a row; aborts when it is missing.
    Update {
        /// The row.
        row: RowId,
        /// Columns outside the key and their values; the others stay.
        values: Vec<(u16, ExprId)>,
    },
    /// Makes a row or replaces it whole.
    Upsert {
        /// The row.
        row: RowId,
        /// Columns outside the key and their values; the others get their defaults.
        values: Vec<(u16, ExprId)>,
    },
    /// Removes a row; nothing happens when it is missing.
    Delete {
        /// The row.
        row: RowId,
    },
    /// Emits an event.
    Emit {
        /// The stream.
        stream: StreamId,
        /// One for each of its columns.
        values: Vec<ExprId>,
    },
}

impl Op {
    /// The row that the operation is about.
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

    /// The variable that the operation sets.
    pub fn var(&self) -> Option<VarId> {
        match self {
            Op::Read { var, .. }
            | Op::Exists { var, .. }
            | Op::Window { var, .. }
            | Op::Range { var, .. } => Some(*var),
            _ => None,
        }
    }

    /// The table whose rows it reads by a range of keys.
    pub fn range(&self) -> Option<TableId> {
        match self {
            Op::Range { table, .. } => Some(*table),
            _ => None,
        }
    }

    /// Whether it changes its row.
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

/// Why a transaction aborted: an outcome, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Who says so.
    pub kind: AbortKind,
    /// The reason, as the abort event has it.
    pub reason: String,
}

/// Who said that a transaction aborts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortKind {
    /// The program: a `require`, an insert over a row, `tm.Abort`.
    Refused,
    /// A rule of values: overflow, null, division by zero.
    Fault,
    /// A *fault*: an exception that an opaque function did not mean to raise, a panic. See
    /// [`Abort::failed`].
    Raised,
    /// Somebody with a clock: a function took too long. No function of the event, so it is recorded
    /// before anything leaves, and a replay is [told](crate::execute::Executor::obey).
    Overdue,
}

impl Abort {
    /// The program refused.
    pub fn refused(reason: impl Into<String>) -> Abort {
        Abort { kind: AbortKind::Refused, reason: reason.into() }
    }

    /// A function has failed: what it raised, and the user's line, if that is known. The line is for
    /// whoever mends the function: no event and no client is told.
    pub fn failed(what: impl Into<String>, at: Option<&str>) -> Abort {
        let mut reason = what.into();
        if let Some(at) = at {
            reason.push(AT);
            reason.push_str(at);
        }
        Abort { kind: AbortKind::Raised, reason }
    }

    /// Whether a function has failed, instead of somebody refusing.
    pub fn is_fault(&self) -> bool {
        self.kind == AbortKind::Raised
    }

    /// What a function that has failed says of that, and the user's line.
    pub fn parts(&self) -> (&str, Option<&str>) {
        match self.reason.rsplit_once(AT) {
            Some((what, at)) if self.is_fault() => (what, Some(at)),
            _ => (&self.reason, None),
        }
    }

    /// The reason as everybody may be told it: marked where it is a fault, and without the user's line.
    pub fn told(&self) -> Cow<'_, str> {
        match self.is_fault() {
            true => format!("{FAULT}{}", self.parts().0).into(),
            false => (&*self.reason).into(),
        }
    }
}

/// What the reason of a fault begins with, as everybody is told it.
pub const FAULT: &str = "fault: ";

/// What stands between what a function raised and the user's line: no text has it.
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

/// So many operations of functions may be in one transaction: reads, writes, events, and rows of a
/// range. One that comes to more aborts; without a bound it might never end.
pub const OPERATIONS_MAX: usize = 1_000_000;

/// What an opaque function may do inside its transaction. It sees its own writes.
pub trait Tx {
    /// The row with this key (one value for each key column), or `None` when it is missing.
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort>;
    /// Reads the row with this key, an integer, into `row`, which has a place for each column; `false` when
    /// it is missing. Aborts when the row has another number of columns, or one that is no integer.
    fn get_ints(&mut self, table: TableId, key: i64, row: &mut [i64]) -> Result<bool, Abort> {
        ints::get(self, table, key, row)
    }
    /// What a window over the versions of the row with this key comes to; aborts when the table's
    /// history does not hold it, or the column has no such aggregate.
    fn window(
        &mut self,
        table: TableId,
        key: &[Value],
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort>;
    /// The first `limit` rows, in key order, whose keys are not before `from` and are before `to`,
    /// each given by leading key columns; without bound when empty. Aborts when the table is not
    /// ordered.
    fn scan(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        limit: usize,
    ) -> Result<Vec<Row>, Abort>;
    /// The first `limit` rows, in key order, that have these values in the leading columns of their
    /// keys: so a row of an index is found, or the rows of a prefix. Aborts when the table is not
    /// ordered.
    fn find(&mut self, table: TableId, leading: &[Value], limit: usize) -> Result<Vec<Row>, Abort>;
    /// Makes or replaces a whole row; aborts when a value does not fit its column.
    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Abort>;
    /// As [`Tx::put`], of integers.
    fn put_ints(&mut self, table: TableId, row: &[i64]) -> Result<(), Abort> {
        ints::put(self, table, row)
    }
    /// Removes a row; nothing happens when it is missing.
    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort>;
    /// The row with this key is another one from now on, for the function that holds it; it is written later. So
    /// triggers come in the order of the function's writes.
    fn will_write(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        let _ = (table, key);
        Ok(())
    }
    /// Emits an event with a value for each column; aborts when one does not fit.
    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Abort>;
    /// As [`Tx::emit`], of integers.
    fn emit_ints(&mut self, stream: StreamId, row: &[i64]) -> Result<(), Abort> {
        ints::emit(self, stream, row)
    }
    /// Puts a row into a window that belongs to the handler, which may slide it once or, by time,
    /// several times; aborts when a value does not fit its column.
    fn window_insert(&mut self, window: WindowId, row: &[Value]) -> Result<(), Abort>;
    /// Slides a window by time as far as the transaction's time comes.
    fn window_advance(&mut self, window: WindowId) -> Result<(), Abort>;
    /// The active rows of a window, in the order in which they came.
    fn window_rows(&mut self, window: WindowId) -> Result<Vec<Row>, Abort>;
    /// The groups of a window's active rows, in their order, or the one that is given, of which no row
    /// may be active: for each the group (0 where there are none), the number of rows, and what its
    /// aggregates come to.
    fn window_groups(&mut self, window: WindowId, group: Option<&Value>)
        -> Result<Vec<Row>, Abort>;
    /// The time of the transaction's place in the one order, in microseconds since 1970 (or in the
    /// unit of an int time column).
    fn time_us(&self) -> i64;
    /// The clock of the cut, in microseconds since 1970: the same whenever the transaction runs.
    fn now_us(&self) -> i64;
    /// The next random number of the transaction: a hash of its event's source and row, the path from
    /// there and the count, so the same whenever it runs. Not for secrets: whoever knows the event knows
    /// the number.
    fn random(&mut self) -> u128;
    /// Whether a clock may end its function ([`AbortKind::Overdue`]).
    fn has_deadline(&self) -> bool {
        true
    }
    /// What outside says to a question, which `ask` asks: at most a mebibyte. The answer is logged, and
    /// told again, without asking, whenever the transaction asks the same as its so-many-th question. The
    /// epoch waits for it, and what it changes outside may be done again.
    fn lookup(&mut self, question: &[u8], ask: &Ask) -> Result<Arc<[u8]>, Abort>;
}

/// A handler that finds its accesses by running. It must be a function of the event and of what it
/// reads through `tx`; the engine compares re-runs and reports one that is not.
pub trait Opaque: Send + Sync {
    /// Runs one transaction.
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort>;

    /// Whether a call may abort because it takes too long.
    fn may_be_overdue(&self) -> bool {
        false
    }

    /// Whether calls can't run beside one another, because an interpreter runs them that has one lock: then
    /// nothing is won by more threads.
    fn has_one_lock(&self) -> bool {
        false
    }

    /// Runs one transaction of a procedure, on a batch for each stream that it takes, in the order in
    /// which it names them. What is not written for it takes the events of one stream one by one.
    fn call_batch(&self, batches: &[EventBatch], tx: &mut dyn Tx) -> Result<(), Abort> {
        batches.iter().flat_map(|batch| &batch.events).try_for_each(|event| self.call(event, tx))
    }
}

/// A native handler: rows with keys from the event, and a closure over their words. Every table
/// and stream it touches has only columns of one word that are not null, so the closure computes
/// on integers and floats without a conversion.
#[derive(Clone)]
pub struct Native {
    /// The expressions of the keys; event columns and constants only.
    pub exprs: Block,
    /// The rows, by the closure's row numbers.
    pub rows: Vec<RowRef>,
    /// The streams it may emit to, by the closure's numbers.
    pub emits: Vec<StreamId>,
    /// By row the columns that it may set, where that was said; all of all rows otherwise.
    pub sets: Option<Vec<Vec<usize>>>,
    /// The closure.
    pub(crate) body: Arc<dyn NativeBody>,
}

impl Native {
    /// Whether it may set a column of this row.
    pub(crate) fn writes(&self, row: usize) -> bool {
        self.sets.as_ref().is_none_or(|sets| !sets[row].is_empty())
    }

    /// Whether it may set this column of this row.
    pub(crate) fn may_set(&self, row: usize, column: usize) -> bool {
        self.sets.as_ref().is_none_or(|sets| sets[row].contains(&column))
    }
}

/// The closure of a native handler.
///
/// It is a trait of its own, and not `Fn`, so that the executor's loop is compiled together with
/// each closure: setting a column is then a few instructions in its midst.
pub(crate) trait NativeBody: Send + Sync {
    /// Runs it on rows.
    ///
    /// # Safety
    /// As of [`run_native`].
    unsafe fn run(&self, turns: &mut Turns<'_>, lane: &mut Lane<'_>, code: &NativeCode) -> End;
}

/// A closure on `N` rows.
pub(crate) struct OnRows<F, const N: usize>(pub(crate) F);

impl<F, const N: usize> NativeBody for OnRows<F, N>
where
    F: Fn(&mut NativeTx<'_>) -> Result<(), &'static str> + Send + Sync,
{
    unsafe fn run(&self, turns: &mut Turns<'_>, lane: &mut Lane<'_>, code: &NativeCode) -> End {
        // SAFETY: as the caller says.
        unsafe { run_native::<N>(turns, lane, code, &self.0) }
    }
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Native").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// The reasons that the engine itself gives; one text each, whatever path a transaction takes.
pub(crate) mod reasons {
    use tidemill_core::{TableSpec, Value};

    use super::{Abort, AbortKind};

    fn row(table: &TableSpec, key: &[Value]) -> String {
        let key: Vec<String> = key.iter().map(ToString::to_string).collect();
        format!("{}[{}]", table.name, key.join(", "))
    }

    pub(crate) fn exists(table: &TableSpec, key: &[Value]) -> Abort {
        Abort::refused(format!("{} exists already", row(table, key)))
    }

    pub(crate) fn missing(table: &TableSpec, key: &[Value]) -> Abort {
        Abort::refused(format!("{} is missing", row(table, key)))
    }

    pub(crate) fn no_value(table: &TableSpec, key: &[Value], column: usize) -> Abort {
        let column = &table.schema.columns[column].name;
        let reason = format!("{} has no value for column '{column}'", row(table, key));
        Abort { kind: AbortKind::Fault, reason }
    }

    /// What a function says that panics.
    pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> Abort {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.map_or_else(String::new, |text| format!(": {text}"));
        Abort { kind: AbortKind::Raised, reason: format!("the function panicked{text}") }
    }

    /// What the program's check would have refused, had it known.
    pub(crate) fn refused(error: &tidemill_core::Error) -> Abort {
        Abort { kind: AbortKind::Fault, reason: error.what.clone() }
    }

    /// A table that the engine keeps.
    pub(crate) fn is_kept(table: &TableSpec) -> Abort {
        let reason = format!("table {} is kept by the engine: programs can't write it", table.name);
        Abort { kind: AbortKind::Fault, reason }
    }

    /// Somebody else's rows of a window.
    pub(crate) fn is_hidden(table: &TableSpec) -> Abort {
        let reason = format!("table {} is a window's, which only its owner sees", table.name);
        Abort { kind: AbortKind::Fault, reason }
    }

    pub(crate) fn too_deep(trigger: &str) -> Abort {
        Abort::refused(format!(
            "triggers set each other off more than {} deep, {trigger} among them",
            super::super::hooks::DEPTH_MAX
        ))
    }

    pub(crate) fn is_sliding(window: &str) -> Abort {
        let reason =
            format!("window {window} takes a row or slides: its triggers can't put rows into it");
        Abort { kind: AbortKind::Fault, reason }
    }

    pub(crate) fn not_ordered(table: &TableSpec) -> Abort {
        let reason = format!("table {} is not ordered: it has no ranges", table.name);
        Abort { kind: AbortKind::Fault, reason }
    }

    pub(crate) fn null_key(table: &TableSpec) -> Abort {
        Abort { kind: AbortKind::Fault, reason: format!("null in the key of {}", table.name) }
    }

    /// Declared handlers are checked when the program is built; opaque ones only show what they
    /// emit when they run, so a cascade longer than the chain of all handlers is a cycle.
    pub(crate) fn endless() -> Abort {
        Abort::refused("the outputs of opaque handlers feed each other without end")
    }

    /// Counts operations of a function; aborts when there are too many.
    pub(crate) fn count(operations: &mut usize, more: usize) -> Result<(), Abort> {
        *operations = operations.saturating_add(more);
        match *operations > super::OPERATIONS_MAX {
            true => Err(Abort::refused(format!(
                "a transaction has at most {} operations",
                super::OPERATIONS_MAX
            ))),
            false => Ok(()),
        }
    }

    pub(crate) fn long_answer() -> Abort {
        let most = super::super::answers::ANSWER_MAX;
        Abort::refused(format!("an answer from outside has more than {most} bytes"))
    }

    pub(crate) fn wrong_shape(what: &str, columns: usize, given: usize) -> Abort {
        let reason = format!("{what} has {columns} columns, but {given} values were given");
        Abort { kind: AbortKind::Fault, reason }
    }

    pub(crate) fn not_emittable(stream: &str) -> Abort {
        let reason = format!("stream {stream} can't be emitted into from here");
        Abort { kind: AbortKind::Fault, reason }
    }
}

/// A value as part of a key: -0.0 is 0.0; a null has no place there.
pub(crate) fn key_value(value: Value, table: &tidemill_core::TableSpec) -> Result<Value, Abort> {
    match value {
        Value::Null => Err(reasons::null_key(table)),
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
        assert_eq!(fault.told(), "fault: KeyError: 'x'");
        assert_eq!(fault.to_string(), "KeyError: 'x' (app.py:7)");
        let panic = Abort::failed("it panicked", None);
        assert_eq!((panic.parts(), &*panic.told()), (("it panicked", None), "fault: it panicked"));
        let refused = Abort::refused("fault: so they say");
        assert!(!refused.is_fault());
        assert_eq!((refused.parts().1, &*refused.told()), (None, "fault: so they say"));
    }
}
