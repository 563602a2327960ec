//! The rows that other owners have sent.

use tidemill_core::{Batch, Error, Key, Result, TableId};
use tidemill_txn::execute::ColumnTable;
use tidemill_txn::program::{KeyValues, Keys};

use super::installs::Installs;
use super::parts::Part;
use super::uses::{are_equal, numbers, UseBits};
use super::waiting::Waiting;
use super::{Exchange, GivenRows};
use crate::node::NodeId;
use crate::rows::Rows;

/// Rows of a table that one owner has sent in one message.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) table: TableId,
    /// The transaction of each row.
    pub(super) tids: Vec<u64>,
    pub(super) keys: KeyValues,
    /// The columns of the table.
    pub(super) batch: Batch,
    /// Whether each row exists.
    pub(super) exists: Vec<bool>,
    /// The number of rows that have not been installed.
    pub(super) left: usize,
    /// The number of the message among those of which the pass that is being prepared has rows.
    pub(super) number: Option<u32>,
}

impl Given {
    /// Takes rows from their owner. Appends the transactions that have all of their rows now, and
    /// that nothing blocks. `number` is the number of the message.
    pub(super) fn take(
        exchange: &Exchange,
        (from, rows): (NodeId, GivenRows),
        number: u32,
        parts: &[Part],
        waiting: &mut Waiting,
        ready: &mut Vec<u32>,
    ) -> Result<Given> {
        let GivenRows { table, tids, batch } = rows;
        let wrong = |what| wrong(table, from, what);
        if tids.len() != batch.len() {
            return Err(wrong(format!("{} places for {} rows", tids.len(), batch.len())));
        }
        let given = Given::lent(exchange, from, table, &batch)?;
        let keys = &given.keys;
        // The last transaction, and its use after that of the last row.
        let (mut at, mut next, mut last) = (0, 0u32, None);
        for (row, tid) in tids.iter().enumerate() {
            if last != Some(*tid) {
                let found = waiting.find(*tid).filter(|_| last.is_none_or(|last| last < *tid));
                let unknown = || wrong(format!("transaction {tid} does not wait, or is not next"));
                (at, next, last) = (found.ok_or_else(unknown)?, 0, Some(*tid));
            }
            let (part, event) = waiting.event(at);
            let uses = &parts[part].uses;
            let is_it = |use_: &usize| {
                uses.rows[*use_].table == table
                    && uses.owner(event, *use_) == from.0
                    && are_equal((&uses.rows[*use_].keys, event), (keys, row))
            };
            // Those before have been given in this message.
            let given = uses.given(event);
            let left = given & UseBits::MAX.checked_shl(next).unwrap_or(0);
            let Some(use_) = numbers(left).find(is_it) else {
                return Err(wrong(format!("transaction {tid} does not use a row")));
            };
            next = use_ as u32 + 1;
            let nth = (given & ((1 << use_) - 1)).count_ones() as usize;
            match waiting.give(at as u32, nth, (number, row as u32)) {
                None => return Err(wrong(format!("transaction {tid} has a row already"))),
                Some(is_ready) => ready.extend(is_ready.then_some(at as u32)),
            }
        }
        let left = tids.len();
        Ok(Given { tids, left, ..given })
    }

    /// Takes rows from a node, of no transaction in particular. They are not freed when they have
    /// been installed.
    pub(super) fn lent(
        exchange: &Exchange,
        from: NodeId,
        table: TableId,
        batch: &Batch,
    ) -> Result<Given> {
        let wrong = |what| wrong(table, from, what);
        let Some(of) = exchange.program.table(table) else {
            return Err(wrong("no transaction is executed on them by column".into()));
        };
        let batch = batch.with_schema(&of.exported_schema).map_err(wrong)?;
        of.check(exchange.program.program(), table, &batch).map_err(wrong)?;
        let columns = of.rows_schema.len();
        let exists = batch.bools(columns).expect("the batch was checked").values();
        let exists = exists.iter().collect();
        let batch =
            Batch::new(of.rows_schema.clone(), batch.columns()[..columns].to_vec(), batch.len());
        Ok(Given::remembered(table, of, batch, exists))
    }

    /// Creates rows that are installed again and again.
    pub(super) fn remembered(
        table: TableId,
        of: &ColumnTable,
        batch: Batch,
        exists: Vec<bool>,
    ) -> Given {
        let Keys { of: keys, .. } = of.key.of(&batch);
        let tids = vec![0; batch.len()];
        Given { table, tids, keys, batch, exists, left: usize::MAX, number: None }
    }

    /// Notes that a pass is over. Frees the memory if all rows have been installed.
    pub(super) fn pass(&mut self) {
        self.number = None;
        if self.left == 0 {
            (self.tids, self.exists) = (Vec::new(), Vec::new());
            self.batch = self.batch.slice(0, 0).take(&[]);
            self.keys = KeyValues::Words(Vec::new());
        }
    }
}

fn wrong(table: TableId, from: NodeId, what: String) -> Error {
    Error::internal(format!("rows of table {} from node {}: {what}", table.0, from.0))
}

/// The rows of other owners that are in the node's tables, by table.
#[derive(Debug)]
pub(super) struct Guests {
    words: Vec<Vec<u64>>,
    keys: Vec<Vec<Key>>,
}

impl Guests {
    pub(super) fn new(tables: usize) -> Guests {
        Guests { words: vec![Vec::new(); tables], keys: vec![Vec::new(); tables] }
    }

    /// Admits rows of a table. Passes the place of each to `unneeded` that does not exist and was
    /// not here: it needs not be removed.
    pub(super) fn admit(
        &mut self,
        rows: &mut Rows,
        table: usize,
        installs: &Installs,
        mut unneeded: impl FnMut(usize),
    ) {
        let of = &mut rows.tables_mut().0[table];
        let Installs { words, keys, places, .. } = installs;
        let guests = &mut self.words[table];
        if !words.is_empty() {
            of.admit(words, |nth| {
                guests.push(words[nth].0);
                if !words[nth].1 {
                    unneeded(places[nth] as usize);
                }
            });
        }
        for ((key, exists), place) in keys.iter().zip(places) {
            if of.admit_by_key(key, *exists) {
                self.keys[table].push(key.clone());
                if !exists {
                    unneeded(*place as usize);
                }
            }
        }
    }

    /// Removes all of them.
    pub(super) fn leave(self, rows: &mut Rows) {
        let (tables, _) = rows.tables_mut();
        for (table, words) in tables.iter_mut().zip(self.words).filter(|(_, w)| !w.is_empty()) {
            table.evict(&words);
        }
        let (tables, _) = rows.tables_mut();
        for (table, keys) in tables.iter_mut().zip(self.keys) {
            keys.iter().for_each(|key| table.evict_by_key(key));
        }
    }
}
