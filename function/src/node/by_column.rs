//! Epochs that are executed by column.
//!
//! An epoch can be, if no node received anything but events of handlers with known rows. So each
//! node first tells the others what it received. A node with anything else begins the epoch of calls
//! at once, and all others follow when they hear from it. No row has been read before.

use tidemill_core::Value;
use tidemill_txn::execute::SoleOwner;
use tidemill_txn::program::EventLimit;

use super::sole::{Site, SoleEpoch};
use super::{ColumnPlan, Event, Node, NodeId, Outbox};
use crate::columns::{ColumnEpoch, ColumnMessage, Exchange, HandlerEvents};
use crate::message::{Body, Message};
use crate::order::Tid;
use crate::program::{Call, Clock};
use crate::size;

/// An epoch that is executed by column, unless a node received anything else.
pub(super) struct ByColumn {
    pub number: u64,
    clock: Clock,
    /// The events that this node received.
    own: Vec<HandlerEvents>,
    pub epoch: Way,
}

/// The way in which it is executed.
pub(super) enum Way {
    /// By nodes that share the rows.
    Nodes(Box<ColumnEpoch>),
    /// By the sole owner of all rows.
    Sole(Box<SoleEpoch>),
}

impl ByColumn {
    /// Whether it waits for a message.
    pub fn takes(&self, message: &Message) -> bool {
        let is_of_columns = matches!(
            message.body,
            Body::Events { .. }
                | Body::Work { .. }
                | Body::Results { .. }
                | Body::Rows { .. }
                | Body::Wanted(_)
                | Body::Lent { .. }
        );
        message.epoch == self.number && is_of_columns
    }
}

impl Node {
    /// Begins an epoch by column, if this node received nothing else.
    pub(super) fn begin_columns(
        &mut self,
        number: u64,
        clock: Clock,
        mut requests: Vec<(Tid, Call)>,
        (events, plan): (Vec<HandlerEvents>, ColumnPlan),
        out: &mut Outbox,
    ) {
        if self.program.sole().is_some() {
            return self.begin_sole(number, clock, (events, requests), out);
        }
        if !requests.is_empty() {
            for node in (0..self.owners.nodes).map(NodeId).filter(|node| *node != self.me) {
                let body = Body::Events { events: Vec::new(), others: true };
                self.counters.messages += 1;
                out.messages.push((node, Message { epoch: number, round: 0, body }));
            }
            requests.extend(self.calls(&events));
            return self.begin_calls(number, clock, requests, out);
        }
        let mut messages = Vec::new();
        let own = events.clone();
        let (program, owners) = (self.program.program(), &self.owners);
        let made = || Exchange::new(program, owners.clone(), self.me, self.settings.strategy);
        let exchange = match self.exchange.take() {
            Some(exchange) => Ok(exchange),
            None => made(),
        };
        let Ok(exchange) = exchange else { return out.events.push(Event::Failed) };
        let exchange = self.exchange.insert(exchange);
        let (rows, pool) = (&mut self.rows, &*self.pool);
        let work = (events, plan.executes);
        let begun = ColumnEpoch::begin(exchange, rows, pool, work, &mut messages);
        let Ok(epoch) = begun else { return out.events.push(Event::Failed) };
        self.by_column = Some(ByColumn { number, clock, own, epoch: Way::Nodes(Box::new(epoch)) });
        self.send_columns(number, messages, out);
        self.end_columns(out);
    }

    /// Begins an epoch that the sole owner of all rows executes.
    fn begin_sole(
        &mut self,
        number: u64,
        clock: Clock,
        (events, calls): (Vec<HandlerEvents>, Vec<(Tid, Call)>),
        out: &mut Outbox,
    ) {
        let Some(owner) = self.owners.sole() else { return out.events.push(Event::Failed) };
        let of_events = events.iter().map(|of| of.tids.len() as u64).sum::<u64>();
        self.counters.transactions += of_events + calls.len() as u64;
        let (nodes, mut messages) = ((owner, self.owners.nodes()), Vec::new());
        let epoch = SoleEpoch::begin(self.me, nodes, (events, calls), &mut messages);
        let (own, epoch) = (Vec::new(), Way::Sole(Box::new(epoch)));
        self.by_column = Some(ByColumn { number, clock, own, epoch });
        self.send_columns(number, messages, out);
        self.go_on_sole(out);
    }

    /// Takes the events of another node.
    pub(super) fn events(
        &mut self,
        from: NodeId,
        events: Vec<HandlerEvents>,
        others: bool,
        out: &mut Outbox,
    ) {
        if !others {
            return self.columns(from, ColumnMessage::Events(events), out);
        }
        // Nothing has run, because this node has not heard from all.
        if let Some(ByColumn { number, clock, own, .. }) = self.by_column.take() {
            let requests = self.calls(&own);
            self.begin_calls(number, clock, requests, out);
        }
    }

    /// Takes any other message of an epoch by column.
    pub(super) fn columns(&mut self, from: NodeId, message: ColumnMessage, out: &mut Outbox) {
        // If the epoch is one of calls, its events are of no use.
        let Some(ByColumn { number, epoch, .. }) = &mut self.by_column else { return };
        let epoch = match epoch {
            Way::Nodes(epoch) => epoch,
            Way::Sole(epoch) => {
                return match epoch.receive(from, message) {
                    true => self.go_on_sole(out),
                    false => out.events.push(Event::Failed),
                };
            }
        };
        let exchange = self.exchange.as_mut().expect("the epoch has begun");
        let (number, mut messages) = (*number, Vec::new());
        let (rows, pool) = (&mut self.rows, &*self.pool);
        let taken = epoch.receive(from, message, exchange, rows, pool, &mut messages);
        if taken.is_err() {
            return out.events.push(Event::Failed);
        }
        self.send_columns(number, messages, out);
        self.end_columns(out);
    }

    fn send_columns(
        &mut self,
        number: u64,
        messages: Vec<(NodeId, ColumnMessage)>,
        out: &mut Outbox,
    ) {
        for (to, message) in messages {
            let body = match message {
                ColumnMessage::Events(events) => Body::Events { events, others: false },
                ColumnMessage::Work { events, calls, is_last } => {
                    Body::Work { events, calls, is_last }
                }
                ColumnMessage::Results { results, is_last } => Body::Results { results, is_last },
                ColumnMessage::Rows(rows) => Body::Rows { rows },
                ColumnMessage::Wanted(wanted) => Body::Wanted(wanted),
                ColumnMessage::Lent { last, rows } => Body::Lent { last, rows },
            };
            self.counters.messages += 1;
            out.messages.push((to, Message { epoch: number, round: 0, body }));
        }
    }

    /// Ends the epoch, if everything has run.
    fn end_columns(&mut self, out: &mut Outbox) {
        let is_done = |of: &mut ByColumn| matches!(&of.epoch, Way::Nodes(epoch) if epoch.is_done());
        if let Some(ByColumn { number, epoch: Way::Nodes(epoch), own, .. }) =
            self.by_column.take_if(is_done)
        {
            self.counters.transactions += own.iter().map(|of| of.tids.len() as u64).sum::<u64>();
            let exchange = self.exchange.as_mut().expect("the epoch has begun");
            let outcome = epoch.finish(exchange, &mut self.rows);
            self.counters.calls += outcome.transactions as u64;
            self.counters.rounds += outcome.passes as u64;
            out.events.push(Event::Columns(outcome));
            out.events.push(Event::Committed { epoch: number });
        }
    }

    /// Executes the epoch, if this node is the sole owner and all work is here. Ends it once its
    /// verdicts and answers are recorded, and the results of calls are here.
    pub(super) fn go_on_sole(&mut self, out: &mut Outbox) {
        let Some(ByColumn { number, clock, epoch: Way::Sole(epoch), .. }) = &mut self.by_column
        else {
            return;
        };
        let number = *number;
        if epoch.is_ready() {
            let program = self.program.sole().expect("the program has one");
            let super::Settings { strategy, output_bytes_max: max, rerun_every, .. } =
                self.settings;
            let functions = self.program.clone();
            let sole = self.sole.get_or_insert_with(|| {
                let fits = move |row: &[Value]| size::fits(&*functions, "an event", row, max);
                SoleOwner::new(program, (strategy, rerun_every), EventLimit::new(fits))
            });
            let (answers, left) = (&mut self.answers, self.left);
            let (rows, functions, pool) = (&mut self.rows, &*self.program, &*self.pool);
            let site = Site { sole, pool, rows, functions, answers, left };
            if epoch.run(site, clock, max, out).is_err() {
                return out.events.push(Event::Failed);
            }
        }
        let mut messages = Vec::new();
        let Some((outcome, results)) = epoch.outcome(&mut messages) else { return };
        self.counters.calls += outcome.transactions as u64;
        self.counters.rounds += 1;
        self.by_column = None;
        self.send_columns(number, messages, out);
        let replied = |(tid, outcome)| Event::Replied { tid, outcome };
        out.events.extend(results.into_iter().map(replied));
        out.events.push(Event::Columns(outcome));
        out.events.push(Event::Committed { epoch: number });
    }

    /// Returns events as calls.
    fn calls(&self, events: &[HandlerEvents]) -> Vec<(Tid, Call)> {
        let calls = events.iter().flat_map(|HandlerEvents { handler, tids, batch }| {
            let call = |row: tidemill_core::Row| self.program.handler_call(*handler, &row);
            tids.iter().map(|tid| Tid(*tid)).zip(batch.rows().map(call))
        });
        calls.collect()
    }
}
