//! The keys of events: with skew, with some keys drawn again, and without cycles.

use crate::args::Args;
use crate::rng::Rng;
use crate::zipf::Zipf;

/// The number of last keys that may be drawn again: about those of an epoch.
const RECENT: usize = 8192;

/// The levels of an acyclic key graph.
const LEVELS: u32 = 256;

/// A generator of keys.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    zipf: Zipf,
    keys: u32,
    overlap: f64,
    /// The last keys drawn by the law. Keys drawn again are not among them, or else a few keys
    /// would crowd out all others.
    recent: Vec<u32>,
    oldest: usize,
}

impl Keys {
    /// Returns the generator for the options.
    pub(crate) fn new(args: &Args, skew: f64, seed: u64) -> Keys {
        Keys {
            zipf: Zipf::new(args.keys, skew, seed),
            keys: args.keys as u32,
            overlap: args.overlap,
            recent: Vec::new(),
            oldest: 0,
        }
    }

    /// Draws a key: by the law, or a recent one.
    pub(crate) fn draw(&mut self, rng: &mut Rng) -> u32 {
        if self.overlap == 0.0 {
            return self.zipf.draw(rng);
        }
        if rng.unit() < self.overlap && !self.recent.is_empty() {
            return self.recent[rng.below(self.recent.len() as u64) as usize];
        }
        let key = self.zipf.draw(rng);
        if self.recent.len() < RECENT {
            self.recent.push(key);
        } else {
            self.recent[self.oldest] = key;
            self.oldest = (self.oldest + 1) % RECENT;
        }
        key
    }

    /// Draws a key that is not among `others`, of which there are fewer than keys. After some
    /// attempts it takes the next free key: a law may draw hardly more than one key.
    pub(crate) fn draw_other(&mut self, rng: &mut Rng, others: &[u32]) -> u32 {
        const ATTEMPTS: usize = 64;
        let mut key = self.draw(rng);
        for _ in 1..ATTEMPTS {
            if !others.contains(&key) {
                break;
            }
            key = self.draw(rng);
        }
        while others.contains(&key) {
            key = (key + 1) % self.keys;
        }
        key
    }

    /// Makes dependencies rise: the first key, which depends on all others, gets a higher level
    /// than any of them. So no chain of dependencies is a cycle, and none is longer than the number
    /// of levels.
    pub(crate) fn rise(&self, chosen: &mut [u32]) {
        loop {
            let highest = (0..chosen.len()).rev().max_by_key(|at| level(chosen[*at]));
            chosen.swap(0, highest.unwrap_or(0));
            let top = level(chosen[0]);
            let Some(same) = chosen.iter().skip(1).position(|key| level(*key) == top) else {
                return;
            };
            // Replace one of two keys on the highest level. Each round either leaves one key less
            // there, or moves up.
            let mut key = chosen[same + 1];
            while level(key) == top || chosen.contains(&key) {
                key = (key + 1) % self.keys;
            }
            chosen[same + 1] = key;
        }
    }
}

/// Returns a key's level.
pub(crate) fn level(key: u32) -> u32 {
    key % LEVELS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(options: &str) -> Keys {
        let args = format!(r#"{{"workload":"gs",{options}}}"#);
        let args = Args::from_json(&args).unwrap();
        Keys::new(&args, args.skew, 1)
    }

    #[test]
    fn overlap_draws_again_what_was_used() {
        let distinct = |overlap: &str| {
            let mut keys = keys(&format!(r#""keys":1000000,"overlap":{overlap}"#));
            let mut rng = Rng::new(5);
            let drawn = (0..20_000).map(|_| keys.draw(&mut rng));
            drawn.collect::<std::collections::HashSet<u32>>().len()
        };
        assert!(distinct("0") > 19_500);
        let half = distinct("0.5");
        assert!((9_500..10_500).contains(&half), "{half}");
        assert_eq!(distinct("1"), 1);
    }

    #[test]
    fn others_are_others_whatever_the_law() {
        for skew in [0.0, 10.0] {
            let mut keys = keys(&format!(r#""keys":10,"skew":{skew}"#));
            let mut rng = Rng::new(3);
            let mut chosen = Vec::new();
            for _ in 0..10 {
                let key = keys.draw_other(&mut rng, &chosen);
                assert!(!chosen.contains(&key));
                chosen.push(key);
            }
        }
    }

    #[test]
    fn dependencies_rise() {
        for (count, skew) in [(10, 0.0), (1000, 0.0), (100_000, 0.99)] {
            let mut keys = keys(&format!(r#""keys":{count},"skew":{skew}"#));
            let mut rng = Rng::new(9);
            for _ in 0..2000 {
                let mut chosen = Vec::new();
                for _ in 0..10 {
                    chosen.push(keys.draw_other(&mut rng, &chosen));
                }
                keys.rise(&mut chosen);
                assert!(chosen[1..].iter().all(|key| level(*key) < level(chosen[0])), "{chosen:?}");
                let distinct: std::collections::HashSet<_> = chosen.iter().collect();
                assert_eq!(distinct.len(), chosen.len());
            }
        }
    }
}
