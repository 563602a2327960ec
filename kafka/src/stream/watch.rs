//! What the partitions of a topic that is read have in common: their client, and a thread that asks.
//!
//! The thread asks for the ends of partitions whose sources have found nothing, so that they know whether
//! all is read; thereby it finds out, too, whether brokers answer, and whether the topic has grown.

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
use super::listen::{Heard, Listener};
use super::settings::TopicSource;

/// Between two rounds of questions. A drain waits for two of them.
const ROUND: Duration = Duration::from_millis(100);
/// So long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);
/// Between two looks whether the topic has more partitions.
const GROWN_NS: u64 = 10_000_000_000;

/// Shared by the sources of one topic.
pub(super) struct Watch {
    pub env: Env,
    pub settings: TopicSource,
    pub consumer: Arc<BaseConsumer<Listener>>,
    pub heard: Heard,
    /// Of each source.
    parts: Vec<Part>,
    /// The number of the last question that was begun.
    asked: AtomicU64,
    troubles: Troubles,
    /// Who has these troubles.
    who: String,
}

struct Part {
    partition: u32,
    /// Its source has found nothing, and wants to know whether that is all.
    wants: AtomicBool,
    look: Mutex<Option<Look>>,
}

/// An answer of the brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Which question it was.
    pub number: u64,
    /// Where the partition ended then.
    pub end: u64,
}

/// Ends the thread when the last source has gone.
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
        heard: Heard,
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

    /// The last answer for a source.
    pub fn look(&self, source: usize) -> Option<Look> {
        *self.parts[source].look.lock()
    }

    /// The number of the last question that was begun: answers up to it may be older than what has been read.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// A source wants to know where its partition ends, as of later than now.
    pub fn want(&self, source: usize) {
        self.parts[source].wants.store(true, Ordering::Relaxed);
    }

    fn grown_by(&self) -> String {
        format!("{} (partitions)", self.who)
    }

    fn run(&self, is_over: &AtomicBool) {
        let (mut number, mut grown_ns) = (0, self.env.clock.monotonic_ns());
        while !is_over.load(Ordering::Relaxed) {
            // What the brokers say unasked. Messages come elsewhere.
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
                self.troubles.tell(&self.who, &format!("{what}; it waits"));
                // They still want to know.
                wanted.iter().for_each(|part| part.wants.store(true, Ordering::Relaxed));
            }
        }
    }

    /// Says it when there are partitions that nobody reads.
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
            more => self.troubles.tell(
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
