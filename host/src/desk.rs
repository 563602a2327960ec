//! Requests of clients, and their replies.
//!
//! A request is appended to the log, and its reply is found in the outputs, whoever has executed it. So it has a
//! reply even when every process but this one has died meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use tidemill_cluster::{Output, Record, Records, Refused, RequestId, Topic};
use tidemill_core::Value;
use tidemill_durable::{Log, Then};
use tidemill_env::Env;
use tidemill_function::Call;
use tidemill_place::{Partition, PARTITIONS};
use tidemill_txn::program::Abort;

/// So many outputs are read at once.
const READ: usize = 4096;
/// So long a read waits for more, in microseconds.
const WAIT_US: u64 = 1_000_000;

/// What a client is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The transaction has committed, and its function has returned this.
    Returned(Value),
    /// It has aborted, for this reason.
    Aborted(Abort),
    /// Nobody knows whether the request is in the log, and so whether it will be executed.
    Unknown,
}

/// Who hears of all that leaves, in the order of each source.
pub type Listener = Arc<dyn Fn(u32, &Output) + Send + Sync>;

/// Where clients' requests go in, and replies come out.
pub struct Desk {
    log: Arc<dyn Log>,
    sources: u32,
    own: u64,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    count: u64,
    open: HashMap<RequestId, Then<Answer>, FixedState>,
}

impl Desk {
    /// Begins to read what leaves from now on; `listener` hears of all of it. Reading ends when the desk has
    /// been dropped.
    pub fn open(env: &Env, log: Arc<dyn Log>, sources: u32, listener: Option<Listener>) -> Desk {
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        for source in 0..sources {
            let (log, waiting) = (Arc::downgrade(&log), Arc::downgrade(&waiting));
            let listener = listener.clone();
            let tail = Tail { log, waiting, listener, source };
            // What has left before is nobody's here: it is only found where the end is.
            tail.read(u64::MAX, None);
        }
        Desk { log, sources, own: env.random.next_u64(), waiting }
    }

    /// How many sources there are.
    pub fn sources(&self) -> u32 {
        self.sources
    }

    /// The source for a call: where shares are equal its reader owns the entity.
    pub fn source_of(&self, partition: Partition) -> u32 {
        (u64::from(partition.0) * u64::from(self.sources) / u64::from(PARTITIONS)) as u32
    }

    /// How many requests wait for their replies.
    pub fn open_requests(&self) -> usize {
        self.waiting.lock().open.len()
    }

    /// Appends a request to a source. It is executed once, whatever happens.
    pub fn call(&self, source: u32, call: Call, then: Then<Answer>) {
        let mut waiting = self.waiting.lock();
        waiting.count += 1;
        let id: Vec<u8> = [self.own, waiting.count].iter().flat_map(|n| n.to_be_bytes()).collect();
        let id: RequestId = id.into();
        waiting.open.insert(id.clone(), then);
        drop(waiting);
        let record = Record::Request { id: id.clone(), call };
        let waiting = self.waiting.clone();
        let appended = move |result: Result<u64, Refused>| {
            // That it is there is no news: its reply is.
            let then = result.is_err().then(|| waiting.lock().open.remove(&id)).flatten();
            if let Some(then) = then {
                then(Answer::Unknown);
            }
        };
        self.log.append(Topic::Input(source), 0, record, Box::new(appended));
    }
}

/// Reads what leaves, for one source.
struct Tail {
    log: Weak<dyn Log>,
    waiting: Weak<Mutex<Waiting>>,
    listener: Option<Listener>,
    source: u32,
}

impl Tail {
    fn read(self, from: u64, limit: Option<usize>) {
        let Some(log) = self.log.upgrade() else { return };
        let topic = Topic::Output(self.source);
        log.read(
            topic,
            from,
            limit,
            WAIT_US,
            Box::new(move |found| self.found(from, limit, found)),
        );
    }

    fn found(self, from: u64, limit: Option<usize>, found: Option<Records>) {
        let Some(waiting) = self.waiting.upgrade() else { return };
        let Some(Records { records, upto }) = found else {
            return self.read(from, limit);
        };
        for (_, record) in records {
            let Record::Output(output) = record else { continue };
            if let Some(listener) = &self.listener {
                listener(self.source, &output);
            }
            let Output::Reply { id, outcome, .. } = output else { continue };
            let then = waiting.lock().open.remove(&id);
            if let Some(then) = then {
                then(match outcome {
                    Ok(value) => Answer::Returned(value),
                    Err(abort) => Answer::Aborted(abort),
                });
            }
        }
        drop(waiting);
        self.read(upto, Some(READ));
    }
}
