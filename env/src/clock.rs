//! Wall time, durations and sleeping.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time, which can also wait.
pub trait Clock: Send + Sync {
    /// Returns the wall time, UTC, in microseconds since 1970. It may jump, also backwards, when
    /// the machine's clock is set.
    fn now_us(&self) -> i64;

    /// Returns nanoseconds since some fixed moment, which never go back. Two readings can be
    /// compared within one process only.
    fn monotonic_ns(&self) -> u64;

    /// Blocks the calling thread until the monotonic clock has advanced by at least `us`
    /// microseconds.
    fn sleep_us(&self, us: u64);
}

/// The machine's clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealClock;

impl RealClock {
    /// Creates access to the machine's clock.
    pub fn new() -> RealClock {
        RealClock
    }
}

/// Returns one start for the whole process, so that readings of two `RealClock`s can be compared.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

impl Clock for RealClock {
    fn now_us(&self) -> i64 {
        system_time_us(SystemTime::now())
    }

    fn monotonic_ns(&self) -> u64 {
        // The cast is exact for 584 years.
        start().elapsed().as_nanos() as u64
    }

    fn sleep_us(&self, us: u64) {
        std::thread::sleep(Duration::from_micros(us));
    }
}

/// Returns microseconds since 1970, rounded towards it. Times that do not fit are clamped.
pub(crate) fn system_time_us(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |us| -us),
    }
}

/// Checks the guarantees of [`Clock`]. It takes a few milliseconds.
///
/// # Panics
/// If a guarantee is broken.
pub fn check(clock: &dyn Clock) {
    const YEAR_2000_US: i64 = 946_684_800_000_000;
    const YEAR_3000_US: i64 = 32_503_680_000_000_000;
    let wall = clock.now_us();
    assert!((YEAR_2000_US..YEAR_3000_US).contains(&wall), "{wall} is no wall time in microseconds");

    let mut last = clock.monotonic_ns();
    for _ in 0..1000 {
        let now = clock.monotonic_ns();
        assert!(now >= last, "the monotonic clock went back");
        last = now;
    }

    for us in [0, 1, 500, 2000] {
        let before = clock.monotonic_ns();
        clock.sleep_us(us);
        let slept = clock.monotonic_ns() - before;
        assert!(slept >= us * 1000, "slept {slept} ns instead of {us} µs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_clock_keeps_the_contract() {
        check(&RealClock::new());
    }

    #[test]
    fn times_before_1970_are_negative() {
        assert_eq!(system_time_us(UNIX_EPOCH - Duration::from_micros(1500)), -1500);
        assert_eq!(system_time_us(UNIX_EPOCH + Duration::from_nanos(2_999)), 2);
    }
}
