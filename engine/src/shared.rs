//! What the engine's threads and its handle share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::json;
use tidemill_connect::Troubles;
use tidemill_core::{Cut, Error, Result};
use tidemill_table::{Seq, Table};
use tidemill_txn::order::Groups;

use crate::calls::Calls;
use crate::counts::Counts;
use crate::followed::Followed;
use crate::life::Life;
use crate::outlets::Kept;
use crate::reasons::Reasons;
use crate::recent::Recent;
use crate::report::LogReport;
use crate::rings::Rings;

/// How long somebody who waits for the delivery sleeps before he looks again, in microseconds.
const LOOK_US: u64 = 10_000;

/// What the engine's threads and the handle share.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    pub(crate) out: Mutex<Out>,
    /// There is something new in `out`, or the run has ended.
    pub(crate) delivered: Condvar,
    /// The last epoch in `out`, for those who must not wait for it.
    pub(crate) left: AtomicU64,
    /// Writing waits for room; `out` says why.
    pub(crate) is_full: AtomicBool,
    /// What holds sources and sinks up.
    pub(crate) troubles: Troubles,
    /// Who waits for replies.
    pub(crate) calls: Calls,
    /// Why transactions aborted.
    pub(crate) reasons: Mutex<Reasons>,
    /// The last rows of streams.
    pub(crate) rings: Mutex<Rings>,
    /// There is something new in `rings`, or the run has ended.
    pub(crate) ring_come: Condvar,
    /// What has changed in tables that clients follow.
    pub(crate) followed: Mutex<Followed>,
    /// How the last epochs were executed.
    pub(crate) recent: Recent,
    /// Who hears of the engine's life.
    pub(crate) life: Life,
    /// Held by who copies what is in the data directory: nothing is removed there meanwhile.
    pub(crate) copying: Mutex<()>,
    /// A snapshot is to be taken at once.
    pub(crate) force: AtomicBool,
    /// Nothing leaves before its cut is durable.
    pub(crate) is_durable: bool,
    pub(crate) stop: AtomicBool,
    /// A stop does not wait for the end of a recovery.
    pub(crate) gives_way: AtomicBool,
    /// Whether all sources have ended but those of timers, of which there are others.
    pub(crate) others_ended: AtomicBool,
    /// The epoch with which all sources have ended but the answers from outside; 0 before.
    pub(crate) asked_all: AtomicU64,
    /// A snapshot is being taken.
    pub(crate) snapshot: Mutex<bool>,
    pub(crate) snapshot_done: Condvar,
    pub(crate) drains: Mutex<Drains>,
    pub(crate) drained: Condvar,
    pub(crate) end: Mutex<End>,
    pub(crate) ended: Condvar,
}

/// The tables, as the executor left them. Where anything is durable they hold all versions since the
/// last cut that had left the engine when the last epoch was begun, so that nobody who looks sees
/// anything newer, or has to wait for it.
pub(crate) struct State {
    pub(crate) tables: Vec<Table>,
    is_durable: bool,
    groups: Groups,
    /// That cut, and those executed since; the last one where nothing is durable.
    cuts: VecDeque<AtCut>,
}

/// Where the tables stood after a cut.
#[derive(Clone)]
pub(crate) struct AtCut {
    pub(crate) epoch: u64,
    pub(crate) clock_us: i64,
    /// The number of its last transaction.
    pub(crate) seq: Seq,
    /// Rows by table.
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

    /// An epoch has been executed.
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

    /// An epoch has left the engine: nobody wants to see what was before.
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

    /// The last epoch that was executed.
    pub(crate) fn epoch(&self) -> u64 {
        self.as_of(u64::MAX).epoch
    }

    /// The cut of an epoch that has left the engine, and was the last one to do so since the state
    /// was locked, or is about to be.
    pub(crate) fn as_of(&self, epoch: u64) -> &AtCut {
        let behind = self.cuts.partition_point(|cut| cut.epoch <= epoch);
        &self.cuts[behind.saturating_sub(1)]
    }
}

/// What has left the engine, all of it durable where anything is.
#[derive(Default)]
pub(crate) struct Out {
    pub(crate) epoch: u64,
    /// Per source: rows before this one are in a cut.
    pub(crate) offsets: Vec<u64>,
    pub(crate) counts: Counts,
    pub(crate) outputs: BTreeMap<String, u64>,
    pub(crate) output_hash: u128,
    pub(crate) kept: Kept,
    pub(crate) cuts: Vec<Cut>,
    /// Nothing more will come, ever.
    pub(crate) is_last: bool,
    /// What is recorded is being executed again.
    pub(crate) is_recovering: bool,
    /// Why writing waits, while it does.
    pub(crate) stalled: Option<Error>,
    /// The epoch of the newest snapshot, and how many were taken.
    pub(crate) snapshot_epoch: u64,
    pub(crate) snapshots: u64,
    /// When the last one was taken, in nanoseconds of the monotonic clock.
    pub(crate) snapshot_ns: Option<u64>,
    /// Why the last one was not.
    pub(crate) snapshot_error: Option<Error>,
    /// How often writing had to wait for room.
    pub(crate) stalls: u64,
    /// Of inputs and cuts.
    pub(crate) log: Option<[LogReport; 2]>,
    /// Records of the logs (inputs, cuts) below these are needed no more.
    pub(crate) trim: Option<(u64, u64)>,
}

#[derive(Default)]
pub(crate) struct Drains {
    /// Number of the last request, and what it waits for: rows of each source.
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
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    /// Whether a snapshot is to be taken that can begin now.
    pub(crate) fn snapshot_is_forced(&self) -> bool {
        self.force.load(Ordering::Acquire) && !*self.snapshot.lock()
    }

    /// Whether the run has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.end.lock().over
    }

    /// Why the run has ended or is about to, if it was an error.
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
        self.life.error(&error);
        self.end.lock().error.get_or_insert(error);
        self.delivered.notify_all();
        self.ring_come.notify_all();
        // Whoever waits for a snapshot must not wait for one that will never be.
        *self.snapshot.lock() = false;
        self.snapshot_done.notify_all();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.end.lock().error.is_some()
    }

    /// Whether what can't be done now is not to be tried any more.
    pub(crate) fn gives_up(&self) -> bool {
        self.stop_wanted() || self.has_failed()
    }

    /// Whether a snapshot may begin; it has then.
    pub(crate) fn begin_snapshot(&self) -> bool {
        !std::mem::replace(&mut *self.snapshot.lock(), true)
    }

    pub(crate) fn snapshot_done(&self) {
        *self.snapshot.lock() = false;
        self.snapshot_done.notify_all();
    }

    /// Waits until none is being taken.
    pub(crate) fn wait_for_snapshot(&self) {
        let mut taking = self.snapshot.lock();
        while *taking {
            self.snapshot_done.wait(&mut taking);
        }
    }

    /// Writing waits for room, and why.
    pub(crate) fn stall(&self, error: Error) {
        let mut out = self.out.lock();
        if out.stalled.is_none() {
            out.stalls += 1;
            self.life.tell("disk full", json!({"what": error.what}));
        }
        out.stalled = Some(error);
        drop(out);
        self.is_full.store(true, Ordering::Release);
    }

    /// Writing goes on.
    pub(crate) fn has_room(&self) {
        if self.out.lock().stalled.take().is_some() {
            self.is_full.store(false, Ordering::Release);
            self.life.tell("disk has room", json!({}));
        }
    }

    /// Waits while there is no room to write, unless that is not to be tried any more.
    pub(crate) fn wait_for_room(&self) {
        while self.is_full.load(Ordering::Acquire) && !self.gives_up() {
            let mut out = self.out.lock();
            self.delivered.wait_for(&mut out, Duration::from_millis(10));
        }
    }

    /// Waits until a recovery is over; not beyond the end of the run.
    pub(crate) fn wait_for_recovery(&self) -> Result<()> {
        while !self.recovered_within(LOOK_US)? {}
        Ok(())
    }

    /// Waits at most so long until a recovery is over, not beyond the end of the run; whether it is.
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
            // The time-out guards against an end between the two locks.
            let waited = self.delivered.wait_for(&mut out, Duration::from_micros(LOOK_US));
            looks -= u64::from(waited.timed_out());
        }
        Ok(true)
    }
}
