//! Execution of one call after the other.
//!
//! A function that makes a call does not wait for it, and does not begin again when it has ended.
//! It continues, and its calls take place afterwards, one at a time, each when the one before has
//! ended. So a function runs about once, however many calls it makes. A pending call may change
//! what the function has read after it. These reads are checked before the next call takes place.
//! If one of them differs now, the function begins again, with the reads that are still valid.

use tidemill_txn::program::Abort;

use super::Turn;
use crate::message::{Body, Cost, Mode};
use crate::node::part::{Answer, Invocation, Outcome};
use crate::node::Settings;
use crate::order::Path;
use crate::program::{Stop, Target};
use crate::share;

/// The progress of the calls of a call.
#[derive(Default)]
pub(in crate::node) struct Serial {
    /// The number of its calls that have taken place or are under way.
    sent: usize,
    /// The number of functions among the other calls.
    deferred: u32,
    /// The cost of its calls that have ended.
    spent: Cost,
    /// The number of its reads that have been checked.
    reads: usize,
    /// Whether it reads only when its calls have taken place, because it has once begun again.
    is_careful: bool,
    /// Its outcome, if all of its calls end well.
    outcome: Option<Outcome>,
}

impl Serial {
    /// Notes the end and the cost of one of its calls.
    pub fn ended(&mut self, spent: Cost) {
        self.spent = self.spent.and(spent);
    }
}

impl Invocation {
    fn serial(&mut self) -> &mut Serial {
        self.serial.get_or_insert_default()
    }

    /// Whether it has made calls that have not taken place yet.
    pub(super) fn has_deferred(&self) -> bool {
        self.serial.as_ref().is_some_and(|serial| serial.sent < self.children.len())
    }

    /// Whether it must not read before its calls have taken place.
    pub(super) fn waits_to_read(&self) -> bool {
        self.has_deferred() && self.serial.as_ref().is_some_and(|serial| serial.is_careful)
    }

    /// Stores its outcome until its calls have taken place.
    pub(super) fn finish(&mut self, outcome: Outcome) {
        self.serial().outcome = Some(outcome);
    }
}

/// The next step of a call.
pub(super) enum Settled {
    /// All of its calls have taken place, and it continues or begins again.
    GoesOn,
    /// One of its calls is under way.
    Waits,
    /// It has ended.
    Ends(Outcome),
}

impl Turn<'_> {
    /// Defers a call until those before it have taken place. Aborts if there are certainly too
    /// many.
    pub(super) fn defer(&mut self, is_function: bool) -> Result<(), Abort> {
        let calls_max = self.settings.calls_max;
        let (reads, children) = (self.invocation.reads.len(), self.invocation.children.len());
        let before = self.invocation.before.calls;
        let serial = self.invocation.serial();
        if serial.sent == children {
            // No call was pending.
            serial.reads = reads;
        }
        serial.deferred += u32::from(is_function);
        let least = before.saturating_add(serial.spent.calls).saturating_add(serial.deferred);
        match is_function && least > calls_max {
            true => Err(too_many(calls_max, "calls")),
            false => Ok(()),
        }
    }

    /// Counts a use. Only a run of one call after the other finds the use that is too many.
    pub(super) fn count_use(&mut self) -> Result<(), Stop> {
        if self.is_on_row() || self.compares {
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

    /// Returns the function's outcome, unless its uses and those of its calls are too many.
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

    /// Starts the next call, if the one before has ended and the function's reads before it are
    /// still valid.
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
        let own = Cost { calls: is_function, uses };
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

    /// Ends the call. Its pending calls never take place, and effects after them are undone.
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

    /// Returns the first read, up to a place, whose result has changed.
    fn spoiled(&mut self, until: u32) -> Option<usize> {
        let mut at = self.invocation.serial().reads;
        while let Some(read) = self.invocation.reads.get(at).filter(|read| read.ordinal <= until) {
            if self.sees(read.ordinal, &read.what, read.take) != read.saw {
                return Some(at);
            }
            at += 1;
        }
        self.invocation.serial().reads = at;
        None
    }

    /// Makes the function begin again, with the results before a read.
    fn take_back(&mut self, read: usize) {
        let invocation = &mut *self.invocation;
        let from = invocation.reads[read].ordinal;
        for write in invocation.writes.drain(..).filter(|write| write.ordinal >= from) {
            let mut place = self.path.clone();
            place.push(write.ordinal);
            self.versions.take_back((self.tid, &place), write.table, &write.key);
        }
        invocation.reads.truncate(read);
        // From now on it waits for its calls before it reads, and keeps its position, if it can.
        invocation.begun = invocation.begun.max(self.settings.begins_max);
        let serial = invocation.serial();
        (serial.deferred, serial.reads, serial.outcome) = (0, read, None);
        serial.is_careful = true;
        let sent = serial.sent;
        invocation.children.truncate(sent);
        invocation.wait_for(Vec::new());
        invocation.activation = None;
    }

    /// Returns a place in the call.
    fn place(&self, ordinal: u32) -> Path {
        let mut place = self.path.clone();
        place.push(ordinal);
        place
    }
}

/// The term for uses in messages.
const USES: &str = "operations";

fn too_many(most: u32, what: &str) -> Abort {
    Abort::refused(format!("a transaction has at most {most} {what}"))
}
