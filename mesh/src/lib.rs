//! Connections between the processes of a cluster.
//!
//! ```text
//!   send ──▶ queue of a link (bounded) ──▶ its writer ══ socket ══▶ reader ──▶ sink
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | `hello` | two processes find out that they know one secret, and who they are |
//! | `limited` | all of a greeting is over by a moment |
//! | `tls`, `sealed` | certificates, and a connection in TLS |
//! | `frame` | messages in a stream of bytes, long ones packed |
//! | `queue` | what waits to be written |
//! | `link` | the two threads of a connection |
//! | `mesh` | all links of a process |
//!
//! **A link** is a connection with one peer. Messages of one lane arrive in the order in which they were sent,
//! or the link ends: then both sides are told, and whatever was under way is lost. A later link with the same
//! peer begins anew. Sending never waits: whoever takes too little for too long loses the link. A peer that
//! says nothing for too long does, too; who has nothing to say says that.
//!
//! **Nothing is read from a stranger** but a greeting of fixed length and the proof of the secret. Then the
//! two tell each other which cluster, version and program they are of, and say no with a reason. With
//! [certificates](Tls) all of that is inside TLS, where both sides have shown one.
//!
//! This crate must not know what messages mean, who ought to be a member, or what to do when a link ends.

mod frame;
mod hello;
mod limited;
mod link;
mod mesh;
mod queue;
mod sealed;
mod tls;

pub use hello::Secret;
pub use mesh::Mesh;
pub use queue::Lane;
pub use tls::Tls;

use tidemill_env::Addr;

/// A process, by its number in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u32);

/// What is the same in all processes of a cluster, and what this one is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who this is.
    pub me: Peer,
    /// What all of them know, and nobody else does.
    pub secret: Secret,
    /// Certificates; without, all is said in clear text.
    pub tls: Option<Tls>,
    /// The name of the cluster.
    pub cluster: String,
    /// The fingerprint of the program.
    pub app: u128,
    /// The version of what is in the messages.
    pub version: u32,
    /// Where others reach this process, when that is not where it listens.
    pub advertised: Option<Addr>,
    /// So long a greeting may take with all that belongs to it, and the other side to come.
    pub greeting_us: u64,
    /// Who says nothing for so long is gone.
    pub silence_us: u64,
    /// Bytes that may wait to be written to one peer.
    pub queue_bytes_max: usize,
    /// Bytes of a message.
    pub message_bytes_max: usize,
    /// Strangers that may be greeted at the same time.
    pub greetings_max: usize,
}

impl Settings {
    /// The usual ones.
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

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// There is a link with a peer, which listens there.
    Up {
        /// Who.
        peer: Peer,
        /// Where.
        address: Addr,
    },
    /// A message.
    Message {
        /// From whom.
        peer: Peer,
        /// What.
        bytes: Vec<u8>,
    },
    /// A link has ended, or could not be made. All its messages have been told.
    Down {
        /// With whom.
        peer: Peer,
        /// Why.
        why: String,
    },
    /// Somebody was turned away, or has turned us away: a stranger, or a process of another cluster, version
    /// or program.
    Refused {
        /// Whom it was to be, where that is known.
        peer: Option<Peer>,
        /// Why.
        why: String,
    },
}

/// Who is told what happens. Messages may be kept waiting, which keeps their peer waiting; all else has to be
/// taken at once, because senders tell it, too.
pub trait Sink: Send + Sync {
    /// Takes it.
    fn take(&self, event: Event);
}

#[cfg(test)]
mod tests;
