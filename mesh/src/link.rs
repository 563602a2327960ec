//! The two threads of a connection: one writes the messages in the queue, one reads.

use std::io::BufReader;
use std::net::Shutdown;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tidemill_env::Connection;

use crate::frame;
use crate::mesh::Shared;
use crate::queue::{Queue, Taken};
use crate::{Event, Peer};

/// The bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// The bytes of memory that a writer retains.
const WRITE_BYTES: usize = 1 << 20;
/// The number of signs of life that a side sends within the other's limit of silence.
const ALIVE_TIMES: u64 = 5;

/// A connection with a peer, or one that is being made.
pub(crate) struct Link {
    pub queue: Queue,
    /// The number of the link among all links.
    pub number: u64,
    /// The connection, until its writer has taken it, and a handle to end it.
    connection: Mutex<Connected>,
    arrived: Condvar,
}

#[derive(Default)]
struct Connected {
    write: Option<Box<dyn Connection>>,
    end: Option<Box<dyn Connection>>,
    is_closed: bool,
}

impl Link {
    pub fn new(number: u64) -> Arc<Link> {
        let (queue, connection, arrived) = Default::default();
        Arc::new(Link { queue, number, connection, arrived })
    }

    /// Stops writing and reading.
    pub fn close(&self) {
        self.queue.close();
        let mut connected = self.connection.lock();
        connected.is_closed = true;
        if let Some(end) = connected.end.take() {
            // The connection may have ended before.
            let _ = end.shutdown(Shutdown::Both);
        }
        drop(connected);
        self.arrived.notify_all();
    }

    /// Whether it has a connection.
    pub fn is_up(&self) -> bool {
        self.connection.lock().end.is_some()
    }

    /// Passes the connection to its writer. Returns the half to read from.
    pub fn attach(
        &self,
        connection: Box<dyn Connection>,
        silence_us: u64,
    ) -> std::io::Result<Box<dyn Connection>> {
        connection.set_read_timeout(Some(silence_us))?;
        connection.set_write_timeout(Some(silence_us))?;
        let (read, end) = (connection.try_clone()?, connection.try_clone()?);
        let mut connected = self.connection.lock();
        if connected.is_closed {
            // The connection may have ended before.
            let _ = end.shutdown(Shutdown::Both);
            return Err(std::io::ErrorKind::NotConnected.into());
        }
        (connected.write, connected.end) = (Some(connection), Some(end));
        drop(connected);
        self.arrived.notify_all();
        Ok(read)
    }

    /// Waits at most this long for the connection.
    fn connection(&self, wait_us: u64) -> Option<Box<dyn Connection>> {
        let mut connected = self.connection.lock();
        if connected.write.is_none() && !connected.is_closed {
            let wait = std::time::Duration::from_micros(wait_us);
            self.arrived.wait_for(&mut connected, wait);
        }
        connected.write.take()
    }
}

/// Writes the messages in the queue until the link ends. Returns the reason.
pub(crate) fn write(link: &Link, shared: &Shared) -> String {
    let settings = &shared.settings;
    let Some(mut connection) = link.connection(2 * settings.greeting_us) else {
        return "it has not connected".into();
    };
    let is_here = connection.local_addr().is_ok_and(|addr| addr.is_of_this_machine());
    let (mut packer, mut bytes) = (frame::Packer::new(!is_here), Vec::new());
    loop {
        bytes.clear();
        bytes.shrink_to(WRITE_BYTES);
        match link.queue.take(settings.silence_us / ALIVE_TIMES) {
            Taken::Messages(messages) => {
                messages.iter().for_each(|message| packer.put(message, &mut bytes));
            }
            Taken::Nothing => frame::put_alive(&mut bytes),
            Taken::Closed => return "it was closed here".into(),
        }
        if let Err(error) = connection.write_all(&bytes) {
            return format!("writing to it failed: {error}");
        }
    }
}

/// Reads messages and passes them to the sink until the link ends. Returns the reason.
pub(crate) fn read(peer: Peer, connection: Box<dyn Connection>, shared: &Shared) -> String {
    let mut stream = BufReader::with_capacity(READ_BYTES, connection);
    let mut unpacker = frame::Unpacker::default();
    loop {
        match unpacker.read(&mut stream, shared.settings.message_bytes_max.min(frame::BYTES_MAX)) {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => shared.sink.take(Event::Message { peer, bytes }),
            Err(error) => return format!("reading from it failed: {error}"),
        }
    }
}
