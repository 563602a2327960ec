//! The bytes of an input file: found, unpacked, and as UTF-8.

use std::io::{self, BufReader, Cursor, Read, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use encoding_rs::{Decoder, DecoderResult, Encoding, UTF_8};
use flate2::read::MultiGzDecoder;
use tidemill_core::error::nearest;
use tidemill_core::{encode, Error, Result};
use tidemill_env::{Disk, ReadFile};

use crate::source::Fingerprint;

/// Bytes read at once from the disk below a decoder.
const BLOCK_BYTES: usize = 64 << 10;

/// A file as it was when it was opened: its length is fixed then, and what others append later is
/// not part of it, so that reading it again gives the same rows.
pub(crate) struct Input {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// The path as text.
    pub origin: Arc<str>,
    len: u64,
    encoding: &'static Encoding,
}

/// The bytes of an input as UTF-8, without a byte order mark. What was broken in the file's own
/// encoding comes as a byte that is broken in UTF-8 too.
pub(crate) struct Bytes {
    pub read: Box<dyn Read + Send>,
    /// The place in the file of the first byte, when the bytes are those of the file, so that a
    /// later reader can begin in the middle.
    pub base: Option<u64>,
}

impl Input {
    /// Finds the file. A byte order mark in it overrides `encoding`.
    pub fn open(disk: Arc<dyn Disk>, path: &Path, encoding: &'static Encoding) -> Result<Input> {
        let origin: Arc<str> = path.display().to_string().into();
        let meta = disk.metadata(path).map_err(|e| not_readable(&*disk, path, &e))?;
        if meta.is_dir {
            return Err(Error::input(format!("{origin} is a folder, not a file")));
        }
        Ok(Input { disk, path: path.into(), origin, len: meta.len, encoding })
    }

    /// The bytes from the beginning, or from `at`, a place that [`Bytes::base`] made known.
    pub fn bytes(&self, at: Option<u64>) -> io::Result<Bytes> {
        let mut file = self.disk.open_read(&self.path)?;
        if let Some(at) = at {
            file.seek(SeekFrom::Start(at))?;
            let left = self.len.saturating_sub(at);
            return Ok(Bytes { read: Box::new(Limited { file, left }), base: Some(at) });
        }
        let mut magic = [0; 3];
        let found = read_full(&mut file, &mut magic)?;
        file.seek(SeekFrom::Start(0))?;
        let limited = Limited { file, left: self.len };
        let zipped = magic[..found] == [0x1f, 0x8b, 0x08];
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
            Ok(Bytes { read: Box::new(read), base: (!zipped).then_some(skipped as u64) })
        } else {
            let decoder = encoding.new_decoder_without_bom_handling();
            Ok(Bytes { read: Box::new(Transcoded::new(read, decoder)), base: None })
        }
    }

    /// Length and checksum; reads the whole file, as it is on the disk.
    pub fn fingerprint(&self) -> io::Result<Fingerprint> {
        let mut limited = Limited { file: self.disk.open_read(&self.path)?, left: self.len };
        // Each block is hashed together with the hash of all before it. The block size is part
        // of the fingerprint.
        let mut block = vec![0; 16 + (1 << 20)];
        let mut hash = 0u128;
        loop {
            let found = read_full(&mut limited, &mut block[16..])?;
            if found == 0 {
                return Ok(Fingerprint { len: self.len, hash });
            }
            block[..16].copy_from_slice(&hash.to_le_bytes());
            hash = encode::hash128(&block[..16 + found]);
        }
    }
}

/// The error for a path that can't be read, with the name next to it that may have been meant.
pub(crate) fn not_readable(disk: &dyn Disk, path: &Path, error: &io::Error) -> Error {
    let shown = path.display();
    if error.kind() != io::ErrorKind::NotFound {
        return Error::io(format!("opening {shown}"), error)
            .help("check that the file may be read by this user");
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
        Err(_) => return missing.help(format!("the folder {} is not there", parent.display())),
    };
    let wanted = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
    match nearest(&wanted, names.iter().map(String::as_str)) {
        Some(near) => missing.help(format!("did you mean {}?", parent.join(near).display())),
        None => missing
            .help("check the path; a relative one starts at the folder in which the program runs"),
    }
}

/// Reads until the buffer is full or the end is there; the number of bytes.
fn read_full(read: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
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

/// The file up to the length that it had; an earlier end is an error.
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
        // The decoder needs room for a whole character, and we for the mark of a broken one.
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
