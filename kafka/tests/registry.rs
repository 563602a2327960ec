//! Tests with a schema registry that refuses every login.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Sockets and threads of the tests.

mod refusing;

use std::sync::Arc;

use tidemill_connect::{MessageFormat, Troubles};
use tidemill_core::{Column, DataType, Schema};
use tidemill_env::Env;
use tidemill_kafka::stream::{open_sink, RowIds, TopicSink};

use refusing::{Refusing, REFUSALS};

fn schema() -> Arc<Schema> {
    Schema::new(vec![Column::new("n", DataType::Int)]).into()
}

#[test]
fn a_sink_whose_registry_refuses_whoever_asks_is_refused_at_once() {
    for (status, body, words) in REFUSALS {
        let registry = Refusing::new(status, body);
        // The sink asks no broker before the registry.
        let settings = TopicSink {
            format: MessageFormat::Avro,
            registry: registry.url(),
            ..TopicSink::new("rows", "127.0.0.1:1")
        };
        let ids = RowIds { app: "app".into(), run: 1, stream: "out".into() };
        let said = Troubles::default();
        let opened = open_sink(&settings, &schema(), &Env::real(), &ids, None, (&said, "test"));
        registry.assert_refused(&opened.err().expect("a refusal"), words);
        // A request that waiting does not help is not repeated.
        assert_eq!(registry.asked(), 1);
    }
}
