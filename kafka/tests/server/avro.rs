//! Tests topics in Avro, with a real broker and a real schema registry.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tidemill_connect::source::contract::{check, read_on, Taken};
use tidemill_connect::{MessageFormat, Polled, Source, Troubles};
use tidemill_core::{Batch, Column, DataType, Error, Row, Schema, Value};
use tidemill_env::Env;
use tidemill_kafka::stream::{
    open_sink, open_sources, Numbers, SinkSchema, TopicSink, TopicSource,
};

use crate::common::{brokers, control_of};
use crate::refusing::{Refusing, REFUSALS};
use crate::topic::*;

/// A lock for tests in parallel: those that need the registry hold it for reading, and those that
/// stop the registry hold it for writing.
static REGISTRY: RwLock<()> = RwLock::new(());

fn registry() -> String {
    std::env::var("SERVERS_REGISTRY").expect("SERVERS_REGISTRY")
}

/// Sends a request to the registry directly, and returns its answer.
fn ask(method: &str, path: &str, body: serde_json::Value) -> serde_json::Value {
    let url = format!("{}{path}", registry());
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let mime = "application/vnd.schemaregistry.v1+json";
    let request = match method {
        "PUT" => agent.put(url),
        _ => agent.post(url),
    };
    let mut said = request.header("content-type", mime).send(body.to_string()).unwrap();
    serde_json::from_str(&said.body_mut().read_to_string().unwrap()).unwrap()
}

/// Registers a schema. Returns its id.
fn register(subject: &str, schema: &str) -> u32 {
    let said = ask(
        "POST",
        &format!("/subjects/{subject}/versions"),
        serde_json::json!({ "schema": schema }),
    );
    said["id"].as_u64().unwrap_or_else(|| panic!("{said}")) as u32
}

fn record(fields: &str) -> String {
    format!(r#"{{"type": "record", "name": "row", "fields": [{fields}]}}"#)
}

fn send(topic: &str, values: &[Vec<u8>]) {
    let producer: BaseProducer = config().create().unwrap();
    for value in values {
        let record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(topic).partition(0).payload(value);
        producer.send(record).unwrap();
    }
    producer.flush(LONG).unwrap();
}

/// Returns a value: the prefix with the schema's id, and the record.
fn value(id: u32, record: &[u8]) -> Vec<u8> {
    [&[0][..], &id.to_be_bytes(), record].concat()
}

fn read_avro(topic: &str) -> TopicSource {
    TopicSource {
        format: MessageFormat::Avro,
        registry: Some(registry()),
        ..TopicSource::new(topic, &brokers())
    }
}

fn write_avro(topic: &str) -> TopicSink {
    TopicSink {
        format: MessageFormat::Avro,
        registry: Some(registry()),
        ..TopicSink::new(topic, &brokers())
    }
}

fn open_rows(
    settings: &TopicSink,
    schema: &Arc<Schema>,
) -> tidemill_core::Result<Box<dyn tidemill_connect::Sink>> {
    open_sink(settings, schema, &Env::real(), &ids(1), None, (&Troubles::default(), "test"))
}

fn refused(settings: &TopicSink, schema: &Arc<Schema>) -> Error {
    let error = open_rows(settings, schema).err().expect("a refusal");
    println!("{error} ({})", error.help);
    error
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_avro_is_read_by_the_schemas_that_it_was_written_by() {
    let _registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    let topic = topic("avro", 1);
    // Three versions of a schema, and a schema of another type.
    let n = r#"{"name": "n", "type": "int"}"#;
    let first = register(&format!("{topic}-value"), &record(n));
    let s = r#"{"name": "s", "type": ["null", "string"], "default": null}"#;
    let second = register(&format!("{topic}-value"), &record(&format!("{s}, {n}")));
    let other = register(&format!("{topic}-other"), &record(r#"{"name": "m", "type": "long"}"#));
    assert!(first != second && second != other);
    send(
        &topic,
        &[
            value(first, &[0]),
            value(second, &[2, 2, b'x', 2]),
            value(first, &[4]),
            b"{\"n\": 1}".to_vec(),
            value(4_000_000_000, &[6]),
            value(2_000_000_000, &[6]),
            value(first, &[6, 6]),
            value(second, &[2, 200, 1, b'x']),
            value(other, &[6]),
            Vec::new(),
            value(second, &[0, 6]),
        ],
    );
    let settings = read_avro(&topic);
    let rows = check(|| sources(&settings).unwrap().remove(0));
    assert_eq!(numbers(&rows), [0, 1, 2, 3]);
    assert_eq!(rows[1], Taken::Good([Value::Int(1), Value::str("x")].into()));
    assert_eq!(rows[2], Taken::Good([Value::Int(2), Value::Null].into()));
    let reasons: Vec<&str> = rows
        .iter()
        .filter_map(|row| match row {
            Taken::Bad(bad) => Some(&*bad.reason),
            Taken::Good(_) => None,
        })
        .collect();
    for (reason, words) in reasons.iter().zip([
        &["byte 0", "123"][..],
        &["schema 4000000000", "2147483647"],
        &["schema 2000000000", "registry", "404"],
        &["1 bytes follow"],
        &["column 's'", "too early"],
        &["column 'n'", "missing"],
        &["0 bytes"],
    ]) {
        println!("{reason}");
        assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
    }
    assert_eq!(reasons.len(), 7);
}

/// Returns a stream with a column of each type, and rows of it.
fn all_types() -> (Arc<Schema>, Vec<Row>) {
    let types = [
        DataType::Int,
        DataType::Float,
        DataType::Bool,
        DataType::Str,
        DataType::Bytes,
        DataType::Timestamp,
        DataType::Decimal(2),
        DataType::List(Box::new(DataType::Str)),
        DataType::Any,
    ];
    let column = |(i, ty)| Column::new(&format!("c{i}"), ty).nullable();
    let columns = types.into_iter().enumerate().map(column).collect();
    let rows = (0..50i64).map(|n| -> Row {
        let values = [
            Value::Int(n << 40),
            Value::Float(n as f64 / 3.0),
            Value::Bool(n % 2 == 0),
            Value::str(&"\u{e9}".repeat(n as usize)),
            Value::Bytes(vec![n as u8; n as usize].into()),
            Value::Timestamp(n * 1_000_003),
            Value::Decimal(-n * 7, 2),
            Value::List(vec![Value::Null, Value::str("x")].into()),
            Value::Any(vec![n as u8].into()),
        ];
        let null = |(i, value)| if n % 10 == i as i64 { Value::Null } else { value };
        values.into_iter().enumerate().map(null).collect()
    });
    (Arc::new(Schema::new(columns)), rows.collect())
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_avro_comes_back_as_it_was_written() {
    let _registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    let topic = topic("avro-types", 1);
    let (schema, rows) = all_types();
    // The schema of the columns, the latest one, and the one by its id are the same.
    let settings = write_avro(&topic);
    let latest = TopicSink { schema: Some(SinkSchema::Latest), ..settings.clone() };
    for (at, settings) in [&settings, &settings, &latest].into_iter().enumerate() {
        let mut sink = open_rows(settings, &schema).unwrap();
        let part = &rows[at * 10..at * 10 + 10];
        sink.write(&Batch::from_rows(schema.clone(), part.iter().map(|row| &row[..]))).unwrap();
        sink.commit().unwrap();
        sink.finish().unwrap();
    }
    let opened = open_sources(
        &read_avro(&topic),
        &schema,
        &Env::real(),
        Numbers::Counted,
        (&Troubles::default(), "test"),
    );
    let mut source = opened.unwrap().remove(0).1;
    let (mut found, begun) = (Vec::new(), Instant::now());
    while found.len() < 30 {
        assert!(begun.elapsed() < LONG, "{} rows", found.len());
        if let Polled::Rows(chunk) = source.poll(100).unwrap() {
            assert!(chunk.bad.is_empty(), "{:?}", chunk.bad);
            found.extend(chunk.batch.rows());
        }
    }
    assert_eq!(found, rows[..30]);
    // A schema of another name has an id, too.
    let id = register(&format!("{topic}-other"), &record(r#"{"name": "n", "type": "long"}"#));
    let by_id = TopicSink { schema: Some(SinkSchema::Id(id)), ..settings.clone() };
    let error = refused(&by_id, &schema);
    assert!(error.what.contains(&format!("schema {id}")) && error.what.contains("'c0'"));
    let n = Arc::new(Schema::new(vec![Column::new("n", DataType::Int)]));
    open_rows(&by_id, &n).unwrap();
    let none = TopicSink { subject: Some(format!("{topic}/none")), ..latest };
    assert!(refused(&none, &n).what.contains("registry of schemas says"));
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_schema_that_does_not_follow_is_refused_with_the_registrys_words() {
    let _registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    let topic = topic("avro-breaks", 1);
    let schema = |ty: DataType| Arc::new(Schema::new(vec![Column::new("n", ty)]));
    let settings = write_avro(&topic);
    open_rows(&settings, &schema(DataType::Str)).unwrap();
    let level = serde_json::json!({"compatibility": "BACKWARD"});
    ask("PUT", &format!("/config/{topic}-value"), level);
    let error = refused(&settings, &schema(DataType::Bool));
    assert!(error.what.contains("ncompatible") && error.what.contains("409"), "{error}");
    assert!(error.what.contains(&format!("subject {topic}-value")), "{error}");
    let subject = Some(format!("{topic}-mine"));
    open_rows(&TopicSink { subject, ..settings.clone() }, &schema(DataType::Bool)).unwrap();
    // An address where no server answers, and a server that is not a registry.
    let timeout_us = 1_000_000;
    let away =
        TopicSink { registry: Some("http://127.0.0.1:1".into()), timeout_us, ..settings.clone() };
    assert!(refused(&away, &schema(DataType::Bool)).what.contains("does not answer"));
    let wrong = registry().replace("/ccompat/", "/nothing/");
    let wrong = TopicSink { registry: Some(wrong), timeout_us, ..settings };
    assert!(refused(&wrong, &schema(DataType::Bool)).what.contains("is the address right?"));
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_registry_by_https() {
    let _registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    let topic = topic("avro-tls", 1);
    let url = std::env::var("SERVERS_REGISTRY_TLS").expect("SERVERS_REGISTRY_TLS");
    let authority = std::env::var("SERVERS_REGISTRY_AUTHORITY").expect("a file");
    // A login is also allowed where none is required.
    let url = url.replace("://", "://me:hid%40den@");
    let properties = [("ssl.ca.location".to_owned(), authority)].into();
    let settings = TopicSink {
        registry: Some(url),
        registry_properties: properties,
        timeout_us: 3_000_000,
        ..write_avro(&topic)
    };
    open_rows(&settings, &schema()).unwrap();
    // No authority that this machine knows has signed it.
    let error = refused(&TopicSink { registry_properties: [].into(), ..settings }, &schema());
    assert!(
        error.what.to_lowercase().contains("certificate") && !error.to_string().contains("hid"),
        "{error}"
    );
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_source_waits_for_a_registry() {
    let _registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    let name = topic("avro-waits", 1);
    let id = register(&format!("{name}-value"), &record(r#"{"name": "n", "type": "long"}"#));
    let next = |n| {
        let field = format!(
            r#"{{"name": "n", "type": "long"}}, {{"name": "x{n}", "type": "null", "default": null}}"#
        );
        register(&format!("{name}-{n}"), &record(&field))
    };
    let ids = [id, next(1), next(2)];
    let troubles = Troubles::default();
    let open = || -> Box<dyn Source> {
        let opened = open_sources(
            &read_avro(&name),
            &schema(),
            &Env::real(),
            Numbers::Counted,
            (&troubles, "test"),
        );
        opened.unwrap().remove(0).1
    };
    let mut source = open();
    let beside_name = topic("avro-beside", 1);
    let mut beside = self::source(&beside_name);
    let mut rows: u64 = 0;
    for (at, (deed, back)) in [("stop", "go"), ("kill", "start")].into_iter().enumerate() {
        let values: Vec<_> = (0..10).map(|n| value(ids[at], &[n])).collect();
        send(&name, &values);
        send(&name, &[value(ids[at + 1], &[2])]);
        control_of("REGISTRY", deed);
        let begun = Instant::now();
        // Known schemas are read on. An unknown one waits and is reported.
        let known = if at == 0 { rows } else { rows + 10 };
        while troubles.all().is_empty() || rows < known {
            assert!(begun.elapsed() < LONG, "{rows} rows");
            let polled = Instant::now();
            if let Polled::Rows(chunk) = source.poll(100).unwrap() {
                assert!(chunk.bad.is_empty());
                rows += chunk.rows() as u64;
            }
            assert!(polled.elapsed() < Duration::from_secs(1), "nobody waits in a poll");
            std::thread::sleep(Duration::from_millis(2));
        }
        println!("{:?}", troubles.all());
        assert!(!source.has_looked());
        assert!(troubles.all().keys().next().unwrap().contains("test (registry)"));
        Writer::new(&beside_name).rows(0, 0..5);
        assert_eq!(read_on(&mut *beside, 100).len(), 5, "others go on");
        let place = beside.place();
        beside.resume(&place).unwrap();
        // A source that is dropped ends at once.
        let other = open();
        let begun = Instant::now();
        drop(other);
        assert!(begun.elapsed() < Duration::from_secs(1));
        control_of("REGISTRY", back);
        let begun = Instant::now();
        while rows < 11 * (at as u64 + 1) || !troubles.all().is_empty() {
            assert!(begun.elapsed() < 2 * LONG, "{rows} rows, {:?}", troubles.all());
            if let Polled::Rows(chunk) = source.poll(100).unwrap() {
                assert!(chunk.bad.is_empty(), "{:?}", chunk.bad);
                rows += chunk.rows() as u64;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert_eq!(rows, 22);
}

/// The source fails at the first message whose schema is unknown, and stays failed.
#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_registry_that_refuses_whoever_asks_ends_a_source() {
    let topic = topic("forbidden", 1);
    send(&topic, &[value(7, &[2])]);
    for (status, body, words) in REFUSALS {
        let registry = Refusing::new(status, body);
        let settings = TopicSource { registry: registry.url(), ..read_avro(&topic) };
        let mut source = sources(&settings).unwrap().remove(0);
        let begun = Instant::now();
        let error = loop {
            assert!(begun.elapsed() < LONG, "it does not end");
            match source.poll(10) {
                Ok(Polled::Rows(rows)) => panic!("{rows:?}"),
                Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => break error,
            }
        };
        registry.assert_refused(&error, words);
        assert_eq!(registry.asked(), 1);
    }
}
