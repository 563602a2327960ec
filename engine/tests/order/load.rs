//! The load on a running engine. Two clients push batches into a stream each, and three call, one
//! of them without waiting, all at the same time. The actions of each transaction leave with it: in
//! a call's reply, and in the one stream that all of them emit into.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::Arc;

use tidemill_core::{Batch, Column, DataType, HandlerId, StreamId, TableId, Value};
use tidemill_engine::{AppSpec, Durable, Mill, Reply, Settings, SourceDecl};
use tidemill_env::Env;
use tidemill_sim::SimEnv;
use tidemill_txn::program::{Abort, Builder, Opaque, Origin, Program, Tx};

use crate::history::{
    is_refused, number, Do, History, Op, Procedure, Transaction, Turn, Who, KEYS, NESTED, NODES,
    PROCEDURES, STREAMS,
};
use crate::model::{keys, Dice};

/// The events of each pushed stream.
const ROUNDS: i64 = 60;
/// The calls of each calling client.
const CALLS: i64 = 60;
const CALLERS: i64 = 3;
/// The number of a call among the procedures that emit into the stream of actions.
const CALL: i64 = -1;

/// The kinds of calls: those that read, those that append, and those that append and abort.
const APPENDS: i64 = 1;
const ABORTS: i64 = 2;

const LISTS: TableId = TableId(0);

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) => *int,
        other => unreachable!("{other} is in a column of integers"),
    }
}

fn ints(value: &Value) -> Vec<i64> {
    match value {
        Value::List(list) => list.iter().map(int).collect(),
        other => unreachable!("{other} is in a column of lists"),
    }
}

fn list(ints: &[i64]) -> Value {
    Value::List(ints.iter().copied().map(Value::Int).collect())
}

/// Acts on the lists, and notes each action: its kind, the key, then the number, or the length and
/// the list.
struct Doing<'t> {
    tx: &'t mut dyn Tx,
    noted: Vec<i64>,
}

impl Doing<'_> {
    fn held(&mut self, key: i64) -> Result<Vec<i64>, Abort> {
        let row = self.tx.get(LISTS, &[Value::Int(key)])?;
        Ok(row.map_or_else(Vec::new, |row| ints(&row[1])))
    }

    fn append(&mut self, key: i64, number: i64) -> Result<(), Abort> {
        let mut held = self.held(key)?;
        held.push(number);
        self.noted.extend([0, key, number]);
        self.tx.put(LISTS, &[Value::Int(key), list(&held)])
    }

    fn read(&mut self, key: i64) -> Result<(), Abort> {
        let held = self.held(key)?;
        self.noted.extend([1, key, held.len() as i64]);
        self.noted.extend(held);
        Ok(())
    }
}

fn ops(noted: &[i64]) -> Vec<Op> {
    let (mut ops, mut rest) = (Vec::new(), noted);
    while let [what, key, last, tail @ ..] = rest {
        let length = if *what == 1 { *last as usize } else { 0 };
        let (list, tail) = tail.split_at(length);
        ops.push(match what {
            0 => Op::Append { key: *key, number: *last },
            _ => Op::Read { key: *key, list: list.to_vec() },
        });
        rest = tail;
    }
    ops
}

/// The function of a procedure.
struct Working {
    procedure: usize,
    emits: Option<StreamId>,
    done: StreamId,
}

impl Opaque for Working {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let round = int(&event[0]);
        let mut doing = Doing { tx, noted: Vec::new() };
        for does in PROCEDURES[self.procedure].does {
            match does {
                Do::Append(key) => {
                    doing.append(int(&event[1 + key]), number(self.procedure, round))?
                }
                Do::Read(key) => doing.read(int(&event[1 + key]))?,
            }
        }
        if NODES[NESTED].last() == Some(&self.procedure) && is_refused(round) {
            return Err(Abort::refused("every seventh"));
        }
        let Doing { tx, noted } = doing;
        if let Some(stream) = self.emits {
            tx.emit(stream, event)?;
        }
        tx.emit(self.done, &[Value::Int(self.procedure as i64), event[0].clone(), list(&noted)])
    }
}

/// The function of a call.
struct Answering {
    reply: StreamId,
    done: StreamId,
}

impl Opaque for Answering {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let [id, kind, key, other] = [0, 1, 2, 3].map(|column| int(&event[column]));
        let mut doing = Doing { tx, noted: Vec::new() };
        if kind > 0 {
            doing.append(key, -id)?;
        }
        doing.read(key)?;
        doing.read(other)?;
        let Doing { tx, noted } = doing;
        if kind == ABORTS {
            return Err(Abort::refused("as it was asked"));
        }
        tx.emit(self.done, &[Value::Int(CALL), Value::Int(id), list(&noted)])?;
        tx.emit(self.reply, &[list(&noted)])
    }
}

/// The app, and the schemas of its events and its calls.
fn program() -> Program {
    let mut b = Builder::new("history");
    let columns = |names: &[&str]| names.iter().map(|n| Column::new(n, DataType::Int)).collect();
    let listed = |name: &str| Column::new(name, DataType::List(Box::new(DataType::Int)));
    let event = || columns(&["round", "a", "b", "c"]);
    b.table("lists", &["key"], vec![Column::new("key", DataType::Int), listed("list")]);
    let mut streams: HashMap<&str, StreamId> = HashMap::new();
    for (name, _) in STREAMS {
        streams.insert(name, b.stream(name, event()));
    }
    let calls = b.calls("ask.calls", columns(&["id", "kind", "key", "other"]));
    for Procedure { emits, .. } in &PROCEDURES {
        if let Some(name) = emits {
            streams.insert(name, b.emitted(name, event()));
        }
    }
    let noted: Vec<Column> = columns(&["who", "round"]);
    let done = b.emitted("done", noted.into_iter().chain([listed("noted")]).collect());
    let reply = b.emitted("reply", vec![listed("noted")]);
    for (procedure, Procedure { name, takes, emits, .. }) in PROCEDURES.iter().enumerate() {
        let emits = emits.map(|name| streams[name]);
        let into: Vec<StreamId> = emits.into_iter().chain([done]).collect();
        let body = Arc::new(Working { procedure, emits, done });
        assert_eq!(b.procedure(name, &[streams[takes]], &into, body), procedure);
    }
    let ask = b.opaque("ask", calls, Arc::new(Answering { reply, done }));
    b.emits(ask, &[done, reply]);
    b.nested("nested", NODES[NESTED], &[]);
    let mut program = b.finish().unwrap();
    // The reply is the function's return value.
    program.handlers[ask].output = Some(reply);
    program.streams[reply.index()].origin = Origin::Output(HandlerId(ask as u16));
    program.check().unwrap();
    program
}

/// The counter that all clients share.
#[derive(Clone, Default)]
struct Moments(Arc<AtomicU64>);

impl Moments {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// The rounds of a stream with their keys, and when each was sent and acknowledged.
type Pushed = Vec<([i64; 3], u64, u64)>;
/// A call, when it was made and answered, and its reply.
type Asked = ([i64; 4], u64, u64, Reply);

fn push(mill: &Mill, moments: &Moments, stream: &str, dice: &mut Dice) -> Pushed {
    let schema =
        program().streams.iter().find(|s| &*s.spec.name == stream).unwrap().spec.schema.clone();
    let mut pushed: Pushed = Vec::new();
    while (pushed.len() as i64) < ROUNDS {
        let first = pushed.len();
        let made = moments.next();
        for _ in 0..=dice.below(3) {
            pushed.push((keys(dice), made, 0));
        }
        let row = |(nth, (keys, ..)): (usize, &([i64; 3], u64, u64))| {
            [(first + nth + 1) as i64, keys[0], keys[1], keys[2]].map(Value::Int)
        };
        let rows: Vec<[Value; 4]> = pushed[first..].iter().enumerate().map(row).collect();
        let batch = Batch::from_rows(schema.clone(), rows.iter().map(|row| &row[..]));
        let sent = mill.send(stream, batch).unwrap();
        // Not every round is awaited.
        if dice.below(2) == 0 || pushed.len() as i64 >= ROUNDS {
            mill.acknowledge(stream, sent).unwrap();
            let answered = moments.next();
            pushed.iter_mut().filter(|(.., at)| *at == 0).for_each(|(.., at)| *at = answered);
        }
    }
    pushed
}

fn call(mill: &Mill, moments: &Moments, caller: i64, dice: &mut Dice) -> Vec<Asked> {
    let schema = program()
        .streams
        .iter()
        .find(|s| &*s.spec.name == "ask.calls")
        .unwrap()
        .spec
        .schema
        .clone();
    let (tell, told) = mpsc::channel();
    for nth in 0..CALLS {
        let (key, other) = (dice.below(KEYS) as i64, dice.below(KEYS) as i64);
        let kind = [0, 0, APPENDS, APPENDS, ABORTS][dice.below(5) as usize];
        let asked = [1 + nth * CALLERS + caller, kind, key, other];
        let batch = Batch::from_rows(schema.clone(), [&asked.map(Value::Int)[..]]);
        let (tell, answered, made) = (tell.clone(), moments.clone(), moments.next());
        let waits = caller > 0;
        let (done, is_done) = mpsc::channel();
        let then = move |reply: tidemill_core::Result<Reply>| {
            tell.send((asked, made, answered.next(), reply.unwrap())).unwrap();
            let _ = done.send(());
        };
        mill.call_then("ask", batch, None, Box::new(then)).unwrap();
        if waits {
            is_done.recv().unwrap();
        }
    }
    drop(tell);
    told.iter().collect()
}

/// Runs the load on the engine, on a simulated disk, and returns the history.
pub fn run(seed: u64, workers: usize) -> History {
    let sim = SimEnv::new(seed);
    let settings = Settings {
        data_dir: Some("/data".into()),
        durable: Durable::Log,
        workers,
        rerun_every: 3,
        ..Settings::default()
    };
    let sources = ["left", "right", "ask.calls"].map(SourceDecl::pushed).to_vec();
    let keep = ["done"].map(String::from).to_vec();
    let spec = AppSpec { keep, ..AppSpec::new(program(), sources, settings) };
    let (mill, moments) = (Arc::new(Mill::start(spec, sim.env()).unwrap()), Moments::default());
    let (tell_pushed, pushed) = mpsc::channel();
    let (tell_asked, asked) = mpsc::channel();
    let env: Env = sim.env();
    let mut threads = Vec::new();
    for (number, (stream, _)) in STREAMS.iter().enumerate() {
        let (mill, moments, tell) = (mill.clone(), moments.clone(), tell_pushed.clone());
        let mut dice = Dice(seed * 100 + number as u64);
        let body = move || tell.send((number, push(&mill, &moments, stream, &mut dice))).unwrap();
        threads.push(env.threads.spawn("push", Box::new(body)).unwrap());
    }
    for caller in 0..CALLERS {
        let (mill, moments, tell) = (mill.clone(), moments.clone(), tell_asked.clone());
        let mut dice = Dice(seed * 100 + 50 + caller as u64);
        let body = move || tell.send(call(&mill, &moments, caller, &mut dice)).unwrap();
        threads.push(env.threads.spawn("call", Box::new(body)).unwrap());
    }
    drop((tell_pushed, tell_asked));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    mill.drain().unwrap();
    let done: Vec<Batch> = mill.output("done", 0).unwrap();
    let lists = mill.table("lists").unwrap();
    let summary = mill.stop().unwrap();
    assert!(summary.unstable.is_empty(), "{:?}", summary.unstable);

    let lists = lists.rows().map(|row| (int(&row[0]), ints(&row[1]))).collect();
    let mut history = History { lists, ..History::default() };
    let mut noted: BTreeMap<(usize, i64), Vec<Op>> = BTreeMap::new();
    let mut calls_noted: HashMap<i64, Vec<Op>> = HashMap::new();
    for row in done.iter().flat_map(Batch::rows) {
        let (who, round, ops) = (int(&row[0]), int(&row[1]), ops(&ints(&row[2])));
        if who == CALL {
            history.schedule.push(Turn::Call(round));
            calls_noted.insert(round, ops);
        } else {
            let procedure = who as usize;
            history.schedule.push(Turn::Procedure { procedure, round });
            noted.insert((procedure, round), ops);
        }
    }
    for (stream, pushed) in pushed {
        history.rounds[stream] = pushed.len() as i64;
        for (round, (keys, made, answered)) in (1..).zip(pushed) {
            for node in STREAMS[stream].1 {
                let of = |procedure: &usize| noted.get(&(*procedure, round)).cloned();
                let seen: Vec<Option<Vec<Op>>> = NODES[*node].iter().map(of).collect();
                // An aborted transaction notes nothing.
                let committed = seen.iter().all(Option::is_some);
                let would = || {
                    let of = |p: &usize| {
                        PROCEDURES[*p]
                            .does
                            .iter()
                            .filter_map(|does| match does {
                                Do::Append(key) => {
                                    Some(Op::Append { key: keys[*key], number: number(*p, round) })
                                }
                                Do::Read(_) => None,
                            })
                            .collect::<Vec<_>>()
                    };
                    NODES[*node].iter().flat_map(of).collect()
                };
                let ops = if committed {
                    seen.into_iter().flatten().flatten().collect()
                } else {
                    would()
                };
                let who = Who::Node(*node, round);
                history.transactions.push(Transaction { who, made, answered, ops, committed });
            }
        }
    }
    for ([id, kind, key, _], made, answered, reply) in asked.into_iter().flatten() {
        let (committed, ops) = match reply {
            Reply::Returned(Some(row)) => {
                let ops = ops(&ints(&row[0]));
                // The reply equals the recorded actions.
                assert_eq!(calls_noted.get(&id), Some(&ops), "call {id}");
                (true, ops)
            }
            Reply::Returned(None) => panic!("call {id} came back with nothing"),
            Reply::Aborted(reason) => {
                assert_eq!((kind, &*reason), (ABORTS, "as it was asked"));
                (false, vec![Op::Append { key, number: -id }])
            }
            Reply::Faulted { what, .. } => panic!("call {id} failed: {what}"),
            Reply::OtherRequest => panic!("call {id} has no request id"),
        };
        history.transactions.push(Transaction {
            who: Who::Call(id),
            made,
            answered,
            ops,
            committed,
        });
    }
    history
}
