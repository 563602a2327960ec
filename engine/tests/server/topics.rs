//! Topics that are made, filled and read by somebody else than the engine.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::ClientConfig;

const LONG: Duration = Duration::from_secs(30);

pub fn brokers() -> String {
    std::env::var("SERVERS_KAFKA").expect("SERVERS_KAFKA: run this with make test-servers")
}

fn config() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers());
    config
}

/// Makes topics with so many partitions each.
pub fn make_topics(names: &[(String, usize)]) {
    let new = names.iter().map(|(name, partitions)| {
        NewTopic::new(name, *partitions as i32, TopicReplication::Fixed(1))
    });
    let topics: Vec<NewTopic<'_>> = new.collect();
    let client: AdminClient<DefaultClientContext> = config().create().unwrap();
    let made = client.create_topics(&topics, &AdminOptions::new());
    for made in futures_executor::block_on(made).unwrap() {
        made.unwrap();
    }
    // They have no leaders yet, and an app that starts now is told so.
    let consumer: BaseConsumer = config().create().unwrap();
    let begun = Instant::now();
    for (name, partitions) in names {
        for partition in 0..*partitions {
            let wait = Duration::from_secs(3);
            while consumer.fetch_watermarks(name, partition as i32, wait).is_err() {
                assert!(begun.elapsed() < LONG, "{name} is not there");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Whoever else writes.
pub struct Writer {
    producer: BaseProducer,
    in_transactions: bool,
}

impl Writer {
    /// One whose messages are in transactions of this id, or in none.
    pub fn new(id: Option<&str>) -> Writer {
        let mut config = config();
        id.into_iter().for_each(|id| {
            config.set("transactional.id", id);
        });
        let producer: BaseProducer = config.set("linger.ms", "0").create().unwrap();
        if id.is_some() {
            producer.init_transactions(LONG).unwrap();
        }
        Writer { producer, in_transactions: id.is_some() }
    }

    /// Sends messages to a partition, together; whether they are to count.
    pub fn send(&self, topic: &str, partition: usize, messages: &[Vec<u8>], counts: bool) {
        assert!(self.in_transactions || counts);
        if self.in_transactions {
            self.producer.begin_transaction().unwrap();
        }
        for message in messages {
            let record: BaseRecord<'_, str, [u8]> =
                BaseRecord::to(topic).partition(partition as i32).payload(message);
            self.producer.send(record).unwrap();
        }
        self.producer.flush(LONG).unwrap();
        match (self.in_transactions, counts) {
            (true, true) => self.producer.commit_transaction(LONG).unwrap(),
            (true, false) => self.producer.abort_transaction(LONG).unwrap(),
            (false, _) => {}
        }
    }
}

/// What a message of a topic is to a test.
pub struct Found {
    pub id: String,
    pub value: String,
}

/// All messages that are committed, by partition.
pub fn contents(topic: &str, partitions: usize) -> Vec<Vec<Found>> {
    let consumer: BaseConsumer = config()
        .set("group.id", "test")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "10")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition as i32, Offset::Beginning).unwrap();
    }
    consumer.assign(&list).unwrap();
    let mut found: Vec<Vec<Found>> = (0..partitions).map(|_| Vec::new()).collect();
    let (mut ended, begun) = (0, Instant::now());
    while ended < partitions {
        assert!(begun.elapsed() < LONG, "{topic} is not read to its end");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let headers = message.headers().expect("headers");
                let id = headers.iter().find(|header| header.key == "tidemill-id");
                let id = text(id.and_then(|header| header.value).expect("an id"));
                let value = text(message.payload().expect("a value"));
                found[message.partition() as usize].push(Found { id, value });
            }
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(error)) => println!("reading {topic}: {error}"),
            None => {}
        }
    }
    found
}
