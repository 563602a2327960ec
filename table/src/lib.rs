//! Tables: shared, mutable, timestamped state.
//!
//! A table maps a key to a row, and stores the row in versions. Each version has the sequence
//! number (the dense rank of the stamp) of the transaction that wrote it.
//!
//! `table` must not know IO, clocks, or threads beyond its arguments. A table is a plain value that
//! one thread at a time changes.
//!
//! The newest version of a row is in its *slot*, together with its key and its stamp. So one
//! prefetched cache line has the last writer and the values. Superseded versions move to an
//! append-only *version log* in stamp order. The log is both the history for readers of the past,
//! and the set of changes since the last commit.
//!
//! A reader that must see durable state only, while newer epochs have been executed, reads the
//! table [as of](Table::as_of) an earlier transaction.
//!
//! Slots themselves mark the changes since the last *snapshot*. [`Table::take_changes`] copies
//! these at a cut, [`Changed::for_each`] encodes the copy in the background, and [`Table::loading`]
//! restores the rows. In a table with a history, versions are stored and restored in the same way.

mod at;
mod cells;
mod dirty;
mod history;
mod index;
mod layout;
mod pages;
mod table;
mod taking;
mod version;

pub use at::{Opened, RowAt};
pub use cells::{prefetch, prefetch_address, prefetch_to_write};
pub use history::{Aggregates, StoredVersion, Versions};
pub use layout::{Layout, Place, HEADER_WORDS, KEY_WORD};
pub use table::{row_hash, AsOf, Before, Change, Changed, Loading, Table};
pub use version::Seq;
