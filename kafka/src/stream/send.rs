//! Appending messages: an idempotent producer, with transactions where they are wanted, that waits for
//! brokers and never goes on behind what has failed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, NoCustomPartitioner, Producer, ProducerContext, PurgeConfig,
    ThreadedProducer,
};
use tidemill_connect::Troubles;
use tidemill_core::{Error, Kind, Result};
use tidemill_env::Env;

use super::begin::number;
use super::listen::{lasting, Heard};
use super::settings::TopicSink;

/// Before the queue of the producer is tried again when it is full.
const FULL_US: u64 = 1_000;
/// Before transactions are begun again.
const AGAIN_US: u64 = 200_000;
/// So long one call into the library waits at most, before it is looked whether to go on.
const STEP: Duration = Duration::from_millis(500);
/// So long one waits before it is said.
const PATIENT_NS: u64 = 2_000_000_000;
/// So long what has been sent is waited for when the run ends.
const LAST_NS: u64 = 10_000_000_000;

/// A message to be appended.
pub(super) struct Outgoing<'a> {
    pub partition: u32,
    pub key: Option<&'a [u8]>,
    pub value: &'a [u8],
    pub id: &'a str,
}

/// What is known of messages under way.
#[derive(Default)]
struct Under {
    sent: AtomicU64,
    done: AtomicU64,
    /// The first that was not delivered, in words, and whether waiting might mend it.
    failed: Mutex<Option<(KafkaError, String)>>,
    /// Of each partition the offset behind the last message of ours.
    ends: Mutex<Vec<u64>>,
}

struct Reports {
    under: Arc<Under>,
    heard: Heard,
}

impl ClientContext for Reports {
    fn error(&self, error: KafkaError, reason: &str) {
        self.heard.hear(&error, reason);
        if let KafkaError::Global(Code::Fatal) = error {
            self.under.failed.lock().get_or_insert((error, reason.to_owned()));
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(message) => {
                let end = u64::try_from(message.offset() + 1).unwrap_or(0);
                let at = usize::try_from(message.partition()).unwrap_or(usize::MAX);
                if let Some(known) = self.under.ends.lock().get_mut(at) {
                    *known = end.max(*known);
                }
                self.heard.is_well();
            }
            Err((error, _)) => {
                self.under.failed.lock().get_or_insert((error.clone(), String::new()));
            }
        }
        // Last: whoever sees that all are done sees what came of them.
        self.under.done.fetch_add(1, Ordering::Release);
    }
}

/// Appends to one topic.
pub(super) struct Sender {
    env: Env,
    topic: String,
    brokers: String,
    headers: OwnedHeaders,
    producer: ThreadedProducer<Reports>,
    under: Arc<Under>,
    heard: Heard,
    troubles: Troubles,
    who: String,
    is_transactional: bool,
    is_open: bool,
    /// The run was to end since then.
    giving_up_ns: Option<u64>,
}

impl Sender {
    /// A producer; one of transactions has fenced all before it that had the same name.
    ///
    /// # Errors
    /// When it can't be made, and when no broker answers in time.
    pub fn open(
        env: &Env,
        settings: &TopicSink,
        heard: &Heard,
        (troubles, who): (&Troubles, &str),
        transactional_id: &str,
    ) -> Result<Sender> {
        let begun_ns = env.clock.monotonic_ns();
        loop {
            let sender = Sender::make(env, settings, heard, (troubles, who), transactional_id)?;
            if !settings.transactions {
                return Ok(sender);
            }
            let Err(error) = sender.producer.init_transactions(settings.timeout()) else {
                return Ok(sender);
            };
            let waited_ns = env.clock.monotonic_ns() - begun_ns;
            if !passes(&error) || waited_ns > settings.timeout_us * 1000 {
                return Err(sender.refused(&error));
            }
            // A producer that has failed to begin is not used again.
            drop(sender);
            env.clock.sleep_us(AGAIN_US);
        }
    }

    fn make(
        env: &Env,
        settings: &TopicSink,
        heard: &Heard,
        (troubles, who): (&Troubles, &str),
        transactional_id: &str,
    ) -> Result<Sender> {
        let under = Arc::new(Under::default());
        let reports = Reports { under: under.clone(), heard: heard.clone() };
        let producer: ThreadedProducer<Reports> = settings
            .producer(transactional_id)?
            .create_with_context(reports)
            .map_err(|e| Error::resource(format!("a producer for Kafka could not be made: {e}")))?;
        let headers = settings.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value) })
        });
        Ok(Sender {
            env: env.clone(),
            topic: settings.topic.clone(),
            brokers: settings.brokers.clone(),
            headers,
            producer,
            under,
            heard: heard.clone(),
            troubles: troubles.clone(),
            who: who.to_owned(),
            is_transactional: settings.transactions,
            is_open: false,
            giving_up_ns: None,
        })
    }

    /// Where partitions end behind what was sent, of those that are known.
    pub fn ends(&self) -> Vec<u64> {
        self.under.ends.lock().clone()
    }

    /// Where they end before anything is sent.
    pub fn begin_at(&self, ends: Vec<u64>) {
        *self.under.ends.lock() = ends;
    }

    /// Whether what is sent is taken back when it is not committed.
    pub fn is_transactional(&self) -> bool {
        self.is_transactional
    }

    fn now_ns(&self) -> u64 {
        self.env.clock.monotonic_ns()
    }

    /// Begins a transaction, where they are wanted.
    pub fn begin(&mut self) -> Result<()> {
        if self.is_transactional && !self.is_open {
            self.producer.begin_transaction().map_err(|error| self.refused(&error))?;
            self.is_open = true;
        }
        Ok(())
    }

    /// Sends a message; waits while too much is under way. In a transaction `false` when that has to be
    /// made again.
    pub fn send(&mut self, message: &Outgoing<'_>) -> Result<bool> {
        let since_ns = self.now_ns();
        let mut has_said = false;
        loop {
            if self.has_failed()? {
                return Ok(false);
            }
            let id = Header { key: super::ID, value: Some(message.id) };
            let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&self.topic)
                .partition(number(message.partition))
                .payload(message.value)
                .headers(self.headers.clone().insert(id));
            record.key = message.key;
            match self.producer.send(record) {
                Ok(()) => {
                    self.under.sent.fetch_add(1, Ordering::Relaxed);
                    if has_said {
                        self.troubles.clear(&self.who);
                    }
                    return Ok(true);
                }
                Err((KafkaError::MessageProduction(Code::QueueFull), _)) => {
                    has_said |= self.waits(since_ns)?;
                    self.env.clock.sleep_us(FULL_US);
                }
                Err((error, _))
                    if self.is_transactional && lasting(&self.topic, &error).is_none() =>
                {
                    self.under.failed.lock().get_or_insert((error, String::new()));
                }
                Err((error, _)) => {
                    let refused = self.refused(&error);
                    return Err(Error {
                        what: format!("{}: row {}", refused.what, message.id),
                        ..refused
                    });
                }
            }
        }
    }

    /// Waits until all that was sent has been delivered; in a transaction until that is committed, and
    /// `false` when it has to be made again.
    pub fn complete(&mut self) -> Result<bool> {
        let since_ns = self.now_ns();
        if !self.is_transactional {
            while self.under_way() > 0 {
                self.has_failed()?;
                self.waits(since_ns)?;
                // An error of it is that it has taken longer than that.
                let _ = self.producer.flush(STEP.min(Duration::from_millis(20)));
            }
            self.has_failed()?;
            self.troubles.clear(&self.who);
            return Ok(true);
        }
        if !self.is_open {
            return Ok(true);
        }
        loop {
            match self.producer.commit_transaction(STEP) {
                Ok(()) => break,
                // Messages are delivered first.
                Err(KafkaError::Flush(Code::OperationTimedOut)) => {
                    self.waits(since_ns)?;
                }
                Err(KafkaError::Transaction(why)) if why.is_retriable() => {
                    self.waits(since_ns)?;
                }
                Err(KafkaError::Transaction(why)) if why.txn_requires_abort() => {
                    self.abort(&why)?;
                    return Ok(false);
                }
                Err(error) => return Err(self.refused(&error)),
            }
        }
        self.is_open = false;
        self.troubles.clear(&self.who);
        Ok(true)
    }

    /// Takes a transaction back. Its messages are to be sent again.
    fn abort(&mut self, why: &RDKafkaError) -> Result<()> {
        let since_ns = self.now_ns();
        let failed = self.under.failed.lock().take();
        if let Some(error) = failed.and_then(|(error, _)| lasting(&self.topic, &error)) {
            return Err(error);
        }
        self.heard.hear(&KafkaError::Transaction(why.clone()), "");
        self.take_back(since_ns)
    }

    fn take_back(&mut self, since_ns: u64) -> Result<()> {
        loop {
            match self.producer.abort_transaction(STEP) {
                Ok(()) => break,
                Err(KafkaError::Transaction(why)) if why.is_retriable() => {
                    self.waits(since_ns)?;
                }
                Err(error) => return Err(self.refused(&error)),
            }
        }
        // What was taken back is reported as not delivered.
        while self.under_way() > 0 {
            self.waits(since_ns)?;
            let _ = self.producer.flush(Duration::from_millis(20));
        }
        *self.under.failed.lock() = None;
        self.is_open = false;
        Ok(())
    }

    fn under_way(&self) -> u64 {
        let done = self.under.done.load(Ordering::Acquire);
        self.under.sent.load(Ordering::Relaxed).saturating_sub(done)
    }

    /// Whether a transaction has to be made again; it has been taken back. Without transactions what has
    /// failed is an error.
    fn has_failed(&mut self) -> Result<bool> {
        let Some((error, reason)) = self.under.failed.lock().clone() else { return Ok(false) };
        if let Some(error) = lasting(&self.topic, &error) {
            return Err(error);
        }
        let fatal = self.producer.client().fatal_error();
        if let (true, None) = (self.is_transactional, &fatal) {
            self.heard.hear(&error, &reason);
            self.take_back(self.now_ns())?;
            return Ok(true);
        }
        let why = match fatal {
            Some((code, why)) => format!("{code}: {why}"),
            None => error.to_string(),
        };
        Err(self.refused_because(&why))
    }

    /// One has waited since then: says so after a while, and whether it has. An error when the run is to
    /// end, and that has been waited for, too.
    fn waits(&mut self, since_ns: u64) -> Result<bool> {
        let now_ns = self.now_ns();
        if now_ns - since_ns < PATIENT_NS {
            return Ok(false);
        }
        let heard = self.heard.last();
        let why = match heard.is_empty() {
            true => format!("brokers of {} do not confirm messages", self.brokers),
            false => format!("brokers of {} do not confirm messages: {heard}", self.brokers),
        };
        self.troubles.tell(&self.who, &format!("{why}; it waits"));
        if self.troubles.gives_up() {
            let giving_up_ns = *self.giving_up_ns.get_or_insert(now_ns);
            if now_ns - giving_up_ns > LAST_NS {
                return Err(Error::new(Kind::Io, format!("topic {}: {why}", self.topic)).help(
                    "what is missing in the topic is written when the app is started again",
                ));
            }
        }
        Ok(true)
    }

    fn refused(&self, error: &KafkaError) -> Error {
        if let KafkaError::Transaction(why) = error {
            if matches!(
                why.code(),
                Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch
            ) {
                return Error::resource(format!(
                    "topic {}: somebody else writes with the same transactional id",
                    self.topic
                ))
                .help("two runs of an app must not write at once; transactions=\"name\" tells apps apart");
            }
        }
        lasting(&self.topic, error).unwrap_or_else(|| match error.rdkafka_error_code() {
            Some(Code::OperationTimedOut) => self.heard.unreachable(&self.brokers, error),
            _ => self.refused_because(&error.to_string()),
        })
    }

    fn refused_because(&self, why: &str) -> Error {
        let error = Error::new(Kind::Io, format!("writing to topic {}: {why}", self.topic));
        match self.heard.last() {
            heard if heard.is_empty() => error.help(
                "what is missing in the topic is written when the app is started again",
            ),
            heard => error.help(format!(
                "last heard of the brokers: {heard}; what is missing in the topic is written when the app \
                 is started again"
            )),
        }
    }
}

/// Whether transactions can't begin only for now: a broker that has just started has to read first what it
/// knows of them.
fn passes(error: &KafkaError) -> bool {
    let KafkaError::Transaction(why) = error else { return false };
    why.is_retriable()
        || matches!(
            why.code(),
            Code::CoordinatorLoadInProgress
                | Code::CoordinatorNotAvailable
                | Code::NotCoordinator
                | Code::ConcurrentTransactions
        )
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.troubles.clear(&self.who);
        // Nothing leaves behind an end that was not waited for, as when the process is killed.
        self.producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
    }
}
