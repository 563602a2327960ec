//! What an app is: its program, where events come from, where outputs go, and settings. The Python
//! package writes it as JSON; Rust programs make the same value.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_connect::SinkSettings;
use tidemill_core::{Error, Result};
use tidemill_kafka::stream::TopicSink;
use tidemill_txn::Program;

use crate::external::Outside;
use crate::settings::Settings;

/// A whole app. Unknown fields are errors.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppSpec {
    /// Tables, streams and handlers. `program.sources` is filled when the app is opened: one
    /// source partition for each file and each pushed stream.
    pub program: Program,
    /// Where events come from, in declaration order: the order of sources in stamps.
    #[serde(default)]
    pub sources: Vec<SourceDecl>,
    /// Where outputs go.
    #[serde(default)]
    pub sinks: Vec<SinkDecl>,
    /// Streams whose events are kept in memory for [`crate::Mill::output`].
    #[serde(default)]
    pub keep: Vec<String>,
    /// Work outside.
    #[serde(default)]
    pub externals: Vec<ExternalDecl>,
    /// Functions of entities.
    #[serde(default)]
    pub functions: Vec<FunctionDecl>,
    /// By name of the handler or trigger: what tells the code of its function from other code, where that is known.
    #[serde(default)]
    pub codes: BTreeMap<String, String>,
    /// Settings.
    #[serde(default)]
    pub settings: Settings,
}

impl AppSpec {
    /// An app of a program and its sources, which delivers nothing anywhere, yet.
    pub fn new(program: Program, sources: Vec<SourceDecl>, settings: Settings) -> AppSpec {
        let (sinks, keep, externals, functions, codes) = Default::default();
        AppSpec { program, sources, sinks, keep, externals, functions, codes, settings }
    }
}

/// A function of an entity: the first columns of its calls are the key of the entity.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionDecl {
    /// The handler's name.
    pub handler: String,
    /// The table that holds the entities, by number.
    pub table: u16,
}

/// Work that is done outside, once the transactions that ask for it are durable.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalDecl {
    /// The table in which they ask. Its key is one column. Whoever takes an answer removes its row, and
    /// takes none whose row is not there.
    pub outbox: String,
    /// The pushed stream of answers: the row's key, and what was said.
    pub answers: String,
    /// Which function it is, of those that the package gives.
    #[serde(default)]
    pub function: usize,
    /// Rows that are worked on at the same time, at most.
    pub at_once: usize,
    /// The user's line.
    #[serde(default)]
    pub at: String,
    /// Who does it; nobody, where the app is only looked at.
    #[serde(skip)]
    pub outside: Option<Arc<dyn Outside>>,
}

/// A source of a stream.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceDecl {
    /// The stream's name.
    pub stream: String,
    /// How far behind the newest event time an event may come: microseconds, or units of the time
    /// column when that is an int.
    #[serde(default)]
    pub disorder_us: i64,
    /// After this long without input the source no longer holds the watermark back; never when
    /// absent.
    #[serde(default)]
    pub idle_us: Option<i64>,
    /// Files to read (see `tidemill_connect::FilesSettings`).
    #[serde(default)]
    pub files: Option<serde_json::Value>,
    /// A topic to read (see `tidemill_kafka::stream::TopicSource`). The stream is pushed where it has
    /// neither this nor files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<serde_json::Value>,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

impl SourceDecl {
    /// Whether others push into the stream.
    pub fn is_pushed(&self) -> bool {
        self.files.is_none() && self.kafka.is_none()
    }

    /// A stream that others push into; what comes is in order.
    pub fn pushed(stream: &str) -> SourceDecl {
        SourceDecl {
            stream: stream.into(),
            disorder_us: 0,
            idle_us: None,
            files: None,
            kafka: None,
            at: String::new(),
        }
    }
}

/// A sink of a stream.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkDecl {
    /// The stream's name: an output, an aborted stream, a derived stream, `S.late` or `S.dead`.
    pub stream: String,
    /// The file to write (see `tidemill_connect::SinkSettings`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<serde_json::Value>,
    /// Or the topic (see `tidemill_kafka::stream::TopicSink`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<serde_json::Value>,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

/// What a sink writes to.
pub(crate) enum Target {
    File(SinkSettings),
    Topic(TopicSink),
}

impl SinkDecl {
    /// A stream's sink in a file, by its settings.
    pub fn file(stream: &str, files: serde_json::Value) -> SinkDecl {
        SinkDecl { stream: stream.into(), files: Some(files), kafka: None, at: String::new() }
    }

    /// What it writes to.
    ///
    /// # Errors
    /// When a setting is wrong.
    pub(crate) fn target(&self) -> Result<Target> {
        let target = || match (&self.files, &self.kafka) {
            (Some(files), None) => SinkSettings::from_json(&files.to_string()).map(Target::File),
            (None, Some(topic)) => TopicSink::from_json(&topic.to_string()).map(Target::Topic),
            _ => Err(Error::program(format!(
                "a sink of stream {} writes to one thing: files or a topic",
                self.stream
            ))),
        };
        target().map_err(|error| error.at(self.at.clone()))
    }
}

impl Target {
    /// What tells it from other targets of a stream: it is in snapshots.
    pub(crate) fn name(&self) -> String {
        match self {
            Target::File(settings) => settings.path.display().to_string(),
            Target::Topic(settings) => format!("kafka:{}", settings.topic),
        }
    }
}
