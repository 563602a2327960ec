//! Files that the app's streams read, as sources. The files of each stream are one source of the
//! cluster, after the topics. So cuts have their positions, as those of all sources, and the rows
//! are not stored again. A worker reads the files of its sources itself, if it sees them (`near`).
//! Otherwise the coordinator reads them and serves the rows.
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
mod near;
mod rows;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_cluster::{Record, Then};
use tidemill_connect::{files, Chunk, FilesSettings, Place, Source};
use tidemill_core::wire::put_u64;
use tidemill_core::{Error, Result, StreamId};
use tidemill_env::{Disk, Env};
use tidemill_txn::program::{Program, Stream};

use self::feed::Feed;
pub(super) use self::file::place_of;
use self::marks::{FileMark, Known, Mark, Marks};
pub(super) use self::near::NearRows;
use self::rows::Coordinator;
pub(super) use self::rows::Rows;
use crate::full_disk::{patient, SpaceWaiter, SpaceWaits};
use crate::functions::AppFunctions;
use crate::spec::{AppSpec, SourceDecl};

/// The most rows of a region that are read at once.
const REGION_ROWS: u64 = 1 << 16;
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
    /// The rows, if there are any feeds.
    pub rows: Option<Arc<Rows>>,
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

impl Shared {
    fn of(feeds: Vec<About>, ends: Vec<Option<u64>>) -> Shared {
        let (failed, is_over, trouble) = Default::default();
        Shared { feeds, ends: Mutex::new(ends), failed, is_over, trouble }
    }
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
        let shared = Arc::new(Shared::of(about, feeds.iter().map(Feed::end).collect()));
        let waits = SpaceWaits::default();
        let waiting: Arc<dyn SpaceWaiter> = shared.clone();
        // This can't fail: it is set only here.
        let _ = waits.set(Arc::downgrade(&waiting));
        let env = &patient(env, &waits);
        let count = feeds.len() as u32;
        let marks = feeds.iter().map(Feed::known).collect();
        let home = Coordinator { env: env.clone(), dir: dir.into(), marks };
        let start = || Rows::start((first, count), feeds, Box::new(home), &shared, env);
        let rows = (count > 0).then(start).transpose()?.map(Arc::new);
        Ok(Feeds { first, goes_on, is_blind, begins, shared, rows })
    }

    /// Describes a feed for a worker that is about to read it. The answer is JSON: null if a file
    /// can't be read.
    pub fn describe(&self, feed: u32, then: Then<Vec<u8>>) {
        let Some(rows) = &self.rows else { return then(Vec::new()) };
        let told = |described: Option<feed::Described>| {
            then(serde_json::to_vec(&described).expect("a description is JSON"));
        };
        rows.describe(feed, Box::new(told));
    }

    /// Takes the new marks, as JSON, of a worker that has read more of a feed. The answer comes when
    /// they are durable. It is the record that no recovery goes back beyond, or empty if the marks
    /// do not fit.
    pub fn has_read(&self, feed: u32, news: &[u8], then: Then<Vec<u8>>) {
        let (Some(rows), Ok(news)) = (&self.rows, serde_json::from_slice(news)) else {
            return then(Vec::new());
        };
        let told = |below: Option<u64>| {
            let mut answer = Vec::new();
            below.into_iter().for_each(|below| put_u64(below, &mut answer));
            then(answer);
        };
        rows.learn(feed, news, Box::new(told));
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
}

#[cfg(test)]
mod tests;
