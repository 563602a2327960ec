//! Stores of objects: in memory, in a directory of one process or of several, and parts of a store
//! by name.
//!
//! A [`Store`] holds objects: names to bytes, put as a whole, never changed. `S3Store` of the crate
//! `s3` is another one. All of them keep the promises of [`contract`].
//!
//! This crate must not know the meaning of objects, their encoding, or the callers.

pub mod contract;
mod dir;
mod faulty;
mod memory;
mod store;
mod trouble;
mod within;

pub use dir::DirStore;
pub use faulty::{Fault, FaultyStore, Stall, StoreOp};
pub use memory::MemoryStore;
pub use store::{check_name, is_name, name_of_prefix, name_taken, Object, ObjectWriter, Store};
pub use trouble::Trouble;
pub use within::Within;
