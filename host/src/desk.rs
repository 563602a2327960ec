//! Requests of clients, and their replies.
//!
//! A request is appended to the log, and its reply is found in the outputs, whoever has executed it. So it has a
//! reply even when every process but this one has died meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::{Condvar, Mutex};
use tidemill_cluster::{Output, Record, Records, Refused, Request, RequestId, Topic};
use tidemill_core::Value;
use tidemill_durable::{Log, Then};
use tidemill_env::Env;
use tidemill_function::{Call, Tid};
use tidemill_place::{Partition, PARTITIONS};
use tidemill_txn::program::Abort;

/// So many outputs are read at once.
const READ: usize = 4096;
/// So long a read waits for more, in microseconds.
const WAIT_US: u64 = 1_000_000;

/// So long it may take to find where the outputs end.
const BEGIN: Duration = Duration::from_secs(10);

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

/// Who is told what has become of a request, and where in the order it was; `None` where that is not known.
pub type Placed = Box<dyn FnOnce(Option<Tid>, Answer) + Send>;

/// Who hears of all that leaves, in the order of each source.
pub type Listener = Arc<dyn Fn(u32, &Output) + Send + Sync>;

/// Where clients' requests go in, and replies come out.
pub struct Desk {
    log: Arc<dyn Log>,
    /// Of how many sources it asks: the first of so many that have outputs.
    sources: u32,
    outputs: u32,
    own: u64,
    waiting: Arc<Mutex<Waiting>>,
    listener: Option<Listener>,
    begun: Once,
}

#[derive(Default)]
struct Waiting {
    count: u64,
    open: HashMap<RequestId, Placed, FixedState>,
}

impl Desk {
    /// A desk at which nobody has asked yet, and which asks of so many sources of all that there are; `listener` hears of
    /// all that leaves after [`Desk::begin`].
    pub fn open(
        env: &Env,
        log: Arc<dyn Log>,
        (sources, outputs): (u32, u32),
        listener: Option<Listener>,
    ) -> Desk {
        let (own, waiting) = (env.random.next_u64(), Arc::default());
        Desk { log, sources, outputs, own, waiting, listener, begun: Once::new() }
    }

    /// Begins to read what leaves from now on, if nobody has asked anything yet: where clients come by other
    /// ways that would be for nobody. Reading ends when the desk has been dropped.
    pub fn begin(&self) {
        self.begun.call_once(|| {
            let unknown: Arc<Unknown> = Arc::new((Mutex::new(self.outputs), Condvar::new()));
            for source in 0..self.outputs {
                let (log, waiting) = (Arc::downgrade(&self.log), Arc::downgrade(&self.waiting));
                let (listener, unknown) = (self.listener.clone(), Some(unknown.clone()));
                let tail = Tail { log, waiting, listener, source, unknown };
                // What has left before is nobody's here: it is only found where the end is.
                tail.read(u64::MAX, None);
            }
            // The reply to what is asked before that might be missed.
            let (count, known) = &*unknown;
            known.wait_while_for(&mut count.lock(), |count| *count > 0, BEGIN);
        });
    }

    /// Of how many sources it asks.
    pub fn sources(&self) -> u32 {
        self.sources
    }

    /// The source for a call: where shares are equal its reader owns the entity.
    pub fn source_of(&self, partition: Partition) -> u32 {
        source_of(partition, self.sources)
    }

    /// How many requests wait for their replies.
    pub fn open_requests(&self) -> usize {
        self.waiting.lock().open.len()
    }

    /// Appends a request to a source. It is executed once, whatever happens.
    pub fn call(&self, source: u32, call: Call, then: Then<Answer>) {
        self.call_placed(source, call, Box::new(move |_, answer| then(answer)));
    }

    /// The same, for who wants to know the request's place in the order.
    pub fn call_placed(&self, source: u32, call: Call, then: Placed) {
        self.call_together(source, vec![(call, then)]);
    }

    /// Appends several requests to a source as one record: all of them are there or none is, and they are executed
    /// in their order.
    pub fn call_together(&self, source: u32, calls: Vec<(Call, Placed)>) {
        self.begin();
        let mut waiting = self.waiting.lock();
        let mut requests = Vec::new();
        for (call, then) in calls {
            waiting.count += 1;
            let id = [self.own, waiting.count];
            let id: RequestId = id.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>().into();
            waiting.open.insert(id.clone(), then);
            requests.push(Request { id, call });
        }
        drop(waiting);
        let ids: Vec<RequestId> = requests.iter().map(|request| request.id.clone()).collect();
        let waiting = self.waiting.clone();
        let appended = move |result: Result<u64, Refused>| {
            // That they are there is no news: their replies are.
            for id in ids.iter().filter(|_| result.is_err()) {
                let then = waiting.lock().open.remove(id);
                if let Some(then) = then {
                    then(None, Answer::Unknown);
                }
            }
        };
        let record = Record::Requests(requests);
        self.log.append(Topic::Input(source), 0, record, Box::new(appended));
    }
}

/// Of so many sources the one whose reader owns a partition, where shares are equal.
pub fn source_of(partition: Partition, sources: u32) -> u32 {
    (u64::from(partition.0) * u64::from(sources) / u64::from(PARTITIONS)) as u32
}

/// Of how many sources it is not known yet where their outputs end.
type Unknown = (Mutex<u32>, Condvar);

/// Reads what leaves, for one source.
struct Tail {
    log: Weak<dyn Log>,
    waiting: Weak<Mutex<Waiting>>,
    listener: Option<Listener>,
    source: u32,
    unknown: Option<Arc<Unknown>>,
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

    fn found(mut self, from: u64, limit: Option<usize>, found: Option<Records>) {
        let Some(waiting) = self.waiting.upgrade() else { return };
        let Some(Records { records, upto }) = found else {
            return self.read(from, limit);
        };
        if let Some(unknown) = self.unknown.take() {
            *unknown.0.lock() -= 1;
            unknown.1.notify_all();
        }
        let outputs = records.into_iter().filter_map(|(_, record)| match record {
            Record::Outputs(outputs) => Some(outputs),
            _ => None,
        });
        for output in outputs.flatten() {
            if let Some(listener) = &self.listener {
                listener(self.source, &output);
            }
            let Output::Reply { tid, id, outcome } = output else { continue };
            let then = waiting.lock().open.remove(&id);
            if let Some(then) = then {
                let answer = match outcome {
                    Ok(value) => Answer::Returned(value),
                    Err(abort) => Answer::Aborted(abort),
                };
                then(Some(tid), answer);
            }
        }
        drop(waiting);
        self.read(upto, Some(READ));
    }
}
