//! Tests how many messages wait for delivery while a broker is away. The broker is the client
//! library's mock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use rdkafka::mocking::MockCluster;
use tidemill_connect::Troubles;
use tidemill_core::{Batch, Column, DataType, Schema, Value};
use tidemill_env::Env;
use tidemill_kafka::stream::{open_sink, RowIds, TopicSink};

/// The bytes of a row, and the number of rows.
const BYTES: usize = 1 << 10;
const ROWS: i64 = 3_000;

#[test]
fn the_app_waits_when_so_much_waits_for_being_delivered() {
    let env = Env::real();
    let cluster = MockCluster::new(1).unwrap();
    let brokers = cluster.bootstrap_servers();
    cluster.create_topic("rows", 1, 1).unwrap();
    let columns = vec![Column::new("n", DataType::Int), Column::new("text", DataType::Str)];
    let schema = Arc::new(Schema::new(columns));
    let ids = RowIds { app: "app".into(), run: 1, stream: "out".into() };
    let queue_bytes = 1 << 20;
    let settings = TopicSink { queue_bytes, ..TopicSink::new("rows", &brokers) };
    let troubles = Troubles::default();
    let opened = open_sink(&settings, &schema, &env, &ids, None, (&troubles, "test"));
    let mut sink = opened.unwrap();
    let text = "x".repeat(BYTES);
    let row = |n| Batch::from_rows(schema.clone(), [&[Value::Int(n), Value::str(&text)][..]]);
    sink.write(&row(0)).unwrap();
    sink.commit().unwrap();
    sink.sync().unwrap();
    cluster.broker_down(1).unwrap();
    let handed_over = Arc::new(AtomicU64::new(1));
    let count = handed_over.clone();
    let rows: Vec<Batch> = (1..ROWS).map(row).collect();
    let writing = env.threads.spawn(
        "writing",
        Box::new(move || {
            for row in &rows {
                sink.write(row).unwrap();
                sink.commit().unwrap();
                count.fetch_add(1, Ordering::SeqCst);
            }
            assert_eq!(sink.sync().unwrap().ends, [ROWS as u64]);
        }),
    );
    // The sink waits until it reports the broker.
    let begun_ns = env.clock.monotonic_ns();
    while troubles.all().is_empty() {
        let waited_ns = env.clock.monotonic_ns() - begun_ns;
        assert!(waited_ns < 60_000_000_000, "nobody waits");
        env.clock.sleep_us(1_000);
    }
    let there = handed_over.load(Ordering::SeqCst) as usize * BYTES;
    assert!((queue_bytes / 2..queue_bytes + 2 * BYTES).contains(&there), "{there} bytes wait");
    cluster.broker_up(1).unwrap();
    writing.unwrap().join().unwrap();
    assert_eq!(handed_over.load(Ordering::SeqCst), ROWS as u64);
    assert!(troubles.all().is_empty());
}
