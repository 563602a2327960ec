//! The dataflow before the transactions: sources are read and decoded by workers, go through map
//! and filter, and are *deposited* for the transactions of their epoch. This is the only crate
//! that knows timely dataflow; nothing of timely shows at its border.
//!
//! Timely's timestamp is the number of the epoch. Every worker holds, for each source that it
//! reads, a capability for the open epoch, and downgrades it when it sees that the sequencer has
//! opened the next one: the cut's offsets are what was deposited by then. When timely's frontier
//! has passed an epoch, all that was read for it has been deposited: it is *closed*.
//!
//! The border is narrow:
//!
//! - [`Spec`] says what is read, by whom, and into which streams: [`Input`], [`Branch`],
//!   [`Stage`]. An [`Ingress`] is one source partition, a [`Transform`] one stateless step.
//! - [`Gate`] is the shared steering: the sequencer opens epochs, pauses sources, stops; the
//!   workers obey; anybody may wake them.
//! - [`Conductor`] is the sequencer: called by the first worker between timely's steps with the
//!   [`Deposits`].
//! - [`run`] does it all until somebody says stop; [`follow`] is the same for the other processes
//!   of a [`Mesh`].
//!
//! Inside a process a row stays where it was decoded: what moves between cores is the handle of a
//! batch, never serialised. Between processes [`Parcel`]s and [`Report`]s travel in bytes of our
//! own (see `codec`).
//!
//! This crate does not know what a transaction is, nor tables, cuts, watermarks or formats.

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
