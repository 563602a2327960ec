//! Graphs of calls as deterministic transactions over several owners of keys (Styx, sections 5 and
//! 6).
//!
//! A request calls a function of an entity. That function may call others, wherever they live, and
//! all of it is one transaction. Each node owns partitions of the keys and runs the functions of
//! the entities that it owns. There are no locks and no votes: the order is known before anything
//! runs, and every node reaches the same verdict.
//!
//! ```text
//!  requests ── one sequencer for each source, without messages between them  order
//!     ▼
//!  discover ── functions run where their entities live; calls and replies    node/run, node/home,
//!     │        are messages; shares show when a whole graph has ended        share
//!     ▼
//!  check ───── each node checks whether its rows were read as the order      node/check, node/round
//!     │        demands, and reports which transactions must run again
//!     ▼
//!  again ───── those run again, in their order, at their places: each call   node/round, gate
//!     │        where it was, all at once, while calls and results stay equal
//!     ▼
//!  commit ──── no transaction is left to run again: rows go to the tables    node/commit
//! ```
//!
//! **One rule.** A transaction is final when it and all before it have ended, and everything that
//! it read is what the order gives. A transaction that read something else runs again at its place.
//! So nothing else has to be right: not the moment of an access, the expected graph, or a cached
//! reply. Two differences from the paper follow. A transaction never gets another place and never
//! moves to the next epoch. And a transaction without conflicts is undone if a re-run before it
//! writes what it has read.
//!
//! **Outside.** The answer to a question to the outside is in a log before the function continues.
//! The driver of the node asks, logs the answer, and gives it to the node. So nothing depends on an
//! answer that is not logged, and re-runs and recoveries receive the same answers.
//!
//! **Places.** An access has a place inside its transaction: the numbers of the calls that lead to
//! it, and its own. The order of places is that of an execution in which each call runs where it is
//! made, until it ends. Versions of rows carry the place of their write. So calls may run side by
//! side, with the result of one after the other. Where that fails, the transaction runs again, one
//! call after the other ([`Mode::Sequential`]).
//!
//! **By column.** If all transactions of an epoch are declared, and their rows follow from their
//! events, nodes can exchange events and rows by column, and run the transactions through the
//! executor of one process ([`ColumnEpoch`]). The module `columns` explains how.
//!
//! **A sole owner.** If one node owns all rows, all events and calls go there, and it executes them
//! with all that they trigger, as one process does ([`Functions::sole`]).
//!
//! This crate must not know sockets, Python, threads or clocks: a [`Node`] takes messages
//! and gives messages. Threads of a process, a simulated cluster and processes drive the same state
//! machine.

mod columns;
mod counts;
mod gate;
mod keyed;
mod message;
mod node;
mod order;
mod program;
mod rows;
mod share;
mod size;
mod versions;

pub use columns::{
    ColumnEpoch, ColumnMessage, ColumnOutbox, ColumnOutcome, ColumnOutput, Exchange, GivenRows,
    HandlerEvents, LentRows, SoleResults, Wanted, ABORTED,
};
pub use counts::{Counts, EventPlace, Fault};
pub use message::{Body, Cost, Message, Mode, Verdict};
pub use node::{ColumnPlan, Counters, Event, Node, NodeId, Outbox, Owners, Question, Settings};
pub use order::{Path, Sequencing, Tid};
pub use program::{
    Activation, Bounds, Call, Changes, Clock, Context, Functions, Handle, RowAt, Step, Stop, Target,
};
pub use rows::{Rows, SnapshotId, Stored, TableChanges, TakenRows};
pub use share::Sum;
pub use size::output_bytes;
