//! Commits: the appended records become durable.

use std::io;

use tidemill_core::Result;

use crate::errors;
use crate::open::Log;

impl Log {
    /// Makes all appended records durable: as one block, with one write and one sync. Very long
    /// commits use several blocks: a block that has a record takes no more beyond 64 MiB. Returns
    /// the number after the last durable record.
    ///
    /// # Errors
    /// A full disk ([`Kind::Resource`]): nothing is lost, and another commit may succeed when there
    /// is room. After any other failure the appended records may or may not be durable, and the log
    /// has stopped.
    ///
    /// [`Kind::Resource`]: tidemill_core::Kind::Resource
    pub fn commit(&mut self) -> Result<u64> {
        self.check_alive()?;
        // Each block is durable before the next one is written. A crash must not leave a whole
        // block after a torn one.
        while let Some(block) = self.waiting.front() {
            let (first, size) = (block.first, block.size() * self.spec.kind.copies());
            // Nothing is written after content that may be missing, nor before its place is known.
            self.settle()?;
            self.make_room(first, size)?;
            self.note_last()?;
            self.write_block()?;
        }
        Ok(self.durable)
    }

    /// Writes the first waiting block, for which there is room.
    fn write_block(&mut self) -> Result<()> {
        let Some(mut block) = self.waiting.pop_front() else { return Ok(()) };
        let copies = self.spec.kind.copies();
        let tail = &mut self.tail;
        let chain = block.seal(tail.header_checksum, tail.at, tail.chain, copies);
        let size = block.bytes().len() as u64;
        match self.write(block.bytes()) {
            Ok(()) => {}
            Err(e) if errors::is_full(&e) => {
                // The block was not synced, so it is as if it had never been written. The next try
                // begins at the same place with the same records. Without another try the rest is a
                // torn end.
                self.tail.close();
                self.waiting.push_front(block);
                return Err(errors::full(&self.last_path(), size, &e));
            }
            Err(e) => {
                let error = errors::io(&self.last_path(), "writing a block", &e);
                return Err(self.stop(error));
            }
        }
        if let Err(e) = self.sync() {
            let error = errors::io(&self.last_path(), "syncing a block", &e);
            return Err(self.stop(error));
        }
        self.tail.passed(size);
        self.tail.chain = chain;
        self.durable = block.end_number();
        self.spare = block.into_memory();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match self.tail.blocks.take() {
            Some(file) => file,
            None => self.disk.open_at(&self.last_path(), self.tail.at)?,
        };
        self.tail.blocks.insert(file).write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        match &mut self.tail.blocks {
            Some(file) => file.sync(),
            None => Ok(()),
        }
    }
}
