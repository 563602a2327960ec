//! An app's calls on several nodes of this process, for tests. Messages arrive in any order that
//! connections allow.

use std::collections::{BTreeMap, HashMap, VecDeque};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tidemill_core::{Batch, Row, Schema, StreamId, StreamTime, Value};
use tidemill_engine::{AppFunctions, Reply};
use tidemill_env::Env;
use tidemill_function::{
    Call, Clock, Event, Functions, Message, Node, NodeId, Outbox, Owners, Path, Question, Rows,
    Sequencing, Settings, Tid,
};
use tidemill_txn::program::Origin;

use crate::batches;
use crate::errors::to_python as raised;
use crate::remote::app_functions;
use crate::values::to_python;

/// Nodes, the messages between them, and the outputs.
struct Net {
    nodes: Vec<Node>,
    wires: BTreeMap<(NodeId, NodeId), VecDeque<Message>>,
    questions: Vec<(NodeId, Question)>,
    replies: HashMap<Tid, Result<Value, tidemill_txn::program::Abort>>,
    emitted: Vec<(Tid, Path, StreamId, Row)>,
    not_deterministic: usize,
    state: u64,
}

impl Net {
    /// Returns the next random number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn take(&mut self, from: NodeId, out: Outbox) {
        for (to, message) in out.messages {
            self.wires.entry((from, to)).or_default().push_back(message);
        }
        for event in out.events {
            match event {
                Event::Replied { tid, outcome } => drop(self.replies.insert(tid, outcome)),
                Event::Emitted { tid, path, stream, row } => {
                    self.emitted.push((tid, path, stream, row));
                }
                Event::Asked(question) => self.questions.push((from, question)),
                Event::Columns(outcome) => {
                    for of in outcome.outputs {
                        let places = of.tids.into_iter().zip(of.ordinals);
                        for ((tid, ordinal), row) in places.zip(of.batch.rows()) {
                            let path = [ordinal].into_iter().collect();
                            self.emitted.push((Tid(tid), path, of.stream, row));
                        }
                    }
                }
                Event::Outbox { .. } | Event::Committed { .. } => {}
                Event::Failed => unreachable!("all nodes have one program"),
                Event::NotDeterministic { .. } => self.not_deterministic += 1,
            }
        }
    }

    /// Executes an epoch.
    fn run(&mut self, number: u64, clock: &Clock, requests: &[(Tid, Call)]) {
        let mut homes: Vec<Option<Vec<(Tid, Call)>>> = vec![Some(Vec::new()); self.nodes.len()];
        for (tid, call) in requests {
            let at = self.below(homes.len());
            homes[at].as_mut().expect("it is there").push((*tid, call.clone()));
        }
        loop {
            let wires = self.wires.iter().filter(|(_, wire)| !wire.is_empty());
            let mut choices: Vec<(NodeId, NodeId)> = wires.map(|(&pair, _)| pair).collect();
            let begins = homes.iter().enumerate().filter(|(_, home)| home.is_some());
            choices.extend(begins.map(|(n, _)| (NodeId(n as u16), NodeId(n as u16))));
            let questions = self.questions.len();
            if questions > 0 && (choices.is_empty() || self.below(4) == 0) {
                let nth = self.below(questions);
                let (at, question) = self.questions.swap_remove(nth);
                let (answer, mut out) = (question.ask.now().into(), Outbox::default());
                self.nodes[usize::from(at.0)].answered(&question, answer, &mut out);
                self.take(at, out);
                continue;
            }
            if choices.is_empty() {
                return;
            }
            let (from, to) = choices[self.below(choices.len())];
            let at = usize::from(to.0);
            let mut out = Outbox::default();
            match homes[at].take_if(|_| from == to) {
                Some(home) => {
                    self.nodes[at].begin(
                        number,
                        clock.clone(),
                        home,
                        (Vec::new(), tidemill_function::ColumnPlan::default()),
                        &mut out,
                    );
                }
                None => {
                    let wire = self.wires.get_mut(&(from, to));
                    let message = wire.and_then(VecDeque::pop_front).expect("it is under way");
                    self.nodes[at].receive(from, message, &mut out);
                }
            }
            self.take(to, out);
        }
    }
}

/// Returns the transactions of calls, which are (procedure or stream, row) pairs.
fn requests(functions: &AppFunctions, calls: &Bound<'_, PyList>) -> PyResult<Vec<(usize, Call)>> {
    let py = calls.py();
    let schemas: HashMap<&str, (StreamId, _)> = functions
        .program()
        .streams
        .iter()
        .enumerate()
        .map(|(n, s)| (&*s.spec.name, (StreamId(n as u16), s.spec.schema.clone())))
        .collect();
    let mut requests = Vec::new();
    for (nth, given) in calls.iter().enumerate() {
        let (name, row) = given.extract::<(String, Bound<'_, PyAny>)>()?;
        let called = schemas.get(&*format!("{name}.calls"));
        let Some((stream, schema)) = called.or_else(|| schemas.get(&*name)) else {
            return Err(PyValueError::new_err(format!("there is no {name}")));
        };
        let batches = batches::from_python(&name, schema, PyList::new(py, [row])?.as_any())?;
        let row = batches.first().map(|batch| batch.row(0)).unwrap_or_default();
        match called {
            Some(_) => {
                let call = functions.call(&name, &row).map_err(|e| raised(py, &e))?;
                requests.push((nth, call));
            }
            None => {
                let calls = functions.event(*stream, &row).map_err(|e| raised(py, &e))?;
                requests.extend(calls.into_iter().map(|call| (nth, call)));
            }
        }
    }
    Ok(requests)
}

/// Divides requests into epochs of at most this size. Events in event time, all of which are in
/// order, follow all other requests.
fn epochs<'a>(
    functions: &'a AppFunctions,
    requests: &'a [(usize, Call)],
    epoch: usize,
) -> impl Iterator<Item = &'a [(usize, Call)]> {
    let is_timed = |(_, call): &(usize, Call)| functions.timed(call).is_some();
    let fits = move |one: &(usize, Call), next: &(usize, Call)| !is_timed(one) || is_timed(next);
    let parts = requests.chunk_by(fits);
    parts.flat_map(move |part| part.chunks(epoch.max(1)))
}

/// Runs calls in their order, with a number of calls an epoch, on a number of nodes. Returns the
/// replies of all calls, the rows of all tables, and the events of all streams, as dicts by name.
#[pyfunction]
pub fn run_nodes<'py>(
    py: Python<'py>,
    spec: &str,
    opaques: Vec<Py<PyAny>>,
    calls: &Bound<'py, PyList>,
    nodes: u16,
    seed: u64,
    epoch: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let (_, functions) = app_functions(py, spec, opaques)?;
    let program = functions.program();
    let requests = requests(&functions, calls)?;
    let owners = match functions.has_sole_owner() {
        true => Owners::all_of(nodes, NodeId(0)),
        false => Owners::equal(nodes),
    };
    let node = |n| {
        let rows = Rows::new(&program.tables, 7);
        Node::new(NodeId(n), functions.clone(), owners.clone(), Settings::default(), rows)
    };
    let mut net = Net {
        nodes: (0..nodes).map(node).collect(),
        wires: BTreeMap::new(),
        questions: Vec::new(),
        replies: HashMap::new(),
        emitted: Vec::new(),
        not_deterministic: 0,
        state: seed,
    };
    let mut order = Sequencing { sources: 1, base: 0 };
    let mut all = Vec::new();
    let clock = Env::real().clock;
    // Functions leave their decimal context behind.
    let decimals = py.import("decimal")?;
    let before = decimals.call_method0("getcontext")?;
    let begun = clock.monotonic_ns();
    let mut marks_us: BTreeMap<StreamId, i64> = program
        .streams
        .iter()
        .enumerate()
        .filter(|(_, s)| s.spec.time != StreamTime::Arrival && s.origin == Origin::Input)
        .map(|(n, _)| (StreamId(n as u16), i64::MIN))
        .collect();
    for (number, requests) in epochs(&functions, &requests, epoch).enumerate() {
        let clock = Clock {
            now_us: number as i64 + 1,
            marks_us: marks_us.iter().map(|(stream, mark_us)| (*stream, *mark_us)).collect(),
        };
        marks_us.extend(requests.iter().filter_map(|(_, call)| functions.timed(call)));
        let placed = requests.iter().enumerate();
        let placed: Vec<(Tid, Call)> =
            placed.map(|(n, (_, call))| (order.tid(0, n as u64), call.clone())).collect();
        net.run(number as u64 + 1, &clock, &placed);
        all.extend(
            placed.into_iter().zip(requests).map(|((tid, call), (nth, _))| (tid, nth, call)),
        );
        order = order.next(requests.len() as u64);
    }
    let ns = clock.monotonic_ns() - begun;
    decimals.call_method1("setcontext", (before,))?;
    let found = PyDict::new(py);
    found.set_item("ns", ns)?;
    let replies = PyList::empty(py);
    for _ in 0..calls.len() {
        replies.append(py.None())?;
    }
    for (tid, nth, call) in &all {
        let outcome = net.replies.remove(tid).expect("all have ended");
        let (reply, event) = functions.replied(call, outcome);
        // A sole owner has emitted it.
        let event = event.filter(|_| !functions.has_sole_owner());
        let last = [u32::MAX].into_iter().collect();
        net.emitted.extend(event.map(|(stream, row)| (*tid, last, stream, row)));
        let reply = match reply {
            Reply::Aborted(reason) => ("aborted", Some(to_python(py, &Value::str(&reason))?)),
            Reply::Faulted { what, .. } => ("fault", Some(to_python(py, &Value::str(&what))?)),
            Reply::Returned(Some(row)) => ("returned", Some(to_python(py, &row[0])?)),
            _ => ("returned", None),
        };
        replies.set_item(**nth, reply)?;
    }
    found.set_item("replies", replies)?;
    found.set_item("not_deterministic", net.not_deterministic)?;
    let dicts = |schema: &std::sync::Arc<Schema>, rows: &[&[Value]]| {
        let batch = Batch::from_rows(schema.clone(), rows.iter().copied());
        batches::to_dicts(py, &batch)
    };
    let tables = PyDict::new(py);
    // These tables are the engine's own.
    let own = |name: &str| name.starts_with("tidemill.");
    let tables_of_app = program.tables.iter().enumerate().filter(|(_, t)| !own(&t.name));
    for (at, table) in tables_of_app {
        let rows = net.nodes.iter().flat_map(|node| node.rows().iter());
        let rows = rows.filter(|(table, ..)| table.index() == at);
        let rows: BTreeMap<_, _> = rows.map(|(_, key, row)| (key, row)).collect();
        let rows: Vec<&[Value]> = rows.values().map(|row| &row[..]).collect();
        tables.set_item(&*table.name, dicts(&table.schema, &rows)?)?;
    }
    found.set_item("tables", tables)?;
    net.emitted.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    let outputs = PyDict::new(py);
    for (at, stream) in program.streams.iter().enumerate() {
        let events = net.emitted.iter().filter(|(_, _, stream, _)| stream.index() == at);
        let rows: Vec<&[Value]> = events.map(|(.., row)| &row[..]).collect();
        if !rows.is_empty() {
            outputs.set_item(&*stream.spec.name, dicts(&stream.spec.schema, &rows)?)?;
        }
    }
    found.set_item("outputs", outputs)?;
    Ok(found)
}
