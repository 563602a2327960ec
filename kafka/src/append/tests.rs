//! Tests with records that a broker refuses for a while.
//!
//! The broker is the client library's mock. It accepts the records after a refused one, as a real
//! broker does if it does not know the producer.

use std::sync::mpsc::channel;

use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tidemill_env::Env;

use super::*;

const RECORDS: u64 = 10;

#[test]
fn a_record_that_is_refused_for_now_is_there_before_those_behind_it() {
    let cluster = MockCluster::new(1).unwrap();
    let settings = KafkaSettings::new(&cluster.bootstrap_servers(), "app", 1);
    for (name, partitions, _) in settings.topics() {
        cluster.create_topic(name, partitions as i32, 1).unwrap();
    }
    let env = Env::real();
    let (core, _wakes) = Core::new(&env, &settings);
    let appends = Appends::start(&core, &settings).unwrap();
    appends.warm().unwrap();
    env.clock.sleep_us(300_000);
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION;
    cluster.request_errors(RDKafkaApiKey::Produce, &[refused]);
    cluster.broker_round_trip_time(1, Duration::from_millis(40)).unwrap();
    let outputs = core.parts.iter().position(|part| part.topic == Topic::Output(0)).unwrap();
    let (send, receive) = channel();
    for n in 0..RECORDS {
        let message = Outgoing { value: n.to_string().into_bytes(), ..Outgoing::default() };
        let send = send.clone();
        let then = Box::new(move |answer| send.send((n, answer)).unwrap());
        appends.append(outputs, 1, (false, false), &message, then);
        // Each record is a request of its own.
        env.clock.sleep_us(6_000);
    }
    drop(send);
    let found: Vec<_> = receive.iter().collect();
    let wanted: Vec<_> = (0..RECORDS).map(|n| (n, Ok(n))).collect();
    assert_eq!(found, wanted);
    assert!(!core.has_failed(1));
    appends.end();
}
