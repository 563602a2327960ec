//! Room for blocks, made before they are written.
//!
//! A small commit is fastest into bytes that the file already has, and a full disk is best found
//! while no record depends on it. So a segment is created at its full length, but empty. Before
//! blocks are written into a part, zeros are written there, in steps. These are measurements on
//! ext4 on a virtual disk with 2 cores: write and `fdatasync` in microseconds (median; mean in
//! parentheses):
//!
//! | bytes | file grows | length set, no zeros | zeros, 256 KiB ahead | zeros, 1 MiB ahead | all zeros |
//! | --- | --- | --- | --- | --- | --- |
//! | 64 | 190–205 (190) | 128–140 (135) | 120–131 (129) | 126–146 (139) | 122–147 (138) |
//! | 4096 | 250 (255) | 190–210 (211) | 125–128 (135) | 122–136 (135) | 132–139 (138) |
//! | 64 KiB | 236–264 (252) | 224–264 (253) | 142–168 (211) | 126–172 (217) | 167–175 (178) |
//! | 1 MiB | 936–959 (1225) | 882–913 (951) | zeros cost more than they save | | 643–672 (663) |
//!
//! The figures include the cost of the steps: 1 ms for each MiB. Writing all zeros at once would
//! delay each segment's first commit by 50 ms and more. Large blocks gain nothing from zeros, so
//! they are written without.
//!
//! A commit of one record with this design, in the same place, takes: 64 bytes 142–186 (155–176), 4
//! KiB 140–180 (153–185), 64 KiB 204–238 (291–319), 1 MiB 1340–2400 (1443–3069). For the cut log,
//! which writes twice as much: 64 bytes 151–187 (160–178), 4 KiB 138–185 (165–194).

use std::io;
use std::path::{Path, PathBuf};

use tidemill_core::Result;
use tidemill_env::WriteFile;

use crate::dir::{self, Segment};
use crate::errors;
use crate::format::{Header, ALIGN};
use crate::open::Log;

/// How far ahead zeros are written, in bytes.
pub(crate) const ZEROS_BYTES: u64 = 256 << 10;

/// The size from which blocks are written without zeros before them, in bytes.
const LARGE_BYTES: u64 = ZEROS_BYTES / 2;

/// The end of the segment that is being written.
#[derive(Default)]
pub(crate) struct Tail {
    /// The place of the next block.
    pub(crate) at: u64,
    /// The place up to which zeros have been written.
    pub(crate) room: u64,
    /// The length of the file.
    pub(crate) length: u64,
    /// The chain value after the last block.
    pub(crate) chain: u64,
    pub(crate) header_checksum: u64,
    /// The file, open at `at`.
    pub(crate) blocks: Option<Box<dyn WriteFile>>,
    /// The file, open at `room`.
    pub(crate) ahead: Option<Box<dyn WriteFile>>,
}

impl Tail {
    /// Moves on after blocks of this size have been written.
    pub(crate) fn passed(&mut self, size: u64) {
        self.at += size;
        if self.room < self.at {
            self.room = self.at;
            self.ahead = None;
        }
    }

    /// Closes the files, whose positions are unknown or no longer needed.
    pub(crate) fn close(&mut self) {
        self.blocks = None;
        self.ahead = None;
    }
}

impl Log {
    /// Returns the path of the segment that is being written.
    pub(crate) fn last_path(&self) -> PathBuf {
        self.segments.back().map_or_else(|| self.spec.dir.clone(), |last| last.path.clone())
    }

    /// Makes room for a block of this size, all copies together, that begins with record `first`.
    pub(crate) fn make_room(&mut self, first: u64, size: u64) -> Result<()> {
        if size > self.tail.length - self.tail.at {
            return self.make_segment(first, size);
        }
        if size >= LARGE_BYTES || self.tail.at + size <= self.tail.room {
            return Ok(());
        }
        let room = self.tail.length.min(self.tail.at + size + ZEROS_BYTES);
        match self.write_ahead(room - self.tail.room) {
            Ok(()) => {
                self.tail.room = room;
                Ok(())
            }
            Err(e) => {
                let path = self.last_path();
                self.tail.ahead = None;
                Err(self.no_room(&path, room - self.tail.room, &e))
            }
        }
    }

    fn write_ahead(&mut self, size: u64) -> io::Result<()> {
        let file = match self.tail.ahead.take() {
            Some(file) => file,
            None => self.disk.open_at(&self.last_path(), self.tail.room)?,
        };
        write_zeros(&mut **self.tail.ahead.insert(file), size)
    }

    /// Returns the error for missing room. After a full disk the log can continue; any other
    /// failure stops it.
    fn no_room(&mut self, path: &Path, size: u64, error: &io::Error) -> tidemill_core::Error {
        if errors::is_full(error) {
            return errors::full(path, size, error);
        }
        let error = errors::io(path, "making room for further blocks", error);
        self.stop(error)
    }

    /// Creates the first segment of a new log.
    pub(crate) fn make_first(&mut self) -> Result<()> {
        self.make_segment(0, 0)?;
        self.note_last()
    }

    /// Creates a segment with room for a block of this size. It gets its name when it is complete.
    fn make_segment(&mut self, first: u64, size: u64) -> Result<()> {
        let kind = self.spec.kind;
        let length = self.spec.segment_bytes.max(kind.blocks_at() + size);
        let length = length.checked_next_multiple_of(ALIGN as u64).unwrap_or(length);
        let last = self.segments.back().map(|segment| segment.header);
        // A last segment that has no blocks and is too short is replaced.
        let (ordinal, chain) = match last {
            None => (0, 0),
            Some(last) if last.first == first => (last.ordinal, last.chain),
            Some(last) => (last.ordinal.wrapping_add(1), self.tail.chain),
        };
        let header = Header { kind, ordinal, first, chain, length, app: self.spec.app };
        let path = dir::path_of(&self.spec.dir, first);
        let unfinished = dir::unfinished_path_of(&self.spec.dir, first);
        let room = match size >= LARGE_BYTES {
            true => kind.blocks_at(),
            false => length.min(kind.blocks_at() + size + ZEROS_BYTES),
        };
        let made = self.write_segment(&unfinished, &header, room).and_then(|file| {
            self.disk.rename(&unfinished, &path)?;
            Ok(file)
        });
        let file = match made {
            Ok(file) => file,
            Err(e) => {
                if errors::is_full(&e) {
                    // The unfinished segment is removed to free space. If that fails, the next try
                    // or the next start overwrites it.
                    let _ = self.disk.remove(&unfinished);
                }
                return Err(self.no_room(&path, length, &e));
            }
        };
        if let Err(e) = self.disk.sync_dir(&self.spec.dir) {
            let error = errors::io(&self.spec.dir, "syncing the directory", &e);
            return Err(self.stop(error));
        }
        if last.is_some_and(|last| last.first == first) {
            self.segments.pop_back();
        }
        self.segments.push_back(Segment { path, header, damaged: None });
        self.last_is_noted = false;
        let header_checksum = header.checksum();
        self.tail = Tail {
            at: kind.blocks_at(),
            room,
            length,
            chain: header_checksum,
            header_checksum,
            blocks: None,
            ahead: Some(file),
        };
        Ok(())
    }

    /// Writes a segment without blocks, durably. Returns the file, open after the zeros.
    fn write_segment(
        &self,
        path: &Path,
        header: &Header,
        room: u64,
    ) -> io::Result<Box<dyn WriteFile>> {
        let mut file = self.disk.create(path)?;
        file.set_len(header.length)?;
        file.write_all(&header.bytes().repeat(header.kind.copies() as usize))?;
        write_zeros(&mut *file, room - header.kind.blocks_at())?;
        file.sync()?;
        Ok(file)
    }
}

pub(crate) fn write_zeros(file: &mut dyn WriteFile, size: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut left = size;
    while left > 0 {
        let part = left.min(ZEROS.len() as u64);
        file.write_all(&ZEROS[..part as usize])?;
        left -= part;
    }
    Ok(())
}
