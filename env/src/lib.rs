//! The one door to the world: clock, randomness, threads, disk and network.
//!
//! Everything that the engine learns from outside, and everything that it does outside, passes
//! through an [`Env`]. So a test can hand the engine another world (the `sim` crate has one) and
//! replay it from a seed, and the linter can refuse every other way out: see `clippy.toml` at the
//! root of the workspace.
//!
//! There is one file per door. Each holds the trait, the real implementation, and the contract
//! that every implementation must pass, real or simulated (see [`contract`]).
//!
//! This crate knows no other part of the workspace. It does not know what a file or a message
//! means, has no formats, no buffering, no retries and no policy; errors are passed up as they
//! are. Times are integers: microseconds where people set or read them, nanoseconds where
//! durations are measured.

// This crate is the door itself: it is the one place that may use what the linter refuses to all
// others.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod clock;
mod disk;
pub mod forks;
mod hold;
mod net;
mod random;
mod threads;

use std::fmt;
use std::sync::Arc;

pub use clock::{Clock, RealClock};
pub use disk::{Closed, Disk, FileId, Lock, Meta, NodeKind, ReadFile, RealDisk, WriteFile};
pub use hold::hold;
pub use net::{Addr, Connection, Listener, Net, RealNet};
pub use random::{Random, RealRandom};
pub use threads::{panic_message, Handle, RealThreads, Threads};

/// What every implementation of a door promises, as checks that panic where a promise is broken.
///
/// Meant for tests: an implementation of a trait of this crate calls the check of that trait.
pub mod contract {
    pub use crate::clock::check as clock;
    pub use crate::disk::check as disk;
    pub use crate::net::check as net;
    pub use crate::random::check as random;
    pub use crate::threads::check as threads;
}

/// All doors together: what a part gets handed that needs the world. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    /// Wall time, durations, sleeping.
    pub clock: Arc<dyn Clock>,
    /// Random numbers.
    pub random: Arc<dyn Random>,
    /// Starting threads.
    pub threads: Arc<dyn Threads>,
    /// Files and directories.
    pub disk: Arc<dyn Disk>,
    /// Stream connections between addresses.
    pub net: Arc<dyn Net>,
}

impl Env {
    /// The world as it is: the operating system's clock, randomness, threads, files and sockets.
    pub fn real() -> Env {
        Env {
            clock: Arc::new(RealClock::new()),
            random: Arc::new(RealRandom::new()),
            threads: Arc::new(RealThreads::new()),
            disk: Arc::new(RealDisk::new()),
            net: Arc::new(RealNet::new()),
        }
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env").finish_non_exhaustive()
    }
}
