//! Values between Rust and Python.

use std::sync::Arc;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple, PyType,
};
use tidemill_core::rules::{self, Fault};
use tidemill_core::value::{format_decimal, format_timestamp};
use tidemill_core::{Column, DataType, Schema, Value};

use crate::msgpack;

/// Python classes that values become; looked up once.
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

/// A value as Python has it.
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
            delta.and_then(|d| classes.epoch.bind(py).add(d)).map_err(|_| {
                let at = format_timestamp(*us);
                PyOverflowError::new_err(format!("{at} is outside the years of a datetime"))
            })?
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

/// The values as a tuple.
pub fn to_tuple<'py>(py: Python<'py>, values: &[Value]) -> PyResult<Bound<'py, PyTuple>> {
    let items = values.iter().map(|v| to_python(py, v)).collect::<PyResult<Vec<_>>>()?;
    PyTuple::new(py, items)
}

/// A Python object as the value that its own type says.
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
        let text: String =
            object.call_method1("__format__", ("f",)).and_then(|t| t.extract()).map_err(failed)?;
        return parse_decimal(&text);
    }
    if object.is_instance(classes.datetime.bind(py)).map_err(failed)? {
        let aware = if object.getattr("tzinfo").map_err(failed)?.is_none() {
            let kwargs = pyo3::types::PyDict::new(py);
            kwargs.set_item("tzinfo", classes.utc.bind(py)).map_err(failed)?;
            object.call_method("replace", (), Some(&kwargs)).map_err(failed)?
        } else {
            object.clone()
        };
        let delta = aware.sub(classes.epoch.bind(py)).map_err(failed)?;
        return microseconds(&delta).map(Value::Timestamp).map_err(failed);
    }
    if object.is_instance(classes.timedelta.bind(py)).map_err(failed)? {
        return microseconds(object).map(Value::Int).map_err(failed);
    }
    // Scalars of numpy and the like know their Python value.
    if let Ok(item) = object.call_method0("item") {
        if !item.is(object) && item.get_type().getattr("item").is_err() {
            return loose(&item);
        }
    }
    let name = object.get_type().name().map(|n| n.to_string()).unwrap_or_default();
    Err(fault(format!("a value of type {name} can't be stored")))
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

fn parse_decimal(text: &str) -> Result<Value, Fault> {
    let digits = text.split_once('.').map_or("", |(_, fraction)| fraction);
    // Trailing zeros beyond what a decimal can hold say nothing.
    let used = digits.trim_end_matches('0').len();
    let scale = digits.len().min(usize::from(DataType::SCALE_MAX)).max(used);
    match u8::try_from(scale) {
        Ok(scale) if scale <= DataType::SCALE_MAX => {
            rules::parse_decimal(text, scale).map_err(|why| {
                if why.contains("out of range") {
                    Fault::OVERFLOW
                } else {
                    Fault(why.into())
                }
            })
        }
        _ => {
            // More digits than any column holds: as near as a decimal comes, half to even.
            let (negative, magnitude) = match text.strip_prefix('-') {
                Some(rest) => (true, rest),
                None => (false, text),
            };
            let (whole, fraction) = magnitude.split_once('.').unwrap_or((magnitude, ""));
            let max = usize::from(DataType::SCALE_MAX);
            let kept = format!("{whole}{}", &fraction[..max]);
            let rest = &fraction[max..];
            let units: i128 = kept.parse().map_err(|_| Fault::OVERFLOW)?;
            let half = format!("5{}", "0".repeat(rest.len() - 1));
            let up = match rest.cmp(half.as_str()) {
                std::cmp::Ordering::Less => false,
                std::cmp::Ordering::Greater => true,
                std::cmp::Ordering::Equal => units % 2 != 0,
            };
            let units = units + i128::from(up);
            i64::try_from(if negative { -units } else { units })
                .map(|u| Value::Decimal(u, DataType::SCALE_MAX))
                .map_err(|_| Fault::OVERFLOW)
        }
    }
}

/// A Python object as a value of a column, by the rule of storing: what a transaction writes.
pub fn stored(object: &Bound<'_, PyAny>, column: &Column) -> Result<Value, Fault> {
    match column.ty {
        DataType::Any if !object.is_none() => {
            msgpack::to_bytes(object).map(|b| Value::Any(b.into())).map_err(|e| Fault(e.into()))
        }
        _ => rules::store(&loose(object)?, column),
    }
}

/// A Python object as a value of a column, as input: nothing may be lost on the way.
pub fn input(object: &Bound<'_, PyAny>, column: &Column) -> Result<Value, String> {
    if column.ty == DataType::Any && !object.is_none() {
        return msgpack::to_bytes(object).map(|b| Value::Any(b.into()));
    }
    let value = loose(object).map_err(|fault| {
        if fault == Fault::OVERFLOW {
            format!("{} is out of range", object.repr().map(|r| r.to_string()).unwrap_or_default())
        } else {
            fault.to_string()
        }
    })?;
    match (value, &column.ty) {
        (Value::Int(us), DataType::Timestamp) => Ok(Value::Timestamp(us)),
        (Value::Decimal(units, s), DataType::Decimal(t)) if s > *t => {
            rules::parse_decimal(&format_decimal(units, s), *t)
        }
        (Value::Float(f), DataType::Decimal(_)) => {
            Err(format!("{f:?} is a float, and {} takes a decimal.Decimal or an int", column.ty))
        }
        (Value::Null, _) if !column.nullable => Err("it is None".into()),
        (value, _) => rules::store(&value, column).map_err(|_| {
            let name = object.get_type().name().map(|n| n.to_string()).unwrap_or_default();
            format!("{value} is a {name}, and the column is {}", column.ty)
        }),
    }
}

/// The columns of a table or a stream, for conversions: what opaque functions write and read.
#[pyclass(frozen, module = "tidemill._native")]
pub struct Shape {
    pub schema: Arc<Schema>,
}

#[pymethods]
impl Shape {
    /// From the schema's JSON.
    #[new]
    fn new(json: &str) -> PyResult<Shape> {
        let schema: Schema =
            serde_json::from_str(json).map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(Shape { schema: Arc::new(schema) })
    }

    /// The value as it will be read back after being stored in a column; a fault is raised.
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
