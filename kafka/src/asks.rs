//! Questions to the brokers that block, on a thread of their own.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use futures_executor::block_on;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::log::{Core, Listener};
use crate::settings::KafkaSettings;
use crate::topics::is_missing;

/// What is asked for a part.
pub(crate) enum Ask {
    /// The offsets of its first record and behind its last one.
    Ends { part: usize, why: Why },
    /// To remember what has begun before an offset, and to delete records.
    Trim { part: usize, known: Option<Known>, delete: Option<u64> },
}

/// Who wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// To know whether brokers that were away are there again.
    Look,
    /// Those who append, which had seen what is below this offset.
    Tail { from: u64 },
    /// Somebody who reads from this offset on.
    Read { from: u64 },
}

/// What has begun before an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) offset: u64,
    pub(crate) generation: u64,
    pub(crate) begun: Option<u64>,
}

impl Known {
    /// As it stands beside an offset in Kafka.
    fn to_text(self) -> String {
        match self.begun {
            Some(begun) => format!("{} {begun}", self.generation),
            None => self.generation.to_string(),
        }
    }

    fn of_text(offset: u64, text: &str) -> Option<Known> {
        let mut numbers = text.split(' ').map(|number| number.parse().ok());
        let generation = numbers.next()??;
        Some(Known { offset, generation, begun: numbers.next().flatten() })
    }
}

/// The answer to [`Ask::Ends`].
pub(crate) struct Ends {
    pub(crate) part: usize,
    pub(crate) why: Why,
    /// Nothing when nobody has answered.
    pub(crate) ends: Option<(u64, u64)>,
    /// What is remembered, where it was asked for.
    pub(crate) known: Option<Known>,
}

/// The thread that asks.
pub(crate) struct Asker {
    pub(crate) core: Arc<Core>,
    pub(crate) settings: KafkaSettings,
    pub(crate) client: Arc<BaseConsumer<Listener>>,
    pub(crate) admin: AdminClient<Listener>,
    pub(crate) asks: Receiver<Ask>,
    /// Has room for every answer: each part has two questions of this kind at most.
    pub(crate) answers: Sender<Ends>,
}

impl Asker {
    /// Until nobody asks any more.
    pub(crate) fn run(&self) {
        while let Ok(ask) = self.asks.recv() {
            if !self.answer(ask) {
                // Nor is there an answer to what waits meanwhile, and it does not wait as long again.
                for ask in self.asks.try_iter().collect::<Vec<_>>() {
                    if let Ask::Ends { part, why } = ask {
                        self.tell(Ends { part, why, ends: None, known: None });
                    }
                }
            }
            // What the brokers say unasked.
            while self.client.poll(std::time::Duration::ZERO).is_some() {}
        }
    }

    fn tell(&self, ends: Ends) {
        // There is room for an answer to each question; whoever has asked and has gone wants none.
        let _ = self.answers.try_send(ends);
        self.core.wake();
    }

    /// Whether somebody was there to ask.
    fn answer(&self, ask: Ask) -> bool {
        match ask {
            Ask::Ends { part, why } => {
                let ends = self.ends(part);
                let is_there = ends.is_some();
                let known = ends.and_then(|_| self.known(part, why));
                self.tell(Ends { part, why, ends, known });
                is_there
            }
            Ask::Trim { part, known, delete } => {
                let done = known.map_or(Ok(()), |known| self.remember(part, known));
                let done =
                    done.and_then(|()| delete.map_or(Ok(()), |below| self.delete(part, below)));
                // What is not done now is done by the next trim.
                done.map_err(|e| self.core.heard(&e, "")).is_ok()
            }
        }
    }

    fn ends(&self, part: usize) -> Option<(u64, u64)> {
        let part = &self.core.parts[part];
        let ends =
            self.client.fetch_watermarks(&part.name, part.partition, self.settings.timeout());
        match ends {
            Ok((low, high)) => Some((u64::try_from(low).ok()?, u64::try_from(high).ok()?)),
            Err(error) => {
                self.core.heard(&error, "");
                if is_missing(&error) {
                    self.core.suspect_missing(part);
                }
                None
            }
        }
    }

    /// What is remembered of a part by the process that trims it, for one that does not follow it and wants to
    /// read behind all that it has seen itself.
    fn known(&self, part: usize, why: Why) -> Option<Known> {
        let Why::Read { from } = why else { return None };
        let part = &self.core.parts[part];
        let is_followed = !part.is_fenced() || part.is_tailed();
        if is_followed || from == u64::MAX || part.fence.lock().scanned() >= from {
            return None;
        }
        let places = [(part.name.clone(), part.partition)];
        // Without an answer more is read, which does no harm.
        let known = remembered(&self.client, &places, &self.settings).ok()?.pop()?;
        known.filter(|known| known.offset <= from)
    }

    fn remember(&self, part: usize, known: Known) -> Result<(), KafkaError> {
        let part = &self.core.parts[part];
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&part.name, part.partition, offset(known.offset))?;
        if let Some(mut element) = list.find_partition(&part.name, part.partition) {
            element.set_metadata(known.to_text());
        }
        self.client.commit(&list, CommitMode::Sync)
    }

    fn delete(&self, part: usize, below: u64) -> Result<(), KafkaError> {
        let part = &self.core.parts[part];
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&part.name, part.partition, offset(below))?;
        let timeout = Some(self.settings.timeout());
        let options = AdminOptions::new().request_timeout(timeout).operation_timeout(timeout);
        block_on(self.admin.delete_records(&list, &options)).map(|_| ())
    }
}

/// What was remembered of the parts when the log was trimmed.
pub(crate) fn remembered(
    client: &BaseConsumer<Listener>,
    places: &[(String, i32)],
    settings: &KafkaSettings,
) -> Result<Vec<Option<Known>>, KafkaError> {
    let mut list = TopicPartitionList::new();
    for (name, partition) in places {
        list.add_partition(name, *partition);
    }
    let found = client.committed_offsets(list, settings.timeout())?;
    let known = |(name, partition): &(String, i32)| {
        let element = found.find_partition(name, *partition)?;
        let Offset::Offset(offset) = element.offset() else { return None };
        Known::of_text(u64::try_from(offset).ok()?, element.metadata())
    };
    Ok(places.iter().map(known).collect())
}

pub(crate) fn offset(offset: u64) -> Offset {
    Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_read_back() {
        for begun in [None, Some(3)] {
            let known = Known { offset: 9, generation: 7, begun };
            assert_eq!(Known::of_text(9, &known.to_text()), Some(known));
        }
        assert_eq!(Known::of_text(9, ""), None);
        assert_eq!(Known::of_text(9, "somebody else's"), None);
    }
}
