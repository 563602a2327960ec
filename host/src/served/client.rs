//! The log that another process serves.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use tidemill_cluster::wire::put_record;
use tidemill_cluster::{Log, Record, Records, Refused, Then, ThenEach, Topic};
use tidemill_core::Error;
use tidemill_mesh::{Lane, Mesh};

use super::files::record_of;
use super::lost::Lost;
use crate::message::Message;
use crate::COORDINATOR;

/// The approximate bytes of records in one append message.
const APPEND_BYTES: usize = 1 << 20;

/// The log as a worker sees it.
pub(crate) struct RemoteLog {
    mesh: Weak<Mesh>,
    calls: Mutex<Calls>,
    /// The error of a record that could not be decoded.
    failed: Mutex<Option<Error>>,
}

#[derive(Default)]
struct Calls {
    count: u64,
    open: HashMap<u64, Open, FixedState>,
    /// The appends that were in progress when a link ended.
    lost: Lost,
    /// For each input that an append of requests is under way to, those that go next, together.
    requests: HashMap<Topic, Vec<Gathered>, FixedState>,
}

/// A record of requests, with its place among those that were appended together.
struct Gathered {
    record: Vec<u8>,
    nth: usize,
    then: ThenEach,
}

/// A call that waits for its answer.
enum Open {
    /// An append of this range of the records that were appended together.
    Append(Appending, Range<usize>, ThenEach),
    /// An append of requests to an input, with the place of each.
    Requests(Topic, Vec<(usize, ThenEach)>),
    Read(Reading),
}

/// The topic and the generation of an append.
type Appending = (Topic, u64);

struct Reading {
    topic: Topic,
    is_whole: bool,
    records: Vec<(u64, Record)>,
    then: Then<Option<Records>>,
}

impl RemoteLog {
    pub fn new(mesh: Weak<Mesh>) -> RemoteLog {
        RemoteLog { mesh, calls: Mutex::default(), failed: Mutex::default() }
    }

    fn call(&self, open: Open, message: impl FnOnce(u64) -> Message) {
        let mut calls = self.calls.lock();
        if let Open::Append((topic, generation), of, then) = &open {
            if calls.lost.is_before(*topic, *generation) {
                drop(calls);
                return of.clone().for_each(|nth| then(nth, Err(Refused::Unknown)));
            }
        }
        calls.count += 1;
        let call = calls.count;
        calls.open.insert(call, open);
        drop(calls);
        // Without a link, this is reported as the end of one.
        match self.mesh.upgrade() {
            Some(mesh) => mesh.send(COORDINATOR, Lane::Urgent, message(call).bytes()),
            None => self.broken(),
        }
    }

    /// Notes that the link has ended, so that calls in progress get no answer.
    pub fn broken(&self) {
        let mut calls = self.calls.lock();
        let open = std::mem::take(&mut calls.open);
        let gathered: Vec<Gathered> =
            std::mem::take(&mut calls.requests).into_values().flatten().collect();
        for open in open.values() {
            if let Open::Append((topic, generation), ..) = open {
                calls.lost.add(*topic, *generation);
            }
        }
        drop(calls);
        for (_, open) in open {
            match open {
                Open::Append(_, of, then) => of.for_each(|nth| then(nth, Err(Refused::Unknown))),
                Open::Requests(_, of) => {
                    of.iter().for_each(|(nth, then)| then(*nth, Err(Refused::Unknown)));
                }
                Open::Read(reading) => (reading.then)(None),
            }
        }
        gathered.iter().for_each(|of| (of.then)(of.nth, Err(Refused::Unknown)));
    }

    /// Appends records of requests. While others are under way to the same input, they wait and go
    /// together. None waits for an earlier one of its sender.
    fn requests(&self, topic: Topic, records: Vec<Record>, then: &ThenEach) {
        let gather = |(nth, record): (usize, Record)| {
            let mut bytes = Vec::new();
            put_record(&record, &mut bytes);
            Gathered { record: bytes, nth, then: then.clone() }
        };
        let gathered = records.into_iter().enumerate().map(gather);
        let mut calls = self.calls.lock();
        if let Some(next) = calls.requests.get_mut(&topic) {
            return next.extend(gathered);
        }
        calls.requests.insert(topic, gathered.collect());
        drop(calls);
        self.send_requests(topic);
    }

    /// Sends what has been gathered for an input, or notes that nothing is under way.
    fn send_requests(&self, topic: Topic) {
        let mut calls = self.calls.lock();
        let Some(gathered) = calls.requests.get_mut(&topic) else { return };
        let mut size = 0;
        let fits = gathered.iter().take_while(|of| {
            let fits = size < APPEND_BYTES;
            size += of.record.len();
            fits
        });
        let count = fits.count();
        if count == 0 {
            calls.requests.remove(&topic);
            return;
        }
        let now: Vec<Gathered> = gathered.drain(..count).collect();
        drop(calls);
        let (mut records, mut of) = (Vec::new(), Vec::new());
        for Gathered { record, nth, then } in now {
            records.push(record);
            of.push((nth, then));
        }
        let message = |call| Message::Append { call, topic, generation: 0, records };
        self.call(Open::Requests(topic, of), message);
    }

    /// Takes a message if it is an answer. Returns any other message.
    pub fn answered(&self, message: Message) -> Option<Message> {
        let (Message::Appended { call, .. }
        | Message::Found { call, .. }
        | Message::NotFound { call }) = message
        else {
            return Some(message);
        };
        let open = self.calls.lock().open.remove(&call);
        match (open, message) {
            (Some(Open::Append(_, of, then)), Message::Appended { result, .. }) => {
                let (from, offset) = (of.start, |n: usize| result.map(|first| first + n as u64));
                of.for_each(|nth| then(nth, offset(nth - from)));
            }
            (Some(Open::Requests(topic, of)), message) => {
                self.send_requests(topic);
                let result = match message {
                    Message::Appended { result, .. } => result,
                    _ => Err(Refused::Unknown),
                };
                for (place, (nth, then)) in of.into_iter().enumerate() {
                    then(nth, result.map(|first| first + place as u64));
                }
            }
            (Some(Open::Append(_, of, then)), _) => {
                of.for_each(|nth| then(nth, Err(Refused::Unknown)));
            }
            (Some(Open::Read(reading)), Message::Found { records, upto, is_all, .. }) => {
                self.found(reading, records, upto, is_all);
            }
            (Some(Open::Read(reading)), _) => (reading.then)(None),
            (None, _) => {}
        }
        None
    }

    fn found(&self, mut reading: Reading, records: Vec<super::Raw>, upto: u64, is_all: bool) {
        for raw in records {
            match record_of(reading.topic, raw) {
                Ok(record) => reading.records.push(record),
                Err(error) => {
                    self.failed.lock().get_or_insert(error);
                    return (reading.then)(None);
                }
            }
        }
        if is_all || !reading.is_whole {
            let records = Records { records: reading.records, upto };
            return (reading.then)(Some(records));
        }
        let topic = reading.topic;
        self.call(Open::Read(reading), |call| Message::Read {
            call,
            topic,
            from: upto,
            limit: None,
            wait_us: 0,
        });
    }
}

impl Log for RemoteLog {
    fn append(
        &self,
        topic: Topic,
        generation: u64,
        record: Record,
        then: Then<Result<u64, Refused>>,
    ) {
        let then = Mutex::new(Some(then));
        let told = move |_, result| {
            let then = then.lock().take();
            then.into_iter().for_each(|then| then(result));
        };
        self.append_all(topic, generation, vec![record], Arc::new(told));
    }

    fn append_all(&self, topic: Topic, generation: u64, records: Vec<Record>, then: ThenEach) {
        if matches!(topic, Topic::Input(_)) && generation == 0 && !records.is_empty() {
            return self.requests(topic, records, &then);
        }
        let (count, mut from, mut size) = (records.len(), 0, 0);
        let mut together = Vec::new();
        for (nth, record) in records.iter().enumerate() {
            let mut bytes = Vec::new();
            put_record(record, &mut bytes);
            size += bytes.len();
            together.push(bytes);
            if size > APPEND_BYTES || nth + 1 == count {
                let records = std::mem::take(&mut together);
                let open = Open::Append((topic, generation), from..nth + 1, then.clone());
                self.call(open, |call| Message::Append { call, topic, generation, records });
                (from, size) = (nth + 1, 0);
            }
        }
    }

    fn read(
        &self,
        topic: Topic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Records>>,
    ) {
        let reading = Reading { topic, is_whole: limit.is_none(), records: Vec::new(), then };
        let limit = limit.map(|limit| limit as u64);
        let message = |call| Message::Read { call, topic, from, limit, wait_us };
        self.call(Open::Read(reading), message);
    }

    /// The process that serves the log trims it.
    fn trim(&self, _: Topic, _: u64) {}

    fn failed(&self) -> Option<Error> {
        self.failed.lock().clone()
    }
}

#[cfg(test)]
mod tests;
