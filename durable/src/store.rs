//! The trait of a store: names to bytes, put as a whole, never changed.
//!
//! It has only operations that both an object store in the cloud and a directory support: no
//! renames, no appends and no locks. It does not know the content of objects.

use tidemill_core::{Error, Result};

/// Objects by name.
///
/// **Names** are one or more segments joined by `/`. A segment consists of ASCII letters, digits,
/// `.`, `_` and `-`, and does not begin with a dot. Calls with other names fail.
///
/// **An object exists as a whole or not at all**, for every reader and whenever the machine stops.
/// It is never changed. An object whose put has returned `true` survives a crash.
///
/// **After an error the result of a change is unknown**: it may have been made or not, and it may
/// still be made until the process ends. So names are not reused after a failure.
///
/// Calls wait for their results, in a cloud up to minutes. Errors have the kind `Io`, or `Resource`
/// if the store is full. They name the object.
pub trait Store: Send + Sync {
    /// Puts an object if there is none of that name. Otherwise it returns `false` and changes
    /// nothing. Of several callers at the same time, also of other processes where several may
    /// write, one gets `true`.
    ///
    /// # Errors
    /// If the store fails, or is full.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool>;

    /// Puts an object piece by piece. It is invisible before [`finish`](ObjectWriter::finish).
    /// Dropping the writer abandons the object.
    ///
    /// # Errors
    /// If the store fails.
    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>>;

    /// Returns the bytes of an object; `None` if there is none.
    ///
    /// # Errors
    /// If the store fails.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Returns `len` bytes of an object from the byte `from` on: fewer if it ends before. `None` if
    /// there is no such object.
    ///
    /// # Errors
    /// If the store fails.
    fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Vec<u8>>>;

    /// Returns all objects whose names begin with `prefix`, sorted by name. A prefix is empty or a
    /// name that is followed by `/`.
    ///
    /// # Errors
    /// If the store fails.
    fn list(&self, prefix: &str) -> Result<Vec<Object>>;

    /// Removes an object. A missing one is not an error.
    ///
    /// # Errors
    /// If the store fails.
    fn delete(&self, name: &str) -> Result<()>;

    /// Returns the current trouble as text, while the store retries a call.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// An object that is being put.
pub trait ObjectWriter: Send {
    /// Takes more bytes.
    ///
    /// # Errors
    /// If the store fails, or is full. The object can't be finished then.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Puts the object, as [`Store::put`] does.
    ///
    /// # Errors
    /// If the store fails now or has failed before.
    fn finish(self: Box<Self>) -> Result<bool>;
}

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The name.
    pub name: String,
    /// The length in bytes.
    pub len: u64,
}

/// Returns the error of a put whose name nobody else should have.
pub fn name_taken(name: &str) -> Error {
    Error::resource(format!("an object {name} exists already, and objects are never changed"))
        .help("another process writes to the same data: stop one of them")
}

/// Whether a text is a valid name of an object.
pub fn is_name(name: &str) -> bool {
    name.split('/').all(is_segment)
}

/// Refuses a text that is not a name.
///
/// # Errors
/// `Internal` if it is none.
pub fn check_name(name: &str) -> Result<()> {
    match is_name(name) {
        true => Ok(()),
        false => Err(Error::internal(format!("{name:?} is not a name of an object"))),
    }
}

/// Returns the name that a prefix consists of, without its slash; `None` if the prefix is empty.
///
/// # Errors
/// `Internal` if it is no prefix.
pub fn name_of_prefix(prefix: &str) -> Result<Option<&str>> {
    match prefix.strip_suffix('/') {
        Some(name) if is_name(name) => Ok(Some(name)),
        None if prefix.is_empty() => Ok(None),
        _ => Err(Error::internal(format!("{prefix:?} is not a prefix of names of objects"))),
    }
}

/// Whether a text is a valid segment of a name.
pub(crate) fn is_segment(segment: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !segment.is_empty() && !segment.starts_with('.') && segment.bytes().all(plain)
}
