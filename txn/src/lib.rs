//! Transactions: the program (operations and expressions), the reference executor that defines
//! what it means, and the executors that do the same thing fast.
//!
//! `txn` must not know IO, async, clocks, timely or Python. [`reference`](mod@reference) is a slow,
//! obvious, serial executor of the one guarantee; every other path is tested against it, bit for
//! bit, and it is the best documentation of the semantics.

pub mod execute;
pub mod order;
mod plan;
pub mod pool;
pub mod program;
pub mod reference;
pub mod schedule;

pub use program::Program;
