//! The keys of a row that transactions of a handler mention, for all events of a batch at once.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float64Array};
use tidemill_core::batch::BatchBuilder;
use tidemill_core::value::canonical_f64;
use tidemill_core::{Batch, Column, Error, Result, Schema, TableSpec, Value};
use tidemill_table::Layout;

use super::ColumnStage;
use crate::program::{Block, Expr, ExprId, Stage};

/// The computation of a row's key from events, by column.
#[derive(Clone, Debug)]
pub struct KeyColumns {
    /// The key columns of the table.
    schema: Arc<Schema>,
    /// Whether a key is one word.
    is_word: bool,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// A column of the event, of words that are never null.
    Column(usize),
    /// The same word for each event.
    Const(u64),
    Stage(Box<ColumnStage>),
}

/// The keys of a batch's events. -0.0 is 0.0, and all NaNs are one, as in keys.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The keys.
    pub of: KeyValues,
    /// The events without a key, in order: it can't be computed, or would have a null.
    pub missing: Vec<usize>,
}

/// Keys by event. Events without one have any value.
#[derive(Clone, Debug)]
pub enum KeyValues {
    /// Keys of one word.
    Words(Vec<u64>),
    /// Other keys: the columns of the key, in its order.
    Columns(Batch),
}

impl KeyValues {
    /// Returns the number of events.
    pub fn len(&self) -> usize {
        match self {
            KeyValues::Words(words) => words.len(),
            KeyValues::Columns(batch) => batch.len(),
        }
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl KeyColumns {
    /// Prepares the key of a row of `table` from events of `stream`. The expressions use no
    /// variables.
    ///
    /// # Errors
    /// If an expression has no type.
    pub fn new(
        table: &TableSpec,
        exprs: &Block,
        key: &[ExprId],
        stream: &Schema,
    ) -> Result<KeyColumns> {
        let columns = table.key.iter().map(|column| {
            let Column { name, ty, .. } = &table.schema.columns[*column];
            Column::new(name, ty.clone())
        });
        let schema = Arc::new(Schema::new(columns.collect()));
        let is_word = Layout::of(table).word_key;
        let source = match exprs.expr(key[0]) {
            Expr::Column(column) if is_word && !stream.columns[usize::from(*column)].nullable => {
                Source::Column(usize::from(*column))
            }
            Expr::Const(value) if is_word && !value.is_null() => {
                Source::Const(key_word(value).ok_or_else(|| Error::internal("a key is a word"))?)
            }
            _ => {
                let (exprs, columns) = only(exprs, key);
                let stage = Stage::Map { exprs, columns };
                Source::Stage(Box::new(ColumnStage::new(&stage, stream, schema.clone())?))
            }
        };
        Ok(KeyColumns { schema, is_word, source })
    }

    /// Returns the key columns of the table.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns the keys for the events of a batch.
    pub fn of(&self, events: &Batch) -> Keys {
        let stage = match &self.source {
            Source::Column(column) => {
                let words = words(&events.columns()[*column]);
                return Keys { of: KeyValues::Words(words), missing: Vec::new() };
            }
            Source::Const(word) => {
                let words = vec![*word; events.len()];
                return Keys { of: KeyValues::Words(words), missing: Vec::new() };
            }
            Source::Stage(stage) => stage,
        };
        let (keys, missing) = match stage.apply(events) {
            Some(applied) => {
                let mapped = applied.mapped.expect("a map computes columns");
                (mapped, applied.failed)
            }
            None => self.one_by_one(stage.stage(), events),
        };
        if self.is_word {
            return Keys { of: KeyValues::Words(words(&keys.columns()[0])), missing };
        }
        let columns = keys.columns().iter().map(positive_zeros).collect();
        let keys = Batch::new(self.schema.clone(), columns, events.len());
        Keys { of: KeyValues::Columns(keys), missing }
    }

    /// Computes keys event by event, where columns would take too much memory.
    fn one_by_one(&self, stage: &Stage, events: &Batch) -> (Batch, Vec<usize>) {
        let (mut keys, mut missing) = (BatchBuilder::new(self.schema.clone()), Vec::new());
        let nulls = vec![Value::Null; self.schema.len()];
        for (nth, event) in events.rows().enumerate() {
            match stage.apply(&self.schema, &event) {
                Ok(Some(key)) => keys.push(&key),
                Ok(None) | Err(_) => {
                    keys.push(&nulls);
                    missing.push(nth);
                }
            }
        }
        (keys.finish(), missing)
    }
}

/// Returns the word of a key value.
fn key_word(value: &Value) -> Option<u64> {
    match value {
        Value::Float(f) if *f == 0.0 => Some(0),
        value => value.word(),
    }
}

/// Returns the words of a column of keys. Nulls have any word.
fn words(array: &ArrayRef) -> Vec<u64> {
    if let Some(ints) = array.as_primitive_opt::<Int64Type>() {
        return ints.values().iter().map(|word| *word as u64).collect();
    }
    if let Some(floats) = array.as_primitive_opt::<Float64Type>() {
        return floats.values().iter().map(|float| positive_zero(*float).to_bits()).collect();
    }
    array.as_boolean().values().iter().map(u64::from).collect()
}

/// Returns a float as part of a key.
fn positive_zero(float: f64) -> f64 {
    if float == 0.0 {
        0.0
    } else {
        canonical_f64(float)
    }
}

/// Returns a column of keys with floats as they are in keys.
fn positive_zeros(array: &ArrayRef) -> ArrayRef {
    match array.as_primitive_opt::<Float64Type>() {
        None => array.clone(),
        Some(floats) => {
            let values = floats.values().iter().map(|float| positive_zero(*float)).collect();
            Arc::new(Float64Array::new(values, floats.nulls().cloned()))
        }
    }
}

/// Returns a block of these expressions and their operands only, and their places there.
fn only(exprs: &Block, roots: &[ExprId]) -> (Block, Vec<ExprId>) {
    fn copy(exprs: &Block, id: ExprId, to: &mut Block, copied: &mut [Option<ExprId>]) -> ExprId {
        if let Some(copy) = copied[id.index()] {
            return copy;
        }
        let mut of = |id: &ExprId| copy(exprs, *id, to, copied);
        let expr = match exprs.expr(id) {
            Expr::Unary(op, x) => Expr::Unary(op.clone(), of(x)),
            Expr::Binary(op, l, r) => Expr::Binary(*op, of(l), of(r)),
            Expr::Where(c, a, b) => Expr::Where(of(c), of(a), of(b)),
            Expr::Coalesce(a, b) => Expr::Coalesce(of(a), of(b)),
            leaf => leaf.clone(),
        };
        let made = to.push(expr);
        copied[id.index()] = Some(made);
        made
    }
    let (mut to, mut copied) = (Block::default(), vec![None; exprs.nodes.len()]);
    let roots = roots.iter().map(|root| copy(exprs, *root, &mut to, &mut copied)).collect();
    (to, roots)
}

#[cfg(test)]
mod tests {
    use tidemill_core::rules::Binary;
    use tidemill_core::{DataType, Key};

    use super::*;
    use crate::program::{evaluate, key_value};

    /// Events of an int, a nullable int, a float and a text.
    fn events() -> Batch {
        let columns = vec![
            Column::new("i", DataType::Int),
            Column::new("n", DataType::Int).nullable(),
            Column::new("f", DataType::Float),
            Column::new("s", DataType::Str),
        ];
        let row = |i: i64, n: Option<i64>, f: f64, s: &str| {
            let n = n.map_or(Value::Null, Value::Int);
            [Value::Int(i), n, Value::Float(f), Value::str(s)]
        };
        let rows = [
            row(1, Some(2), -0.0, "a\0"),
            row(i64::MAX, None, 0.0, ""),
            row(i64::MAX, Some(1), f64::NAN, "é"),
            row(-4, Some(i64::MIN), 1.5, "é"),
        ];
        Batch::from_rows(Arc::new(Schema::new(columns)), rows.iter().map(|row| &row[..]))
    }

    /// Checks that keys by column are those of single events.
    fn check(types: &[DataType], exprs: &Block, key: &[ExprId]) {
        let columns =
            types.iter().enumerate().map(|(n, ty)| Column::new(&n.to_string(), ty.clone()));
        let columns: Vec<Column> = columns.chain([Column::new("v", DataType::Int)]).collect();
        let spec = TableSpec::new("t", (0..types.len()).collect(), Arc::new(Schema::new(columns)));
        let events = events();
        let columns = KeyColumns::new(&spec, exprs, key, events.schema()).unwrap();
        let keys = columns.of(&events);
        for (nth, event) in events.rows().enumerate() {
            let value = |id: &ExprId| key_value(evaluate(exprs, *id, &event[..]).ok()?, &spec).ok();
            let wanted: Option<Vec<Value>> = key.iter().map(value).collect();
            assert_eq!(keys.missing.contains(&nth), wanted.is_none(), "{nth}");
            let Some(wanted) = wanted else { continue };
            match &keys.of {
                KeyValues::Words(words) => {
                    assert_eq!(Value::of_word(&types[0], words[nth]), wanted[0]);
                }
                KeyValues::Columns(batch) => {
                    let mut bytes = Vec::new();
                    batch.encode_row(nth, &mut bytes);
                    assert_eq!(bytes[..], Key::of(&wanted).0[..]);
                }
            }
        }
    }

    #[test]
    fn keys_by_column_are_those_of_single_events() {
        let mut exprs = Block::default();
        let [i, n, f, s] = [0, 1, 2, 3].map(|column| exprs.push(Expr::Column(column)));
        let two = exprs.push(Expr::Const(Value::Int(2)));
        let zero = exprs.push(Expr::Const(Value::Float(-0.0)));
        let sum = exprs.push(Expr::Binary(Binary::Add, i, two));
        let either = exprs.push(Expr::Coalesce(n, two));
        for key in [i, n, two, sum, either] {
            check(&[DataType::Int], &exprs, &[key]);
            check(&[DataType::Int, DataType::Str], &exprs, &[key, s]);
            check(&[DataType::Float, DataType::Int], &exprs, &[f, key]);
        }
        check(&[DataType::Str], &exprs, &[s]);
        for key in [f, zero] {
            check(&[DataType::Float], &exprs, &[key]);
        }
    }
}
