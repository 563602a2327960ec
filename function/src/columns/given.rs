//! The rows that other owners have sent.

use tidemill_core::{Batch, Error, Key, Result, SourceId, TableId};
use tidemill_txn::order::Run;
use tidemill_txn::program::{KeyValues, Keys};

use super::parts::Part;
use super::uses::{are_equal, encoded};
use super::waiting::Waiting;
use super::{Exchange, GivenRows};
use crate::node::NodeId;
use crate::rows::Rows;

/// Rows of a table that one owner has sent in one message.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) table: TableId,
    pub(super) keys: KeyValues,
    /// The rows as events. `None` while a pass has them, and when all have been installed.
    pub(super) run: Option<Run>,
    /// Whether each row exists.
    pub(super) exists: Vec<bool>,
    /// The number of rows that have not been installed.
    pub(super) left: usize,
    /// The lanes in the pass that is being prepared, of rows that exist and of others.
    pub(super) lanes: [Option<u32>; 2],
}

/// The place of a given row: the message and the row in it. There is none before it arrives.
pub(super) type Slot = Option<(u32, u32)>;

/// Everything that other owners have sent.
#[derive(Debug, Default)]
pub(super) struct AllGiven {
    pub(super) all: Vec<Given>,
    /// The rows of each transaction that is put off, one after the other.
    pub(super) slots: Vec<Slot>,
}

impl AllGiven {
    /// Takes rows from their owner. Appends the transactions that have all of their rows now, and
    /// that nothing blocks.
    pub(super) fn take(
        &mut self,
        exchange: &Exchange,
        (from, rows): (NodeId, GivenRows),
        parts: &[Part],
        waiting: &mut Waiting,
        ready: &mut Vec<u32>,
    ) -> Result<()> {
        let GivenRows { table, tids, batch } = rows;
        let wrong = |what: String| {
            Error::internal(format!("rows of table {} from node {}: {what}", table.0, from.0))
        };
        let Some(of) = exchange.program.table(table) else {
            return Err(wrong("no transaction is executed on them by column".into()));
        };
        let batch = batch.with_schema(&of.rows_schema).map_err(wrong)?;
        of.check(exchange.program.program(), table, &batch).map_err(wrong)?;
        if tids.len() != batch.len() {
            return Err(wrong(format!("{} places for {} rows", tids.len(), batch.len())));
        }
        let Keys { of: keys, .. } = of.key.of(&batch);
        let number = self.all.len() as u32;
        // The last transaction, and its use after that of the last row.
        let (mut at, mut next, mut last) = (0, 0, None);
        for (row, tid) in tids.iter().enumerate() {
            if last != Some(*tid) {
                let found = waiting.find(*tid, at).filter(|_| last.is_none_or(|last| last < *tid));
                let unknown = || wrong(format!("transaction {tid} does not wait, or is not next"));
                (at, next, last) = (found.ok_or_else(unknown)?, 0, Some(*tid));
            }
            let put_off = &mut waiting.put_offs[at];
            let (part, event) = (&parts[put_off.part as usize], put_off.row as usize);
            let mut uses = part.given(exchange.me, event).enumerate().skip(next);
            let is_it = |use_: &super::uses::Use| {
                use_.table == table
                    && use_.owners[event] == from.0
                    && are_equal((&use_.keys, event), (&keys, row))
            };
            let Some((nth, _)) = uses.find(|(_, (_, use_))| is_it(use_)) else {
                return Err(wrong(format!("transaction {tid} does not use a row")));
            };
            next = nth + 1;
            let slot = &mut self.slots[put_off.slots as usize + nth];
            if slot.replace((number, row as u32)).is_some() {
                return Err(wrong(format!("transaction {tid} has a row already")));
            }
            put_off.missing -= 1;
            if put_off.missing == 0 && !waiting.is_blocked(at as u32) {
                ready.push(at as u32);
            }
        }
        let columns = batch.schema().len();
        let exists = batch.bools(columns - 1).expect("the batch was checked");
        let exists = exists.values().iter().collect();
        let run = Run {
            stream: of.rows,
            source: SourceId(number),
            batch,
            times: tids.iter().map(|tid| *tid as i64).collect(),
            offsets: tids,
            admitted: None,
        };
        let (left, lanes) = (run.offsets.len(), [None; 2]);
        self.all.push(Given { table, keys, run: Some(run), exists, left, lanes });
        Ok(())
    }
}

/// The rows of other owners that are in the node's tables, by table.
#[derive(Debug)]
pub(super) struct Guests {
    words: Vec<Vec<u64>>,
    keys: Vec<Vec<Key>>,
}

/// Rows to be admitted, in the order of their installation.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// The keys that are words, and whether each row exists.
    words: Vec<(u64, bool)>,
    /// Other keys.
    keys: Vec<(Key, bool)>,
    /// The place of each in the order of the pass.
    places: Vec<u32>,
}

impl Arrivals {
    /// Adds a row that is installed at this place.
    pub(super) fn add(&mut self, keys: &KeyValues, row: usize, exists: bool, place: usize) {
        match keys {
            KeyValues::Words(words) => self.words.push((words[row], exists)),
            KeyValues::Columns(batch) => self.keys.push((key(batch, row), exists)),
        }
        self.places.push(place as u32);
    }
}

fn key(keys: &Batch, row: usize) -> Key {
    Key(encoded(keys, row).into())
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
        arrivals: &Arrivals,
        mut unneeded: impl FnMut(usize),
    ) {
        let of = &mut rows.tables_mut().0[table];
        let Arrivals { words, keys, places } = arrivals;
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
