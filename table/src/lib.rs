//! Tables: shared, mutable, timestamped state. A table maps a key to a row, and keeps the row in
//! versions, each bearing the sequence number (the dense rank of the stamp) that wrote it.
//!
//! `table` must not know IO, clocks, or threads beyond what it is handed: a table is a plain value
//! that one thread at a time changes.
//!
//! The newest version of a row lives in its *slot*, together with its key and its stamp, so that
//! one prefetched cache line answers "who wrote this last, and what". Superseded versions move to
//! an append-only *version log* in stamp order; it is at once the history that readers of the past
//! walk, and the set of changes since the last commit.
//!
//! Who reads what is safe while newer epochs have been executed reads the table [as of](Table::as_of)
//! an earlier transaction.
//!
//! What has changed since the last *snapshot* stands in the slots themselves: [`Table::take_changes`]
//! copies it at a cut, [`Changed::for_each`] encodes it in the background, and [`Table::loading`]
//! brings it back. Of a table with a history the same is done with versions.

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
pub use history::{StoredVersion, Versions, Wanted};
pub use layout::{Layout, Place, HEADER_WORDS, KEY_WORD};
pub use table::{row_hash, AsOf, Change, Changed, Loading, Table};
pub use version::Seq;
