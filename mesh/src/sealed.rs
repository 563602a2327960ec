//! A connection in TLS, which one thread reads and another writes.
//!
//! ```text
//!   write ─▶ [ session ] encrypts ─▶ socket          one writer at a time, from encrypting to the socket
//!   read  ◀─ [ session ] decrypts ◀─ socket          waits for bytes without the session
//! ```
//!
//! The session is locked during computations, but never during a wait for the socket. So a peer
//! that accepts nothing blocks the writer, and the reader continues. **The reader never writes.**
//! The protocol's own answers (new keys) leave before the next message is written. There is always
//! a next one, because each side regularly sends signs of life. Otherwise two readers could wait
//! for each other.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::Connection as Session;
use tidemill_env::{Addr, Connection};

/// The bytes of cipher text that are read at once.
const READ_BYTES: usize = 64 << 10;
/// The bytes that are encrypted at once. A reader may wait for the session as long as this takes.
const WRITE_BYTES: usize = 128 << 10;

/// The state that the handles of one connection share.
struct Shared {
    session: Mutex<Session>,
    /// Cipher text for the socket. It is locked until it is written, so records arrive in the order
    /// of their encryption.
    out: Mutex<Vec<u8>>,
    /// Cipher text from the socket. It is locked by the thread that waits for more.
    received: Mutex<Received>,
}

#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    /// The number of bytes that the session has taken.
    taken: usize,
}

/// A handle of the connection.
pub(crate) struct Sealed {
    shared: Arc<Shared>,
    socket: Box<dyn Connection>,
}

impl Sealed {
    /// Creates it from a session whose handshake is done.
    pub fn new(mut session: Session, socket: Box<dyn Connection>) -> Sealed {
        // All encrypted bytes are taken at once.
        session.set_buffer_limit(None);
        let (session, out, received) = (Mutex::new(session), Mutex::default(), Mutex::default());
        Sealed { shared: Arc::new(Shared { session, out, received }), socket }
    }
}

impl Read for Sealed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let mut received = self.shared.received.lock();
        loop {
            let done = received.plain(&self.shared.session, buf)?;
            if done > 0 {
                return Ok(done);
            }
            received.taken = 0;
            received.bytes.resize(READ_BYTES, 0);
            let read = self.socket.read(&mut received.bytes);
            received.bytes.truncate(*read.as_ref().unwrap_or(&0));
            if read? == 0 {
                // Messages have their length, so a message that was cut off is noticed.
                return Ok(0);
            }
        }
    }
}

impl Received {
    /// Decrypts as much as fits. Returns 0 if more must be received first.
    fn plain(&mut self, session: &Mutex<Session>, buf: &mut [u8]) -> io::Result<usize> {
        let mut session = session.lock();
        let mut done = 0;
        loop {
            match session.reader().read(&mut buf[done..]) {
                // The peer has announced the end of its data, which the socket reports, too.
                Ok(0) => return Ok(done),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let mut waiting = &self.bytes[self.taken..];
            if done == buf.len() || waiting.is_empty() {
                return Ok(done);
            }
            self.taken += session.read_tls(&mut waiting)?;
            let state = session.process_new_packets();
            state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

impl Write for Sealed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut out = self.shared.out.lock();
        out.clear();
        let mut session = self.shared.session.lock();
        let taken = session.writer().write(&buf[..buf.len().min(WRITE_BYTES)])?;
        while session.wants_write() {
            session.write_tls(&mut *out)?;
        }
        drop(session);
        // If this fails, nothing that is written later could be read.
        self.socket.write_all(&out)?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl Connection for Sealed {
    fn try_clone(&self) -> io::Result<Box<dyn Connection>> {
        let socket = self.socket.try_clone()?;
        Ok(Box::new(Sealed { shared: self.shared.clone(), socket }))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    fn set_read_timeout(&self, timeout_us: Option<u64>) -> io::Result<()> {
        self.socket.set_read_timeout(timeout_us)
    }

    fn set_write_timeout(&self, timeout_us: Option<u64>) -> io::Result<()> {
        self.socket.set_write_timeout(timeout_us)
    }

    fn local_addr(&self) -> io::Result<Addr> {
        self.socket.local_addr()
    }

    fn peer_addr(&self) -> io::Result<Addr> {
        self.socket.peer_addr()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Shutdown;

    use tidemill_env::{Connection, Env};

    use super::Sealed;
    use crate::tests::tls::pair;

    /// Both sides write all the time, and sometimes change keys, as long connections do by
    /// themselves.
    #[test]
    fn new_keys_are_taken_while_both_sides_write() {
        const BYTES: usize = 32 << 20;
        let env = Env::real();
        let (near, far) = pair(&env);
        let mut threads = Vec::new();
        for side in [near, far] {
            let Sealed { shared, socket } = side;
            let mut reads = Sealed { shared: shared.clone(), socket: socket.try_clone().unwrap() };
            let mut writes = Sealed { shared, socket };
            let write = move || {
                for at in 0..BYTES >> 16 {
                    writes.write_all(&[at as u8; 1 << 16]).unwrap();
                    if at % 50 == 7 {
                        writes.shared.session.lock().refresh_traffic_keys().unwrap();
                    }
                }
            };
            let read = move || {
                let mut bytes = vec![0; 1 << 16];
                for at in 0..BYTES >> 16 {
                    reads.read_exact(&mut bytes).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == at as u8));
                }
            };
            threads.push(env.threads.spawn("writes", Box::new(write)).unwrap());
            threads.push(env.threads.spawn("reads", Box::new(read)).unwrap());
        }
        for thread in threads {
            assert_eq!(thread.join(), Ok(()));
        }
    }

    #[test]
    fn time_outs_do_no_harm_and_an_end_is_seen() {
        let (mut near, mut far) = pair(&Env::real());
        let mut bytes = [0; 4];
        near.set_read_timeout(Some(20_000)).unwrap();
        assert_eq!(near.read(&mut bytes).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        far.write_all(b"late").unwrap();
        near.set_read_timeout(None).unwrap();
        near.read_exact(&mut bytes[..1]).unwrap();
        near.try_clone().unwrap().read_exact(&mut bytes[1..]).unwrap();
        assert_eq!(&bytes, b"late");
        near.set_write_timeout(Some(20_000)).unwrap();
        let error = (0..10_000).find_map(|_| near.write_all(&[0; 1 << 16]).err()).unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        // Earlier bytes are still there, up to the point where the connection was cut off.
        near.shutdown(Shutdown::Both).unwrap();
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).unwrap();
        assert!(rest.len() > 1 << 16 && rest.iter().all(|byte| *byte == 0));
    }
}
