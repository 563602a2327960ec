//! Messages that wait to be written to a peer.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The priority of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Written before all else, because a process waits for it.
    Urgent,
    /// For long transfers.
    Bulk,
}

#[derive(Default)]
struct Waiting {
    urgent: VecDeque<Vec<u8>>,
    bulk: VecDeque<Vec<u8>>,
    bytes: usize,
    is_closed: bool,
}

/// The queue of a link.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// The bytes of bulk messages that are written before urgent ones are checked for again.
const BULK_BYTES: usize = 256 << 10;

/// The result of taking from the queue.
pub(crate) enum Taken {
    Messages(Vec<Vec<u8>>),
    /// There was nothing for the whole wait.
    Nothing,
    Closed,
}

impl Queue {
    /// Adds a message. Returns `false` if too many bytes wait.
    pub fn push(&self, lane: Lane, message: Vec<u8>, bytes_max: usize) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.is_closed {
            return true;
        }
        waiting.bytes += message.len();
        if waiting.bytes > bytes_max {
            return false;
        }
        match lane {
            Lane::Urgent => waiting.urgent.push_back(message),
            Lane::Bulk => waiting.bulk.push_back(message),
        }
        drop(waiting);
        self.changed.notify_one();
        true
    }

    /// Takes the waiting messages, and waits at most `wait_us` for one.
    pub fn take(&self, wait_us: u64) -> Taken {
        let mut waiting = self.waiting.lock();
        if !waiting.is_closed && waiting.urgent.is_empty() && waiting.bulk.is_empty() {
            self.changed.wait_for(&mut waiting, Duration::from_micros(wait_us));
        }
        if waiting.is_closed {
            return Taken::Closed;
        }
        let mut messages = Vec::from(std::mem::take(&mut waiting.urgent));
        let mut bulk = 0;
        while bulk < BULK_BYTES {
            let Some(message) = waiting.bulk.pop_front() else { break };
            bulk += message.len();
            messages.push(message);
        }
        waiting.bytes -= messages.iter().map(Vec::len).sum::<usize>();
        match messages.is_empty() {
            true => Taken::Nothing,
            false => Taken::Messages(messages),
        }
    }

    /// Stops the writer.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock();
        *waiting = Waiting { is_closed: true, ..Waiting::default() };
        drop(waiting);
        self.changed.notify_all();
    }
}
