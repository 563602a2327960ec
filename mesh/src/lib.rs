//! Connections between the processes of a cluster.
//!
//! ```text
//!   send ──▶ queue of a link (bounded) ──▶ its writer ══ socket ══▶ reader ──▶ sink
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | `hello` | two processes prove that they know the same secret, and exchange descriptions |
//! | `limited` | limits the time of a whole greeting |
//! | `tls`, `sealed` | certificates, and a connection in TLS |
//! | `frame` | messages in a stream of bytes, long ones packed |
//! | `queue` | messages that wait to be written |
//! | `link` | the two threads of a connection |
//! | `mesh` | all links of a process |
//!
//! **A link** is a connection with one peer. Messages of one lane arrive in the order in which they
//! were sent, or the link ends. Then both sides are notified, and all messages in transit are lost.
//! A later link with the same peer starts from scratch. Sending never blocks. A peer that accepts
//! too little for too long loses the link. So does a peer that sends nothing for too long, so an
//! idle side sends signs of life.
//!
//! **From a stranger**, only a greeting of fixed length and the proof of the secret are read. Then
//! the two tell each other their cluster, version and program, and may refuse with a reason. With
//! [certificates](Tls), all of this is inside TLS, in which both sides have shown one.
//!
//! This crate must not know the meaning of messages, which processes should be members, or how to
//! react when a link ends.

mod frame;
// Tests compile it too, so that it stays right.
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzz;
mod hello;
mod limited;
mod link;
mod mesh;
mod queue;
mod sealed;
mod tls;

pub use hello::Secret;
pub use mesh::{check_address, Mesh};
pub use queue::Lane;
pub use tls::Tls;

use std::fmt;

use tidemill_env::Addr;

/// A process, by its number in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u32);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// The settings of all processes of a cluster, and those of this one.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This process.
    pub me: Peer,
    /// The secret that only the processes know.
    pub secret: Secret,
    /// The certificates. Without them, all messages are in clear text.
    pub tls: Option<Tls>,
    /// The name of the cluster.
    pub cluster: String,
    /// The fingerprint of the program: 64 bits of its declarations, then 32 bits of the code of its
    /// functions, then 32 bits of the settings that all processes share.
    pub app: u128,
    /// The version of the messages' content.
    pub version: u32,
    /// The address at which others reach this process, if it differs from that at which it listens.
    pub advertised: Option<Addr>,
    /// The maximum time of a greeting, and of the wait for the other side to connect, in
    /// microseconds.
    pub greeting_us: u64,
    /// The silence after which a peer is given up, in microseconds.
    pub silence_us: u64,
    /// The maximum bytes that wait to be written to one peer.
    pub queue_bytes_max: usize,
    /// The maximum bytes of a message.
    pub message_bytes_max: usize,
    /// The maximum number of concurrent greetings with strangers.
    pub greetings_max: usize,
}

impl Settings {
    /// Creates the settings with default limits.
    pub fn new(me: Peer, secret: Secret, cluster: impl Into<String>, app: u128) -> Settings {
        Settings {
            me,
            secret,
            tls: None,
            cluster: cluster.into(),
            app,
            version: 0,
            advertised: None,
            greeting_us: 2_000_000,
            silence_us: 5_000_000,
            queue_bytes_max: 256 << 20,
            message_bytes_max: 256 << 20,
            greetings_max: 64,
        }
    }
}

/// An event of a mesh.
#[derive(Debug)]
pub enum Event {
    /// There is a link with a peer.
    Up {
        /// The peer.
        peer: Peer,
        /// The address at which the peer listens.
        address: Addr,
    },
    /// A message has arrived.
    Message {
        /// The sender.
        peer: Peer,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A link has ended, or could not be made. All of its messages have been delivered before.
    Down {
        /// The peer.
        peer: Peer,
        /// The reason.
        why: String,
    },
    /// This process has refused a connection, or was refused: by a stranger, or by a process of
    /// another cluster, version or program.
    Refused {
        /// The expected peer, if it is known.
        peer: Option<Peer>,
        /// The reason.
        why: String,
    },
}

/// The receiver of events. A message may block the caller, and thereby its peer. All other events
/// must be taken without blocking, because senders report them, too.
pub trait Sink: Send + Sync {
    /// Takes an event.
    fn take(&self, event: Event);
}

#[cfg(test)]
mod tests;
