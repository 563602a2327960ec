//! Reading records, in order.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use tidemill_core::{Error, Result};
use tidemill_env::Disk;

use crate::dir::{self, Segment};
use crate::errors::{self, Damage};
use crate::format::{u32_at, BLOCK_HEAD_BYTES, RECORD_HEAD_BYTES};
use crate::open::Log;
use crate::segment::{Blocks, Next};
use crate::{LogSpec, Record};

/// Reads the records of a log that no process writes, from number `from` on, and changes nothing.
/// The rest of an unfinished block after the last whole one is ignored.
///
/// # Errors
/// If there is no such directory, a header is refused (see [`Log::open`]), or record `from` has
/// been removed. Blocks are checked as they are read.
pub fn read(disk: Arc<dyn Disk>, spec: &LogSpec, from: u64) -> Result<Reader> {
    let segments = dir::list(&*disk, spec)?.segments;
    Reader::new(disk, spec, segments.into(), from, None)
}

impl Log {
    /// Reads the records that are durable now, from number `from` on. The log may be appended to in
    /// the meantime. If needed records are [trimmed](Log::trim), reading fails.
    ///
    /// # Errors
    /// If record `from` has been removed, or is not durable.
    pub fn read(&self, from: u64) -> Result<Reader> {
        let segments = self.segments.clone();
        Reader::new(self.disk.clone(), &self.spec, segments, from, Some(self.durable))
    }
}

/// The records of a log, in order. It ends after the first error.
///
/// It holds one block in memory at a time.
pub struct Reader {
    disk: Arc<dyn Disk>,
    spec: LogSpec,
    /// The segments that have not been begun.
    segments: VecDeque<Segment>,
    /// The segment that is being read.
    blocks: Option<Blocks>,
    /// The first wanted record.
    from: u64,
    /// The number of the next record in the present block, or of the next block.
    next: u64,
    /// The number of records that the log must have.
    needed: u64,
    /// The first record that is no longer wanted.
    until: Option<u64>,
    /// The number of records left in the present block, the place of the next one, and the place
    /// where the payload ends.
    left: u32,
    at: u64,
    end: u64,
    done: bool,
    damaged: Vec<Damage>,
}

impl Reader {
    fn new(
        disk: Arc<dyn Disk>,
        spec: &LogSpec,
        mut segments: VecDeque<Segment>,
        from: u64,
        until: Option<u64>,
    ) -> Result<Reader> {
        let first = segments.front().map_or(0, |segment| segment.header.first);
        if from < first {
            return Err(Error::input(format!(
                "{}: the log begins with record {first}; record {from} has been removed",
                spec.dir.display()
            ))
            .help("read from a later record; a snapshot has the earlier ones"));
        }
        let damaged = segments.iter().filter_map(|segment| segment.damaged.clone()).collect();
        while segments.get(1).is_some_and(|second| second.header.first <= from) {
            segments.pop_front();
        }
        let next = segments.front().map_or(0, |segment| segment.header.first);
        if until.is_some_and(|until| from > until) {
            return Err(too_few(spec, until.unwrap_or(next), from));
        }
        Ok(Reader {
            disk,
            spec: spec.clone(),
            segments,
            blocks: None,
            from,
            next,
            needed: 0,
            until,
            left: 0,
            at: 0,
            end: 0,
            done: false,
            damaged,
        })
    }

    /// Requires that the log has this many records, according to the caller. Fewer are damage,
    /// which is reported at the log's end.
    #[must_use]
    pub fn needing(mut self, needed: u64) -> Reader {
        self.needed = self.needed.max(needed);
        self
    }

    fn check_end(&self) -> Result<()> {
        if self.next >= self.needed.max(self.from) {
            return Ok(());
        }
        match &self.blocks {
            Some(blocks) if self.next < self.needed => {
                Err(errors::too_few(&blocks.segment.path, blocks.at, self.next, self.needed))
            }
            _ => Err(too_few(&self.spec, self.next, self.needed.max(self.from))),
        }
    }

    /// Returns the number of the next record. At the end, this is the number of the log's records.
    pub fn next_number(&self) -> u64 {
        self.next.max(self.from)
    }

    /// Returns the damaged copies found so far whose other copies were whole: of all headers, and
    /// of the blocks that were read.
    pub fn damaged(&self) -> &[Damage] {
        &self.damaged
    }

    /// Returns the next wanted record.
    fn step(&mut self) -> Result<Option<Record>> {
        loop {
            if self.until.is_some_and(|until| self.next >= until) {
                return Ok(None);
            }
            if self.left == 0 && !self.next_block()? {
                self.check_end()?;
                return Ok(None);
            }
            if self.left > 0 {
                let record = self.next_record()?;
                if record.number >= self.from {
                    return Ok(Some(record));
                }
            }
        }
    }

    /// Moves to the next block with wanted records, or at least to the next segment. Returns false
    /// if there is none.
    fn next_block(&mut self) -> Result<bool> {
        let Some(blocks) = &mut self.blocks else {
            let Some(segment) = self.segments.pop_front() else { return Ok(false) };
            self.next = segment.header.first;
            self.blocks = Some(Blocks::open(&*self.disk, segment)?);
            return Ok(true);
        };
        if let Some(following) = self.segments.front() {
            if blocks.number == following.header.first {
                if blocks.chain != following.header.chain {
                    let what = format_args!(
                        "this segment does not continue where {} ends: the two were not written \
                         one after the other",
                        blocks.segment.path.display()
                    );
                    return Err(errors::damaged(&following.path, 24, what));
                }
                self.blocks = None;
                return Ok(true);
            }
        }
        let at = blocks.at;
        let place = match blocks.next()? {
            Next::Block(place) => Some(place),
            Next::End { .. } => None,
        };
        if let Some(following) = self.segments.front() {
            if place.is_none() || blocks.number > following.header.first {
                let what = format_args!(
                    "the records from {} up to {} should be here, and are not",
                    self.next, following.header.first
                );
                return Err(errors::damaged(&blocks.segment.path, at, what));
            }
        }
        let Some(place) = place else { return Ok(false) };
        self.damaged.extend(place.damaged_at.map(|at| blocks.damage_at(at)));
        if blocks.number <= self.from {
            self.next = blocks.number;
            return Ok(true);
        }
        self.left = place.head.records;
        self.at = place.whole_at + BLOCK_HEAD_BYTES as u64;
        self.end = self.at + u64::from(place.head.payload);
        Ok(true)
    }

    /// Returns the next record of the present block.
    fn next_record(&mut self) -> Result<Record> {
        let Some(blocks) = &mut self.blocks else {
            return Err(Error::internal("records without a block"));
        };
        let (at, end) = (self.at, self.end);
        let wrong = |path| {
            // The checksum is right, so this was written in this form.
            Err(errors::damaged(path, at, "the block's records do not fill the block"))
        };
        if end - at < RECORD_HEAD_BYTES as u64 {
            return wrong(&blocks.segment.path);
        }
        let head = blocks.get(at, RECORD_HEAD_BYTES as u64)?;
        let (len, kind) = (u64::from(u32_at(head, 0)), head[4]);
        let bytes_at = at + RECORD_HEAD_BYTES as u64;
        if len > end - bytes_at || self.left == 1 && len != end - bytes_at {
            return wrong(&blocks.segment.path);
        }
        let bytes = blocks.get(bytes_at, len)?.to_vec();
        let record = Record { number: self.next, kind, bytes };
        self.at = bytes_at + len;
        self.left -= 1;
        self.next += 1;
        Ok(record)
    }
}

fn too_few(spec: &LogSpec, end: u64, from: u64) -> Error {
    let what =
        format_args!("the log ends with {end} records, and {from} are known to have been stored");
    errors::damaged(&spec.dir, 0, what)
}

impl Iterator for Reader {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        if self.done {
            return None;
        }
        let item = self.step().transpose();
        if !matches!(item, Some(Ok(_))) {
            self.done = true;
            self.blocks = None;
        }
        item
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader({}, next {})", self.spec.dir.display(), self.next_number())
    }
}
