//! Where the time of an epoch went.

/// What executing an epoch in place took, in nanoseconds, as the first thread saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Until all threads could begin.
    pub prepare: u64,
    /// Finding out who may run beside whom.
    pub plan: u64,
    /// Executing, and waiting for the others in between.
    pub execute: u64,
    /// Waiting.
    pub wait: u64,
    /// How many transactions the first thread executed.
    pub executed: u64,
    /// How many transactions were put off, because of what others did beside them.
    pub put_off: u64,
    /// From its last transaction to the last one of all.
    pub finish: u64,
    /// Putting the threads' outputs together.
    pub merge: u64,
}

impl Timing {
    /// Of two parts of an epoch.
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

    /// All of it, by name.
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
