//! Random programs: functions of entities that read, write, call, scan, branch and fail as the dice say.
//!
//! One machine interprets them, over whatever it is given: the context of a node, or the transaction of the
//! reference, where a call runs where it is made.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

use tidemill_cluster::EventSource;
use tidemill_core::{Column, DataType, Key, Late, StreamId, TableId, Value};
use tidemill_function::{Call, Changes, RowAt, Target, Tid};
use tidemill_txn::program::{Abort, Builder, Opaque};
use tidemill_txn::Program;

mod machine;
mod on_nodes;
mod serial;

use self::serial::Serial;
use super::Dice;

pub use self::on_nodes::OnNodes;

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
    /// Items of one key, from one on and below another.
    ScanWithin {
        key: Operand,
        from: i64,
        to: i64,
    },
    /// Items wherever they live: from a key on and below another, or the first ones; of all keys, or by how many they have.
    ScanAll {
        by_n: bool,
        between: Option<(i64, i64)>,
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
    /// Rows with this key and the ones behind it will be used, perhaps.
    Expect {
        key: Operand,
        count: i64,
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
    /// So many requests of a hundred are transfers, whose rows are known.
    transfers: u64,
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
        // Epochs of nothing else have rules of their own.
        let transfers = *dice.pick(&[15, 15, 15, 90, 100]);
        let (program, outside) = (tables(is_unique), Arc::default());
        Arc::new(Script { functions, keys, is_unique, transfers, program, outside })
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
        if dice.chance(self.transfers) {
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
        let row =
            |values: &[i64]| Some(values.iter().map(|&i| Value::Int(i)).collect::<Arc<[Value]>>());
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

fn row_of(row: &[i64]) -> Vec<Value> {
    row.iter().map(|&i| Value::Int(i)).collect()
}

fn ints(row: &[Value]) -> Vec<i64> {
    row.iter().map(int).collect()
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
                code.push(match dice.below(4) {
                    0 => Inst::Scan(limit),
                    1 => Inst::ScanOf { key: operand(dice), limit },
                    2 => {
                        let (from, to) = (dice.below(3) as i64, dice.below(5) as i64);
                        Inst::ScanWithin { key: operand(dice), from, to }
                    }
                    _ => {
                        let bounds = (dice.below(4) as i64, dice.below(keys as u64 + 2) as i64);
                        let between = dice.chance(70).then_some(bounds);
                        Inst::ScanAll { by_n: dice.chance(50), between, limit }
                    }
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
                if dice.chance(60) {
                    code.push(Inst::Expect { key, count: 1 + dice.below(3) as i64 });
                }
                for _ in 0..1 + dice.below(2) {
                    code.push(*dice.pick(&uses));
                }
                if dice.chance(30) {
                    code.push(Inst::Expect { key: operand(dice), count: 2 });
                    code.push(*dice.pick(&uses));
                }
            }
            24 => code.push(*dice.pick(&[Inst::Emit, Inst::Now])),
            25 => code.push(Inst::Lookup),
            _ => code.push(*dice.pick(&[Inst::Lookup, Inst::Tarry, Inst::TarryPartly, Inst::Work])),
        }
    }
    code
}
