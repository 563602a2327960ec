//! Real threads in a simulated environment.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidemill_env::{Handle, RealThreads, Threads};

/// Real threads, scheduled by the operating system. Only the number of cores is simulated: it is 2
/// at first, so that a test does the same on every machine.
#[derive(Debug)]
pub struct SimThreads {
    cores: AtomicUsize,
}

impl SimThreads {
    pub(crate) fn new() -> SimThreads {
        SimThreads { cores: AtomicUsize::new(2) }
    }

    /// Changes the number of cores that the code under test sees.
    ///
    /// # Panics
    /// When it is 0.
    pub fn set_cores(&self, cores: usize) {
        assert!(cores > 0, "a machine has at least one core");
        self.cores.store(cores, Ordering::SeqCst);
    }
}

impl Threads for SimThreads {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Handle> {
        RealThreads::new().spawn(name, body)
    }

    fn cores(&self) -> usize {
        self.cores.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_keep_the_contract() {
        tidemill_env::contract::threads(&SimThreads::new());
    }

    #[test]
    fn the_number_of_cores_is_set() {
        let threads = SimThreads::new();
        assert_eq!(threads.cores(), 2);
        threads.set_cores(96);
        assert_eq!(threads.cores(), 96);
    }
}
