//! Random programs: functions of entities that read, write, call, scan, branch and fail at random.
//!
//! One machine interprets them on different memories: the context of a node, or the transaction of
//! the reference, where a call runs at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

use tidemill_cluster::{EventSource, Record};
use tidemill_core::{Column, DataType, Key, Late, StreamId, TableId, Value};
use tidemill_function::{Call, Changes, RowAt, Target, Tid};
use tidemill_txn::program::{Abort, Builder, Opaque, Take};
use tidemill_txn::Program;

mod machine;
mod on_nodes;
mod serial;

use self::serial::Serial;
use super::Dice;

pub use self::on_nodes::OnNodes;

/// The two kinds of entities, the items of entities, and the results of requests. The rows of one
/// entity are in one partition.
pub const ENTITIES: [TableId; 2] = [TableId(0), TableId(1)];
const ITEMS: TableId = TableId(2);
const REQUESTS: TableId = TableId(3);
/// Work to be done outside. Its answer is a request.
pub const OUTBOX: TableId = TableId(4);
/// An index of the items by their value. It may have another owner than the items.
const BY_N: TableId = TableId(5);

/// The key of verdicts on transactions that end workers, among the answers.
pub const POISONED: &[u8] = b"poisoned";

/// The stream of emitted events.
pub const EVENTS: StreamId = StreamId(1);
/// The stream of reported aborts: the numbers of the calls and the reasons.
pub const ABORTS: StreamId = StreamId(3);

/// The streams in event time. Late events of the first are reported; those of the second are
/// admitted after the events that have arrived.
pub const TIMED: [StreamId; 2] = [StreamId(102), StreamId(103)];
/// The stream of reported late events: their numbers and times.
pub const LATES: StreamId = StreamId(2);

/// Added to the number of a script's function: the call is executed once for each request id.
pub const ONCE: u32 = 1 << 16;
/// A transfer between rows that are known before it runs.
pub const TRANSFER: u32 = 1 << 17;
/// Added to the number of a script's function: the call is an event of one of the streams in event
/// time.
const EVENTS_OF: [u32; 2] = [1 << 18, 1 << 19];
/// The function that reports a late event.
const LATE: u32 = 1 << 20;
/// A call that aborts with the reason in its only argument.
const REFUSAL: u32 = (1 << 20) + 1;
/// The function that receives an answer to work outside. Only the first answer counts.
const ANSWER: u32 = 1 << 21;

/// A move between two accounts: a declared transaction of an event, which can be executed by column.
pub const MOVE: u32 = 1 << 22;
/// The stream of moves, and its handler.
pub const MOVES: StreamId = StreamId(4);
pub const MOVE_HANDLER: usize = 0;
/// The stream of aborted moves.
pub const ABORTED_MOVES: StreamId = StreamId(5);
/// The value of an account that does not exist.
const BEGINS: i64 = 5;

/// The largest number of calls of a transaction.
pub const CALLS_MAX: u32 = 40;
/// The largest depth of nested calls.
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
    /// Awaits this many of the last wanted calls, all at once.
    Await(usize),
    /// Awaits this many of the last wanted calls one after the other, as functions do that are
    /// begun again for each reply.
    Ask(usize),
    SkipIfOdd(usize),
    /// Jumps back, this many times.
    Repeat {
        to: usize,
        times: u32,
    },
    Scan(Take),
    /// Reads items that may have another owner.
    ScanOf {
        key: Operand,
        take: Take,
    },
    /// Reads the items of one key from `from` up to and without `to`.
    ScanWithin {
        key: Operand,
        from: i64,
        to: i64,
        take: Take,
    },
    /// Reads items of all owners: those of a range of keys, or the first ones. `by_n` reads them by
    /// the index.
    ScanAll {
        by_n: bool,
        between: Option<(i64, i64)>,
        take: Take,
    },
    PutItem(i64),
    DeleteItem(i64),
    /// Writes an item that may have another owner.
    PutItemOf {
        key: Operand,
        item: i64,
    },
    /// Reads the items with this value, of all owners.
    FindBy {
        n: Operand,
        take: Take,
    },
    Get {
        kind: usize,
        key: Operand,
    },
    /// Announces that the rows of this key and the next ones may be used.
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
    /// Asks a question outside. Each answer is new.
    Lookup,
    /// May exceed a deadline by the verdict of a random clock: the function, or a part of it.
    Tarry,
    TarryPartly,
    /// Asks for work outside.
    Work,
}

/// The origin of a key.
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
    /// Whether the items of all entities are unique by number and value.
    is_unique: bool,
    /// The percentage of requests that are transfers, whose rows are known in advance.
    transfers: u64,
    /// Whether moves can be executed by column.
    has_columns: bool,
    pub program: Program,
    /// The next answer from outside.
    outside: Arc<AtomicI64>,
}

/// The answers from outside to transactions, by question.
pub type Answers = BTreeMap<(Tid, Vec<u8>), Vec<u8>>;

/// Encodes a question as bytes. It differs from all other questions of its transaction.
fn question(of: &[i64; 5]) -> Vec<u8> {
    of.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The bytes of a question. An answer begins with them.
const QUESTION_BYTES: usize = 40;

/// The beginning of a verdict of the clock.
const OVERDUE: &str = "overdue";

/// Returns the question of an answer. For a verdict of the clock it is the whole verdict.
pub fn asked(answer: &[u8]) -> Vec<u8> {
    match answer.starts_with(OVERDUE.as_bytes()) {
        true => answer.to_vec(),
        false => answer[..QUESTION_BYTES].to_vec(),
    }
}

/// Returns the number in an answer to a question.
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
    /// Returns a random program over this many entities of each kind.
    pub fn random(dice: &mut Dice, keys: i64) -> Arc<Script> {
        let count = 2 + dice.below(5) as u32;
        let mut functions: Vec<Vec<Inst>> =
            (0..count).map(|_| random_function(dice, count, keys)).collect();
        // Two functions form a typical transfer: one subtracts from its entity and adds to another.
        let there = Inst::Call { function: 1, kind: 1, key: Operand::Arg(1), wanted: false };
        functions[0] = vec![Inst::Read, Inst::Need(1), Inst::Add(-1), there];
        functions[1] = vec![Inst::Add(1)];
        let is_unique = dice.chance(30);
        // Epochs with nothing but transfers are executed by rules of their own.
        let transfers = *dice.pick(&[15, 15, 15, 90, 100]);
        let (program, outside) = (tables(is_unique), Arc::default());
        let has_columns = (i64::from(count) + keys) % 4 > 0;
        Arc::new(Script { functions, keys, is_unique, transfers, has_columns, program, outside })
    }

    /// Returns a random verdict on a deadline: whether it has passed. Each call changes the state
    /// of the outside.
    fn is_late(&self) -> bool {
        self.outside.fetch_add(1, Ordering::Relaxed) % 4 == 0
    }

    /// Returns the number of tables, including indexes.
    pub fn tables(&self) -> usize {
        self.program.tables.len()
    }

    /// Returns the call of a random request.
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

    /// Returns a random move.
    pub fn random_move(&self, dice: &mut Dice, id: i64) -> Call {
        let mut key = || dice.below(self.keys as u64) as i64;
        let (from, to) = (key(), key());
        Script::move_of(&[id, from, to, dice.below(4) as i64])
    }

    /// Returns the call of a move, by its event.
    pub fn move_of(event: &[i64]) -> Call {
        let ints = |ints: &[i64]| ints.iter().map(|&i| Value::Int(i)).collect();
        let [id, from, to, amount] = event[..] else { unreachable!("an event of this stream") };
        let (target, table) = (Target::Function(MOVE), ENTITIES[0]);
        Call { target, table, key: ints(&[from]), args: ints(&[id, to, amount]) }
    }

    /// Returns the event of a move, or `None` for another call.
    pub fn move_event(call: &Call) -> Option<Vec<Value>> {
        let args = &call.args;
        (call.target == Target::Function(MOVE))
            .then(|| vec![args[0].clone(), call.key[0].clone(), args[1].clone(), args[2].clone()])
    }

    /// Returns the calls of a record.
    pub fn calls(record: &Record) -> Vec<Call> {
        match record {
            Record::Requests(some) => some.iter().map(|request| request.call.clone()).collect(),
            Record::Events(events) => {
                events.batch.rows().map(|row| Script::move_of(&ints(&row))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the rows of a move.
    fn move_rows(call: &Call) -> Vec<RowAt> {
        let mut keys = vec![int(&call.key[0]), int(&call.args[1])];
        keys.dedup();
        let row =
            |key| RowAt { table: ENTITIES[0], key: Key::of([&Value::Int(key)]), writes: true };
        keys.into_iter().map(row).collect()
    }

    /// Computes a move on its rows.
    fn moved(call: &Call, rows: &[Option<Arc<[Value]>>]) -> Result<Changes, Abort> {
        let (from, to, amount) = (int(&call.key[0]), int(&call.args[1]), int(&call.args[2]));
        let n = |at: usize| rows[at].as_ref().map_or(BEGINS, |row| int(&row[1]));
        let left = n(0) - amount;
        if left < 0 {
            return Err(Abort::refused("too little"));
        }
        let row = |key: i64, n: i64| Some([key, n].map(Value::Int).as_slice().into());
        let rows = match from == to {
            true => vec![(0, row(from, n(0)))],
            false => vec![(0, row(from, left)), (1, row(to, n(1) + amount))],
        };
        let event = [from, left].map(Value::Int).as_slice().into();
        Ok(Changes { rows, value: None, events: vec![(EVENTS, event)] })
    }

    /// Returns a random event of a stream in event time.
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

    /// Returns the answer to the work that a row asks for. Each answer is new, and has an id like a
    /// request.
    pub fn answer(&self, row: &[Value], id: i64) -> Call {
        let said = self.outside.fetch_add(1, Ordering::Relaxed);
        let (target, table) = (Target::Function(ANSWER), OUTBOX);
        let args = [Value::Int(id), Value::Int(said)].into();
        Call { target, table, key: [row[0].clone()].into(), args }
    }

    /// Returns the rows of a transfer: the source, the destination, a counter, and the request's.
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

    /// Computes a transfer on its rows: the new rows and the returned value.
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

    /// Returns the same program for the reference.
    ///
    /// Requests are events in their order, and so are the events of streams in event time, by their
    /// sources. `tids` has the transaction of each event, and `answers` the answers from outside. Also
    /// returns two streams for each input: one of returned values and one of aborts.
    pub fn for_reference(
        self: &Arc<Script>,
        sources: &[EventSource],
        tids: &[Option<Tid>],
        answers: &Answers,
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
            b.source(&format!("timed/{nth}"), stream, source.out_of_orderness_us);
        }
        let (tids, answers): (Arc<[_]>, _) = (tids.into(), Arc::new(answers.clone()));
        let mut handlers = Vec::new();
        for (nth, input) in inputs.into_iter().enumerate() {
            let (script, tids, answers) = (self.clone(), tids.clone(), answers.clone());
            let columns = ["n", "value"].map(|name| Column::new(name, DataType::Int)).to_vec();
            let serial =
                |output| -> Arc<dyn Opaque> { Arc::new(Serial { script, output, tids, answers }) };
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

    /// Returns the number of an event's stream and its time, for calls in event time.
    pub fn timed(call: &Call) -> Option<(usize, i64)> {
        let Target::Function(function) = call.target else { return None };
        let stream = EVENTS_OF.iter().position(|of| function & of != 0)?;
        Some((stream, int(&call.args[2])))
    }

    /// Whether a call does nothing but report a late event.
    pub fn reports_late_event(call: &Call) -> bool {
        call.target == Target::Function(LATE)
    }

    /// Returns a request as the reference's event.
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
    let n = Column::new("n", DataType::Int).default(Value::Int(BEGINS));
    b.table("accounts", &["id"], vec![Column::new("id", DataType::Int), n]);
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

/// Returns the first or last rows of a range, at most this many.
fn take(dice: &mut Dice, most: u64) -> Take {
    let limit = 1 + dice.below(most) as u32;
    match dice.chance(40) {
        true => Take::Last(limit),
        false => Take::First(limit),
    }
}

fn tables(is_unique: bool) -> Program {
    let mut b = builder(is_unique);
    b.stream("requests", request_columns());
    b.emitted("events", vec![Column::new("n", DataType::Int), Column::new("acc", DataType::Int)]);
    b.emitted("late", vec![Column::new("n", DataType::Int), Column::new("time", DataType::Int)]);
    b.emitted("aborts", vec![Column::new("n", DataType::Int), Column::new("why", DataType::Str)]);
    let columns = ["id", "from", "to", "amount"].map(|name| Column::new(name, DataType::Int));
    assert_eq!(b.stream("moves", columns.to_vec()), MOVES);
    let mut h = b.handler("move", MOVES);
    let (from, to, amount) = (h.column("from"), h.column("to"), h.column("amount"));
    let [source, target] = [from, to].map(|key| h.row(ENTITIES[0], &[key]));
    let have = h.read(source, "n");
    let enough = h.ge(have, amount);
    h.require(enough, "too little");
    let left = h.sub(have, amount);
    h.set(source, "n", left);
    let have = h.read(target, "n");
    let more = h.add(have, amount);
    h.set(target, "n", more);
    h.emit(EVENTS, &[from, left]);
    assert_eq!(h.done(), MOVE_HANDLER);
    let program = b.finish().expect("a program");
    assert_eq!(program.handlers[MOVE_HANDLER].aborted, ABORTED_MOVES);
    program
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
                let take = take(dice, 4);
                code.push(match dice.below(4) {
                    0 => Inst::Scan(take),
                    1 => Inst::ScanOf { key: operand(dice), take },
                    2 => {
                        let (from, to) = (dice.below(3) as i64, dice.below(5) as i64);
                        Inst::ScanWithin { key: operand(dice), from, to, take }
                    }
                    _ => {
                        let bounds = (dice.below(4) as i64, dice.below(keys as u64 + 2) as i64);
                        let between = dice.chance(70).then_some(bounds);
                        Inst::ScanAll { by_n: dice.chance(50), between, take }
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
                let take = take(dice, 3);
                code.push(Inst::FindBy { n: operand(dice), take });
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
