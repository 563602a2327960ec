//! Rows that are requested before they are used, all of them together.
//!
//! Their owners answer with the current values, and forget the request. When the function uses such
//! a row, it gets this value at once. The use is also a call like any other, whose reply the
//! function does not await. If the reply differs, the transaction runs again, without such help.
//! The function's outcome, and its questions to the outside, wait until all replies have confirmed
//! the values.

use std::collections::BTreeMap;

use tidemill_core::{Key, TableId, Value};

use super::look::look_at;
use super::Turn;
use crate::message::{Body, Mode};
use crate::node::part::{Answer, Invocation, Outcome};
use crate::node::{running, Node, NodeId, Outbox};
use crate::order::{Path, Tid};
use crate::program::{Call, Stop, Target};
use crate::rows::Stored;
use crate::size::output_bytes;

/// The maximum number of rows that a call requests ahead.
const ROWS_MAX: usize = 4096;
/// The approximate maximum of bytes of rows in one answer.
const BYTES_MAX: usize = 1 << 20;

/// The rows that a call has requested ahead.
#[derive(Default)]
pub(in crate::node) struct Ahead {
    /// The rows, each with its value once that has arrived.
    rows: BTreeMap<(TableId, Key), Option<Stored>>,
    /// The number of nodes that have not answered.
    pub open: u32,
    /// The rows that the call has written since it began.
    pub(super) written: BTreeMap<(TableId, Key), Stored>,
    /// Whether it waits for confirmation of the values that it used. `outcome` has its outcome
    /// then.
    pub confirms: bool,
    outcome: Option<Outcome>,
    /// Whether one of the values was wrong.
    pub is_wrong: bool,
}

impl Turn<'_> {
    /// Requests those of these rows that other nodes own, and waits for them.
    pub(super) fn ask_ahead(
        &mut self,
        rows: &mut dyn Iterator<Item = (TableId, Vec<Value>)>,
    ) -> Result<(), Stop> {
        if self.mode != Mode::Fresh || self.has_missed || self.owners.nodes() == 1 {
            return Ok(());
        }
        let mut asked: BTreeMap<NodeId, Vec<(TableId, Key)>> = BTreeMap::new();
        for (table, key) in rows {
            // An invalid key is found when it is used.
            let Ok(key) = self.functions.program().stored_key(table, &key) else { continue };
            let owner = self.owner(table, &key);
            let row = (table, Key::of(&key));
            let ahead = self.invocation.ahead.get_or_insert_default();
            if owner != self.me && ahead.rows.len() < ROWS_MAX && !ahead.rows.contains_key(&row) {
                ahead.rows.insert(row.clone(), None);
                asked.entry(owner).or_default().push(row);
            }
        }
        let Some(ahead) = &mut self.invocation.ahead else { return Ok(()) };
        for (owner, rows) in asked {
            ahead.open += 1;
            let (tid, path) = (self.tid, self.path.clone());
            self.sends.push((owner, Body::Prefetch { tid, path, rows }));
        }
        match ahead.open {
            0 => Ok(()),
            _ => Err(Stop::Unwind),
        }
    }

    /// Succeeds if all that the function has read is certain: values used ahead, and reads that a
    /// pending call may change.
    pub(super) fn confirm(&mut self) -> Result<(), Stop> {
        if self.invocation.has_deferred() {
            return Err(Stop::Unwind);
        }
        match self.invocation.is_unconfirmed() {
            true => {
                self.invocation.confirms();
                Err(Stop::Unwind)
            }
            false => Ok(()),
        }
    }
}

impl Invocation {
    /// Returns the reply to a use of a row that was requested ahead.
    pub(super) fn known_ahead(&self, call: &Call) -> Option<Answer> {
        let ahead = self.ahead.as_ref().filter(|_| call.target == Target::Get)?;
        let row = (call.table, Key::of(&call.key[..]));
        let stored = ahead.written.get(&row).or_else(|| ahead.rows.get(&row)?.as_ref())?;
        Some(Answer::Value(stored.clone().map_or(Value::Null, Value::List)))
    }

    /// Notes the write of a row, so that later uses see it.
    pub(super) fn writes_ahead(&mut self, call: &Call) {
        let Some(ahead) = &mut self.ahead else { return };
        let row = match call.target {
            Target::Put | Target::Write => Some(call.args.clone()),
            Target::Delete | Target::Remove => None,
            _ => return,
        };
        ahead.written.insert((call.table, Key::of(&call.key[..])), row);
    }

    /// Makes it begin again when all values that it used are confirmed.
    pub(super) fn confirms(&mut self) {
        self.ahead.get_or_insert_default().confirms = true;
    }

    /// Returns the outcome if no value that it used ahead is unconfirmed. Otherwise stores it until
    /// they are.
    pub(super) fn confirmed(&mut self, outcome: Outcome) -> Option<Outcome> {
        if matches!(outcome, Outcome::Missed(_)) || !self.is_unconfirmed() {
            return Some(outcome);
        }
        let ahead = self.ahead.as_mut().expect("it has used a value ahead");
        (ahead.confirms, ahead.outcome) = (true, Some(outcome));
        None
    }

    /// Returns the outcome, or that it waits, if that is known without running the function.
    pub(super) fn outcome(&mut self) -> Option<Option<Outcome>> {
        let is_waiting = self.is_waiting();
        let ahead = self.ahead.as_mut()?;
        if ahead.is_wrong && ahead.open == 0 {
            return Some(Some(Outcome::Missed(Mode::Fresh)));
        }
        if ahead.confirms && is_waiting {
            return Some(None);
        }
        ahead.confirms = false;
        ahead.outcome.take().map(Some)
    }
}

impl Node {
    /// Sends rows of this node as they are before a call.
    pub(in crate::node) fn tell_ahead(
        &mut self,
        from: NodeId,
        tid: Tid,
        path: Path,
        rows: Vec<(TableId, Key)>,
        out: &mut Outbox,
    ) {
        let tables = self.program.program().tables.len();
        let epoch = running!(self);
        let is_there = |tid: Tid| epoch.there.contains(&tid);
        let place = (tid, &path[..]);
        let row = |(table, key): (TableId, Key)| {
            let row = look_at(&self.rows, &epoch.versions, place, table, &key, &is_there);
            (table, key, row)
        };
        let rows = rows.into_iter().filter(|(table, _)| table.index() < tables).map(row);
        // The function gets the other rows when it uses them.
        let mut bytes = 0;
        let fits = |(_, _, row): &(TableId, Key, Stored)| {
            bytes += row.as_ref().map_or(0, |row| output_bytes(row));
            bytes < BYTES_MAX
        };
        let rows = rows.take_while(fits).collect();
        self.send(from, Body::Prefetched { tid, path, rows }, out);
    }

    /// Takes rows of another node.
    pub(in crate::node) fn prefetched(
        &mut self,
        tid: Tid,
        path: Path,
        rows: Vec<(TableId, Key, Stored)>,
        out: &mut Outbox,
    ) {
        let part = running!(self).parts.get_mut(&tid);
        let Some(invocation) = part.and_then(|part| part.runs.get_mut(&path)) else { return };
        let Some(ahead) = &mut invocation.ahead else { return };
        ahead.open = ahead.open.saturating_sub(1);
        for (table, key, row) in rows {
            if let Some(known) = ahead.rows.get_mut(&(table, key)) {
                *known = Some(row);
            }
        }
        let is_over = invocation.outcome.is_some() || invocation.asks.is_some();
        if !is_over && invocation.may_go_on() {
            self.resume(tid, path, out);
        }
    }
}
