//! A client of a cluster, as other programs write it: it sends requests to the inputs and reads
//! replies from the outputs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tidemill_connect::Message;
use tidemill_core::{Error, Kind, Result};
use tidemill_env::{Env, Handle};

use crate::message::incoming;
use crate::settings::KafkaSettings;
use crate::Outgoing;

/// The longest time for which a thread that waits for messages doesn't check whether it should end.
const POLL: Duration = Duration::from_millis(50);
/// The time before the producer's full queue is tried again, in microseconds.
const FULL_US: u64 = 200;
/// The longest time for which the end waits for sent messages.
const FLUSH: Duration = Duration::from_secs(10);

/// A callback for outputs, on the thread that reads them.
pub type OnMessage = Box<dyn FnMut(&Message<'_>) + Send>;

/// A client.
///
/// Unlike the log, it doesn't decide which outputs count. It receives an output that two
/// generations have appended twice, with the same header `id`.
pub struct Client {
    env: Env,
    producer: ThreadedProducer<DefaultProducerContext>,
    inputs: String,
    is_over: Arc<AtomicBool>,
    reader: Option<Handle>,
}

fn failed(what: &str, error: &KafkaError) -> Error {
    Error::new(Kind::Io, format!("{what}: {error}"))
}

impl Client {
    /// Starts to read what is appended to the outputs from now on. The topics must exist.
    ///
    /// # Errors
    /// If no broker answers.
    pub fn open(env: &Env, settings: &KafkaSettings, mut heard: OnMessage) -> Result<Client> {
        settings.check()?;
        let producer = settings
            .client(&[
                ("acks", "all".into()),
                ("enable.idempotence", "true".into()),
                ("linger.ms", settings.linger_ms.to_string()),
                ("delivery.report.only.error", "true".into()),
                ("queue.buffering.max.messages", "1000000".into()),
            ])?
            .create()
            .map_err(|e| failed("a producer for Kafka could not be made", &e))?;
        let consumer: BaseConsumer = settings
            .client(&[
                ("group.id", format!("tidemill-client-{}", settings.outputs)),
                ("enable.auto.commit", "false".into()),
                ("auto.offset.reset", "error".into()),
                ("fetch.wait.max.ms", "20".into()),
                ("fetch.queue.backoff.ms", "5".into()),
            ])?
            .create()
            .map_err(|e| failed("a consumer for Kafka could not be made", &e))?;
        let mut places = TopicPartitionList::new();
        for source in 0..settings.sources {
            let partition = i32::try_from(source).unwrap_or(i32::MAX);
            let (_, end) = consumer
                .fetch_watermarks(&settings.outputs, partition, settings.timeout())
                .map_err(|e| failed(&format!("the end of {}", settings.outputs), &e))?;
            places
                .add_partition_offset(&settings.outputs, partition, Offset::Offset(end))
                .map_err(|e| failed("reading the outputs", &e))?;
        }
        consumer.assign(&places).map_err(|e| failed("reading the outputs", &e))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let is_done = is_over.clone();
        let body = move || {
            while !is_done.load(Ordering::Relaxed) {
                // An error means that a broker is away. The library asks it again.
                if let Some(Ok(message)) = consumer.poll(POLL) {
                    heard(&incoming(&message));
                }
            }
        };
        let reader = env.threads.spawn("kafka-client", Box::new(body));
        let reader = reader.map_err(|e| Error::io("starting a thread for Kafka", &e))?;
        let inputs = settings.inputs.clone();
        Ok(Client { env: env.clone(), producer, inputs, is_over, reader: Some(reader) })
    }

    /// Sends a request to a source. Waits while too much is in flight.
    ///
    /// # Errors
    /// If the library refuses it.
    pub fn send(&self, source: u32, message: &Outgoing) -> Result<()> {
        let partition = i32::try_from(source).unwrap_or(i32::MAX);
        let headers = OwnedHeaders::new_with_capacity(message.headers.len());
        let headers = message.headers.iter().fold(headers, |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value) })
        });
        let record = BaseRecord::to(&self.inputs).partition(partition).payload(&message.value);
        let mut record: BaseRecord<'_, [u8], Vec<u8>> = record.headers(headers);
        record.key = message.key.as_deref();
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    record = back;
                    self.env.clock.sleep_us(FULL_US);
                }
                Err((error, _)) => return Err(failed("sending a request", &error)),
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A request that is not delivered by then has no reply either, so its sender notices.
        let _ = self.producer.flush(FLUSH);
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
