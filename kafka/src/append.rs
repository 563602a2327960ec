//! Appends: the producers, one after another, and the reports on their records.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{
    BaseProducer, BaseRecord, DeliveryResult, NoCustomPartitioner, Producer, ProducerContext,
    PurgeConfig,
};
use tidemill_cluster::{Refused, Then, Topic};
use tidemill_core::{Error, Result};

use crate::fence::Waiting;
use crate::log::Core;
use crate::message::{Mark, Outgoing};
use crate::report::report;
use crate::settings::KafkaSettings;
use crate::topics::{self, is_missing};

/// The longest time for which a thread that waits for reports doesn't check whether it should end.
const POLL: Duration = Duration::from_millis(50);
/// The number of polls for the last reports of an abandoned producer.
const LAST_POLLS: usize = 100;

/// A record in flight.
pub(crate) struct Sent {
    part: usize,
    generation: u64,
    begins: bool,
    /// Whether the record is checked against the fence, and by which mark.
    is_judged: bool,
    mark: Mark,
    /// The size of the message, in bytes.
    bytes: usize,
    /// The callback. It is in a lock only because the library requires a type that threads can
    /// share.
    then: Mutex<Then<Result<u64, Refused>>>,
}

/// Receives the reports of one producer.
pub(crate) struct Reports {
    core: Arc<Core>,
    /// The number of the producer.
    id: u64,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        report(self.core.log(), level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.core.note(&error, reason);
        if let KafkaError::Global(RDKafkaErrorCode::Fatal) = error {
            self.core.fail(self.id);
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Reports {
    type DeliveryOpaque = Box<Sent>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Box<Sent>) {
        let part = &self.core.parts[sent.part];
        let now_ns = self.core.env.clock.monotonic_ns();
        part.progress_ns.store(now_ns, Ordering::Relaxed);
        part.outstanding.fetch_sub(1, Ordering::Relaxed);
        if result.is_ok() {
            self.core.is_away.store(false, Ordering::Relaxed);
            self.core.takes(sent.bytes);
            self.core.is_there(part);
        }
        let offset = match result {
            // If a repeated record was already in the log, the broker may not know its offset.
            Ok(message) => u64::try_from(message.offset()).ok(),
            Err((error, _)) => {
                self.core.note(error, "");
                if is_missing(error) {
                    self.core.suspect_missing(part);
                }
                self.core.note_size(part, sent.bytes, error);
                None
            }
        };
        let Some(offset) = offset else {
            self.core.fail(self.id);
            return sent.then.into_inner()(Err(Refused::Unknown));
        };
        if !sent.is_judged {
            return sent.then.into_inner()(Ok(offset));
        }
        let mut answers = Vec::new();
        let mut fence = part.fence.lock();
        fence.wait(Waiting {
            offset,
            generation: sent.generation,
            mark: sent.mark,
            begins: sent.begins,
            since_ns: now_ns,
            then: sent.then.into_inner(),
        });
        fence.answers(&mut answers);
        let is_alone = fence.is_only_writer();
        drop(fence);
        if !is_alone {
            self.core.wake();
        }
        for (then, answer) in answers {
            then(answer);
        }
    }
}

/// A producer, and the thread that waits for its reports.
struct Running {
    producer: Arc<BaseProducer<Reports>>,
    id: u64,
    is_over: Arc<AtomicBool>,
}

impl Running {
    fn start(core: &Arc<Core>, settings: &KafkaSettings, id: u64) -> Result<Running> {
        let reports = Reports { core: core.clone(), id };
        let producer: BaseProducer<Reports> = settings
            .producer()?
            .create_with_context(reports)
            .map_err(|e| Error::resource(format!("a producer for Kafka could not be made: {e}")))?;
        let producer = Arc::new(producer);
        let is_over = Arc::new(AtomicBool::new(false));
        let (polled, is_done) = (producer.clone(), is_over.clone());
        let body = move || {
            while !is_done.load(Ordering::Relaxed) {
                polled.poll(POLL);
            }
            // Purged records are reported, too.
            for _ in 0..LAST_POLLS {
                if polled.in_flight_count() == 0 {
                    break;
                }
                polled.poll(POLL);
            }
        };
        let started = core.env.threads.spawn("kafka-reports", Box::new(body));
        started.map_err(|e| Error::io("starting a thread for Kafka", &e))?;
        Ok(Running { producer, id, is_over })
    }

    /// Drops the records that were not sent, and those that were sent and not acknowledged.
    fn end(&self) {
        self.producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// All appends of this process.
pub(crate) struct Appends {
    core: Arc<Core>,
    settings: KafkaSettings,
    inner: Mutex<Inner>,
}

struct Inner {
    running: Option<Running>,
    made: u64,
    /// The highest generation that has appended to each part.
    highest: Vec<u64>,
    /// For each part the lowest generation that may still append. Records of lower ones may be
    /// missing.
    barred: Vec<u64>,
}

/// The result of an attempt to append.
enum Tried {
    Sent,
    /// The log has no record, or its state is unknown.
    Not(Then<Result<u64, Refused>>),
}

impl Appends {
    pub(crate) fn start(core: &Arc<Core>, settings: &KafkaSettings) -> Result<Appends> {
        let nothing = vec![0; core.parts.len()];
        let running = Some(Running::start(core, settings, 1)?);
        let inner = Inner { running, made: 1, highest: nothing.clone(), barred: nothing };
        Ok(Appends { core: core.clone(), settings: settings.clone(), inner: Mutex::new(inner) })
    }

    /// Makes the producer learn the leaders of the partitions.
    pub(crate) fn warm(&self) -> Result<()> {
        let producer = self.inner.lock().running.as_ref().map(|running| running.producer.clone());
        producer.map_or(Ok(()), |p| topics::warm(&self.core, p.client(), &self.settings))
    }

    /// Appends a message.
    ///
    /// Cuts, records with which a generation begins, and those that must count, are answered when all
    /// records before them have been seen. A process that is the only writer knows these records;
    /// otherwise they are read back.
    pub(crate) fn append(
        &self,
        part: usize,
        generation: u64,
        (begins, must_count): (bool, bool),
        message: &Outgoing,
        then: Then<Result<u64, Refused>>,
    ) {
        let of = &self.core.parts[part];
        let is_judged = of.is_fenced() && (begins || must_count || of.topic == Topic::Cuts);
        let then = if is_judged { self.judged(part, then) } else { then };
        // This lock makes the order in the log equal to the order of the calls.
        let tried = {
            let mut inner = self.inner.lock();
            self.renew(&mut inner);
            let is_barred = self.core.parts[part].is_fenced() && generation < inner.barred[part];
            match &inner.running {
                Some(running) if !is_barred && !self.core.is_over() => {
                    let (bytes, then) = (message.bytes(), Mutex::new(then));
                    let mark = if is_judged { message.mark() } else { Mark::default() };
                    let sent = Sent { part, generation, begins, is_judged, mark, bytes, then };
                    let (id, tried) = (running.id, self.send(running, sent, message));
                    inner.highest[part] = inner.highest[part].max(generation);
                    if matches!(tried, Tried::Not(_)) && self.core.parts[part].is_fenced() {
                        // Later records must not be in the log without this one.
                        self.core.fail(id);
                        self.renew(&mut inner);
                    }
                    tried
                }
                _ => Tried::Not(then),
            }
        };
        if let Tried::Not(then) = tried {
            then(Err(Refused::Unknown));
        }
    }

    /// Has the part read until this append is answered.
    ///
    /// A part with cuts is read for as long as other processes may append to it. Outputs are many,
    /// and clients read them. So the coordinator, which only appends the beginnings of generations,
    /// reads a part of outputs only until each of them is answered.
    fn judged(&self, part: usize, then: Then<Result<u64, Refused>>) -> Then<Result<u64, Refused>> {
        let of = &self.core.parts[part];
        if of.judged.fetch_add(1, Ordering::SeqCst) == 0 {
            self.core.wake();
        }
        if of.topic == Topic::Cuts {
            return then;
        }
        let core = self.core.clone();
        Box::new(move |answer| {
            core.parts[part].judged.fetch_sub(1, Ordering::SeqCst);
            then(answer);
        })
    }

    fn send(&self, running: &Running, sent: Sent, message: &Outgoing) -> Tried {
        let part = &self.core.parts[sent.part];
        if part.outstanding.fetch_add(1, Ordering::Relaxed) == 0 {
            part.progress_ns.store(self.core.env.clock.monotonic_ns(), Ordering::Relaxed);
        }
        let mut record = BaseRecord::with_opaque_to(&part.name, Box::new(sent))
            .partition(part.partition)
            .payload(&message.value);
        if let Some(key) = &message.key {
            record = record.key(key);
        }
        if !message.headers.is_empty() {
            let headers = OwnedHeaders::new_with_capacity(message.headers.len());
            let headers = message.headers.iter().fold(headers, |headers, (key, value)| {
                headers.insert(Header { key, value: Some(value) })
            });
            record = record.headers(headers);
        }
        match running.producer.send::<Vec<u8>, Vec<u8>>(record) {
            Ok(()) => Tried::Sent,
            Err((error, record)) => {
                self.core.note(&error, "");
                part.outstanding.fetch_sub(1, Ordering::Relaxed);
                let sent = record.delivery_opaque;
                self.core.note_size(part, sent.bytes, &error);
                Tried::Not(sent.then.into_inner())
            }
        }
    }

    /// Replaces a producer that has failed.
    fn renew(&self, inner: &mut Inner) {
        if inner.running.as_ref().is_some_and(|r| !self.core.has_failed(r.id)) {
            return;
        }
        if let Some(failed) = inner.running.take() {
            failed.end();
            for (barred, highest) in inner.barred.iter_mut().zip(&inner.highest) {
                *barred = (*barred).max(*highest + 1);
            }
        }
        inner.made += 1;
        match Running::start(&self.core, &self.settings, inner.made) {
            Ok(running) => inner.running = Some(running),
            // The next append tries again.
            Err(error) => self.core.note_error(&error.to_string()),
        }
    }

    /// Abandons a producer that has made no progress for too long.
    pub(crate) fn check(&self, now_ns: u64, timeout_ns: u64) {
        let is_stuck = self.core.parts.iter().any(|part| {
            let progress_ns = part.progress_ns.load(Ordering::Relaxed);
            part.outstanding.load(Ordering::Relaxed) > 0
                && now_ns.saturating_sub(progress_ns) > timeout_ns
        });
        let mut inner = self.inner.lock();
        if let (true, Some(running)) = (is_stuck, &inner.running) {
            self.core.fail(running.id);
            // The next producer's appends get the full time.
            for part in &self.core.parts {
                part.progress_ns.store(now_ns, Ordering::Relaxed);
            }
        }
        self.renew(&mut inner);
    }

    /// Returns the highest generation that this process has appended to a part.
    pub(crate) fn highest(&self, part: usize) -> u64 {
        self.inner.lock().highest[part]
    }

    /// Ends the producer: nothing is appended from now on.
    pub(crate) fn end(&self) {
        if let Some(running) = self.inner.lock().running.take() {
            running.end();
        }
    }
}

/// The number of the producer that has failed last.
#[derive(Default)]
pub(crate) struct Failed(AtomicU64);

impl Failed {
    pub(crate) fn set(&self, id: u64) {
        self.0.fetch_max(id, Ordering::SeqCst);
    }

    pub(crate) fn has(&self, id: u64) -> bool {
        self.0.load(Ordering::SeqCst) >= id
    }
}

#[cfg(test)]
mod tests;
