//! The shared client of a topic's partitions, and a thread that sends requests.
//!
//! The thread asks for the ends of partitions whose sources have found nothing, so that these know
//! whether they have read all. It also finds out whether brokers answer, and whether the topic has
//! more partitions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::consumer::BaseConsumer;
use rdkafka::topic_partition_list::Offset;
use tidemill_connect::Troubles;
use tidemill_core::{Error, Result};
use tidemill_env::Env;

use super::begin::{ask, partitions};
use super::listen::{LastError, Listener};
use super::settings::TopicSource;

/// The time between two rounds of requests. A drain waits for two of them.
const ROUND: Duration = Duration::from_millis(100);
/// The longest time for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// The time between two checks for more partitions, in nanoseconds.
const GROWN_NS: u64 = 10_000_000_000;

/// The state that the sources of one topic share.
pub(super) struct Watch {
    pub env: Env,
    pub settings: TopicSource,
    pub consumer: Arc<BaseConsumer<Listener>>,
    pub heard: LastError,
    /// The state of each source.
    parts: Vec<Part>,
    /// The number of the last request that was begun.
    asked: AtomicU64,
    troubles: Troubles,
    /// The name for the reported troubles.
    who: String,
}

struct Part {
    partition: u32,
    /// Whether the source has found nothing, and asks whether that is all.
    wants: AtomicBool,
    look: Mutex<Option<Look>>,
}

/// An answer of the brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// The number of the request.
    pub number: u64,
    /// The end of the partition at that time.
    pub end: u64,
}

/// Ends the thread when the last source has been dropped.
pub(super) struct Watched {
    pub watch: Arc<Watch>,
    is_over: Arc<AtomicBool>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.watch.troubles.clear(&self.watch.who);
        self.watch.troubles.clear(&self.watch.grown_by());
    }
}

impl Watch {
    /// Starts to watch partitions.
    pub fn start(
        env: &Env,
        settings: &TopicSource,
        consumer: Arc<BaseConsumer<Listener>>,
        heard: LastError,
        partitions: &[u32],
        (troubles, who): (&Troubles, &str),
    ) -> Result<Watched> {
        let part = |partition: &u32| Part {
            partition: *partition,
            wants: AtomicBool::new(false),
            look: Mutex::new(None),
        };
        let watch = Arc::new(Watch {
            env: env.clone(),
            settings: settings.clone(),
            consumer,
            heard,
            parts: partitions.iter().map(part).collect(),
            asked: AtomicU64::new(0),
            troubles: troubles.clone(),
            who: who.to_owned(),
        });
        let is_over = Arc::new(AtomicBool::new(false));
        let (watching, over) = (watch.clone(), is_over.clone());
        let body = move || watching.run(&over);
        env.threads
            .spawn("kafka-watch", Box::new(body))
            .map_err(|e| Error::io("starting a thread for Kafka", &e))?;
        Ok(Watched { watch, is_over })
    }

    /// Returns the last answer for a source.
    pub fn look(&self, source: usize) -> Option<Look> {
        *self.parts[source].look.lock()
    }

    /// Returns the number of the last request that was begun. Answers up to it may be older than
    /// the messages that have been read.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// Asks for the end of a source's partition, at a time after now.
    pub fn want(&self, source: usize) {
        self.parts[source].wants.store(true, Ordering::Relaxed);
    }

    fn grown_by(&self) -> String {
        format!("{} (partitions)", self.who)
    }

    fn run(&self, is_over: &AtomicBool) {
        let (mut number, mut grown_ns) = (0, self.env.clock.monotonic_ns());
        while !is_over.load(Ordering::Relaxed) {
            // This handles the brokers' events. Messages arrive elsewhere.
            self.consumer.poll(ROUND);
            let wants = |part: &&Part| part.wants.swap(false, Ordering::Relaxed);
            let mut wanted: Vec<&Part> = self.parts.iter().filter(wants).collect();
            if wanted.is_empty() && self.heard.is_away() {
                wanted.extend(self.parts.first());
            }
            if wanted.is_empty() {
                continue;
            }
            number += 1;
            self.asked.store(number, Ordering::Release);
            self.ask(number, &wanted);
            let now_ns = self.env.clock.monotonic_ns();
            if now_ns.saturating_sub(grown_ns) > GROWN_NS && !self.heard.is_away() {
                grown_ns = now_ns;
                self.grown();
            }
        }
    }

    fn ask(&self, number: u64, wanted: &[&Part]) {
        let partitions: Vec<u32> = wanted.iter().map(|part| part.partition).collect();
        match ask(&self.consumer, &self.settings.topic, &partitions, Offset::End, ANSWER) {
            Ok(ends) => {
                for (part, end) in wanted.iter().zip(ends) {
                    *part.look.lock() = Some(Look { number, end });
                }
                self.heard.is_well();
                self.troubles.clear(&self.who);
            }
            Err(error) => {
                let what = self.heard.away(&self.settings.brokers, &error);
                self.troubles.report(&self.who, &format!("{what}; it waits"));
                // These sources still need an answer.
                wanted.iter().for_each(|part| part.wants.store(true, Ordering::Relaxed));
            }
        }
    }

    /// Reports partitions that are not read.
    fn grown(&self) {
        let TopicSource { topic, brokers, .. } = &self.settings;
        if self.settings.partitions.is_some() {
            return;
        }
        let found = partitions(&self.consumer, topic, brokers, ANSWER, &self.heard);
        let known = |p: &u32| self.parts.iter().any(|part| part.partition == *p);
        let more = found.map_or(0, |found| found.iter().filter(|p| !known(p)).count());
        match more {
            0 => self.troubles.clear(&self.grown_by()),
            more => self.troubles.report(
                &self.grown_by(),
                &format!(
                    "topic {topic} has {more} partitions more than the {} that are read: stop, and start \
                     with --upgrade (upgrade=True) to read them, too",
                    self.parts.len()
                ),
            ),
        }
    }
}
