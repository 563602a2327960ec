//! The app's own topics. Each partition is a source of the cluster, after those of the log's
//! inputs. Each process reads the partitions of its sources itself (`rows`). So cuts have their
//! positions, as those of all sources, and messages are not stored again. The topics may be in any
//! Kafka, wherever the log is.

mod rows;

use std::ops::Range;

use tidemill_connect::{Chunk, Place, Polled, Troubles};
use tidemill_core::{Error, Kind, Result, StreamId};
use tidemill_env::Env;
use tidemill_kafka::stream::{open_sources, Begin, Numbers, Opened, TopicSource};

use super::backends::brokers;
use super::ClusterSettings;
use crate::functions::AppFunctions;
use crate::spec::{AppSpec, SourceDecl};

/// The longest time for messages to be read again, in nanoseconds.
const REGION_NS: u64 = 60_000_000_000;
/// The pause while there are no messages, in microseconds.
const PENDING_US: u64 = 2_000;

/// A topic that an app reads.
#[derive(Clone, Debug)]
pub(super) struct ReadTopic {
    /// The topic's name. If the app has chosen the partitions, their numbers follow it.
    pub name: String,
    /// The partitions, each with the offset at which a new cluster begins.
    pub begins: Vec<(u32, u64)>,
}

impl ReadTopic {
    /// The topic's name alone.
    pub fn topic(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }

    /// The number of its partitions, each of which is a source.
    pub fn sources(&self) -> u32 {
        self.begins.len() as u32
    }
}

/// The number of sources of topics.
pub(super) fn sources(topics: &[ReadTopic]) -> u32 {
    topics.iter().map(ReadTopic::sources).sum()
}

/// The topics of an app, which are open.
pub(super) struct Topics {
    all: Vec<Topic>,
    troubles: Troubles,
}

/// An open topic.
struct Topic {
    stream: StreamId,
    is: ReadTopic,
    /// Whether reading begins with the first message that exists.
    is_from_first: bool,
    /// Its partitions.
    opened: Vec<Opened>,
    /// The user's line of its declaration.
    at: String,
}

impl Topics {
    /// Opens the topics of an app.
    ///
    /// # Errors
    /// When a topic's events are not taken, or the topic belongs to the log, and as for any topic.
    pub fn open(
        spec: &AppSpec,
        functions: &AppFunctions,
        settings: &ClusterSettings,
        env: &Env,
    ) -> Result<Topics> {
        let mut topics = Topics { all: Vec::new(), troubles: Troubles::default() };
        for decl in spec.sources.iter().filter(|decl| decl.kafka.is_some()) {
            let opened = topics.one(spec, decl, functions, settings, env);
            topics.all.push(opened.map_err(|error| error.at(decl.at.clone()))?);
        }
        Ok(topics)
    }

    fn one(
        &self,
        spec: &AppSpec,
        decl: &SourceDecl,
        functions: &AppFunctions,
        settings: &ClusterSettings,
        env: &Env,
    ) -> Result<Topic> {
        let stream = functions.taken(&decl.stream)?;
        let json = decl.kafka.as_ref().expect("it reads a topic");
        let mut topic = TopicSource::from_json(&json.to_string())?;
        let log = settings.log.as_deref().and_then(brokers);
        let is_at_log = log == Some(topic.brokers.trim());
        let own = ["inputs", "outputs", "cuts"].map(|of| format!("{}.{of}", settings.name(spec)));
        if is_at_log && own.contains(&topic.topic) {
            let what = format!("topic {} belongs to the cluster's log itself", topic.topic);
            return Err(Error::setting(what)
                .help("read another topic, or give the cluster another name (cluster_name)"));
        }
        if is_at_log && topic.properties.is_empty() {
            topic.properties.clone_from(&settings.log_options);
        }
        let name = match &topic.partitions {
            None => topic.topic.clone(),
            Some(chosen) => format!("{} {chosen:?}", topic.topic),
        };
        if self.all.iter().any(|other| other.is.name == name) {
            return Err(Error::setting(format!("two streams read topic {name}"))
                .help("declare one of them: several handlers may take its events"));
        }
        let schema = functions.stream(stream).map(|(_, schema)| schema);
        let schema = schema.expect("it is one of them");
        let who = format!("stream {}", decl.stream);
        let opened = open_sources(&topic, &schema, env, Numbers::Offsets, (&self.troubles, &who))?;
        let partition = |(name, source): &Opened| {
            let number = name.rsplit_once('/').and_then(|(_, number)| number.parse().ok());
            let begin = source.place().begin.unwrap_or(0);
            (number.expect("the name ends with it"), begin)
        };
        let begins: Vec<_> = opened.iter().map(partition).collect();
        let (is_from_first, at) = (topic.begin == Begin::Earliest, decl.at.clone());
        Ok(Topic { stream, is: ReadTopic { name, begins }, is_from_first, opened, at })
    }

    /// Sets where reading of the partitions begins, for which that is known: by the topic's number,
    /// and the partition's name.
    pub fn begin_at(&mut self, known: impl Fn(usize, &str) -> Option<u64>) {
        for (nth, topic) in self.all.iter_mut().enumerate() {
            for ((name, _), (_, begin)) in topic.opened.iter().zip(&mut topic.is.begins) {
                *begin = known(nth, name).unwrap_or(*begin);
            }
        }
    }

    /// Reads the messages with offsets in a range of a partition again, as far as there are some.
    ///
    /// # Errors
    /// When the range is not there any more, or no broker answers in time.
    pub fn region(
        &mut self,
        (topic, partition): (usize, usize),
        offsets: Range<u64>,
        env: &Env,
    ) -> Result<Vec<Chunk>> {
        let Topic { opened, at, .. } = &mut self.all[topic];
        let (name, source) = &mut opened[partition];
        let begin = source.place().begin;
        let (mut chunks, mut next) = (Vec::new(), offsets.start);
        let until_ns = env.clock.monotonic_ns() + REGION_NS;
        if offsets.is_empty() {
            return Ok(chunks);
        }
        source.resume(&Place { offset: next, begin, ..Place::start() })?;
        while next < offsets.end {
            // Each message has an offset of its own, so there are at most that many.
            match source.poll((offsets.end - next) as usize)? {
                Polled::Rows(mut chunk) => {
                    next = chunk.next_offset;
                    // Between offsets there may be gaps, so some rows may be beyond the range.
                    let rows = chunk.offsets.partition_point(|offset| *offset < offsets.end);
                    chunk.batch = chunk.batch.slice(0, rows);
                    chunk.offsets.truncate(rows);
                    chunk.bad.retain(|bad| bad.offset < offsets.end);
                    chunks.push(chunk);
                }
                Polled::Pending if source.has_looked() => return Ok(chunks),
                Polled::Pending if env.clock.monotonic_ns() < until_ns => {
                    env.clock.sleep_us(PENDING_US);
                }
                Polled::Pending | Polled::End => {
                    let end = offsets.end;
                    let what = format!("messages of {name} up to offset {end} can't be read");
                    let help = "check that the brokers run, and that the topic is as it was";
                    return Err(Error::new(Kind::Io, what).help(help).at(at.clone()));
                }
            }
        }
        Ok(chunks)
    }

    /// Returns the place of one process before the message at an offset of a partition.
    ///
    /// # Errors
    /// When the partition has changed, or no broker answers in time.
    pub fn place(
        &mut self,
        (topic, partition): (usize, usize),
        offset: u64,
        env: &Env,
    ) -> Result<Place> {
        let begin = match self.all[topic].is_from_first && offset == 0 {
            true => None,
            false => Some(offset),
        };
        let nothing_read = Place { begin, ..Place::start() };
        if offset == 0 {
            return Ok(nothing_read);
        }
        let source = &mut self.all[topic].opened[partition].1;
        source.resume(&Place { offset, ..Place::start() })?;
        match self.region((topic, partition), offset - 1..offset, env) {
            // Without the message before it, it has no checksum.
            Err(error) if error.kind == Kind::Input => {
                Ok(Place { offset, bytes: offset, ..Place::start() })
            }
            Err(error) => Err(error),
            Ok(chunks) if chunks.iter().all(|chunk| chunk.rows() == 0) => Ok(nothing_read),
            Ok(_) => Ok(self.all[topic].opened[partition].1.place()),
        }
    }

    /// The topics, in the order of their sources.
    pub fn read(&self) -> Vec<ReadTopic> {
        self.all.iter().map(|topic| topic.is.clone()).collect()
    }
}
