//! Schemas by their ids, fetched on a thread of their own: whoever needs one does not wait for the registry.

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

/// Registries have no larger ids.
const ID_MAX: u32 = i32::MAX as u32;
/// So many schemas are kept.
const KNOWN_MAX: usize = 1000;
/// What the registry does not know is asked for so often before that is believed: its servers may hear of a
/// schema one after the other.
const TRIES: usize = 3;
/// Between two tries.
const TRY_US: u64 = 300_000;
/// So long it is believed.
const BELIEVED_NS: u64 = 30_000_000_000;
/// Before a registry that is away is asked again, at first and at last.
const AGAIN_US: (u64, u64) = (100_000, 5_000_000);
/// So long the thread does not look whether it is still needed.
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
    /// Rung when something is wanted.
    bell: Sender<()>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct State {
    known: HashMap<u32, Known>,
    /// At most one of each partition.
    wanted: BTreeSet<u32>,
    failed: Option<Error>,
}

struct Known {
    asked: Asked,
    at_ns: u64,
}

impl Fetcher {
    /// Starts a thread; `who` names it among `troubles`.
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
            .map_err(|e| Error::io("starting a thread for a registry of schemas", &e))?;
        Ok(Fetcher { shared })
    }

    /// What has ended it.
    pub fn failed(&self) -> Option<Error> {
        self.shared.state.lock().failed.clone()
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // It is rung already when it is full.
        let _ = self.shared.bell.try_send(());
        self.shared.troubles.clear(&self.shared.who);
    }
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the registry of schemas at {}", self.shared.registry.shown())
    }
}

impl Schemas for Fetcher {
    fn schema(&self, id: u32) -> Asked {
        // They have 31 bits, and what is larger is no question to a registry.
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
            // It is rung already when it is full.
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
                // A nap: whether the bell woke it or the time makes no difference.
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
                    self.troubles.tell(&self.who, &format!("{why}; it waits for schema {id}"));
                    self.nap(again_us);
                    again_us = (2 * again_us).min(AGAIN_US.1);
                }
            }
        }
        self.troubles.clear(&self.who);
    }

    /// What is wanted, one after the other: an id without an answer holds up nobody else's.
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
