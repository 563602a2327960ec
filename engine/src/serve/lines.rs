//! Lines from a connection, of bounded length.

use std::io::{self, ErrorKind};

use tidemill_env::Connection;

/// The bytes of one read.
const PIECE: usize = 16 << 10;

/// A reader of lines. A partial line stays for the next call when a read times out.
pub(crate) struct Lines {
    connection: Box<dyn Connection>,
    buffer: Vec<u8>,
    /// The bytes of the buffer that are known to hold no newline.
    seen: usize,
    /// The longest line, in bytes.
    max: usize,
}

impl Lines {
    pub(crate) fn new(connection: Box<dyn Connection>, max: usize) -> Lines {
        Lines { connection, buffer: Vec::new(), seen: 0, max }
    }

    /// Reads as [`next`](Lines::next), within so many microseconds, or without a limit.
    ///
    /// # Errors
    /// `TimedOut` when no byte arrives in time.
    pub(crate) fn next_within(&mut self, timeout_us: Option<u64>) -> io::Result<Option<Vec<u8>>> {
        self.connection.set_read_timeout(timeout_us)?;
        self.next()
    }

    /// Reads the next line, without its newline. Returns `None` at the end.
    ///
    /// # Errors
    /// `InvalidData` when a line is too long, and errors of the connection.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(at) = self.buffer[self.seen..].iter().position(|b| *b == b'\n') {
                let rest = self.buffer.split_off(self.seen + at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                self.seen = 0;
                line.pop();
                if line.len() > self.max {
                    return Err(ErrorKind::InvalidData.into());
                }
                return Ok(Some(line));
            }
            self.seen = self.buffer.len();
            if self.seen > self.max {
                return Err(ErrorKind::InvalidData.into());
            }
            let mut piece = [0; PIECE];
            match self.connection.read(&mut piece) {
                // A rest without a newline was cut off, and is dropped.
                Ok(0) => return Ok(None),
                Ok(read) => self.buffer.extend_from_slice(&piece[..read]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}
