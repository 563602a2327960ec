//! Transactions whose rows are known before they run, over several owners without a vote, and
//! mostly without a second run.
//!
//! The node that receives such a transaction announces it to the owners of its rows. When every
//! node has announced all of its own ([`Body::AllDeclared`]), each goes through those that touch
//! its rows, in their order. It reads its own rows, sends them to the other owners, and runs the
//! transaction when it has theirs. A transaction that waits for rows blocks only readers of what it
//! may write. All owners get the same result, and each writes its own rows.
//!
//! If no node received anything else, their reads are what the order gives. Then a node ends the
//! epoch when it has done its share of it. Otherwise they are checked and run again like all
//! others.

use smallvec::SmallVec;
use tidemill_core::{Row, StreamId, Value};
use tidemill_txn::program::Abort;

use super::run::look::look_at;
use super::{running, Epoch, Node, NodeId, Outbox};
use crate::gate::{Gate, Waiter};
use crate::message::Body;
use crate::order::{Path, Tid};
use crate::program::{Call, RowAt};
use crate::rows::Stored;
use crate::size;
use crate::versions::Version;

/// A small vector, because most transactions have a few rows.
type Few<T> = SmallVec<[T; 4]>;

/// A node's state of such a transaction, which it received, or of which it owns rows, or both.
pub(super) struct Part {
    pub tid: Tid,
    call: Call,
    /// The node that received it.
    home: NodeId,
    rows: Vec<RowAt>,
    owners: Few<NodeId>,
    /// The rows that have arrived in this run. `missing` counts those that have not.
    values: Few<Stored>,
    missing: usize,
    /// The other owners of its rows. `has_sent` says whether this node has sent them its own.
    others: Few<NodeId>,
    has_sent: bool,
    /// The result of this run. `events` has the emitted events, if this node is the one that
    /// reports them.
    pub outcome: Option<Result<Value, Abort>>,
    pub events: Vec<(StreamId, Row)>,
}

impl Part {
    /// Creates the state of node `me`.
    fn new(
        me: NodeId,
        tid: Tid,
        call: Call,
        home: NodeId,
        rows: Vec<RowAt>,
        owners: Few<NodeId>,
    ) -> Part {
        let mut others = Few::new();
        for owner in owners.iter().filter(|owner| **owner != me) {
            if !others.contains(owner) {
                others.push(*owner);
            }
        }
        let (values, missing) = (rows.iter().map(|_| None).collect(), rows.len());
        let (has_sent, outcome, events) = (false, None, Vec::new());
        Part { tid, call, home, rows, owners, values, missing, others, has_sent, outcome, events }
    }

    /// Discards the last run.
    fn forget(&mut self) {
        (self.missing, self.has_sent, self.outcome) = (self.rows.len(), false, None);
        self.events.clear();
    }

    fn own(&self, me: NodeId) -> impl Iterator<Item = (usize, &RowAt)> + '_ {
        self.rows.iter().enumerate().filter(move |(n, _)| self.owners[*n] == me)
    }

    /// Returns the rows of a node that it may write.
    fn writes(&self, me: NodeId) -> impl Iterator<Item = &RowAt> + '_ {
        self.own(me).map(|(_, row)| row).filter(|row| row.writes)
    }

    /// Makes later readers of what it may write on a node wait for it.
    fn expect(&self, me: NodeId, gate: &mut Gate) {
        self.writes(me).for_each(|row| gate.expect(self.tid, row.table, row.key.clone()));
    }

    /// Returns the rows of a node as it has read them.
    pub fn reads(&self, me: NodeId) -> impl Iterator<Item = (&RowAt, &Stored)> + '_ {
        self.own(me).map(|(n, row)| (row, &self.values[n]))
    }

    /// Whether a node runs it. If it has no rows, a node runs it that owns none of them.
    fn is_of(&self, me: NodeId) -> bool {
        self.owners.contains(&me) || self.owners.is_empty()
    }

    /// Whether this node reports its result and its emitted events.
    fn is_reported_by(&self, me: NodeId) -> bool {
        self.owners.first().is_none_or(|first| *first == me)
    }
}

/// The transactions with known rows of an epoch.
#[derive(Default)]
pub(super) struct Declared {
    /// The number of nodes that have announced all of theirs. `has_others` says whether one of them
    /// received anything else.
    announced: u16,
    has_others: bool,
    /// The transactions, in the order of their arrival.
    pub parts: Vec<Part>,
    /// The places in `parts` in the order of transactions, once all are here.
    order: Vec<(Tid, u32)>,
    /// Messages that arrived before all were here.
    early: Vec<Body>,
}

impl Declared {
    /// Notes that this program has no such transactions.
    pub fn are_none(&mut self, nodes: u16) {
        (self.announced, self.has_others) = (nodes, true);
    }

    /// Returns the result of a transaction, if it is one of these.
    pub fn outcome(&self, tid: Tid) -> Option<&Result<Value, Abort>> {
        self.parts[self.find(tid)?].outcome.as_ref()
    }

    /// Returns the place of a transaction among them.
    pub fn find(&self, tid: Tid) -> Option<usize> {
        let at = self.order.binary_search_by_key(&tid, |(of, _)| *of).ok()?;
        Some(self.order[at].1 as usize)
    }
}

impl Epoch {
    /// Whether all transactions with known rows are here.
    pub(super) fn has_all_declared(&self, nodes: u16) -> bool {
        self.declared.announced == nodes
    }

    /// Whether the epoch has only such transactions.
    pub(super) fn is_declared(&self) -> bool {
        !self.declared.has_others
    }
}

impl Node {
    /// Announces a transaction to the owners of its rows, if these are known. Otherwise returns the
    /// call.
    pub(super) fn declare(&mut self, tid: Tid, call: Call, out: &mut Outbox) -> Option<Call> {
        let Some(rows) = self.program.declared(&call) else { return Some(call) };
        let owners = self.owners_of(&rows);
        let part = Part::new(self.me, tid, call, self.me, rows, owners);
        for &to in &part.others {
            self.send(to, Body::Declared { tid, call: part.call.clone() }, out);
        }
        let epoch = running!(self);
        epoch.declared.parts.push(part);
        epoch.open += 1;
        None
    }

    fn owners_of(&self, rows: &[RowAt]) -> Few<NodeId> {
        let program = self.program.program();
        rows.iter().map(|row| self.owners.of_row(program, row)).collect()
    }

    /// Notes a transaction that touches rows of this node, and that another node received.
    pub(super) fn declared(&mut self, home: NodeId, tid: Tid, call: Call) {
        let rows = self.program.declared(&call).expect("all nodes have one program");
        let owners = self.owners_of(&rows);
        let part = Part::new(self.me, tid, call, home, rows, owners);
        let epoch = running!(self);
        epoch.declared.parts.push(part);
        epoch.open += 1;
    }

    /// Notes that a node has announced all of its own. After the last node they run, in their
    /// order.
    pub(super) fn all_declared(&mut self, others: bool, out: &mut Outbox) {
        let (nodes, me) = (self.owners.nodes(), self.me);
        let epoch = running!(self);
        epoch.declared.announced += 1;
        epoch.declared.has_others |= others;
        if !epoch.has_all_declared(nodes) {
            return;
        }
        let order = epoch.declared.parts.iter().zip(0..).map(|(part, at)| (part.tid, at));
        epoch.declared.order = order.collect();
        epoch.declared.order.sort();
        if epoch.declared.has_others {
            // Transactions without known rows do not know their turn either.
            epoch.declared.parts.iter().for_each(|part| part.expect(me, &mut epoch.gate));
        }
        for nth in 0..epoch.declared.order.len() {
            let (_, at) = running!(self).declared.order[nth];
            self.enter_declared(at as usize, out);
        }
        for body in std::mem::take(&mut running!(self).declared.early) {
            match body {
                Body::Values { tid, rows } => self.values(tid, rows, out),
                Body::Outcome { tid, outcome } => self.outcome(tid, outcome),
                _ => unreachable!("only these messages are stored"),
            }
        }
        self.report_done(out);
    }

    /// Undoes this node's part of a transaction. Returns whether the node has such a part.
    pub(super) fn undo_declared(&mut self, tid: Tid) -> bool {
        let me = self.me;
        let epoch = running!(self);
        let Some(at) = epoch.declared.find(tid) else { return false };
        let part = &mut epoch.declared.parts[at];
        for row in part.writes(me) {
            epoch.versions.remove(tid, row.table, &row.key);
        }
        part.expect(me, &mut epoch.gate);
        part.forget();
        epoch.open += 1;
        true
    }

    /// Reads this node's rows of a transaction and sends them, once no earlier one blocks it.
    pub(super) fn enter_declared(&mut self, at: usize, out: &mut Outbox) {
        let me = self.me;
        let epoch = running!(self);
        let part = &mut epoch.declared.parts[at];
        let tid = part.tid;
        if !part.is_of(me) {
            return;
        }
        let in_the_way = |row: &RowAt| epoch.gate.writer_before(tid, row.table, &row.key);
        if let Some(earlier) = part.own(me).find_map(|(_, row)| in_the_way(row)) {
            // Later transactions wait for it, too.
            part.expect(me, &mut epoch.gate);
            return epoch.gate.wait(earlier, Waiter { tid, path: None });
        }
        let is_there = |tid: Tid| epoch.there.contains(&tid);
        for n in 0..part.rows.len() {
            if part.owners[n] == me {
                let RowAt { table, key, .. } = &part.rows[n];
                let row = look_at(&self.rows, &epoch.versions, (tid, &[]), *table, key, &is_there);
                part.values[n] = row;
                part.missing -= 1;
            }
        }
        part.has_sent = true;
        if part.missing > 0 {
            part.expect(me, &mut epoch.gate);
        }
        let others = part.others.clone();
        if !others.is_empty() {
            let own = part.own(me).map(|(n, _)| (n as u32, part.values[n].clone()));
            let rows: Vec<(u32, Stored)> = own.collect();
            for node in others {
                self.send(node, Body::Values { tid, rows: rows.clone() }, out);
            }
        }
        self.run_declared(at, out);
    }

    /// Takes rows from their owner.
    pub(super) fn values(&mut self, tid: Tid, rows: Vec<(u32, Stored)>, out: &mut Outbox) {
        let nodes = self.owners.nodes();
        let epoch = running!(self);
        if !epoch.has_all_declared(nodes) {
            return epoch.declared.early.push(Body::Values { tid, rows });
        }
        let at = epoch.declared.find(tid).expect("all are announced");
        let part = &mut epoch.declared.parts[at];
        part.missing -= rows.len();
        for (n, row) in rows {
            part.values[n as usize] = row;
        }
        self.run_declared(at, out);
    }

    /// Takes the result of a transaction that this node received, and whose rows are all elsewhere.
    pub(super) fn outcome(&mut self, tid: Tid, outcome: Result<Value, Abort>) {
        let nodes = self.owners.nodes();
        let epoch = running!(self);
        if !epoch.has_all_declared(nodes) {
            return epoch.declared.early.push(Body::Outcome { tid, outcome });
        }
        let at = epoch.declared.find(tid).expect("it came in here");
        epoch.declared.parts[at].outcome = Some(outcome);
        epoch.open -= 1;
    }

    /// Runs a transaction if all of its rows are here.
    fn run_declared(&mut self, at: usize, out: &mut Outbox) {
        let (me, max) = (self.me, self.settings.output_bytes_max);
        let epoch = running!(self);
        let part = &mut epoch.declared.parts[at];
        if !part.has_sent || part.missing > 0 {
            return;
        }
        let tid = part.tid;
        let result = self.program.run_declared(&part.call, &part.rows, &part.values);
        let result = result.and_then(|changes| {
            let fits = |what, values: &[Value]| size::fits(&*self.program, what, values, max);
            fits("the reply", changes.value.as_slice())?;
            changes.events.iter().try_for_each(|(_, row)| fits("an event", row))?;
            Ok(changes)
        });
        let outcome = result.map(|changes| {
            for (n, row) in changes.rows {
                let n = n as usize;
                if part.owners[n] == me {
                    let RowAt { table, key, .. } = &part.rows[n];
                    let version = Version { tid, path: Path::new(), row };
                    epoch.versions.put(*table, key.clone(), version);
                }
            }
            part.events = if part.is_reported_by(me) { changes.events } else { Vec::new() };
            changes.value.unwrap_or(Value::Null)
        });
        let knows_itself = part.home == me || part.owners.contains(&part.home);
        let tells = (part.is_reported_by(me) && !knows_itself).then(|| outcome.clone());
        let home = part.home;
        part.outcome = Some(outcome);
        epoch.open -= 1;
        self.woken.extend(epoch.gate.ended(tid));
        self.counters.calls += 1;
        if let Some(outcome) = tells {
            self.send(home, Body::Outcome { tid, outcome }, out);
        }
    }
}
