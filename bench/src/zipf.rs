//! Keys with skew.

use crate::rng::Rng;

/// Draws keys 0 to n-1 by Zipf's law: the key of rank r is drawn with a probability proportional to
/// r^-θ. Ranks are scattered over the keys, so that hot keys are not neighbours.
///
/// Keys are drawn by rejection-inversion (Hörmann and Derflinger 1996). It is exact for every θ,
/// without a table of n probabilities, and needs 1 to 1.2 attempts per draw.
#[derive(Clone, Debug)]
pub struct Zipf {
    theta: f64,
    n: usize,
    /// The key of each rank; empty when keys are drawn uniformly.
    keys: Vec<u32>,
    /// The integrals of x^-θ from 1 to 1.5, less 1, and from 1 to n + 0.5.
    low: f64,
    high: f64,
    /// Draws closer than this below their rank are accepted without evaluating the law.
    near: f64,
}

impl Zipf {
    /// Draws from the keys 0 to `keys` - 1 with skew `theta`, scattered by `seed`.
    ///
    /// # Panics Without keys, or with more than 2^32.
    pub fn new(keys: usize, theta: f64, seed: u64) -> Zipf {
        assert!(keys > 0 && u32::try_from(keys - 1).is_ok(), "{keys} keys");
        let mut zipf = Zipf { theta, n: keys, keys: Vec::new(), low: 0.0, high: 0.0, near: 0.0 };
        if theta == 0.0 {
            return zipf;
        }
        zipf.keys = (0..keys as u32).collect();
        let mut rng = Rng::new(seed);
        for i in (1..keys).rev() {
            zipf.keys.swap(i, rng.below(i as u64 + 1) as usize);
        }
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(keys as f64 + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-theta));
        zipf
    }

    /// Returns the integral of x^-θ from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        let power = 1.0 - self.theta;
        if power.abs() < 1e-9 {
            x.ln()
        } else {
            (x.powf(power) - 1.0) / power
        }
    }

    /// Returns the upper end at which the integral is `area`.
    fn inverse(&self, area: f64) -> f64 {
        let power = 1.0 - self.theta;
        if power.abs() < 1e-9 {
            area.exp()
        } else {
            (1.0 + power * area).max(0.0).powf(1.0 / power)
        }
    }

    /// Draws a key.
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        if self.keys.is_empty() {
            return rng.below(self.n as u64) as u32;
        }
        loop {
            let area = self.high + rng.unit() * (self.low - self.high);
            let x = self.inverse(area);
            let rank = (x + 0.5).floor().clamp(1.0, self.n as f64);
            let sure = rank - x <= self.near;
            if sure || area >= self.integral(rank + 0.5) - rank.powf(-self.theta) {
                return self.keys[rank as usize - 1];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_law() {
        const N: usize = 50;
        const DRAWS: usize = 400_000;
        for theta in [0.0, 0.2, 0.6, 0.99, 1.0, 1.4] {
            let (zipf, mut rng) = (Zipf::new(N, theta, 3), Rng::new(7));
            let mut drawn = [0usize; N];
            for _ in 0..DRAWS {
                drawn[zipf.draw(&mut rng) as usize] += 1;
            }
            let total: f64 = (1..=N).map(|r| (r as f64).powf(-theta)).sum();
            drawn.sort_unstable_by(|a, b| b.cmp(a));
            for (rank, drawn) in drawn.iter().enumerate() {
                let want = DRAWS as f64 * ((rank + 1) as f64).powf(-theta) / total;
                let off = (*drawn as f64 - want).abs();
                assert!(
                    off < 6.0 * want.sqrt() + 0.01 * want,
                    "θ {theta} rank {rank}: {drawn}, {want}"
                );
            }
        }
    }

    #[test]
    fn hot_keys_are_scattered() {
        let (zipf, mut rng) = (Zipf::new(100_000, 0.99, 1), Rng::new(1));
        let mut hot = vec![0u32; 100_000];
        (0..200_000).for_each(|_| hot[zipf.draw(&mut rng) as usize] += 1);
        let mut keys: Vec<usize> = (0..hot.len()).collect();
        keys.sort_by_key(|k| std::cmp::Reverse(hot[*k]));
        assert!(keys[..10].windows(2).all(|w| w[0].abs_diff(w[1]) > 8), "{:?}", &keys[..10]);
    }
}
