//! The gate: shared state by which the sequencer steers the workers.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use parking_lot::RwLock;
use tidemill_core::SourceId;

/// Steers the workers of one process. It says which epoch is open, how far each source may be read
/// in it, which sources pause, how much may wait to be taken, and when to stop.
///
/// Epoch 0 is never read: all sources wait until the first epoch is [opened](Gate::open).
///
/// A gate serves one run.
pub struct Gate {
    steering: RwLock<Steering>,
    /// The number of changes of `steering`. It shows without the lock that nothing changed.
    version: AtomicU64,
    closed: AtomicU64,
    deposited: AtomicU64,
    taken: AtomicU64,
    bytes_max: u64,
    stopped: AtomicBool,
    threads: RwLock<Vec<(Thread, Vec<SourceId>)>>,
    /// The thread of the first worker, which calls the conductor.
    first: OnceLock<Thread>,
}

/// The steering that changes together.
///
/// A worker must never read past the limit of the epoch that it reads for. So an epoch and its
/// limits are one value under one lock. Before each poll, the worker takes a [`Ticket`] with both.
/// So it never has the old epoch with the new limit, whatever the sequencer does meanwhile. If the
/// sequencer opens the next epoch during a poll, the poll still counts for the old epoch. That is
/// not closed before the worker has seen the new one, and the cut contains those rows. The lock is taken once for a whole chunk of
/// rows, not for each row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Steering {
    epoch: u64,
    /// The limit of each source. Sources beyond its end have none.
    limits: Vec<u64>,
    /// Whether each source is paused. Sources beyond its end are not.
    paused: Vec<bool>,
}

/// The permission for one source now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The open epoch.
    pub(crate) epoch: u64,
    /// The first offset that must not be read in it.
    pub(crate) limit: u64,
    /// Whether the source must not be read.
    pub(crate) paused: bool,
}

impl Gate {
    /// Creates a gate with epoch 0 open. Workers stop reading while more than `bytes_max` bytes are
    /// deposited and not taken. One chunk of each source may come on top.
    pub fn new(bytes_max: u64) -> Arc<Gate> {
        Arc::new(Gate {
            steering: RwLock::new(Steering { epoch: 0, limits: vec![], paused: vec![] }),
            version: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            deposited: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            bytes_max,
            stopped: AtomicBool::new(false),
            threads: RwLock::new(vec![]),
            first: OnceLock::new(),
        })
    }

    /// Opens an epoch, which must be later than the open one. Everything read from now on belongs
    /// to it.
    pub fn open(&self, epoch: u64) {
        self.open_to(epoch, &[]);
    }

    /// Opens an epoch in which source `s` is read up to but without offset `limits[s]`. A source
    /// that is already there is not read. Sources beyond the end of `limits` have no limit, like
    /// those with `u64::MAX`. This repeats a recorded cut exactly: read to the limits, then open
    /// the next epoch.
    pub fn open_to(&self, epoch: u64, limits: &[u64]) {
        self.change(|steering| {
            assert!(epoch > steering.epoch, "epoch {epoch} comes after {}", steering.epoch);
            steering.epoch = epoch;
            steering.limits.clear();
            steering.limits.extend_from_slice(limits);
        });
    }

    /// Pauses a source, or lets it continue.
    pub fn pause(&self, source: SourceId, paused: bool) {
        self.change(|steering| {
            if steering.paused.len() <= source.index() {
                steering.paused.resize(source.index() + 1, false);
            }
            steering.paused[source.index()] = paused;
        });
    }

    /// Returns the open epoch.
    pub fn epoch(&self) -> u64 {
        self.steering.read().epoch
    }

    /// Returns the first epoch that may not be complete. Everything of earlier epochs has been
    /// deposited.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns the bytes that were read and that the conductor has not taken.
    pub fn bytes(&self) -> u64 {
        // `taken` is read before `deposited`, so the difference may be too large, but never
        // negative.
        let taken = self.taken.load(Ordering::Acquire);
        self.deposited.load(Ordering::Acquire).saturating_sub(taken)
    }

    /// Whether reading has stopped because too much was not taken.
    pub fn is_full(&self) -> bool {
        self.bytes() > self.bytes_max
    }

    /// Ends the run at once, and loses the content that was not taken. For a clean end, the
    /// conductor returns [`Turn::Stop`](crate::Turn::Stop) when it has all that it needs.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the run must stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Wakes all sleeping workers, because there is something new. It is cheap if
    /// they are awake.
    pub fn wake(&self) {
        for (thread, _) in self.threads.read().iter() {
            thread.unpark();
        }
    }

    /// Wakes the worker that reads `source`, because rows were pushed.
    pub fn wake_source(&self, source: SourceId) {
        for (thread, sources) in self.threads.read().iter() {
            if sources.contains(&source) {
                thread.unpark();
            }
        }
    }

    /// Wakes the first worker, because there is something for the conductor.
    pub(crate) fn wake_first(&self) {
        if let Some(first) = self.first.get() {
            first.unpark();
        }
    }

    fn change(&self, change: impl FnOnce(&mut Steering)) {
        let mut steering = self.steering.write();
        change(&mut steering);
        self.version.fetch_add(1, Ordering::Release);
        drop(steering);
        self.wake();
    }

    pub(crate) fn ticket(&self, source: SourceId) -> Ticket {
        let steering = self.steering.read();
        Ticket {
            epoch: steering.epoch,
            limit: steering.limits.get(source.index()).copied().unwrap_or(u64::MAX),
            paused: steering.paused.get(source.index()).copied().unwrap_or(false),
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn set_closed(&self, closed: u64) {
        self.closed.store(closed, Ordering::Release);
    }

    pub(crate) fn charge(&self, bytes: u64) {
        self.deposited.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Notes that the conductor has taken charged bytes.
    pub(crate) fn give_back(&self, bytes: u64) {
        let was_full = self.is_full();
        self.taken.fetch_add(bytes, Ordering::AcqRel);
        if was_full && !self.is_full() {
            self.wake();
        }
    }

    /// Registers the calling thread as a worker that reads these sources, and may be the first one.
    pub(crate) fn register(&self, sources: Vec<SourceId>, is_first: bool) {
        if is_first {
            // A gate serves one run, which has one first worker.
            let _ = self.first.set(std::thread::current());
        }
        self.threads.write().push((std::thread::current(), sources));
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("steering", &*self.steering.read())
            .field("closed", &self.closed())
            .field("bytes", &self.bytes())
            .field("stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_env::Env;

    #[test]
    fn a_ticket_never_mixes_an_epoch_with_the_limit_of_another() {
        const EPOCHS: u64 = 20_000;
        let limit = |epoch: u64, source: u64| epoch * 1000 + source;
        let env = Env::real();
        let gate = Gate::new(u64::MAX);
        gate.open_to(1, &[limit(1, 0), limit(1, 1)]);
        let readers: Vec<_> = (0..3u32)
            .map(|reader| {
                let gate = gate.clone();
                let body = move || {
                    let source = reader % 2;
                    let mut last = 0;
                    while last < EPOCHS {
                        let ticket = gate.ticket(SourceId(source));
                        assert_eq!(ticket.limit, limit(ticket.epoch, source.into()));
                        assert!(ticket.epoch >= last);
                        last = ticket.epoch;
                    }
                };
                env.threads.spawn("reader", Box::new(body)).unwrap()
            })
            .collect();
        for epoch in 2..=EPOCHS {
            gate.open_to(epoch, &[limit(epoch, 0), limit(epoch, 1)]);
        }
        for reader in readers {
            reader.join().unwrap();
        }
    }

    #[test]
    fn full_and_not_full() {
        let gate = Gate::new(100);
        gate.charge(100);
        assert!(!gate.is_full());
        gate.charge(1);
        assert!(gate.is_full());
        gate.give_back(50);
        assert_eq!(gate.bytes(), 51);
        assert!(!gate.is_full());
    }

    #[test]
    fn sources_without_a_word_are_free() {
        let gate = Gate::new(0);
        gate.pause(SourceId(2), true);
        gate.open_to(7, &[5]);
        assert_eq!(gate.ticket(SourceId(0)), Ticket { epoch: 7, limit: 5, paused: false });
        let free = Ticket { epoch: 7, limit: u64::MAX, paused: false };
        assert_eq!(gate.ticket(SourceId(1)), free);
        assert_eq!(gate.ticket(SourceId(2)), Ticket { paused: true, ..free });
    }
}
