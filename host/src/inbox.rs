//! What has happened, until the machine is told.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_cluster::Input;

/// So many messages wait at most; who reads more from a peer waits, and then the peer does.
const MESSAGES_MAX: usize = 1 << 16;

#[derive(Default)]
struct Waiting {
    inputs: VecDeque<Input>,
    /// Those that the machine is told later, and when.
    late: Vec<(u64, Input)>,
    is_closed: bool,
}

/// The queue of a machine.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    came: Condvar,
    went: Condvar,
}

impl Inbox {
    /// Adds an answer to something that the machine has asked for, or the end of a link: there are as many as
    /// it asks for.
    pub fn push(&self, input: Input) {
        let mut waiting = self.waiting.lock();
        if !waiting.is_closed {
            waiting.inputs.push_back(input);
            drop(waiting);
            self.came.notify_one();
        }
    }

    /// Adds an answer that the machine is told when the monotonic clock is there, or at the next tick after that.
    pub fn push_late(&self, at_ns: u64, input: Input) {
        let mut waiting = self.waiting.lock();
        if !waiting.is_closed {
            waiting.late.push((at_ns, input));
        }
    }

    /// Adds what others say, and waits where there is much already.
    pub fn push_all(&self, inputs: impl IntoIterator<Item = Input>) {
        let mut waiting = self.waiting.lock();
        while waiting.inputs.len() >= MESSAGES_MAX && !waiting.is_closed {
            self.went.wait(&mut waiting);
        }
        if !waiting.is_closed {
            waiting.inputs.extend(inputs);
            drop(waiting);
            self.came.notify_one();
        }
    }

    /// Takes all there is at a time of the monotonic clock, and waits so long for it; `None` when it is closed.
    pub fn take(&self, now_ns: u64, wait_us: u64) -> Option<VecDeque<Input>> {
        let mut waiting = self.waiting.lock();
        if waiting.inputs.is_empty() && !waiting.is_closed {
            self.came.wait_for(&mut waiting, Duration::from_micros(wait_us));
        }
        if waiting.is_closed {
            return None;
        }
        let mut inputs = std::mem::take(&mut waiting.inputs);
        inputs.extend(waiting.late.extract_if(.., |late| late.0 <= now_ns).map(|late| late.1));
        drop(waiting);
        self.went.notify_all();
        Some(inputs)
    }

    /// Nothing more happens.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock();
        *waiting = Waiting { is_closed: true, ..Waiting::default() };
        drop(waiting);
        self.came.notify_all();
        self.went.notify_all();
    }
}
