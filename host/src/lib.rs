//! The processes of a cluster: what drives a [`Coordinator`](tidemill_cluster::Coordinator) or a
//! [`Worker`](tidemill_cluster::Worker), which know nothing of the world.
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
//! | `drive`, `inbox` | hands a machine what happens, and does what it wants done |
//! | `outside` | asks somebody outside what functions want to know, and has work done there |
//! | `worker`, `coordinator` | a process of either kind |
//! | `desk` | requests of clients, and their replies |
//! | `marks` | of which epochs all has left, for whoever writes it elsewhere |
//! | `served` | a log in the files of the coordinator's process, and what else only that can read, for all of them |
//! | `word` | what processes say to each other |
//!
//! It must not know Python, HTTP, or how functions run.

mod coordinator;
mod desk;
mod drive;
mod inbox;
mod marks;
mod outside;
mod rates;
mod served;
mod word;
mod worker;

pub use coordinator::{CoordinatorProcess, Status};
pub use desk::{source_of, Answer, Desk, Listener, Placed};
pub use outside::Outboxes;
pub use served::{hold, FileLog, Served};
pub use tidemill_cluster::{Left, LeftOut};
pub use worker::{Ended, WorkerProcess};

use std::sync::Arc;

use tidemill_cluster::{wire::MESSAGES, Settings as Cluster};
use tidemill_durable::{Log, Store};
use tidemill_env::Addr;
use tidemill_mesh::{Peer, Secret, Tls};

/// The coordinator's number among the processes. Workers have their members' numbers.
pub const COORDINATOR: Peer = Peer(0);

/// What all processes of a cluster have.
#[derive(Clone)]
pub struct Settings {
    /// The name of the cluster.
    pub cluster: String,
    /// What all processes know, and nobody else does.
    pub secret: Secret,
    /// Certificates; without, they speak in clear text.
    pub tls: Option<Tls>,
    /// The fingerprint of the app.
    pub app: u128,
    /// Where this process listens.
    pub listen: Addr,
    /// Where others reach it, when that is elsewhere.
    pub advertised: Option<Addr>,
    /// Of the machines.
    pub machine: Cluster,
    /// How often a machine is told the time.
    pub tick_us: u64,
}

impl Settings {
    fn mesh(&self, me: Peer) -> tidemill_mesh::Settings {
        let mut mesh =
            tidemill_mesh::Settings::new(me, self.secret.clone(), self.cluster.clone(), self.app);
        mesh.version = MESSAGES;
        mesh.tls.clone_from(&self.tls);
        mesh.advertised.clone_from(&self.advertised);
        // A peer that is cut off is found by its lease; this is for who waits on neither side.
        mesh.silence_us = mesh.silence_us.max(2 * self.machine.lease_us);
        mesh
    }
}

/// Where records and objects are.
#[derive(Clone)]
pub struct Shared {
    /// The log.
    pub log: Arc<dyn Log>,
    /// The store.
    pub store: Arc<dyn Store>,
}
