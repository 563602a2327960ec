//! Files that the app's streams read, as sources. The files of each stream are one source of the
//! cluster, after the topics. The coordinator reads them, and serves the rows to the worker that
//! asks for them. So cuts have their positions, as those of all sources, and the rows are not
//! stored again.
//!
//! A stream with event time and several files is read in the order of its rows' times. Other
//! streams are read file by file (`feed`).
//!
//! Positions of a feed are known at marks (`marks`). A file of the coordinator's directory has two
//! of them. The first is the last one that no recovery goes back beyond: the next start continues
//! there. The second is after all rows that were given out: up to it the next start checks that the
//! files have not changed.
//!
//! A feed that ends has further records after its rows. They complete its waiting batch, at its
//! place in the order, and release the watermark. A file that has grown since then continues at the
//! next start. Its new rows come after the record of its end.

mod feed;
mod file;
mod marks;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidemill_cluster::{Log, Record, Records, Refused, Then, Topic};
use tidemill_connect::{files, Chunk, FilesSettings, Place, Source};
use tidemill_core::{Error, Result, StreamId};
use tidemill_env::{Disk, Env, Handle};
use tidemill_txn::program::{Program, Stream};

use self::feed::Feed;
pub(super) use self::file::place_of;
use self::marks::{FileMark, Known, Mark, Marks};
use super::panics::catch_panic;
use crate::full_disk::{patient, SpaceWaiter, SpaceWaits};
use crate::functions::AppFunctions;
use crate::spec::{AppSpec, SourceDecl};

/// The pause of a waiting read before it checks again whether a file has grown.
const LOOK: Duration = Duration::from_millis(20);
/// The number of answers that are read ahead for each feed.
const ANSWERS_AHEAD: usize = 4;
/// The most rows of a region that are read at once.
const REGION_ROWS: u64 = 1 << 16;
/// The number of rows in an answer below which nothing is read ahead: the reader has almost all
/// that is there.
const SHORT_ROWS: u64 = 4096;

/// The number of sources of files: one for each stream that reads some.
pub(super) fn count(spec: &AppSpec) -> u32 {
    of_files(spec).count() as u32
}

/// The declarations of files, in their order.
pub(super) fn of_files(spec: &AppSpec) -> impl Iterator<Item = &SourceDecl> {
    spec.sources.iter().filter(|decl| decl.files.is_some())
}

/// The number of a stream's sources, if all of them end. The end of the last one completes the
/// waiting batch.
fn ends_of(spec: &AppSpec, decl: &SourceDecl) -> Option<usize> {
    let ends = |decl: &SourceDecl| {
        let follows = decl.files.as_ref().map(|files| files["follow"] == true);
        follows == Some(false)
    };
    let own = || spec.sources.iter().filter(|other| other.stream == decl.stream);
    own().all(ends).then(|| own().count())
}

/// The files that an app reads.
pub(super) struct Feeds {
    first: u32,
    /// The feeds that had ended and continue, each with the first record of the new rows.
    pub goes_on: Arc<[(u32, u64)]>,
    /// Whether the directory has no marks.
    is_blind: bool,
    /// The first records after all that was given out before.
    begins: Vec<u64>,
    shared: Arc<Shared>,
    jobs: Option<Sender<Job>>,
    // The lock is there only because a handle can't be shared between threads.
    thread: Mutex<Option<Handle>>,
}

/// The state that the thread shares.
struct Shared {
    feeds: Vec<About>,
    /// For each feed the record of its end, after it has been read.
    ends: Mutex<Vec<Option<u64>>>,
    failed: Mutex<Option<Error>>,
    is_over: AtomicBool,
    /// The reason why the thread is blocked, if it is.
    trouble: Mutex<Option<String>>,
}

impl SpaceWaiter for Shared {
    fn gives_up(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn stall(&self, error: Error) {
        *self.trouble.lock() = Some(error.what);
    }

    fn has_room(&self) {
        *self.trouble.lock() = None;
    }
}

/// A file with its name.
pub(super) type NamedFile = (String, Box<dyn Source>);

/// The positions of the files of a declaration.
pub(super) struct FilesAt<'a> {
    pub decl: &'a SourceDecl,
    pub files: Vec<FileAt>,
    /// The newest event time of the rows before.
    pub newest_us: Option<i64>,
    pub have_ended: bool,
}

/// The position of a file.
pub(super) struct FileAt {
    pub name: String,
    pub place: Place,
    /// The rows after it that were executed while earlier ones waited.
    pub left_out: Vec<Range<u64>>,
    /// Rows before it that have not been received: others between them were executed before.
    pub ahead: Vec<Chunk>,
}

/// Opens a declaration's files, which are at their marks.
fn opened(
    spec: &AppSpec,
    functions: &Arc<AppFunctions>,
    marks: &Marks,
    (nth, decl): (usize, &SourceDecl),
    env: &Env,
) -> Result<(Feed, About)> {
    let key = key_of(nth, decl);
    let known = (ends_of(spec, decl), marks.get(&key));
    Feed::open(decl, key.clone(), functions, known, env)
}

/// The key of a declaration's marks.
fn key_of(nth: usize, decl: &SourceDecl) -> String {
    format!("{nth} {}", decl.stream)
}

/// The properties of a feed that are known beforehand.
#[derive(Clone)]
pub(super) struct About {
    /// The path as the user has declared it.
    pub path: PathBuf,
    /// Whether the feed never ends.
    pub follows: bool,
}

enum Job {
    Read { feed: usize, from: u64, limit: usize, until_ns: u64, then: Then<Option<Records>> },
    Trim { feed: usize, below: u64 },
}

impl Feeds {
    /// Opens the files of an app, as the sources from `first` on. The marks in the directory count,
    /// unless the start is `fresh`.
    ///
    /// # Errors
    /// When a file can't be opened, or has changed since it was read. The error has the user's
    /// line.
    pub fn open(
        spec: &AppSpec,
        functions: &Arc<AppFunctions>,
        (first, dir, fresh): (u32, &Path, bool),
        env: &Env,
    ) -> Result<Feeds> {
        let marks = if fresh { None } else { marks::read(&*env.disk, dir)? };
        let (mut feeds, mut about, is_blind) = (Vec::new(), Vec::new(), marks.is_none());
        let marks = marks.unwrap_or_default();
        for (nth, decl) in of_files(spec).enumerate() {
            let opened = opened(spec, functions, &marks, (nth, decl), env);
            let (feed, known) = opened.map_err(|error| error.at(decl.at.clone()))?;
            feeds.push(feed);
            about.push(known);
        }
        let grown = feeds.iter().filter(|feed| feed.has_grown()).map(Feed::stream);
        let grown: BTreeSet<StreamId> =
            grown.flat_map(|stream| functions.end_together(stream)).collect();
        for (feed, decl) in feeds.iter_mut().zip(of_files(spec)) {
            if grown.contains(&feed.stream()) {
                feed.ends_again().map_err(|error| error.at(decl.at.clone()))?;
            }
        }
        let goes_on = (first..).zip(&feeds).filter_map(|(of, feed)| Some((of, feed.goes_on_at()?)));
        let goes_on = goes_on.collect();
        let begins =
            feeds.iter().map(|feed| feed.end().map_or(feed.position(), |end| end + 1)).collect();
        let ends = Mutex::new(feeds.iter().map(Feed::end).collect());
        let (failed, is_over, trouble) = Default::default();
        let shared = Arc::new(Shared { feeds: about, ends, failed, is_over, trouble });
        let waits = SpaceWaits::default();
        let waiting: Arc<dyn SpaceWaiter> = shared.clone();
        // This can't fail: it is set only here.
        let _ = waits.set(Arc::downgrade(&waiting));
        let env = &patient(env, &waits);
        let ahead = feeds.iter().map(|_| Ahead::default()).collect();
        let (own, dir, shared_too) = (env.clone(), dir.into(), shared.clone());
        let reader = Reader { env: own, dir, feeds, ahead, shared: shared_too };
        if reader.feeds.is_empty() {
            let thread = Mutex::new(None);
            return Ok(Feeds { first, goes_on, is_blind, begins, shared, jobs: None, thread });
        }
        let (jobs, taken) = channel();
        let told = reader.shared.clone();
        let run = move || {
            let read = || {
                reader.run(&taken);
                Ok(())
            };
            if let Err(error) = catch_panic("files", read) {
                told.failed.lock().get_or_insert(error);
            }
        };
        let thread = env.threads.spawn("cluster-feeds", Box::new(run));
        let thread = thread.map_err(|e| Error::io("starting a thread", &e))?;
        let (jobs, thread) = (Some(jobs), Mutex::new(Some(thread)));
        Ok(Feeds { first, goes_on, is_blind, begins, shared, jobs, thread })
    }

    /// Opens the files of a declaration. Returns them with their names, in their order.
    ///
    /// # Errors
    /// When a file can't be opened. The error has the user's line.
    pub fn files(decl: &SourceDecl, program: &Program, env: &Env) -> Result<Vec<NamedFile>> {
        let json = decl.files.as_ref().expect("it reads files").to_string();
        let is_it = |stream: &&Stream| *stream.spec.name == *decl.stream;
        let stream = program.streams.iter().find(is_it).expect("the program was checked");
        let opened = FilesSettings::from_json(&json)
            .and_then(|settings| files::open(&settings, &stream.spec.schema, env));
        opened.map_err(|error| error.at(decl.at.clone()))
    }

    /// Stores the positions of all files of an app as marks. If all files have ended, so have the
    /// feeds. Otherwise all feeds end once more, because they complete batches and windows together.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn begin_at(disk: &dyn Disk, dir: &Path, all: Vec<FilesAt<'_>>) -> Result<()> {
        let have_ended = all.iter().all(|files| files.have_ended);
        let known = |(nth, of): (usize, FilesAt<'_>)| {
            let offset = of.files.iter().map(|file| file.place.offset).sum();
            let left_out = of.files.iter().map(|file| file.left_out.clone()).collect();
            let file = |FileAt { name, place, .. }: FileAt| {
                let read = place.clone();
                FileMark { name, place, given: 0, read }
            };
            let files = of.files.into_iter().map(file).collect();
            let mark = Mark { offset, newest_us: of.newest_us, files };
            let (first, last, ended) = (mark.clone(), mark, Vec::new());
            let known =
                Known { first, last, ends_at: have_ended.then_some(offset), ended, left_out };
            (key_of(nth, of.decl), known)
        };
        let marks: Marks = all.into_iter().enumerate().map(known).collect();
        marks::write(disk, dir, &marks)
    }

    /// Refuses a directory that has lost its marks. `inputs` are the first records of all sources that
    /// were not executed.
    ///
    /// # Errors
    /// When it has.
    pub fn check(&self, dir: &Path, inputs: &[u64]) -> Result<()> {
        let own = inputs.iter().skip(self.first as usize);
        match self.is_blind && own.into_iter().any(|input| *input > 0) {
            true => Err(marks::missing(dir)),
            false => Ok(()),
        }
    }

    /// Returns the positions of all files of an app, with the first records of their sources that were
    /// not executed.
    ///
    /// # Errors
    /// When a file has changed since it was read.
    pub fn stand_at<'a>(
        spec: &'a AppSpec,
        functions: &Arc<AppFunctions>,
        (dir, inputs): (&Path, &[u64]),
        env: &Env,
    ) -> Result<Vec<FilesAt<'a>>> {
        let marks = marks::read(&*env.disk, dir)?;
        if marks.is_none() && inputs.iter().any(|input| *input > 0) {
            return Err(marks::missing(dir));
        }
        let marks = marks.unwrap_or_default();
        let stand_at = |((nth, decl), input): ((usize, &'a SourceDecl), &u64)| {
            let (mut feed, _) = opened(spec, functions, &marks, (nth, decl), env)?;
            let files = feed.places(*input)?;
            let (newest_us, have_ended) = (feed.newest_us(), feed.had_ended(*input));
            Ok(FilesAt { decl, files, newest_us, have_ended })
        };
        let all = of_files(spec).enumerate().zip(inputs);
        all.map(|of| stand_at(of).map_err(|e: Error| e.at(of.0 .1.at.clone()))).collect()
    }

    /// Returns the records of a declaration with offsets in a range, which were read before.
    ///
    /// # Errors
    /// When a file has changed since it was read.
    pub fn region(
        spec: &AppSpec,
        functions: &Arc<AppFunctions>,
        (dir, nth): (&Path, usize),
        range: Range<u64>,
        env: &Env,
    ) -> Result<Vec<(u64, Record)>> {
        let marks = marks::read(&*env.disk, dir)?.unwrap_or_default();
        let decl = of_files(spec).nth(nth).expect("it is one of them");
        let (mut feed, _) = opened(spec, functions, &marks, (nth, decl), env)?;
        let (mut records, mut from, never) = (Vec::new(), range.start, AtomicBool::new(false));
        while from < range.end {
            let limit = (range.end - from).min(REGION_ROWS) as usize;
            let found = feed.read(from, limit, &never)?;
            records.extend(found.records);
            if found.upto == from {
                break;
            }
            from = found.upto;
        }
        Ok(records)
    }

    /// Each source with its first record after all that was given out before, and whether it has
    /// ended.
    pub fn positions(&self) -> impl Iterator<Item = (u32, u64, bool)> + '_ {
        let ends = self.shared.ends.lock().clone();
        let all = self.begins.iter().zip(ends);
        (self.first..).zip(all).map(|(source, (at, end))| (source, *at, end.is_some()))
    }

    /// The feeds' properties, each with its source.
    pub fn all(&self) -> impl Iterator<Item = (u32, &About)> {
        (self.first..).zip(&self.shared.feeds)
    }

    /// The record of a source's end, after it is known. Nothing follows it.
    pub fn end(&self, source: u32) -> Option<u64> {
        let feed = source.checked_sub(self.first)?;
        self.shared.ends.lock().get(feed as usize).copied().flatten()
    }

    /// The reason why a feed is blocked, if one is.
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble.lock().clone()
    }

    fn job(&self, job: Job) {
        let unsent = match &self.jobs {
            None => Some(job),
            Some(jobs) => jobs.send(job).err().map(|unsent| unsent.0),
        };
        if let Some(Job::Read { then, .. }) = unsent {
            then(None);
        }
    }
}

impl Drop for Feeds {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.jobs = None;
        if let Some(thread) = self.thread.lock().take() {
            // The thread has reported why it ended, even after a panic.
            let _ = thread.join();
        }
    }
}

/// The log of the feeds' rows, for readers that know them by their sources.
pub(super) struct Rows {
    pub feeds: Arc<Feeds>,
    pub env: Env,
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
        let feed = match topic {
            Topic::Input(source) => source.checked_sub(self.feeds.first),
            Topic::Cuts | Topic::Output(_) => None,
        };
        let Some(feed) = feed.filter(|feed| (*feed as usize) < self.feeds.shared.feeds.len())
        else {
            return then(None);
        };
        let until_ns = self.env.clock.monotonic_ns() + 1000 * wait_us;
        let (feed, limit) = (feed as usize, limit.unwrap_or(usize::MAX));
        self.feeds.job(Job::Read { feed, from, limit, until_ns, then });
    }

    fn trim(&self, topic: Topic, below: u64) {
        if let Topic::Input(source) = topic {
            let feed = (source - self.feeds.first) as usize;
            self.feeds.job(Job::Trim { feed, below });
        }
    }

    fn failed(&self) -> Option<Error> {
        self.feeds.shared.failed.lock().clone()
    }
}

/// The thread that reads.
struct Reader {
    env: Env,
    dir: PathBuf,
    feeds: Vec<Feed>,
    /// The answers of each feed that have been read before anybody asked for them.
    ahead: Vec<Ahead>,
    shared: Arc<Shared>,
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

impl Reader {
    fn run(mut self, jobs: &Receiver<Job>) {
        let mut waiting: Vec<Job> = Vec::new();
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
                Ok(job) => waiting.push(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // Waiting readers get an answer.
                    return waiting.into_iter().for_each(|job| {
                        if let Job::Read { then, .. } = job {
                            then(None);
                        }
                    });
                }
            }
            waiting = waiting.into_iter().filter_map(|job| self.done(job)).collect();
        }
    }

    /// Reads the next records of a feed before anybody asks for them, or makes the marks of such
    /// records durable. Returns whether there was anything to do. An error waits for the next read.
    fn read_ahead(&mut self) -> bool {
        let is_open = |ahead: &Ahead| ahead.limit.is_some() && ahead.answers.len() < ANSWERS_AHEAD;
        if let Some(feed) = self.ahead.iter().position(is_open) {
            let limit = self.ahead[feed].limit.take().expect("it is open");
            let from = self.feeds[feed].position();
            match self.feeds[feed].read(from, limit, &self.shared.is_over) {
                Ok(found) if !found.records.is_empty() => {
                    let ahead = &mut self.ahead[feed];
                    ahead.limit = Some(limit).filter(|_| found.upto - from >= SHORT_ROWS);
                    ahead.answers.push_back((from, found));
                }
                Ok(_) => {}
                Err(error) => self.ahead[feed].failed = Some((from, error)),
            }
            return true;
        }
        let has_more = self.feeds.iter().any(Feed::has_more);
        has_more && self.write_marks().is_ok()
    }

    /// Does a job, or returns it for a later try.
    fn done(&mut self, job: Job) -> Option<Job> {
        let (feed, from, limit, until_ns, then) = match job {
            Job::Trim { feed, below } => {
                let has_gone_on = self.feeds[feed].trim(below);
                let written = if has_gone_on { self.write_marks() } else { Ok(()) };
                // The next read reports the error.
                if let Err(error) = written {
                    self.fails(error);
                }
                return None;
            }
            Job::Read { feed, from, limit, until_ns, then } => (feed, from, limit, until_ns, then),
        };
        if self.shared.failed.lock().is_some() {
            then(None);
            return None;
        }
        match self.read(feed, from, limit) {
            Ok(found) => {
                let is_late = self.env.clock.monotonic_ns() >= until_ns;
                if found.records.is_empty() && from != u64::MAX && !is_late {
                    return Some(Job::Read { feed, from, limit, until_ns, then });
                }
                then(Some(found));
            }
            Err(error) => {
                // The failure is stored first, before the reader gets its answer and asks again.
                self.fails(error);
                then(None);
            }
        }
        None
    }

    /// Reads some records of a feed. The marks are durable before any record is given out.
    fn read(&mut self, feed: usize, from: u64, limit: usize) -> Result<Records> {
        let ahead = &mut self.ahead[feed];
        if from == u64::MAX {
            let first = ahead.answers.front().map(|(first, _)| *first);
            let first = first.or(ahead.failed.as_ref().map(|(from, _)| *from));
            let upto = first.unwrap_or_else(|| self.feeds[feed].position());
            return Ok(Records { records: Vec::new(), upto });
        }
        let found = match ahead.answers.pop_front_if(|(first, _)| *first == from) {
            Some((_, found)) => found,
            None => {
                ahead.answers.clear();
                if let Some((_, error)) = ahead.failed.take().filter(|(of, _)| *of == from) {
                    return Err(error);
                }
                self.feeds[feed].read(from, limit, &self.shared.is_over)?
            }
        };
        if ahead.answers.is_empty() {
            ahead.limit = Some(limit).filter(|_| found.upto - from >= SHORT_ROWS);
        }
        if self.feeds[feed].has_more() {
            self.write_marks()?;
        }
        Ok(found)
    }

    fn fails(&self, error: Error) {
        self.shared.failed.lock().get_or_insert(error);
    }

    /// Makes the marks of all feeds durable, and then publishes their ends.
    fn write_marks(&mut self) -> Result<()> {
        let marks: Marks = self.feeds.iter().map(Feed::known).collect();
        marks::write(&*self.env.disk, &self.dir, &marks)?;
        self.feeds.iter_mut().for_each(Feed::is_written);
        *self.shared.ends.lock() = self.feeds.iter().map(Feed::end).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
