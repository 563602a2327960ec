//! The check whether a directory holds the state of an app in one process, or on several.
//!
//! In one process the state is in the directory itself, and the file `APP` has its owner. Several
//! processes have theirs in its folder `cluster`. A start in the other way takes the state over
//! (`moves`), so there is never one beside another. Only a folder with nothing but `LOCK` holds no
//! state.

use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Path, PathBuf};

use tidemill_core::{Error, Result};
use tidemill_env::Disk;

use crate::moves::{Move, Way};

/// The folder of a data directory with the shared state of several processes.
pub(crate) const CLUSTER: &str = "cluster";
/// The files that show a state of one process. The second exists while the directory is emptied.
const APP: [&str; 2] = ["APP", "APP.old"];

/// Returns the way to run whose state a data directory holds, if it holds one.
///
/// # Errors
/// When it holds both, or when it can't be read.
pub(crate) fn held(disk: &dyn Disk, dir: &Path) -> Result<Option<Way>> {
    if let Some(of) = Move::read(disk, dir)? {
        return Ok(Some(of.counts()));
    }
    match (holds_one(disk, dir)?, holds_several(disk, dir)?) {
        (true, true) => Err(both(dir)),
        (true, false) => Ok(Some(Way::One)),
        (false, true) => Ok(Some(Way::Several)),
        (false, false) => Ok(None),
    }
}

/// Refuses a start from scratch that would delete the state of the other way to run.
///
/// # Errors
/// When it would, or when the directory can't be read.
pub(crate) fn check_fresh(disk: &dyn Disk, dir: &Path, way: Way) -> Result<()> {
    let other = held(disk, dir)?.filter(|held| *held != way);
    let Some(other) = other else { return Ok(()) };
    let (state, help) = match other {
        Way::One => ("in one process", "run it without --processes, and with --fresh"),
        Way::Several => ("on several processes", "run it with --processes N --fresh"),
    };
    let what = format!(
        "{} holds the state of the app {state}, which --fresh does not delete here",
        dir.display()
    );
    Err(Error::setting(what).help(format!(
        "{help}; leave --fresh out to continue that state; or choose another --data-dir"
    )))
}

/// Returns the data directory that a coordinator's directory is in.
///
/// # Errors
/// When the coordinator's directory is itself the data directory of an app in one process.
pub(crate) fn of_coordinator(disk: &dyn Disk, dir: &Path) -> Result<Option<PathBuf>> {
    match holds_one(disk, dir)? {
        false => Ok(around(dir)),
        true => Err(one(dir).help("choose another --data-dir")),
    }
}

/// Refuses a worker whose coordinator has not taken over the state of one process yet.
///
/// # Errors
/// When that is so, or when the directory can't be read.
pub(crate) fn for_worker(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let around = of_coordinator(disk, dir)?;
    match around.map(|dir| Ok((held(disk, &dir)?, dir))).transpose()? {
        Some((Some(Way::One), dir)) => {
            Err(one(&dir).help("start the coordinator first: it takes that state over"))
        }
        _ => Ok(()),
    }
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

fn one(dir: &Path) -> Error {
    Error::setting(format!(
        "{} holds the state of an app that ran in one process (there is {})",
        dir.display(),
        dir.join(APP[0]).display()
    ))
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

    /// Returns what a directory with these files holds, and the errors of a start from scratch in
    /// one process, of a worker, and of a look at it.
    fn holds(files: &[&str]) -> (Result<Option<Way>>, [String; 3]) {
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
            words(check_fresh(disk, &dir, Way::One)),
            words(for_worker(disk, &dir.join(CLUSTER))),
            words(of_several(disk, &dir).map(|found| found.map_or(Ok(()), Err)).and_then(|r| r)),
        ];
        assert_eq!(before, listed(disk, &dir), "nothing was written");
        (held(disk, &dir), found)
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
    fn a_directory_holds_one_state() {
        for files in [&[][..], &["LOCK"], &["cluster/LOCK"]] {
            let (held, errors) = holds(files);
            assert_eq!((held.unwrap(), errors), (None, ["", "", ""].map(String::from)));
        }
        for files in [&["APP", "cuts/1"][..], &["APP", "cluster/LOCK"], &["APP.old"]] {
            let (held, [fresh, worker, looked]) = holds(files);
            assert_eq!(held.unwrap(), Some(Way::One), "{files:?}");
            assert_eq!((&*fresh, &*looked), ("", ""), "{files:?}");
            assert!(worker.contains("start the coordinator first"), "{worker}");
        }
        for file in ["cluster/log/1", "cluster/program"] {
            let (held, [fresh, worker, looked]) = holds(&[file]);
            assert_eq!((held.unwrap(), &*worker), (Some(Way::Several), ""));
            assert!(fresh.contains("--processes N --fresh"), "{fresh}");
            assert!(looked.contains("status --cluster URL"), "{looked}");
        }
        let (held, [fresh, worker, looked]) = holds(&["APP", "cluster/log/1"]);
        let both = held.unwrap_err().to_string();
        assert_eq!((&fresh, &worker), (&both, &both));
        assert!(both.contains("two states") && both.contains("mv '"), "{both}");
        assert!(looked.contains("on several processes"), "{looked}");
    }
}
