//! The process of a coordinator.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_cluster::wire::put_record;
use tidemill_cluster::{
    Buffered, Coordinator, Counts, Fault, Input, LateEvent, Left, LeftOut, Packet, Progress,
    Record, SourceProgress, Suspicion, Times, Written, WrongClock,
};
use tidemill_core::{Error, Result, TableId};
use tidemill_env::{Addr, Env, Handle};
use tidemill_mesh::{Event, Lane, Mesh, Peer, Sink};
use tracing::{debug, error, info, trace, warn};

use crate::drive::{address, drive, Resources, Seen};
use crate::inbox::Inbox;
use crate::marks::LeftMarks;
use crate::message::Message;
use crate::questions::Answers;
use crate::rates::Rates;
use crate::request_server::RequestServer;
use crate::served::{serve, Served};
use crate::{Settings, Shared, COORDINATOR};

/// The reason of an end that the coordinator has decided on, or that it was asked for.
pub const ENDED: &str = "it was stopped";
/// The longest time for the last requests, in microseconds.
const DRAIN_WAIT_US: u64 = 10_000_000;
/// The number of refused connections that are remembered.
const REFUSALS: usize = 16;

/// The status of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The running generation, or 0 if there is none.
    pub generation: u64,
    /// Its members and their addresses.
    pub members: Vec<(Peer, Addr)>,
    /// The process ids of the connected workers, each on its own machine.
    pub processes: BTreeMap<Peer, u32>,
    /// The addresses at which workers answer clients.
    pub clients_at: BTreeMap<Peer, String>,
    /// The last cut.
    pub epoch: u64,
    /// The last cut that all members have executed, if a generation runs.
    pub executed: Option<u64>,
    /// The epoch of the snapshot that a recovery would go back to.
    pub snapshot: u64,
    /// The progress of each source.
    pub sources: Vec<SourceProgress>,
    /// The progress of event time at the last cut.
    pub times: Times,
    /// The buffered events, and the number of late events since the beginning.
    pub buffered: Buffered,
    /// The number of rows that ask for work outside, once the last cut has been executed
    /// completely. `None` if the app has no outboxes.
    pub outside: Option<u64>,
    /// The counts of transactions since the beginning.
    pub counts: Arc<Counts>,
    /// The functions that gave other results when they ran again since the coordinator has started,
    /// with the number of times.
    pub unstable: BTreeMap<Arc<str>, u64>,
    /// The recent rate of each source, in cut requests per second.
    pub per_s: Vec<f64>,
    /// The workers that are alive but left out for some time, because they can't reach members.
    pub left_out: Vec<LeftOut>,
    /// The processes that are held up, each with the reason as text.
    pub troubles: Vec<(Peer, String)>,
    /// The reasons of the last refused connections, the newest first.
    pub refused: Vec<String>,
    /// The reason why it has ended, if it has.
    pub ended: Option<String>,
    /// The late event for which it ends, if late events of that stream are errors. It ends as soon
    /// as it has a snapshot.
    pub late_event: Option<LateEvent>,
    /// The fault for which it ends, if a fault ends the run. It ends as soon as it has a snapshot of
    /// everything before.
    pub fault: Option<Fault>,
    /// The bytes of memory of all workers for which it ends, because they are too many. It ends as
    /// soon as it has a snapshot.
    pub over_memory: Option<u64>,
    /// The fault of its clock, and the clock's time.
    pub wrong_clock: Option<(WrongClock, i64)>,
    /// Whether it has ended cleanly, with everything executed in a snapshot.
    pub is_whole: bool,
}

impl Status {
    /// Returns the number of requests of each source that are in no cut.
    pub fn lag(&self) -> Vec<u64> {
        self.sources.iter().map(|source| source.waiting).collect()
    }

    /// Takes counts, unless they are behind: while transactions run again, the last counts are better
    /// than those of the snapshot.
    fn has_counts(&mut self, counts: Arc<Counts>) {
        let results = |of: &Counts| of.ended + of.refused + of.faults;
        if results(&counts) >= results(&self.counts) {
            self.counts = counts;
        }
    }

    /// Returns the rate of each source relative to the mean. It is 1 for all if there are no
    /// requests.
    pub fn skew(&self) -> Vec<f64> {
        let mean = self.per_s.iter().sum::<f64>() / self.per_s.len().max(1) as f64;
        self.per_s.iter().map(|rate| if mean > 0.0 { rate / mean } else { 1.0 }).collect()
    }
}

/// Describes transactions that workers may have died of.
fn suspected(Suspicion { deaths, places }: Suspicion) -> String {
    let what = match places {
        1 => "one transaction was executed".into(),
        _ => format!("at most {places} transactions were executed"),
    };
    format!("{deaths} workers in a row have ended while {what}; it is found out which one it is")
}

/// A running coordinator.
pub struct CoordinatorProcess {
    mesh: Arc<Mesh>,
    state: Arc<ProcessState>,
    thread: Mutex<Option<Handle>>,
}

/// The parts of the coordinator that serve the clients of workers.
struct Desk {
    env: Env,
    server: Weak<RequestServer>,
    answers: Weak<dyn Answers>,
}

/// The state that its threads share.
struct ProcessState {
    inbox: Arc<Inbox>,
    served: Served,
    mesh: OnceLock<Weak<Mesh>>,
    directory: Mutex<BTreeMap<Peer, Addr>>,
    refused: Mutex<VecDeque<String>>,
    troubles: Mutex<BTreeMap<Peer, String>>,
    processes: Mutex<BTreeMap<Peer, u32>>,
    /// The workers that answer clients: the number of each one's requests, and its address.
    clients_at: Mutex<BTreeMap<Peer, (u64, String)>>,
    desk: OnceLock<Desk>,
    status: Mutex<Status>,
    rates: Mutex<Rates>,
    marks: LeftMarks,
    /// The last transaction that was reported as one that ends workers.
    quarantined: AtomicU64,
    /// Notified when the status says that it has ended.
    end: Condvar,
}

impl CoordinatorProcess {
    /// Starts to listen, and to form generations of the workers that connect. `served` has the logs
    /// that it serves to others.
    ///
    /// # Errors
    /// If it can't listen at the address.
    pub fn start(
        env: &Env,
        settings: Settings,
        shared: Shared,
        served: Served,
    ) -> Result<CoordinatorProcess> {
        let inbox = Arc::new(Inbox::default());
        let state = Arc::new(ProcessState {
            inbox: inbox.clone(),
            served,
            mesh: OnceLock::new(),
            directory: Mutex::default(),
            refused: Mutex::default(),
            troubles: Mutex::default(),
            processes: Mutex::default(),
            clients_at: Mutex::default(),
            desk: OnceLock::new(),
            status: Mutex::default(),
            rates: Mutex::default(),
            marks: LeftMarks::default(),
            quarantined: AtomicU64::new(0),
            end: Condvar::new(),
        });
        let mesh = Mesh::listen(env, &settings.listen, settings.mesh(COORDINATOR), state.clone())?;
        let mesh = Arc::new(mesh);
        // This is the only place that sets it.
        let _ = state.mesh.set(Arc::downgrade(&mesh));
        let resources = Resources::new(env, &mesh, shared, inbox, &settings.cluster, None)?;
        let own = state.clone();
        let body = move || {
            let mut machine = Coordinator::new(settings.machine);
            let why = drive(&mut machine, &resources, settings.tick_us, &mut |machine, seen| {
                own.seen(machine, &resources, seen);
            });
            machine.left().into_iter().for_each(|left| own.marks.add(left));
            let found = machine.progress();
            let mut status = own.status.lock();
            (status.epoch, status.snapshot) =
                (status.epoch.max(found.epoch), status.snapshot.max(found.snapshot));
            // The last epochs may have ended since the last tick.
            status.has_counts(found.counts);
            status.unstable = found.unstable;
            status.outside = found.outside.or(status.outside);
            status.late_event = machine.late_event().cloned();
            status.fault = machine.fault().cloned();
            if let Some(Fault { what, line }) = &status.fault {
                error!(target: "tidemill::function", what, line, "fault");
            }
            status.over_memory = machine.over_memory();
            status.is_whole = why.is_none() && status.ended.is_none() && machine.is_whole();
            let is_asked = why.is_none() && status.ended.is_none();
            let why = &**status.ended.get_or_insert_with(|| why.unwrap_or_else(|| ENDED.into()));
            match is_asked {
                true => info!(target: "tidemill::engine", why, "stop"),
                false => error!(target: "tidemill::engine", why, "stop"),
            }
            drop(status);
            own.end.notify_all();
            resources.inbox.close();
        };
        let thread = env.threads.spawn("coordinator", Box::new(body));
        let thread = thread.map_err(|e| Error::io("starting a thread", &e))?;
        let thread = Mutex::new(Some(thread));
        Ok(CoordinatorProcess { mesh, state, thread })
    }

    /// Ends cleanly. If it serves the log, it refuses further requests to the first `sources` sources,
    /// and executes the ones that are there. Then it stops cutting new epochs. Waits at most `wait_us`
    /// microseconds until everything executed is in a snapshot, and returns whether it is.
    pub fn leave(&self, sources: u32, wait_us: u64) -> bool {
        let ends = self.state.served.log.as_ref().and_then(|log| log.close_inputs(sources));
        if let Some(ends) = ends {
            self.state.inbox.push(Input::Drain { ends });
            self.wait_for_end(wait_us.min(DRAIN_WAIT_US));
        }
        self.state.inbox.push(Input::Leave);
        self.wait_for_end(wait_us);
        self.state.status.lock().is_whole
    }

    fn wait_for_end(&self, wait_us: u64) {
        let mut status = self.state.status.lock();
        let wait = Duration::from_micros(wait_us);
        self.state.end.wait_while_for(&mut status, |status| status.ended.is_none(), wait);
    }

    /// Returns the epochs whose outputs have left completely, each time that there are more.
    /// Returns `None` if there are none within this time.
    pub fn left(&self, wait: Duration) -> Option<Left> {
        self.state.marks.next(wait)
    }

    /// Reports which outputs have been written elsewhere, so that the next snapshot records it.
    pub fn has_written(&self, written: Written) {
        self.state.inbox.push(Input::Written(written.into()));
    }

    /// Answers the questions of workers, and sends them the replies to their clients' requests, from
    /// now on. Only the first call counts.
    pub fn serves(&self, env: &Env, server: &Arc<RequestServer>, answers: Weak<dyn Answers>) {
        let desk = Desk { env: env.clone(), server: Arc::downgrade(server), answers };
        let _ = self.state.desk.set(desk);
    }

    /// Has changes of a table reported, from the next cut on.
    pub fn follow(&self, table: TableId) {
        self.state.inbox.push(Input::Follow(table));
    }

    /// Returns the address at which workers reach it.
    pub fn address(&self) -> Addr {
        self.mesh.address()
    }

    /// Returns its status.
    pub fn status(&self) -> Status {
        let mut status = self.state.status.lock().clone();
        let troubles = self.state.troubles.lock();
        status.troubles = troubles.iter().map(|(who, what)| (*who, what.clone())).collect();
        drop(troubles);
        status.processes = self.state.processes.lock().clone();
        let clients_at = self.state.clients_at.lock();
        status.clients_at = clients_at.iter().map(|(peer, (_, at))| (*peer, at.clone())).collect();
        drop(clients_at);
        status.refused = self.state.refused.lock().iter().cloned().collect();
        status
    }
}

impl Drop for CoordinatorProcess {
    fn drop(&mut self) {
        self.state.inbox.close();
        if let Some(thread) = self.thread.lock().take() {
            // A panic has been reported as the reason of its end.
            let _ = thread.join();
        }
    }
}

impl ProcessState {
    /// Sends the replies to a worker's requests to it from now on. A coordinator that still starts
    /// does nothing; the worker asks again.
    fn connect(&self, mesh: &Weak<Mesh>, peer: Peer, own: u64, address: String) {
        let Some(Desk { env, server, .. }) = self.desk.get() else { return };
        self.clients_at.lock().insert(peer, (own, address));
        let (mesh, server) = (mesh.clone(), server.clone());
        let connect = move || {
            let Some(server) = server.upgrade() else { return };
            // This waits until the end of the outputs is known.
            server.begin();
            let at = mesh.clone();
            let route = move |replies| {
                let mut record = Vec::new();
                put_record(&Record::Outputs(replies), &mut record);
                if let Some(mesh) = at.upgrade() {
                    mesh.send(peer, Lane::Urgent, Message::Replies(record).bytes());
                }
            };
            server.connect(own, Arc::new(route));
            if let Some(mesh) = mesh.upgrade() {
                mesh.send(peer, Lane::Urgent, Message::Connected.bytes());
            }
        };
        if let Err(error) = env.threads.spawn("connect-clients", Box::new(connect)) {
            let (worker, what) = (peer.to_string(), error.to_string());
            warn!(target: "tidemill::cluster", worker, what, "its clients wait");
        }
    }

    /// Notes what holds a process up, or that nothing does.
    fn trouble(&self, who: Peer, what: Option<String>) {
        let mut troubles = self.troubles.lock();
        let process = if who == COORDINATOR { "coordinator".into() } else { who.to_string() };
        match what {
            Some(what) if !troubles.contains_key(&who) => {
                warn!(target: "tidemill::cluster", process, what, "waits");
                troubles.insert(who, what);
            }
            Some(what) => drop(troubles.insert(who, what)),
            None if troubles.remove(&who).is_some() => {
                info!(target: "tidemill::cluster", process, "continues");
            }
            None => {}
        }
    }

    fn seen(&self, machine: &Coordinator, resources: &Resources, seen: Seen<'_>) {
        let Resources { mesh, shared: Shared { log, .. }, .. } = resources;
        match seen {
            // A new member first receives the addresses of the others.
            Seen::Sends(to, Packet::Form(_)) => {
                let peers = self.directory.lock().clone().into_iter().collect();
                // The directory is not locked during the send, which may report at once that the
                // link is down.
                mesh.send(to, Lane::Urgent, Message::Directory(peers).bytes());
            }
            Seen::Sends(..) => {}
            Seen::Follows(table, since) => {
                if let Some(answers) = self.desk.get().and_then(|desk| desk.answers.upgrade()) {
                    answers.follows(table, since);
                }
            }
            Seen::Changed(epoch, changes) => {
                if let Some(answers) = self.desk.get().and_then(|desk| desk.answers.upgrade()) {
                    answers.changed(epoch, changes);
                }
            }
            Seen::Tick => {
                if let Some(error) = log.failed() {
                    // It is no longer known what is durable.
                    self.status.lock().ended = Some(error.to_string());
                    self.end.notify_all();
                    return self.inbox.close();
                }
                let suspicion = machine.suspicion().filter(|of| of.deaths > 1).map(suspected);
                self.trouble(COORDINATOR, resources.trouble().or(suspicion));
                if let Some((tid, why)) = machine.last_verdict() {
                    if self.quarantined.swap(tid.0, Ordering::Relaxed) != tid.0 {
                        let transaction = tid.0;
                        warn!(target: "tidemill::source", transaction, why, "quarantined");
                    }
                }
                machine.left().into_iter().for_each(|left| self.marks.add(left));
                let found = machine.progress();
                let cuts: Vec<u64> = found.sources.iter().map(|source| source.taken).collect();
                let now_us = resources.env.clock.monotonic_ns() / 1000;
                let mut rates = self.rates.lock();
                // Between two generations the rates are unknown, and the earlier ones are retained.
                let per_s =
                    if cuts.is_empty() { Vec::new() } else { rates.at(now_us, &cuts).to_vec() };
                drop(rates);
                let mut status = self.status.lock();
                report(&status, &found, machine.wrong_clock());
                let directory = self.directory.lock();
                let at = |member: &tidemill_cluster::Member| {
                    let peer = Peer(member.0);
                    Some((peer, directory.get(&peer)?.clone()))
                };
                status.generation = found.generation;
                status.members = found.members.iter().filter_map(at).collect();
                status.snapshot = found.snapshot;
                status.executed = (found.generation != 0).then_some(found.executed);
                // Between two generations the others are unknown, and the last ones are retained.
                if found.generation != 0 {
                    status.epoch = found.epoch;
                    (status.sources, status.per_s) = (found.sources, per_s);
                    (status.times, status.buffered) = (found.times, found.buffered);
                }
                status.has_counts(found.counts);
                status.unstable = found.unstable;
                status.outside = found.outside;
                status.wrong_clock = machine.wrong_clock();
                status.left_out = found.left_out;
            }
        }
    }
}

/// Reports what differs from the status at the last tick.
fn report(before: &Status, now: &Progress, wrong_clock: Option<(WrongClock, i64)>) {
    for (function, times) in &now.unstable {
        if !before.unstable.contains_key(function) {
            warn!(target: "tidemill::function", %function, times, "not deterministic");
        }
    }
    if before.generation != now.generation {
        let (generation, ended, workers) = (now.generation, before.generation, now.members.len());
        match generation {
            0 => warn!(target: "tidemill::cluster", generation = ended, "generation ended"),
            _ => info!(target: "tidemill::cluster", generation, workers, "generation begun"),
        }
    }
    if before.snapshot != now.snapshot {
        debug!(target: "tidemill::snapshot", epoch = now.snapshot, "snapshot");
    }
    if before.epoch != now.epoch {
        trace!(target: "tidemill::engine", epoch = now.epoch, "epoch");
    }
    if before.left_out.len() < now.left_out.len() {
        let workers = now.left_out.len();
        warn!(target: "tidemill::cluster", workers, "workers left out");
    }
    if let (None, Some((wrong, now_us))) = (before.wrong_clock, wrong_clock) {
        let (clock, at) = (format!("{wrong:?}"), now_us);
        warn!(target: "tidemill::cluster", clock, now_us = at, "wrong clock");
    }
}

impl Sink for ProcessState {
    fn take(&self, event: Event) {
        match event {
            Event::Up { peer, address } => {
                let (worker, at) = (peer.to_string(), address.to_string());
                info!(target: "tidemill::cluster", worker, address = at, "worker joined");
                self.directory.lock().insert(peer, address);
            }
            Event::Message { peer, bytes } => {
                let nobody = Weak::new();
                let mesh = self.mesh.get().unwrap_or(&nobody);
                let message = Message::of(&bytes);
                let message = match message {
                    Some(message) => serve(&self.served, mesh, peer, message),
                    None => {
                        // The peer knows the secret, but its message is invalid.
                        if let Some(mesh) = mesh.upgrade() {
                            mesh.unlink(peer);
                        }
                        return;
                    }
                };
                match message {
                    Some(Message::Packets(packets)) => {
                        let from = address(peer);
                        let inputs =
                            packets.into_iter().map(|packet| Input::Packet { from, packet });
                        self.inbox.push_all(inputs);
                    }
                    Some(Message::Trouble(what)) => {
                        self.trouble(peer, Some(what).filter(|what| !what.is_empty()));
                    }
                    Some(Message::Process(id)) => {
                        self.processes.lock().insert(peer, id);
                    }
                    Some(Message::Connect { own, address }) => {
                        self.connect(mesh, peer, own, address);
                    }
                    Some(Message::Ask { call, question }) => {
                        let mesh = mesh.clone();
                        let then = move |answer| {
                            if let Some(mesh) = mesh.upgrade() {
                                let message = Message::Answer { call, answer };
                                mesh.send(peer, Lane::Urgent, message.bytes());
                            }
                        };
                        match self.desk.get().and_then(|desk| desk.answers.upgrade()) {
                            Some(answers) => answers.answer(peer, &question, Box::new(then)),
                            // A coordinator that starts or ends has no answer.
                            None => then(Vec::new()),
                        }
                    }
                    _ => {}
                }
            }
            Event::Down { peer, why } => {
                self.processes.lock().remove(&peer);
                let clients = self.clients_at.lock().remove(&peer);
                let server = self.desk.get().and_then(|desk| desk.server.upgrade());
                if let (Some((own, _)), Some(server)) = (clients, server) {
                    server.disconnect(own);
                }
                if self.directory.lock().remove(&peer).is_some() {
                    let (worker, has_ended) =
                        (peer.to_string(), self.status.lock().ended.is_some());
                    match has_ended {
                        true => debug!(target: "tidemill::cluster", worker, why, "worker lost"),
                        false => warn!(target: "tidemill::cluster", worker, why, "worker lost"),
                    }
                }
                self.trouble(peer, None);
                self.inbox.push(Input::Broken { to: address(peer) });
            }
            Event::Refused { why, .. } => {
                let mut refused = self.refused.lock();
                // A process that tries again and again is reported once.
                if refused.front() != Some(&why) {
                    warn!(target: "tidemill::cluster", why, "connection refused");
                }
                refused.truncate(REFUSALS - 1);
                refused.push_front(why);
            }
        }
    }
}
