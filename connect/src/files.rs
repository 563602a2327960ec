//! Files as sources: which files are read, and how.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use encoding_rs::{Encoding, UTF_8};
use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Result, Schema};
use tidemill_env::{Disk, Env};

use crate::csv::CsvFormat;
use crate::input::Input;
use crate::jsonl::JsonlFormat;
use crate::parquet::ParquetSource;
use crate::reader::{FileRows, FileSource};
use crate::records::Unclosed;
use crate::source::Source;

pub(crate) mod find;
mod folder;

pub use find::paths;
use folder::Folder;

/// A format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// Comma-separated values.
    Csv,
    /// One JSON object a line.
    Jsonl,
    /// Columns, compressed. A folder may have such files beside others.
    Parquet,
}

impl FileFormat {
    /// Returns the format that a file's name implies: `.csv`, `.tsv`, `.jsonl` or `.ndjson`, each
    /// with or without `.gz`, or `.parquet`.
    pub fn of(path: &Path) -> Option<FileFormat> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        if name.ends_with(".parquet") {
            return Some(FileFormat::Parquet);
        }
        match name.trim_end_matches(".gz").rsplit_once('.')?.1 {
            "csv" | "tsv" => Some(FileFormat::Csv),
            "jsonl" | "ndjson" => Some(FileFormat::Jsonl),
            _ => None,
        }
    }
}

/// The treatment of fields for which the stream has no column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownFields {
    /// They are ignored.
    #[default]
    Ignore,
    /// They make their row bad.
    Refuse,
}

/// The largest [`FilesSettings::record_bytes_max`]. The columns of a chunk have 31-bit offsets.
const RECORD_BYTES_LIMIT: usize = 64 << 20;

/// The files to read, and how. Everything but `path` has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesSettings {
    /// A file; a folder, whose files are all read except hidden ones; or a path with `*` in its
    /// last part. Each file is one source partition, in the order of the names. Files that begin
    /// with the magic bytes of gzip are decompressed.
    pub path: PathBuf,
    /// The format. When absent, each file's name implies it.
    #[serde(default)]
    pub format: Option<FileFormat>,
    /// CSV: the delimiter, one ASCII character. When absent it is `,`, and a tab for `.tsv`.
    #[serde(default)]
    pub delimiter: Option<char>,
    /// CSV: the quote around fields, one ASCII character, doubled inside. When absent it is `"`. If
    /// empty, quotes are ordinary characters.
    #[serde(default)]
    pub quote: Option<String>,
    /// CSV: the treatment of a quote that is not closed before the end of the file, or within
    /// `record_bytes_max`.
    #[serde(default)]
    pub unclosed: Option<Unclosed>,
    /// The label of the encoding, as browsers know it; UTF-8 when absent. A byte order mark
    /// overrides it.
    #[serde(default)]
    pub encoding: Option<String>,
    /// CSV: whether the first line is a header. When absent it is true, unless `order` is given. A
    /// file with neither a header nor `order` has the stream's columns, in their order.
    #[serde(default)]
    pub header: Option<bool>,
    /// CSV: the number of lines before the header, or before the first row without one. They are
    /// skipped, whatever is in them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_lines: Option<u64>,
    /// CSV: the names of the file's columns, in place of a header's.
    #[serde(default)]
    pub order: Option<Vec<String>>,
    /// The columns whose names in the file differ, and those names.
    #[serde(default)]
    pub columns: BTreeMap<String, String>,
    /// CSV: the texts that stand for null; the empty field when absent. In a text column, only a
    /// field without quotes is null. An empty field of a text column that may not be null is the
    /// empty text.
    #[serde(default)]
    pub nulls: Option<Vec<String>>,
    /// The formats of timestamp columns: `iso` (the default), `unix_s`, `unix_ms`, `unix_us`, or a
    /// pattern for `strptime`.
    #[serde(default)]
    pub formats: BTreeMap<String, String>,
    /// JSON lines and Parquet: the treatment of fields for which the stream has no column. A
    /// Parquet file with such a column is refused as a whole.
    #[serde(default)]
    pub unknown_fields: Option<UnknownFields>,
    /// Whether reading continues without end. Then the path is a file that grows at its end, or a
    /// folder (or pattern) to which files are added, as one source partition. Other programs may
    /// change the files in these ways:
    ///
    /// - A growing file may only be appended to. A row is read when its newline has arrived. A file
    ///   that was cut, exchanged or removed ends the run with an error.
    /// - Files of a folder are read in the order of their names. Each is read to its end as soon as
    ///   a later one exists, so nothing may be written to it from then on. A new file's name must
    ///   sort after those of all files that were begun.
    /// - Compressed files, files in encodings other than UTF-8, and Parquet files must be complete
    ///   when they are moved into the folder. Names that begin with a dot are not read, so write
    ///   such files under such a name.
    /// - Files that were read may be removed when no recovery needs them. This is so once a
    ///   snapshot has been taken after their rows.
    #[serde(default)]
    pub follow: bool,
    /// The largest size of a row in bytes, at most 64 MiB. A longer row is bad.
    #[serde(default = "default_record_bytes")]
    pub record_bytes_max: usize,
}

fn default_record_bytes() -> usize {
    1 << 20
}

impl FilesSettings {
    /// Creates settings for a path, with defaults for the rest.
    pub fn new(path: impl Into<PathBuf>) -> FilesSettings {
        FilesSettings {
            path: path.into(),
            format: None,
            delimiter: None,
            quote: None,
            unclosed: None,
            encoding: None,
            header: None,
            skip_lines: None,
            order: None,
            columns: BTreeMap::new(),
            nulls: None,
            formats: BTreeMap::new(),
            unknown_fields: None,
            follow: false,
            record_bytes_max: default_record_bytes(),
        }
    }

    /// Parses settings from a JSON object.
    ///
    /// # Errors
    /// For an unknown name, or a value that does not fit its setting.
    pub fn from_json(json: &str) -> Result<FilesSettings> {
        crate::settings::from_json("files", json)
    }

    /// Returns the given settings that mean nothing for any of these formats.
    fn unused(&self, formats: &[FileFormat]) -> Vec<&'static str> {
        const CSV: &[FileFormat] = &[FileFormat::Csv];
        const NAMED: &[FileFormat] = &[FileFormat::Jsonl, FileFormat::Parquet];
        const TEXT: &[FileFormat] = &[FileFormat::Csv, FileFormat::Jsonl];
        let settings = [
            ("delimiter", self.delimiter.is_some(), CSV),
            ("quote", self.quote.is_some(), CSV),
            ("unclosed", self.unclosed.is_some(), CSV),
            ("header", self.header.is_some(), CSV),
            ("skip_lines", self.skip_lines.is_some(), CSV),
            ("order", self.order.is_some(), CSV),
            ("nulls", self.nulls.is_some(), CSV),
            ("unknown_fields", self.unknown_fields.is_some(), NAMED),
            ("encoding", self.encoding.is_some(), TEXT),
        ];
        let used = |of: &[FileFormat]| formats.iter().any(|f| of.contains(f));
        let unused = settings.into_iter().filter(|(_, given, of)| *given && !used(of));
        unused.map(|(name, _, _)| name).collect()
    }
}

/// A source partition and its name: the file's name, without its folder.
pub type Partition = (String, Box<dyn Source>);

/// Opens the files. Returns a name and a source for each partition, in the order of the names.
///
/// # Errors
/// If there is no such file, if a setting does not fit, or if a file's header lacks a column that
/// the schema needs.
pub fn open(settings: &FilesSettings, schema: &Arc<Schema>, env: &Env) -> Result<Vec<Partition>> {
    check(settings)?;
    let encoding = match &settings.encoding {
        None => UTF_8,
        Some(label) => Encoding::for_label(label.as_bytes()).ok_or_else(|| {
            Error::setting(format!("there is no encoding '{label}'"))
                .help("for example utf-8, utf-16le, windows-1252 or shift_jis")
        })?,
    };
    let paths = paths(settings, &*env.disk)?;
    let formats = paths
        .iter()
        .map(|path| settings.format.or_else(|| FileFormat::of(path)).ok_or_else(|| unknown(path)))
        .collect::<Result<Vec<_>>>()?;
    if let (unused @ [_, ..], Some(first)) = (&settings.unused(&formats)[..], formats.first()) {
        return Err(Error::setting(format!(
            "{}: {} means nothing for {first:?} files",
            settings.path.display(),
            unused.join(", ")
        ))
        .help("leave it out"));
    }
    let opener = Opener {
        settings: settings.clone(),
        schema: schema.clone(),
        disk: env.disk.clone(),
        encoding,
    };
    if settings.follow && paths != [settings.path.clone()] {
        return Ok(vec![(name_of(&settings.path), Box::new(Folder::new(opener)))]);
    }
    let open = |path: &PathBuf| -> Result<Partition> {
        if settings.follow {
            opener.check_grows(path)?;
        }
        Ok((name_of(path), opener.open(path)?))
    };
    paths.iter().map(open).collect()
}

/// Returns the last part of a path.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Opens the files of one stream.
pub(crate) struct Opener {
    pub settings: FilesSettings,
    pub schema: Arc<Schema>,
    pub disk: Arc<dyn Disk>,
    encoding: &'static Encoding,
}

impl Opener {
    fn input(&self, path: &Path) -> Result<Input> {
        let input = Input::open(self.disk.clone(), path, self.encoding)?;
        Ok(if self.settings.follow { input.follow() } else { input })
    }

    /// Refuses to follow a single file that can't be read while it grows.
    fn check_grows(&self, path: &Path) -> Result<()> {
        let format = self.settings.format.or_else(|| FileFormat::of(path));
        if format != Some(FileFormat::Parquet) && self.input(path)?.can_grow()? {
            return Ok(());
        }
        Err(Error::setting(format!(
            "{} can't be followed: it is compressed, a Parquet file, or not in UTF-8",
            path.display()
        ))
        .help("follow a plain file, or a folder into which such files are moved"))
    }

    /// Opens one file.
    pub fn open(&self, path: &Path) -> Result<Box<dyn FileRows>> {
        let Opener { settings, schema, .. } = self;
        let format = settings.format.or_else(|| FileFormat::of(path)).ok_or_else(|| unknown(path));
        let schema = schema.clone();
        let limits = (settings.record_bytes_max, settings.unclosed.unwrap_or_default());
        Ok(match format? {
            FileFormat::Csv => {
                let mut settings = settings.clone();
                settings.delimiter = settings.delimiter.or_else(|| delimiter_of(path));
                let input = self.input(path)?;
                let format = CsvFormat::new(&input.origin, &schema, &settings)?;
                Box::new(FileSource::open(input, format, schema, limits)?)
            }
            FileFormat::Jsonl => {
                let format = JsonlFormat::new(&schema, settings)?;
                Box::new(FileSource::open(self.input(path)?, format, schema, limits)?)
            }
            FileFormat::Parquet => {
                Box::new(ParquetSource::open(self.disk.clone(), path, schema, settings)?)
            }
        })
    }
}

fn check(settings: &FilesSettings) -> Result<()> {
    if settings.path.as_os_str().is_empty() {
        return Err(Error::setting("the path of the files is empty")
            .help("name a file, a folder, or a pattern such as in/*.csv"));
    }
    let max = settings.record_bytes_max;
    if max == 0 || max > RECORD_BYTES_LIMIT {
        return Err(Error::setting(format!("record_bytes_max={max} is out of range"))
            .help(format!("give 1 to {RECORD_BYTES_LIMIT}")));
    }
    Ok(())
}

fn unknown(path: &Path) -> Error {
    Error::setting(format!("{}: the name does not end like a known format", path.display()))
        .help("say format=\"csv\", \"jsonl\" or \"parquet\"")
}

/// Returns the delimiter that a file's name implies.
pub(crate) fn delimiter_of(path: &Path) -> Option<char> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    name.trim_end_matches(".gz").ends_with(".tsv").then_some('\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        let settings = FilesSettings::from_json(r#"{"path": "x.csv", "delimiter": ";"}"#).unwrap();
        assert_eq!(settings.delimiter, Some(';'));
        let typo = FilesSettings::from_json(r#"{"path": "x.csv", "delimeter": ";"}"#).unwrap_err();
        assert_eq!(typo.help, "did you mean 'delimiter'?");
        assert_eq!(typo.kind, tidemill_core::Kind::Setting);
        let wrong = FilesSettings::from_json(r#"{"path": "x.csv", "delimiter": ";;"}"#);
        assert!(wrong.unwrap_err().what.contains("character"));
        let back = serde_json::to_string(&settings).unwrap();
        assert_eq!(FilesSettings::from_json(&back).unwrap(), settings);
    }
}
