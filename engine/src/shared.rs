//! The state that the engine's threads and its handle share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_connect::Troubles;
use tidemill_core::{Cut, Error, Result};
use tidemill_table::{Seq, Table};
use tidemill_txn::order::Groups;
use tracing::{info, warn};

use crate::calls::Calls;
use crate::counts::Counts;
use crate::followed::Followed;
use crate::logging;
use crate::outlets::RetainedBatches;
use crate::recent::Recent;
use crate::report::LogReport;
use crate::rings::Rings;
use tidemill_txn::reasons::Reasons;

/// The pause between two checks of a thread that waits for the delivery, in microseconds.
const LOOK_US: u64 = 10_000;

/// The state that the engine's threads and the handle share.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    pub(crate) out: Mutex<Delivered>,
    /// Notified when `out` has changed, or the run has ended.
    pub(crate) delivered: Condvar,
    /// The last epoch in `out`, for readers that must not wait for its lock.
    pub(crate) delivered_epoch: AtomicU64,
    /// Whether a write waits for disk space. `out` has the reason.
    pub(crate) is_full: AtomicBool,
    /// The reports of blocked sources and sinks.
    pub(crate) troubles: Troubles,
    /// The clients that wait for replies.
    pub(crate) calls: Calls,
    /// The reasons of aborts.
    pub(crate) reasons: Mutex<Reasons>,
    /// The last rows of streams.
    pub(crate) rings: Mutex<Rings>,
    /// Notified when `rings` has changed, or the run has ended.
    pub(crate) rings_changed: Condvar,
    /// The changes of tables that clients follow.
    pub(crate) followed: Mutex<Followed>,
    /// The execution of the last epochs.
    pub(crate) recent: Recent,
    /// Held while the data directory is copied. Nothing is removed there meanwhile.
    pub(crate) copying: Mutex<()>,
    /// Whether a snapshot should be taken at once.
    pub(crate) force: AtomicBool,
    /// Whether the app has a data directory, so that nothing leaves before its cut is durable.
    pub(crate) is_durable: bool,
    pub(crate) stop: AtomicBool,
    /// Whether a stop does not wait for the end of a recovery.
    pub(crate) stops_now: AtomicBool,
    /// Whether all sources except timers have ended, and there are others.
    pub(crate) others_ended: AtomicBool,
    /// The epoch with which all sources have ended except the answers from outside; 0 before.
    pub(crate) asked_all: AtomicU64,
    /// Whether a snapshot is being taken.
    pub(crate) snapshot: Mutex<bool>,
    pub(crate) snapshot_done: Condvar,
    pub(crate) drains: Mutex<Drains>,
    pub(crate) drained: Condvar,
    pub(crate) end: Mutex<End>,
    pub(crate) ended: Condvar,
}

/// The tables, as the executor left them. With a data directory they hold all versions since a cut
/// that has left the engine: the last such one when the last epoch began. So readers see nothing
/// newer than durable cuts, and do not wait.
pub(crate) struct State {
    pub(crate) tables: Vec<Table>,
    is_durable: bool,
    groups: Groups,
    /// That cut, and those executed since; without a data directory only the last one.
    cuts: VecDeque<AtCut>,
}

/// The state of the tables after a cut.
#[derive(Clone)]
pub(crate) struct AtCut {
    pub(crate) epoch: u64,
    pub(crate) clock_us: i64,
    /// The number of its last transaction.
    pub(crate) seq: Seq,
    /// The rows of each table.
    pub(crate) rows: Vec<usize>,
}

impl State {
    pub(crate) fn new(
        tables: Vec<Table>,
        groups: Groups,
        is_durable: bool,
        at: (u64, i64, Seq),
    ) -> State {
        let mut state = State { tables, is_durable, groups, cuts: VecDeque::new() };
        state.push(at);
        state
    }

    fn push(&mut self, (epoch, clock_us, seq): (u64, i64, Seq)) {
        let rows = self.tables.iter().map(Table::len).collect();
        self.cuts.push_back(AtCut { epoch, clock_us, seq, rows });
    }

    /// Notes that an epoch has been executed.
    pub(crate) fn executed(&mut self, cut: &Cut, seq: Seq) {
        let frontiers_us = self.groups.frontiers_us(&cut.watermarks, cut.clock_us);
        let tables = self.tables.iter_mut();
        tables.zip(frontiers_us).for_each(|(table, frontier_us)| table.frontier(frontier_us));
        if self.is_durable {
            self.tables.iter_mut().for_each(|table| table.seal(seq));
        } else {
            self.tables.iter_mut().for_each(|table| table.commit(seq));
            self.cuts.clear();
        }
        self.push((cut.epoch, cut.clock_us, seq));
    }

    /// Notes that an epoch has left the engine, so that earlier versions are not needed any more.
    pub(crate) fn release(&mut self, epoch: u64) {
        if !self.is_durable {
            return;
        }
        while self.cuts.get(1).is_some_and(|next| next.epoch <= epoch) {
            self.cuts.pop_front();
        }
        let seq = self.as_of(epoch).seq;
        self.tables.iter_mut().for_each(|table| table.release(seq));
    }

    /// The last executed epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.as_of(u64::MAX).epoch
    }

    /// The cut of an epoch that has left the engine. It is the last such epoch since the state was
    /// locked, or the next one.
    pub(crate) fn as_of(&self, epoch: u64) -> &AtCut {
        let behind = self.cuts.partition_point(|cut| cut.epoch <= epoch);
        &self.cuts[behind.saturating_sub(1)]
    }
}

/// The results that have left the engine; they are durable if there is a data directory.
#[derive(Default)]
pub(crate) struct Delivered {
    pub(crate) epoch: u64,
    /// For each source, the number of rows that are in a cut.
    pub(crate) offsets: Vec<u64>,
    pub(crate) counts: Counts,
    pub(crate) outputs: BTreeMap<String, u64>,
    pub(crate) output_hash: u128,
    pub(crate) retained: RetainedBatches,
    pub(crate) cuts: Vec<Cut>,
    /// Whether nothing more will come, ever.
    pub(crate) is_last: bool,
    /// Whether recorded epochs are being replayed.
    pub(crate) is_recovering: bool,
    /// The reason why a write waits, while it does.
    pub(crate) stalled: Option<Error>,
    /// The epoch of the newest snapshot, and the number of snapshots.
    pub(crate) snapshot_epoch: u64,
    pub(crate) snapshots: u64,
    /// The time of the last snapshot, in nanoseconds of the monotonic clock.
    pub(crate) snapshot_ns: Option<u64>,
    /// The error of the last snapshot, if it failed.
    pub(crate) snapshot_error: Option<Error>,
    /// How often a write had to wait for disk space.
    pub(crate) stalls: u64,
    /// The sizes of the logs of inputs and cuts.
    pub(crate) log: Option<[LogReport; 2]>,
    /// The first needed records of the logs (inputs, cuts).
    pub(crate) trim: Option<(u64, u64)>,
}

#[derive(Default)]
pub(crate) struct Drains {
    /// The number of the last request, and the rows of each source that it waits for.
    pub(crate) wanted: u64,
    pub(crate) targets: Vec<u64>,
    pub(crate) done: u64,
}

#[derive(Default)]
pub(crate) struct End {
    pub(crate) over: bool,
    pub(crate) seconds: f64,
    pub(crate) error: Option<Error>,
}

impl Shared {
    /// The last epoch that has left the engine.
    pub(crate) fn delivered_epoch(&self) -> u64 {
        self.delivered_epoch.load(Ordering::Acquire)
    }

    /// Whether a snapshot should be taken, and can begin now.
    pub(crate) fn snapshot_is_forced(&self) -> bool {
        self.force.load(Ordering::Acquire) && !*self.snapshot.lock()
    }

    /// Whether the run has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.end.lock().over
    }

    /// The error that has ended the run or is about to, if there is one.
    pub(crate) fn error(&self) -> Option<Error> {
        self.end.lock().error.clone()
    }

    pub(crate) fn stop_wanted(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn drain_wanted(&self) -> Option<(u64, Vec<u64>)> {
        let drains = self.drains.lock();
        (drains.wanted > drains.done).then(|| (drains.wanted, drains.targets.clone()))
    }

    pub(crate) fn drained(&self, number: u64) {
        let mut drains = self.drains.lock();
        drains.done = drains.done.max(number);
        self.drained.notify_all();
    }

    pub(crate) fn fail(&self, error: Error) {
        self.troubles.give_up();
        logging::failed(&error);
        self.end.lock().error.get_or_insert(error);
        self.delivered.notify_all();
        self.rings_changed.notify_all();
        // A snapshot that will not complete must not block waiting threads.
        *self.snapshot.lock() = false;
        self.snapshot_done.notify_all();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.end.lock().error.is_some()
    }

    /// Whether failed attempts should not be repeated any more.
    pub(crate) fn gives_up(&self) -> bool {
        self.stop_wanted() || self.has_failed()
    }

    /// Begins a snapshot. Returns whether it may begin.
    pub(crate) fn begin_snapshot(&self) -> bool {
        !std::mem::replace(&mut *self.snapshot.lock(), true)
    }

    pub(crate) fn snapshot_done(&self) {
        *self.snapshot.lock() = false;
        self.snapshot_done.notify_all();
    }

    /// Waits until no snapshot is being taken.
    pub(crate) fn wait_for_snapshot(&self) {
        let mut taking = self.snapshot.lock();
        while *taking {
            self.snapshot_done.wait(&mut taking);
        }
    }

    /// Notes that a write waits for disk space, and why.
    pub(crate) fn stall(&self, error: Error) {
        let mut out = self.out.lock();
        if out.stalled.is_none() {
            out.stalls += 1;
            warn!(target: "tidemill::log", what = error.what, "disk full");
        }
        out.stalled = Some(error);
        drop(out);
        self.is_full.store(true, Ordering::Release);
    }

    /// Notes that writing continues.
    pub(crate) fn has_room(&self) {
        if self.out.lock().stalled.take().is_some() {
            self.is_full.store(false, Ordering::Release);
            info!(target: "tidemill::log", "disk has room");
        }
    }

    /// Waits while the disk is full, unless attempts should not be repeated any more.
    pub(crate) fn wait_for_room(&self) {
        while self.is_full.load(Ordering::Acquire) && !self.gives_up() {
            let mut out = self.out.lock();
            self.delivered.wait_for(&mut out, Duration::from_millis(10));
        }
    }

    /// Waits for the end of a recovery, or of the run.
    pub(crate) fn wait_for_recovery(&self) -> Result<()> {
        while !self.recovered_within(LOOK_US)? {}
        Ok(())
    }

    /// Waits at most `us` microseconds for the end of a recovery, or of the run. Returns whether
    /// the recovery has ended.
    pub(crate) fn recovered_within(&self, us: u64) -> Result<bool> {
        let mut looks = us / LOOK_US + 1;
        let mut out = self.out.lock();
        while out.is_recovering {
            let end = self.end.lock();
            if let Some(error) = &end.error {
                return Err(error.clone());
            }
            if end.over {
                return Ok(true);
            }
            drop(end);
            if looks == 0 {
                return Ok(false);
            }
            // The time-out covers an end between the two locks.
            let waited = self.delivered.wait_for(&mut out, Duration::from_micros(LOOK_US));
            looks -= u64::from(waited.timed_out());
        }
        Ok(true)
    }
}
