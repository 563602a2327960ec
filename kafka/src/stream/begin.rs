//! The opening of a topic for reading: its partitions, and the offsets where reading begins.

use futures_executor::block_on;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::time::Duration;
use tidemill_core::{Error, Kind, Result};

use super::listen::{LastError, Listener};
use super::settings::{Begin, TopicSource};
use crate::topics::is_missing;

/// The wait between two requests for a partition's leader, and the number of requests.
const SETTLE: Duration = Duration::from_millis(100);
const SETTLE_TIMES: usize = 50;
/// The wait for a report of the library.
const REPORTED: Duration = Duration::from_millis(20);

/// Returns the partitions of a topic.
///
/// # Errors
/// If there is no such topic, or if no broker answers.
pub(super) fn partitions(
    consumer: &BaseConsumer<Listener>,
    topic: &str,
    brokers: &str,
    timeout: Duration,
    heard: &LastError,
) -> Result<Vec<u32>> {
    let metadata = consumer.fetch_metadata(Some(topic), timeout).map_err(|error| {
        // Only a poll delivers what the library has reported meanwhile.
        while consumer.poll(REPORTED).is_some() {}
        heard.unreachable(brokers, &error)
    })?;
    let missing = |why: &str| {
        Error::setting(format!("there is no topic {topic} at {brokers}{why}"))
            .help("create it first, with all of its partitions, or correct its name")
    };
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let found = found.ok_or_else(|| missing(""))?;
    match found.error().map(Code::from) {
        None => {}
        Some(code) if is_missing(&KafkaError::MetadataFetch(code)) => return Err(missing("")),
        Some(Code::InvalidTopic) => return Err(missing(": this is not a valid name")),
        Some(code) => {
            return Err(Error::new(Kind::Io, format!("describing topic {topic}: {code}"))
                .help("grant this user Describe on the topic"));
        }
    }
    let mut partitions: Vec<u32> =
        found.partitions().iter().filter_map(|p| u32::try_from(p.id()).ok()).collect();
    partitions.sort_unstable();
    match partitions.is_empty() {
        true => Err(missing("")),
        false => Ok(partitions),
    }
}

/// Refuses a compacted topic. Messages disappear from the middle of it, so rows could not be read
/// again.
pub(super) fn refuse_compacted(
    admin: &AdminClient<Listener>,
    settings: &TopicSource,
    heard: &LastError,
) -> Result<()> {
    let (topic, timeout) = (&settings.topic, Some(settings.timeout()));
    let options = AdminOptions::new().request_timeout(timeout).operation_timeout(timeout);
    let asked = [ResourceSpecifier::Topic(topic)];
    let described = block_on(admin.describe_configs(&asked, &options))
        .map_err(|error| heard.unreachable(&settings.brokers, &error))?;
    // A user without the right to see the configuration may still read. Then a recovery finds
    // missing messages.
    for config in described.into_iter().flatten() {
        let policy = config.get("cleanup.policy").and_then(|entry| entry.value.as_deref());
        if policy.is_some_and(|policy| policy.contains("compact")) {
            return Err(Error::setting(format!(
                "topic {topic} is compacted: messages disappear from its middle, so rows can't be \
                 read again after a restart"
            ))
            .help(format!(
                "read a topic with cleanup.policy=delete, or change this one's before messages are \
                 compacted: kafka-configs --alter --entity-type topics --entity-name {topic} \
                 --add-config cleanup.policy=delete"
            )));
        }
    }
    Ok(())
}

/// Returns the offset where reading begins, for each partition.
pub(super) fn begins(
    consumer: &BaseConsumer<Listener>,
    settings: &TopicSource,
    partitions: &[u32],
) -> KafkaResult<Vec<u64>> {
    let (topic, timeout) = (&settings.topic, settings.timeout());
    match settings.begin {
        Begin::Earliest => ask(consumer, topic, partitions, Offset::Beginning, timeout),
        Begin::Latest => ask(consumer, topic, partitions, Offset::End, timeout),
        Begin::Time(us) => {
            // The end is read first, because messages that arrive meanwhile are newer.
            let ends = ask(consumer, topic, partitions, Offset::End, timeout)?;
            let ms = Offset::Offset(us.div_euclid(1000).max(0));
            let found = ask(consumer, topic, partitions, ms, timeout)?;
            // If there is no such offset, all messages are older.
            Ok(found.into_iter().zip(ends).map(|(found, end)| found.min(end)).collect())
        }
    }
}

/// Returns offsets of partitions, by time or at one of the ends; the largest number if there is
/// none. If the consumer reads only committed messages, the end is that of the committed ones.
pub(super) fn ask(
    consumer: &BaseConsumer<Listener>,
    topic: &str,
    partitions: &[u32],
    at: Offset,
    timeout: Duration,
) -> KafkaResult<Vec<u64>> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition_offset(topic, number(*partition), at)?;
    }
    let found = settled(consumer, || consumer.offsets_for_times(list.clone(), timeout))?;
    let offset = |partition: &u32| {
        let element = found.find_partition(topic, number(*partition));
        let element = element.ok_or(KafkaError::MetadataFetch(Code::UnknownPartition))?;
        element.error()?;
        Ok(match element.offset() {
            Offset::Offset(offset) => u64::try_from(offset).unwrap_or(0),
            _ => u64::MAX,
        })
    };
    partitions.iter().map(offset).collect()
}

/// Repeats a request while a partition has no leader yet, for example after the topic was created.
fn settled<T>(
    consumer: &BaseConsumer<Listener>,
    ask: impl Fn() -> KafkaResult<T>,
) -> KafkaResult<T> {
    for _ in 0..SETTLE_TIMES {
        match ask() {
            Err(error)
                if matches!(
                    error.rdkafka_error_code(),
                    Some(Code::NotLeaderForPartition | Code::LeaderNotAvailable)
                ) =>
            {
                // Nothing is assigned, so this only waits.
                let _ = consumer.poll(SETTLE);
            }
            other => return other,
        }
    }
    ask()
}

/// Returns a partition's number as the library has it.
pub(super) fn number(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}
