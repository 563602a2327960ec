//! Conversion of values between Rust and Python.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple, PyType,
};
use tidemill_core::rules::{self, Fault};
use tidemill_core::value::format_decimal;
use tidemill_core::{Column, DataType, Schema, Value};

use crate::msgpack;

/// The Python classes of values, looked up once.
struct Classes {
    decimal: Py<PyType>,
    datetime: Py<PyType>,
    timedelta: Py<PyType>,
    epoch: Py<PyAny>,
    utc: Py<PyAny>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

fn classes(py: Python<'_>) -> PyResult<&Classes> {
    CLASSES.get_or_try_init(py, || {
        let datetime = py.import("datetime")?;
        let utc = datetime.getattr("timezone")?.getattr("utc")?;
        let class = datetime.getattr("datetime")?;
        let kwargs = pyo3::types::PyDict::new(py);
        kwargs.set_item("tzinfo", &utc)?;
        Ok(Classes {
            decimal: py.import("decimal")?.getattr("Decimal")?.cast_into::<PyType>()?.unbind(),
            epoch: class.call((1970, 1, 1), Some(&kwargs))?.unbind(),
            datetime: class.cast_into::<PyType>()?.unbind(),
            timedelta: datetime.getattr("timedelta")?.cast_into::<PyType>()?.unbind(),
            utc: utc.unbind(),
        })
    })
}

/// Converts a value to Python.
pub fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(b) => PyBool::new(py, *b).to_owned().into_any(),
        Value::Int(i) => i.into_pyobject(py)?.into_any(),
        Value::Float(f) => PyFloat::new(py, *f).into_any(),
        Value::Str(s) => PyString::new(py, s).into_any(),
        Value::Bytes(b) => PyBytes::new(py, b).into_any(),
        Value::Timestamp(us) => {
            let classes = classes(py)?;
            let delta = classes.timedelta.bind(py).call1((0, 0, *us));
            match delta.and_then(|d| classes.epoch.bind(py).add(d)) {
                Ok(at) => at,
                // No datetime has such a year, and one row must not hide all others.
                Err(_) => us.into_pyobject(py)?.into_any(),
            }
        }
        Value::Decimal(units, scale) => {
            classes(py)?.decimal.bind(py).call1((format_decimal(*units, *scale),))?
        }
        Value::List(items) => {
            let list = PyList::empty(py);
            for item in items.iter() {
                list.append(to_python(py, item)?)?;
            }
            list.into_any()
        }
        Value::Any(bytes) => msgpack::from_bytes(py, bytes)?,
    })
}

/// Returns the values as a tuple.
pub fn to_tuple<'py>(py: Python<'py>, values: &[Value]) -> PyResult<Bound<'py, PyTuple>> {
    let items = values.iter().map(|v| to_python(py, v)).collect::<PyResult<Vec<_>>>()?;
    PyTuple::new(py, items)
}

/// Returns a decimal of this text.
pub fn to_decimal<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    classes(py)?.decimal.bind(py).call1((text,))
}

/// Returns the text of a decimal, if the object is one.
pub fn decimal_of(object: &Bound<'_, PyAny>) -> Result<Option<String>, String> {
    let py = object.py();
    let is = classes(py).and_then(|classes| object.is_instance(classes.decimal.bind(py)));
    if !is.map_err(|e| e.to_string())? {
        return Ok(None);
    }
    let text = object.str().map_err(|e| e.to_string())?.to_string();
    match rules::is_number(&text) {
        true => Ok(Some(text)),
        false => Err(format!("a decimal that is {text} is no value")),
    }
}

/// Converts a Python object to the value of its own type.
pub fn loose(object: &Bound<'_, PyAny>) -> Result<Value, Fault> {
    let py = object.py();
    let fault = |text: String| Fault(text.into());
    let failed = |e: PyErr| Fault(e.to_string().into());
    if object.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(b) = object.cast::<PyBool>() {
        return Ok(Value::Bool(b.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        return object.extract().map(Value::Int).map_err(|_| Fault::OVERFLOW);
    }
    if let Ok(f) = object.cast::<PyFloat>() {
        return Ok(Value::Float(f.value()));
    }
    if let Ok(s) = object.cast::<PyString>() {
        let text = s.extract::<String>();
        return text.map(|t| Value::str(&t)).map_err(|_| fault("a str is not Unicode".into()));
    }
    if let Ok(b) = object.cast::<PyBytes>() {
        return Ok(Value::Bytes(b.as_bytes().into()));
    }
    if let Ok(b) = object.cast::<PyByteArray>() {
        return Ok(Value::Bytes(b.to_vec().into()));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let items = object.try_iter().map_err(failed)?;
        let items = items.map(|item| loose(&item.map_err(failed)?)).collect::<Result<Vec<_>, _>>();
        return Ok(Value::List(items?.into()));
    }
    let classes = classes(py).map_err(failed)?;
    if object.is_instance(classes.decimal.bind(py)).map_err(failed)? {
        let text = object.str().map_err(failed)?.to_string();
        return rules::parse_any_decimal(&text).map_err(|why| {
            if why.contains("out of range") {
                return Fault::OVERFLOW;
            }
            let round = "round it, with tm.div(a, b, scale=2) or quantize";
            Fault(if why.contains("digits") { format!("{why}: {round}") } else { why }.into())
        });
    }
    if object.is_instance(classes.datetime.bind(py)).map_err(failed)? {
        return time(object, classes);
    }
    if object.is_instance(classes.timedelta.bind(py)).map_err(failed)? {
        check_nanoseconds(object, "nanoseconds")?;
        return microseconds(object).map(Value::Int).map_err(failed);
    }
    let class = object.get_type();
    let name = class.name().map(|name| name.to_string()).unwrap_or_default();
    let module = class.module().map(|module| module.to_string()).unwrap_or_default();
    match (module.as_str(), name.as_str()) {
        ("numpy", "datetime64" | "timedelta64") => {
            let us = py.import("tidemill.foreign").and_then(|m| m.getattr("microseconds"));
            let us = us.and_then(|f| f.call1((object,))?.extract::<Option<i64>>());
            let us = us.map_err(|e| fault(e.value(py).to_string()))?;
            let of = if name == "datetime64" { Value::Timestamp } else { Value::Int };
            return Ok(us.map_or(Value::Null, of));
        }
        ("pandas._libs.missing" | "pandas.api.typing" | "pandas", "NAType") => {
            return Ok(Value::Null)
        }
        _ => {}
    }
    // Scalars of numpy and similar libraries know their Python value.
    if !object.hasattr("__len__").unwrap_or(true) {
        if let Ok(item) = object.call_method0("item") {
            if !item.is(object) && item.get_type().getattr("item").is_err() {
                return loose(&item);
            }
        }
    }
    Err(fault(format!("a value of type {name} can't be stored")))
}

/// The reason for a datetime that has no zone.
const NAIVE: &str = "has no time zone, so it may be any of many moments: write \
                     .replace(tzinfo=timezone.utc) where it is UTC, and .astimezone() where it is local time";

/// Converts a datetime, or a time of pandas. As in pandas itself, a time of pandas without a zone
/// is UTC.
fn time(object: &Bound<'_, PyAny>, classes: &Classes) -> Result<Value, Fault> {
    let py = object.py();
    let failed = |e: PyErr| Fault(e.to_string().into());
    let mut at = object.clone();
    if !object.get_type().is(classes.datetime.bind(py))
        && object.hasattr("nanosecond").map_err(failed)?
    {
        // A "not a time" becomes null: it equals nothing, not even itself.
        if object.ne(object).map_err(failed)? {
            return Ok(Value::Null);
        }
        check_nanoseconds(object, "nanosecond")?;
        at = object.call_method0("to_pydatetime").map_err(failed)?;
        if at.getattr("tzinfo").map_err(failed)?.is_none() {
            let utc = pyo3::types::PyDict::new(py);
            utc.set_item("tzinfo", classes.utc.bind(py)).map_err(failed)?;
            at = at.call_method("replace", (), Some(&utc)).map_err(failed)?;
        }
    }
    if at.getattr("tzinfo").map_err(failed)?.is_none()
        || at.call_method0("utcoffset").map_err(failed)?.is_none()
    {
        let shown = at.call_method0("isoformat").map_err(failed)?;
        return Err(Fault(format!("{shown} {NAIVE}").into()));
    }
    let delta = at.sub(classes.epoch.bind(py)).map_err(failed)?;
    microseconds(&delta).map(Value::Timestamp).map_err(failed)
}

/// Refuses the nanoseconds of a time of pandas.
fn check_nanoseconds(object: &Bound<'_, PyAny>, name: &str) -> Result<(), Fault> {
    match object.getattr(name).and_then(|ns| ns.extract::<i64>()) {
        Ok(ns) if ns != 0 => {
            let shown = object.str().map(|text| text.to_string()).unwrap_or_default();
            Err(Fault(format!("{shown} is finer than microseconds").into()))
        }
        _ => Ok(()),
    }
}

/// Whether the object is a span of time, including numpy's.
pub fn is_span(object: &Bound<'_, PyAny>) -> bool {
    let is = |classes: &Classes| object.is_instance(classes.timedelta.bind(object.py()));
    let is_timedelta = classes(object.py()).and_then(is).unwrap_or(false);
    is_timedelta || object.get_type().name().is_ok_and(|name| name == "timedelta64")
}

fn microseconds(delta: &Bound<'_, PyAny>) -> PyResult<i64> {
    let part = |name: &str| delta.getattr(name)?.extract::<i64>();
    // A timedelta has at most 10^9 days, which fits as microseconds only up to 1.06 * 10^8.
    part("days")?
        .checked_mul(86_400_000_000)
        .and_then(|us| us.checked_add(part("seconds").ok()? * 1_000_000))
        .and_then(|us| us.checked_add(part("microseconds").ok()?))
        .ok_or_else(|| PyValueError::new_err("overflow"))
}

/// Converts a Python object to a value of a column by the rule of storing, for writes of a
/// transaction.
pub fn stored(object: &Bound<'_, PyAny>, column: &Column) -> Result<Value, Fault> {
    match column.ty {
        DataType::Any if !object.is_none() => {
            msgpack::to_bytes(object).map(|b| Value::Any(b.into())).map_err(|e| Fault(e.into()))
        }
        _ => rules::store(&loose(object)?, column),
    }
}

/// Converts a Python object to a value of a column, as input: nothing may be lost.
pub fn input(object: &Bound<'_, PyAny>, column: &Column) -> Result<Value, String> {
    let name = || object.get_type().name().map(|n| n.to_string()).unwrap_or_default();
    match &column.ty {
        DataType::Any if !object.is_none() => {
            return msgpack::to_input_bytes(object).map(|b| Value::Any(b.into()));
        }
        DataType::Decimal(scale) => {
            if let Some(text) = decimal_of(object)? {
                return rules::parse_number(&text, *scale);
            }
        }
        DataType::List(inner)
            if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() =>
        {
            let item = Column::new(&column.name, (**inner).clone()).nullable();
            let items = object.try_iter().map_err(|e| e.to_string())?.enumerate();
            let items = items.map(|(i, value)| {
                let value = input(&value.map_err(|e| e.to_string())?, &item);
                value.map_err(|why| format!("item {i}: {why}"))
            });
            return Ok(Value::List(items.collect::<Result<_, _>>()?));
        }
        _ => {}
    }
    let value = loose(object).map_err(|fault| {
        if fault == Fault::OVERFLOW {
            // Python does not show an int of thousands of digits.
            let shown = object.repr().map_or_else(|_| format!("the {}", name()), |r| r.to_string());
            format!("{shown} is out of range")
        } else if name() == "date" {
            let shown = object.str().map(|text| text.to_string()).unwrap_or_default();
            format!(
                "{shown} is a date, and no moment: send a datetime with a time zone, such as \
                 datetime(y, m, d, tzinfo=timezone.utc)"
            )
        } else {
            fault.to_string()
        }
    })?;
    match (value, &column.ty) {
        (Value::Int(_), ty) if is_span(object) => Err(format!(
            "{} is a {}, a span of time, and the column is {ty}: send a number in the unit you mean",
            object.str().map(|text| text.to_string()).unwrap_or_default(),
            name()
        )),
        (Value::Float(f), DataType::Decimal(_)) => {
            Err(format!("{f:?} is a float, and {} takes a decimal.Decimal or an int", column.ty))
        }
        (Value::Null, _) if !column.nullable => {
            Err(if object.is_none() { "it is None".into() } else { format!("it is a {}", name()) })
        }
        (value, ty) => {
            let shown = value.to_string();
            rules::convert(value, column).map_err(|why| match why.contains("can't be stored") {
                true => format!("{shown} is a {}, and the column is {ty}", name()),
                false => why,
            })
        }
    }
}

/// The columns of a table or a stream, for conversions in opaque functions.
#[pyclass(frozen, module = "tidemill._native")]
pub struct Shape {
    pub schema: Arc<Schema>,
}

#[pymethods]
impl Shape {
    /// Parses the schema's JSON.
    #[new]
    fn new(json: &str) -> PyResult<Shape> {
        let schema: Schema =
            serde_json::from_str(json).map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(Shape { schema: Arc::new(schema) })
    }

    /// Returns the value as it will be read back after it was stored in a column. A fault is
    /// raised.
    fn store<'py>(&self, column: usize, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        let column = self
            .schema
            .columns
            .get(column)
            .ok_or_else(|| PyValueError::new_err("there is no such column"))?;
        stored(value, column)
            .map_err(|fault| crate::rules::fault(py, &fault))
            .and_then(|value| to_python(py, &value))
    }
}
