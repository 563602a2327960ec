//! An epoch of a program with a sole owner of all rows, which executes all events and calls.
//!
//! Each node sends its events and calls to the owner. The owner executes them in their order, and
//! sends the results of calls back. A clock's verdict on a function, and an answer from outside, are
//! recorded before anything of the epoch leaves. So each later execution obeys them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidemill_core::encode::hash128;
use tidemill_core::wire::{put_u32, put_u64, take_u32, take_u64};
use tidemill_core::{Error, Key, Result, SourceId, Value};
use tidemill_table::Seq;
use tidemill_txn::execute::{
    Overdue, SoleAhead, SoleEvents, SoleOutcome, SoleOwner, SoleTakers, SoleTerms, SoleWork,
};
use tidemill_txn::pool::Pool;
use tidemill_txn::program::{Abort, Answers as AnswersOf, Asker, QuestionId};

use super::questions::{Answers, Question};
use super::{Event, NodeId, Outbox};
use crate::columns::{ColumnMessage, ColumnOutbox, ColumnOutcome, HandlerEvents};
use crate::order::{Path, Tid};
use crate::program::{Bounds, Call, Clock, Functions, Target};
use crate::rows::Rows;
use crate::size;

/// The high half of the identity of a verdict. The low half is a hash of the call.
const VERDICT: u128 = 0x5601_e0b1_7ac3_11ef;

/// The approximate bytes of calls, or of their results, in one message.
const MESSAGE_BYTES: usize = 4 << 20;
/// How often functions are tried for questions to the outside before the epoch is executed.
const TRIES_MAX: u32 = 16;

/// The result of a call.
type CallResult = std::result::Result<Value, Abort>;

/// The epoch.
pub(super) struct SoleEpoch {
    me: NodeId,
    owner: NodeId,
    /// Whether the work of each node is here. Other nodes than the owner wait for nobody.
    announced: Vec<bool>,
    events: Vec<HandlerEvents>,
    /// The calls of all nodes, each with the node that received it.
    calls: Vec<(Tid, Call, NodeId)>,
    /// Whether results of calls are still to come.
    awaits: bool,
    outcome: Option<ColumnOutcome>,
    /// The results of calls, by node.
    results: BTreeMap<NodeId, Vec<(Tid, CallResult)>>,
    /// Verdicts and answers that are not recorded yet.
    unrecorded: BTreeSet<(Tid, QuestionId)>,
    /// Questions to the outside that are asked before the epoch is executed, and how often functions
    /// have been tried for such questions.
    asked: BTreeSet<(Tid, QuestionId)>,
    tries: u32,
}

/// The means of an execution.
pub(super) struct Site<'s> {
    pub sole: &'s mut SoleOwner,
    pub pool: &'s dyn Pool,
    pub rows: &'s mut Rows,
    pub functions: &'s dyn Functions,
    /// The known answers, and the last transaction whose output has left.
    pub answers: &'s mut Answers,
    pub left: Tid,
}

impl SoleEpoch {
    /// Begins an epoch with the events and calls that this node received.
    pub fn begin(
        me: NodeId,
        (owner, nodes): (NodeId, u16),
        (events, calls): (Vec<HandlerEvents>, Vec<(Tid, Call)>),
        out: &mut ColumnOutbox,
    ) -> SoleEpoch {
        let is_owner = owner == me;
        let announced = (0..nodes).map(|node| !is_owner || node == me.0).collect();
        let mut epoch = SoleEpoch {
            me,
            owner,
            announced,
            events: Vec::new(),
            calls: Vec::new(),
            awaits: !is_owner && !calls.is_empty(),
            outcome: None,
            results: BTreeMap::new(),
            unrecorded: BTreeSet::new(),
            asked: BTreeSet::new(),
            tries: 0,
        };
        if is_owner {
            epoch.add(me, events, calls);
            return epoch;
        }
        epoch.outcome = Some(ColumnOutcome::default());
        let bytes = |(_, call): &(Tid, Call)| {
            size::output_bytes(&call.key) + size::output_bytes(&call.args)
        };
        let mut events = Some(events);
        for (calls, is_last) in pieces(calls, bytes) {
            let events = events.take().unwrap_or_default();
            out.push((owner, ColumnMessage::Work { events, calls, is_last }));
        }
        epoch
    }

    fn add(&mut self, from: NodeId, events: Vec<HandlerEvents>, calls: Vec<(Tid, Call)>) {
        self.events.extend(events);
        self.calls.extend(calls.into_iter().map(|(tid, call)| (tid, call, from)));
    }

    /// Takes a message. Returns whether it is one of such an epoch.
    pub fn receive(&mut self, from: NodeId, message: ColumnMessage) -> bool {
        match message {
            ColumnMessage::Work { events, calls, is_last } => {
                let announced = self.announced.get_mut(usize::from(from.0));
                let is_new = announced.is_some_and(|announced| {
                    let is_new = !*announced;
                    *announced |= is_last;
                    is_new
                });
                self.add(from, events, calls);
                is_new
            }
            ColumnMessage::Results { results, is_last } => {
                let is_awaited = from == self.owner && self.awaits;
                self.results.entry(self.me).or_default().extend(results);
                self.awaits &= !is_last;
                is_awaited
            }
            _ => false,
        }
    }

    /// Whether it can be executed here.
    pub fn is_ready(&self) -> bool {
        self.outcome.is_none()
            && self.asked.is_empty()
            && self.announced.iter().all(|announced| *announced)
    }

    /// Executes it. Asks the driver to record verdicts and answers. If functions ask outside, the driver
    /// asks all that they ask first, and the epoch is ready again when the answers are recorded.
    ///
    /// # Errors
    /// If events do not fit the program.
    pub fn run(
        &mut self,
        site: Site<'_>,
        clock: &Clock,
        answer_bytes_max: usize,
        out: &mut Outbox,
    ) -> Result<()> {
        let Site { sole, pool, rows, functions, answers, left } = site;
        let handlers = functions.program().handlers.len();
        let mut outcome = ColumnOutcome::default();
        let asks = functions.asks_outside() && self.tries < TRIES_MAX;
        let mut events = Vec::with_capacity(self.events.len());
        let all = match asks {
            true => self.events.clone(),
            false => std::mem::take(&mut self.events),
        };
        for HandlerEvents { handler, tids, batch } in all {
            let stream = handler.checked_sub(handlers).map(u16::try_from);
            let Some(Ok(stream)) = stream else {
                return Err(Error::internal("there is no such stream"));
            };
            let takers = SoleTakers::Round(tidemill_core::StreamId(stream));
            events.push(SoleEvents { takers, tids, batch });
        }
        self.calls.sort_by_key(|(tid, ..)| *tid);
        let tids = || {
            let of_events = events.iter().flat_map(|of| [of.tids.first(), of.tids.last()]);
            of_events.flatten().copied().chain(self.calls.iter().map(|(tid, ..)| tid.0))
        };
        let (Some(first), Some(last)) = (tids().min(), tids().max()) else {
            rows.end_epoch();
            self.outcome = Some(outcome);
            return Ok(());
        };
        let (mut overdue, mut told) = (Vec::new(), BTreeMap::new());
        for ((_, asked), answer) in answers.range((Tid(first), 0)..=(Tid(last), QuestionId::MAX)) {
            match verdict(*asked, answer) {
                Some(known) => overdue.push(known),
                None => drop(told.insert(*asked, answer.clone())),
            }
        }
        let known: Vec<_> = overdue.iter().map(|of| (of.event, of.call)).collect();
        let asked = AnswersOf::of(told.clone()).with_bytes_max(answer_bytes_max);
        let asked = Arc::new(asked);
        let terms = SoleTerms {
            now_us: clock.now_us,
            marks_us: clock.marks_us.clone(),
            overdue,
            has_deadlines: first > left.0,
            answers: asked.clone(),
        };
        if asks {
            let of = |(tid, call, _): &(Tid, Call, NodeId)| {
                let is_known = functions.known_result(call, rows.tables(), clock.now_us).is_some();
                let work = functions.sole_work(call).ok().filter(|_| !is_known)?;
                Some((tid.0, work))
            };
            let work: Vec<(u64, SoleWork)> = self.calls.iter().filter_map(of).collect();
            let questions = sole.questions(rows.tables(), &events, &work, &terms)?;
            self.tries += 1;
            if !questions.is_empty() {
                for (tid, asked, ask) in questions {
                    let (tid, path) = (Tid(tid), Path::new());
                    self.asked.insert((tid, asked));
                    out.events.push(Event::Asked(Question { tid, path, asked, ask }));
                }
                return Ok(());
            }
            self.events.clear();
        }
        let calls = std::mem::take(&mut self.calls);
        let mut events = SoleAhead::new(events);
        let seq = rows.tables_mut().1;
        let terms = &terms;
        let mut step = Step { sole, pool, functions, terms, seq, outcome: &mut outcome };
        let mut overdue = Vec::new();
        let (mut work, mut requests) = (Vec::new(), BTreeMap::new());
        let mut results: BTreeMap<u64, CallResult> = BTreeMap::new();
        for (tid, call, _) in &calls {
            let id = functions.request_id(call);
            let reads = matches!(call.target, Target::Get | Target::Find(..) | Target::Gather(..));
            // A request with the same id comes after what the first one has stored.
            if reads || id.as_ref().is_some_and(|id| requests.contains_key(id)) {
                let now = (std::mem::take(&mut work), std::mem::take(&mut requests));
                let tables = rows.tables_mut().0;
                overdue.extend(step.run(tables, (&mut events, tid.0), now, &mut results)?);
            }
            if reads {
                results.insert(tid.0, read(functions, rows, call, answer_bytes_max));
                continue;
            }
            let known = functions.known_result(call, rows.tables_mut().0, clock.now_us);
            let one = match known {
                Some(known) => Err(known),
                None => functions.sole_work(call).map_err(Err),
            };
            match one {
                Ok(one) => {
                    work.push((tid.0, one));
                    requests.extend(id.map(|id| (id, (tid.0, call))));
                }
                Err(result) => drop(results.insert(tid.0, result)),
            }
        }
        let (tables, _) = rows.tables_mut();
        overdue.extend(step.run(
            tables,
            (&mut events, u64::MAX),
            (work, requests),
            &mut results,
        )?);
        let seq = step.seq;
        sole.end(tables, terms);
        for table in functions.outboxes() {
            for change in tables[table.index()].changes() {
                let row = change.row.map(Into::into);
                out.events.push(Event::Outbox { table: *table, key: change.key, row });
            }
        }
        rows.has_executed(seq, Tid(last));
        rows.end_epoch();
        // The questions of these transactions can't be asked again.
        *answers = answers.split_off(&(Tid(last + 1), 0));
        for of in overdue.into_iter().filter(|of| !known.contains(&(of.event, of.call))) {
            let (asked, answer) = recorded(&of);
            self.record((Tid(first), asked), answer, out);
        }
        for (asked, answer) in asked.all() {
            if !told.contains_key(&asked) {
                self.record((Tid(first), asked), answer, out);
            }
        }
        for (tid, _, node) in calls {
            let result = results.remove(&tid.0).unwrap_or(Ok(Value::Null));
            self.results.entry(node).or_default().push((tid, result));
            outcome.results.calls.push(tid.0);
        }
        self.outcome = Some(outcome);
        Ok(())
    }

    /// Asks the driver to record a verdict or an answer.
    fn record(&mut self, at: (Tid, QuestionId), answer: Arc<[u8]>, out: &mut Outbox) {
        self.unrecorded.insert(at);
        let ((tid, asked), path) = (at, Path::new());
        let ask = Asker::new(move || answer.to_vec());
        out.events.push(Event::Asked(Question { tid, path, asked, ask }));
    }

    /// Notes that a verdict or an answer is recorded.
    pub fn is_recorded(&mut self, tid: Tid, asked: QuestionId) {
        self.unrecorded.remove(&(tid, asked));
        self.asked.remove(&(tid, asked));
    }

    /// Returns the outcome, once the epoch has been executed and all of them are recorded. Returns
    /// the results of the calls that this node received, too, and adds messages with those of others.
    pub fn outcome(
        &mut self,
        out: &mut ColumnOutbox,
    ) -> Option<(ColumnOutcome, Vec<(Tid, CallResult)>)> {
        let outcome = self.outcome.take_if(|_| self.unrecorded.is_empty() && !self.awaits)?;
        let own = self.results.remove(&self.me).unwrap_or_default();
        let bytes = |(_, result): &(Tid, CallResult)| match result {
            Ok(value) => size::output_bytes(std::slice::from_ref(value)),
            Err(abort) => abort.reason.len(),
        };
        for (node, results) in std::mem::take(&mut self.results) {
            let pieces = pieces(results, bytes).into_iter();
            let message = |(results, is_last)| ColumnMessage::Results { results, is_last };
            out.extend(pieces.map(|piece| (node, message(piece))));
        }
        Some((outcome, own))
    }
}

/// Divides what goes into messages. Returns each piece, and whether it is the last. There is one at
/// least.
fn pieces<T>(all: Vec<T>, bytes: impl Fn(&T) -> usize) -> Vec<(Vec<T>, bool)> {
    let (mut pieces, mut piece, mut sum) = (Vec::new(), Vec::new(), 0);
    for one in all {
        if sum > MESSAGE_BYTES {
            pieces.push((std::mem::take(&mut piece), false));
            sum = 0;
        }
        sum += bytes(&one);
        piece.push(one);
    }
    pieces.push((piece, true));
    pieces
}

/// Returns what a call reads that is no function. A larger reply than this many bytes is refused.
fn read(functions: &dyn Functions, rows: &Rows, call: &Call, bytes_max: usize) -> CallResult {
    let fits = |reply: Value| {
        size::fits(functions, "the reply", std::slice::from_ref(&reply), bytes_max).map(|()| reply)
    };
    let (program, table) = (functions.program(), call.table);
    let listed = |row: &Arc<[Value]>| Value::List(row.clone());
    if table.index() >= program.tables.len() {
        return Err(Abort::refused(format!("there is no table {}", table.0)));
    }
    let (bounds, take) = match call.target {
        Target::Find(bounds, take) | Target::Gather(bounds, take) => (bounds, take),
        _ => {
            program.check_visible(table)?;
            let key = program.stored_key(table, &call.key)?;
            let row = rows.get(table, &Key::of(&key));
            return fits(row.as_ref().map_or(Value::Null, listed));
        }
    };
    program.check_ranges(table)?;
    let from = Key::of(&program.stored_bound(table, &call.key)?);
    let to = match bounds {
        Bounds::Leading => from.prefix_end(),
        Bounds::Between if call.args.is_empty() => Key::of(&[] as &[Value]).prefix_end(),
        Bounds::Between => Key::of(&program.stored_bound(table, &call.args)?),
    };
    let (mut found, mut bytes) = (Vec::new(), 0);
    rows.range(table, &from, &to, take.is_reverse(), &mut |_, row| {
        found.extend((found.len() < take.limit()).then(|| listed(row)));
        bytes += size::output_bytes(row);
        // The bound is coarse. With so many bytes the reply is too large for certain.
        found.len() < take.limit() && bytes / 8 <= bytes_max
    });
    fits(Value::List(found.into()))
}

/// Requests whose results are to be stored, by their identity.
type Requests<'c> = BTreeMap<Key, (u64, &'c Call)>;

/// The execution of a part of an epoch.
struct Step<'s> {
    sole: &'s mut SoleOwner,
    pool: &'s dyn Pool,
    functions: &'s dyn Functions,
    terms: &'s SoleTerms,
    /// The number of the last version.
    seq: Seq,
    outcome: &'s mut ColumnOutcome,
}

impl Step<'_> {
    /// Executes the events before a place, and work. Returns the functions that a clock has ended.
    fn run(
        &mut self,
        tables: &mut [tidemill_table::Table],
        events: (&mut SoleAhead, u64),
        (work, requests): (Vec<(u64, SoleWork)>, Requests<'_>),
        results: &mut BTreeMap<u64, CallResult>,
    ) -> Result<Vec<Overdue>> {
        let Step { sole, pool, functions, terms, seq, outcome } = self;
        let done = sole.run(*pool, (tables, *seq), events, work, terms)?;
        let SoleOutcome { outputs, results: own, refused, faults, unstable, overdue, .. } = done;
        *seq = done.seq;
        let short = |(tid, result): (u64, CallResult)| (tid, result.map_err(size::shortened));
        let own: BTreeMap<u64, CallResult> = own.into_iter().map(short).collect();
        let short = |(tid, handler, abort)| (tid, handler, size::shortened(abort));
        let faults = faults.into_iter().map(short);
        for (tid, call) in requests.into_values() {
            if let Some(result) = own.get(&tid) {
                *seq += 1;
                functions.remember(call, result, (tables, *seq), terms.now_us);
            }
        }
        results.extend(own);
        outcome.outputs.extend(outputs);
        outcome.results.refused.extend(refused);
        outcome.results.faults.extend(faults);
        outcome.results.unstable.extend(unstable);
        outcome.results.committed += done.committed;
        outcome.results.aborted += done.aborted;
        outcome.results.failed += done.failed;
        outcome.transactions += done.transactions as usize;
        Ok(overdue)
    }
}

/// Returns the identity of a verdict and its record.
fn recorded(
    Overdue { event: (source, offset), call, reason }: &Overdue,
) -> (QuestionId, Arc<[u8]>) {
    let mut bytes = Vec::with_capacity(16 + reason.len());
    put_u32(source.0, &mut bytes);
    put_u64(*offset, &mut bytes);
    put_u32(*call, &mut bytes);
    let asked = VERDICT << 64 | hash128(&bytes) >> 64;
    bytes.extend_from_slice(reason.as_bytes());
    (asked, bytes.into())
}

/// Returns the verdict of a record, if it is one.
fn verdict(asked: QuestionId, mut record: &[u8]) -> Option<Overdue> {
    if asked >> 64 != VERDICT {
        return None;
    }
    let event = (SourceId(take_u32(&mut record)?), take_u64(&mut record)?);
    let call = take_u32(&mut record)?;
    Some(Overdue { event, call, reason: String::from_utf8_lossy(record).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_a_few_megabytes_each() {
        let of = |sizes: &[usize]| {
            let pieces = pieces(sizes.to_vec(), |size| *size);
            pieces.into_iter().map(|(of, is_last)| (of.len(), is_last)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [(0, true)]);
        assert_eq!(of(&[1, 2]), [(2, true)]);
        let half = MESSAGE_BYTES / 2 + 1;
        assert_eq!(of(&[half; 5]), [(2, false), (2, false), (1, true)]);
        assert_eq!(of(&[9 * half, 1]), [(1, false), (1, true)]);
    }

    #[test]
    fn verdicts_come_back() {
        let of = |call| Overdue { event: (SourceId(7), 1 << 40), call, reason: "slow".into() };
        let (asked, record) = recorded(&of(3));
        assert_eq!(verdict(asked, &record), Some(of(3)));
        assert_ne!(recorded(&of(4)).0, asked);
        assert_eq!(verdict(hash128(b"a question"), &record), None);
        assert_eq!(verdict(asked, &record[..5]), None);
    }
}
