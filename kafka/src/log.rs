//! The log: what its threads share, and how it is opened.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use crossbeam_channel::{bounded, Receiver, Sender, TrySendError};
use parking_lot::Mutex;
use rdkafka::admin::AdminClient;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tidemill_cluster::{Record, Records, Refused, Topic};
use tidemill_core::{Error, Kind, Result};
use tidemill_durable::{Log, Then};
use tidemill_env::Env;

use crate::append::{Appends, Failed};
use crate::asks::{remembered, Asker};
use crate::fence::Fence;
use crate::message::{encode, Format};
use crate::read::{Command, Driver, Read};
use crate::settings::KafkaSettings;
use crate::topics;

/// So many reads and trims wait at most; further reads could not be done.
const COMMANDS: usize = 1024;
/// A part is not what it was when it has seemed so for so long: brokers that come back may say for a moment that it
/// is missing, or ends earlier than it does.
const SURE_NS: u64 = 5_000_000_000;
/// It has to seem so again within this time.
const SUSPECTED_NS: u64 = 60_000_000_000;

/// A partition.
pub(crate) struct Part {
    pub(crate) topic: Topic,
    pub(crate) name: String,
    pub(crate) partition: i32,
    /// Whether it is of a topic of others.
    pub(crate) is_followed: bool,
    pub(crate) fence: Mutex<Fence>,
    /// So many appends wait until all before them has been seen; of cuts so many have waited.
    pub(crate) judged: AtomicU64,
    /// Appends that have not been reported on.
    pub(crate) outstanding: AtomicU64,
    /// When the last one was.
    pub(crate) progress_ns: AtomicU64,
    suspected: Mutex<Option<Suspected>>,
}

/// A part that seems not to be what it was.
#[derive(Clone, Copy)]
struct Suspected {
    /// Since when, and when last.
    since_ns: u64,
    last_ns: u64,
    /// Where it ended then, when that was too early; else it was missing.
    end: Option<u64>,
}

impl Part {
    pub(crate) fn is_fenced(&self) -> bool {
        !matches!(self.topic, Topic::Input(_))
    }

    /// Whether it is read behind appends.
    pub(crate) fn is_tailed(&self) -> bool {
        self.judged.load(Ordering::SeqCst) > 0
    }

    fn place(&self) -> String {
        format!("partition {} of the topic {}", self.partition, self.name)
    }

    pub(crate) fn missing(&self) -> Error {
        Error::new(Kind::Io, format!("{} has been removed", self.place()))
            .help("what was in it is lost: begin anew with topics of other names, or bring it back")
    }

    /// Records that are needed are not there any more.
    pub(crate) fn gone(&self, from: u64, low: u64) -> Error {
        let place = self.place();
        Error::new(
            Kind::Io,
            format!("{place} begins at the offset {low}, and records from {from} on are needed"),
        )
        .help(
            "they were deleted by age or size, or by hand: begin anew with topics of other names, and let \
             retention.ms and retention.bytes keep more than is appended between two snapshots",
        )
    }

    /// There is less than there was.
    pub(crate) fn anew(&self, from: u64, high: u64) -> Error {
        let place = self.place();
        Error::new(
            Kind::Io,
            format!("{place} ends at the offset {high}, and has been read up to {from} before"),
        )
        .help(
            "the topic was removed and made anew, or a broker has lost records: begin anew with topics of \
             other names",
        )
    }

    pub(crate) fn unread(&self, offset: u64, why: &str, help: &str) -> Error {
        Error::new(Kind::Io, format!("{}: the record at {offset} {why}", self.place())).help(help)
    }
}

/// What all threads of a log share.
pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) parts: Vec<Part>,
    /// Producers that have failed.
    failed: Failed,
    is_over: AtomicBool,
    lost: Mutex<Option<Error>>,
    is_lost: AtomicBool,
    /// What was heard last of the brokers.
    heard: Mutex<String>,
    /// The last message that was larger than brokers take: its size, and what to do.
    too_large: Mutex<Option<(usize, String)>>,
    /// Whether no broker could be reached when one was last heard of.
    pub(crate) is_away: AtomicBool,
    waker: Sender<()>,
}

impl Core {
    /// Of a log that is opened, and what wakes the thread that reads.
    pub(crate) fn new(env: &Env, settings: &KafkaSettings) -> (Arc<Core>, Receiver<()>) {
        let (waker, wakes) = bounded(1);
        let core = Core {
            env: env.clone(),
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

    /// Has the thread that reads look around.
    pub(crate) fn wake(&self) {
        // When there is one already, it will look.
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

    /// The log can't be used any more. What was said first stays.
    pub(crate) fn lose(&self, error: Error) {
        self.lost.lock().get_or_insert(error);
        self.is_lost.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// A part seems not to be what it was: the log can't be used any more when that is so for long. Until then
    /// whoever asks is to ask again.
    fn suspect(&self, part: &Part, end: Option<u64>, error: Error) {
        let now_ns = self.env.clock.monotonic_ns();
        let mut suspected = part.suspected.lock();
        let before = suspected.filter(|before| now_ns < before.last_ns + SUSPECTED_NS);
        let since_ns = before.map_or(now_ns, |before| before.since_ns);
        *suspected = Some(Suspected { since_ns, last_ns: now_ns, end });
        drop(suspected);
        // A broker that has just come back knows its end all at once; one that grows is another one's.
        let grows = before.is_some_and(|before| before.end.is_some_and(|of| Some(of) < end));
        match grows || now_ns - since_ns > SURE_NS {
            true => self.lose(error),
            false => self.heard_error(&error.what),
        }
    }

    /// A part is not there, as it seems.
    pub(crate) fn suspect_missing(&self, part: &Part) {
        self.suspect(part, None, part.missing());
    }

    /// A part ends before what has been read of it, as it seems.
    pub(crate) fn suspect_anew(&self, part: &Part, from: u64, high: u64) {
        self.suspect(part, Some(high), part.anew(from, high));
    }

    /// A part is there; whether it is what it was is not known.
    pub(crate) fn is_there(&self, part: &Part) {
        let mut suspected = part.suspected.lock();
        if suspected.is_some_and(|suspected| suspected.end.is_none()) {
            *suspected = None;
        }
    }

    /// A part is what it was.
    pub(crate) fn trust(&self, part: &Part) {
        *part.suspected.lock() = None;
    }

    /// Whether a part seems not to be what it was.
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

    /// Keeps it for people when a message was larger than is taken.
    pub(crate) fn heard_size(&self, part: &Part, bytes: usize, error: &KafkaError) {
        let is_large = error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge);
        // Nobody waits for a request that was not taken, beside who has made it.
        if is_large && part.is_fenced() {
            let place = part.place();
            let what = format!(
                "a message of {bytes} bytes is larger than {place} takes: raise max.message.bytes of the topic and \
                 message.max.bytes in cluster_log_options, or give less in cluster_message_bytes_max"
            );
            *self.too_large.lock() = Some((bytes, what));
        }
    }

    /// A message of this size was taken.
    pub(crate) fn takes(&self, bytes: usize) {
        let mut too_large = self.too_large.lock();
        if too_large.as_ref().is_some_and(|(refused, _)| bytes >= *refused) {
            *too_large = None;
        }
    }

    fn too_large(&self) -> Option<String> {
        self.too_large.lock().as_ref().map(|(_, what)| what.clone())
    }

    pub(crate) fn heard(&self, error: &KafkaError, reason: &str) {
        if matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::AllBrokersDown)) {
            self.is_away.store(true, Ordering::Relaxed);
            self.wake();
            // Of each it is heard why.
            return;
        }
        let text = if reason.is_empty() { error.to_string() } else { reason.to_owned() };
        self.heard_error(&text);
    }

    pub(crate) fn heard_error(&self, text: &str) {
        text.clone_into(&mut self.heard.lock());
    }

    pub(crate) fn last_heard(&self) -> String {
        self.heard.lock().clone()
    }
}

/// Hears what brokers say to those who read and ask.
pub(crate) struct Listener(pub(crate) Arc<Core>);

impl ClientContext for Listener {
    fn error(&self, error: KafkaError, reason: &str) {
        self.0.heard(&error, reason);
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
    /// Opens the log, and makes what topics are missing.
    ///
    /// # Errors
    /// `Setting` when a property or a topic can't do, `Io` when no broker answers or something is refused.
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
        // Where one of the threads can't be started, dropping the log ends the others.
        log.start(client, admin, waiting, wakes)?;
        Ok(log)
    }

    /// Why the log can't be used any more, when a topic is not what it was. From then on nothing is
    /// appended or read.
    pub fn lost(&self) -> Option<Error> {
        self.core.lost.lock().clone()
    }

    /// What was heard last of brokers that failed; for people. Empty when nothing was.
    pub fn heard(&self) -> String {
        self.core.last_heard()
    }

    fn start(
        &self,
        client: Arc<BaseConsumer<Listener>>,
        admin: AdminClient<Listener>,
        commands: Receiver<Command>,
        wakes: Receiver<()>,
    ) -> Result<()> {
        let (core, settings) = (&self.core, &self.settings);
        // Two questions for the ends of each part, one whether anybody is there, and trims, which come again.
        let room = 2 * core.parts.len() + 1 + COMMANDS;
        let (asks, asked) = bounded(room);
        let (answers, answered) = bounded(room);
        let asker = Asker {
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
        let inputs = outputs - self.settings.elsewhere;
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

/// All partitions, where [`KafkaLog::part`] looks for them.
fn parts(settings: &KafkaSettings) -> Vec<Part> {
    let partition = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let of = |name: &String, count: u32| {
        let name = name.clone();
        (0..count).map(move |number| (name.clone(), partition(number)))
    };
    let followed = settings.followed.iter().flat_map(|f| of(&f.topic, f.partitions));
    let inputs = of(&settings.inputs, settings.sources).map(|place| (place, false));
    let inputs = inputs.chain(followed.map(|place| (place, true)));
    let input = |(source, (place, is_followed))| (Topic::Input(source), place, is_followed);
    let outputs = (0..).zip(of(&settings.outputs, settings.total()));
    let outputs = outputs.map(|(source, place)| (Topic::Output(source), place, false));
    let cuts = settings.cuts.iter().map(|name| (Topic::Cuts, (name.clone(), 0), false));
    let part = |(topic, (name, partition), is_followed)| Part {
        topic,
        name,
        partition,
        is_followed,
        fence: Mutex::default(),
        judged: AtomicU64::new(0),
        outstanding: AtomicU64::new(0),
        progress_ns: AtomicU64::new(0),
        suspected: Mutex::new(None),
    };
    (0..).zip(inputs).map(input).chain(outputs).chain(cuts).map(part).collect()
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

/// What was known when the log was trimmed.
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
        let part = self.part(topic).filter(|part| !self.core.parts[*part].is_followed);
        let Some(part) = part else { return then(Err(Refused::Unknown)) };
        let message = encode(&*self.format, topic, generation, &record);
        let begins = matches!(record, Record::Generation { .. });
        self.appends.append(part, generation, begins, &message, then);
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
        let (is_away, heard) = (self.core.is_away.load(Ordering::Relaxed), self.core.last_heard());
        let brokers = &self.settings.brokers;
        match () {
            () if is_away && heard.is_empty() => Some(format!("no broker of {brokers} answers")),
            () if is_away => Some(format!("no broker of {brokers} answers: {heard}")),
            () => {
                let is_suspected = self.core.parts.iter().any(|part| self.core.suspects(part));
                let own = self.core.too_large().or_else(|| is_suspected.then_some(heard));
                own.or_else(|| self.format.trouble())
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
