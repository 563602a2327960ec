//! The second write of the log's end when a log is opened.
//!
//! A process may have died between write and sync, or after a failed sync. Then the machine shows
//! bytes that the disk does not have. Only writing them again stores them for certain. This can
//! concern the last block only, since each block was synced before the next was written.
//!
//! The same sweep writes zeros after that block: over the rest of a torn block, so that no one
//! takes it for damage, and as room for the next blocks.
//!
//! A full disk may refuse the room, and on some file systems even bytes that the file already has.
//! The log is open nevertheless, so that it can be read, and nothing is appended before this is
//! done.

use std::io;

use tidemill_core::Result;

use crate::errors;
use crate::open::{Log, Walked};
use crate::room::{write_zeros, ZEROS_BYTES};
use crate::segment::Blocks;

/// The bytes to be written to the last segment.
#[derive(Debug)]
pub(crate) struct Rewrite {
    /// Places in the file, and the bytes there.
    writes: Vec<(u64, Vec<u8>)>,
    /// After this byte there are only zeros.
    dirty_to: u64,
}

impl Rewrite {
    /// Creates the writes: the last block, and the copies that are repaired from the other ones.
    pub(crate) fn of(blocks: &mut Blocks, walked: &Walked) -> Result<Rewrite> {
        let header = blocks.segment.header;
        let mut writes = Vec::new();
        if let Some(damaged) = &blocks.segment.damaged {
            writes.push((damaged.at, header.bytes().to_vec()));
        }
        for place in &walked.damaged {
            let bytes = blocks.get(place.whole_at, place.head.size())?.to_vec();
            writes.extend(place.damaged_at.map(|at| (at, bytes)));
        }
        if let Some(last) = walked.last {
            let bytes = blocks.get(last.whole_at, last.head.size())?;
            writes.push((last.at, bytes.repeat(header.kind.copies() as usize)));
        }
        Ok(Rewrite { writes, dirty_to: walked.dirty_to })
    }
}

/// The reason why something could not be written.
enum Unwritten {
    Write(io::Error),
    /// After a failed sync the stored content is unknown.
    Sync(io::Error),
}

impl Log {
    /// Whether the content that was read at opening is known to be durable. If not, the disk was
    /// full. [`make_ready`](Log::make_ready) or a commit completes the work.
    pub fn is_settled(&self) -> bool {
        self.rewrite.is_none()
    }

    /// Does the work that opening could not do because the disk was full: it makes the content that
    /// was read durable, and makes room for new blocks. A commit does so, too.
    ///
    /// # Errors
    /// A disk that is still full ([`Kind::Resource`]): then the call can be repeated. After any
    /// other failure the log has stopped.
    ///
    /// [`Kind::Resource`]: tidemill_core::Kind::Resource
    pub fn make_ready(&mut self) -> Result<()> {
        self.check_alive()?;
        self.settle()?;
        if self.is_short && self.tail.at < self.tail.length {
            self.make_room(self.durable, 1)?;
        }
        self.is_short = false;
        Ok(())
    }

    /// Does what must precede an append: the content that was read is durable, and so is the note
    /// of the last segment.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if let Some(again) = self.rewrite.take() {
            let (path, bytes) = (self.last_path(), again.dirty_to.max(self.tail.at) - self.tail.at);
            match self.write_again(&again) {
                Ok(()) => {}
                Err(Unwritten::Write(e)) if errors::is_full(&e) => {
                    self.tail.close();
                    (self.rewrite, self.is_short) = (Some(again), true);
                    return Err(errors::full(&path, bytes, &e));
                }
                Err(Unwritten::Write(e) | Unwritten::Sync(e)) => {
                    let error = errors::io(&path, "writing the end of the log again", &e);
                    return Err(self.stop(error));
                }
            }
        }
        self.note_last()
    }

    fn write_again(&mut self, again: &Rewrite) -> std::result::Result<(), Unwritten> {
        let (path, at) = (self.last_path(), self.tail.at);
        for (at, bytes) in &again.writes {
            let file = self.disk.open_at(&path, *at);
            file.and_then(|mut file| file.write_all(bytes)).map_err(Unwritten::Write)?;
        }
        let mut ahead = self.disk.open_at(&path, at).map_err(Unwritten::Write)?;
        let dirty_to = again.dirty_to.max(at);
        write_zeros(&mut *ahead, dirty_to - at).map_err(Unwritten::Write)?;
        let room = dirty_to.max(at + ZEROS_BYTES).min(self.tail.length);
        let made = write_zeros(&mut *ahead, room - dirty_to);
        match made {
            Err(e) if !errors::is_full(&e) => return Err(Unwritten::Write(e)),
            _ => ahead.sync().map_err(Unwritten::Sync)?,
        }
        self.is_short = made.is_err();
        (self.tail.room, self.tail.ahead) = match self.is_short {
            false => (room, Some(ahead)),
            true => (dirty_to, None),
        };
        Ok(())
    }
}
