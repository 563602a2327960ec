//! The topics: created if missing, and refused if unsuitable.

use std::time::Duration;

use futures_executor::block_on;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::{Client, ClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tidemill_core::{Error, Result};

use crate::log::{Core, Listener};
use crate::security;
use crate::settings::KafkaSettings;

/// The time before a created topic is checked again, in microseconds.
const LOOK_US: u64 = 50_000;
/// The wait for a client's errors, and the number of waits.
const HEAR: Duration = Duration::from_millis(50);
const HEAR_TIMES: usize = 20;

/// Makes sure that the topics exist, with enough partitions, and that they do not lose records too
/// soon.
pub(crate) fn open(
    core: &Core,
    client: &BaseConsumer<Listener>,
    admin: &AdminClient<Listener>,
    settings: &KafkaSettings,
) -> Result<()> {
    let mut made = false;
    for (name, wanted, is_forever) in settings.topics() {
        match partitions(core, client, settings, name)? {
            None => {
                make(core, admin, settings, name, wanted, is_forever)?;
                made = true;
            }
            Some(found) if found < wanted => {
                return Err(too_few(name, found, wanted, settings));
            }
            Some(_) => {}
        }
    }
    if made {
        wait(core, client, settings)?;
    }
    for (name, ..) in settings.topics() {
        refuse_compacted(core, admin, settings, name)?;
    }
    Ok(())
}

fn too_few(name: &str, found: u32, wanted: u32, settings: &KafkaSettings) -> Error {
    let error = Error::setting(format!(
        "the topic {name} has {found} partitions, and {wanted} sources need one each"
    ));
    if name == settings.outputs && found >= settings.sources {
        return error.help(format!(
            "the topics' partitions and the files that the app reads are sources, too: kafka-topics --alter --topic \
             {name} --partitions {wanted}"
        ));
    }
    error.help(format!(
        "set cluster_sources to {found}, or give the topic more partitions before the first \
             start: kafka-topics --alter --topic {name} --partitions {wanted}"
    ))
}

/// Makes a client learn the leaders of partitions before it needs them. On its own it takes a
/// second for each topic.
pub(crate) fn warm<C: ClientContext>(
    core: &Core,
    client: &Client<C>,
    settings: &KafkaSettings,
) -> Result<()> {
    for (name, ..) in settings.topics() {
        client
            .fetch_metadata(Some(name), settings.timeout())
            .map_err(|e| unreachable(core, settings, &e))?;
    }
    Ok(())
}

/// Handles the events of a client, which nothing else does while a log is being opened.
fn take_events(core: &Core, client: &BaseConsumer<Listener>) {
    for _ in 0..HEAR_TIMES {
        // An error here is one that the client has already recorded.
        let _ = client.poll(HEAR);
        if !core.last_error().is_empty() {
            return;
        }
    }
}

/// Returns the number of a topic's partitions, if the topic exists.
fn partitions(
    core: &Core,
    client: &BaseConsumer<Listener>,
    settings: &KafkaSettings,
    name: &str,
) -> Result<Option<u32>> {
    let metadata = client.fetch_metadata(Some(name), settings.timeout()).map_err(|e| {
        take_events(core, client);
        unreachable(core, settings, &e)
    })?;
    let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == name) else {
        return Ok(None);
    };
    match topic.error().map(RDKafkaErrorCode::from) {
        None => Ok(u32::try_from(topic.partitions().len()).ok().filter(|n| *n > 0)),
        Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
            Ok(None)
        }
        // The topic is just being created.
        Some(RDKafkaErrorCode::LeaderNotAvailable) => Ok(None),
        Some(code) => Err(refused(core, &format!("describing the topic {name}"), code)),
    }
}

fn make(
    core: &Core,
    admin: &AdminClient<Listener>,
    settings: &KafkaSettings,
    name: &str,
    partitions: u32,
    is_forever: bool,
) -> Result<()> {
    let count = i32::try_from(partitions).unwrap_or(i32::MAX);
    let replication = TopicReplication::Fixed(i32::from(settings.replication.max(1)));
    let mut topic = NewTopic::new(name, count, replication).set("cleanup.policy", "delete");
    if settings.replication >= 3 {
        // A record counts when two brokers have it, and one broker may be away.
        topic = topic.set("min.insync.replicas", "2");
    }
    if is_forever {
        // These records are deleted by trimming, not by age.
        topic = topic.set("retention.ms", "-1").set("retention.bytes", "-1");
    }
    let what = format!("creating the topic {name}");
    let results = block_on(admin.create_topics([&topic], &options(settings)))
        .map_err(|e| other(core, &what, &e))?;
    for result in results {
        match result {
            // Another process has created it first.
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((_, code)) => return Err(refused(core, &what, code)),
        }
    }
    Ok(())
}

/// Waits until all partitions have a leader.
fn wait(core: &Core, client: &BaseConsumer<Listener>, settings: &KafkaSettings) -> Result<()> {
    let begun_ns = core.env.clock.monotonic_ns();
    loop {
        let is_ready = core.parts.iter().all(|part| {
            client.fetch_watermarks(&part.name, part.partition, Duration::from_secs(1)).is_ok()
        });
        if is_ready {
            return Ok(());
        }
        if core.env.clock.monotonic_ns() - begun_ns > settings.timeout_us * 1000 {
            return Err(Error::new(
                tidemill_core::Kind::Io,
                format!("the created topics have no leaders: {}", core.last_error()),
            )
            .help("see the brokers' logs"));
        }
        core.env.clock.sleep_us(LOOK_US);
    }
}

/// Refuses a compacted topic, which loses records that have a key.
fn refuse_compacted(
    core: &Core,
    admin: &AdminClient<Listener>,
    settings: &KafkaSettings,
    name: &str,
) -> Result<()> {
    let asked = [ResourceSpecifier::Topic(name)];
    let what = format!("reading the configuration of the topic {name}");
    let described = block_on(admin.describe_configs(&asked, &options(settings)))
        .map_err(|e| other(core, &what, &e))?;
    for resource in described {
        let config = match resource {
            Ok(config) => config,
            // A user without the right to see the configuration may still read and write.
            Err(RDKafkaErrorCode::TopicAuthorizationFailed) => continue,
            Err(code) => return Err(refused(core, &what, code)),
        };
        let policy = config.get("cleanup.policy").and_then(|entry| entry.value.as_deref());
        if policy.is_some_and(|policy| policy.contains("compact")) {
            return Err(Error::setting(format!(
                "the topic {name} is compacted: records would disappear"
            ))
            .help(format!(
                "kafka-configs --alter --entity-type topics --entity-name {name} --add-config \
                     cleanup.policy=delete, before records were compacted; or name another topic"
            )));
        }
    }
    Ok(())
}

fn options(settings: &KafkaSettings) -> AdminOptions {
    let timeout = Some(settings.timeout());
    AdminOptions::new().request_timeout(timeout).operation_timeout(timeout)
}

/// Whether an error says that there is no such topic or partition.
pub(crate) fn is_missing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::UnknownPartition
                | RDKafkaErrorCode::UnknownTopicId
        )
    )
}

/// Returns the error that no broker has answered, or that brokers refuse to.
pub(crate) fn unreachable(core: &Core, settings: &KafkaSettings, error: &KafkaError) -> Error {
    let heard = core.last_error();
    let what = match heard.is_empty() {
        true => format!("no broker of {} answers: {error}", settings.brokers),
        false => format!("no broker of {} answers: {heard}", settings.brokers),
    };
    Error::new(tidemill_core::Kind::Io, what).help(security::help(&heard))
}

fn other(core: &Core, what: &str, error: &KafkaError) -> Error {
    match error.rdkafka_error_code() {
        Some(code) => refused(core, what, code),
        None => Error::new(tidemill_core::Kind::Io, format!("{what}: {error}")),
    }
}

fn refused(core: &Core, what: &str, code: RDKafkaErrorCode) -> Error {
    use RDKafkaErrorCode as Code;
    let error = Error::new(tidemill_core::Kind::Io, format!("{what}: {code}"));
    match code {
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::GroupAuthorizationFailed => error.help(
            "grant this user Describe, Read, Write, Create and Delete on the topics, and Read on \
             the group",
        ),
        Code::InvalidReplicationFactor => {
            error.help("start more brokers, or lower cluster_log_replication")
        }
        Code::InvalidTopic => {
            error.help("names are letters, digits, '.', '_' and '-', 249 at most")
        }
        _ => {
            let heard = core.last_error();
            match heard.is_empty() {
                true => error,
                false => error.help(format!("last heard of the brokers: {heard}")),
            }
        }
    }
}
