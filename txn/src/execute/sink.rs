//! The outcome of an epoch, while it is executed.

use std::collections::BTreeMap;

use tidemill_core::{SourceId, Stamp};

use super::command::Command;
use super::output::{DerivedEvent, Origin, OutputBuilder, NO_ROOT};
use super::serial::{AbortedSlide, Faulted, HandlerCounts, Overdue, Unstable};
use crate::order::Epoch;
use crate::program::rounds::Agenda;
use crate::program::{firing, Abort, WindowId};

/// The outcome of an epoch, while it is executed.
pub(crate) struct Sink {
    pub(crate) builders: Vec<OutputBuilder>,
    pub(crate) derived: Vec<DerivedEvent>,
    pub(crate) counts: Vec<HandlerCounts>,
    pub(crate) unstable: Vec<Unstable>,
    pub(crate) written: BTreeMap<usize, u64>,
    pub(crate) overdue: Vec<Overdue>,
    pub(crate) faults: Vec<Faulted>,
    pub(crate) aborted_slides: Vec<AbortedSlide>,
    /// The last call of a function: the event, and the number of the call among those of the event.
    pub(super) call: Option<((SourceId, u64), u32)>,
    pub(crate) commands: Vec<Command>,
    /// The logged outcome of the transaction that is being replayed.
    pub(crate) following: Option<u64>,
    /// The number of derived events before the current round.
    pub(crate) round: u32,
    /// The agenda of the current round.
    pub(crate) agenda: Agenda,
    /// The window whose slide is being executed with everything that it triggers, the end of the
    /// window, and its index among the causes of transactions.
    pub(crate) fired: Option<(WindowId, i64, u32)>,
    /// The index in the epoch's order of the next transaction.
    pub(crate) next: u32,
}

impl Sink {
    /// Returns the event of the transaction at `root`, or the identity of a slide.
    pub(super) fn event_at(&self, epoch: &Epoch, root: u32) -> (SourceId, u64) {
        match self.fired {
            Some((window, edge, _)) if root == NO_ROOT => firing::event_of_slide(window, edge),
            _ => epoch.event(epoch.order[root as usize]),
        }
    }

    /// Returns [`Epoch::round`] of the transaction at `root`.
    pub(super) fn round_at(&self, epoch: &Epoch, root: u32) -> (SourceId, u64) {
        match self.fired {
            Some((window, edge, _)) if root == NO_ROOT => firing::event_of_slide(window, edge),
            _ => epoch.round(epoch.order[root as usize]),
        }
    }

    /// Returns the stamp of the same event.
    pub(super) fn stamp_at(&self, epoch: &Epoch, root: u32) -> Stamp {
        match self.fired {
            Some((window, edge, _)) if root == NO_ROOT => firing::stamp(window, edge),
            _ => epoch.stamp(epoch.order[root as usize]),
        }
    }

    /// Returns the index of the cause of the round of the transaction at `root`. It is 0 for the
    /// input event.
    pub(super) fn cause_at(&self, root: u32) -> u32 {
        self.fired.filter(|_| root == NO_ROOT).map_or(0, |(_, _, cause)| cause)
    }

    /// Returns how many transactions have aborted.
    pub(crate) fn aborted(&self) -> u64 {
        self.counts.iter().map(|count| count.aborted).sum()
    }

    /// Notes that a transaction of a handler has aborted for this reason. The abort itself is
    /// counted elsewhere.
    pub(crate) fn note_fault(&mut self, epoch: &Epoch, origin: Origin, abort: &Abort) {
        if abort.is_fault() {
            let handler = origin.handler();
            self.counts[handler].faults += 1;
            let event = self.event_at(epoch, origin.root());
            let (is_direct, abort) = (origin.cause() == 0, abort.clone());
            self.faults.push(Faulted { event, handler, is_direct, abort });
        }
    }
}
