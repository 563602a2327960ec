//! A connection with a limit on the time of all reads and writes together, until the limit is
//! lifted.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use tidemill_env::{Addr, Clock, Connection};

/// The value without a limit.
const NEVER: u64 = u64::MAX;

/// The time until which reads and writes may take. Separate time-outs would let a peer that sends a
/// byte now and then hold the connection for as long as it likes.
#[derive(Clone)]
pub(crate) struct Limit {
    clock: Arc<dyn Clock>,
    until_ns: Arc<AtomicU64>,
}

impl Limit {
    /// Limits all reads and writes of a connection together to a time from now.
    pub fn on(
        connection: Box<dyn Connection>,
        clock: &Arc<dyn Clock>,
        wait_us: u64,
    ) -> (Box<dyn Connection>, Limit) {
        let until_ns = clock.monotonic_ns().saturating_add(1000 * wait_us);
        let limit = Limit { clock: clock.clone(), until_ns: Arc::new(AtomicU64::new(until_ns)) };
        (Box::new(Limited { connection, limit: limit.clone() }), limit)
    }

    /// Lifts the limit. From now on reads and writes have the time-outs of the connection.
    pub fn lift(&self) {
        self.until_ns.store(NEVER, Ordering::Release);
    }

    /// Returns the time left, or `None` if there is no limit.
    fn left_us(&self) -> io::Result<Option<u64>> {
        let until_ns = self.until_ns.load(Ordering::Acquire);
        if until_ns == NEVER {
            return Ok(None);
        }
        match until_ns.saturating_sub(self.clock.monotonic_ns()) / 1000 {
            0 => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

struct Limited {
    connection: Box<dyn Connection>,
    limit: Limit,
}

impl Read for Limited {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(left) = self.limit.left_us()? {
            self.connection.set_read_timeout(Some(left))?;
        }
        self.connection.read(buf)
    }
}

impl Write for Limited {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if let Some(left) = self.limit.left_us()? {
            self.connection.set_write_timeout(Some(left))?;
        }
        self.connection.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.connection.flush()
    }
}

impl Connection for Limited {
    fn try_clone(&self) -> io::Result<Box<dyn Connection>> {
        let connection = self.connection.try_clone()?;
        Ok(Box::new(Limited { connection, limit: self.limit.clone() }))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.connection.shutdown(how)
    }

    fn set_read_timeout(&self, timeout_us: Option<u64>) -> io::Result<()> {
        self.connection.set_read_timeout(timeout_us)
    }

    fn set_write_timeout(&self, timeout_us: Option<u64>) -> io::Result<()> {
        self.connection.set_write_timeout(timeout_us)
    }

    fn local_addr(&self) -> io::Result<Addr> {
        self.connection.local_addr()
    }

    fn peer_addr(&self) -> io::Result<Addr> {
        self.connection.peer_addr()
    }
}
