//! The rows of this node that a pass exports, by table and in the order of their places.

use tidemill_core::{Batch, Error, Result, SourceId, TableId};
use tidemill_txn::execute::ColumnTable;
use tidemill_txn::order::Run;

use super::key_list::{KeyList, UseOf};
use super::parts::Part;
use super::GivenRows;
use crate::node::NodeId;

/// The rows of a table that a pass exports.
#[derive(Debug, Default)]
pub(super) struct Exports {
    /// The lane of their keys in the pass, if there are any.
    pub(super) lane: Option<u32>,
    /// The transaction of each row.
    tids: Vec<u64>,
    keys: KeyList,
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
        self.keys.clear();
        self.to.iter_mut().for_each(Vec::clear);
    }

    /// Adds a row for a transaction, for these nodes if there are more than two. Returns its
    /// number.
    #[inline]
    pub(super) fn add(&mut self, tid: u64, of: UseOf<'_>, to: &[u16]) -> u32 {
        let row = self.tids.len() as u32;
        self.tids.push(tid);
        self.keys.add(of);
        to.iter().for_each(|node| self.to[usize::from(*node)].push(row));
        row
    }

    /// Returns the run of the keys.
    pub(super) fn run(&self, id: TableId, table: &ColumnTable, parts: &[Part]) -> Run {
        Run {
            stream: table.keys,
            source: SourceId(u32::from(id.0) | 1 << 30),
            batch: self.keys.batch(table, parts),
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
