//! Files as sources: which ones, and how they are read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use encoding_rs::{Encoding, UTF_8};
use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Result, Schema};
use tidemill_env::{Disk, Env};

use crate::csv::CsvFormat;
use crate::input::{not_readable, Input};
use crate::jsonl::JsonlFormat;
use crate::reader::FileSource;
use crate::source::Source;

/// A format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// Comma separated values.
    Csv,
    /// One JSON object a line.
    Jsonl,
}

impl FileFormat {
    /// The format that a file's name tells: `.csv`, `.tsv`, `.jsonl` or `.ndjson`, with `.gz`
    /// behind it or not.
    pub fn of(path: &Path) -> Option<FileFormat> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        match name.trim_end_matches(".gz").rsplit_once('.')?.1 {
            "csv" | "tsv" => Some(FileFormat::Csv),
            "jsonl" | "ndjson" => Some(FileFormat::Jsonl),
            _ => None,
        }
    }
}

/// What happens to fields that the stream has no column for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownFields {
    /// They are ignored.
    #[default]
    Ignore,
    /// Their row is bad.
    Refuse,
}

/// The largest [`FilesSettings::record_bytes_max`]: columns of a chunk have 31-bit places.
const RECORD_BYTES_LIMIT: usize = 64 << 20;

/// Which files are read, and how. Everything but `path` has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesSettings {
    /// A file; a folder, of which all files are read but hidden ones; or a file name with `*` in
    /// its last part. Each file is one source partition, in the order of their names. Files that
    /// begin with the mark of gzip are unpacked.
    pub path: PathBuf,
    /// The format; by each file's name when absent.
    #[serde(default)]
    pub format: Option<FileFormat>,
    /// CSV: between fields, one ASCII character; `,` when absent, a tab for `.tsv`.
    #[serde(default)]
    pub delimiter: Option<char>,
    /// CSV: around fields, one ASCII character, doubled inside; `"` when absent. Empty when quotes
    /// are ordinary characters.
    #[serde(default)]
    pub quote: Option<String>,
    /// Label of the encoding, as browsers know them; UTF-8 when absent. A byte order mark
    /// overrides it.
    #[serde(default)]
    pub encoding: Option<String>,
    /// CSV: whether the first line is a header; true unless `order` is given. Without either the
    /// file has the columns of the stream, in their order.
    #[serde(default)]
    pub header: Option<bool>,
    /// CSV: the names of the file's columns, in place of a header's.
    #[serde(default)]
    pub order: Option<Vec<String>>,
    /// Column of the stream → its name in the file, where they differ.
    #[serde(default)]
    pub columns: BTreeMap<String, String>,
    /// CSV: what stands for null; the empty field when absent. In a text column only a field
    /// without quotes is null, and the empty field of one that may not be null is the empty text.
    #[serde(default)]
    pub nulls: Option<Vec<String>>,
    /// Timestamp column → its format: `iso` (the default), `unix_s`, `unix_ms`, `unix_us`, or in
    /// the syntax of strftime.
    #[serde(default)]
    pub formats: BTreeMap<String, String>,
    /// JSON lines: what happens to fields that the stream has no column for.
    #[serde(default)]
    pub unknown_fields: Option<UnknownFields>,
    /// The most bytes that one row may have, at most 64 MiB; a longer one is bad.
    #[serde(default = "default_record_bytes")]
    pub record_bytes_max: usize,
}

fn default_record_bytes() -> usize {
    1 << 20
}

impl FilesSettings {
    /// Settings for a path, all others as they are by default.
    pub fn new(path: impl Into<PathBuf>) -> FilesSettings {
        FilesSettings {
            path: path.into(),
            format: None,
            delimiter: None,
            quote: None,
            encoding: None,
            header: None,
            order: None,
            columns: BTreeMap::new(),
            nulls: None,
            formats: BTreeMap::new(),
            unknown_fields: None,
            record_bytes_max: default_record_bytes(),
        }
    }

    /// Settings from a JSON object.
    ///
    /// # Errors
    /// For a name that is no setting, or a value that does not fit one.
    pub fn from_json(json: &str) -> Result<FilesSettings> {
        crate::settings::from_json("files", json)
    }

    /// The settings that were given and mean something for one format only.
    fn only_for(&self, format: FileFormat) -> Vec<&'static str> {
        let settings = match format {
            FileFormat::Csv => vec![
                ("delimiter", self.delimiter.is_some()),
                ("quote", self.quote.is_some()),
                ("header", self.header.is_some()),
                ("order", self.order.is_some()),
                ("nulls", self.nulls.is_some()),
            ],
            FileFormat::Jsonl => vec![("unknown_fields", self.unknown_fields.is_some())],
        };
        settings.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
}

/// A source partition and its name: the file's, without its folder.
pub type Partition = (String, Box<dyn Source>);

/// Opens the files: a name and a source for each partition, in the order of the names.
///
/// # Errors
/// When there is no such file, when a setting does not fit, or when a file's header lacks a column
/// that the schema needs.
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
    for (format, other) in
        [(FileFormat::Csv, FileFormat::Jsonl), (FileFormat::Jsonl, FileFormat::Csv)]
    {
        let unused = settings.only_for(format);
        if !unused.is_empty() && formats.iter().all(|f| *f == other) {
            return Err(Error::setting(format!(
                "{}: {} means nothing for {other:?} files",
                settings.path.display(),
                unused.join(", ")
            )));
        }
    }
    paths
        .iter()
        .zip(formats)
        .map(|(path, format)| {
            let input = Input::open(env.disk.clone(), path, encoding)?;
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            Ok((name, open_one(input, path, format, settings, schema)?))
        })
        .collect()
}

fn check(settings: &FilesSettings) -> Result<()> {
    if settings.path.as_os_str().is_empty() {
        return Err(Error::setting("the path of the files is empty"));
    }
    let max = settings.record_bytes_max;
    if max == 0 || max > RECORD_BYTES_LIMIT {
        return Err(Error::setting(format!(
            "record_bytes_max is 1 to {RECORD_BYTES_LIMIT}, not {max}"
        )));
    }
    Ok(())
}

fn unknown(path: &Path) -> Error {
    Error::setting(format!("{}: the name does not tell the format", path.display()))
        .help("say format=\"csv\" or format=\"jsonl\"")
}

fn open_one(
    input: Input,
    path: &Path,
    format: FileFormat,
    settings: &FilesSettings,
    schema: &Arc<Schema>,
) -> Result<Box<dyn Source>> {
    let (schema, max) = (schema.clone(), settings.record_bytes_max);
    Ok(match format {
        FileFormat::Csv => {
            let mut settings = settings.clone();
            settings.delimiter = settings.delimiter.or_else(|| delimiter_of(path));
            let format = CsvFormat::new(&input.origin, &schema, &settings)?;
            Box::new(FileSource::open(input, format, schema, max)?)
        }
        FileFormat::Jsonl => {
            let format = JsonlFormat::new(&schema, settings)?;
            Box::new(FileSource::open(input, format, schema, max)?)
        }
    })
}

/// The delimiter that a file's name tells.
pub(crate) fn delimiter_of(path: &Path) -> Option<char> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    name.trim_end_matches(".gz").ends_with(".tsv").then_some('\t')
}

/// The files that the settings name, sorted.
///
/// # Errors
/// When there is none.
pub fn paths(settings: &FilesSettings, disk: &dyn Disk) -> Result<Vec<PathBuf>> {
    let path = &settings.path;
    let pattern = path.file_name().and_then(|n| n.to_str()).filter(|n| n.contains('*'));
    match (disk.metadata(path), pattern) {
        (Ok(meta), _) if meta.is_dir => {
            let files = list(disk, path, |name| !name.starts_with('.'))?;
            if files.is_empty() {
                return Err(Error::input(format!("the folder {} has no files", path.display())));
            }
            Ok(files)
        }
        (Ok(_), _) => Ok(vec![path.clone()]),
        (Err(_), Some(pattern)) => {
            let folder = match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            if folder.to_string_lossy().contains('*') {
                return Err(Error::setting(format!("{}: * in a folder's name", path.display()))
                    .help("only the last part of the path may have it"));
            }
            let hidden = pattern.starts_with('.');
            let fits = |name: &str| matches(pattern, name) && (hidden || !name.starts_with('.'));
            let files = list(disk, folder, fits)?;
            if files.is_empty() {
                return Err(Error::input(format!("no file fits {}", path.display())).help(
                    "check the path; a relative one starts at the folder in which the program runs",
                ));
            }
            Ok(files)
        }
        (Err(e), None) => Err(not_readable(disk, path, &e)),
    }
}

fn list(disk: &dyn Disk, folder: &Path, fits: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in disk.list(folder).map_err(|e| not_readable(disk, folder, &e))? {
        let name = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
        // What has gone since, or is a dangling link, is not there.
        if fits(&name) && disk.metadata(&path).is_ok_and(|meta| !meta.is_dir) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a name fits a pattern, in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return name.ends_with(part);
        }
        match name.find(part) {
            Some(place) => name = &name[place + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, fits) in [
            ("*.csv", "a.csv", true),
            ("*.csv", "a.csv.gz", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "axbxbxc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("*", "", true),
            ("x", "x", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

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
