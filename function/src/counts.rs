//! The results of transactions, counted.

use std::sync::Arc;

use tidemill_txn::reasons::Reasons;

/// Counts of transactions. Those of a node's epochs are added up, so they are a function of the
/// input, and no recovery counts anything twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Events and calls, without requests of the engine itself.
    pub events: u64,
    /// Transactions that ended without an abort, with those of late events and dead letters.
    pub ended: u64,
    /// Transactions that were refused.
    pub refused: u64,
    /// Transactions whose function failed.
    pub faults: u64,
    /// Rows that became dead letters.
    pub dead: u64,
    /// Late events that are only passed on.
    pub late: u64,
    /// The reasons of aborts.
    pub reasons: Reasons,
    /// The last fault.
    pub fault: Option<Fault>,
    /// Slides of windows whose triggers aborted, and the description of the last one.
    pub slides: u64,
    /// See `slides`.
    pub slide: Option<String>,
}

impl Counts {
    /// Adds the counts of later transactions.
    pub fn add(&mut self, later: &Counts) {
        let Counts { events, ended, refused, faults, dead, late, reasons, fault, slides, slide } =
            later;
        for (sum, more) in [
            (&mut self.events, events),
            (&mut self.ended, ended),
            (&mut self.refused, refused),
            (&mut self.faults, faults),
            (&mut self.dead, dead),
            (&mut self.late, late),
            (&mut self.slides, slides),
        ] {
            *sum += more;
        }
        self.reasons.add_all(reasons);
        if slide.is_some() {
            self.slide.clone_from(slide);
        }
        if fault.is_some() {
            self.fault.clone_from(fault);
        }
    }
}

/// A fault: an exception that a function did not mean to raise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The function, the event if it is known, and the exception.
    pub what: String,
    /// The user's line, if it is known.
    pub line: Option<String>,
}

/// The place that an event comes from: the name of its file or topic partition, and its number
/// there, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPlace {
    /// The name.
    pub name: Arc<str>,
    /// The number.
    pub row: u64,
}

impl EventPlace {
    /// Returns the place of an event after this many others.
    pub fn after(&self, others: u64) -> EventPlace {
        EventPlace { name: self.name.clone(), row: self.row + others }
    }
}
