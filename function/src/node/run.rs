//! Execution of functions.

mod compared;
mod context;
pub(super) mod look;
pub(super) mod prefetch;
mod ranges;
pub(super) mod serial;

use std::collections::HashSet;

use foldhash::fast::FixedState;
use tidemill_core::{Key, TableId, Value};
use tidemill_txn::program::{Abort, AbortKind, Asker, Index, QuestionId, Take};
use tidemill_txn::Program;

use self::look::look;
use self::ranges::OnRow;
use self::serial::Settled;
use super::part::{Answer, Child, Invocation, Outcome, Part, Read, ReadResult, Write};
use super::questions::{self, Answers, Question};
use super::{running, Event, Node, NodeId, Outbox, Owners, Settings};
use crate::gate::{Access, Waiter};
use crate::message::{Body, Cost, Mode, Verdict};
use crate::order::{Path, Tid};
use crate::program::{Activation, Call, Clock, Context, Functions, Step, Stop, Target};
use crate::rows::{Rows, Stored};
use crate::share;
use crate::size;
use crate::versions::{Version, Versions};

impl Node {
    /// Takes a call and runs it.
    pub(super) fn called(
        &mut self,
        tid: Tid,
        path: Path,
        invocation: Invocation,
        home: NodeId,
        mode: Mode,
        out: &mut Outbox,
    ) {
        let epoch = running!(self);
        let part = epoch.parts.entry(tid).or_insert_with(|| Part::new(home, mode));
        part.mode = mode;
        part.runs.insert(path.clone(), Box::new(invocation));
        self.counters.calls += 1;
        self.enter(tid, path, out);
    }

    /// Runs a call, once no earlier transaction blocks it.
    pub(super) fn enter(&mut self, tid: Tid, path: Path, out: &mut Outbox) {
        let program = self.program.program();
        let epoch = running!(self);
        let part = &epoch.parts[&tid];
        let wishes = match part.before.get(&path) {
            Some(before) => before.accesses().collect::<Vec<Access>>(),
            None => {
                let call = &part.runs[&path].call;
                let key = stored_key(program, call);
                key.iter().map(|key| Access::Row(call.table, Key::of(key))).collect()
            }
        };
        match epoch.gate.in_the_way(tid, &wishes) {
            Some(earlier) => epoch.gate.wait(earlier, Waiter { tid, path: Some(path) }),
            None => self.resume(tid, path, out),
        }
    }

    /// Repeats this node's part of a transaction, every call where it was, once no earlier
    /// transaction blocks any of them.
    pub(super) fn enter_cached(&mut self, tid: Tid, out: &mut Outbox) {
        let epoch = running!(self);
        let part = epoch.parts.get_mut(&tid).expect("it has a part");
        let wishes: Vec<Access> =
            part.before.values().flat_map(|before| before.accesses()).collect();
        if let Some(earlier) = epoch.gate.in_the_way(tid, &wishes) {
            return epoch.gate.wait(earlier, Waiter { tid, path: None });
        }
        part.runs =
            part.before.iter().map(|(path, i)| (path.clone(), Box::new(i.again()))).collect();
        let paths: Vec<Path> = part.runs.keys().cloned().collect();
        self.counters.calls += paths.len() as u64;
        self.counters.cached += paths.len() as u64;
        for path in paths {
            self.resume(tid, path, out);
        }
    }

    /// Takes the reply of a call.
    pub(super) fn replied(
        &mut self,
        tid: Tid,
        path: Path,
        value: Option<Value>,
        spent: Cost,
        out: &mut Outbox,
    ) {
        let epoch = running!(self);
        let Some((&ordinal, caller)) = path.split_last() else {
            epoch.homes.get_mut(&tid).expect("it came in here").value = value;
            return;
        };
        let part = epoch.parts.get_mut(&tid).expect("its caller is here");
        let invocation = part.runs.get_mut(caller).expect("it has made a call");
        let at = invocation.children.binary_search_by_key(&ordinal, |c| c.ordinal);
        let child = &mut invocation.children[at.expect("it has made this call")];
        let reply = value.map_or(Answer::Failed, Answer::Value);
        let was_ahead = std::mem::take(&mut child.is_ahead);
        let is_wrong = was_ahead && child.reply != reply;
        (child.reply, child.spent) = (reply, spent);
        invocation.unconfirmed -= u32::from(was_ahead);
        if let Some(serial) = &mut invocation.serial {
            serial.ended(spent);
        }
        if let Some(ahead) = &mut invocation.ahead {
            ahead.is_wrong |= is_wrong;
        }
        if invocation.outcome.is_some() || invocation.asks.is_some() {
            return;
        }
        if part.mode == Mode::Sequential || invocation.may_go_on() {
            self.resume(tid, caller.into(), out);
        }
    }

    /// Continues a call, from its beginning or from its wait, until it waits or ends.
    pub(super) fn resume(&mut self, tid: Tid, path: Path, out: &mut Outbox) {
        let epoch = running!(self);
        let part = epoch.parts.get_mut(&tid).expect("it has a part");
        let mut invocation = part.runs.remove(&path).expect("it has been called");
        let (mut sends, mut ended) = (Vec::new(), None);
        let (outcome, differs) = {
            let mut turn = Turn {
                me: self.me,
                tid,
                path: &path,
                home: part.home,
                mode: part.mode,
                clock: &epoch.clock,
                functions: &*self.program,
                owners: &self.owners,
                settings: &self.settings,
                rows: &self.rows,
                versions: &mut epoch.versions,
                there: &epoch.there,
                answers: &self.answers,
                has_deadline: tid > self.left,
                has_missed: part.has_missed,
                written: &mut part.written,
                spent: &mut part.spent,
                begins: &mut self.counters.begins,
                compared: &mut self.compared,
                compares: false,
                cached: (part.before.get(&path).map(|before| &**before))
                    .filter(|_| part.mode == Mode::Cached),
                invocation: &mut invocation,
                missed: None,
                sends: &mut sends,
                events: &mut out.events,
            };
            let outcome = turn.run().and_then(|outcome| turn.invocation.confirmed(outcome));
            let differs = outcome.as_ref().is_some_and(|outcome| turn.differs(outcome));
            (outcome, differs)
        };
        if let Some(outcome) = outcome {
            invocation.outcome = Some(outcome.clone());
            invocation.activation = None;
            let before = part.before.get(&path);
            if differs || before.is_some_and(|before| before.contradicts(&invocation)) {
                out.events.push(Event::NotDeterministic { tid, call: invocation.call.clone() });
            }
            ended = end(tid, &path, &invocation, part, outcome, self.settings.uses_max, &mut sends);
        }
        part.runs.insert(path, invocation);
        if let Some(verdict) = ended {
            // This is the verdict that its home will send, so others need not wait for that.
            self.finished(tid, verdict);
        }
        for (to, body) in sends {
            self.send(to, body, out);
        }
    }
}

/// Reports the result of a call to its caller and to the transaction's home. Returns the
/// transaction's verdict if the call is all of it.
fn end(
    tid: Tid,
    path: &Path,
    invocation: &Invocation,
    part: &Part,
    outcome: Outcome,
    uses_max: u32,
    sends: &mut Vec<(NodeId, Body)>,
) -> Option<Verdict> {
    let (mut value, mut failure, mut missed) = (None, None, None);
    match outcome {
        Outcome::Returned(returned) => value = Some(returned),
        Outcome::Failed(place, abort) => failure = Some((place, abort)),
        Outcome::Stopped => {}
        Outcome::Missed(mode) => missed = Some(mode),
    }
    let mut calls = invocation.children.len();
    if part.mode == Mode::Cached {
        let before = &part.before[path];
        let is_wanted = invocation.caller.is_some() && !path.is_empty();
        if let Some(value) = &value {
            let returned = Outcome::Returned(value.clone());
            let is_same = before.outcome == Some(returned);
            if calls != before.children.len() || (is_wanted && !is_same) {
                missed = Some(Mode::Fresh);
            }
        }
        // All calls of the last run are running, even if this run did not reach them.
        calls = before.children.len();
    }
    if let Some(caller) = invocation.caller {
        if part.mode != Mode::Cached || path.is_empty() {
            let (path, spent) = (path.clone(), invocation.spent());
            sends.push((caller, Body::Reply { tid, path, value, spent }));
        }
    }
    let (share, calls, spent) = (invocation.share, calls as u32, invocation.own());
    let judged = invocation.misses;
    let is_all = share == 0 && calls == 0 && spent.uses <= uses_max;
    let verdict = is_all.then_some(match (missed, &failure) {
        (Some(mode), _) => Verdict::Missed(mode),
        (None, Some(_)) => Verdict::Abort,
        (None, None) => Verdict::Commit,
    });
    sends.push((part.home, Body::Ended { tid, share, calls, spent, failure, missed, judged }));
    verdict
}

/// The turn of a function: all that it can reach while it runs.
struct Turn<'a> {
    me: NodeId,
    tid: Tid,
    path: &'a Path,
    home: NodeId,
    mode: Mode,
    clock: &'a Clock,
    functions: &'a dyn Functions,
    owners: &'a Owners,
    settings: &'a Settings,
    rows: &'a Rows,
    versions: &'a mut Versions,
    there: &'a HashSet<Tid, FixedState>,
    answers: &'a Answers,
    has_deadline: bool,
    /// Whether an earlier repetition of the transaction could not run to its end.
    has_missed: bool,
    written: &'a mut Vec<(TableId, Key)>,
    /// The cost of the transaction here.
    spent: &'a mut Cost,
    begins: &'a mut u64,
    /// The number of calls of which some run again, to be compared.
    compared: &'a mut u64,
    /// Whether this is such a run. It has no effect.
    compares: bool,
    /// The last run of the same call, if this run repeats it.
    cached: Option<&'a Invocation>,
    invocation: &'a mut Invocation,
    /// The mode in which the transaction must run again, if it can't run to its end now.
    missed: Option<Mode>,
    sends: &'a mut Vec<(NodeId, Body)>,
    events: &'a mut Vec<Event>,
}

impl Turn<'_> {
    /// Runs the function until it waits (`None`) or ends.
    fn run(&mut self) -> Option<Outcome> {
        if self.invocation.misses {
            return Some(Outcome::Missed(self.mode.max(Mode::Fresh)));
        }
        if self.invocation.ahead.is_some() {
            if let Some(known) = self.invocation.outcome() {
                return known;
            }
        }
        loop {
            if self.mode == Mode::Sequential {
                match self.settle() {
                    Settled::GoesOn => {}
                    Settled::Waits => return None,
                    Settled::Ends(outcome) => return Some(outcome),
                }
            }
            let children = &self.invocation.children;
            let failed = |&n: &u32| children[n as usize].reply == Answer::Failed;
            if self.invocation.waits.iter().any(failed) {
                return Some(Outcome::Stopped);
            }
            let activation = match self.invocation.activation.take() {
                Some(activation) => Ok(activation),
                None => self.begin(),
            };
            let (mut activation, step) = match activation {
                Ok(mut activation) => {
                    let step = activation.resume(self);
                    (Some(activation), step)
                }
                Err(abort) => (None, Err(Stop::Abort(abort))),
            };
            let mut outcome = None;
            match step {
                Ok(Step::Done(value)) => outcome = Some(self.returned(value)),
                Err(Stop::Abort(abort)) => outcome = Some(Outcome::Failed(self.here(), abort)),
                // It may depend on an unconfirmed value.
                Err(Stop::Overdue(_)) if self.invocation.is_unconfirmed() => {
                    self.invocation.confirms();
                    activation = None;
                }
                Err(Stop::Overdue(_)) if self.invocation.has_deferred() => activation = None,
                Err(Stop::Overdue(reason)) => {
                    self.judge(0, reason);
                    return None;
                }
                Ok(Step::Wait(handles)) => {
                    let waits: Vec<u32> = handles.iter().map(|handle| handle.0).collect();
                    let made = &self.invocation.children;
                    let is_wanted = |&n: &u32| made.get(n as usize).is_some_and(|c| c.wanted);
                    match waits.iter().all(is_wanted) {
                        true => {
                            self.invocation.awaited.extend(&waits);
                            self.invocation.wait_for(waits);
                        }
                        false => outcome = Some(Outcome::Failed(self.here(), unwanted())),
                    }
                }
                Ok(Step::Stay) | Err(Stop::Unwind) => {
                    if let Some(mode) = self.missed {
                        return Some(Outcome::Missed(mode));
                    }
                    match step {
                        Ok(_) => self.invocation.back(),
                        Err(_) => activation = None,
                    }
                    if self.invocation.asks.is_some() {
                        self.invocation.activation = activation;
                        return None;
                    }
                }
            }
            match outcome {
                Some(outcome) if self.invocation.has_deferred() => {
                    self.invocation.finish(outcome);
                }
                Some(outcome) => return Some(self.within(outcome)),
                None => self.invocation.activation = activation,
            }
            if self.mode != Mode::Sequential && self.invocation.is_waiting() {
                return None;
            }
        }
    }

    /// Returns the function's outcome. The reply to a request must fit into the log.
    fn returned(&self, value: Value) -> Outcome {
        let (reply, max) = (std::slice::from_ref(&value), self.settings.output_bytes_max);
        match self.path.is_empty().then(|| size::fits(self.functions, "the reply", reply, max)) {
            Some(Err(abort)) => Outcome::Failed(self.here(), abort),
            _ => Outcome::Returned(value),
        }
    }

    /// Begins the function, perhaps again. Then its reads give what they gave before.
    fn begin(&mut self) -> Result<Box<dyn Activation>, Abort> {
        let invocation = &mut *self.invocation;
        (invocation.ordinal, invocation.values, invocation.made) = (0, 0, 0);
        invocation.awaited.clear();
        invocation.writes.clear();
        invocation.emits.clear();
        invocation.ahead.iter_mut().for_each(|ahead| ahead.written.clear());
        if self.path.is_empty() {
            // The key of a request comes from a client, so it may be invalid. The bounds of a range
            // are checked where they are used.
            match invocation.call.target {
                Target::Find(..) | Target::Gather(..) => {}
                _ => drop(stored_key(self.functions.program(), &invocation.call)?),
            }
        }
        if let Some(reason) = self.judged(0) {
            return Err(Abort { kind: AbortKind::Overdue, reason });
        }
        *self.begins += 1;
        self.invocation.begun += 1;
        let call = &self.invocation.call;
        match call.target {
            Target::Function(_) if self.keeps() => self.functions.begin_kept(call),
            Target::Function(_) => self.functions.begin(call),
            _ => Ok(Box::new(OnRow(call.clone()))),
        }
    }

    /// Whether it has begun so often that it keeps its position, if it can.
    fn keeps(&self) -> bool {
        self.invocation.begun > self.settings.begins_max
    }

    /// Returns the reason why a part of the call took too long, if it did. Part 0 is the whole
    /// call.
    fn judged(&mut self, part: u32) -> Option<String> {
        if self.answers.is_empty() {
            return None;
        }
        let asked = questions::verdict(self.path, &self.invocation.call, part);
        let reason = self.answers.get(&(self.tid, asked))?;
        self.invocation.is_judged = true;
        Some(String::from_utf8_lossy(reason).into_owned())
    }

    /// Requests that a verdict is recorded: a part of the call takes too long. The call continues
    /// when it is.
    fn judge(&mut self, part: u32, reason: String) {
        self.invocation.is_judged = true;
        let asked = questions::verdict(self.path, &self.invocation.call, part);
        self.ask(asked, Asker::new(move || reason.clone().into_bytes()));
    }

    /// Asks the outside, and waits.
    fn ask(&mut self, asked: QuestionId, ask: Asker) {
        self.invocation.asks = Some(asked);
        if self.compares {
            return;
        }
        let (tid, path) = (self.tid, self.path.clone());
        self.events.push(Event::Asked(Question { tid, path, asked, ask }));
    }

    /// Returns the place of the next access.
    fn here(&self) -> Path {
        let mut path = self.path.clone();
        path.push(self.invocation.ordinal);
        path
    }

    /// Advances to the next access. Returns its place and number.
    fn access(&mut self) -> Result<(Path, u32), Stop> {
        let place = self.here();
        let ordinal = self.invocation.ordinal;
        self.invocation.ordinal = ordinal.saturating_add(1);
        self.count_use()?;
        Ok((place, ordinal))
    }

    /// Reads rows that this node owns.
    fn read(&mut self, what: Access, take: Take) -> Result<ReadResult, Stop> {
        let (_, ordinal) = self.access()?;
        self.read_at(ordinal, what, take)
    }

    /// Reads at a place of the call, which another access may share.
    fn read_at(&mut self, ordinal: u32, what: Access, take: Take) -> Result<ReadResult, Stop> {
        let invocation = &mut *self.invocation;
        if let Some(read) = invocation.reads.get(invocation.values) {
            invocation.values += 1;
            if (read.ordinal, &read.what, read.take) != (ordinal, &what, take) {
                return Err(self.not_deterministic());
            }
            return Ok(read.saw.clone());
        }
        if self.compares {
            return Err(self.not_deterministic());
        }
        if self.invocation.waits_to_read() {
            return Err(Stop::Unwind);
        }
        let saw = self.sees(ordinal, &what, take);
        self.invocation.reads.push(Read { ordinal, what, take, saw: saw.clone() });
        self.invocation.values += 1;
        Ok(saw)
    }

    /// Returns what a read at a place of the call sees.
    fn sees(&self, ordinal: u32, what: &Access, take: Take) -> ReadResult {
        let mut place = self.path.clone();
        place.push(ordinal);
        let is_there = |tid: Tid| self.there.contains(&tid);
        look(self.rows, self.versions, (self.tid, &place[..]), what, take, &is_there)
    }

    /// Writes a row that this node owns.
    fn write_here(&mut self, table: TableId, key: Key, row: Stored) -> Result<(), Stop> {
        let (path, ordinal) = self.access()?;
        let version = Version { tid: self.tid, path, row: row.clone() };
        if !self.compares && self.versions.put(table, key.clone(), version) {
            self.written.push((table, key.clone()));
        }
        self.invocation.writes.push(Write { ordinal, table, key, row });
        Ok(())
    }

    /// Writes a row, wherever it lives, with its entries in indexes. The accesses that this takes
    /// have places of a call, also on this node. So the places of later accesses are the same,
    /// wherever rows live.
    fn put_row(&mut self, table: TableId, key: &[Value], row: Stored) -> Result<(), Stop> {
        let owner = self.owner(table, key);
        let is_on_row = self.is_on_row();
        if owner == self.me {
            let (functions, at) = (self.functions, Key::of(key));
            let program = functions.program();
            if !program.has_indexes(table) {
                return self.write_here(table, at, row);
            }
            // As part of a call, the read has a place of its own.
            let before = match is_on_row {
                true => self.read(Access::Row(table, at.clone()), Take::First(1))?,
                false => {
                    let ordinal = self.invocation.ordinal;
                    self.read_at(ordinal, Access::Row(table, at.clone()), Take::First(1))?
                }
            };
            let before = before.into_iter().next().flatten();
            let entry = |index: &Index, row: &Stored| {
                row.as_ref().and_then(|row| index.entry(program, row))
            };
            let indexes = program.indexes(table);
            let changes = |index: &&Index| entry(index, &before) != entry(index, &row);
            if is_on_row || !indexes.iter().any(|index| changes(&index)) {
                self.write_here(table, at, row.clone())?;
                for index in indexes.iter().filter(changes) {
                    self.become_entry(index, entry(index, &before), entry(index, &row))?;
                }
                return Ok(());
            }
        }
        let (target, args) = match &row {
            Some(row) => (Target::Put, &row[..]),
            None => (Target::Delete, &[][..]),
        };
        self.reach(owner, target, table, key, args).map(drop)
    }

    /// Replaces the entry of a row in an index.
    fn become_entry(
        &mut self,
        index: &Index,
        before: Option<Vec<Value>>,
        after: Option<Vec<Value>>,
    ) -> Result<(), Stop> {
        if let Some(entry) = before {
            self.let_go(index.table, index.key(&entry))?;
        }
        let Some(entry) = after else { return Ok(()) };
        if index.is_unique() && self.get(index.table, index.key(&entry))?.is_some() {
            return Err(index.is_taken(self.functions.program(), &entry).into());
        }
        self.hold(index.table, index.key(&entry), &entry)
    }

    /// Puts a row of a table that the engine maintains.
    fn hold(&mut self, table: TableId, key: &[Value], row: &[Value]) -> Result<(), Stop> {
        let owner = self.owner(table, key);
        if owner == self.me {
            return self.write_here(table, Key::of(key), Some(row.into()));
        }
        self.reach(owner, Target::Put, table, key, row).map(drop)
    }

    /// Removes a row of a table that the engine maintains.
    fn let_go(&mut self, table: TableId, key: &[Value]) -> Result<(), Stop> {
        let owner = self.owner(table, key);
        if owner == self.me {
            return self.write_here(table, Key::of(key), None);
        }
        self.reach(owner, Target::Delete, table, key, &[]).map(drop)
    }

    /// Whether the running call is an operation on a row where it lives, and not a function.
    fn is_on_row(&self) -> bool {
        !self.path.is_empty() && !matches!(self.invocation.call.target, Target::Function(_))
    }

    /// Whether the running call is the write of an entry for another row. No function makes such a
    /// write, because it could not write the table where it runs.
    fn is_kept(&self, table: TableId) -> bool {
        self.is_on_row() && self.functions.program().tables[table.index()].keeps.is_some()
    }

    /// Makes a call. Returns its number among the calls of this function.
    fn make(&mut self, call: Call, to: NodeId, wanted: bool) -> Result<u32, Stop> {
        let (path, ordinal) = self.access()?;
        let invocation = &mut *self.invocation;
        let nth = invocation.made;
        invocation.made += 1;
        let is_function = matches!(call.target, Target::Function(_));
        if nth < invocation.children.len() {
            let child = &invocation.children[nth];
            if (child.ordinal, &child.call, child.wanted) != (ordinal, &call, wanted) {
                return Err(self.not_deterministic());
            }
        } else if self.compares {
            return Err(self.not_deterministic());
        } else if is_function && self.path.len() + 1 >= self.settings.depth_max {
            let depth_max = self.settings.depth_max;
            let reason = format!("calls are more than {depth_max} deep in one another");
            return Err(Abort::refused(reason).into());
        } else if let Some(cached) = self.cached {
            match cached.children.get(nth) {
                Some(child)
                    if (child.ordinal, &child.call, child.wanted) == (ordinal, &call, wanted) =>
                {
                    invocation.children.push(child.clone());
                }
                _ => return Err(self.miss(Mode::Fresh)),
            }
        } else {
            let mode = self.mode;
            if mode == Mode::Sequential {
                self.defer(is_function)?;
            } else {
                // Only a run of one call after the other finds the call that is too many.
                self.spent.calls += u32::from(is_function);
                if self.spent.calls > self.settings.calls_max {
                    return Err(self.miss(Mode::Sequential));
                }
            }
            let invocation = &mut *self.invocation;
            let known = invocation.known_ahead(&call).filter(|_| mode == Mode::Fresh);
            let (is_ahead, reply) = (known.is_some(), known.unwrap_or(Answer::Nothing));
            invocation.unconfirmed += u32::from(is_ahead);
            let (child, before) = (call.clone(), invocation.before);
            let child =
                Child { ordinal, call: child, to, wanted, reply, is_ahead, spent: Cost::default() };
            invocation.children.push(child);
            if mode != Mode::Sequential {
                let (tid, home, caller) = (self.tid, self.home, wanted.then_some(self.me));
                let share = share::of_call(invocation.share, nth as u32);
                let call = Body::Call { tid, path, call, share, home, caller, mode, before };
                self.sends.push((to, call));
            }
        }
        Ok(nth as u32)
    }

    /// Returns the reply of a call. If it is not here yet, the function begins again when it is.
    fn answer(&mut self, nth: u32) -> Result<&Value, Stop> {
        if !matches!(self.invocation.children[nth as usize].reply, Answer::Value(_)) {
            self.invocation.wait_for(vec![nth]);
            return Err(Stop::Unwind);
        }
        match &self.invocation.children[nth as usize].reply {
            Answer::Value(value) => Ok(value),
            _ => unreachable!("it has a value"),
        }
    }

    /// Uses a row that lives elsewhere.
    fn reach(
        &mut self,
        to: NodeId,
        target: Target,
        table: TableId,
        key: &[Value],
        args: &[Value],
    ) -> Result<u32, Stop> {
        let wanted = matches!(target, Target::Get | Target::Find(..) | Target::Gather(..));
        let call = Call { target, table, key: key.into(), args: args.into() };
        self.invocation.writes_ahead(&call);
        let nth = self.make(call, to, wanted)?;
        if wanted {
            self.answer(nth)?;
        }
        Ok(nth)
    }

    fn miss(&mut self, mode: Mode) -> Stop {
        self.missed = self.missed.max(Some(mode));
        Stop::Unwind
    }

    fn not_deterministic(&mut self) -> Stop {
        let reason = "the function is not deterministic: a repeated run did something else";
        Stop::Abort(Abort { kind: AbortKind::Fault, reason: reason.into() })
    }

    /// Returns the owner of the row with this complete key.
    fn owner(&self, table: TableId, key: &[Value]) -> NodeId {
        let owner = self.owners.of_key(self.functions.program(), table, key);
        owner.expect("the whole key says in which partition the row is")
    }
}

/// Returns the fault of a function that waits for a reply that it does not get.
fn unwanted() -> Abort {
    let reason = "a function waits for a call whose reply it did not ask for";
    Abort { kind: AbortKind::Fault, reason: reason.into() }
}

/// Returns the key of a call as its table stores it.
pub(super) fn stored_key(program: &Program, call: &Call) -> Result<Vec<Value>, Abort> {
    match program.tables.get(call.table.index()) {
        Some(_) => program.stored_key(call.table, &call.key),
        None => Err(Abort::refused(format!("there is no table {}", call.table.0))),
    }
}
