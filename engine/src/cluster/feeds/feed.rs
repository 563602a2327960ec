//! The files of a stream, as one source.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_cluster::{EventPlace, Events, Record, Records, Request, RequestId};
use tidemill_connect::{files, BadRow, FilesSettings, Place};
use tidemill_core::wire::columns_bytes;
use tidemill_core::{Error, Result, Row, StreamId, StreamTime};
use tidemill_env::{Disk, Env};
use tidemill_function::Functions as _;

use super::file::File;
use super::marks::{Ended, Known, Mark};
use super::{About, FileAt};
use crate::functions::AppFunctions;
use crate::spec::SourceDecl;

/// The most rows that are read at once: of a file, and of all files together.
const ROWS: usize = 8192;
const ROWS_OF_ALL: usize = 1 << 17;
/// The approximate size of the rows in an answer, in bytes, so that they fit into a message.
const ROWS_BYTES: usize = 1 << 19;
/// The approximate size of a row beside its values, in bytes.
const ROW_BYTES: usize = 64;
/// The most positions of files in all marks together. Beyond it every second mark is dropped.
const PLACES_MAX: usize = 1 << 16;
/// The number of rows by which a process knows the files of another one.
const COMPARED_ROWS: usize = 1024;
/// The most files of which nothing has been given out that are compared so. Each stays open.
const COMPARED_FILES: usize = 16;
/// The help for files that have changed.
const RESTORE: &str = "restore them as they were, or start from scratch with --fresh";

pub(super) struct Feed {
    /// The key of its marks, and the stream's name.
    key: String,
    name: String,
    path: PathBuf,
    follows: bool,
    /// The length of all files together, unless they may grow.
    bytes: Option<u64>,
    stream: StreamId,
    functions: Arc<AppFunctions>,
    /// Whether it has several files whose rows are ordered by time.
    is_timed: bool,
    files: Vec<File>,
    /// The first file that has not ended.
    current: usize,
    /// The next row, and the number of end records that were given at that place.
    offset: u64,
    tail: u64,
    /// The newest time of the rows before the next one.
    newest_us: Option<i64>,
    /// The number of its rows, if its end is known.
    ends_at: Option<u64>,
    /// The ends that it had before it grew.
    ended: Vec<Ended>,
    has_grown: bool,
    /// The number of its stream's sources, if all of them end.
    sources: Option<usize>,
    /// Positions, in order. No recovery goes back beyond the first, and the last is after all rows
    /// that were given out.
    marks: VecDeque<Mark>,
    /// The durable part of its marks.
    written: Written,
    /// Whether it is unknown which files were read before.
    is_blind: bool,
}

/// The last mark's row, the end, and the number of earlier ends. Each change of a feed's marks
/// changes one of them.
type Written = (u64, Option<u64>, usize);

/// The next item of a feed.
enum Next {
    Row(usize),
    /// There is nothing at present.
    Later,
    End,
}

/// A feed as another process must know it to read it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Described {
    known: Known,
    /// Whether it is unknown which files were read before.
    is_blind: bool,
    /// The length of all files together, unless they may grow.
    bytes: Option<u64>,
    /// For the first files, a position after some rows if nothing was given out and there are any.
    read: Vec<Place>,
}

/// Marks and an end that are not durable yet.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct News {
    marks: Vec<Mark>,
    ends_at: Option<u64>,
    ended: Vec<Ended>,
}

impl Feed {
    pub fn open(
        decl: &SourceDecl,
        key: String,
        functions: &Arc<AppFunctions>,
        (sources, known): (Option<usize>, Option<&Known>),
        env: &Env,
    ) -> Result<(Feed, About)> {
        let (mut feed, about) = Feed::new(decl, key, functions, (sources, known), env)?;
        if let Some(known) = known {
            feed.take_up(known)?;
        }
        Ok((feed, about))
    }

    /// Opens it in another process than the coordinator's, for a read from an offset on. `sources`
    /// is the number of its stream's sources, if all of them end.
    ///
    /// # Errors
    /// When this process does not see the files that the coordinator has described.
    pub fn open_near(
        decl: &SourceDecl,
        (key, sources): (String, Option<usize>),
        functions: &Arc<AppFunctions>,
        (described, from): (Described, u64),
        env: &Env,
    ) -> Result<Feed> {
        let Described { known, is_blind, bytes, read } = described;
        let (mut feed, _) = Feed::new(decl, key, functions, (sources, Some(&known)), env)?;
        let Known { first, last, ends_at, ended, .. } = known;
        let (is, was) = (feed.marks[0].names(), last.names());
        if is != was {
            return Err(Error::input(format!("here are the files {is}, and there {was}")));
        }
        if feed.bytes != bytes {
            return Err(Error::input("the files here have another length"));
        }
        // Without any row to compare, they may be others.
        let mut are_compared = !feed.follows;
        for (file, at) in feed.files.iter_mut().zip(&last.files) {
            are_compared |= at.read.offset > 0;
            if at.read.offset > 0 {
                file.verify(at)?;
            }
        }
        for (file, read) in feed.files.iter_mut().zip(&read) {
            are_compared |= read.offset > 0;
            file.compare(read)?;
        }
        if !are_compared {
            return Err(Error::input("there is no row yet by which to know the files"));
        }
        (feed.ends_at, feed.ended, feed.is_blind) = (ends_at, ended, is_blind);
        feed.written = (last.offset, ends_at, feed.ended.len());
        feed.marks = VecDeque::from([first.clone(), last.clone()]);
        if first.offset == last.offset {
            feed.marks.pop_back();
        }
        let at = if feed.place(last.offset) <= from { last } else { first };
        feed.go_to(&at)?;
        Ok(feed)
    }

    /// Describes it for a process that is about to read it.
    ///
    /// # Errors
    /// When a file can't be read.
    pub fn describe(&mut self) -> Result<Described> {
        let mut read = vec![Place::start(); self.current.min(self.files.len())];
        for file in self.files.iter_mut().skip(self.current).take(COMPARED_FILES) {
            read.push(file.begins_with(COMPARED_ROWS)?);
        }
        let (_, known) = self.known();
        Ok(Described { known, is_blind: self.is_blind, bytes: self.bytes, read })
    }

    /// The marks and the end that are not durable yet.
    pub fn news(&self) -> News {
        let (kept, ..) = self.written;
        let marks = self.marks.iter().filter(|mark| mark.offset > kept).cloned().collect();
        News { marks, ends_at: self.ends_at, ended: self.ended.clone() }
    }

    /// Takes the marks and the end of another process that reads it. Returns whether they fit:
    /// since a start of the coordinator the feed may go on after an earlier end.
    ///
    /// # Errors
    /// When that process has read beyond the end.
    pub fn learn(&mut self, News { marks, ends_at, ended }: News) -> Result<bool> {
        if ended != self.ended {
            return Ok(false);
        }
        let names = self.marks[0].names();
        let upto = marks.last().map_or(0, |mark| mark.offset);
        let are_right = marks.iter().all(|mark| mark.names() == names)
            && marks.is_sorted_by_key(|mark| mark.offset)
            && ends_at.is_none_or(|end| end >= upto.max(self.last()));
        if !are_right {
            return Ok(false);
        }
        if let Some(known) = self.ends_at {
            if upto > known || ends_at.is_some_and(|other| other != known) {
                return Err(self.not_there(upto));
            }
        }
        self.ends_at = self.ends_at.or(ends_at);
        for mark in marks {
            if mark.offset > self.last() {
                self.add_mark(mark);
            }
        }
        self.is_blind = false;
        Ok(true)
    }

    /// The record of the first mark. No recovery goes back beyond it.
    pub fn begins(&self) -> u64 {
        self.place(self.marks.front().expect("there is one").offset)
    }

    fn new(
        decl: &SourceDecl,
        key: String,
        functions: &Arc<AppFunctions>,
        (sources, known): (Option<usize>, Option<&Known>),
        env: &Env,
    ) -> Result<(Feed, About)> {
        let stream = functions.taken(&decl.stream)?;
        let (_, schema) = functions.stream(stream).expect("it is one of them");
        let json = decl.files.as_ref().expect("it reads files").to_string();
        let settings = FilesSettings::from_json(&json)?;
        let time = match functions.program().streams[stream.index()].spec.time {
            StreamTime::Event { column } => Some(column),
            StreamTime::Arrival => None,
        };
        let opened = files::open(&settings, &schema, env)?.into_iter();
        let bytes = match settings.follow {
            true => None,
            false => Some(bytes_of(&settings, &*env.disk)?),
        };
        let left_out = |nth: usize| known?.left_out.get(nth).cloned();
        let file = |(nth, (name, source))| {
            File::new(name, source, time, left_out(nth).unwrap_or_default())
        };
        let files: Vec<File> = opened.enumerate().map(file).collect();
        let begin =
            Mark { offset: 0, newest_us: None, files: files.iter().map(File::mark).collect() };
        let (path, follows) = (settings.path, settings.follow);
        let about = About { path: path.clone(), follows };
        let feed = Feed {
            key,
            name: decl.stream.clone(),
            path,
            follows,
            bytes,
            stream,
            functions: functions.clone(),
            is_timed: time.is_some() && files.len() > 1,
            files,
            current: 0,
            offset: 0,
            tail: 0,
            newest_us: None,
            ends_at: None,
            ended: Vec::new(),
            has_grown: false,
            sources,
            marks: VecDeque::from([begin]),
            written: (0, None, 0),
            is_blind: known.is_none(),
        };
        Ok((feed, about))
    }

    /// Resumes from the known marks. So changed files are refused before anything runs.
    fn take_up(&mut self, known: &Known) -> Result<()> {
        let Known { first, last, ends_at, ended, .. } = known;
        self.ended.clone_from(ended);
        let (was, is) = (last.names(), self.marks[0].names());
        if was != is {
            return Err(Error::input(format!(
                "stream {} reads the files {is}, but its log began with {was}",
                self.name
            ))
            .help(
                "restore them as they were, or start from scratch with --fresh; files may be added to a folder that is read with \
                 follow=True",
            ));
        }
        for (file, mark) in self.files.iter_mut().zip(&last.files) {
            file.verify(mark)?;
        }
        (self.ends_at, self.written) = (*ends_at, (last.offset, *ends_at, ended.len()));
        self.marks = VecDeque::from([first.clone(), last.clone()]);
        if first.offset == last.offset {
            self.marks.pop_back();
        }
        self.go_to(last)?;
        if ends_at.is_some() && matches!(self.first()?, Next::Row(_)) {
            return self.goes_on();
        }
        Ok(())
    }

    /// Continues after an end that has more rows now, if no earlier row is read again. Then all
    /// files are as long as they were at that end. Otherwise the order of old and new rows of
    /// several files would be unknown.
    ///
    /// # Errors
    /// When earlier rows may be read again.
    fn goes_on(&mut self) -> Result<()> {
        let Some(rows) = self.ends_at.filter(|rows| self.marks[0].offset == *rows) else {
            return Err(Error::input(format!(
                "stream {} has read {} to its end, but there are more rows now, and no snapshot has the earlier ones yet",
                self.name,
                self.path.display()
            ))
            .help(
                "restore it as it was and run the app until it ends cleanly, then add the new rows; input that grows all the \
                 time needs follow=True; --fresh starts from scratch",
            ));
        };
        let records = self.tail_records().len() as u64;
        self.ended.push(Ended { rows, records });
        (self.ends_at, self.has_grown) = (None, true);
        Ok(())
    }

    /// The record after the last end, if the feed continues and has not ended again.
    pub fn goes_on_at(&self) -> Option<u64> {
        let rows = self.ended.last().filter(|_| self.ends_at.is_none())?.rows;
        Some(self.place(rows) + self.ends_before(rows))
    }

    /// Whether it had grown when it was opened.
    pub fn has_grown(&self) -> bool {
        self.has_grown
    }

    /// Ends once more, together with other feeds that have grown. The waiting batch is completed,
    /// and windows end, when all of them have ended.
    ///
    /// # Errors
    /// As for a feed that has grown itself.
    pub fn ends_again(&mut self) -> Result<()> {
        let are_several = self.functions.end_together(self.stream).len() > 1;
        let are_several = self.sources.is_some_and(|sources| sources > 1 || are_several);
        match self.ends_at.is_some() && are_several && self.tail_records().len() > 1 {
            true => self.goes_on(),
            false => Ok(()),
        }
    }

    /// The stream.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Returns its key among the marks, and the marks.
    pub fn known(&self) -> (String, Known) {
        let first = self.marks.front().expect("there is one").clone();
        let last = self.marks.back().expect("there is one").clone();
        let (ends_at, ended) = (self.ends_at, self.ended.clone());
        let files = self.files.iter().zip(&first.files);
        let mut left_out: Vec<_> = files.map(|(file, at)| file.left_out_after(&at.place)).collect();
        if left_out.iter().all(Vec::is_empty) {
            left_out.clear();
        }
        (self.key.clone(), Known { first, last, ends_at, ended, left_out })
    }

    /// Whether more has been read than the durable marks say.
    pub fn has_more(&self) -> bool {
        self.written != self.present()
    }

    /// The record up to which its marks are durable.
    pub fn kept(&self) -> u64 {
        match self.has_more() {
            true => self.place(self.written.0),
            false => u64::MAX,
        }
    }

    /// Notes that its marks are durable.
    pub fn is_written(&mut self) {
        self.written = self.present();
    }

    fn present(&self) -> Written {
        (self.last(), self.ends_at, self.ended.len())
    }

    /// The row after all that were given out.
    fn last(&self) -> u64 {
        self.marks.back().expect("there is one").offset
    }

    /// The offset of the last record, which is the end, if it is known.
    pub fn end(&self) -> Option<u64> {
        let tail = self.tail_records().len() as u64;
        self.ends_at.map(|rows| self.place(rows) + self.ends_before(rows) + tail - 1)
    }

    /// The offset of the first record after so many rows.
    fn place(&self, rows: u64) -> u64 {
        let before = self.ended.iter().filter(|ended| ended.rows < rows);
        rows + before.map(|ended| ended.records).sum::<u64>()
    }

    /// The number of end records after so many rows, from the time before it grew.
    fn ends_before(&self, rows: u64) -> u64 {
        let there = self.ended.iter().filter(|ended| ended.rows == rows);
        there.map(|ended| ended.records).sum()
    }

    /// Reads at most `limit` records from an offset on. Fewer records do not mean the end.
    pub fn read(&mut self, from: u64, limit: usize, is_over: &AtomicBool) -> Result<Records> {
        if std::mem::take(&mut self.is_blind) && from > 0 && self.follows {
            return Err(Error::input(format!(
                "stream {} has read {from} rows of {}, and the coordinator's directory does not say of which files",
                self.name,
                self.path.display()
            ))
            .help("restore that directory as it was, or start from scratch with --fresh"));
        }
        if from != self.position() && !self.seek(from, is_over)? {
            return Ok(Records { records: Vec::new(), upto: from });
        }
        let (mut records, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while rows < limit && bytes < ROWS_BYTES && !is_over.load(Ordering::Acquire) {
            let offset = self.position();
            let ended = self.ends_before(self.offset);
            if self.tail < ended {
                let records_of = self.tail_records_of(ended, self.newest_us);
                let some = records_of.into_iter().skip(self.tail as usize);
                let some: Vec<Record> = some.take(limit - rows).collect();
                self.tail += some.len() as u64;
                rows += some.len();
                records.extend((offset..).zip(some));
                continue;
            }
            match self.next()? {
                Next::Row(file) => {
                    // Read files of a followed folder may be removed, so each new file gets a mark.
                    if self.follows && self.files[file].is_at_chunk() {
                        self.mark();
                    }
                    let (record, given, size) =
                        self.record(file, limit - rows, ROWS_BYTES - bytes)?;
                    (rows, bytes) = (rows + given, bytes + size);
                    records.push((offset, record));
                }
                Next::End => {
                    self.ends()?;
                    let tail = self.tail_records().into_iter().skip((self.tail - ended) as usize);
                    let some: Vec<Record> = tail.take(limit - rows).collect();
                    self.tail += some.len() as u64;
                    records.extend((offset..).zip(some));
                    break;
                }
                Next::Later => break,
            }
        }
        self.mark();
        Ok(Records { records, upto: self.position() })
    }

    /// Moves to an offset that was read before, and returns the position of each file.
    ///
    /// # Errors
    /// When the files have changed since then.
    pub fn places(&mut self, from: u64) -> Result<Vec<FileAt>> {
        if !self.had_ended(from) {
            // Nothing else reads, so this is not ended early.
            self.seek(from, &AtomicBool::new(false))?;
        }
        let place = |file: &mut File| {
            let (place, ahead) = file.exact_place()?;
            Ok(FileAt { name: file.name.clone(), place, left_out: Vec::new(), ahead })
        };
        self.files.iter_mut().map(place).collect()
    }

    /// Whether its end is before an offset.
    pub fn had_ended(&self, from: u64) -> bool {
        let before = self.goes_on_at().or(self.end().map(|end| end + 1));
        before.is_some_and(|at| from >= at)
    }

    /// The newest time of the rows before the next one.
    pub fn newest_us(&self) -> Option<i64> {
        self.newest_us
    }

    /// The offset of the next record.
    pub fn position(&self) -> u64 {
        self.place(self.offset) + self.tail
    }

    /// Moves to an offset that was read before. Returns whether it is there.
    fn seek(&mut self, from: u64, is_over: &AtomicBool) -> Result<bool> {
        let mark = self.marks.iter().rfind(|mark| self.place(mark.offset) <= from);
        let is_before = from < self.place(self.offset);
        match mark.cloned() {
            Some(mark) if is_before || mark.offset > self.offset => self.go_to(&mark)?,
            None if is_before => return Err(self.not_there(from)),
            _ => {}
        }
        loop {
            let ended = self.ends_before(self.offset);
            self.tail = from - self.place(self.offset);
            if self.tail <= ended {
                return Ok(true);
            }
            if is_over.load(Ordering::Acquire) {
                return Ok(false);
            }
            match self.next()? {
                Next::Row(file) => drop(self.give(file)),
                Next::End => {
                    self.ends()?;
                    return match self.tail <= ended + self.tail_records().len() as u64 {
                        true => Ok(true),
                        false => Err(self.not_there(from)),
                    };
                }
                Next::Later => return Err(self.not_there(from)),
            }
        }
    }

    fn not_there(&self, rows: u64) -> Error {
        Error::input(format!(
            "stream {} has read {rows} rows of {}, which has only {} now",
            self.name,
            self.path.display(),
            self.offset
        ))
        .help(RESTORE)
    }

    fn go_to(&mut self, mark: &Mark) -> Result<()> {
        (self.offset, self.tail, self.newest_us) = (mark.offset, 0, mark.newest_us);
        self.current = 0;
        for (file, at) in self.files.iter_mut().zip(&mark.files) {
            if !file.go_to(at)? {
                let what =
                    format!("{} of stream {} has fewer rows than before", at.name, self.name);
                return Err(Error::input(what).help(RESTORE));
            }
        }
        Ok(())
    }

    /// Finds the file with the next row.
    fn first(&mut self) -> Result<Next> {
        let rows = (ROWS_OF_ALL / self.files.len().max(1)).clamp(1, ROWS);
        let mut first: Option<(i64, usize)> = None;
        for (nth, file) in self.files.iter_mut().enumerate().skip(self.current) {
            if !file.look(rows)? {
                match file.has_ended {
                    true if nth == self.current => self.current += 1,
                    true => {}
                    // Its next row may be the first one, so the order is unknown yet.
                    false => return Ok(Next::Later),
                }
                continue;
            }
            if !self.is_timed {
                return Ok(Next::Row(nth));
            }
            let time = file.time();
            if first.is_none_or(|(of, _)| time < of) {
                first = Some((time, nth));
            }
        }
        Ok(first.map_or(Next::End, |(_, nth)| Next::Row(nth)))
    }

    /// Finds the next item, and refuses rows after a known end.
    fn next(&mut self) -> Result<Next> {
        match self.first()? {
            Next::Row(_) if self.ends_at == Some(self.offset) => Err(Error::input(format!(
                "stream {} has read {} to its end, but there are more rows now",
                self.name,
                self.path.display()
            ))
            .help("restore it as it was, or start from scratch with --fresh; input that grows needs follow=True")),
            next => Ok(next),
        }
    }

    /// Notes that there are no more rows.
    ///
    /// # Errors
    /// When there were more rows before.
    fn ends(&mut self) -> Result<()> {
        let were = self.ends_at.unwrap_or(0).max(self.last());
        if self.offset < were {
            return Err(self.not_there(were));
        }
        self.mark();
        self.ends_at = Some(self.offset);
        Ok(())
    }

    /// The records after its rows: the completion of the waiting batch, if no other source of the
    /// stream has more rows, and the end.
    fn tail_records(&self) -> Vec<Record> {
        self.tail_records_at(self.last_us())
    }

    /// The last `count` end records, as given before it grew.
    fn tail_records_of(&self, count: u64, newest_us: Option<i64>) -> Vec<Record> {
        let mut records = self.tail_records_at(newest_us);
        // A version of the app with other batches may have given more records, or fewer.
        while (records.len() as u64) < count {
            records.insert(0, Record::Requests(Vec::new()));
        }
        records.split_off(records.len() - count as usize)
    }

    /// The end records for this newest time.
    fn tail_records_at(&self, newest_us: Option<i64>) -> Vec<Record> {
        let calls = self.sources.map_or_else(Vec::new, |sources| {
            self.functions.last_batches(self.stream, sources, newest_us)
        });
        let request = |call| Request { id: RequestId::from([]), call };
        let last: Vec<Request> = calls.into_iter().map(request).collect();
        let last = (!last.is_empty()).then(|| Record::Requests(last));
        last.into_iter().chain([Record::End]).collect()
    }

    /// The newest time of all rows that were given out.
    fn last_us(&self) -> Option<i64> {
        self.marks.back().expect("there is one").newest_us
    }

    /// Adds a mark of the present position.
    fn mark(&mut self) {
        if self.last() >= self.offset {
            return;
        }
        let files = self.files.iter().map(File::mark).collect();
        let (offset, newest_us) = (self.offset, self.newest_us);
        self.add_mark(Mark { offset, newest_us, files });
    }

    fn add_mark(&mut self, mark: Mark) {
        if self.marks.len() * self.files.len() >= PLACES_MAX {
            let mut nth = 0;
            self.marks.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
        }
        self.marks.push_back(mark);
    }

    /// Takes the next row, from the file that has it.
    fn give(&mut self, file: usize) -> std::result::Result<Row, BadRow> {
        (self.offset, self.tail) = (self.offset + 1, 0);
        let time_us = Some(self.files[file].time()).filter(|time_us| *time_us != i64::MIN);
        self.newest_us = self.newest_us.max(time_us);
        self.files[file].give()
    }

    /// Takes the next rows, which are in one file, as a record: at most `limit`, and approximately
    /// `bytes_max`. Returns also the numbers of rows and bytes. A row that can't be read becomes a
    /// row of the stream's dead letters.
    fn record(
        &mut self,
        file: usize,
        limit: usize,
        bytes_max: usize,
    ) -> Result<(Record, usize, usize)> {
        let (name, row) = (self.files[file].name.clone(), self.files[file].offset());
        if self.files[file].is_next_bad() {
            let call = match self.give(file) {
                Err(bad) => self.functions.dead(self.stream, &name, &bad),
                Ok(_) => unreachable!("it could not be read"),
            };
            let request = Request { id: RequestId::from([]), call };
            return Ok((Record::Requests(vec![request]), 1, ROW_BYTES));
        }
        let mut most = self.files[file].run().min(limit);
        if let Some(ends_at) = self.ends_at {
            most = most.min((ends_at - self.offset) as usize);
        }
        let mut batch = self.files[file].next_rows(most);
        while batch.len() > 1 && columns_bytes(&batch) > bytes_max {
            batch = batch.slice(0, batch.len() / 2);
        }
        let mut taken = 0;
        while taken < batch.len() {
            // The next row may be in another file.
            let rows = if self.is_timed { 1 } else { batch.len() };
            let newest_us = self.files[file].take_rows(&batch.slice(taken, rows));
            self.newest_us = self.newest_us.max(newest_us);
            taken += rows;
            if self.is_timed && !matches!(self.first()?, Next::Row(next) if next == file) {
                break;
            }
        }
        let batch = batch.slice(0, taken);
        (self.offset, self.tail) = (self.offset + taken as u64, 0);
        let (stream, rows, bytes) = (self.stream, batch.len(), columns_bytes(&batch) + ROW_BYTES);
        let from = Some(EventPlace { name: name.as_str().into(), row });
        Ok((Record::Events(Events { stream, from, is_run: true, batch }), rows, bytes))
    }

    /// Drops the marks before the last one that recoveries from the offset `below` need. Returns
    /// whether any were dropped.
    pub fn trim(&mut self, below: u64) -> bool {
        let needed = self.marks.iter().rposition(|mark| self.place(mark.offset) <= below);
        let needed = needed.unwrap_or(0);
        self.marks.drain(..needed);
        needed > 0
    }
}

/// The length of all files together.
fn bytes_of(settings: &FilesSettings, disk: &dyn Disk) -> Result<u64> {
    let length = |path: PathBuf| {
        let failed = |e| Error::io(format!("reading {}", path.display()), &e);
        disk.metadata(&path).map(|meta| meta.len).map_err(failed)
    };
    files::paths(settings, disk)?.into_iter().map(length).sum()
}
