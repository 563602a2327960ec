//! What a sink is, and files as sinks.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Batch, Error, Result, Schema};
use tidemill_env::Env;

use crate::checksum::Checksum;
use crate::files::{delimiter_of, FileFormat};

mod apart;
pub mod contract;
mod csv;
mod file;
pub(crate) mod jsonl;
mod memory;
mod parquet;
mod target;

use target::Start;

pub use apart::{check_apart, Read, Written};
pub use memory::{memory, MemoryRows, MemorySink};

/// Takes the rows of finished epochs, in order. Implementations call [`contract::check`] and
/// [`contract::check_recovery`] in their tests.
///
/// **After a crash.** Whoever drives the sink keeps its [`place`](Sink::place) with each cut, and
/// with each snapshot the place that [`sync`](Sink::sync) gave for the snapshot's cut. It opens the
/// sink again at the snapshot's place, writes and commits the rows of the later cuts again, calls
/// [`settle`](Sink::settle), and goes on.
pub trait Sink: Send {
    /// Takes rows. They stay hidden until [`commit`](Sink::commit).
    ///
    /// # Errors
    /// When the rows are not of the sink's schema, after [`finish`](Sink::finish), and when the
    /// sink fails. A sink that has failed stays so.
    fn write(&mut self, batch: &Batch) -> Result<()>;

    /// Everything up to here belongs to finished epochs: it may be seen.
    ///
    /// # Errors
    /// When the sink fails; then some of the rows may be seen.
    fn commit(&mut self) -> Result<()>;

    /// Where the sink stands behind everything written, committed or not.
    fn place(&self) -> SinkPlace;

    /// Makes everything committed durable. Its place, at which the sink can be opened again.
    ///
    /// # Errors
    /// When the sink fails.
    fn sync(&mut self) -> Result<SinkPlace>;

    /// What was to be written again has been: what a crash left behind it is cut off. Does nothing
    /// in a sink that was not opened at a place.
    ///
    /// # Errors
    /// When the sink fails.
    fn settle(&mut self) -> Result<()>;

    /// Nothing more comes. What was committed is complete and stored safely when this returns;
    /// rows after the last commit are dropped, so that a run that fails leaves only finished
    /// epochs behind. A second time does nothing.
    ///
    /// # Errors
    /// When the sink fails.
    fn finish(&mut self) -> Result<()>;
}

/// Where a sink stands. Goes into snapshots: its JSON is stable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkPlace {
    /// Rows written.
    pub rows: u64,
    /// Their bytes before they are packed, with what stands before the first row; 0 where bytes
    /// mean nothing.
    #[serde(default)]
    pub bytes: u64,
    /// Where the file can be continued. A packed file can be only where [`Sink::sync`] has ended a
    /// part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<FileEnd>,
    /// In a topic: for each partition an offset at or before the first message behind these rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ends: Vec<u64>,
}

/// A place in a file that was written, and what tells the file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEnd {
    /// Bytes of the file before it.
    pub len: u64,
    /// Of all of them.
    pub checksum: Checksum,
}

impl SinkPlace {
    /// Whether the same was written, however it was packed and synced.
    pub fn is_same(&self, other: &SinkPlace) -> bool {
        (self.rows, self.bytes) == (other.rows, other.bytes)
    }
}

/// A file to write, and how. Everything but `path` has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkSettings {
    /// The file. Folders that are missing are made. With `.gz` at its end it is packed. A Parquet
    /// file is there at the end; before that its rows are in the files of a folder next to it, with
    /// `.parts` behind its name.
    pub path: PathBuf,
    /// The format; by the file's name when absent.
    #[serde(default)]
    pub format: Option<FileFormat>,
    /// Whether a file that is there and not empty is replaced.
    #[serde(default)]
    pub overwrite: bool,
    /// CSV: between fields, one ASCII character; `,` when absent, a tab for `.tsv`.
    #[serde(default)]
    pub delimiter: Option<char>,
    /// CSV: whether the first line has the columns' names; true when absent.
    #[serde(default)]
    pub header: Option<bool>,
    /// CSV: what stands for null; the empty field when absent. Texts that look like it are quoted.
    #[serde(default)]
    pub null: Option<String>,
}

impl SinkSettings {
    /// Settings for a path, all others as they are by default.
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

    /// Settings from a JSON object.
    ///
    /// # Errors
    /// For a name that is no setting, or a value that does not fit one.
    pub fn from_json(json: &str) -> Result<SinkSettings> {
        crate::settings::from_json("sink", json)
    }

    /// Refuses settings that mean something for CSV only.
    fn only_csv(&self, format: FileFormat) -> Result<()> {
        if self.delimiter.is_none() && self.header.is_none() && self.null.is_none() {
            return Ok(());
        }
        Err(Error::setting(format!(
            "{}: delimiter, header and null mean nothing for {format:?} files",
            self.path.display()
        )))
    }
}

/// Opens a file to write rows of `schema` to: a new one, or with `resume` one that was written
/// before, at a place that it had.
///
/// # Errors
/// When a setting does not fit, or when the disk refuses. A new one: when the file has something
/// in it and may not be overwritten. One that was written before: when it is not what was written
/// up to the place.
pub fn open(
    settings: &SinkSettings,
    schema: &Arc<Schema>,
    env: &Env,
    resume: Option<&SinkPlace>,
) -> Result<Box<dyn Sink>> {
    let path = &settings.path;
    let Some(format) = settings.format.or_else(|| FileFormat::of(path)) else {
        return Err(Error::setting(format!(
            "{}: the name does not tell the format",
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
