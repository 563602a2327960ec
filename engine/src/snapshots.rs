//! Takes snapshots, on a thread of its own, from the driver's copies at a cut.

use std::collections::BTreeSet;
use std::sync::Arc;

use crossbeam_channel::Sender;
use tidemill_core::{Error, Kind, Result};
use tidemill_durable::Store;
use tidemill_env::{Clock, Env, Handle};
use tidemill_snapshot::{Delta, Head, Part, Snapshots};
use tidemill_table::Changed;
use tracing::{debug, info, warn};

use crate::internal::Internal;
use crate::shared::Shared;

/// The number of retained snapshots.
const KEPT: usize = 2;

/// The state after a cut: the changes since the one before, and everything else.
pub(crate) struct Capture {
    pub(crate) internal: Internal,
    /// The changes of each table.
    pub(crate) changed: Vec<Changed>,
    /// Whether these are all rows and versions. Earlier snapshots are not needed then, and nothing
    /// is merged with them.
    pub(crate) is_whole: bool,
    /// The numbers of records of the logs before it. They are set when its cut is durable.
    pub(crate) input_next: u64,
    pub(crate) cut_next: u64,
}

/// Passes captures to the thread that stores them.
pub(crate) struct Keeper {
    captures: Sender<Box<Capture>>,
    thread: Handle,
}

impl Keeper {
    /// Starts the thread. `program` is stored in each manifest.
    pub(crate) fn start(
        env: &Env,
        shared: Arc<Shared>,
        store: Arc<dyn Store>,
        app: u128,
        fingerprint: u128,
        program: Vec<u8>,
    ) -> Result<Keeper> {
        let snapshots = Snapshots::open(store, app, env.random.next_u64())?;
        let clock = env.clock.clone();
        // The driver makes one at a time.
        let (captures, receiver) = crossbeam_channel::bounded::<Box<Capture>>(1);
        let body = move || {
            let mut work = Work { snapshots, fingerprint, program, waiting: None, shared, clock };
            for capture in receiver {
                if let Err(error) = work.take(&capture) {
                    work.shared.fail(error);
                    return;
                }
                work.shared.snapshot_done();
            }
        };
        let thread = env
            .threads
            .spawn_background("tidemill-snap", Box::new(body))
            .map_err(|e| Error::io("starting the snapshots' thread", &e))?;
        Ok(Keeper { captures, thread })
    }

    pub(crate) fn take(&self, capture: Box<Capture>) {
        // A thread that has ended has reported why.
        let _ = self.captures.send(capture);
    }

    /// Waits for the last snapshot.
    pub(crate) fn join(self) -> Result<()> {
        drop(self.captures);
        self.thread
            .join()
            .map_err(|panic| Error::internal(format!("the snapshots' thread: {panic}")))
    }
}

struct Work {
    snapshots: Snapshots,
    fingerprint: u128,
    program: Vec<u8>,
    /// Changes without a snapshot, because the disk was full.
    waiting: Option<Delta>,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
}

impl Work {
    fn take(&mut self, capture: &Capture) -> Result<()> {
        let (is_first, begun_ns) = (self.snapshots.newest().is_none(), self.clock.monotonic_ns());
        let epoch = capture.internal.facts.epoch;
        debug!(target: "tidemill::snapshot", epoch, "snapshot begun");
        let before: BTreeSet<String> = match self.snapshots.newest() {
            Some(newest) => newest.objects.iter().map(|object| object.name.clone()).collect(),
            None => BTreeSet::new(),
        };
        let mut delta = match self.waiting.take() {
            _ if capture.is_whole => Delta::whole(),
            Some(delta) => delta,
            None if is_first => Delta::whole(),
            None => Delta::new(),
        };
        for (table, changed) in capture.changed.iter().enumerate() {
            let number = |part: Part| part.number(capture.changed.len());
            let (rows, versions) = (number(Part::Row(table)), number(Part::Version(table)));
            changed.for_each(|partition, key, row| delta.push(rows, partition, key, row));
            changed.for_each_version(|partition, key, version| {
                delta.push(versions, partition, key, version);
            });
        }
        let head = Head {
            epoch: capture.internal.facts.epoch,
            fingerprint: self.fingerprint,
            program: self.program.clone(),
            input_next: capture.input_next,
            cut_next: capture.cut_next,
        };
        match self.snapshots.publish(head, &capture.internal.encode(), &delta) {
            Ok(manifest) => {
                let mut out = self.shared.out.lock();
                out.snapshot_epoch = manifest.head.epoch;
                out.snapshot_ns = Some(self.clock.monotonic_ns());
                out.snapshots += 1;
                out.snapshot_error = None;
                drop(out);
                self.shared.delivered.notify_all();
                let epoch = manifest.head.epoch;
                let new = manifest.objects.iter().filter(|object| !before.contains(&object.name));
                let bytes = new.map(|object| object.len).sum::<u64>() + manifest.internal.len;
                let seconds = (self.clock.monotonic_ns() - begun_ns) as f64 / 1e9;
                info!(target: "tidemill::snapshot", epoch, bytes, seconds, "snapshot");
            }
            // The logs have everything, and the next snapshot includes these changes.
            Err(error) if error.kind == Kind::Resource => {
                self.waiting = Some(delta);
                warn!(target: "tidemill::snapshot", what = error.what, "snapshot failed");
                self.shared.out.lock().snapshot_error = Some(error);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        if let Some(merge) = self.snapshots.plan() {
            let merged = match merge.run() {
                Ok(merged) => merged,
                Err(error) if error.kind == Kind::Resource => return Ok(()),
                Err(error) => return Err(error),
            };
            self.snapshots.adopt(merged);
        }
        // Files that are being copied are removed with the next snapshot.
        let shared = self.shared.clone();
        let Some(_held) = shared.copying.try_lock() else { return Ok(()) };
        if let Some(kept) = self.snapshots.retain(KEPT)? {
            self.shared.out.lock().trim = Some((kept.input_next, kept.cut_next));
        }
        Ok(())
    }
}
