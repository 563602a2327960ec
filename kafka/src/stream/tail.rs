//! The progress of a topic: the rows that it already has, by their ids.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tidemill_core::{Error, Kind, Result};
use tidemill_env::Env;

use super::begin::{ask, number};
use super::listen::{lasting, LastError, Listener};
use super::settings::TopicSink;
use super::ID;
use crate::requests::offset;

/// The time without further messages after which the end counts as read, in nanoseconds. A process
/// that was killed a moment ago may have sent messages that the broker has not accepted yet.
const QUIET_NS: u64 = 300_000_000;
const WAIT: Duration = Duration::from_millis(50);
/// The largest number of rows after a place. Larger ids are not ours, whatever they look like.
const ROWS_MAX: u64 = 1 << 36;

/// For the rows from some number on, a bit each that says whether the topic has it.
#[derive(Debug, Default)]
pub(super) struct There {
    from: u64,
    bits: Vec<u64>,
    /// The number after the last row that the topic has.
    pub upto: u64,
}

impl There {
    pub fn new(from: u64) -> There {
        There { from, bits: Vec::new(), upto: from }
    }

    fn add(&mut self, row: u64) {
        let Some(at) = row.checked_sub(self.from).filter(|at| *at < ROWS_MAX) else { return };
        let word = (at / 64) as usize;
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= 1 << (at % 64);
        self.upto = self.upto.max(row + 1);
    }

    pub fn has(&self, row: u64) -> bool {
        let Some(at) = row.checked_sub(self.from) else { return false };
        self.bits.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }
}

/// Reads the messages after some offsets.
pub(super) struct Tail<'a> {
    pub env: &'a Env,
    pub settings: &'a TopicSink,
    pub heard: &'a LastError,
    /// The beginning of our rows' ids.
    pub prefix: &'a str,
    /// For each partition, an offset at or before the first row that matters. Others are read from
    /// their beginning.
    pub from: &'a [u64],
}

impl Tail<'_> {
    /// Returns the rows that the topic has, from a number on.
    ///
    /// # Errors
    /// If a partition ends before its offset, or if no broker answers in time.
    pub fn rows(&self, partitions: &[u32], first: u64) -> Result<There> {
        let TopicSink { topic, brokers, .. } = self.settings;
        let timeout = self.settings.timeout();
        let away = |error: KafkaError| {
            lasting(topic, &error).unwrap_or_else(|| self.heard.unreachable(brokers, &error))
        };
        let consumer: BaseConsumer<Listener> =
            self.settings.consumer()?.create_with_context(Listener(self.heard.clone())).map_err(
                |e| Error::resource(format!("a client for Kafka could not be made: {e}")),
            )?;
        let consumer = Arc::new(consumer);
        let lows = ask(&consumer, topic, partitions, Offset::Beginning, timeout).map_err(away)?;
        self.wait_for_others(&consumer, partitions)?;
        let ends = ask(&consumer, topic, partitions, Offset::End, timeout).map_err(away)?;
        let mut list = TopicPartitionList::new();
        for (at, partition) in partitions.iter().enumerate() {
            let from = self.from.get(at).copied().unwrap_or(0);
            if ends[at] < from {
                return Err(Error::new(
                    Kind::Io,
                    format!(
                        "partition {partition} of topic {topic} ends at offset {}, and was written up to \
                         {from} before",
                        ends[at]
                    ),
                )
                .help(
                    "the topic was removed and recreated, or brokers have lost messages: restore it \
                     as it was, or start again with --fresh",
                ));
            }
            list.add_partition_offset(topic, number(*partition), offset(from.max(lows[at])))
                .map_err(away)?;
        }
        consumer.assign(&list).map_err(away)?;
        let mut there = There::new(first);
        let (mut at_end, mut heard_ns) = (vec![false; partitions.len()], self.now_ns());
        loop {
            match consumer.poll(WAIT) {
                Some(Ok(message)) => {
                    heard_ns = self.now_ns();
                    if let Some(row) = self.row(&message) {
                        there.add(row);
                    }
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    if let Some(at) = partitions.iter().position(|p| number(*p) == partition) {
                        at_end[at] = true;
                    }
                }
                Some(Err(error)) => {
                    self.heard.note(&error, "");
                    if let Some(error) = lasting(topic, &error) {
                        return Err(error);
                    }
                }
                None => {}
            }
            let waited_ns = self.now_ns() - heard_ns;
            if at_end.iter().all(|at_end| *at_end) && waited_ns >= QUIET_NS {
                return Ok(there);
            }
            if waited_ns > self.settings.timeout_us * 1000 {
                return Err(away(KafkaError::MessageConsumption(Code::OperationTimedOut)));
            }
        }
    }

    /// Waits until all present messages can be read. If other programs write transactions into the
    /// topic, only messages before the first open one are visible.
    fn wait_for_others(&self, consumer: &BaseConsumer<Listener>, partitions: &[u32]) -> Result<()> {
        let TopicSink { topic, brokers, properties, .. } = self.settings;
        let own = [("isolation.level", "read_uncommitted".to_owned())];
        let all: BaseConsumer<Listener> = crate::settings::client(brokers, &own, properties)?
            .create_with_context(Listener(self.heard.clone()))
            .map_err(|e| Error::resource(format!("a client for Kafka could not be made: {e}")))?;
        let timeout = self.settings.timeout();
        let away = |error: KafkaError| self.heard.unreachable(brokers, &error);
        let ends = ask(&all, topic, partitions, Offset::End, timeout).map_err(away)?;
        let begun_ns = self.now_ns();
        loop {
            let shown = ask(consumer, topic, partitions, Offset::End, timeout).map_err(away)?;
            if shown.iter().zip(&ends).all(|(shown, end)| shown >= end) {
                return Ok(());
            }
            if self.now_ns() - begun_ns > self.settings.timeout_us * 1000 {
                return Err(Error::resource(format!(
                    "topic {topic} has a transaction that another program has not ended, and \
                     messages after it can't be read"
                ))
                .help(
                    "start again when it has ended, at the latest by its time-out (kafka-transactions \
                     find-hanging shows it)",
                ));
            }
            self.env.clock.sleep_us(50_000);
        }
    }

    fn now_ns(&self) -> u64 {
        self.env.clock.monotonic_ns()
    }

    /// Returns the number of a row, if it is ours.
    fn row(&self, message: &BorrowedMessage<'_>) -> Option<u64> {
        let headers = message.headers()?;
        let id = headers.iter().find(|header| header.key == ID)?.value?;
        std::str::from_utf8(id).ok()?.strip_prefix(self.prefix)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_there_or_not() {
        let mut there = There::new(10);
        for row in [9, 10, 75, 200, u64::MAX] {
            there.add(row);
        }
        let found: Vec<u64> = (0..300).filter(|row| there.has(*row)).collect();
        assert_eq!(found, [10, 75, 200]);
        assert!(!there.has(u64::MAX));
        assert_eq!(there.upto, 201);
    }
}
