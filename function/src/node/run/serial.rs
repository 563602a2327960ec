//! One call after the other, where a transaction runs so.
//!
//! A function that makes a call does not wait for it, and is not begun again when it has ended: it runs on, and its calls take
//! place afterwards, one at a time, each when the one before it has ended. So a function runs about once, however many
//! calls it makes. What it reads behind a call that has not taken place yet may change by it: that is looked at before the next
//! call takes place, and where it is something else now, the function is begun again, and told what was so.

use tidemill_txn::program::Abort;

use super::Turn;
use crate::message::Body;
use crate::node::part::{Answer, Invocation, Outcome};
use crate::node::Fault;
use crate::order::Path;
use crate::program::Target;
use crate::share;
use crate::store::Store;

/// How far the calls of a call have come.
#[derive(Default)]
pub(in crate::node) struct Serial {
    /// So many of them have taken place, or do now.
    sent: usize,
    /// So many functions are among the others.
    deferred: u32,
    /// To how many calls those came that have ended.
    calls: u32,
    /// So many of its reads have been told what is so.
    reads: usize,
    /// Whether it reads nothing before its calls have taken place: it has been begun again for that once.
    is_careful: bool,
    /// What it has come to, if all of its calls end well.
    outcome: Option<Outcome>,
}

impl Serial {
    /// A call of it has ended, and came to so many.
    pub fn ended(&mut self, calls: u32) {
        self.calls = self.calls.saturating_add(calls);
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
        let before = self.invocation.calls_before;
        let serial = self.invocation.serial();
        if serial.sent == children {
            // Nothing was under way.
            serial.reads = reads;
        }
        serial.deferred += u32::from(is_function);
        let least = before.saturating_add(serial.calls).saturating_add(serial.deferred);
        match is_function && least > calls_max {
            true => Err(too_many(calls_max)),
            false => Ok(()),
        }
    }

    /// Lets the next call take place, if the one before has ended and what the function has read before it is so.
    pub(super) fn settle(&mut self) -> Settled {
        let sent = self.invocation.serial().sent;
        match sent.checked_sub(1).map(|last| &self.invocation.children[last].reply) {
            Some(Answer::Nothing) => return Settled::Waits,
            Some(Answer::Failed) => return self.stop(Outcome::Stopped),
            Some(Answer::Value(_)) | None => {}
        }
        let next =
            self.invocation.children.get(sent).map(|child| (child.ordinal, child.call.clone()));
        let until = next.as_ref().map_or(u32::MAX, |(ordinal, _)| *ordinal);
        if let Some(at) = self.spoiled(until) {
            self.take_back(at);
            return Settled::GoesOn;
        }
        let (calls_max, before) = (self.settings.calls_max, self.invocation.calls_before);
        let serial = self.invocation.serial();
        let Some((ordinal, call)) = next else {
            return serial.outcome.take().map_or(Settled::GoesOn, Settled::Ends);
        };
        let is_function = u32::from(matches!(call.target, Target::Function(_)));
        let calls = before.saturating_add(serial.calls).saturating_add(is_function);
        serial.deferred -= is_function;
        if calls > calls_max {
            let place = self.place(ordinal + 1);
            return self.stop(Outcome::Failed(place, too_many(calls_max)));
        }
        serial.sent += 1;
        let (tid, path, home, mode) = (self.tid, self.place(ordinal), self.home, self.mode);
        let share = share::of_call(self.invocation.share, sent as u32);
        let (caller, to) = (Some(self.me), self.invocation.children[sent].to);
        self.sends.push((to, Body::Call { tid, path, call, share, home, caller, mode, calls }));
        Settled::Waits
    }

    /// The call ends; those that it has made and that have not taken place never will, nor has it come to what is behind them.
    fn stop(&mut self, outcome: Outcome) -> Settled {
        let (sent, reads) = (self.invocation.serial().sent, self.invocation.serial().reads);
        self.invocation.children.truncate(sent);
        self.invocation.reads.truncate(reads);
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

fn too_many(calls_max: u32) -> Abort {
    Abort::refused(format!("a transaction has at most {calls_max} calls"))
}
