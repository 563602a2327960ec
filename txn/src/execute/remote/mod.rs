//! Transactions on rows that other owners hold: the executors of a node of a cluster.
//!
//! | file | content |
//! | --- | --- |
//! | `columns` | declared transactions whose rows follow from their events, for many events at once |
//! | `sole` | events and calls with all that they trigger, at a node that owns all rows |
//! | `rows` | a declared transaction whose rows follow from its event |
//! | `transact` | any other transaction by itself |
//! | `store` | the contract of the rows, and the rows as the general path sees them |
//!
//! `transact` is the general path, and so is `rows` where the code of words does not decide. `columns`
//! prepares a program for the executor of epochs, and `sole` uses that executor.

mod columns;
mod rows;
mod sole;
mod store;
mod transact;

pub use columns::{
    ColumnHandler, ColumnOutput, ColumnProgram, ColumnRow, ColumnStream, ColumnTable, ABORTED,
};
pub use rows::{Mentioned, RemoteOutcome, RemoteRows};
pub use sole::{
    OpenBatches, SoleAhead, SoleEvents, SoleOutcome, SoleOwner, SoleProgram, SoleTakers, SoleTerms,
    SoleWork,
};
pub use store::RemoteStore;
pub use transact::transact;
