//! A script's functions as nodes see them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tidemill_core::{Row, StreamId, TableId, Value};
use tidemill_function::{
    Activation, Call, Changes, Context, Counts, EventPlace, Fault, Functions, Handle, RowAt, Step,
    Stop, Target,
};
use tidemill_txn::program::{Abort, Asker, Take};
use tidemill_txn::Program;

use super::machine::{Machine, Memory, Pause};
use super::{
    int, ints, row_of, said, Script, ABORTED_MOVES, ABORTS, ANSWER, ENTITIES, EVENTS, LATE, LATES,
    MOVE, MOVES, MOVE_HANDLER, ONCE, OUTBOX, REFUSAL, REQUESTS, TIMED, TRANSFER,
};

/// The memory of a function on a node.
struct OnNode<'a>(&'a mut dyn Context, &'a Script);

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

    fn expect(&mut self, rows: &[(TableId, Vec<i64>)]) -> Result<(), Stop> {
        self.0.expect(&mut rows.iter().map(|(table, key)| (*table, row_of(key))))
    }

    fn find(&mut self, table: TableId, leading: &[i64], take: Take) -> Result<Vec<Vec<i64>>, Stop> {
        let rows = self.0.find(table, &row_of(leading), take)?;
        Ok(rows.iter().map(|row| ints(row)).collect())
    }

    fn range(
        &mut self,
        table: TableId,
        from: &[i64],
        to: &[i64],
        take: Take,
    ) -> Result<Vec<Vec<i64>>, Stop> {
        let rows = self.0.range(table, &row_of(from), &row_of(to), take)?;
        Ok(rows.iter().map(|row| ints(row)).collect())
    }

    fn call(&mut self, call: Call, wanted: bool) -> Result<Handle, Stop> {
        self.0.call(call, wanted)
    }

    fn reply(&mut self, made: Handle) -> Option<i64> {
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
        let ask = Asker::new(move || {
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

/// The result of a use of the memory.
#[derive(Clone)]
enum Used {
    Nothing,
    Row(Option<Vec<i64>>),
    Rows(Vec<Vec<i64>>),
    Made(Handle),
    Int(i64),
    Is(bool),
}

/// The memory of a function that keeps its position: earlier uses return their earlier results.
struct Resumed<'a> {
    node: OnNode<'a>,
    used: &'a mut Vec<Used>,
    at: usize,
}

impl Resumed<'_> {
    fn uses(
        &mut self,
        work: impl FnOnce(&mut OnNode<'_>) -> Result<Used, Stop>,
    ) -> Result<Used, Stop> {
        if self.at == self.used.len() {
            self.used.push(work(&mut self.node)?);
        }
        self.at += 1;
        Ok(self.used[self.at - 1].clone())
    }

    fn is_done(
        &mut self,
        work: impl FnOnce(&mut OnNode<'_>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        self.uses(|node| work(node).map(|()| Used::Nothing)).map(drop)
    }
}

impl Memory for Resumed<'_> {
    type Made = Handle;

    fn get(&mut self, table: TableId, key: &[i64]) -> Result<Option<Vec<i64>>, Stop> {
        match self.uses(|node| node.get(table, key).map(Used::Row))? {
            Used::Row(row) => Ok(row),
            _ => unreachable!("it makes the same uses again"),
        }
    }

    fn put(&mut self, table: TableId, row: &[i64]) -> Result<(), Stop> {
        self.is_done(|node| node.put(table, row))
    }

    fn delete(&mut self, table: TableId, key: &[i64]) -> Result<(), Stop> {
        self.is_done(|node| node.delete(table, key))
    }

    fn expect(&mut self, rows: &[(TableId, Vec<i64>)]) -> Result<(), Stop> {
        self.is_done(|node| node.expect(rows))
    }

    fn find(&mut self, table: TableId, leading: &[i64], take: Take) -> Result<Vec<Vec<i64>>, Stop> {
        match self.uses(|node| node.find(table, leading, take).map(Used::Rows))? {
            Used::Rows(rows) => Ok(rows),
            _ => unreachable!("it makes the same uses again"),
        }
    }

    fn range(
        &mut self,
        table: TableId,
        from: &[i64],
        to: &[i64],
        take: Take,
    ) -> Result<Vec<Vec<i64>>, Stop> {
        match self.uses(|node| node.range(table, from, to, take).map(Used::Rows))? {
            Used::Rows(rows) => Ok(rows),
            _ => unreachable!("it makes the same uses again"),
        }
    }

    fn call(&mut self, call: Call, wanted: bool) -> Result<Handle, Stop> {
        match self.uses(|node| node.call(call, wanted).map(Used::Made))? {
            Used::Made(made) => Ok(made),
            _ => unreachable!("it makes the same uses again"),
        }
    }

    fn reply(&mut self, made: Handle) -> Option<i64> {
        self.node.reply(made)
    }

    fn settled(&mut self, made: Handle) -> Result<i64, Stop> {
        match self.uses(|node| node.settled(made).map(Used::Int))? {
            Used::Int(reply) => Ok(reply),
            _ => unreachable!("it makes the same uses again"),
        }
    }

    fn emit(&mut self, n: i64, acc: i64) -> Result<(), Stop> {
        self.is_done(|node| node.emit(n, acc))
    }

    fn now_us(&self) -> i64 {
        self.node.now_us()
    }

    fn lookup(&mut self, question: &[u8]) -> Result<i64, Stop> {
        match self.uses(|node| node.lookup(question).map(Used::Int))? {
            Used::Int(said) => Ok(said),
            _ => unreachable!("it makes the same uses again"),
        }
    }

    fn tarry(&mut self, verdict: String) -> Result<(), Stop> {
        self.is_done(|node| node.tarry(verdict))
    }

    fn tarry_partly(&mut self, part: u32, verdict: String) -> Result<bool, Stop> {
        match self.uses(|node| node.tarry_partly(part, verdict).map(Used::Is))? {
            Used::Is(is) => Ok(is),
            _ => unreachable!("it makes the same uses again"),
        }
    }
}

/// A function that keeps its position: the machine at its last resumption, and the results of its
/// uses since then.
struct KeepsPosition {
    running: Running,
    used: Vec<Used>,
}

impl Activation for KeepsPosition {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let Running { script, machine } = &mut self.running;
        let mut on = machine.clone();
        let mut kept = Resumed { node: OnNode(context, script), used: &mut self.used, at: 0 };
        match on.run(script, &mut kept) {
            Ok(Pause::Waits(made)) => {
                self.used.clear();
                *machine = on;
                Ok(Step::Wait(made))
            }
            Ok(Pause::Done(acc)) => Ok(Step::Done(Value::Int(acc))),
            Err(Stop::Unwind) => Ok(Step::Stay),
            Err(stop) => Err(stop),
        }
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

/// Accepts an answer if it is the first.
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

/// Executes a request unless one with its id was executed.
struct Once {
    call: Call,
    made: Option<Handle>,
}

impl Activation for Once {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let (key, id) = (self.call.key[0].clone(), self.call.args[0].clone());
        let Some(made) = self.made else {
            let known = context.get(REQUESTS, &[key, id.clone()])?;
            if let Some(request) = known {
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

/// Reports a late event.
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
    /// The request that ends a worker that executes it, and whether that has happened.
    pub poison: Option<i64>,
    pub has_struck: AtomicBool,
    /// The request whose function fails, until it is corrected.
    pub broken: Mutex<Option<i64>>,
}

impl OnNodes {
    /// Creates the functions of a script, none of which ends a worker.
    pub fn new(script: &Arc<Script>) -> OnNodes {
        OnNodes {
            script: script.clone(),
            poison: None,
            has_struck: AtomicBool::new(false),
            broken: Mutex::new(None),
        }
    }

    fn running(&self, function: u32, call: &Call) -> Result<Running, Abort> {
        // The argument after the value is the request's number.
        if self.poison.is_some_and(|id| call.args.get(1) == Some(&Value::Int(id))) {
            self.has_struck.store(true, Ordering::Relaxed);
        }
        self.script.code(function)?;
        let machine = Machine::new(function, call);
        Ok(Running { script: self.script.clone(), machine })
    }
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
        if function == REFUSAL {
            let Value::Str(reason) = &call.args[0] else { unreachable!("it is a text") };
            return Err(Abort::refused(&**reason));
        }
        if function == ANSWER {
            return Ok(Box::new(Answered(call.clone())));
        }
        let broken = *self.broken.lock().expect("nothing panics with it");
        if broken.is_some_and(|id| call.args.first() == Some(&Value::Int(id))) && function >= ONCE {
            return Err(Abort::failed("a mistake", Some("app.py:1")));
        }
        if function >= ONCE {
            return Ok(Box::new(Once { call: call.clone(), made: None }));
        }
        Ok(Box::new(self.running(function, call)?))
    }

    fn begin_kept(&self, call: &Call) -> Result<Box<dyn Activation>, Abort> {
        match call.target {
            // Only some functions can keep their position.
            Target::Function(function) if function < ONCE && function % 3 < 2 => {
                let running = self.running(function, call)?;
                Ok(Box::new(KeepsPosition { running, used: Vec::new() }))
            }
            _ => self.begin(call),
        }
    }

    fn result_event(&self, call: &Call, outcome: &Result<Value, Abort>) -> Option<(StreamId, Row)> {
        let abort = outcome.as_ref().err()?;
        if let Some(event) = Script::move_event(call) {
            let program = &self.script.program;
            let event = program.abort_event(MOVE_HANDLER, &event, &abort.reason);
            return Some((ABORTED_MOVES, event.into()));
        }
        Some((ABORTS, [call.args[0].clone(), Value::str(&abort.reason)].into()))
    }

    fn count(
        &self,
        _: &Call,
        outcome: &Result<Value, Abort>,
        (_, is_first): (Option<&EventPlace>, bool),
        counts: &mut Counts,
    ) -> Option<Fault> {
        counts.events += u64::from(is_first);
        match outcome {
            Ok(_) => counts.ended += 1,
            Err(_) => counts.refused += 1,
        }
        let abort = outcome.as_ref().err().filter(|abort| abort.is_fault())?;
        Some(Fault { what: abort.parts().0.to_owned(), line: None })
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

    fn refusal(&self, reason: &str) -> Call {
        let (key, args) = ([Value::Int(0)].into(), [Value::str(reason)].into());
        Call { target: Target::Function(REFUSAL), table: ENTITIES[0], key, args }
    }

    fn event(&self, _: StreamId, row: &[Value]) -> Vec<Call> {
        vec![Script::move_of(&ints(row))]
    }

    fn by_column(&self, stream: StreamId) -> Option<&[usize]> {
        (stream == MOVES && self.has_columns()).then_some(&[MOVE_HANDLER])
    }

    fn has_columns(&self) -> bool {
        self.script.has_columns
    }

    fn handler_call(&self, _: usize, row: &[Value]) -> Call {
        Script::move_of(&ints(row))
    }

    fn declares(&self) -> bool {
        true
    }

    fn declared(&self, call: &Call) -> Option<Vec<RowAt>> {
        if call.target == Target::Function(MOVE) {
            return Some(Script::move_rows(call));
        }
        // Any function may have made the call, with any table and key.
        let is_one = call.table.index() < self.script.tables()
            && matches!(call.key[..], [Value::Int(_)])
            && call.target == Target::Function(TRANSFER);
        is_one.then(|| Script::transfer_rows(call))
    }

    fn run_declared(
        &self,
        call: &Call,
        _: &[RowAt],
        are: &[Option<Arc<[Value]>>],
    ) -> Result<Changes, Abort> {
        match call.target == Target::Function(MOVE) {
            true => Script::moved(call, are),
            false => Script::transfer(call, are),
        }
    }
}
