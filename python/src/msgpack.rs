//! `any` values: Python objects to msgpack and back.
//!
//! Integers take their shortest form and floats 64 bits, so that equal objects have equal bytes. A
//! dict keeps its order. All output can be read again, and has a form in JSON.

use std::collections::HashSet;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple,
};
use rmp::{decode, encode, Marker};
use tidemill_connect::values;
use tidemill_core::msgpack::{put, put_decimal, Extension, DEPTH_MAX};
use tidemill_core::value::check_years;
use tidemill_core::Value;

use crate::values::{decimal_of, is_span, loose, to_decimal, to_python};

/// Returns the msgpack bytes of an object. `ValueError` says which part has none.
#[pyfunction]
pub fn packed<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = to_bytes(value).map_err(PyValueError::new_err)?;
    Ok(PyBytes::new(value.py(), &bytes))
}

/// Returns the object in msgpack bytes.
#[pyfunction]
pub fn unpacked<'py>(py: Python<'py>, packed: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    from_bytes(py, packed)
}

/// Returns the msgpack bytes of an object.
pub fn to_bytes(object: &Bound<'_, PyAny>) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    write(object, &mut out, 0, false)?;
    Ok(out)
}

/// Returns the msgpack bytes of an object that comes from outside. Times lie in the years 1 to 9999.
pub fn to_input_bytes(object: &Bound<'_, PyAny>) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    write(object, &mut out, 0, true)?;
    Ok(out)
}

fn write(
    object: &Bound<'_, PyAny>,
    out: &mut Vec<u8>,
    depth: usize,
    is_input: bool,
) -> Result<(), String> {
    if depth >= DEPTH_MAX {
        return Err(format!("a value is nested more than {DEPTH_MAX} deep"));
    }
    let failed = |e: &dyn std::fmt::Display| e.to_string();
    let length = |n: usize| u32::try_from(n).map_err(|_| "a value is too long".to_string());
    if object.is_none() {
        encode::write_nil(out).map_err(|e| failed(&e))?;
    } else if let Ok(b) = object.cast::<PyBool>() {
        encode::write_bool(out, b.is_true()).map_err(|e| failed(&e))?;
    } else if object.is_instance_of::<PyInt>() {
        match (object.extract::<i64>(), object.extract::<u64>()) {
            (Ok(i), _) => encode::write_sint(out, i).map(|_| ()).map_err(|e| failed(&e))?,
            (_, Ok(u)) => encode::write_uint(out, u).map(|_| ()).map_err(|e| failed(&e))?,
            _ => return Err("an integer is outside 64 bits".into()),
        }
    } else if let Ok(f) = object.cast::<PyFloat>() {
        let f = f.value();
        let f = if f.is_nan() { f64::NAN } else { f };
        encode::write_f64(out, f).map_err(|e| failed(&e))?;
    } else if let Ok(s) = object.cast::<PyString>() {
        let text = s.extract::<String>().map_err(|_| "a str is not valid Unicode")?;
        encode::write_str(out, &text).map_err(|e| failed(&e))?;
    } else if let Ok(b) = object.cast::<PyBytes>() {
        encode::write_bin(out, b.as_bytes()).map_err(|e| failed(&e))?;
    } else if let Ok(b) = object.cast::<PyByteArray>() {
        encode::write_bin(out, &b.to_vec()).map_err(|e| failed(&e))?;
    } else if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let n = object.len().map_err(|e| failed(&e))?;
        encode::write_array_len(out, length(n)?).map_err(|e| failed(&e))?;
        for item in object.try_iter().map_err(|e| failed(&e))? {
            write(&item.map_err(|e| failed(&e))?, out, depth + 1, is_input)?;
        }
    } else if let Ok(dict) = object.cast::<PyDict>() {
        encode::write_map_len(out, length(dict.len())?).map_err(|e| failed(&e))?;
        for (key, value) in dict {
            write(&key, out, depth + 1, is_input)?;
            write(&value, out, depth + 1, is_input)?;
        }
        check_keys(dict)?;
    } else if let Some(text) = decimal_of(object)? {
        put_decimal(&text, out);
    } else {
        let name = object.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        let wrong = || format!("a value of type {name} can't be stored in a column of type any");
        if is_span(object) {
            return Err(wrong());
        }
        let value = loose(object).map_err(|fault| match fault.to_string() {
            why if why.contains("can't be stored") => wrong(),
            why => why,
        })?;
        match value {
            Value::Timestamp(us) if is_input => put(&Value::Timestamp(check_years(us)?), out),
            value => put(&value, out),
        }
    }
    Ok(())
}

/// Refuses keys that are equal in JSON, where all keys are texts.
fn check_keys(dict: &Bound<'_, PyDict>) -> Result<(), String> {
    if dict.keys().iter().all(|key| key.is_instance_of::<PyString>()) {
        return Ok(());
    }
    let mut found = HashSet::with_capacity(dict.len());
    for key in dict.keys() {
        let text = match key.cast::<PyString>() {
            Ok(text) => text.to_string(),
            Err(_) => {
                let mut json = Vec::new();
                values::write(&Value::Any(to_bytes(&key)?.into()), &mut json);
                let json = String::from_utf8_lossy(&json).into_owned();
                serde_json::from_str::<String>(&json).unwrap_or(json)
            }
        };
        if !found.insert(text.clone()) {
            return Err(format!("two keys of a dict are the same text in JSON: '{text}'"));
        }
    }
    Ok(())
}

/// Returns the object in these bytes.
pub fn from_bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let mut rest = bytes;
    let value = read(py, &mut rest, 0)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(damaged())
    }
}

fn damaged() -> PyErr {
    PyValueError::new_err("a value of type any does not hold valid msgpack")
}

fn read<'py>(py: Python<'py>, bytes: &mut &[u8], depth: usize) -> PyResult<Bound<'py, PyAny>> {
    if depth > DEPTH_MAX {
        return Err(damaged());
    }
    let mut peek = *bytes;
    let marker = decode::read_marker(&mut peek).map_err(|_| damaged())?;
    Ok(match marker {
        Marker::Null => {
            *bytes = peek;
            py.None().into_bound(py)
        }
        Marker::True | Marker::False => {
            *bytes = peek;
            PyBool::new(py, marker == Marker::True).to_owned().into_any()
        }
        Marker::U64 => {
            let value = decode::read_u64(bytes).map_err(|_| damaged())?;
            value.into_pyobject(py)?.into_any()
        }
        Marker::FixPos(_)
        | Marker::FixNeg(_)
        | Marker::U8
        | Marker::U16
        | Marker::U32
        | Marker::I8
        | Marker::I16
        | Marker::I32
        | Marker::I64 => {
            let value: i64 = decode::read_int(bytes).map_err(|_| damaged())?;
            value.into_pyobject(py)?.into_any()
        }
        Marker::F32 => {
            let value = decode::read_f32(bytes).map_err(|_| damaged())?;
            PyFloat::new(py, f64::from(value)).into_any()
        }
        Marker::F64 => PyFloat::new(py, decode::read_f64(bytes).map_err(|_| damaged())?).into_any(),
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
            let n = decode::read_str_len(bytes).map_err(|_| damaged())? as usize;
            let text = std::str::from_utf8(take(bytes, n)?).map_err(|_| damaged())?;
            PyString::new(py, text).into_any()
        }
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
            let n = decode::read_bin_len(bytes).map_err(|_| damaged())? as usize;
            PyBytes::new(py, take(bytes, n)?).into_any()
        }
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
            let n = decode::read_array_len(bytes).map_err(|_| damaged())?;
            let list = PyList::empty(py);
            for _ in 0..n {
                list.append(read(py, bytes, depth + 1)?)?;
            }
            list.into_any()
        }
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
            let n = decode::read_map_len(bytes).map_err(|_| damaged())?;
            let dict = PyDict::new(py);
            for _ in 0..n {
                let key = as_key(read(py, bytes, depth + 1)?)?;
                dict.set_item(key, read(py, bytes, depth + 1)?)?;
            }
            dict.into_any()
        }
        Marker::Reserved => return Err(damaged()),
        _ => {
            let head = decode::read_ext_meta(bytes).map_err(|_| damaged())?;
            match Extension::read(head.typeid, take(bytes, head.size as usize)?) {
                Some(Extension::Timestamp(us)) => to_python(py, &Value::Timestamp(us))?,
                Some(Extension::Decimal(text)) => to_decimal(py, text)?,
                None => {
                    return Err(PyValueError::new_err(
                        "a value of type any holds a msgpack extension, which has no Python form",
                    ))
                }
            }
        }
    })
}

/// Converts an object to a key of a dict: lists become tuples.
fn as_key(key: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    let items = match (key.cast::<PyList>(), key.cast::<PyDict>()) {
        (Ok(list), _) => list.iter().map(as_key).collect::<PyResult<Vec<_>>>()?,
        (_, Ok(dict)) => {
            let pair =
                |(key, value)| Ok(PyTuple::new(dict.py(), [key, as_key(value)?])?.into_any());
            dict.iter().map(pair).collect::<PyResult<Vec<_>>>()?
        }
        _ => return Ok(key),
    };
    Ok(PyTuple::new(key.py(), items)?.into_any())
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> PyResult<&'a [u8]> {
    if bytes.len() < n {
        return Err(damaged());
    }
    let (taken, rest) = bytes.split_at(n);
    *bytes = rest;
    Ok(taken)
}
