//! The app's own topics: each partition is a source of the cluster, behind those of its inputs. So places in them are
//! in cuts, as all others are, and nothing is written twice.

use std::sync::Arc;

use tidemill_cluster::{Record, Request, RequestId};
use tidemill_connect::{Message, Troubles};
use tidemill_core::{Error, Result, StreamId};
use tidemill_env::Env;
use tidemill_kafka::stream::{FollowedTopic, TopicSource};
use tidemill_kafka::Followed;

use super::ClusterSettings;
use crate::functions::AppFunctions;
use crate::spec::{AppSpec, SourceDecl};

/// How many sources topics are.
pub(super) fn sources(topics: &[Followed]) -> u32 {
    topics.iter().map(|topic| topic.partitions).sum()
}

/// The topics that an app follows.
#[derive(Default)]
pub(super) struct Topics {
    all: Vec<(StreamId, FollowedTopic)>,
    /// What registries of schemas have to say.
    troubles: Troubles,
}

impl Topics {
    /// Those of an app.
    ///
    /// # Errors
    /// When one is in another Kafka than the log, when nobody takes its events, and as for any topic.
    pub fn open(
        spec: &AppSpec,
        functions: &AppFunctions,
        settings: &ClusterSettings,
        env: &Env,
    ) -> Result<Topics> {
        let mut topics = Topics::default();
        for decl in &spec.sources {
            // What is pushed comes by the log, and files are the coordinator's.
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
        let brokers = settings.log.as_deref().and_then(super::doors::brokers);
        if brokers != Some(topic.brokers.trim()) {
            let (topic, at) = (&topic.topic, topic.brokers.trim());
            let what = format!("topic {topic} at {at} is read with the log, which is elsewhere");
            return Err(Error::setting(what).help(format!(
                "say --log kafka://{at}; on several processes topics and log are in one Kafka, which both \
                 name in the same way"
            )));
        }
        if !topic.properties.is_empty() && topic.properties != settings.log_options {
            let what = format!("topic {} has other properties than the log", topic.topic);
            return Err(Error::setting(what).help(
                "on several processes it is read with cluster_log_options: leave properties= out",
            ));
        }
        topic.properties.clone_from(&settings.log_options);
        let schema = functions.stream(stream).map(|(_, schema)| schema);
        let schema = schema.expect("it is one of them");
        let who = format!("stream {name}");
        Ok((stream, FollowedTopic::open(&topic, &schema, env, (&self.troubles, &who))?))
    }

    /// What the log follows.
    pub fn followed(&self) -> Vec<Followed> {
        self.all.iter().map(|(_, topic)| topic.followed.clone()).collect()
    }

    /// What holds up the reading of messages that are there.
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

    /// Whether a message can be read.
    pub fn is_ready(&self, topic: &str, message: &Message<'_>) -> bool {
        self.find(topic).is_none_or(|(_, topic)| topic.is_ready(message))
    }

    /// The transactions of a message, whose replies have its place as their id. One that can't be read is a row of the
    /// stream's dead letters.
    pub fn requests(
        &self,
        functions: &Arc<AppFunctions>,
        topic: &str,
        message: &Message<'_>,
    ) -> Record {
        let id = format!("{topic}/{}/{}", message.partition, message.offset);
        let id = RequestId::from(id.as_bytes());
        let calls = self.find(topic).map(|(stream, topic)| {
            let row =
                topic.row(message).map_err(|bad| functions.dead(*stream, &bad.origin, &bad))?;
            functions.event(*stream, &row).map_err(|error| functions.unreadable(&error.what))
        });
        let calls = match calls {
            Some(Ok(calls)) => calls,
            Some(Err(dead)) => vec![dead],
            None => Vec::new(),
        };
        let request = |call| Request { id: id.clone(), call };
        Record::Requests(calls.into_iter().map(request).collect())
    }
}
