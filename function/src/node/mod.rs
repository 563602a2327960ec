//! A node: the state machine of one owner of partitions.
//!
//! An epoch that has nothing but events of some handlers runs by column ([`by_column`]). The modules
//! of all others by phase: [`home`] begins transactions and knows when all of their calls have ended.
//! [`run`] runs functions. [`declared`] runs transactions whose rows are known. [`round`] goes from
//! round to round. [`check`] finds what must run again. [`commit`] ends the epoch. [`questions`] has
//! the answers from outside.

mod by_column;
mod check;
mod commit;
mod declared;
mod home;
mod part;
mod questions;
mod round;
mod run;
mod sole;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use tidemill_core::{Key, Row, StreamId, TableId, Value};
use tidemill_place::{PartitionSet, PARTITIONS};
use tidemill_txn::execute::SoleOwner;
use tidemill_txn::pool::{Pool, SingleThread};
use tidemill_txn::program::{Abort, QuestionId, OPERATIONS_MAX};
use tidemill_txn::schedule::Strategy;

use crate::columns::{ColumnMessage, ColumnOutcome, Exchange, HandlerEvents};
use crate::gate::{Gate, Waiter};
use crate::message::{Body, Message, Mode};
use crate::order::{Path, Tid};
use crate::program::{Call, Clock, Functions, RowAt};
use crate::rows::{Rows, Stored, TableChanges};
use crate::versions::Versions;

use self::by_column::{ByColumn, Way};
use self::declared::Declared;
use self::home::Home;
use self::part::Part;
pub use self::questions::Question;

/// A node, by its place among the nodes of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

/// The owner of each partition, the same on all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    nodes: u16,
    by_partition: Arc<[NodeId]>,
}

impl Owners {
    /// Creates equal shares for this many nodes.
    pub fn equal(nodes: u16) -> Owners {
        let worker = |p| tidemill_place::worker(tidemill_place::Partition(p), nodes.into());
        Owners::new(nodes, (0..PARTITIONS).map(|p| NodeId(worker(p) as u16)).collect())
    }

    /// Creates owners from a list with one for each of the [`PARTITIONS`].
    pub fn new(nodes: u16, by_partition: Arc<[NodeId]>) -> Owners {
        assert_eq!(by_partition.len(), usize::from(PARTITIONS), "an owner for each partition");
        assert!(by_partition.iter().all(|node| node.0 < nodes), "owners are nodes");
        Owners { nodes, by_partition }
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u16 {
        self.nodes
    }

    /// Returns the owner of a partition.
    pub fn of(&self, partition: tidemill_place::Partition) -> NodeId {
        self.by_partition[usize::from(partition.0)]
    }

    /// Returns the owner of all partitions, if there is one.
    pub fn sole(&self) -> Option<NodeId> {
        let first = self.by_partition[0];
        self.by_partition.iter().all(|owner| *owner == first).then_some(first)
    }

    /// Gives all partitions to one of the nodes.
    pub fn all_of(nodes: u16, owner: NodeId) -> Owners {
        Owners::new(nodes, vec![owner; usize::from(PARTITIONS)].into())
    }

    /// Returns the owner of a row.
    pub fn of_row(&self, program: &tidemill_txn::Program, row: &RowAt) -> NodeId {
        let spec = &program.tables[row.table.index()];
        self.of(tidemill_place::partition_of_bytes(spec, &row.key.0))
    }

    /// Returns the owner of the rows whose keys begin with these values. Returns `None` if these
    /// columns do not determine the partition.
    pub fn of_key(
        &self,
        program: &tidemill_txn::Program,
        table: TableId,
        leading: &[Value],
    ) -> Option<NodeId> {
        let spec = &program.tables[table.index()];
        let columns = spec.partition_prefix.unwrap_or(spec.key.len());
        (leading.len() >= columns).then(|| {
            let key = tidemill_core::Key::of(&leading[..columns]);
            self.of(tidemill_place::partition_of_bytes(spec, &key.0))
        })
    }
}

/// The settings of a node.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The maximum number of calls in one transaction.
    pub calls_max: u32,
    /// The maximum number of uses of rows, calls and events that the functions of one transaction
    /// make.
    pub uses_max: u32,
    /// The maximum depth of nested calls.
    pub depth_max: usize,
    /// The number of rounds of an epoch after which transactions run one at a time.
    pub rounds_max: u32,
    /// The number of times that a call begins before it keeps its position, if it can
    /// ([`Functions::begin_kept`]).
    pub begins_max: u32,
    /// Whether a re-run makes all calls at once where it can.
    pub cache: bool,
    /// The seed of random numbers, which also depend on places.
    pub seed: u64,
    /// The maximum bytes that an event or the reply to a request takes in a log
    /// ([`crate::output_bytes`]).
    pub output_bytes_max: usize,
    /// The strategy of epochs that run by column, or at a sole owner.
    pub strategy: Strategy,
    /// Every n-th call of a function runs twice, and the results are compared. 0: never.
    pub rerun_every: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            calls_max: 100_000,
            uses_max: OPERATIONS_MAX as u32,
            depth_max: 100,
            rounds_max: 6,
            begins_max: 16,
            cache: true,
            seed: 0,
            output_bytes_max: 900_000,
            strategy: Strategy::Adaptive,
            rerun_every: 64,
        }
    }
}

/// How an epoch is executed if nodes received nothing but events by column. The outcome is the same
/// for all nodes that execute it, and all nodes must have the same plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColumnPlan {
    /// The node that executes it on rows that the others lend it, if one does.
    pub executes: Option<NodeId>,
}

/// An event of a node for its driver.
#[derive(Clone, Debug)]
pub enum Event {
    /// A transaction that this node received is final. Replies of one node come in the order of its
    /// transactions. They come before the end of the epoch if nothing before them is open (early
    /// replies: Styx, section 6.4).
    Replied {
        /// The transaction.
        tid: Tid,
        /// The returned value, or the reason of the abort.
        outcome: Result<Value, Abort>,
    },
    /// A committed transaction has emitted an event here. All events of an epoch, of all nodes, are
    /// ordered by their transactions and then by their paths.
    Emitted {
        /// The transaction.
        tid: Tid,
        /// The place in the transaction.
        path: Path,
        /// The stream.
        stream: StreamId,
        /// The event.
        row: Row,
    },
    /// A function asks somebody outside. It continues when [`Node::answered`] passes the answer.
    Asked(Question),
    /// The new state of a row of an outbox, or none if it was removed. Those of an epoch come
    /// before its end.
    Outbox {
        /// The outbox.
        table: TableId,
        /// The row's key.
        key: Key,
        /// The row.
        row: Stored,
    },
    /// The outcome of an epoch that was executed by column. Its end follows.
    Columns(ColumnOutcome),
    /// Another node has sent what does not fit the program. This node can't go on.
    Failed,
    /// The epoch is in the store, and the next one may begin.
    Committed {
        /// The epoch.
        epoch: u64,
    },
    /// A function has read the same twice and acted differently. So its result depends on something
    /// else than what it reads.
    NotDeterministic {
        /// The transaction.
        tid: Tid,
        /// The call.
        call: Call,
    },
}

/// The results of a step of a node.
#[derive(Debug, Default)]
pub struct Outbox {
    /// The messages to other nodes, in the order in which they must be sent.
    pub messages: Vec<(NodeId, Message)>,
    /// The events for the driver.
    pub events: Vec<Event>,
}

/// Counts of the work of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of epochs.
    pub epochs: u64,
    /// The number of rounds.
    pub rounds: u64,
    /// The number of transactions that this node received.
    pub transactions: u64,
    /// The number of calls executed here, including those of re-runs.
    pub calls: u64,
    /// The number of these calls that ran without being called.
    pub cached: u64,
    /// How often functions have begun, or begun again.
    pub begins: u64,
    /// The number of messages to other nodes.
    pub messages: u64,
}

/// The state machine. [`Node::begin`], once for each epoch on every node, and [`Node::receive`]
/// drive it. The results of either are in the [`Outbox`].
pub struct Node {
    me: NodeId,
    program: Arc<dyn Functions>,
    owners: Owners,
    settings: Settings,
    /// The threads on which epochs by column are executed.
    pool: Arc<dyn Pool>,
    rows: Rows,
    /// Messages of epochs and rounds that this node has not reached yet.
    early: BTreeMap<(u64, u32), VecDeque<(NodeId, Message)>>,
    /// Messages to itself.
    own: VecDeque<Body>,
    fresh: Vec<Body>,
    /// Those that no longer have to wait.
    woken: VecDeque<Waiter>,
    running: Option<Epoch>,
    /// The means of epochs by column, after the first one. `by_column` is the one that runs.
    exchange: Option<Exchange>,
    sole: Option<SoleOwner>,
    by_column: Option<ByColumn>,
    /// Answers from outside to questions of transactions that are not in the store yet.
    answers: BTreeMap<(Tid, QuestionId), Arc<[u8]>>,
    /// The last transaction whose output had left before this node executed it.
    left: Tid,
    counters: Counters,
    /// The number of calls of which some run twice, to be compared.
    compared: u64,
}

/// An epoch that runs.
struct Epoch {
    number: u64,
    clock: Clock,
    round: u32,
    /// Transactions that this node received and whose rows are not known.
    homes: HashMap<Tid, Home, FixedState>,
    /// Transactions whose rows are known.
    declared: Declared,
    /// The number of transactions that have not ended in this round: those that this node received,
    /// and those with known rows that it knows of.
    open: usize,
    /// This node's parts of transactions, its own and others'.
    parts: HashMap<Tid, Part, FixedState>,
    versions: Versions,
    /// Transactions whose versions others see.
    there: HashSet<Tid, FixedState>,
    gate: Gate,
    /// Transactions that run in this round.
    run: BTreeMap<Tid, Mode>,
    /// Transactions that are not final yet.
    unsettled: BTreeMap<Tid, Mode>,
    has_reported_done: bool,
    /// The number of nodes whose transactions have ended. `conflicts` counts those that then
    /// reported what must run again.
    dones: u16,
    conflicts: u16,
    again: BTreeMap<Tid, Mode>,
    /// The readers of what each transaction wrote, by writer.
    reads: BTreeMap<Tid, Vec<(Tid, Mode)>>,
    /// How often a clock's verdict on a part of a transaction has made it run again.
    judged: u32,
    /// The first transaction that is not final, and the round since which it is the first.
    first_open: (Option<Tid>, u32),
    /// Transactions that this node received and has not replied to, in their order.
    unreplied: VecDeque<Tid>,
}

impl Node {
    /// Creates a node with its rows.
    pub fn new(
        me: NodeId,
        program: Arc<dyn Functions>,
        owners: Owners,
        settings: Settings,
        rows: Rows,
    ) -> Node {
        assert!(me.0 < owners.nodes, "a node is one of the nodes");
        Node {
            me,
            program,
            owners,
            settings,
            pool: Arc::new(SingleThread),
            rows,
            early: BTreeMap::new(),
            own: VecDeque::new(),
            fresh: Vec::new(),
            woken: VecDeque::new(),
            running: None,
            exchange: None,
            sole: None,
            by_column: None,
            answers: BTreeMap::new(),
            left: Tid(0),
            counters: Counters::default(),
            compared: 0,
        }
    }

    /// Executes epochs by column on these threads.
    #[must_use]
    pub fn on(self, pool: Arc<dyn Pool>) -> Node {
        Node { pool, ..self }
    }

    /// Returns its rows, as the last epoch left them.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Returns its rows, to change them between epochs.
    pub fn rows_mut(&mut self) -> &mut Rows {
        &mut self.rows
    }

    /// Takes its rows, which may have to go back to a snapshot, because an epoch may run. The node
    /// can't be used any more.
    pub fn take_rows(&mut self) -> Rows {
        let mut rows = std::mem::take(&mut self.rows);
        if let Some(ByColumn { epoch: Way::Nodes(epoch), .. }) = self.by_column.take() {
            epoch.abandon(&mut rows);
        }
        rows.unfollow();
        rows
    }

    /// Notes the changes of these tables, too, from the next epoch on.
    pub fn follow(&mut self, tables: &[TableId]) {
        self.rows.follow(tables);
    }

    /// Whether it notes changes.
    pub fn follows(&self) -> bool {
        self.rows.follows()
    }

    /// Takes the changes of followed tables by the last epoch, in rows of these partitions.
    pub fn take_changes(&mut self, own: &PartitionSet) -> Vec<TableChanges> {
        self.rows.take_changes(own)
    }

    /// Returns the counts of its work.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether an epoch runs.
    pub fn is_running(&self) -> bool {
        self.running.is_some() || self.by_column.is_some()
    }

    /// Begins an epoch with the requests and events that this node received, each at its place. The
    /// events are of streams that [can be executed by column](Functions::by_column). If all that was
    /// received can be, the epoch is executed by this plan.
    ///
    /// # Panics
    /// If an epoch runs: every node begins an epoch after it has ended the one before.
    pub fn begin(
        &mut self,
        number: u64,
        clock: Clock,
        requests: Vec<(Tid, Call)>,
        (events, plan): (Vec<HandlerEvents>, ColumnPlan),
        out: &mut Outbox,
    ) {
        assert!(!self.is_running(), "an epoch begins when the one before has ended");
        self.counters.epochs += 1;
        match self.program.has_columns() || self.program.sole().is_some() {
            true => self.begin_columns(number, clock, requests, (events, plan), out),
            false => self.begin_calls(number, clock, requests, out),
        }
        self.work(out);
    }

    /// Begins an epoch of calls.
    fn begin_calls(
        &mut self,
        number: u64,
        clock: Clock,
        requests: Vec<(Tid, Call)>,
        out: &mut Outbox,
    ) {
        self.exchange.iter_mut().for_each(Exchange::forget);
        self.running = Some(Epoch {
            number,
            clock,
            round: 0,
            homes: HashMap::default(),
            declared: Declared::default(),
            open: 0,
            parts: HashMap::default(),
            versions: Versions::new(self.program.program().tables.len()),
            there: HashSet::default(),
            gate: Gate::default(),
            run: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            has_reported_done: false,
            dones: 0,
            conflicts: 0,
            again: BTreeMap::new(),
            reads: BTreeMap::new(),
            judged: 0,
            first_open: (None, 0),
            unreplied: VecDeque::new(),
        });
        let (mut unreplied, mut run) = (Vec::new(), BTreeMap::new());
        for (tid, call) in requests {
            unreplied.push(tid);
            if let Some(call) = self.declare(tid, call, out) {
                let home = self.home(call);
                running!(self).homes.insert(tid, home);
                run.insert(tid, Mode::Fresh);
            }
        }
        unreplied.sort_unstable();
        self.counters.transactions += unreplied.len() as u64;
        running!(self).unreplied = unreplied.into();
        match self.program.declares() {
            true => self.send_all(&Body::AllDeclared { others: !run.is_empty() }, out),
            false => running!(self).declared.are_none(self.owners.nodes()),
        }
        self.enter_round(run, out);
    }

    /// Processes a message.
    pub fn receive(&mut self, from: NodeId, message: Message, out: &mut Outbox) {
        match self.is_due(&message) {
            true => self.handle(from, message.body, out),
            false => {
                let round = (message.epoch, message.round);
                self.early.entry(round).or_default().push_back((from, message));
            }
        }
        self.work(out);
    }

    /// Whether a message belongs to the current round. No node can be more than one round ahead.
    fn is_due(&self, message: &Message) -> bool {
        if let Some(by_column) = &self.by_column {
            return by_column.takes(message);
        }
        let here = self.running.as_ref().map(|epoch| (epoch.number, epoch.round));
        let due = here == Some((message.epoch, message.round));
        debug_assert!(
            due || here.is_none_or(|here| here < (message.epoch, message.round)),
            "a message of round {:?} is late in {here:?}",
            (message.epoch, message.round)
        );
        due
    }

    /// Returns the next message that has become due.
    fn due(&mut self) -> Option<(NodeId, Message)> {
        if let Some(by_column) = &self.by_column {
            let round = (by_column.number, 0);
            let queue = self.early.get_mut(&round)?;
            let nth = queue.iter().position(|(_, message)| by_column.takes(message))?;
            let message = queue.remove(nth);
            if queue.is_empty() {
                self.early.remove(&round);
            }
            return message;
        }
        let here = self.running.as_ref().map(|epoch| (epoch.number, epoch.round));
        // No node waits for a message of an earlier round. Remove it, so that it does not block
        // others.
        while self.early.first_key_value().is_some_and(|(first, _)| here > Some(*first)) {
            self.early.pop_first();
        }
        let mut first = self.early.first_entry()?;
        if here != Some(*first.key()) {
            return None;
        }
        let message = first.get_mut().pop_front();
        if first.get().is_empty() {
            first.remove();
        }
        message
    }

    /// Processes the messages to itself, and those that have become due.
    fn work(&mut self, out: &mut Outbox) {
        loop {
            // Consequences of a message come before older messages: the calls of one request before
            // the next request, which then finds them done.
            while let Some(body) = self.fresh.pop() {
                self.own.push_front(body);
            }
            if let Some(body) = self.own.pop_front() {
                self.handle(self.me, body, out);
            } else if let Some(waiter) = self.woken.pop_front() {
                self.wake(waiter, out);
            } else if let Some((from, message)) = self.due() {
                self.handle(from, message.body, out);
            } else {
                return;
            }
        }
    }

    fn handle(&mut self, from: NodeId, body: Body, out: &mut Outbox) {
        match body {
            Body::Events { events, others } => self.events(from, events, others, out),
            Body::Work { events, calls, is_last } => {
                self.columns(from, ColumnMessage::Work { events, calls, is_last }, out);
            }
            Body::Results { results, is_last } => {
                self.columns(from, ColumnMessage::Results { results, is_last }, out);
            }
            Body::Rows { rows } => self.columns(from, ColumnMessage::Rows(rows), out),
            Body::Wanted(wanted) => self.columns(from, ColumnMessage::Wanted(wanted), out),
            Body::Lent { last, rows } => {
                self.columns(from, ColumnMessage::Lent { last, rows }, out)
            }
            Body::Call { tid, path, call, share, home, caller, mode, before } => {
                let invocation = part::Invocation::new(call, share, caller, before);
                self.called(tid, path, invocation, home, mode, out);
            }
            Body::Reply { tid, path, value, spent } => self.replied(tid, path, value, spent, out),
            Body::Prefetch { tid, path, rows } => self.tell_ahead(from, tid, path, rows, out),
            Body::Prefetched { tid, path, rows } => self.prefetched(tid, path, rows, out),
            Body::Ended { tid, share, calls, spent, failure, missed, judged } => {
                let ended = home::Ended { share, calls, spent, failure, missed, judged };
                self.ended(from, tid, ended, out);
            }
            Body::Finished { tid, verdict } => self.finished(tid, verdict),
            Body::Declared { tid, call } => self.declared(from, tid, call),
            Body::AllDeclared { others } => self.all_declared(others, out),
            Body::Values { tid, rows } => {
                self.values(tid, rows, out);
                self.report_done(out);
            }
            Body::Outcome { tid, outcome } => {
                self.outcome(tid, outcome);
                self.report_done(out);
            }
            Body::Done => self.all_done(out),
            Body::Conflicts { again, reads, judged } => {
                running!(self).judged += judged;
                self.all_checked(again, reads, out);
            }
        }
    }

    fn send(&mut self, to: NodeId, body: Body, out: &mut Outbox) {
        if to == self.me {
            return self.fresh.push(body);
        }
        let epoch = self.running.as_ref().expect("an epoch runs");
        self.counters.messages += 1;
        out.messages.push((to, Message { epoch: epoch.number, round: epoch.round, body }));
    }

    fn send_all(&mut self, body: &Body, out: &mut Outbox) {
        for node in 0..self.owners.nodes {
            self.send(NodeId(node), body.clone(), out);
        }
    }
}

/// The epoch that runs.
///
/// This is a macro and not a method, so that the other fields of the node can be borrowed beside
/// it.
macro_rules! running {
    ($node:expr) => {
        $node.running.as_mut().expect("an epoch runs")
    };
}
use running;
