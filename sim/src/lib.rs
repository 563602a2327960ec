//! A simulated environment that implements the traits of `env`, for tests only.
//!
//! A [`SimEnv`] is created from a seed and fulfils the contracts of `env`. On command, it does what
//! the real world does rarely and at bad moments:
//!
//! - [`SimClock`]: time passes only on command or by sleeping; the wall clock can be set;
//! - [`SimRandom`]: numbers from the seed;
//! - [`SimDisk`]: files in memory, crashes, a full disk, failing, short and stalled calls, damage
//!   by outsiders, a log of the calls, and a [`Trace`] of all changes that gives every disk which a
//!   crash anywhere in a run may leave;
//! - [`SimNet`]: connections in memory between simulated hosts, which can be cut and reset;
//! - [`SimThreads`]: real threads, and a number of cores that is the same on every machine.
//!
//! The scheduling of threads is not simulated. A test that uses one thread at a time repeats
//! exactly from its seed. A test with several threads repeats as far as it does not depend on their
//! order.
//!
//! This crate is independent of the engine.

mod clock;
mod disk;
mod net;
mod random;
mod threads;

use std::sync::Arc;

use tidemill_env::Env;

pub use clock::SimClock;
pub use disk::{DiskCall, DiskOp, Image, Left, SimDisk, Stall, Trace, Which};
pub use net::{SimHost, SimNet};
pub use random::SimRandom;
pub use threads::SimThreads;

/// A simulated environment, with the handles that control it.
///
/// ```
/// use std::path::Path;
/// let sim = tidemill_sim::SimEnv::new(7);
/// let env = sim.env(); // this is what the code under test gets
///
/// let mut file = env.disk.create(Path::new("/file")).unwrap();
/// file.write_all(b"never synced").unwrap();
/// sim.disk.crash();
/// assert!(!env.disk.exists(Path::new("/file")).unwrap());
/// ```
#[derive(Clone)]
pub struct SimEnv {
    /// Controls the time.
    pub clock: Arc<SimClock>,
    /// The numbers that the code under test sees. Drawing from it changes those that follow.
    pub random: Arc<SimRandom>,
    /// Controls the number of cores.
    pub threads: Arc<SimThreads>,
    /// Controls crashes and faults, and has the log of calls.
    pub disk: Arc<SimDisk>,
    /// Controls further hosts and cuts.
    pub net: Arc<SimNet>,
}

impl SimEnv {
    /// Creates an environment with an empty disk and no connections. Equal seeds give equal
    /// environments.
    pub fn new(seed: u64) -> SimEnv {
        let random = SimRandom::new(seed);
        let disk_random = random.fork();
        let clock = Arc::new(SimClock::new());
        SimEnv {
            disk: Arc::new(SimDisk::new(clock.clone(), disk_random)),
            net: Arc::new(SimNet::new(clock.clone())),
            threads: Arc::new(SimThreads::new()),
            random: Arc::new(random),
            clock,
        }
    }

    /// Returns the environment for the code under test. Its network is that of the host 127.0.0.1.
    /// Give each further process of a simulated cluster its own [`SimHost`].
    pub fn env(&self) -> Env {
        Env {
            clock: self.clock.clone(),
            random: self.random.clone(),
            threads: self.threads.clone(),
            disk: self.disk.clone(),
            net: Arc::new(self.net.host(SimNet::LOCALHOST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers() {
        let draw = |seed| {
            let env = SimEnv::new(seed).env();
            [(); 4].map(|()| env.random.next_u64())
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
