//! The dataflow before the transactions. Workers read and decode sources. The rows go through map
//! and filter, and are *deposited* for the transactions of their epoch. This is the only crate that
//! knows timely dataflow, and its interface shows nothing of timely.
//!
//! Timely's timestamp is the number of the epoch. Every worker holds, for each source that it
//! reads, a capability for the open epoch. It downgrades this when it sees that the sequencer has
//! opened the next epoch. The cut's offsets are what was deposited by then. When timely's frontier
//! has passed an epoch, everything that was read for it has been deposited: it is *closed*.
//!
//! The interface is narrow:
//!
//! - [`Spec`] says what is read, by which worker, and into which streams: [`Input`], [`Branch`],
//!   [`Stage`]. An [`Ingress`] is one source partition, a [`Transform`] one stateless step.
//! - [`Gate`] is the shared steering. The sequencer opens epochs, pauses sources, and stops. The
//!   workers obey, and any thread may wake them.
//! - [`Conductor`] is the sequencer. The first worker calls it between timely's steps, with the
//!   [`Deposits`].
//! - [`run`] runs the flow until it is stopped. [`follow`] does so in the other processes of a
//!   [`Mesh`].
//!
//! Inside a process, a row stays where it was decoded. Only the handle of a batch moves between
//! cores, and is never serialized. Between processes, [`Parcel`]s and [`Report`]s travel in an
//! encoding of this crate (see `codec`).
//!
//! This crate does not know transactions, tables, cuts, watermarks or formats.

mod codec;
mod deposit;
mod filter;
mod gate;
mod load;
mod map;
mod mesh;
mod parcel;
mod post;
mod run;
mod source;
mod spec;
mod stage;
mod worker;

pub use deposit::{Deposit, Deposits};
pub use gate::Gate;
pub use mesh::{Mesh, MeshPlan};
pub use parcel::{Bad, Chunk, Parcel, Report};
pub use run::{follow, run};
pub use spec::{Branch, Conductor, Ingress, Input, Polled, Spec, Stage, Transform, Turn};
