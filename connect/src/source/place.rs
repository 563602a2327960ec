//! The place of a source.

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Result};

use crate::checksum::Checksum;

/// The place of a source, and the data that shows whether its input has changed. It is part of
/// snapshots, so its JSON is stable.
///
/// It depends on the rows that were taken, and not on how they were asked for. Two runs over the
/// same input have equal places at equal offsets. At offset 0 nothing was read, so the place has at
/// most the beginning of reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The offset of the next row.
    pub offset: u64,
    /// The bytes from the input's beginning to the end of the last row, uncompressed and as UTF-8.
    /// For a Parquet file it is the file's length, which can't grow. For a partition of a topic it
    /// is the topic's offset after the last message. It is 0 where bytes mean nothing.
    #[serde(default)]
    pub bytes: u64,
    /// The line, from 1, after the last row; 0 where there are no lines.
    #[serde(default)]
    pub line: u64,
    /// The checksum of these bytes. For a Parquet file it is that of the footer, and for a
    /// partition of a topic that of the last message.
    #[serde(default)]
    pub checksum: Checksum,
    /// For a followed folder: the file that these bytes are in, and the files before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FilePlace>,
    /// For a partition of a topic: the topic's offset at which reading began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<u64>,
}

/// A file among those of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePlace {
    /// The file's name.
    pub name: String,
    /// The files before it.
    pub before: Before,
}

/// The files of a folder that were read to their ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Before {
    /// Their number.
    pub files: u64,
    /// The number of their rows.
    pub rows: u64,
    /// The checksum of their names.
    pub names: Checksum,
    /// The checksum of their contents.
    pub contents: Checksum,
}

impl Place {
    /// Returns the place before the first row.
    pub fn start() -> Place {
        Place::of_rows(0)
    }

    /// Returns the place of a source whose rows have only numbers.
    pub fn of_rows(offset: u64) -> Place {
        Place { offset, bytes: 0, line: 0, checksum: Checksum::default(), file: None, begin: None }
    }

    /// Compares a source's place with its place at the same cut of the run that recorded
    /// `recorded`. The error contains the source's `name`.
    ///
    /// # Errors
    /// If its input has changed.
    pub fn check(&self, name: &str, recorded: &Place) -> Result<()> {
        if self == recorded {
            return Ok(());
        }
        let (offset, bytes) = (recorded.offset, recorded.bytes);
        Err(Error::input(format!(
            "{name} is not what was read before: its first {offset} rows had {bytes} bytes with \
             checksum {}, and now row {} is at byte {} with checksum {}",
            recorded.checksum, self.offset, self.bytes, self.checksum
        ))
        .help(RESTORE))
    }
}

/// The help for an input that has changed.
pub(crate) const RESTORE: &str =
    "restore it as it was, or start again with --fresh (fresh=True); it may only grow at its end";

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
