//! An app as data: its program, sources, sinks and settings. The Python package writes it as JSON,
//! and Rust programs build the same value.

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
    /// Tables, streams and handlers. `program.sources` is filled when the app is opened, with one
    /// source for each file and each pushed stream.
    pub program: Program,
    /// The sources of events, in declaration order. Stamps use the same order of sources.
    #[serde(default)]
    pub sources: Vec<SourceDecl>,
    /// The targets of outputs.
    #[serde(default)]
    pub sinks: Vec<SinkDecl>,
    /// The streams whose events are retained in memory for [`crate::Mill::output`].
    #[serde(default)]
    pub keep: Vec<String>,
    /// Work outside.
    #[serde(default)]
    pub externals: Vec<ExternalDecl>,
    /// Functions of entities.
    #[serde(default)]
    pub functions: Vec<FunctionDecl>,
    /// The identity of the code of each function, by the name of its handler or trigger, where it
    /// is known.
    #[serde(default)]
    pub codes: BTreeMap<String, String>,
    /// Facts about procedures and functions that clients may call, by name.
    #[serde(default)]
    pub procedures: BTreeMap<String, ProcedureDecl>,
    /// Whether a function mentions `lookup`, and so may ask outside.
    #[serde(default)]
    pub asks_outside: bool,
    /// The app's own version, if it has one. Only people read it.
    #[serde(default)]
    pub version: Option<String>,
    /// The settings.
    #[serde(default)]
    pub settings: Settings,
}

impl AppSpec {
    /// Creates an app of a program and its sources, without any sink.
    pub fn new(program: Program, sources: Vec<SourceDecl>, settings: Settings) -> AppSpec {
        let (sinks, keep, externals, functions, codes) = Default::default();
        let (procedures, version, asks_outside) = Default::default();
        AppSpec {
            program,
            sources,
            sinks,
            keep,
            externals,
            functions,
            codes,
            procedures,
            asks_outside,
            version,
            settings,
        }
    }
}

/// A function of an entity. The first columns of its calls are the entity's key.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionDecl {
    /// The handler's name.
    pub handler: String,
    /// The number of the table that holds the entities.
    pub table: u16,
}

/// Facts about a procedure, or a function of an entity, for its callers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcedureDecl {
    /// Whether only other functions of the app may call it, and no client.
    #[serde(default)]
    pub private: bool,
    /// The parameter that receives the caller's name. Callers can't set it.
    #[serde(default)]
    pub caller: Option<String>,
    /// Its description for people.
    #[serde(default)]
    pub about: Option<String>,
    /// The JSON Schema of its reply, where that is known.
    #[serde(default)]
    pub reply: Option<serde_json::Value>,
}

/// Work outside, which is done after the transactions that ask for it are durable.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalDecl {
    /// The table with the questions. Its key has one column. The handler of an answer removes the
    /// row, and ignores an answer whose row is gone.
    pub outbox: String,
    /// The pushed stream of answers: the key of the row, and the answer.
    pub answers: String,
    /// The number of the function, among those of the package.
    #[serde(default)]
    pub function: usize,
    /// The most rows that are worked on at the same time.
    pub at_once: usize,
    /// The line in the user's code.
    #[serde(default)]
    pub at: String,
    /// The implementation; absent where the app is only described.
    #[serde(skip)]
    pub outside: Option<Arc<dyn Outside>>,
}

/// A source of a stream.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceDecl {
    /// The stream's name.
    pub stream: String,
    /// How far an event may be behind the newest event time, in microseconds, or in units of the
    /// time column when that is an int.
    #[serde(default, alias = "disorder_us")] // The name in data of earlier versions.
    pub out_of_orderness_us: i64,
    /// The time without input after which the source no longer holds the watermark back, in
    /// microseconds. Without it the source always holds the watermark back.
    #[serde(default)]
    pub idle_us: Option<i64>,
    /// The files to read (see `tidemill_connect::FilesSettings`).
    #[serde(default)]
    pub files: Option<serde_json::Value>,
    /// The topic to read (see `tidemill_kafka::stream::TopicSource`). A stream with neither files
    /// nor topic is pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<serde_json::Value>,
    /// The line in the user's code.
    #[serde(default)]
    pub at: String,
}

impl SourceDecl {
    /// Whether clients push rows into the stream.
    pub fn is_pushed(&self) -> bool {
        self.files.is_none() && self.kafka.is_none()
    }

    /// Creates a pushed stream whose rows are in order.
    pub fn pushed(stream: &str) -> SourceDecl {
        SourceDecl {
            stream: stream.into(),
            out_of_orderness_us: 0,
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
    /// The topic to write, instead of a file (see `tidemill_kafka::stream::TopicSink`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<serde_json::Value>,
    /// The line in the user's code.
    #[serde(default)]
    pub at: String,
}

/// The target of a sink.
pub(crate) enum Target {
    File(SinkSettings),
    Topic(TopicSink),
}

impl SinkDecl {
    /// Creates a stream's sink in a file, from the settings of the file.
    pub fn file(stream: &str, files: serde_json::Value) -> SinkDecl {
        SinkDecl { stream: stream.into(), files: Some(files), kafka: None, at: String::new() }
    }

    /// Parses the target.
    ///
    /// # Errors
    /// When a setting is wrong.
    pub(crate) fn target(&self) -> Result<Target> {
        let target = || match (&self.files, &self.kafka) {
            (Some(files), None) => SinkSettings::from_json(&files.to_string()).map(Target::File),
            (None, Some(topic)) => TopicSink::from_json(&topic.to_string()).map(Target::Topic),
            _ => Err(Error::program(format!(
                "a sink of stream {} needs either files or a topic",
                self.stream
            ))),
        };
        target().map_err(|error| error.at(self.at.clone()))
    }
}

impl Target {
    /// The name of the target among those of its stream. Snapshots store it.
    pub(crate) fn name(&self) -> String {
        match self {
            Target::File(settings) => settings.path.display().to_string(),
            Target::Topic(settings) => format!("kafka:{}", settings.topic),
        }
    }
}
