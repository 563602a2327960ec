//! Greetings between processes, of a peer that knows the secret and of one that does not.
#![no_main]

use std::io::{self, Read, Write};
use std::net::Shutdown;

use libfuzzer_sys::fuzz_target;
use ring::hmac;
use tidemill_env::{Addr, Connection};
use tidemill_fuzz::Parts;

const SECRET: &[u8] = b"secret";
/// The bytes of a greeting: magic, version, nonce.
const GREETING: usize = 8 + 1 + 32;
const NONCE: usize = 32;

/// A peer that answers with bytes, and knows the secret.
struct Peer<'a> {
    listens: bool,
    card: &'a [u8],
    /// The bytes to read next.
    ready: Vec<u8>,
    written: Vec<u8>,
    has_proved: bool,
}

impl Peer<'_> {
    fn hears(&mut self) {
        if self.has_proved || self.written.len() < GREETING {
            return;
        }
        self.has_proved = true;
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
        let theirs = &self.written[GREETING - NONCE..GREETING];
        match self.listens {
            true => {
                let covered = [b"there", theirs, &[7; NONCE]].concat();
                self.ready.extend_from_slice(&greeting());
                self.ready.extend_from_slice(hmac::sign(&key, &covered).as_ref());
                self.ready.extend_from_slice(self.card);
            }
            false => {
                let len = self.card.len() as u32;
                let covered = [b"comes", &[7; NONCE][..], theirs, self.card].concat();
                self.ready.extend_from_slice(hmac::sign(&key, &covered).as_ref());
                self.ready.extend_from_slice(&len.to_le_bytes());
                self.ready.extend_from_slice(self.card);
            }
        }
    }
}

fn greeting() -> Vec<u8> {
    [b"tidemesh", &[2][..], &[7; NONCE]].concat()
}

impl Read for Peer<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(self.ready.len());
        buf[..len].copy_from_slice(&self.ready[..len]);
        self.ready.drain(..len);
        Ok(len)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.written.extend_from_slice(buf);
        self.hears();
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for Peer<'_> {
    fn try_clone(&self) -> io::Result<Box<dyn Connection>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn shutdown(&self, _: Shutdown) -> io::Result<()> {
        Ok(())
    }

    fn set_read_timeout(&self, _: Option<u64>) -> io::Result<()> {
        Ok(())
    }

    fn set_write_timeout(&self, _: Option<u64>) -> io::Result<()> {
        Ok(())
    }

    fn local_addr(&self) -> io::Result<Addr> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn peer_addr(&self) -> io::Result<Addr> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let kind = parts.u8();
    let listens = kind & 1 == 1;
    let knows = kind & 2 == 0;
    let ready = match (knows, listens) {
        (false, _) => parts.0.to_vec(),
        (true, true) => Vec::new(),
        (true, false) => greeting(),
    };
    let mut peer = Peer { listens, card: parts.0, ready, written: Vec::new(), has_proved: !knows };
    tidemill_mesh::fuzz::greeting(&mut peer, listens, SECRET);
});
