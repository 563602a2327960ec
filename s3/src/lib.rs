//! The store of a cluster in a bucket of S3, or of whatever speaks its protocol.
//!
//! An object is put on the condition that there is none of its name, which the store decides; a store that
//! does not know such conditions is refused when it is opened. What fails in passing is tried again until a
//! deadline. When a put was tried and nobody knows how that went, the object is read, and has been put if it
//! has the same bytes.
//!
//! This crate must not know what an object holds.

mod options;
mod store;

pub use options::S3Options;
pub use store::S3Store;
