//! Schemas by their ids, fetched on a thread of their own, so that no reader waits for the
//! registry.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{bounded, Receiver, Sender};
use parking_lot::Mutex;
use tidemill_connect::message::{Asked, Schemas};
use tidemill_connect::Troubles;
use tidemill_core::{Error, Result};
use tidemill_env::Env;

use super::{Failed, Registry};

/// The largest id of a registry.
const ID_MAX: u32 = i32::MAX as u32;
/// The largest number of retained schemas.
const KNOWN_MAX: usize = 1000;
/// The number of requests before an unknown schema counts as unknown. A registry's servers may
/// learn of a schema at different times.
const TRIES: usize = 3;
/// The time between two requests, in microseconds.
const TRY_US: u64 = 300_000;
/// The time for which a schema counts as unknown, in nanoseconds.
const BELIEVED_NS: u64 = 30_000_000_000;
/// The first and the longest time before an unreachable registry is asked again, in microseconds.
const AGAIN_US: (u64, u64) = (100_000, 5_000_000);
/// The longest time for which the thread doesn't check whether it should end, in microseconds.
const NAP_US: u64 = 50_000;

/// Fetches schemas, until it is dropped.
pub(crate) struct Fetcher {
    shared: Arc<Shared>,
}

struct Shared {
    env: Env,
    registry: Registry,
    troubles: Troubles,
    who: String,
    state: Mutex<State>,
    /// Wakes the thread when a schema is wanted.
    bell: Sender<()>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct State {
    known: HashMap<u32, Known>,
    /// The ids of wanted schemas, at most one of each partition.
    wanted: BTreeSet<u32>,
    failed: Option<Error>,
}

struct Known {
    asked: Asked,
    at_ns: u64,
}

impl Fetcher {
    /// Starts a thread. Its name among `troubles` is `who`.
    pub fn start(env: &Env, registry: Registry, troubles: &Troubles, who: &str) -> Result<Fetcher> {
        let (bell, rung) = bounded(1);
        let shared = Arc::new(Shared {
            env: env.clone(),
            registry,
            troubles: troubles.clone(),
            who: format!("{who} (registry)"),
            state: Mutex::default(),
            bell,
            is_over: AtomicBool::new(false),
        });
        let fetching = shared.clone();
        env.threads
            .spawn("kafka-registry", Box::new(move || fetching.run(&rung)))
            .map_err(|e| Error::io("starting a thread for a schema registry", &e))?;
        Ok(Fetcher { shared })
    }

    /// Returns the error that has ended it.
    pub fn failed(&self) -> Option<Error> {
        self.shared.state.lock().failed.clone()
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // If the bell is full, the thread wakes anyway.
        let _ = self.shared.bell.try_send(());
        self.shared.troubles.clear(&self.shared.who);
    }
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the schema registry at {}", self.shared.registry.shown())
    }
}

impl Schemas for Fetcher {
    fn schema(&self, id: u32) -> Asked {
        // Ids have 31 bits, so the registry is not asked for larger ones.
        if id > ID_MAX {
            return Asked::Refused(format!(
                "the value says that it was written by the schema {id}, and ids end at {ID_MAX}"
            ));
        }
        let now_ns = self.shared.env.clock.monotonic_ns();
        let mut state = self.shared.state.lock();
        if let Some(Known { asked, at_ns }) = state.known.get(&id) {
            let is_found = matches!(asked, Asked::Found(_));
            if is_found || now_ns.saturating_sub(*at_ns) < BELIEVED_NS {
                return asked.clone();
            }
        }
        if state.wanted.insert(id) {
            // If the bell is full, the thread wakes anyway.
            let _ = self.shared.bell.try_send(());
        }
        Asked::Later
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn run(&self, rung: &Receiver<()>) {
        let (mut again_us, mut last) = (AGAIN_US.0, 0);
        while !self.is_over() {
            let Some(id) = self.next(last) else {
                // The thread sleeps. It makes no difference whether the bell or the time-out wakes
                // it.
                let _ = rung.recv_timeout(Duration::from_micros(NAP_US));
                continue;
            };
            last = id;
            match self.ask(id) {
                Ok(asked) => {
                    again_us = AGAIN_US.0;
                    self.troubles.clear(&self.who);
                    self.keep(id, asked);
                }
                Err(Failed::Lasting(error)) => {
                    self.state.lock().failed = Some(error);
                    return;
                }
                Err(Failed::Away(why) | Failed::No(why)) => {
                    if self.is_over() {
                        break;
                    }
                    self.troubles.report(&self.who, &format!("{why}; it waits for schema {id}"));
                    self.nap(again_us);
                    again_us = (2 * again_us).min(AGAIN_US.1);
                }
            }
        }
        self.troubles.clear(&self.who);
    }

    /// Returns the next wanted id, in turn, so that an id without an answer holds up no other.
    fn next(&self, last: u32) -> Option<u32> {
        let state = self.state.lock();
        let behind = last.checked_add(1).and_then(|from| state.wanted.range(from..).next());
        behind.or_else(|| state.wanted.first()).copied()
    }

    fn ask(&self, id: u32) -> std::result::Result<Asked, Failed> {
        let mut tries = 1;
        loop {
            match self.registry.schema(id) {
                Ok(schema) => return Ok(Asked::Found(Arc::new(schema))),
                Err(Failed::No(why)) if tries == TRIES || self.is_over() => {
                    return Ok(Asked::Refused(format!(
                        "the value says that it was written by the schema {id}: {why}"
                    )));
                }
                Err(Failed::No(_)) => {
                    tries += 1;
                    self.nap(TRY_US);
                }
                Err(other) => return Err(other),
            }
        }
    }

    fn keep(&self, id: u32, asked: Asked) {
        let at_ns = self.env.clock.monotonic_ns();
        let mut state = self.state.lock();
        state.wanted.remove(&id);
        if state.known.len() >= KNOWN_MAX {
            state.known.retain(|_, known| matches!(known.asked, Asked::Found(_)));
            if state.known.len() >= KNOWN_MAX {
                state.known.clear();
            }
        }
        state.known.insert(id, Known { asked, at_ns });
    }

    fn nap(&self, us: u64) {
        let mut left = us;
        while left > 0 && !self.is_over() {
            let nap = left.min(NAP_US);
            self.env.clock.sleep_us(nap);
            left -= nap;
        }
    }
}
