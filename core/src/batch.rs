//! Columnar batches of rows: Arrow arrays with Tidemill's schema.
//!
//! Inside, integers, timestamps and decimals are all `Int64Array`s, and lists are their encodings.
//! [`Batch::to_arrow`] returns the rich Arrow types for use outside.

use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int64Array, RecordBatch,
    TimestampMicrosecondArray,
};
use arrow_schema::{DataType as ArrowType, Field, Schema as ArrowSchema, TimeUnit};

use crate::encode;
use crate::error::{Error, Result};
use crate::schema::Schema;
use crate::types::DataType;
use crate::value::{canonical_f64, Row, Value};

mod outside;

pub use outside::{any_of, refusal, value_of};

/// Rows of one schema, by column. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Batch {
    schema: Arc<Schema>,
    columns: Vec<ArrayRef>,
    len: usize,
}

impl Batch {
    /// Creates a batch of these arrays.
    ///
    /// The arrays have one length, and the inner types of the schema's columns (see
    /// [`inner_type`]).
    pub fn new(schema: Arc<Schema>, columns: Vec<ArrayRef>, len: usize) -> Batch {
        assert_eq!(schema.len(), columns.len(), "a batch has an array for every column");
        for (column, array) in schema.columns.iter().zip(&columns) {
            assert_eq!(array.len(), len, "column {}", column.name);
            assert_eq!(*array.data_type(), inner_type(&column.ty), "column {}", column.name);
        }
        Batch { schema, columns, len }
    }

    /// Creates a batch of these rows, whose values fit the schema.
    pub fn from_rows<'a>(
        schema: Arc<Schema>,
        rows: impl IntoIterator<Item = &'a [Value]>,
    ) -> Batch {
        let rows = rows.into_iter();
        let mut builder = match rows.size_hint() {
            (few, Some(most)) if few == most => BatchBuilder::of_rows(schema, few),
            _ => BatchBuilder::new(schema),
        };
        for row in rows {
            builder.push(row);
        }
        builder.finish()
    }

    /// Creates a batch of words (see [`Value::word`]), by column. All columns have types of words.
    pub fn of_words(schema: Arc<Schema>, columns: Vec<Vec<u64>>, len: usize) -> Batch {
        let array = |(words, column): (Vec<u64>, &crate::schema::Column)| -> ArrayRef {
            match inner_type(&column.ty) {
                ArrowType::Float64 => {
                    let float = |word| canonical_f64(f64::from_bits(word));
                    Arc::new(Float64Array::from_iter_values(words.into_iter().map(float)))
                }
                ArrowType::Boolean => Arc::new(
                    words.into_iter().map(|word| Some(word != 0)).collect::<BooleanArray>(),
                ),
                _ => {
                    let ints = words.into_iter().map(u64::cast_signed).collect::<Vec<i64>>();
                    Arc::new(Int64Array::from(ints))
                }
            }
        };
        let arrays = columns.into_iter().zip(&schema.columns).map(array).collect();
        Batch::new(schema, arrays, len)
    }

    /// Returns a batch of any origin as one of a schema, if its arrays have the types of the
    /// schema's columns, and nulls only where these may be null.
    ///
    /// # Errors
    /// The difference.
    pub fn with_schema(&self, schema: &Arc<Schema>) -> Result<Batch, String> {
        if self.columns.len() != schema.len() {
            return Err(format!("{} columns instead of {}", self.columns.len(), schema.len()));
        }
        for (column, array) in schema.columns.iter().zip(&self.columns) {
            let (is, wanted) = (array.data_type(), inner_type(&column.ty));
            if *is != wanted {
                return Err(format!("column '{}' is {is} instead of {wanted}", column.name));
            }
            if array.len() != self.len {
                return Err(format!("column '{}' has {} rows", column.name, array.len()));
            }
            if array.null_count() > 0 && !column.nullable {
                return Err(format!("column '{}' has a null", column.name));
            }
        }
        Ok(Batch { schema: schema.clone(), columns: self.columns.clone(), len: self.len })
    }

    /// Returns the schema.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the arrays, which have the inner types.
    pub fn columns(&self) -> &[ArrayRef] {
        &self.columns
    }

    /// Returns the memory that the columns hold, in bytes.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(|c| c.get_array_memory_size()).sum()
    }

    /// Returns one value.
    pub fn value(&self, column: usize, row: usize) -> Value {
        Batch::value_of(&self.schema.columns[column].ty, &self.columns[column], row)
    }

    /// Returns one value of an array with the inner type of `ty` (see [`inner_type`]).
    pub fn value_of(ty: &DataType, array: &ArrayRef, row: usize) -> Value {
        if array.is_null(row) {
            return Value::Null;
        }
        match ty {
            DataType::Int => Value::Int(array.as_primitive::<Int64Type>().value(row)),
            DataType::Timestamp => Value::Timestamp(array.as_primitive::<Int64Type>().value(row)),
            DataType::Decimal(s) => {
                Value::Decimal(array.as_primitive::<Int64Type>().value(row), *s)
            }
            DataType::Float => Value::Float(array.as_primitive::<Float64Type>().value(row)),
            DataType::Bool => Value::Bool(array.as_boolean().value(row)),
            DataType::Str => Value::Str(array.as_string::<i32>().value(row).into()),
            DataType::Bytes => Value::Bytes(array.as_binary::<i32>().value(row).into()),
            DataType::Any => Value::Any(array.as_binary::<i32>().value(row).into()),
            ty @ DataType::List(_) => {
                encode::decode(ty, &mut array.as_binary::<i32>().value(row)).unwrap_or(Value::Null)
            }
        }
    }

    /// Returns one row.
    pub fn row(&self, row: usize) -> Row {
        (0..self.columns.len()).map(|column| self.value(column, row)).collect()
    }

    /// Appends the canonical encoding of a row's values (see [`encode`]), without creating
    /// [`Value`]s.
    pub fn encode_row(&self, row: usize, out: &mut Vec<u8>) {
        for (array, column) in self.columns.iter().zip(&self.schema.columns) {
            if array.is_null(row) {
                encode::value(&Value::Null, out);
                continue;
            }
            match &column.ty {
                DataType::Int | DataType::Timestamp | DataType::Decimal(_) => {
                    let word = array.as_primitive::<Int64Type>().value(row) as u64;
                    encode::word(&column.ty, word, out);
                }
                DataType::Float => {
                    let word = array.as_primitive::<Float64Type>().value(row).to_bits();
                    encode::word(&column.ty, word, out);
                }
                DataType::Bool => {
                    encode::word(&column.ty, u64::from(array.as_boolean().value(row)), out);
                }
                DataType::Str => encode::str(array.as_string::<i32>().value(row), out),
                // A list is stored encoded.
                DataType::List(_) => out.extend_from_slice(array.as_binary::<i32>().value(row)),
                DataType::Bytes => encode::bytes(array.as_binary::<i32>().value(row), out),
                DataType::Any => encode::any(array.as_binary::<i32>().value(row), out),
            }
        }
    }

    /// Returns all rows, one after another.
    pub fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        (0..self.len).map(|row| self.row(row))
    }

    /// Returns the column as 64-bit integers (int, timestamp, decimal), or `None` for another type
    /// or a column with nulls.
    pub fn ints(&self, column: usize) -> Option<&[i64]> {
        let array = &self.columns[column];
        let ints = array.as_primitive_opt::<Int64Type>()?;
        (ints.null_count() == 0).then(|| &ints.values()[..])
    }

    /// Returns the column as floats, or `None` for another type or a column with nulls.
    pub fn floats(&self, column: usize) -> Option<&[f64]> {
        let floats = self.columns[column].as_primitive_opt::<Float64Type>()?;
        (floats.null_count() == 0).then(|| &floats.values()[..])
    }

    /// Returns the column as booleans, or `None` for another type or a column with nulls.
    pub fn bools(&self, column: usize) -> Option<&BooleanArray> {
        let bools = self.columns[column].as_boolean_opt()?;
        (bools.null_count() == 0).then_some(bools)
    }

    /// Returns the `len` rows from `start`, without copying.
    pub fn slice(&self, start: usize, len: usize) -> Batch {
        let columns = self.columns.iter().map(|c| c.slice(start, len)).collect();
        Batch { schema: self.schema.clone(), columns, len }
    }

    /// Returns the rows at these places.
    pub fn take(&self, rows: &[u32]) -> Batch {
        let places = arrow_array::UInt32Array::from(rows.to_vec());
        let take = |c: &ArrayRef| {
            arrow_select::take::take(c, &places, None).expect("the places are within the batch")
        };
        let columns = self.columns.iter().map(take).collect();
        Batch { schema: self.schema.clone(), columns, len: rows.len() }
    }

    /// Returns the rows of this batch, then those of another one of the same schema. The columns
    /// take no more memory than they need.
    pub fn joined_with(&self, other: &Batch) -> Batch {
        let columns = self.columns.iter().zip(&other.columns);
        let columns = columns.map(|(one, other)| Batch::joined(&[one, other])).collect();
        Batch { schema: self.schema.clone(), columns, len: self.len + other.len }
    }

    /// Returns the rows of several batches of one schema, one batch after the other. There is at least
    /// one.
    pub fn concat(batches: &[&Batch]) -> Batch {
        if let [batch] = batches {
            return (*batch).clone();
        }
        let schema = batches[0].schema.clone();
        let column = |nth: usize| {
            let arrays: Vec<&dyn Array> =
                batches.iter().map(|batch| batch.columns[nth].as_ref()).collect();
            Batch::joined(&arrays)
        };
        let columns = (0..schema.len()).map(column).collect();
        Batch { schema, columns, len: batches.iter().map(|batch| batch.len).sum() }
    }

    /// Returns rows of several batches of one schema. Each is given by its batch and its row there.
    pub fn interleave(batches: &[&Batch], rows: &[(u32, u32)]) -> Batch {
        let rows: Vec<(usize, usize)> = rows.iter().map(|r| (r.0 as usize, r.1 as usize)).collect();
        let schema = batches[0].schema.clone();
        let columns = (0..schema.len()).map(|column| Batch::gather(batches, column, &rows));
        Batch::new(schema.clone(), columns.collect(), rows.len())
    }

    /// Returns one column of rows of several batches of one schema. Each row is given by its batch
    /// and its row there.
    pub fn gather(batches: &[&Batch], column: usize, rows: &[(usize, usize)]) -> ArrayRef {
        if let Some(bools) = Batch::bools_of(batches, column) {
            // Arrow has a fast way for all types but this one.
            let bools = rows.iter().map(|(batch, row)| {
                let bools = bools[*batch];
                bools.is_valid(*row).then(|| bools.value(*row))
            });
            return Arc::new(bools.collect::<BooleanArray>());
        }
        let arrays: Vec<&dyn Array> =
            batches.iter().map(|batch| batch.columns[column].as_ref()).collect();
        arrow_select::interleave::interleave(&arrays, rows).expect("arrays of one type")
    }

    /// Returns a column of several batches, if it has booleans.
    fn bools_of<'b>(batches: &[&'b Batch], column: usize) -> Option<Vec<&'b BooleanArray>> {
        batches.iter().map(|batch| batch.columns[column].as_boolean_opt()).collect()
    }

    /// Returns the rows for which `keep` is true.
    pub fn filter(&self, keep: &BooleanArray) -> Result<Batch> {
        let columns = self
            .columns
            .iter()
            .map(|c| arrow_select::filter::filter(c, keep))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| Error::internal(format!("filtering a batch: {e}")))?;
        Ok(Batch { schema: self.schema.clone(), columns, len: keep.true_count() })
    }

    /// Converts to an Arrow record batch with timestamps, decimals (`Decimal128`) and lists.
    pub fn to_arrow(&self) -> Result<RecordBatch> {
        let schema = Arc::new(arrow_schema(&self.schema));
        let columns = (0..self.columns.len()).map(|c| self.arrow_column(c)).collect();
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(self.len));
        RecordBatch::try_new_with_options(schema, columns, &options)
            .map_err(|e| Error::internal(format!("creating an Arrow batch: {e}")))
    }

    fn arrow_column(&self, column: usize) -> ArrayRef {
        let array = &self.columns[column];
        let ints = || array.as_primitive::<Int64Type>();
        match &self.schema.columns[column].ty {
            DataType::Timestamp => Arc::new(
                TimestampMicrosecondArray::new(ints().values().clone(), ints().nulls().cloned())
                    .with_timezone("UTC"),
            ),
            DataType::Decimal(scale) => {
                let wide = ints().iter().map(|v| v.map(i128::from));
                let array = Decimal128Array::from_iter(wide);
                let sized = array.with_precision_and_scale(DECIMAL_PRECISION, *scale as i8);
                Arc::new(sized.expect("a 64-bit integer has at most 19 digits"))
            }
            DataType::List(inner) => {
                let mut items =
                    BatchBuilder::new(Arc::new(Schema::new(vec![crate::schema::Column::new(
                        "item",
                        (**inner).clone(),
                    )
                    .nullable()])));
                let mut lengths = Vec::with_capacity(self.len);
                for row in 0..self.len {
                    match self.value(column, row) {
                        Value::List(values) => {
                            for value in values.iter() {
                                items.push(std::slice::from_ref(value));
                            }
                            lengths.push(Some(values.len()));
                        }
                        _ => lengths.push(None),
                    }
                }
                list_array(items.finish().arrow_column(0), &lengths)
            }
            _ => array.clone(),
        }
    }

    /// Converts an Arrow record batch whose columns have the names of `schema`, in any order.
    ///
    /// The batch may be from any origin: invalid data is refused. Every Arrow type for a column's
    /// values is accepted if no value is lost. `owner` names the owner of these rows, for the
    /// error. `first` is the number of the first row.
    pub fn from_arrow(
        owner: &str,
        schema: &Arc<Schema>,
        batch: &RecordBatch,
        first: usize,
    ) -> Result<Batch> {
        let fields = batch.schema();
        for field in fields.fields() {
            if outside::is_unnamed_index(field.name()) && schema.index_of(field.name()).is_none() {
                continue;
            }
            schema.find(owner, field.name()).map_err(|mut e| {
                e.kind = crate::error::Kind::Input;
                e
            })?;
        }
        let mut columns = Vec::with_capacity(schema.len());
        for column in &schema.columns {
            let found = fields.column_with_name(&column.name);
            let array = match (found, &column.default) {
                (Some((index, field)), _) => {
                    outside::column(batch.column(index), field, column, first)
                }
                (None, Some(default)) => {
                    let rows = std::iter::repeat_n(default, batch.num_rows());
                    Ok(constant_column(&column.ty, rows))
                }
                (None, None) if column.nullable => {
                    let rows = std::iter::repeat_n(&Value::Null, batch.num_rows());
                    Ok(constant_column(&column.ty, rows))
                }
                (None, None) => Err(format!("the data has no column '{}'", column.name)),
            };
            columns.push(array.map_err(|why| Error::input(format!("{owner}: {why}")))?);
        }
        Ok(Batch { schema: schema.clone(), columns, len: batch.num_rows() })
    }

    /// Concatenates arrays of one type.
    pub fn joined(arrays: &[&dyn Array]) -> ArrayRef {
        arrow_select::concat::concat(arrays).expect("arrays of one type")
    }

    /// Converts one column of a batch from an array of any origin, as [`Batch::from_arrow`] does.
    pub fn column_from_arrow(
        array: &ArrayRef,
        field: &Field,
        column: &crate::schema::Column,
        first: usize,
    ) -> Result<ArrayRef, String> {
        outside::column(array, field, column, first)
    }
}

fn constant_column<'a>(ty: &DataType, values: impl Iterator<Item = &'a Value>) -> ArrayRef {
    let mut builder = ColumnBuilder::new(ty);
    values.for_each(|v| builder.push(v));
    builder.finish()
}

const DECIMAL_PRECISION: u8 = 19;

fn list_array(items: ArrayRef, lengths: &[Option<usize>]) -> ArrayRef {
    let field = Arc::new(Field::new("item", items.data_type().clone(), true));
    let offsets = arrow_buffer::OffsetBuffer::from_lengths(lengths.iter().map(|l| l.unwrap_or(0)));
    let nulls = lengths.iter().map(Option::is_some).collect::<Vec<bool>>();
    Arc::new(arrow_array::ListArray::new(field, offsets, items, Some(nulls.into())))
}

/// Returns the Arrow type that a column has inside a batch.
pub fn inner_type(ty: &DataType) -> ArrowType {
    match ty {
        DataType::Int | DataType::Timestamp | DataType::Decimal(_) => ArrowType::Int64,
        DataType::Float => ArrowType::Float64,
        DataType::Bool => ArrowType::Boolean,
        DataType::Str => ArrowType::Utf8,
        DataType::Bytes | DataType::Any | DataType::List(_) => ArrowType::Binary,
    }
}

/// Returns the Arrow type that a column has outside.
pub fn arrow_type(ty: &DataType) -> ArrowType {
    match ty {
        DataType::Timestamp => ArrowType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        DataType::Decimal(scale) => ArrowType::Decimal128(DECIMAL_PRECISION, *scale as i8),
        DataType::List(inner) => {
            ArrowType::List(Arc::new(Field::new("item", arrow_type(inner), true)))
        }
        other => inner_type(other),
    }
}

/// Returns the Arrow schema of [`Batch::to_arrow`].
pub fn arrow_schema(schema: &Schema) -> ArrowSchema {
    let field = |c: &crate::schema::Column| Field::new(&*c.name, arrow_type(&c.ty), c.nullable);
    ArrowSchema::new(schema.columns.iter().map(field).collect::<Vec<_>>())
}

/// A builder of a batch, row by row.
#[derive(Debug)]
pub struct BatchBuilder {
    schema: Arc<Schema>,
    columns: Vec<ColumnBuilder>,
    len: usize,
}

impl BatchBuilder {
    /// Creates an empty builder.
    pub fn new(schema: Arc<Schema>) -> BatchBuilder {
        let columns = schema.columns.iter().map(|c| ColumnBuilder::new(&c.ty)).collect();
        BatchBuilder { schema, columns, len: 0 }
    }

    /// Creates an empty builder with room for `rows` rows. The default room is for a thousand, too
    /// much for a single row.
    pub fn of_rows(schema: Arc<Schema>, rows: usize) -> BatchBuilder {
        let column = |c: &crate::schema::Column| ColumnBuilder::of_rows(&c.ty, rows);
        let columns = schema.columns.iter().map(column).collect();
        BatchBuilder { schema, columns, len: 0 }
    }

    /// Returns the number of rows so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no rows yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a row, whose values fit the schema.
    pub fn push(&mut self, row: &[Value]) {
        assert_eq!(row.len(), self.columns.len(), "a row has a value for every column");
        for (value, column) in row.iter().zip(&mut self.columns) {
            column.push(value);
        }
        self.len += 1;
    }

    /// Returns the columns, to be filled one by one. Call [`BatchBuilder::advance`] afterwards.
    pub fn columns_mut(&mut self) -> &mut [ColumnBuilder] {
        &mut self.columns
    }

    /// Records that `rows` more values were pushed to every column.
    pub fn advance(&mut self, rows: usize) {
        self.len += rows;
    }

    /// Returns the batch and leaves the builder empty.
    pub fn finish(&mut self) -> Batch {
        let columns = self.columns.iter_mut().map(ColumnBuilder::finish).collect();
        Batch::new(self.schema.clone(), columns, std::mem::take(&mut self.len))
    }
}

/// A builder of one column of a batch.
#[derive(Debug)]
pub enum ColumnBuilder {
    /// Int, timestamp and decimal.
    Int(Int64Builder),
    /// Float.
    Float(Float64Builder),
    /// Bool.
    Bool(BooleanBuilder),
    /// Str.
    Str(StringBuilder),
    /// Bytes and any; also lists, encoded.
    Bytes(BinaryBuilder),
}

impl ColumnBuilder {
    /// Creates a builder for a column of this type.
    pub fn new(ty: &DataType) -> ColumnBuilder {
        match inner_type(ty) {
            ArrowType::Int64 => ColumnBuilder::Int(Int64Builder::new()),
            ArrowType::Float64 => ColumnBuilder::Float(Float64Builder::new()),
            ArrowType::Boolean => ColumnBuilder::Bool(BooleanBuilder::new()),
            ArrowType::Utf8 => ColumnBuilder::Str(StringBuilder::new()),
            _ => ColumnBuilder::Bytes(BinaryBuilder::new()),
        }
    }

    /// Creates a builder with room for `rows` rows. The room for texts and bytes grows as they are
    /// pushed.
    pub fn of_rows(ty: &DataType, rows: usize) -> ColumnBuilder {
        match inner_type(ty) {
            ArrowType::Int64 => ColumnBuilder::Int(Int64Builder::with_capacity(rows)),
            ArrowType::Float64 => ColumnBuilder::Float(Float64Builder::with_capacity(rows)),
            ArrowType::Boolean => ColumnBuilder::Bool(BooleanBuilder::with_capacity(rows)),
            ArrowType::Utf8 => ColumnBuilder::Str(StringBuilder::with_capacity(rows, 0)),
            _ => ColumnBuilder::Bytes(BinaryBuilder::with_capacity(rows, 0)),
        }
    }

    /// Appends a value of the column's type, or null.
    pub fn push(&mut self, value: &Value) {
        match (self, value) {
            (ColumnBuilder::Int(b), Value::Int(i) | Value::Timestamp(i) | Value::Decimal(i, _)) => {
                b.append_value(*i)
            }
            (ColumnBuilder::Float(b), Value::Float(f)) => b.append_value(*f),
            (ColumnBuilder::Bool(b), Value::Bool(v)) => b.append_value(*v),
            (ColumnBuilder::Str(b), Value::Str(s)) => b.append_value(s),
            (ColumnBuilder::Bytes(b), Value::Bytes(v) | Value::Any(v)) => b.append_value(v),
            (ColumnBuilder::Bytes(b), list @ Value::List(_)) => {
                let mut bytes = Vec::new();
                encode::value(list, &mut bytes);
                b.append_value(bytes);
            }
            (builder, Value::Null) => builder.push_null(),
            (builder, value) => panic!("{value} does not fit {builder:?}"),
        }
    }

    /// Appends a null.
    pub fn push_null(&mut self) {
        match self {
            ColumnBuilder::Int(b) => b.append_null(),
            ColumnBuilder::Float(b) => b.append_null(),
            ColumnBuilder::Bool(b) => b.append_null(),
            ColumnBuilder::Str(b) => b.append_null(),
            ColumnBuilder::Bytes(b) => b.append_null(),
        }
    }

    /// Returns the column and leaves the builder empty.
    pub fn finish(&mut self) -> ArrayRef {
        match self {
            ColumnBuilder::Int(b) => Arc::new(b.finish()),
            ColumnBuilder::Float(b) => Arc::new(b.finish()),
            ColumnBuilder::Bool(b) => Arc::new(b.finish()),
            ColumnBuilder::Str(b) => Arc::new(b.finish()),
            ColumnBuilder::Bytes(b) => Arc::new(b.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Column;

    fn schema() -> Arc<Schema> {
        Arc::new(Schema::new(vec![
            Column::new("i", DataType::Int),
            Column::new("f", DataType::Float).nullable(),
            Column::new("b", DataType::Bool).nullable(),
            Column::new("s", DataType::Str).nullable(),
            Column::new("y", DataType::Bytes).nullable(),
            Column::new("t", DataType::Timestamp).nullable(),
            Column::new("d", DataType::Decimal(2)).nullable(),
            Column::new("l", DataType::List(Box::new(DataType::Str))).nullable(),
            Column::new("a", DataType::Any).nullable(),
        ]))
    }

    fn rows() -> Vec<Vec<Value>> {
        let mut nulls = vec![Value::Null; 9];
        nulls[0] = Value::Int(-1);
        vec![
            vec![
                Value::Int(7),
                Value::Float(-0.0),
                Value::Bool(true),
                Value::str("é"),
                Value::Bytes(vec![0, 1].into()),
                Value::Timestamp(725_846_400_000_000),
                Value::Decimal(-1250, 2),
                Value::List(vec![Value::str("x"), Value::Null].into()),
                Value::Any(vec![0xc0].into()),
            ],
            nulls,
        ]
    }

    #[test]
    fn rows_come_back() {
        let rows = rows();
        let batch = Batch::from_rows(schema(), rows.iter().map(|r| &r[..]));
        assert_eq!(batch.rows().map(|r| r.to_vec()).collect::<Vec<_>>(), rows);
        assert_eq!(batch.slice(1, 1).row(0).to_vec(), rows[1]);
        assert_eq!(batch.ints(0), Some(&[7, -1][..]));
        assert_eq!(batch.ints(6), None, "a column with nulls has no plain slice");
    }

    #[test]
    fn batches_of_words() {
        let words = vec![vec![5, 1], vec![1.5f64.to_bits(), (-0.0f64).to_bits()], vec![1, 0]];
        let columns = schema().columns[..3].to_vec();
        let schema = Arc::new(Schema::new(columns));
        let batch = Batch::of_words(schema.clone(), words, 2);
        let row = |i, f, b| vec![Value::Int(i), Value::Float(f), Value::Bool(b)];
        let rows: Vec<Vec<Value>> = batch.rows().map(|row| row.to_vec()).collect();
        assert_eq!(rows, [row(5, 1.5, true), row(1, -0.0, false)]);
        let picked = Batch::interleave(&[&batch, &batch.slice(1, 1)], &[(1, 0), (0, 0)]);
        assert_eq!(picked.row(0).to_vec(), rows[1]);
        assert_eq!(picked.row(1).to_vec(), rows[0]);
    }

    #[test]
    fn arrays_that_do_not_fit_a_schema_are_refused() {
        let batch = Batch::from_rows(schema(), rows().iter().map(|r| &r[..]));
        let with = |change: &dyn Fn(&mut Vec<Column>)| {
            let mut columns = schema().columns.clone();
            change(&mut columns);
            batch.with_schema(&Arc::new(Schema::new(columns))).map(|batch| batch.row(1))
        };
        assert_eq!(with(&|columns| columns[0].ty = DataType::Timestamp).unwrap().len(), 9);
        let error = |change: &dyn Fn(&mut Vec<Column>)| with(change).unwrap_err();
        assert_eq!(error(&|columns| drop(columns.pop())), "9 columns instead of 8");
        assert!(error(&|columns| columns[0].ty = DataType::Str).contains("Int64 instead of Utf8"));
        assert_eq!(error(&|columns| columns[3].nullable = false), "column 's' has a null");
    }

    #[test]
    fn arrow_and_back() {
        let batch = Batch::from_rows(schema(), rows().iter().map(|r| &r[..]));
        let arrow = batch.to_arrow().unwrap();
        let back = Batch::from_arrow("stream s", &schema(), &arrow, 0).unwrap();
        assert_eq!(back.rows().collect::<Vec<_>>(), batch.rows().collect::<Vec<_>>());
        for row in 0..batch.len() {
            let (mut plain, mut direct) = (Vec::new(), Vec::new());
            batch.row(row).iter().for_each(|v| encode::value(v, &mut plain));
            batch.encode_row(row, &mut direct);
            assert_eq!(plain, direct);
        }
    }

    /// The microseconds of this day, in 64 bits, are those of the last day of 1969.
    #[test]
    fn days_without_a_timestamp_are_refused() {
        let days: ArrayRef = Arc::new(arrow_array::Date32Array::from(vec![213_503_982]));
        let field = Field::new("t", ArrowType::Date32, false);
        let column = Column::new("t", DataType::Timestamp);
        let error = Batch::column_from_arrow(&days, &field, &column, 0).unwrap_err();
        assert!(error.contains("outside of the years"), "{error}");
    }

    #[test]
    fn arrow_that_does_not_fit_is_refused() {
        let narrow = Arc::new(Schema::new(vec![Column::new("d", DataType::Decimal(1))]));
        let wide = Arc::new(Schema::new(vec![Column::new("d", DataType::Decimal(2))]));
        let row = [Value::Decimal(125, 2)];
        let arrow = Batch::from_rows(wide, [&row[..]]).to_arrow().unwrap();
        let error = Batch::from_arrow("stream s", &narrow, &arrow, 0).unwrap_err();
        assert!(error.what.contains("more than 1 digits"), "{error}");
        let other = Arc::new(Schema::new(vec![Column::new("dd", DataType::Decimal(2))]));
        let error = Batch::from_arrow("stream s", &other, &arrow, 0).unwrap_err();
        assert_eq!(error.help, "did you mean 'dd'?");
    }
}
