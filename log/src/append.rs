//! Appends, to memory.

use tidemill_core::{Error, Result};

use crate::block::Block;
use crate::open::Log;

/// The longest record, in bytes.
pub const RECORD_BYTES_MAX: usize = 1 << 30;

impl Log {
    /// Appends a record, and returns its number. It stays in memory until [`commit`](Log::commit),
    /// and counts only then.
    ///
    /// # Errors
    /// If the record is longer than [`RECORD_BYTES_MAX`], or if the log has stopped.
    pub fn append(&mut self, kind: u8, bytes: &[u8]) -> Result<u64> {
        self.check_alive()?;
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(Error::input(format!(
                "a record of {} bytes is too long for the log, which takes at most \
                 {RECORD_BYTES_MAX}",
                bytes.len()
            )));
        }
        let number = self.next();
        let takes = |block: &Block| block.takes(bytes.len());
        if !self.waiting.back().is_some_and(takes) {
            let memory = std::mem::take(&mut self.spare);
            self.waiting.push_back(Block::new(number, memory));
        }
        if let Some(block) = self.waiting.back_mut() {
            block.push(kind, bytes);
        }
        Ok(number)
    }

    /// Returns the approximate number of bytes that wait for the next commit.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting.iter().map(Block::size).sum()
    }
}
