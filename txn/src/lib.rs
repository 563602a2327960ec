//! Transactions: programs (operations and expressions), the one order, and the executors.
//!
//! `txn` must not know IO, async, clocks or Python. The crate `reference` defines what a
//! program means: a slow, obvious, serial executor. Tests compare every path here with it, bit for
//! bit. [`meaning`] has the parts that both share.

pub mod execute;
pub mod meaning;
pub mod order;
mod plan;
pub mod pool;
pub mod program;
pub mod reasons;
pub mod schedule;

pub use program::Program;
