//! The check whether a directory holds the state of an app in one process, or on several.
//!
//! In one process the state is in the directory itself, and the file `APP` has its owner. Several
//! processes have theirs in its folder `cluster`. Neither continues with the other's state, so a
//! start that would begin empty beside it is refused. Only a folder with nothing but `LOCK` holds
//! no state.

use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Path, PathBuf};

use tidemill_core::{Error, Result};
use tidemill_env::Disk;

/// The folder of a data directory with the shared state of several processes.
const CLUSTER: &str = "cluster";
/// The files that show a state of one process. The second exists while the directory is emptied.
const APP: [&str; 2] = ["APP", "APP.old"];

/// Refuses a directory for an app in one process when it holds the state of several processes.
///
/// # Errors
/// When it does, or when it can't be read.
pub(crate) fn for_one(disk: &dyn Disk, dir: &Path) -> Result<()> {
    match (holds_one(disk, dir)?, holds_several(disk, dir)?) {
        (_, false) => Ok(()),
        (true, true) => Err(both(dir)),
        (false, true) => {
            Err(several(dir).help("continue it with --processes N, or choose another --data-dir"))
        }
    }
}

/// Refuses a directory of several processes when it is inside the state of an app in one process.
///
/// # Errors
/// When it is, or when it can't be read.
pub(crate) fn for_several(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let around = around(dir);
    let found = [Some(dir), around.as_deref()].into_iter().flatten();
    for dir in found {
        if !holds_one(disk, dir)? {
            continue;
        }
        return Err(match holds_several(disk, dir)? {
            true => both(dir),
            false => Error::setting(format!(
                "{} holds the state of an app that ran in one process (there is {}), and several \
                 processes can't continue it",
                dir.display(),
                dir.join(APP[0]).display()
            ))
            .help("run it without --processes, or choose another --data-dir"),
        });
    }
    Ok(())
}

/// Returns the error for a directory that is no data directory because it holds the state of
/// several processes.
pub(crate) fn of_several(disk: &dyn Disk, dir: &Path) -> Result<Option<Error>> {
    // This includes the folder `cluster` itself, if a user names it.
    let around = around(dir).filter(|_| dir.ends_with(CLUSTER));
    let found = [Some(dir), around.as_deref()].into_iter().flatten();
    for dir in found {
        if holds_several(disk, dir)? {
            let help = "a coordinator that runs with --http answers: tidemill status --cluster URL, \
                        where URL is the address that it shows as http; rows are at \
                        URL/tables/NAME/rows?key=…, events at URL/streams/NAME; to copy it, stop it \
                        and copy the directory";
            return Ok(Some(several(dir).help(help)));
        }
    }
    Ok(None)
}

fn several(dir: &Path) -> Error {
    Error::setting(format!(
        "{} holds the state of an app on several processes (in {}), which one process can't read",
        dir.display(),
        dir.join(CLUSTER).display()
    ))
}

fn both(dir: &Path) -> Error {
    let shown = dir.display();
    Error::setting(format!(
        "{shown} holds two states: that of an app in one process (there is {}), and that of the app on \
         several processes (in {})",
        dir.join(APP[0]).display(),
        dir.join(CLUSTER).display()
    ))
    .help(format!(
        "move one of them away: mkdir OTHER && mv '{}' OTHER/; then {shown} continues in one \
         process, and --processes N --data-dir OTHER on several",
        dir.join(CLUSTER).display()
    ))
}

fn around(dir: &Path) -> Option<PathBuf> {
    dir.parent().filter(|_| dir.ends_with(CLUSTER)).map(Path::to_path_buf)
}

fn holds_one(disk: &dyn Disk, dir: &Path) -> Result<bool> {
    for name in APP {
        let path = dir.join(name);
        match disk.exists(&path) {
            Ok(false) => {}
            Ok(true) => return Ok(true),
            // The code that opens the directory reports this error better.
            Err(e) if e.kind() == NotADirectory => {}
            Err(e) => return Err(Error::io(path.display(), &e)),
        }
    }
    Ok(false)
}

fn holds_several(disk: &dyn Disk, dir: &Path) -> Result<bool> {
    let dir = dir.join(CLUSTER);
    match disk.list(&dir) {
        Ok(found) => Ok(found.iter().any(|path| !path.ends_with("LOCK"))),
        Err(e) if matches!(e.kind(), NotFound | NotADirectory) => Ok(false),
        Err(e) => Err(Error::io(dir.display(), &e)),
    }
}

#[cfg(test)]
mod tests {
    use tidemill_env::Env;

    use super::*;

    /// Returns the errors of each kind of start, for a directory with these files.
    fn names(files: &[&str]) -> [String; 3] {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("bank.tidemill");
        let disk = &*Env::real().disk;
        disk.create_dir_all(&dir).unwrap();
        for file in files {
            let path = dir.join(file);
            disk.create_dir_all(path.parent().unwrap()).unwrap();
            disk.create(&path).unwrap();
        }
        let before = listed(disk, &dir);
        let words = |found: Result<()>| found.err().map_or(String::new(), |e| e.to_string());
        let found = [
            words(for_one(disk, &dir)),
            words(for_several(disk, &dir.join(CLUSTER))),
            words(of_several(disk, &dir).map(|found| found.map_or(Ok(()), Err)).and_then(|r| r)),
        ];
        assert_eq!(before, listed(disk, &dir), "nothing was written");
        found
    }

    fn listed(disk: &dyn Disk, dir: &Path) -> Vec<PathBuf> {
        let mut found = disk.list(dir).unwrap();
        for path in found.clone() {
            if disk.metadata(&path).unwrap().is_dir {
                found.extend(listed(disk, &path));
            }
        }
        found
    }

    #[test]
    fn a_state_is_gone_on_with_where_it_was_made() {
        let none = ["", "", ""].map(String::from);
        for files in [&[][..], &["LOCK"], &["cluster/LOCK"]] {
            assert_eq!(names(files), none, "{files:?}");
        }
        for files in [&["APP", "cuts/1"][..], &["APP", "cluster/LOCK"], &["APP.old"]] {
            let [one, several, looked] = names(files);
            assert_eq!((&*one, &*looked), ("", ""), "{files:?}");
            assert!(several.contains("ran in one process"), "{several}");
            assert!(several.contains("without --processes"), "{several}");
        }
        for file in ["cluster/log/1", "cluster/program"] {
            let [one, several, looked] = names(&[file]);
            assert_eq!(several, "");
            assert!(one.contains("on several processes") && one.contains("--processes N"), "{one}");
            assert!(looked.contains("status --cluster URL"), "{looked}");
        }
        let [one, several, looked] = names(&["APP", "cluster/log/1"]);
        assert_eq!(one, several);
        assert!(one.contains("two states") && one.contains("mv '"), "{one}");
        assert!(looked.contains("on several processes"), "{looked}");
    }
}
