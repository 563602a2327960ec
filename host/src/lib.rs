//! The processes of a cluster. They drive a [`Coordinator`](tidemill_cluster::Coordinator) or a
//! [`Worker`](tidemill_cluster::Worker), which have no access to the world.
//!
//! ```text
//!  coordinator process                         worker process
//!    clients ─▶ Desk ─▶ log ◀─┐                  ┌─▶ log (of the coordinator, or Kafka)
//!                 Coordinator ┴ drive ══ mesh ══ drive ┴ Worker ══ mesh ══ other workers
//!                                └─▶ store (a directory, or S3) ◀─┘
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | `drive`, `inbox` | passes inputs to a state machine, and performs its effects |
//! | `store_calls` | calls of the store on threads of their own |
//! | `outside` | asks the questions of functions to the outside, and has work done there |
//! | `worker`, `coordinator` | a process of either kind |
//! | `request_server` | the request server: requests of clients, and their replies |
//! | `questions` | questions of workers to the coordinator, such as for its status |
//! | `marks` | the epochs whose outputs have left, for writers that copy them elsewhere |
//! | `served` | a log in the coordinator's files, with inputs that only the coordinator can read |
//! | `message` | the messages between processes |
//!
//! It must not know Python, HTTP, or how functions run.

mod coordinator;
mod drive;
// Tests compile it too, so that a change that breaks it is noticed.
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzz;
mod inbox;
mod marks;
mod message;
mod outside;
mod questions;
mod rates;
mod request_server;
mod served;
mod store_calls;
mod worker;

pub use coordinator::{CoordinatorProcess, Status, ENDED};
pub use outside::Outboxes;
pub use questions::Answers;
pub use request_server::{source_of, Answer, Placed, RequestServer};
pub use served::{hold, FileLog, Served, SEGMENT_BYTES};
pub use tidemill_cluster::{Left, LeftOut};
pub use worker::{CoordinatorLink, Ended, WorkerLogs, WorkerProcess};

use std::sync::Arc;

use tidemill_cluster::{wire::MESSAGES, Log, Settings as Cluster};
use tidemill_durable::Store;
use tidemill_env::Addr;
use tidemill_mesh::{Peer, Secret, Tls};

/// The coordinator's number among the processes. Workers have their members' numbers.
pub const COORDINATOR: Peer = Peer(0);

/// The settings that all processes of a cluster have.
#[derive(Clone)]
pub struct Settings {
    /// The name of the cluster.
    pub cluster: String,
    /// The secret that only the processes know.
    pub secret: Secret,
    /// The certificates. Without them, the processes communicate in clear text.
    pub tls: Option<Tls>,
    /// The fingerprint of the app.
    pub app: u128,
    /// The address at which this process listens.
    pub listen: Addr,
    /// The address at which others reach it, if it differs.
    pub advertised: Option<Addr>,
    /// The settings of the state machines.
    pub machine: Cluster,
    /// The interval between two ticks of a state machine, in microseconds.
    pub tick_us: u64,
}

impl Settings {
    fn mesh(&self, me: Peer) -> tidemill_mesh::Settings {
        let mut mesh =
            tidemill_mesh::Settings::new(me, self.secret.clone(), self.cluster.clone(), self.app);
        mesh.version = MESSAGES;
        mesh.tls.clone_from(&self.tls);
        mesh.advertised.clone_from(&self.advertised);
        // The lease finds an unreachable peer. This limit serves links on which neither side waits.
        mesh.silence_us = mesh.silence_us.max(2 * self.machine.lease_us);
        mesh
    }
}

/// The shared storage of records and objects.
#[derive(Clone)]
pub struct Shared {
    /// The log.
    pub log: Arc<dyn Log>,
    /// The store.
    pub store: Arc<dyn Store>,
}
