//! The rounds of an epoch. All transactions of a round end, then every node checks its reads and
//! reports which must run again. When none must, the epoch ends.
//!
//! Messages between two nodes keep their order, and every node sends to every other. So when all
//! have reported the end of their transactions, nothing of the round is under way. The only
//! exceptions are replies that no call awaits any more, and these arrive before the sender's next
//! report.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::check::Checked;
use super::{running, Node, Outbox};
use crate::gate::Waiter;
use crate::message::{Body, Cost, Mode, Verdict};
use crate::order::Tid;

impl Node {
    /// Begins a round, in which these transactions run.
    pub(super) fn enter_round(&mut self, run: BTreeMap<Tid, Mode>, out: &mut Outbox) {
        self.counters.rounds += 1;
        let epoch = running!(self);
        (epoch.has_reported_done, epoch.dones, epoch.conflicts) = (false, 0, 0);
        (epoch.again, epoch.reads) = Default::default();
        epoch.run = run.clone();
        // Undo their earlier effects, and expect the same writes, before any of them begins.
        for (&tid, &mode) in &run {
            if self.undo_declared(tid) {
                continue;
            }
            let epoch = running!(self);
            let Some(part) = epoch.parts.get_mut(&tid) else { continue };
            (part.mode, part.verdict, part.spent) = (mode, None, Cost::default());
            part.before = std::mem::take(&mut part.runs);
            epoch.there.remove(&tid);
            for (table, key) in std::mem::take(&mut part.written) {
                epoch.versions.remove(tid, table, &key);
                epoch.gate.expect(tid, table, key);
            }
        }
        for (tid, mode) in run {
            let epoch = running!(self);
            if let Some(at) = epoch.declared.find(tid) {
                self.enter_declared(at, out);
            } else if mode == Mode::Cached && epoch.parts.contains_key(&tid) {
                self.enter_cached(tid, out);
            }
            if running!(self).homes.contains_key(&tid) {
                self.begin_home(tid, mode, out);
            }
        }
        self.report_done(out);
    }

    /// Notes that all calls of a transaction have ended. Those that waited for it may continue.
    pub(super) fn finished(&mut self, tid: Tid, verdict: Verdict) {
        let epoch = running!(self);
        if let Some(part) = epoch.parts.get_mut(&tid) {
            if verdict == Verdict::Commit {
                epoch.there.insert(tid);
            }
            part.has_missed |= matches!(verdict, Verdict::Missed(_));
            part.verdict = Some(verdict);
        }
        self.woken.extend(epoch.gate.ended(tid));
    }

    /// Continues a waiter whose transaction has ended.
    pub(super) fn wake(&mut self, waiter: Waiter, out: &mut Outbox) {
        let Waiter { tid, path } = waiter;
        match path {
            Some(path) => self.enter(tid, path, out),
            None => match running!(self).declared.find(tid) {
                Some(at) => {
                    self.enter_declared(at, out);
                    self.report_done(out);
                }
                None => self.enter_cached(tid, out),
            },
        }
    }

    /// Tells the others, once, that all transactions that this node received and that run in this
    /// round have ended. If no node has anything to check, the epoch ends here.
    pub(super) fn report_done(&mut self, out: &mut Outbox) {
        let nodes = self.owners.nodes();
        let epoch = running!(self);
        if epoch.open > 0 || epoch.has_reported_done || !epoch.has_all_declared(nodes) {
            return;
        }
        epoch.has_reported_done = true;
        if epoch.is_declared() {
            self.reply_before(None, out);
            return self.commit(out);
        }
        self.send_all(&Body::Done, out);
    }

    /// Notes that another node's transactions have ended. After the last node, nothing is under
    /// way.
    pub(super) fn all_done(&mut self, out: &mut Outbox) {
        let epoch = running!(self);
        epoch.dones += 1;
        if epoch.dones == self.owners.nodes() {
            let Checked { again, reads, judged } = self.check();
            self.send_all(&Body::Conflicts { again, reads, judged }, out);
        }
    }

    /// Takes another node's report of what must run again. After the last report all nodes know the
    /// same, and continue.
    ///
    /// A transaction that has read from one that runs again runs again with it. Its reads will
    /// probably become wrong. Finding that out a round later would take as many rounds as a chain
    /// of readers is long.
    pub(super) fn all_checked(
        &mut self,
        again: Vec<(Tid, Mode)>,
        reads: Vec<(Tid, Tid, Mode)>,
        out: &mut Outbox,
    ) {
        let (nodes, rounds_max) = (self.owners.nodes(), self.settings.rounds_max);
        let epoch = running!(self);
        for (tid, mode) in again {
            let known = epoch.again.entry(tid).or_insert(mode);
            *known = (*known).max(mode);
        }
        for (reader, writer, mode) in reads {
            epoch.reads.entry(writer).or_default().push((reader, mode));
        }
        epoch.conflicts += 1;
        if epoch.conflicts < nodes {
            return;
        }
        // Writers come before their readers.
        let mut next = epoch.again.first_key_value().map(|(&tid, _)| tid);
        while let Some(tid) = next {
            for (reader, mode) in epoch.reads.remove(&tid).into_iter().flatten() {
                let known = epoch.again.entry(reader).or_insert(mode);
                *known = (*known).max(mode);
            }
            let later = (Bound::Excluded(tid), Bound::Unbounded);
            next = epoch.again.range(later).next().map(|(&tid, _)| tid);
        }
        for tid in epoch.run.keys() {
            epoch.unsettled.remove(tid);
        }
        for (tid, mode) in std::mem::take(&mut epoch.again) {
            let known = epoch.unsettled.entry(tid).or_insert(mode);
            *known = (*known).max(mode);
        }
        let first = epoch.unsettled.first_key_value().map(|(&tid, &mode)| (tid, mode));
        let Some((open, mode)) = first else {
            self.reply_before(None, out);
            return self.commit(out);
        };
        let run = match epoch.round + 1 < rounds_max {
            true => epoch.unsettled.clone(),
            // All before the first are final, so it is final after at most three rounds.
            false => [(open, mode)].into(),
        };
        epoch.round += 1;
        if epoch.first_open.0 != Some(open) {
            epoch.first_open = (Some(open), epoch.round);
        }
        // All before it are final, so its reads are, and a run of one call after the other sees
        // this.
        let rounds = epoch.round - epoch.first_open.1;
        assert!(
            rounds < rounds_max + 4 + epoch.judged,
            "{open:?} does not come to an end in epoch {}",
            epoch.number
        );
        self.reply_before(Some(open), out);
        self.enter_round(run, out);
    }
}
