//! Transactions: programs (operations and expressions), the reference executor that defines their
//! meaning, and the fast executors.
//!
//! `txn` must not know IO, async, clocks, timely or Python. [`reference`](mod@reference) is a slow,
//! obvious, serial executor. Tests compare every other path with it, bit for bit. It is the best
//! documentation of the semantics.

pub mod execute;
pub mod order;
mod plan;
pub mod pool;
pub mod program;
pub mod reference;
pub mod schedule;

pub use program::Program;
