//! The search for files.

use std::path::{Path, PathBuf};

use tidemill_core::{Error, Result};
use tidemill_env::Disk;

use super::FilesSettings;
use crate::input::not_readable;

/// Returns the files that the settings name, sorted.
///
/// # Errors
/// If there is none, unless a folder is followed.
pub fn paths(settings: &FilesSettings, disk: &dyn Disk) -> Result<Vec<PathBuf>> {
    let path = &settings.path;
    let pattern = path.file_name().and_then(|n| n.to_str()).filter(|n| n.contains('*'));
    match (disk.metadata(path), pattern) {
        (Ok(meta), _) if meta.is_dir => {
            let files = list(disk, path, |name| is_read(None, name))?;
            if files.is_empty() && !settings.follow {
                return Err(Error::input(format!("the folder {} has no files", path.display()))
                    .help("check the path, or wait for files with follow=True"));
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
                return Err(Error::setting(format!(
                    "{}: a folder's name has a * in it",
                    path.display()
                ))
                .help("use * only in the last part of the path, after the folders"));
            }
            let files = list(disk, folder, |name| is_read(Some(pattern), name))?;
            if files.is_empty() && !settings.follow {
                return Err(Error::input(format!("no file matches {}", path.display())).help(
                    "check the path; a relative one starts at the folder in which the program runs",
                ));
            }
            Ok(files)
        }
        (Err(e), None) => Err(not_readable(disk, path, &e)),
    }
}

/// Returns the folder that the settings name, and whether a file with this name in it would be
/// read. `None` if they name one file.
pub(crate) fn folder(
    settings: &FilesSettings,
    disk: &dyn Disk,
) -> Option<(PathBuf, Option<String>)> {
    let path = &settings.path;
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| name.contains('*'));
    match (disk.metadata(path), name) {
        (Ok(meta), _) if meta.is_dir => Some((path.clone(), None)),
        (Err(_), Some(pattern)) => match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => {
                Some((folder.to_path_buf(), Some(pattern.to_owned())))
            }
            _ => Some((PathBuf::from("."), Some(pattern.to_owned()))),
        },
        _ => None,
    }
}

/// Whether a name in a folder is read: by a pattern, or as any name.
pub(crate) fn is_read(pattern: Option<&str>, name: &str) -> bool {
    match pattern {
        None => !name.starts_with('.'),
        Some(pattern) => {
            matches(pattern, name) && (pattern.starts_with('.') || !name.starts_with('.'))
        }
    }
}

fn list(disk: &dyn Disk, folder: &Path, fits: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in disk.list(folder).map_err(|e| not_readable(disk, folder, &e))? {
        let name = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
        // A file that has been removed since, or a dangling link, is not read.
        if fits(&name) && disk.metadata(&path).is_ok_and(|meta| !meta.is_dir) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a name matches a pattern, in which `*` stands for any text.
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
}
