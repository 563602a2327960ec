//! The decoders of bytes from other processes, for fuzzing.

use tidemill_env::{Addr, Connection, Random};

use crate::frame::{put_alive, Packer, Unpacker};
use crate::hello::{connect, receive, Card};
use crate::{Peer, Secret, Settings};

/// Reads messages of at most `max` bytes, and checks that they come back when they are sent again.
///
/// # Panics
/// If they do not.
pub fn frames(mut bytes: &[u8], max: usize) {
    let (mut unpacker, mut packer) = (Unpacker::default(), Packer::new(true));
    while let Ok(message) = unpacker.read(&mut bytes, max) {
        assert!(message.len() <= max);
        let mut out = Vec::new();
        match message.is_empty() {
            true => put_alive(&mut out),
            false => packer.put(&message, &mut out),
        }
        let back = unpacker.read(&mut &out[..], max);
        assert_eq!(back.ok(), Some(message), "a message comes back");
    }
}

struct Zeros;

impl Random for Zeros {
    fn next_u64(&self) -> u64 {
        0
    }
}

/// Greets a peer, which `listens` or has connected. Returns whether both belong together.
pub fn greeting(stream: &mut dyn Connection, listens: bool, secret: &[u8]) -> bool {
    let secret = Secret::new(secret);
    let settings = Settings::new(Peer(1), secret.clone(), "cluster", 7);
    let own = Card::of(&settings, Addr::Unix("/here".into()));
    let channel = Default::default();
    let card = match listens {
        true => connect(stream, &own, &secret, &channel, &Zeros),
        false => receive(stream, &own, &secret, &channel, &Zeros),
    };
    card.is_ok()
}
