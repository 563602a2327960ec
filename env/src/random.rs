//! Random numbers.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Gives random numbers.
///
/// They are for names, jitter and choices that must differ between runs, and not for secrets.
/// Random numbers inside a transaction do not come from here, because they must be the same in a
/// replay.
pub trait Random: Send + Sync {
    /// Returns the next number, uniform over all 64 bits. Threads that share the source get
    /// different parts of one sequence.
    fn next_u64(&self) -> u64;
}

/// Randomness seeded by the operating system.
///
/// It is a counter hashed with SipHash, under keys that the standard library takes from the
/// operating system. It needs no lock and no further crate.
#[derive(Debug)]
pub struct RealRandom {
    keys: RandomState,
    count: AtomicU64,
}

impl RealRandom {
    /// Creates a new sequence, which differs from that of any other source.
    pub fn new() -> RealRandom {
        RealRandom { keys: RandomState::new(), count: AtomicU64::new(0) }
    }
}

impl Default for RealRandom {
    fn default() -> RealRandom {
        RealRandom::new()
    }
}

impl Random for RealRandom {
    fn next_u64(&self) -> u64 {
        self.keys.hash_one(self.count.fetch_add(1, Ordering::Relaxed))
    }
}

/// Checks the guarantees of [`Random`], as far as a sample of 4,096 numbers can show.
///
/// # Panics
/// If a guarantee is broken. A good source fails with a probability below 1e-9.
pub fn check(random: &dyn Random) {
    const SAMPLE: usize = 4096;
    let numbers: Vec<u64> = (0..SAMPLE).map(|_| random.next_u64()).collect();

    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), SAMPLE, "a number came twice");

    for bit in 0..64 {
        let ones = numbers.iter().filter(|n| *n >> bit & 1 == 1).count();
        // The expectation is 2,048 with a standard deviation of 32. The limits are eight of them
        // away.
        assert!((1792..=2304).contains(&ones), "bit {bit} was set {ones} times of {SAMPLE}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_random_keeps_the_contract() {
        check(&RealRandom::new());
    }

    #[test]
    fn two_sources_differ() {
        assert_ne!(RealRandom::new().next_u64(), RealRandom::new().next_u64());
    }
}
