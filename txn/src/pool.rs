//! Threads, as an executor is handed them: this crate starts none of its own.

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

    /// Called by a member that has been waiting for another for a while: lets others run, for there
    /// may be fewer cores than members.
    fn give_way(&self) {
        std::hint::spin_loop();
    }
}

/// The caller alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Pool for Alone {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        work(0);
    }
}
