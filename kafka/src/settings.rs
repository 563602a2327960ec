//! The settings of a log, and the settings of librdkafka that follow from them.

use std::collections::BTreeMap;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use tidemill_core::{Error, Result};

use crate::security;

/// The settings of a log. They are the same for all processes of a cluster.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    /// The addresses of some brokers, as `host:port,host:port`.
    pub brokers: String,
    /// The topic of the inputs.
    pub inputs: String,
    /// The topic of the outputs.
    pub outputs: String,
    /// The topic of the cuts, to which no other program may write. Nothing if they are in another
    /// log.
    pub cuts: Option<String>,
    /// The number of sources of the inputs. The topic has at least this many partitions. The
    /// outputs have one more for each source whose requests are read elsewhere.
    pub sources: u32,
    /// The number of sources after these whose requests are read elsewhere. Their outputs are in
    /// the outputs, too.
    pub elsewhere: u32,
    /// The number of brokers that store each created topic.
    pub replication: u16,
    /// The time for which an append waits for others to be sent with it, in whole milliseconds. A
    /// request costs brokers and clients as much work as dozens of records. So under load, waiting
    /// makes all appends faster. librdkafka busy-waits for times below a millisecond.
    pub linger_ms: u32,
    /// The time-out, in microseconds. An append without an answer is then unknown, and a read has
    /// failed.
    pub timeout_us: u64,
    /// The largest size of all waiting appends together, in bytes.
    pub append_bytes: usize,
    /// The largest size of the messages read ahead from each partition, in bytes.
    pub ahead_bytes: usize,
    /// Whether inputs and outputs are also deleted when the log is trimmed. Other programs can't
    /// read them then.
    pub deletes: bool,
    /// Further properties of librdkafka by name, such as `security.protocol`.
    pub properties: BTreeMap<String, String>,
}

impl KafkaSettings {
    /// Creates settings with topics named after an app, and defaults for the rest.
    pub fn new(brokers: &str, app: &str, sources: u32) -> KafkaSettings {
        KafkaSettings {
            brokers: brokers.into(),
            inputs: format!("{app}.inputs"),
            outputs: format!("{app}.outputs"),
            cuts: Some(format!("{app}.cuts")),
            sources,
            elsewhere: 0,
            replication: 1,
            linger_ms: 2,
            timeout_us: 10_000_000,
            append_bytes: 256 << 20,
            ahead_bytes: 8 << 20,
            deletes: false,
            properties: BTreeMap::new(),
        }
    }

    /// Returns the names of the topics, the smallest number of partitions of each, and whether its
    /// records are retained until the log is trimmed.
    pub(crate) fn topics(&self) -> impl Iterator<Item = (&str, u32, bool)> {
        let cuts = self.cuts.as_deref().map(|name| (name, 1, true));
        let others = [(&*self.inputs, self.sources, false), (&*self.outputs, self.total(), false)];
        cuts.into_iter().chain(others)
    }

    /// Returns the number of sources, including those that are read elsewhere.
    pub(crate) fn total(&self) -> u32 {
        self.sources.saturating_add(self.elsewhere)
    }

    pub(crate) fn timeout(&self) -> std::time::Duration {
        std::time::Duration::from_micros(self.timeout_us)
    }

    /// Refuses impossible settings.
    pub(crate) fn check(&self) -> Result<()> {
        let (inputs, outputs, cuts) = (&self.inputs, &self.outputs, self.cuts.as_ref());
        if inputs == outputs || cuts == Some(inputs) || cuts == Some(outputs) {
            return Err(Error::setting("inputs, outputs and cuts are not in different topics")
                .help("give each its own topic"));
        }
        if self.brokers.trim().is_empty() {
            return Err(Error::setting("no Kafka broker is named")
                .help("name one or more, as host:9092,other:9092"));
        }
        if self.sources == 0 || i32::try_from(self.total()).is_err() {
            return Err(Error::setting(format!(
                "a log has 1 to 2147483647 sources, not {}",
                self.total()
            ))
            .help("change cluster_sources"));
        }
        for name in self.properties.keys() {
            if let Some((_, instead)) = TAKEN.iter().find(|(taken, _)| taken == name) {
                return Err(Error::setting(format!("the Kafka property {name} can't be set"))
                    .help(*instead));
            }
        }
        security::check(&self.properties)?;
        // This finds properties that librdkafka refuses now, and not when a client is needed.
        self.producer()?;
        self.consumer().map(|_| ())
    }

    /// Returns the configuration of the producer.
    pub(crate) fn producer(&self) -> Result<ClientConfig> {
        let kilobytes = (self.append_bytes >> 10).clamp(1, 2_147_483_647);
        self.client(&[
            ("acks", "all".into()),
            ("enable.idempotence", "true".into()),
            // A failed record takes all later ones with it. Time-outs are an exception, because we
            // handle them.
            ("enable.gapless.guarantee", "true".into()),
            ("message.timeout.ms", "0".into()),
            (IN_FLIGHT, "1".into()),
            ("linger.ms", self.linger_ms.to_string()),
            ("queue.buffering.max.kbytes", kilobytes.to_string()),
            ("queue.buffering.max.messages", APPENDS_MAX.to_string()),
            ("retry.backoff.ms", "20".into()),
            ("retry.backoff.max.ms", "500".into()),
        ])
    }

    /// Returns the configuration of a consumer.
    pub(crate) fn consumer(&self) -> Result<ClientConfig> {
        let kilobytes = (self.ahead_bytes >> 10).clamp(1, 2_097_151);
        let fetch = self.ahead_bytes.clamp(64 << 10, 64 << 20);
        self.client(&[
            // No process joins this group. It only names the stored trim offsets.
            ("group.id", format!("tidemill-{}", self.cuts.as_ref().unwrap_or(&self.outputs))),
            ("enable.auto.commit", "false".into()),
            ("enable.auto.offset.store", "false".into()),
            ("auto.offset.reset", "error".into()),
            ("enable.partition.eof", "true".into()),
            // A broker answers as soon as it has messages. While it waits for some, newly read
            // partitions must wait, too.
            ("fetch.wait.max.ms", "20".into()),
            ("fetch.queue.backoff.ms", "5".into()),
            ("fetch.error.backoff.ms", "50".into()),
            ("queued.max.messages.kbytes", kilobytes.to_string()),
            ("fetch.message.max.bytes", (fetch / 4).to_string()),
            ("fetch.max.bytes", fetch.to_string()),
        ])
    }

    /// Returns the configuration of any client, with further properties.
    pub(crate) fn client(&self, own: &[(&str, String)]) -> Result<ClientConfig> {
        client(&self.brokers, own, &self.properties)
    }
}

/// Returns the configuration that all clients share, with some properties of their own and those of
/// the user.
pub(crate) fn client(
    brokers: &str,
    own: &[(&str, String)],
    chosen: &BTreeMap<String, String>,
) -> Result<ClientConfig> {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Info);
    config.set("bootstrap.servers", brokers);
    config.set("client.id", "tidemill");
    config.set("reconnect.backoff.ms", "50");
    config.set("reconnect.backoff.max.ms", "1000");
    // Small packets are sent at once.
    config.set("socket.nagle.disable", "true");
    // This makes the removal or re-creation of a topic visible soon.
    config.set("topic.metadata.refresh.interval.ms", "5000");
    // OpenSSL from its sources does not know where this system has the certificates of authorities.
    if cfg!(feature = "tls-vendored") && !chosen.contains_key("ssl.ca.pem") {
        config.set("ssl.ca.location", "probe");
    }
    for (name, value) in own {
        config.set(*name, value);
    }
    for (name, value) in chosen {
        config.set(name, value);
    }
    config.create_native_config().map_err(refused)?;
    Ok(config)
}

/// The largest number of appends that wait for delivery.
const APPENDS_MAX: usize = 1_000_000;

/// The largest number of requests that a producer has in flight to a broker, which is one.
///
/// With more than one for a partition, messages can be lost or doubled. After a crash, a broker
/// that does not lead the partition yet refuses some requests and accepts the next. If it then
/// refuses one because the one before is missing, the library sends all of them again under other
/// numbers. Requests that the broker had accepted before its crash are then there twice. If the
/// broker does not know the producer, it accepts the later requests, and the library believes that
/// the earlier ones are there.
pub(crate) const IN_FLIGHT: &str = "max.in.flight.requests.per.connection";
pub(crate) const ONE_BY_ONE: &str =
    "leave it out: each message is appended once, even if a broker dies while others are in flight";

/// The properties on which the guarantees of the log depend, and the help for each.
const TAKEN: &[(&str, &str)] = &[
    ("bootstrap.servers", "name the brokers in cluster_log=kafka://host:port"),
    ("metadata.broker.list", "name the brokers in cluster_log=kafka://host:port"),
    ("acks", "leave it out: all replicas have a record when it counts"),
    ("request.required.acks", "leave it out: all replicas have a record when it counts"),
    ("enable.idempotence", "leave it out: records are in their order, each once"),
    ("enable.gapless.guarantee", "leave it out: records are in their order, none missing"),
    ("message.timeout.ms", "leave it out: undeliverable records wait"),
    ("delivery.timeout.ms", "leave it out: undeliverable records wait"),
    ("max.in.flight", ONE_BY_ONE),
    (IN_FLIGHT, ONE_BY_ONE),
    ("transactional.id", "leave it out: the log needs no transactions"),
    ("group.id", "leave it out: it follows from the topics"),
    ("enable.auto.commit", "leave it out: no positions are committed"),
    ("enable.auto.offset.store", "leave it out: no positions are committed"),
    ("auto.offset.reset", "leave it out: missing records are an error"),
    ("enable.partition.eof", "leave it out: reads need it"),
    ("partitioner", "leave it out: each source has its own partition"),
];

/// Returns the error for settings that librdkafka refuses.
fn refused(error: KafkaError) -> Error {
    match error {
        KafkaError::ClientConfig(_, what, name, value) => {
            Error::setting(format!("the Kafka property {name} = {value} is refused: {what}"))
                .help("the properties are those of librdkafka, see its CONFIGURATION.md")
        }
        other => Error::setting(format!("the properties for Kafka are refused: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, value: &str) -> String {
        let mut settings = KafkaSettings::new("x:9092", "app", 1);
        settings.properties.insert(name.into(), value.into());
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn properties_are_checked_by_name() {
        assert!(refusal("securty.protocol", "ssl").contains("securty.protocol"));
        assert!(refusal("security.protocol", "tls").contains("security.protocol = tls"));
        assert!(refusal("acks", "1").contains("acks"));
        let mut settings = KafkaSettings::new("x:9092", "app", 1);
        settings.properties.insert("socket.timeout.ms".into(), "5000".into());
        settings.properties.insert("sasl.username".into(), "me".into());
        settings.properties.insert("compression.type".into(), "lz4".into());
        settings.check().unwrap();
    }

    #[test]
    fn logins_and_tls_are_checked_before_a_client_is_made() {
        let refusal = |properties: &[(&str, &str)]| {
            let mut settings = KafkaSettings::new("x:9092", "app", 1);
            let all = properties.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            settings.properties = all.collect();
            settings.check().err().map(|error| error.to_string()).unwrap_or_default()
        };
        let login = ("security.protocol", "SASL_plaintext");
        let with = |mechanism| refusal(&[login, ("sasl.mechanisms", mechanism)]);
        assert!(refusal(&[login]).contains("sasl.mechanism is not set"));
        assert!(with("GSSAPI").contains("Kerberos"));
        let plain =
            [login, ("sasl.mechanism", "PLAIN"), ("sasl.username", "me"), ("sasl.password", "x")];
        assert_eq!(refusal(&plain), "");
        if cfg!(not(any(feature = "tls", feature = "tls-vendored"))) {
            for refusal in [refusal(&[("security.protocol", "SSL")]), with("SCRAM-SHA-256")] {
                assert!(refusal.contains("this build lacks"), "{refusal}");
                assert!(refusal.contains("make setup FEATURES=kafka-tls"), "{refusal}");
            }
        }
    }

    #[test]
    fn vendored_openssl_looks_where_systems_have_their_authorities() {
        let config = client("x:9092", &[], &BTreeMap::new()).unwrap();
        let expected = cfg!(feature = "tls-vendored").then_some("probe");
        assert_eq!(config.get("ssl.ca.location"), expected);
    }

    #[test]
    fn three_topics_are_three() {
        let mut settings = KafkaSettings::new("x:9092", "app", 1);
        settings.outputs = settings.inputs.clone();
        assert!(settings.check().unwrap_err().to_string().contains("different topics"));
    }
}
