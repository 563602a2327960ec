//! The producer of a sink: idempotent, and transactional on request. It waits for brokers, and
//! never continues after a failed message.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
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
use super::listen::{lasting, LastError};
use super::settings::TopicSink;
use crate::report::report;

/// The time before the producer's full queue is tried again, in microseconds.
const FULL_US: u64 = 1_000;
/// The time before transactions are begun again, in microseconds.
const AGAIN_US: u64 = 200_000;
/// The longest time of one call into the library, after which the sender checks whether to go on.
const STEP: Duration = Duration::from_millis(500);
/// The time of waiting after which it is reported, in nanoseconds.
const PATIENT_NS: u64 = 2_000_000_000;
/// The longest wait for sent messages when the run ends, in nanoseconds.
const LAST_NS: u64 = 10_000_000_000;

/// A message to be appended.
pub(super) struct Outgoing<'a> {
    pub partition: u32,
    pub key: Option<&'a [u8]>,
    pub value: &'a [u8],
    pub id: &'a str,
}

/// The state of messages in flight.
#[derive(Default)]
struct Under {
    sent: AtomicU64,
    done: AtomicU64,
    /// The error and text of the first message that was not delivered, and whether waiting may
    /// help.
    failed: Mutex<Option<(KafkaError, String)>>,
    /// For each partition, the offset after our last message.
    ends: Mutex<Vec<u64>>,
}

struct Reports {
    under: Arc<Under>,
    heard: LastError,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        report(self.heard.log(), level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.heard.note(&error, reason);
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
        // This comes last, so that a thread that sees all messages done also sees their results.
        self.under.done.fetch_add(1, Ordering::Release);
    }
}

/// Appends messages to one topic.
pub(super) struct Sender {
    env: Env,
    topic: String,
    brokers: String,
    headers: OwnedHeaders,
    producer: ThreadedProducer<Reports>,
    under: Arc<Under>,
    heard: LastError,
    troubles: Troubles,
    who: String,
    is_transactional: bool,
    is_open: bool,
    /// The time since which the run is to end.
    giving_up_ns: Option<u64>,
}

impl Sender {
    /// Opens a producer. A transactional one fences all earlier ones of the same name.
    ///
    /// # Errors
    /// If it can't be created, or if no broker answers in time.
    pub fn open(
        env: &Env,
        settings: &TopicSink,
        heard: &LastError,
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
            // A producer that has failed to start is not used again.
            drop(sender);
            env.clock.sleep_us(AGAIN_US);
        }
    }

    fn make(
        env: &Env,
        settings: &TopicSink,
        heard: &LastError,
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

    /// Returns the offsets after our last messages, for the partitions where they are known.
    pub fn ends(&self) -> Vec<u64> {
        self.under.ends.lock().clone()
    }

    /// Sets the offsets where the partitions end before anything is sent.
    pub fn begin_at(&self, ends: Vec<u64>) {
        *self.under.ends.lock() = ends;
    }

    /// Whether messages are rolled back if they are not committed.
    pub fn is_transactional(&self) -> bool {
        self.is_transactional
    }

    fn now_ns(&self) -> u64 {
        self.env.clock.monotonic_ns()
    }

    /// Begins a transaction, if this producer is transactional.
    pub fn begin(&mut self) -> Result<()> {
        if self.is_transactional && !self.is_open {
            self.producer.begin_transaction().map_err(|error| self.refused(&error))?;
            self.is_open = true;
        }
        Ok(())
    }

    /// Sends a message. Waits while too many are in flight. Returns `false` if the transaction must
    /// be repeated.
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

    /// Waits until all sent messages have been delivered, and in a transaction until it is
    /// committed. Returns `false` if the transaction must be repeated.
    pub fn complete(&mut self) -> Result<bool> {
        let since_ns = self.now_ns();
        if !self.is_transactional {
            while self.under_way() > 0 {
                self.has_failed()?;
                self.waits(since_ns)?;
                // An error means only that it has taken longer than that.
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

    /// Aborts a transaction. Its messages are to be sent again.
    fn abort(&mut self, why: &RDKafkaError) -> Result<()> {
        let since_ns = self.now_ns();
        let failed = self.under.failed.lock().take();
        if let Some(error) = failed.and_then(|(error, _)| lasting(&self.topic, &error)) {
            return Err(error);
        }
        self.heard.note(&KafkaError::Transaction(why.clone()), "");
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
        // Aborted messages are reported as not delivered.
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

    /// Whether a transaction must be repeated; it has been aborted. Without transactions, a failed
    /// message is an error.
    fn has_failed(&mut self) -> Result<bool> {
        let Some((error, reason)) = self.under.failed.lock().clone() else { return Ok(false) };
        if let Some(error) = lasting(&self.topic, &error) {
            return Err(error);
        }
        let fatal = self.producer.client().fatal_error();
        if let (true, None) = (self.is_transactional, &fatal) {
            self.heard.note(&error, &reason);
            self.take_back(self.now_ns())?;
            return Ok(true);
        }
        let why = match fatal {
            Some((code, why)) => format!("{code}: {why}"),
            None => error.to_string(),
        };
        Err(self.refused_because(&why))
    }

    /// Notes that a call has waited since a time. Reports the wait after a while, and returns
    /// whether it did. Fails if the run is to end and the last wait is over.
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
        self.troubles.report(&self.who, &format!("{why}; it waits"));
        if self.troubles.is_over() {
            let giving_up_ns = *self.giving_up_ns.get_or_insert(now_ns);
            if now_ns - giving_up_ns > LAST_NS {
                return Err(Error::new(Kind::Io, format!("topic {}: {why}", self.topic))
                    .help("the missing rows are written when the app is started again"));
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
                    "topic {}: another process writes with the same transactional id",
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
            heard if heard.is_empty() => {
                error.help("the missing rows are written when the app is started again")
            }
            heard => error.help(format!(
                "last heard of the brokers: {heard}; the missing rows are written when the app \
                 is started again"
            )),
        }
    }
}

/// Whether the failure to begin transactions is temporary. A broker that has just started must
/// first load its state of them.
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
        // No message is sent after an end that was not waited for, as if the process had been
        // killed.
        self.producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
    }
}
