//! The deposits, where parcels wait for the conductor, by epoch.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tidemill_core::SourceId;
use timely::communication::{Pull, Push};
use timely::dataflow::channels::pact::ParallelizationContract;
use timely::dataflow::channels::Message;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::logging::TimelyLogger;
use timely::worker::Worker;

use crate::gate::Gate;
use crate::load::{Item, Load, What};
use crate::parcel::{Parcel, Report};
use crate::worker::{Hand, Loads};

/// Parcels that have been deposited and not taken.
#[derive(Debug)]
pub struct Deposits {
    epochs: BTreeMap<u64, Held>,
    gate: Arc<Gate>,
    /// The bytes given back to each process's gate since the start.
    taken: Vec<u64>,
}

#[derive(Debug)]
struct Held {
    parcels: Vec<Parcel>,
    reports: BTreeMap<SourceId, Report>,
    rows: u64,
    /// The bytes of each process.
    bytes: Vec<u64>,
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
    pub(crate) fn new(gate: Arc<Gate>, processes: usize) -> Deposits {
        Deposits { epochs: BTreeMap::new(), gate, taken: vec![0; processes] }
    }

    pub(crate) fn add(&mut self, epoch: u64, item: Item) {
        let processes = self.taken.len();
        let held = self.epochs.entry(epoch).or_insert_with(|| Held {
            parcels: vec![],
            reports: BTreeMap::new(),
            rows: 0,
            bytes: vec![0; processes],
        });
        if let Some(bytes) = held.bytes.get_mut(item.process as usize) {
            *bytes += item.charge;
        }
        match item.what {
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
            What::Broken(_) => {}
        }
    }

    /// Returns the rows that wait in an epoch, of all streams together.
    pub fn rows(&self, epoch: u64) -> u64 {
        self.epochs.get(&epoch).map_or(0, |held| held.rows)
    }

    /// Returns the bytes that wait in an epoch.
    pub fn bytes(&self, epoch: u64) -> u64 {
        self.epochs.get(&epoch).map_or(0, |held| held.bytes.iter().sum())
    }

    /// Whether nothing waits in an epoch, not even a report.
    pub fn is_empty(&self, epoch: u64) -> bool {
        !self.epochs.contains_key(&epoch)
    }

    /// Takes the content of an epoch, and makes room at the gates. An epoch that is not closed may
    /// be taken, too. Later content can be taken then. (A conductor that repeats recorded cuts must
    /// do that, or an epoch larger than the gate's bytes would never fill.)
    pub fn take(&mut self, epoch: u64) -> Deposit {
        let Some(held) = self.epochs.remove(&epoch) else {
            return Deposit::default();
        };
        for (taken, bytes) in self.taken.iter_mut().zip(&held.bytes) {
            *taken += bytes;
        }
        // The conductor is in the first process.
        self.gate.give_back(held.bytes[0]);
        Deposit { parcels: held.parcels, reports: held.reports.into_values().collect() }
    }

    pub(crate) fn taken(&self) -> &[u64] {
        &self.taken
    }
}

/// The state that the deposit's operator shares with the worker's loop.
#[derive(Clone)]
pub(crate) struct Sunk {
    pub(crate) deposits: Rc<RefCell<Deposits>>,
    /// Nothing can arrive for epochs before this one. It is `u64::MAX` when nothing can arrive at
    /// all.
    pub(crate) frontier: Rc<Cell<u64>>,
}

/// The operator that ends the dataflow. All parcels of all workers go to the first one.
pub(crate) fn deposit(stream: Loads<'_>, hand: &Hand, sunk: &Sunk) {
    let mut builder = OperatorBuilder::new("Deposit".to_owned(), stream.scope());
    let mut input = builder.new_input(stream, ToFirst);
    let hand = hand.clone();
    let sunk = sunk.clone();
    builder.build(move |_no_outputs| {
        move |frontiers| {
            input.for_each(|time, load| {
                let mut deposits = sunk.deposits.borrow_mut();
                for item in load.items.drain(..) {
                    match item.what {
                        What::Broken(error) => hand.fail(error),
                        _ => deposits.add(*time.time(), item),
                    }
                }
            });
            // A message counts until it has been taken from the input. So a frontier beyond an
            // epoch means that all its parcels are in the deposits.
            sunk.frontier.set(frontiers[0].frontier().first().copied().unwrap_or(u64::MAX));
        }
    });
}

/// Sends everything to the first worker. Timely's exchange would do the same, but it wakes all
/// workers at each flush.
struct ToFirst;

impl ParallelizationContract<u64, Load> for ToFirst {
    type Pusher = Box<dyn Push<Message<u64, Load>>>;
    type Puller = Box<dyn Pull<Message<u64, Load>>>;

    fn connect(
        self,
        worker: &Worker,
        identifier: usize,
        address: Rc<[usize]>,
        _logging: Option<TimelyLogger>,
    ) -> (Self::Pusher, Self::Puller) {
        let (mut pushers, puller) = worker.allocate(identifier, address);
        (pushers.swap_remove(0), puller)
    }
}
