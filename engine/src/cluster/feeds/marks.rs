//! The positions of feeds, in a file of the coordinator's directory.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidemill_connect::Place;
use tidemill_core::{Error, Result};
use tidemill_env::Disk;

use crate::data_dir::replace;

/// The name of the file.
const FEEDS: &str = "feeds";

/// The marks of a feed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    /// A position that no recovery goes back beyond.
    pub first: Mark,
    /// A position after all rows that were given out.
    pub last: Mark,
    /// The number of rows, if it has been read to its end.
    pub ends_at: Option<u64>,
    /// The ends that it had before it grew.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<Ended>,
    /// For each file, the rows that are left out: from the first to the one after the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Vec<Range<u64>>>,
}

/// An end after which there are more rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ended {
    /// The number of rows before it.
    pub rows: u64,
    /// The number of its records.
    pub records: u64,
}

/// A position of a feed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mark {
    /// The next row.
    pub offset: u64,
    /// The newest event time of the rows before.
    pub newest_us: Option<i64>,
    /// The positions of all files, in their order.
    pub files: Vec<FileMark>,
}

/// A position of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileMark {
    pub name: String,
    pub place: Place,
    /// The number of rows after `place` that were given out.
    pub given: u64,
    /// The position up to which the file was read.
    pub read: Place,
}

impl Mark {
    /// The names of the files.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.files.iter().map(|file| &*file.name).collect();
        names.join(", ")
    }
}

/// The marks of all feeds. The key has the number of the declaration and its stream.
pub(super) type Marks = BTreeMap<String, Known>;

/// Reads the marks, if there are some.
pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Marks>> {
    let path = dir.join(FEEDS);
    let mut text = String::new();
    let read = disk.open_read(&path);
    match read.and_then(|mut file| file.read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("reading {}", path.display()), &error)),
    }
    serde_json::from_str(&text).map(Some).map_err(|error| {
        Error::input(format!("{} is damaged: {error}", path.display())).help(
            "restore it as it was, or start from scratch with --fresh: without it, changes to the files that streams \
             read can't be noticed",
        )
    })
}

/// The error for a directory that has lost its marks.
pub(super) fn missing(dir: &Path) -> Error {
    Error::input(format!("{} is missing", dir.join(FEEDS).display())).help(
        "restore it as it was, or start from scratch with --fresh: it says which rows of the files that streams read          were executed",
    )
}

/// Makes the marks durable.
pub(super) fn write(disk: &dyn Disk, dir: &Path, marks: &Marks) -> Result<()> {
    let text = serde_json::to_string(marks).expect("marks are JSON");
    let failed = |e| Error::io(format!("writing {}", dir.join(FEEDS).display()), &e);
    replace(disk, dir, FEEDS, &text).map_err(failed)
}
