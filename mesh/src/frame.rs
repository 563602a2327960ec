//! Messages in a stream of bytes.
//!
//! A message: its length (u32) with the highest bit set where it is packed, then its bytes; packed ones begin
//! with the length that they have unpacked (u32). A length of 0 is no message: it says that somebody lives.

use std::io::{self, Read};

/// Longer messages are packed.
const PACKED_MIN: usize = 4096;
/// Fast, because two processes of one machine share its cores.
const LEVEL: i32 = 1;
const PACKED: u32 = 1 << 31;

/// Messages have fewer bytes.
pub(crate) const BYTES_MAX: usize = (PACKED as usize) - 1;

/// Appends a message.
pub(crate) fn put(message: &[u8], out: &mut Vec<u8>) {
    if message.len() > PACKED_MIN {
        let packed = zstd::bulk::compress(message, LEVEL).ok();
        // What does not get shorter stays as it is.
        if let Some(packed) = packed.filter(|packed| packed.len() + 4 < message.len()) {
            out.extend_from_slice(&((packed.len() as u32 + 4) | PACKED).to_le_bytes());
            out.extend_from_slice(&(message.len() as u32).to_le_bytes());
            out.extend_from_slice(&packed);
            return;
        }
    }
    out.extend_from_slice(&(message.len() as u32).to_le_bytes());
    out.extend_from_slice(message);
}

/// Appends that somebody lives.
pub(crate) fn put_alive(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
}

/// The next message of at most so many bytes; empty where somebody says that it lives.
pub(crate) fn read(stream: &mut impl Read, max: usize) -> io::Result<Vec<u8>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let head = u32::from_le_bytes(head);
    let len = (head & !PACKED) as usize;
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
    if len > max {
        return Err(wrong("a message is longer than any may be"));
    }
    // Memory is taken as bytes come.
    let mut bytes = Vec::with_capacity(len.min(1 << 20));
    stream.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if head & PACKED == 0 {
        return Ok(bytes);
    }
    let (unpacked, packed) =
        bytes.split_first_chunk::<4>().ok_or_else(|| wrong("a packed message has no length"))?;
    let unpacked = u32::from_le_bytes(*unpacked) as usize;
    if unpacked > max {
        return Err(wrong("a message is longer than any may be"));
    }
    let message = zstd::bulk::decompress(packed, unpacked)?;
    match message.len() == unpacked {
        true => Ok(message),
        false => Err(wrong("a packed message has another length")),
    }
}
