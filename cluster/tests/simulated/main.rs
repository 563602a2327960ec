//! A simulated cluster: workers, a coordinator, a log, a store and clients, in one thread and from
//! one seed.
//!
//! [`World`] runs the cluster and injects faults. [`check`] checks all properties of a run.
//! [`Expected`] is the outcome according to the reference.

mod check;
mod expected;
mod follows;
mod log;
mod nodes;
mod runs;
mod script;
mod sink;
mod world;

use check::check;
use expected::{Epoch, Expected};
use world::World;

use tidemill_sim::SimRandom;

/// The random choices of a run. Equal seeds give equal runs.
#[derive(Debug)]
pub struct Dice(SimRandom);

impl Dice {
    /// Returns the dice of a seed.
    pub fn new(seed: u64) -> Dice {
        Dice(SimRandom::new(seed))
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    /// Returns `true` in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}
