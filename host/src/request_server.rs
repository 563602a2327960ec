//! Requests of clients, and their replies.
//!
//! A request is appended to the log, and its reply is found in the outputs, whichever process has
//! executed it. So it gets a reply even if every other process has died meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::{Condvar, Mutex};
use tidemill_cluster::{
    Events, Log, Output, Record, Records, Refused, Request, RequestId, Then, Topic,
};
use tidemill_core::Value;
use tidemill_env::Env;
use tidemill_function::{Call, Tid};
use tidemill_place::{Partition, PARTITIONS};
use tidemill_txn::program::Abort;

/// The number of outputs that are read at once.
const READ: usize = 4096;
/// The time for which a read waits for more outputs, in microseconds.
const WAIT_US: u64 = 1_000_000;

/// The maximum time to find the end of the outputs.
const BEGIN: Duration = Duration::from_secs(10);

/// The answer to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The transaction has committed, and its function has returned this value.
    Returned(Value),
    /// It has aborted, for this reason.
    Aborted(Abort),
    /// It is unknown whether the request is in the log, and so whether it will be executed.
    Unknown,
}

/// A callback for the result of a request and its place in the order, which is `None` if it is
/// unknown.
pub type Placed = Box<dyn FnOnce(Option<Tid>, Answer) + Send>;

/// Takes the replies to requests of another process.
pub(crate) type Route = Arc<dyn Fn(Vec<Output>) + Send + Sync>;

/// The request server, to which clients send requests, and from which replies come.
pub struct RequestServer {
    log: Arc<dyn Log>,
    /// The number of sources that it appends to: the first of the `outputs` sources that have
    /// outputs.
    sources: u32,
    outputs: u32,
    own: u64,
    waiting: Arc<Mutex<Waiting>>,
    begun: Once,
}

#[derive(Default)]
struct Waiting {
    count: u64,
    open: HashMap<RequestId, Placed, FixedState>,
    /// The request servers of other processes, by the number that their ids begin with.
    routes: HashMap<u64, Route, FixedState>,
    /// Whether it gets its replies from the coordinator, which does not send them now.
    is_cut_off: bool,
}

/// The number that a request id begins with, if a request server has made it.
fn own_of(id: &RequestId) -> Option<u64> {
    let own: [u8; 8] = id.get(..8)?.try_into().ok()?;
    (id.len() == 16).then(|| u64::from_be_bytes(own))
}

impl RequestServer {
    /// Creates a request server without requests. It uses the first `sources` of all sources.
    pub fn open(env: &Env, log: Arc<dyn Log>, (sources, outputs): (u32, u32)) -> RequestServer {
        let (own, waiting) = (env.random.next_u64(), Arc::default());
        let begun = Once::new();
        RequestServer { log, sources, outputs, own, waiting, begun }
    }

    /// Creates a request server in a process that reads no outputs: the coordinator sends it the
    /// replies. Until it does, requests are refused.
    pub(crate) fn cut_off(env: &Env, log: Arc<dyn Log>, sources: u32) -> RequestServer {
        let server = RequestServer::open(env, log, (sources, 0));
        server.waiting.lock().is_cut_off = true;
        server
    }

    /// Returns the number that its requests' ids begin with.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// Sends the replies to another process's requests, by its number, to `route` from now on.
    pub(crate) fn connect(&self, own: u64, route: Route) {
        self.waiting.lock().routes.insert(own, route);
    }

    /// Sends no more replies to another process.
    pub(crate) fn disconnect(&self, own: u64) {
        self.waiting.lock().routes.remove(&own);
    }

    /// Notes that the coordinator sends the replies from now on.
    pub(crate) fn connected(&self) {
        self.waiting.lock().is_cut_off = false;
    }

    /// Notes that the coordinator sends no more replies.
    pub(crate) fn broken(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_cut_off = true;
        let open = std::mem::take(&mut waiting.open);
        drop(waiting);
        open.into_values().for_each(|then| then(None, Answer::Unknown));
    }

    /// Takes replies, of which some may be to requests that nobody waits for any more.
    pub(crate) fn replied(&self, replies: Vec<Output>) {
        for reply in replies {
            if let Output::Reply { tid, id, outcome } = reply {
                let open = self.waiting.lock().open.remove(&id);
                if let Some(then) = open {
                    answered(then, tid, outcome);
                }
            }
        }
    }

    /// Starts to read new outputs, unless that has happened. If clients connect in other ways only,
    /// nothing needs to be read. Reading ends when the request server has been dropped.
    pub fn begin(&self) {
        self.begun.call_once(|| {
            let unknown: Arc<Unknown> = Arc::new((Mutex::new(self.outputs), Condvar::new()));
            for source in 0..self.outputs {
                let (log, waiting) = (Arc::downgrade(&self.log), Arc::downgrade(&self.waiting));
                let unknown = Some(unknown.clone());
                let tail = Tail { log, waiting, source, unknown };
                // Earlier outputs are not needed. This read only finds where they end.
                tail.read(u64::MAX, None);
            }
            // Without this wait, the reply to a new request might be missed.
            let (count, known) = &*unknown;
            known.wait_while_for(&mut count.lock(), |count| *count > 0, BEGIN);
        });
    }

    /// Returns the number of sources that it appends to.
    pub fn sources(&self) -> u32 {
        self.sources
    }

    /// Returns the source for a call. If shares are equal, the reader of the source owns the
    /// entity.
    pub fn source_of(&self, partition: Partition) -> u32 {
        source_of(partition, self.sources)
    }

    /// Returns the number of requests that wait for their replies.
    pub fn open_requests(&self) -> usize {
        self.waiting.lock().open.len()
    }

    /// Appends a request to a source. If it gets into the log, it is executed exactly once.
    pub fn call(&self, source: u32, call: Call, then: Then<Answer>) {
        self.call_placed(source, call, Box::new(move |_, answer| then(answer)));
    }

    /// Appends a request like [`RequestServer::call`], and reports its place in the order.
    pub fn call_placed(&self, source: u32, call: Call, then: Placed) {
        self.call_together(source, vec![(call, then)]);
    }

    /// Appends events to a source. If they get into the log, each is executed exactly once. Nobody
    /// waits for a result. `then` gets the record's offset.
    pub fn send(&self, source: u32, events: Events, then: Then<Result<u64, Refused>>) {
        self.log.append(Topic::Input(source), 0, Record::Events(events), then);
    }

    /// Returns the log.
    pub fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    /// Appends several requests to a source as one record. Either all of them are in the log or
    /// none, and they are executed in their order.
    pub fn call_together(&self, source: u32, calls: Vec<(Call, Placed)>) {
        self.begin();
        let mut waiting = self.waiting.lock();
        if waiting.is_cut_off {
            drop(waiting);
            return calls.into_iter().for_each(|(_, then)| then(None, Answer::Unknown));
        }
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
            // A successful append needs no report, because the replies follow.
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

/// Returns the source, of this many, whose reader owns a partition if shares are equal.
pub fn source_of(partition: Partition, sources: u32) -> u32 {
    (u64::from(partition.0) * u64::from(sources) / u64::from(PARTITIONS)) as u32
}

/// The number of sources whose outputs have an unknown end.
type Unknown = (Mutex<u32>, Condvar);

/// Reads the outputs of one source.
struct Tail {
    log: Weak<dyn Log>,
    waiting: Weak<Mutex<Waiting>>,
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
        let mut elsewhere: Vec<(Route, Vec<Output>)> = Vec::new();
        for output in outputs.flatten() {
            let Output::Reply { tid, id, outcome } = output else { continue };
            let mut all = waiting.lock();
            if let Some(then) = all.open.remove(&id) {
                drop(all);
                answered(then, tid, outcome);
                continue;
            }
            let route = own_of(&id).and_then(|own| all.routes.get(&own)).cloned();
            drop(all);
            let Some(route) = route else { continue };
            let reply = Output::Reply { tid, id, outcome };
            match elsewhere.iter_mut().find(|(of, _)| Arc::ptr_eq(of, &route)) {
                Some((_, replies)) => replies.push(reply),
                None => elsewhere.push((route, vec![reply])),
            }
        }
        elsewhere.into_iter().for_each(|(route, replies)| route(replies));
        drop(waiting);
        self.read(upto, Some(READ));
    }
}

/// Gives the caller of a request its result.
fn answered(then: Placed, tid: Tid, outcome: Result<Value, Abort>) {
    then(
        Some(tid),
        match outcome {
            Ok(value) => Answer::Returned(value),
            Err(abort) => Answer::Aborted(abort),
        },
    );
}
