//! The rows of this node that a pass exports, by table and in the order of their places.

use tidemill_core::{Batch, Error, Result, SourceId, TableId};
use tidemill_txn::execute::ColumnTable;
use tidemill_txn::order::Run;
use tidemill_txn::program::KeyValues;

use super::parts::Part;
use super::GivenRows;
use crate::node::NodeId;

/// A row that the transaction of an event mentions: the part and its number, the event in it, and
/// the number of the row.
#[derive(Clone, Copy)]
pub(super) struct UseOf<'p> {
    pub(super) number: u32,
    pub(super) part: &'p Part,
    pub(super) event: usize,
    pub(super) nth: usize,
}

/// The rows of a table that a pass exports.
#[derive(Debug, Default)]
pub(super) struct Exports {
    /// The lane of their keys in the pass, if there are any.
    pub(super) lane: Option<u32>,
    /// The transaction of each row.
    tids: Vec<u64>,
    /// The keys, if they are words.
    words: Vec<u64>,
    /// Other keys: by the number of a batch of keys, and the row there.
    rows: Vec<(u32, u32)>,
    /// The parts and the numbers of their rows that have these batches.
    batches: Vec<(u32, usize)>,
    /// The rows for each node, if there are more than two nodes.
    to: Vec<Vec<u32>>,
}

impl Exports {
    /// Creates space for exports between so many nodes.
    pub(super) fn new(nodes: usize) -> Exports {
        let to = vec![Vec::new(); if nodes > 2 { nodes } else { 0 }];
        Exports { to, ..Exports::default() }
    }

    /// Removes all.
    pub(super) fn clear(&mut self) {
        self.lane = None;
        self.tids.clear();
        self.words.clear();
        self.rows.clear();
        self.batches.clear();
        self.to.iter_mut().for_each(Vec::clear);
    }

    /// Adds a row for a transaction, for these nodes if there are more than two. Returns its
    /// number.
    #[inline]
    pub(super) fn add(&mut self, tid: u64, of: UseOf<'_>, to: &[u16]) -> u32 {
        let UseOf { number, part, event, nth } = of;
        let row = self.tids.len() as u32;
        self.tids.push(tid);
        match &part.uses.rows[nth].keys {
            KeyValues::Words(words) => self.words.push(words[event]),
            KeyValues::Columns(_) => {
                let batch = (number, nth);
                let known = self.batches.iter().position(|of| *of == batch);
                let known = known.unwrap_or_else(|| {
                    self.batches.push(batch);
                    self.batches.len() - 1
                });
                self.rows.push((known as u32, event as u32));
            }
        }
        to.iter().for_each(|node| self.to[usize::from(*node)].push(row));
        row
    }

    /// Returns the run of the keys.
    pub(super) fn run(&self, id: TableId, table: &ColumnTable, parts: &[Part]) -> Run {
        let batch = match table.has_word_keys {
            true => {
                let (schema, len) = (table.keys_schema.clone(), self.words.len());
                Batch::of_words(schema, vec![self.words.clone()], len)
            }
            false => {
                let keys = |(part, nth): &(u32, usize)| match &parts[*part as usize].uses.rows[*nth]
                    .keys
                {
                    KeyValues::Columns(batch) => batch,
                    KeyValues::Words(_) => unreachable!("keys of a table are of one kind"),
                };
                let batches: Vec<&Batch> = self.batches.iter().map(keys).collect();
                Batch::interleave(&batches, &self.rows)
            }
        };
        Run {
            stream: table.keys,
            source: SourceId(u32::from(id.0) | 1 << 30),
            batch,
            times: self.tids.iter().map(|tid| *tid as i64).collect(),
            offsets: self.tids.clone(),
            admitted: None,
        }
    }

    /// Adds the exported rows to what is sent to each node.
    ///
    /// # Errors
    /// If a row was not exported.
    pub(super) fn send(
        &self,
        table: TableId,
        batch: Batch,
        me: NodeId,
        to: &mut [Vec<GivenRows>],
    ) -> Result<()> {
        if batch.len() != self.tids.len() {
            return Err(Error::internal("a row of this owner was not exported"));
        }
        if let [_, _] = to {
            to[usize::from(1 - me.0)].push(GivenRows { table, tids: self.tids.clone(), batch });
            return Ok(());
        }
        for (to, rows) in to.iter_mut().zip(&self.to).filter(|(_, rows)| !rows.is_empty()) {
            let tids = rows.iter().map(|row| self.tids[*row as usize]).collect();
            to.push(GivenRows { table, tids, batch: batch.take(rows) });
        }
        Ok(())
    }
}
