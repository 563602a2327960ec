//! Files that the app's streams read, as sources: those of each stream are one source of the cluster, behind its topics. The
//! coordinator reads them, and serves what it has read to the worker that asks for it. So places in them are in cuts, as all
//! others are, and nothing is written twice.
//!
//! A stream in event time that has several files is read in the order of its rows' times, one that has not file by file (`feed`).
//! Where a feed stood is known at marks (`marks`), of which a file of the coordinator's directory has two: the last one that no
//! recovery goes behind, where whoever starts again goes on; and one behind all that anybody has been given, up to which he finds
//! out whether the files are what they were. Behind its rows a feed that ends says so: what waits to be a batch is one then, in its
//! place among all that is executed, and nothing holds its watermark back any more. A file that has grown since goes on at the next
//! start: its new rows are behind the record that says that it ended.

mod feed;
mod file;
mod marks;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidemill_cluster::{Record, Records, Refused, Topic};
use tidemill_core::{Error, Result, StreamId};
use tidemill_durable::{Log, Then};
use tidemill_env::{Env, Handle};

use self::feed::Feed;
use self::marks::Marks;
use super::caught::caught;
use crate::functions::AppFunctions;
use crate::patient::{patient, Waiting, Waits};
use crate::spec::{AppSpec, SourceDecl};

/// So long a read waits before it looks again whether a file has grown.
const LOOK: Duration = Duration::from_millis(20);

/// How many sources files are: one for each stream that reads some.
pub(super) fn count(spec: &AppSpec) -> u32 {
    of_files(spec).count() as u32
}

/// The declarations of files, in their order.
pub(super) fn of_files(spec: &AppSpec) -> impl Iterator<Item = &SourceDecl> {
    spec.sources.iter().filter(|decl| decl.files.is_some())
}

/// How many sources a stream has, if all of them end: with the last of them what waits to be a batch is one.
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
    /// Those that had ended and go on, each with the first record of what is new.
    pub goes_on: Arc<[(u32, u64)]>,
    shared: Arc<Shared>,
    jobs: Option<Sender<Job>>,
    // Behind a lock only because a handle is not shared between threads.
    thread: Mutex<Option<Handle>>,
}

/// What the thread tells.
struct Shared {
    feeds: Vec<About>,
    /// For each where it says that it ends, once it has been read to there.
    ends: Mutex<Vec<Option<u64>>>,
    failed: Mutex<Option<Error>>,
    is_over: AtomicBool,
    /// What it waits for.
    trouble: Mutex<Option<String>>,
}

impl Waiting for Shared {
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

/// What is known of a feed beforehand.
#[derive(Clone)]
pub(super) struct About {
    /// As the user has it.
    pub path: PathBuf,
    /// Whether it never ends.
    pub follows: bool,
}

enum Job {
    Read { feed: usize, from: u64, limit: usize, until_ns: u64, then: Then<Option<Records>> },
    Trim { feed: usize, below: u64 },
}

impl Feeds {
    /// Those of an app, as the sources from `first` on. Marks are in a directory, of which those that are there count, unless
    /// all begins anew.
    ///
    /// # Errors
    /// When a file can't be opened, or is not what was read before; with the user's line.
    pub fn open(
        spec: &AppSpec,
        functions: &Arc<AppFunctions>,
        (first, dir, fresh): (u32, &Path, bool),
        env: &Env,
    ) -> Result<Feeds> {
        let marks = if fresh { None } else { marks::read(&*env.disk, dir)? };
        let (mut feeds, mut about) = (Vec::new(), Vec::new());
        for (nth, decl) in of_files(spec).enumerate() {
            let key = format!("{nth} {}", decl.stream);
            let known = marks.as_ref().and_then(|marks| marks.get(&key));
            let opened = Feed::open(decl, key, functions, (ends_of(spec, decl), known), env);
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
        let ends = Mutex::new(feeds.iter().map(Feed::end).collect());
        let (failed, is_over, trouble) = Default::default();
        let shared = Arc::new(Shared { feeds: about, ends, failed, is_over, trouble });
        let waits = Waits::default();
        let waiting: Arc<dyn Waiting> = shared.clone();
        // Nobody else has set it.
        let _ = waits.set(Arc::downgrade(&waiting));
        let env = &patient(env, &waits);
        let reader = Reader { env: env.clone(), dir: dir.into(), feeds, shared: shared.clone() };
        if reader.feeds.is_empty() {
            return Ok(Feeds { first, goes_on, shared, jobs: None, thread: Mutex::new(None) });
        }
        let (jobs, taken) = channel();
        let told = reader.shared.clone();
        let run = move || {
            let read = || {
                reader.run(&taken);
                Ok(())
            };
            if let Err(error) = caught("files", read) {
                told.failed.lock().get_or_insert(error);
            }
        };
        let thread = env.threads.spawn("cluster-feeds", Box::new(run));
        let thread = thread.map_err(|e| Error::io("starting a thread", &e))?;
        Ok(Feeds { first, goes_on, shared, jobs: Some(jobs), thread: Mutex::new(Some(thread)) })
    }

    /// What is known of them beforehand, each with its source.
    pub fn all(&self) -> impl Iterator<Item = (u32, &About)> {
        (self.first..).zip(&self.shared.feeds)
    }

    /// Where a source ends, once that is known: nothing is read behind it.
    pub fn end(&self, source: u32) -> Option<u64> {
        let feed = source.checked_sub(self.first)?;
        self.shared.ends.lock().get(feed as usize).copied().flatten()
    }

    /// What holds it up, if anything does.
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
            // It has told why it ended, a panic too.
            let _ = thread.join();
        }
    }
}

/// The log of its rows, for those who read them by their sources.
pub(super) struct Rows {
    pub feeds: Arc<Feeds>,
    pub env: Env,
}

impl Log for Rows {
    fn append(&self, _: Topic, _: u64, _: Record, then: Then<std::result::Result<u64, Refused>>) {
        // Nobody else writes files.
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
    shared: Arc<Shared>,
}

impl Reader {
    fn run(mut self, jobs: &Receiver<Job>) {
        let mut waiting: Vec<Job> = Vec::new();
        loop {
            let job = match waiting.is_empty() {
                true => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => jobs.recv_timeout(LOOK),
            };
            match job {
                Ok(job) => waiting.push(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // Whoever waits is told.
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

    /// Does a job, or gives it back, to be done later.
    fn done(&mut self, job: Job) -> Option<Job> {
        let (feed, from, limit, until_ns, then) = match job {
            Job::Trim { feed, below } => {
                let has_gone_on = self.feeds[feed].trim(below);
                let written = if has_gone_on { self.write_marks() } else { Ok(()) };
                // Who reads next hears of it.
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
                // Before whoever waits hears of it, and asks again.
                self.fails(error);
                then(None);
            }
        }
        None
    }

    /// Some records of a feed. Before anybody has them it is known durably what was read.
    fn read(&mut self, feed: usize, from: u64, limit: usize) -> Result<Records> {
        let found = self.feeds[feed].read(from, limit, &self.shared.is_over)?;
        if self.feeds[feed].has_more() {
            self.write_marks()?;
            self.shared.ends.lock()[feed] = self.feeds[feed].end();
        }
        Ok(found)
    }

    fn fails(&self, error: Error) {
        self.shared.failed.lock().get_or_insert(error);
    }

    /// Makes durable what is known of each feed.
    fn write_marks(&mut self) -> Result<()> {
        let marks: Marks = self.feeds.iter().map(Feed::known).collect();
        marks::write(&*self.env.disk, &self.dir, &marks)?;
        self.feeds.iter_mut().for_each(Feed::is_written);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
