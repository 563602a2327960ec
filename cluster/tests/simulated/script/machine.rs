//! The interpreter of functions, independent of the memory.

use tidemill_core::{TableId, Value};
use tidemill_function::{Call, Stop, Target};
use tidemill_txn::program::{Abort, Take};

use super::{int, mix, question, Inst, Operand, Script, BY_N, ENTITIES, ITEMS, OUTBOX, OVERDUE};

/// The memory that a machine uses. `Made` refers to a call that was made.
pub(super) trait Memory {
    type Made: Copy;
    fn get(&mut self, table: TableId, key: &[i64]) -> Result<Option<Vec<i64>>, Stop>;
    fn put(&mut self, table: TableId, row: &[i64]) -> Result<(), Stop>;
    fn delete(&mut self, table: TableId, key: &[i64]) -> Result<(), Stop>;
    /// Announces rows that may be used.
    fn expect(&mut self, rows: &[(TableId, Vec<i64>)]) -> Result<(), Stop> {
        let _ = rows;
        Ok(())
    }
    fn find(&mut self, table: TableId, leading: &[i64], take: Take) -> Result<Vec<Vec<i64>>, Stop>;
    fn range(
        &mut self,
        table: TableId,
        from: &[i64],
        to: &[i64],
        take: Take,
    ) -> Result<Vec<Vec<i64>>, Stop>;
    fn call(&mut self, call: Call, wanted: bool) -> Result<Self::Made, Stop>;
    fn reply(&mut self, made: Self::Made) -> Option<i64>;
    fn settled(&mut self, made: Self::Made) -> Result<i64, Stop>;
    fn emit(&mut self, n: i64, acc: i64) -> Result<(), Stop>;
    fn now_us(&self) -> i64;
    fn lookup(&mut self, question: &[u8]) -> Result<i64, Stop>;
    /// May exceed the deadline of the function, and then does not return.
    fn tarry(&mut self, verdict: String) -> Result<(), Stop>;
    /// Runs a part that may exceed its deadline; returns whether it did.
    fn tarry_partly(&mut self, part: u32, verdict: String) -> Result<bool, Stop>;
}

/// Counts the uses of a memory. The count gives each use its place.
pub(super) struct Counted<'m, M> {
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

    fn find(&mut self, table: TableId, leading: &[i64], take: Take) -> Result<Vec<Vec<i64>>, Stop> {
        self.next().find(table, leading, take)
    }

    fn range(
        &mut self,
        table: TableId,
        from: &[i64],
        to: &[i64],
        take: Take,
    ) -> Result<Vec<Vec<i64>>, Stop> {
        self.next().range(table, from, to, take)
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

/// A running function.
#[derive(Clone)]
pub(super) struct Machine<M> {
    function: u32,
    table: TableId,
    key: i64,
    arg: i64,
    /// The path of calls to this one; unique within the transaction.
    path: i64,
    acc: i64,
    at: usize,
    repeated: u32,
    wanted: Vec<Option<M>>,
    /// The number of uses of the memory, and the number of parts with a deadline.
    steps: i64,
    parts: u32,
}

pub(super) enum Pause<M> {
    Waits(Vec<M>),
    Done(i64),
}

impl<M: Copy> Machine<M> {
    pub(super) fn new(function: u32, call: &Call) -> Machine<M> {
        let (table, key, arg) = (call.table, int(&call.key[0]), int(&call.args[0]));
        let (way, acc) = (call.args.get(1).map_or(0, int), mix(key, arg));
        let (at, repeated, wanted, steps, parts) = (0, 0, Vec::new(), 0, 0);
        Machine { function, table, key, arg, path: way, acc, at, repeated, wanted, steps, parts }
    }

    /// Returns the verdict that this function exceeded its deadline; unique within the transaction.
    pub(super) fn verdict(&self) -> String {
        let Machine { function, table, key, arg, path: way, .. } = self;
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

    pub(super) fn run(
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
                    // Most graphs of calls end by themselves; a few continue until a limit stops
                    // them.
                    let made = if self.arg > 0 || self.acc % 61 == 0 {
                        let key = [Value::Int(self.operand(key, script.keys))].into();
                        let way = mix(self.path, memory.steps);
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
                Inst::Scan(take) => {
                    for row in memory.find(ITEMS, &[self.key], take)? {
                        self.acc = mix(mix(self.acc, row[1]), row[2]);
                    }
                }
                Inst::ScanOf { key, take } => {
                    let key = self.operand(key, script.keys);
                    for row in memory.find(ITEMS, &[key], take)? {
                        self.acc = mix(mix(self.acc, row[1]), row[2]);
                    }
                }
                Inst::ScanWithin { key, from, to, take } => {
                    let key = self.operand(key, script.keys);
                    for row in memory.range(ITEMS, &[key, from], &[key, to], take)? {
                        self.acc = mix(mix(self.acc, row[1]), row[2]);
                    }
                }
                Inst::ScanAll { by_n, between, take } => {
                    let table = if by_n { BY_N } else { ITEMS };
                    let rows = match between {
                        Some((from, to)) => memory.range(table, &[from], &[to], take)?,
                        None => memory.find(table, &[], take)?,
                    };
                    for row in rows {
                        self.acc = row.into_iter().fold(self.acc, mix);
                    }
                }
                Inst::PutItem(item) => memory.put(ITEMS, &[self.key, item, self.acc % 10])?,
                Inst::PutItemOf { key, item } => {
                    let key = self.operand(key, script.keys);
                    memory.put(ITEMS, &[key, item, self.acc % 10])?;
                }
                Inst::DeleteItem(item) => memory.delete(ITEMS, &[self.key, item])?,
                Inst::FindBy { n, take } => {
                    let n = self.operand(n, script.keys) % 10;
                    for entry in memory.find(BY_N, &[n], take)? {
                        let row = memory.get(ITEMS, &entry[1..])?;
                        self.acc = mix(self.acc, row.map_or(-3, |row| mix(row[0], row[2])));
                    }
                }
                Inst::Get { kind, key } => {
                    let key = self.operand(key, script.keys);
                    let row = memory.get(ENTITIES[kind], &[key])?;
                    self.acc = mix(self.acc, row.map_or(-2, |row| row[1]));
                }
                Inst::Expect { key, count } => {
                    let key = self.operand(key, script.keys);
                    let row = |at| ENTITIES.map(|table| (table, vec![at % script.keys]));
                    let rows: Vec<_> = (key..key + count).flat_map(row).collect();
                    memory.of.expect(&rows)?;
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
                    let question = question(&[self.path, memory.steps, what, self.key, self.acc]);
                    self.acc = mix(self.acc, memory.lookup(&question)?);
                }
                Inst::Work => {
                    let key = mix(self.path, memory.steps);
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
