//! The contract of sinks, and files as sinks.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Batch, Error, Result, Schema};
use tidemill_env::Env;

use crate::checksum::Checksum;
use crate::files::{delimiter_of, FileFormat};

pub mod contract;
mod csv;
mod file;
pub(crate) mod jsonl;
mod memory;
mod overlap;
mod parquet;
mod target;

use target::Start;

pub use memory::{memory, MemoryRows, MemorySink};
pub use overlap::{check_overlap, Read, Written};

/// Takes the rows of finished epochs, in order. Implementations call [`contract::check`] and
/// [`contract::check_recovery`] in their tests.
///
/// **After a crash.** The driver of a sink stores its [`place`](Sink::place) with each cut. With
/// each snapshot it stores the place that [`sync`](Sink::sync) gave for the snapshot's cut. To
/// recover, it opens the sink at the snapshot's place, and writes and commits the rows of the later
/// cuts again. Then it calls [`settle`](Sink::settle), and continues.
pub trait Sink: Send {
    /// Takes rows. They stay hidden until [`commit`](Sink::commit).
    ///
    /// # Errors
    /// If the rows do not have the sink's schema, after [`finish`](Sink::finish), or if the sink
    /// fails. A sink that has failed stays so.
    fn write(&mut self, batch: &Batch) -> Result<()>;

    /// Makes all rows up to here visible, because they belong to finished epochs.
    ///
    /// # Errors
    /// If the sink fails; then some of the rows may be visible.
    fn commit(&mut self) -> Result<()>;

    /// Returns the sink's place after all written rows, committed or not.
    fn place(&self) -> SinkPlace;

    /// Makes all committed rows durable. Returns the place, at which the sink can be opened again.
    ///
    /// # Errors
    /// If the sink fails.
    fn sync(&mut self) -> Result<SinkPlace>;

    /// Ends the repetition after a crash: rows that the crash left after the present place are cut
    /// off. Does nothing if the sink was not opened at a place.
    ///
    /// # Errors
    /// If the sink fails.
    fn settle(&mut self) -> Result<()>;

    /// Ends the output. All committed rows are complete and durable when this returns. Rows after
    /// the last commit are dropped, so a failed run leaves only finished epochs. A second call does
    /// nothing.
    ///
    /// # Errors
    /// If the sink fails.
    fn finish(&mut self) -> Result<()>;
}

/// The place of a sink. It is part of snapshots, so its JSON is stable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkPlace {
    /// The number of rows written.
    pub rows: u64,
    /// Their uncompressed size in bytes, including the header; 0 where bytes mean nothing.
    #[serde(default)]
    pub bytes: u64,
    /// The end at which the file can be continued. A compressed file has one only where
    /// [`Sink::sync`] has ended a part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<FileEnd>,
    /// For a topic: an offset of each partition, at or before the first message after these rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ends: Vec<u64>,
}

/// A place in a written file, and the checksum that identifies the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEnd {
    /// The bytes of the file before the place.
    pub len: u64,
    /// The checksum of these bytes.
    pub checksum: Checksum,
}

impl SinkPlace {
    /// Whether the same rows were written, however they were compressed and synced.
    pub fn is_same(&self, other: &SinkPlace) -> bool {
        (self.rows, self.bytes) == (other.rows, other.bytes)
    }
}

/// A file to write, and how. Everything but `path` has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkSettings {
    /// The file. Missing folders are created. A name that ends with `.gz` makes it compressed. A
    /// Parquet file exists at the end; until then its rows are in files of a folder beside it,
    /// whose name has `.parts` appended.
    pub path: PathBuf,
    /// The format. When absent, the file's name implies it.
    #[serde(default)]
    pub format: Option<FileFormat>,
    /// Whether an existing file that is not empty is replaced.
    #[serde(default)]
    pub overwrite: bool,
    /// CSV: the delimiter, one ASCII character. When absent it is `,`, and a tab for `.tsv`.
    #[serde(default)]
    pub delimiter: Option<char>,
    /// CSV: whether the first line has the columns' names; true when absent.
    #[serde(default)]
    pub header: Option<bool>,
    /// CSV: the text that stands for null; the empty field when absent. Equal texts are quoted.
    #[serde(default)]
    pub null: Option<String>,
}

impl SinkSettings {
    /// Creates settings for a path, with defaults for the rest.
    pub fn new(path: impl Into<PathBuf>) -> SinkSettings {
        SinkSettings {
            path: path.into(),
            format: None,
            overwrite: false,
            delimiter: None,
            header: None,
            null: None,
        }
    }

    /// Parses settings from a JSON object.
    ///
    /// # Errors
    /// For an unknown name, or a value that does not fit its setting.
    pub fn from_json(json: &str) -> Result<SinkSettings> {
        crate::settings::from_json("sink", json)
    }

    /// Refuses settings that have a meaning for CSV only.
    fn only_csv(&self, format: FileFormat) -> Result<()> {
        if self.delimiter.is_none() && self.header.is_none() && self.null.is_none() {
            return Ok(());
        }
        Err(Error::setting(format!(
            "{}: delimiter, header and null mean nothing for {format:?} files",
            self.path.display()
        ))
        .help("leave them out, or write a .csv file"))
    }
}

/// Opens a file to write rows of `schema` to: a new one, or with `resume` an earlier one at a
/// stored place.
///
/// # Errors
/// If a setting does not fit, or if the disk refuses. A new file: if it is not empty and may not be
/// overwritten. An earlier file: if its content up to the place has changed.
pub fn open(
    settings: &SinkSettings,
    schema: &Arc<Schema>,
    env: &Env,
    resume: Option<&SinkPlace>,
) -> Result<Box<dyn Sink>> {
    let path = &settings.path;
    let Some(format) = settings.format.or_else(|| FileFormat::of(path)) else {
        return Err(Error::setting(format!(
            "{}: the name does not end like a known format",
            path.display()
        ))
        .help(
            "end it with .csv, .jsonl or .parquet, or say format=\"csv\", \"jsonl\" or \"parquet\"",
        ));
    };
    let disk = env.disk.clone();
    let start = match resume {
        Some(place) => Start::At(place.clone()),
        None => Start::New { overwrite: settings.overwrite },
    };
    Ok(match format {
        FileFormat::Csv => {
            let delimiter = settings.delimiter.or_else(|| delimiter_of(path));
            let dialect = crate::csv::dialect(delimiter, None)?;
            let null = settings.null.clone().unwrap_or_default();
            let header = settings.header.unwrap_or(true);
            let encode = csv::CsvEncode::new(path, schema, dialect, null, header)?;
            Box::new(file::FileSink::open(disk, path, start, schema.clone(), encode)?)
        }
        FileFormat::Jsonl => {
            settings.only_csv(format)?;
            let encode = jsonl::JsonlEncode::new(schema);
            Box::new(file::FileSink::open(disk, path, start, schema.clone(), encode)?)
        }
        FileFormat::Parquet => {
            settings.only_csv(format)?;
            Box::new(parquet::ParquetSink::open(env, path, start, schema)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_a_place_is_stable() {
        let end = FileEnd { len: 9, checksum: Checksum::default() };
        let place = SinkPlace { rows: 2, bytes: 9, end: Some(end), ends: Vec::new() };
        let json = serde_json::to_string(&place).unwrap();
        assert_eq!(
            json,
            r#"{"rows":2,"bytes":9,"end":{"len":9,"checksum":"99aa06d3014798d86001c324468d497f"}}"#
        );
        assert_eq!(serde_json::from_str::<SinkPlace>(&json).unwrap(), place);
        let packed = SinkPlace { end: None, ..place.clone() };
        assert!(packed.is_same(&place));
        assert_eq!(serde_json::to_string(&packed).unwrap(), r#"{"rows":2,"bytes":9}"#);
    }
}
