//! Transactions at the node that received them: their beginning, and the detection of their end.

use std::collections::BTreeSet;

use tidemill_core::Value;
use tidemill_txn::program::Abort;

use super::{run, running, Event, Node, NodeId, Outbox, Settings};
use crate::message::{Body, Cost, Mode, Verdict};
use crate::order::{Path, Tid};
use crate::program::Call;
use crate::share::Sum;
use crate::size;

/// A transaction that this node received.
pub(super) struct Home {
    pub call: Call,
    /// The owner of its entity, or `None` if its key is invalid.
    to: Option<NodeId>,
    /// The sum of the shares that have come back in this run.
    pub sum: Sum,
    /// The nodes that have taken part, in any run.
    pub parts: BTreeSet<NodeId>,
    /// The cost of all of its calls.
    pub spent: Cost,
    pub failure: Option<(Path, Abort)>,
    pub missed: Option<Mode>,
    pub judged: bool,
    pub value: Option<Value>,
    pub verdict: Option<Verdict>,
}

/// The report of a call that ends.
pub(super) struct Ended {
    pub share: u32,
    pub calls: u32,
    pub spent: Cost,
    pub failure: Option<(Path, Abort)>,
    pub missed: Option<Mode>,
    pub judged: bool,
}

impl Home {
    pub fn new(call: Call, to: Option<NodeId>) -> Home {
        Home {
            call,
            to,
            sum: Sum::default(),
            parts: BTreeSet::new(),
            spent: Cost::default(),
            failure: None,
            missed: None,
            judged: false,
            value: None,
            verdict: None,
        }
    }

    /// Returns its result, for the client.
    fn outcome(&self) -> Result<Value, Abort> {
        match &self.failure {
            Some((_, abort)) => Err(size::shortened(abort.clone())),
            None => Ok(self.value.clone().unwrap_or(Value::Null)),
        }
    }
}

impl Node {
    /// Creates the state of a received request. The key as the table stores it determines where the
    /// call goes and what its function sees.
    pub(super) fn home(&self, mut call: Call) -> Home {
        let program = self.program.program();
        let Ok(key) = run::stored_key(program, &call) else { return Home::new(call, None) };
        let to = self.owners.of_key(program, call.table, &key);
        call.key = key.into();
        Home::new(call, to)
    }

    /// Begins a transaction, or begins it again in a mode in which its participants do not start by
    /// themselves.
    pub(super) fn begin_home(&mut self, tid: Tid, mode: Mode, out: &mut Outbox) {
        let epoch = running!(self);
        let home = epoch.homes.get_mut(&tid).expect("it came in here");
        (home.sum, home.spent, home.failure, home.missed) = Default::default();
        (home.value, home.verdict, home.judged) = (None, None, false);
        epoch.open += 1;
        let (call, to) = (home.call.clone(), home.to);
        if mode == Mode::Cached {
            return;
        }
        let path = Path::new();
        // The request is the first call.
        let (me, share, before) = (self.me, 0, Cost { calls: 1, uses: 0 });
        // An invalid key is found when the function begins.
        let to = to.unwrap_or(me);
        let call = Body::Call { tid, path, call, share, home: me, caller: Some(me), mode, before };
        self.send(to, call, out);
    }

    /// Takes the rest of a call's share. The last one ends the transaction.
    pub(super) fn ended(&mut self, from: NodeId, tid: Tid, ended: Ended, out: &mut Outbox) {
        let home = running!(self).homes.get_mut(&tid).expect("it came in here");
        home.parts.insert(from);
        home.missed = home.missed.max(ended.missed);
        home.judged |= ended.judged;
        if let Some(failure) = ended.failure {
            match &home.failure {
                Some((place, _)) if *place <= failure.0 => {}
                _ => home.failure = Some(failure),
            }
        }
        home.sum.add_rest(ended.share, ended.calls);
        home.spent = home.spent.and(ended.spent);
        if home.sum.is_whole() && home.verdict.is_none() {
            self.end(tid, out);
        }
    }

    /// Ends a transaction whose calls have all ended.
    fn end(&mut self, tid: Tid, out: &mut Outbox) {
        let Settings { calls_max, uses_max, .. } = self.settings;
        let epoch = running!(self);
        let home = epoch.homes.get_mut(&tid).expect("it came in here");
        let is_much = home.spent.calls > calls_max || home.spent.uses > uses_max;
        if is_much && epoch.run[&tid] != Mode::Sequential {
            // This may be too much. Only a run of one call after the other finds where.
            home.missed = Some(Mode::Sequential);
        }
        let verdict = match (home.missed, &home.failure) {
            (Some(mode), _) => Verdict::Missed(mode),
            (None, Some(_)) => Verdict::Abort,
            (None, None) => Verdict::Commit,
        };
        home.verdict = Some(verdict.clone());
        epoch.open -= 1;
        let parts: Vec<NodeId> = home.parts.iter().copied().collect();
        for node in parts {
            self.send(node, Body::Finished { tid, verdict: verdict.clone() }, out);
        }
        self.report_done(out);
    }

    /// Replies to the transactions whose results nothing can change any more: all before `open`.
    pub(super) fn reply_before(&mut self, open: Option<Tid>, out: &mut Outbox) {
        let epoch = running!(self);
        while let Some(&tid) = epoch.unreplied.front() {
            if open.is_some_and(|open| open <= tid) {
                return;
            }
            epoch.unreplied.pop_front();
            let outcome = match epoch.declared.outcome(tid) {
                Some(outcome) => outcome.clone().map_err(size::shortened),
                None => epoch.homes[&tid].outcome(),
            };
            out.events.push(Event::Replied { tid, outcome });
        }
    }
}
