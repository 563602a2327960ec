//! Transactions on rows that other owners hold: the executors of a node of a cluster.
//!
//! | file | content |
//! | --- | --- |
//! | `columns` | declared transactions whose rows follow from their events, for many events at once |
//! | `sole` | events with all that they trigger, for many events at once, at a node that owns all rows |
//! | `rows` | a declared transaction whose rows follow from its event |
//! | `transact` | any other transaction by itself |
//! | `rounds` | an event with all that it triggers |
//! | `store` | the contract of the rows, and the rows as the general path sees them |
//! | `open_batches` | the events of incomplete batches, as rows |
//! | `stored_versions` | the versions of rows, as rows |
//!
//! All others run on the general path, except where the code of words decides. `columns` prepares a
//! program for the executor of epochs, and `sole` uses that executor.

mod columns;
mod open_batches;
mod rounds;
mod rows;
mod sole;
mod store;
mod stored_versions;
mod transact;

pub use columns::{
    ColumnHandler, ColumnOutput, ColumnProgram, ColumnRow, ColumnStream, ColumnTable, ABORTED,
};
pub use open_batches::OpenBatches;
pub use rounds::RemoteRounds;
pub use rows::{Mentioned, RemoteOutcome, RemoteRows};
pub use sole::{SoleEvents, SoleOutcome, SoleOwner, SoleProgram, SoleTakers, SoleTerms};
pub use store::RemoteStore;
pub use stored_versions::StoredVersions;
pub use transact::transact;

use tidemill_core::{Column, Schema};

/// Returns the schema of a table that stores rows of other tables. It makes the columns' names
/// unique and drops their defaults.
fn numbered(columns: impl Iterator<Item = Column>) -> Schema {
    let named = |(nth, column): (usize, Column)| Column {
        name: format!("{nth}.{}", column.name).into(),
        default: None,
        ..column
    };
    Schema::new(columns.enumerate().map(named).collect())
}
