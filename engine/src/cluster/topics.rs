//! The app's own topics. Each partition is a source of the cluster, after those of the log's
//! inputs. So cuts have their positions, as those of all sources, and messages are not stored
//! again.

use std::sync::Arc;

use tidemill_cluster::{EventPlace, Events, Record, Request, RequestId};
use tidemill_connect::{Message, Troubles};
use tidemill_core::{Batch, Error, Result, StreamId};
use tidemill_env::Env;
use tidemill_kafka::stream::{FollowedTopic, TopicSource};
use tidemill_kafka::Followed;

use super::ClusterSettings;
use crate::functions::AppFunctions;
use crate::spec::{AppSpec, SourceDecl};

/// The number of sources of topics.
pub(super) fn sources(topics: &[Followed]) -> u32 {
    topics.iter().map(|topic| topic.partitions).sum()
}

/// The topics that an app follows.
#[derive(Default)]
pub(super) struct Topics {
    all: Vec<(StreamId, FollowedTopic)>,
    /// The reports of schema registries.
    troubles: Troubles,
}

impl Topics {
    /// Opens the topics of an app.
    ///
    /// # Errors
    /// When a topic is in another Kafka cluster than the log, when its events are not taken, and as
    /// for any topic.
    pub fn open(
        spec: &AppSpec,
        functions: &AppFunctions,
        settings: &ClusterSettings,
        env: &Env,
    ) -> Result<Topics> {
        let mut topics = Topics::default();
        for decl in &spec.sources {
            // Pushed events come by the log, and the coordinator reads files.
            if decl.kafka.is_none() {
                continue;
            }
            let opened = topics.one(decl, functions, settings, env);
            topics.all.push(opened.map_err(|error| error.at(decl.at.clone()))?);
        }
        Ok(topics)
    }

    fn one(
        &self,
        decl: &SourceDecl,
        functions: &AppFunctions,
        settings: &ClusterSettings,
        env: &Env,
    ) -> Result<(StreamId, FollowedTopic)> {
        let name = &decl.stream;
        let json = decl.kafka.as_ref().expect("it reads a topic");
        let stream = functions.taken(name)?;
        let mut topic = TopicSource::from_json(&json.to_string())?;
        let brokers = settings.log.as_deref().and_then(super::backends::brokers);
        if brokers != Some(topic.brokers.trim()) {
            let (topic, at) = (&topic.topic, topic.brokers.trim());
            let what = format!("topic {topic} is at {at}, and the log is elsewhere");
            return Err(Error::setting(what).help(format!(
                "use --log kafka://{at}; on several processes topics and log are in one Kafka, which both \
                 name in the same way"
            )));
        }
        if !topic.properties.is_empty() && topic.properties != settings.log_options {
            let what = format!("topic {} and the log have different properties", topic.topic);
            return Err(Error::setting(what).help(
                "on several processes cluster_log_options apply to both: leave properties= out",
            ));
        }
        topic.properties.clone_from(&settings.log_options);
        let schema = functions.stream(stream).map(|(_, schema)| schema);
        let schema = schema.expect("it is one of them");
        let who = format!("stream {name}");
        Ok((stream, FollowedTopic::open(&topic, &schema, env, (&self.troubles, &who))?))
    }

    /// The topics that the log follows.
    pub fn followed(&self) -> Vec<Followed> {
        self.all.iter().map(|(_, topic)| topic.followed.clone()).collect()
    }

    /// The reason why the reading of messages is blocked, if it is.
    pub fn trouble(&self) -> Option<String> {
        let failed = self.all.iter().find_map(|(_, topic)| {
            let error = topic.failed()?;
            Some(format!("topic {}: {error}", topic.followed.topic))
        });
        let said = self.troubles.all().into_iter().next();
        failed.or_else(|| said.map(|(who, what)| format!("{who}: {what}")))
    }

    fn find(&self, name: &str) -> Option<&(StreamId, FollowedTopic)> {
        self.all.iter().find(|(_, topic)| topic.followed.topic == name)
    }

    /// Whether a message can be read now.
    pub fn is_ready(&self, topic: &str, message: &Message<'_>) -> bool {
        self.find(topic).is_none_or(|(_, topic)| topic.is_ready(message))
    }

    /// Returns the record of a message: its event, or a request if it can't be read. Then it becomes
    /// a row of the stream's dead letters.
    pub fn record(
        &self,
        functions: &Arc<AppFunctions>,
        topic: &str,
        message: &Message<'_>,
    ) -> Record {
        let Some((stream, followed)) = self.find(topic) else {
            return Record::Requests(Vec::new());
        };
        let (stream, nobody) = (*stream, RequestId::from([]));
        match (followed.row(message), functions.stream(stream)) {
            (Ok(row), Some((_, schema))) if row.len() == schema.len() => {
                let name = format!("{topic}/{}", message.partition).into();
                let from = Some(EventPlace { name, row: message.offset });
                let batch = Batch::from_rows(schema, [&row[..]]);
                Record::Events(Events { stream, from, is_run: true, batch })
            }
            (Err(bad), _) => {
                let call = functions.dead(stream, &bad.origin, &bad);
                Record::Requests(vec![Request { id: nobody, call }])
            }
            (Ok(_), _) => {
                let call = functions.unreadable("the message has other columns than the stream");
                Record::Requests(vec![Request { id: nobody, call }])
            }
        }
    }
}
