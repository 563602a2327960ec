//! The recent rates of sources.

/// The age from which counts have less than half of the weight.
const MEMORY_US: f64 = 10_000_000.0;
/// The time between two updates of the rates.
const STEP_US: u64 = 250_000;

/// Rates of counters that only grow. Older counts have less weight.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    at_us: u64,
    counts: Vec<u64>,
    per_s: Vec<f64>,
}

impl Rates {
    /// Updates and returns the rates, given the counters at a time.
    pub(crate) fn at(&mut self, now_us: u64, counts: &[u64]) -> &[f64] {
        if self.counts.len() != counts.len() {
            *self = Rates { at_us: now_us, counts: counts.into(), per_s: vec![0.0; counts.len()] };
        }
        let passed_us = now_us.saturating_sub(self.at_us);
        if passed_us >= STEP_US {
            let passed_us = passed_us as f64;
            let weight = 1.0 - (-passed_us / MEMORY_US).exp();
            for ((rate, old), new) in self.per_s.iter_mut().zip(&self.counts).zip(counts) {
                let now = new.saturating_sub(*old) as f64 * 1e6 / passed_us;
                *rate += weight * (now - *rate);
            }
            self.at_us = now_us;
            self.counts.copy_from_slice(counts);
        }
        &self.per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_come_to_what_is_counted_and_forget_it() {
        let mut rates = Rates::default();
        let mut counts = [5, 1_000_000];
        for step in 0..400 {
            counts[0] += 25;
            rates.at(step * STEP_US, &counts);
        }
        let found = rates.at(400 * STEP_US, &counts);
        assert!((90.0..=100.0).contains(&found[0]), "{found:?}");
        assert_eq!(found[1], 0.0, "earlier counts are left out");
        let quiet = rates.at(400 * STEP_US + 100_000_000, &counts);
        assert!(quiet[0] < 0.1, "{quiet:?}");
    }

    #[test]
    fn other_sources_begin_anew_and_a_clock_that_stands_still_does_nothing() {
        let mut rates = Rates::default();
        assert_eq!(rates.at(7, &[1, 2]), [0.0, 0.0]);
        assert_eq!(rates.at(7, &[9, 9]), [0.0, 0.0]);
        assert_eq!(rates.at(3, &[9]), [0.0]);
    }
}
