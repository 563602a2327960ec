//! The log: the state that its threads share, and how it is opened.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use crossbeam_channel::{bounded, Receiver, Sender, TrySendError};
use parking_lot::Mutex;
use rdkafka::admin::AdminClient;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tidemill_cluster::{Log, Record, Records, Refused, Then, Topic};
use tidemill_core::{Error, Kind, Result};
use tidemill_env::Env;
use tracing::dispatcher::get_default;
use tracing::Dispatch;

use crate::append::{Appends, Failed};
use crate::fence::Fence;
use crate::message::{encode, Format};
use crate::read::{Command, Driver, Read};
use crate::report::report;
use crate::requests::{remembered, Requester};
use crate::settings::KafkaSettings;
use crate::topics;

/// The largest number of reads and trims that wait. Further reads fail.
const COMMANDS: usize = 1024;
/// The time, in nanoseconds, for which a part must seem changed before the log is given up. Brokers
/// that come back may say for a moment that a part is missing, or that it ends earlier.
const SURE_NS: u64 = 5_000_000_000;
/// The time, in nanoseconds, within which it must seem changed again.
const SUSPECTED_NS: u64 = 60_000_000_000;

/// A partition.
pub(crate) struct Part {
    pub(crate) topic: Topic,
    pub(crate) name: String,
    pub(crate) partition: i32,
    pub(crate) fence: Mutex<Fence>,
    /// The number of appends that wait until all records before them have been seen. For cuts, the
    /// number of all that have ever waited.
    pub(crate) judged: AtomicU64,
    /// The number of appends without a report.
    pub(crate) outstanding: AtomicU64,
    /// The time of the last report.
    pub(crate) progress_ns: AtomicU64,
    suspected: Mutex<Option<Suspected>>,
}

/// The suspicion that a part has changed.
#[derive(Clone, Copy)]
struct Suspected {
    /// The times of its first and its last sign.
    since_ns: u64,
    last_ns: u64,
    /// The end of the part at that time, if it was too low; else the part was missing.
    end: Option<u64>,
}

impl Part {
    pub(crate) fn is_fenced(&self) -> bool {
        !matches!(self.topic, Topic::Input(_))
    }

    /// Whether the records of other processes among its appends are read.
    pub(crate) fn is_tailed(&self) -> bool {
        self.judged.load(Ordering::SeqCst) > 0
    }

    fn place(&self) -> String {
        format!("partition {} of the topic {}", self.partition, self.name)
    }

    pub(crate) fn missing(&self) -> Error {
        Error::new(Kind::Io, format!("{} has been removed", self.place()))
            .help("its records are lost: restore it, or start again with topics of other names")
    }

    /// Returns the error that needed records have been deleted.
    pub(crate) fn deleted(&self, from: u64, low: u64) -> Error {
        let place = self.place();
        Error::new(
            Kind::Io,
            format!("{place} begins at the offset {low}, and records from {from} on are needed"),
        )
        .help(
            "they were deleted by age, by size or by hand: start again with topics of other names, \
             and let retention.ms and retention.bytes retain more than is appended between two \
             snapshots",
        )
    }

    /// Returns the error that a part has fewer records than before.
    pub(crate) fn truncated(&self, from: u64, high: u64) -> Error {
        let place = self.place();
        Error::new(
            Kind::Io,
            format!("{place} ends at the offset {high}, and has been read up to {from} before"),
        )
        .help(
            "the topic was removed and recreated, or a broker has lost records: start again with \
             topics of other names",
        )
    }

    pub(crate) fn unread(&self, offset: u64, why: &str, help: &str) -> Error {
        Error::new(Kind::Io, format!("{}: the record at {offset} {why}", self.place())).help(help)
    }
}

/// The state that all threads of a log share.
pub(crate) struct Core {
    pub(crate) env: Env,
    /// Where its creator logs.
    log: Dispatch,
    pub(crate) parts: Vec<Part>,
    /// The producers that have failed.
    failed: Failed,
    is_over: AtomicBool,
    lost: Mutex<Option<Error>>,
    is_lost: AtomicBool,
    /// The last error of the brokers.
    heard: Mutex<String>,
    /// The size of the last message that was too large for the brokers, and the help for it.
    too_large: Mutex<Option<(usize, String)>>,
    /// Whether no broker could be reached at the last attempt.
    pub(crate) is_away: AtomicBool,
    waker: Sender<()>,
}

impl Core {
    /// Creates the state of a log, and the receiver that wakes the thread that reads.
    pub(crate) fn new(env: &Env, settings: &KafkaSettings) -> (Arc<Core>, Receiver<()>) {
        let (waker, wakes) = bounded(1);
        let core = Core {
            env: env.clone(),
            log: get_default(Dispatch::clone),
            parts: parts(settings),
            failed: Failed::default(),
            is_over: AtomicBool::new(false),
            lost: Mutex::default(),
            is_lost: AtomicBool::new(false),
            heard: Mutex::default(),
            too_large: Mutex::default(),
            is_away: AtomicBool::new(false),
            waker,
        };
        (Arc::new(core), wakes)
    }

    /// Wakes the thread that reads.
    pub(crate) fn wake(&self) {
        // If a wake-up is pending already, it suffices.
        let _ = self.waker.try_send(());
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst) || self.is_lost.load(Ordering::SeqCst)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    /// Marks the log as unusable. The first error stays.
    pub(crate) fn lose(&self, error: Error) {
        self.lost.lock().get_or_insert(error);
        self.is_lost.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Notes that a part seems to have changed. If that lasts, the log becomes unusable. Until then
    /// callers must ask again.
    fn suspect(&self, part: &Part, end: Option<u64>, error: Error) {
        let now_ns = self.env.clock.monotonic_ns();
        let mut suspected = part.suspected.lock();
        let before = suspected.filter(|before| now_ns < before.last_ns + SUSPECTED_NS);
        let since_ns = before.map_or(now_ns, |before| before.since_ns);
        *suspected = Some(Suspected { since_ns, last_ns: now_ns, end });
        drop(suspected);
        // A broker that has just come back learns its whole end at once. An end that grows belongs
        // to another topic.
        let grows = before.is_some_and(|before| before.end.is_some_and(|of| Some(of) < end));
        match grows || now_ns - since_ns > SURE_NS {
            true => self.lose(error),
            false => self.note_error(&error.what),
        }
    }

    /// Notes that a part seems to be missing.
    pub(crate) fn suspect_missing(&self, part: &Part) {
        self.suspect(part, None, part.missing());
    }

    /// Notes that a part seems to end before records that have been read.
    pub(crate) fn suspect_truncated(&self, part: &Part, from: u64, high: u64) {
        self.suspect(part, Some(high), part.truncated(from, high));
    }

    /// Notes that a part exists. It is unknown whether it is unchanged.
    pub(crate) fn is_there(&self, part: &Part) {
        let mut suspected = part.suspected.lock();
        if suspected.is_some_and(|suspected| suspected.end.is_none()) {
            *suspected = None;
        }
    }

    /// Notes that a part is unchanged.
    pub(crate) fn trust(&self, part: &Part) {
        *part.suspected.lock() = None;
    }

    /// Whether a part seems to have changed.
    pub(crate) fn suspects(&self, part: &Part) -> bool {
        part.suspected.lock().is_some()
    }

    pub(crate) fn fail(&self, producer: u64) {
        self.failed.set(producer);
        self.wake();
    }

    pub(crate) fn has_failed(&self, producer: u64) -> bool {
        self.failed.has(producer)
    }

    /// Stores the error for people if a message was too large for the brokers.
    pub(crate) fn note_size(&self, part: &Part, bytes: usize, error: &KafkaError) {
        let is_large = error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge);
        // If a request is refused, only its sender waits for it.
        if is_large && part.is_fenced() {
            let place = part.place();
            let what = format!(
                "a message of {bytes} bytes is larger than {place} takes: raise max.message.bytes of the topic and \
                 message.max.bytes in cluster_log_options, or give less in cluster_message_bytes_max"
            );
            *self.too_large.lock() = Some((bytes, what));
        }
    }

    /// Notes that a message of this size was accepted.
    pub(crate) fn takes(&self, bytes: usize) {
        let mut too_large = self.too_large.lock();
        if too_large.as_ref().is_some_and(|(refused, _)| bytes >= *refused) {
            *too_large = None;
        }
    }

    fn too_large(&self) -> Option<String> {
        self.too_large.lock().as_ref().map(|(_, what)| what.clone())
    }

    pub(crate) fn note(&self, error: &KafkaError, reason: &str) {
        if matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::AllBrokersDown)) {
            self.is_away.store(true, Ordering::Relaxed);
            self.wake();
            // The partitions' own errors say why.
            return;
        }
        let text = if reason.is_empty() { error.to_string() } else { reason.to_owned() };
        self.note_error(&text);
    }

    pub(crate) fn note_error(&self, text: &str) {
        text.clone_into(&mut self.heard.lock());
    }

    pub(crate) fn log(&self) -> &Dispatch {
        &self.log
    }

    pub(crate) fn last_error(&self) -> String {
        self.heard.lock().clone()
    }
}

/// Receives the errors that brokers report to consumers and the admin client.
pub(crate) struct Listener(pub(crate) Arc<Core>);

impl ClientContext for Listener {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        report(self.0.log(), level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.note(&error, reason);
    }
}

impl ConsumerContext for Listener {}

/// A log in Kafka.
pub struct KafkaLog {
    core: Arc<Core>,
    settings: KafkaSettings,
    format: Arc<dyn Format>,
    appends: Arc<Appends>,
    commands: Sender<Command>,
}

impl KafkaLog {
    /// Opens the log, and creates missing topics.
    ///
    /// # Errors
    /// `Setting` if a property or a topic is unsuitable, `Io` if no broker answers or refuses a
    /// request.
    pub fn open(env: &Env, settings: KafkaSettings, format: Arc<dyn Format>) -> Result<KafkaLog> {
        settings.check()?;
        let (core, wakes) = Core::new(env, &settings);
        let client = Arc::new(consumer(&core, &settings)?);
        let admin: AdminClient<Listener> = make(&core, &settings.client(&[])?)?;
        topics::open(&core, &client, &admin, &settings)?;
        recall(&core, &client, &settings)?;
        let appends = Arc::new(Appends::start(&core, &settings)?);
        let (commands, waiting) = bounded(COMMANDS);
        let log = KafkaLog { core, settings, format, appends, commands };
        // If a thread can't be started, dropping the log ends the others.
        log.start(client, admin, waiting, wakes)?;
        Ok(log)
    }

    /// Returns why the log can't be used any more, if a topic has changed. From then on nothing is
    /// appended or read.
    pub fn lost(&self) -> Option<Error> {
        self.core.lost.lock().clone()
    }

    /// Returns the last error of brokers, for people. It is empty if there was none.
    pub fn last_error(&self) -> String {
        self.core.last_error()
    }

    fn start(
        &self,
        client: Arc<BaseConsumer<Listener>>,
        admin: AdminClient<Listener>,
        commands: Receiver<Command>,
        wakes: Receiver<()>,
    ) -> Result<()> {
        let (core, settings) = (&self.core, &self.settings);
        // Each part has two requests for its ends. There is one request to check for brokers, and
        // trims, which are repeated.
        let room = 2 * core.parts.len() + 1 + COMMANDS;
        let (asks, asked) = bounded(room);
        let (answers, answered) = bounded(room);
        let asker = Requester {
            core: core.clone(),
            settings: settings.clone(),
            client,
            admin,
            asks: asked,
            answers,
        };
        let consumers = [Arc::new(consumer(core, settings)?), Arc::new(consumer(core, settings)?)];
        self.appends.warm()?;
        for consumer in &consumers {
            topics::warm(core, consumer.client(), settings)?;
        }
        let driver = Driver::new(
            core.clone(),
            settings.clone(),
            self.format.clone(),
            self.appends.clone(),
            consumers,
            asks,
        );
        let threads = &core.env.threads;
        let run = move || driver.run(&commands, &answered, &wakes);
        threads
            .spawn("kafka-asks", Box::new(move || asker.run()))
            .and_then(|_| threads.spawn("kafka-reads", Box::new(run)))
            .map_err(|e| Error::io("starting a thread for Kafka", &e))?;
        Ok(())
    }

    fn part(&self, topic: Topic) -> Option<usize> {
        let outputs = self.settings.total();
        let inputs = self.settings.sources;
        let nth = match topic {
            Topic::Input(n) if n < inputs => n as usize,
            Topic::Output(n) if n < outputs => inputs as usize + n as usize,
            Topic::Cuts if self.settings.cuts.is_some() => inputs as usize + outputs as usize,
            Topic::Cuts | Topic::Input(_) | Topic::Output(_) => return None,
        };
        Some(nth)
    }

    fn command(&self, command: Command) {
        match self.commands.try_send(command) {
            Ok(()) => self.core.wake(),
            Err(TrySendError::Full(command) | TrySendError::Disconnected(command)) => {
                if let Command::Read { read, .. } = command {
                    (read.then)(None);
                }
            }
        }
    }
}

/// Returns all partitions, in the order in which [`KafkaLog::part`] looks for them.
fn parts(settings: &KafkaSettings) -> Vec<Part> {
    let partition = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let of = |name: &String, count: u32| {
        let name = name.clone();
        (0..count).map(move |number| (name.clone(), partition(number)))
    };
    let inputs = (0..).zip(of(&settings.inputs, settings.sources));
    let inputs = inputs.map(|(source, place)| (Topic::Input(source), place));
    let outputs = (0..).zip(of(&settings.outputs, settings.total()));
    let outputs = outputs.map(|(source, place)| (Topic::Output(source), place));
    let cuts = settings.cuts.iter().map(|name| (Topic::Cuts, (name.clone(), 0)));
    let part = |(topic, (name, partition))| Part {
        topic,
        name,
        partition,
        fence: Mutex::default(),
        judged: AtomicU64::new(0),
        outstanding: AtomicU64::new(0),
        progress_ns: AtomicU64::new(0),
        suspected: Mutex::new(None),
    };
    inputs.chain(outputs).chain(cuts).map(part).collect()
}

fn make<T: FromClientConfigAndContext<Listener>>(
    core: &Arc<Core>,
    config: &ClientConfig,
) -> Result<T> {
    config
        .create_with_context(Listener(core.clone()))
        .map_err(|e| Error::resource(format!("a client for Kafka could not be made: {e}")))
}

fn consumer(core: &Arc<Core>, settings: &KafkaSettings) -> Result<BaseConsumer<Listener>> {
    make(core, &settings.consumer()?)
}

/// Loads the state that was stored when the log was trimmed.
fn recall(core: &Core, client: &BaseConsumer<Listener>, settings: &KafkaSettings) -> Result<()> {
    let fenced: Vec<&Part> = core.parts.iter().filter(|part| part.is_fenced()).collect();
    let places: Vec<_> = fenced.iter().map(|part| (part.name.clone(), part.partition)).collect();
    let known = remembered(client, &places, settings)
        .map_err(|e| topics::unreachable(core, settings, &e))?;
    for (part, known) in fenced.iter().zip(known) {
        if let Some(known) = known {
            part.fence.lock().recall(known);
        }
    }
    Ok(())
}

impl Log for KafkaLog {
    fn append(
        &self,
        topic: Topic,
        generation: u64,
        record: Record,
        then: Then<Result<u64, Refused>>,
    ) {
        let Some(part) = self.part(topic) else { return then(Err(Refused::Unknown)) };
        let message = encode(&*self.format, topic, generation, &record);
        let begins = matches!(record, Record::Generation { .. });
        let must_count = matches!(record, Record::Answer { .. });
        self.appends.append(part, generation, (begins, must_count), &message, then);
    }

    fn read(
        &self,
        topic: Topic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Records>>,
    ) {
        let Some(part) = self.part(topic) else { return then(None) };
        let now_ns = self.core.env.clock.monotonic_ns();
        let read = Read::new(from, limit, now_ns, wait_us.saturating_mul(1000), then);
        self.command(Command::Read { part, read });
    }

    fn trim(&self, topic: Topic, below: u64) {
        if let Some(part) = self.part(topic) {
            self.command(Command::Trim { part, below });
        }
    }

    fn failed(&self) -> Option<Error> {
        self.lost()
    }

    fn trouble(&self) -> Option<String> {
        let (is_away, heard) = (self.core.is_away.load(Ordering::Relaxed), self.core.last_error());
        let brokers = &self.settings.brokers;
        match () {
            () if is_away && heard.is_empty() => Some(format!("no broker of {brokers} answers")),
            () if is_away => Some(format!("no broker of {brokers} answers: {heard}")),
            () => {
                let is_suspected = self.core.parts.iter().any(|part| self.core.suspects(part));
                self.core.too_large().or_else(|| is_suspected.then_some(heard))
            }
        }
    }
}

impl Drop for KafkaLog {
    fn drop(&mut self) {
        self.core.is_over.store(true, Ordering::SeqCst);
        self.appends.end();
        self.core.wake();
    }
}
