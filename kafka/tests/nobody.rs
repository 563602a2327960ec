//! Tests the errors without a broker.

use std::sync::Arc;

use tidemill_cluster::Record;
use tidemill_connect::Message;
use tidemill_core::Kind;
use tidemill_env::Env;
use tidemill_kafka::{Format, KafkaLog, KafkaSettings, Outgoing};

struct Nothing;

impl Format for Nothing {
    fn requests(&self, _: &Message<'_>) -> Record {
        Record::Generation { generation: 0 }
    }

    fn encode(&self, _: &Record) -> Outgoing {
        Outgoing::default()
    }

    fn decode(&self, _: &Message<'_>) -> Option<Record> {
        None
    }
}

#[test]
fn a_broker_that_cannot_be_reached_is_named() {
    // No process listens on this port.
    let mut settings = KafkaSettings::new("127.0.0.1:1", "app", 1);
    settings.timeout_us = 500_000;
    let error = KafkaLog::open(&Env::real(), settings, Arc::new(Nothing)).err().expect("an error");
    assert_eq!(error.kind, Kind::Io);
    assert!(error.what.contains("no broker of 127.0.0.1:1 answers"), "{error}");
    assert!(error.help.contains("check the address"), "{error}");
}
