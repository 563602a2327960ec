//! Topics that other programs fill and read, and sources and sinks over them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tidemill_connect::source::contract::Taken;
use tidemill_connect::{Place, Polled, Sink, SinkPlace, Source, Troubles};
use tidemill_core::{Column, DataType, Result, Row, Schema, Value};
use tidemill_env::Env;
use tidemill_kafka::stream::{open_sink, open_sources, Numbers, RowIds, TopicSink, TopicSource};

use crate::common::{brokers, make_topic};
pub use crate::read::{all, config, LONG};

/// Creates a topic that no other test has.
pub fn topic(name: &str, partitions: i32) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let name = format!("{name}-{}", now.as_micros());
    make_topic(&name, partitions, "delete");
    name
}

pub fn schema() -> Arc<Schema> {
    Arc::new(Schema::new(vec![
        Column::new("n", DataType::Int),
        Column { nullable: true, ..Column::new("s", DataType::Str) },
    ]))
}

pub fn row(n: i64) -> [Value; 2] {
    [Value::Int(n), Value::str(&"x".repeat(n as usize * 7 % 90))]
}

pub fn json(n: i64) -> String {
    format!("{{\"n\": {n}, \"s\": \"{}\"}}", "x".repeat(n as usize * 7 % 90))
}

/// A writer other than the engine.
pub struct Writer {
    producer: BaseProducer,
    topic: String,
}

impl Writer {
    pub fn new(topic: &str) -> Writer {
        Writer { producer: config().create().unwrap(), topic: topic.to_owned() }
    }

    pub fn transactional(topic: &str) -> Writer {
        let mut config = config();
        config.set("transactional.id", topic);
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(LONG).unwrap();
        Writer { producer, topic: topic.to_owned() }
    }

    pub fn send(&self, partition: i32, key: Option<&str>, value: Option<&str>) {
        let headers = OwnedHeaders::new().insert(Header { key: "trace", value: Some("abc") });
        let mut record: BaseRecord<'_, str, str> =
            BaseRecord::to(&self.topic).partition(partition).headers(headers);
        (record.key, record.payload) = (key, value);
        self.producer.send(record).unwrap();
    }

    pub fn flush(&self) {
        self.producer.flush(LONG).unwrap();
    }

    /// Writes rows as JSON into one partition.
    pub fn rows(&self, partition: i32, rows: std::ops::Range<i64>) {
        for n in rows {
            self.send(partition, None, Some(&json(n)));
        }
        self.flush();
    }

    pub fn transaction(&self, rows: std::ops::Range<i64>, commits: bool) {
        self.producer.begin_transaction().unwrap();
        self.rows(0, rows);
        match commits {
            true => self.producer.commit_transaction(LONG).unwrap(),
            false => self.producer.abort_transaction(LONG).unwrap(),
        }
    }
}

pub fn admin() -> AdminClient<DefaultClientContext> {
    config().create().unwrap()
}

/// Deletes the messages before an offset.
pub fn trim(topic: &str, partition: i32, below: i64) {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Offset(below)).unwrap();
    futures_executor::block_on(admin().delete_records(&list, &AdminOptions::new())).unwrap();
}

/// A source that ends where its topic ends now.
pub struct Whole {
    pub inner: Box<dyn Source>,
    has_ended: bool,
}

impl Source for Whole {
    fn schema(&self) -> &Arc<Schema> {
        self.inner.schema()
    }

    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        let begun = Instant::now();
        loop {
            match self.inner.poll(rows_max)? {
                Polled::Pending if rows_max == 0 => return Ok(Polled::Pending),
                Polled::Pending if self.has_ended || self.inner.has_looked() => {
                    self.has_ended = true;
                    return Ok(Polled::End);
                }
                Polled::Pending => std::thread::sleep(Duration::from_millis(1)),
                found => return Ok(found),
            }
            assert!(begun.elapsed() < LONG, "it never finds out that this is all");
        }
    }

    fn offset(&self) -> u64 {
        self.inner.offset()
    }

    fn place(&self) -> Place {
        self.inner.place()
    }

    fn resume(&mut self, place: &Place) -> Result<()> {
        self.has_ended = false;
        self.inner.resume(place)
    }

    fn replayable(&self) -> bool {
        self.inner.replayable()
    }
}

pub fn sources(settings: &TopicSource) -> Result<Vec<Box<dyn Source>>> {
    let opened = open_sources(
        settings,
        &schema(),
        &Env::real(),
        Numbers::Counted,
        (&Troubles::default(), "test"),
    )?;
    let whole = |(_, inner)| Box::new(Whole { inner, has_ended: false }) as Box<dyn Source>;
    Ok(opened.into_iter().map(whole).collect())
}

/// Returns the only source of a topic.
pub fn source(topic: &str) -> Box<dyn Source> {
    sources(&TopicSource::new(topic, &brokers())).unwrap().remove(0)
}

/// Returns the numbers of good rows.
pub fn numbers(rows: &[Taken]) -> Vec<i64> {
    let number = |row: &Row| match row[0] {
        Value::Int(n) => n,
        _ => panic!("no number"),
    };
    let good = rows.iter().filter_map(|row| match row {
        Taken::Good(row) => Some(number(row)),
        Taken::Bad(_) => None,
    });
    good.collect()
}

pub fn ids(run: u128) -> RowIds {
    RowIds { app: "app".into(), run: run << 64, stream: "out".into() }
}

pub fn sink(
    settings: &TopicSink,
    run: u128,
    resume: Option<&SinkPlace>,
    troubles: &Troubles,
) -> Result<Box<dyn Sink>> {
    open_sink(settings, &schema(), &Env::real(), &ids(run), resume, (troubles, "test"))
}
