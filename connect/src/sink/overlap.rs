//! A check that no file is written that is also read, that another sink writes, or that belongs to
//! the engine.
//!
//! Paths are compared by the files to which they lead, because links of both kinds can give a file
//! many names.

use std::io;
use std::path::{Path, PathBuf};

use tidemill_core::{Error, Result};
use tidemill_env::{Disk, FileId, NodeKind};

use super::SinkSettings;
use crate::files::find::{folder, is_read};
use crate::files::{paths, FileFormat, FilesSettings};

/// A file that is written.
#[derive(Clone, Debug)]
pub struct Written {
    /// The file's path.
    pub path: PathBuf,
    /// The folder of a Parquet file's parts, which is also written.
    parts: Option<PathBuf>,
    /// The writer, for example "stream pay".
    pub by: String,
    /// The user's line.
    pub at: String,
}

impl Written {
    /// Describes a file that is written.
    pub fn new(path: impl Into<PathBuf>, by: impl Into<String>, at: impl Into<String>) -> Written {
        Written { path: path.into(), parts: None, by: by.into(), at: at.into() }
    }

    /// Describes the files that a sink writes.
    pub fn of(sink: &SinkSettings, by: impl Into<String>, at: impl Into<String>) -> Written {
        let format = sink.format.or_else(|| FileFormat::of(&sink.path));
        let parts =
            (format == Some(FileFormat::Parquet)).then(|| super::parquet::parts(&sink.path));
        Written { parts, ..Written::new(&sink.path, by, at) }
    }
}

/// Files that are read.
#[derive(Clone, Debug)]
pub struct Read {
    /// The settings that name them.
    pub settings: FilesSettings,
    /// The reader, for example "stream payments".
    pub by: String,
    /// The user's line.
    pub at: String,
}

/// The target of a path.
struct Place {
    /// The path without links.
    path: PathBuf,
    /// The existing file, if there is one.
    id: Option<FileId>,
}

impl Place {
    fn of(disk: &dyn Disk, path: &Path) -> Result<Place> {
        let fail = |e: io::Error| Error::io(path.display(), &e);
        let id = match disk.metadata(path) {
            Ok(meta) => Some(meta.id),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            // A sink reports this error when it is opened.
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => None,
            Err(e) => return Err(fail(e)),
        };
        let path = match disk.destination(path) {
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => path.to_path_buf(),
            other => other.map_err(fail)?,
        };
        Ok(Place { path, id })
    }

    fn is(&self, other: &Place) -> bool {
        self.path == other.path || self.id.is_some() && self.id == other.id
    }
}

/// Refuses a program in which two sinks write one file, or in which a written file is read or is in
/// a directory of the engine. It changes nothing, so call it before anything is opened for writing
/// or emptied.
///
/// # Errors
/// The error names the first two that conflict.
pub fn check_overlap(
    disk: &dyn Disk,
    written: &[Written],
    read: &[Read],
    directories: &[PathBuf],
) -> Result<()> {
    let mut places = Vec::with_capacity(written.len());
    for file in written {
        let place = Place::of(disk, &file.path).map_err(|e| e.at(file.at.clone()))?;
        let parts = file.parts.as_ref().map(|parts| Place::of(disk, parts)).transpose()?;
        places.push((file, place, parts));
    }
    for (nth, (file, place, _)) in places.iter().enumerate() {
        if let Some((other, ..)) = places[..nth].iter().find(|(_, other, _)| other.is(place)) {
            let what = match file.path == other.path {
                true => {
                    format!("two sinks write {}: {} and {}", file.path.display(), other.by, file.by)
                }
                false => format!(
                    "{} ({}) and {} ({}) are one file, and both are written",
                    other.path.display(),
                    other.by,
                    file.path.display(),
                    file.by
                ),
            };
            return Err(Error::program(what).help("give each its own file").at(file.at.clone()));
        }
    }
    for source in read {
        check_read(disk, &places, source).map_err(|error| error.at(source.at.clone()))?;
    }
    for directory in directories {
        check_directory(disk, &places, read, directory)?;
    }
    Ok(())
}

type Places<'a> = [(&'a Written, Place, Option<Place>)];

/// Refuses a written file that a source reads, now or when it looks again.
fn check_read(disk: &dyn Disk, written: &Places<'_>, source: &Read) -> Result<()> {
    let (by, shown) = (&source.by, source.settings.path.display());
    if let Some((path, pattern)) = folder(&source.settings, disk) {
        let folder = Place::of(disk, &path)?;
        for (file, place, parts) in written {
            let is_here = match place.path.parent() {
                Some(parent) => folder.is(&Place::of(disk, parent)?),
                None => false,
            };
            let name = place.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if is_here && is_read(pattern.as_deref(), name) {
                let what = format!(
                    "{} ({}) is in {shown}, which {by} reads: it would read what is written",
                    file.path.display(),
                    file.by
                );
                return Err(Error::program(what).help(
                    "write to another folder, or under a name that is not read: a hidden one, or one that does \
                     not fit the pattern",
                ));
            }
            if parts.as_ref().is_some_and(|parts| folder.path.starts_with(&parts.path)) {
                let what = format!(
                    "{shown}, which {by} reads, holds the parts of {} ({})",
                    file.path.display(),
                    file.by
                );
                return Err(Error::program(what).help("read the file when it is complete"));
            }
        }
    }
    for path in paths(&source.settings, disk)? {
        let read = Place::of(disk, &path)?;
        if let Some((file, ..)) = written.iter().find(|(_, place, _)| place.is(&read)) {
            let what = match file.path == path {
                true => format!("{} is both read ({by}) and written ({})", path.display(), file.by),
                false => format!(
                    "{} ({by}) and {} ({}) are one file, which is both read and written",
                    path.display(),
                    file.path.display(),
                    file.by
                ),
            };
            return Err(Error::program(what).help("write to another file"));
        }
    }
    Ok(())
}

/// Refuses a file in a directory of the engine, or another name of a file there.
fn check_directory(
    disk: &dyn Disk,
    written: &Places<'_>,
    read: &[Read],
    directory: &Path,
) -> Result<()> {
    let own = Place::of(disk, directory)?;
    let shown = directory.display();
    let refuse = |path: &Path, by: &str, at: &str| {
        let what =
            format!("{} ({by}) is in {shown}, where the engine keeps its data", path.display());
        Err(Error::program(what).help("move your own files elsewhere").at(at.to_owned()))
    };
    for (file, place, _) in written {
        if place.path.starts_with(&own.path) {
            return refuse(&file.path, &file.by, &file.at);
        }
    }
    for source in read {
        if disk.destination(&source.settings.path).is_ok_and(|path| path.starts_with(&own.path)) {
            return refuse(&source.settings.path, &source.by, &source.at);
        }
    }
    if !written.iter().any(|(_, place, _)| place.id.is_some()) || own.id.is_none() {
        return Ok(());
    }
    let mut folders = vec![directory.to_path_buf()];
    while let Some(folder) = folders.pop() {
        // A file that another process removes in the meantime does not count.
        for path in disk.list(&folder).unwrap_or_default() {
            match disk.node(&path) {
                Ok(NodeKind::Dir) => folders.push(path),
                Ok(NodeKind::File) => {
                    let Ok(meta) = disk.metadata(&path) else { continue };
                    let is_it = |(_, place, _): &&(&Written, Place, _)| place.id == Some(meta.id);
                    if let Some((file, ..)) = written.iter().find(is_it) {
                        return refuse(
                            &file.path,
                            &format!("{}, as {}", file.by, path.display()),
                            &file.at,
                        );
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tidemill_env::Env;

    fn read(path: impl Into<PathBuf>) -> Read {
        Read { settings: FilesSettings::new(path), by: "stream in".into(), at: "app.py:1".into() }
    }

    fn written(path: impl Into<PathBuf>) -> Written {
        Written::of(&SinkSettings::new(path), "stream out", "app.py:2")
    }

    /// Returns the error's text, or an empty text.
    fn check(written: &[Written], read: &[Read], directories: &[&Path]) -> String {
        let directories: Vec<PathBuf> = directories.iter().map(|path| path.to_path_buf()).collect();
        let checked = check_overlap(&*Env::real().disk, written, read, &directories);
        checked.err().map(|error| error.what).unwrap_or_default()
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the environment has no links")]
    fn one_file_is_known_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("in.csv"), "n\n1\n").unwrap();
        fs::hard_link(at("in.csv"), at("hard.csv")).unwrap();
        fs::create_dir_all(at("sub")).unwrap();
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("in.csv", at("link.csv")).unwrap();
            std::os::unix::fs::symlink("sub", at("other")).unwrap();
            std::os::unix::fs::symlink("nowhere", at("nowhere.csv")).unwrap();
            for name in ["link.csv", "sub/../link.csv"] {
                let error = check(&[written(at(name))], &[read(at("in.csv"))], &[]);
                assert!(error.contains("both read and written"), "{name}: {error}");
            }
            let two = [written(at("sub/new.csv")), written(at("other/new.csv"))];
            assert!(
                check(&two, &[], &[]).contains("are one file"),
                "also one that is not there yet"
            );
            let error = check(&[written(at("nowhere.csv"))], &[], &[]);
            assert!(error.contains("leads nowhere"), "{error}");
        }
        for name in ["in.csv", "./in.csv", "sub/../in.csv", "hard.csv"] {
            let error = check(&[written(at(name))], &[read(at("in.csv"))], &[]);
            assert!(error.contains("read"), "{name}: {error}");
        }
        let two = [written(at("hard.csv")), written(at("in.csv"))];
        assert!(check(&two, &[], &[]).contains("are one file"));
        let two = [written(at("new.csv")), written(at("sub/../new.csv"))];
        assert!(check(&two, &[], &[]).contains("are one file"));
        let apart = [written(at("a.csv")), written(at("sub/a.csv")), written(at("b.parquet"))];
        assert_eq!(check(&apart, &[read(at("in.csv"))], &[&at("data")]), "");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the environment has no links")]
    fn nothing_is_written_where_files_are_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("in")).unwrap();
        fs::write(at("in/a.csv"), "n\n1\n").unwrap();
        for source in ["in", "in/*.csv", "in/*"] {
            let error = check(&[written(at("in/b.csv"))], &[read(at(source))], &[]);
            assert!(error.contains("would read what is written"), "{source}: {error}");
            assert_eq!(check(&[written(at("in/.b.csv"))], &[read(at(source))], &[]), "");
        }
        assert_eq!(check(&[written(at("in/b.jsonl"))], &[read(at("in/*.csv"))], &[]), "");
        fs::create_dir_all(at("out.parquet.parts")).unwrap();
        fs::write(at("out.parquet.parts/x.parquet"), "").unwrap();
        let error = check(&[written(at("out.parquet"))], &[read(at("out.parquet.parts"))], &[]);
        assert!(error.contains("holds the parts"), "{error}");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the environment has no links")]
    fn the_data_is_the_engines_own() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("data/store")).unwrap();
        fs::write(at("data/store/x.csv"), "n\n").unwrap();
        fs::hard_link(at("data/store/x.csv"), at("hard.csv")).unwrap();
        for name in ["data/x.csv", "data/store/x.csv", "data/new/x.csv", "hard.csv"] {
            let error = check(&[written(at(name))], &[], &[&at("data")]);
            assert!(error.contains("where the engine keeps its data"), "{name}: {error}");
        }
        let error = check(&[], &[read(at("data/store"))], &[&at("data")]);
        assert!(error.contains("where the engine keeps its data"), "{error}");
        // This also holds if the directory does not exist yet.
        let error = check(&[written(at("new/x.csv"))], &[], &[&at("new")]);
        assert!(error.contains("where the engine keeps its data"), "{error}");
        assert_eq!(check(&[written(at("data.csv"))], &[], &[&at("data")]), "");
    }
}
