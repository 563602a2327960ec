//! The log of a cluster in the files of one process, which serves it to the others.
//!
//! All topics are in one log, so that one sync makes all waiting records durable. Records that are
//! not trimmed are also in memory, from which they are read.
//!
//! A record of the files is a byte for its kind, then:
//!
//! | kind | content |
//! | --- | --- |
//! | 0 | the topics at a trim: count (u32), and for each topic its tag (u8, u32), the next offset (u64) and the generation (u64); then the first record of the files that is needed (u64), unless an earlier version wrote it |
//! | 64 + v | a record in version v of `tidemill_cluster::wire`: its topic, its offset (u64), the generation that appended it (u64), its bytes (`tidemill_cluster::wire`) |

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{unbounded, Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;
use tidemill_cluster::wire::{put_record, take_record, VERSION};
use tidemill_cluster::{Log, Record, Records, Refused, Then, ThenEach, Topic};
use tidemill_core::wire::{put_u32, put_u64, take_u32, take_u64};
use tidemill_core::{Error, Kind, Result};
use tidemill_durable::Trouble;
use tidemill_env::{Env, Lock};
use tidemill_log::{LogKind, LogSpec};

use super::lost::Lost;
use super::topic::{put_topic, take_topic};

/// The maximum number of appends that are made durable at once.
const BATCH: usize = 1 << 16;

/// The time to wait for the directory. If this process held it before, the last thread may be about
/// to end.
const HOLD_WAIT_NS: u64 = 2_000_000_000;
const HOLD_AGAIN_US: u64 = 10_000;

/// The approximate maximum bytes that a read with a limit finds.
const READ_BYTES: usize = 8 << 20;

/// The longest wait for the ends of requests.
const CLOSE: Duration = Duration::from_secs(5);

/// The interval between checks whether a full disk has room, in microseconds.
const FULL_US: u64 = 100_000;

const BASES: u8 = 0;
/// The kind of a record. It includes the version that wrote the record.
const RECORD: u8 = RECORDS + VERSION as u8;
const RECORDS: u8 = 64;
/// The kind of records before kinds included versions.
const RECORD_FIRST: u8 = 1;

/// Sizes of the log. Tests use smaller ones.
#[derive(Clone, Copy)]
struct Sizes {
    /// The bytes of a file of the log.
    segment: u64,
    /// The maximum bytes that wait to be appended.
    waiting_max: usize,
    /// The minimum bytes that are trimmed at once, because each trim is a record, too.
    trim: usize,
}

/// The usual bytes of a file of the log.
pub const SEGMENT_BYTES: u64 = 64 << 20;

const SIZES: Sizes = Sizes { segment: SEGMENT_BYTES, waiting_max: 1 << 30, trim: 4 << 20 };

/// A record as it is read.
pub(crate) type Raw = (u64, Arc<[u8]>);

/// The records that were found in a topic.
pub(crate) struct Found {
    pub records: Vec<Raw>,
    pub upto: u64,
}

enum Job {
    Append {
        topic: Topic,
        generation: u64,
        begins: Option<u64>,
        records: Vec<Vec<u8>>,
        then: Appended,
    },
    Read {
        topic: Topic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Found>>,
    },
    Trim {
        topic: Topic,
        below: u64,
    },
}

/// A callback for the offset of the first of the records.
type Appended = Then<std::result::Result<u64, Refused>>;

/// The log.
pub struct FileLog {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    failed: Mutex<Option<Error>>,
    /// Whether a full disk is waited for. `trouble` has the reason.
    waits: AtomicBool,
    trouble: Trouble,
    /// The bytes of all records that have been appended since the start.
    appended: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    /// The bytes that wait to be appended.
    bytes: usize,
    /// The appends that had no room.
    lost: Lost,
    /// Whether requests are refused.
    is_closed: bool,
}

/// Takes a directory, which is created if missing, so that no other process writes a log there.
///
/// # Errors
/// If another process uses it, or if a call to the disk fails.
pub fn hold(env: &Env, dir: &Path) -> Result<Box<dyn Lock>> {
    let failed = |e: &std::io::Error| Error::io(format!("the directory {}", dir.display()), e);
    env.disk.keep_private(dir);
    env.disk.create_dir_all(dir).map_err(|e| failed(&e))?;
    let until_ns = env.clock.monotonic_ns() + HOLD_WAIT_NS;
    loop {
        if let Some(lock) = tidemill_env::hold(&*env.disk, dir).map_err(|e| failed(&e))? {
            return Ok(lock);
        }
        if env.clock.monotonic_ns() > until_ns {
            let what = format!("another process uses the directory {}", dir.display());
            return Err(Error::resource(what).help("stop it first, or give another directory"));
        }
        env.clock.sleep_us(HOLD_AGAIN_US);
    }
}

impl FileLog {
    /// Opens the log of an app in a directory, or creates it. `held` is the lock of the directory,
    /// which is held until the last write. A new file of the log has `segment_bytes`; the usual
    /// number is [`SEGMENT_BYTES`].
    ///
    /// # Errors
    /// If the log is damaged, of another app, or of a newer format, or if a call to the disk fails.
    pub fn open(
        env: &Env,
        dir: PathBuf,
        app: u128,
        held: Box<dyn Lock>,
        segment_bytes: u64,
    ) -> Result<FileLog> {
        let sizes = Sizes { segment: segment_bytes, ..SIZES };
        let files = Files::open(env, dir, app, held, sizes)?;
        let (jobs, coming) = unbounded();
        let shared = Arc::new(Shared { waits: AtomicBool::new(true), ..Shared::default() });
        let own = shared.clone();
        let body = Box::new(move || files.run(&coming, &own));
        env.threads.spawn("cluster-log", body).map_err(|e| Error::io("starting a thread", &e))?;
        Ok(FileLog { jobs, shared })
    }

    /// Appends encoded records, like [`Log::append_all`]. `begins` is the generation that the only
    /// record begins, if it does.
    pub(crate) fn append_raw(
        &self,
        topic: Topic,
        generation: u64,
        begins: Option<u64>,
        records: Vec<Vec<u8>>,
        then: Appended,
    ) {
        let bytes = records.iter().map(Vec::len).sum();
        if !self.shared.takes(topic, generation, bytes, SIZES.waiting_max) {
            return then(Err(Refused::Unknown));
        }
        self.job(Job::Append { topic, generation, begins, records, then });
    }

    /// Refuses all requests from now on, and returns the offsets after the last ones of the first
    /// `sources` sources. `None` if the log has failed.
    pub fn close_inputs(&self, sources: u32) -> Option<Vec<u64>> {
        self.shared.waiting.lock().is_closed = true;
        // The thread takes jobs in their order, and so knows all earlier requests then.
        let (tell, told) = unbounded();
        for source in 0..sources {
            let tell = tell.clone();
            let then = move |found: Option<Found>| {
                // The receiver may have given up.
                let _ = tell.send((source, found.map(|found| found.upto)));
            };
            self.read_raw(Topic::Input(source), u64::MAX, None, 0, Box::new(then));
        }
        drop(tell);
        let mut ends = vec![0; sources as usize];
        for _ in 0..sources {
            let (source, end) = told.recv_timeout(CLOSE).ok()?;
            ends[source as usize] = end?;
        }
        Some(ends)
    }

    /// Reads encoded records, like [`Log::read`].
    pub(crate) fn read_raw(
        &self,
        topic: Topic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Found>>,
    ) {
        self.job(Job::Read { topic, from, limit, wait_us, then });
    }

    fn job(&self, job: Job) {
        // The thread lives as long as this log, unless it has panicked. Then the callers get an
        // error.
        if let Err(crossbeam_channel::SendError(job)) = self.jobs.send(job) {
            match job {
                Job::Append { then, .. } => then(Err(Refused::Unknown)),
                Job::Read { then, .. } => then(None),
                Job::Trim { .. } => {}
            }
        }
    }
}

impl FileLog {
    /// Returns the bytes of all records that have been appended since the start.
    pub fn appended_bytes(&self) -> u64 {
        self.shared.appended.load(Ordering::Relaxed)
    }
}

impl Drop for FileLog {
    fn drop(&mut self) {
        self.shared.waits.store(false, Ordering::Release);
    }
}

impl Shared {
    /// Notes that nothing can be appended or read any more. The first error is retained.
    fn fail(&self, error: Error) {
        self.failed.lock().get_or_insert(error);
    }

    /// Whether there is room for an append.
    fn takes(&self, topic: Topic, generation: u64, bytes: usize, max: usize) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.is_closed && matches!(topic, Topic::Input(_)) {
            return false;
        }
        if waiting.lost.is_before(topic, generation) {
            return false;
        }
        if waiting.bytes + bytes > max {
            waiting.lost.add(topic, generation);
            return false;
        }
        waiting.bytes += bytes;
        true
    }
}

impl Log for FileLog {
    fn append(&self, topic: Topic, generation: u64, record: Record, then: Appended) {
        let begins = match record {
            Record::Generation { generation } => Some(generation),
            _ => None,
        };
        self.append_raw(topic, generation, begins, vec![bytes_of(&record)], then);
    }

    fn append_all(&self, topic: Topic, generation: u64, records: Vec<Record>, then: ThenEach) {
        let records: Vec<Vec<u8>> = records.iter().map(bytes_of).collect();
        let count = records.len();
        let told = move |first: std::result::Result<u64, Refused>| {
            (0..count).for_each(|nth| then(nth, first.map(|first| first + nth as u64)));
        };
        self.append_raw(topic, generation, None, records, Box::new(told));
    }

    fn read(
        &self,
        topic: Topic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Records>>,
    ) {
        let shared = self.shared.clone();
        let told = move |found: Option<Found>| {
            then(found.and_then(|Found { records, upto }| {
                let records: Result<Vec<_>> =
                    records.into_iter().map(|raw| record_of(topic, raw)).collect();
                let kept = records.map_err(|error| shared.fail(error)).ok();
                kept.map(|records| Records { records, upto })
            }));
        };
        self.read_raw(topic, from, limit, wait_us, Box::new(told));
    }

    fn trim(&self, topic: Topic, below: u64) {
        self.job(Job::Trim { topic, below });
    }

    fn failed(&self) -> Option<Error> {
        self.shared.failed.lock().clone()
    }

    fn trouble(&self) -> Option<String> {
        self.shared.trouble.now()
    }
}

/// The records of a topic that are in memory.
#[derive(Default)]
struct TopicRecords {
    /// The offset of the first record. Each record has its number in the files.
    first: u64,
    records: VecDeque<(u64, Arc<[u8]>)>,
    generation: u64,
}

impl TopicRecords {
    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }
}

#[derive(Default)]
struct Topics(BTreeMap<Topic, TopicRecords>);

impl Topics {
    /// Takes a record of the files.
    fn found(&mut self, number: u64, kind: u8, mut input: &[u8]) -> Option<()> {
        let input = &mut input;
        match kind {
            BASES => {
                for _ in 0..take_u32(input)? {
                    let stored = self.0.entry(take_topic(input)?).or_default();
                    let (next, generation) = (take_u64(input)?, take_u64(input)?);
                    stored.generation = stored.generation.max(generation);
                    if stored.next() < next {
                        (stored.first, stored.records) = (next, VecDeque::new());
                    }
                }
            }
            RECORD => {
                let stored = self.0.entry(take_topic(input)?).or_default();
                let (offset, generation) = (take_u64(input)?, take_u64(input)?);
                if stored.records.is_empty() {
                    stored.first = offset;
                }
                if stored.next() != offset {
                    return None;
                }
                stored.generation = stored.generation.max(generation);
                stored.records.push_back((number, Arc::from(*input)));
            }
            _ => return None,
        }
        Some(())
    }

    fn find(&self, topic: Topic, from: u64, limit: Option<usize>) -> Found {
        let nothing = |upto| Found { records: Vec::new(), upto };
        let Some(stored) = self.0.get(&topic) else {
            return nothing(if from == u64::MAX { 0 } else { from });
        };
        if from == u64::MAX {
            return nothing(stored.next());
        }
        let skip = from.saturating_sub(stored.first) as usize;
        let begin = stored.first + skip as u64;
        let mut room = if limit.is_some() { READ_BYTES } else { usize::MAX };
        let has_room = |(_, bytes): &&(u64, Arc<[u8]>)| {
            let had = room;
            room = room.saturating_sub(bytes.len());
            had > 0
        };
        let records = stored.records.iter().skip(skip).take(limit.unwrap_or(usize::MAX));
        let records = records.take_while(has_room);
        let records: Vec<Raw> =
            (begin..).zip(records).map(|(offset, (_, bytes))| (offset, bytes.clone())).collect();
        let upto = from.max(begin) + records.len() as u64;
        Found { records, upto }
    }
}

/// A read that waits for records.
struct WaitingRead {
    topic: Topic,
    from: u64,
    limit: usize,
    until_ns: u64,
    then: Then<Option<Found>>,
}

struct Files {
    env: Env,
    log: tidemill_log::Log,
    topics: Topics,
    buffered: Vec<WaitingRead>,
    /// The bytes that were trimmed in memory but not in the files.
    freed: usize,
    sizes: Sizes,
    /// The first error. After it nothing is appended, because the content of the files is unknown.
    failed: Option<Error>,
    /// The lock, so that no other process writes there.
    _held: Box<dyn Lock>,
}

/// The outcome of an append.
enum Going {
    /// Appended at this offset and those after it.
    Taken(Topic, u64, Vec<Arc<[u8]>>),
    Refused,
}

impl Files {
    fn open(
        env: &Env,
        dir: PathBuf,
        app: u128,
        held: Box<dyn Lock>,
        sizes: Sizes,
    ) -> Result<Files> {
        let place = dir.display().to_string();
        let spec = LogSpec { dir, kind: LogKind::Cuts, app, segment_bytes: sizes.segment };
        let mut log = tidemill_log::Log::open(env.disk.clone(), spec, 0)?;
        if !log.is_settled() {
            // A record that may not be stored must not be used.
            log.make_ready()?;
        }
        let mut topics = Topics::default();
        let mut begins = Some(0);
        for record in log.read(log.first())? {
            let record = record?;
            if record.kind == BASES {
                begins = needed_of(&record.bytes);
            }
            let is_other = matches!(record.kind, RECORD_FIRST | RECORDS..) && record.kind != RECORD;
            topics.found(record.number, record.kind, &record.bytes).ok_or_else(
                || match is_other {
                    true => {
                        let what = format!(
                            "the log in {place} was written by another version of Tidemill"
                        );
                        Error::input(what).help(
                            "start the version that wrote it, or give another directory to \
                             start from scratch (--data-dir)",
                        )
                    }
                    false => {
                        let number = record.number;
                        let what =
                            format!("record {number} of the log does not belong to a cluster");
                        Error::input(what).help("restore the directory from a backup")
                    }
                },
            )?;
        }
        // Missing records that were not trimmed have been removed by someone else.
        if begins.is_some_and(|begins| log.first() > begins) {
            let what = format!(
                "{place}: the log begins with record {}, and record {} is needed: a file is missing",
                log.first(),
                begins.unwrap_or_default()
            );
            return Err(Error::new(Kind::Io, what)
                .help("the log is left as it is; restore the directory from a backup"));
        }
        let (env, buffered) = (env.clone(), Vec::new());
        Ok(Files { env, log, topics, buffered, freed: 0, sizes, failed: None, _held: held })
    }

    fn run(mut self, coming: &Receiver<Job>, shared: &Shared) {
        loop {
            let now = self.env.clock.monotonic_ns();
            let wait = self.buffered.iter().map(|read| read.until_ns.saturating_sub(now)).min();
            let first = match coming.recv_timeout(Duration::from_nanos(wait.unwrap_or(u64::MAX))) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let jobs: Vec<Job> = first.into_iter().chain(coming.try_iter().take(BATCH)).collect();
            self.work(jobs, shared);
        }
    }

    fn work(&mut self, jobs: Vec<Job>, shared: &Shared) {
        let mut going: Vec<(Going, Appended)> = Vec::new();
        let mut next: BTreeMap<Topic, u64> = BTreeMap::new();
        let mut bytes_taken = 0;
        let now = self.env.clock.monotonic_ns();
        for job in jobs {
            match job {
                Job::Append { topic, generation, begins, records, then } => {
                    bytes_taken += records.iter().map(Vec::len).sum::<usize>();
                    let stored = self.topics.0.entry(topic).or_default();
                    let is_late = match begins {
                        Some(number) => stored.generation >= number,
                        None => stored.generation > generation,
                    };
                    // Requests have no generation.
                    if is_late && !matches!(topic, Topic::Input(_)) {
                        going.push((Going::Refused, then));
                        continue;
                    }
                    stored.generation = stored.generation.max(begins.unwrap_or(generation));
                    let offset = next.entry(topic).or_insert_with(|| stored.next());
                    let records: Vec<Arc<[u8]>> = records.into_iter().map(Arc::from).collect();
                    let first = *offset;
                    *offset += records.len() as u64;
                    going.push((Going::Taken(topic, first, records), then));
                }
                Job::Read { topic, from, limit, wait_us, then } => {
                    let until_ns = now + wait_us * 1000;
                    match limit {
                        Some(limit) => {
                            self.buffered.push(WaitingRead { topic, from, limit, until_ns, then });
                        }
                        None => then(Some(self.topics.find(topic, from, None))),
                    }
                }
                Job::Trim { topic, below } => self.trim(topic, below),
            }
        }
        let numbers = self.append(&going, shared);
        shared.waiting.lock().bytes -= bytes_taken;
        let mut numbers = self.good(numbers, shared).map(Vec::into_iter);
        for (going, then) in going {
            match (going, &mut numbers) {
                (Going::Refused, _) => then(Err(Refused::Fenced)),
                (Going::Taken(..), None) => then(Err(Refused::Unknown)),
                (Going::Taken(topic, offset, records), Some(numbers)) => {
                    let stored = self.topics.0.entry(topic).or_default();
                    if stored.records.is_empty() {
                        stored.first = offset;
                    }
                    let records = records.into_iter();
                    stored.records.extend(records.map(|bytes| {
                        let number = numbers.next().unwrap_or_default();
                        (number, bytes)
                    }));
                    then(Ok(offset));
                }
            }
        }
        self.answer();
        if self.freed >= self.sizes.trim && self.failed.is_none() {
            let gone = self.let_go(shared);
            self.good(gone, shared);
        }
    }

    /// Returns the value, or notes the error.
    fn good<T>(&mut self, result: Result<T>, shared: &Shared) -> Option<T> {
        result
            .map_err(|error| {
                let error = self.failed.get_or_insert(error);
                shared.fail(error.clone());
            })
            .ok()
    }

    /// Makes records durable. Returns their numbers.
    fn append(&mut self, going: &[(Going, Appended)], shared: &Shared) -> Result<Vec<u64>> {
        // This includes the time after a full disk. The log would continue with records that were
        // reported as unknown, and the next record would have the same offset.
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut numbers = Vec::with_capacity(going.len());
        let mut record = Vec::new();
        for (going, _) in going {
            let Going::Taken(topic, first, records) = going else { continue };
            let generation = self.topics.0[topic].generation;
            for (offset, bytes) in (*first..).zip(records) {
                record.clear();
                put_topic(*topic, &mut record);
                put_u64(offset, &mut record);
                put_u64(generation, &mut record);
                record.extend_from_slice(bytes);
                shared.appended.fetch_add(record.len() as u64, Ordering::Relaxed);
                numbers.push(self.log.append(RECORD, &record)?);
            }
        }
        if !numbers.is_empty() {
            self.commit(shared)?;
        }
        Ok(numbers)
    }

    /// Makes appended records durable. Waits for a full disk as long as the log is in use. The
    /// log's content is good, and the same records are written to the same places when there is
    /// room.
    fn commit(&mut self, shared: &Shared) -> Result<()> {
        loop {
            match self.log.commit() {
                Err(e) if e.kind == Kind::Resource && shared.waits.load(Ordering::Acquire) => {
                    shared.trouble.has(e.what);
                    self.env.clock.sleep_us(FULL_US);
                }
                done => {
                    shared.trouble.is_over();
                    return done.map(drop);
                }
            }
        }
    }

    /// Answers reads that have records, or whose time is over.
    fn answer(&mut self) {
        let now = self.env.clock.monotonic_ns();
        let topics = &self.topics;
        let is_due = |read: &WaitingRead| {
            let there = topics.0.get(&read.topic).map_or(0, TopicRecords::next);
            there > read.from || read.until_ns <= now
        };
        let (due, buffered) = std::mem::take(&mut self.buffered).into_iter().partition(is_due);
        self.buffered = buffered;
        for WaitingRead { topic, from, limit, then, .. } in due {
            then(Some(self.topics.find(topic, from, Some(limit))));
        }
    }

    fn trim(&mut self, topic: Topic, below: u64) {
        let Some(stored) = self.topics.0.get_mut(&topic) else { return };
        while stored.first < below {
            let Some((_, bytes)) = stored.records.pop_front() else { break };
            stored.first += 1;
            self.freed += bytes.len();
        }
    }

    /// Removes files that are no longer needed.
    fn let_go(&mut self, shared: &Shared) -> Result<()> {
        self.freed = 0;
        let mut bases = Vec::new();
        put_u32(self.topics.0.len() as u32, &mut bases);
        for (topic, stored) in &self.topics.0 {
            put_topic(*topic, &mut bases);
            put_u64(stored.next(), &mut bases);
            put_u64(stored.generation, &mut bases);
        }
        let number = self.log.next();
        let firsts = self.topics.0.values().filter_map(|stored| stored.records.front());
        let needed = firsts.map(|(number, _)| *number).min().unwrap_or(number).min(number);
        put_u64(needed, &mut bases);
        self.log.append(BASES, &bases)?;
        self.commit(shared)?;
        self.log.trim(needed).map(drop)
    }
}

/// Returns the first record of the files that is needed after a trim, if it says so.
fn needed_of(mut bases: &[u8]) -> Option<u64> {
    let input = &mut bases;
    for _ in 0..take_u32(input)? {
        take_topic(input)?;
        take_u64(input)?;
        take_u64(input)?;
    }
    take_u64(input)
}

/// Decodes a record.
///
/// # Errors
/// If the bytes are invalid, because the log is damaged or this program has a bug.
pub(super) fn record_of(topic: Topic, (offset, bytes): Raw) -> Result<(u64, Record)> {
    let mut input = &bytes[..];
    match take_record(&mut input).filter(|_| input.is_empty()) {
        Some(record) => Ok((offset, record)),
        None => Err(Error::input(format!(
            "record {offset} of the log can't be read ({topic:?}): it is damaged"
        ))
        .help("restore the coordinator's directory from a backup")),
    }
}

fn bytes_of(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_record(record, &mut bytes);
    bytes
}

/// Returns the generation that the records begin, for the server of the log. A record that begins
/// one is appended without others.
pub(crate) fn begins(records: &[Vec<u8>]) -> Option<u64> {
    let [bytes] = records else { return None };
    // Only short records are decoded.
    if bytes.first() != Some(&0) {
        return None;
    }
    match take_record(&mut &bytes[..]) {
        Some(Record::Generation { generation }) => Some(generation),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
