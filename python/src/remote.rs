//! Python functions on a node.
//!
//! Each call is an activation. It continues when the awaited row or result is there, and is started
//! again if it can't keep its place ([`crate::suspended`]). The package's half is `remote.py`.

use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyBaseException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::iterator::PySendResult;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple};
use pyo3::{create_exception, ffi, intern};
use tidemill_core::rules::Fault;
use tidemill_core::{Row, StreamId, TableId, Value};
use tidemill_engine::{inner, AppFunctions, AppSpec, StartFunction};
use tidemill_function::{Activation, Call, Context, Step, Stop};
use tidemill_txn::program::{Abort, AbortKind, Aggregate, Asker, Take, Tx, Window, WindowId};

use crate::attached::attached;
use crate::deadline::{overdue, Timed};
use crate::errors::to_python as raised;
use crate::mill::app_spec;
use crate::msgpack;
use crate::opaque::{keep, kind, running, sent, spare, waits_outside};
use crate::shapes::{FunctionShape, Shapes};
use crate::suspended::suspended;
use crate::transaction::NativeTx;
use crate::values::{loose, stored, to_python, to_tuple};

create_exception!(tidemill._native, Unwound, PyBaseException);

/// Returns the exception for a function that can't continue now. It is started again, whatever it
/// does with this exception.
pub fn unwound() -> PyErr {
    Unwound::new_err("the function is begun again")
}

/// A function's access to the tables on a node, in place of the engine's transaction.
pub struct OnNode<'a> {
    context: &'a mut dyn Context,
    /// Whether the function can't continue now.
    pub is_unwound: bool,
}

impl OnNode<'_> {
    fn done<T>(&mut self, result: Result<T, Stop>) -> Result<T, Abort> {
        result.map_err(|stop| stop.abort(&mut self.is_unwound))
    }
}

/// Returns the abort of a function that asks for more than nodes support.
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

    fn scan(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        take: Take,
    ) -> Result<Vec<Row>, Abort> {
        let rows = self.context.range(table, from, to, take);
        Ok(self.done(rows)?.iter().map(|row| row.as_ref().into()).collect())
    }

    fn find(&mut self, table: TableId, leading: &[Value], take: Take) -> Result<Vec<Row>, Abort> {
        let rows = self.context.find(table, leading, take);
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

    fn has_deadline(&self) -> bool {
        self.context.has_deadline()
    }

    fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Arc<[u8]>, Abort> {
        let answer = self.context.lookup(question, ask);
        self.done(answer)
    }
}

impl NativeTx {
    /// Calls a function of an entity by its handler's number. Returns the call's number.
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
            // The called function sees the writes so far, and may write in turn.
            rows.flush(py, None)?;
            let node = rows.node().ok_or_else(|| not_here("a call"))?;
            let (target, table) = (inner(function), TableId(shape.table as u16));
            let call = Call { target, table, key: key.into(), args: values.into() };
            // It is unknown yet whether the call is awaited. A reply costs only one message.
            let made = node.context.call(call, true);
            let made = node.done(made)?;
            rows.forget();
            rows.made.push(made);
            Ok(rows.made.len() - 1)
        })
    }

    /// Returns the result of the call with this number. If it is not known yet, the function is
    /// started again when it is.
    pub fn reply_of<'py>(&self, py: Python<'py>, call: usize) -> PyResult<Bound<'py, PyAny>> {
        let value = self.with(py, |rows| {
            let made = rows.made[call];
            let node = rows.node().ok_or_else(|| not_here("a call"))?;
            let value = node.context.settled(made).cloned();
            node.done(value)
        })?;
        from_reply(py, &value)
    }

    /// Sets what the function returns, to a client or to its caller. A value that can't be returned
    /// is a fault of the function `of` an entity.
    fn returns(
        &self,
        value: &Bound<'_, PyAny>,
        is_request: bool,
        of: Option<&Function>,
    ) -> PyResult<()> {
        let py = value.py();
        if value.is_none() {
            return Ok(());
        }
        let packed = || msgpack::to_bytes(value).map(|bytes| Value::Any(bytes.into()));
        let returned = match (is_plain(value), is_request) {
            (true, false) => loose(value).map_err(|fault| fault.to_string()),
            // The column of replies has the type any.
            (true, true) => packed(),
            (false, _) => match (as_text(value)?, of) {
                (Some(text), _) if !is_request => Ok(text),
                (None, Some(of)) => {
                    if value.is_instance(of.package.reply.bind(py))? {
                        of.called.bind(py).call_method0("refuse_reply")?;
                    }
                    let name = &of.name;
                    let wrong = |why| format!("{name} returns what is no value of msgpack: {why}");
                    Ok(packed().map_err(|why| PyTypeError::new_err(wrong(why)))?)
                }
                _ => packed(),
            },
        };
        self.with(py, |rows| {
            rows.returned = Some(returned.map_err(|why| Fault(why.into()))?);
            Ok(())
        })
    }
}

/// Whether messages can hold a value unchanged.
fn is_plain(value: &Bound<'_, PyAny>) -> bool {
    value.is_none()
        || (value.is_exact_instance_of::<PyInt>() && value.extract::<i64>().is_ok())
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyBytes>()
}

/// Returns the message's form of a decimal or a time, of any precision and zone.
fn as_text(value: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    let class = value.get_type();
    let (name, module) = (class.name()?, class.module()?);
    let text = match (module.to_str()?, name.to_str()?) {
        ("decimal", "Decimal") => value.str()?,
        ("datetime", "datetime") => value.call_method0("isoformat")?.cast_into::<PyString>()?,
        _ => return Ok(None),
    };
    let text = [name, text].iter().map(|t| Ok(Value::str(t.to_str()?))).collect::<PyResult<_>>()?;
    Ok(Some(Value::List(text)))
}

/// Returns the result of a call. It equals the function's value, and is a fresh object.
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

/// The objects of the package that functions use.
struct Package {
    /// The thread's transaction.
    local: Py<PyAny>,
    /// The interface for calls of entities.
    calls: Py<PyAny>,
    /// The classes of the objects that functions of entities, and other functions, are given.
    context: Py<PyAny>,
    tx: Py<PyAny>,
    /// The class of all replies, and the class of replies that are not there yet.
    reply: Py<PyAny>,
    remote: Py<PyAny>,
    coroutine: Py<PyAny>,
    verdict: Py<PyAny>,
    /// The contexts in which decimals are computed: a fresh one, and the thread's.
    fresh: Py<PyAny>,
    get_context: Py<PyAny>,
    set_context: Py<PyAny>,
}

impl Package {
    fn new(py: Python<'_>) -> PyResult<Package> {
        let of =
            |module: &str, name: &str| Ok::<_, PyErr>(py.import(module)?.getattr(name)?.unbind());
        Ok(Package {
            local: of("tidemill.context", "local")?,
            calls: of("tidemill.remote", "CALLS")?,
            context: of("tidemill.remote", "RemoteContext")?,
            tx: of("tidemill.opaque", "Tx")?,
            reply: of("tidemill.entity", "Reply")?,
            remote: of("tidemill.remote", "Remote")?,
            coroutine: of("types", "CoroutineType")?,
            verdict: of("tidemill.opaque", "verdict")?,
            fresh: py.import("tidemill.opaque")?.getattr("CONTEXT")?.getattr("copy")?.unbind(),
            get_context: of("decimal", "getcontext")?,
            set_context: of("decimal", "setcontext")?,
        })
    }
}

/// An opaque function of the app.
struct Function {
    package: Arc<Package>,
    name: String,
    function: Py<PyAny>,
    /// The package's handler, for requests and for other calls of it.
    handler: Py<PyAny>,
    inner: Py<PyAny>,
    /// The package's `Function`, for a function of an entity; and its table, also by its number.
    called: Py<PyAny>,
    table: Option<(usize, Py<PyAny>)>,
    /// Whether the entity need not exist.
    creates: bool,
    /// Whether it takes an event instead of arguments.
    takes_event: bool,
}

/// The opaque functions of an app on nodes.
struct PyFunctions {
    functions: Vec<Function>,
    shapes: Arc<Shapes>,
    /// A reference to itself, for the functions that it begins.
    own: OnceLock<std::sync::Weak<PyFunctions>>,
}

/// A function as the package describes it: the handler, the handler for calls inside, the
/// `Function` and its table, if it is one, and whether it takes an event.
type NodeFunction<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, bool);

/// Returns an app, and its functions for nodes, from the data of the package's `spec`.
///
/// A caller that runs nodes on a Python thread must save that thread's decimal context, because
/// functions leave theirs behind. A node that does much work at once is faster with the interpreter
/// lock held.
pub fn app_functions(
    py: Python<'_>,
    spec: &str,
    opaques: Vec<Py<PyAny>>,
) -> PyResult<(AppSpec, Arc<AppFunctions>)> {
    let given = opaques.iter().map(|opaque| opaque.clone_ref(py)).collect();
    let spec = app_spec(py, spec, given)?;
    let mut shapes = Shapes::of(&spec.program);
    shapes.deadline_us = spec.settings.deadline();
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
    let package = Arc::new(Package::new(py)?);
    for described in remote.call1((opaques,))?.try_iter()? {
        let (handler, inner, called, table, takes_event) =
            described?.extract::<NodeFunction<'_>>()?;
        let table = match table.is_none() {
            true => None,
            false => Some((table.getattr("id")?.extract()?, table.unbind())),
        };
        functions.push(Function {
            package: package.clone(),
            name: handler.getattr("name")?.extract()?,
            function: handler.getattr("function")?.unbind(),
            creates: table.is_some() && called.getattr("creates")?.is_truthy()?,
            handler: handler.unbind(),
            inner: inner.unbind(),
            called: called.unbind(),
            table,
            takes_event,
        });
    }
    let own = OnceLock::new();
    let begins = Arc::new(PyFunctions { functions, shapes: Arc::new(shapes), own });
    // Only this function sets it.
    let _ = begins.own.set(Arc::downgrade(&begins));
    let functions = AppFunctions::new(&spec, begins).map_err(|error| raised(py, &error))?;
    Ok((spec, functions))
}

impl StartFunction for PyFunctions {
    fn begin(
        &self,
        function: usize,
        call: &Call,
        is_request: bool,
    ) -> Result<Box<dyn Activation>, Abort> {
        let functions = self.own.get().and_then(std::sync::Weak::upgrade);
        let functions = functions.expect("whoever asks holds it");
        let (call, running, coroutine, decimals) = (call.clone(), None, None, None);
        Ok(Box::new(Turns { functions, function, call, is_request, running, coroutine, decimals }))
    }

    fn keep(&self, activation: Box<dyn Activation>) -> Box<dyn Activation> {
        suspended(activation)
    }
}

/// A call of a Python function, which runs in turns.
struct Turns {
    functions: Arc<PyFunctions>,
    function: usize,
    call: Call,
    is_request: bool,
    /// The transaction in which it runs, once it has begun.
    running: Option<Py<NativeTx>>,
    /// The coroutine, while it waits.
    coroutine: Option<Py<PyAny>>,
    /// The coroutine's decimal context, while it waits.
    decimals: Option<Py<PyAny>>,
}

impl Turns {
    fn function(&self) -> &Function {
        &self.functions.functions[self.function]
    }

    /// Lets the function begin or continue, in its surroundings.
    fn turn(&mut self, py: Python<'_>, running: &Bound<'_, NativeTx>) -> PyResult<Outcome> {
        let package = self.function().package.clone();
        let (local, transaction) = (package.local.bind(py), intern!(py, "transaction"));
        local.setattr(transaction, running)?;
        // Settings that a function makes there are lost with it. The next function on this thread
        // sets its own.
        let decimals = self.decimals.take().map_or_else(|| package.fresh.call0(py), Ok)?;
        package.set_context.bind(py).call1((decimals,))?;
        let outcome = match self.coroutine.take() {
            Some(coroutine) => self.goes_on(running, coroutine.into_bound(py)),
            None => self.begins(running).and_then(|result| {
                match result.get_type().is(package.coroutine.bind(py)) {
                    true => self.goes_on(running, result),
                    false => self.ends(running, &result),
                }
            }),
        };
        if self.coroutine.is_some() {
            self.decimals = Some(package.get_context.call0(py)?);
        }
        local.setattr(transaction, py.None())?;
        outcome.or_else(|error| {
            // Even SystemExit: a function can abort its transaction, and nothing more.
            let verdict = package.verdict.bind(py).call1((error.into_value(py),))?;
            let (why, reason) = verdict.extract::<(String, String)>()?;
            Ok(Outcome::Aborted(Abort { kind: kind(&why), reason }))
        })
    }

    /// Returns the function's result, which may be a coroutine.
    fn begins<'py>(&self, running: &Bound<'py, NativeTx>) -> PyResult<Bound<'py, PyAny>> {
        let (py, function) = (running.py(), self.function());
        let handler = if self.is_request { &function.handler } else { &function.inner };
        running.setattr(intern!(py, "handler"), handler)?;
        if running.get().is_new() {
            running.setattr(intern!(py, "graph"), &function.package.calls)?;
        }
        let mut given = Vec::with_capacity(self.call.args.len() + 2);
        match &function.table {
            Some((id, table)) => {
                let row = NativeTx::own(running, table.bind(py), *id, self.call.key.to_vec())?;
                if !function.creates {
                    NativeTx::needs(running, 0)?;
                }
                given.push(row.into_bound(py).into_any());
                given.push(running.get().context(running, &function.package.context)?);
            }
            None => given.push(function.package.tx.bind(py).call1((running,))?),
        }
        if function.takes_event {
            let event = to_tuple(py, &self.call.args)?;
            given.push(handler.bind(py).call_method1("event", (event,))?);
        } else {
            for value in self.call.args.iter() {
                given.push(to_python(py, value)?);
            }
        }
        function.function.bind(py).call1(PyTuple::new(py, given)?)
    }

    fn goes_on(
        &mut self,
        running: &Bound<'_, NativeTx>,
        coroutine: Bound<'_, PyAny>,
    ) -> PyResult<Outcome> {
        let waits = match sent(&coroutine)? {
            PySendResult::Return(value) => return self.ends(running, &value),
            PySendResult::Next(waits) => waits,
        };
        let (py, package) = (running.py(), &self.function().package);
        let calls = if waits.get_type().is(package.remote.bind(py)) {
            vec![waits.getattr(intern!(py, "_call"))?.extract()?]
        } else if waits.is_instance(package.remote.bind(py))? {
            waits.call_method0(intern!(py, "calls"))?.extract()?
        } else {
            return Err(waits_outside(&coroutine)?);
        };
        self.coroutine = Some(coroutine.unbind());
        Ok(Outcome::Waits(calls))
    }

    fn ends(&self, running: &Bound<'_, NativeTx>, value: &Bound<'_, PyAny>) -> PyResult<Outcome> {
        let (py, function) = (running.py(), self.function());
        if !function.takes_event {
            let of = function.table.is_some().then_some(function);
            running.get().returns(value, self.is_request, of)?;
        } else if !value.is_none() {
            function.handler.bind(py).call_method1("emit_result", (running, value))?;
        }
        running.get().write_back(py)?;
        Ok(Outcome::Done)
    }

    /// Ends the transaction. A waiting coroutine ends silently.
    fn over(&mut self, py: Python<'_>) {
        if let Some(coroutine) = self.coroutine.take() {
            // The coroutine's final actions are not part of the transaction, and are not reported.
            let _ = coroutine.bind(py).call_method0(intern!(py, "close"));
        }
        if let Some(running) = self.running.take() {
            running.get().end();
            // The two refer to each other.
            let context = running.get().take_context();
            let is_free = context.as_ref().is_none_or(|context| {
                // SAFETY: both are objects, and the interpreter lock is held.
                let counts =
                    unsafe { [ffi::Py_REFCNT(context.as_ptr()), ffi::Py_REFCNT(running.as_ptr())] };
                counts == [1, 2]
            });
            if let Some(context) = context.filter(|_| is_free) {
                running.get().keep_context(context);
                keep(running.into_bound(py));
            } else if is_free {
                spare(running.into_bound(py));
            }
        }
    }
}

/// The progress of a function.
enum Outcome {
    Done,
    Waits(Vec<usize>),
    Aborted(Abort),
}

/// A transaction with a node, which is taken back however its turn ends.
struct Entered<'a>(&'a NativeTx);

impl<'a> Entered<'a> {
    fn new(tx: &'a NativeTx, node: &mut OnNode<'_>, shapes: &Arc<Shapes>) -> Entered<'a> {
        tx.enter(node, shapes);
        Entered(tx)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Activation for Turns {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let raised = |e: PyErr| Abort { kind: AbortKind::Raised, reason: e.to_string() };
        attached(|py| {
            let functions = self.functions.clone();
            let mut node = OnNode { context, is_unwound: false };
            let deadline_us = functions.shapes.deadline_us.filter(|_| node.has_deadline());
            let running = match &self.running {
                Some(running) => running.clone_ref(py),
                None => {
                    let made = running(py, &functions.shapes).map_err(raised)?.unbind();
                    self.running.insert(made).clone_ref(py)
                }
            };
            let entered = Entered::new(running.get(), &mut node, &functions.shapes);
            // A wait does not count as the function's time.
            let timed = Timed::begin(py, deadline_us).map_err(raised)?;
            let outcome = self.turn(py, running.bind(py));
            let is_overdue = timed.is_some_and(|timed| timed.end(py));
            drop(entered);
            let waits = match &outcome {
                Ok(Outcome::Waits(waits)) => &waits[..],
                _ => &[],
            };
            let (returned, abort, waits) = running.get().outcome(waits);
            drop(running);
            let step = match (outcome, abort) {
                _ if node.is_unwound => Err(Stop::Unwind),
                // The function's result does not count, because its progress depends on the
                // machine.
                _ if is_overdue => Err(Stop::Overdue(overdue(deadline_us))),
                // The first abort counts, whatever the function has done with it.
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
            // If the interpreter has ended, there is nothing to end.
            let _ = Python::try_attach(|py| self.over(py));
        }
    }
}
