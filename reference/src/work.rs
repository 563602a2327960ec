//! One transaction of the reference.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use tidemill_core::{
    encode, rules, Column, DataType, Key, Row, StreamId, TableId, TableSpec, Value,
};
use tidemill_txn::meaning::{on_frames, Did, Inside, Moment, Transaction, WindowStore};
use tidemill_txn::program::{
    evaluate, key_value, reasons, Abort, Aggregate, Asker, Body, Declared, Native, Op, RowId,
    Scope, Take, Tx, VarId, Window, WindowId, WindowRead,
};
use tidemill_txn::Program;

use super::rows::{Maps, Version};

/// A running transaction.
pub(super) struct Work<'a, 'm> {
    /// The transaction's state beside its rows.
    pub(super) inside: Inside<'a>,
    rows: &'a mut Maps<'m>,
    /// The rows that it has written.
    pub(super) written: BTreeSet<(TableId, Key)>,
}

struct Variables<'a> {
    event: &'a [Value],
    vars: Vec<Value>,
}

impl Scope for Variables<'_> {
    fn column(&self, column: u16) -> Value {
        self.event[usize::from(column)].clone()
    }

    fn var(&self, var: VarId) -> Value {
        self.vars.get(var.index()).cloned().unwrap_or(Value::Null)
    }
}

impl<'a, 'm> Work<'a, 'm> {
    /// Begins a transaction of a handler, on the rows that earlier transactions left.
    pub(super) fn new(
        program: &'a Program,
        rows: &'a mut Maps<'m>,
        handler: usize,
        moment: &'a Moment<'a>,
    ) -> Work<'a, 'm> {
        let inside = Inside::new(program, handler, moment);
        Work { inside, rows, written: BTreeSet::new() }
    }

    /// Runs a handler that takes single events.
    pub(super) fn handler(&mut self, event: &[Value]) -> Result<(), Abort> {
        let program = self.inside.program;
        match &program.handlers[self.inside.handler].body {
            Body::Declared(declared) => self.declared(declared, event),
            Body::Native(native) => {
                let native = &program.natives[*native];
                self.function(|work| work.native(native, event))
            }
            Body::Opaque(opaque) => {
                let function = &program.opaques[*opaque];
                self.function(|work| function.call(event, work))
            }
        }
    }

    fn declared(&mut self, declared: &Declared, event: &[Value]) -> Result<(), Abort> {
        self.function(|work| work.steps(declared, event))
    }

    fn steps(&mut self, declared: &Declared, event: &[Value]) -> Result<(), Abort> {
        let mut scope = Variables { event, vars: Vec::new() };
        let mut made: Vec<(TableId, Vec<Value>)> = Vec::new();
        for step in &declared.steps {
            let eval = |id| evaluate(&declared.exprs, id, &scope);
            if let Some(when) = step.when {
                match eval(when)? {
                    Value::Bool(true) => {}
                    Value::Bool(false) => continue,
                    _ => return Err(rules::Fault::NULL.into()),
                }
            }
            let key = match step.op.row() {
                Some(row) => self.key(declared, row, &scope)?,
                None => Vec::new(),
            };
            let table = step.op.row().map(|row| declared.rows[row.index()].table);
            let spec = table.map(|t| &self.inside.program.tables[t.index()]);
            let held = match table {
                Some(table) => self.rows.row(table, &key),
                None => None,
            };
            let assign = |row: &mut Vec<Value>, values: &[(u16, _)]| -> Result<(), Abort> {
                for (column, value) in values {
                    let column = usize::from(*column);
                    let spec = &spec.expect("it has a row").schema.columns[column];
                    row[column] = rules::store(&eval(*value)?, spec)?;
                }
                Ok(())
            };
            match &step.op {
                Op::Read { column, var, .. } => {
                    let row = held.map_or_else(|| spec.unwrap().missing_row(&key), Vec::from);
                    let value = row[usize::from(*column)].clone();
                    set_var(&mut scope.vars, *var, value);
                }
                Op::Exists { var, .. } => {
                    set_var(&mut scope.vars, *var, Value::Bool(held.is_some()));
                }
                Op::Window { window, column, aggregate, var, .. } => {
                    let value = self.over(table.unwrap(), &key, window, *column, aggregate)?;
                    set_var(&mut scope.vars, *var, value);
                }
                Op::Range { table, from, to, column, aggregate, var } => {
                    let bound = |ids: &[_]| ids.iter().map(|id| eval(*id)).collect();
                    let (from, to): (Result<Vec<_>, _>, Result<Vec<_>, _>) =
                        (bound(from), bound(to));
                    let (from, to) = (from?, to?);
                    let rows = self.rows.range(self.inside.program, *table, &from, &to)?;
                    let spec = &self.inside.program.tables[table.index()];
                    let value = made_of(rows, spec, *column, aggregate)?;
                    set_var(&mut scope.vars, *var, value);
                }
                Op::Require { cond, reason } => match eval(*cond)? {
                    Value::Bool(true) => {}
                    Value::Bool(false) => {
                        return Err(match eval(*reason)? {
                            Value::Str(reason) => Abort::refused(&*reason),
                            _ => rules::Fault::NULL.into(),
                        })
                    }
                    _ => return Err(rules::Fault::NULL.into()),
                },
                Op::Set { column, value, .. } => {
                    let spec = spec.unwrap();
                    let mut row = match held {
                        Some(row) => Vec::from(row),
                        None => {
                            made.push((table.unwrap(), key.clone()));
                            spec.missing_row(&key)
                        }
                    };
                    assign(&mut row, &[(*column, *value)])?;
                    self.write(table.unwrap(), &key, Some(row))?;
                }
                Op::Insert { values, .. } | Op::Upsert { values, .. } => {
                    let spec = spec.unwrap();
                    let mut row = spec.missing_row(&key);
                    assign(&mut row, values)?;
                    if held.is_some() && matches!(step.op, Op::Insert { .. }) {
                        return Err(reasons::exists(spec, &key));
                    }
                    self.write(table.unwrap(), &key, Some(row))?;
                }
                Op::Update { values, .. } => {
                    let spec = spec.unwrap();
                    let there = held.is_some();
                    let mut row = held.map_or_else(|| spec.missing_row(&key), Vec::from);
                    assign(&mut row, values)?;
                    if !there {
                        return Err(reasons::missing(spec, &key));
                    }
                    self.write(table.unwrap(), &key, Some(row))?;
                }
                Op::Delete { .. } => {
                    self.write(table.unwrap(), &key, None)?;
                }
                Op::Emit { stream, values } => {
                    let columns = &self.inside.program.streams[stream.index()].spec.schema.columns;
                    let row: Result<Vec<Value>, rules::Fault> = values
                        .iter()
                        .zip(columns)
                        .map(|(value, column)| rules::store(&eval(*value)?, column))
                        .collect();
                    self.emit_stored(*stream, row?)?;
                }
            }
        }
        // A row that was created by setting single columns must have all its values at the end.
        for (table, key) in made {
            let spec = &self.inside.program.tables[table.index()];
            if let Some(row) = self.rows.row(table, &key) {
                let columns = spec.schema.columns.iter().zip(row.iter());
                for (index, (column, value)) in columns.enumerate() {
                    if value.is_null() && !column.nullable {
                        return Err(reasons::no_value(spec, &key, index));
                    }
                }
            }
        }
        Ok(())
    }

    fn key(&self, declared: &Declared, row: RowId, scope: &Variables) -> Result<Vec<Value>, Abort> {
        let row = &declared.rows[row.index()];
        let spec = &self.inside.program.tables[row.table.index()];
        row.key.iter().map(|id| key_value(evaluate(&declared.exprs, *id, scope)?, spec)).collect()
    }

    fn native(&mut self, native: &Native, event: &[Value]) -> Result<(), Abort> {
        let event_words: Vec<u64> = event.iter().map(|v| v.word().expect("checked")).collect();
        let (mut words, mut bases, mut keys) =
            (Vec::new(), Vec::new(), Vec::<(TableId, Vec<Value>)>::new());
        let mut present = 0u128;
        for (index, row) in native.rows.iter().enumerate() {
            let spec = &self.inside.program.tables[row.table.index()];
            let key: Result<Vec<Value>, Abort> = row
                .key
                .iter()
                .map(|id| key_value(evaluate(&native.exprs, *id, event)?, spec))
                .collect();
            let key = key?;
            let held = self.rows.row(row.table, &key);
            present |= u128::from(held.is_some()) << index;
            let same = keys.iter().position(|(t, k)| (*t, k) == (row.table, &key));
            match same {
                Some(same) => bases.push(bases[same]),
                None => {
                    bases.push(words.len() as u32);
                    let row = held.map_or_else(|| spec.missing_row(&key), |r| r.to_vec());
                    for value in row {
                        words.push(value.word().ok_or_else(|| reasons::missing(spec, &key))?);
                    }
                }
            }
            keys.push((row.table, key));
        }
        let (program, frames, this) = (self.inside.program, &mut words, RefCell::new(&mut *self));
        let windows = |row: usize, own: Option<Vec<Value>>, read: &WindowRead| {
            let (table, key): &(TableId, Vec<Value>) = &keys[row];
            let WindowRead { window, column, aggregate, .. } = read;
            this.borrow_mut().over_copy(*table, key, own, window, *column, aggregate)
        };
        let done = on_frames(program, native, &event_words, frames, &bases, present, &windows);
        let values = |columns: &[Column], words: &[u64]| {
            columns.iter().zip(words).map(|(c, word)| Value::of_word(&c.ty, *word)).collect()
        };
        for did in done.map_err(Abort::refused)? {
            match did {
                Did::Wrote { row, words } => {
                    let (table, key) = &keys[row];
                    let row = values(&program.tables[table.index()].schema.columns, &words);
                    self.write(*table, key, Some(row))?;
                }
                Did::Emitted { stream, words } => {
                    let stream = native.emits[stream];
                    let row = values(&program.streams[stream.index()].spec.schema.columns, &words);
                    self.emit_stored(stream, row)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the aggregate of a column's values.
fn made_of(
    rows: impl IntoIterator<Item = Row>,
    spec: &TableSpec,
    column: u16,
    aggregate: &Aggregate,
) -> Result<Value, Abort> {
    let rows: Vec<Row> = rows.into_iter().collect();
    if let Aggregate::Fold(fold) = aggregate {
        return rows.iter().try_fold(fold.start(), |state, row| {
            let scope = Variables { event: row, vars: vec![state] };
            Ok(evaluate(&fold.exprs, fold.step, &scope)?)
        });
    }
    let Column { ty, .. } = &spec.schema.columns[usize::from(column)];
    let all: Vec<Value> = rows.iter().map(|row| row[usize::from(column)].clone()).collect();
    let values: Vec<&Value> = all.iter().filter(|value| !value.is_null()).collect();
    let exact = || values.iter().map(|v| i128::from(v.word().expect("a number") as i64)).sum();
    let floats = || {
        values.iter().fold(0.0, |sum, v| match v {
            Value::Float(f) => sum + f,
            _ => unreachable!("the program was checked"),
        })
    };
    let order = |value: &&&Value| {
        let mut bytes = Vec::new();
        encode::value(value, &mut bytes);
        bytes
    };
    Ok(match aggregate {
        Aggregate::Count => Value::Int(values.len() as i64),
        Aggregate::Sum if *ty == DataType::Float => Value::Float(floats()),
        Aggregate::Sum => rules::sum_of(exact(), ty)?,
        Aggregate::Avg if values.is_empty() => Value::Null,
        Aggregate::Avg if *ty == DataType::Float => Value::Float(floats() / values.len() as f64),
        Aggregate::Avg => rules::mean_of(exact(), values.len() as u64, ty),
        Aggregate::Min => values.iter().min_by_key(order).map_or(Value::Null, |v| (*v).clone()),
        Aggregate::Max => values.iter().max_by_key(order).map_or(Value::Null, |v| (*v).clone()),
        Aggregate::First => all.first().cloned().unwrap_or(Value::Null),
        Aggregate::Last => all.last().cloned().unwrap_or(Value::Null),
        Aggregate::Fold(_) => unreachable!("handled above"),
    })
}

fn set_var(vars: &mut Vec<Value>, var: VarId, value: Value) {
    if vars.len() <= var.index() {
        vars.resize(var.index() + 1, Value::Null);
    }
    vars[var.index()] = value;
}

impl Tx for Work<'_, '_> {
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        self.inside.count(1)?;
        self.inside.program.check_visible(table)?;
        let key = self.inside.program.stored_key(table, key)?;
        self.window_row(table, &key)
    }

    fn window(
        &mut self,
        table: TableId,
        key: &[Value],
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        self.inside.count(1)?;
        let key = self.inside.program.stored_key(table, key)?;
        self.inside.program.check_window(table, window, column, aggregate)?;
        self.over(table, &key, window, column, aggregate)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        take: Take,
    ) -> Result<Vec<Row>, Abort> {
        self.inside.count(1)?;
        let program = self.inside.program;
        program.check_ranges(table)?;
        let (from, to) = (program.stored_bound(table, from)?, program.stored_bound(table, to)?);
        let rows = self.rows.range(program, table, &from, &to)?;
        let rows = take.of(rows.into_iter());
        self.inside.count(rows.len())?;
        Ok(rows)
    }

    fn find(&mut self, table: TableId, leading: &[Value], take: Take) -> Result<Vec<Row>, Abort> {
        self.inside.count(1)?;
        let program = self.inside.program;
        program.check_ranges(table)?;
        let leading = program.stored_bound(table, leading)?;
        let rows = self.rows.leading(program, table, &leading, take);
        self.inside.count(rows.len())?;
        Ok(rows)
    }

    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Abort> {
        self.inside.count(1)?;
        let (key, row) = self.inside.program.stored_row(table, row)?;
        self.write(table, &key, Some(row))
    }

    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        self.inside.count(1)?;
        let key = self.inside.program.stored_key(table, key)?;
        self.inside.program.check_writable(table)?;
        self.write(table, &key, None)
    }

    fn will_write(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        self.first_write(table, key)
    }

    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Abort> {
        self.emit_given(stream, row)
    }

    fn window_insert(&mut self, window: WindowId, row: &[Value]) -> Result<(), Abort> {
        self.insert_into(window, row)
    }

    fn window_advance(&mut self, window: WindowId) -> Result<(), Abort> {
        self.advance(window)
    }

    fn window_rows(&mut self, window: WindowId) -> Result<Vec<Row>, Abort> {
        self.active_rows(window)
    }

    fn window_groups(
        &mut self,
        window: WindowId,
        group: Option<&Value>,
    ) -> Result<Vec<Row>, Abort> {
        self.active_groups(window, group)
    }

    fn time_us(&self) -> i64 {
        self.inside.moment.time_us()
    }

    fn now_us(&self) -> i64 {
        self.inside.moment.now_us
    }

    fn random(&mut self) -> u128 {
        self.inside.random()
    }

    fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Arc<[u8]>, Abort> {
        self.inside.lookup(question, ask)
    }
}

impl Work<'_, '_> {
    /// Writes or removes a row.
    fn write(
        &mut self,
        table: TableId,
        key: &[Value],
        row: Option<Vec<Value>>,
    ) -> Result<(), Abort> {
        let held = self.rows.row(table, key);
        self.inside.note(table, key, held.as_deref());
        self.written.insert((table, Key::of(key)));
        self.rows
            .write(self.inside.program, table, key, row.map(Row::from))
            .inspect_err(|abort| self.inside.fail(abort))
    }

    /// Returns the aggregate of a window. All versions that the history retains are there. Others
    /// may be there too, but a program can't see a difference.
    fn over(
        &mut self,
        table: TableId,
        key: &[Value],
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        let is_written = self.written.contains(&(table, Key::of(key)));
        let own = self.rows.row(table, key).filter(|_| is_written).map(Vec::from);
        self.over_copy(table, key, own, window, column, aggregate)
    }

    /// Like [`Work::over`], with the running transaction's own copy of the row as the newest
    /// version.
    fn over_copy(
        &mut self,
        table: TableId,
        key: &[Value],
        own: Option<Vec<Value>>,
        window: &Window,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        let spec = &self.inside.program.tables[table.index()];
        let now = self.inside.moment.time_us();
        let wide = i128::from;
        let floor = |size: i64| wide(now).div_euclid(wide(size)) * wide(size);
        // A session can't go further back than the history.
        let kept = spec.history.and_then(|h| h.retained_from(now)).unwrap_or(now);
        let mut versions = self.rows.versions(table, key);
        let next = |versions: &[Version]| versions.last().map_or(0, |(number, ..)| number + 1);
        versions.extend(own.map(|row| (next(&versions), now, row.into())));
        let len = next(&versions);
        if let Window::Session { gap_us } = window {
            let (mut last, mut first) = (now, versions.len());
            while first > 0 {
                let time = versions[first - 1].1;
                if time < kept || wide(last) - wide(time) > wide(*gap_us) {
                    break;
                }
                (last, first) = (time, first - 1);
            }
            versions.drain(..first);
        }
        versions.retain(|(number, time, _)| {
            let time = wide(*time);
            match *window {
                Window::Sliding { size_us } => time > wide(now) - wide(size_us),
                Window::Tumbling { size_us } => time >= floor(size_us),
                Window::Hopping { size_us, slide_us } => {
                    time >= floor(slide_us) - wide(size_us) && time < floor(slide_us)
                }
                Window::Session { .. } => true,
                Window::Last { versions } => number + versions >= len,
                Window::TumblingVersions { versions } => {
                    number / versions == len.saturating_sub(1) / versions
                }
            }
        });
        made_of(versions.into_iter().map(|(_, _, row)| row), spec, column, aggregate)
    }
}

impl WindowStore for Work<'_, '_> {
    fn window_row(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        Ok(self.rows.row(table, key))
    }

    fn put_window_row(&mut self, table: TableId, row: Vec<Value>) -> Result<(), Abort> {
        let program = self.inside.program;
        let spec = &program.tables[table.index()];
        let key: Vec<Value> = spec.key.iter().map(|column| row[*column].clone()).collect();
        self.rows.write(program, table, &key, Some(row.into()))
    }

    fn remove_window_row(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        self.rows.write(self.inside.program, table, key, None)
    }

    fn all(&mut self, table: TableId) -> Result<Vec<Row>, Abort> {
        Ok(self.rows.leading(self.inside.program, table, &[], Take::ALL))
    }
}

impl<'a> Transaction<'a> for Work<'a, '_> {
    fn inside(&mut self) -> &mut Inside<'a> {
        &mut self.inside
    }
}
