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
/// **After a crash of the machine**, callers may rely on:
/// - bytes of a file that were written before the last successful [`WriteFile::sync`]. Later ones
///   may be there in whole, in part, out of order, or not at all;
/// - names (of files created, renamed or removed, and of directories removed) before the last
///   successful [`Disk::sync_dir`] of the directory. Later ones may or may not be there, but a
///   rename is never half done;
/// - directories created by [`Disk::create_dir_all`], when it has returned.
///
/// After a failed sync, nothing is known of the bytes concerned. A second attempt may succeed
/// without having stored them. The only safe reaction is to stop.
///
/// Errors have the operating system's kinds. Callers distinguish `NotFound` and `StorageFull`. Only
/// regular files are opened. A pipe or a device, on which a call could wait forever, is
/// `InvalidInput`.
pub trait Disk: Send + Sync {
    /// Opens a file for reading. It stays readable when its name is removed or replaced.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>>;

    /// Opens an empty file for writing, and truncates an existing one.
    ///
    /// # Errors
    /// `NotFound` if the directory does not exist.
    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>>;

    /// Opens a file for writing at its current end, and creates it if there is none. A file has one
    /// writer: two of them overwrite each other.
    ///
    /// # Errors
    /// `NotFound` if the directory does not exist.
    fn open_append(&self, path: &Path) -> io::Result<Box<dyn WriteFile>>;

    /// Opens a file to which several writers append, also of other processes, and creates it if there
    /// is none. Each write goes to the file's end at that time, so none overwrites another.
    ///
    /// # Errors
    /// `NotFound` if the directory does not exist.
    fn open_shared(&self, path: &Path) -> io::Result<Box<dyn WriteFile>>;

    /// Opens a file for writing at byte `at`, without changing its bytes or its length, and creates
    /// it if there is none. If `at` is after the end, the first write fills the gap with zeros.
    ///
    /// # Errors
    /// `NotFound` if the directory does not exist, `InvalidInput` if no file can have this length.
    fn open_at(&self, path: &Path, at: u64) -> io::Result<Box<dyn WriteFile>>;

    /// Takes the lock of a file, which is created if missing and keeps its bytes. Returns `None` if
    /// another holder has it, in this process or in another one. The lock is advisory: it restrains
    /// only those that ask for it. The lock belongs to the file and not to its name, so leave the
    /// file where it is.
    ///
    /// # Errors
    /// `NotFound` if the directory does not exist, `Unsupported` if files have no locks.
    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>>;

    /// Takes the lock of a directory. No file in the directory represents this lock, so it holds
    /// whatever is removed there. Otherwise it is like [`try_lock`](Disk::try_lock).
    ///
    /// # Errors
    /// `NotFound` if the directory does not exist, `NotADirectory` if it is a file, `Unsupported`
    /// if directories have no locks.
    fn try_lock_dir(&self, dir: &Path) -> io::Result<Option<Box<dyn Lock>>>;

    /// Gives a file another name, in one step. A file of that name is replaced.
    ///
    /// # Errors
    /// `NotFound` if there is no such file or no such target directory, `IsADirectory` if `from` is
    /// a directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound` if there is none, another kind if it is a directory.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound` if there is none, `NotADirectory` if it is a file, `DirectoryNotEmpty` if
    /// something is in it.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns the paths of all files and directories directly in `dir` (each `dir` joined with a
    /// name), sorted.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;

    /// Returns the metadata of a file or directory.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    fn metadata(&self, path: &Path) -> io::Result<Meta>;

    /// Creates a directory, and missing ones above it. Each one created is durable when this
    /// returns. An existing directory is no error.
    ///
    /// # Errors
    /// `NotADirectory` if a file is in the way.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Returns the kind of the entry with this name. A link is not followed.
    ///
    /// # Errors
    /// `NotFound` if there is nothing.
    fn node(&self, path: &Path) -> io::Result<NodeKind>;

    /// Returns the absolute path of a file or directory, in which no part is a link.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;

    /// Reserves a directory for its owner, whether it exists or not. From now on, files and
    /// directories created in it through this disk are for the owner only, whatever the process
    /// does elsewhere. No file in it is written or locked through a link.
    fn keep_private(&self, dir: &Path);

    /// Removes the access of others to an existing directory and to everything in it.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    fn close_to_others(&self, dir: &Path) -> io::Result<Closed>;

    /// Makes the names in a directory durable: files created, renamed and removed there.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns the path at which a file would be created. It is like [`resolve`](Disk::resolve),
    /// but the last parts need not exist yet.
    ///
    /// # Errors
    /// `InvalidInput` if a link leads nowhere, and an error if the disk can't tell.
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
    /// If the disk can't tell.
    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// The metadata of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// The length in bytes, without meaning for a directory.
    pub len: u64,
    /// The wall time of the last change, in microseconds since 1970.
    pub modified_us: i64,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Whether it is a regular file, and not a directory, a pipe, a socket or a device.
    pub is_file: bool,
    /// Its identity, independent of its names.
    pub id: FileId,
}

/// The identity of a file or directory among all that exist. It is the same by each of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The disk.
    pub device: u64,
    /// Its number on the disk.
    pub number: u64,
}

/// The kind of a directory's entry.
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

/// The result of [`Disk::close_to_others`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// The number of files and directories that were open to others, and no longer are.
    pub closed: u64,
    /// The number of those that stay open to others, because they belong to another user.
    pub open: u64,
}

/// A lock. It is held until it is dropped, or until the process ends in any way.
pub trait Lock: Send + Sync {}

/// A file that is open for reading, without a buffer.
pub trait ReadFile: Read + Seek + Send {
    /// Returns the current length in bytes.
    ///
    /// # Errors
    /// If the disk can't tell.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// If the disk can't tell.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A file that is open for writing, without a buffer, with a position for the next byte. A write
/// has reached the operating system when it returns, and the disk after [`sync`](WriteFile::sync).
pub trait WriteFile: Write + Send {
    /// Makes all bytes written so far durable, and the length. (The name needs [`Disk::sync_dir`].)
    ///
    /// # Errors
    /// If the disk fails. Then stop: see [`Disk`].
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts the file or extends it with zeros to `len` bytes. The position stays, unless it would
    /// be after the end. So after `open_append`, `set_len(valid)` drops a torn tail, and a further
    /// `set_len(more)` makes room after the position.
    ///
    /// # Errors
    /// `StorageFull` if there is no room (not every disk reports this here).
    fn set_len(&mut self, len: u64) -> io::Result<()>;

    /// Returns the current length in bytes.
    ///
    /// # Errors
    /// If the disk can't tell.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// If the disk can't tell.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The machine's file systems.
#[derive(Debug, Default)]
pub struct RealDisk {
    /// Directories that are reserved for their owner.
    private: RwLock<Vec<PathBuf>>,
}

impl RealDisk {
    /// Creates access to the machine's file systems.
    pub fn new() -> RealDisk {
        RealDisk::default()
    }

    fn is_private(&self, path: &Path) -> bool {
        let private = self.private.read().unwrap_or_else(PoisonError::into_inner);
        private.iter().any(|dir| path.starts_with(dir))
    }

    /// Opens a file for writing, and creates it if missing.
    fn open_whole(&self, path: &Path, truncate: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(truncate);
        self.open_with(path, options)
    }

    fn open_with(&self, path: &Path, mut options: OpenOptions) -> io::Result<File> {
        unix::restrict(&mut options, self.is_private(path));
        let file = options.open(path).map_err(|e| unix::explained(path, e))?;
        regular(path, file)
    }
}

/// Returns the file, if it is a regular one.
fn regular(path: &Path, file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => Ok(file),
        (_, true) => Err(io::ErrorKind::IsADirectory.into()),
        _ => {
            let what =
                format!("{} is a pipe, a socket or a device, and not a file", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
    }
}

impl Disk for RealDisk {
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        // Writes do not follow links, so reads need not refuse them.
        unix::restrict(&mut options, false);
        Ok(Box::new(RealRead(regular(path, options.open(path)?)?)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        Ok(Box::new(RealWrite(self.open_whole(path, true)?)))
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        // The system's append mode is not used, because its writes would go after the room that
        // `set_len` has added.
        let mut file = self.open_whole(path, false)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Box::new(RealWrite(file)))
    }

    fn open_shared(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        Ok(Box::new(RealWrite(self.open_with(path, options)?)))
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
            // On a network file system, only writable files have locks.
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
        // The standard library's function of this name does not sync the parents, and a lost
        // directory takes its synced files along.
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
            // Another thread or process has created it first.
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

/// Permissions of files on Unix.
#[cfg(unix)]
mod unix {
    use std::fs::{self, DirBuilder, Metadata, OpenOptions, Permissions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
    use std::path::Path;

    use rustix::fs::OFlags;

    use super::{Closed, FileId};

    /// The error of opening a link where none is followed.
    const LOOP: i32 = rustix::io::Errno::LOOP.raw_os_error();
    /// The permissions of others.
    const OTHERS: u32 = 0o077;

    /// Makes opening non-blocking. A private file is created for its owner only, and is not reached
    /// through a link.
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
                let what = format!(
                    "{} is a link, and only regular files are written there",
                    path.display()
                );
                io::Error::new(io::ErrorKind::InvalidInput, what)
            }
            _ => error,
        }
    }

    pub(super) fn id(_path: &Path, meta: &Metadata) -> io::Result<FileId> {
        Ok(FileId { device: meta.dev(), number: meta.ino() })
    }

    /// Removes the access of others to existing entries. Links are left unchanged. Others do not
    /// get through a directory that is closed already.
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
                // It has been removed meanwhile.
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

/// On other systems, files are created with the system's defaults.
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

    /// Returns an identity from the path without links. Files with several names are not recognized
    /// here.
    pub(super) fn id(path: &Path, _meta: &Metadata) -> io::Result<FileId> {
        let mut hasher = DefaultHasher::new();
        fs::canonicalize(path)?.hash(&mut hasher);
        Ok(FileId { device: 0, number: hasher.finish() })
    }

    pub(super) fn close(_path: &Path, _is_top: bool, _found: &mut Closed) -> io::Result<()> {
        Ok(())
    }
}

/// Closing the file releases the lock, and so does the end of the process.
struct RealLock {
    // Dropped before the file is closed.
    _held: Held,
    _file: File,
}

impl Lock for RealLock {}

struct RealRead(File);

impl Read for RealRead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }

    // The file knows its length, and reserves memory at once.
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
        // This syncs data and length. The times of the file may follow later.
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

        // Files that were open before are closed to others, and links are left unchanged.
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
