//! Transactions whose rows are known before they run, over several owners without a vote.
//!
//! Every owner of a row gets the transaction, reads its own rows at the transaction's place, tells them to
//! the other owners, and runs it on all of them. All come to the same, and each writes its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidemill_core::{Key, TableId, Value};
use tidemill_txn::program::Abort;

use super::part::Part;
use super::run::look;
use super::{running, Fault, Node, NodeId, Outbox};
use crate::gate::{Waiter, Wish};
use crate::message::{Body, Mode, Verdict};
use crate::order::{Path, Tid};
use crate::program::{Call, RowAt};
use crate::size;
use crate::store::{Store, Stored};
use crate::versions::Version;

/// What a node does of such a transaction.
pub(super) struct DeclaredPart {
    call: Call,
    share: u32,
    rows: Vec<RowAt>,
    owners: Vec<NodeId>,
    /// What has been told of each row in this run.
    told: Vec<Option<Stored>>,
    /// Whether this node has told its own.
    has_told: bool,
    me: NodeId,
}

impl DeclaredPart {
    /// Forgets the last run; the rows that it is expected to write here.
    pub fn again(&mut self) -> impl Iterator<Item = &RowAt> + '_ {
        self.told = vec![None; self.rows.len()];
        self.has_told = false;
        self.own_writes()
    }

    fn own(&self) -> impl Iterator<Item = (usize, &RowAt)> + '_ {
        let rows = self.rows.iter().enumerate();
        rows.filter(|(n, _)| self.owners[*n] == self.me)
    }

    fn own_writes(&self) -> impl Iterator<Item = &RowAt> + '_ {
        self.own().map(|(_, row)| row).filter(|row| row.writes)
    }

    /// The rows of this node as it has read them.
    pub fn reads(&self) -> impl Iterator<Item = (TableId, &Key, &Stored)> + '_ {
        self.own().filter_map(|(n, row)| Some((row.table, &row.key, self.told[n].as_ref()?)))
    }
}

impl<S: Store> Node<S> {
    /// A declared transaction has come.
    pub(super) fn declared(
        &mut self,
        home: NodeId,
        tid: Tid,
        call: Call,
        share: u32,
        out: &mut Outbox,
    ) {
        let rows = self.program.declared(&call).expect("all nodes have one program");
        let program = self.program.program();
        let owners = rows.iter().map(|row| self.owners.of_row(program, row)).collect();
        let (told, has_told, me) = (vec![None; rows.len()], false, self.me);
        let declared = DeclaredPart { call, share, rows, owners, told, has_told, me };
        let epoch = running!(self);
        for row in declared.own_writes() {
            epoch.gate.expect(tid, row.table, row.key.clone());
        }
        // What others own may have come before.
        let part = epoch.parts.entry(tid).or_insert_with(|| Part::new(home, Mode::Fresh));
        part.home = home;
        part.declared = Some(declared);
        self.enter_declared(tid, out);
        if let Some(rows) = running!(self).values_early.remove(&tid) {
            self.values(tid, rows, out);
        }
    }

    /// Reads this node's rows and tells them, once nobody is in the way.
    pub(super) fn enter_declared(&mut self, tid: Tid, out: &mut Outbox) {
        let stale = self.spoiled_by(Fault::DecideAlone);
        let epoch = running!(self);
        let part = epoch.parts.get_mut(&tid).expect("it has a part");
        let declared = part.declared.as_mut().expect("it is declared");
        let wish = |(_, row): (usize, &RowAt)| Wish::Row(row.table, row.key.clone());
        let wishes: Vec<Wish> = declared.own().map(wish).collect();
        if let Some(earlier) = epoch.gate.in_the_way(tid, &wishes) {
            return epoch.gate.wait(earlier, Waiter { tid, path: None });
        }
        let is_there = |tid: Tid| epoch.there.contains(&tid);
        let mut rows = Vec::new();
        for ((n, _), wish) in declared.own().zip(&wishes) {
            let mut saw = look(&self.store, &epoch.versions, (tid, &[]), wish, 1, &is_there);
            rows.push((n as u32, saw.pop().expect("one row")));
        }
        declared.has_told = true;
        let others: BTreeSet<NodeId> =
            declared.owners.iter().copied().filter(|&node| node != self.me).collect();
        let told =
            if stale { stale_values(&self.store, &declared.rows, &rows) } else { rows.clone() };
        for node in others {
            self.send(node, Body::Values { tid, rows: told.clone() }, out);
        }
        self.values(tid, rows, out);
    }

    /// Rows that their owner has told, perhaps this node itself; when all are there, it runs.
    pub(super) fn values(&mut self, tid: Tid, rows: Vec<(u32, Stored)>, out: &mut Outbox) {
        let epoch = running!(self);
        let declared = epoch.parts.get_mut(&tid).and_then(|part| part.declared.as_mut());
        let Some(declared) = declared else {
            epoch.values_early.entry(tid).or_default().extend(rows);
            return;
        };
        for (n, row) in rows {
            declared.told[n as usize] = Some(row);
        }
        let told: Option<Vec<Stored>> = declared.told.iter().cloned().collect();
        let (Some(told), true) = (told, declared.has_told) else { return };
        self.run_declared(tid, &told, out);
    }

    fn run_declared(&mut self, tid: Tid, told: &[Option<Arc<[Value]>>], out: &mut Outbox) {
        let epoch = running!(self);
        let part = epoch.parts.get_mut(&tid).expect("it has a part");
        let declared = part.declared.as_ref().expect("it is declared");
        let max = self.settings.output_bytes_max;
        let result = self.program.run_declared(&declared.call, told).and_then(|changes| {
            let fits = |what, values: &[Value]| size::fits(&*self.program, what, values, max);
            fits("the reply", changes.value.as_slice())?;
            changes.events.iter().try_for_each(|(_, row)| fits("an event", row))?;
            Ok(changes)
        });
        let is_first = declared.owners.first().is_none_or(|first| *first == self.me);
        let mut verdict = Verdict::Abort;
        let (mut value, mut failure) = (None, None);
        match result {
            Ok(changes) => {
                verdict = Verdict::Commit;
                for (n, row) in changes.rows {
                    let at = n as usize;
                    let RowAt { table, key, .. } = declared.rows[at].clone();
                    if declared.owners[at] == self.me {
                        let (path, row) = (Path::new(), row.map(Arc::from));
                        part.written.push((table, key.clone()));
                        epoch.versions.put(table, key, Version { tid, path, row });
                    }
                }
                value = Some(changes.value.unwrap_or(Value::Null));
                part.events = if is_first { changes.events } else { Vec::new() };
            }
            Err(abort) => failure = Some((Path::new(), abort) as (Path, Abort)),
        }
        let (share, home) = (declared.share, part.home);
        self.counters.calls += 1;
        if is_first && value.is_some() {
            self.send(home, Body::Reply { tid, path: Path::new(), value, calls: 1 }, out);
        }
        let (missed, judged) = (None, false);
        self.send(home, Body::Ended { tid, share, calls: 0, failure, missed, judged }, out);
        self.finished(tid, verdict);
    }
}

/// Rows as the last epoch has left them.
fn stale_values<S: Store>(store: &S, all: &[RowAt], rows: &[(u32, Stored)]) -> Vec<(u32, Stored)> {
    let stale = |n: u32| store.get(all[n as usize].table, &all[n as usize].key);
    rows.iter().map(|(n, _)| (*n, stale(*n))).collect()
}
