//! Random programs: functions of entities that read, write, call, scan, branch and fail as the dice say.
//!
//! One machine interprets them, over whatever it is given: the context of a node, or the transaction of the
//! reference, where a call runs where it is made.

use std::sync::Arc;

use tidemill_cluster::EventSource;
use tidemill_core::{Column, DataType, Key, Late, Row, StreamId, TableId, Value};
use tidemill_function::{
    Activation, Call, Changes, Context, Functions, Handle, RowAt, Step, Stop, Target,
};
use tidemill_txn::program::{Abort, Builder, Opaque, Tx};
use tidemill_txn::Program;

use super::Dice;

/// Entities of two kinds, items of entities, and what requests have come to. The rows of one entity live
/// together.
pub const ENTITIES: [TableId; 2] = [TableId(0), TableId(1)];
const ITEMS: TableId = TableId(2);
const REQUESTS: TableId = TableId(3);
/// The items by what they have, which live elsewhere than the items.
const BY_N: TableId = TableId(4);

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
        Arc::new(Script { functions, keys, is_unique, program: tables(is_unique) })
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
    /// in event time, by their sources. Beside it the stream of what calls return, and of what aborts, of each.
    pub fn for_reference(
        self: &Arc<Script>,
        sources: &[EventSource],
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
        let mut told = Vec::new();
        for (nth, input) in inputs.into_iter().enumerate() {
            let script = self.clone();
            let columns = ["n", "value"].map(|name| Column::new(name, DataType::Int)).to_vec();
            let serial = |output| -> Arc<dyn Opaque> { Arc::new(Serial { script, output }) };
            let handler = b.returning(&format!("call{nth}"), input, columns, serial);
            b.emits(handler, &[EVENTS]);
            told.push(handler);
        }
        let program = b.finish().expect("a program");
        let told = told.into_iter().map(|handler| {
            let handler = &program.handlers[handler];
            [handler.output.expect("it returns something"), handler.aborted]
        });
        let told = told.collect();
        (Arc::new(program), told)
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
        match dice.below(25) {
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
            _ => code.push(*dice.pick(&[Inst::Emit, Inst::Now])),
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
}

/// A function that runs.
struct Machine<M> {
    function: u32,
    table: TableId,
    key: i64,
    arg: i64,
    acc: i64,
    at: usize,
    repeated: u32,
    wanted: Vec<Option<M>>,
}

enum Pause<M> {
    Waits(Vec<M>),
    Done(i64),
}

impl<M: Copy> Machine<M> {
    fn new(function: u32, table: TableId, key: i64, arg: i64) -> Machine<M> {
        let acc = mix(key, arg);
        Machine { function, table, key, arg, acc, at: 0, repeated: 0, wanted: Vec::new() }
    }

    fn own(&self, memory: &mut impl Memory) -> Result<Option<i64>, Stop> {
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
                        let args = [Value::Int(self.arg - 1)].into();
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
                        made.iter().map(|&made| memory.reply(made)).collect();
                    let Some(replies) = replies else { return Ok(Pause::Waits(made)) };
                    self.wanted.truncate(from);
                    self.acc = replies.into_iter().fold(self.acc, mix);
                }
                Inst::Ask(some) => {
                    let from = self.wanted.len().saturating_sub(some);
                    for made in self.wanted.split_off(from).into_iter().flatten() {
                        self.acc = mix(self.acc, memory.settled(made)?);
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
                Inst::Now => self.acc = mix(self.acc, memory.now_us()),
            }
            self.at += 1;
        }
        Ok(Pause::Done(self.acc))
    }
}

/// On a node.
struct OnNode<'a>(&'a mut dyn Context);

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
}

struct Running {
    script: Arc<Script>,
    machine: Machine<Handle>,
}

impl Activation for Running {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        Ok(match self.machine.run(&self.script, &mut OnNode(context))? {
            Pause::Waits(made) => Step::Wait(made),
            Pause::Done(acc) => Step::Done(Value::Int(acc)),
        })
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
            let known = context.get(REQUESTS, &[key, id])?;
            if let Some(request) = known.filter(|_| !self.executes_again) {
                return Ok(Step::Done(request[2].clone()));
            }
            let Target::Function(function) = self.call.target else { unreachable!("checked") };
            let target = Target::Function(function % ONCE);
            let args = [self.call.args[1].clone()].into();
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
struct Told([Value; 2]);

impl Activation for Told {
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

    fn begin(&self, call: &Call) -> Result<Box<dyn Activation>, Abort> {
        let Target::Function(function) = call.target else { unreachable!("nodes use rows") };
        if function == LATE {
            return Ok(Box::new(Told([call.args[0].clone(), call.args[2].clone()])));
        }
        if function >= ONCE {
            let (call, executes_again) = (call.clone(), self.executes_again);
            return Ok(Box::new(Once { call, executes_again, made: None }));
        }
        self.script.code(function)?;
        let machine = Machine::new(function, call.table, int(&call.key[0]), int(&call.args[0]));
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
}

struct OnTx<'a> {
    script: &'a Arc<Script>,
    tx: &'a mut dyn Tx,
    calls: &'a mut u32,
    depth: usize,
    replies: Vec<i64>,
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
        let (key, arg) = (int(&call.key[0]), int(&call.args[0]));
        let mut machine = Machine::new(function, call.table, key, arg);
        let (script, depth) = (self.script, self.depth + 1);
        let mut memory =
            OnTx { script, tx: self.tx, calls: self.calls, depth, replies: Vec::new() };
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
}

impl Opaque for Serial {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let at = |n: usize| int(&event[n]);
        let (n, function, table, key) = (at(0), at(1) as u32, TableId(at(2) as u16), at(3));
        let value = if function == TRANSFER {
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
            let mut memory = OnTx { script, tx, calls: &mut calls, depth: 0, replies };
            let target = Target::Function(function % ONCE);
            let args = [Value::Int(at(5))].into();
            let call = Call { target, table, key: [Value::Int(key)].into(), args };
            let made = memory.call(call, true).map_err(|stop| match stop {
                Stop::Abort(abort) => abort,
                Stop::Unwind => unreachable!("the reference never waits"),
            })?;
            let value = Value::Int(memory.replies[made]);
            tx.put(REQUESTS, &[Value::Int(key), Value::Int(at(4)), value.clone()])?;
            value
        };
        tx.emit(self.output, &[Value::Int(n), value])
    }
}
