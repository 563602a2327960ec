//! A store of objects in a bucket of S3, or of a server with the same protocol.
//!
//! An object is put on the condition that there is none of its name, which the store checks. A
//! store without such conditions is refused when it is opened. Temporary failures are retried until
//! a deadline. If the result of a put is unknown, the object is read. It has been put if it has the
//! same bytes.
//!
//! This crate must not know the content of objects.

mod options;
mod store;

pub use options::S3Options;
pub use store::S3Store;
