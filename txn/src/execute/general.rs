//! The general path: any transaction, over values. It works on an overlay of the rows it touched,
//! so an abort leaves nothing to undo, and one commit applies what has changed.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;

use tidemill_core::{encode, rules, Keeps, Key, Row, StreamId, TableId, Value};
use tidemill_table::{Seq, Table};

use super::window::{made_of, Seen};
use crate::program::owned::{self, Frame, Held, Slid};
use crate::program::{
    hooks, key_value, reasons, Abort, AbortKind, Aggregate, Block, Declared, Expr, ExprId, Moment,
    Op, OwnedWindow, Program, RowId, Tx, VarId, Window, WindowId, WindowRead,
};

/// A row that the transaction has touched.
#[derive(Debug, PartialEq)]
struct Touched {
    table: TableId,
    key: Vec<Value>,
    row: Option<Vec<Value>>,
    written: bool,
}

/// A row that can't be told yet: a run that has asked for it counts for nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsettled;

impl From<Unsettled> for Abort {
    fn from(_: Unsettled) -> Abort {
        Abort { kind: AbortKind::Raised, reason: "a row is not settled yet".into() }
    }
}

/// A table that has all versions of a row.
pub(crate) enum Holder<'a> {
    /// Which has others, too.
    Whole(&'a Table),
    /// Which was made for this row.
    Only(Box<Table>),
}

impl Holder<'_> {
    fn table(&self) -> &Table {
        match self {
            Holder::Whole(table) => table,
            Holder::Only(table) => table,
        }
    }

    /// Writes a version behind the others, beside a table that has more than this row.
    pub(crate) fn put(&mut self, key: &[Value], row: Option<&[Value]>, seq: Seq, time_us: i64) {
        if let Holder::Whole(table) = self {
            *self = Holder::Only(Box::new(table.only(key)));
        }
        if let Holder::Only(table) = self {
            table.put_at(key, row, seq, time_us);
        }
    }
}

/// Keys in their order.
pub(crate) type Keys<'a> = Box<dyn Iterator<Item = Cow<'a, Key>> + 'a>;

/// Where transactions find rows.
pub(crate) trait Rows {
    /// The row with this key, if it is there.
    fn row(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled>;

    /// The same, by the values of the key.
    fn row_by(&self, table: TableId, key: &[Value]) -> Result<Option<Row>, Unsettled> {
        self.row(table, &Key::of(key))
    }

    /// The versions of a row that was asked for before.
    fn holder(&self, table: TableId, key: &Key, values: &[Value]) -> Result<Holder<'_>, Unsettled>;

    /// The keys of a range that have rows, and maybe more: up to the end when `to` is empty.
    fn keys<'a>(&'a self, table: TableId, from: &'a Key, to: &'a Key) -> Keys<'a>;

    /// The row of one of these keys, if it is there.
    fn row_in_range(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        self.row(table, key)
    }

    /// Whether it was asked for a row that it could not tell.
    fn is_unsettled(&self) -> bool {
        false
    }
}

impl Rows for &[Table] {
    fn row_by(&self, table: TableId, key: &[Value]) -> Result<Option<Row>, Unsettled> {
        Ok(self[table.index()].get(key))
    }

    fn row(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        Ok(self[table.index()].get_by_key(key))
    }

    fn holder(&self, table: TableId, _: &Key, _: &[Value]) -> Result<Holder<'_>, Unsettled> {
        Ok(Holder::Whole(&self[table.index()]))
    }

    fn keys<'a>(&'a self, table: TableId, from: &'a Key, to: &'a Key) -> Keys<'a> {
        Box::new(self[table.index()].keys(from, to).map(Cow::Borrowed))
    }
}

/// So many rows are faster looked through than hashed.
const ROWS_FEW: usize = 16;

/// One transaction at work.
pub(crate) struct General<'a> {
    program: &'a Program,
    tables: &'a dyn Rows,
    /// Whose it is.
    handler: usize,
    /// The trigger that runs, of those of the program, and how deep it is.
    trigger: Option<usize>,
    depth: usize,
    /// When it is.
    moment: &'a Moment,
    rows: Vec<Touched>,
    /// Where each is, once there are more than [`ROWS_FEW`].
    by_key: HashMap<(TableId, Key), usize, foldhash::fast::FixedState>,
    /// Rows that came to be by setting columns, in order: in the end they must have them all.
    made: Vec<usize>,
    emitted: Vec<(StreamId, Vec<Value>)>,
    /// Of functions, until now.
    operations: usize,
    /// Random numbers drawn until now.
    drawn: u64,
    /// Rows that the function that runs has written, with what they were before, of those with which
    /// something goes along.
    changed: Vec<(usize, Option<Vec<Value>>)>,
    /// The windows that are sliding.
    sliding: Vec<WindowId>,
    /// What can't be mended by not looking: the transaction aborts.
    failed: Option<Abort>,
}

/// What a transaction comes to when it commits.
#[derive(Debug, PartialEq)]
pub(crate) struct Effects {
    rows: Vec<Touched>,
    pub(crate) emitted: Vec<(StreamId, Vec<Value>)>,
}

/// A row that a transaction writes, by its number among those that it has touched.
pub(crate) struct Written<'a> {
    pub(crate) number: usize,
    pub(crate) table: TableId,
    pub(crate) key: &'a [Value],
}

impl Effects {
    /// Writes the new versions.
    pub(crate) fn apply(&self, tables: &mut [Table], seq: Seq, time_us: i64) {
        for touched in self.rows.iter().filter(|t| t.written) {
            let (key, row) = (&touched.key, touched.row.as_deref());
            tables[touched.table.index()].put_at(key, row, seq, time_us);
        }
    }

    /// The rows that are written, and what they are then.
    pub(crate) fn written(&self) -> impl Iterator<Item = Written<'_>> + '_ {
        let written = self.rows.iter().enumerate().filter(|(_, t)| t.written);
        written.map(|(number, t)| Written { number, table: t.table, key: &t.key })
    }

    /// The rows that it has touched.
    pub(crate) fn row(&self, number: usize) -> (&[Value], Option<&[Value]>) {
        (&self.rows[number].key, self.rows[number].row.as_deref())
    }

    /// The hash of what transaction number `seq` writes: of each row with its key, summed, because the
    /// order in which rows were touched does not matter.
    pub(crate) fn written_hash(&self, seq: Seq) -> u64 {
        let (mut sum, mut bytes) = (0u64, Vec::new());
        for touched in self.rows.iter().filter(|t| t.written) {
            bytes.clear();
            bytes.extend_from_slice(&seq.to_le_bytes());
            bytes.extend_from_slice(&touched.table.0.to_le_bytes());
            touched.key.iter().for_each(|value| encode::value(value, &mut bytes));
            bytes.push(u8::from(touched.row.is_some()));
            touched.row.iter().flatten().for_each(|value| encode::value(value, &mut bytes));
            sum = sum.wrapping_add(encode::hash128(&bytes) as u64);
        }
        sum
    }

    /// Whether both write and emit the same. Which rows were only read does not matter.
    pub(crate) fn same_outcome(&self, other: &Effects) -> bool {
        let written = |e: &Effects| {
            let mut written: Vec<(TableId, Key, Option<Vec<Value>>)> = e
                .rows
                .iter()
                .filter(|t| t.written)
                .map(|t| (t.table, Key::of(&t.key), t.row.clone()))
                .collect();
            written.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
            written
        };
        self.emitted == other.emitted && written(self) == written(other)
    }
}

/// The expressions of one transaction at work: each node is computed at most once, which is sound
/// because variables are set once, before they are used.
struct Memo<'a> {
    exprs: &'a Block,
    event: &'a [Value],
    vars: Vec<Value>,
    known: Vec<Option<Value>>,
}

impl<'a> Memo<'a> {
    fn new(exprs: &'a Block, event: &'a [Value]) -> Memo<'a> {
        Memo { exprs, event, vars: Vec::new(), known: vec![None; exprs.nodes.len()] }
    }

    fn set(&mut self, var: VarId, value: Value) {
        if self.vars.len() <= var.index() {
            self.vars.resize(var.index() + 1, Value::Null);
        }
        self.vars[var.index()] = value;
    }

    fn eval(&mut self, id: ExprId) -> Result<Value, rules::Fault> {
        if let Some(value) = &self.known[id.index()] {
            return Ok(value.clone());
        }
        let exprs = self.exprs;
        let value = match exprs.expr(id) {
            Expr::Const(value) => return Ok(value.clone()),
            Expr::FloatBits(bits) => return Ok(Value::Float(f64::from_bits(*bits))),
            Expr::Column(column) => return Ok(self.event[usize::from(*column)].clone()),
            Expr::Var(var) => {
                return Ok(self.vars.get(var.index()).cloned().unwrap_or(Value::Null))
            }
            Expr::Unary(op, x) => rules::unary(op, &self.eval(*x)?)?,
            Expr::Binary(op, l, r) => rules::binary(*op, &self.eval(*l)?, &self.eval(*r)?)?,
            Expr::Where(c, a, b) => match self.eval(*c)? {
                Value::Bool(true) => self.eval(*a)?,
                Value::Bool(false) => self.eval(*b)?,
                _ => return Err(rules::Fault::NULL),
            },
            Expr::Coalesce(a, b) => match self.eval(*a)? {
                Value::Null => self.eval(*b)?,
                value => value,
            },
        };
        self.known[id.index()] = Some(value.clone());
        Ok(value)
    }
}

impl<'a> General<'a> {
    /// A transaction of a handler at a time.
    pub(crate) fn new(
        program: &'a Program,
        tables: &'a dyn Rows,
        handler: usize,
        moment: &'a Moment,
    ) -> General<'a> {
        let (rows, by_key) = (Vec::new(), HashMap::default());
        let (made, emitted) = (Vec::new(), Vec::new());
        General {
            program,
            tables,
            handler,
            trigger: None,
            depth: 0,
            moment,
            rows,
            by_key,
            made,
            emitted,
            operations: 0,
            drawn: 0,
            changed: Vec::new(),
            sliding: Vec::new(),
            failed: None,
        }
    }

    /// Goes on as a transaction of another handler, which sees what was written; gives what was emitted.
    pub(crate) fn go_on(&mut self, handler: usize) -> Vec<(StreamId, Vec<Value>)> {
        self.handler = handler;
        std::mem::take(&mut self.emitted)
    }

    pub(crate) fn effects(self) -> Effects {
        Effects { rows: self.rows, emitted: self.emitted }
    }

    /// The touched row with this key; equal keys are one row.
    fn touch(&mut self, table: TableId, key: Vec<Value>) -> Result<usize, Unsettled> {
        if let Some(at) = self.find_touched(table, &key) {
            return Ok(at);
        }
        // What can't be read yet leaves no trace.
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

    /// Runs a declared transaction.
    pub(crate) fn declared(&mut self, declared: &Declared, event: &[Value]) -> Result<(), Abort> {
        self.function(|tx| tx.steps(declared, event))
    }

    fn steps(&mut self, declared: &Declared, event: &[Value]) -> Result<(), Abort> {
        let program = self.program;
        let mut memo = Memo::new(&declared.exprs, event);
        // A row's key uses variables that are set before its first step, so it never changes.
        let mut places: Vec<Option<usize>> = vec![None; declared.rows.len()];
        for step in &declared.steps {
            if let Some(when) = step.when {
                if !truth(memo.eval(when)?)? {
                    continue;
                }
            }
            let at = match step.op.row() {
                None => None,
                Some(row) => Some(match places[row.index()] {
                    Some(at) => at,
                    None => {
                        let at = self.touch_row(declared, row, &mut memo)?;
                        places[row.index()] = Some(at);
                        at
                    }
                }),
            };
            match &step.op {
                Op::Require { cond, reason } => {
                    if !truth(memo.eval(*cond)?)? {
                        return Err(match memo.eval(*reason)? {
                            Value::Str(reason) => Abort::refused(&*reason),
                            _ => rules::Fault::NULL.into(),
                        });
                    }
                }
                Op::Window { window, column, aggregate, var, .. } => {
                    let at = at.expect("a window has a row");
                    memo.set(*var, self.over(at, window, *column, aggregate)?);
                }
                Op::Range { table, from, to, column, aggregate, var } => {
                    let mut bound = |ids: &[ExprId]| -> Result<Vec<Value>, rules::Fault> {
                        ids.iter().map(|id| memo.eval(*id)).collect()
                    };
                    let (from, to) = (bound(from)?, bound(to)?);
                    let rows = self.between(*table, &from, &to, usize::MAX)?;
                    let spec = &program.tables[table.index()];
                    let column = usize::from(*column);
                    memo.set(*var, made_of(rows.into_iter(), spec, column, aggregate)?);
                }
                Op::Emit { stream, values } => {
                    let columns = &program.streams[stream.index()].spec.schema.columns;
                    let row: Result<Vec<Value>, rules::Fault> = values
                        .iter()
                        .zip(columns)
                        .map(|(value, c)| rules::store(&memo.eval(*value)?, c))
                        .collect();
                    self.emit_checked(*stream, row?)?;
                }
                op => {
                    let at = at.expect("the other steps have a row");
                    let before = if op.writes() { self.note(at) } else { None };
                    let touched = &mut self.rows[at];
                    let spec = &program.tables[touched.table.index()];
                    let columns = &spec.schema.columns;
                    let mut assign = |row: &mut Vec<Value>, column: u16, value: ExprId| {
                        let column = usize::from(column);
                        row[column] = rules::store(&memo.eval(value)?, &columns[column])?;
                        Ok::<(), Abort>(())
                    };
                    match op {
                        Op::Read { column, var, .. } => {
                            let column = usize::from(*column);
                            let value = match &touched.row {
                                Some(row) => row[column].clone(),
                                None => spec.missing_row(&touched.key).swap_remove(column),
                            };
                            memo.set(*var, value);
                        }
                        Op::Exists { var, .. } => {
                            memo.set(*var, Value::Bool(touched.row.is_some()));
                        }
                        Op::Set { column, value, .. } => {
                            let key = &touched.key;
                            if touched.row.is_none() {
                                self.made.push(at);
                            }
                            let row = touched.row.get_or_insert_with(|| spec.missing_row(key));
                            assign(row, *column, *value)?;
                            touched.written = true;
                        }
                        // Values come before what is found, as the arguments of a call do.
                        Op::Insert { values, .. } | Op::Upsert { values, .. } => {
                            let mut row = spec.missing_row(&touched.key);
                            for (column, value) in values {
                                assign(&mut row, *column, *value)?;
                            }
                            if touched.row.is_some() && matches!(op, Op::Insert { .. }) {
                                return Err(reasons::exists(spec, &touched.key));
                            }
                            touched.row = Some(row);
                            touched.written = true;
                        }
                        Op::Update { values, .. } => {
                            let mut row = touched.row.take();
                            let mut scratch = spec.missing_row(&touched.key);
                            for (column, value) in values {
                                assign(row.as_mut().unwrap_or(&mut scratch), *column, *value)?;
                            }
                            if row.is_none() {
                                return Err(reasons::missing(spec, &touched.key));
                            }
                            touched.row = row;
                            touched.written = true;
                        }
                        Op::Delete { .. } => {
                            touched.row = None;
                            touched.written = true;
                        }
                        Op::Window { .. }
                        | Op::Range { .. }
                        | Op::Require { .. }
                        | Op::Emit { .. } => unreachable!("handled above"),
                    }
                    if let Some(before) = before {
                        self.reindex(at, before.as_deref())?;
                    }
                }
            }
        }
        self.check_made()
    }

    /// Rows that came to be by setting columns must have a value in each that needs one.
    fn check_made(&self) -> Result<(), Abort> {
        for touched in self.made.iter().map(|at| &self.rows[*at]) {
            let spec = &self.program.tables[touched.table.index()];
            let Some(row) = &touched.row else { continue };
            let lacking = |(c, v): (&tidemill_core::Column, &Value)| v.is_null() && !c.nullable;
            if let Some(column) = spec.schema.columns.iter().zip(row).position(lacking) {
                return Err(reasons::no_value(spec, &touched.key, column));
            }
        }
        Ok(())
    }

    fn touch_row(
        &mut self,
        declared: &Declared,
        row: RowId,
        memo: &mut Memo<'_>,
    ) -> Result<usize, Abort> {
        let row = &declared.rows[row.index()];
        let spec = &self.program.tables[row.table.index()];
        let key: Result<Vec<Value>, Abort> =
            row.key.iter().map(|id| key_value(memo.eval(*id)?, spec)).collect();
        Ok(self.touch(row.table, key?)?)
    }

    /// What a window over the versions of a touched row comes to.
    fn over(
        &self,
        at: usize,
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        let touched = &self.rows[at];
        let spec = &self.program.tables[touched.table.index()];
        let holder = self.tables.holder(touched.table, &Key::of(&touched.key), &touched.key)?;
        let seen = Seen {
            versions: holder.table().versions(&touched.key),
            own: touched.row.as_deref().filter(|_| touched.written),
            time_us: self.moment.time_us(),
        };
        seen.made_of(seen.window(window, spec.history), spec, column, aggregate)
    }

    /// The same of a row of which a closure has a copy: its columns as the closure has written them.
    pub(crate) fn over_copy(
        &self,
        table: TableId,
        key: &[Value],
        own: Option<&[Value]>,
        read: &WindowRead,
    ) -> Result<Value, Abort> {
        let spec = &self.program.tables[table.index()];
        let holder = self.tables.holder(table, &Key::of(key), key)?;
        let versions = holder.table().versions(key);
        let seen = Seen { versions, own, time_us: self.moment.time_us() };
        let numbers = seen.window(&read.window, spec.history);
        seen.made_of(numbers, spec, read.column, &read.aggregate)
    }

    /// The first rows whose keys are in a range, in key order, with the transaction's own writes.
    fn between(
        &self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        limit: usize,
    ) -> Result<Vec<Row>, Abort> {
        let spec = &self.program.tables[table.index()];
        let bound = |bound: &[Value]| -> Result<Key, Abort> {
            let values: Result<Vec<Value>, Abort> =
                bound.iter().map(|value| key_value(value.clone(), spec)).collect();
            Ok(Key::of(&values?))
        };
        self.range(table, &bound(from)?, &bound(to)?, limit)
    }

    /// The same, with bounds as they are encoded.
    fn range(&self, table: TableId, from: &Key, to: &Key, limit: usize) -> Result<Vec<Row>, Abort> {
        // What the transaction has touched stands in for what the table has.
        let is_in = |key: &Key| key >= from && (to.0.is_empty() || key < to);
        let mut own: Vec<(Key, Option<&[Value]>)> = (self.rows.iter())
            .filter(|touched| touched.table == table)
            .map(|touched| (Key::of(&touched.key), touched.row.as_deref()))
            .filter(|(key, _)| is_in(key))
            .collect();
        own.sort_by(|a, b| a.0.cmp(&b.0));
        let mut keys = self.tables.keys(table, from, to).peekable();
        let mut own = own.into_iter().peekable();
        let mut rows = Vec::new();
        while rows.len() < limit {
            let order = match (keys.peek(), own.peek()) {
                (Some(held), Some((own, _))) => (**held).cmp(own),
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
            rows.extend(own.next().and_then(|(_, row)| row.map(Row::from)));
        }
        Ok(rows)
    }

    fn checked_bound(&self, table: TableId, bound: &[Value]) -> Result<Vec<Value>, Abort> {
        let spec = &self.program.tables[table.index()];
        if bound.len() > spec.key.len() {
            return Err(reasons::wrong_shape(&spec.name, spec.key.len(), bound.len()));
        }
        self.stored_key(table, bound)
    }

    fn checked_key(&self, table: TableId, key: &[Value]) -> Result<Vec<Value>, Abort> {
        let spec = &self.program.tables[table.index()];
        if key.len() != spec.key.len() {
            return Err(reasons::wrong_shape(&spec.name, spec.key.len(), key.len()));
        }
        self.stored_key(table, key)
    }

    /// Values as the leading key columns have them.
    fn stored_key(&self, table: TableId, key: &[Value]) -> Result<Vec<Value>, Abort> {
        let spec = &self.program.tables[table.index()];
        let columns = spec.key.iter().map(|c| &spec.schema.columns[*c]);
        let mut stored = Vec::with_capacity(key.len());
        for (value, column) in key.iter().zip(columns) {
            stored.push(rules::store(&key_value(value.clone(), spec)?, column)?);
        }
        Ok(stored)
    }
}

fn truth(value: Value) -> Result<bool, Abort> {
    match value {
        Value::Bool(b) => Ok(b),
        _ => Err(rules::Fault::NULL.into()),
    }
}

impl Tx for General<'_> {
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        reasons::count(&mut self.operations, 1)?;
        self.check_visible(table)?;
        let key = self.checked_key(table, key)?;
        let at = self.touch(table, key)?;
        Ok(self.rows[at].row.clone().map(Row::from))
    }

    fn window(
        &mut self,
        table: TableId,
        key: &[Value],
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        reasons::count(&mut self.operations, 1)?;
        let key = self.checked_key(table, key)?;
        let spec = &self.program.tables[table.index()];
        let checked = window.check(spec).and_then(|()| aggregate.result(spec, column));
        checked.map_err(|error| reasons::refused(&error))?;
        let at = self.touch(table, key)?;
        self.over(at, window, column, aggregate)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        limit: usize,
    ) -> Result<Vec<Row>, Abort> {
        reasons::count(&mut self.operations, 1)?;
        if !self.program.tables[table.index()].ordered {
            return Err(reasons::not_ordered(&self.program.tables[table.index()]));
        }
        self.check_visible(table)?;
        let (from, to) = (self.checked_bound(table, from)?, self.checked_bound(table, to)?);
        let rows = self.between(table, &from, &to, limit)?;
        reasons::count(&mut self.operations, rows.len())?;
        Ok(rows)
    }

    fn find(&mut self, table: TableId, leading: &[Value], limit: usize) -> Result<Vec<Row>, Abort> {
        reasons::count(&mut self.operations, 1)?;
        if !self.program.tables[table.index()].ordered {
            return Err(reasons::not_ordered(&self.program.tables[table.index()]));
        }
        self.check_visible(table)?;
        let from = Key::of(&self.checked_bound(table, leading)?);
        let rows = self.range(table, &from, &from.behind_all(), limit)?;
        reasons::count(&mut self.operations, rows.len())?;
        Ok(rows)
    }

    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Abort> {
        reasons::count(&mut self.operations, 1)?;
        let spec = &self.program.tables[table.index()];
        if row.len() != spec.schema.len() {
            return Err(reasons::wrong_shape(&spec.name, spec.schema.len(), row.len()));
        }
        let mut stored = Vec::with_capacity(row.len());
        for (value, column) in row.iter().zip(&spec.schema.columns) {
            stored.push(rules::store(value, column)?);
        }
        for column in &spec.key {
            stored[*column] = key_value(stored[*column].clone(), spec)?;
        }
        self.check_writable(table)?;
        let key = spec.key.iter().map(|c| stored[*c].clone()).collect();
        let at = self.touch(table, key)?;
        self.write(at, Some(stored))
    }

    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        reasons::count(&mut self.operations, 1)?;
        let key = self.checked_key(table, key)?;
        self.check_writable(table)?;
        let at = self.touch(table, key)?;
        self.write(at, None)
    }

    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Abort> {
        reasons::count(&mut self.operations, 1)?;
        let spec = &self.program.streams[stream.index()];
        if !self.program.may_emit(self.handler, self.trigger, stream) {
            return Err(reasons::not_emittable(&spec.spec.name));
        }
        let columns = &spec.spec.schema.columns;
        if row.len() != columns.len() {
            return Err(reasons::wrong_shape(&spec.spec.name, columns.len(), row.len()));
        }
        let stored: Result<Vec<Value>, rules::Fault> =
            row.iter().zip(columns).map(|(v, c)| rules::store(v, c)).collect();
        self.emit_checked(stream, stored?)
    }

    fn window_insert(&mut self, window: WindowId, row: &[Value]) -> Result<(), Abort> {
        let owned = self.owned(window)?;
        let row = owned::stored(owned, &self.program.tables[owned.groups.index()], row)?;
        self.slide(window, |frame, tx, time_us, slid| frame.insert(tx, &row, time_us, slid))
    }

    fn window_advance(&mut self, window: WindowId) -> Result<(), Abort> {
        self.owned(window)?;
        self.slide(window, |frame, tx, time_us, slid| frame.advance(tx, time_us, slid))
    }

    fn window_rows(&mut self, window: WindowId) -> Result<Vec<Row>, Abort> {
        let owned = self.owned(window)?;
        let frame = Frame::of(owned, self)?;
        reasons::count(&mut self.operations, frame.len())?;
        frame.rows(self)
    }

    fn window_groups(
        &mut self,
        window: WindowId,
        group: Option<&Value>,
    ) -> Result<Vec<Row>, Abort> {
        let owned = self.owned(window)?;
        let groups = owned::groups(owned, self, group)?;
        reasons::count(&mut self.operations, groups.len())?;
        Ok(groups)
    }

    fn time_us(&self) -> i64 {
        self.moment.time_us()
    }

    fn now_us(&self) -> i64 {
        self.moment.now_us
    }

    fn random(&mut self) -> u128 {
        self.drawn += 1;
        self.moment.random(self.program.seed, self.drawn - 1)
    }
}

impl Held for General<'_> {
    fn held(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        let at = self.touch(table, key.to_vec())?;
        Ok(self.rows[at].row.clone().map(Row::from))
    }

    fn hold(&mut self, table: TableId, row: Vec<Value>) -> Result<(), Abort> {
        let spec = &self.program.tables[table.index()];
        let key = spec.key.iter().map(|column| row[*column].clone()).collect();
        let at = self.touch(table, key)?;
        (self.rows[at].row, self.rows[at].written) = (Some(row), true);
        Ok(())
    }

    fn let_go(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        let at = self.touch(table, key.to_vec())?;
        (self.rows[at].row, self.rows[at].written) = (None, true);
        Ok(())
    }

    fn all(&mut self, table: TableId) -> Result<Vec<Row>, Abort> {
        self.between(table, &[], &[], usize::MAX)
    }
}

impl<'a> General<'a> {
    /// Emits an event whose values fit the stream's columns.
    pub(crate) fn emit_checked(&mut self, stream: StreamId, row: Vec<Value>) -> Result<(), Abort> {
        let triggers = &self.program.hooks().emitted[stream.index()];
        if triggers.is_empty() {
            self.emitted.push((stream, row));
            return Ok(());
        }
        self.emitted.push((stream, row.clone()));
        triggers.iter().try_for_each(|trigger| self.fire(*trigger, &row))
    }

    /// Runs a function, or what stands for one, and then the triggers on rows that it has written.
    pub(crate) fn function(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        let before = std::mem::take(&mut self.changed);
        let result = run(self).and_then(|()| self.fire_changed());
        self.changed = before;
        match &self.failed {
            Some(abort) => Err(abort.clone()),
            None => result,
        }
    }

    /// A row is about to be written: what it is now is kept for triggers, and given where there are
    /// indexes.
    fn note(&mut self, at: usize) -> Option<Option<Vec<Value>>> {
        let (hooks, Touched { table, row, .. }) = (self.program.hooks(), &self.rows[at]);
        let is_known = |(row, _): &(usize, _)| *row == at;
        if !hooks.written[table.index()].is_empty() && !self.changed.iter().any(is_known) {
            self.changed.push((at, row.clone()));
        }
        (!hooks.indexes[table.index()].is_empty()).then(|| row.clone())
    }

    /// A row becomes this, and its entries in indexes with it.
    fn write(&mut self, at: usize, row: Option<Vec<Value>>) -> Result<(), Abort> {
        let before = self.note(at);
        (self.rows[at].row, self.rows[at].written) = (row, true);
        before.map_or(Ok(()), |before| self.reindex(at, before.as_deref()))
    }

    /// The entries of a row that was another before.
    fn reindex(&mut self, at: usize, before: Option<&[Value]>) -> Result<(), Abort> {
        let program = self.program;
        for index in &program.hooks().indexes[self.rows[at].table.index()] {
            let entry = |row: Option<&[Value]>| row.and_then(|row| index.entry(program, row));
            let (before, after) = (entry(before), entry(self.rows[at].row.as_deref()));
            if before == after {
                continue;
            }
            if let Some(entry) = before {
                self.let_go(index.table, index.key(&entry))?;
            }
            let Some(entry) = after else { continue };
            if index.is_unique() && self.held(index.table, index.key(&entry))?.is_some() {
                let abort = index.is_taken(program, &entry);
                self.failed.get_or_insert(abort.clone());
                return Err(abort);
            }
            match index.is_unique() {
                true => self.hold(index.table, entry)?,
                // Its key holds the row's own, whose entry was another one: it can't be there.
                false => self.hold_absent(index.table, entry),
            }
        }
        Ok(())
    }

    /// Makes a row that is in the table only if this transaction has put it there.
    fn hold_absent(&mut self, table: TableId, row: Vec<Value>) {
        let key: Vec<Value> =
            self.program.tables[table.index()].key.iter().map(|c| row[*c].clone()).collect();
        let at = match self.find_touched(table, &key) {
            Some(at) => at,
            None => self.push_touched(Touched { table, key, row: None, written: false }),
        };
        (self.rows[at].row, self.rows[at].written) = (Some(row), true);
    }

    /// Sets off the triggers on rows that have been written.
    fn fire_changed(&mut self) -> Result<(), Abort> {
        let program = self.program;
        for (at, before) in std::mem::take(&mut self.changed) {
            for number in &program.hooks().written[self.rows[at].table.index()] {
                let on = program.triggers[*number].on;
                let after = self.rows[at].row.as_deref();
                if let Some(event) = hooks::change(on, before.as_deref(), after) {
                    self.fire(*number, &event)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a trigger.
    fn fire(&mut self, number: usize, event: &[Value]) -> Result<(), Abort> {
        let program = self.program;
        let trigger = &program.triggers[number];
        let outer = self.trigger.replace(number);
        self.depth += 1;
        let result = match self.depth > hooks::DEPTH_MAX {
            true => Err(reasons::too_deep(&trigger.name)),
            false => self.function(|tx| program.opaques[trigger.function].call(event, tx)),
        };
        self.depth -= 1;
        self.trigger = outer;
        if let Err(abort) = &result {
            self.failed.get_or_insert(abort.clone());
        }
        result
    }

    fn check_visible(&self, table: TableId) -> Result<(), Abort> {
        let spec = &self.program.tables[table.index()];
        match spec.keeps {
            Some(Keeps::Window) => Err(reasons::is_hidden(spec)),
            _ => Ok(()),
        }
    }

    fn check_writable(&self, table: TableId) -> Result<(), Abort> {
        let spec = &self.program.tables[table.index()];
        match spec.keeps {
            Some(_) => Err(reasons::is_kept(spec)),
            None => Ok(()),
        }
    }

    /// A window of the handler's own.
    fn owned(&mut self, window: WindowId) -> Result<&'a OwnedWindow, Abort> {
        reasons::count(&mut self.operations, 1)?;
        let owned = &self.program.windows[window.index()];
        match owned.owner.index() == self.handler {
            true => Ok(owned),
            false => Err(owned::not_owner(self.program, owned)),
        }
    }

    /// Does something to a window that may slide it, and sets off its triggers when it does.
    fn slide(
        &mut self,
        window: WindowId,
        run: impl FnOnce(&mut Frame<'_>, &mut Self, i64, &mut Slid<'_, Self>) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        let program = self.program;
        let owned = &program.windows[window.index()];
        if self.sliding.contains(&window) {
            return Err(reasons::is_sliding(&owned.name));
        }
        self.sliding.push(window);
        let mut slid = |tx: &mut Self, event: Vec<Value>| -> Result<(), Abort> {
            let triggers = &program.hooks().slid[window.index()];
            triggers.iter().try_for_each(|trigger| tx.fire(*trigger, &event))
        };
        let time_us = self.moment.time_us();
        let result =
            Frame::of(owned, self).and_then(|mut frame| run(&mut frame, self, time_us, &mut slid));
        self.sliding.pop();
        if let Err(abort) = &result {
            // Half of it may have been done.
            self.failed.get_or_insert(abort.clone());
        }
        result
    }
}
