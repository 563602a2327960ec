//! Topics that are created, filled and read without the engine.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::read::{config, LONG};

/// Creates topics with so many partitions each.
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
    // New topics have no leaders yet, and an app that starts now would get an error.
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

/// Writes messages.
pub struct Writer {
    producer: BaseProducer,
    in_transactions: bool,
}

impl Writer {
    /// Creates a writer whose messages are in transactions of this id, or in none.
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

    /// Sends messages to a partition together. `counts` says whether their transaction commits.
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
