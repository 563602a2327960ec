//! The deposits, where parcels wait for the conductor, by epoch.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_core::SourceId;

use crate::gate::Gate;
use crate::parcel::{Parcel, Report};

/// Rows and reports of an epoch that a worker has read, and the bytes that the gate counts for
/// them.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) epoch: u64,
    pub(crate) bytes: u64,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Rows(Parcel),
    Report(Report),
}

/// Items on their way to the conductor, in the order of each source. The gate bounds their bytes.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Vec<Item>>);

impl Mailbox {
    /// Adds items.
    pub(crate) fn put(&self, items: &mut Vec<Item>) {
        self.0.lock().append(items);
    }

    /// Takes all items.
    pub(crate) fn take(&self) -> Vec<Item> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Parcels that have been deposited and not taken.
#[derive(Debug)]
pub struct Deposits {
    epochs: BTreeMap<u64, Held>,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Held {
    parcels: Vec<Parcel>,
    reports: BTreeMap<SourceId, Report>,
    rows: u64,
    bytes: u64,
}

/// The content that was taken of an epoch.
#[derive(Clone, Debug, Default)]
pub struct Deposit {
    /// The parcels, in the order of their arrival. Those of one source and stream have rising
    /// offsets. There is no order between sources.
    pub parcels: Vec<Parcel>,
    /// One report for each source that was read since the last taking, ordered by source.
    pub reports: Vec<Report>,
}

impl Deposits {
    pub(crate) fn new(gate: Arc<Gate>) -> Deposits {
        Deposits { epochs: BTreeMap::new(), gate }
    }

    pub(crate) fn add(&mut self, Item { epoch, bytes, what }: Item) {
        let held = self.epochs.entry(epoch).or_default();
        held.bytes += bytes;
        match what {
            What::Rows(parcel) => {
                held.rows += parcel.len() as u64;
                held.parcels.push(parcel);
            }
            What::Report(report) => match held.reports.get_mut(&report.source) {
                Some(earlier) => earlier.absorb(report),
                None => {
                    held.reports.insert(report.source, report);
                }
            },
        }
    }

    /// Returns the rows that wait in an epoch, of all streams together.
    pub fn rows(&self, epoch: u64) -> u64 {
        self.epochs.get(&epoch).map_or(0, |held| held.rows)
    }

    /// Returns the bytes that wait in an epoch.
    pub fn bytes(&self, epoch: u64) -> u64 {
        self.epochs.get(&epoch).map_or(0, |held| held.bytes)
    }

    /// Whether nothing waits in an epoch, not even a report.
    pub fn is_empty(&self, epoch: u64) -> bool {
        !self.epochs.contains_key(&epoch)
    }

    /// Takes the content of an epoch, and makes room at the gate. An epoch that is not closed may
    /// be taken, too. Later content can be taken then. (A conductor that repeats recorded cuts must
    /// do that, or an epoch larger than the gate's bytes would never fill.)
    pub fn take(&mut self, epoch: u64) -> Deposit {
        let Some(held) = self.epochs.remove(&epoch) else {
            return Deposit::default();
        };
        self.gate.give_back(held.bytes);
        Deposit { parcels: held.parcels, reports: held.reports.into_values().collect() }
    }
}
