//! The coordinator of a cluster, with the app as its clients see it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tidemill_cluster::{
    EventTime, Events, Fault, LateEvent, Log, SourceProgress, SplitLog, Times, WrongClock,
};
use tidemill_core::{Batch, Error, Position, Result, StreamId, TableId};
use tidemill_durable::{Store, Within};
use tidemill_env::{Addr, Env, Lock};
use tidemill_function::{Call, Functions as _, TableChanges};
use tidemill_host::{
    hold, Answers, CoordinatorProcess, FileLog, LeftOut, Placed, RequestServer, Served, Shared,
    Status, COORDINATOR, ENDED, SEGMENT_BYTES,
};
use tidemill_mesh::{check_address, Peer};
use tidemill_txn::program::Program;
use tracing::dispatcher::{get_default, with_default};
use tracing::Dispatch;

use super::backends::{self, log, store};
use super::clients::{Clients, Home, Requests};
use super::counts::{report, CountsFile};
use super::delivered::Delivered;
use super::feeds::{self, About, Feeds};
use super::firings::Timers;
use super::format::Json;
use super::from_one::OneState;
use super::program_file::sources_read;
use super::questions::{self, Question};
use super::retained::RingStore;
use super::settings::Cuts;
use super::sinks::{DeclaredSinks, Note, Sinks};
use super::socket::{Desk, Socket};
use super::topics::{sources, ReadTopic, Topics};
use super::upgrade::{Found, Starting};
use super::{address, clients, cuts, fingerprint, log_of, metrics, ClusterSettings};
use crate::clients::{Health, RetainedRows, StreamProgress};
use crate::clocks;
use crate::emptied::{Emptied, Purpose};
use crate::file_conflicts;
use crate::followed::{Changes, Followed};
use crate::functions::AppFunctions;
use crate::logging;
use crate::settings::Settings;
use crate::spec::AppSpec;
use crate::upgrade;

/// The time for the last snapshot, in microseconds.
const LEAVE_WAIT_US: u64 = 60_000_000;

/// An app on several processes, at its coordinator.
pub struct Cluster {
    // Fields are dropped in this order. The socket, timers, sinks and counts use the request server
    // and the coordinator,
    socket: Socket,
    timers: Timers,
    sinks: Sinks,
    counts: CountsFile,
    // and the request server uses the coordinator.
    requests: Requests,
    coordinator: Arc<CoordinatorProcess>,
    functions: Arc<AppFunctions>,
    program: Program,
    settings: Settings,
    env: Env,
    delivered: Arc<Delivered>,
    /// The changes of tables that clients follow.
    followed: Mutex<Followed>,
    /// The address at which it answers clients, with the scheme.
    http: OnceLock<String>,
    dir: PathBuf,
    /// The changes of an upgrade at the start, if there was one.
    upgraded: Option<serde_json::Value>,
    /// The app's topics. Their partitions are the sources after those of requests.
    topics: Vec<ReadTopic>,
    /// The app's files, as sources after the topics.
    feeds: Arc<Feeds>,
    /// Whether all files have ended for good.
    has_ended: AtomicBool,
    /// The epoch up to which all of them are in cuts, once they are.
    input_epoch: OnceLock<u64>,
    event_time: Arc<EventTime>,
    log: Dispatch,
    /// The log of the cluster, if the coordinator serves it.
    served: Option<Weak<FileLog>>,
    /// The lock of the directory, unless the log in the directory holds it.
    _held: Option<Box<dyn Lock>>,
}

impl Cluster {
    /// Starts the coordinator, which forms a cluster of the workers that join.
    ///
    /// # Errors
    /// When a setting is wrong, the log can't be opened or belongs to another app, or the address
    /// is not available.
    pub fn start(
        spec: &AppSpec,
        functions: Arc<AppFunctions>,
        settings: &ClusterSettings,
        secret: &[u8],
        env: &Env,
    ) -> Result<Arc<Cluster>> {
        let log = open_log(spec, settings, env)?;
        let begin = || Cluster::begin(spec, functions, settings, secret, env).map(Arc::new);
        let cluster = with_default(&log, || begin().inspect_err(logging::failed))?;
        let answers: Weak<dyn Answers> = Arc::downgrade(&cluster) as _;
        cluster.coordinator.serves(env, &cluster.requests.server, answers);
        Ok(cluster)
    }

    /// Returns this process as the app's clients see it.
    pub fn clients(self: &Arc<Cluster>) -> Clients {
        self.requests.with(self.clone())
    }

    fn begin(
        spec: &AppSpec,
        functions: Arc<AppFunctions>,
        settings: &ClusterSettings,
        secret: &[u8],
        env: &Env,
    ) -> Result<Cluster> {
        spec.settings.check()?;
        logging::started(&spec.program.name, Some(&settings.dir), &spec.settings);
        backends::check(settings)?;
        let mut topics = Topics::open(spec, &functions, settings, env)?;
        let read = topics.read();
        let mut host = settings.host(spec, &read, secret, env)?;
        // A taken address is refused before anything is written.
        check_address(env, &host.listen)?;
        let first = settings.sources + sources(&read);
        let of_files = feeds::count(spec);
        let sources = first + of_files;
        let program = spec.program.clone();
        let dir = &settings.dir;
        // The check comes before anything is emptied or opened for writing.
        file_conflicts::check(spec, &directories(settings), env)?;
        let mut one = OneState::find(spec, settings, env)?;
        let held = hold(env, dir)?;
        let emptied = Emptied { disk: &*env.disk, path: dir, purpose: Purpose::Coordinator };
        let was_begun = emptied.is_begun()?;
        let fresh = settings.fresh || was_begun;
        let ways = DeclaredSinks::open(spec, functions.program(), fresh, env)?;
        if let Some(one) = &mut one {
            one.stand(spec, &mut topics, settings.sources)?;
            one.mark(spec, dir)?;
        }
        let read = topics.read();
        let feeds = Feeds::open(spec, &functions, (first, dir, fresh), env)?;
        host.machine.resumed = feeds.goes_on.clone();
        let feeds = Arc::new(feeds);
        if let (true, Some(log)) = (settings.fresh, &settings.log) {
            return Err(Error::setting(format!("the log at {log} can't be emptied from here"))
                .help("delete its topics, or give the cluster another name"));
        }
        if fresh {
            if !was_begun {
                emptied.begin()?;
            }
            emptied.remove()?;
        }
        // Cuts are appended one at a time, and everything waits for them. So the log gets no linger
        // time.
        let json = || (Json::new(functions.clone(), fingerprint(spec)), sources - settings.sources);
        let elsewhere = log(settings, &host.cluster, Some(0), json(), env)?;
        let own = |held| {
            FileLog::open(env, dir.join("log"), log_of(&host.cluster), held, SEGMENT_BYTES)
                .map(Arc::new)
        };
        let (log, served, held): (Arc<dyn Log>, _, _) = match (elsewhere, settings.cuts) {
            (Some(log), Cuts::Log) => (log, None, Some(held)),
            (Some(log), Cuts::Coordinator) => {
                (Arc::new(SplitLog::cuts(own(held)?, log)), None, None)
            }
            (None, _) => {
                let own = own(held)?;
                (own.clone(), Some(own), None)
            }
        };
        let appended = served.as_ref().map(Arc::downgrade);
        let rows = feeds.rows.clone();
        let log: Arc<dyn Log> = match &rows {
            None => log,
            Some(rows) => Arc::new(SplitLog::inputs(first..sources, rows.clone(), log)),
        };
        match served {
            None => cuts::check(&*log, sources)?,
            Some(_) => {
                let newest = Found::read(&*log)?.manifest;
                newest.iter().try_for_each(|newest| feeds.check(dir, &newest.inputs))?;
            }
        }
        let shared = Shared { log: log.clone(), store: store(settings, env)? };
        let objects: Arc<dyn Store> = Arc::new(Within::new(shared.store.clone(), &host.cluster));
        let starting = Starting {
            env,
            dir,
            program: functions.program(),
            fingerprint: host.machine.program,
            read: sources_read(&read, spec),
            begins: begins(&read, settings.sources, of_files),
            event_time: &host.machine.event_time,
            settings: &spec.settings,
            log: &*log,
            store: objects.clone(),
            name: &host.cluster,
            kept: settings.kept(&host.cluster),
            sources,
            ways: &ways,
            one: one.as_ref().map(|one| one.taken_over(&functions, &feeds)),
            has_own_requests: served.is_some(),
            has_sole_owner: functions.has_sole_owner(),
        };
        let upgraded = starting.agree()?;
        upgraded.iter().for_each(upgrade::report);
        one.map(OneState::end).transpose()?;
        if fresh {
            emptied.end()?;
        }
        // A killed coordinator has left its address.
        address::remove(env, dir);
        // The directory belongs to this cluster now.
        let closed = env.disk.close_to_others(dir);
        closed.map_err(|e| Error::io(format!("the directory {}", dir.display()), &e))?;
        let newest = Found::read(&*log)?.manifest.unwrap_or_default();
        let retained = RingStore::open(&objects, Note::of(&newest.written)?.run())?.1;
        let delivered = Arc::new(Delivered::new(ways.rings(functions.program(), &retained)));
        let (cluster, event_time) = (host.cluster.clone(), host.machine.event_time.clone());
        let inputs = rows.map(|rows| (first, rows as Arc<dyn Log>));
        let served = Served { log: served, inputs };
        let coordinator = Arc::new(CoordinatorProcess::start(env, host, shared, served)?);
        // Sinks write through a connection of their own, so that they do not delay the replies.
        let apart = match ways.are_none() {
            true => None,
            false => self::log(settings, &cluster, None, json(), env)?,
        };
        let outputs = apart.unwrap_or_else(|| log.clone());
        let program_on_nodes = Arc::new(functions.program().clone());
        let retained = (objects, delivered.clone());
        let sinks = Sinks::start(ways, program_on_nodes, &coordinator, outputs, retained)?;
        let server = RequestServer::open(env, log, (settings.sources, sources));
        let requests = Requests::new(spec, &functions, settings, server, env);
        Ok(Cluster {
            socket: Socket::open(Desk {
                env: env.clone(),
                dir: dir.clone(),
                delivered: delivered.clone(),
                requests: requests.clone(),
                coordinator: coordinator.clone(),
            })?,
            timers: Timers::start(env, &requests.server, &functions)?,
            counts: CountsFile::start(env, dir.clone(), &coordinator)?,
            sinks,
            env: env.clone(),
            requests,
            coordinator,
            functions,
            program,
            settings: spec.settings.clone(),
            topics: read,
            feeds,
            has_ended: AtomicBool::new(false),
            input_epoch: OnceLock::new(),
            event_time,
            delivered,
            followed: Mutex::default(),
            http: OnceLock::new(),
            dir: dir.clone(),
            upgraded,
            log: get_default(Dispatch::clone),
            served: appended,
            _held: held,
        })
    }

    /// Runs something that logs to the process's log.
    pub fn logged<T>(&self, body: impl FnOnce() -> T) -> T {
        with_default(&self.log, body)
    }

    /// The address that workers join at.
    pub fn address(&self) -> String {
        self.coordinator.address().to_string()
    }

    /// Ends cleanly. Executes nothing more, and waits a limited time until a snapshot has
    /// everything executed, so that the next start has nothing to replay. Returns whether there is
    /// such a snapshot.
    ///
    /// The sinks are then completed, if all input of the app has ended and nothing else `may_come`.
    ///
    /// # Errors
    /// When outputs can't be written, or sinks can't be completed in time. The next start writes
    /// the rest.
    pub fn leave(&self, may_come: bool) -> Result<bool> {
        self.timers.finish();
        let is_whole = self.coordinator.leave(self.requests.server.sources(), LEAVE_WAIT_US);
        self.counts.store();
        address::remove(&self.env, &self.dir);
        // A snapshot of everything has all that is in cuts.
        let is_all_cut = || is_whole && self.input_cut(&self.coordinator.status()).is_some();
        let is_wanted = !may_come && (self.has_input_ended() || is_all_cut());
        let finished = self.sinks.finish(&self.env, is_whole && is_wanted);
        self.delivered.end();
        self.socket.close();
        finished?;
        if is_wanted && !is_whole && !self.sinks.rows().is_empty() {
            let what =
                "the last snapshot could not be taken in time, so the sinks are not complete";
            return Err(Error::resource(what).help("start the app again: it continues there"));
        }
        Ok(is_whole)
    }

    /// Whether all files of the app have ended and have been executed, and there is at least one. All
    /// work outside that they caused must be done, too.
    fn has_input_ended(&self) -> bool {
        if self.has_ended.load(Ordering::Acquire) {
            return true;
        }
        let status = self.coordinator.status();
        // While workers die of the last rows, nobody could take a snapshot of all.
        let has_ended = self
            .input_cut(&status)
            .is_some_and(|epoch| status.executed.is_some_and(|executed| executed >= epoch));
        self.has_ended.store(has_ended, Ordering::Release);
        has_ended
    }

    /// The epoch up to which all files of the app are in cuts, if they are, and if all work outside
    /// that they caused is done.
    fn input_cut(&self, status: &Status) -> Option<u64> {
        let Status { sources: cuts, outside, epoch, .. } = status;
        let ends = |(source, about): (u32, &About)| {
            let cut = cuts.get(source as usize).map_or(0, |source| source.cut);
            !about.follows && self.feeds.end(source).is_some_and(|end| cut > end)
        };
        // Answers of work outside are new input.
        let is_done = self.functions.outboxes().is_empty() || *outside == Some(0);
        let are_cut = is_done && self.feeds.all().count() > 0 && self.feeds.all().all(ends);
        are_cut.then(|| *self.input_epoch.get_or_init(|| *epoch))
    }

    /// Returns the present status.
    pub fn status(&self) -> Status {
        let mut status = self.coordinator.status();
        let waits = self.sinks.troubles().into_iter().chain(self.feeds.trouble());
        let waits = waits.map(|what| (COORDINATOR, what));
        status.troubles.extend(waits);
        let clock = status.wrong_clock.map(|(wrong, now_us)| match wrong {
            WrongClock::Behind { last_us } => clocks::is_behind(now_us, last_us),
            WrongClock::Ahead { last_us } => {
                let error =
                    clocks::is_ahead(now_us, last_us, self.settings.clock_jump_us_max, true);
                format!("no cuts are made: {}; {}", error.what, error.help)
            }
        });
        status.troubles.extend(clock.map(|what| (COORDINATOR, what)));
        if let Some(error) = self.sinks.failed().or_else(|| self.timers.failed()) {
            status.ended.get_or_insert(error.to_string());
        }
        let ends_by_itself = status.ended.as_deref() == Some(ENDED);
        if let Some(bytes) = status.over_memory.filter(|_| ends_by_itself) {
            status.ended = Some(format!(
                "memory_bytes_max is {}, but tables and events that wait for their watermark hold {bytes} bytes, of \
                 all workers together: raise memory_bytes_max, delete rows that are no longer needed, or retain less",
                self.settings.memory_bytes_max,
            ));
        }
        if let Some(late) = status.late_event.as_ref().filter(|_| ends_by_itself) {
            status.ended = Some(self.late_message(late));
        }
        if let Some(fault) = status.fault.as_ref().filter(|_| ends_by_itself) {
            status.ended = Some(fault.what.clone());
        }
        status
    }

    /// Describes a late event.
    fn late_message(&self, late: &LateEvent) -> String {
        let stream = &self.program.streams[late.stream.index()].spec.name;
        let from = self.topic(late.source).unwrap_or_else(|| format!("source {}", late.source));
        let LateEvent { offsets, time_us, watermark_us, .. } = late;
        let (first, last) = (offsets.start, offsets.end - 1);
        match first == last {
            true => format!(
                "stream {stream}: row {first} of source {from} (counted from 0) is late: its time is {time_us}, and it may not be before \
                 {watermark_us}, the newest time of the rows before it less the out-of-orderness"
            ),
            // The event is late because its source was idle. Only the coordinator knows that, and
            // it does not know the row.
            false => format!(
                "stream {stream}: an event of {from}, between the offsets {first} and {last}, is late: its time is \
                 {time_us}, and the watermark was at {watermark_us} already"
            ),
        }
    }

    /// Returns the status as JSON: members, epochs, and figures of each source. `lag` is the
    /// requests of a source in no cut yet. `skew` is its rate of requests, relative to the mean of
    /// all sources.
    pub fn status_json(&self) -> serde_json::Value {
        let status = self.status();
        let (lag, skew) = (status.lag(), status.skew());
        let Status {
            generation,
            members,
            processes,
            clients_at,
            epoch,
            snapshot,
            left_out,
            troubles,
            refused,
            ended,
            ..
        } = status;
        let fault =
            status.fault.as_ref().map(|Fault { what, line }| json!({"what": what, "line": line}));
        let unstable = |(handler, times)| json!({"handler": handler, "times": times});
        let unstable: Vec<_> = status.unstable.iter().map(unstable).collect();
        let (counts, slides) = (&status.counts, status.counts.slides);
        let rounded = |x: f64| (x * 100.0).round() / 100.0;
        let source = |(nth, source): (usize, SourceProgress)| {
            json!({
                "source": nth, "topic": self.topic(nth as u32), "worker": Peer(source.reader.0).to_string(), "offset": source.cut,
                "requests": source.taken,
                "lag": lag[nth], "requests_per_s": rounded(status.per_s[nth]), "skew": rounded(skew[nth]),
            })
        };
        let sources: Vec<_> = status.sources.into_iter().enumerate().map(source).collect();
        let sink = |(stream, to, rows)| json!({"stream": stream, "to": to, "rows": rows});
        let sinks: Vec<_> = self.sinks.rows().into_iter().map(sink).collect();
        let event_time = self.event_time(&status.times);
        let (buffered, outside) = (status.buffered, status.outside);
        let connected = processes.len();
        let member = |(peer, at): (Peer, Addr)| {
            json!({
                "worker": peer.to_string(), "address": at.to_string(), "process": processes.get(&peer),
                "http": clients_at.get(&peer),
            })
        };
        let left = |left: LeftOut| {
            let from = left.from.iter().map(|member| Peer(member.0).to_string());
            json!({
                "worker": Peer(left.member.0).to_string(), "from": from.collect::<Vec<_>>(),
                "for_s": left.for_us as f64 / 1e6,
            })
        };
        let trouble = |(who, what): (Peer, String)| {
            let process = if who == COORDINATOR { "coordinator".into() } else { who.to_string() };
            json!({"process": process, "what": what})
        };
        let mut status = json!({
            "app": self.program.name, "generation": generation, "connected": connected,
            "members": members.into_iter().map(member).collect::<Vec<_>>(),
            "left_out": left_out.into_iter().map(left).collect::<Vec<_>>(),
            "epoch": epoch, "snapshot_epoch": snapshot, "lag": lag, "sources": sources, "sinks": sinks,
            "event_time": event_time, "buffered": buffered.events, "buffered_bytes": buffered.bytes,
            "memory_bytes": buffered.bytes + buffered.tables, "over_memory": status.over_memory.is_some(),
            "late": buffered.late, "outside": outside,
            "aborted_slides": slides, "aborted_slide": counts.slide,
            "input_ended": self.has_input_ended(),
            "requests_open": self.requests.server.open_requests(), "log_bytes": self.log_bytes(),
            "troubles": troubles.into_iter().map(trouble).collect::<Vec<_>>(),
            "sole_owner": self.functions.has_sole_owner(), "upgraded": self.upgraded, "turned_away": refused, "ended": ended,
            "late_event": status.late_event.is_some(), "stopping_fault": fault, "unstable": unstable, "coordinator": self.address(), "process": std::process::id(),
            "http": self.http.get(),
        });
        if let (Some(status), serde_json::Value::Object(counts)) =
            (status.as_object_mut(), report(counts))
        {
            status.extend(counts);
        }
        status
    }

    /// Returns the watermark of each stream with event time, and the source that holds it back.
    fn event_time(&self, times: &Times) -> Vec<serde_json::Value> {
        let mut streams = BTreeMap::new();
        for source in self.event_time.sources() {
            streams.insert(source.stream, source.group);
        }
        let stream = |(stream, group): (StreamId, usize)| {
            let at = times.watermarks.get(group);
            let mut own = (0..).zip(self.event_time.sources()).filter(|(_, of)| of.group == group);
            let has_ended = own.all(|(nth, _)| times.ended.contains(&nth));
            let at = at.filter(|at| **at != Position::MIN && !has_ended);
            let behind = at.and_then(|at| self.event_time.sources().get(at.source.index()));
            let behind = behind.map(|of| match self.topic(of.source) {
                Some(topic) => json!(topic),
                None => json!(of.source),
            });
            let name = &self.program.streams[stream.index()].spec.name;
            json!({
                "stream": name, "watermark": at.map(|at| at.time_us), "behind": behind, "ended": has_ended,
            })
        };
        streams.into_iter().map(stream).collect()
    }

    /// Records a request at a source. The caller knows its place.
    pub fn offer(&self, source: u32, call: Call, then: Placed) {
        self.requests.server.call_placed(source, call, then);
    }

    /// Appends events of a stream to a source, as one record of an epoch. If it gets into the log,
    /// the events are executed exactly once, in their order. Nobody waits for results. `then` gets
    /// the record's offset.
    pub fn send(
        &self,
        source: u32,
        stream: StreamId,
        batch: Batch,
        then: tidemill_cluster::Then<std::result::Result<u64, tidemill_cluster::Refused>>,
    ) {
        let events = Events { stream, from: None, is_run: false, batch };
        self.requests.server.send(source, events, then);
    }

    /// Returns the bytes of the records that have been appended since the start, if the coordinator
    /// serves the log.
    pub fn log_bytes(&self) -> Option<u64> {
        self.served.as_ref()?.upgrade().map(|log| log.appended_bytes())
    }

    /// Returns the log of the cluster.
    pub fn log(&self) -> Arc<dyn Log> {
        self.requests.server.log().clone()
    }

    /// Whether the program has a table of this number.
    fn has_table(&self, table: TableId) -> bool {
        table.index() < self.functions.program().tables.len()
    }

    /// Names a source: `topic/partition`, or the path of its files.
    fn topic(&self, source: u32) -> Option<String> {
        let mut nth = source.checked_sub(self.requests.server.sources())?;
        for topic in &self.topics {
            if let Some((partition, _)) = topic.begins.get(nth as usize) {
                return Some(format!("{}/{partition}", topic.topic()));
            }
            nth -= topic.sources();
        }
        let mut files = self.feeds.all().filter(|(of, _)| *of == source);
        files.next().map(|(_, about)| about.path.display().to_string())
    }
}

/// Opens the log of a coordinator or a worker.
pub(super) fn open_log(spec: &AppSpec, settings: &ClusterSettings, env: &Env) -> Result<Dispatch> {
    spec.settings.check_log()?;
    if spec.settings.log_to.is_some() {
        // The check comes first, because the log is written from its first line on.
        file_conflicts::check(spec, &directories(settings), env)?;
    }
    logging::open(&spec.settings, env, Some(std::process::id()))
}

/// The directories that the cluster uses alone.
fn directories(settings: &ClusterSettings) -> Vec<PathBuf> {
    let snapshots = settings.snapshots.iter().filter(|text| !text.contains("://"));
    snapshots.map(PathBuf::from).chain([settings.dir.clone()]).collect()
}

/// Returns the first record of each source in a new cluster. Its own sources come first, and files
/// last.
fn begins(topics: &[ReadTopic], own: u32, files: u32) -> Vec<u64> {
    let of_topics = topics.iter().flat_map(|topic| topic.begins.iter().map(|(_, begin)| *begin));
    let none = |count: u32| std::iter::repeat_n(0, count as usize);
    none(own).chain(of_topics).chain(none(files)).collect()
}

impl Home for Cluster {
    fn is_remote(&self) -> bool {
        false
    }

    fn has_generation(&self) -> bool {
        self.coordinator.status().generation != 0
    }

    fn retained(&self, stream: &str, from: u64, rows_max: usize) -> Result<RetainedRows> {
        let rings = self.delivered.rings.lock();
        clients::retained(&self.requests, &rings, (stream, from, rows_max))
    }

    fn changes(&self, table: TableId, epoch: u64) -> Result<Changes> {
        let followed = self.followed.lock();
        if followed.has(table.index()) {
            return Ok(followed.since(table.index(), epoch));
        }
        drop(followed);
        self.coordinator.follow(table);
        Ok(Changes::Are(Vec::new(), epoch))
    }

    fn is_recovering(&self) -> bool {
        self.delivered.is_recovering()
    }

    fn news(&self, seen: StreamProgress, timeout_us: u64) -> StreamProgress {
        let epoch = self.delivered.wait(seen.epoch, Duration::from_micros(timeout_us));
        StreamProgress { epoch, over: self.status().ended.is_some() }
    }

    fn health(&self) -> Health {
        let mut said = self.status_json();
        let ready = said["ended"].is_null() && said["generation"] != 0;
        said["live"] = said["ended"].is_null().into();
        Health { ready, said }
    }

    fn metrics(&self) -> String {
        metrics::of(self.status(), self.requests.server.open_requests())
    }

    fn answers_at(&self, address: &str) {
        // A repeated call sets the same address.
        let _ = self.http.set(address.to_owned());
        address::write(&self.env, &self.dir, address);
    }
}

impl Answers for Cluster {
    fn answer(&self, who: Peer, question: &[u8], then: tidemill_cluster::Then<Vec<u8>>) {
        let Some(question) = Question::of(question) else { return };
        match question {
            Question::HasGeneration => then(vec![u8::from(self.has_generation())]),
            Question::IsRecovering => then(vec![u8::from(self.delivered.is_recovering())]),
            Question::Health => then(questions::health(&Home::health(self))),
            Question::Metrics => then(Home::metrics(self).into_bytes()),
            Question::Retained { stream, from, rows_max } => {
                let rings = self.delivered.rings.lock();
                let found = clients::retained(&self.requests, &rings, (&stream, from, rows_max));
                drop(rings);
                then(questions::retained(&found));
            }
            Question::News { seen } => self.delivered.notify(who, seen, then),
            Question::Changes { table, .. } if !self.has_table(table) => then(Vec::new()),
            Question::Changes { table, epoch } => {
                then(questions::changes(&Home::changes(self, table, epoch)));
            }
            Question::Feed { feed } => self.feeds.describe(feed, then),
            Question::FeedRead { feed, news } => self.feeds.has_read(feed, &news, then),
        }
    }
    fn follows(&self, table: TableId, since: u64) {
        self.followed.lock().follow(table.index(), since);
        self.delivered.has_more();
    }

    fn changed(&self, epoch: u64, mut changes: Vec<TableChanges>) {
        changes.retain(|of| self.has_table(of.table));
        let limits = (self.settings.tail_rows, self.settings.tail_bytes);
        let specs = &self.functions.program().tables;
        self.followed.lock().push_from((epoch, changes), specs, limits);
        self.delivered.has_more();
    }
}
