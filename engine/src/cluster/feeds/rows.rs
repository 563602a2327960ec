//! The rows of feeds as a log: a thread reads those that are asked for.
//!
//! The coordinator and the workers have such a thread. They differ in where they open feeds, and in
//! how marks become durable (`Home`). The marks are durable before any row is given out.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidemill_cluster::{Log, Record, Records, Refused, Then, Topic};
use tidemill_core::{Error, Result};
use tidemill_env::{Env, Handle};

use super::super::panics::spawn_reader;
use super::feed::{Described, Feed, News};
use super::marks::{self, Marks};
use super::Shared;

/// The pause of a waiting read before it checks again whether a file has grown.
const LOOK: Duration = Duration::from_millis(20);
/// The number of answers that are read ahead for each feed.
const ANSWERS_AHEAD: usize = 8;
/// The number of rows in an answer below which nothing is read ahead: the reader has almost all
/// that is there.
const SHORT_ROWS: u64 = 4096;

/// The log of the feeds' rows, for readers that know them by their sources. Nothing can be
/// appended.
pub(in crate::cluster) struct Rows {
    first: u32,
    count: u32,
    shared: Arc<Shared>,
    env: Env,
    jobs: Option<Sender<Job>>,
    // The lock is there only because a handle can't be shared between threads.
    thread: Mutex<Option<Handle>>,
}

enum Job {
    Read(Read),
    Trim {
        feed: usize,
        below: u64,
    },
    /// Another process is about to read a feed.
    Describe {
        feed: usize,
        then: Then<Option<Described>>,
    },
    /// Another process has read a feed up to here.
    Learn {
        feed: usize,
        news: News,
        then: Then<Option<u64>>,
    },
}

/// A read without an answer.
pub(super) struct Read {
    pub feed: usize,
    pub source: u32,
    pub from: u64,
    pub limit: usize,
    pub until_ns: u64,
    pub then: Then<Option<Records>>,
}

/// The place of a feed for a read.
pub(super) enum Opened {
    Here(Box<Feed>),
    /// Another log has its rows.
    Elsewhere(Arc<dyn Log>),
    /// It is unknown at present.
    NotNow,
}

/// The process that reads.
pub(super) trait Home: Send {
    /// Whether it is not the coordinator's.
    fn is_away(&self) -> bool;

    /// Whether open feeds must be opened again, because others may know more of them now.
    fn is_new(&mut self) -> bool;

    /// Opens a feed for a read from an offset on.
    ///
    /// # Errors
    /// When the feed can't be read.
    fn open(&mut self, feed: usize, from: u64) -> Result<Opened>;

    /// Makes the marks of a feed durable. Returns the record that no recovery goes back beyond, or
    /// nothing if it is impossible at present.
    ///
    /// # Errors
    /// When it is impossible for good.
    fn keep(&mut self, nth: usize, feed: &Feed) -> Result<Option<u64>>;

    /// Returns the log that has the rows of a feed that can't be read here, if there is one.
    fn instead(&mut self, feed: usize, error: &Error) -> Option<Arc<dyn Log>>;
}

impl Rows {
    /// Starts the thread for `count` feeds, as the sources from `first` on.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub(super) fn start(
        (first, count): (u32, u32),
        feeds: Vec<Feed>,
        home: Box<dyn Home>,
        shared: &Arc<Shared>,
        env: &Env,
    ) -> Result<Rows> {
        let (jobs, taken) = channel();
        let mut open: Vec<Open> = feeds.into_iter().map(Open::here).collect();
        open.resize_with(count as usize, || Open::NotYet);
        let reader = Reader { env: env.clone(), home, feeds: open, shared: shared.clone() };
        let told = shared.clone();
        let fails = move |error| {
            told.failed.lock().get_or_insert(error);
        };
        let read = move || reader.run(&taken);
        let thread = spawn_reader(env, ("cluster-feeds", "files"), read, fails)?;
        let (jobs, thread) = (Some(jobs), Mutex::new(Some(thread)));
        Ok(Rows { first, count, shared: shared.clone(), env: env.clone(), jobs, thread })
    }

    /// Describes a feed for a process that is about to read it.
    pub(super) fn describe(&self, feed: u32, then: Then<Option<Described>>) {
        if feed >= self.count {
            return then(None);
        }
        if let Some(Job::Describe { then, .. }) =
            self.unsent(Job::Describe { feed: feed as usize, then })
        {
            then(None);
        }
    }

    /// Takes the new marks of a process that reads a feed, and makes them durable. The answer is the
    /// record that no recovery goes back beyond, or nothing if the marks do not fit.
    pub(super) fn learn(&self, feed: u32, news: News, then: Then<Option<u64>>) {
        if feed >= self.count {
            return then(None);
        }
        if let Some(Job::Learn { then, .. }) =
            self.unsent(Job::Learn { feed: feed as usize, news, then })
        {
            then(None);
        }
    }

    /// Gives the thread a job. Returns it if the thread has ended.
    fn unsent(&self, job: Job) -> Option<Job> {
        let Some(jobs) = &self.jobs else { return Some(job) };
        jobs.send(job).err().map(|unsent| unsent.0)
    }

    /// The number of a source's feed.
    fn feed(&self, topic: Topic) -> Option<(usize, u32)> {
        let Topic::Input(source) = topic else { return None };
        let feed = source.checked_sub(self.first).filter(|feed| *feed < self.count)?;
        Some((feed as usize, source))
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.jobs = None;
        if let Some(thread) = self.thread.lock().take() {
            // The thread has reported why it ended, even after a panic.
            let _ = thread.join();
        }
    }
}

impl Log for Rows {
    fn append(&self, _: Topic, _: u64, _: Record, then: Then<std::result::Result<u64, Refused>>) {
        // Nothing can be appended to files.
        then(Err(Refused::Unknown));
    }

    fn read(
        &self,
        topic: Topic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Records>>,
    ) {
        let Some((feed, source)) = self.feed(topic) else { return then(None) };
        let until_ns = self.env.clock.monotonic_ns().saturating_add(wait_us.saturating_mul(1000));
        let limit = limit.unwrap_or(usize::MAX);
        let read = Read { feed, source, from, limit, until_ns, then };
        if let Some(Job::Read(read)) = self.unsent(Job::Read(read)) {
            (read.then)(None);
        }
    }

    fn trim(&self, topic: Topic, below: u64) {
        if let Some((feed, _)) = self.feed(topic) {
            drop(self.unsent(Job::Trim { feed, below }));
        }
    }

    fn failed(&self) -> Option<Error> {
        self.shared.failed.lock().clone()
    }
}

/// The thread that reads.
struct Reader {
    env: Env,
    home: Box<dyn Home>,
    feeds: Vec<Open>,
    shared: Arc<Shared>,
}

/// A feed, as far as it is open.
enum Open {
    NotYet,
    Here { feed: Box<Feed>, ahead: Ahead },
    Elsewhere(Arc<dyn Log>),
}

impl Open {
    fn here(feed: Feed) -> Open {
        Open::Here { feed: Box::new(feed), ahead: Ahead::default() }
    }
}

/// Answers that have been read ahead, in their order.
#[derive(Default)]
struct Ahead {
    /// The limit of the read before, if it was long enough that more is expected to be there.
    limit: Option<usize>,
    answers: VecDeque<(u64, Records)>,
    /// The error of the read after these, and where it began.
    failed: Option<(u64, Error)>,
}

/// The result of a read.
enum Answer {
    Found(Records),
    Elsewhere(Arc<dyn Log>),
    NotNow,
}

impl Reader {
    fn run(mut self, jobs: &Receiver<Job>) {
        let mut waiting: Vec<Read> = Vec::new();
        loop {
            let job = match jobs.try_recv() {
                Err(TryRecvError::Empty) if waiting.is_empty() && self.read_ahead() => continue,
                Err(TryRecvError::Empty) if waiting.is_empty() => {
                    jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
                }
                Err(TryRecvError::Empty) => jobs.recv_timeout(LOOK),
                Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
                Ok(job) => Ok(job),
            };
            match job {
                Ok(Job::Read(read)) => waiting.push(read),
                Ok(job) => self.take(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // Waiting readers get an answer.
                    return waiting.into_iter().for_each(|read| (read.then)(None));
                }
            }
            waiting = waiting.into_iter().filter_map(|read| self.done(read)).collect();
        }
    }

    /// Does a job that is no read.
    fn take(&mut self, job: Job) {
        let (nth, done) = match job {
            Job::Read(_) => return,
            Job::Trim { feed: nth, below } => {
                let Open::Here { feed, .. } = &mut self.feeds[nth] else { return };
                let has_gone_on = feed.trim(below);
                (nth, if has_gone_on { self.keep(nth).map(drop) } else { Ok(()) })
            }
            Job::Describe { feed: nth, then } => {
                let Open::Here { feed, .. } = &mut self.feeds[nth] else { return then(None) };
                // Rows that have been read ahead count, too.
                let is_kept = !feed.has_more() || matches!(self.keep(nth), Ok(Some(_)));
                let Open::Here { feed, .. } = &mut self.feeds[nth] else { return then(None) };
                // If a file can't be read, the read itself reports it.
                return then(feed.describe().ok().filter(|_| is_kept));
            }
            Job::Learn { feed: nth, news, then } => {
                let Open::Here { feed, .. } = &mut self.feeds[nth] else { return then(None) };
                let learned = feed.learn(news);
                let kept = learned.and_then(|fits| if fits { self.keep(nth) } else { Ok(None) });
                match kept {
                    Ok(below) => return then(below),
                    Err(error) => {
                        self.fails(nth, error);
                        return then(None);
                    }
                }
            }
        };
        // The next read reports the error.
        if let Err(error) = done {
            self.fails(nth, error);
        }
    }

    /// Reads the next records of a feed before anybody asks for them, or makes the marks of such
    /// records durable. Returns whether there was anything to do. An error waits for the next read.
    fn read_ahead(&mut self) -> bool {
        for open in &mut self.feeds {
            let Open::Here { feed, ahead } = open else { continue };
            if ahead.answers.len() >= ANSWERS_AHEAD {
                continue;
            }
            let Some(limit) = ahead.limit.take() else { continue };
            let from = feed.position();
            match feed.read(from, limit, &self.shared.is_over) {
                Ok(found) if !found.records.is_empty() => {
                    ahead.limit = Some(limit).filter(|_| found.upto - from >= SHORT_ROWS);
                    ahead.answers.push_back((from, found));
                }
                Ok(_) => {}
                Err(error) => ahead.failed = Some((from, error)),
            }
            return true;
        }
        let has_more = |open: &Open| matches!(open, Open::Here { feed, .. } if feed.has_more());
        let Some(nth) = self.feeds.iter().position(has_more) else { return false };
        matches!(self.keep(nth), Ok(Some(_)))
    }

    /// Answers a read, or returns it for a later try.
    fn done(&mut self, read: Read) -> Option<Read> {
        if self.shared.failed.lock().is_some() {
            (read.then)(None);
            return None;
        }
        let is_late = self.env.clock.monotonic_ns() >= read.until_ns;
        match self.answer(&read) {
            Ok(Answer::Found(found)) => {
                if found.records.is_empty() && read.from != u64::MAX && !is_late {
                    return Some(read);
                }
                (read.then)(Some(found));
            }
            Ok(Answer::NotNow) if !is_late => return Some(read),
            Ok(Answer::NotNow) => (read.then)(None),
            Ok(Answer::Elsewhere(log)) => {
                let Read { source, from, limit, until_ns, then, .. } = read;
                let wait_us = until_ns.saturating_sub(self.env.clock.monotonic_ns()) / 1000;
                log.read(Topic::Input(source), from, Some(limit), wait_us, then);
            }
            Err(error) => {
                // The failure is stored first, before the reader gets its answer and asks again.
                self.fails(read.feed, error);
                if !is_late && self.shared.failed.lock().is_none() {
                    return Some(read);
                }
                (read.then)(None);
            }
        }
        None
    }

    /// Reads some records of a feed. The marks are durable before any record is given out.
    fn answer(&mut self, read: &Read) -> Result<Answer> {
        if self.home.is_new() {
            self.feeds.iter_mut().for_each(|open| *open = Open::NotYet);
        }
        if matches!(self.feeds[read.feed], Open::NotYet) {
            self.feeds[read.feed] = match self.home.open(read.feed, read.from)? {
                Opened::Here(feed) => Open::Here { feed, ahead: Ahead::default() },
                Opened::Elsewhere(log) => Open::Elsewhere(log),
                Opened::NotNow => return Ok(Answer::NotNow),
            };
        }
        let (feed, ahead) = match &mut self.feeds[read.feed] {
            Open::Here { feed, ahead } => (feed, ahead),
            Open::Elsewhere(log) => return Ok(Answer::Elsewhere(log.clone())),
            Open::NotYet => return Ok(Answer::NotNow),
        };
        let (from, limit) = (read.from, read.limit);
        if self.home.is_away() && from < feed.begins() {
            // The reader belongs to an earlier generation, and will learn of the next one.
            return Ok(Answer::NotNow);
        }
        if from == u64::MAX {
            let first = ahead.answers.front().map(|(first, _)| *first);
            let first = first.or(ahead.failed.as_ref().map(|(from, _)| *from));
            let upto = first.unwrap_or_else(|| feed.position());
            return Ok(Answer::Found(Records { records: Vec::new(), upto }));
        }
        let found = match ahead.answers.pop_front_if(|(first, _)| *first == from) {
            Some((_, found)) => found,
            None => {
                ahead.answers.clear();
                if let Some((_, error)) = ahead.failed.take().filter(|(of, _)| *of == from) {
                    return Err(error);
                }
                feed.read(from, limit, &self.shared.is_over)?
            }
        };
        if ahead.answers.is_empty() {
            ahead.limit = Some(limit).filter(|_| found.upto - from >= SHORT_ROWS);
        }
        if feed.kept() < found.upto && self.keep(read.feed)?.is_none() {
            // Others may know other marks.
            self.feeds[read.feed] = Open::NotYet;
            return Ok(Answer::NotNow);
        }
        Ok(Answer::Found(found))
    }

    fn fails(&mut self, nth: usize, error: Error) {
        match self.home.instead(nth, &error) {
            None => drop(self.shared.failed.lock().get_or_insert(error)),
            Some(log) => self.feeds[nth] = Open::Elsewhere(log),
        }
    }

    /// Makes the marks of a feed durable, and then publishes its end.
    fn keep(&mut self, nth: usize) -> Result<Option<u64>> {
        let Open::Here { feed, .. } = &mut self.feeds[nth] else { return Ok(None) };
        let Some(below) = self.home.keep(nth, feed)? else { return Ok(None) };
        feed.is_written();
        feed.trim(below);
        self.shared.ends.lock()[nth] = feed.end();
        Ok(Some(below))
    }
}

/// The coordinator, in whose directory the marks are.
pub(super) struct Coordinator {
    pub env: Env,
    pub dir: PathBuf,
    pub marks: Marks,
}

impl Home for Coordinator {
    fn is_away(&self) -> bool {
        false
    }

    fn is_new(&mut self) -> bool {
        false
    }

    fn open(&mut self, _: usize, _: u64) -> Result<Opened> {
        // All of them are open from the start.
        Ok(Opened::NotNow)
    }

    fn keep(&mut self, _: usize, feed: &Feed) -> Result<Option<u64>> {
        let (key, known) = feed.known();
        self.marks.insert(key, known);
        marks::write(&*self.env.disk, &self.dir, &self.marks)?;
        Ok(Some(feed.begins()))
    }

    fn instead(&mut self, _: usize, _: &Error) -> Option<Arc<dyn Log>> {
        None
    }
}
