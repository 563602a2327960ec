//! Data of other libraries, and for them, by Arrow's C interfaces.
//!
//! An object gives its data as capsules around C structures: a stream of arrays
//! (`__arrow_c_stream__`), or an array with its type (`__arrow_c_array__`). The methods here take
//! these structures, and give batches as such a stream.
//! [PyCapsule interface](https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html)

use std::ffi::CStr;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::ffi::{from_ffi, from_ffi_and_data_type, FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    make_array, Array, ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchOptions,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// Whether an object gives its data by one of the interfaces.
pub fn has_data(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(given.hasattr("__arrow_c_stream__")? || given.hasattr("__arrow_c_array__")?)
}

/// Takes the arrays of an object, which have one type. The arrays of a table are structs.
///
/// # Errors
/// An exception of the object, or a `ValueError` if its data is not valid.
pub fn arrays(given: &Bound<'_, PyAny>) -> PyResult<(Vec<ArrayRef>, Field)> {
    if given.hasattr("__arrow_c_stream__")? {
        let capsule = given.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
        return streamed(&capsule);
    }
    let capsules = given.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
    let schema = capsules.get_item(0)?.cast_into::<PyCapsule>()?;
    let array = capsules.get_item(1)?.cast_into::<PyCapsule>()?;
    let schema = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
    // SAFETY: by its name, the capsule holds this structure, and it outlives the reference.
    let schema = unsafe { schema.as_ref() };
    // SAFETY: the same for the array. It is moved out, and what stays there counts as released.
    let array = unsafe { FFI_ArrowArray::from_raw(array.as_ptr()) };
    // SAFETY: as the interface says, the object has filled both, and they fit each other.
    let data = unsafe { from_ffi(array, schema) }.map_err(invalid)?;
    Ok((vec![make_array(data)], Field::try_from(schema).map_err(invalid)?))
}

/// Takes all arrays of a stream.
fn streamed(capsule: &Bound<'_, PyCapsule>) -> PyResult<(Vec<ArrayRef>, Field)> {
    let stream = capsule.pointer_checked(Some(STREAM))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: by its name, the capsule holds this structure. It is moved out, and what stays there
    // counts as released.
    let mut stream = unsafe { FFI_ArrowArrayStream::from_raw(stream.as_ptr()) };
    let (Some(get_schema), Some(get_next)) = (stream.get_schema, stream.get_next) else {
        return Err(PyValueError::new_err("its stream was read before"));
    };
    let mut schema = FFI_ArrowSchema::empty();
    // SAFETY: the stream is not released, and the function fills an empty structure.
    let status = unsafe { get_schema(&mut stream, &mut schema) };
    if status != 0 {
        return Err(failed(&mut stream, status));
    }
    let field = Field::try_from(&schema).map_err(invalid)?;
    let mut arrays = Vec::new();
    loop {
        let mut array = FFI_ArrowArray::empty();
        // SAFETY: as above.
        let status = unsafe { get_next(&mut stream, &mut array) };
        if status != 0 {
            return Err(failed(&mut stream, status));
        }
        if array.is_released() {
            return Ok((arrays, field));
        }
        let ty = field.data_type().clone();
        // SAFETY: as the interface says, all arrays of a stream have its type.
        let data = unsafe { from_ffi_and_data_type(array, ty) }.map_err(invalid)?;
        arrays.push(make_array(data));
    }
}

/// Returns the error of a stream.
fn failed(stream: &mut FFI_ArrowArrayStream, status: i32) -> PyErr {
    let text = stream.get_last_error.and_then(|get_last_error| {
        // SAFETY: the stream is not released, and its last call has failed.
        let text = unsafe { get_last_error(stream) };
        // SAFETY: if there is a text, it ends with a null and is there until the next call.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    });
    let text = text.unwrap_or_else(|| std::io::Error::from_raw_os_error(status).to_string());
    PyValueError::new_err(text)
}

fn invalid(error: arrow_schema::ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Takes the batches of a table.
///
/// # Errors
/// Those of [`arrays`]. Also if the object is not a table.
pub fn batches(given: &Bound<'_, PyAny>) -> PyResult<Vec<RecordBatch>> {
    let (arrays, field) = arrays(given)?;
    let DataType::Struct(fields) = field.data_type() else {
        let what = format!("its type is {}, not a struct of columns", field.data_type());
        return Err(PyValueError::new_err(what));
    };
    let schema = Arc::new(Schema::new_with_metadata(fields.clone(), field.metadata().clone()));
    let batch = |array: ArrayRef| {
        if array.null_count() > 0 {
            return Err(PyValueError::new_err("a row of it is null as a whole"));
        }
        let columns = array.as_struct().columns().to_vec();
        let rows = RecordBatchOptions::new().with_row_count(Some(array.len()));
        RecordBatch::try_new_with_options(schema.clone(), columns, &rows).map_err(invalid)
    };
    arrays.into_iter().map(batch).collect()
}

/// Batches for other libraries.
#[pyclass(frozen)]
struct Exported {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

#[pymethods]
impl Exported {
    /// Returns the batches as a stream. A reader that asks for another schema casts them itself.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = self.batches.clone().into_iter().map(Ok);
        let reader = RecordBatchIterator::new(batches, self.schema.clone());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), STREAM)
    }
}

/// Returns batches as a table of pyarrow.
pub fn table(
    py: Python<'_>,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
) -> PyResult<Bound<'_, PyAny>> {
    py.import("pyarrow")?.getattr("table")?.call1((Exported { schema, batches },))
}

/// Returns a batch as a record batch of pyarrow.
pub fn record_batch(py: Python<'_>, batch: RecordBatch) -> PyResult<Bound<'_, PyAny>> {
    let exported = Exported { schema: batch.schema(), batches: vec![batch] };
    let reader = py.import("pyarrow")?.getattr("RecordBatchReader")?;
    reader.call_method1("from_stream", (exported,))?.call_method0("read_next_batch")
}
