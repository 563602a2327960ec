//! Opening a log for writing: where it ends, and that what it ends with is durable.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use tidemill_core::{Error, Result};
use tidemill_env::Disk;

use crate::block::Block;
use crate::dir::{self, Segment};
use crate::refuse::{self, Damage};
use crate::room::{Tail, ZEROS_BYTES};
use crate::segment::{Blocks, Next, Place};
use crate::LogSpec;

/// A log that is open for writing. What was appended and not committed is lost when it is dropped.
pub struct Log {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) spec: LogSpec,
    /// In order; the last is the one that is written.
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) tail: Tail,
    /// The number behind the last durable record.
    pub(crate) durable: u64,
    /// What was appended since, in order; only the last block takes more.
    pub(crate) waiting: VecDeque<Block>,
    /// Memory for the next block.
    pub(crate) spare: Vec<u8>,
    /// Why the log has stopped, if it has.
    pub(crate) failed: Option<Error>,
    pub(crate) damaged: Vec<Damage>,
}

/// What a segment's blocks tell to who goes on writing there.
struct Walked {
    /// The last block, if there is one.
    last: Option<Place>,
    /// Blocks of which one copy is damaged.
    damaged: Vec<Place>,
    /// Behind this byte there are only zeros.
    dirty_to: u64,
}

impl Log {
    /// Opens a log, and makes it when the directory is missing or has no segment. `needed` is the
    /// number of records that the log must have by somebody else's word: fewer are damage. (0: nobody
    /// knows.)
    ///
    /// All headers are checked, and the blocks of the last segment; those of earlier segments are
    /// when they are [read](crate::read()). What a crash has left of a block behind the last whole one
    /// is overwritten, and what [`Log::damaged`] tells of the last segment is mended from the other
    /// copy.
    ///
    /// # Errors
    /// A log that is damaged, shorter than `needed`, of another app, of another kind or of a newer
    /// format, in which case nothing is changed; a full disk ([`Kind::Resource`]); failing calls.
    ///
    /// [`Kind::Resource`]: tidemill_core::Kind::Resource
    pub fn open(disk: Arc<dyn Disk>, spec: LogSpec, needed: u64) -> Result<Log> {
        let io = |e| refuse::io(&spec.dir, "making the directory", &e);
        disk.create_dir_all(&spec.dir).map_err(io)?;
        let found = dir::list(&*disk, &spec)?;
        let last = found.segments.last().cloned();
        if last.is_none() && needed > 0 {
            let what = format_args!("{needed} records should be here, and there is no segment");
            return Err(refuse::damaged(&spec.dir, 0, what));
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
        };
        let headers = log.segments.iter().filter_map(|segment| segment.damaged.clone());
        log.damaged = headers.collect();
        match last {
            Some(last) => log.go_on(last, needed)?,
            None => log.make_first()?,
        }
        for path in &found.unfinished {
            // The first segment may just have been made under that name.
            match log.disk.remove(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(refuse::io(path, "removing an unfinished segment", &e));
                }
                _ => {}
            }
        }
        Ok(log)
    }

    /// Goes on behind the last block of the last segment.
    fn go_on(&mut self, segment: Segment, needed: u64) -> Result<()> {
        let mut blocks = Blocks::open(&*self.disk, segment)?;
        let walked = walk(&mut blocks)?;
        let (path, at) = (blocks.segment.path.clone(), blocks.at);
        if blocks.number < needed {
            let what = format_args!(
                "the log ends here with {} records, and {needed} are known to have been stored",
                blocks.number
            );
            return Err(refuse::damaged(&path, at, what));
        }
        let places = walked.damaged.iter().filter_map(|place| place.damaged_at);
        self.damaged.extend(places.map(|at| blocks.damage_at(at)));
        self.write_again(&mut blocks, &walked)?;
        self.durable = blocks.number;
        let length = blocks.segment.header.length;
        self.tail.at = at;
        self.tail.chain = blocks.chain;
        self.tail.length = length;
        self.tail.header_checksum = blocks.segment.header.checksum();
        // A name that a process has given and not stored before it died can still be lost.
        let io = |e| refuse::io(&self.spec.dir, "syncing the directory", &e);
        self.disk.sync_dir(&self.spec.dir).map_err(io)
    }

    /// Makes durable what was read: a process may have died between write and sync, or after a sync
    /// that failed, and then the machine shows bytes that the disk does not have. Only writing them
    /// again is sure to store them. That can concern the last block only, since each one was synced
    /// before the next was written.
    ///
    /// In one sweep, behind it, zeros are written: over what is left of a torn block, so that nobody
    /// ever takes it for damage, and as room for the next ones.
    fn write_again(&mut self, blocks: &mut Blocks, walked: &Walked) -> Result<()> {
        let Segment { path, header, damaged } = blocks.segment.clone();
        let copies = header.kind.copies();
        let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
        if let Some(damaged) = damaged {
            writes.push((damaged.at, header.bytes().to_vec()));
        }
        for place in &walked.damaged {
            let bytes = blocks.get(place.whole_at, place.head.size())?.to_vec();
            writes.extend(place.damaged_at.map(|at| (at, bytes)));
        }
        if let Some(last) = walked.last {
            let bytes = blocks.get(last.whole_at, last.head.size())?;
            writes.push((last.at, bytes.repeat(copies as usize)));
        }
        let room = walked.dirty_to.max(blocks.at + ZEROS_BYTES).min(header.length);
        let failed = |e: &std::io::Error| match refuse::is_full(e) {
            true => refuse::full(&path, room - blocks.at, e),
            false => refuse::io(&path, "writing the end of the log again", e),
        };
        for (at, bytes) in writes {
            let file = self.disk.open_at(&path, at);
            file.and_then(|mut file| file.write_all(&bytes)).map_err(|e| failed(&e))?;
        }
        let mut ahead = self.disk.open_at(&path, blocks.at).map_err(|e| failed(&e))?;
        crate::room::write_zeros(&mut *ahead, room - blocks.at).map_err(|e| failed(&e))?;
        ahead.sync().map_err(|e| failed(&e))?;
        self.tail.room = room;
        self.tail.ahead = Some(ahead);
        Ok(())
    }

    /// The number of the oldest record that is kept, or of the next one when there is none.
    pub fn first(&self) -> u64 {
        self.segments.front().map_or(0, |segment| segment.header.first)
    }

    /// The number behind the last record that is durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The number that the next appended record will have.
    pub fn next(&self) -> u64 {
        self.waiting.back().map_or(self.durable, Block::end_number)
    }

    /// What was found damaged when the log was opened, and mended from its other copy: headers, and
    /// blocks of the last segment.
    pub fn damaged(&self) -> &[Damage] {
        &self.damaged
    }

    /// Bytes of all its segments' files.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.header.length).sum()
    }

    /// The log's directory, kind, app and length of segments.
    pub fn spec(&self) -> &LogSpec {
        &self.spec
    }

    pub(crate) fn check_alive(&self) -> Result<()> {
        match &self.failed {
            Some(earlier) => Err(refuse::stopped(&self.spec.dir, earlier)),
            None => Ok(()),
        }
    }

    /// Lets the log refuse everything from now on.
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
