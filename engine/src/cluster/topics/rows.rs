//! The messages of topics as a log: a thread for each topic reads the partitions that are asked for.
//!
//! A record's offset is that of its message in Kafka. Consecutive messages are one record, by
//! column. A message that can't be read becomes a row of the stream's dead letters.
//!
//! Brokers that are away, or do not permit something, hold readers up: that is a trouble. A topic
//! that has changed ends the process. Brokers that come back may report a change for a moment, so
//! it counts only after some time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidemill_cluster::{
    EventPlace, Events, Log, Record, Records, Refused, Request, RequestId, Then, Topic as LogTopic,
};
use tidemill_connect::{Chunk, Place, Polled, Source, Troubles};
use tidemill_core::{Error, Kind, Result, StreamId};
use tidemill_env::Env;

use super::super::panics::spawn_reader;
use super::{Opened, Topic, Topics};
use crate::functions::AppFunctions;

/// The most rows that are read at once.
const ROWS: usize = 1 << 16;
/// The pause before a waiting read checks again, in nanoseconds. Messages end it early.
const LOOK_NS: u64 = 20_000_000;
/// The pause without waiting reads.
const IDLE: Duration = Duration::from_secs(60);
/// The pause before a partition that could not be read is tried again, in nanoseconds.
const AGAIN_NS: u64 = 200_000_000;
/// The time for which a partition must seem changed until that counts, in nanoseconds.
const SURE_NS: u64 = 5_000_000_000;

/// The log of the rows of topics, for readers that know them by their sources. Nothing can be
/// appended.
pub(in crate::cluster) struct TopicRows {
    first: u32,
    /// The reader of each topic, with the number of its partitions.
    readers: Vec<(u32, Sender<Job>)>,
    shared: Arc<Shared>,
    env: Env,
}

/// The state that the threads share.
struct Shared {
    troubles: Troubles,
    failed: Mutex<Option<Error>>,
}

enum Job {
    Read {
        partition: usize,
        read: Read,
    },
    /// There may be messages.
    Look,
    /// The log has been dropped.
    End,
}

/// A read without an answer.
struct Read {
    from: u64,
    limit: usize,
    until_ns: u64,
    then: Then<Option<Records>>,
}

impl Topics {
    /// Starts to read the topics, as the sources from `first` on.
    ///
    /// # Errors
    /// When a thread can't be started.
    pub fn start(self, first: u32, functions: &Arc<AppFunctions>, env: &Env) -> Result<TopicRows> {
        let shared = Arc::new(Shared { troubles: self.troubles, failed: Mutex::default() });
        let mut readers = Vec::new();
        for topic in self.all {
            let (jobs, taken) = channel();
            readers.push((topic.is.sources(), jobs.clone()));
            let reader = Reader::of(topic, functions, &shared, env, &jobs);
            let told = shared.clone();
            let fails = move |error| {
                told.failed.lock().get_or_insert(error);
            };
            spawn_reader(env, ("cluster-topics", "topics"), move || reader.run(&taken), fails)?;
        }
        Ok(TopicRows { first, readers, shared, env: env.clone() })
    }
}

impl TopicRows {
    /// Finds the reader of a source, and the number of the partition among its own.
    fn reader(&self, topic: LogTopic) -> Option<(usize, &Sender<Job>)> {
        let LogTopic::Input(source) = topic else { return None };
        let mut nth = source.checked_sub(self.first)?;
        for (partitions, jobs) in &self.readers {
            if nth < *partitions {
                return Some((nth as usize, jobs));
            }
            nth -= partitions;
        }
        None
    }
}

impl Log for TopicRows {
    fn append(
        &self,
        _: LogTopic,
        _: u64,
        _: Record,
        then: Then<std::result::Result<u64, Refused>>,
    ) {
        then(Err(Refused::Unknown));
    }

    fn read(
        &self,
        topic: LogTopic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Records>>,
    ) {
        let Some((partition, jobs)) = self.reader(topic) else { return then(None) };
        let until_ns = self.env.clock.monotonic_ns().saturating_add(wait_us.saturating_mul(1000));
        let read = Read { from, limit: limit.unwrap_or(usize::MAX), until_ns, then };
        if let Err(unsent) = jobs.send(Job::Read { partition, read }) {
            if let Job::Read { read, .. } = unsent.0 {
                (read.then)(None);
            }
        }
    }

    fn trim(&self, _: LogTopic, _: u64) {}

    fn failed(&self) -> Option<Error> {
        self.shared.failed.lock().clone()
    }

    fn trouble(&self) -> Option<String> {
        let (who, what) = self.shared.troubles.all().into_iter().next()?;
        Some(format!("{who}: {what}"))
    }
}

/// The thread that reads a topic. It ends when the log has been dropped.
struct Reader {
    env: Env,
    functions: Arc<AppFunctions>,
    shared: Arc<Shared>,
    stream: StreamId,
    partitions: Vec<Partition>,
    /// Whether the thread has been woken.
    is_woken: Arc<AtomicBool>,
    /// The user's line of the declaration.
    at: String,
}

/// A partition that is read.
struct Partition {
    /// The topic and the partition's number.
    name: Arc<str>,
    source: Box<dyn Source>,
    /// The offset from which a reader at 0 begins.
    begin: u64,
    /// The position. It is `None` if the partition must be opened there first.
    position: Option<u64>,
    waiting: VecDeque<Read>,
    /// Since when it can't be read, and when it is tried again, in nanoseconds.
    failing: Option<(u64, u64)>,
}

impl Reader {
    fn of(
        topic: Topic,
        functions: &Arc<AppFunctions>,
        shared: &Arc<Shared>,
        env: &Env,
        jobs: &Sender<Job>,
    ) -> Reader {
        let is_woken = Arc::new(AtomicBool::new(false));
        let partition = |((name, mut source), (_, begin)): (Opened, (u32, u64))| {
            let (is_woken, jobs) = (is_woken.clone(), jobs.clone());
            source.set_waker(Arc::new(move || {
                if !is_woken.swap(true, Ordering::AcqRel) {
                    // It fails only when the thread has ended.
                    let _ = jobs.send(Job::Look);
                }
            }));
            let (waiting, begin) = (VecDeque::new(), if topic.is_from_first { begin } else { 0 });
            Partition { name: name.into(), source, begin, position: None, waiting, failing: None }
        };
        let partitions = topic.opened.into_iter().zip(topic.is.begins).map(partition).collect();
        let (env, functions, shared) = (env.clone(), functions.clone(), shared.clone());
        Reader { env, functions, shared, stream: topic.stream, partitions, is_woken, at: topic.at }
    }

    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let mut next = jobs.recv_timeout(self.patience());
            loop {
                match next {
                    Ok(Job::Read { partition, read }) => {
                        self.partitions[partition].waiting.push_back(read);
                    }
                    Ok(Job::Look) => self.is_woken.store(false, Ordering::Release),
                    Ok(Job::End) | Err(RecvTimeoutError::Disconnected) => {
                        let waiting =
                            self.partitions.iter_mut().flat_map(|of| of.waiting.drain(..));
                        return waiting.for_each(|read| (read.then)(None));
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                }
                next = jobs.recv_timeout(Duration::ZERO);
            }
            for partition in 0..self.partitions.len() {
                self.serve(partition);
            }
        }
    }

    /// Returns how long the thread may sleep if nothing wakes it.
    fn patience(&self) -> Duration {
        match self.partitions.iter().any(|partition| !partition.waiting.is_empty()) {
            true => Duration::from_nanos(LOOK_NS),
            false => IDLE,
        }
    }

    /// Answers the waiting reads of a partition, as far as possible.
    fn serve(&mut self, nth: usize) {
        while let Some(read) = self.partitions[nth].waiting.pop_front() {
            let now_ns = self.env.clock.monotonic_ns();
            match self.answer(nth, &read, now_ns) {
                Some(answer) => (read.then)(answer),
                None => return self.partitions[nth].waiting.push_front(read),
            }
        }
    }

    /// Returns the answer to a read, or nothing if it must wait.
    fn answer(&mut self, nth: usize, read: &Read, now_ns: u64) -> Option<Option<Records>> {
        let is_late = now_ns >= read.until_ns;
        if self.shared.failed.lock().is_some() {
            return Some(None);
        }
        let partition = &mut self.partitions[nth];
        if read.from == u64::MAX {
            let upto = partition.position.unwrap_or(0);
            return Some(Some(Records { records: Vec::new(), upto }));
        }
        match partition.read(read.from, read.limit.min(ROWS), now_ns) {
            Ok(Polled::Rows(chunk)) => {
                self.is_well(nth);
                let upto = chunk.next_offset;
                Some(Some(Records { records: self.records(nth, chunk), upto }))
            }
            Ok(Polled::Pending | Polled::End) => {
                let is_open = partition.position.is_some();
                if is_open {
                    self.is_well(nth);
                }
                let nothing = Records { records: Vec::new(), upto: read.from };
                is_late.then(|| is_open.then_some(nothing))
            }
            Err(error) => {
                self.fails(nth, error, now_ns);
                is_late.then_some(None)
            }
        }
    }

    fn is_well(&mut self, nth: usize) {
        let partition = &mut self.partitions[nth];
        if partition.failing.take().is_some() {
            self.shared.troubles.clear(&partition.name);
        }
    }

    /// Notes that a partition can't be read. Waiting does not bring back messages that have gone.
    fn fails(&mut self, nth: usize, error: Error, now_ns: u64) {
        let partition = &mut self.partitions[nth];
        partition.position = None;
        let (since_ns, _) = partition.failing.unwrap_or((now_ns, 0));
        partition.failing = Some((since_ns, now_ns + AGAIN_NS));
        match error.kind == Kind::Input && now_ns - since_ns > SURE_NS {
            true => drop(self.shared.failed.lock().get_or_insert(error.at(self.at.clone()))),
            false => self.shared.troubles.report(&partition.name, &error.what),
        }
    }

    /// Returns the records of consecutive messages.
    fn records(&self, nth: usize, chunk: Chunk) -> Vec<(u64, Record)> {
        let (stream, name) = (self.stream, &self.partitions[nth].name);
        let Chunk { batch, offsets, bad, .. } = chunk;
        let (mut records, mut bad, mut row) = (Vec::new(), bad.into_iter().peekable(), 0);
        loop {
            let at = offsets.get(row).copied();
            if let Some(bad) = bad.next_if(|bad| at.is_none_or(|at| bad.offset < at)) {
                let call = self.functions.dead(stream, name, &bad);
                let request = Request { id: RequestId::from([]), call };
                records.push((bad.offset, Record::Requests(vec![request])));
                continue;
            }
            let Some(at) = at else { return records };
            let run = (at..).zip(&offsets[row..]).take_while(|(next, of)| next == *of).count();
            let from = Some(EventPlace { name: name.clone(), row: at });
            let batch = batch.slice(row, run);
            records.push((at, Record::Events(Events { stream, from, is_run: true, batch })));
            row += run;
        }
    }
}

impl Partition {
    /// Reads rows from an offset on. Returns [`Polled::Pending`] without a position if it is not
    /// time yet to try again.
    fn read(&mut self, from: u64, rows_max: usize, now_ns: u64) -> Result<Polled> {
        if self.position != Some(from) {
            self.position = None;
            if self.failing.is_some_and(|(_, again_ns)| now_ns < again_ns) {
                return Ok(Polled::Pending);
            }
            self.source.resume(&Place {
                offset: from,
                begin: Some(self.begin),
                ..Place::start()
            })?;
            self.position = Some(from);
        }
        let polled = self.source.poll(rows_max)?;
        if let Polled::Rows(chunk) = &polled {
            self.position = Some(chunk.next_offset);
        }
        Ok(polled)
    }
}

impl Drop for TopicRows {
    fn drop(&mut self) {
        for (_, jobs) in &self.readers {
            // It fails only when the thread has ended.
            let _ = jobs.send(Job::End);
        }
    }
}
