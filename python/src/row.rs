//! Rows of a transaction, as its function sees them: fresh copies, each found once, and written
//! back if changed.

use pyo3::exceptions::PyAttributeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use tidemill_core::rules::Fault;
use tidemill_core::{Row as Values, TableSpec, Value};

use crate::transaction::NativeTx;
use crate::values::{stored, to_python};

/// A row that a function has found or created.
pub struct Held {
    pub table: usize,
    pub key: Vec<Value>,
    /// The values as the engine stores them.
    values: Vec<Value>,
    /// The objects that the function was given for these values, if they are costly to create, or
    /// can be changed in place. Empty as long as there are none.
    objects: Vec<Option<Py<PyAny>>>,
    /// Whether the row exists now, and whether the engine knows it.
    pub exists: bool,
    existed: bool,
    pub loaded: bool,
    /// Whether the function has written the row.
    pub dirty: bool,
    /// Whether setting columns created the row.
    made: bool,
    /// Whether the engine knows that the function writes the row.
    pub announced: bool,
    /// The one object that the function has for the row.
    pub object: Option<Py<Row>>,
}

impl Held {
    /// Creates a row of which nothing is known.
    pub fn new(table: usize, key: Vec<Value>) -> Held {
        Held {
            table,
            key,
            values: Vec::new(),
            objects: Vec::new(),
            exists: false,
            existed: false,
            loaded: false,
            dirty: false,
            made: false,
            announced: false,
            object: None,
        }
    }

    /// Stores the engine's values of the row.
    pub fn load(&mut self, row: Option<Values>, spec: &TableSpec) {
        (self.loaded, self.exists, self.existed) = (true, row.is_some(), row.is_some());
        let values = row.map_or_else(|| spec.missing_row(&self.key), Vec::from);
        // Objects of unchanged values remain valid.
        for (column, object) in self.objects.iter_mut().enumerate() {
            if self.values[column] != values[column] {
                *object = None;
            }
        }
        self.values = values;
    }

    /// Forgets the values, because other code may have written the row. It is looked up again at
    /// its next use.
    pub fn forget(&mut self) {
        self.loaded &= self.dirty;
    }

    /// Whether the row may differ from the engine's.
    pub fn is_active(&self) -> bool {
        self.loaded || self.dirty || self.is_given()
    }

    /// Whether the function may have changed the row in place since other code may have written it.
    pub fn is_to_be_looked_at(&self) -> bool {
        !self.loaded && self.is_given()
    }

    /// Whether the function has an object of the row that it can change in place.
    fn is_given(&self) -> bool {
        let given = self.objects.iter().zip(&self.values);
        let mut given = given.filter(|(object, _)| object.is_some());
        given.any(|(_, value)| matches!(value, Value::List(_) | Value::Any(_)))
    }

    /// Sets a column. A missing row is created.
    pub fn set(&mut self, column: usize, value: Value, spec: &TableSpec) {
        if !self.exists {
            // A loaded row that is missing has these values already, and the function may have changed them in place.
            if !self.loaded {
                self.values = spec.missing_row(&self.key);
                self.objects.clear();
            }
            (self.exists, self.made) = (true, true);
        }
        self.values[column] = value;
        if let Some(object) = self.objects.get_mut(column) {
            *object = None;
        }
        self.dirty = true;
    }

    /// Replaces the whole row.
    pub fn replace(&mut self, values: Vec<Value>) {
        (self.values, self.exists, self.dirty) = (values, true, true);
        self.objects.clear();
    }

    /// Removes the row.
    pub fn remove(&mut self, spec: &TableSpec) {
        self.values = spec.missing_row(&self.key);
        self.objects.clear();
        (self.exists, self.dirty) = (false, true);
    }

    /// Whether the engine has the row, too.
    pub fn is_known(&self) -> bool {
        self.existed
    }

    /// Whether the row has changed. Values that the function has changed in place, in lists and
    /// similar objects, become the row's. For a missing row, such a change creates it, as setting
    /// the column would.
    fn has_changed(&mut self, py: Python<'_>, spec: &TableSpec) -> Result<bool, Fault> {
        if !self.loaded {
            return Ok(false);
        }
        let mut in_place = false;
        for (column, object) in self.objects.iter().enumerate() {
            let Some(object) = object else { continue };
            if !matches!(self.values[column], Value::List(_) | Value::Any(_)) {
                continue;
            }
            let value = stored(object.bind(py), &spec.schema.columns[column])?;
            if value != self.values[column] {
                (self.values[column], in_place) = (value, true);
            }
        }
        if in_place && !self.exists && !self.dirty {
            (self.exists, self.made) = (true, true);
        }
        Ok(in_place || self.dirty)
    }

    /// Returns the write that is needed while the function still runs, if any. A new row that lacks
    /// a column waits.
    pub fn flushed(&mut self, py: Python<'_>, spec: &TableSpec) -> Result<Option<Write>, Fault> {
        let has_changed = self.has_changed(py, spec)?;
        if !has_changed {
            return Ok(None);
        }
        if self.exists && self.lacking(spec).is_some() {
            self.dirty = true;
            return Ok(None);
        }
        let write = match (self.exists, self.existed) {
            (true, _) => Some(Write::Put(self.values.clone())),
            (false, true) => Some(Write::Delete),
            (false, false) => None,
        };
        (self.existed, self.dirty) = (self.exists, false);
        Ok(write)
    }

    /// Returns the final write, if any; or the column that lacks a value.
    pub fn written(
        &mut self,
        py: Python<'_>,
        spec: &TableSpec,
    ) -> Result<Result<Option<Write>, usize>, Fault> {
        if !self.has_changed(py, spec)? {
            return Ok(Ok(None));
        }
        if !self.exists {
            return Ok(Ok(self.existed.then_some(Write::Delete)));
        }
        if let Some(column) = self.lacking(spec).filter(|_| self.made) {
            return Ok(Err(column));
        }
        Ok(Ok(Some(Write::Put(std::mem::take(&mut self.values)))))
    }

    /// Returns the first column that needs a value and has none.
    fn lacking(&self, spec: &TableSpec) -> Option<usize> {
        let columns = spec.schema.columns.iter().zip(&self.values);
        columns.into_iter().position(|(column, value)| value.is_null() && !column.nullable)
    }

    /// Returns the row as errors show it.
    pub fn shown(&self, spec: &TableSpec) -> String {
        shown(spec, &self.key)
    }
}

/// The write of a row.
pub enum Write {
    Put(Vec<Value>),
    Delete,
}

/// Returns a row with this key as errors show it.
pub fn shown(spec: &TableSpec, key: &[Value]) -> String {
    let key: Vec<String> = key.iter().map(ToString::to_string).collect();
    format!("{}[{}]", spec.name, key.join(", "))
}

/// A row of an opaque function: its columns as attributes, or by ``row["name"]``.
#[pyclass(frozen, name = "Row", module = "tidemill._native")]
pub struct Row {
    pub tx: Py<NativeTx>,
    /// The row's number among those of the transaction.
    pub at: usize,
    /// The package's `Table`.
    pub table: Py<PyAny>,
    /// The table's number.
    pub id: usize,
}

impl Row {
    /// Returns a column's value.
    fn value<'py>(&self, py: Python<'py>, column: usize) -> PyResult<Bound<'py, PyAny>> {
        let tx = self.tx.get();
        let found = tx.with(py, |rows| {
            let held = rows.loaded(self.at)?;
            Ok(match held.objects.get(column) {
                Some(Some(object)) => Ok(object.clone_ref(py)),
                _ => Err(held.values[column].clone()),
            })
        })?;
        let value = match found {
            Ok(object) => return Ok(object.into_bound(py)),
            Err(value) => value,
        };
        let made = to_python(py, &value)?;
        let is_cheap = matches!(
            value,
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_)
        );
        if !is_cheap {
            let kept = made.clone().unbind();
            tx.with(py, |rows| {
                let held = rows.loaded(self.at)?;
                held.objects.resize_with(held.values.len(), || None);
                held.objects[column] = Some(kept);
                Ok(())
            })?;
        }
        Ok(made)
    }

    /// Sets the column with this name.
    fn set(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        to: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let tx = self.tx.get();
        tx.with(py, |rows| rows.loaded(self.at).map(|_| ()))?;
        let column = self.settable(name)?;
        self.store(py, column, to)
    }

    fn store(&self, py: Python<'_>, column: usize, to: &Bound<'_, PyAny>) -> PyResult<()> {
        let tx = self.tx.get();
        let shape = &tx.shapes(py)?.tables[self.id];
        let value = stored(to, &shape.spec.schema.columns[column]);
        tx.with(py, |rows| rows.set(py, self.at, vec![(column, value?)]))
    }

    /// Returns the number of a column that may be set.
    fn settable(&self, name: &Bound<'_, PyString>) -> PyResult<usize> {
        let py = name.py();
        let shape = &self.tx.get().shapes(py)?.tables[self.id];
        match shape.columns.get(name.to_str()?) {
            Some(column) if !shape.spec.key.contains(column) => Ok(*column),
            _ => {
                // The helper finds the user's line.
                let helper = py.import("tidemill.opaque")?.getattr("settable")?;
                helper.call1((&self.table, name))?.extract()
            }
        }
    }
}

#[pymethods]
impl Row {
    fn __getattribute__<'py>(
        slf: &Bound<'py, Row>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, row) = (slf.py(), slf.get());
        if let Ok(shapes) = row.tx.get().shapes(py) {
            if let Some(column) = shapes.tables[row.id].attributes.get(name.to_str()?) {
                return row.value(py, *column);
            }
        }
        // SAFETY: both are objects that live as long as the call, which holds the interpreter lock.
        // The result is a new reference, or null with an exception set.
        unsafe {
            let found = ffi::PyObject_GenericGetAttr(slf.as_ptr(), name.as_ptr());
            Bound::from_owned_ptr_or_err(py, found)
        }
    }

    /// Raises the error for an unknown name. Python calls this if the other lookup has found
    /// nothing.
    fn __getattr__(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> PyResult<Py<PyAny>> {
        Err(self.no_column(py, name))
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shapes = self.tx.get().shapes(py)?;
        match shapes.tables[self.id].columns.get(name.to_str()?) {
            Some(column) => self.value(py, *column),
            None => Err(self.no_column(py, name)),
        }
    }

    fn __setattr__(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.set(py, name, value)
    }

    fn __setitem__(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.set(py, name, value)
    }

    /// Whether the row exists now.
    pub fn exists(&self, py: Python<'_>) -> PyResult<bool> {
        self.tx.get().with(py, |rows| Ok(rows.loaded(self.at)?.exists))
    }

    /// The versions of the row in a window, up to now: ``.over(tm.last(9)).column.sum()``.
    fn over<'py>(slf: &Bound<'py, Row>, window: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let row = slf.get();
        row.tx.bind(slf.py()).call_method1("over", (slf, &row.table, window))
    }

    /// Sets columns. The transaction aborts if the row is missing.
    #[pyo3(signature = (row=None, /, **columns))]
    fn update(
        &self,
        py: Python<'_>,
        row: Option<&Bound<'_, PyAny>>,
        columns: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let tx = self.tx.get();
        tx.with(py, |rows| rows.loaded(self.at).map(|_| ()))?;
        let values = PyDict::new(py);
        if let Some(row) = row.filter(|row| !row.is_none()) {
            values.call_method1("update", (row,))?;
        }
        columns.map_or(Ok(()), |columns| values.update(columns.as_mapping()))?;
        let mut settable = Vec::with_capacity(values.len());
        for (name, value) in values.iter() {
            settable.push((self.settable(name.cast::<PyString>()?)?, value));
        }
        // Values are checked before the row is found, like the arguments of a call.
        let columns = &tx.shapes(py)?.tables[self.id].spec.schema.columns;
        let value = |(column, value): (usize, Bound<'_, PyAny>)| {
            Ok((column, stored(&value, &columns[column])?))
        };
        let values: Result<Vec<(usize, Value)>, Fault> = settable.into_iter().map(value).collect();
        tx.with(py, |rows| {
            let values = values?;
            match rows.loaded(self.at)?.exists {
                true => rows.set(py, self.at, values),
                false => Err(rows.refused(self.at, "is missing")),
            }
        })
    }

    /// Removes the row, if it exists.
    fn delete(&self, py: Python<'_>) -> PyResult<()> {
        self.tx.get().with(py, |rows| {
            rows.loaded(self.at)?;
            rows.remove(py, self.at)
        })
    }

    /// Returns the table and the key.
    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let shapes = self.tx.get().shapes(py)?;
        self.tx.get().with(py, |rows| Ok(rows.held(self.at).shown(&shapes.tables[self.id].spec)))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<row {}>", self.__str__(py)?))
    }
}

impl Row {
    fn no_column(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> PyErr {
        let shapes = self.tx.get().shapes(py);
        let table = shapes.map_or_else(|_| "?".into(), |s| s.tables[self.id].spec.name.clone());
        PyAttributeError::new_err(format!("table {table} has no column '{name}'"))
    }
}
