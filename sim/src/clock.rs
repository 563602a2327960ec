//! A clock that moves only on command.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::RwLock;
use tidemill_env::Clock;

/// A clock that stands still until a test moves it or a thread sleeps.
///
/// Sleeping moves the clock by the time slept and returns at once. So the sleeps of concurrent
/// threads add up.
///
/// The clock starts on 2020-09-13T12:26:40 UTC, with the monotonic clock at 0.
pub struct SimClock {
    monotonic_ns: AtomicU64,
    /// The wall time at the monotonic zero, in microseconds.
    wall_zero_us: AtomicI64,
    /// Called after each move, so that those who wait for a moment can check whether it has passed.
    watchers: RwLock<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl SimClock {
    pub(crate) fn new() -> SimClock {
        SimClock {
            monotonic_ns: AtomicU64::new(0),
            wall_zero_us: AtomicI64::new(1_600_000_000_000_000),
            watchers: RwLock::new(Vec::new()),
        }
    }

    /// Moves both clocks forward by `us` microseconds.
    pub fn advance_us(&self, us: u64) {
        self.monotonic_ns.fetch_add(us * 1000, Ordering::SeqCst);
        for watcher in self.watchers.read().iter() {
            watcher();
        }
    }

    /// Sets the wall clock forward by `us` microseconds, or back where `us` is negative, as an
    /// operator or a time server does. The monotonic clock does not change.
    pub fn step_wall_us(&self, us: i64) {
        self.wall_zero_us.fetch_add(us, Ordering::SeqCst);
    }

    /// Calls `watcher` after each move of the clock, without holding a lock that a reader of the
    /// clock takes.
    pub(crate) fn watch(&self, watcher: Box<dyn Fn() + Send + Sync>) {
        self.watchers.write().push(watcher);
    }
}

impl Clock for SimClock {
    fn now_us(&self) -> i64 {
        self.wall_zero_us.load(Ordering::SeqCst) + (self.monotonic_ns() / 1000) as i64
    }

    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns.load(Ordering::SeqCst)
    }

    fn sleep_us(&self, us: u64) {
        self.advance_us(us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_keeps_the_contract() {
        tidemill_env::contract::clock(&SimClock::new());
    }

    #[test]
    fn time_passes_only_when_told() {
        let clock = SimClock::new();
        let start = clock.now_us();
        assert_eq!(clock.monotonic_ns(), 0);
        assert_eq!(clock.now_us(), start);
        clock.advance_us(5);
        clock.sleep_us(2);
        assert_eq!(clock.monotonic_ns(), 7000);
        assert_eq!(clock.now_us(), start + 7);
    }

    #[test]
    fn the_wall_clock_can_be_set_back() {
        let clock = SimClock::new();
        let start = clock.now_us();
        clock.advance_us(10);
        clock.step_wall_us(-100);
        assert_eq!(clock.now_us(), start - 90);
        assert_eq!(clock.monotonic_ns(), 10_000);
    }
}
