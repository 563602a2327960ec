//! Map and filter over all rows of a batch at once.
//!
//! Each expression is computed as a column, with the values that [`evaluate`](super::evaluate) gives
//! row by row. Kernels compute numbers, booleans and comparisons of texts. The rules compute the
//! other operators, value by value. A row without a value is marked as failed, and
//! [`Stage::apply`] gives its reason.

mod kernels;
mod keys;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use tidemill_core::batch::ColumnBuilder;
use tidemill_core::rules::{self, Fault};
use tidemill_core::value::canonical_f64;
use tidemill_core::{Batch, Column, DataType, Result, Schema, Value};

use super::expr::{Block, Expr, ExprId, Type};
use super::stream::Stage;

pub use self::keys::{KeyColumns, KeyValues, Keys};

/// The most bytes of the values of one node. A batch with more is computed row by row, which needs
/// the memory of one row only.
const BYTES_MAX: usize = 64 << 20;

/// A stage that is applied by columns.
#[derive(Clone, Debug)]
pub struct ColumnStage {
    stage: Stage,
    /// The schema of the new stream.
    schema: Arc<Schema>,
    types: Vec<Type>,
    /// Whether each node is part of a result.
    needed: Vec<bool>,
}

/// The result of a stage for the rows of a batch.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The rows that get into the new stream.
    pub keep: BooleanArray,
    /// The rows for which the stage has no result, in order. [`Stage::apply`] gives the reasons.
    pub failed: Vec<usize>,
    /// The rows of the new stream, if a map computes them. Rows that are not kept have any values.
    pub mapped: Option<Batch>,
}

impl ColumnStage {
    /// Prepares a stage from a stream with the schema `from` to one with the schema `to`.
    ///
    /// # Errors
    /// If an expression has no type.
    pub fn new(stage: &Stage, from: &Schema, to: Arc<Schema>) -> Result<ColumnStage> {
        let (exprs, roots) = match stage {
            Stage::Filter { exprs, keep } => (exprs, std::slice::from_ref(keep)),
            Stage::Map { exprs, columns } => (exprs, &columns[..]),
        };
        let types = exprs.types(from, &[])?;
        let mut needed = vec![false; exprs.nodes.len()];
        roots.iter().for_each(|root| needed[root.index()] = true);
        for nth in (0..needed.len()).rev().filter(|nth| needed[*nth]).collect::<Vec<_>>() {
            mark(exprs, ExprId(nth as u32), &mut needed);
        }
        Ok(ColumnStage { stage: stage.clone(), schema: to, types, needed })
    }

    /// Returns the stage, which computes single rows.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Returns the schema of the new stream.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Applies the stage to all rows of a batch. Returns `None` if it has to be applied row by row,
    /// because its columns would be too large.
    pub fn apply(&self, batch: &Batch) -> Option<Applied> {
        let rows = batch.len();
        let applied = |failed: Option<BooleanBuffer>, keep: Option<BooleanBuffer>, mapped| {
            let good = failed.as_ref().map(|failed| !failed);
            let keep = match (good, keep) {
                (None, None) => BooleanBuffer::new_set(rows),
                (Some(mask), None) | (None, Some(mask)) => mask,
                (Some(good), Some(keep)) => &good & &keep,
            };
            let failed = failed.iter().flat_map(BooleanBuffer::set_indices).collect();
            Applied { keep: BooleanArray::new(keep, None), failed, mapped }
        };
        match &self.stage {
            Stage::Filter { exprs, keep } => {
                let nodes = self.nodes(exprs, batch)?;
                Some(match nodes[keep.index()].as_ref()? {
                    Values::One(Value::Bool(true)) => applied(None, None, None),
                    Values::One(Value::Bool(false)) => {
                        applied(None, Some(BooleanBuffer::new_unset(rows)), None)
                    }
                    Values::One(_) | Values::Nothing => {
                        applied(Some(BooleanBuffer::new_set(rows)), None, None)
                    }
                    Values::Many(many) => {
                        let mask = many.array.as_boolean().values().clone();
                        applied(union(many.failed.clone(), many.nulls()), Some(mask), None)
                    }
                })
            }
            Stage::Map { exprs, columns } => {
                let nodes = self.nodes(exprs, batch)?;
                let mut failed = None;
                let mut arrays = Vec::with_capacity(columns.len());
                for (id, column) in columns.iter().zip(&self.schema.columns) {
                    let values = nodes[id.index()].as_ref()?;
                    let stored = stored(values, column, rows)?;
                    failed = union(failed, stored.failed);
                    arrays.push(stored.array);
                }
                let mapped = Batch::new(self.schema.clone(), arrays, rows);
                Some(applied(failed, None, Some(mapped)))
            }
        }
    }

    /// Computes all needed nodes. Returns `None` if one would be too large.
    fn nodes(&self, exprs: &Block, batch: &Batch) -> Option<Vec<Option<Values>>> {
        let mut nodes: Vec<Option<Values>> = Vec::with_capacity(exprs.nodes.len());
        for (nth, node) in exprs.nodes.iter().enumerate() {
            let values = match self.needed[nth] {
                true => Some(self.node(&node.expr, nth, &nodes, batch)?),
                false => None,
            };
            nodes.push(values);
        }
        Some(nodes)
    }

    fn node(
        &self,
        expr: &Expr,
        nth: usize,
        nodes: &[Option<Values>],
        batch: &Batch,
    ) -> Option<Values> {
        let of = |id: &ExprId| nodes[id.index()].as_ref();
        let ty = self.types[nth].ty.as_ref();
        Some(match expr {
            Expr::Const(value) => Values::One(value.clone()),
            Expr::FloatBits(bits) => Values::One(Value::Float(f64::from_bits(*bits))),
            // A stage has no variables.
            Expr::Var(_) => Values::One(Value::Null),
            Expr::Column(column) => {
                let column = usize::from(*column);
                Values::Many(Many {
                    ty: batch.schema().columns[column].ty.clone(),
                    array: batch.columns()[column].clone(),
                    failed: None,
                })
            }
            Expr::Unary(op, x) => kernels::unary(op, of(x)?, ty?)?,
            Expr::Binary(op, l, r) => kernels::binary(*op, of(l)?, of(r)?, ty?)?,
            Expr::Where(c, a, b) => match of(c)? {
                Values::One(Value::Bool(true)) => of(a)?.clone(),
                Values::One(Value::Bool(false)) => of(b)?.clone(),
                Values::One(_) | Values::Nothing => Values::Nothing,
                Values::Many(many) => {
                    let failed = union(many.failed.clone(), many.nulls());
                    choose(many.array.as_boolean().values(), failed, of(a)?, of(b)?, ty?)?
                }
            },
            Expr::Coalesce(a, b) => match of(a)? {
                Values::One(Value::Null) => of(b)?.clone(),
                found @ (Values::One(_) | Values::Nothing) => found.clone(),
                Values::Many(many) => match many.array.nulls() {
                    Some(nulls) if nulls.null_count() > 0 => {
                        let failed = many.failed.clone();
                        choose(nulls.inner(), failed, &Values::Many(many.clone()), of(b)?, ty?)?
                    }
                    _ => Values::Many(many.clone()),
                },
            },
        })
    }
}

/// Marks the operands of a node.
fn mark(exprs: &Block, id: ExprId, needed: &mut [bool]) {
    let mut needs = |id: &ExprId| {
        if !std::mem::replace(&mut needed[id.index()], true) {
            mark(exprs, *id, needed);
        }
    };
    match exprs.expr(id) {
        Expr::Const(_) | Expr::FloatBits(_) | Expr::Column(_) | Expr::Var(_) => {}
        Expr::Unary(_, x) => needs(x),
        Expr::Binary(_, l, r) | Expr::Coalesce(l, r) => [l, r].into_iter().for_each(needs),
        Expr::Where(c, a, b) => [c, a, b].into_iter().for_each(needs),
    }
}

/// The values of a node.
#[derive(Clone, Debug)]
enum Values {
    /// All rows have this value.
    One(Value),
    /// No row has a value.
    Nothing,
    /// Each row has its own.
    Many(Many),
}

/// A value for each row.
#[derive(Clone, Debug)]
struct Many {
    ty: DataType,
    array: ArrayRef,
    /// The rows that have no value. Their values in the array mean nothing.
    failed: Option<BooleanBuffer>,
}

impl Many {
    /// Returns the rows that are null, if there are any.
    fn nulls(&self) -> Option<BooleanBuffer> {
        let nulls = self.array.nulls().filter(|nulls| nulls.null_count() > 0)?;
        Some(!nulls.inner())
    }

    /// Returns the value of a row that has not failed.
    fn value(&self, row: usize) -> Value {
        Batch::value_of(&self.ty, &self.array, row)
    }

    fn has_failed(&self, row: usize) -> bool {
        self.failed.as_ref().is_some_and(|failed| failed.value(row))
    }
}

/// Returns the rows in one of two sets.
fn union(one: Option<BooleanBuffer>, other: Option<BooleanBuffer>) -> Option<BooleanBuffer> {
    match (one, other) {
        (Some(one), Some(other)) => Some(&one | &other),
        (one, other) => one.or(other),
    }
}

/// The values of a column, computed one by one.
struct ByValue {
    builder: ColumnBuilder,
    failed: Vec<bool>,
    has_failed: bool,
    bytes: usize,
}

impl ByValue {
    fn new(ty: &DataType, rows: usize) -> ByValue {
        let builder = ColumnBuilder::of_rows(ty, rows);
        ByValue { builder, failed: Vec::with_capacity(rows), has_failed: false, bytes: 0 }
    }

    /// Appends a value, or a row that has none. Returns `None` if there are too many bytes.
    fn push(&mut self, value: Result<Value, Fault>) -> Option<()> {
        self.failed.push(value.is_err());
        match value {
            Ok(value) => {
                self.bytes += value.heap_bytes();
                self.builder.push(&value);
            }
            Err(_) => {
                self.has_failed = true;
                self.builder.push_null();
            }
        }
        (self.bytes <= BYTES_MAX).then_some(())
    }

    fn finish(mut self, ty: &DataType) -> Many {
        let failed = self.has_failed.then(|| BooleanBuffer::from(self.failed));
        Many { ty: ty.clone(), array: self.builder.finish(), failed }
    }
}

/// Returns the values as a column stores them.
fn stored(values: &Values, column: &Column, rows: usize) -> Option<Many> {
    let all_failed = || {
        let mut all = ByValue::new(&column.ty, rows);
        (0..rows).try_for_each(|_| all.push(Err(Fault::NULL)))?;
        Some(all.finish(&column.ty))
    };
    let many = match values {
        Values::Nothing => return all_failed(),
        Values::One(value) => {
            let Ok(value) = rules::store(value, column) else { return all_failed() };
            let mut all = ByValue::new(&column.ty, rows);
            (0..rows).try_for_each(|_| all.push(Ok(value.clone())))?;
            return Some(all.finish(&column.ty));
        }
        Values::Many(many) => many,
    };
    let nulls = if column.nullable { None } else { many.nulls() };
    match &many.ty {
        DataType::Float if column.ty == DataType::Float => {
            let floats = many.array.as_primitive::<Float64Type>();
            let is_canonical = |f: &f64| f.to_bits() == canonical_f64(*f).to_bits();
            let array = match floats.values().iter().all(is_canonical) {
                true => many.array.clone(),
                false => Arc::new(floats.unary::<_, Float64Type>(canonical_f64)) as ArrayRef,
            };
            Some(Many { array, failed: union(many.failed.clone(), nulls), ty: DataType::Float })
        }
        DataType::List(_) => by_value(many, &column.ty, |value| rules::store(value, column)),
        ty if *ty == column.ty => {
            Some(Many { failed: union(many.failed.clone(), nulls), ..many.clone() })
        }
        _ => by_value(many, &column.ty, |value| rules::store(value, column)),
    }
}

/// Computes a column of type `ty` from the values of another one.
fn by_value(
    many: &Many,
    ty: &DataType,
    compute: impl Fn(&Value) -> Result<Value, Fault>,
) -> Option<Many> {
    let rows = many.array.len();
    let mut computed = ByValue::new(ty, rows);
    for row in 0..rows {
        computed.push(match many.has_failed(row) {
            true => Err(Fault::NULL),
            false => compute(&many.value(row)),
        })?;
    }
    Some(computed.finish(ty))
}

/// Returns the first value of each row where `takes_first`, else the second. Rows of `failed` have
/// none.
fn choose(
    takes_first: &BooleanBuffer,
    failed: Option<BooleanBuffer>,
    first: &Values,
    second: &Values,
    ty: &DataType,
) -> Option<Values> {
    let rows = takes_first.len();
    let failed_of = |values: &Values, taken: &BooleanBuffer| match values {
        Values::Nothing => Some(taken.clone()),
        Values::One(_) => None,
        Values::Many(many) => many.failed.as_ref().map(|failed| failed & taken),
    };
    let failed = union(failed, failed_of(first, takes_first));
    let failed = union(failed, failed_of(second, &!takes_first));
    let nulls = |values: &Values| match values {
        Values::Many(many) => many.array.nulls().map(|nulls| nulls.inner().clone()),
        Values::One(Value::Null) | Values::Nothing => Some(BooleanBuffer::new_unset(rows)),
        Values::One(_) => None,
    };
    let valid = match (nulls(first), nulls(second)) {
        (None, None) => None,
        (one, other) => {
            let all = || BooleanBuffer::new_set(rows);
            let one = &one.unwrap_or_else(all) & takes_first;
            let other = &other.unwrap_or_else(all) & &!takes_first;
            Some(NullBuffer::new(&one | &other))
        }
    };
    let array: ArrayRef = match ty {
        DataType::Int | DataType::Timestamp | DataType::Decimal(_) => {
            let word = |values: &Values, row: usize| match values {
                Values::Many(many) => many.array.as_primitive::<Int64Type>().value(row),
                Values::One(value) => kernels::word(value).unwrap_or(0),
                Values::Nothing => 0,
            };
            let chosen = (0..rows).map(|row| match takes_first.value(row) {
                true => word(first, row),
                false => word(second, row),
            });
            Arc::new(Int64Array::new(chosen.collect(), valid))
        }
        DataType::Float => {
            let float = |values: &Values, row: usize| match values {
                Values::Many(many) => many.array.as_primitive::<Float64Type>().value(row),
                Values::One(Value::Float(f)) => *f,
                Values::One(_) | Values::Nothing => 0.0,
            };
            let chosen = (0..rows).map(|row| match takes_first.value(row) {
                true => float(first, row),
                false => float(second, row),
            });
            Arc::new(Float64Array::new(chosen.collect(), valid))
        }
        _ => {
            let mut chosen = ByValue::new(ty, rows);
            for row in 0..rows {
                let from = if takes_first.value(row) { first } else { second };
                chosen.push(match from {
                    Values::Many(many) if !many.has_failed(row) => Ok(many.value(row)),
                    Values::One(value) => Ok(value.clone()),
                    Values::Many(_) | Values::Nothing => Err(Fault::NULL),
                })?;
            }
            return Some(Values::Many(Many { failed, ..chosen.finish(ty) }));
        }
    };
    Some(Values::Many(Many { ty: ty.clone(), array, failed }))
}

#[cfg(test)]
mod tests;
