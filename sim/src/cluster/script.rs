//! Random programs: functions of entities that read, write, call, scan, branch and fail as the dice say.
//!
//! One machine interprets them, over whatever it is given: the context of a node, or the transaction of the
//! reference, where a call runs where it is made.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

use tidemill_cluster::EventSource;
use tidemill_core::{Column, DataType, Key, Late, Row, StreamId, TableId, Value};
use tidemill_function::{
    Activation, Call, Changes, Context, Functions, Handle, RowAt, Step, Stop, Target, Tid,
};
use tidemill_txn::program::{Abort, AbortKind, Ask, Builder, Opaque, Tx};
use tidemill_txn::Program;

use super::Dice;

/// Entities of two kinds, items of entities, and what requests have come to. The rows of one entity live
/// together.
pub const ENTITIES: [TableId; 2] = [TableId(0), TableId(1)];
const ITEMS: TableId = TableId(2);
const REQUESTS: TableId = TableId(3);
/// Work that somebody outside is to do; what that comes to is a request.
pub const OUTBOX: TableId = TableId(4);
/// The items by what they have, which live elsewhere than the items.
const BY_N: TableId = TableId(5);

/// What it emits.
pub const EVENTS: StreamId = StreamId(1);
/// The stream of what others are told of calls that abort: their numbers and the reasons.
pub const ABORTS: StreamId = StreamId(100);

/// Streams in event time, by what becomes of late events: these are told to others, or executed behind what arrives.
pub const TIMED: [StreamId; 2] = [StreamId(102), StreamId(103)];
/// The stream of late events that are told to others: their numbers and times.
pub const LATES: StreamId = StreamId(2);

/// Functions by number: those of the script are executed once for each request's id when this is added.
pub const ONCE: u32 = 1 << 16;
/// A transfer between rows that are known before it runs.
pub const TRANSFER: u32 = 1 << 17;
/// What such events begin: functions of the script as requests do.
const EVENTS_OF: [u32; 2] = [1 << 18, 1 << 19];
/// What is executed of a late one that is told to others.
const LATE: u32 = 1 << 20;
/// The answer to work outside: the first one counts.
const ANSWER: u32 = 1 << 21;

/// So many calls, and so deep.
pub const CALLS_MAX: u32 = 40;
/// See [`CALLS_MAX`].
pub const DEPTH_MAX: usize = 6;

/// An instruction.
#[derive(Clone, Copy, Debug)]
enum Inst {
    Read,
    Add(i64),
    Store,
    Delete,
    Need(i64),
    Call {
        function: u32,
        kind: usize,
        key: Operand,
        wanted: bool,
    },
    /// Awaits so many of the last calls that were wanted, at once.
    Await(usize),
    /// The same, one after the other, as functions ask that are begun again for it.
    Ask(usize),
    SkipIfOdd(usize),
    /// Back, so many times.
    Repeat {
        to: usize,
        times: u32,
    },
    Scan(u32),
    /// Items that may live elsewhere.
    ScanOf {
        key: Operand,
        limit: u32,
    },
    PutItem(i64),
    DeleteItem(i64),
    /// One that may live elsewhere.
    PutItemOf {
        key: Operand,
        item: i64,
    },
    /// Items that have so many, wherever they live.
    FindBy {
        n: Operand,
        limit: u32,
    },
    Get {
        kind: usize,
        key: Operand,
    },
    Put {
        kind: usize,
        key: Operand,
    },
    Remove {
        kind: usize,
        key: Operand,
    },
    Emit,
    Now,
    /// Asks somebody outside, who never says the same twice.
    Lookup,
    /// May take too long, as a clock says that nobody knows: the function, or a part of it.
    Tarry,
    TarryPartly,
    /// Asks for work outside.
    Work,
}

/// What a key is made of.
#[derive(Clone, Copy, Debug)]
enum Operand {
    Is(i64),
    Arg(i64),
    Acc,
}

/// A program.
pub struct Script {
    functions: Vec<Vec<Inst>>,
    keys: i64,
    /// No two items of all entities have the same number and as many.
    is_unique: bool,
    program: Program,
    /// What outside says next.
    outside: Arc<AtomicI64>,
}

/// What outside has said to transactions, by what they have asked.
pub type Told = BTreeMap<(Tid, Vec<u8>), Vec<u8>>;

/// A question as bytes; no other of its transaction is the same.
fn question(of: &[i64; 5]) -> Vec<u8> {
    of.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Bytes of a question. An answer begins with them.
const QUESTION_BYTES: usize = 40;

/// What verdicts of the clock begin with.
const OVERDUE: &str = "overdue";

/// The question to which somebody has said this. That of a verdict is all that it says.
pub fn asked(answer: &[u8]) -> Vec<u8> {
    match answer.starts_with(OVERDUE.as_bytes()) {
        true => answer.to_vec(),
        false => answer[..QUESTION_BYTES].to_vec(),
    }
}

/// What an answer to a question says.
fn said(question: &[u8], answer: &[u8]) -> i64 {
    let said = answer.strip_prefix(question).expect("it is the answer to this question");
    i64::from_le_bytes(said.try_into().expect("a word"))
}

fn mix(a: i64, b: i64) -> i64 {
    let mut z = (a as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (b as u64);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((z ^ (z >> 31)) >> 2) as i64
}

impl Script {
    /// A random program over so many entities of each kind.
    pub fn random(dice: &mut Dice, keys: i64) -> Arc<Script> {
        let count = 2 + dice.below(5) as u32;
        let mut functions: Vec<Vec<Inst>> =
            (0..count).map(|_| random_function(dice, count, keys)).collect();
        // One that is like most that people write: it takes here and gives there.
        let there = Inst::Call { function: 1, kind: 1, key: Operand::Arg(1), wanted: false };
        functions[0] = vec![Inst::Read, Inst::Need(1), Inst::Add(-1), there];
        functions[1] = vec![Inst::Add(1)];
        let is_unique = dice.chance(30);
        let (program, outside) = (tables(is_unique), Arc::default());
        Arc::new(Script { functions, keys, is_unique, program, outside })
    }

    /// Whether somebody is late who asks that now.
    fn is_late(&self) -> bool {
        self.outside.fetch_add(1, Ordering::Relaxed) % 4 == 0
    }

    /// How many tables it has, indexes among them.
    pub fn tables(&self) -> usize {
        self.program.tables.len()
    }

    /// A random request: what it calls.
    pub fn request(&self, dice: &mut Dice, id: i64) -> Call {
        let key = dice.below(self.keys as u64) as i64;
        let ints = |ints: &[i64]| ints.iter().map(|&i| Value::Int(i)).collect();
        if dice.chance(15) {
            let to = (key + 1 + dice.below(self.keys as u64 - 1) as i64) % self.keys;
            let third = dice.below(self.keys as u64) as i64;
            let args = ints(&[id, to, third, dice.below(9) as i64]);
            let (target, table) = (Target::Function(TRANSFER), ENTITIES[0]);
            return Call { target, table, key: ints(&[key]), args };
        }
        let function = match dice.chance(40) {
            true => dice.below(2) as u32,
            false => dice.below(self.functions.len() as u64) as u32,
        };
        let table = *dice.pick(&ENTITIES);
        let args = ints(&[id, dice.below(5) as i64]);
        Call { target: Target::Function(ONCE + function), table, key: ints(&[key]), args }
    }

    /// A random event of a stream in event time.
    pub fn event_in_time(&self, dice: &mut Dice, id: i64, time: i64) -> Call {
        let table = *dice.pick(&ENTITIES);
        let function = dice.below(self.functions.len() as u64) as u32;
        let target = Target::Function(*dice.pick(&EVENTS_OF) + ONCE + function);
        let ints = |ints: &[i64]| ints.iter().map(|&i| Value::Int(i)).collect();
        let key = ints(&[dice.below(self.keys as u64) as i64]);
        Call { target, table, key, args: ints(&[id, dice.below(5) as i64, time]) }
    }

    fn code(&self, function: u32) -> Result<&[Inst], Abort> {
        let code = self.functions.get(function as usize);
        code.map(Vec::as_slice).ok_or_else(|| Abort::refused(format!("no function {function}")))
    }

    /// What somebody outside says who has done what a row asks for: never the same twice. It has an id as requests have.
    pub fn answer(&self, row: &[Value], id: i64) -> Call {
        let said = self.outside.fetch_add(1, Ordering::Relaxed);
        let (target, table) = (Target::Function(ANSWER), OUTBOX);
        let args = [Value::Int(id), Value::Int(said)].into();
        Call { target, table, key: [row[0].clone()].into(), args }
    }

    /// The rows of a transfer: source, destination, one that counts, and the request's.
    fn transfer_rows(call: &Call) -> Vec<RowAt> {
        let (key, args) = (int(&call.key[0]), &call.args);
        let row = |table: TableId, key: &[i64]| {
            let key: Vec<Value> = key.iter().map(|&i| Value::Int(i)).collect();
            RowAt { table, key: Key::of(&key), writes: true }
        };
        vec![
            row(ENTITIES[0], &[key]),
            row(ENTITIES[0], &[int(&args[1])]),
            row(ENTITIES[1], &[int(&args[2])]),
            row(REQUESTS, &[key, int(&args[0])]),
        ]
    }

    /// A transfer on its rows: the new ones, and what it returns.
    fn transfer(call: &Call, rows: &[Option<Arc<[Value]>>]) -> Result<Changes, Abort> {
        let n = |at: usize| rows[at].as_ref().map_or(5, |row| int(&row[1]));
        if let Some(request) = &rows[3] {
            return Ok(Changes { value: Some(request[2].clone()), ..Changes::default() });
        }
        let (key, args) = (int(&call.key[0]), &call.args);
        let amount = int(&args[3]);
        if n(0) < amount {
            return Err(Abort::refused(format!("only {} there", n(0))));
        }
        let value = mix(n(1), n(2));
        let row = |values: &[i64]| Some(values.iter().map(|&i| Value::Int(i)).collect::<Row>());
        let rows = vec![
            (0, row(&[key, n(0) - amount])),
            (1, row(&[int(&args[1]), n(1) + amount])),
            (2, row(&[int(&args[2]), n(2) + 1])),
            (3, row(&[key, int(&args[0]), value])),
        ];
        let event = [key, value].into_iter().map(Value::Int).collect();
        Ok(Changes { rows, value: Some(Value::Int(value)), events: vec![(EVENTS, event)] })
    }

    /// The same program for the reference: requests are events, in the order that they have, and so are those of streams
    /// in event time, by their sources. The `n`th of these transactions was told this. Beside it the stream of what calls
    /// return, and of what aborts, of each.
    pub fn for_reference(
        self: &Arc<Script>,
        sources: &[EventSource],
        tids: &[Option<Tid>],
        told: &Told,
    ) -> (Arc<Program>, Vec<[StreamId; 2]>) {
        let mut b = builder(self.is_unique);
        let request = b.stream("requests", request_columns());
        b.emitted(
            "events",
            vec![Column::new("n", DataType::Int), Column::new("acc", DataType::Int)],
        );
        b.source("requests", request, 0);
        let mut inputs = vec![request];
        if !sources.is_empty() {
            inputs.extend(["side", "admit"].map(|name| b.stream(name, request_columns())));
            b.event_time(inputs[1], "time", Late::Side);
            b.event_time(inputs[2], "time", Late::Admit);
        }
        for (nth, source) in sources.iter().enumerate() {
            let of = TIMED.iter().position(|stream| *stream == source.stream);
            let stream = inputs[1 + of.expect("it is one of them")];
            b.source(&format!("timed/{nth}"), stream, source.disorder_us);
        }
        let (tids, told): (Arc<[_]>, _) = (tids.into(), Arc::new(told.clone()));
        let mut handlers = Vec::new();
        for (nth, input) in inputs.into_iter().enumerate() {
            let (script, tids, told) = (self.clone(), tids.clone(), told.clone());
            let columns = ["n", "value"].map(|name| Column::new(name, DataType::Int)).to_vec();
            let serial =
                |output| -> Arc<dyn Opaque> { Arc::new(Serial { script, output, tids, told }) };
            let handler = b.returning(&format!("call{nth}"), input, columns, serial);
            b.emits(handler, &[EVENTS]);
            handlers.push(handler);
        }
        let program = b.finish().expect("a program");
        let streams = handlers.into_iter().map(|handler| {
            let handler = &program.handlers[handler];
            [handler.output.expect("it returns something"), handler.aborted]
        });
        let streams = streams.collect();
        (Arc::new(program), streams)
    }

    /// The time of an event in event time, and the number of its stream.
    pub fn timed(call: &Call) -> Option<(usize, i64)> {
        let Target::Function(function) = call.target else { return None };
        let stream = EVENTS_OF.iter().position(|of| function & of != 0)?;
        Some((stream, int(&call.args[2])))
    }

    /// Whether all that comes of a call is that others are told of a late event.
    pub fn is_told(call: &Call) -> bool {
        call.target == Target::Function(LATE)
    }

    /// A request as the reference's event.
    pub fn event(n: i64, call: &Call) -> Vec<Value> {
        let Target::Function(function) = call.target else {
            unreachable!("requests are functions")
        };
        let time = Script::timed(call).map_or(0, |(_, time)| time);
        let mut event: Vec<Value> =
            [n, function.into(), call.table.0.into()].map(Value::Int).to_vec();
        event.push(call.key[0].clone());
        event.extend((0..4).map(|at| call.args.get(at).cloned().unwrap_or(Value::Int(0))));
        event.push(Value::Int(time));
        event
    }
}

fn request_columns() -> Vec<Column> {
    let names = ["n", "function", "table", "key", "a", "b", "c", "d", "time"];
    names.map(|name| Column::new(name, DataType::Int)).to_vec()
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) => *int,
        other => unreachable!("all values are integers, not {other}"),
    }
}

fn builder(is_unique: bool) -> Builder {
    let ints = |names: &[&str]| -> Vec<Column> {
        names.iter().map(|name| Column::new(name, DataType::Int)).collect()
    };
    let mut b = Builder::new("script");
    b.table("accounts", &["id"], ints(&["id", "n"]));
    b.table("counters", &["id"], ints(&["id", "n"]));
    let items = b.table("items", &["owner", "item"], ints(&["owner", "item", "n"]));
    b.ordered(items);
    b.partition_prefix(items, 1);
    let requests = b.table("done", &["owner", "id"], ints(&["owner", "id", "value"]));
    b.partition_prefix(requests, 1);
    b.table("outbox", &["id"], ints(&["id", "n"]));
    assert_eq!(b.index("items.by_n", items, &["n"], false), BY_N);
    if is_unique {
        b.index("items.by_item", items, &["item", "n"], true);
    }
    b
}

fn tables(is_unique: bool) -> Program {
    let mut b = builder(is_unique);
    b.stream("requests", request_columns());
    b.emitted("events", vec![Column::new("n", DataType::Int), Column::new("acc", DataType::Int)]);
    b.emitted("late", vec![Column::new("n", DataType::Int), Column::new("time", DataType::Int)]);
    b.finish().expect("a program")
}

fn random_function(dice: &mut Dice, count: u32, keys: i64) -> Vec<Inst> {
    let mut code = Vec::new();
    let mut calls = 0usize;
    let operand = |dice: &mut Dice| match dice.below(4) {
        0 | 1 => Operand::Is(dice.below(keys as u64) as i64),
        2 => Operand::Arg(dice.below(keys as u64) as i64),
        _ => Operand::Acc,
    };
    for _ in 0..1 + dice.below(8) {
        let kind = dice.below(2) as usize;
        match dice.below(27) {
            0..=3 => code.push(Inst::Read),
            4..=6 => code.push(Inst::Add(dice.below(5) as i64 - 2)),
            7 => code.push(Inst::Store),
            8 => code.push(Inst::Delete),
            9 => code.push(Inst::Need(dice.below(4) as i64)),
            10..=14 => {
                let (function, wanted) = (dice.below(count.into()) as u32, dice.chance(60));
                calls += usize::from(wanted);
                code.push(Inst::Call { function, kind, key: operand(dice), wanted });
            }
            15 | 16 if calls > 0 => {
                let some = 1 + dice.below(calls as u64) as usize;
                calls -= some;
                code.push(match dice.chance(60) {
                    true => Inst::Await(some),
                    false => Inst::Ask(some),
                });
            }
            17 if !code.is_empty() => {
                let to = dice.below(code.len() as u64) as usize;
                code.push(Inst::Repeat { to, times: 1 + dice.below(2) as u32 });
            }
            18 => code.push(Inst::SkipIfOdd(1 + dice.below(2) as usize)),
            19 => {
                let limit = 1 + dice.below(4) as u32;
                code.push(match dice.chance(50) {
                    true => Inst::Scan(limit),
                    false => Inst::ScanOf { key: operand(dice), limit },
                });
            }
            20 => {
                let item = dice.below(4) as i64;
                code.push(match dice.chance(70) {
                    true => Inst::PutItem(item),
                    false => Inst::PutItemOf { key: operand(dice), item },
                });
            }
            21 => code.push(Inst::DeleteItem(dice.below(4) as i64)),
            22 => {
                let limit = 1 + dice.below(3) as u32;
                code.push(Inst::FindBy { n: operand(dice), limit });
            }
            23 => {
                let key = operand(dice);
                let uses = [
                    Inst::Get { kind, key },
                    Inst::Put { kind, key },
                    Inst::Get { kind, key },
                    Inst::Remove { kind, key },
                ];
                code.push(*dice.pick(&uses));
            }
            24 => code.push(*dice.pick(&[Inst::Emit, Inst::Now])),
            25 => code.push(Inst::Lookup),
            _ => code.push(*dice.pick(&[Inst::Lookup, Inst::Tarry, Inst::TarryPartly, Inst::Work])),
        }
    }
    code
}

/// What a machine works on. A place for a call that has been made is `Made`.
trait Memory {
    type Made: Copy;
    fn get(&mut self, table: TableId, key: &[i64]) -> Result<Option<Vec<i64>>, Stop>;
    fn put(&mut self, table: TableId, row: &[i64]) -> Result<(), Stop>;
    fn delete(&mut self, table: TableId, key: &[i64]) -> Result<(), Stop>;
    fn find(&mut self, table: TableId, leading: i64, limit: u32) -> Result<Vec<Vec<i64>>, Stop>;
    fn call(&mut self, call: Call, wanted: bool) -> Result<Self::Made, Stop>;
    fn reply(&self, made: Self::Made) -> Option<i64>;
    fn settled(&mut self, made: Self::Made) -> Result<i64, Stop>;
    fn emit(&mut self, n: i64, acc: i64) -> Result<(), Stop>;
    fn now_us(&self) -> i64;
    fn lookup(&mut self, question: &[u8]) -> Result<i64, Stop>;
    /// Takes its time: perhaps too much, and then it does not come back.
    fn tarry(&mut self, verdict: String) -> Result<(), Stop>;
    /// The same of a part: whether it took too much.
    fn tarry_partly(&mut self, part: u32, verdict: String) -> Result<bool, Stop>;
}

/// Its uses, which have places, are counted: so many places have come before.
struct Counted<'m, M> {
    of: &'m mut M,
    steps: i64,
}

impl<M: Memory> Counted<'_, M> {
    fn next(&mut self) -> &mut M {
        self.steps += 1;
        self.of
    }

    fn get(&mut self, table: TableId, key: &[i64]) -> Result<Option<Vec<i64>>, Stop> {
        self.next().get(table, key)
    }

    fn put(&mut self, table: TableId, row: &[i64]) -> Result<(), Stop> {
        self.next().put(table, row)
    }

    fn delete(&mut self, table: TableId, key: &[i64]) -> Result<(), Stop> {
        self.next().delete(table, key)
    }

    fn find(&mut self, table: TableId, leading: i64, limit: u32) -> Result<Vec<Vec<i64>>, Stop> {
        self.next().find(table, leading, limit)
    }

    fn call(&mut self, call: Call, wanted: bool) -> Result<M::Made, Stop> {
        self.next().call(call, wanted)
    }

    fn emit(&mut self, n: i64, acc: i64) -> Result<(), Stop> {
        self.next().emit(n, acc)
    }

    fn lookup(&mut self, question: &[u8]) -> Result<i64, Stop> {
        self.next().lookup(question)
    }
}

/// A function that runs.
struct Machine<M> {
    function: u32,
    table: TableId,
    key: i64,
    arg: i64,
    /// What tells it from all other calls of its transaction.
    way: i64,
    acc: i64,
    at: usize,
    repeated: u32,
    wanted: Vec<Option<M>>,
    /// How often it has used its memory, and how many parts may have taken too long.
    steps: i64,
    parts: u32,
}

enum Pause<M> {
    Waits(Vec<M>),
    Done(i64),
}

impl<M: Copy> Machine<M> {
    fn new(function: u32, call: &Call) -> Machine<M> {
        let (table, key, arg) = (call.table, int(&call.key[0]), int(&call.args[0]));
        let (way, acc) = (call.args.get(1).map_or(0, int), mix(key, arg));
        let (at, repeated, wanted, steps, parts) = (0, 0, Vec::new(), 0, 0);
        Machine { function, table, key, arg, way, acc, at, repeated, wanted, steps, parts }
    }

    /// Why it took too long; no other call of its transaction has this.
    fn verdict(&self) -> String {
        let Machine { function, table, key, arg, way, .. } = self;
        format!("{OVERDUE} {way} {function} {} {key} {arg}", table.0)
    }

    fn own(&self, memory: &mut Counted<'_, impl Memory>) -> Result<Option<i64>, Stop> {
        Ok(memory.get(self.table, &[self.key])?.map(|row| row[1]))
    }

    fn operand(&self, operand: Operand, keys: i64) -> i64 {
        match operand {
            Operand::Is(key) => key,
            Operand::Arg(more) => (self.arg + more) % keys,
            Operand::Acc => self.acc % keys,
        }
    }

    fn run(
        &mut self,
        script: &Script,
        memory: &mut impl Memory<Made = M>,
    ) -> Result<Pause<M>, Stop> {
        let mut memory = Counted { of: memory, steps: self.steps };
        let pause = self.go_on(script, &mut memory);
        self.steps = memory.steps;
        pause
    }

    fn go_on(
        &mut self,
        script: &Script,
        memory: &mut Counted<'_, impl Memory<Made = M>>,
    ) -> Result<Pause<M>, Stop> {
        let code = script.code(self.function)?;
        while let Some(&inst) = code.get(self.at) {
            match inst {
                Inst::Read => {
                    let own = self.own(memory)?;
                    self.acc = mix(self.acc, own.unwrap_or(-1));
                }
                Inst::Add(more) => {
                    let own = self.own(memory)?.unwrap_or(5);
                    memory.put(self.table, &[self.key, own + more])?;
                }
                Inst::Store => memory.put(self.table, &[self.key, self.acc % 10])?,
                Inst::Delete => memory.delete(self.table, &[self.key])?,
                Inst::Need(least) => {
                    let own = self.own(memory)?.unwrap_or(5);
                    if own < least {
                        let reason = format!("{} of {}: {own}", self.key, self.table.0);
                        return Err(Abort::refused(reason).into());
                    }
                }
                Inst::Call { function, kind, key, wanted } => {
                    // Most graphs end by themselves; a few go on until they are stopped.
                    let made = if self.arg > 0 || self.acc % 61 == 0 {
                        let key = [Value::Int(self.operand(key, script.keys))].into();
                        let way = mix(self.way, memory.steps);
                        let args = [Value::Int(self.arg - 1), Value::Int(way)].into();
                        let (target, table) = (Target::Function(function), ENTITIES[kind]);
                        Some(memory.call(Call { target, table, key, args }, wanted)?)
                    } else {
                        None
                    };
                    if wanted {
                        self.wanted.push(made);
                    }
                }
                Inst::Await(some) => {
                    let from = self.wanted.len().saturating_sub(some);
                    let made: Vec<M> = self.wanted[from..].iter().copied().flatten().collect();
                    let replies: Option<Vec<i64>> =
                        made.iter().map(|&made| memory.of.reply(made)).collect();
                    let Some(replies) = replies else { return Ok(Pause::Waits(made)) };
                    self.wanted.truncate(from);
                    self.acc = replies.into_iter().fold(self.acc, mix);
                }
                Inst::Ask(some) => {
                    let from = self.wanted.len().saturating_sub(some);
                    for made in self.wanted.split_off(from).into_iter().flatten() {
                        self.acc = mix(self.acc, memory.of.settled(made)?);
                    }
                }
                Inst::SkipIfOdd(some) if self.acc % 2 == 1 => self.at += some,
                Inst::SkipIfOdd(_) => {}
                Inst::Repeat { to, times } if self.repeated < times => {
                    self.repeated += 1;
                    self.at = to;
                    continue;
                }
                Inst::Repeat { .. } => {}
                Inst::Scan(limit) => {
                    for row in memory.find(ITEMS, self.key, limit)? {
                        self.acc = mix(mix(self.acc, row[1]), row[2]);
                    }
                }
                Inst::ScanOf { key, limit } => {
                    let key = self.operand(key, script.keys);
                    for row in memory.find(ITEMS, key, limit)? {
                        self.acc = mix(mix(self.acc, row[1]), row[2]);
                    }
                }
                Inst::PutItem(item) => memory.put(ITEMS, &[self.key, item, self.acc % 10])?,
                Inst::PutItemOf { key, item } => {
                    let key = self.operand(key, script.keys);
                    memory.put(ITEMS, &[key, item, self.acc % 10])?;
                }
                Inst::DeleteItem(item) => memory.delete(ITEMS, &[self.key, item])?,
                Inst::FindBy { n, limit } => {
                    let n = self.operand(n, script.keys) % 10;
                    for entry in memory.find(BY_N, n, limit)? {
                        let row = memory.get(ITEMS, &entry[1..])?;
                        self.acc = mix(self.acc, row.map_or(-3, |row| mix(row[0], row[2])));
                    }
                }
                Inst::Get { kind, key } => {
                    let key = self.operand(key, script.keys);
                    let row = memory.get(ENTITIES[kind], &[key])?;
                    self.acc = mix(self.acc, row.map_or(-2, |row| row[1]));
                }
                Inst::Put { kind, key } => {
                    let key = self.operand(key, script.keys);
                    memory.put(ENTITIES[kind], &[key, self.acc % 10])?;
                }
                Inst::Remove { kind, key } => {
                    memory.delete(ENTITIES[kind], &[self.operand(key, script.keys)])?;
                }
                Inst::Emit => memory.emit(self.key, self.acc)?,
                Inst::Now => self.acc = mix(self.acc, memory.of.now_us()),
                Inst::Lookup => {
                    let what = i64::from(self.function) << 16 | i64::from(self.table.0);
                    let question = question(&[self.way, memory.steps, what, self.key, self.acc]);
                    self.acc = mix(self.acc, memory.lookup(&question)?);
                }
                Inst::Work => {
                    let key = mix(self.way, memory.steps);
                    memory.put(OUTBOX, &[key, self.acc % 10])?;
                }
                Inst::Tarry => memory.of.tarry(self.verdict())?,
                Inst::TarryPartly => {
                    self.parts += 1;
                    let verdict = format!("{} {}", self.verdict(), self.parts);
                    if memory.of.tarry_partly(self.parts, verdict)? {
                        self.acc = mix(self.acc, -7);
                    }
                }
            }
            self.at += 1;
        }
        Ok(Pause::Done(self.acc))
    }
}

/// On a node.
struct OnNode<'a>(&'a mut dyn Context, &'a Script);

fn row_of(row: &[i64]) -> Vec<Value> {
    row.iter().map(|&i| Value::Int(i)).collect()
}

fn ints(row: &[Value]) -> Vec<i64> {
    row.iter().map(int).collect()
}

impl Memory for OnNode<'_> {
    type Made = Handle;

    fn get(&mut self, table: TableId, key: &[i64]) -> Result<Option<Vec<i64>>, Stop> {
        Ok(self.0.get(table, &row_of(key))?.map(|row| ints(&row)))
    }

    fn put(&mut self, table: TableId, row: &[i64]) -> Result<(), Stop> {
        self.0.put(table, &row_of(row))
    }

    fn delete(&mut self, table: TableId, key: &[i64]) -> Result<(), Stop> {
        self.0.delete(table, &row_of(key))
    }

    fn find(&mut self, table: TableId, leading: i64, limit: u32) -> Result<Vec<Vec<i64>>, Stop> {
        let rows = self.0.find(table, &[Value::Int(leading)], limit)?;
        Ok(rows.iter().map(|row| ints(row)).collect())
    }

    fn call(&mut self, call: Call, wanted: bool) -> Result<Handle, Stop> {
        self.0.call(call, wanted)
    }

    fn reply(&self, made: Handle) -> Option<i64> {
        self.0.reply(made).map(int)
    }

    fn settled(&mut self, made: Handle) -> Result<i64, Stop> {
        self.0.settled(made).map(int)
    }

    fn emit(&mut self, n: i64, acc: i64) -> Result<(), Stop> {
        self.0.emit(EVENTS, &row_of(&[n, acc]))
    }

    fn now_us(&self) -> i64 {
        self.0.now_us()
    }

    fn lookup(&mut self, question: &[u8]) -> Result<i64, Stop> {
        let (outside, asked) = (self.1.outside.clone(), question.to_vec());
        let ask = Ask::new(move || {
            let says = outside.fetch_add(1, Ordering::Relaxed);
            [&asked[..], &says.to_le_bytes()].concat()
        });
        Ok(said(question, &self.0.lookup(question, &ask)?))
    }

    fn tarry(&mut self, verdict: String) -> Result<(), Stop> {
        match self.0.has_deadline() && self.1.is_late() {
            true => Err(Stop::Overdue(verdict)),
            false => Ok(()),
        }
    }

    fn tarry_partly(&mut self, part: u32, verdict: String) -> Result<bool, Stop> {
        if self.0.verdict(part, None)?.is_some() {
            return Ok(true);
        }
        if self.0.has_deadline() && self.1.is_late() {
            self.0.verdict(part, Some(&verdict))?;
        }
        Ok(false)
    }
}

struct Running {
    script: Arc<Script>,
    machine: Machine<Handle>,
}

impl Activation for Running {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        Ok(match self.machine.run(&self.script, &mut OnNode(context, &self.script))? {
            Pause::Waits(made) => Step::Wait(made),
            Pause::Done(acc) => Step::Done(Value::Int(acc)),
        })
    }
}

/// Takes an answer, if it is the first.
struct Answered(Call);

impl Activation for Answered {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let Call { table, key, args, .. } = &self.0;
        if context.get(*table, key)?.is_none() {
            return Ok(Step::Done(Value::Int(-1)));
        }
        context.delete(*table, key)?;
        context.emit(EVENTS, &[key[0].clone(), args[1].clone()])?;
        Ok(Step::Done(args[1].clone()))
    }
}

/// Executes a request unless one with its id has been.
struct Once {
    call: Call,
    executes_again: bool,
    made: Option<Handle>,
}

impl Activation for Once {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let (key, id) = (self.call.key[0].clone(), self.call.args[0].clone());
        let Some(made) = self.made else {
            let known = context.get(REQUESTS, &[key, id.clone()])?;
            if let Some(request) = known.filter(|_| !self.executes_again) {
                return Ok(Step::Done(request[2].clone()));
            }
            let Target::Function(function) = self.call.target else { unreachable!("checked") };
            let target = Target::Function(function % ONCE);
            let args = [self.call.args[1].clone(), id.clone()].into();
            let call = Call { target, args, ..self.call.clone() };
            let made = context.call(call, true)?;
            self.made = Some(made);
            return Ok(Step::Wait(vec![made]));
        };
        let value = context.reply(made).expect("it was waited for").clone();
        context.put(REQUESTS, &[key, id, value.clone()])?;
        Ok(Step::Done(value))
    }
}

/// Tells others of a late event.
struct TellsLate([Value; 2]);

impl Activation for TellsLate {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        context.emit(LATES, &self.0)?;
        Ok(Step::Done(Value::Null))
    }
}

/// A program as nodes see it.
pub struct OnNodes {
    /// The script.
    pub script: Arc<Script>,
    /// A mistake: requests that come twice are executed twice.
    pub executes_again: bool,
}

impl Functions for OnNodes {
    fn program(&self) -> &Program {
        &self.script.program
    }

    fn outboxes(&self) -> &[TableId] {
        &[OUTBOX]
    }

    fn begin(&self, call: &Call) -> Result<Box<dyn Activation>, Abort> {
        let Target::Function(function) = call.target else { unreachable!("nodes use rows") };
        if function == LATE {
            return Ok(Box::new(TellsLate([call.args[0].clone(), call.args[2].clone()])));
        }
        if function == ANSWER {
            return Ok(Box::new(Answered(call.clone())));
        }
        if function >= ONCE {
            let (call, executes_again) = (call.clone(), self.executes_again);
            return Ok(Box::new(Once { call, executes_again, made: None }));
        }
        self.script.code(function)?;
        let machine = Machine::new(function, call);
        Ok(Box::new(Running { script: self.script.clone(), machine }))
    }

    fn told(&self, call: &Call, outcome: &Result<Value, Abort>) -> Option<(StreamId, Row)> {
        let abort = outcome.as_ref().err()?;
        Some((ABORTS, [call.args[0].clone(), Value::str(&abort.reason)].into()))
    }

    fn timed(&self, call: &Call) -> Option<(StreamId, i64)> {
        Script::timed(call).map(|(stream, time)| (TIMED[stream], time))
    }

    fn late(&self, call: Call) -> Call {
        match Script::timed(&call) {
            Some((0, _)) => Call { target: Target::Function(LATE), ..call },
            _ => call,
        }
    }

    fn declared(&self, call: &Call) -> Option<Vec<RowAt>> {
        (call.target == Target::Function(TRANSFER)).then(|| Script::transfer_rows(call))
    }

    fn run_declared(&self, call: &Call, rows: &[Option<Arc<[Value]>>]) -> Result<Changes, Abort> {
        match self.executes_again {
            true => Script::transfer(call, &[&rows[..3], &[None]].concat()),
            false => Script::transfer(call, rows),
        }
    }
}

/// In the reference: a call runs where it is made.
struct Serial {
    script: Arc<Script>,
    output: StreamId,
    tids: Arc<[Option<Tid>]>,
    told: Arc<Told>,
}

struct OnTx<'a> {
    script: &'a Arc<Script>,
    tx: &'a mut dyn Tx,
    calls: &'a mut u32,
    depth: usize,
    replies: Vec<i64>,
    tid: Tid,
    told: &'a Arc<Told>,
}

impl Memory for OnTx<'_> {
    type Made = usize;

    fn get(&mut self, table: TableId, key: &[i64]) -> Result<Option<Vec<i64>>, Stop> {
        Ok(self.tx.get(table, &row_of(key))?.map(|row| ints(&row)))
    }

    fn put(&mut self, table: TableId, row: &[i64]) -> Result<(), Stop> {
        Ok(self.tx.put(table, &row_of(row))?)
    }

    fn delete(&mut self, table: TableId, key: &[i64]) -> Result<(), Stop> {
        Ok(self.tx.delete(table, &row_of(key))?)
    }

    fn find(&mut self, table: TableId, leading: i64, limit: u32) -> Result<Vec<Vec<i64>>, Stop> {
        let rows = self.tx.find(table, &[Value::Int(leading)], limit as usize)?;
        Ok(rows.iter().map(|row| ints(row)).collect())
    }

    fn call(&mut self, call: Call, _: bool) -> Result<usize, Stop> {
        if self.depth + 1 >= DEPTH_MAX {
            let reason = format!("calls are more than {DEPTH_MAX} deep in one another");
            return Err(Abort::refused(reason).into());
        }
        *self.calls += 1;
        if *self.calls > CALLS_MAX {
            return Err(
                Abort::refused(format!("a transaction has at most {CALLS_MAX} calls")).into()
            );
        }
        let Target::Function(function) = call.target else {
            unreachable!("calls are of functions")
        };
        let mut machine = Machine::new(function, &call);
        let reason = machine.verdict();
        if self.told.contains_key(&(self.tid, reason.clone().into_bytes())) {
            return Err(Abort { kind: AbortKind::Overdue, reason }.into());
        }
        let (script, depth, replies) = (self.script, self.depth + 1, Vec::new());
        let (tid, told) = (self.tid, self.told);
        let mut memory = OnTx { script, tx: self.tx, calls: self.calls, depth, replies, tid, told };
        match machine.run(script, &mut memory)? {
            Pause::Done(acc) => self.replies.push(acc),
            Pause::Waits(_) => unreachable!("replies are there"),
        }
        Ok(self.replies.len() - 1)
    }

    fn reply(&self, made: usize) -> Option<i64> {
        Some(self.replies[made])
    }

    fn settled(&mut self, made: usize) -> Result<i64, Stop> {
        Ok(self.replies[made])
    }

    fn emit(&mut self, n: i64, acc: i64) -> Result<(), Stop> {
        Ok(self.tx.emit(EVENTS, &row_of(&[n, acc]))?)
    }

    fn now_us(&self) -> i64 {
        self.tx.now_us()
    }

    fn lookup(&mut self, question: &[u8]) -> Result<i64, Stop> {
        let (told, key) = (self.told.clone(), (self.tid, question.to_vec()));
        let ask = Ask::new(move || told.get(&key).cloned().unwrap_or_default());
        let answer = self.tx.lookup(question, &ask)?;
        match answer.is_empty() {
            true => Err(Abort::refused("nobody was told what it asks").into()),
            false => Ok(said(question, &answer)),
        }
    }

    fn tarry(&mut self, _: String) -> Result<(), Stop> {
        Ok(())
    }

    fn tarry_partly(&mut self, _: u32, verdict: String) -> Result<bool, Stop> {
        Ok(self.told.contains_key(&(self.tid, verdict.into_bytes())))
    }
}

impl Opaque for Serial {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let at = |n: usize| int(&event[n]);
        let (n, function, table, key) = (at(0), at(1) as u32, TableId(at(2) as u16), at(3));
        let value = if function == ANSWER {
            match tx.get(OUTBOX, &row_of(&[key]))? {
                Some(_) => {
                    tx.delete(OUTBOX, &row_of(&[key]))?;
                    tx.emit(EVENTS, &row_of(&[key, at(5)]))?;
                    Value::Int(at(5))
                }
                None => Value::Int(-1),
            }
        } else if function == TRANSFER {
            let args = event[4..].to_vec().into();
            let target = Target::Function(function);
            let call = Call { target, table, key: [Value::Int(key)].into(), args };
            let mut rows = Vec::new();
            for (table, key) in [
                (ENTITIES[0], vec![key]),
                (ENTITIES[0], vec![at(5)]),
                (ENTITIES[1], vec![at(6)]),
                (REQUESTS, vec![key, at(4)]),
            ] {
                rows.push((table, tx.get(table, &row_of(&key))?.map(Arc::from)));
            }
            let given: Vec<_> = rows.iter().map(|(_, row)| row.clone()).collect();
            let changes = Script::transfer(&call, &given)?;
            for (n, row) in changes.rows {
                tx.put(rows[n as usize].0, &row.expect("transfers remove nothing"))?;
            }
            for (stream, event) in changes.events {
                tx.emit(stream, &event)?;
            }
            changes.value.expect("transfers return something")
        } else if let Some(done) = tx.get(REQUESTS, &row_of(&[key, at(4)]))? {
            done[2].clone()
        } else {
            let mut calls = 1;
            let (script, replies) = (&self.script, Vec::new());
            // One that is never executed has no place, and neither has any as long as watermarks are looked for.
            let tid = self.tids.get(n as usize).copied().flatten().unwrap_or_default();
            let told = &self.told;
            let mut memory = OnTx { script, tx, calls: &mut calls, depth: 0, replies, tid, told };
            let target = Target::Function(function % ONCE);
            let args = [Value::Int(at(5)), Value::Int(at(4))].into();
            let call = Call { target, table, key: [Value::Int(key)].into(), args };
            let made = memory.call(call, true).map_err(|stop| match stop {
                Stop::Abort(abort) => abort,
                other => unreachable!("the reference never waits, and has no clock: {other:?}"),
            })?;
            let value = Value::Int(memory.replies[made]);
            tx.put(REQUESTS, &[Value::Int(key), Value::Int(at(4)), value.clone()])?;
            value
        };
        tx.emit(self.output, &[Value::Int(n), value])
    }
}
