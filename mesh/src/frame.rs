//! Messages in a stream of bytes.
//!
//! A message is its length (u32), with the highest bit set if it is packed, and then its bytes.
//! Packed ones begin with their unpacked length (u32). A length of 0 is a sign of life, and not a
//! message.

use std::io::{self, Read};

/// The length from which messages are packed.
const PACKED_MIN: usize = 4096;
/// The fastest level, because two processes of one machine share its cores.
const LEVEL: i32 = 1;
const PACKED: u32 = 1 << 31;

/// The maximum length of a message.
pub(crate) const BYTES_MAX: usize = (PACKED as usize) - 1;

/// Packs messages. The compressor is created for the first long message and retained, because
/// creating it takes as long as packing several messages.
pub(crate) struct Packer {
    compressor: Option<zstd::bulk::Compressor<'static>>,
    packs: bool,
}

impl Packer {
    /// Creates a packer that leaves messages as they are unless it `packs`. On one machine, copying
    /// bytes costs less than packing them.
    pub(crate) fn new(packs: bool) -> Packer {
        Packer { compressor: None, packs }
    }

    /// Appends a message.
    pub(crate) fn put(&mut self, message: &[u8], out: &mut Vec<u8>) {
        // A message that does not get shorter is not packed.
        let packed = self.packed(message).filter(|packed| packed.len() + 4 < message.len());
        if let Some(packed) = packed {
            out.extend_from_slice(&((packed.len() as u32 + 4) | PACKED).to_le_bytes());
            out.extend_from_slice(&(message.len() as u32).to_le_bytes());
            out.extend_from_slice(&packed);
            return;
        }
        out.extend_from_slice(&(message.len() as u32).to_le_bytes());
        out.extend_from_slice(message);
    }

    fn packed(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if message.len() <= PACKED_MIN || !self.packs {
            return None;
        }
        if self.compressor.is_none() {
            // Without a compressor, the message is not packed.
            self.compressor = zstd::bulk::Compressor::new(LEVEL).ok();
        }
        self.compressor.as_mut()?.compress(message).ok()
    }
}

/// Appends a sign of life.
pub(crate) fn put_alive(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
}

/// Reads messages. The decompressor is retained.
#[derive(Default)]
pub(crate) struct Unpacker(Option<zstd::bulk::Decompressor<'static>>);

impl Unpacker {
    /// Reads the next message of at most `max` bytes. An empty one is a sign of life.
    pub(crate) fn read(&mut self, stream: &mut impl Read, max: usize) -> io::Result<Vec<u8>> {
        let mut head = [0; 4];
        stream.read_exact(&mut head)?;
        let head = u32::from_le_bytes(head);
        let len = (head & !PACKED) as usize;
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
        if len > max {
            return Err(wrong("a message is longer than the limit"));
        }
        // Memory grows with the bytes that arrive.
        let mut bytes = Vec::with_capacity(len.min(1 << 20));
        stream.take(len as u64).read_to_end(&mut bytes)?;
        if bytes.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if head & PACKED == 0 {
            return Ok(bytes);
        }
        let (unpacked, packed) = bytes
            .split_first_chunk::<4>()
            .ok_or_else(|| wrong("a packed message has no length"))?;
        let unpacked = u32::from_le_bytes(*unpacked) as usize;
        if unpacked > max {
            return Err(wrong("a message is longer than the limit"));
        }
        if self.0.is_none() {
            self.0 = Some(zstd::bulk::Decompressor::new()?);
        }
        let unpacker = self.0.as_mut().expect("it was created above");
        let message = unpacker.decompress(packed, unpacked)?;
        match message.len() == unpacked {
            true => Ok(message),
            false => Err(wrong("a packed message has a wrong length")),
        }
    }
}
