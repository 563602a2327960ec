//! Opening a log for writing: it finds the log's end, and makes sure that the last block is
//! durable.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use tidemill_core::{Error, Kind, Result};
use tidemill_env::Disk;

use crate::block::Block;
use crate::dir::{self, Segment};
use crate::errors::{self, Damage};
use crate::rewrite::Rewrite;
use crate::room::Tail;
use crate::segment::{Blocks, Next, Place};
use crate::LogSpec;

/// A log that is open for writing. Appended records that are not committed are lost when it is
/// dropped.
pub struct Log {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) spec: LogSpec,
    /// The segments in order; the last one is being written.
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) tail: Tail,
    /// The number after the last durable record.
    pub(crate) durable: u64,
    /// The blocks appended since then, in order; only the last block takes more records.
    pub(crate) waiting: VecDeque<Block>,
    /// The memory for the next block.
    pub(crate) spare: Vec<u8>,
    /// Why the log has stopped, if it has.
    pub(crate) failed: Option<Error>,
    pub(crate) damaged: Vec<Damage>,
    /// The writes that opening has yet to do.
    pub(crate) rewrite: Option<Rewrite>,
    /// Whether the disk was full when room was needed.
    pub(crate) is_short: bool,
    /// Whether the note of the last segment is durable.
    pub(crate) last_is_noted: bool,
}

/// The data about a segment's blocks that its writer needs.
pub(crate) struct Walked {
    /// The last block, if there is one.
    pub(crate) last: Option<Place>,
    /// The blocks of which one copy is damaged.
    pub(crate) damaged: Vec<Place>,
    /// After this byte there are only zeros.
    pub(crate) dirty_to: u64,
}

impl Log {
    /// Opens a log, and creates it if the directory is missing or has no segment. `needed` is the
    /// number of records that the log must have according to the caller: fewer are damage. (0:
    /// unknown.)
    ///
    /// All headers are checked, and the blocks of the last segment. Blocks of earlier segments are
    /// checked when they are [read](crate::read()). The rest of an unfinished block after the last
    /// whole one is overwritten. The damage in the last segment that [`Log::damaged`] lists is
    /// repaired from the other copies. On a full disk this waits: see [`Log::make_ready`].
    ///
    /// # Errors
    /// A log that is damaged, shorter than `needed`, of another app, of another kind, or of a newer
    /// format; then nothing is changed. Also a disk too full to begin a log ([`Kind::Resource`]),
    /// and failing calls.
    ///
    /// [`Kind::Resource`]: tidemill_core::Kind::Resource
    pub fn open(disk: Arc<dyn Disk>, spec: LogSpec, needed: u64) -> Result<Log> {
        let io = |e| errors::io(&spec.dir, "making the directory", &e);
        disk.create_dir_all(&spec.dir).map_err(io)?;
        let found = dir::list(&*disk, &spec)?;
        let last = found.segments.last().cloned();
        if last.is_none() && needed > 0 {
            let what = format_args!("{needed} records should be here, and there is no segment");
            return Err(errors::damaged(&spec.dir, 0, what));
        }
        let mut log = Log {
            disk,
            spec,
            segments: found.segments.into(),
            tail: Tail::default(),
            durable: 0,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            failed: None,
            damaged: Vec::new(),
            rewrite: None,
            is_short: false,
            last_is_noted: false,
        };
        log.last_is_noted = log.is_noted(found.last);
        let headers = log.segments.iter().filter_map(|segment| segment.damaged.clone());
        log.damaged = headers.collect();
        match last {
            Some(last) => log.go_on(last, needed)?,
            None => log.make_first()?,
        }
        for path in &found.unfinished {
            // The first segment may just have been created under that name.
            match log.disk.remove(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(errors::io(path, "removing an unfinished segment", &e));
                }
                _ => {}
            }
        }
        Ok(log)
    }

    /// Continues after the last block of the last segment.
    fn go_on(&mut self, segment: Segment, needed: u64) -> Result<()> {
        let mut blocks = Blocks::open(&*self.disk, segment)?;
        let walked = walk(&mut blocks)?;
        let (path, at) = (blocks.segment.path.clone(), blocks.at);
        if blocks.number < needed {
            return Err(errors::too_few(&path, at, blocks.number, needed));
        }
        let places = walked.damaged.iter().filter_map(|place| place.damaged_at);
        self.damaged.extend(places.map(|at| blocks.damage_at(at)));
        self.rewrite = Some(Rewrite::of(&mut blocks, &walked)?);
        self.durable = blocks.number;
        let length = blocks.segment.header.length;
        (self.tail.at, self.tail.room) = (at, at);
        self.tail.chain = blocks.chain;
        self.tail.length = length;
        self.tail.header_checksum = blocks.segment.header.checksum();
        // A process may have died after a rename and before its sync. Such a name can still be
        // lost.
        let io = |e| errors::io(&self.spec.dir, "syncing the directory", &e);
        self.disk.sync_dir(&self.spec.dir).map_err(io)?;
        match self.settle() {
            Err(error) if error.kind == Kind::Resource => Ok(()),
            done => done,
        }
    }

    /// Returns the number of the oldest retained record, or of the next one if there is none.
    pub fn first(&self) -> u64 {
        self.segments.front().map_or(0, |segment| segment.header.first)
    }

    /// Returns the number after the last durable record.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns the number that the next appended record will have.
    pub fn next(&self) -> u64 {
        self.waiting.back().map_or(self.durable, Block::end_number)
    }

    /// Returns the damage that was found at opening and repaired from the other copies: headers,
    /// and blocks of the last segment.
    pub fn damaged(&self) -> &[Damage] {
        &self.damaged
    }

    /// Returns the size of all segment files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.header.length).sum()
    }

    /// Returns the log's directory, kind, app and length of segments.
    pub fn spec(&self) -> &LogSpec {
        &self.spec
    }

    pub(crate) fn check_alive(&self) -> Result<()> {
        match &self.failed {
            Some(earlier) => Err(errors::stopped(&self.spec.dir, earlier)),
            None => Ok(()),
        }
    }

    /// Makes the log refuse everything from now on.
    pub(crate) fn stop(&mut self, error: Error) -> Error {
        self.waiting.clear();
        self.tail.close();
        self.failed = Some(error.clone());
        error
    }
}

fn walk(blocks: &mut Blocks) -> Result<Walked> {
    let mut walked = Walked { last: None, damaged: Vec::new(), dirty_to: 0 };
    loop {
        match blocks.next()? {
            Next::Block(place) => {
                walked.last = Some(place);
                if place.damaged_at.is_some() {
                    walked.damaged.push(place);
                }
            }
            Next::End { dirty_to } => {
                walked.dirty_to = dirty_to;
                return Ok(walked);
            }
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dir, first, durable, next) = (&self.spec.dir, self.first(), self.durable, self.next());
        write!(f, "Log({}, {first}..{durable}, next {next})", dir.display())
    }
}
