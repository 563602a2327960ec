//! Rows between Python and batches.

use std::sync::Arc;

use arrow_array::RecordBatch;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PySequence, PyString};
use pyo3_arrow::{PyRecordBatch, PyTable};
use tidemill_core::batch::BatchBuilder;
use tidemill_core::error::nearest;
use tidemill_core::{Batch, Column, Error, Schema, Value};

use crate::errors;
use crate::values::{input, to_python};

/// The rows that `mill.send` was given: a list of dicts, a dict of lists, or what has the Arrow
/// interface. All of them, or an error that names the row and its column.
pub fn from_python(
    owner: &str,
    schema: &Arc<Schema>,
    rows: &Bound<'_, PyAny>,
) -> PyResult<Vec<Batch>> {
    let py = rows.py();
    let fail = |e: Error| errors::to_python(py, &e);
    if rows.hasattr("__arrow_c_stream__")? {
        let (batches, _) = rows.extract::<PyTable>()?.into_inner();
        return batches.iter().map(|b| from_arrow(owner, schema, b).map_err(fail)).collect();
    }
    if rows.hasattr("__arrow_c_array__")? {
        let batch = rows.extract::<PyRecordBatch>()?.into_inner();
        return Ok(vec![from_arrow(owner, schema, &batch).map_err(fail)?]);
    }
    if let Ok(columns) = rows.cast::<PyDict>() {
        return Ok(vec![from_columns(owner, schema, columns)?]);
    }
    if rows.is_instance_of::<PyString>() {
        return Err(fail(not_rows(owner, rows)));
    }
    let Ok(items) = rows.try_iter() else { return Err(fail(not_rows(owner, rows))) };
    let mut builder = BatchBuilder::new(schema.clone());
    let mut row = Vec::with_capacity(schema.len());
    for (index, item) in items.enumerate() {
        let item = item?;
        row.clear();
        read_row(owner, schema, index, &item, &mut row)?;
        builder.push(&row);
    }
    Ok(vec![builder.finish()])
}

fn from_arrow(owner: &str, schema: &Arc<Schema>, batch: &RecordBatch) -> Result<Batch, Error> {
    Batch::from_arrow(owner, schema, batch)
}

fn not_rows(owner: &str, rows: &Bound<'_, PyAny>) -> Error {
    let name = rows.get_type().name().map(|n| n.to_string()).unwrap_or_default();
    Error::input(format!("{owner}: a value of type {name} holds no rows")).help(
        "give a list of dicts, a dict of lists, a pyarrow Table or RecordBatch, or a data frame \
         with the Arrow interface (pandas, polars)",
    )
}

fn bad(owner: &str, row: usize, column: &str, why: &str) -> Error {
    Error::input(format!("{owner}: row {row}, column '{column}': {why}"))
}

fn unknown(owner: &str, row: Option<usize>, schema: &Schema, name: &str) -> Error {
    let names: Vec<&str> = schema.columns.iter().map(|c| &*c.name).collect();
    let place = row.map(|row| format!(" (row {row})")).unwrap_or_default();
    let error = Error::input(format!("{owner} has no column '{name}'{place}"));
    match nearest(name, names.iter().copied()) {
        Some(near) => error.help(format!("did you mean '{near}'?")),
        None => error.help(format!("its columns are {}", names.join(", "))),
    }
}

/// What a row has in a column that it was not given a value for.
fn absent(column: &Column) -> Option<Value> {
    column.default.clone().or(column.nullable.then_some(Value::Null))
}

fn read_row(
    owner: &str,
    schema: &Schema,
    index: usize,
    item: &Bound<'_, PyAny>,
    row: &mut Vec<Value>,
) -> PyResult<()> {
    let py = item.py();
    let fail = |e: Error| errors::to_python(py, &e);
    let mut found = 0;
    for column in &schema.columns {
        let given = if let Ok(dict) = item.cast::<PyDict>() {
            dict.get_item(&*column.name)?
        } else if let Ok(mapping) = item.cast::<PyMapping>() {
            mapping.contains(&*column.name)?.then(|| mapping.get_item(&*column.name)).transpose()?
        } else {
            let name = item.get_type().name()?;
            return Err(fail(
                Error::input(format!("{owner}: row {index} is a {name}, not a dict"))
                    .help("give each row as dict(column=value, ...)"),
            ));
        };
        row.push(match given {
            Some(value) => {
                found += 1;
                input(&value, column).map_err(|why| fail(bad(owner, index, &column.name, &why)))?
            }
            None => absent(column)
                .ok_or_else(|| fail(bad(owner, index, &column.name, "it has no value")))?,
        });
    }
    if item.len()? != found {
        for key in item.try_iter()? {
            let key = key?;
            let known = key.extract::<String>().is_ok_and(|k| schema.index_of(&k).is_some());
            if !known {
                return Err(fail(unknown(owner, Some(index), schema, &key.str()?.to_string())));
            }
        }
    }
    Ok(())
}

fn from_columns(owner: &str, schema: &Arc<Schema>, columns: &Bound<'_, PyDict>) -> PyResult<Batch> {
    let py = columns.py();
    let fail = |e: Error| errors::to_python(py, &e);
    let mut len = None;
    for (name, values) in columns {
        let name = name.str()?.to_string();
        if schema.index_of(&name).is_none() {
            return Err(fail(unknown(owner, None, schema, &name)));
        }
        let of_column = match values.is_instance_of::<PyString>() {
            true => Err(()),
            false => values.len().map_err(|_| ()),
        };
        let Ok(of_column) = of_column else {
            return Err(fail(
                Error::input(format!("{owner}: column '{name}' is not a list of values"))
                    .help("a dict gives a list for each column; for one row write [dict(...)]"),
            ));
        };
        match len {
            None => len = Some(of_column),
            Some(len) if len != of_column => {
                return Err(fail(Error::input(format!(
                    "{owner}: column '{name}' has {of_column} values, but another has {len}"
                ))))
            }
            Some(_) => {}
        }
    }
    let len = len.unwrap_or(0);
    let mut builder = BatchBuilder::new(schema.clone());
    for (column, target) in schema.columns.iter().zip(builder.columns_mut()) {
        let Some(values) = columns.get_item(&*column.name)? else {
            let value = absent(column).ok_or_else(|| {
                fail(Error::input(format!("{owner}: there is no column '{}'", column.name)))
            })?;
            (0..len).for_each(|_| target.push(&value));
            continue;
        };
        // What has a length and can be iterated; a list in the common case.
        let mut rows = 0;
        for (index, value) in values.try_iter()?.enumerate() {
            let value = input(&value?, column)
                .map_err(|why| fail(bad(owner, index, &column.name, &why)))?;
            target.push(&value);
            rows += 1;
        }
        if rows != len {
            return Err(fail(Error::input(format!(
                "{owner}: column '{}' changed while it was read",
                column.name
            ))));
        }
    }
    builder.advance(len);
    Ok(builder.finish())
}

/// A batch's rows as dicts.
pub fn to_dicts<'py>(py: Python<'py>, batch: &Batch) -> PyResult<Bound<'py, PyList>> {
    let names: Vec<Bound<'py, PyString>> =
        batch.schema().columns.iter().map(|c| PyString::intern(py, &c.name)).collect();
    let rows = PyList::empty(py);
    for row in 0..batch.len() {
        let dict = PyDict::new(py);
        for (column, name) in names.iter().enumerate() {
            dict.set_item(name, to_python(py, &batch.value(column, row))?)?;
        }
        rows.append(dict)?;
    }
    Ok(rows)
}

/// Any sequence of pairs, for callers that keep an order.
pub fn pairs<'py>(object: &Bound<'py, PyAny>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let sequence = object.cast::<PySequence>()?;
    sequence.try_iter()?.map(|pair| pair?.extract()).collect()
}
