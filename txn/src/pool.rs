//! Threads, as an executor is handed them: this crate starts none of its own.

mod members;

pub use members::Members;

/// Threads that work on one epoch together. Whoever calls is one of them.
///
/// Between two calls they may wait in whatever way suits them; within one, all of them run at once,
/// so that members may wait for one another.
pub trait Pool: Send + Sync {
    /// How many there are, the caller included; at least 1.
    fn threads(&self) -> usize;

    /// Calls `work` once on every member, with its number: the caller is 0. Returns when all are
    /// done.
    ///
    /// # Panics
    /// When a member panicked; all of them have ended by then.
    fn run(&self, work: &(dyn Fn(usize) + Sync));

    /// Called over and over by a member that has waited for another one for a while: lets somebody
    /// else have the core.
    fn pause(&self);

    /// Nanoseconds from some beginning. Strategies are chosen by what it says and work is shared out;
    /// nothing that a program can see depends on it.
    fn now_ns(&self) -> u64;
}

/// The caller alone, without a clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Pool for Alone {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        work(0);
    }

    fn pause(&self) {}

    fn now_ns(&self) -> u64 {
        0
    }
}

/// Looks at a condition over and over until it holds: a few hundred times in a row, because it will
/// soon, and then with pauses.
#[inline]
pub(crate) fn wait(pool: &dyn Pool, mut holds: impl FnMut() -> bool) {
    const SPINS: u32 = 2000;
    let mut spins = 0;
    while !holds() {
        if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        } else {
            pool.pause();
        }
    }
}
