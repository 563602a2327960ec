//! Epochs that one node executes, on rows that the other nodes lend it.
//!
//! The transactions of an epoch may use the same rows again and again. Then most of them wait for
//! each other, and nodes that exchange rows for each transaction have many passes. It takes less
//! time if one node runs all transactions, each row goes there once, and comes back once:
//!
//! ```text
//!   node 0, which executes                   node 1, which lends
//!   ──────────────────────                   ───────────────────
//!   events ◀────────── Events ────────────── events
//!          ─────────── Wanted y, z ────────▶
//!          ◀────────── Lent y, z ───────────
//!   one pass: install y and z, run all
//!   transactions, export y, which has changed
//!          ─────────── Lent y ─────────────▶ install y
//! ```
//!
//! The node that executes remembers the rows that it was lent. As long as it executes one epoch
//! after the other, nobody else writes them, so it wants only rows that it does not know. A node
//! that knows all rows waits for nobody. In any other epoch the rows are [forgotten](Lent::forget).

use std::collections::HashMap;

use foldhash::fast::FixedState;
use tidemill_core::wire::columns_bytes;
use tidemill_core::{Batch, Error, Key, Result, SourceId, StreamId, TableId};
use tidemill_txn::execute::{ColumnRow, ColumnStream, Output};
use tidemill_txn::order::{Epoch, Lane, Ranked, Run};
use tidemill_txn::program::KeyValues;

use super::given::Given;
use super::key_list::{KeyList, UseOf};
use super::parts::{items, Item, Part};
use super::uses::{are_equal, encoded, numbers, Uses};
use super::{ColumnEpoch, ColumnMessage, Exchange, LentRows, Site, Wanted};
use crate::node::NodeId;

/// The most bytes of lent rows that a node remembers. With more it forgets all.
const LENT_BYTES_MAX: usize = 64 << 20;
/// The number of old versions of remembered rows from which they are dropped, if there are also
/// more of them than rows.
const OLD_ROWS_MAX: usize = 1 << 14;
/// The number of messages with remembered rows from which these are put together.
const MESSAGES_MAX: usize = 256;

/// The way in which the nodes execute an epoch.
#[derive(Debug)]
pub(super) enum Way {
    /// Each node runs the transactions that use its rows.
    Everywhere,
    /// This node runs all transactions.
    Here(Box<Gathering>),
    /// That node runs all transactions.
    There(NodeId),
}

/// The state of an epoch on the node that executes it.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    lent: Lent,
    /// The rows of other owners, each once.
    needs: Vec<Need>,
    /// For each node and table, the rows that the node was asked for, by their places in `needs`.
    wanted: Vec<Vec<(TableId, Vec<u32>)>>,
    /// The number of nodes that have not answered. `None` before they are asked.
    missing: Option<usize>,
}

/// A row of another owner that transactions of an epoch use.
#[derive(Debug)]
struct Need {
    table: TableId,
    /// The number of the row among those that are remembered of its table.
    entry: u32,
    owner: u16,
    /// A transaction that uses it: the part, the event, and the number of the use.
    of: (u32, u32, u8),
    /// Whether a transaction may write it.
    is_written: bool,
}

/// Rows that other nodes have lent to this one, as the last epoch left them.
#[derive(Debug, Default)]
pub(super) struct Lent {
    tables: Vec<LentTable>,
    /// The number of rows and bytes in the messages that have them.
    rows: usize,
    bytes: usize,
    messages: Vec<Given>,
    epoch: u64,
}

/// Rows of a table, by key.
#[derive(Debug, Default)]
struct LentTable {
    words: HashMap<u64, u32, FixedState>,
    keys: HashMap<Vec<u8>, u32, FixedState>,
    entries: Vec<Entry>,
}

/// A row that was lent, or is needed.
#[derive(Debug, Default)]
struct Entry {
    /// The message that has it, and the row there. `None` if it has not been lent.
    at: Option<(u32, u32)>,
    /// The last epoch that needs it, and its number among the needs of that epoch.
    epoch: u64,
    need: u32,
}

impl Lent {
    /// Forgets all rows: other nodes may write them from now on.
    pub(super) fn forget(&mut self) {
        *self = Lent::default();
    }

    /// Finds the rows of other owners that events use.
    fn needs(&mut self, parts: &[Part], tables: usize) -> Vec<Need> {
        self.tables.resize_with(tables, LentTable::default);
        self.epoch += 1;
        let mut needs: Vec<Need> = Vec::new();
        for (number, part) in (0..).zip(parts) {
            for event in 0..part.flags.len() {
                for nth in numbers(part.uses.given(event)) {
                    let table = part.uses.rows[nth].table;
                    let lent = &mut self.tables[table.index()];
                    let new = lent.entries.len() as u32;
                    let entry = match &part.uses.rows[nth].keys {
                        KeyValues::Words(words) => *lent.words.entry(words[event]).or_insert(new),
                        KeyValues::Columns(keys) => {
                            *lent.keys.entry(encoded(keys, event)).or_insert(new)
                        }
                    };
                    if entry == new {
                        lent.entries.push(Entry::default());
                    }
                    let of = &mut lent.entries[entry as usize];
                    if of.epoch != self.epoch {
                        (of.epoch, of.need) = (self.epoch, needs.len() as u32);
                        let owner = part.uses.owner(event, nth);
                        let of = (number, event as u32, nth as u8);
                        needs.push(Need { table, entry, owner, of, is_written: false });
                    }
                    needs[of.need as usize].is_written |= part.uses.may_write(event, nth);
                }
            }
        }
        needs
    }

    fn entry(&mut self, need: &Need) -> &mut Entry {
        &mut self.tables[need.table.index()].entries[need.entry as usize]
    }

    /// Remembers rows in this order, as they are now.
    fn remember<'n>(&mut self, given: Given, needs: impl Iterator<Item = &'n Need>) {
        let number = self.messages.len() as u32;
        (self.rows, self.bytes) =
            (self.rows + given.batch.len(), self.bytes + columns_bytes(&given.batch));
        self.messages.push(given);
        for (row, need) in (0..).zip(needs) {
            self.entry(need).at = Some((number, row));
        }
    }

    /// Drops old versions of rows, if there are too many, and all rows if these take too much memory.
    fn tidy(&mut self, exchange: &Exchange) {
        let entries: usize = self.tables.iter().map(|table| table.entries.len()).sum();
        let are_many = self.messages.len() > MESSAGES_MAX;
        if are_many || (self.rows > 2 * entries && self.rows > OLD_ROWS_MAX + entries) {
            let messages = std::mem::take(&mut self.messages);
            (self.rows, self.bytes) = (0, 0);
            for number in 0..self.tables.len() {
                let table = TableId(number as u16);
                let lent = &mut self.tables[number];
                let number = self.messages.len() as u32;
                let mut rows = Vec::with_capacity(lent.entries.len());
                for at in lent.entries.iter_mut().filter_map(|entry| entry.at.as_mut()) {
                    rows.push(std::mem::replace(at, (number, rows.len() as u32)));
                }
                if rows.is_empty() {
                    continue;
                }
                // Batches of other tables have other columns.
                let mut places = vec![0; messages.len()];
                let mut batches = Vec::new();
                for (place, given) in places.iter_mut().zip(&messages) {
                    if given.table == table {
                        *place = batches.len() as u32;
                        batches.push(&given.batch);
                    }
                }
                let exists =
                    rows.iter().map(|(m, row)| messages[*m as usize].exists[*row as usize]);
                let exists = exists.collect();
                rows.iter_mut().for_each(|(message, _)| *message = places[*message as usize]);
                let batch = Batch::interleave(&batches, &rows);
                let of = exchange.program.table(table).expect("rows of it were lent");
                self.rows += batch.len();
                self.bytes += columns_bytes(&batch);
                self.messages.push(Given::remembered(table, of, batch, exists));
            }
        }
        if self.bytes > LENT_BYTES_MAX {
            self.forget();
        }
    }
}

impl Gathering {
    /// Begins an epoch.
    pub(super) fn new(lent: Lent) -> Gathering {
        Gathering { lent, ..Gathering::default() }
    }

    /// Returns the rows that it remembers.
    pub(super) fn end(self, exchange: &Exchange) -> Lent {
        let mut lent = self.lent;
        lent.tidy(exchange);
        lent
    }

    /// Finds the rows that are needed, and asks their owners for those that are not known.
    fn ask(&mut self, parts: &[Part], last: u64, site: &mut Site<'_>) {
        let (nodes, tables) = (site.exchange.owners.nodes(), site.exchange.program.program());
        self.needs = self.lent.needs(parts, tables.tables.len());
        self.wanted = vec![Vec::new(); nodes.into()];
        let mut keys: Vec<Vec<KeyList>> = (0..nodes).map(|_| Vec::new()).collect();
        for (nth, need) in (0..).zip(&self.needs) {
            let entry = &self.lent.tables[need.table.index()].entries[need.entry as usize];
            if entry.at.is_some() {
                continue;
            }
            let owner = usize::from(need.owner);
            let (wanted, keys) = (&mut self.wanted[owner], &mut keys[owner]);
            let known = wanted.iter().position(|(table, _)| *table == need.table);
            let at = known.unwrap_or_else(|| {
                wanted.push((need.table, Vec::new()));
                keys.push(KeyList::default());
                keys.len() - 1
            });
            wanted[at].1.push(nth);
            keys[at].add(need.of(parts));
        }
        let mut missing = 0;
        for (node, (wanted, keys)) in (0..).map(NodeId).zip(self.wanted.iter().zip(keys)) {
            if wanted.is_empty() {
                continue;
            }
            missing += 1;
            let tables = wanted.iter().zip(keys).map(|((table, _), keys)| {
                let of = site.exchange.program.table(*table).expect("it is used");
                (*table, keys.batch(of, parts))
            });
            let wanted = Wanted { last, keys: tables.collect() };
            site.out.push((node, ColumnMessage::Wanted(wanted)));
        }
        self.missing = Some(missing);
    }

    /// Takes the rows that a node lends.
    fn take(
        &mut self,
        (from, rows): (NodeId, Vec<LentRows>),
        parts: &[Part],
        exchange: &Exchange,
    ) -> Result<()> {
        let wanted = std::mem::take(&mut self.wanted[usize::from(from.0)]);
        let wrong =
            || Error::internal(format!("node {} lends other rows than those wanted", from.0));
        let Some(missing) = self.missing.as_mut().filter(|_| !wanted.is_empty()) else {
            return Err(wrong());
        };
        *missing -= 1;
        if rows.len() != wanted.len() {
            return Err(wrong());
        }
        for (LentRows { table, batch }, (wanted, needs)) in rows.into_iter().zip(wanted) {
            let given = Given::lent(exchange, from, table, &batch)?;
            let is_it = |(row, need): (usize, &u32)| {
                let (part, event, nth) = self.needs[*need as usize].of;
                let keys = &parts[part as usize].uses.rows[usize::from(nth)].keys;
                are_equal((keys, event as usize), (&given.keys, row))
            };
            if table != wanted
                || given.batch.len() != needs.len()
                || !needs.iter().enumerate().all(is_it)
            {
                return Err(wrong());
            }
            self.lent.remember(given, needs.iter().map(|need| &self.needs[*need as usize]));
        }
        Ok(())
    }
}

impl Need {
    /// Returns a use of the row.
    fn of<'p>(&self, parts: &'p [Part]) -> UseOf<'p> {
        let (number, event, nth) = self.of;
        let part = &parts[number as usize];
        UseOf { number, part, event: event as usize, nth: nth.into() }
    }
}

impl ColumnEpoch {
    /// Takes the rows that a node lends to this one, which executes the epoch.
    pub(super) fn lent(
        &mut self,
        from: NodeId,
        rows: Vec<LentRows>,
        exchange: &Exchange,
    ) -> Result<()> {
        let Way::Here(gathering) = &mut self.way else {
            return Err(Error::internal("it does not execute the epoch"));
        };
        gathering.take((from, rows), &self.parts, exchange)
    }

    /// Executes the epoch, if all events and rows are here.
    pub(super) fn step_here(&mut self, site: &mut Site<'_>) -> Result<()> {
        let Way::Here(gathering) = &mut self.way else { return Ok(()) };
        if self.has_begun || !self.announced.iter().all(|announced| *announced) {
            return Ok(());
        }
        if gathering.missing.is_none() {
            let last = self.parts.iter().filter_map(|part| part.run().offsets.last()).max();
            self.last = last.copied();
            gathering.ask(&self.parts, self.last.unwrap_or(0), site);
        }
        if gathering.missing != Some(0) {
            return Ok(());
        }
        self.has_begun = true;
        let items = items(&self.parts)?;
        self.transactions = items.len();
        self.outputs.all = true;
        let nodes = site.exchange.owners.nodes();
        let mut pass = std::mem::take(&mut site.exchange.pass);
        pass.reserve(items.len() + 2 * gathering.needs.len());
        self.given = std::mem::take(&mut gathering.lent.messages);
        for need in &gathering.needs {
            let (message, row) = gathering.lent.entry(need).at.expect("all have been lent");
            let of = site.exchange.program.table(need.table).expect("it is used");
            let given = &mut self.given[message as usize];
            pass.install(message, row, given, [of.install, of.remove]);
        }
        for Item { part: number, row, .. } in items {
            let part = &mut self.parts[number as usize];
            let of = site.exchange.program.handler(part.handler).expect("it was checked");
            pass.run((number, row), part, of.handler);
        }
        for need in gathering.needs.iter().filter(|need| need.is_written) {
            let of = site.exchange.program.table(need.table).expect("it is used");
            let to = &[need.owner][usize::from(nodes == 2)..];
            pass.export(self.last.unwrap_or(0), need.of(&self.parts), of.export, to);
        }
        self.execute(&mut pass, site)?;
        site.exchange.pass = pass;
        Ok(())
    }

    /// Remembers the rows that this node has changed, and returns them to their owners.
    pub(super) fn give_back(
        &mut self,
        changed: Vec<(TableId, Batch)>,
        to: Vec<Vec<LentRows>>,
        site: &mut Site<'_>,
    ) -> Result<()> {
        let Way::Here(gathering) = &mut self.way else { return Ok(()) };
        gathering.lent.messages = std::mem::take(&mut self.given);
        for (table, batch) in changed {
            let given = Given::lent(site.exchange, self.me, table, &batch)?;
            let Gathering { lent, needs, .. } = &mut **gathering;
            let is_of = |need: &&Need| need.is_written && need.table == table;
            lent.remember(given, needs.iter().filter(is_of));
        }
        for (node, rows) in (0..).map(NodeId).zip(to).filter(|(node, _)| *node != self.me) {
            let last = self.last.unwrap_or(0);
            site.out.push((node, ColumnMessage::Lent { last, rows }));
        }
        Ok(())
    }

    /// Lends rows to the node that executes the epoch.
    pub(super) fn lend(&mut self, wanted: Wanted, to: NodeId, site: &mut Site<'_>) -> Result<()> {
        self.last = self.last.max(Some(wanted.last));
        let mut epoch = Epoch::default();
        for (table, keys) in wanted.keys {
            let wrong =
                |what: String| Error::internal(format!("keys of table {}: {what}", table.0));
            let of = site.exchange.program.table(table);
            let of = of.ok_or_else(|| wrong("no transaction uses it by column".into()))?;
            let keys = keys.with_schema(&of.keys_schema).map_err(wrong)?;
            epoch.add(run(of.keys, table, keys), |_| Some(of.export));
        }
        let outputs = self.run_own(&epoch, site)?;
        let rows =
            outputs.into_iter().map(|output| match site.exchange.program.stream(output.stream) {
                ColumnStream::Exported(table) => Ok(LentRows { table, batch: output.batch }),
                _ => Err(Error::internal("a row was not lent")),
            });
        let rows: Vec<LentRows> = rows.collect::<Result<_>>()?;
        let mut by_table: HashMap<u16, LentRows, FixedState> =
            rows.into_iter().map(|rows| (rows.table.0, rows)).collect();
        let in_order = epoch.runs.iter().filter_map(|run| by_table.remove(&(run.source.0 as u16)));
        let (last, rows) = (wanted.last, in_order.collect());
        site.out.push((to, ColumnMessage::Lent { last, rows }));
        Ok(())
    }

    /// Takes back the rows that the node that executed the epoch has changed.
    pub(super) fn take_back(
        &mut self,
        (last, rows): (u64, Vec<LentRows>),
        from: NodeId,
        site: &mut Site<'_>,
    ) -> Result<()> {
        self.last = self.last.max(Some(last).filter(|last| *last > 0));
        let mut epoch = Epoch::default();
        for LentRows { table, batch } in rows {
            let Given { batch, exists, .. } = Given::lent(site.exchange, from, table, &batch)?;
            let of = site.exchange.program.table(table).expect("it was checked");
            let tables = &site.exchange.program.program().tables;
            let row = ColumnRow { table, writes: true, key: of.key.clone() };
            let uses = Uses::of(&[row], tables, (&site.exchange.owners, self.me.0), &batch);
            if (0..batch.len()).any(|row| uses.owner(row, 0) != self.me.0) {
                return Err(Error::internal(format!("node {} returns rows of others", from.0)));
            }
            let key = &site.exchange.program.program().tables[table.index()].key;
            let is_here = |row: usize| {
                let values: Vec<_> = key.iter().map(|column| batch.value(*column, row)).collect();
                site.rows.get(table, &Key::of(&values)).is_some()
            };
            let handler = |row: usize| match exists[row] {
                true => Some(of.install),
                // Only a row that is here can be removed.
                false => is_here(row).then_some(of.remove),
            };
            epoch.add(run(of.rows, table, batch.clone()), handler);
        }
        self.run_own(&epoch, site)?;
        self.has_begun = true;
        Ok(())
    }

    /// Runs built-in handlers on the rows of this node.
    fn run_own(&mut self, epoch: &Epoch, site: &mut Site<'_>) -> Result<Vec<Output>> {
        if epoch.order.is_empty() {
            return Ok(Vec::new());
        }
        let (tables, _) = site.rows.tables_mut();
        let outcome = site.exchange.executor.run(site.pool, tables, epoch)?;
        self.seq = outcome.seq;
        Ok(outcome.outputs)
    }
}

/// Returns keys or rows of a table as events of a built-in handler.
fn run(stream: StreamId, table: TableId, batch: Batch) -> Run {
    let (times, offsets) = (vec![0; batch.len()], (0..batch.len() as u64).collect());
    Run { stream, source: SourceId(table.0.into()), batch, times, offsets, admitted: None }
}

/// Adding events to an epoch, in the order of its transactions.
trait Add {
    /// Adds a run, and its events for which there is a handler.
    fn add(&mut self, run: Run, handler: impl Fn(usize) -> Option<u32>);
}

impl Add for Epoch {
    fn add(&mut self, run: Run, handler: impl Fn(usize) -> Option<u32>) {
        let number = self.runs.len() as u32;
        let first = self.lanes.len();
        for row in 0..run.batch.len() {
            let Some(handler) = handler(row) else { continue };
            let known = self.lanes[first..].iter().position(|lane| lane.handler == handler);
            let lane = first + known.unwrap_or(self.lanes.len() - first);
            if lane == self.lanes.len() {
                self.lanes.push(Lane { run: number, handler });
            }
            self.order.push(Ranked { lane: lane as u32, row: row as u32 });
        }
        self.runs.push(run);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidemill_core::{Column, DataType, Value};
    use tidemill_txn::pool::SingleThread;
    use tidemill_txn::program::Builder;
    use tidemill_txn::schedule::Strategy;

    use super::*;
    use crate::columns::{ColumnOutbox, HandlerEvents};
    use crate::node::Owners;
    use crate::rows::Rows;

    /// A node that executes knows the rows of the other one, which gets only what has changed.
    #[test]
    fn versions_of_rows_that_come_back_are_counted() {
        let mut b = Builder::new("sums");
        let int = |name: &str| Column::new(name, DataType::Int);
        let sum = int("n").default(Value::Int(0));
        let table = b.table("sums", &["id"], vec![int("id"), sum]);
        let input = b.stream("events", vec![int("id"), int("n")]);
        let mut h = b.handler("add", input);
        let (id, n) = (h.column("id"), h.column("n"));
        let row = h.row(table, &[id]);
        let sum = h.read(row, "n");
        let sum = h.add(sum, n);
        h.set(row, "n", sum);
        let handler = h.done();
        let program = b.finish().unwrap();
        let schema = program.streams[input.index()].spec.schema.clone();
        let mut nodes: Vec<(Exchange, Rows)> = (0..2)
            .map(|node| {
                let (owners, me) = (Owners::equal(2), NodeId(node));
                let exchange = Exchange::new(&program, owners, me, Strategy::Serial).unwrap();
                (exchange, Rows::new(&program.tables, 7))
            })
            .collect();
        let mut last = 0;
        for round in 0..3u64 {
            let tids: Vec<u64> = (1..=40).map(|nth| 100 * round + nth).collect();
            let rows: Vec<Vec<Value>> =
                (0..40).map(|id| vec![Value::Int(id), Value::Int(1)]).collect();
            let batch = Batch::from_rows(Arc::clone(&schema), rows.iter().map(|row| &row[..]));
            let mut own = vec![vec![HandlerEvents { handler, tids, batch }], Vec::new()];
            let (mut epochs, mut queue) = (Vec::new(), ColumnOutbox::new());
            for (exchange, rows) in &mut nodes {
                let work = (own.remove(0), Some(NodeId(0)));
                let epoch = ColumnEpoch::begin(exchange, rows, &SingleThread, work, &mut queue);
                epochs.push(epoch.unwrap());
            }
            let mut wanted = 0;
            while !queue.is_empty() {
                let (to, message) = queue.remove(0);
                wanted += usize::from(matches!(message, ColumnMessage::Wanted(_)));
                let (exchange, rows) = &mut nodes[usize::from(to.0)];
                let (from, epoch) = (NodeId(1 - to.0), &mut epochs[usize::from(to.0)]);
                epoch.receive(from, message, exchange, rows, &SingleThread, &mut queue).unwrap();
            }
            assert_eq!(wanted, usize::from(round == 0), "known rows are not wanted again");
            for (epoch, (exchange, rows)) in epochs.into_iter().zip(&mut nodes) {
                assert!(epoch.is_done());
                epoch.finish(exchange, rows);
            }
            let (_, version) = nodes[1].1.tables_mut();
            assert!(version > last, "round {round}");
            last = version;
        }
        let all: usize = nodes.iter().map(|(_, rows)| rows.iter().count()).sum();
        assert_eq!(all, 40);
    }
}
