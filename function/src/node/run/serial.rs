//! One call after the other, where a transaction runs so.
//!
//! A function that makes a call does not wait for it, and is not begun again when it has ended: it runs on, and its calls take
//! place afterwards, one at a time, each when the one before it has ended. So a function runs about once, however many
//! calls it makes. What it reads behind a call that has not taken place yet may change by it: that is looked at before the next
//! call takes place, and where it is something else now, the function is begun again, and told what was so.

use tidemill_txn::program::Abort;

use super::Turn;
use crate::message::{Body, Mode, Spent};
use crate::node::part::{Answer, Invocation, Outcome};
use crate::node::{Fault, Settings};
use crate::order::Path;
use crate::program::{Stop, Target};
use crate::share;
use crate::store::Store;

/// How far the calls of a call have come.
#[derive(Default)]
pub(in crate::node) struct Serial {
    /// So many of them have taken place, or do now.
    sent: usize,
    /// So many functions are among the others.
    deferred: u32,
    /// What those took that have ended.
    spent: Spent,
    /// So many of its reads have been told what is so.
    reads: usize,
    /// Whether it reads nothing before its calls have taken place: it has been begun again for that once.
    is_careful: bool,
    /// What it has come to, if all of its calls end well.
    outcome: Option<Outcome>,
}

impl Serial {
    /// A call of it has ended, and took so much.
    pub fn ended(&mut self, spent: Spent) {
        self.spent = self.spent.and(spent);
    }
}

impl Invocation {
    fn serial(&mut self) -> &mut Serial {
        self.serial.get_or_insert_default()
    }

    /// Whether calls that it has made have not taken place yet.
    pub(super) fn has_deferred(&self) -> bool {
        self.serial.as_ref().is_some_and(|serial| serial.sent < self.children.len())
    }

    /// Whether it is to read when its calls have taken place.
    pub(super) fn waits_to_read(&self) -> bool {
        self.has_deferred() && self.serial.as_ref().is_some_and(|serial| serial.is_careful)
    }

    /// Notes what it has come to, for when its calls have taken place.
    pub(super) fn comes_to(&mut self, outcome: Outcome) {
        self.serial().outcome = Some(outcome);
    }
}

/// Whether a call goes on.
pub(super) enum Settled {
    /// All that it has called has taken place, and it goes on, or is begun again.
    GoesOn,
    /// A call of it is under way.
    Waits,
    /// It has come to its end.
    Ends(Outcome),
}

impl<S: Store> Turn<'_, S> {
    /// Another call is to take place behind those before it. There may be too many already.
    pub(super) fn defer(&mut self, is_function: bool) -> Result<(), Abort> {
        let calls_max = self.settings.calls_max;
        let (reads, children) = (self.invocation.reads.len(), self.invocation.children.len());
        let before = self.invocation.before.calls;
        let serial = self.invocation.serial();
        if serial.sent == children {
            // Nothing was under way.
            serial.reads = reads;
        }
        serial.deferred += u32::from(is_function);
        let least = before.saturating_add(serial.spent.calls).saturating_add(serial.deferred);
        match is_function && least > calls_max {
            true => Err(too_many(calls_max, "calls")),
            false => Ok(()),
        }
    }

    /// Counts a use. Only one call after the other says which is the one too many.
    pub(super) fn count_use(&mut self) -> Result<(), Stop> {
        if self.is_on_row() {
            return Ok(());
        }
        let uses_max = self.settings.uses_max;
        let invocation = &mut *self.invocation;
        if self.mode == Mode::Sequential {
            let ended = invocation.serial().spent;
            let least = invocation.before.and(ended).and(invocation.own());
            return match least.uses > uses_max {
                true => Err(too_many(uses_max, USES).into()),
                false => Ok(()),
            };
        }
        if invocation.ordinal > invocation.most {
            invocation.most = invocation.ordinal;
            self.spent.uses = self.spent.uses.saturating_add(1);
        }
        match self.spent.uses > uses_max {
            true => Err(self.miss(Mode::Sequential)),
            false => Ok(()),
        }
    }

    /// What the function comes to, if all that it has called and used is not too much.
    pub(super) fn within(&mut self, outcome: Outcome) -> Outcome {
        let uses_max = self.settings.uses_max;
        if self.mode != Mode::Sequential || self.is_on_row() {
            return outcome;
        }
        let invocation = &mut *self.invocation;
        let ended = invocation.serial().spent;
        match invocation.before.and(ended).and(invocation.own()).uses > uses_max {
            true => Outcome::Failed(self.here(), too_many(uses_max, USES)),
            false => outcome,
        }
    }

    /// Lets the next call take place, if the one before has ended and what the function has read before it is so.
    pub(super) fn settle(&mut self) -> Settled {
        let sent = self.invocation.serial().sent;
        if let Some(last) = sent.checked_sub(1).map(|last| &self.invocation.children[last]) {
            match last.reply {
                Answer::Nothing => return Settled::Waits,
                Answer::Failed => return self.stop(last.ordinal, Outcome::Stopped),
                Answer::Value(_) => {}
            }
        }
        let next =
            self.invocation.children.get(sent).map(|child| (child.ordinal, child.call.clone()));
        let until = next.as_ref().map_or(u32::MAX, |(ordinal, _)| *ordinal);
        if let Some(at) = self.spoiled(until) {
            self.take_back(at);
            return Settled::GoesOn;
        }
        let Settings { calls_max, uses_max, .. } = *self.settings;
        let (before, is_on_row) = (self.invocation.before, self.is_on_row());
        let serial = self.invocation.serial();
        let Some((ordinal, call)) = next else {
            let outcome = serial.outcome.take();
            return outcome.map_or(Settled::GoesOn, |outcome| Settled::Ends(self.within(outcome)));
        };
        let is_function = u32::from(matches!(call.target, Target::Function(_)));
        let uses = if is_on_row { 0 } else { ordinal + 1 };
        let own = Spent { calls: is_function, uses };
        let before = before.and(serial.spent).and(own);
        serial.deferred -= is_function;
        let (is_many, place) = (before.calls > calls_max, self.place(ordinal + 1));
        if is_many || before.uses > uses_max {
            let abort =
                if is_many { too_many(calls_max, "calls") } else { too_many(uses_max, USES) };
            return self.stop(ordinal, Outcome::Failed(place, abort));
        }
        let serial = self.invocation.serial();
        serial.sent += 1;
        let (tid, path, home, mode) = (self.tid, self.place(ordinal), self.home, self.mode);
        let share = share::of_call(self.invocation.share, sent as u32);
        let (caller, to) = (Some(self.me), self.invocation.children[sent].to);
        self.sends.push((to, Body::Call { tid, path, call, share, home, caller, mode, before }));
        Settled::Waits
    }

    /// The call ends; those that it has made and that have not taken place never will, nor has it come to what is behind them.
    fn stop(&mut self, at: u32, outcome: Outcome) -> Settled {
        let invocation = &mut *self.invocation;
        let serial = invocation.serial();
        let (sent, reads) = (serial.sent, serial.reads);
        invocation.children.truncate(sent);
        invocation.reads.truncate(reads);
        invocation.writes.retain(|write| write.ordinal < at);
        invocation.emits.retain(|(ordinal, ..)| *ordinal < at);
        Settled::Ends(outcome)
    }

    /// The first read, up to a place, that was told what is not so.
    fn spoiled(&mut self, until: u32) -> Option<usize> {
        let skips = self.is_spoiled_by(Fault::TrustDeferred);
        let mut at = self.invocation.serial().reads;
        while let Some(read) = self.invocation.reads.get(at).filter(|read| read.ordinal <= until) {
            if !skips && self.sees(read.ordinal, &read.what, read.limit) != read.saw {
                return Some(at);
            }
            at += 1;
        }
        self.invocation.serial().reads = at;
        None
    }

    /// The function is begun again, and told what it was told before a read.
    fn take_back(&mut self, read: usize) {
        let invocation = &mut *self.invocation;
        let from = invocation.reads[read].ordinal;
        for write in invocation.writes.drain(..).filter(|write| write.ordinal >= from) {
            let mut place = self.path.clone();
            place.push(write.ordinal);
            self.versions.take_back((self.tid, &place), write.table, &write.key);
        }
        invocation.reads.truncate(read);
        // From now on it waits for its calls where it reads, and where it is, if it can.
        invocation.begun = invocation.begun.max(self.settings.begins_max);
        let serial = invocation.serial();
        (serial.deferred, serial.reads, serial.outcome) = (0, read, None);
        serial.is_careful = true;
        let sent = serial.sent;
        invocation.children.truncate(sent);
        invocation.wait_for(Vec::new());
        invocation.activation = None;
    }

    /// A place in the call.
    fn place(&self, ordinal: u32) -> Path {
        let mut place = self.path.clone();
        place.push(ordinal);
        place
    }
}

/// What uses are called.
const USES: &str = "operations";

fn too_many(most: u32, what: &str) -> Abort {
    Abort::refused(format!("a transaction has at most {most} {what}"))
}
