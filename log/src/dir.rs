//! The files of a log: the segments, and whether their headers agree.
//!
//! This module knows headers, but not blocks.

use std::io::Read;
use std::path::{Path, PathBuf};

use tidemill_core::{Error, Kind, Result};
use tidemill_env::Disk;

use crate::errors::{self, Damage};
use crate::format::{Header, NotAHeader, HEADER_BYTES, VERSION};
use crate::last::{self, Last};
use crate::{LogKind, LogSpec};

/// A segment whose header is whole.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) header: Header,
    /// The damaged copy of the header.
    pub(crate) damaged: Option<Damage>,
}

/// The content of a log's directory.
pub(crate) struct Found {
    /// The segments in order, without gaps.
    pub(crate) segments: Vec<Segment>,
    /// The segments that were being created when the machine stopped.
    pub(crate) unfinished: Vec<PathBuf>,
    /// The last segment, by the file `LAST`.
    pub(crate) last: Option<Last>,
}

/// Returns the name of a segment.
pub(crate) fn path_of(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:016x}.log"))
}

/// Returns the name of a segment that is being created.
pub(crate) fn unfinished_path_of(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:016x}.new"))
}

/// Returns the number in a segment's name.
fn first_of(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_str()?;
    let digits =
        stem.len() == 16 && stem.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
    u64::from_str_radix(stem, 16).ok().filter(|_| digits)
}

/// Reads the headers of all segments. Other files are ignored.
///
/// # Errors
/// If a file is not a segment of this log or is damaged, or if a segment is missing before another
/// one or at the end.
pub(crate) fn list(disk: &dyn Disk, spec: &LogSpec) -> Result<Found> {
    // This is read before the segments, because another process may go on writing.
    let last = last::read(disk, spec)?;
    let paths =
        disk.list(&spec.dir).map_err(|e| errors::io(&spec.dir, "reading the directory", &e))?;
    let mut found = Found { segments: Vec::new(), unfinished: Vec::new(), last };
    for path in paths {
        if path.ends_with(last::NEW) {
            found.unfinished.push(path);
            continue;
        }
        let Some(first) = first_of(&path) else { continue };
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("new") => found.unfinished.push(path),
            Some("log") => {
                let segment = open(disk, spec, path, first)?;
                if let Some(before) = found.segments.last() {
                    check_order(before, &segment)?;
                }
                found.segments.push(segment);
            }
            _ => {}
        }
    }
    last::check(spec, &found.segments, last)?;
    Ok(found)
}

/// Whether a log has been begun in its directory, which need not exist.
///
/// # Errors
/// If a file is not a segment of this log or is damaged, or if a segment is missing between others
/// or at the end.
pub fn is_begun(disk: &dyn Disk, spec: &LogSpec) -> Result<bool> {
    let io = |e| errors::io(&spec.dir, "looking for the directory", &e);
    Ok(disk.exists(&spec.dir).map_err(io)? && !list(disk, spec)?.segments.is_empty())
}

/// The number of the first record that a log still has. It is 0 where the log has not been begun.
///
/// # Errors
/// As [`is_begun`].
pub fn first(disk: &dyn Disk, spec: &LogSpec) -> Result<u64> {
    match is_begun(disk, spec)? {
        true => Ok(list(disk, spec)?.segments.first().map_or(0, |segment| segment.header.first)),
        false => Ok(0),
    }
}

/// Reads the header of one segment.
fn open(disk: &dyn Disk, spec: &LogSpec, path: PathBuf, first: u64) -> Result<Segment> {
    let io = |e| errors::io(&path, "reading the header", &e);
    let mut file = disk.open_read(&path).map_err(io)?;
    let len = file.len().map_err(io)?;
    if len < spec.kind.blocks_at() {
        let what =
            format!("the file ends here, within its header of {} bytes", spec.kind.blocks_at());
        return Err(errors::damaged(&path, len, what));
    }
    let mut copy = || {
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact(&mut bytes).map(|()| Header::parse(&bytes)).map_err(io)
    };
    let first_copy = copy()?;
    let second_copy = if spec.kind.copies() > 1 { copy()? } else { first_copy };
    let damage = |copy: usize| Damage { path: path.clone(), at: (copy * HEADER_BYTES) as u64 };
    let (header, damaged) = match (first_copy, second_copy) {
        (Ok(header), second) => (header, (second != Ok(header)).then(|| damage(1))),
        (Err(_), Ok(second)) => (second, Some(damage(0))),
        (Err(why), Err(_)) => return Err(not_a_header(&path, why)),
    };
    check(spec, &path, &header, first, len)?;
    Ok(Segment { path, header, damaged })
}

fn not_a_header(path: &Path, why: NotAHeader) -> Error {
    match why {
        NotAHeader::Damaged => errors::damaged(path, 0, "this is not the header of a log"),
        NotAHeader::UnknownKind(kind) => {
            errors::damaged(path, 10, format_args!("there is no log of kind {kind}"))
        }
        NotAHeader::Newer(version) => Error::setting(format!(
            "{}: written in version {version} of the log's format; this Tidemill reads versions \
             up to {VERSION}",
            path.display()
        ))
        .help("use the Tidemill that wrote it, or a newer one"),
    }
}

/// Checks that a header belongs to this log and to this file.
fn check(spec: &LogSpec, path: &Path, header: &Header, first: u64, len: u64) -> Result<()> {
    let name = path.display();
    if header.app != spec.app {
        return Err(Error::setting(format!(
            "{name}: this is the log of another app ({:032x}, not {:032x})",
            header.app, spec.app
        ))
        .help("give each app a data directory of its own"));
    }
    if header.kind != spec.kind {
        let word = |kind| match kind {
            LogKind::Input => "input",
            LogKind::Cuts => "cut",
        };
        let (found, wanted) = (word(header.kind), word(spec.kind));
        return Err(Error::new(
            Kind::Io,
            format!("{name}: this is a segment of the {found} log, not of the {wanted} log"),
        )
        .help("put the files of the data directory back where they were"));
    }
    if header.first != first {
        let what = format_args!(
            "the segment begins with record {}, not with {first} as its name says",
            header.first
        );
        return Err(errors::damaged(path, 16, what));
    }
    // This bound keeps the count of further records below the largest number.
    if header.first > u64::MAX / 2 {
        return Err(errors::damaged(path, 16, "no log has so many records"));
    }
    if header.length != len {
        let what = format_args!("the file has {len} bytes, and was made with {}", header.length);
        return Err(errors::damaged(path, len.min(header.length), what));
    }
    Ok(())
}

fn check_order(before: &Segment, segment: &Segment) -> Result<()> {
    if before.header.ordinal.wrapping_add(1) == segment.header.ordinal
        && before.header.first < segment.header.first
    {
        return Ok(());
    }
    let what = format_args!(
        "this is segment {} of the log, and the file before it, {}, is segment {}; a file is missing \
         or does not belong here",
        segment.header.ordinal,
        before.path.display(),
        before.header.ordinal
    );
    Err(errors::damaged(&segment.path, 12, what))
}
