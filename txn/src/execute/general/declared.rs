//! Declared transactions on the general path.

use tidemill_core::{rules, Value};

use super::General;
use crate::execute::window::made_of;
use crate::program::inside::Transaction;
use crate::program::{
    key_value, reasons, Abort, Block, Declared, Expr, ExprId, Op, RowId, Take, VarId,
};

/// The values of the expressions of one running transaction. Each node is computed at most once.
/// This is sound because variables are set once, before they are used.
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

impl General<'_> {
    /// Runs a declared transaction.
    pub(crate) fn declared(&mut self, declared: &Declared, event: &[Value]) -> Result<(), Abort> {
        self.function(|tx| tx.steps(declared, event))
    }

    fn steps(&mut self, declared: &Declared, event: &[Value]) -> Result<(), Abort> {
        let program = self.inside.program;
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
                    let rows = self.between(*table, &from, &to, Take::ALL)?;
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
                    self.emit_stored(*stream, row?)?;
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
                        // Values are computed before the row is found, as the arguments of a call
                        // are.
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
                        self.reindex_touched(at, before.as_deref())?;
                    }
                }
            }
        }
        self.check_made()
    }

    /// Checks that rows created by setting columns have a value in each column that needs one.
    fn check_made(&self) -> Result<(), Abort> {
        for touched in self.made.iter().map(|at| &self.rows[*at]) {
            let spec = &self.inside.program.tables[touched.table.index()];
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
        let spec = &self.inside.program.tables[row.table.index()];
        let key: Result<Vec<Value>, Abort> =
            row.key.iter().map(|id| key_value(memo.eval(*id)?, spec)).collect();
        Ok(self.touch(row.table, key?)?)
    }
}

fn truth(value: Value) -> Result<bool, Abort> {
    match value {
        Value::Bool(b) => Ok(b),
        _ => Err(rules::Fault::NULL.into()),
    }
}
