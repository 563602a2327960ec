//! Random programs, sources and cuts, from one seed.
//!
//! A program has two tables: one of plain words, and one with text, nulls and two key columns. Both
//! may retain versions or be ordered. It has two input streams, a filtered and a mapped one, and
//! handlers of every kind, some of which feed others. Some programs have indexes, triggers and
//! windows. In wild programs, more is unknown before the run: they have more functions, which feed
//! one another, and computed keys.

pub mod functions;
mod hooks;

use std::sync::Arc;

use tidemill_core::rules::{Binary, Unary};
use tidemill_core::{Column, DataType, History, Late, SourceId, StreamId, TableId, Value};
use tidemill_reference::{CutAt, InputRow};
use tidemill_txn::program::{
    Aggregate, Batching, Block, Builder, Expr, ExprId, Fold, HandlerBuilder, Program, RowHandle,
    Window,
};

use functions::{Follower, Juggler, Wanderer, Writer};

/// SplitMix64: one seed, one case.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn text(&mut self, items: &[&'static str]) -> &'static str {
        items[self.below(items.len() as u64) as usize]
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// The kind of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Use only columns and operations that the register machine has.
    pub plain: bool,
    /// Give both streams event time and never make a source idle. Then the places of cuts must not
    /// matter.
    pub orderly: bool,
    /// Let tables retain versions.
    pub histories: bool,
    /// Use only handlers that can be executed in place and in parallel, with enough events for
    /// that. For `plain` cases.
    pub words: bool,
}

const MONEY: DataType = DataType::Decimal(2);

fn event_columns(plain: bool) -> Vec<Column> {
    let mut columns = vec![
        Column::new("at", DataType::Timestamp),
        Column::new("k", DataType::Int),
        Column::new("j", DataType::Int),
        Column::new("x", DataType::Int),
        Column::new("f", DataType::Float),
        Column::new("m", MONEY),
        Column::new("b", DataType::Bool),
    ];
    if !plain {
        columns.push(Column::new("s", DataType::Str));
        columns.push(Column::new("o", DataType::Int).nullable());
    }
    columns
}

/// The features of the tables beside rows.
#[derive(Clone, Copy)]
struct Extras {
    histories: [Option<History>; 2],
    ordered: [bool; 2],
    wild: bool,
    procedures: bool,
    hooks: bool,
}

impl Extras {
    fn any(dice: &mut Dice, shape: Shape) -> Extras {
        let mut history = || {
            let versions = dice.chance(60).then(|| 1 + dice.below(12));
            let time_us =
                (versions.is_none() || dice.chance(50)).then(|| 1 + dice.below(40) as i64);
            (shape.histories && dice.chance(50)).then_some(History { time_us, versions })
        };
        let histories = [history(), history()];
        let ordered = [dice.chance(40), dice.chance(50)];
        let wild = dice.chance(35) && !shape.words;
        let procedures = !wild && dice.chance(30) && !shape.words;
        let hooks = dice.chance(30) && !shape.words;
        Extras { histories, ordered, wild, procedures, hooks }
    }
}

/// Returns a window that fits into a history.
fn window(dice: &mut Dice, history: History) -> Window {
    let by_time = history.time_us.filter(|_| history.versions.is_none() || dice.chance(60));
    match (by_time, history.versions) {
        (Some(most), _) => {
            let size_us = 1 + dice.below(most as u64) as i64;
            match dice.below(5) {
                0 | 1 => Window::Sliding { size_us },
                2 => Window::Tumbling { size_us },
                3 if size_us < most => {
                    let slide_us = 1 + dice.below((most - size_us) as u64) as i64;
                    Window::Hopping { size_us, slide_us }
                }
                _ => Window::Session { gap_us: 1 + size_us / 4 },
            }
        }
        (None, versions) => {
            let versions = 1 + dice.below(versions.expect("it keeps something"));
            match dice.chance(60) {
                true => Window::Last { versions },
                false => Window::TumblingVersions { versions },
            }
        }
    }
}

/// Returns an aggregate of a column of this type, and the type of its result.
fn aggregate(dice: &mut Dice, ty: &DataType) -> (Aggregate, DataType) {
    let own = |aggregate| (aggregate, ty.clone());
    match dice.below(8) {
        0 => (Aggregate::Count, DataType::Int),
        1 | 2 if ty.is_number() => own(Aggregate::Sum),
        3 if *ty == DataType::Int => (Aggregate::Avg, DataType::Float),
        3 if ty.is_number() => own(Aggregate::Avg),
        4 => own(Aggregate::Min),
        5 => own(Aggregate::Max),
        6 => own(Aggregate::First),
        _ => own(Aggregate::Last),
    }
}

/// Returns a user-defined aggregate, over column 1 or 2, which is a nullable int.
fn fold(column: u16) -> Aggregate {
    let mut exprs = Block::default();
    let start = exprs.push(Expr::Const(Value::Int(1)));
    let three = exprs.push(Expr::Const(Value::Int(3)));
    let state = exprs.push(Expr::Var(tidemill_txn::program::VarId(0)));
    let column = exprs.push(Expr::Column(column));
    let value = exprs.push(Expr::Coalesce(column, start));
    let product = exprs.push(Expr::Binary(Binary::Mod, state, three));
    let step = exprs.push(Expr::Binary(Binary::Add, product, value));
    Aggregate::Fold(Box::new(Fold { exprs, start, step }))
}

/// Adds procedures that take the given streams and the output of earlier procedures; some are
/// nested. Returns the streams that they emit into, each with the column of the number.
fn procedures(
    dice: &mut Dice,
    b: &mut Builder,
    given: &[(StreamId, usize)],
) -> Vec<(StreamId, usize)> {
    let pair = || vec![Column::new("k", DataType::Int), Column::new("v", DataType::Int)];
    let number = 1 + dice.below(4) as usize;
    let own: Vec<StreamId> = (0..=number).map(|i| b.emitted(&format!("own{i}"), pair())).collect();
    let (mut made, mut added) = (Vec::new(), own.iter().map(|own| (*own, 0)).collect::<Vec<_>>());
    for index in 0..number {
        let from = given.iter().copied().chain(own[..index].iter().map(|own| (*own, 0)));
        let from: Vec<(StreamId, usize)> = from.collect();
        let mut inputs = vec![*dice.pick(&from)];
        while dice.chance(40) && inputs.len() < 3 {
            let more = *dice.pick(&from);
            if !inputs.contains(&more) {
                inputs.push(more);
            }
        }
        let streams: Vec<StreamId> = inputs.iter().map(|(stream, _)| *stream).collect();
        let emits = own[index..index + 1 + dice.below(2) as usize].to_vec();
        let function = Juggler { emits: emits.clone(), seen_at: 5 + dice.below(2) as i64 };
        let name = format!("procedure{index}");
        made.push(b.procedure(&name, &streams, &emits, Arc::new(function)));
        added.push((b.aborted(made[index]), inputs[0].1));
    }
    if number > 1 && dice.chance(60) {
        let from = dice.below(number as u64 - 1) as usize;
        let to = from + 2 + dice.below((number - from - 1) as u64) as usize;
        let nested = &made[from..to];
        let before = dice.chance(30).then(|| (nested[0], nested[1]));
        b.nested("together", nested, before.as_slice());
    }
    added
}

/// Adds a procedure on batches from the border, of one or two streams that no other handler takes.
fn batched(dice: &mut Dice, b: &mut Builder, [first, second]: [StreamId; 2], has_one_source: bool) {
    let pass = |exprs: &mut Block, schema: &tidemill_core::Schema| {
        let x = exprs.push(Expr::Column(schema.index_of("x").unwrap() as u16));
        let low = exprs.push(Expr::Const(Value::Int(-20)));
        exprs.push(Expr::Binary(Binary::Gt, x, low))
    };
    // The second stream may be in arrival time, and has one source.
    let mut streams = vec![b.filter("batched second", second, pass)];
    if dice.chance(50) || has_one_source {
        streams.insert(0, b.filter("batched first", first, pass));
    }
    for stream in &streams {
        let batch = match dice.chance(60) {
            true => Batching::Count(1 + dice.below(7)),
            false => Batching::TimeUs(1 + dice.below(12) as i64),
        };
        b.batch(*stream, batch);
    }
    let function = Juggler { emits: Vec::new(), seen_at: 7 };
    b.procedure("in batches", &streams, &[], Arc::new(function));
}

/// The text of closures' deliberate panics.
const ON_PURPOSE: &str = "this event is too much for a closure";

/// The text of panics about a column that the closure may not set.
const REFUSED: &str = "which it was not declared to set";

/// Silences the messages of deliberate panics, of which there are thousands.
fn quietly() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let said = panic.payload().downcast_ref::<String>();
            if said.is_none_or(|said| said != ON_PURPOSE && !said.contains(REFUSED)) {
                told(panic);
            }
        }));
    });
}

pub fn program(dice: &mut Dice, shape: Shape) -> Program {
    let mut b = Builder::new("random");
    let plain_default = dice.chance(70) || shape.words;
    let mut a = Column::new("a", DataType::Int);
    if plain_default {
        a = a.default(Value::Int(0));
    }
    b.table(
        "plain",
        &["id"],
        vec![
            Column::new("id", DataType::Int),
            a,
            Column::new("f", DataType::Float).default(Value::Float(0.5)),
            Column::new("m", MONEY).default(Value::Int(3)),
            Column::new("b", DataType::Bool).default(Value::Bool(false)),
        ],
    );
    b.table(
        "rich",
        &["id", "name"],
        vec![
            Column::new("id", DataType::Int),
            Column::new("name", DataType::Str),
            Column::new("a", DataType::Int).nullable(),
            Column::new("note", DataType::Str).default(Value::str("-")),
            Column::new("m", MONEY),
        ],
    );
    let extras = Extras::any(dice, shape);
    for table in [TableId(0), TableId(1)] {
        if let Some(history) = extras.histories[table.index()] {
            b.history(table, history);
        }
        if extras.ordered[table.index()] {
            b.ordered(table);
        }
    }
    let first = b.stream("first", event_columns(shape.plain));
    let second = b.stream("second", event_columns(shape.plain));
    let late = |dice: &mut Dice| if dice.chance(50) { Late::Side } else { Late::Admit };
    let policy = late(dice);
    b.event_time(first, "at", policy);
    if shape.orderly || dice.chance(50) {
        let policy = late(dice);
        b.event_time(second, "at", policy);
    }
    let sources = 2 + dice.below(2);
    for index in 0..sources {
        let stream = if index == 1 { second } else { first };
        b.source(&format!("source{index}"), stream, dice.below(4) as i64);
    }
    let filtered = b.filter("filtered", first, |exprs, schema| {
        let x = exprs.push(Expr::Column(schema.index_of("x").unwrap() as u16));
        let zero = exprs.push(Expr::Const(Value::Int(0)));
        exprs.push(Expr::Binary(Binary::Gt, x, zero))
    });
    let side =
        b.emitted("side", vec![Column::new("k", DataType::Int), Column::new("v", DataType::Int)]);
    let mut fed = Vec::new();
    for index in 0..1 + dice.below(4) {
        let inputs = [first, second, filtered];
        let input = *dice.pick(&inputs);
        let name = format!("h{index}");
        let kind = if shape.words { 1 + dice.below(4) } else { dice.below(10) };
        match if extras.wild && dice.chance(40) { 0 } else { kind } {
            0 if !shape.plain && dice.chance(40) => {
                let output = dice.chance(50).then_some(side);
                let function = Arc::new(Writer { output, ranges: extras.ordered[1] });
                let index = b.opaque(&name, input, function);
                b.emits(index, output.as_slice());
            }
            0 => {
                // Sometimes a window that is refused when it runs.
                let history = extras.histories[0].filter(|_| dice.chance(90));
                let window =
                    window(dice, history.unwrap_or(History { time_us: Some(50), versions: None }));
                let sum = dice.pick(&[Aggregate::Sum, Aggregate::Min, fold(1)]).clone();
                let ranges = extras.ordered[0] || dice.chance(10);
                let output = dice.chance(40).then_some(side);
                let function = Wanderer { output, window: (window, sum), ranges };
                let index = b.opaque(&name, input, Arc::new(function));
                b.emits(index, output.as_slice());
            }
            1 | 2 if plain_default && shape.plain => {
                let reads = extras.histories[0].map(|history| {
                    let mut read = |column: &str, aggregate| {
                        let window = window(dice, history);
                        b.window_read(TableId(0), column, window, aggregate)
                    };
                    let extreme =
                        if history.versions.is_some() { Aggregate::Min } else { Aggregate::Max };
                    [read("a", Aggregate::Sum), read("f", extreme), read("m", Aggregate::Avg)]
                });
                let panics_at = if dice.chance(30) { 17 } else { i64::MIN };
                quietly();
                let body = move |tx: &mut tidemill_txn::program::NativeTx<'_>| {
                    let (have, x) = (tx.get(0, 1), tx.event(3));
                    if let Some([sum, extreme, _]) = &reads {
                        if tx.window(0, sum)?.is_some_and(|sum| sum % 5 == 4) {
                            tx.set(0, 3, tx.window(1, extreme)?.map_or(7, |f| f % 1000));
                        }
                    }
                    if have < -50 {
                        return Err("too low");
                    }
                    tx.set(0, 1, have.wrapping_sub(x));
                    tx.set(1, 1, tx.get(1, 1).wrapping_add(x));
                    tx.set(1, 2, (x as f64 / 0.0).to_bits() as i64);
                    if let Some([_, extreme, mean]) = &reads {
                        // Includes the values set above, possibly under another number.
                        let mean = tx.window(0, mean)?.unwrap_or(-1) % 100;
                        let extreme = tx.window(0, extreme)?.unwrap_or(0) >> 50;
                        if mean == 3 {
                            return Err("three");
                        }
                        tx.set(1, 3, mean + extreme);
                    }
                    // After many writes that must be undone.
                    assert!(x % 40 != panics_at, "{ON_PURPOSE}");
                    if !tx.exists(0) {
                        tx.emit(0, &[tx.event(1), x]);
                    }
                    Ok(())
                };
                let rows: [(TableId, &[&str]); 2] = [(TableId(0), &["k"]), (TableId(0), &["j"])];
                let index = b.native(&name, input, &rows, &[side], body);
                // All the columns that it sets, or all but one, which it then can't set.
                match dice.below(4) {
                    0 => {}
                    1 => b.sets(index, &[(0, &["a", "m"]), (1, &["a", "f"])]),
                    _ => b.sets(index, &[(0, &["a", "m"]), (1, &["a", "f", "m"])]),
                }
            }
            _ => {
                let mut h = b.handler(&name, input);
                declared(dice, &mut h, shape.plain, side, extras);
                let output = dice.chance(60).then(|| {
                    let (k, x) = (h.column("k"), h.column("x"));
                    h.output(&[("k", k), ("v", x)])
                });
                let index = h.done();
                fed.extend(output.map(|stream| (stream, 0)));
                if dice.chance(20) {
                    fed.push((b.aborted(index), 1));
                }
                if shape.words {
                    // No other handler takes what a handler emits.
                    fed.clear();
                }
            }
        }
    }
    // A cascade: a handler takes the output of others.
    fed.extend((!shape.words).then_some((side, 0)));
    if extras.hooks {
        let inputs = [first, second, filtered];
        hooks::add(dice, &mut b, &inputs, side, shape.plain);
    }
    if extras.procedures {
        let given: Vec<(StreamId, usize)> = [(first, 1), (second, 1), (filtered, 1)]
            .into_iter()
            .chain(fed.iter().copied())
            .collect();
        fed.extend(procedures(dice, &mut b, &given));
        if dice.chance(50) {
            batched(dice, &mut b, [first, second], sources == 2);
        }
    }
    for (index, (stream, k)) in fed.into_iter().enumerate() {
        if extras.wild && dice.chance(30) {
            let follower = Follower { k, output: side };
            b.opaque(&format!("follower{index}"), stream, Arc::new(follower));
        }
        if dice.chance(40) {
            let mut h = b.handler(&format!("after{index}"), stream);
            let k = h.column("k");
            let row = h.row(TableId(0), &[k]);
            let a = h.read(row, "a");
            let (one, limit) = (h.int(1), h.int(40));
            let more = h.add(a, one);
            let low = h.binary(Binary::Lt, more, limit);
            h.require(low, "after: full");
            h.set(row, "a", more);
            h.output(&[("k", k), ("a", more)]);
            h.done();
        }
    }
    b.finish().unwrap_or_else(|e| panic!("{e}"))
}

/// Adds the steps of a declared handler.
fn declared(
    dice: &mut Dice,
    h: &mut HandlerBuilder<'_>,
    plain: bool,
    side: StreamId,
    extras: Extras,
) {
    let mut scope = Scope { vars: Vec::new() };
    let mut rows: Vec<(RowHandle, bool)> = Vec::new();
    for _ in 0..1 + dice.below(3) {
        let rich = !plain && dice.chance(40);
        let key = match dice.below(3) {
            0 => h.column("k"),
            1 => h.column("j"),
            _ => h.int(2),
        };
        let row = if rich {
            let name = h.column("s");
            h.row(TableId(1), &[key, name])
        } else if (!plain || extras.wild) && dice.chance(20) {
            let computed = scope.expr(dice, h, &DataType::Int, plain, 2);
            h.row(TableId(0), &[computed])
        } else {
            h.row(TableId(0), &[key])
        };
        rows.push((row, rich));
    }
    for _ in 0..1 + dice.below(7) {
        let (row, rich) = *dice.pick(&rows);
        let columns: &[(&str, DataType)] = if rich {
            &[("a", DataType::Int), ("note", DataType::Str), ("m", MONEY)]
        } else {
            &[("a", DataType::Int), ("f", DataType::Float), ("m", MONEY), ("b", DataType::Bool)]
        };
        let (name, ty) = dice.pick(columns).clone();
        if let (Some(history), true) = (extras.histories[usize::from(rich)], dice.chance(35)) {
            let window = window(dice, history);
            if dice.chance(15) {
                let column = if rich { 2 } else { 1 };
                let var = h.window(row, name, window, fold(column));
                scope.vars.push((var, DataType::Int));
            } else {
                let (aggregate, ty) = aggregate(dice, &ty);
                let var = h.window(row, name, window, aggregate);
                scope.vars.push((var, ty));
            }
        }
        if extras.ordered[usize::from(rich)] && dice.chance(10) {
            let (from, to) = (h.int(dice.below(3) as i64), h.column("k"));
            let from = &[from][..dice.below(2) as usize];
            let to = &[to][..dice.below(2) as usize];
            let (aggregate, ty) = aggregate(dice, &ty);
            let var = h.range(TableId(u16::from(rich)), (from, to), name, aggregate);
            scope.vars.push((var, ty));
        }
        match dice.below(if plain { 8 } else { 12 }) {
            0..=2 => {
                let var = h.read(row, name);
                scope.vars.push((var, ty));
            }
            3 => {
                let var = h.exists(row);
                scope.vars.push((var, DataType::Bool));
            }
            4 | 5 => {
                let value = scope.expr(dice, h, &ty, plain, 3);
                h.set(row, name, value);
            }
            6 => {
                let cond = scope.expr(dice, h, &DataType::Bool, plain, 2);
                h.require(cond, dice.text(&["no", "never", "not now"]));
            }
            7 => {
                let (k, v) = (h.column("k"), scope.expr(dice, h, &DataType::Int, plain, 2));
                h.emit(side, &[k, v]);
            }
            8 => h.delete(row),
            step => {
                let mut values = Vec::new();
                for (name, ty) in columns {
                    values.push((*name, scope.expr(dice, h, ty, plain, 2)));
                }
                match step {
                    9 => h.insert(row, &values),
                    10 => h.update(row, &values[..1]),
                    _ => h.upsert(row, &values),
                }
            }
        }
        if !plain && dice.chance(15) {
            // The last step may be a read, which can't be conditional. So this adds a step that
            // can.
            let value = scope.expr(dice, h, &columns[0].1, plain, 1);
            h.set(row, columns[0].0, value);
            let cond = scope.expr(dice, h, &DataType::Bool, plain, 2);
            h.when(cond);
        }
    }
}

struct Scope {
    vars: Vec<(ExprId, DataType)>,
}

impl Scope {
    /// Returns a random expression of a type. It may abort.
    fn expr(
        &self,
        dice: &mut Dice,
        h: &mut HandlerBuilder<'_>,
        ty: &DataType,
        plain: bool,
        depth: u32,
    ) -> ExprId {
        let vars: Vec<ExprId> =
            self.vars.iter().filter(|(_, t)| t == ty).map(|(id, _)| *id).collect();
        if depth == 0 || dice.chance(25) {
            if !vars.is_empty() && dice.chance(60) {
                return *dice.pick(&vars);
            }
            return match ty {
                DataType::Int if dice.chance(50) => h.column("x"),
                DataType::Int if !plain && dice.chance(20) => h.column("o"),
                DataType::Int => {
                    let rare = dice.chance(3);
                    h.int(if rare { i64::MAX } else { dice.below(9) as i64 - 4 })
                }
                DataType::Float if dice.chance(60) => h.column("f"),
                DataType::Float => h.value(Value::Float(*dice.pick(&[0.0, -0.0, 1.5, f64::NAN]))),
                DataType::Bool if dice.chance(50) => h.column("b"),
                DataType::Bool => {
                    let value = dice.chance(80);
                    h.value(Value::Bool(value))
                }
                DataType::Str if dice.chance(50) => h.column("s"),
                DataType::Str => h.value(Value::str(dice.text(&["", "x", "é"]))),
                _ if dice.chance(60) => h.column("m"),
                _ => h.value(Value::Decimal(dice.below(1000) as i64 - 500, 2)),
            };
        }
        let sub = |dice: &mut Dice, h: &mut HandlerBuilder<'_>, ty: &DataType| {
            self.expr(dice, h, ty, plain, depth - 1)
        };
        if dice.chance(15) {
            let c = sub(dice, h, &DataType::Bool);
            let (a, b) = (sub(dice, h, ty), sub(dice, h, ty));
            return h.choose(c, a, b);
        }
        match ty {
            DataType::Int => {
                let (a, b) = (sub(dice, h, ty), sub(dice, h, ty));
                let ops = [
                    Binary::Add,
                    Binary::Sub,
                    Binary::Mul,
                    Binary::FloorDiv,
                    Binary::Mod,
                    Binary::Min,
                    Binary::Max,
                ];
                match dice.below(9) {
                    7 => h.unary(Unary::Neg, a),
                    8 => h.unary(Unary::Abs, a),
                    op => h.binary(ops[op as usize], a, b),
                }
            }
            DataType::Float => {
                let (a, b) = (sub(dice, h, ty), sub(dice, h, ty));
                let ops = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min];
                match dice.below(7) {
                    5 => h.unary(Unary::Neg, a),
                    6 => {
                        let i = sub(dice, h, &DataType::Int);
                        h.unary(Unary::Cast(DataType::Float), i)
                    }
                    op => h.binary(ops[op as usize], a, b),
                }
            }
            DataType::Bool => {
                let ops = [Binary::Eq, Binary::Ne, Binary::Lt, Binary::Le, Binary::Gt, Binary::Ge];
                let of = dice.pick(&[DataType::Int, DataType::Float, MONEY]).clone();
                match dice.below(4) {
                    0 => {
                        let (a, b) = (sub(dice, h, ty), sub(dice, h, ty));
                        h.binary(*dice.pick(&[Binary::And, Binary::Or]), a, b)
                    }
                    1 => {
                        let a = sub(dice, h, ty);
                        h.unary(Unary::Not, a)
                    }
                    _ => {
                        let (a, b) = (sub(dice, h, &of), sub(dice, h, &of));
                        h.binary(*dice.pick(&ops), a, b)
                    }
                }
            }
            DataType::Str => {
                // Values that were read are left out. Texts that double with each event would only
                // take time.
                let a = h.column("s");
                let b = h.value(Value::str("+"));
                h.add(a, b)
            }
            _ => {
                let (a, b) = (sub(dice, h, ty), sub(dice, h, ty));
                let i = sub(dice, h, &DataType::Int);
                match dice.below(5) {
                    0 => h.binary(Binary::Add, a, i),
                    1 => h.binary(Binary::Sub, a, b),
                    2 => h.binary(Binary::Max, a, b),
                    3 => h.unary(Unary::Neg, a),
                    _ => h.binary(Binary::Mul, i, a),
                }
            }
        }
    }
}

#[allow(dead_code)] // Tests of nodes make their own events.
/// Returns the rows of every source. Times are out of order within a bound; sometimes a row is
/// late.
pub fn sources(dice: &mut Dice, program: &Program, shape: Shape) -> Vec<Vec<InputRow>> {
    program
        .sources
        .iter()
        .map(|source| {
            let schema = &program.streams[source.stream.index()].spec.schema;
            let (mut rows, mut offset, mut newest) = (Vec::new(), 0, 0);
            let count = if shape.words { 100 + dice.below(400) } else { dice.below(60) };
            for _ in 0..count {
                // Rows that can't be decoded leave gaps.
                offset += 1 + u64::from(dice.chance(10));
                newest += dice.below(3) as i64;
                let back = dice.below(source.out_of_orderness_us as u64 + 1) as i64;
                let mut at = newest - back;
                if dice.chance(10) {
                    at -= dice.below(20) as i64;
                }
                let values = schema.columns.iter().map(|c| match &*c.name {
                    "at" => Value::Timestamp(at),
                    "k" | "j" => Value::Int(dice.below(5) as i64),
                    "x" => Value::Int(dice.below(60) as i64 - 30),
                    "f" => Value::Float(*dice.pick(&[0.0, -0.0, 2.5, -1.0, f64::NAN, 1e300])),
                    "m" => Value::Decimal(dice.below(2000) as i64 - 1000, 2),
                    "b" => Value::Bool(dice.chance(50)),
                    "s" => Value::str(dice.text(&["", "a", "b\0", "é"])),
                    _ if dice.chance(30) => Value::Null,
                    _ => Value::Int(dice.below(9) as i64),
                });
                rows.push(InputRow { offset, values: values.collect() });
            }
            rows
        })
        .collect()
}

/// Converts an engine's cut for the reference, which computes the watermarks itself.
#[allow(dead_code)] // Tests of the executors make their own cuts.
pub fn cut_at(cut: tidemill_core::Cut) -> CutAt {
    let tidemill_core::Cut { offsets, clock_us, idle, ended, .. } = cut;
    CutAt { offsets, clock_us, idle, ended, watermarks_max: None }
}

// The engine's tests take the engine's cuts.
#[allow(dead_code)]
/// Returns cuts, the last of which takes everything and ends every source.
pub fn cuts(dice: &mut Dice, sources: &[Vec<InputRow>], shape: Shape) -> Vec<CutAt> {
    let ends: Vec<u64> = sources.iter().map(|r| r.last().map_or(0, |r| r.offset + 1)).collect();
    let ids = || (0..sources.len() as u32).map(SourceId);
    let mut cuts = Vec::new();
    let mut offsets = vec![0; sources.len()];
    for _ in 0..dice.below(8) {
        for (offset, end) in offsets.iter_mut().zip(&ends) {
            let most = if shape.words { 250 } else { 25 };
            *offset = (*offset + dice.below(most)).min(*end);
        }
        let idle = ids().filter(|_| !shape.orderly && dice.chance(15)).collect();
        cuts.push(CutAt {
            offsets: offsets.clone(),
            clock_us: dice.below(1000) as i64,
            idle,
            ended: Vec::new(),
            ..Default::default()
        });
    }
    cuts.push(CutAt {
        offsets: ends,
        clock_us: 0,
        idle: Vec::new(),
        ended: ids().collect(),
        ..Default::default()
    });
    cuts
}
