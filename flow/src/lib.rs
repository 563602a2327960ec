//! Reading before the transactions. Workers read and decode sources. The rows go through map and
//! filter, and are *deposited* for the transactions of their epoch.
//!
//! A worker reads each of its sources for the epoch that is open at that time. Once it has seen that
//! the sequencer has opened the next one, it says so, and everything that it reads belongs to that.
//! The cut's offsets are what was deposited by then. When the readers of all sources have said so,
//! everything that was read for the epoch before has been deposited: it is *closed*.
//!
//! The interface is narrow:
//!
//! - [`Spec`] says what is read, by which worker, and into which streams: [`Input`], [`Branch`],
//!   [`Stage`]. An [`Ingress`] is one source partition, a [`Transform`] one stateless step.
//! - [`Gate`] is the shared steering. The sequencer opens epochs, pauses sources, and stops. The
//!   workers obey, and any thread may wake them.
//! - [`Conductor`] is the sequencer. The first worker calls it in turn with its sources, with the
//!   [`Deposits`].
//! - [`run`] runs the flow until it is stopped.
//!
//! A row stays where it was decoded. Only the handle of a batch moves between cores.
//!
//! This crate does not know transactions, tables, cuts, watermarks, formats or other processes.

mod deposit;
mod gate;
mod parcel;
mod run;
mod source;
mod spec;
mod stage;
mod worker;

pub use deposit::{Deposit, Deposits};
pub use gate::Gate;
pub use parcel::{Bad, Chunk, Parcel, Report};
pub use run::run;
pub use spec::{Branch, Conductor, Ingress, Input, Polled, Spec, Stage, Transform, Turn};
