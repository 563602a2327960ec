//! Files that the app's streams read, as sources: those of each stream are one source of the cluster, behind its topics. The
//! coordinator reads them, and serves what it has read to the worker that asks for it. So places in them are in cuts, as all
//! others are, and nothing is written twice.
//!
//! A stream in event time that has several files is read in the order of its rows' times, one that has not file by file. Where a feed
//! stood is known at marks, of which the last one that no recovery goes behind is in a file of the coordinator's directory: whoever
//! starts again goes on there, and finds out whether the files are what they were.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidemill_cluster::{Record, Records, Refused, Request, RequestId, Topic};
use tidemill_connect::{files, BadRow, Chunk, FilesSettings, Place, Polled, Source};
use tidemill_core::{Error, Result, Row, StreamId, StreamTime, Value};
use tidemill_durable::{Log, Then};
use tidemill_env::{Disk, Env, Handle};
use tidemill_function::{output_bytes, Functions as _};

use crate::data_dir::replace;
use crate::functions::AppFunctions;
use crate::spec::{AppSpec, SourceDecl};

/// The file with the marks.
const FEEDS: &str = "feeds";
/// So many rows are read of a file at once.
const ROWS: usize = 1024;
/// So many bytes of rows are given at once, about: an answer has room for them.
const ROWS_BYTES: usize = 1 << 19;
/// What a row takes beside its values, about.
const ROW_BYTES: usize = 64;
/// So many places of files marks have at most, all together: with more every second mark goes.
const PLACES_MAX: usize = 1 << 16;
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

/// The files that an app reads.
pub(super) struct Feeds {
    first: u32,
    shared: Arc<Shared>,
    jobs: Option<Sender<Job>>,
    // Behind a lock only because a handle is not shared between threads.
    thread: Mutex<Option<Handle>>,
}

/// What the thread tells.
struct Shared {
    feeds: Vec<About>,
    /// For each where it ends, once it has been read to there.
    ends: Mutex<Vec<Option<u64>>>,
    failed: Mutex<Option<Error>>,
    is_over: AtomicBool,
}

/// What is known of a feed beforehand.
#[derive(Clone)]
pub(super) struct About {
    pub stream: StreamId,
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
        let marks = if fresh { None } else { read_marks(&*env.disk, dir)? };
        let (mut feeds, mut about) = (Vec::new(), Vec::new());
        for (nth, decl) in of_files(spec).enumerate() {
            let key = format!("{nth} {}", decl.stream);
            let opened = Feed::open(decl, key, functions, marks.as_ref(), env);
            let (feed, known) = opened.map_err(|error| error.at(decl.at.clone()))?;
            feeds.push(feed);
            about.push(known);
        }
        let ends = Mutex::new(vec![None; feeds.len()]);
        let (failed, is_over) = (Mutex::default(), AtomicBool::default());
        let shared = Arc::new(Shared { feeds: about, ends, failed, is_over });
        let reader = Reader { env: env.clone(), dir: dir.into(), feeds, shared: shared.clone() };
        if reader.feeds.is_empty() {
            return Ok(Feeds { first, shared, jobs: None, thread: Mutex::new(None) });
        }
        // So that it is known what was read even where nothing has been trimmed.
        reader.write_marks()?;
        let (jobs, taken) = channel();
        let run = move || reader.run(&taken);
        let thread = env.threads.spawn("cluster-feeds", Box::new(run));
        let thread = thread.map_err(|e| Error::io("starting a thread", &e))?;
        Ok(Feeds { first, shared, jobs: Some(jobs), thread: Mutex::new(Some(thread)) })
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

/// What is known of a feed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    mark: Mark,
    /// Where it ends, if it has been read to there.
    ends_at: Option<u64>,
}

/// Where a feed stood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    /// The row that comes next.
    offset: u64,
    /// Of each file, in their order.
    files: Vec<FileMark>,
}

/// Where a file of one stood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMark {
    name: String,
    place: Place,
    /// So many rows behind the place had been given.
    given: u64,
}

/// By the number of the declaration and its stream.
type Marks = BTreeMap<String, Known>;

fn read_marks(disk: &dyn Disk, dir: &Path) -> Result<Option<Marks>> {
    let path = dir.join(FEEDS);
    let mut text = String::new();
    let read = disk.open_read(&path);
    match read.and_then(|mut file| std::io::Read::read_to_string(&mut file, &mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("reading {}", path.display()), &error)),
    }
    serde_json::from_str(&text).map(Some).map_err(|error| {
        Error::input(format!("{} is damaged: {error}", path.display())).help(
            "remove it: then it is not found out whether the files that streams read are what they were",
        )
    })
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
        let failed = match job {
            Job::Trim { feed, below } => {
                let has_gone_on = self.feeds[feed].trim(below);
                if has_gone_on { self.write_marks() } else { Ok(()) }.err()
            }
            Job::Read { feed, from, limit, until_ns, then } => {
                let is_failed = self.shared.failed.lock().is_some();
                let found = match is_failed {
                    true => return tell(then, None),
                    false => self.feeds[feed].read(from, limit, &self.shared.is_over),
                };
                let is_late = self.env.clock.monotonic_ns() >= until_ns;
                match found {
                    Ok(found) if found.records.is_empty() && from != u64::MAX && !is_late => {
                        return Some(Job::Read { feed, from, limit, until_ns, then });
                    }
                    Ok(found) => {
                        let (known, ends_at) =
                            (self.shared.ends.lock()[feed], self.feeds[feed].ends_at);
                        // Before anybody hears of its end: later there may be more.
                        let written = if known == ends_at { Ok(()) } else { self.write_marks() };
                        self.shared.ends.lock()[feed] = ends_at;
                        if written.is_ok() {
                            return tell(then, Some(found));
                        }
                        then(None);
                        written.err()
                    }
                    Err(error) => {
                        // Before whoever waits hears of it, and asks again.
                        self.shared.failed.lock().get_or_insert(error);
                        return tell(then, None);
                    }
                }
            }
        };
        if let Some(error) = failed {
            self.shared.failed.lock().get_or_insert(error);
        }
        None
    }

    /// Makes durable what is known of each feed.
    fn write_marks(&self) -> Result<()> {
        let known = |feed: &Feed| {
            let known = Known { mark: feed.marks[0].clone(), ends_at: feed.ends_at };
            (feed.key.clone(), known)
        };
        let marks: Marks = self.feeds.iter().map(known).collect();
        let text = serde_json::to_string(&marks).expect("marks are JSON");
        let failed = |e| Error::io(format!("writing {}", self.dir.join(FEEDS).display()), &e);
        replace(&*self.env.disk, &self.dir, FEEDS, &text).map_err(failed)
    }
}

fn tell(then: Then<Option<Records>>, found: Option<Records>) -> Option<Job> {
    then(found);
    None
}

/// The files of a stream, as one source.
struct Feed {
    /// What its marks are called, and the stream's name.
    key: String,
    name: String,
    path: PathBuf,
    stream: StreamId,
    functions: Arc<AppFunctions>,
    /// The column of its times, if it is in event time.
    time: Option<usize>,
    files: Vec<File>,
    /// The row that comes next. Behind the last one there is one more offset, where it says that it ends.
    offset: u64,
    /// That offset, once it is known.
    ends_at: Option<u64>,
    /// Where it stood, in order; the first is one that no recovery goes behind.
    marks: VecDeque<Mark>,
}

/// One of them.
struct File {
    name: String,
    source: Box<dyn Source>,
    /// Rows that have been read, and how many of them have been given.
    chunk: Option<Chunk>,
    good: usize,
    bad: usize,
    /// Where they were read.
    place: Place,
    has_ended: bool,
}

/// About how many bytes a record takes.
fn size(record: &Record) -> usize {
    let Record::Requests(requests) = record else { return ROW_BYTES };
    let size = |Request { id, call }: &Request| {
        ROW_BYTES + id.len() + output_bytes(&call.key) + output_bytes(&call.args)
    };
    requests.iter().map(size).sum()
}

/// What comes next of a feed.
enum Next {
    Row(usize),
    /// Nothing now.
    Later,
    End,
}

impl Feed {
    fn open(
        decl: &SourceDecl,
        key: String,
        functions: &Arc<AppFunctions>,
        marks: Option<&Marks>,
        env: &Env,
    ) -> Result<(Feed, About)> {
        let stream = functions.taken(&decl.stream)?;
        let (_, schema) = functions.stream(stream).expect("it is one of them");
        let json = decl.files.as_ref().expect("it reads files").to_string();
        let settings = FilesSettings::from_json(&json)?;
        let file = |(name, source)| File {
            name,
            source,
            chunk: None,
            good: 0,
            bad: 0,
            place: Place::start(),
            has_ended: false,
        };
        let files: Vec<File> =
            files::open(&settings, &schema, env)?.into_iter().map(file).collect();
        let time = match functions.program().streams[stream.index()].spec.time {
            StreamTime::Event { column } => Some(column),
            StreamTime::Arrival => None,
        };
        let begin = Mark { offset: 0, files: files.iter().map(File::mark).collect() };
        let mut marks_of = VecDeque::from([begin]);
        let mut ends_at = None;
        if let Some(Known { mark, ends_at: end }) = marks.and_then(|marks| marks.get(&key)) {
            ends_at = *end;
            let names = |mark: &Mark| -> Vec<String> {
                mark.files.iter().map(|file| file.name.clone()).collect()
            };
            let (was, is) = (names(mark), names(&marks_of[0]));
            if was != is {
                return Err(Error::input(format!(
                    "stream {} reads the files {}, and when its log was begun it read {}",
                    decl.stream,
                    is.join(", "),
                    was.join(", ")
                ))
                .help(
                    "restore them as they were, or begin anew with --fresh; files may be added to a folder that \
                     is read with follow=True",
                ));
            }
            marks_of[0] = mark.clone();
        }
        let (path, follows) = (settings.path, settings.follow);
        let about = About { stream, path: path.clone(), follows };
        let (name, functions) = (decl.stream.clone(), functions.clone());
        let mut feed = Feed {
            key,
            name,
            path,
            stream,
            functions,
            time,
            files,
            offset: 0,
            ends_at,
            marks: marks_of,
        };
        // So that what is not what it was is refused before anything runs.
        let mark = feed.marks[0].clone();
        feed.go_to(&mark)?;
        Ok((feed, about))
    }

    /// So many records at most from an offset on; fewer are no end.
    fn read(&mut self, from: u64, limit: usize, is_over: &AtomicBool) -> Result<Records> {
        if from == u64::MAX {
            return Ok(Records { records: Vec::new(), upto: self.offset });
        }
        if from != self.offset && !self.seek(from, is_over)? {
            return Ok(Records { records: Vec::new(), upto: from });
        }
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < limit && bytes < ROWS_BYTES && !is_over.load(Ordering::Acquire) {
            let offset = self.offset;
            match self.next()? {
                Next::Row(file) => {
                    let record = self.record(file);
                    bytes += size(&record);
                    records.push((offset, record));
                }
                Next::End if self.ends_at.is_none_or(|end| end == offset) => {
                    records.push((offset, Record::End));
                    self.end();
                }
                Next::End | Next::Later => break,
            }
        }
        if self.ends_at.is_none() {
            self.mark();
        }
        Ok(Records { records, upto: self.offset })
    }

    /// Goes to an offset that was read before; whether it has got there.
    fn seek(&mut self, from: u64, is_over: &AtomicBool) -> Result<bool> {
        if from < self.offset {
            let mark = self.marks.iter().rfind(|mark| mark.offset <= from);
            let mark = mark.cloned().ok_or_else(|| self.not_there(from))?;
            self.go_to(&mark)?;
        }
        while self.offset < from {
            if is_over.load(Ordering::Acquire) {
                return Ok(false);
            }
            match self.next()? {
                Next::Row(file) => drop(self.give(file)),
                // The place behind its end.
                Next::End if from == self.offset + 1 => {
                    self.end();
                }
                Next::End | Next::Later => return Err(self.not_there(from)),
            }
        }
        Ok(true)
    }

    fn not_there(&self, from: u64) -> Error {
        Error::input(format!(
            "stream {} has read {from} rows of {}, where {} are now",
            self.name,
            self.path.display(),
            self.offset
        ))
        .help("restore them as they were, or begin anew with --fresh")
    }

    fn go_to(&mut self, mark: &Mark) -> Result<()> {
        for (file, at) in self.files.iter_mut().zip(&mark.files) {
            file.source.resume(&at.place)?;
            (file.chunk, file.good, file.bad, file.has_ended) = (None, 0, 0, false);
            file.place = at.place.clone();
            for _ in 0..at.given {
                if file.look(1)? {
                    let _ = file.give();
                }
            }
        }
        self.offset = mark.offset;
        Ok(())
    }

    /// Which file has the next row.
    fn first(&mut self) -> Result<Next> {
        let mut first: Option<(i64, usize)> = None;
        for (nth, file) in self.files.iter_mut().enumerate() {
            if !file.look(ROWS)? {
                match file.has_ended {
                    true => continue,
                    // Whether it comes first is not known yet.
                    false => return Ok(Next::Later),
                }
            }
            let Some(column) = self.time else { return Ok(Next::Row(nth)) };
            let time = file.time(column);
            if first.is_none_or(|(of, _)| time < of) {
                first = Some((time, nth));
            }
        }
        Ok(first.map_or(Next::End, |(_, nth)| Next::Row(nth)))
    }

    /// The same, where a feed that has ended has no more.
    fn next(&mut self) -> Result<Next> {
        match self.first()? {
            Next::Row(_) if self.ends_at == Some(self.offset) => Err(Error::input(format!(
                "stream {} has read {} to its end, behind which there is more now",
                self.name,
                self.path.display()
            ))
            .help("restore it as it was, or begin anew with --fresh; what grows is read with follow=True")),
            next => Ok(next),
        }
    }

    /// Nothing more comes; what has been read is known to its last byte.
    fn end(&mut self) {
        self.mark();
        self.ends_at = Some(self.offset);
        self.offset += 1;
    }

    /// Marks where it stands.
    fn mark(&mut self) {
        if self.marks.back().is_some_and(|last| last.offset >= self.offset) {
            return;
        }
        if self.marks.len() * self.files.len() >= PLACES_MAX {
            let mut nth = 0;
            self.marks.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
        }
        let files = self.files.iter().map(File::mark).collect();
        self.marks.push_back(Mark { offset: self.offset, files });
    }

    /// Takes the next row, which a file has.
    fn give(&mut self, file: usize) -> std::result::Result<Row, BadRow> {
        self.offset += 1;
        self.files[file].give()
    }

    /// The transactions of the next row, whose replies have its place as their id. One that can't be read is a row of the
    /// stream's dead letters.
    fn record(&mut self, file: usize) -> Record {
        let id = format!("{}/{}", self.files[file].name, self.files[file].offset());
        let id = RequestId::from(id.as_bytes());
        let functions = self.functions.clone();
        let calls = match self.give(file) {
            Err(bad) => vec![functions.dead(self.stream, &self.files[file].name, &bad)],
            Ok(row) => functions
                .event(self.stream, &row)
                .unwrap_or_else(|error| vec![functions.unreadable(&error.what)]),
        };
        let request = |call| Request { id: id.clone(), call };
        Record::Requests(calls.into_iter().map(request).collect())
    }

    /// No recovery goes behind an offset any more; whether there is a mark that says so.
    fn trim(&mut self, below: u64) -> bool {
        let needed = self.marks.iter().rposition(|mark| mark.offset <= below).unwrap_or(0);
        self.marks.drain(..needed);
        needed > 0
    }
}

impl File {
    /// Whether there is a next row, which has been read then, with so many others at most.
    fn look(&mut self, rows: usize) -> Result<bool> {
        while !self.has_ended {
            if self.chunk.as_ref().is_some_and(|chunk| self.good + self.bad < chunk.rows()) {
                return Ok(true);
            }
            self.place = self.source.place();
            (self.chunk, self.good, self.bad) = (None, 0, 0);
            match self.source.poll(rows)? {
                Polled::Rows(chunk) => self.chunk = Some(chunk),
                Polled::Pending => break,
                Polled::End => self.has_ended = true,
            }
        }
        Ok(false)
    }

    /// Whether the next row is one that could not be read.
    fn is_bad(&self, chunk: &Chunk) -> bool {
        let good = chunk.offsets.get(self.good);
        chunk.bad.get(self.bad).is_some_and(|bad| good.is_none_or(|good| bad.offset < *good))
    }

    /// The number of the next row in its file.
    fn offset(&self) -> u64 {
        let Some(chunk) = &self.chunk else { return self.place.offset };
        match self.is_bad(chunk) {
            true => chunk.bad[self.bad].offset,
            false => chunk.offsets[self.good],
        }
    }

    /// The time of the next row; one that could not be read has none, and comes first.
    fn time(&self, column: usize) -> i64 {
        let chunk = self.chunk.as_ref().expect("there is a row");
        if self.is_bad(chunk) {
            return i64::MIN;
        }
        match chunk.batch.value(column, self.good) {
            Value::Timestamp(time) | Value::Int(time) => time,
            _ => i64::MIN,
        }
    }

    fn give(&mut self) -> std::result::Result<Row, BadRow> {
        let chunk = self.chunk.as_ref().expect("there is a row");
        if self.is_bad(chunk) {
            self.bad += 1;
            return Err(chunk.bad[self.bad - 1].clone());
        }
        self.good += 1;
        Ok(chunk.batch.row(self.good - 1))
    }

    fn mark(&self) -> FileMark {
        let given = (self.good + self.bad) as u64;
        FileMark { name: self.name.clone(), place: self.place.clone(), given }
    }
}

#[cfg(test)]
mod tests;
