//! The log that another process serves.

use std::collections::HashMap;
use std::sync::Weak;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use tidemill_cluster::wire::{put_record, take_record};
use tidemill_cluster::{Record, Records, Refused, Topic};
use tidemill_durable::{Log, Then};
use tidemill_mesh::{Lane, Mesh};

use crate::word::Word;
use crate::COORDINATOR;

/// The log, as a worker has it.
pub(crate) struct RemoteLog {
    mesh: Weak<Mesh>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    count: u64,
    open: HashMap<u64, Open, FixedState>,
}

/// A call that waits for its answer.
enum Open {
    Append(Then<Result<u64, Refused>>),
    Read(Reading),
}

struct Reading {
    topic: Topic,
    is_whole: bool,
    records: Vec<(u64, Record)>,
    then: Then<Option<Records>>,
}

impl RemoteLog {
    pub fn new(mesh: Weak<Mesh>) -> RemoteLog {
        RemoteLog { mesh, calls: Mutex::default() }
    }

    fn call(&self, open: Open, word: impl FnOnce(u64) -> Word) {
        let mut calls = self.calls.lock();
        calls.count += 1;
        let call = calls.count;
        calls.open.insert(call, open);
        drop(calls);
        // Where there is no link this is told as the end of one.
        match self.mesh.upgrade() {
            Some(mesh) => mesh.send(COORDINATOR, Lane::Urgent, word(call).bytes()),
            None => self.broken(),
        }
    }

    /// The link has ended: nobody will answer.
    pub fn broken(&self) {
        let open = std::mem::take(&mut self.calls.lock().open);
        for (_, open) in open {
            match open {
                Open::Append(then) => then(Err(Refused::Unknown)),
                Open::Read(reading) => (reading.then)(None),
            }
        }
    }

    /// Takes an answer; `None` when it is one, or what else it is.
    pub fn answered(&self, word: Word) -> Option<Word> {
        let (Word::Appended { call, .. } | Word::Found { call, .. } | Word::NotFound { call }) =
            word
        else {
            return Some(word);
        };
        let open = self.calls.lock().open.remove(&call);
        match (open, word) {
            (Some(Open::Append(then)), Word::Appended { result, .. }) => then(result),
            (Some(Open::Append(then)), _) => then(Err(Refused::Unknown)),
            (Some(Open::Read(reading)), Word::Found { records, upto, is_all, .. }) => {
                self.found(reading, records, upto, is_all);
            }
            (Some(Open::Read(reading)), _) => (reading.then)(None),
            (None, _) => {}
        }
        None
    }

    fn found(&self, mut reading: Reading, records: Vec<super::Raw>, upto: u64, is_all: bool) {
        let record = |(offset, bytes): super::Raw| Some((offset, take_record(&mut &bytes[..])?));
        reading.records.extend(records.into_iter().filter_map(record));
        if is_all || !reading.is_whole {
            let records = Records { records: reading.records, upto };
            return (reading.then)(Some(records));
        }
        let topic = reading.topic;
        self.call(Open::Read(reading), |call| Word::Read {
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
        let mut bytes = Vec::new();
        put_record(&record, &mut bytes);
        let word = |call| Word::Append { call, topic, generation, bytes };
        self.call(Open::Append(then), word);
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
        let word = |call| Word::Read { call, topic, from, limit, wait_us };
        self.call(Open::Read(reading), word);
    }

    /// Who serves it trims it.
    fn trim(&self, _: Topic, _: u64) {}
}
