//! A simulated cluster: workers, a coordinator, a log, a store and clients, in one thread and from one seed.
//!
//! [`World`] runs it, with trouble; [`check`] looks whether all properties hold; what should have come out
//! is [`Expected`], from the reference.

mod check;
mod expected;
mod log;
pub mod script;
mod sink;
mod world;

pub use check::check;
pub use expected::{Epoch, Expected, Taken};
pub use world::{Weather, World};

use crate::SimRandom;

/// What a seed decides: one seed, one run.
#[derive(Debug)]
pub struct Dice(SimRandom);

impl Dice {
    /// The dice of a seed.
    pub fn new(seed: u64) -> Dice {
        Dice(SimRandom::new(seed))
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    /// Whether it happens.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}
