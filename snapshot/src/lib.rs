//! Snapshots: the rows of tables at one cut, kept in a store of objects.

mod dir;
mod faulty;
mod memory;
mod store;

pub use dir::DirStore;
pub use faulty::{Fault, FaultyStore, Stall, StoreOp};
pub use memory::MemoryStore;
pub use store::{Object, ObjectWriter, Store};

/// What every implementation of a trait of this crate promises, as checks that panic where a
/// promise is broken. Meant for tests.
pub mod contract {
    pub use crate::store::check as store;
}
