//! Opening a topic to read: which partitions there are, and where reading begins.

use futures_executor::block_on;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::time::Duration;
use tidemill_core::{Error, Kind, Result};

use super::listen::{Heard, Listener};
use super::settings::{Begin, TopicSource};
use crate::topics::is_missing;

/// So long, and so many times, it is waited for the leader of a partition.
const SETTLE: Duration = Duration::from_millis(100);
const SETTLE_TIMES: usize = 50;

/// The partitions of a topic.
///
/// # Errors
/// When there is no such topic, and when nobody answers.
pub(super) fn partitions(
    consumer: &BaseConsumer<Listener>,
    topic: &str,
    brokers: &str,
    timeout: Duration,
    heard: &Heard,
) -> Result<Vec<u32>> {
    let metadata = consumer
        .fetch_metadata(Some(topic), timeout)
        .map_err(|error| heard.unreachable(brokers, &error))?;
    let missing = |why: &str| {
        Error::setting(format!("there is no topic {topic} at {brokers}{why}"))
            .help("make it first, with as many partitions as it is to have; or mend the name")
    };
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let found = found.ok_or_else(|| missing(""))?;
    match found.error().map(Code::from) {
        None => {}
        Some(code) if is_missing(&KafkaError::MetadataFetch(code)) => return Err(missing("")),
        Some(Code::InvalidTopic) => return Err(missing(": that can't be a name")),
        Some(code) => {
            return Err(Error::new(Kind::Io, format!("looking at topic {topic}: {code}"))
                .help("topics that are read or written need Describe"));
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

/// Refuses a topic of which messages vanish from the midst: what was read could not be read again.
pub(super) fn refuse_compacted(
    admin: &AdminClient<Listener>,
    settings: &TopicSource,
    heard: &Heard,
) -> Result<()> {
    let (topic, timeout) = (&settings.topic, Some(settings.timeout()));
    let options = AdminOptions::new().request_timeout(timeout).operation_timeout(timeout);
    let asked = [ResourceSpecifier::Topic(topic)];
    let described = block_on(admin.describe_configs(&asked, &options))
        .map_err(|error| heard.unreachable(&settings.brokers, &error))?;
    // Who may not look may still read: then a recovery finds out.
    for config in described.into_iter().flatten() {
        let policy = config.get("cleanup.policy").and_then(|entry| entry.value.as_deref());
        if policy.is_some_and(|policy| policy.contains("compact")) {
            return Err(Error::setting(format!(
                "topic {topic} is compacted: messages vanish from its midst, so that what was read can't \
                 be read again after a restart"
            ))
            .help(format!(
                "read a topic with cleanup.policy=delete, or change this one's before anything was \
                 compacted: kafka-configs --alter --entity-type topics --entity-name {topic} \
                 --add-config cleanup.policy=delete"
            )));
        }
    }
    Ok(())
}

/// For each partition the offset with which reading begins.
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
            // The end first: messages that come meanwhile are younger.
            let ends = ask(consumer, topic, partitions, Offset::End, timeout)?;
            let ms = Offset::Offset(us.div_euclid(1000).max(0));
            let found = ask(consumer, topic, partitions, ms, timeout)?;
            // None is as young where there is no such offset.
            Ok(found.into_iter().zip(ends).map(|(found, end)| found.min(end)).collect())
        }
    }
}

/// Offsets of partitions, by time or for one of the ends; the largest number where there is none. Ends are
/// those of what was committed, where the consumer reads only that.
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

/// Asks again while the leader of a partition is just being chosen, as of a topic that was made a moment ago.
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
                // Nothing is assigned: it waits.
                let _ = consumer.poll(SETTLE);
            }
            other => return other,
        }
    }
    ask()
}

/// As the library numbers partitions.
pub(super) fn number(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}
