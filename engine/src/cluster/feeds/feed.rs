//! The files of a stream, as one source.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use tidemill_cluster::{Record, Records, Request, RequestId};
use tidemill_connect::{files, BadRow, FilesSettings};
use tidemill_core::{Error, Result, Row, StreamId, StreamTime};
use tidemill_env::Env;
use tidemill_function::{output_bytes, Functions as _};

use super::file::File;
use super::marks::{Ended, Known, Mark};
use super::About;
use crate::functions::AppFunctions;
use crate::spec::SourceDecl;

/// So many rows are read of a file at once, and of all of them together.
const ROWS: usize = 1024;
const ROWS_OF_ALL: usize = 1 << 17;
/// So many bytes of rows are given at once, about: an answer has room for them.
const ROWS_BYTES: usize = 1 << 19;
/// What a row takes beside its values, about.
const ROW_BYTES: usize = 64;
/// So many places of files marks have at most, all together: with more every second mark goes.
const PLACES_MAX: usize = 1 << 16;
/// What mends files that are not what they were.
const RESTORE: &str = "restore them as they were, or begin anew with --fresh";

pub(super) struct Feed {
    /// What its marks are called, and the stream's name.
    key: String,
    name: String,
    path: PathBuf,
    follows: bool,
    stream: StreamId,
    functions: Arc<AppFunctions>,
    /// Whether it has several files, of which the rows come by their times.
    is_timed: bool,
    files: Vec<File>,
    /// The files before this one have ended.
    current: usize,
    /// The row that comes next, and how many records that say that it ends there have been given.
    offset: u64,
    tail: u64,
    /// The newest time of the rows before that.
    newest_us: Option<i64>,
    /// How many rows it has, once that is known.
    ends_at: Option<u64>,
    /// Where it ended before it grew.
    ended: Vec<Ended>,
    has_grown: bool,
    /// How many sources its stream has, if all of them end.
    sources: Option<usize>,
    /// Where it stood, in order; the first is one that no recovery goes behind, and the last is behind all that anybody has
    /// been given.
    marks: VecDeque<Mark>,
    /// The last one's row and the end, as they are durable.
    written: (u64, Option<u64>),
    /// Whether it is not known what had been read before.
    is_blind: bool,
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
    pub fn open(
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
        let files: Vec<File> = opened.map(|(name, source)| File::new(name, source, time)).collect();
        let begin =
            Mark { offset: 0, newest_us: None, files: files.iter().map(File::mark).collect() };
        let (path, follows) = (settings.path, settings.follow);
        let about = About { path: path.clone(), follows };
        let mut feed = Feed {
            key,
            name: decl.stream.clone(),
            path,
            follows,
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
            written: (0, None),
            is_blind: known.is_none(),
        };
        if let Some(known) = known {
            feed.take_up(known)?;
        }
        Ok((feed, about))
    }

    /// Takes up what is known, so that what is not what it was is refused before anything runs.
    fn take_up(&mut self, known: &Known) -> Result<()> {
        let Known { first, last, ends_at, ended } = known;
        self.ended.clone_from(ended);
        let (was, is) = (last.names(), self.marks[0].names());
        if was != is {
            return Err(Error::input(format!(
                "stream {} reads the files {is}, and when its log was begun it read {was}",
                self.name
            ))
            .help(
                "restore them as they were, or begin anew with --fresh; files may be added to a folder that is read with \
                 follow=True",
            ));
        }
        for (file, mark) in self.files.iter_mut().zip(&last.files) {
            file.verify(mark)?;
        }
        (self.ends_at, self.written) = (*ends_at, (last.offset, *ends_at));
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

    /// Behind its end there is more: it goes on there, if nobody reads again what is before. There all its files are as long as
    /// they were, and nobody could tell any more which rows of one had come before those of another.
    ///
    /// # Errors
    /// When somebody may do that.
    fn goes_on(&mut self) -> Result<()> {
        let Some(rows) = self.ends_at.filter(|rows| self.marks[0].offset == *rows) else {
            return Err(Error::input(format!(
                "stream {} has read {} to its end, behind which there is more now, and what was read is in no snapshot yet",
                self.name,
                self.path.display()
            ))
            .help(
                "restore it as it was and start the app until it ends in good order, then add what is new; what grows all the \
                 time is read with follow=True; --fresh begins anew",
            ));
        };
        let records = self.tail_records().len() as u64;
        self.ended.push(Ended { rows, records });
        (self.ends_at, self.has_grown) = (None, true);
        Ok(())
    }

    /// Behind which record it goes on that said that it ended, if nothing has said so again.
    pub fn goes_on_at(&self) -> Option<u64> {
        let rows = self.ended.last().filter(|_| self.ends_at.is_none())?.rows;
        Some(self.place(rows) + self.ends_before(rows))
    }

    /// Whether it was found to have grown when it was opened.
    pub fn has_grown(&self) -> bool {
        self.has_grown
    }

    /// Ends once more, with others that have grown: what waits to be a batch is one, and windows end, when all of them have.
    ///
    /// # Errors
    /// As where it has grown itself.
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

    /// Its name among what is known, and that.
    pub fn known(&self) -> (String, Known) {
        let first = self.marks.front().expect("there is one").clone();
        let last = self.marks.back().expect("there is one").clone();
        let (ends_at, ended) = (self.ends_at, self.ended.clone());
        (self.key.clone(), Known { first, last, ends_at, ended })
    }

    /// Whether more has been read than is known durably.
    pub fn has_more(&self) -> bool {
        self.written != (self.last(), self.ends_at)
    }

    /// All that is known is durable.
    pub fn is_written(&mut self) {
        self.written = (self.last(), self.ends_at);
    }

    /// The row behind all that anybody has been given.
    fn last(&self) -> u64 {
        self.marks.back().expect("there is one").offset
    }

    /// The offset of the last record, which says that it ends, once that is known.
    pub fn end(&self) -> Option<u64> {
        let tail = self.tail_records().len() as u64;
        self.ends_at.map(|rows| self.place(rows) + self.ends_before(rows) + tail - 1)
    }

    /// The place of the first record behind so many rows.
    fn place(&self, rows: u64) -> u64 {
        let before = self.ended.iter().filter(|ended| ended.rows < rows);
        rows + before.map(|ended| ended.records).sum::<u64>()
    }

    /// How many records said behind so many rows that it ended there, before it grew.
    fn ends_before(&self, rows: u64) -> u64 {
        let there = self.ended.iter().filter(|ended| ended.rows == rows);
        there.map(|ended| ended.records).sum()
    }

    /// So many records at most from an offset on; fewer are no end.
    pub fn read(&mut self, from: u64, limit: usize, is_over: &AtomicBool) -> Result<Records> {
        if from == u64::MAX {
            return Ok(Records { records: Vec::new(), upto: self.position() });
        }
        if std::mem::take(&mut self.is_blind) && from > 0 && self.follows {
            return Err(Error::input(format!(
                "stream {} has read {from} rows of {}, and the coordinator's directory does not say of which files",
                self.name,
                self.path.display()
            ))
            .help("bring that directory back as it was, or begin anew with --fresh"));
        }
        if from != self.position() && !self.seek(from, is_over)? {
            return Ok(Records { records: Vec::new(), upto: from });
        }
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < limit && bytes < ROWS_BYTES && !is_over.load(Ordering::Acquire) {
            let offset = self.position();
            let ended = self.ends_before(self.offset);
            if self.tail < ended {
                let records_of = self.tail_records_of(ended, self.newest_us);
                let some = records_of.into_iter().skip(self.tail as usize);
                let some: Vec<Record> = some.take(limit - records.len()).collect();
                self.tail += some.len() as u64;
                records.extend((offset..).zip(some));
                continue;
            }
            match self.next()? {
                Next::Row(file) => {
                    // What a followed folder has had may be removed: marks are where its files begin, too.
                    if self.follows && self.files[file].is_at_chunk() {
                        self.mark();
                    }
                    let record = self.record(file);
                    bytes += size(&record);
                    records.push((offset, record));
                }
                Next::End => {
                    self.ends()?;
                    let tail = self.tail_records().into_iter().skip((self.tail - ended) as usize);
                    let some: Vec<Record> = tail.take(limit - records.len()).collect();
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

    /// The offset of the record that comes next.
    fn position(&self) -> u64 {
        self.place(self.offset) + self.tail
    }

    /// Goes to an offset that was read before; whether it has got there.
    fn seek(&mut self, from: u64, is_over: &AtomicBool) -> Result<bool> {
        if from < self.place(self.offset) {
            let mark = self.marks.iter().rfind(|mark| self.place(mark.offset) <= from);
            let mark = mark.cloned().ok_or_else(|| self.not_there(from))?;
            self.go_to(&mark)?;
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
            "stream {} has read {rows} rows of {}, where {} are now",
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

    /// Which file has the next row.
    fn first(&mut self) -> Result<Next> {
        let rows = (ROWS_OF_ALL / self.files.len().max(1)).clamp(1, ROWS);
        let mut first: Option<(i64, usize)> = None;
        for (nth, file) in self.files.iter_mut().enumerate().skip(self.current) {
            if !file.look(rows)? {
                match file.has_ended {
                    true if nth == self.current => self.current += 1,
                    true => {}
                    // Whether it comes first is not known yet.
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

    /// There are no more rows.
    ///
    /// # Errors
    /// When there were.
    fn ends(&mut self) -> Result<()> {
        let were = self.ends_at.unwrap_or(0).max(self.last());
        if self.offset < were {
            return Err(self.not_there(were));
        }
        self.mark();
        self.ends_at = Some(self.offset);
        Ok(())
    }

    /// What comes behind its rows: what waits to be a batch is one, where no other source of the stream has more; and that it
    /// ends.
    fn tail_records(&self) -> Vec<Record> {
        self.tail_records_at(self.last_us())
    }

    /// So many of them, where it ended before it grew.
    fn tail_records_of(&self, count: u64, newest_us: Option<i64>) -> Vec<Record> {
        let mut records = self.tail_records_at(newest_us);
        // A version of the app with other batches may have said more, or less.
        while (records.len() as u64) < count {
            records.insert(0, Record::Requests(Vec::new()));
        }
        records.split_off(records.len() - count as usize)
    }

    /// They, when this was the newest time.
    fn tail_records_at(&self, newest_us: Option<i64>) -> Vec<Record> {
        let calls = self.sources.map_or_else(Vec::new, |sources| {
            self.functions.last_batches(self.stream, sources, newest_us)
        });
        let id = RequestId::from(format!("{}/end", self.key).as_bytes());
        let request = |call| Request { id: id.clone(), call };
        let last: Vec<Request> = calls.into_iter().map(request).collect();
        let last = (!last.is_empty()).then(|| Record::Requests(last));
        last.into_iter().chain([Record::End]).collect()
    }

    /// The newest time of all that has been given.
    fn last_us(&self) -> Option<i64> {
        self.marks.back().expect("there is one").newest_us
    }

    /// Marks where it stands.
    fn mark(&mut self) {
        if self.last() >= self.offset {
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
        let (offset, newest_us) = (self.offset, self.newest_us);
        self.marks.push_back(Mark { offset, newest_us, files });
    }

    /// Takes the next row, which a file has.
    fn give(&mut self, file: usize) -> std::result::Result<Row, BadRow> {
        (self.offset, self.tail) = (self.offset + 1, 0);
        let time_us = Some(self.files[file].time()).filter(|time_us| *time_us != i64::MIN);
        self.newest_us = self.newest_us.max(time_us);
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
    pub fn trim(&mut self, below: u64) -> bool {
        let needed = self.marks.iter().rposition(|mark| self.place(mark.offset) <= below);
        let needed = needed.unwrap_or(0);
        self.marks.drain(..needed);
        needed > 0
    }
}
