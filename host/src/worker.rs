//! The process of a worker.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_cluster::wire::take_record;
use tidemill_cluster::{Input, Log, Member, Packet, Record, SplitLog, Worker};
use tidemill_core::{Error, Result};
use tidemill_durable::{Store, Trouble};
use tidemill_env::{Addr, Clock, Env, Handle};
use tidemill_function::Functions;
use tidemill_mesh::{Event, Lane, Mesh, Peer, Sink};
use tidemill_txn::pool::Pool;
use tracing::{debug, error, info, warn};

use crate::drive::{address, drive, Busy, Resources, Seen};
use crate::inbox::Inbox;
use crate::message::Message;
use crate::outside::Outboxes;
use crate::questions::Questions;
use crate::request_server::RequestServer;
use crate::served::RemoteLog;
use crate::{Settings, Shared, COORDINATOR};

/// The time that a leaving worker waits for its release, in leases. The coordinator needs at most
/// one lease and a little more.
const LEASES: u64 = 2;
/// The interval at which a lasting trouble is reported, in nanoseconds.
const TELL_NS: u64 = 1_000_000_000;
/// The time after which a coordinator that still starts is asked again for replies, in nanoseconds.
const CONNECT_NS: u64 = 200_000_000;

/// The reason why a worker has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Stopped,
    /// The coordinator refuses it, for this reason.
    Refused(String),
    /// It can't continue, for this reason. Another worker may be started in its place.
    Failed(String),
}

/// The logs that a worker reads, and appends to.
#[derive(Default)]
pub struct WorkerLogs {
    /// The log of the cluster. Without one, it is the log that the coordinator serves.
    pub log: Option<Arc<dyn Log>>,
    /// The inputs of some sources that this process reads elsewhere.
    pub inputs: Vec<(Range<u32>, Arc<dyn Log>)>,
}

/// A worker's coordinator, as other parts of the worker's process reach it.
#[derive(Clone)]
pub struct CoordinatorLink {
    state: Weak<ProcessState>,
}

impl CoordinatorLink {
    /// Asks the coordinator, and waits at most this long for the answer. Returns `None` if there is
    /// none, at once if the coordinator is not connected.
    pub fn ask(&self, question: Vec<u8>, wait: Duration) -> Option<Vec<u8>> {
        self.connection()?;
        self.state.upgrade()?.questions.get()?.ask(question, wait)
    }

    /// The number of the present connection. It is `None` while there is none.
    pub fn connection(&self) -> Option<u64> {
        let state = self.state.upgrade()?;
        let is_connected = state.unconnected_since_ns.load(Ordering::Acquire) == 0;
        is_connected.then(|| state.connections.load(Ordering::Acquire))
    }

    /// Returns the logs that the coordinator serves, while the worker runs.
    pub fn served(&self) -> Option<Arc<dyn Log>> {
        self.state.upgrade().map(|state| state.served())
    }
}

/// A running worker.
pub struct WorkerProcess {
    mesh: Arc<Mesh>,
    state: Arc<ProcessState>,
    threads: Mutex<Vec<Handle>>,
    log: Arc<dyn Log>,
    outboxes: Option<Arc<dyn Outboxes>>,
    coordinator: Addr,
    lease_us: u64,
}

/// The state that its threads share.
struct ProcessState {
    me: Peer,
    inbox: Arc<Inbox>,
    mesh: OnceLock<Weak<Mesh>>,
    /// The log that the coordinator serves, if it does.
    remote: OnceLock<Arc<RemoteLog>>,
    questions: OnceLock<Questions>,
    /// The request server and the address of its clients, if it answers any.
    clients: OnceLock<(Arc<RequestServer>, String)>,
    /// When the coordinator was asked last to send replies, in nanoseconds; `u64::MAX` once it does.
    connect_at_ns: AtomicU64,
    ended: Mutex<Option<Ended>>,
    end: Condvar,
    status: Mutex<String>,
    trouble: Trouble,
    clock: Arc<dyn Clock>,
    /// The time since when the coordinator has not been connected, in nanoseconds; 0 when it is.
    unconnected_since_ns: AtomicU64,
    /// The number of connections to the coordinator so far.
    connections: AtomicU64,
    /// Whether the connected coordinator has been sent the process id.
    has_process: AtomicBool,
}

impl WorkerProcess {
    /// Joins a cluster as soon as its coordinator is reachable, and executes its part from then on.
    /// An app with outboxes needs `outboxes`, which have work done outside.
    ///
    /// # Errors
    /// If it can't listen at the address.
    pub fn start(
        env: &Env,
        settings: Settings,
        coordinator: Addr,
        (functions, pool): (Arc<dyn Functions>, Arc<dyn Pool>),
        logs: WorkerLogs,
        store: Arc<dyn Store>,
        outboxes: Option<Arc<dyn Outboxes>>,
    ) -> Result<WorkerProcess> {
        // A random number is very unlikely to be used by another process.
        let me = Peer(((env.random.next_u64() >> 33) as u32).max(1));
        let inbox = Arc::new(Inbox::default());
        let state = Arc::new(ProcessState {
            me,
            inbox: inbox.clone(),
            mesh: OnceLock::new(),
            remote: OnceLock::new(),
            questions: OnceLock::new(),
            clients: OnceLock::new(),
            connect_at_ns: AtomicU64::new(0),
            ended: Mutex::default(),
            end: Condvar::new(),
            status: Mutex::default(),
            trouble: Trouble::default(),
            clock: env.clock.clone(),
            unconnected_since_ns: AtomicU64::new(env.clock.monotonic_ns().max(1)),
            connections: AtomicU64::new(0),
            has_process: AtomicBool::new(false),
        });
        let mesh = Mesh::listen(env, &settings.listen, settings.mesh(me), state.clone())?;
        let mesh = Arc::new(mesh);
        // This is the only place that sets it.
        let _ = state.mesh.set(Arc::downgrade(&mesh));
        state.questions.get_or_init(|| Questions::new(Arc::downgrade(&mesh)));
        let mut log = logs.log.unwrap_or_else(|| state.served());
        for (sources, inputs) in logs.inputs {
            log = Arc::new(SplitLog::inputs(sources, inputs, log));
        }
        if let Some(outboxes) = &outboxes {
            outboxes.begin(log.clone())?;
        }
        let shared = Shared { log: log.clone(), store };
        let (lease_us, beat_us) = (settings.machine.lease_us, settings.machine.beat_us);
        let resources =
            Resources::new(env, &mesh, shared, inbox, &settings.cluster, outboxes.clone())?;
        let beats = resources.busy.clone();
        let joined = coordinator.clone();
        let own = state.clone();
        let body = move || {
            let mut machine = Worker::new(Member(me.0), functions, settings.machine).on(pool);
            let mut reported_at_ns = 0;
            let why = drive(&mut machine, &resources, settings.tick_us, &mut |machine, seen| {
                if let Seen::Tick = seen {
                    resources.mesh.link(COORDINATOR, Some(coordinator.clone()));
                    own.has_status(machine.status());
                    own.report(&resources, &mut reported_at_ns);
                    own.introduce(&resources.mesh);
                    if machine.has_left() {
                        own.ended(Ended::Stopped);
                    }
                    if let Some(error) = resources.shared.log.failed() {
                        own.ended(Ended::Failed(error.to_string()));
                    }
                }
            });
            own.ended(why.map_or(Ended::Stopped, Ended::Failed));
        };
        let failed = |e| Error::io("starting a thread", &e);
        let executes = env.threads.spawn("worker", Box::new(body)).map_err(failed)?;
        let (own, at, clock) = (state.clone(), mesh.clone(), env.clock.clone());
        let lives = move || own.beat(&at, &*clock, &beats, beat_us);
        let lives = env.threads.spawn("worker-beat", Box::new(lives)).map_err(failed)?;
        let threads = Mutex::new(vec![executes, lives]);
        let (worker, address, to) =
            (me.to_string(), mesh.address().to_string(), joined.to_string());
        info!(target: "tidemill::cluster", worker, address, coordinator = to, "joining");
        let coordinator = joined;
        Ok(WorkerProcess { mesh, state, threads, log, outboxes, coordinator, lease_us })
    }

    /// Returns its number.
    pub fn number(&self) -> u32 {
        self.state.me.0
    }

    /// Returns the address at which others reach it.
    pub fn address(&self) -> Addr {
        self.mesh.address()
    }

    /// Returns its coordinator.
    pub fn coordinator(&self) -> CoordinatorLink {
        CoordinatorLink { state: Arc::downgrade(&self.state) }
    }

    /// Takes requests to the first `sources` sources. Replies come once clients are answered
    /// ([`WorkerProcess::answers_clients`]).
    pub fn request_server(&self, env: &Env, sources: u32) -> RequestServer {
        RequestServer::cut_off(env, self.log.clone(), sources)
    }

    /// Answers clients at an address, through this request server, as long as the coordinator is
    /// connected. Only the first call counts.
    pub fn answers_clients(&self, server: &Arc<RequestServer>, address: &str) {
        let _ = self.state.clients.set((server.clone(), address.to_owned()));
    }

    /// Returns its current activity as text.
    pub fn status(&self) -> String {
        self.state.status.lock().clone()
    }

    /// Returns what holds it up, as text: a log or a store that does not answer, or a coordinator
    /// that has not been there for a lease.
    pub fn trouble(&self) -> Option<String> {
        let since_ns = self.state.unconnected_since_ns.load(Ordering::Acquire);
        let unconnected_us = self.state.clock.monotonic_ns().saturating_sub(since_ns) / 1_000;
        let is_unconnected = since_ns > 0 && unconnected_us > self.lease_us;
        let why = || format!("no coordinator answers at {}; it tries again", self.coordinator);
        self.state.trouble.now().or_else(|| is_unconnected.then(why))
    }

    /// Asks the others to continue without it, waits until they do, but not for long, and ends it.
    pub fn leave(&self) {
        self.state.inbox.push(Input::Leave);
        self.wait(LEASES * self.lease_us);
        self.end();
    }

    /// Ends it, and waits until its threads have ended.
    pub fn end(&self) {
        self.state.inbox.close();
        if let Some(outboxes) = &self.outboxes {
            outboxes.end();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A panic of the state machine has been reported as the reason of its end.
            let _ = thread.join();
        }
    }

    /// Waits at most this long for its end.
    pub fn wait(&self, wait_us: u64) -> Option<Ended> {
        let mut ended = self.state.ended.lock();
        if ended.is_none() {
            self.state.end.wait_for(&mut ended, Duration::from_micros(wait_us));
        }
        ended.clone()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.end();
    }
}

impl ProcessState {
    fn served(&self) -> Arc<dyn Log> {
        let mesh = || self.mesh.get().cloned().unwrap_or_default();
        self.remote.get_or_init(|| Arc::new(RemoteLog::new(mesh()))).clone()
    }

    fn has_status(&self, now: String) {
        let mut status = self.status.lock();
        if *status != now {
            debug!(target: "tidemill::cluster", status = now, "worker");
        }
        *status = now;
    }

    fn ended(&self, how: Ended) {
        let mut ended = self.ended.lock();
        if ended.is_none() {
            match &how {
                Ended::Stopped => info!(target: "tidemill::engine", "stop"),
                Ended::Refused(why) => error!(target: "tidemill::cluster", why, "refused"),
                Ended::Failed(why) => error!(target: "tidemill::engine", why, "stop"),
            }
        }
        ended.get_or_insert(how);
        drop(ended);
        self.inbox.close();
        self.end.notify_all();
    }

    /// Sends beats while the worker executes something longer than a beat, until it has ended. If
    /// the whole process hangs, it sends none.
    fn beat(&self, mesh: &Mesh, clock: &dyn Clock, busy: &Busy, beat_us: u64) {
        loop {
            let mut ended = self.ended.lock();
            if ended.is_none() {
                self.end.wait_for(&mut ended, Duration::from_micros(beat_us));
            }
            if ended.is_some() {
                return;
            }
            // Nothing is locked during the send.
            drop(ended);
            if let Some(generation) = busy.for_long(clock.monotonic_ns(), beat_us) {
                let message = Message::Packets(vec![Packet::Beat { generation }]);
                mesh.send(COORDINATOR, Lane::Urgent, message.bytes());
            }
        }
    }

    /// Reports to the coordinator what holds the worker up, repeatedly, and once that it is over.
    fn report(&self, resources: &Resources, reported_at_ns: &mut u64) {
        let now_ns = resources.env.clock.monotonic_ns();
        let (had, has) = (self.trouble.now(), resources.trouble());
        let is_due = has.is_some() && now_ns >= *reported_at_ns + TELL_NS;
        if had == has && !is_due {
            return;
        }
        *reported_at_ns = now_ns;
        let what = has.clone().unwrap_or_default();
        match has {
            Some(what) => {
                if had.is_none() {
                    warn!(target: "tidemill::cluster", what, "waits");
                }
                self.trouble.has(what);
            }
            None => {
                info!(target: "tidemill::cluster", "continues");
                self.trouble.is_over();
            }
        }
        resources.mesh.send(COORDINATOR, Lane::Urgent, Message::Trouble(what).bytes());
    }

    /// Sends the process id to a coordinator that does not have it yet, and asks it for the replies
    /// to requests.
    fn introduce(&self, mesh: &Mesh) {
        let is_connected = self.unconnected_since_ns.load(Ordering::Acquire) == 0;
        if is_connected && !self.has_process.swap(true, Ordering::AcqRel) {
            mesh.send(COORDINATOR, Lane::Urgent, Message::Process(std::process::id()).bytes());
        }
        let Some((server, address)) = self.clients.get().filter(|_| is_connected) else { return };
        let now_ns = self.clock.monotonic_ns();
        let asked_ns = self.connect_at_ns.load(Ordering::Acquire);
        if asked_ns < u64::MAX && (asked_ns == 0 || now_ns > asked_ns + CONNECT_NS) {
            self.connect_at_ns.store(now_ns.max(1), Ordering::Release);
            let message = Message::Connect { own: server.own(), address: address.clone() };
            mesh.send(COORDINATOR, Lane::Urgent, message.bytes());
        }
    }

    /// Takes the addresses of the others. Of two workers, the one with the smaller number connects.
    fn directory(&self, mesh: &Mesh, peers: Vec<(Peer, Addr)>) {
        for (peer, at) in peers {
            if peer != self.me {
                mesh.link(peer, (self.me < peer).then_some(at));
            }
        }
    }
}

impl Sink for ProcessState {
    fn take(&self, event: Event) {
        let mesh = self.mesh.get().and_then(Weak::upgrade);
        match event {
            Event::Up { peer: COORDINATOR, .. } => {
                self.connections.fetch_add(1, Ordering::AcqRel);
                self.unconnected_since_ns.store(0, Ordering::Release);
                info!(target: "tidemill::cluster", "coordinator connected");
            }
            Event::Up { peer, .. } => {
                debug!(target: "tidemill::cluster", worker = peer.to_string(), "worker connected");
            }
            Event::Message { peer, bytes } => {
                let message = Message::of(&bytes);
                let is_answer = |message| match self.remote.get().filter(|_| peer == COORDINATOR) {
                    Some(remote) => remote.answered(message),
                    None => Some(message),
                };
                match (message.map(is_answer), mesh) {
                    (Some(None), _) => {}
                    (Some(Some(Message::Packets(packets))), _) => {
                        let from = address(peer);
                        let inputs =
                            packets.into_iter().map(|packet| Input::Packet { from, packet });
                        self.inbox.push_all(inputs);
                    }
                    (Some(Some(Message::Directory(peers))), Some(mesh)) if peer == COORDINATOR => {
                        self.directory(&mesh, peers);
                    }
                    (Some(Some(Message::Connected)), _) if peer == COORDINATOR => {
                        self.connect_at_ns.store(u64::MAX, Ordering::Release);
                        self.clients.get().into_iter().for_each(|(server, _)| server.connected());
                    }
                    (Some(Some(Message::Replies(record))), _) if peer == COORDINATOR => {
                        let record = take_record(&mut &record[..]);
                        if let (Some((server, _)), Some(Record::Outputs(replies))) =
                            (self.clients.get(), record)
                        {
                            server.replied(replies);
                        }
                    }
                    (Some(Some(Message::Answer { call, answer })), _) if peer == COORDINATOR => {
                        if let Some(questions) = self.questions.get() {
                            questions.answered(call, answer);
                        }
                    }
                    // The peer knows the secret, but its message is invalid.
                    (_, Some(mesh)) => mesh.unlink(peer),
                    (_, None) => {}
                }
            }
            Event::Down { peer, why } => {
                if peer == COORDINATOR {
                    let now_ns = self.clock.monotonic_ns().max(1);
                    self.has_process.store(false, Ordering::Release);
                    let since_ns = &self.unconnected_since_ns;
                    let (set, seen) = (Ordering::AcqRel, Ordering::Acquire);
                    // Each message that can't be sent is reported like this, too.
                    if since_ns.compare_exchange(0, now_ns, set, seen).is_ok() {
                        warn!(target: "tidemill::cluster", why, "coordinator lost");
                    }
                } else {
                    let worker = peer.to_string();
                    debug!(target: "tidemill::cluster", worker, why, "worker disconnected");
                }
                if peer == COORDINATOR {
                    self.remote.get().into_iter().for_each(|remote| remote.broken());
                    self.questions.get().into_iter().for_each(Questions::broken);
                    self.connect_at_ns.store(0, Ordering::Release);
                    self.clients.get().into_iter().for_each(|(server, _)| server.broken());
                }
                self.inbox.push(Input::Broken { to: address(peer) });
            }
            Event::Refused { peer: Some(COORDINATOR), why } => self.ended(Ended::Refused(why)),
            Event::Refused { .. } => {}
        }
    }
}
