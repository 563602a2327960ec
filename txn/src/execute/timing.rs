//! The times of an epoch's execution.

/// The times of executing an epoch in place, in nanoseconds, as the first thread saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// The time until all threads could begin.
    pub prepare: u64,
    /// The time of planning.
    pub plan: u64,
    /// The time of execution, including waiting for the others.
    pub execute: u64,
    /// The time of waiting.
    pub wait: u64,
    /// The number of transactions that the first thread executed.
    pub executed: u64,
    /// The number of transactions that were deferred, because they conflicted with others.
    pub put_off: u64,
    /// The time from the first thread's last transaction to the last one of all.
    pub finish: u64,
    /// The time of merging the threads' outputs.
    pub merge: u64,
}

impl Timing {
    /// Adds the times of another part of the same epoch.
    pub(super) fn and(self, other: Timing) -> Timing {
        Timing {
            prepare: self.prepare + other.prepare,
            plan: self.plan + other.plan,
            execute: self.execute + other.execute,
            wait: self.wait + other.wait,
            executed: self.executed + other.executed,
            put_off: self.put_off + other.put_off,
            finish: self.finish + other.finish,
            merge: self.merge + other.merge,
        }
    }

    /// Returns all fields by name.
    pub fn fields(&self) -> [(&'static str, u64); 8] {
        [
            ("prepare", self.prepare),
            ("plan", self.plan),
            ("execute", self.execute),
            ("wait", self.wait),
            ("executed", self.executed),
            ("put_off", self.put_off),
            ("finish", self.finish),
            ("merge", self.merge),
        ]
    }
}
