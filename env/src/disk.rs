//! Files and directories.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{PoisonError, RwLock};

pub use self::contract::check;
use crate::clock::system_time_us;
use crate::forks::Held;

mod contract;

/// Files and directories.
///
/// **What survives a crash of the machine**, and what callers may rely on:
/// - bytes of a file: those written before the last [`WriteFile::sync`] that succeeded. Later ones
///   may be there in whole, in part, out of order, or not at all;
/// - names (a file created, renamed or removed, a directory removed): those before the last
///   [`Disk::sync_dir`] of the directory that succeeded. Later ones may or may not be there, but a
///   rename is never half done;
/// - directories made by [`Disk::create_dir_all`], when it has returned.
///
/// After a failed sync nothing is known of the bytes concerned: trying again may succeed without
/// having stored them. The one safe answer is to stop.
///
/// Errors have the operating system's kinds; `NotFound` and `StorageFull` are the ones to tell
/// apart. Only regular files are opened: a pipe or a device, on which a call could wait for ever, is
/// `InvalidInput`.
pub trait Disk: Send + Sync {
    /// Opens a file for reading. It stays readable when its name is removed or replaced.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>>;

    /// Opens an empty file for writing; one that is there is cut to nothing.
    ///
    /// # Errors
    /// `NotFound` when the directory does not exist.
    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>>;

    /// Opens a file for writing at its present end; creates it when there is none. A file has one
    /// writer: two of them overwrite each other.
    ///
    /// # Errors
    /// `NotFound` when the directory does not exist.
    fn open_append(&self, path: &Path) -> io::Result<Box<dyn WriteFile>>;

    /// Opens a file for writing at byte `at`, and leaves its bytes and its length alone; creates it
    /// when there is none. Where `at` is behind the end, the first write fills what is between with
    /// zeros.
    ///
    /// # Errors
    /// `NotFound` when the directory does not exist, `InvalidInput` when no file can be as long.
    fn open_at(&self, path: &Path, at: u64) -> io::Result<Box<dyn WriteFile>>;

    /// Takes the lock of a file, which is made when missing and keeps its bytes. `None` when
    /// another holder has it, be it in this process or in another one. Whoever does not ask is not
    /// kept from anything. The lock is of the file and not of its name: leave the file where it is.
    ///
    /// # Errors
    /// `NotFound` when the directory does not exist; `Unsupported` where files have no locks.
    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>>;

    /// Takes the lock of a directory, which no name in it stands for: so it holds whatever is removed
    /// there. Otherwise as [`try_lock`](Disk::try_lock).
    ///
    /// # Errors
    /// `NotFound` when the directory does not exist, `NotADirectory` when it is a file; `Unsupported`
    /// where directories have no locks.
    fn try_lock_dir(&self, dir: &Path) -> io::Result<Option<Box<dyn Lock>>>;

    /// Gives a file another name, in one step. A file of that name is replaced.
    ///
    /// # Errors
    /// `NotFound` when there is no such file or no such target directory, `IsADirectory` when
    /// `from` is a directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound` when there is none; another kind when it is a directory.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory that has nothing in it.
    ///
    /// # Errors
    /// `NotFound` when there is none, `NotADirectory` when it is a file, `DirectoryNotEmpty` when
    /// something is in it.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// The paths of all files and directories directly in `dir` (each `dir` joined with a name),
    /// sorted.
    ///
    /// # Errors
    /// `NotFound` when there is no such directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;

    /// What is known of a file or directory.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    fn metadata(&self, path: &Path) -> io::Result<Meta>;

    /// Makes a directory, and those above it that are missing. Each one made is durable when this
    /// returns. One that is there already is fine.
    ///
    /// # Errors
    /// `NotADirectory` when a file is in the way.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// What has this name, itself: a link is not followed.
    ///
    /// # Errors
    /// `NotFound` when there is nothing.
    fn node(&self, path: &Path) -> io::Result<NodeKind>;

    /// The absolute path of a file or directory, in which no part is a link.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;

    /// Keeps a directory for its owner, whether it is there or not: what is made in it through this
    /// disk from now on is for the owner only, however the process creates files elsewhere, and no
    /// file in it is written or locked through a link.
    fn keep_private(&self, dir: &Path);

    /// Keeps others from a directory that is there, and from what is in it.
    ///
    /// # Errors
    /// `NotFound` when there is no such directory.
    fn close_to_others(&self, dir: &Path) -> io::Result<Closed>;

    /// Makes the names in a directory durable: files created, renamed and removed there.
    ///
    /// # Errors
    /// `NotFound` when there is no such directory.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Where a file would be made: as [`resolve`](Disk::resolve), also where the last parts are not
    /// there yet.
    ///
    /// # Errors
    /// `InvalidInput` where a link leads nowhere, and when the disk cannot tell.
    fn destination(&self, path: &Path) -> io::Result<PathBuf> {
        match self.resolve(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        if self.node(path).is_ok_and(|node| node == NodeKind::Link) {
            let what = format!("{} is a link that leads nowhere", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) => Path::new("."),
            None => return Ok(path.to_path_buf()),
        };
        let mut found = self.destination(parent)?;
        match path.components().next_back() {
            Some(Component::ParentDir) => drop(found.pop()),
            Some(Component::Normal(name)) => found.push(name),
            _ => {}
        }
        Ok(found)
    }

    /// Whether there is a file or directory of that name.
    ///
    /// # Errors
    /// When the disk cannot tell.
    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// What is known of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Length in bytes; of no meaning for a directory.
    pub len: u64,
    /// Wall time of the last change, in microseconds since 1970.
    pub modified_us: i64,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Whether it is a regular file, and neither a directory, a pipe, a socket nor a device.
    pub is_file: bool,
    /// What it is, whatever its names are.
    pub id: FileId,
}

/// Tells a file or directory from all others that are there: it has the same by each of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The disk.
    pub device: u64,
    /// Its number there.
    pub number: u64,
}

/// What has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A pipe, a socket or a device.
    Other,
}

/// What [`Disk::close_to_others`] has found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// So many files and directories were open to others, and are so no more.
    pub closed: u64,
    /// So many stay open to others, because they belong to another user.
    pub open: u64,
}

/// A lock that is held: until this is dropped, or the process ends in whatever way.
pub trait Lock: Send + Sync {}

/// A file open for reading. Unbuffered.
pub trait ReadFile: Read + Seek + Send {
    /// The present length in bytes.
    ///
    /// # Errors
    /// When the disk cannot tell.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// When the disk cannot tell.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A file open for writing, with a position at which the next byte goes. Unbuffered: a write has
/// reached the operating system when it returns, and the disk after [`sync`](WriteFile::sync).
pub trait WriteFile: Write + Send {
    /// Makes all bytes written so far durable, and the length. (The name needs
    /// [`Disk::sync_dir`].)
    ///
    /// # Errors
    /// When the disk fails. Then stop: see [`Disk`].
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts the file or extends it with zeros to `len` bytes. The position stays, but is never
    /// left behind the end. So after `open_append`, `set_len(valid)` drops a torn tail, and a
    /// further `set_len(more)` makes room ahead of the position.
    ///
    /// # Errors
    /// `StorageFull` when there is no room (not every disk tells here).
    fn set_len(&mut self, len: u64) -> io::Result<()>;

    /// The present length in bytes.
    ///
    /// # Errors
    /// When the disk cannot tell.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// When the disk cannot tell.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The machine's file systems.
#[derive(Debug, Default)]
pub struct RealDisk {
    /// Directories that are kept for their owner.
    private: RwLock<Vec<PathBuf>>,
}

impl RealDisk {
    /// The machine's file systems.
    pub fn new() -> RealDisk {
        RealDisk::default()
    }

    fn is_private(&self, path: &Path) -> bool {
        let private = self.private.read().unwrap_or_else(PoisonError::into_inner);
        private.iter().any(|dir| path.starts_with(dir))
    }

    /// Opens a file for writing; made when missing.
    fn open_whole(&self, path: &Path, truncate: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(truncate);
        unix::restrict(&mut options, self.is_private(path));
        let file = options.open(path).map_err(|e| unix::explained(path, e))?;
        regular(path, file)
    }
}

/// The file, if it is a regular one.
fn regular(path: &Path, file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => Ok(file),
        (_, true) => Err(io::ErrorKind::IsADirectory.into()),
        _ => {
            let what = format!("{} is a pipe, a socket or a device, and no file", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
    }
}

impl Disk for RealDisk {
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        // What is written is not reached through links, so what is read need not be.
        unix::restrict(&mut options, false);
        Ok(Box::new(RealRead(regular(path, options.open(path)?)?)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        Ok(Box::new(RealWrite(self.open_whole(path, true)?)))
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        // Not the system's append mode, in which writes would go behind what `set_len` has added.
        let mut file = self.open_whole(path, false)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Box::new(RealWrite(file)))
    }

    fn open_at(&self, path: &Path, at: u64) -> io::Result<Box<dyn WriteFile>> {
        let mut file = self.open_whole(path, false)?;
        file.seek(SeekFrom::Start(at))?;
        Ok(Box::new(RealWrite(file)))
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let file = self.open_whole(path, false)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(RealLock { _held: Held::new(&file), _file: file }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    fn try_lock_dir(&self, dir: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let file = File::open(dir)?;
        if !file.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(RealLock { _held: Held::new(&file), _file: file }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            // Over a network only what can be written has a lock.
            Err(TryLockError::Error(e)) => Err(io::Error::new(io::ErrorKind::Unsupported, e)),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if fs::symlink_metadata(from)?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut paths = fs::read_dir(dir)?
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<Vec<PathBuf>>>()?;
        paths.sort_unstable();
        Ok(paths)
    }

    fn metadata(&self, path: &Path) -> io::Result<Meta> {
        let meta = fs::metadata(path)?;
        Ok(Meta {
            len: meta.len(),
            modified_us: system_time_us(meta.modified()?),
            is_dir: meta.is_dir(),
            is_file: meta.is_file(),
            id: unix::id(path, &meta)?,
        })
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        // The standard library's function of this name does not sync the parents, and a directory
        // that is lost takes its synced files along.
        let Some(parent) = dir.parent() else {
            return Ok(());
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match fs::metadata(dir) {
            Ok(meta) if meta.is_dir() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Err(_) => {}
        }
        self.create_dir_all(parent)?;
        let mut builder = DirBuilder::new();
        if self.is_private(dir) {
            unix::for_owner(&mut builder);
        }
        match builder.create(dir) {
            // Somebody else was faster.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            other => other?,
        }
        self.sync_dir(parent)
    }

    fn node(&self, path: &Path) -> io::Result<NodeKind> {
        let kind = fs::symlink_metadata(path)?.file_type();
        Ok(match (kind.is_file(), kind.is_dir(), kind.is_symlink()) {
            (true, ..) => NodeKind::File,
            (_, true, _) => NodeKind::Dir,
            (_, _, true) => NodeKind::Link,
            _ => NodeKind::Other,
        })
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(if path.as_os_str().is_empty() { Path::new(".") } else { path })
    }

    fn keep_private(&self, dir: &Path) {
        let mut private = self.private.write().unwrap_or_else(PoisonError::into_inner);
        if !private.iter().any(|other| other == dir) {
            private.push(dir.to_path_buf());
        }
    }

    fn close_to_others(&self, dir: &Path) -> io::Result<Closed> {
        let mut closed = Closed::default();
        unix::close(dir, true, &mut closed)?;
        Ok(closed)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

/// Who may do what with a file, where the system is of Unix's kind.
#[cfg(unix)]
mod unix {
    use std::fs::{self, DirBuilder, Metadata, OpenOptions, Permissions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
    use std::path::Path;

    use rustix::fs::OFlags;

    use super::{Closed, FileId};

    /// What opening a link comes to where none is followed.
    const LOOP: i32 = rustix::io::Errno::LOOP.raw_os_error();
    /// What others may do.
    const OTHERS: u32 = 0o077;

    /// Opening never waits. Of a file that is kept for its owner: it is so when it is made, and no
    /// link leads to it.
    pub(super) fn restrict(options: &mut OpenOptions, is_private: bool) {
        let mut flags = OFlags::NONBLOCK;
        if is_private {
            options.mode(0o600);
            flags |= OFlags::NOFOLLOW;
        }
        options.custom_flags(flags.bits() as i32);
    }

    pub(super) fn for_owner(builder: &mut DirBuilder) {
        builder.mode(0o700);
    }

    pub(super) fn explained(path: &Path, error: io::Error) -> io::Error {
        match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_symlink() && error.raw_os_error() == Some(LOOP) => {
                let what =
                    format!("{} is a link, and only a file is written there", path.display());
                io::Error::new(io::ErrorKind::InvalidInput, what)
            }
            _ => error,
        }
    }

    pub(super) fn id(_path: &Path, meta: &Metadata) -> io::Result<FileId> {
        Ok(FileId { device: meta.dev(), number: meta.ino() })
    }

    /// Keeps others out of what is there; links are left alone. Nobody else gets through a
    /// directory that is closed already.
    pub(super) fn close(path: &Path, is_top: bool, found: &mut Closed) -> io::Result<()> {
        let meta = if is_top { fs::metadata(path)? } else { fs::symlink_metadata(path)? };
        let is_open = meta.mode() & OTHERS != 0;
        if meta.is_symlink() || is_top && !is_open {
            return Ok(());
        }
        if is_open {
            let mode = meta.mode() & 0o7777 & !OTHERS;
            match fs::set_permissions(path, Permissions::from_mode(mode)) {
                Ok(()) => found.closed += 1,
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => found.open += 1,
                Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem => found.open += 1,
                // It has gone meanwhile.
                Err(e) if e.kind() == io::ErrorKind::NotFound && !is_top => {}
                Err(e) => return Err(e),
            }
        }
        if meta.is_dir() {
            for entry in fs::read_dir(path)? {
                match close(&entry?.path(), false, found) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }
}

/// Elsewhere files are as the system makes them.
#[cfg(not(unix))]
mod unix {
    use std::fs::{self, DirBuilder, Metadata, OpenOptions};
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    use std::io;
    use std::path::Path;

    use super::{Closed, FileId};

    pub(super) fn restrict(_options: &mut OpenOptions, _is_private: bool) {}

    pub(super) fn for_owner(_builder: &mut DirBuilder) {}

    pub(super) fn explained(_path: &Path, error: io::Error) -> io::Error {
        error
    }

    /// By its path without links: files with several names are not known there.
    pub(super) fn id(path: &Path, _meta: &Metadata) -> io::Result<FileId> {
        let mut hasher = DefaultHasher::new();
        fs::canonicalize(path)?.hash(&mut hasher);
        Ok(FileId { device: 0, number: hasher.finish() })
    }

    pub(super) fn close(_path: &Path, _is_top: bool, _found: &mut Closed) -> io::Result<()> {
        Ok(())
    }
}

/// Closing the file gives the lock back, and so does the end of the process.
struct RealLock {
    // Let go before the file is closed.
    _held: Held,
    _file: File,
}

impl Lock for RealLock {}

struct RealRead(File);

impl Read for RealRead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }

    // The file knows its length and reserves room at once.
    fn read_to_end(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        self.0.read_to_end(buf)
    }
}

impl Seek for RealRead {
    fn seek(&mut self, pos: SeekFrom) -> io::Result<u64> {
        self.0.seek(pos)
    }
}

impl ReadFile for RealRead {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

struct RealWrite(File);

impl Write for RealWrite {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl WriteFile for RealWrite {
    fn sync(&mut self) -> io::Result<()> {
        // Data and length; the times of the file may come later.
        self.0.sync_data()
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)?;
        if self.0.stream_position()? > len {
            self.0.seek(SeekFrom::Start(len))?;
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::contract::{assert_kind, get, put};
    use super::*;

    #[test]
    fn real_disk_keeps_the_contract() {
        let dir = tempfile::tempdir().expect("a directory");
        check(&RealDisk::new(), &dir.path().join("some").join("where"));
    }

    #[test]
    fn a_relative_directory_is_made_and_the_root_is_there() {
        let disk = RealDisk::new();
        disk.create_dir_all(Path::new("/")).expect("the root");
        disk.create_dir_all(Path::new(".")).expect("here");
        disk.create_dir_all(Path::new("")).expect("here, too");
    }

    #[cfg(unix)]
    fn mode(path: &Path) -> u32 {
        use std::os::unix::fs::MetadataExt as _;
        fs::symlink_metadata(path).expect("metadata").mode() & 0o777
    }

    #[cfg(unix)]
    #[test]
    fn what_is_kept_private_is_for_its_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        let (disk, own) = (RealDisk::new(), dir.path().join("own"));
        disk.keep_private(&own);
        disk.create_dir_all(&own.join("sub")).expect("directories");
        put(&disk, &own.join("sub").join("file"), b"x");
        drop(disk.try_lock(&own.join("LOCK")).expect("a lock"));
        put(&disk, &dir.path().join("other"), b"x");
        assert_eq!((mode(&own), mode(&own.join("sub"))), (0o700, 0o700));
        assert_eq!((mode(&own.join("LOCK")), mode(&own.join("sub").join("file"))), (0o600, 0o600));

        // What was open before is closed, and links are left alone.
        let shared = dir.path().join("shared");
        fs::create_dir_all(shared.join("sub")).expect("directories");
        fs::write(shared.join("sub").join("file"), b"x").expect("a file");
        fs::write(dir.path().join("elsewhere"), b"x").expect("a file");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), shared.join("link"))
            .expect("a link");
        for path in [&shared, &shared.join("sub"), &shared.join("sub").join("file")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        fs::set_permissions(dir.path().join("elsewhere"), fs::Permissions::from_mode(0o644))
            .expect("a mode");
        assert_eq!(
            disk.close_to_others(&shared).expect("an answer"),
            Closed { closed: 3, open: 0 }
        );
        assert_eq!(mode(&shared.join("sub").join("file")), 0o700);
        assert_eq!(mode(&dir.path().join("elsewhere")), 0o644);
        assert_eq!(disk.close_to_others(&shared).expect("an answer"), Closed::default());
    }

    #[cfg(unix)]
    #[test]
    fn nothing_private_is_written_through_a_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let (disk, own) = (RealDisk::new(), dir.path().join("own"));
        disk.create_dir_all(&own).expect("a directory");
        let (link, other) = (own.join("link"), dir.path().join("other"));
        put(&disk, &other, b"other");
        std::os::unix::fs::symlink(&other, &link).expect("a link");
        drop(disk.open_append(&link).expect("links lead to files"));
        assert_eq!(
            disk.metadata(&link).expect("metadata").id,
            disk.metadata(&other).expect("metadata").id
        );
        disk.keep_private(&own);
        assert_kind(disk.create(&link), io::ErrorKind::InvalidInput);
        assert_kind(disk.open_append(&link), io::ErrorKind::InvalidInput);
        assert_kind(disk.open_at(&link, 0), io::ErrorKind::InvalidInput);
        assert_kind(disk.try_lock(&link), io::ErrorKind::InvalidInput);
        assert_eq!(disk.node(&link).expect("a kind"), NodeKind::Link);
        disk.remove(&link).expect("the link is removed");
        assert_eq!(get(&disk, &other), b"other");
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &link).expect("a link");
        assert_kind(disk.destination(&link), io::ErrorKind::InvalidInput);
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_no_file_and_nobody_waits_for_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        let disk = RealDisk::new();
        assert_kind(disk.open_read(&pipe), io::ErrorKind::InvalidInput);
        assert!(disk.open_append(&pipe).is_err());
        assert!(disk.create(&pipe).is_err());
        assert!(disk.try_lock(&pipe).is_err());
        assert_eq!(disk.node(&pipe).expect("a kind"), NodeKind::Other);
        assert!(!disk.metadata(&pipe).expect("metadata").is_file);
    }

    #[test]
    fn files_change_now() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        put(&RealDisk::new(), &path, b"x");
        let modified = RealDisk::new().metadata(&path).expect("metadata").modified_us;
        let now = system_time_us(std::time::SystemTime::now());
        assert!((now - modified).abs() < 60_000_000);
    }
}
