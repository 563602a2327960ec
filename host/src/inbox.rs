//! The inputs of a state machine, until it handles them.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_cluster::Input;

/// The maximum number of waiting messages. A thread that reads more from a peer waits, and then so
/// does the peer.
const MESSAGES_MAX: usize = 1 << 16;

#[derive(Default)]
struct Waiting {
    inputs: VecDeque<Input>,
    /// Inputs that are handed over later, each with its time.
    late: Vec<(u64, Input)>,
    is_closed: bool,
}

/// The queue of a state machine.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    taken: Condvar,
}

impl Inbox {
    /// Adds the answer to an effect, or the end of a link. Their number is bounded by the requests
    /// of the state machine.
    pub fn push(&self, input: Input) {
        let mut waiting = self.waiting.lock();
        if !waiting.is_closed {
            waiting.inputs.push_back(input);
            drop(waiting);
            self.arrived.notify_one();
        }
    }

    /// Adds an answer that is handed over when the monotonic clock has reached `at_ns`, or at the
    /// next tick after that.
    pub fn push_late(&self, at_ns: u64, input: Input) {
        let mut waiting = self.waiting.lock();
        if !waiting.is_closed {
            waiting.late.push((at_ns, input));
        }
    }

    /// Adds messages of others, and waits if the queue is full.
    pub fn push_all(&self, inputs: impl IntoIterator<Item = Input>) {
        let mut waiting = self.waiting.lock();
        while waiting.inputs.len() >= MESSAGES_MAX && !waiting.is_closed {
            self.taken.wait(&mut waiting);
        }
        if !waiting.is_closed {
            waiting.inputs.extend(inputs);
            drop(waiting);
            self.arrived.notify_one();
        }
    }

    /// Takes all inputs up to a time of the monotonic clock, and waits at most `wait_us` for the
    /// first. Returns `None` if the inbox is closed.
    pub fn take(&self, now_ns: u64, wait_us: u64) -> Option<VecDeque<Input>> {
        let mut waiting = self.waiting.lock();
        if waiting.inputs.is_empty() && !waiting.is_closed {
            self.arrived.wait_for(&mut waiting, Duration::from_micros(wait_us));
        }
        if waiting.is_closed {
            return None;
        }
        let mut inputs = std::mem::take(&mut waiting.inputs);
        inputs.extend(waiting.late.extract_if(.., |late| late.0 <= now_ns).map(|late| late.1));
        drop(waiting);
        self.taken.notify_all();
        Some(inputs)
    }

    /// Closes the inbox. Later inputs are dropped.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock();
        *waiting = Waiting { is_closed: true, ..Waiting::default() };
        drop(waiting);
        self.arrived.notify_all();
        self.taken.notify_all();
    }
}
