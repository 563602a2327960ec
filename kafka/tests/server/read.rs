//! A reader of topics that is independent of the engine.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::ClientConfig;

pub const LONG: Duration = Duration::from_secs(30);

pub fn brokers() -> String {
    std::env::var("SERVERS_KAFKA").expect("SERVERS_KAFKA: run this with make test-servers")
}

pub fn config() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers());
    config
}

/// A message of a topic, as tests see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub partition: i32,
    pub key: Option<String>,
    pub value: String,
    pub id: Option<String>,
}

/// Returns all committed messages, by partition.
pub fn all(topic: &str) -> Vec<Vec<Found>> {
    let consumer: BaseConsumer = config()
        .set("group.id", "test")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "10")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), LONG).unwrap();
    let count = metadata.topics()[0].partitions().len();
    let mut list = TopicPartitionList::new();
    for partition in 0..count {
        list.add_partition_offset(topic, partition as i32, Offset::Beginning).unwrap();
    }
    consumer.assign(&list).unwrap();
    let (mut found, mut ended) = (vec![Vec::new(); count], 0);
    let begun = Instant::now();
    while ended < count {
        assert!(begun.elapsed() < LONG, "{topic} is not read to its end");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let id = message.headers().and_then(|headers| {
                    headers.iter().find(|h| h.key == "tidemill-id").and_then(|h| h.value).map(text)
                });
                found[message.partition() as usize].push(Found {
                    partition: message.partition(),
                    key: message.key().map(text),
                    value: text(message.payload().unwrap_or_default()),
                    id,
                });
            }
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(error)) => println!("reading {topic}: {error}"),
            None => {}
        }
    }
    found
}
