//! Random numbers from a seed.

use std::sync::atomic::{AtomicU64, Ordering};

use tidemill_env::Random;

/// The SplitMix64 sequence of a seed. Threads that share it repeat their draws only if they repeat
/// their order.
#[derive(Debug)]
pub struct SimRandom {
    state: AtomicU64,
}

/// The step of SplitMix64: 2^64 divided by the golden ratio, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SimRandom {
    /// Returns the sequence of a seed.
    pub fn new(seed: u64) -> SimRandom {
        SimRandom { state: AtomicU64::new(seed) }
    }

    /// Returns another sequence, seeded by the next number of this one.
    pub fn fork(&self) -> SimRandom {
        SimRandom::new(self.next_u64())
    }

    /// Returns the next number below `bound`, which must not be 0. Its bias is far too small to
    /// matter in a test.
    pub fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

impl Random for SimRandom {
    fn next_u64(&self) -> u64 {
        let mut z = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_keeps_the_contract() {
        for seed in [0, 1, u64::MAX] {
            tidemill_env::contract::random(&SimRandom::new(seed));
            tidemill_env::contract::random(&SimRandom::new(seed).fork());
        }
    }

    #[test]
    fn the_sequence_is_the_published_one() {
        // From the reference implementation of SplitMix64 with the seed 1234567.
        let random = SimRandom::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let random = SimRandom::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[random.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
