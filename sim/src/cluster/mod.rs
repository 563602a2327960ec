//! A simulated cluster: workers, a coordinator, a log, a store and clients, in one thread and from one seed.
//!
//! [`World`] runs it, with trouble; [`check`] looks whether all properties hold; what should have come out
//! is [`Expected`], from the reference.

mod check;
mod expected;
mod log;
pub mod script;
mod world;

pub use check::check;
pub use expected::{Epoch, Expected};
pub use world::{Weather, World};

/// SplitMix64: one seed, one run.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// One below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
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
