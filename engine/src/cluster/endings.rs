//! The ends of what the app reads from files: when all of a stream has been taken into cuts, what waits of it to be a batch
//! is one.
//!
//! Who starts again does so, too: then nothing waits, and nothing comes of it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidemill_core::{Error, Result, StreamId};
use tidemill_env::{Env, Handle};
use tidemill_function::{Call, Functions as _};
use tidemill_host::{Answer, CoordinatorProcess, Desk};

use super::coordinate::partition_of;
use super::feeds::Feeds;
use crate::functions::AppFunctions;

/// So often it is looked, in microseconds.
const LOOK_US: u64 = 20_000;

/// Who waits for the ends, until this is dropped.
pub(super) struct Endings {
    state: Arc<State>,
    // Behind a lock only because a handle is not shared between threads.
    thread: Mutex<Option<Handle>>,
}

#[derive(Default)]
struct State {
    are_all: AtomicBool,
    is_over: AtomicBool,
}

/// What the thread needs.
struct Watch {
    env: Env,
    desk: Arc<Desk>,
    coordinator: Arc<CoordinatorProcess>,
    functions: Arc<AppFunctions>,
    feeds: Arc<Feeds>,
    state: Arc<State>,
}

impl Endings {
    /// Waits for the ends of those that have one.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub fn start(
        env: &Env,
        desk: &Arc<Desk>,
        (coordinator, functions): (&Arc<CoordinatorProcess>, &Arc<AppFunctions>),
        feeds: &Arc<Feeds>,
    ) -> Result<Endings> {
        let state = Arc::<State>::default();
        if feeds.all().all(|(_, about)| about.follows) {
            return Ok(Endings { state, thread: Mutex::new(None) });
        }
        let (env, desk, coordinator) = (env.clone(), desk.clone(), coordinator.clone());
        let (functions, feeds, own) = (functions.clone(), feeds.clone(), state.clone());
        let threads = env.threads.clone();
        let watch = Watch { env, desk, coordinator, functions, feeds, state: own };
        let thread = threads.spawn("cluster-endings", Box::new(move || watch.run()));
        let thread = thread.map_err(|e| Error::io("starting a thread", &e))?;
        Ok(Endings { state, thread: Mutex::new(Some(thread)) })
    }

    /// Whether there are some, and all that the app reads from files has been taken into cuts and has ended.
    pub fn are_all(&self) -> bool {
        self.state.are_all.load(Ordering::Acquire)
    }
}

impl Drop for Endings {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.get_mut().take() {
            let _ = thread.join();
        }
    }
}

impl Watch {
    fn run(&self) {
        let mut ended: BTreeSet<StreamId> = BTreeSet::new();
        while !self.is_over() {
            let open: BTreeSet<StreamId> = self.open().collect();
            let streams = self.feeds.all().map(|(_, about)| about.stream);
            for stream in streams.filter(|stream| !open.contains(stream)) {
                if ended.insert(stream) {
                    self.functions.last_batches(stream).iter().for_each(|call| self.execute(call));
                }
            }
            if open.is_empty() {
                return self.state.are_all.store(!self.is_over(), Ordering::Release);
            }
            self.env.clock.sleep_us(LOOK_US);
        }
    }

    fn is_over(&self) -> bool {
        self.state.is_over.load(Ordering::Acquire)
    }

    /// The streams of which something may come that is in no cut.
    fn open(&self) -> impl Iterator<Item = StreamId> + '_ {
        let cuts = self.coordinator.status().sources;
        let open = self.feeds.all().filter(move |(source, _)| {
            let cut = cuts.get(*source as usize).map(|source| source.cut);
            self.feeds.end(*source).is_none_or(|end| cut.is_none_or(|cut| cut <= end))
        });
        open.map(|(_, about)| about.stream)
    }

    /// Has it executed, and waits until it is.
    fn execute(&self, call: &Call) {
        let Ok(partition) = partition_of(self.functions.program(), call) else { return };
        while !self.is_over() {
            let (tell, told) = channel();
            let then = Box::new(move |answer| drop(tell.send(answer)));
            self.desk.call(self.desk.source_of(partition), call.clone(), then);
            loop {
                match told.recv_timeout(Duration::from_micros(LOOK_US)) {
                    // Nobody knows whether it was recorded. Then it is done when it is done again.
                    Ok(Answer::Unknown) | Err(RecvTimeoutError::Disconnected) => break,
                    Ok(_) => return,
                    Err(RecvTimeoutError::Timeout) if self.is_over() => return,
                    Err(RecvTimeoutError::Timeout) => {}
                }
            }
            self.env.clock.sleep_us(LOOK_US);
        }
    }
}
