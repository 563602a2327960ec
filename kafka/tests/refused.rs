//! Tests with messages that a broker refuses for a while. The broker is the client library's mock,
//! which refuses what it is asked to, as real ones do after a crash.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::mocking::MockCluster;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::ClientConfig;
use tidemill_connect::Troubles;
use tidemill_core::{Batch, Column, DataType, Schema, Value};
use tidemill_env::Env;
use tidemill_kafka::stream::{open_sink, RowIds, TopicSink};

const ROWS: i64 = 12;

/// Returns the values in a partition.
fn values(env: &Env, brokers: &str, topic: &str, partition: i32) -> Vec<String> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "test")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let (mut found, begun_ns) = (Vec::new(), env.clock.monotonic_ns());
    loop {
        let waited_ns = env.clock.monotonic_ns() - begun_ns;
        assert!(waited_ns < 30_000_000_000, "{topic} is not read to its end");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                found.push(String::from_utf8(message.payload().unwrap().to_vec()).unwrap());
            }
            Some(Err(KafkaError::PartitionEOF(_))) => return found,
            Some(Err(error)) => println!("reading {topic}: {error}"),
            None => {}
        }
    }
}

/// The broker refuses the first message to a partition. From an unknown producer it accepts the
/// next one, as if nothing were missing.
#[test]
fn a_message_that_is_refused_for_now_is_there_before_those_behind_it() {
    let env = Env::real();
    let cluster = MockCluster::new(1).unwrap();
    let brokers = cluster.bootstrap_servers();
    cluster.create_topic("rows", 2, 1).unwrap();
    let schema = Arc::new(Schema::new(vec![Column::new("n", DataType::Int)]));
    let ids = RowIds { app: "app".into(), run: 1, stream: "out".into() };
    let settings = TopicSink::new("rows", &brokers);
    let troubles = Troubles::default();
    let opened = open_sink(&settings, &schema, &env, &ids, None, (&troubles, "test"));
    let mut sink = opened.unwrap();
    let mut write = |n| {
        let row = [Value::Int(n)];
        sink.write(&Batch::from_rows(schema.clone(), [&row[..]])).unwrap();
        sink.commit().unwrap();
        // Each message is a request of its own.
        env.clock.sleep_us(4_000);
    };
    // From here on the producer knows the leaders of the partitions.
    write(0);
    env.clock.sleep_us(500_000);
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION;
    cluster.request_errors(RDKafkaApiKey::Produce, &[refused]);
    cluster.broker_round_trip_time(1, Duration::from_millis(30)).unwrap();
    (1..ROWS).for_each(write);
    sink.sync().unwrap();
    for partition in 0..2 {
        let own = (0..ROWS).filter(|n| n % 2 == i64::from(partition));
        let wanted: Vec<String> = own.map(|n| format!("{{\"n\":{n}}}")).collect();
        assert_eq!(values(&env, &brokers, "rows", partition), wanted);
    }
}
