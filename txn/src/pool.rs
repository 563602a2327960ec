//! The threads that an executor receives. This crate starts none of its own.

mod members;

pub use members::Members;

/// Threads that execute an epoch together. The calling thread is one of them.
///
/// Between two calls they may wait in any way. Within a call all of them run at the same time, so
/// that members may wait for one another.
pub trait Pool: Send + Sync {
    /// Returns the number of threads, the caller included; at least 1.
    fn threads(&self) -> usize;

    /// Calls `work` once on every member with its number; the caller is 0. Returns when all are
    /// done.
    ///
    /// # Panics
    /// If a member panicked. All members have ended by then.
    fn run(&self, work: &(dyn Fn(usize) + Sync));

    /// Yields the core to other threads. A member calls this repeatedly after it has waited for
    /// another member for a while.
    fn pause(&self);

    /// Returns nanoseconds since an arbitrary start. They guide the choice of strategies and the
    /// division of work. Nothing that a program can see depends on them.
    fn now_ns(&self) -> u64;
}

/// A pool of only the calling thread, without a clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleThread;

impl Pool for SingleThread {
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

/// Waits until a condition holds. It spins first, because most waits are short, and then pauses.
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
