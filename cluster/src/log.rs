//! The log of a cluster as its users see it.
//!
//! Calls return at once. The answer comes through a callback. An implementation calls it on its own
//! threads, so a callback must be short and must not block.

use std::sync::Arc;

use tidemill_core::Error;

use crate::{Record, Records, Refused, Topic};

/// A callback that is called once, from any thread.
pub type Then<T> = Box<dyn FnOnce(T) + Send>;

/// A callback that is called once for each of several records, by its place among them, from any
/// thread.
pub type ThenEach = Arc<dyn Fn(usize, Result<u64, Refused>) + Send + Sync>;

/// Logs that all processes append to and read.
pub trait Log: Send + Sync {
    /// Appends a record durably, unless a later generation has begun in the topic. That is the case
    /// if a [`Record::Generation`] with a higher number is before it. If the record itself begins a
    /// generation, the same number is enough. Does not block.
    ///
    /// An append of outputs may succeed although it does not count for readers, because a later
    /// generation has begun before it in the topic. A generation begins in the cuts first. That of an
    /// answer from outside counts if it succeeds, because functions continue with it. Appends to one
    /// topic are in the log in the order of the calls. If an append of a generation gets
    /// [`Refused::Unknown`], no later append of that generation is in the log without it.
    fn append(
        &self,
        topic: Topic,
        generation: u64,
        record: Record,
        then: Then<Result<u64, Refused>>,
    );

    /// Appends several records to a topic, in their order. The callback gets the place of each
    /// among them.
    fn append_all(&self, topic: Topic, generation: u64, records: Vec<Record>, then: ThenEach) {
        for (nth, record) in records.into_iter().enumerate() {
            let then = then.clone();
            self.append(topic, generation, record, Box::new(move |result| then(nth, result)));
        }
    }

    /// Reads from an offset. With a limit, it reads approximately that many records, where the
    /// requests in a record count separately. It answers as soon as there is a record, or without
    /// any after `wait_us` microseconds. Without a limit, it reads all that was there at the time
    /// of the call. Reading from [`u64::MAX`] finds only the end. The answer `None` means that the
    /// records could not be read now, and comes after a moment.
    ///
    /// Deleted cuts and outputs are left out when reading from 0. Otherwise missing records can't
    /// be read.
    fn read(
        &self,
        topic: Topic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Records>>,
    );

    /// Allows records below an offset to be deleted, because they are not read again.
    fn trim(&self, topic: Topic, below: u64);

    /// Returns why nothing can be appended or read any more, if that is so. Then the process must
    /// end.
    fn failed(&self) -> Option<Error> {
        None
    }

    /// Returns the current trouble as text, while the log retries.
    fn trouble(&self) -> Option<String> {
        None
    }
}
