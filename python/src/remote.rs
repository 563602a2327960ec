//! Python functions on a node: each call is an activation, which goes on when what it waits for is there, and
//! is begun again when it can't keep where it is. The package's half is `remote.py`.

use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyBaseException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};
use pyo3::{create_exception, intern};
use tidemill_core::rules::Fault;
use tidemill_core::{Key, Row, StreamId, TableId, Value};
use tidemill_engine::{inner, AppFunctions, AppSpec, Begins};
use tidemill_function::{Activation, Call, Context, Step, Stop};
use tidemill_txn::program::{Abort, AbortKind, Aggregate, Tx, Window, WindowId};

use crate::attached::attached;
use crate::errors::to_python as raised;
use crate::msgpack;
use crate::opaque::{kind, running, spare};
use crate::transaction::{FunctionShape, NativeTx, Shapes};
use crate::values::{loose, stored, to_python, to_tuple};

create_exception!(tidemill._native, Unwound, PyBaseException);

/// Raised where a function can't go on now. It is begun again, whatever it makes of this.
pub fn unwound() -> PyErr {
    Unwound::new_err("the function is begun again")
}

/// What a function reaches on a node, as the transaction that the engine would give it.
pub struct OnNode<'a> {
    context: &'a mut dyn Context,
    shapes: &'a Shapes,
    /// Whether the function can't go on now.
    pub is_unwound: bool,
}

impl OnNode<'_> {
    fn done<T>(&mut self, result: Result<T, Stop>) -> Result<T, Abort> {
        result.map_err(|stop| match stop {
            Stop::Abort(abort) => abort,
            Stop::Unwind => {
                self.is_unwound = true;
                // Nobody sees it.
                Abort { kind: AbortKind::Raised, reason: String::new() }
            }
        })
    }
}

/// Why a function aborts that asks for more than nodes have.
fn not_here(what: &str) -> Abort {
    let reason = format!("{what}: functions on several processes can't do that yet");
    Abort { kind: AbortKind::Refused, reason }
}

impl Tx for OnNode<'_> {
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Row>, Abort> {
        let row = self.context.get(table, key);
        Ok(self.done(row)?.map(|row| row.as_ref().into()))
    }

    fn window(
        &mut self,
        _: TableId,
        _: &[Value],
        _: &Window,
        _: u16,
        _: &Aggregate,
    ) -> Result<Value, Abort> {
        Err(not_here("a window over versions of a row"))
    }

    /// Rows of one partition: those that begin as both bounds do.
    fn scan(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        limit: usize,
    ) -> Result<Vec<Row>, Abort> {
        let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let spec = &self.shapes.tables[table.index()].spec;
        let (first, behind) = (Key::of(from), Key::of(to));
        let mut rows = self.find(table, &from[..common], usize::MAX)?;
        rows.retain(|row| {
            let key = Key::of(spec.key.iter().map(|column| &row[*column]));
            key >= first && (to.is_empty() || key < behind)
        });
        rows.truncate(limit);
        Ok(rows)
    }

    fn find(&mut self, table: TableId, leading: &[Value], limit: usize) -> Result<Vec<Row>, Abort> {
        let rows = self.context.find(table, leading, u32::try_from(limit).unwrap_or(u32::MAX));
        Ok(self.done(rows)?.iter().map(|row| row.as_ref().into()).collect())
    }

    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Abort> {
        let put = self.context.put(table, row);
        self.done(put)
    }

    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Abort> {
        let deleted = self.context.delete(table, key);
        self.done(deleted)
    }

    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Abort> {
        let emitted = self.context.emit(stream, row);
        self.done(emitted)
    }

    fn window_insert(&mut self, _: WindowId, _: &[Value]) -> Result<(), Abort> {
        Err(not_here("a window of its own"))
    }

    fn window_advance(&mut self, _: WindowId) -> Result<(), Abort> {
        Err(not_here("a window of its own"))
    }

    fn window_rows(&mut self, _: WindowId) -> Result<Vec<Row>, Abort> {
        Err(not_here("a window of its own"))
    }

    fn window_groups(&mut self, _: WindowId, _: Option<&Value>) -> Result<Vec<Row>, Abort> {
        Err(not_here("a window of its own"))
    }

    fn time_us(&self) -> i64 {
        self.context.now_us()
    }

    fn now_us(&self) -> i64 {
        self.context.now_us()
    }

    fn random(&mut self) -> u128 {
        let high = self.context.random();
        u128::from(high) << 64 | u128::from(self.context.random())
    }

    fn lookup(&mut self, _: &[u8], _: &mut dyn FnMut() -> Vec<u8>) -> Result<Arc<[u8]>, Abort> {
        Err(not_here("ctx.lookup"))
    }
}

impl NativeTx {
    /// Calls a function of an entity, by its handler's number; gives the call's number.
    pub fn make_call(
        &self,
        py: Python<'_>,
        function: usize,
        key: &Bound<'_, PyTuple>,
        args: &Bound<'_, PyTuple>,
    ) -> PyResult<usize> {
        let shapes = self.shapes(py)?;
        let shape = shapes.functions.get(function).and_then(Option::as_ref);
        let shape = shape.ok_or_else(|| PyTypeError::new_err("a function of another app"))?;
        let key = shapes.tables[shape.table].key(key);
        let key = self.with(py, |_| key)?;
        let mut values = Vec::with_capacity(args.len());
        for (value, column) in args.iter_borrowed().zip(&shape.parameters) {
            values.push(stored(&value, column).map_err(|fault| {
                let (function, parameter) = (&shape.name, &column.name);
                PyTypeError::new_err(format!("{function}: parameter '{parameter}': {fault}"))
            })?);
        }
        self.with(py, |rows| {
            // Whoever is called sees what was written, and may write in turn.
            rows.flush(py, None)?;
            let node = rows.node().ok_or_else(|| not_here("a call"))?;
            let (target, table) = (inner(function), TableId(shape.table as u16));
            let call = Call { target, table, key: key.into(), args: values.into() };
            // Nobody knows yet whether it is awaited: a reply is one message.
            let made = node.context.call(call, true);
            let made = node.done(made)?;
            rows.forget();
            rows.made.push(made);
            Ok(rows.made.len() - 1)
        })
    }

    /// What the call with this number has returned. Where that is not known yet the function is begun again
    /// when it is.
    pub fn reply_of<'py>(&self, py: Python<'py>, call: usize) -> PyResult<Bound<'py, PyAny>> {
        let value = self.with(py, |rows| {
            let made = rows.made[call];
            let node = rows.node().ok_or_else(|| not_here("a call"))?;
            let value = node.context.settled(made).cloned();
            node.done(value)
        })?;
        from_reply(py, &value)
    }

    /// The function returns this: to a client, or to whoever has called it. With a `name` a value that can't be
    /// returned is the fault of the function that has it.
    pub fn returns(
        &self,
        value: &Bound<'_, PyAny>,
        is_request: bool,
        name: Option<&str>,
    ) -> PyResult<()> {
        let py = value.py();
        let returned = match is_request {
            // The column of replies is one of any value.
            true if value.is_none() => Ok(Value::Null),
            true => msgpack::to_bytes(value).map(|bytes| Value::Any(bytes.into())),
            false => to_reply(value)?,
        };
        if let (Err(why), Some(name)) = (&returned, name) {
            let what = format!("{name} returns what is no value of msgpack: {why}");
            return Err(PyTypeError::new_err(what));
        }
        self.with(py, |rows| {
            rows.returned = Some(returned.map_err(|why| Fault(why.into()))?);
            Ok(())
        })
    }
}

/// What a function has returned, as a message has it; the other way it comes out equal, and nobody's else.
fn to_reply(value: &Bound<'_, PyAny>) -> PyResult<Result<Value, String>> {
    let is_plain = value.is_none()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyBytes>()
        || (value.is_exact_instance_of::<PyInt>() && value.extract::<i64>().is_ok());
    if is_plain {
        return Ok(loose(value).map_err(|fault| fault.to_string()));
    }
    let class = value.get_type();
    let name = class.name()?;
    let text = match name.to_str()? {
        "Decimal" if class.module()?.to_str()? == "decimal" => value.str()?,
        "datetime" if class.module()?.to_str()? == "datetime" => {
            value.call_method0(intern!(value.py(), "isoformat"))?.cast_into::<PyString>()?
        }
        _ => return Ok(msgpack::to_bytes(value).map(|bytes| Value::Any(bytes.into()))),
    };
    Ok(Ok(Value::List([Value::str(name.to_str()?), Value::str(text.to_str()?)].into())))
}

fn from_reply<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    let Value::List(items) = value else { return to_python(py, value) };
    match &items[..] {
        [Value::Str(class), Value::Str(text)] if &**class == "Decimal" => {
            py.import(intern!(py, "decimal"))?.getattr(intern!(py, "Decimal"))?.call1((&**text,))
        }
        [_, Value::Str(text)] => {
            let class = py.import(intern!(py, "datetime"))?.getattr(intern!(py, "datetime"))?;
            class.call_method1(intern!(py, "fromisoformat"), (&**text,))
        }
        _ => unreachable!("replies are made here"),
    }
}

/// A function of the package's `remote.py`.
struct Function {
    begin: Py<PyAny>,
    resume: Py<PyAny>,
    close: Py<PyAny>,
}

/// The opaque functions of an app on nodes.
struct PyFunctions {
    functions: Vec<Function>,
    shapes: Arc<Shapes>,
    /// Itself, for those that it begins.
    own: OnceLock<std::sync::Weak<PyFunctions>>,
}

/// An app's functions as nodes run them. `opaques` are those that the package's `spec` gives with `spec`.
pub fn app_functions(
    py: Python<'_>,
    spec: &AppSpec,
    opaques: Vec<Py<PyAny>>,
) -> PyResult<Arc<AppFunctions>> {
    let mut shapes = Shapes::of(&spec.program);
    let program = &spec.program;
    shapes.functions.resize_with(program.handlers.len(), || None);
    for decl in &spec.functions {
        let handler = program.handlers.iter().position(|h| *h.name == *decl.handler);
        let (Some(handler), Some(table)) = (handler, program.tables.get(usize::from(decl.table)))
        else {
            continue;
        };
        let calls = &program.streams[program.handlers[handler].input.index()].spec.schema;
        shapes.functions[handler] = Some(FunctionShape {
            name: decl.handler.as_str().into(),
            table: decl.table.into(),
            parameters: calls.columns[table.key.len()..].to_vec(),
        });
    }
    let remote = py.import("tidemill.remote")?.getattr("remote")?;
    let mut functions = Vec::with_capacity(opaques.len());
    for function in remote.call1((opaques,))?.try_iter()? {
        let function = function?;
        functions.push(Function {
            begin: function.getattr("begin")?.unbind(),
            resume: function.getattr("resume")?.unbind(),
            close: function.getattr("close")?.unbind(),
        });
    }
    let own = OnceLock::new();
    let begins = Arc::new(PyFunctions { functions, shapes: Arc::new(shapes), own });
    let _ = begins.own.set(Arc::downgrade(&begins));
    AppFunctions::new(spec, begins).map_err(|error| raised(py, &error))
}

impl Begins for PyFunctions {
    fn begin(
        &self,
        function: usize,
        call: &Call,
        is_request: bool,
    ) -> Result<Box<dyn Activation>, Abort> {
        let functions = self.own.get().and_then(std::sync::Weak::upgrade);
        let functions = functions.expect("whoever asks holds it");
        let (call, running, is_begun) = (call.clone(), None, false);
        Ok(Box::new(Turns { functions, function, call, is_request, running, is_begun }))
    }
}

/// A call of a Python function, which comes and goes.
struct Turns {
    functions: Arc<PyFunctions>,
    function: usize,
    call: Call,
    is_request: bool,
    /// What it runs in, once it has begun.
    running: Option<Py<NativeTx>>,
    is_begun: bool,
}

impl Turns {
    /// Lets the function begin or go on; where it waits, for which of its calls.
    fn turn(&mut self, py: Python<'_>) -> PyResult<Outcome> {
        let function = &self.functions.functions[self.function];
        let running = self.running.as_ref().expect("it has begun").bind(py);
        let outcome = match self.is_begun {
            true => function.resume.bind(py).call1((running,))?,
            false => {
                let (key, args) = (to_tuple(py, &self.call.key)?, to_tuple(py, &self.call.args)?);
                function.begin.bind(py).call1((running, key, args, self.is_request))?
            }
        };
        if outcome.is_none() {
            return Ok(Outcome::Done);
        }
        if let Ok(waits) = outcome.cast::<PyList>() {
            return Ok(Outcome::Waits(waits.extract()?));
        }
        let (why, reason) = outcome.extract::<(String, String)>()?;
        Ok(Outcome::Aborted(Abort { kind: kind(&why), reason }))
    }

    /// Ends what it runs in. A coroutine that waits ends without a word.
    fn over(&mut self, py: Python<'_>) {
        let Some(running) = self.running.take() else { return };
        let running = running.into_bound(py);
        let close = self.functions.functions[self.function].close.bind(py);
        // It raises nothing, and if it did there would be nobody to tell.
        let _ = close.call1((&running,));
        running.get().end();
        spare(running);
    }
}

/// How far a function has come.
enum Outcome {
    Done,
    Waits(Vec<usize>),
    Aborted(Abort),
}

impl Activation for Turns {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let raised = |e: PyErr| Abort { kind: AbortKind::Raised, reason: e.to_string() };
        attached(|py| {
            let functions = self.functions.clone();
            let mut node = OnNode { context, shapes: &functions.shapes, is_unwound: false };
            if self.running.is_none() {
                let made = running(py, &functions.shapes).map_err(raised)?;
                self.running = Some(made.unbind());
                self.is_begun = false;
            }
            let running = self.running.as_ref().expect("it is there").clone_ref(py);
            running.get().enter(&mut node, &functions.shapes);
            let outcome = self.turn(py);
            self.is_begun = true;
            let waits = match &outcome {
                Ok(Outcome::Waits(waits)) => &waits[..],
                _ => &[],
            };
            let (returned, abort, waits) = running.get().leave(waits);
            drop(running);
            let step = match (outcome, abort) {
                _ if node.is_unwound => Err(Stop::Unwind),
                // The first abort counts, whatever the function has made of it.
                (_, Some(abort)) | (Ok(Outcome::Aborted(abort)), None) => Err(Stop::Abort(abort)),
                (Ok(Outcome::Waits(_)), None) => return Ok(Step::Wait(waits)),
                (Ok(Outcome::Done), None) => Ok(Step::Done(returned.unwrap_or(Value::Null))),
                (Err(error), None) => Err(Stop::Abort(raised(error))),
            };
            self.over(py);
            step
        })
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        if self.running.is_some() {
            // Where the interpreter has ended there is nothing to end.
            let _ = Python::try_attach(|py| self.over(py));
        }
    }
}
