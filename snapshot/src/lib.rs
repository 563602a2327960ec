//! Snapshots: the rows of tables after one cut, and the engine's internal state, in a store of
//! objects.
//!
//! A [`Store`](tidemill_durable::Store) holds objects: names to bytes, put as a whole, never
//! changed. A snapshot is a [`Manifest`], which is put last. It names *data objects* with rows (see
//! `data.rs` for their format) and one object with the internal state. Objects that no manifest
//! names do not count. They are left from an interrupted snapshot, and are removed later.
//!
//! Each snapshot adds one data object with the rows that have changed. To bound their number and
//! the time to load them, they are merged in the background (`layout.rs` says which and when).
//!
//! Objects that are damaged, missing or mistaken for others are refused by name. Nothing older
//! replaces them.
//!
//! This crate moves keys and rows as bytes. It does not know transactions, tables, logs, threads or
//! clocks: the engine says when to take a snapshot.
//!
//! ```
//! use std::sync::Arc;
//! use tidemill_core::TableId;
//! use tidemill_durable::{MemoryStore, Store};
//! use tidemill_place::Partition;
//! use tidemill_snapshot::{load, Delta, Head, Snapshots};
//!
//! let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
//! let mut snapshots = Snapshots::open(store.clone(), 7, 1)?;
//! let mut delta = Delta::new();
//! delta.push(TableId(0), Partition(5), b"key", Some(b"row"));
//! snapshots.publish(Head { epoch: 1, ..Head::default() }, b"internal state", &delta)?;
//!
//! let snapshots = Snapshots::open(store.clone(), 7, 2)?;
//! let newest = snapshots.newest().unwrap();
//! load(&store, newest, |row| {
//!     assert_eq!((row.key, row.row), (&b"key"[..], &b"row"[..]));
//!     Ok(())
//! })?;
//! # Ok::<(), tidemill_core::Error>(())
//! ```

mod bytes;
mod compact;
mod damage;
mod data;
mod delta;
mod layout;
mod load;
mod manifest;
mod merge;
mod names;
mod part;
mod publish;
mod retain;
mod shard;
mod snapshots;

pub use compact::{merge, Merge, Merged};
pub use delta::Delta;
pub use layout::{plan, replace, DataObject, Work};
pub use load::{load, LoadedChange, LoadedRow, Loader, Piece};
pub use manifest::{epochs, manifest_at, Blob, Head, Manifest};
pub use part::Part;
pub use publish::put_rows;
pub use retain::Retained;
pub use shard::{shard_of, shards, SHARDS};
pub use snapshots::{discard_after, newest, open_at, Snapshots};

/// The version of all formats here: data objects and manifests.
pub const VERSION: u16 = 1;

/// The prefix of data objects in a store.
const DATA: &str = "data/";
/// The prefix of internal states.
const INTERNAL: &str = "internal/";
