//! The bytes of an input file: found, decompressed, and as UTF-8.

use std::io::{self, BufReader, Cursor, Read, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use encoding_rs::{Decoder, DecoderResult, Encoding, UTF_8};
use flate2::read::MultiGzDecoder;
use tidemill_core::error::nearest;
use tidemill_core::{Error, Result};
use tidemill_env::{Disk, ReadFile};

use crate::growing::Growing;

/// The number of bytes that are read at once from the disk for a decoder.
const BLOCK_BYTES: usize = 64 << 10;
/// The first bytes of a gzip file.
const GZIP: [u8; 3] = [0x1f, 0x8b, 0x08];

/// A file as it was when it was opened. Its length is fixed then. Data that others append later is
/// not part of it, unless the file is followed.
pub(crate) struct Input {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// The path as text.
    pub origin: Arc<str>,
    len: u64,
    encoding: &'static Encoding,
    /// Whether the file is followed as it grows.
    follow: bool,
}

/// The bytes of an input as UTF-8, without a byte order mark. An error in the file's own encoding
/// becomes a byte that is invalid in UTF-8, too.
pub(crate) enum Reading {
    /// The content at the time when the file was opened.
    Whole(Box<dyn Read + Send>),
    /// A followed file.
    Growing(Growing),
}

impl Reading {
    /// Whether more may follow when there is nothing to read.
    pub fn grows(&self) -> bool {
        matches!(self, Reading::Growing(growing) if growing.grows())
    }

    /// Notes that nothing more will be appended.
    pub fn complete(&mut self) {
        if let Reading::Growing(growing) = self {
            growing.complete();
        }
    }
}

impl Read for Reading {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Reading::Whole(read) => read.read(buf),
            Reading::Growing(growing) => growing.read(buf),
        }
    }
}

impl Input {
    /// Opens the file. A byte order mark in it overrides `encoding`.
    pub fn open(disk: Arc<dyn Disk>, path: &Path, encoding: &'static Encoding) -> Result<Input> {
        let origin: Arc<str> = path.display().to_string().into();
        let meta = disk.metadata(path).map_err(|e| not_readable(&*disk, path, &e))?;
        if meta.is_dir {
            return Err(Error::input(format!("{origin} is a folder, not a file")));
        }
        if !meta.is_file {
            return Err(Error::input(format!(
                "{origin} is a pipe, a socket or a device, not a file"
            ))
            .help("write its data to a file, or send it with mill.send"));
        }
        Ok(Input { disk, path: path.into(), origin, len: meta.len, encoding, follow: false })
    }

    /// Makes the input follow the file as it grows.
    pub fn follow(self) -> Input {
        Input { follow: true, ..self }
    }

    /// Returns the bytes from the beginning. A compressed file, or one in another encoding, can't
    /// be followed, and counts as complete.
    pub fn bytes(&self) -> io::Result<Reading> {
        let mut file = self.disk.open_read(&self.path)?;
        let mut magic = [0; 3];
        let found = read_full(&mut file, &mut magic)?;
        file.seek(SeekFrom::Start(0))?;
        if self.follow && self.grows(&magic[..found]) {
            let disk = self.disk.clone();
            return Ok(Reading::Growing(Growing::new(disk, self.path.clone(), file)));
        }
        let zipped = magic[..found] == GZIP;
        let limited = Limited { file, left: self.len };
        let mut read: Box<dyn Read + Send> = if zipped {
            Box::new(MultiGzDecoder::new(BufReader::with_capacity(BLOCK_BYTES, limited)))
        } else {
            Box::new(limited)
        };
        let mut head = [0; 3];
        let found = read_full(&mut read, &mut head)?;
        let mark = Encoding::for_bom(&head[..found]);
        let (encoding, skipped) = mark.unwrap_or((self.encoding, 0));
        let read = Cursor::new(head[skipped..found].to_vec()).chain(read);
        if encoding == UTF_8 {
            Ok(Reading::Whole(Box::new(read)))
        } else {
            let decoder = encoding.new_decoder_without_bom_handling();
            Ok(Reading::Whole(Box::new(Transcoded::new(read, decoder))))
        }
    }

    /// Whether the file can be read while it grows: it is plain text in UTF-8.
    pub fn can_grow(&self) -> Result<bool> {
        let mut magic = [0; 3];
        let file = self.disk.open_read(&self.path);
        let found = file.and_then(|mut file| read_full(&mut file, &mut magic));
        let found = found.map_err(|e| not_readable(&*self.disk, &self.path, &e))?;
        Ok(self.grows(&magic[..found]))
    }

    fn grows(&self, magic: &[u8]) -> bool {
        magic != GZIP && Encoding::for_bom(magic).map_or(self.encoding, |(of, _)| of) == UTF_8
    }
}

/// Returns the error for a path that can't be read, with the closest name that exists.
pub(crate) fn not_readable(disk: &dyn Disk, path: &Path, error: &io::Error) -> Error {
    let shown = path.display();
    if error.kind() != io::ErrorKind::NotFound {
        return Error::io(format!("opening {shown}"), error)
            .help("check that this user may read the file");
    }
    let missing = Error::input(format!("there is no file {shown}"));
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let names: Vec<String> = match disk.list(parent) {
        Ok(paths) => paths
            .iter()
            .filter_map(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()))
            .collect(),
        Err(_) => return missing.help(format!("there is no folder {}", parent.display())),
    };
    let wanted = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
    match nearest(&wanted, names.iter().map(String::as_str)) {
        Some(near) => missing.help(format!("did you mean {}?", parent.join(near).display())),
        None => missing
            .help("check the path; a relative one starts at the folder in which the program runs"),
    }
}

/// Reads until the buffer is full or the end is reached. Returns the number of bytes.
pub(crate) fn read_full(read: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match read.read(&mut buf[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

/// The file up to the length that it had. An earlier end is an error.
struct Limited {
    file: Box<dyn ReadFile>,
    left: u64,
}

impl Read for Limited {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let wanted = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let found = self.file.read(&mut buf[..wanted])?;
        if found == 0 {
            let left = self.left;
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the file has shrunk: its last {left} bytes are gone"),
            ));
        }
        self.left -= found as u64;
        Ok(found)
    }
}

/// Another encoding as UTF-8.
struct Transcoded<R> {
    read: R,
    decoder: Decoder,
    block: Vec<u8>,
    /// The part of `block` that is not decoded yet.
    undecoded: std::ops::Range<usize>,
    ended: bool,
    finished: bool,
}

impl<R: Read> Transcoded<R> {
    fn new(read: R, decoder: Decoder) -> Transcoded<R> {
        let block = vec![0; BLOCK_BYTES];
        Transcoded { read, decoder, block, undecoded: 0..0, ended: false, finished: false }
    }
}

impl<R: Read> Read for Transcoded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // The decoder needs room for a whole character, and this code for the mark of a broken one.
        assert!(buf.len() >= 16, "records are read in large blocks");
        while !self.finished {
            if self.undecoded.is_empty() && !self.ended {
                let found = self.read.read(&mut self.block)?;
                self.undecoded = 0..found;
                self.ended = found == 0;
            }
            let source = &self.block[self.undecoded.clone()];
            let room = buf.len() - 1;
            let (result, read, mut written) = self.decoder.decode_to_utf8_without_replacement(
                source,
                &mut buf[..room],
                self.ended,
            );
            self.undecoded.start += read;
            match result {
                DecoderResult::InputEmpty => self.finished = self.ended,
                DecoderResult::OutputFull => {}
                DecoderResult::Malformed(..) => {
                    buf[written] = 0xff;
                    written += 1;
                }
            }
            if written > 0 {
                return Ok(written);
            }
        }
        Ok(0)
    }
}
