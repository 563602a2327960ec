//! Questions of workers to the coordinator, and its answers. Their bytes mean nothing here.

use std::collections::HashMap;
use std::sync::mpsc::{channel, Sender};
use std::sync::Weak;
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use tidemill_cluster::Then;
use tidemill_core::TableId;
use tidemill_function::TableChanges;
use tidemill_mesh::{Lane, Mesh, Peer};

use crate::message::Message;
use crate::COORDINATOR;

/// Answers the questions of workers, at the coordinator.
pub trait Answers: Send + Sync {
    /// Answers a worker's question, at once or later and on any thread. Does not block.
    fn answer(&self, who: Peer, question: &[u8], then: Then<Vec<u8>>);

    /// Notes that a table is followed: all of its changes by later epochs than this one come.
    fn follows(&self, table: TableId, since: u64);

    /// Takes the changes of the followed tables by an epoch. Tables without changes are left out.
    fn changed(&self, epoch: u64, changes: Vec<TableChanges>);
}

/// The questions of a worker.
pub(crate) struct Questions {
    mesh: Weak<Mesh>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    count: u64,
    waiting: HashMap<u64, Sender<Vec<u8>>, FixedState>,
}

impl Questions {
    pub fn new(mesh: Weak<Mesh>) -> Questions {
        Questions { mesh, open: Mutex::default() }
    }

    /// Asks the coordinator, and waits at most this long for the answer. Returns `None` if there is
    /// none, at once if the coordinator is not connected.
    pub fn ask(&self, question: Vec<u8>, wait: Duration) -> Option<Vec<u8>> {
        let mesh = self.mesh.upgrade()?;
        let (answers, answered) = channel();
        let mut open = self.open.lock();
        open.count += 1;
        let call = open.count;
        open.waiting.insert(call, answers);
        drop(open);
        mesh.send(COORDINATOR, Lane::Urgent, Message::Ask { call, question }.bytes());
        let answer = answered.recv_timeout(wait).ok();
        self.open.lock().waiting.remove(&call);
        answer
    }

    /// Takes the answer to a question.
    pub fn answered(&self, call: u64, answer: Vec<u8>) {
        if let Some(answers) = self.open.lock().waiting.remove(&call) {
            // The caller may have stopped waiting.
            let _ = answers.send(answer);
        }
    }

    /// Notes that the link has ended, so that open questions get no answers.
    pub fn broken(&self) {
        self.open.lock().waiting.clear();
    }
}
