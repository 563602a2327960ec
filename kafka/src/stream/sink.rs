//! A topic as a sink.

use std::sync::Arc;

use rdkafka::consumer::BaseConsumer;
use rdkafka::topic_partition_list::Offset;
use tidemill_connect::{MessageValues, Sink, SinkPlace, Troubles};
use tidemill_core::{Batch, Error, Result, Schema};
use tidemill_env::Env;

use super::begin::{ask, partitions};
use super::listen::{LastError, Listener};
use super::records::values;
use super::send::{Outgoing, Sender};
use super::settings::TopicSink;
use super::tail::{Tail, There};
use crate::hash::partition_of_key;

/// The parts of rows' ids, except their numbers.
#[derive(Clone, Debug)]
pub struct RowIds {
    /// The app's name.
    pub app: String,
    /// An id of the app's data directory. A directory that was emptied has a new one, and its
    /// rows are different rows.
    pub run: u128,
    /// The stream's name.
    pub stream: String,
}

impl RowIds {
    /// Returns all of an id except the number.
    fn prefix(&self) -> String {
        format!("{}-{:016x}/{}/", self.app, (self.run >> 64) as u64, self.stream)
    }
}

/// Opens a topic to write rows to: as a new sink, or with `resume` at a stored place. Its name
/// among `troubles` is `who`.
///
/// # Errors
/// If a setting does not fit, there is no such topic, no broker answers in time, or the topic has
/// changed since the place. For Avro also if the schema registry has another schema, or does not
/// answer in time.
pub fn open(
    settings: &TopicSink,
    schema: &Arc<Schema>,
    env: &Env,
    ids: &RowIds,
    resume: Option<&SinkPlace>,
    (troubles, who): (&Troubles, &str),
) -> Result<Box<dyn Sink>> {
    settings.check()?;
    let TopicSink { topic, brokers, .. } = settings;
    let values = values(settings, schema, &ids.stream, env, troubles)?;
    let heard = LastError::default();
    let transactional_id = settings
        .transactional_id
        .clone()
        .unwrap_or_else(|| format!("tidemill-{}-{}-{topic}", ids.app, ids.stream));
    // This comes first, so that no message of a dead process follows those that are read back.
    let sender = Sender::open(env, settings, &heard, (troubles, who), &transactional_id)?;
    let consumer: BaseConsumer<Listener> = settings
        .consumer()?
        .create_with_context(Listener(heard.clone()))
        .map_err(|e| Error::resource(format!("a client for Kafka could not be made: {e}")))?;
    let there = partitions(&consumer, topic, brokers, settings.timeout(), &heard)?;
    let prefix = ids.prefix();
    let (mut rows, mut found) = (0, None);
    match resume {
        None => {
            let ends = ask(&consumer, topic, &there, Offset::End, settings.timeout())
                .map_err(|error| heard.unreachable(brokers, &error))?;
            sender.begin_at(ends);
        }
        Some(place) => {
            rows = place.rows;
            let tail = Tail { env, settings, heard: &heard, prefix: &prefix, from: &place.ends };
            found = Some(tail.rows(&there, place.rows)?);
            let mut ends = place.ends.clone();
            ends.resize(there.len(), 0);
            sender.begin_at(ends);
        }
    }
    heard.is_well();
    Ok(Box::new(Topic {
        topic: topic.clone(),
        schema: schema.clone(),
        values,
        partitions: there.len() as u32,
        prefix,
        sender,
        found,
        pending: Vec::new(),
        written: rows,
        committed: rows,
        is_finished: false,
        failed: None,
    }))
}

/// A topic that is written.
struct Topic {
    topic: String,
    schema: Arc<Schema>,
    values: MessageValues,
    partitions: u32,
    /// The beginning of the ids.
    prefix: String,
    sender: Sender,
    /// The rows that were found when it was opened at a place, until all have been written again.
    found: Option<There>,
    pending: Vec<Batch>,
    written: u64,
    committed: u64,
    is_finished: bool,
    failed: Option<Error>,
}

impl Topic {
    fn guard<T>(&mut self, done: Result<T>) -> Result<T> {
        done.inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Sends the pending rows that are not in the topic. In a transaction, waits until it is
    /// committed.
    fn send(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        while !self.try_send(&pending)? {}
        self.committed = self.written;
        Ok(())
    }

    fn try_send(&mut self, pending: &[Batch]) -> Result<bool> {
        let (mut key, mut value, mut id) = (Vec::new(), Vec::new(), self.prefix.clone());
        let rows = pending.iter().flat_map(|batch| (0..batch.len()).map(move |row| (batch, row)));
        for (at, (batch, row)) in (self.committed..).zip(rows) {
            if self.found.as_ref().is_some_and(|found| found.has(at)) {
                continue;
            }
            key.clear();
            value.clear();
            id.truncate(self.prefix.len());
            id.push_str(&at.to_string());
            let has_key = self.values.key(batch, row, &mut key);
            self.values.value(batch, row, &mut value);
            let partition = match has_key {
                true => partition_of_key(&key, self.partitions),
                false => (at % u64::from(self.partitions)) as u32,
            };
            let key = has_key.then_some(&key[..]);
            self.sender.begin()?;
            let message = Outgoing { partition, key, value: &value, id: &id };
            if !self.sender.send(&message)? {
                return Ok(false);
            }
        }
        match self.sender.is_transactional() {
            true => self.sender.complete(),
            false => Ok(true),
        }
    }

    fn place_at(&self, rows: u64) -> SinkPlace {
        SinkPlace { rows, ends: self.sender.ends(), ..SinkPlace::default() }
    }
}

impl Sink for Topic {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        self.check()?;
        if !Arc::ptr_eq(&self.schema, batch.schema()) && self.schema != *batch.schema() {
            let what = format!("rows of another schema are written to topic {}", self.topic);
            return Err(Error::internal(what));
        }
        if self.is_finished {
            return Err(Error::internal(format!("topic {} is written after its end", self.topic)));
        }
        if !batch.is_empty() {
            self.pending.push(batch.clone());
            self.written += batch.len() as u64;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.check()?;
        if self.pending.is_empty() {
            return Ok(());
        }
        let sent = self.send();
        self.guard(sent)
    }

    fn place(&self) -> SinkPlace {
        self.place_at(self.written)
    }

    fn sync(&mut self) -> Result<SinkPlace> {
        self.check()?;
        let done = self.sender.complete().map(drop);
        self.guard(done)?;
        Ok(self.place_at(self.committed))
    }

    fn settle(&mut self) -> Result<()> {
        self.check()?;
        let Some(found) = self.found.take() else { return Ok(()) };
        if found.upto > self.written {
            let error = Error::input(format!(
                "topic {} has rows of this app up to number {}, and the data directory knows of {} only",
                self.topic,
                found.upto - 1,
                self.written
            ))
            .help(
                "the data directory is older than the topic: a backup was restored. Start with \
                 --fresh, which writes all rows again under other ids, or write to another topic",
            );
            return self.guard(Err(error));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.check()?;
        if !std::mem::replace(&mut self.is_finished, true) {
            self.pending.clear();
            self.written = self.committed;
            let done = self.sender.complete().map(drop);
            self.guard(done)?;
        }
        Ok(())
    }
}
