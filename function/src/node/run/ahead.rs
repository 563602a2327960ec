//! Rows that are asked for before they are used, all of them together.
//!
//! Their owners say what they are, and forget that they were asked. When the function uses one it is told that, and its use is
//! a call as any other, for whose reply nobody waits: if that says something else, the transaction runs again, without such
//! help. What the function comes to, and what it asks outside, waits until all of it is confirmed.

use std::collections::BTreeMap;

use tidemill_core::{Key, TableId, Value};

use super::look::look_at;
use super::Turn;
use crate::message::{Body, Mode};
use crate::node::part::{Answer, Invocation, Outcome};
use crate::node::{running, Node, NodeId, Outbox};
use crate::order::{Path, Tid};
use crate::program::{Call, Stop, Target};
use crate::size::output_bytes;
use crate::store::{Store, Stored};

/// So many rows a call asks for ahead at most.
const ROWS_MAX: usize = 4096;
/// So many bytes of rows are told at once, about.
const BYTES_MAX: usize = 1 << 20;

/// What a call has asked for ahead.
#[derive(Default)]
pub(in crate::node) struct Ahead {
    /// The rows, each with what it was, once that is told.
    rows: BTreeMap<(TableId, Key), Option<Stored>>,
    /// How many nodes have not told.
    pub open: u32,
    /// What the call has made of rows since it began.
    pub(super) written: BTreeMap<(TableId, Key), Stored>,
    /// Whether it waits for what it was told to be confirmed, and what it has come to then.
    pub confirms: bool,
    outcome: Option<Outcome>,
    /// Whether some of it was not so.
    pub is_wrong: bool,
}

impl<S: Store> Turn<'_, S> {
    /// Asks for the rows of others among these, and waits for them.
    pub(super) fn ask_ahead(
        &mut self,
        rows: &mut dyn Iterator<Item = (TableId, Vec<Value>)>,
    ) -> Result<(), Stop> {
        if self.mode != Mode::Fresh || self.has_missed || self.owners.nodes() == 1 {
            return Ok(());
        }
        let mut asked: BTreeMap<NodeId, Vec<(TableId, Key)>> = BTreeMap::new();
        for (table, key) in rows {
            // What is no key is found out when it is used.
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
            self.sends.push((owner, Body::Ahead { tid, path, rows }));
        }
        match ahead.open {
            0 => Ok(()),
            _ => Err(Stop::Unwind),
        }
    }

    /// Goes on where all that it was told is so, what was told ahead and what may change by a call before it.
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
    /// What a use of a row is told that was asked for ahead.
    pub(super) fn known_ahead(&self, call: &Call) -> Option<Answer> {
        let ahead = self.ahead.as_ref().filter(|_| call.target == Target::Get)?;
        let row = (call.table, Key::of(&call.key[..]));
        let stored = ahead.written.get(&row).or_else(|| ahead.rows.get(&row)?.as_ref())?;
        Some(Answer::Value(stored.clone().map_or(Value::Null, Value::List)))
    }

    /// A row becomes another one, which a use behind that is told.
    pub(super) fn writes_ahead(&mut self, call: &Call) {
        let Some(ahead) = &mut self.ahead else { return };
        let row = match call.target {
            Target::Put => Some(call.args.clone()),
            Target::Delete => None,
            _ => return,
        };
        ahead.written.insert((call.table, Key::of(&call.key[..])), row);
    }

    /// It begins again when all that it was told is confirmed.
    pub(super) fn confirms(&mut self) {
        self.ahead.get_or_insert_default().confirms = true;
    }

    /// What it has come to, if that is known or all that it was told ahead is confirmed; else it waits for that.
    pub(super) fn confirmed(&mut self, outcome: Outcome) -> Option<Outcome> {
        if matches!(outcome, Outcome::Missed(_)) || !self.is_unconfirmed() {
            return Some(outcome);
        }
        let ahead = self.ahead.as_mut().expect("it was told by it");
        (ahead.confirms, ahead.outcome) = (true, Some(outcome));
        None
    }

    /// What it has come to, or that it waits, where that is known without running it.
    pub(super) fn held(&mut self) -> Option<Option<Outcome>> {
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

impl<S: Store> Node<S> {
    /// Says what rows of this node are before a call.
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
            let row = look_at(&self.store, &epoch.versions, place, table, &key, &is_there);
            (table, key, row)
        };
        let rows = rows.into_iter().filter(|(table, _)| table.index() < tables).map(row);
        // The others are told when they are used.
        let mut bytes = 0;
        let fits = |(_, _, row): &(TableId, Key, Stored)| {
            bytes += row.as_ref().map_or(0, |row| output_bytes(row));
            bytes < BYTES_MAX
        };
        let rows = rows.take_while(fits).collect();
        self.send(from, Body::AreAhead { tid, path, rows }, out);
    }

    /// What rows of another node are.
    pub(in crate::node) fn told_ahead(
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
