//! Functions that make many calls or use many rows. Their cost must grow linearly with these
//! numbers, not quadratically.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use tidemill_core::{Column, DataType, Key, TableId, Value};
use tidemill_function::{
    Activation, Call, Clock, Context, Event, Functions, Handle, Message, Node, NodeId, Outbox,
    Owners, RowAt, Rows, Settings, Step, Stop, Target, Tid,
};
use tidemill_txn::program::{Abort, Builder};
use tidemill_txn::Program;

const CELLS: TableId = TableId(0);
/// The number of cells that wide functions call and read.
const CELLS_CALLED: u32 = 64;

/// The operation that a function repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// Adds one to a cell without waiting.
    Sends,
    /// Adds one to a cell, and waits for the reply.
    Awaits,
    /// Adds one to a cell where it can't wait, so that the function is begun again for the reply.
    Asks,
    /// Adds one to a cell, and reads its own row, which does not change.
    SendsAndReads,
    /// Adds one to its own row, by a call, and reads it.
    Changes,
    /// Reads a row.
    Reads,
    /// Writes a row.
    Writes,
    /// Adds one to a cell without waiting, and fails at the end.
    Fails,
}

const ALL: [Does; 8] = [
    Does::Sends,
    Does::Awaits,
    Does::Asks,
    Does::SendsAndReads,
    Does::Changes,
    Does::Reads,
    Does::Writes,
    Does::Fails,
];

/// Adds one to a row. With a second argument, it does so by another call.
const ADD: Target = Target::Function(100);

#[derive(Default)]
struct Counts {
    /// The number of times that wide functions have begun, and the number of their steps.
    begins: AtomicU64,
    steps: AtomicU64,
}

struct Wide {
    program: Program,
    counts: Arc<Counts>,
}

impl Wide {
    fn begins(&self, call: &Call, keeps: bool) -> Box<dyn Activation> {
        let (call, counts) = (call.clone(), self.counts.clone());
        let Target::Function(number) = call.target else { unreachable!("nodes use rows") };
        let Some(&does) = ALL.get(number as usize) else { return Box::new(Adds(call)) };
        counts.begins.fetch_add(1, Ordering::Relaxed);
        Box::new(Running {
            call,
            does,
            counts,
            keeps,
            has_tangled: false,
            at: 0,
            made: None,
            sum: 0,
        })
    }
}

impl Functions for Wide {
    fn program(&self) -> &Program {
        &self.program
    }

    fn begin(&self, call: &Call) -> Result<Box<dyn Activation>, Abort> {
        Ok(self.begins(call, false))
    }

    fn begin_kept(&self, call: &Call) -> Result<Box<dyn Activation>, Abort> {
        Ok(self.begins(call, true))
    }
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) => *int,
        other => unreachable!("all values are integers, not {other}"),
    }
}

fn call(target: Target, key: i64, args: &[i64]) -> Call {
    let ints = |ints: &[i64]| ints.iter().map(|&i| Value::Int(i)).collect();
    Call { target, table: CELLS, key: ints(&[key]), args: ints(args) }
}

fn held(context: &mut dyn Context, key: i64) -> Result<i64, Stop> {
    let row = context.get(CELLS, &[Value::Int(key)])?;
    Ok(row.map_or(0, |row| int(&row[1])))
}

struct Adds(Call);

impl Activation for Adds {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        if let [_, to] = &self.0.args[..] {
            context.call(call(ADD, int(to), &[1]), false)?;
            return Ok(Step::Done(Value::Null));
        }
        let key = int(&self.0.key[0]);
        let n = held(context, key)? + 1;
        context.put(CELLS, &[Value::Int(key), Value::Int(n)])?;
        Ok(Step::Done(Value::Int(n)))
    }
}

struct Running {
    call: Call,
    does: Does,
    counts: Arc<Counts>,
    keeps: bool,
    has_tangled: bool,
    at: i64,
    made: Option<Handle>,
    sum: i64,
}

impl Running {
    /// Makes two calls that conflict. The second one overtakes the first, which takes a detour over
    /// the other node.
    fn tangle(&mut self, context: &mut dyn Context) -> Result<(), Stop> {
        if let [_, by, to] = &self.call.args.clone()[..] {
            context.call(call(ADD, int(by), &[1, int(to)]), false)?;
            context.call(call(ADD, int(to), &[1]), false)?;
        }
        self.has_tangled = true;
        Ok(())
    }

    /// Takes the next step; returns the call that it waits for, if any.
    fn step(&mut self, context: &mut dyn Context) -> Result<Option<Handle>, Stop> {
        let cell = 1 + self.at % i64::from(CELLS_CALLED);
        let own = int(&self.call.key[0]);
        match (self.does, self.made) {
            (Does::Sends | Does::Fails, _) => {
                context.call(call(ADD, cell, &[1]), false)?;
            }
            (Does::Awaits, None) => {
                self.made = Some(context.call(call(ADD, cell, &[1]), true)?);
                return Ok(self.made);
            }
            (Does::Awaits, Some(made)) => {
                self.sum += int(context.reply(made).expect("it was waited for"));
            }
            (Does::Asks, _) => {
                let made = match self.made {
                    Some(made) => made,
                    None => *self.made.insert(context.call(call(ADD, cell, &[1]), true)?),
                };
                self.sum += int(context.settled(made)?);
            }
            (Does::SendsAndReads | Does::Changes, made) => {
                let to = if self.does == Does::Changes { own } else { cell };
                if made.is_none() {
                    self.made = Some(context.call(call(ADD, to, &[1]), false)?);
                }
                self.sum += held(context, own)?;
            }
            (Does::Reads, _) => self.sum += held(context, cell + self.at)?,
            (Does::Writes, _) => {
                context.put(CELLS, &[1000 + self.at, self.at].map(Value::Int))?;
            }
        }
        self.made = None;
        Ok(None)
    }
}

impl Activation for Running {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        if !self.has_tangled {
            self.tangle(context)?;
        }
        while self.at < int(&self.call.args[0]) {
            self.counts.steps.fetch_add(1, Ordering::Relaxed);
            match self.step(context) {
                Ok(None) => self.at += 1,
                Ok(Some(made)) => return Ok(Step::Wait(vec![made])),
                Err(Stop::Unwind) if self.keeps => return Ok(Step::Stay),
                Err(stop) => return Err(stop),
            }
        }
        match self.does {
            Does::Fails => Err(Abort::refused("enough").into()),
            _ => Ok(Step::Done(Value::Int(self.sum))),
        }
    }
}

/// The outcome of a request, and its cost.
#[derive(Debug)]
struct Ran {
    reply: Result<Value, Abort>,
    begins: u64,
    steps: u64,
    messages: u64,
    /// The sum over all cells.
    held: i64,
}

/// Runs a function on two nodes, and then a small one.
fn run(does: Does, count: i64, tangles: bool, settings: Settings) -> Ran {
    let mut builder = Builder::new("wide");
    let columns = ["id", "n"].map(|name| Column::new(name, DataType::Int)).to_vec();
    builder.table("cells", &["id"], columns);
    let (program, counts) = (builder.finish().expect("a program"), Arc::new(Counts::default()));
    let owners = Owners::equal(2);
    let at = |node: u16, from: i64| {
        let key = |key: &i64| Key::of(&[Value::Int(*key)]);
        let row = |at: &i64| RowAt { table: CELLS, key: key(at), writes: true };
        let found = (from..).find(|at| owners.of_row(&program, &row(at)) == NodeId(node));
        found.expect("both have some")
    };
    let (own, by, to) = (at(0, 1_000_000), at(1, 2_000_000), at(0, 3_000_000));
    let args = if tangles { vec![count, by, to] } else { vec![count] };
    let number = ALL.iter().position(|d| *d == does).expect("it is one of them") as u32;
    let wide = call(Target::Function(number), own, &args);
    let functions = Arc::new(Wide { program, counts: counts.clone() });
    let node = |n| {
        let rows = Rows::new(&functions.program.tables, 7);
        Node::new(NodeId(n), functions.clone(), owners.clone(), settings, rows)
    };
    let mut nodes = [node(0), node(1)];
    let mut replies = Vec::new();
    for (epoch, call) in [wide, call(ADD, by, &[])].into_iter().enumerate() {
        let mut wires: VecDeque<(NodeId, NodeId, Message)> = VecDeque::new();
        let mut requests = Some((Tid(1 + epoch as u64), call));
        let mut outs = Vec::new();
        for (n, node) in nodes.iter_mut().enumerate() {
            let mut out = Outbox::default();
            node.begin(
                epoch as u64,
                Clock::from(1),
                requests.take().into_iter().collect(),
                (Vec::new(), tidemill_function::ColumnPlan::default()),
                &mut out,
            );
            outs.push((NodeId(n as u16), out));
        }
        loop {
            for (from, out) in outs.drain(..) {
                wires.extend(out.messages.into_iter().map(|(to, message)| (from, to, message)));
                replies.extend(out.events.into_iter().filter_map(|event| match event {
                    Event::Replied { outcome, .. } => Some(outcome),
                    _ => None,
                }));
            }
            let Some((from, to, message)) = wires.pop_front() else { break };
            let mut out = Outbox::default();
            nodes[usize::from(to.0)].receive(from, message, &mut out);
            outs.push((to, out));
        }
        assert!(nodes.iter().all(|node| !node.is_running()), "{does:?}: an epoch has not ended");
    }
    assert_eq!(replies.pop(), Some(Ok(Value::Int(1))), "the small one");
    let rows = nodes.iter().flat_map(|node| node.rows().iter());
    Ran {
        reply: replies.pop().expect("it has a reply"),
        begins: counts.begins.load(Ordering::Relaxed),
        steps: counts.steps.load(Ordering::Relaxed),
        messages: nodes.iter().map(|node| node.counters().messages).sum(),
        held: rows.map(|(_, _, row)| int(&row[1])).sum(),
    }
}

/// Returns the expected value of a function, and the expected sum over all cells after it and the
/// small one.
fn wanted(does: Does, count: i64, tangles: bool) -> (Result<Value, Abort>, i64) {
    let cells = i64::from(CELLS_CALLED);
    let returned = match does {
        Does::Awaits | Does::Asks => (0..count).map(|at| at / cells + 1).sum(),
        Does::Changes => (0..count).map(|at| at + 1).sum(),
        Does::Sends | Does::SendsAndReads | Does::Reads | Does::Writes => 0,
        // All its calls are undone.
        Does::Fails => return (Err(Abort::refused("enough")), 1),
    };
    let held = match does {
        Does::Reads => 0,
        Does::Writes => (0..count).sum(),
        _ => count,
    };
    (Ok(Value::Int(returned)), held + 1 + if tangles { 2 } else { 0 })
}

#[test]
fn many_calls_and_rows_cost_as_much_as_there_are() {
    for does in ALL {
        for tangles in [false, true] {
            let count = 3000;
            let came = run(does, count, tangles, Settings::default());
            let (returned, held) = wanted(does, count, tangles);
            assert_eq!(came.reply, returned, "{does:?}, tangles: {tangles}");
            assert_eq!(came.held, held, "{does:?}, tangles: {tangles}");
            // A re-run doubles all these counts. So does one more begin, where a value has to be
            // seen.
            let many = count as u64;
            assert!(came.begins <= 40, "{does:?}, tangles: {tangles}: {came:?}");
            assert!(came.steps <= 6 * many + 1000, "{does:?}, tangles: {tangles}: {came:?}");
            assert!(came.messages <= 8 * many + 100, "{does:?}, tangles: {tangles}: {came:?}");
        }
    }
}

#[test]
fn one_call_too_many_aborts_its_transaction_alone() {
    let settings = Settings { calls_max: 2000, ..Settings::default() };
    let refused = || Err(Abort::refused("a transaction has at most 2000 calls"));
    for does in [Does::Sends, Does::Awaits, Does::Asks, Does::SendsAndReads, Does::Changes] {
        // The request counts as a call, too. A function without end is stopped.
        for (count, is_refused) in [(1999, false), (2000, true), (5000, true), (i64::MAX, true)] {
            let came = run(does, count, false, settings);
            match is_refused {
                true => {
                    assert_eq!((came.reply.clone(), came.held), (refused(), 1), "{does:?} {count}")
                }
                false => {
                    let (returned, held) = wanted(does, count, false);
                    assert_eq!((came.reply.clone(), came.held), (returned, held));
                }
            }
            assert!(
                came.begins <= 40 && came.steps <= 6 * 2000 + 1000,
                "{does:?} {count}: {came:?}"
            );
        }
    }
}

#[test]
fn one_use_too_many_aborts_its_transaction_alone() {
    let settings = Settings { uses_max: 2000, ..Settings::default() };
    let refused = || Err(Abort::refused("a transaction has at most 2000 operations"));
    for does in ALL {
        // The callee reads its row and writes it.
        let each = match does {
            Does::Sends | Does::Awaits | Does::Asks | Does::Fails => 3,
            Does::SendsAndReads | Does::Changes => 4,
            Does::Reads | Does::Writes => 1,
        };
        let most = 2000 / each;
        for (count, is_refused) in [(most, false), (most + 1, true), (i64::MAX, true)] {
            let came = run(does, count, false, settings);
            let (returned, held) = wanted(does, if is_refused { 0 } else { count }, false);
            let (reply, held) = if is_refused { (refused(), 1) } else { (returned, held) };
            assert_eq!((came.reply.clone(), came.held), (reply, held), "{does:?} {count}");
            assert!(came.begins <= 40 && came.steps <= 15_000, "{does:?} {count}: {came:?}");
        }
    }
}

#[test]
fn calls_one_after_the_other_begin_nobody_again() {
    // No function keeps its position.
    let settings = Settings { begins_max: u32::MAX, ..Settings::default() };
    for does in [Does::Sends, Does::Awaits, Does::SendsAndReads, Does::Writes, Does::Fails] {
        let came = run(does, 2000, true, settings);
        assert_eq!((came.reply.clone(), came.held), wanted(does, 2000, true), "{does:?}");
        assert!((2..=3).contains(&came.begins), "{does:?}: {came:?}");
    }
}
