//! An epoch of events that the sole owner of all rows executes by column, with all that they trigger.
//!
//! Each node sends its events to the owner. It also tells all others that it has nothing else, because
//! otherwise the epoch is one of calls. A clock's verdict on a function, and an answer from outside,
//! are recorded before anything of the epoch leaves. So each later execution obeys them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidemill_core::encode::hash128;
use tidemill_core::wire::{put_u32, put_u64, take_u32, take_u64};
use tidemill_core::{Error, Result, SourceId};
use tidemill_txn::execute::{Overdue, SoleEvents, SoleOutcome, SoleOwner, SoleTakers, SoleTerms};
use tidemill_txn::pool::SingleThread;
use tidemill_txn::program::{Answers as AnswersOf, Asker, QuestionId};

use super::questions::{Answers, Question};
use super::{Event, NodeId, Outbox};
use crate::columns::{ColumnMessage, ColumnOutbox, ColumnOutcome, HandlerEvents, SoleResults};
use crate::order::{Path, Tid};
use crate::program::Functions;
use crate::rows::Rows;

/// The high half of the identity of a verdict. The low half is a hash of the call.
const VERDICT: u128 = 0x5601_e0b1_7ac3_11ef;

/// The epoch.
pub(super) struct SoleEpoch {
    me: NodeId,
    owner: NodeId,
    /// Whether the events of each node are here.
    announced: Vec<bool>,
    events: Vec<HandlerEvents>,
    outcome: Option<ColumnOutcome>,
    /// Verdicts and answers that are not recorded yet.
    unrecorded: BTreeSet<(Tid, QuestionId)>,
}

impl SoleEpoch {
    /// Begins an epoch with the events that this node received.
    pub fn begin(
        me: NodeId,
        (owner, nodes): (NodeId, u16),
        events: Vec<HandlerEvents>,
        out: &mut ColumnOutbox,
    ) -> SoleEpoch {
        let announced = (0..nodes).map(|node| node == me.0).collect();
        let (outcome, unrecorded) = (None, BTreeSet::new());
        let mut epoch = SoleEpoch { me, owner, announced, events: Vec::new(), outcome, unrecorded };
        let mut events = Some(events);
        if owner == me {
            epoch.events = events.take().unwrap_or_default();
        }
        for node in (0..nodes).map(NodeId).filter(|node| *node != me) {
            let events = if node == owner { events.take() } else { None };
            out.push((node, ColumnMessage::Events(events.unwrap_or_default())));
        }
        epoch
    }

    /// Takes a message. Returns whether it is one of such an epoch.
    pub fn receive(&mut self, from: NodeId, message: ColumnMessage) -> bool {
        let ColumnMessage::Events(events) = message else { return false };
        let is_owner = self.owner == self.me;
        let announced = self.announced.get_mut(usize::from(from.0));
        let is_new = announced.is_some_and(|announced| !std::mem::replace(announced, true));
        let fits = is_new && (is_owner || events.is_empty());
        self.events.extend(events);
        fits
    }

    /// Whether it can be executed here, or ended.
    pub fn is_ready(&self) -> bool {
        self.outcome.is_none() && self.announced.iter().all(|announced| *announced)
    }

    /// Executes it, if this node is the owner. Asks the driver to record verdicts and answers.
    ///
    /// # Errors
    /// If events do not fit the program.
    pub fn run(
        &mut self,
        (sole, rows, functions): (&mut SoleOwner, &mut Rows, &dyn Functions),
        (now_us, answer_bytes_max): (i64, usize),
        (answers, left): (&mut Answers, Tid),
        out: &mut Outbox,
    ) -> Result<()> {
        let tids = || self.events.iter().flat_map(|of| [of.tids.first(), of.tids.last()]);
        let (first, last) = (tids().flatten().min(), tids().flatten().max());
        let (Some(&first), Some(&last)) = (first, last) else {
            rows.end_epoch();
            self.outcome = Some(ColumnOutcome::default());
            return Ok(());
        };
        let handlers = functions.program().handlers.len();
        let mut events = Vec::with_capacity(self.events.len());
        let mut results = SoleResults::default();
        for HandlerEvents { handler, tids, batch } in std::mem::take(&mut self.events) {
            let stream = handler.checked_sub(handlers).map(u16::try_from);
            let takers = match stream {
                None => SoleTakers::Handler(handler),
                Some(Ok(stream)) => SoleTakers::Round(tidemill_core::StreamId(stream)),
                Some(Err(_)) => return Err(Error::internal("there is no such stream")),
            };
            results.events += tids.len() as u64;
            events.push(SoleEvents { takers, tids, batch });
        }
        let (mut overdue, mut told) = (Vec::new(), BTreeMap::new());
        for ((_, asked), answer) in answers.range((Tid(first), 0)..=(Tid(last), QuestionId::MAX)) {
            match verdict(*asked, answer) {
                Some(known) => overdue.push(known),
                None => drop(told.insert(*asked, answer.clone())),
            }
        }
        let known: Vec<_> = overdue.iter().map(|of| (of.event, of.call)).collect();
        let (tables, after) = rows.tables_mut();
        let asked = AnswersOf::of(told.clone()).with_bytes_max(answer_bytes_max);
        let asked = Arc::new(asked);
        let terms =
            SoleTerms { now_us, overdue, has_deadlines: first > left.0, answers: asked.clone() };
        let done = sole.run(&SingleThread, (tables, after), events, terms)?;
        rows.has_executed(done.seq, Tid(last));
        rows.end_epoch();
        // The questions of these transactions can't be asked again.
        *answers = answers.split_off(&(Tid(last + 1), 0));
        let SoleOutcome { outputs, refused, faults, overdue, transactions, .. } = done;
        for of in overdue.into_iter().filter(|of| !known.contains(&(of.event, of.call))) {
            let (asked, answer) = recorded(&of);
            self.record((Tid(first), asked), answer, out);
        }
        for (asked, answer) in asked.all() {
            if !told.contains_key(&asked) {
                self.record((Tid(first), asked), answer, out);
            }
        }
        results.refused = refused.into_iter().map(|(_, stream, abort)| (stream, abort)).collect();
        results.faults = faults;
        self.outcome = Some(ColumnOutcome {
            outputs,
            results,
            transactions: transactions as usize,
            ..ColumnOutcome::default()
        });
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
    }

    /// Returns the outcome, once the epoch has been executed and all of them are recorded.
    pub fn outcome(&mut self) -> Option<ColumnOutcome> {
        self.outcome.take_if(|_| self.unrecorded.is_empty())
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
    fn verdicts_come_back() {
        let of = |call| Overdue { event: (SourceId(7), 1 << 40), call, reason: "slow".into() };
        let (asked, record) = recorded(&of(3));
        assert_eq!(verdict(asked, &record), Some(of(3)));
        assert_ne!(recorded(&of(4)).0, asked);
        assert_eq!(verdict(hash128(b"a question"), &record), None);
        assert_eq!(verdict(asked, &record[..5]), None);
    }
}
