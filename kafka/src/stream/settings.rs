//! The settings of topics that are read and written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use serde::{Deserialize, Serialize};
use tidemill_connect::files::UnknownFields;
use tidemill_connect::message::Schemas;
use tidemill_connect::{MessageFormat, MessageSettings};
use tidemill_core::{Error, Result};

use crate::settings::{client, IN_FLIGHT, ONE_BY_ONE};

/// A topic to read. Everything but `topic` and `brokers` has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicSource {
    /// The topic's name.
    pub topic: String,
    /// The addresses of some brokers, as `host:port,host:port`.
    pub brokers: String,
    /// The format of values.
    #[serde(default)]
    pub format: MessageFormat,
    /// The schema registry, which Avro needs: `http://host:8081`, with the path before `/subjects`
    /// and `/schemas`.
    #[serde(default)]
    pub registry: Option<String>,
    /// Further properties of the registry: `basic.auth.user.info`, `bearer.auth.token`,
    /// `ssl.ca.location`.
    #[serde(default)]
    pub registry_properties: BTreeMap<String, String>,
    /// The partitions to read; all of them when absent.
    #[serde(default)]
    pub partitions: Option<Vec<u32>>,
    /// The place where reading begins, the first time.
    #[serde(default)]
    pub begin: Begin,
    /// The columns that hold data beside the value, and that data, as in [`MessageSettings::meta`].
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// The columns whose names in the value differ, and those names.
    #[serde(default)]
    pub columns: BTreeMap<String, String>,
    /// The formats of timestamp columns.
    #[serde(default)]
    pub formats: BTreeMap<String, String>,
    /// The treatment of fields for which the stream has no column.
    #[serde(default)]
    pub unknown_fields: UnknownFields,
    /// The largest size of the messages read ahead from each partition, in bytes.
    #[serde(default = "ahead_bytes")]
    pub ahead_bytes: usize,
    /// The time for the brokers to answer when the topic is opened, in microseconds.
    #[serde(default = "timeout_us")]
    pub timeout_us: u64,
    /// Further properties of librdkafka, by name.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
}

/// The place where reading begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Begin {
    /// With the first message that exists.
    #[default]
    Earliest,
    /// With the messages that arrive after the first start.
    Latest,
    /// With the first message that is not older than this time, in microseconds since 1970.
    Time(i64),
}

/// A schema that a registry already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SinkSchema {
    /// The schema that is the subject's latest when the app starts.
    Latest,
    /// The schema with this id.
    Id(u32),
}

/// A topic to write. Everything but `topic` and `brokers` has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicSink {
    /// The topic's name. The topic must exist.
    pub topic: String,
    /// The addresses of some brokers, as `host:port,host:port`.
    pub brokers: String,
    /// The format of values.
    #[serde(default)]
    pub format: MessageFormat,
    /// The schema registry, which Avro needs: `http://host:8081`, with the path before `/subjects`
    /// and `/schemas`.
    #[serde(default)]
    pub registry: Option<String>,
    /// Further properties of the registry: `basic.auth.user.info`, `bearer.auth.token`,
    /// `ssl.ca.location`.
    #[serde(default)]
    pub registry_properties: BTreeMap<String, String>,
    /// The subject under which the schema is registered; `TOPIC-value` when absent.
    #[serde(default)]
    pub subject: Option<String>,
    /// The schema, which the columns must fit. When absent, the schema of the columns is
    /// registered.
    #[serde(default)]
    pub schema: Option<SinkSchema>,
    /// The columns of the key, which decides the partition. Rows without a key are spread by their
    /// numbers.
    #[serde(default)]
    pub key: Vec<String>,
    /// Headers that each message has, by name.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Whether the rows of each epoch are one transaction of Kafka.
    #[serde(default)]
    pub transactions: bool,
    /// The name by which the broker knows the writer of transactions. When absent, it consists of
    /// app, stream and topic.
    #[serde(default)]
    pub transactional_id: Option<String>,
    /// The largest size of the messages that wait for delivery, in bytes.
    #[serde(default = "queue_bytes")]
    pub queue_bytes: usize,
    /// The time for the brokers to answer when the topic is opened, in microseconds.
    #[serde(default = "timeout_us")]
    pub timeout_us: u64,
    /// Further properties of librdkafka, by name.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
}

fn ahead_bytes() -> usize {
    8 << 20
}

fn queue_bytes() -> usize {
    32 << 20
}

fn timeout_us() -> u64 {
    30_000_000
}

/// The largest number of messages that wait for delivery.
const QUEUE_MESSAGES: usize = 100_000;

/// The properties on which the guarantees of sources and sinks depend, and the help for each.
const TAKEN: &[(&str, &str)] = &[
    ("bootstrap.servers", "say brokers="),
    ("metadata.broker.list", "say brokers="),
    ("group.id", "leave it out: no group is joined, the data directory has the position"),
    ("group.instance.id", "leave it out: no group is joined"),
    ("enable.auto.commit", "leave it out: the data directory has the position"),
    ("enable.auto.offset.store", "leave it out: the data directory has the position"),
    ("auto.offset.reset", "say begin=; missing messages are an error"),
    ("isolation.level", "leave it out: uncommitted messages are not read"),
    ("enable.partition.eof", "leave it out: the source needs it"),
    ("acks", "leave it out: all replicas have a row when it counts"),
    ("request.required.acks", "leave it out: all replicas have a row when it counts"),
    ("enable.idempotence", "leave it out: rows are in their order, each once"),
    ("enable.gapless.guarantee", "leave it out: rows are in their order, none missing"),
    ("message.timeout.ms", "leave it out: undeliverable messages wait"),
    ("delivery.timeout.ms", "leave it out: undeliverable messages wait"),
    ("max.in.flight", ONE_BY_ONE),
    (IN_FLIGHT, ONE_BY_ONE),
    ("transactional.id", "say transactions=True, or transactions=\"name\""),
    ("partitioner", "leave it out: the partition follows from the key, as in Java's clients"),
];

impl TopicSource {
    /// Creates settings for a topic, with defaults for the rest.
    pub fn new(topic: &str, brokers: &str) -> TopicSource {
        TopicSource {
            topic: topic.into(),
            brokers: brokers.into(),
            format: MessageFormat::default(),
            registry: None,
            registry_properties: BTreeMap::new(),
            partitions: None,
            begin: Begin::default(),
            meta: BTreeMap::new(),
            columns: BTreeMap::new(),
            formats: BTreeMap::new(),
            unknown_fields: UnknownFields::default(),
            ahead_bytes: ahead_bytes(),
            timeout_us: timeout_us(),
            properties: BTreeMap::new(),
        }
    }

    /// Parses settings from a JSON object.
    ///
    /// # Errors
    /// For an unknown name, or a value that does not fit its setting.
    pub fn from_json(json: &str) -> Result<TopicSource> {
        tidemill_connect::settings::from_json("kafka", json)
    }

    /// Returns the settings by which messages become rows.
    pub(super) fn messages(&self, schemas: Option<Arc<dyn Schemas>>) -> MessageSettings {
        MessageSettings {
            format: self.format,
            columns: self.columns.clone(),
            formats: self.formats.clone(),
            unknown_fields: self.unknown_fields,
            meta: self.meta.clone(),
            schemas,
        }
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_micros(self.timeout_us)
    }

    /// Refuses impossible settings.
    pub(super) fn check(&self) -> Result<()> {
        check(&self.topic, &self.brokers, &self.properties)?;
        check_registry(&self.topic, self.format, &self.registry, &self.registry_properties)?;
        let partitions = self.partitions.as_deref().unwrap_or_default();
        let twice = partitions.iter().enumerate().find(|(i, p)| partitions[..*i].contains(p));
        if let Some((_, partition)) = twice {
            let what = format!("topic {}: partition {partition} is named twice", self.topic);
            return Err(Error::setting(what).help("name each partition once"));
        }
        if self.partitions.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::setting(format!("topic {}: no partition is named", self.topic))
                .help("leave partitions= out to read all of them"));
        }
        self.consumer().map(|_| ())
    }

    /// Returns the configuration of the consumer.
    pub(super) fn consumer(&self) -> Result<ClientConfig> {
        let kilobytes = (self.ahead_bytes >> 10).clamp(64, 2_097_151);
        let fetch = self.ahead_bytes.clamp(64 << 10, 64 << 20);
        consumer(
            &self.brokers,
            &self.properties,
            &[
                ("queued.max.messages.kbytes", kilobytes.to_string()),
                ("fetch.message.max.bytes", (fetch / 4).to_string()),
                ("fetch.max.bytes", fetch.to_string()),
            ],
        )
    }
}

impl TopicSink {
    /// Creates settings for a topic, with defaults for the rest.
    pub fn new(topic: &str, brokers: &str) -> TopicSink {
        TopicSink {
            topic: topic.into(),
            brokers: brokers.into(),
            format: MessageFormat::default(),
            registry: None,
            registry_properties: BTreeMap::new(),
            subject: None,
            schema: None,
            key: Vec::new(),
            headers: BTreeMap::new(),
            transactions: false,
            transactional_id: None,
            queue_bytes: queue_bytes(),
            timeout_us: timeout_us(),
            properties: BTreeMap::new(),
        }
    }

    /// Parses settings from a JSON object.
    ///
    /// # Errors
    /// For an unknown name, or a value that does not fit its setting.
    pub fn from_json(json: &str) -> Result<TopicSink> {
        tidemill_connect::settings::from_json("kafka", json)
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_micros(self.timeout_us)
    }

    /// Refuses impossible settings.
    pub(super) fn check(&self) -> Result<()> {
        check(&self.topic, &self.brokers, &self.properties)?;
        check_registry(&self.topic, self.format, &self.registry, &self.registry_properties)?;
        if self.registry.is_none() && (self.subject.is_some() || self.schema.is_some()) {
            let what = format!("topic {}: subject and schema need a registry", self.topic);
            return Err(Error::setting(what).help("say registry= and format=\"avro\", too"));
        }
        if let Some(name) = self.headers.keys().find(|name| name.starts_with("tidemill-")) {
            return Err(Error::setting(format!("the header {name} can't be set"))
                .help("choose another name: those that begin with tidemill- are reserved"));
        }
        self.producer("x").map(|_| ())
    }

    /// Returns the configuration of the producer; `id` is that of its transactions.
    pub(super) fn producer(&self, id: &str) -> Result<ClientConfig> {
        let kilobytes = (self.queue_bytes >> 10).clamp(64, 2_147_483_647);
        let mut own = vec![
            ("acks", "all".into()),
            ("enable.idempotence", "true".into()),
            (IN_FLIGHT, "1".into()),
            ("linger.ms", "1".to_owned()),
            ("queue.buffering.max.kbytes", kilobytes.to_string()),
            ("queue.buffering.max.messages", QUEUE_MESSAGES.to_string()),
            ("retry.backoff.ms", "20".into()),
            ("retry.backoff.max.ms", "500".into()),
        ];
        match self.transactions {
            true => own.push(("transactional.id", id.to_owned())),
            // A failed message takes all later ones with it, and undeliverable messages wait.
            false => own.extend([
                ("enable.gapless.guarantee", "true".to_owned()),
                ("message.timeout.ms", "0".to_owned()),
            ]),
        }
        client(&self.brokers, &own, &self.properties)
    }

    /// Returns the configuration of the consumer that reads the topic's progress back.
    pub(super) fn consumer(&self) -> Result<ClientConfig> {
        // Properties for the producer may mean nothing to a consumer. Then it only logs a warning.
        consumer(&self.brokers, &self.properties, &[])
    }
}

fn consumer(
    brokers: &str,
    chosen: &BTreeMap<String, String>,
    more: &[(&str, String)],
) -> Result<ClientConfig> {
    let mut own = vec![
        // No process joins this group. The library needs a name.
        ("group.id", "tidemill".to_owned()),
        ("enable.auto.commit", "false".into()),
        ("enable.auto.offset.store", "false".into()),
        ("auto.offset.reset", "error".into()),
        ("enable.partition.eof", "true".into()),
        ("isolation.level", "read_committed".into()),
        ("fetch.wait.max.ms", "20".into()),
        ("fetch.queue.backoff.ms", "5".into()),
        ("fetch.error.backoff.ms", "50".into()),
    ];
    own.extend(more.iter().map(|(name, value)| (*name, value.clone())));
    client(brokers, &own, chosen)
}

fn check(topic: &str, brokers: &str, properties: &BTreeMap<String, String>) -> Result<()> {
    if topic.is_empty() {
        return Err(Error::setting("the topic has no name").help("write tm.kafka(\"name\", ...)"));
    }
    if brokers.trim().is_empty() {
        return Err(Error::setting(format!("topic {topic}: no broker is named"))
            .help("name one or more: brokers=\"host:9092,other:9092\""));
    }
    for name in properties.keys() {
        if let Some((_, instead)) = TAKEN.iter().find(|(taken, _)| taken == name) {
            return Err(
                Error::setting(format!("the Kafka property {name} can't be set")).help(*instead)
            );
        }
    }
    Ok(())
}

fn check_registry(
    topic: &str,
    format: MessageFormat,
    registry: &Option<String>,
    properties: &BTreeMap<String, String>,
) -> Result<()> {
    match (format, registry) {
        (MessageFormat::Avro, Some(url)) => crate::registry::check(url, properties)
            .map_err(|error| Error { what: format!("topic {topic}: {}", error.what), ..error }),
        (MessageFormat::Avro, None) => {
            Err(Error::setting(format!("topic {topic}: Avro needs a schema registry"))
                .help("say registry=\"http://host:8081\""))
        }
        (_, None) if properties.is_empty() => Ok(()),
        _ => Err(Error::setting(format!("topic {topic}: only Avro has a schema registry"))
            .help("say format=\"avro\", or leave registry= out")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let source = TopicSource::from_json(
            r#"{"topic": "a", "brokers": "b:1", "begin": {"time": 7}, "format": "msgpack",
                "meta": {"k": "key"}, "partitions": [0, 2]}"#,
        )
        .unwrap();
        assert_eq!(source.begin, Begin::Time(7));
        source.check().unwrap();
        assert_eq!(
            TopicSource::from_json(r#"{"topic": "a", "brokers": "b:1", "begin": "latest"}"#)
                .unwrap()
                .begin,
            Begin::Latest
        );
        let wrong = TopicSource::from_json(r#"{"topic": "a", "brokers": "b", "begn": "latest"}"#);
        assert_eq!(wrong.unwrap_err().help, "did you mean 'begin'?");
        let sink = TopicSink::from_json(r#"{"topic": "a", "brokers": "b:1", "key": ["k"]}"#);
        sink.unwrap().check().unwrap();
        for (schema, read) in
            [("\"latest\"", SinkSchema::Latest), ("{\"id\": 7}", SinkSchema::Id(7))]
        {
            let json = format!(r#"{{"topic": "a", "brokers": "b:1", "schema": {schema}}}"#);
            assert_eq!(TopicSink::from_json(&json).unwrap().schema, Some(read));
        }
    }

    #[test]
    fn what_can_not_be_is_refused() {
        let source = TopicSource::new("t", "b:1");
        let refused = |source: TopicSource| source.check().unwrap_err().to_string();
        assert!(refused(TopicSource { brokers: " ".into(), ..source.clone() }).contains("broker"));
        let twice = TopicSource { partitions: Some(vec![1, 0, 1]), ..source.clone() };
        assert!(refused(twice).contains("partition 1 is named twice"));
        let none = TopicSource { partitions: Some(vec![]), ..source.clone() };
        assert!(refused(none).contains("no partition"));
        let with = |name: &str, value: &str| TopicSource {
            properties: [(name.to_owned(), value.to_owned())].into(),
            ..source.clone()
        };
        assert!(refused(with("group.id", "x")).contains("can't be set"));
        assert!(refused(with("socket.tmeout.ms", "1")).contains("socket.tmeout.ms"));
        with("socket.timeout.ms", "5000").check().unwrap();
        let sink = TopicSink::new("t", "b:1");
        let headers = [("tidemill-id".to_owned(), "x".to_owned())].into();
        assert!(TopicSink { headers, ..sink.clone() }.check().is_err());
        TopicSink { transactions: true, ..sink.clone() }.check().unwrap();
        // Settings with a registry.
        let avro = TopicSource { format: MessageFormat::Avro, ..source.clone() };
        assert!(refused(avro.clone()).contains("needs a schema registry"));
        let at = |url: &str| Some(url.to_owned());
        assert!(refused(TopicSource { registry: at("host"), ..avro.clone() })
            .contains("not an HTTP URL"));
        assert!(refused(TopicSource { registry: at("http://h"), ..source }).contains("only Avro"));
        TopicSource { registry: at("https://u:p@h/x"), ..avro }.check().unwrap();
        let subject = TopicSink { subject: at("s"), ..sink.clone() };
        assert!(subject.check().unwrap_err().to_string().contains("need a registry"));
        let schema = Some(SinkSchema::Id(7));
        let sink = TopicSink { schema, registry: at("http://h"), ..sink };
        TopicSink { format: MessageFormat::Avro, ..sink }.check().unwrap();
    }

    #[test]
    fn limits_are_those_of_the_guide_and_of_the_library() {
        let guide = include_str!("../../../docs/guides/kafka.md");
        for row in ["| `ahead_bytes` | 8 MiB |", "| `queue_bytes` | 32 MiB |", "| `timeout` | 30 |"]
        {
            assert!(guide.contains(row), "{row}");
        }
        let (source, sink) = (TopicSource::new("t", "b:1"), TopicSink::new("t", "b:1"));
        assert_eq!((source.ahead_bytes, sink.queue_bytes), (8 << 20, 32 << 20));
        assert_eq!([source.timeout(), sink.timeout()], [Duration::from_secs(30); 2]);
        // Settings in JSON have the same defaults.
        let json = r#"{"topic": "t", "brokers": "b:1"}"#;
        assert_eq!(TopicSource::from_json(json).unwrap(), source);
        assert_eq!(TopicSink::from_json(json).unwrap(), sink);
        let kilobytes =
            |of: &ClientConfig, name: &str| of.get(name).unwrap().parse::<usize>().unwrap();
        for bytes in [8 << 20, 3 << 20] {
            let source = TopicSource { ahead_bytes: bytes, ..source.clone() };
            let found = source.consumer().unwrap();
            assert_eq!(kilobytes(&found, "queued.max.messages.kbytes"), bytes >> 10);
            assert!(kilobytes(&found, "fetch.max.bytes") <= bytes);
        }
        for (bytes, transactions) in [(32 << 20, false), (5 << 20, false), (5 << 20, true)] {
            let sink = TopicSink { queue_bytes: bytes, transactions, ..sink.clone() };
            let found = sink.producer("x").unwrap();
            assert_eq!(kilobytes(&found, "queue.buffering.max.kbytes"), bytes >> 10);
        }
    }
}
