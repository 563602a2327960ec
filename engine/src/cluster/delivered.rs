//! The outputs that have left, as followers see them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_cluster::Then;
use tidemill_mesh::Peer;

use crate::rings::Rings;

/// The retained outputs, and who waits for more.
pub(super) struct Delivered {
    pub rings: Mutex<Rings>,
    /// Notified when `rings` has changed, or nothing more comes.
    pub rings_changed: Condvar,
    /// Whether the rings have all rows of earlier runs.
    is_settled: AtomicBool,
    is_over: AtomicBool,
    count: Mutex<Counted>,
    more: Condvar,
}

#[derive(Default)]
struct Counted {
    /// How many times outputs have come.
    count: u64,
    /// The workers whose clients wait for more, each once.
    waiting: BTreeMap<Peer, Then<Vec<u8>>>,
}

impl Delivered {
    /// Creates it with the outputs of earlier runs.
    pub fn new(rings: Rings) -> Delivered {
        let (rings_changed, is_settled, is_over, count, more) = Default::default();
        Delivered { rings: Mutex::new(rings), rings_changed, is_settled, is_over, count, more }
    }

    /// Notes that the rings have all rows of earlier runs.
    pub fn settle(&self) {
        self.is_settled.store(true, Ordering::Release);
    }

    /// Whether rows of earlier runs, which followers may have seen, are still read again.
    pub fn is_recovering(&self) -> bool {
        !self.is_settled.load(Ordering::Acquire)
    }

    /// Notes that the rings have more rows.
    pub fn has_more(&self) {
        self.rings_changed.notify_all();
        let mut counted = self.count.lock();
        counted.count += 1;
        let (count, waiting) = (counted.count, std::mem::take(&mut counted.waiting));
        drop(counted);
        self.more.notify_all();
        waiting.into_values().for_each(|then| then(count.to_le_bytes().to_vec()));
    }

    /// Notes that nothing more comes in this run.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        // A follower that has looked before waits by now.
        drop(self.rings.lock());
        self.rings_changed.notify_all();
    }

    /// Whether nothing more comes in this run.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Waits until the count differs from `seen`, at most this long. Returns the count.
    pub fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let mut counted = self.count.lock();
        if counted.count == seen {
            self.more.wait_for(&mut counted, timeout);
        }
        counted.count
    }

    /// Calls `then` with the count when it differs from `seen`. An earlier wait of the same worker
    /// ends.
    pub fn notify(&self, who: Peer, seen: u64, then: Then<Vec<u8>>) {
        let mut counted = self.count.lock();
        if counted.count == seen {
            // The worker has given up the earlier wait.
            counted.waiting.insert(who, then);
            return;
        }
        let count = counted.count;
        drop(counted);
        then(count.to_le_bytes().to_vec());
    }
}
