//! Conversion of rows between Python and batches.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyString};
use tidemill_core::batch::{BatchBuilder, ColumnBuilder};
use tidemill_core::error::nearest;
use tidemill_core::{Batch, Column, DataType, Error, Schema, Value};

use crate::values::{input, to_python};
use crate::{arrow, errors};

/// Converts the rows of `mill.send`: a list of dicts, a dict of lists, or an object with the Arrow
/// interface. Returns all of them, or an error that names the row and its column.
pub fn from_python(
    owner: &str,
    schema: &Arc<Schema>,
    rows: &Bound<'_, PyAny>,
) -> PyResult<Vec<Batch>> {
    let py = rows.py();
    let fail = |e: Error| errors::to_python(py, &e);
    if arrow::has_data(rows)? {
        return from_arrow(owner, schema, rows);
    }
    if let Ok(columns) = rows.cast::<PyDict>() {
        return Ok(vec![from_columns(owner, schema, columns)?]);
    }
    if rows.is_instance_of::<PyString>() || is_lazy(rows) {
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

fn from_arrow(owner: &str, schema: &Arc<Schema>, rows: &Bound<'_, PyAny>) -> PyResult<Vec<Batch>> {
    let py = rows.py();
    let given = rows;
    let rows = checked(owner, given, "")?;
    let not_taken = |why: PyErr| not_read(&rows, why, not_rows(owner, given));
    let batches = imported(owner, || arrow::batches(&rows))?.map_err(not_taken)?;
    let mut first = 0;
    let mut taken = Vec::with_capacity(batches.len());
    for batch in &batches {
        let more = Batch::from_arrow(owner, schema, batch, first);
        taken.push(more.map_err(|error| {
            let fields = batch.schema();
            let unknown = fields.fields().iter().find(|f| schema.index_of(f.name()).is_none());
            let error = unknown
                .and_then(|field| index_help(given, field.name()))
                .map_or_else(|| error.clone(), |help| error.clone().help(help));
            errors::to_python(py, &error)
        })?);
        first += taken.last().map_or(0, Batch::len);
    }
    Ok(taken)
}

/// Returns how to send a frame of pandas without its index, if the column is one.
fn index_help(given: &Bound<'_, PyAny>, column: &str) -> Option<String> {
    let foreign = given.py().import("tidemill.foreign").ok()?;
    let help: String =
        foreign.getattr("index_help").ok()?.call1((given, column)).ok()?.extract().ok()?;
    (!help.is_empty()).then_some(help)
}

/// Imports an object with Arrow's interface, and checks it as far as an importer can.
fn checked<'py>(
    owner: &str,
    given: &Bound<'py, PyAny>,
    column: &str,
) -> PyResult<Bound<'py, PyAny>> {
    given.py().import("tidemill.foreign")?.getattr("checked")?.call1((owner, given, column))
}

/// Imports an object with Arrow's interface. Some invalid data shows only by a panic of the import.
fn imported<T>(owner: &str, import: impl FnOnce() -> T) -> PyResult<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(import)).map_err(|_| {
        let error = Error::input(format!("{owner}: the data is not valid Arrow"));
        let error = error.help("the library that created it has a bug");
        Python::attach(|py| errors::to_python(py, &error))
    })
}

/// Returns why an object with Arrow's interface could not be read. Exceptions that are not errors,
/// such as an interrupt, stay as they are.
fn not_read(given: &Bound<'_, PyAny>, why: PyErr, mut error: Error) -> PyErr {
    let py = given.py();
    if !why.is_instance_of::<PyException>(py) {
        return why;
    }
    let why = why.value(py).to_string();
    if why.contains("\"Null\"") {
        error = error.help("give columns of the null type another type, or send a pyarrow Table");
    }
    error.what = format!("{} that can be read: {why}", error.what);
    errors::to_python(py, &error)
}

/// Imports a column with Arrow's interface: an array or a series.
fn arrow_column(
    owner: &str,
    column: &Column,
    values: &Bound<'_, PyAny>,
) -> PyResult<Option<ArrayRef>> {
    let py = values.py();
    if !arrow::has_data(values)? {
        return Ok(None);
    }
    let values = checked(owner, values, &column.name)?;
    let fail = |why: String| errors::to_python(py, &Error::input(format!("{owner}: {why}")));
    let not_taken = |why: PyErr| {
        let what = format!("{owner}: column '{}' holds no values", column.name);
        not_read(&values, why, Error::input(what))
    };
    let (chunks, field) = imported(owner, || arrow::arrays(&values))?.map_err(not_taken)?;
    let mut first = 0;
    let mut taken = Vec::with_capacity(chunks.len());
    for chunk in &chunks {
        taken.push(Batch::column_from_arrow(chunk, &field, column, first).map_err(fail)?);
        first += chunk.len();
    }
    let arrays: Vec<&dyn Array> = taken.iter().map(AsRef::as_ref).collect();
    match arrays[..] {
        [] => Ok(Some(ColumnBuilder::new(&column.ty).finish())),
        [_] => Ok(taken.pop()),
        _ => Ok(Some(Batch::joined(&arrays))),
    }
}

fn is_lazy(rows: &Bound<'_, PyAny>) -> bool {
    rows.get_type().name().is_ok_and(|name| name == "LazyFrame")
}

fn not_rows(owner: &str, rows: &Bound<'_, PyAny>) -> Error {
    let name = rows.get_type().name().map(|n| n.to_string()).unwrap_or_default();
    if name == "LazyFrame" {
        return Error::input(format!("{owner}: a LazyFrame describes rows, and holds none"))
            .help("send frame.collect()");
    }
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

/// Returns the value of a column for which a row has none.
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
    let (mut len, mut arrays) = (None, HashMap::new());
    for (name, values) in columns {
        let name = name.str()?.to_string();
        let array = match schema.index_of(&name).map(|index| &schema.columns[index]) {
            Some(column) => arrow_column(owner, column, &values)?,
            None => return Err(fail(unknown(owner, None, schema, &name))),
        };
        let of_column = match &array {
            Some(array) => Ok(array.len()),
            None if is_lazy(&values) => return Err(fail(not_rows(owner, &values))),
            None if values.is_instance_of::<PyString>() => Err(()),
            None => values.len().map_err(|_| ()),
        };
        let Ok(of_column) = of_column else {
            return Err(fail(
                Error::input(format!("{owner}: column '{name}' is not a list of values"))
                    .help("a dict gives a list for each column; for one row write [dict(...)]"),
            ));
        };
        if let Some(array) = array {
            arrays.insert(name.clone(), array);
        }
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
    let mut made = Vec::with_capacity(schema.len());
    for column in &schema.columns {
        let mut target = ColumnBuilder::of_rows(&column.ty, len);
        let Some(values) = columns.get_item(&*column.name)? else {
            let value = absent(column).ok_or_else(|| {
                fail(Error::input(format!("{owner}: there is no column '{}'", column.name)))
            })?;
            (0..len).for_each(|_| target.push(&value));
            made.push(target.finish());
            continue;
        };
        if let Some(array) = arrays.remove(&*column.name) {
            made.push(array);
            continue;
        }
        let foreign = py.import("tidemill.foreign")?;
        let (values, bad_row, why) =
            match foreign.getattr("is_times")?.call1((&values,))?.extract()? {
                true if column.ty == DataType::Timestamp => {
                    let times = foreign.getattr("times")?.call1((&values,))?;
                    times.extract::<(Bound<'_, PyAny>, isize, String)>()?
                }
                _ => (values, -1, String::new()),
            };
        if let Ok(row) = usize::try_from(bad_row) {
            return Err(fail(bad(owner, row, &column.name, &why)));
        }
        // The values have a length and can be iterated; usually they are a list.
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
        made.push(target.finish());
    }
    Ok(Batch::new(schema.clone(), made, len))
}

/// Returns a batch's rows as dicts.
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
