//! Blocking requests to the brokers, on a thread of their own.

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

/// A request for a part.
pub(crate) enum Request {
    /// Asks for the offset of its first record and the one after its last record.
    Ends { part: usize, why: Why },
    /// Stores the generation that has begun before an offset, and deletes records.
    Trim { part: usize, known: Option<Known>, delete: Option<u64> },
}

/// The reason for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Checks whether brokers can be reached again.
    Look,
    /// Appends have been followed up to this offset.
    Tail { from: u64 },
    /// A reader continues from this offset.
    Read { from: u64 },
}

/// The generation that has begun before an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) offset: u64,
    pub(crate) generation: u64,
    pub(crate) begun: Option<u64>,
}

impl Known {
    /// Writes it in the form in which Kafka stores it beside an offset.
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

/// The answer to [`Request::Ends`].
pub(crate) struct Ends {
    pub(crate) part: usize,
    pub(crate) why: Why,
    /// The first offset and the one after the last; nothing if no broker has answered.
    pub(crate) ends: Option<(u64, u64)>,
    /// The stored state, if it was asked for.
    pub(crate) known: Option<Known>,
}

/// The thread that sends the requests.
pub(crate) struct Requester {
    pub(crate) core: Arc<Core>,
    pub(crate) settings: KafkaSettings,
    pub(crate) client: Arc<BaseConsumer<Listener>>,
    pub(crate) admin: AdminClient<Listener>,
    pub(crate) asks: Receiver<Request>,
    /// The channel for answers. It has room for all of them, because each part has at most two
    /// requests of this kind.
    pub(crate) answers: Sender<Ends>,
}

impl Requester {
    /// Runs until the log is dropped.
    pub(crate) fn run(&self) {
        while let Ok(ask) = self.asks.recv() {
            if !self.answer(ask) {
                // The requests that wait would not be answered either, so they fail at once.
                for ask in self.asks.try_iter().collect::<Vec<_>>() {
                    if let Request::Ends { part, why } = ask {
                        self.send(Ends { part, why, ends: None, known: None });
                    }
                }
            }
            // This handles the events that brokers send unasked.
            while self.client.poll(std::time::Duration::ZERO).is_some() {}
        }
    }

    fn send(&self, ends: Ends) {
        // There is room for an answer to each request. If the asker is gone, the answer is dropped.
        let _ = self.answers.try_send(ends);
        self.core.wake();
    }

    /// Sends a request, and returns whether a broker answered.
    fn answer(&self, ask: Request) -> bool {
        match ask {
            Request::Ends { part, why } => {
                let ends = self.ends(part);
                let is_there = ends.is_some();
                let known = ends.and_then(|_| self.known(part, why));
                self.send(Ends { part, why, ends, known });
                is_there
            }
            Request::Trim { part, known, delete } => {
                let done = known.map_or(Ok(()), |known| self.remember(part, known));
                let done =
                    done.and_then(|()| delete.map_or(Ok(()), |below| self.delete(part, below)));
                // The next trim does what has failed now.
                done.map_err(|e| self.core.note(&e, "")).is_ok()
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
                self.core.note(&error, "");
                if is_missing(&error) {
                    self.core.suspect_missing(part);
                }
                None
            }
        }
    }

    /// Returns the state of a part that the trimming process has stored. A process that does not
    /// follow the part needs it to read beyond what it has seen itself.
    fn known(&self, part: usize, why: Why) -> Option<Known> {
        let Why::Read { from } = why else { return None };
        let part = &self.core.parts[part];
        let is_followed = !part.is_fenced() || part.is_tailed();
        if is_followed || from == u64::MAX || part.fence.lock().scanned() >= from {
            return None;
        }
        let places = [(part.name.clone(), part.partition)];
        // Without an answer more records are read, which does no harm.
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

/// Returns the states of parts that were stored when the log was trimmed.
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
