//! The machine's speed at the work of planning: hashing keys and accessing the memory they lead to.

/// The rows of a measurement. Their memory fits in any second-level cache.
const ROWS: usize = 4096;
/// The time of a row, in nanoseconds, on the machine that gave the costs in [`super::choose`].
const ROW_NS: f64 = 1.6;
/// The number of measurements. The clocks of simulations stand still, and another process may use
/// the core during one measurement.
const TRIES: usize = 5;
const BOUNDS: (f64, f64) = (0.25, 16.0);

/// Returns how many times as long planning takes here as on the machine that gave its costs, by a
/// clock in nanoseconds. The measurement takes a few dozen microseconds.
pub(crate) fn slower(now_ns: impl Fn() -> u64) -> f64 {
    let mut places = vec![0u32; ROWS];
    let took = |_| {
        let begun = now_ns();
        let mut key = 0u64;
        for row in 0..ROWS as u64 {
            // Like the hash of a key: two multiplications, and an unpredictable place.
            key = (key ^ row).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
            let place = key.wrapping_mul(0xd6e8_feb8_6659_fd93) >> (64 - ROWS.ilog2());
            places[place as usize] += 1;
        }
        std::hint::black_box(&mut places);
        now_ns().saturating_sub(begun)
    };
    let best = (0..TRIES).map(took).min().unwrap_or(0);
    match best {
        0 => 1.0,
        ns => (ns as f64 / ROWS as f64 / ROW_NS).clamp(BOUNDS.0, BOUNDS.1),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_clock_says_how_fast_it_is_and_one_that_stands_still_nothing() {
        let clock = |by: u64| {
            let now = Cell::new(0);
            move || {
                now.set(now.get() + by);
                now.get()
            }
        };
        assert_eq!(slower(clock(0)), 1.0);
        let of = |times: f64| (times * ROWS as f64 * ROW_NS) as u64;
        assert!((slower(clock(of(3.0))) - 3.0).abs() < 0.01);
        assert_eq!(slower(clock(of(1_000.0))), BOUNDS.1);
        assert_eq!(slower(clock(1)), BOUNDS.0);
    }
}
