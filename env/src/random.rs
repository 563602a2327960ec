//! Random numbers.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Gives random numbers.
///
/// For names, jitter and choices that need to differ between runs; not for secrets. What a program
/// sees as random inside a transaction does not come from here: it must repeat in replay.
pub trait Random: Send + Sync {
    /// The next number, uniform over all 64 bits. Threads that share the source get different
    /// parts of one sequence.
    fn next_u64(&self) -> u64;
}

/// Randomness seeded by the operating system.
///
/// A counter hashed with SipHash under keys that the standard library takes from the operating
/// system: needs no lock and no further crate.
#[derive(Debug)]
pub struct RealRandom {
    keys: RandomState,
    count: AtomicU64,
}

impl RealRandom {
    /// A new sequence, unlike that of any other source.
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

/// Checks what [`Random`] promises, as far as a sample of 4,096 numbers can tell.
///
/// # Panics
/// Where a promise is broken. A good source fails with a probability below 1e-9.
pub fn check(random: &dyn Random) {
    const SAMPLE: usize = 4096;
    let numbers: Vec<u64> = (0..SAMPLE).map(|_| random.next_u64()).collect();

    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), SAMPLE, "a number came twice");

    for bit in 0..64 {
        let ones = numbers.iter().filter(|n| *n >> bit & 1 == 1).count();
        // 2,048 expected, with a standard deviation of 32: eight of them either way.
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
