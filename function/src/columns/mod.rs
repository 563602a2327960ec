//! Epochs of declared transactions over several owners, by column.
//!
//! A node executes the transactions that touch its rows in its own tables, through the one
//! executor. The rows of a transaction follow from its event. So each node tells the others which
//! events touch rows of theirs, in one message. Then all nodes know the transactions of their own
//! rows, in one order. Every owner of a row of a transaction executes that transaction with the
//! same result. So there is no vote, and the outcome is that of executing all of them one after the
//! other.
//!
//! A transaction with rows of several owners *crosses*. Each owner exports its rows as they are at
//! the place of the transaction, installs those of the others in its own tables, and then runs the
//! transaction. Rows of other owners are *guests*: they leave without a trace when the epoch ends.
//!
//! ```text
//!   node 0                                   node 1
//!   ──────                                   ──────
//!   events ─────────── Events ─────────────▶
//!         ◀─────────── Events ────────────── events
//!   first pass                               first pass
//!     1 run   (a, b)                           2 export y     for (c, y)
//!     2 export c      for (c, y)               3 run (x, z)
//!     3 blocked by 2  (c, a)                   ...
//!         ──────────── Rows c ─────────────▶
//!         ◀─────────── Rows y ──────────────
//!   second pass                              second pass
//!     2 install y, run (c, y)                  2 install c, run (c, y)
//!     3 run (c, a)                             ...
//! ```
//!
//! A *pass* goes through what may be ready, in the order of transactions:
//!
//! - A transaction is *blocked* if an earlier one is put off that may write one of its rows here,
//!   or that uses a row here which this one may write. It is put off, and so may block later ones.
//! - A transaction that crosses and is not blocked exports its rows here, once.
//! - If all of its rows are here, it runs. Otherwise it is put off.
//!
//! So rows are exported as the order gives them: no transaction that is put off may change them, or
//! see what a later one writes. The first transaction that has not run is never blocked anywhere.
//! So there is always one that can run as soon as its rows have arrived.
//!
//! All that a pass does is one [`Epoch`](tidemill_txn::order::Epoch) for the executor: events of
//! handlers, and events of built-in handlers that export and install rows
//! ([`ColumnProgram`](tidemill_txn::execute::ColumnProgram)). So every strategy applies, and the
//! order within a pass is the executor's concern. The columns that the executor emits are the
//! message. There is one message for each pair of nodes and level of dependency, never one for each
//! transaction.
//!
//! An epoch whose transactions use few rows, each often, takes less time if [one node] executes it.
//! Then the messages are others. The caller decides for each epoch, and the outcome is the same.
//!
//! [one node]: one_node
//!
//! | file | content |
//! | --- | --- |
//! | `exchange` | what lasts from epoch to epoch |
//! | `parts` | the events of an epoch, by handler and receiver |
//! | `uses` | the rows of their transactions: keys, owners and identities, by column |
//! | `waiting`, `lists`, `free` | transactions that are put off, and what blocks them |
//! | `given`, `installs` | rows of other owners, as they arrive and as a pass installs them |
//! | `exports` | rows of this node, as a pass exports them |
//! | `key_list` | keys of rows |
//! | `pass` | a pass, as an epoch for the executor |
//! | `one_node` | epochs that one node executes, on rows that the others lend it |
//! | `outputs` | outputs and counts |

mod exchange;
mod exports;
mod free;
mod given;
mod installs;
mod key_list;
mod lists;
mod one_node;
mod outputs;
mod parts;
mod pass;
mod uses;
mod waiting;

use tidemill_core::{Batch, Error, Result, StreamId, TableId, Value};
use tidemill_table::Seq;
use tidemill_txn::execute::HandlerCounts;
use tidemill_txn::pool::Pool;
use tidemill_txn::program::Abort;

use self::given::{Given, Guests};
use self::one_node::{Gathering, Way};
use self::outputs::Outputs;
use self::parts::{items, Item, Part, CROSSES};
use self::uses::numbers;
use self::waiting::{PutOff, Waiting};
use crate::node::NodeId;
use crate::order::Tid;
use crate::program::Call;
use crate::rows::Rows;

pub use self::exchange::Exchange;

/// Events of one handler, each with the place of its transaction.
#[derive(Clone, Debug)]
pub struct HandlerEvents {
    /// The handler, by its number in the program.
    pub handler: usize,
    /// The places of the transactions, ascending.
    pub tids: Vec<u64>,
    /// The events, with the columns of the handler's stream.
    pub batch: Batch,
}

/// Rows of a table as they are at the places of transactions, for another owner of rows of these.
#[derive(Clone, Debug)]
pub struct GivenRows {
    /// The table.
    pub table: TableId,
    /// The places of the transactions, ascending. A transaction may have several rows, in the order
    /// in which it mentions them.
    pub tids: Vec<u64>,
    /// The rows: the columns of the table, and whether the row exists. If it does not, only its key
    /// counts.
    pub batch: Batch,
}

/// Keys of rows that the node that executes an epoch wants from their owner.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The place of the epoch's last transaction.
    pub last: u64,
    /// The tables, each once and with keys. A batch has the columns of the key.
    pub keys: Vec<(TableId, Batch)>,
}

/// Rows of a table as they are before an epoch, for the node that executes it, or after it, for
/// their owner.
#[derive(Clone, Debug)]
pub struct LentRows {
    /// The table.
    pub table: TableId,
    /// The rows, as in [`GivenRows`].
    pub batch: Batch,
}

/// A message between nodes. Its batches may have any schema, as long as they have the right arrays.
#[derive(Clone, Debug)]
pub enum ColumnMessage {
    /// The events that the sender received, of transactions with rows of the receiver. It is the
    /// first message of an epoch, and there is exactly one for each pair of nodes. If one node
    /// executes the epoch, it gets all events, and the others none.
    Events(Vec<HandlerEvents>),
    /// To the sole owner of all rows: events and calls that the sender received. Many calls are
    /// several messages.
    Work {
        /// The events.
        events: Vec<HandlerEvents>,
        /// The calls.
        calls: Vec<(Tid, Call)>,
        /// Whether no more follow.
        is_last: bool,
    },
    /// From the sole owner: results of these calls, in their order.
    Results {
        /// The results.
        results: Vec<(Tid, std::result::Result<Value, Abort>)>,
        /// Whether no more follow.
        is_last: bool,
    },
    /// Rows of the sender.
    Rows(Vec<GivenRows>),
    /// From the node that executes the epoch: keys of rows of the receiver.
    Wanted(Wanted),
    /// To the node that executes the epoch: the wanted rows, in the same order. From it: the rows of
    /// the receiver that may have changed. This is the last message of the epoch, and there is
    /// exactly one for each other node.
    Lent {
        /// The place of the epoch's last transaction, or 0 if it has none.
        last: u64,
        /// The rows.
        rows: Vec<LentRows>,
    },
}

/// Messages to other nodes, in the order in which they must be sent.
pub type ColumnOutbox = Vec<(NodeId, ColumnMessage)>;

pub use tidemill_txn::execute::{ColumnOutput, ABORTED};

/// The outcome of an epoch on one node. Each transaction is reported by one node: the owner of the
/// first row that it mentions, or the one that received it if it mentions none.
#[derive(Clone, Debug, Default)]
pub struct ColumnOutcome {
    /// The outputs, by stream.
    pub outputs: Vec<ColumnOutput>,
    /// The counts of transactions, by handler. There are none if a sole owner has executed the epoch.
    pub counts: Vec<HandlerCounts>,
    /// The results of events, if a sole owner has executed the epoch.
    pub results: SoleResults,
    /// The number of transactions that this node has run, whichever node reports them.
    pub transactions: usize,
    /// The number of passes.
    pub passes: usize,
}

/// The results of events that a sole owner of all rows has executed, beside the outputs.
#[derive(Clone, Debug, Default)]
pub struct SoleResults {
    /// The places of calls, ascending. The nodes that received them count their results.
    pub calls: Vec<u64>,
    /// The number of transactions that committed, with those of calls.
    pub committed: u64,
    /// The number of those that aborted, without calls and without failed functions.
    pub aborted: u64,
    /// The number of those whose functions failed, without calls.
    pub failed: u64,
    /// Those that are refused as a whole, because an event would be too long: the input stream, and why.
    pub refused: Vec<(StreamId, Abort)>,
    /// The transactions whose functions failed: the place of the event, or 0 for a slide of a window,
    /// the handler, and the abort. Results of calls are left out.
    pub faults: Vec<(u64, usize, Abort)>,
    /// The handlers whose functions gave another result when they ran again, once for each time.
    pub unstable: Vec<usize>,
}

/// The distance at which the lists of rows are prefetched, in transactions.
const AHEAD: usize = 12;

/// The means of a step.
struct Site<'s> {
    exchange: &'s mut Exchange,
    rows: &'s mut Rows,
    pool: &'s dyn Pool,
    out: &'s mut ColumnOutbox,
}

/// An epoch on one node. The rows belong to it until it [finishes](ColumnEpoch::finish) or is
/// [abandoned](ColumnEpoch::abandon), because rows of other owners are among them.
pub struct ColumnEpoch {
    me: NodeId,
    way: Way,
    parts: Vec<Part>,
    /// Whether the events of each node are here.
    announced: Vec<bool>,
    /// Rows that arrived before the events of all nodes.
    early: Vec<(NodeId, GivenRows)>,
    /// The number of transactions that this node runs.
    transactions: usize,
    /// The place of the last of them.
    last: Option<u64>,
    waiting: Waiting,
    given: Vec<Given>,
    guests: Guests,
    outputs: Outputs,
    /// The number of the last version that this epoch has written.
    seq: Seq,
    passes: usize,
    has_begun: bool,
}

impl ColumnEpoch {
    /// Begins an epoch with the events that this node received. Adds a message for each other node
    /// to `out`. If there is none, everything runs at once. If a node `executes` the epoch alone,
    /// only that node gets a message. All nodes must be told the same.
    ///
    /// # Errors
    /// If the events are not those of handlers that [are executed by column](Exchange::takes), if
    /// their places do not rise, or if there is no node that `executes`.
    pub fn begin(
        exchange: &mut Exchange,
        rows: &mut Rows,
        pool: &dyn Pool,
        (own, executes): (Vec<HandlerEvents>, Option<NodeId>),
        out: &mut ColumnOutbox,
    ) -> Result<ColumnEpoch> {
        let (me, nodes) = (exchange.me, usize::from(exchange.owners.nodes()));
        let (tables, last) = rows.tables_mut();
        exchange.executor.skip_to(last);
        exchange.pass.prepare(tables.len(), nodes);
        exchange.waiting.clear(0);
        if executes.is_some_and(|node| usize::from(node.0) >= nodes) {
            return Err(Error::internal("the node that executes an epoch is not there"));
        }
        let way = match executes.filter(|_| nodes > 1) {
            Some(node) if node == me => {
                Way::Here(Box::new(Gathering::new(std::mem::take(&mut exchange.lent))))
            }
            executes => {
                exchange.lent.forget();
                executes.map_or(Way::Everywhere, Way::There)
            }
        };
        let mut epoch = ColumnEpoch {
            me,
            way,
            parts: Vec::with_capacity(own.len()),
            announced: (0..nodes).map(|node| node == usize::from(me.0)).collect(),
            early: Vec::new(),
            transactions: 0,
            last: None,
            waiting: std::mem::take(&mut exchange.waiting),
            given: Vec::new(),
            guests: Guests::new(tables.len()),
            outputs: Outputs::new(exchange.handlers),
            seq: last,
            passes: 0,
            has_begun: false,
        };
        if let Way::There(node) = epoch.way {
            epoch.last = own.iter().filter_map(|events| events.tids.last()).max().copied();
            out.push((node, ColumnMessage::Events(own)));
            return Ok(epoch);
        }
        let mut to: Vec<Vec<HandlerEvents>> = vec![Vec::new(); nodes];
        for events in own {
            let part = epoch.part(exchange, events, None)?;
            if let Way::Everywhere = epoch.way {
                part.send(&mut to);
            }
            epoch.parts.push(part);
        }
        if let Way::Everywhere = epoch.way {
            for (node, events) in (0..).map(NodeId).zip(to).filter(|(node, _)| *node != me) {
                out.push((node, ColumnMessage::Events(events)));
            }
        }
        epoch.step(&mut Site { exchange, rows, pool, out })?;
        Ok(epoch)
    }

    /// Takes a message of another node. Those of one node come in their order.
    ///
    /// # Errors
    /// If the message does not fit. The epoch can then only be [abandoned](ColumnEpoch::abandon).
    pub fn receive(
        &mut self,
        from: NodeId,
        message: ColumnMessage,
        exchange: &mut Exchange,
        rows: &mut Rows,
        pool: &dyn Pool,
        out: &mut ColumnOutbox,
    ) -> Result<()> {
        let announced = self.announced.get_mut(usize::from(from.0)).filter(|_| from != self.me);
        let Some(announced) = announced else {
            return Err(Error::internal(format!("there is no other node {}", from.0)));
        };
        let mut site = Site { exchange, rows, pool, out };
        match (message, &self.way) {
            (ColumnMessage::Events(all), Way::Everywhere | Way::Here(_)) => {
                if std::mem::replace(announced, true) {
                    let what = format!("node {} has sent its events twice", from.0);
                    return Err(Error::internal(what));
                }
                for events in all {
                    let part = self.part(site.exchange, events, Some(from))?;
                    self.parts.push(part);
                }
            }
            (ColumnMessage::Rows(all), Way::Everywhere) => {
                self.early.extend(all.into_iter().map(|rows| (from, rows)));
            }
            (ColumnMessage::Lent { rows, .. }, Way::Here(_)) => {
                self.lent(from, rows, site.exchange)?;
            }
            (ColumnMessage::Wanted(wanted), Way::There(node)) if *node == from => {
                return self.lend(wanted, from, &mut site);
            }
            (ColumnMessage::Lent { last, rows }, Way::There(node)) if *node == from => {
                return self.take_back((last, rows), from, &mut site);
            }
            _ => {
                let what = format!("node {} sends a message of another kind of epoch", from.0);
                return Err(Error::internal(what));
            }
        }
        self.step(&mut site)
    }

    /// Creates a part of events that this node received, or another one.
    fn part(
        &self,
        exchange: &Exchange,
        events: HandlerEvents,
        from: Option<NodeId>,
    ) -> Result<Part> {
        let runs_all = matches!(self.way, Way::Here(_));
        Part::new(exchange, self.parts.len(), events, (from, runs_all))
    }

    /// Whether all transactions have run, and all rows that other nodes need have been sent.
    pub fn is_done(&self) -> bool {
        self.has_begun && self.waiting.is_over()
    }

    /// Ends the epoch, which is [done](ColumnEpoch::is_done). Ends it for the rows, too.
    pub fn finish(mut self, exchange: &mut Exchange, rows: &mut Rows) -> ColumnOutcome {
        assert!(self.is_done(), "all transactions have run");
        self.end(rows);
        exchange.waiting = std::mem::take(&mut self.waiting);
        if let Way::Here(gathering) = std::mem::replace(&mut self.way, Way::Everywhere) {
            exchange.lent = gathering.end(exchange);
        }
        let (outputs, counts) = self.outputs.finish(&self.parts);
        let (transactions, passes) = (self.transactions, self.passes);
        let results = SoleResults::default();
        ColumnOutcome { outputs, counts, results, transactions, passes }
    }

    /// Ends the epoch although it is not done. The rows have changed, but can go back to a
    /// snapshot, and have no rows of other owners.
    pub fn abandon(mut self, rows: &mut Rows) {
        self.end(rows);
    }

    fn end(&mut self, rows: &mut Rows) {
        if let Some(last) = self.last {
            rows.has_executed(self.seq, Tid(last));
        }
        rows.end_epoch();
        std::mem::replace(&mut self.guests, Guests::new(0)).leave(rows);
    }

    /// Runs a pass, if anything is ready.
    fn step(&mut self, site: &mut Site<'_>) -> Result<()> {
        if let Way::Here(_) = self.way {
            return self.step_here(site);
        }
        if !self.announced.iter().all(|announced| *announced) {
            return Ok(());
        }
        if !self.has_begun {
            self.has_begun = true;
            let items = items(&self.parts)?;
            (self.transactions, self.last) = (items.len(), items.last().map(|item| item.tid));
            self.first_pass(&items, site)?;
        }
        let mut ready = Vec::new();
        for rows in std::mem::take(&mut self.early) {
            let (parts, waiting) = (&self.parts, &mut self.waiting);
            let number = self.given.len() as u32;
            let given = Given::take(site.exchange, rows, number, parts, waiting, &mut ready)?;
            self.given.push(given);
        }
        ready.sort_unstable();
        let mut pass = std::mem::take(&mut site.exchange.pass);
        for (nth, number) in ready.iter().copied().enumerate() {
            self.waiting.prefetch_ahead(&ready, nth);
            while let Some(free) = self.waiting.next_free(number) {
                self.advance(free, &mut pass, site);
            }
            self.advance(number, &mut pass, site);
        }
        while let Some(free) = self.waiting.next_free(u32::MAX) {
            self.advance(free, &mut pass, site);
        }
        self.execute(&mut pass, site)?;
        site.exchange.pass = pass;
        Ok(())
    }

    /// Goes through all transactions, and puts off those that can't run now.
    fn first_pass(&mut self, items: &[Item], site: &mut Site<'_>) -> Result<()> {
        let mut pass = std::mem::take(&mut site.exchange.pass);
        pass.reserve(items.len());
        let handler = |part: &Part| {
            let of = site.exchange.program.handler(part.handler);
            of.expect("the events were checked").handler
        };
        let handlers: Vec<u32> = self.parts.iter().map(handler).collect();
        let crosses = |part: &Part| part.flags.iter().any(|flags| flags & CROSSES != 0);
        self.outputs.all = !self.parts.iter().any(crosses);
        if self.outputs.all {
            for Item { part: number, row, .. } in items.iter().copied() {
                let part = &mut self.parts[number as usize];
                pass.run((number, row), part, handlers[number as usize]);
            }
            self.execute(&mut pass, site)?;
            site.exchange.pass = pass;
            return Ok(());
        }
        self.waiting.clear(self.parts.iter().map(|part| part.uses.own_rows()).sum());
        for (nth, item) in items.iter().enumerate() {
            if let Some(Item { part, row, .. }) = items.get(nth + AHEAD) {
                let (uses, event) = (&self.parts[*part as usize].uses, *row as usize);
                numbers(uses.own(event)).for_each(|of| self.waiting.prefetch(uses.id(event, of).0));
            }
            let Item { tid, part: number, row } = *item;
            let (part, event) = (&mut self.parts[number as usize], row as usize);
            let own = || numbers(part.uses.own(event)).map(|nth| part.uses.id(event, nth));
            let is_blocked =
                own().fold(false, |any, (id, writes)| any | self.waiting.blocks(id, writes));
            let missing = part.uses.given(event).count_ones();
            let crosses = missing > 0;
            if !is_blocked && !crosses {
                pass.run((number, row), part, handlers[number as usize]);
                continue;
            }
            let mut put_off = PutOff::new((number, row), missing);
            put_off.is_exported = crosses && !is_blocked;
            self.waiting.put_off(tid, put_off, own());
            if crosses && !is_blocked {
                self.export(tid, number, row, &mut pass, site);
            }
        }
        self.waiting.are_all();
        self.execute(&mut pass, site)?;
        site.exchange.pass = pass;
        Ok(())
    }
}
