//! Where feeds stood: what a file of the coordinator's directory says of it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidemill_connect::Place;
use tidemill_core::{Error, Result};
use tidemill_env::Disk;

use crate::data_dir::replace;

/// The file.
const FEEDS: &str = "feeds";

/// What is known of a feed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    /// One that no recovery goes behind.
    pub first: Mark,
    /// One behind all that anybody has been given.
    pub last: Mark,
    /// How many rows it has, if it has been read to its end.
    pub ends_at: Option<u64>,
    /// Where it ended before it grew.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<Ended>,
}

/// An end behind which there is more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ended {
    /// How many rows there were.
    pub rows: u64,
    /// How many records said so.
    pub records: u64,
}

/// Where a feed stood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mark {
    /// The row that comes next.
    pub offset: u64,
    /// The newest time of those before it, in event time.
    pub newest_us: Option<i64>,
    /// Of each file, in their order.
    pub files: Vec<FileMark>,
}

/// Where a file of one stood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileMark {
    pub name: String,
    pub place: Place,
    /// So many rows behind the place had been given.
    pub given: u64,
    /// Up to here it had been read.
    pub read: Place,
}

impl Mark {
    /// The names of the files.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.files.iter().map(|file| &*file.name).collect();
        names.join(", ")
    }
}

/// By the number of the declaration and its stream.
pub(super) type Marks = BTreeMap<String, Known>;

/// What is known, if anything is.
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
            "bring it back as it was, or begin anew with --fresh: without it nobody can tell whether the files that streams \
             read are what they were",
        )
    })
}

/// Makes it durable.
pub(super) fn write(disk: &dyn Disk, dir: &Path, marks: &Marks) -> Result<()> {
    let text = serde_json::to_string(marks).expect("marks are JSON");
    let failed = |e| Error::io(format!("writing {}", dir.join(FEEDS).display()), &e);
    replace(disk, dir, FEEDS, &text).map_err(failed)
}
