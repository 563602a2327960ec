//! Where a source stands.

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Result};

use crate::checksum::Checksum;

/// Where a source stands, and what tells whether its input still is what was read up to there. Goes
/// into snapshots: its JSON is stable.
///
/// It depends on the rows taken and not on how they were asked for: two runs over the same input
/// have equal places at equal offsets. At offset 0 nothing was read: the place says at most where
/// reading begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Offset of the next row.
    pub offset: u64,
    /// Bytes behind the last row, from the input's beginning, unpacked and as UTF-8; of a Parquet
    /// file its length, which can't grow; of a partition of a topic the offset in the topic behind the
    /// last message; 0 where bytes mean nothing.
    #[serde(default)]
    pub bytes: u64,
    /// The line, from 1, behind the last row; 0 where there are no lines.
    #[serde(default)]
    pub line: u64,
    /// Of these bytes; of a Parquet file of what describes the others, at its end; of a partition of a
    /// topic of the last message.
    #[serde(default)]
    pub checksum: Checksum,
    /// In a folder that is followed: the file that these bytes are in, and the files before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FilePlace>,
    /// In a partition of a topic: the offset in the topic at which reading began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<u64>,
}

/// A file among those of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePlace {
    /// Its name.
    pub name: String,
    /// The files before it.
    pub before: Before,
}

/// The files of a folder that were read to their ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Before {
    /// How many.
    pub files: u64,
    /// Their rows together.
    pub rows: u64,
    /// Of their names.
    pub names: Checksum,
    /// Of their contents.
    pub contents: Checksum,
}

impl Place {
    /// Before the first row.
    pub fn start() -> Place {
        Place::of_rows(0)
    }

    /// Of a source whose rows have numbers and nothing else.
    pub fn of_rows(offset: u64) -> Place {
        Place { offset, bytes: 0, line: 0, checksum: Checksum::default(), file: None, begin: None }
    }

    /// Compares where a source (`name`, for the error) stands with where it stood at the same cut
    /// of the run that recorded `recorded`.
    ///
    /// # Errors
    /// When its input is not what was read then.
    pub fn check(&self, name: &str, recorded: &Place) -> Result<()> {
        if self == recorded {
            return Ok(());
        }
        let (offset, bytes) = (recorded.offset, recorded.bytes);
        Err(Error::input(format!(
            "{name} is not what was read before: up to row {offset} its {bytes} bytes had the \
             checksum {}, and now it stands at row {} and byte {} with {}",
            recorded.checksum, self.offset, self.bytes, self.checksum
        ))
        .help(RESTORE))
    }
}

/// What to do about an input that is not what it was.
pub(crate) const RESTORE: &str =
    "restore it as it was, or start anew with --fresh; it may only grow at its end";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_json_is_stable() {
        let place = Place { offset: 7, bytes: 90, line: 8, ..Place::start() };
        let json = serde_json::to_string(&place).unwrap();
        assert_eq!(
            json,
            r#"{"offset":7,"bytes":90,"line":8,"checksum":"99aa06d3014798d86001c324468d497f"}"#
        );
        assert_eq!(serde_json::from_str::<Place>(&json).unwrap(), place);
        let before = Before { files: 1, rows: 5, ..Before::default() };
        let place = Place { file: Some(FilePlace { name: "b".into(), before }), ..place };
        let json = serde_json::to_string(&place).unwrap();
        assert!(json.ends_with(r#""contents":"99aa06d3014798d86001c324468d497f"}}}"#), "{json}");
        assert_eq!(serde_json::from_str::<Place>(&json).unwrap(), place);
        assert!(place.check("x", &place).is_ok());
        assert!(place.check("x", &Place::start()).is_err());
    }
}
