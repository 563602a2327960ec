//! The decoder of messages of other processes, for fuzzing.

use crate::message::Message;

/// Decodes a message, and checks that it is encoded and decoded alike.
///
/// # Panics
/// If it is not.
pub fn message(bytes: &[u8]) {
    let Some(message) = Message::of(bytes) else { return };
    let again = message.bytes();
    let back = Message::of(&again).expect("a message comes back");
    assert_eq!(back.bytes(), again, "a second way through changes it");
}
