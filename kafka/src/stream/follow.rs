//! A topic of others that the log of a cluster follows.

use std::sync::Arc;

use parking_lot::Mutex;
use rdkafka::admin::AdminClient;
use rdkafka::consumer::BaseConsumer;
use tidemill_connect::message::Schemas;
use tidemill_connect::{BadRow, Message, MessageRows, Troubles};
use tidemill_core::{BatchBuilder, Error, Result, Row, Schema};
use tidemill_env::Env;

use super::begin::{partitions, refuse_compacted};
use super::listen::{LastError, Listener};
use super::records::fetcher;
use super::settings::{Begin, TopicSource};
use super::source::{bad, not_made};
use crate::registry::Fetcher;
use crate::settings::Followed;

/// A followed topic, and how its messages become rows of a stream. The log reads it: see
/// [`KafkaSettings::followed`](crate::KafkaSettings::followed).
pub struct FollowedTopic {
    /// The topic's name, and the number of its partitions.
    pub followed: Followed,
    rows: Mutex<(MessageRows, BatchBuilder)>,
    /// The fetcher of the messages' schemas, if they have some.
    schemas: Option<Arc<Fetcher>>,
}

impl FollowedTopic {
    /// Opens a topic. Its name among `troubles` is `who`.
    ///
    /// # Errors
    /// If a setting does not fit, there is no such topic, it is compacted, or no broker answers in
    /// time. Also for settings that a log can't use: where reading begins, and single partitions.
    pub fn open(
        settings: &TopicSource,
        schema: &Arc<Schema>,
        env: &Env,
        (troubles, who): (&Troubles, &str),
    ) -> Result<FollowedTopic> {
        settings.check()?;
        let TopicSource { topic, brokers, .. } = settings;
        if settings.begin != Begin::Earliest {
            return Err(Error::setting(format!(
                "topic {topic}: on several processes a topic is read from its first message on"
            ))
            .help("leave begin= out"));
        }
        if settings.partitions.is_some() {
            return Err(Error::setting(format!(
                "topic {topic}: on several processes all partitions of a topic are read"
            ))
            .help("leave partitions= out"));
        }
        let schemas = fetcher(settings, env, (troubles, who))?;
        let messages =
            settings.messages(schemas.clone().map(|schemas| schemas as Arc<dyn Schemas>));
        let rows = MessageRows::new(schema, &messages)?;
        let heard = LastError::default();
        let consumer: BaseConsumer<Listener> =
            settings.consumer()?.create_with_context(Listener(heard.clone())).map_err(not_made)?;
        let there = partitions(&consumer, topic, brokers, settings.timeout(), &heard)?;
        let admin: AdminClient<Listener> =
            crate::settings::client(brokers, &[], &settings.properties)?
                .create_with_context(Listener(heard.clone()))
                .map_err(not_made)?;
        refuse_compacted(&admin, settings, &heard)?;
        let followed = Followed { topic: topic.clone(), partitions: there.len() as u32 };
        let rows = Mutex::new((rows, BatchBuilder::new(schema.clone())));
        Ok(FollowedTopic { followed, rows, schemas })
    }

    /// Whether a message can be read. If its schema is unknown, this asks for it. A registry that
    /// refuses the login holds the message up, too, because the rows must not depend on that.
    pub fn is_ready(&self, message: &Message<'_>) -> bool {
        self.rows.lock().0.is_ready(message)
    }

    /// Returns the row of a message that [is ready](FollowedTopic::is_ready).
    ///
    /// # Errors
    /// The bad row and the reason, if the message can't be read. Its number is the message's
    /// offset.
    pub fn row(&self, message: &Message<'_>) -> std::result::Result<Row, BadRow> {
        let (rows, builder) = &mut *self.rows.lock();
        let decoded = match rows.is_ready(message) {
            true => rows.decode(message, builder),
            false => Err("its schema is not known".into()),
        };
        let origin = || format!("{}/{}", self.followed.topic, message.partition);
        match decoded {
            Ok(()) => Ok(builder.finish().row(0)),
            Err(reason) => Err(bad(message.offset, message, &reason, &origin().into())),
        }
    }

    /// Returns why schemas are not available, if waiting does not help.
    pub fn failed(&self) -> Option<Error> {
        self.schemas.as_ref().and_then(|schemas| schemas.failed())
    }
}
