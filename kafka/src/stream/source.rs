//! A partition of a topic as a source.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::AdminClient;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, OwnedMessage};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::Message as Found;
use tidemill_connect::message::Schemas;
use tidemill_connect::{
    BadRow, Checksum, Chunk, Message, MessageRows, Place, Polled, Source, Troubles, Waker,
};
use tidemill_core::encode::hash128;
use tidemill_core::wire::{put_bytes, put_u32, put_u64};
use tidemill_core::{BatchBuilder, Error, Kind, Result, Schema};
use tidemill_env::Env;

use super::begin::{begins, number, partitions, refuse_compacted};
use super::listen::{lasting, LastError, Listener};
use super::records::fetcher;
use super::settings::TopicSource;
use super::watch::{Watch, Watched};
use crate::message::incoming;
use crate::registry::Fetcher;
use crate::requests::offset;
use crate::topics::is_missing;

/// The size of messages after which a chunk ends, in bytes, however many rows were asked for.
const CHUNK_BYTES: usize = 8 << 20;
/// The longest reason of a bad row, in bytes.
const REASON_BYTES_MAX: usize = 500;
/// The time of one wait for a message that must exist.
const WAIT: Duration = Duration::from_millis(50);

/// A source partition and its name: topic and partition.
pub type Opened = (String, Box<dyn Source>);

/// The numbers of a source's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// The rows are counted from 0. A place has the checksum of the last message.
    Counted,
    /// A row's number is the offset of its message, so there may be gaps. A place is an offset, and
    /// 0 is where reading begins.
    Offsets,
}

/// Opens a topic to read. Returns a name and a source for each partition, in order. Its name among
/// `troubles` is `who`.
///
/// # Errors
/// If a setting does not fit, there is no such topic or partition, it is compacted, or no broker
/// answers in time.
pub fn open(
    settings: &TopicSource,
    schema: &Arc<Schema>,
    env: &Env,
    numbers: Numbers,
    (troubles, who): (&Troubles, &str),
) -> Result<Vec<Opened>> {
    settings.check()?;
    let TopicSource { topic, brokers, .. } = settings;
    let schemas = fetcher(settings, env, (troubles, who))?;
    let messages = settings.messages(schemas.clone().map(|schemas| schemas as Arc<dyn Schemas>));
    MessageRows::new(schema, &messages)?;
    let heard = LastError::default();
    let consumer: BaseConsumer<Listener> =
        settings.consumer()?.create_with_context(Listener(heard.clone())).map_err(not_made)?;
    let consumer = Arc::new(consumer);
    let there = partitions(&consumer, topic, brokers, settings.timeout(), &heard)?;
    let wanted = settings.partitions.clone().unwrap_or_else(|| there.clone());
    if let Some(missing) = wanted.iter().find(|wanted| !there.contains(wanted)) {
        let last = there.last().copied().unwrap_or(0);
        return Err(Error::setting(format!("topic {topic} has no partition {missing}"))
            .help(format!("it has those from 0 to {last}")));
    }
    let admin: AdminClient<Listener> = crate::settings::client(brokers, &[], &settings.properties)?
        .create_with_context(Listener(heard.clone()))
        .map_err(not_made)?;
    refuse_compacted(&admin, settings, &heard)?;
    let begins =
        begins(&consumer, settings, &wanted).map_err(|error| heard.unreachable(brokers, &error))?;
    heard.is_well();
    let watched = Watch::start(env, settings, consumer, heard, &wanted, (troubles, who))?;
    let watched = Arc::new(watched);
    let open = |(source, (partition, begin)): (usize, (&u32, u64))| -> Result<Opened> {
        let origin = format!("{topic}/{partition}");
        let rows = MessageRows::new(schema, &messages)?;
        let opened = PartitionSource {
            reading: Reading {
                watched: watched.clone(),
                source,
                partition: number(*partition),
                origin: origin.as_str().into(),
                queue: None,
                next: begin,
                is_at_end: false,
                settling: None,
                settled: None,
                looked: 0,
                waker: None,
            },
            numbers,
            schema: schema.clone(),
            rows,
            schemas: schemas.clone(),
            held: None,
            builder: BatchBuilder::new(schema.clone()),
            place: Place { begin: Some(begin), ..Place::start() },
            has_looked: false,
            failed: None,
        };
        Ok((origin, Box::new(opened)))
    };
    wanted.iter().zip(begins).enumerate().map(open).collect()
}

fn not_made(error: KafkaError) -> Error {
    Error::resource(format!("a client for Kafka could not be made: {error}"))
}

/// A partition that is read.
struct PartitionSource {
    reading: Reading,
    numbers: Numbers,
    schema: Arc<Schema>,
    rows: MessageRows,
    /// The fetcher of the messages' schemas, if they have some.
    schemas: Option<Arc<Fetcher>>,
    /// The next message, if its schema is not known yet.
    held: Option<OwnedMessage>,
    builder: BatchBuilder,
    /// The place after the last row.
    place: Place,
    has_looked: bool,
    failed: Option<Error>,
}

/// The reading side of a source.
struct Reading {
    watched: Arc<Watched>,
    /// The source's number among those of the topic.
    source: usize,
    partition: i32,
    /// Topic and partition.
    origin: Arc<str>,
    /// The queue of messages; nothing before it is assigned.
    queue: Option<PartitionQueue<Listener>>,
    /// The offset after the last message.
    next: u64,
    /// Whether the last attempt found no more messages.
    is_at_end: bool,
    /// The end up to which messages are read again after the last one, to see whether there is
    /// anything except the marks of transactions.
    settling: Option<u64>,
    /// The end up to which there is nothing.
    settled: Option<u64>,
    /// The number of the last look that was used.
    looked: u64,
    /// The function to call when there are messages again.
    waker: Option<Waker>,
}

/// The next thing in the queue.
enum Next<'a> {
    Message(BorrowedMessage<'a>),
    /// The present end.
    End,
    Nothing,
}

impl Reading {
    fn watch(&self) -> &Watch {
        &self.watched.watch
    }

    fn topic(&self) -> &str {
        &self.watch().settings.topic
    }

    fn fail(&self, what: String, help: &str) -> Error {
        Error::input(format!("partition {} of topic {} {what}", self.partition, self.topic()))
            .help(help)
    }

    /// Returns the error that needed messages have been deleted.
    fn trimmed(&self, low: u64, needed: u64) -> Error {
        self.fail(
            format!(
                "begins at offset {low}, and messages from {needed} on are needed: they have been deleted"
            ),
            "they were deleted by age, by size or by hand: let the topic's retention.ms and \
             retention.bytes retain the messages between two snapshots, and while the app is \
             stopped; --fresh starts again with the messages that are left",
        )
    }

    /// Returns the error that the partition has fewer messages than before.
    fn shorter(&self, end: u64, read: u64) -> Error {
        self.fail(
            format!("ends at offset {end}, and was read up to {read} before"),
            "the topic was removed and recreated, or brokers have lost messages: restore it as it \
             was, or start again with --fresh",
        )
    }

    /// Begins to read at an offset.
    fn assign(&mut self, from: u64) -> Result<()> {
        self.leave();
        let watched = self.watched.clone();
        let watch = &watched.watch;
        let (topic, consumer) = (&watch.settings.topic, &watch.consumer);
        let failed =
            |error: KafkaError| Error::new(Kind::Io, format!("reading {}: {error}", self.origin));
        // The queue is taken before the partition is assigned, so that no message goes elsewhere.
        let mut queue = consumer.split_partition_queue(topic, self.partition);
        if let (Some(queue), Some(waker)) = (&mut queue, self.waker.clone()) {
            queue.set_nonempty_callback(move || waker());
        }
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, self.partition, offset(from)).map_err(failed)?;
        consumer.incremental_assign(&list).map_err(failed)?;
        self.queue = queue;
        self.is_at_end = false;
        Ok(())
    }

    fn leave(&mut self) {
        if self.queue.take().is_some() {
            let mut list = TopicPartitionList::new();
            list.add_partition(self.topic(), self.partition);
            // It fails if the partition is not assigned, which is fine.
            let _ = self.watch().consumer.incremental_unassign(&list);
        }
    }

    /// Takes the next message from an offset on.
    fn take(&self, from: u64, wait: Duration) -> Result<Next<'_>> {
        let Some(queue) = &self.queue else { return Ok(Next::Nothing) };
        loop {
            match queue.poll(wait) {
                None => return Ok(Next::Nothing),
                Some(Ok(message)) => {
                    // Messages fetched before a new assignment arrive again, and so do some after
                    // the partition's leader has changed.
                    if at(&message) >= from {
                        return Ok(Next::Message(message));
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(Next::End),
                Some(Err(error)) => self.fault(&error)?,
            }
        }
    }

    /// Handles an error in place of a message. Most errors are over when a broker is back.
    fn fault(&self, error: &KafkaError) -> Result<()> {
        use Code::{AutoOffsetReset, OffsetOutOfRange};
        if let Some(AutoOffsetReset | OffsetOutOfRange) = error.rdkafka_error_code() {
            let (low, end) = self.ends()?;
            return match self.next {
                next if next < low => Err(self.trimmed(low, next)),
                next if next > end => Err(self.shorter(end, next)),
                next => Err(self.fail(
                    format!("can't be read from offset {next} on: {error}"),
                    "start the app again",
                )),
            };
        }
        if is_missing(error) {
            return Err(self.fail(
                "has been removed".into(),
                "restore the topic as it was, or start again with --fresh",
            ));
        }
        match lasting(self.topic(), error) {
            Some(error) => Err(error),
            None => {
                self.watch().heard.note(error, "");
                Ok(())
            }
        }
    }

    /// Returns the offset of the first message and the one after the last.
    fn ends(&self) -> Result<(u64, u64)> {
        let watch = self.watch();
        let settings = &watch.settings;
        let ends =
            watch.consumer.fetch_watermarks(self.topic(), self.partition, settings.timeout());
        let (low, end) = ends.map_err(|error| match is_missing(&error) {
            true => self.fail(
                "has been removed".into(),
                "restore the topic as it was, or start again with --fresh",
            ),
            false => watch.heard.unreachable(&settings.brokers, &error),
        })?;
        Ok((u64::try_from(low).unwrap_or(0), u64::try_from(end).unwrap_or(0)))
    }

    /// Whether the source has returned all messages that were there at the last request for the
    /// end.
    fn looks(&mut self) -> Result<bool> {
        let Some(look) = self.watch().look(self.source).filter(|look| look.number > self.looked)
        else {
            self.watch().want(self.source);
            return Ok(false);
        };
        self.looked = look.number;
        self.watch().want(self.source);
        if look.end < self.next {
            return Err(self.shorter(look.end, self.next));
        }
        if look.end == self.next || self.settled == Some(look.end) {
            return Ok(true);
        }
        if self.is_at_end && self.settling.is_none() {
            // Either a message has just arrived, or the marks of transactions follow the last
            // message. The library does not show these marks. Reading again from there tells which
            // it is.
            self.settling = Some(look.end);
            self.assign(self.next)?;
        }
        Ok(false)
    }

    /// Goes to an offset that was the next one before. The topic must still have its message.
    fn go_to_offset(&mut self, from: u64) -> Result<()> {
        (self.settling, self.settled) = (None, None);
        let (low, end) = self.ends()?;
        self.next = from;
        match from {
            from if from > end => Err(self.shorter(end, from)),
            from if from < low => Err(self.trimmed(low, from)),
            from => self.assign(from),
        }
    }

    /// Goes to a place, and checks that the topic is the one that was read up to there.
    fn go_to(&mut self, place: &Place) -> Result<()> {
        (self.settling, self.settled) = (None, None);
        let (low, end) = self.ends()?;
        if place.offset == 0 {
            self.next = place.begin.unwrap_or(self.next);
            return match self.next {
                begin if begin < low => Err(self.trimmed(low, begin)),
                begin if begin > end => Err(self.shorter(end, begin)),
                begin => self.assign(begin),
            };
        }
        self.next = place.bytes;
        if end < place.bytes {
            return Err(self.shorter(end, place.bytes));
        }
        if low > place.bytes {
            return Err(self.trimmed(low, place.bytes));
        }
        if low == place.bytes {
            // The messages read before are gone, but the next ones are there.
            return self.assign(place.bytes);
        }
        let last = place.bytes.saturating_sub(1);
        self.next = last;
        self.assign(last)?;
        let begun_ns = self.watch().env.clock.monotonic_ns();
        let found = loop {
            match self.take(self.next, WAIT)? {
                Next::Message(message) => {
                    break Some((at(&message), checksum(self.partition, &message)));
                }
                Next::End => break None,
                Next::Nothing => {}
            }
            let waited_ns = self.watch().env.clock.monotonic_ns() - begun_ns;
            if waited_ns > self.watch().settings.timeout_us * 1000 {
                let timeout = KafkaError::MessageConsumption(Code::OperationTimedOut);
                return Err(self
                    .watch()
                    .heard
                    .unreachable(&self.watch().settings.brokers, &timeout));
            }
        };
        match found {
            Some((offset, found)) if offset == last && found == place.checksum => {
                self.next = place.bytes;
                Ok(())
            }
            Some((offset, _)) if offset == last => Err(self.fail(
                format!("has another message at offset {last} than was read before"),
                "the topic was removed and recreated: restore it, or start again with --fresh",
            )),
            _ => Err(self.fail(
                format!(
                    "has no message at offset {last}, which was read before, and has older ones"
                ),
                "the topic was compacted or recreated: read one with cleanup.policy=delete, and \
                 start again with --fresh",
            )),
        }
    }
}

impl PartitionSource {
    fn read(&mut self, rows_max: usize) -> Result<Polled> {
        if self.reading.queue.is_none() {
            self.reading.assign(self.reading.next)?;
        }
        self.has_looked = false;
        let (first, numbers) = (self.place.offset, self.numbers);
        let number = |taken: &Taken, offset: u64| match numbers {
            Numbers::Counted => first + taken.rows() as u64,
            Numbers::Offsets => offset,
        };
        let mut taken = Taken::default();
        let (mut end_seen, mut failed) = (false, None);
        // The offset after the last taken message.
        let mut next = None;
        if let Some(held) = self.held.take_if(|_| rows_max > 0) {
            if !self.rows.is_ready(&incoming(&held)) {
                self.held = Some(held);
                let failed = self.schemas.as_ref().and_then(|schemas| schemas.failed());
                return failed.map_or(Ok(Polled::Pending), Err);
            }
            let row = number(&taken, at(&held));
            taken.take(row, &held, &mut self.rows, &mut self.builder, &self.reading.origin);
            next = Some((at(&held) + 1, checksum(self.reading.partition, &held)));
        }
        let reading = &self.reading;
        let mut last = None;
        let mut upto = next.map_or(reading.next, |(next, _)| next);
        while self.held.is_none() && taken.rows() < rows_max && taken.bytes < CHUNK_BYTES {
            match reading.take(upto, Duration::ZERO) {
                Ok(Next::Message(message)) => {
                    (upto, end_seen) = (at(&message) + 1, false);
                    if !self.rows.is_ready(&incoming(&message)) {
                        self.held = Some(message.detach());
                        break;
                    }
                    let row = number(&taken, at(&message));
                    let origin = &reading.origin;
                    taken.take(row, &message, &mut self.rows, &mut self.builder, origin);
                    last = Some(message);
                }
                Ok(Next::End) => end_seen = true,
                Ok(Next::Nothing) => break,
                // The rows that were read before it are returned first.
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if let Some(message) = last {
            next = Some((at(&message) + 1, checksum(reading.partition, &message)));
        }
        let Some((next, checksum)) = next else {
            if self.held.is_some() {
                return Ok(Polled::Pending);
            }
            if let Some(error) = failed {
                return Err(error);
            }
            if end_seen {
                self.reading.is_at_end = true;
                if let Some(end) = self.reading.settling.take() {
                    self.reading.settled = Some(end);
                }
            }
            if rows_max > 0 {
                self.has_looked = self.reading.looks()?;
            }
            return Ok(Polled::Pending);
        };
        self.failed = failed;
        self.reading.next = next;
        // An end of the partition from before that says nothing.
        self.reading.looked = self.reading.watch().asked();
        (self.reading.is_at_end, self.reading.settling) = (end_seen, None);
        let next_offset = number(&taken, next);
        self.place = Place { offset: next_offset, bytes: next, checksum, ..self.place.clone() };
        let Taken { offsets, bad, .. } = taken;
        Ok(Polled::Rows(Chunk { batch: self.builder.finish(), offsets, bad, next_offset }))
    }
}

impl Source for PartitionSource {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.read(rows_max).inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn offset(&self) -> u64 {
        self.place.offset
    }

    fn place(&self) -> Place {
        self.place.clone()
    }

    fn resume(&mut self, place: &Place) -> Result<()> {
        self.failed = None;
        self.held = None;
        let gone = match self.numbers {
            Numbers::Offsets if place.offset > 0 => self.reading.go_to_offset(place.offset),
            Numbers::Counted | Numbers::Offsets => self.reading.go_to(place),
        };
        match gone {
            Ok(()) => {
                let begin = place.begin.or(self.place.begin);
                self.place = Place { begin, ..place.clone() };
                Ok(())
            }
            Err(error) => {
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    fn replayable(&self) -> bool {
        true
    }

    fn has_looked(&self) -> bool {
        self.has_looked
    }

    fn set_waker(&mut self, waker: Waker) {
        self.reading.waker = Some(waker);
    }
}

impl Drop for PartitionSource {
    fn drop(&mut self) {
        self.reading.leave();
    }
}

/// The rows of one poll.
#[derive(Default)]
struct Taken {
    offsets: Vec<u64>,
    bad: Vec<BadRow>,
    bytes: usize,
}

impl Taken {
    fn rows(&self) -> usize {
        self.offsets.len() + self.bad.len()
    }

    fn take(
        &mut self,
        row: u64,
        message: &impl Found,
        rows: &mut MessageRows,
        builder: &mut BatchBuilder,
        origin: &Arc<str>,
    ) {
        let seen = incoming(message);
        self.bytes += seen.value.map_or(0, <[u8]>::len) + seen.key.map_or(0, <[u8]>::len);
        match rows.decode(&seen, builder) {
            Ok(()) => self.offsets.push(row),
            Err(reason) => self.bad.push(bad(row, &seen, &reason, origin)),
        }
    }
}

/// Returns a message that can't be read as a bad row of this number.
fn bad(row: u64, message: &Message<'_>, reason: &str, origin: &Arc<str>) -> BadRow {
    let value = message.value.unwrap_or_default();
    let head = &value[..value.len().min(BadRow::RAW_BYTES_MAX)];
    let raw = String::from_utf8_lossy(head);
    let mut reason = cut(reason, REASON_BYTES_MAX).to_owned();
    if head.len() < value.len() {
        reason.push_str(&format!("; raw is only the beginning of {} bytes", value.len()));
    }
    let (origin, raw) = (origin.clone(), cut(&raw, BadRow::RAW_BYTES_MAX).to_owned());
    BadRow { offset: row, origin, line: message.offset, raw, reason }
}

/// Returns the beginning of a text, at most `max` bytes.
fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn at(message: &impl Found) -> u64 {
    u64::try_from(message.offset()).unwrap_or(0)
}

/// Returns the checksum of everything in a message, which tells it from any other.
fn checksum(partition: i32, message: &impl Found) -> Checksum {
    let seen = incoming(message);
    let mut bytes = Vec::with_capacity(64 + seen.value.map_or(0, <[u8]>::len));
    put_u32(partition as u32, &mut bytes);
    put_u64(seen.offset, &mut bytes);
    put_u64(seen.timestamp_ms.unwrap_or(i64::MIN) as u64, &mut bytes);
    for part in [seen.key, seen.value] {
        bytes.push(u8::from(part.is_some()));
        put_bytes(part.unwrap_or_default(), &mut bytes);
    }
    for (name, value) in &seen.headers {
        put_bytes(name.as_bytes(), &mut bytes);
        put_bytes(value, &mut bytes);
    }
    Checksum(hash128(&bytes))
}
