//! The errors of objects that are not as they should be: what is wrong, why, and how to mend it.

use tidemill_core::{Error, Kind};

use crate::VERSION;

const RESTORE: &str =
    "restore it from a backup of the store; or accept to lose everything after an \
                       older snapshot, and open that one by its epoch";

/// Returns the error for an object that is not as it was put.
pub(crate) fn damaged(name: &str, why: &str) -> Error {
    Error::new(Kind::Io, format!("the object {name} is damaged: {why}")).help(RESTORE)
}

/// Returns the error for an object whose length has changed since it was put.
pub(crate) fn wrong_length(name: &str, found: u64, expected: u64) -> Error {
    damaged(name, &format!("it has {found} bytes instead of {expected}"))
}

/// Returns the error for an object that was put, and is missing.
pub(crate) fn missing(name: &str, by: &str) -> Error {
    Error::new(Kind::Io, format!("the object {name} is missing, which {by} names")).help(RESTORE)
}

/// Returns the error for an object in a format of a later version.
pub(crate) fn newer(name: &str, version: u16) -> Error {
    Error::setting(format!(
        "the object {name} has the format {version}; this Tidemill knows formats up to {VERSION}"
    ))
    .help("run the version of Tidemill that wrote it, or a later one")
}

/// Returns the error for an object of another app.
pub(crate) fn other_app(name: &str, found: u128, expected: u128) -> Error {
    Error::setting(format!(
        "the object {name} belongs to another app ({found:032x} instead of {expected:032x})"
    ))
    .help("give each app a data directory of its own")
}
