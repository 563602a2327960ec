//! The counts of transactions, for the status of a cluster that has stopped, and faults for the log.
//!
//! The counts are a part of the state: the nodes count, and snapshots have the sums. A thread looks
//! at them, and stores the report in the coordinator's directory once a second.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::json;
use tidemill_core::{Error, Result};
use tidemill_env::{Env, Handle};
use tidemill_function::{Counts, Fault};
use tidemill_host::CoordinatorProcess;
use tracing::warn;

use crate::data_dir::replace;
use crate::logging::Paced;
use crate::reasons;

/// The name of the file with the report.
const FILE: &str = "counts";
/// The time between two looks, and the number of looks between two writes of the file.
const LOOK: Duration = Duration::from_millis(100);
const STORE_EVERY: u32 = 10;

/// The thread that looks at the counts of a cluster.
pub(super) struct CountsFile {
    shared: Arc<Shared>,
    thread: Mutex<Option<Handle>>,
}

struct Shared {
    env: Env,
    dir: PathBuf,
    coordinator: Arc<CoordinatorProcess>,
    is_over: Mutex<bool>,
    over: Condvar,
    state: Mutex<State>,
}

/// The counts at the last look, and those in the file.
struct State {
    seen: Arc<Counts>,
    stored: Option<Arc<Counts>>,
    reported: Paced,
}

impl CountsFile {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start(
        env: &Env,
        dir: PathBuf,
        coordinator: &Arc<CoordinatorProcess>,
    ) -> Result<CountsFile> {
        let seen = coordinator.status().counts;
        let reported = Paced::after(seen.faults);
        let shared = Arc::new(Shared {
            env: env.clone(),
            dir,
            coordinator: coordinator.clone(),
            is_over: Mutex::new(false),
            over: Condvar::new(),
            state: Mutex::new(State { seen, stored: None, reported }),
        });
        let own = shared.clone();
        let thread = env.threads.spawn("cluster-counts", Box::new(move || own.run()));
        let thread = thread.map_err(|e| Error::io("starting the thread that stores counts", &e))?;
        Ok(CountsFile { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Stores the counts now.
    pub fn store(&self) {
        self.shared.look(true);
    }
}

impl Drop for CountsFile {
    fn drop(&mut self) {
        *self.shared.is_over.lock() = true;
        self.shared.over.notify_one();
        if let Some(thread) = self.thread.get_mut().take() {
            // A panic has been reported.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        for look in 0u32.. {
            self.look(look.is_multiple_of(STORE_EVERY));
            let mut is_over = self.is_over.lock();
            self.over.wait_while_for(&mut is_over, |is_over| !*is_over, LOOK);
            if *is_over {
                return;
            }
        }
    }

    /// Reports new faults and aborted slides, and stores the counts if they have changed.
    fn look(&self, stores: bool) {
        let counts = self.coordinator.status().counts;
        let mut state = self.state.lock();
        let State { seen, stored, reported } = &mut *state;
        if let (true, Some(Fault { what, line })) = (counts.faults > seen.faults, &counts.fault) {
            let total = counts.faults;
            if let Some(faults) = reported.due(total, Some(&*self.env.clock)) {
                warn!(target: "tidemill::function", what, line, faults, total, "fault");
            }
        }
        if let (true, Some(what)) = (counts.slides > seen.slides, &counts.slide) {
            let slides = counts.slides - seen.slides;
            warn!(target: "tidemill::function", what, slides, "slide aborted");
        }
        *seen = counts.clone();
        if !stores || stored.as_ref() == Some(&counts) {
            return;
        }
        let text = json!({"report": report(&counts)}).to_string();
        match replace(&*self.env.disk, &self.dir, FILE, &text) {
            Ok(()) => *stored = Some(counts),
            Err(error) => {
                let what = error.to_string();
                warn!(target: "tidemill::cluster", what, "counts could not be stored");
            }
        }
    }
}

/// Returns the counts as a status has them.
pub(super) fn report(counts: &Counts) -> serde_json::Value {
    let Counts { events, ended, refused, faults, dead, late, reasons, fault, .. } = counts;
    let committed = ended.saturating_sub(dead + late);
    let fault = fault.as_ref().map(|Fault { what, line }| match line {
        Some(line) => format!("{line}: {what}"),
        None => what.clone(),
    });
    json!({
        "events": events, "committed": committed, "refused": refused, "faults": faults,
        "dead": dead, "reasons": reasons::report(reasons), "fault": fault,
    })
}
