//! The guarantees of every disk, real or simulated.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{Disk, NodeKind};

/// Checks the guarantees of [`Disk`], except those about crashes. It works in `dir`, which is
/// created if missing and must be empty, and leaves files there.
///
/// # Panics
/// If a guarantee is broken.
pub fn check(disk: &dyn Disk, dir: &Path) {
    disk.create_dir_all(dir).expect("the directory is made");
    assert_eq!(disk.list(dir).expect("an empty list"), [] as [PathBuf; 0]);
    check_bytes(disk, dir);
    check_positions(disk, dir);
    check_places(disk, dir);
    check_locks(disk, dir);
    check_names(disk, dir);
    check_directories(disk, dir);
}

pub(super) fn put(disk: &dyn Disk, path: &Path, bytes: &[u8]) {
    let mut file = disk.create(path).expect("the file is created");
    file.write_all(bytes).expect("the bytes are written");
    file.sync().expect("the bytes are synced");
}

pub(super) fn get(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut file = disk.open_read(path).expect("the file opens");
    file.read_to_end(&mut bytes).expect("the bytes are read");
    bytes
}

#[track_caller]
pub(super) fn assert_kind<T>(result: io::Result<T>, kind: io::ErrorKind) {
    match result {
        Ok(_) => panic!("expected the error {kind:?}"),
        Err(e) => assert_eq!(e.kind(), kind, "{e}"),
    }
}

fn check_bytes(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("bytes");
    put(disk, &path, b"first");
    put(disk, &path, b"one");
    assert_eq!(get(disk, &path), b"one", "create cuts what was there");

    let mut file = disk.open_append(&path).expect("the file opens");
    file.write_all(b", two").expect("the bytes are written");
    assert_eq!(get(disk, &path), b"one, two", "written bytes can be read before they are synced");
    file.write_all(b", three").expect("the bytes are written");
    file.flush().expect("flush does nothing");
    file.sync().expect("the bytes are synced");
    assert_eq!(file.len().expect("a length"), 15);
    assert!(!file.is_empty().expect("a length"));
    drop(file);

    let path_of_two = dir.join("shared");
    let open = || disk.open_shared(&path_of_two).expect("the file opens");
    let mut writers = [open(), open()];
    for (writer, bytes) in [(0, b"one,"), (1, b"two,"), (0, b"end.")] {
        writers[writer].write_all(bytes).expect("the bytes are written");
    }
    assert_eq!(get(disk, &path_of_two), b"one,two,end.", "writers do not overwrite each other");
    drop(writers);
    disk.remove(&path_of_two).expect("the file is removed");

    let mut file = disk.open_read(&path).expect("the file opens");
    assert_eq!(file.len().expect("a length"), 15);
    let mut three = [0; 3];
    file.read_exact(&mut three).expect("bytes");
    assert_eq!(&three, b"one");
    assert_eq!(file.seek(SeekFrom::Start(5)).expect("a position"), 5);
    file.read_exact(&mut three).expect("bytes");
    assert_eq!(&three, b"two");
    assert_eq!(file.seek(SeekFrom::Current(-2)).expect("a position"), 6);
    assert_eq!(file.seek(SeekFrom::End(-3)).expect("a position"), 12);
    file.read_exact(&mut three).expect("bytes");
    assert_eq!(&three, b"ree");
    assert_eq!(file.read(&mut three).expect("the end"), 0);
    assert_kind(file.read_exact(&mut three), io::ErrorKind::UnexpectedEof);
    assert_eq!(file.seek(SeekFrom::End(9)).expect("a position"), 24);
    assert_eq!(file.read(&mut three).expect("behind the end"), 0);
    assert_kind(file.seek(SeekFrom::Current(-25)), io::ErrorKind::InvalidInput);

    let meta = disk.metadata(&path).expect("metadata");
    assert_eq!((meta.len, meta.is_dir, meta.is_file), (15, false, true));
    assert!(meta.modified_us > 0);
    let meta = disk.metadata(dir).expect("metadata");
    assert_eq!((meta.is_dir, meta.is_file), (true, false));

    let path = dir.join("new");
    drop(disk.open_append(&path).expect("append creates"));
    assert!(disk.open_read(&path).expect("a file").is_empty().expect("a length"));
}

fn check_positions(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("positions");
    let mut file = disk.create(&path).expect("the file is created");
    file.set_len(6).expect("room is made");
    file.write_all(b"ab").expect("bytes");
    assert_eq!(get(disk, &path), b"ab\0\0\0\0", "set_len leaves the position");
    file.write_all(b"cdefgh").expect("bytes");
    file.set_len(3).expect("the file is truncated");
    file.write_all(b"X").expect("bytes");
    assert_eq!(get(disk, &path), b"abcX", "the position is not behind the end");
    drop(file);

    let mut file = disk.open_append(&path).expect("the file opens");
    file.set_len(2).expect("the tail is dropped");
    file.set_len(4).expect("room is made");
    file.write_all(b"Y").expect("bytes");
    assert_eq!(get(disk, &path), b"abY\0");
}

fn check_places(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("places");
    put(disk, &path, b"abcdef");
    let mut file = disk.open_at(&path, 2).expect("the file opens");
    assert_eq!(file.len().expect("a length"), 6, "opening cuts nothing");
    file.write_all(b"CD").expect("bytes");
    assert_eq!(get(disk, &path), b"abCDef");
    file.write_all(b"EFG").expect("bytes");
    assert_eq!(get(disk, &path), b"abCDEFG", "the position moves on, and beyond the end");

    // Two writers at different places do not affect each other.
    let mut other = disk.open_at(&path, 0).expect("the file opens");
    other.write_all(b"AB").expect("bytes");
    file.write_all(b"H").expect("bytes");
    other.sync().expect("the bytes of both are synced");
    assert_eq!(get(disk, &path), b"ABCDEFGH");

    let mut file = disk.open_at(&path, 11).expect("the file opens behind its end");
    assert_eq!(file.len().expect("a length"), 8, "only a write extends it");
    file.write_all(b"").expect("no bytes");
    assert_eq!(file.len().expect("a length"), 8, "only a write of bytes extends it");
    file.write_all(b"L").expect("bytes");
    assert_eq!(get(disk, &path), b"ABCDEFGH\0\0\0L");
    drop(file);
    let mut file = disk.open_at(&path, 20).expect("the file opens behind its end");
    file.set_len(12).expect("the length is set");
    file.write_all(b"M").expect("bytes");
    assert_eq!(get(disk, &path), b"ABCDEFGH\0\0\0LM", "set_len brings the position back");

    let new = dir.join("places-new");
    disk.open_at(&new, 1).expect("the file is made").write_all(b"x").expect("bytes");
    assert_eq!(get(disk, &new), b"\0x");
    assert_kind(disk.open_at(&dir.join("missing").join("file"), 0), io::ErrorKind::NotFound);
    assert_kind(disk.open_at(dir, 0), io::ErrorKind::IsADirectory);
    assert_kind(disk.open_at(&new, u64::MAX), io::ErrorKind::InvalidInput);
}

fn check_locks(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("lock");
    let lock = disk.try_lock(&path).expect("an answer").expect("it is free");
    assert_eq!(get(disk, &path), b"", "the file is made");
    assert!(disk.try_lock(&path).expect("an answer").is_none(), "one holder");
    put(disk, &path, b"a lock is advisory");
    let other = disk.try_lock(&dir.join("lock-2")).expect("an answer");
    assert!(other.is_some(), "each file has a lock of its own");
    drop(lock);
    let lock = disk.try_lock(&path).expect("an answer").expect("it was given back");
    assert_eq!(get(disk, &path), b"a lock is advisory", "locking keeps the bytes");
    assert!(disk.try_lock(&path).expect("an answer").is_none(), "one holder");
    drop(lock);
    assert_kind(disk.try_lock(&dir.join("missing").join("lock")), io::ErrorKind::NotFound);
    assert_kind(disk.try_lock(dir), io::ErrorKind::IsADirectory);

    let held = disk.try_lock_dir(dir).expect("an answer").expect("it is free");
    assert!(disk.try_lock_dir(dir).expect("an answer").is_none(), "one holder");
    assert!(disk.try_lock(&path).expect("an answer").is_some(), "files have locks of their own");
    disk.remove(&path).expect("the file goes");
    assert!(disk.try_lock_dir(dir).expect("an answer").is_none(), "whatever is removed there");
    drop(held);
    drop(disk.try_lock_dir(dir).expect("an answer").expect("it was given back"));
    assert_kind(disk.try_lock_dir(&dir.join("missing")), io::ErrorKind::NotFound);
    put(disk, &path, b"a file");
    assert_kind(disk.try_lock_dir(&path), io::ErrorKind::NotADirectory);

    let held = crate::hold(disk, dir).expect("an answer").expect("it is free");
    disk.remove(&dir.join("LOCK")).expect("the file is removed");
    assert!(crate::hold(disk, dir).expect("an answer").is_none(), "it is held all the same");
    assert!(!disk.exists(&dir.join("LOCK")).expect("an answer"), "and nothing has changed");
    drop(held);
    let held = crate::hold(disk, dir).expect("an answer").expect("it was given back");
    assert!(disk.try_lock(&dir.join("LOCK")).expect("an answer").is_none(), "for those who ask so");
    drop(held);
    let file = disk.try_lock(&dir.join("LOCK")).expect("an answer").expect("it was given back");
    assert!(crate::hold(disk, dir).expect("an answer").is_none(), "one that asked so has it");
    drop(file);
}

fn check_names(disk: &dyn Disk, dir: &Path) {
    let (a, b) = (dir.join("name-a"), dir.join("name-b"));
    let missing = dir.join("missing");
    put(disk, &a, b"A");
    put(disk, &b, b"B");
    assert!(disk.exists(&a).expect("an answer"));

    let mut old = disk.open_read(&b).expect("the file opens");
    disk.rename(&a, &b).expect("the file is renamed");
    disk.sync_dir(dir).expect("the names are synced");
    assert!(!disk.exists(&a).expect("an answer"));
    assert_eq!(get(disk, &b), b"A", "rename replaces");
    let mut bytes = Vec::new();
    old.read_to_end(&mut bytes).expect("bytes");
    assert_eq!(bytes, b"B", "an open file outlives its name");

    let id = |path: &Path| disk.metadata(path).expect("metadata").id;
    let own = id(&b);
    disk.rename(&b, &a).expect("the file is renamed");
    assert_eq!(id(&a), own, "a file stays what it is under another name");
    put(disk, &b, b"B");
    assert_ne!(id(&b), own, "two files have two identities");
    assert_ne!(id(dir), own);
    disk.rename(&a, &b).expect("the file is renamed");

    disk.rename(&b, &b).expect("a rename to itself is fine");
    assert_eq!(get(disk, &b), b"A");
    disk.remove(&b).expect("the file is removed");
    assert!(!disk.exists(&b).expect("an answer"));

    let not_found = io::ErrorKind::NotFound;
    assert_kind(disk.open_read(&missing), not_found);
    assert_kind(disk.remove(&missing), not_found);
    assert_kind(disk.rename(&missing, &a), not_found);
    assert_kind(disk.metadata(&missing), not_found);
    assert_kind(disk.list(&missing), not_found);
    assert_kind(disk.sync_dir(&missing), not_found);
    assert_kind(disk.create(&missing.join("file")), not_found);
    assert_kind(disk.open_append(&missing.join("file")), not_found);
    put(disk, &a, b"A");
    assert_kind(disk.rename(&a, &missing.join("file")), not_found);
    assert_eq!(get(disk, &a), b"A");
}

fn check_directories(disk: &dyn Disk, dir: &Path) {
    let sub = dir.join("sub");
    let deep = sub.join("x").join("y");
    disk.create_dir_all(&deep).expect("directories are made");
    disk.create_dir_all(&deep).expect("a second time is fine");
    assert!(disk.metadata(&deep).expect("metadata").is_dir);

    for name in ["c", "a", "b"] {
        put(disk, &sub.join(name), b"");
    }
    let listed = disk.list(&sub).expect("a list");
    let expected = ["a", "b", "c", "x"].map(|name| sub.join(name));
    assert_eq!(listed, expected, "sorted, and only what is directly there");
    disk.rename(&sub.join("a"), &deep.join("a")).expect("a file moves to another directory");
    assert_eq!(disk.list(&deep).expect("a list"), [deep.join("a")]);

    assert_eq!(disk.node(&deep).expect("a kind"), NodeKind::Dir);
    assert_eq!(disk.node(&deep.join("a")).expect("a kind"), NodeKind::File);
    assert_kind(disk.node(&deep.join("missing")), io::ErrorKind::NotFound);
    let whole = disk.resolve(&deep).expect("a path");
    assert_eq!(disk.resolve(&deep.join(".").join("..").join("y")).expect("a path"), whole);
    assert_kind(disk.resolve(&deep.join("missing")), io::ErrorKind::NotFound);
    let missing = disk.destination(&deep.join("m").join("..").join("n").join("o"));
    assert_eq!(missing.expect("a path"), whole.join("n").join("o"));
    disk.keep_private(&sub);
    assert_eq!(disk.close_to_others(&sub).expect("an answer").open, 0);
    assert_kind(disk.close_to_others(&dir.join("missing")), io::ErrorKind::NotFound);
    disk.create_dir_all(&sub.join("private")).expect("a directory is made");
    put(disk, &sub.join("private").join("file"), b"private");
    disk.remove(&sub.join("private").join("file")).expect("the file is removed");
    disk.remove_dir(&sub.join("private")).expect("the directory is removed");

    let file = deep.join("a");
    assert_kind(disk.create_dir_all(&file), io::ErrorKind::NotADirectory);
    assert_kind(disk.create_dir_all(&file.join("below")), io::ErrorKind::NotADirectory);
    assert_kind(disk.list(&file), io::ErrorKind::NotADirectory);
    assert_kind(disk.create(&sub), io::ErrorKind::IsADirectory);
    assert_kind(disk.rename(&sub, &dir.join("sub2")), io::ErrorKind::IsADirectory);
    let other = dir.join("other");
    disk.create_dir_all(&other).expect("a directory is made");
    assert_kind(disk.rename(&file, &other), io::ErrorKind::IsADirectory);
    assert!(disk.remove(&sub).is_err(), "remove is for files");
    assert!(disk.exists(&deep).expect("an answer"));

    assert_kind(disk.remove_dir(&deep), io::ErrorKind::DirectoryNotEmpty);
    assert_kind(disk.remove_dir(&file), io::ErrorKind::NotADirectory);
    disk.remove_dir(&other).expect("an empty directory is removed");
    assert_kind(disk.remove_dir(&other), io::ErrorKind::NotFound);
    disk.create_dir_all(&other).expect("a directory is created again");
}
