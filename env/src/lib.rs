//! The only access to the world: clock, randomness, threads, disk and network.
//!
//! All inputs of the engine from outside, and all of its effects there, pass through an [`Env`]. So
//! a test can give the engine another environment (the `sim` crate has one) and replay it from a
//! seed. The linter refuses every other way out: see `clippy.toml` at the root of the workspace.
//!
//! There is one file for each part of the environment. It has the trait, the real implementation,
//! and the contract that every implementation must satisfy, real or simulated (see [`contract`]).
//!
//! This crate knows no other part of the workspace. It does not know the meaning of files and
//! messages, and has no formats, no buffers, no retries and no policy. Errors are returned
//! unchanged. Times are integers: microseconds where people set or read them, nanoseconds where
//! durations are measured.

// This crate is the environment itself, so it may use what the linter refuses everywhere else.
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

/// The guarantees of every implementation of the environment, as checks that panic if one is
/// broken.
///
/// They are meant for tests: an implementation of a trait of this crate calls the check of that
/// trait.
pub mod contract {
    pub use crate::clock::check as clock;
    pub use crate::disk::check as disk;
    pub use crate::net::check as net;
    pub use crate::random::check as random;
    pub use crate::threads::check as threads;
}

/// The environment: all that a part with access to the world receives. It is cheap to clone.
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
    /// Returns the real environment: the operating system's clock, randomness, threads, files and
    /// sockets.
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
