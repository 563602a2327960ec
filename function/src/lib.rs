//! Graphs of calls as deterministic transactions over several owners of keys (Styx 5 and 6).
//!
//! A request calls a function of an entity; that function may call others, wherever they live; all of it
//! is one transaction. Each node owns partitions of the keys and runs the functions of the entities that it
//! owns. Nobody locks and nobody votes: the order is known before anything runs, and every node comes to
//! the same verdict.
//!
//! ```text
//!  requests ── one sequencer for each source, without a word between them      order
//!     ▼
//!  discover ── functions run where their entities live; calls and replies are messages;
//!     │        shares of the acknowledgement say when all of a graph has ended  node/run, node/home, share
//!     ▼
//!  check ───── each node looks whether its rows were read as the order has it,
//!     │        and tells the others whose reads were not                        node/check, node/round
//!     ▼
//!  again ───── those run again, in their order, at their places: each call where it was,
//!     │        all of them at once, as long as nothing changes what they say    node/round, gate
//!     ▼
//!  commit ──── nobody is left: rows go to the store                             node/commit
//! ```
//!
//! **One rule.** A transaction is final when it and all before it have ended, and everything that it read is
//! what the order gives. What has not been read so runs again at its place. So neither where an access was
//! made, nor what was expected of a graph, nor what was cached has to be right. Differences from the paper
//! that follow: a transaction never gets another place and never goes to the next epoch; and one that was
//! without conflicts is undone if a re-run before it writes what it has read.
//!
//! **Outside.** What a function asks outside is an answer in a log before the function goes on: whoever drives the
//! node asks and logs, and tells the node. So nothing depends on what is not logged, and re-runs and recoveries are
//! told the same.
//!
//! **Places.** An access has a place inside its transaction: the numbers of the calls that lead to it, and
//! its own. Places in their order are what would have happened, had each call run where it was made until it
//! ended. Versions of rows bear the place of their write. So calls may run side by side, and what they come
//! to is what one after the other would have come to; where that fails, the transaction runs again, one call
//! after the other ([`Mode::Sequential`]).
//!
//! This crate must not know sockets, timely, Python, threads or clocks: a [`Node`] takes messages and gives
//! messages. Threads of a process, a simulated cluster and processes drive the same one.

mod gate;
mod keyed;
mod message;
mod node;
mod order;
mod program;
mod share;
mod size;
mod store;
mod versions;

pub use message::{Body, Message, Mode, Spent, Verdict};
pub use node::{Counters, Event, Fault, Node, NodeId, Outbox, Owners, Question, Settings};
pub use order::{Path, Sequencing, Tid};
pub use program::{
    Activation, Bounds, Call, Changes, Clock, Context, Functions, Handle, RowAt, Step, Stop, Target,
};
pub use share::Sum;
pub use size::output_bytes;
pub use store::{Rows, Store, Stored};
