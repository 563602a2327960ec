//! The events of several processes that wait, as the buffered events of one process. Those that wait
//! for their watermark are read again. Those that wait for their batch are rows.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tidemill_cluster::{EventSource, Events, Record, Topic, Waiting as Since};
use tidemill_connect::Place;
use tidemill_core::{
    Batch, Error, Late, Position, Result, Row, SourceId, StreamId, StreamTime, Value,
};
use tidemill_env::Env;
use tidemill_function::{Call, Functions as _};
use tidemill_snapshot::{load, Part};
use tidemill_txn::execute::OpenBatches;
use tidemill_txn::order::{Newest, Run};
use tidemill_txn::program::{Origin, Program};

use super::super::ask::read;
use super::super::feeds::{Feeds, FilesAt};
use super::super::times::event_time;
use super::super::topics::ReadTopic;
use super::Several;
use crate::carry::derived;
use crate::compare::decode;
use crate::functions::AppFunctions;
use crate::internal::SourceFacts;
use crate::schema::Left;
use crate::spec::AppSpec;
use crate::stored::Stored;

/// The sources of one process, by where their events came from on several.
pub(super) struct Numbers {
    /// By name of a pushed stream.
    pushed: BTreeMap<String, SourceId>,
    /// The partitions of topics, in their order.
    pub topics: Vec<SourceId>,
    /// For each declaration that reads files, the files by name.
    files: Vec<BTreeMap<String, SourceId>>,
    /// The streams of all sources, by name.
    streams: Vec<String>,
}

impl Numbers {
    pub fn of(to: &Stored, files: &[FilesAt<'_>], topics: &[ReadTopic]) -> Numbers {
        let stream = |source: &tidemill_core::SourceSpec| {
            to.program.streams[source.stream.index()].spec.name.to_string()
        };
        let streams = to.program.sources.iter().map(stream).collect();
        let (pushed, files_of, topics_of) = Default::default();
        let mut numbers = Numbers { pushed, topics: topics_of, files: files_of, streams };
        let (mut next, mut files, mut topics) = ((0..).map(SourceId), files.iter(), topics.iter());
        for decl in &to.sources {
            if decl.kafka.is_some() {
                let partitions = topics.next().map_or(0, |topic| topic.sources() as usize);
                numbers.topics.extend(next.by_ref().take(partitions));
                continue;
            }
            if decl.files.is_none() {
                numbers.pushed.extend(next.next().map(|source| (decl.stream.clone(), source)));
                continue;
            }
            let Some(at) = files.next() else { break };
            let names = at.files.iter().map(|file| file.name.clone());
            numbers.files.push(names.zip(next.by_ref()).collect());
        }
        numbers
    }
}

/// The events of an incomplete batch, and when it began.
pub(super) struct Incomplete {
    stream: StreamId,
    events: Vec<Row>,
    since_us: i64,
}

/// The buffered events of one process.
pub(super) struct Waiting<'w> {
    program: &'w Program,
    numbers: &'w Numbers,
    /// The events that wait for their watermark, by stream and source.
    events: BTreeMap<(StreamId, SourceId), Vec<Standing>>,
    /// Those of pushed streams, which get their numbers last.
    pushed: BTreeMap<StreamId, Vec<(Position, Row)>>,
    /// Those that wait for their batch.
    batches: Vec<Run>,
    /// The number of rows that a pushed source has received.
    received: BTreeMap<SourceId, u64>,
}

/// The row of an event in its source, the time at which it stands, and the event.
type Standing = (u64, i64, Row);

/// The place of an event, where its source has rows with numbers.
type RowOf = (SourceId, u64);

impl<'w> Waiting<'w> {
    pub fn new(program: &'w Program, numbers: &'w Numbers) -> Waiting<'w> {
        let (events, pushed, received) = Default::default();
        Waiting { program, numbers, events, pushed, batches: Vec::new(), received }
    }

    fn name(&self, stream: StreamId) -> &str {
        &self.program.streams[stream.index()].spec.name
    }

    /// Adds an event. One that a client sent has only its position on several processes.
    fn add(&mut self, stream: StreamId, of: Option<RowOf>, at: Position, row: Row) {
        match of {
            Some((source, offset)) => {
                self.events.entry((stream, source)).or_default().push((offset, at.time_us, row));
            }
            None => self.pushed.entry(stream).or_default().push((at, row)),
        }
    }

    /// Adds the rows of files that have not been received, and are between others that were executed.
    ///
    /// # Errors
    /// When a row has no time, or can't come to a derived stream.
    pub fn ahead(&mut self, nth: usize, at: &mut FilesAt<'_>) -> Result<()> {
        let program = self.program;
        let is_it = |stream: &&tidemill_txn::program::Stream| *stream.spec.name == *at.decl.stream;
        let Some(number) = program.streams.iter().position(|stream| is_it(&stream)) else {
            return Ok(());
        };
        let stream = StreamId(number as u16);
        let StreamTime::Event { column } = program.streams[number].spec.time else { return Ok(()) };
        let mut newest_us = at.newest_us;
        for file in &mut at.files {
            let source = self.numbers.files[nth][&file.name];
            let mut newest = Newest::after(at.newest_us, at.decl.out_of_orderness_us);
            for chunk in file.ahead.drain(..) {
                let times = chunk.batch.ints(column);
                let times = times.ok_or_else(|| Error::internal("a source gave no times"))?;
                newest_us = newest_us.max(times.iter().copied().max());
                for ((row, time_us), offset) in chunk.batch.rows().zip(times).zip(&chunk.offsets) {
                    // One process passes dead letters on when it reads their rows.
                    if let Some((on, _, fault)) = program.views(stream, &row).failed.first() {
                        let (on, file) = (self.name(*on), &file.name);
                        return Err(wait(&format!(
                            "rows of {file} that can't come to stream {on} ({fault})"
                        )));
                    }
                    let time_us = newest.take(*time_us).unwrap_or(*time_us);
                    let at = Position { time_us, source, offset: *offset };
                    self.add(stream, Some((source, *offset)), at, row);
                }
            }
        }
        at.newest_us = newest_us;
        Ok(())
    }

    /// Adds the events of incomplete batches. They get places of their stream's sources that are before
    /// the watermarks, and that no other event has.
    ///
    /// # Errors
    /// When one process has no source of the stream.
    pub fn incomplete(
        &mut self,
        batches: Vec<Incomplete>,
        watermarks: &[Position],
        sources: &[SourceFacts],
    ) -> Result<()> {
        for Incomplete { stream, events, since_us } in batches {
            let root = self.program.root_stream(stream);
            let (root_name, by_arrival) = (
                self.name(root).to_owned(),
                self.program.streams[root.index()].spec.time == StreamTime::Arrival,
            );
            let time_us = match by_arrival {
                true => since_us,
                false => watermarks[root.index()].time_us.saturating_sub(1),
            };
            let own = (0..).map(SourceId).zip(&self.numbers.streams);
            let own: Vec<SourceId> =
                own.filter(|(_, of)| **of == root_name).map(|(id, _)| id).collect();
            let mut rows = events.into_iter().peekable();
            for source in own {
                let is_pushed = self.numbers.pushed.get(&root_name) == Some(&source);
                let waiting = self.events.get(&(root, source)).into_iter().flatten();
                let waiting: BTreeSet<u64> = waiting.map(|(offset, ..)| *offset).collect();
                let end = if is_pushed { u64::MAX } else { sources[source.index()].next_offset };
                let free = (0..end).filter(|offset| !waiting.contains(offset));
                let (mut offsets, mut taken) = (Vec::new(), Vec::new());
                for offset in free {
                    let Some(row) = rows.next() else { break };
                    offsets.push(offset);
                    taken.push(row);
                }
                if is_pushed {
                    let received = self.received.entry(source).or_default();
                    *received = (*received).max(offsets.len() as u64);
                }
                self.batches.extend(self.run(stream, source, offsets, |_| time_us, &taken));
            }
            if rows.peek().is_some() {
                return Err(nobody_sends(&root_name));
            }
        }
        Ok(())
    }

    /// Gives the waiting events of pushed streams their numbers, and returns the positions of sources
    /// after them.
    pub fn received(&mut self, mut sources: Vec<SourceFacts>) -> Vec<SourceFacts> {
        for (stream, mut rows) in std::mem::take(&mut self.pushed) {
            let name = self.name(stream).to_owned();
            let Some(source) = self.numbers.pushed.get(&name).copied() else {
                // It is refused later, by its name.
                self.pushed.insert(stream, rows);
                continue;
            };
            rows.sort_by_key(|(at, _)| *at);
            let next = self.received.entry(source).or_default();
            let own = self.events.entry((stream, source)).or_default();
            for (at, row) in rows {
                own.push((*next, at.time_us, row));
                *next += 1;
            }
        }
        for (source, next) in &self.received {
            let facts = &mut sources[source.index()];
            facts.next_offset = *next;
            facts.place = Place { offset: *next, ..Place::start() };
        }
        sources
    }

    /// Returns all of them, on all streams that they come to.
    ///
    /// # Errors
    /// When one process has no source of an event's stream.
    pub fn runs(mut self) -> Result<Vec<Run>> {
        if let Some(stream) = self.pushed.keys().next() {
            return Err(nobody_sends(self.name(*stream)));
        }
        let mut runs = Vec::new();
        for ((stream, source), mut rows) in std::mem::take(&mut self.events) {
            rows.sort_by_key(|(offset, time_us, _)| (*time_us, *offset));
            let offsets = rows.iter().map(|(offset, ..)| *offset).collect();
            let times: Vec<i64> = rows.iter().map(|(_, time_us, _)| *time_us).collect();
            let rows: Vec<Row> = rows.into_iter().map(|(.., row)| row).collect();
            runs.extend(self.run(stream, source, offsets, |nth| times[nth], &rows));
        }
        for (index, stream) in self.program.streams.iter().enumerate() {
            if !matches!(stream.origin, Origin::Derived { .. }) {
                continue;
            }
            // Those that can't be computed are dead letters already.
            runs.extend(derived(self.program, StreamId(index as u16), &runs).0);
        }
        runs.extend(self.batches);
        runs.retain(|run| !run.offsets.is_empty());
        Ok(runs)
    }

    fn run(
        &self,
        stream: StreamId,
        source: SourceId,
        offsets: Vec<u64>,
        time_us: impl Fn(usize) -> i64,
        rows: &[Row],
    ) -> Option<Run> {
        let schema = self.program.streams[stream.index()].spec.schema.clone();
        let batch = Batch::from_rows(schema, rows.iter().map(|row| &row[..]));
        let times = (0..rows.len()).map(time_us).collect();
        let run = Run { stream, source, batch, offsets, times, admitted: None };
        (!rows.is_empty()).then_some(run)
    }
}

impl Several {
    /// Finds the events that wait for their watermark.
    ///
    /// # Errors
    /// When a file has changed, or the log can't be read.
    pub(super) fn waiting(
        &self,
        spec: &AppSpec,
        cluster: &Path,
        env: &Env,
        to: &mut Waiting<'_>,
    ) -> Result<()> {
        let Several { functions, manifest, log, topics: (topics, _), .. } = self;
        let (own, first_file) = (self.own(spec), self.first_file(spec));
        let event_time = event_time(spec, own as u32, topics)?;
        for Since { event_source, record, newest_us } in manifest.waiting.iter().flatten() {
            let of = &event_time.sources()[*event_source as usize];
            let input = manifest.inputs[of.source as usize];
            let feed = (of.source as usize).checked_sub(first_file);
            let topic = (of.source as usize).checked_sub(own).filter(|_| feed.is_none());
            let records = match (feed, topic) {
                (Some(nth), _) => {
                    Feeds::region(spec, functions, (cluster, nth), *record..input, env)?
                }
                (None, Some(nth)) => self.messages(of.stream, nth, *record..input, env)?,
                (None, None) => read(log, Topic::Input(of.source), *record)?.records,
            };
            let mut newest = Newest::after(*newest_us, of.out_of_orderness_us);
            for (at, record) in &records {
                for event in events(functions, of, *at, record) {
                    let late_us = newest.take(event.time_us);
                    if late_us.is_some() && of.late != Late::Admit {
                        continue;
                    }
                    let time_us = late_us.unwrap_or(event.time_us);
                    let source = SourceId(*event_source);
                    let at = Position { time_us, source, offset: event.record };
                    if at < manifest.times.watermarks[of.group] || event.record >= input {
                        continue;
                    }
                    let row_of = |nth: usize| {
                        let (name, row) = event.of.as_ref()?;
                        Some((*to.numbers.files[nth].get(&**name)?, *row))
                    };
                    let row_of = match topic {
                        Some(nth) => Some((to.numbers.topics[nth], event.record)),
                        None => feed.and_then(row_of),
                    };
                    if feed.is_some() && row_of.is_none() {
                        return Err(Error::internal("an event that waits is from no known file"));
                    }
                    to.add(of.stream, row_of, at, event.row);
                }
            }
        }
        Ok(())
    }

    /// Reads messages of a partition again, with the number that it has among those of all topics.
    fn messages(
        &self,
        stream: StreamId,
        mut nth: usize,
        offsets: Range<u64>,
        env: &Env,
    ) -> Result<Vec<(u64, Record)>> {
        let (read, topics) = &self.topics;
        let mut topic = 0;
        while nth >= read[topic].begins.len() {
            nth -= read[topic].begins.len();
            topic += 1;
        }
        let mut records = Vec::new();
        for chunk in topics.borrow_mut().region((topic, nth), offsets, env)? {
            for (offset, row) in chunk.offsets.iter().zip(0..) {
                let (from, batch) = (None, chunk.batch.slice(row, 1));
                records
                    .push((*offset, Record::Events(Events { stream, from, is_run: false, batch })));
            }
        }
        Ok(records)
    }

    /// Returns the events that wait for their batch.
    ///
    /// # Errors
    /// When a row can't be read.
    pub(super) fn incomplete_batches(&self, left: &Left) -> Result<Vec<Incomplete>> {
        let program = &left.stored.program;
        let Some(open) = self.functions.open_batches() else { return Ok(Vec::new()) };
        let (mut events, mut since) = (BTreeMap::<StreamId, BTreeMap<i64, Row>>::new(), Vec::new());
        let tables: BTreeMap<usize, StreamId> =
            open.tables().map(|(stream, table)| (table.index(), stream)).collect();
        let (marks, count) = (open.marks().index(), program.tables.len());
        if tables.is_empty() {
            return Ok(Vec::new());
        }
        load(&self.store, &left.manifest, |loaded| {
            let Part::Row(table) = Part::of(loaded.table, count) else { return Ok(()) };
            if table == marks {
                since.push(decode(&program.tables[table], loaded.row)?);
            } else if let Some(stream) = tables.get(&table) {
                let row = decode(&program.tables[table], loaded.row)?;
                let (nth, event) = OpenBatches::event(&row).expect("the table has its columns");
                events.entry(*stream).or_default().insert(nth, event.into());
            }
            Ok(())
        })?;
        let batch = |(stream, events): (StreamId, BTreeMap<i64, Row>)| {
            let begun = |row: &Row| OpenBatches::since_us(program, stream, row);
            let since_us = since.iter().find_map(begun).unwrap_or(left.internal.facts.clock_us);
            Incomplete { stream, events: events.into_values().collect(), since_us }
        };
        Ok(events.into_iter().map(batch).collect())
    }
}

/// An event in a record.
struct Event {
    record: u64,
    /// The file that it is from, and its row there.
    of: Option<(Arc<str>, u64)>,
    time_us: i64,
    row: Row,
}

/// Returns the events of an event source in a record.
fn events(functions: &AppFunctions, of: &EventSource, at: u64, record: &Record) -> Vec<Event> {
    let event = |record: u64, place: Option<(Arc<str>, u64)>, call: &Call| {
        let timed = functions.timed(call).filter(|_| functions.is_event(call));
        let (_, time_us) = timed.filter(|(stream, _)| *stream == of.stream)?;
        let args: &[Value] = &call.args;
        Some(Event { record, of: place, time_us, row: args.into() })
    };
    match record {
        Record::Requests(requests) => {
            requests.iter().filter_map(|request| event(at, None, &request.call)).collect()
        }
        Record::Events(events) if events.stream == of.stream => {
            let rows = events.batch.rows().enumerate();
            let one = |(nth, row): (usize, Row)| {
                let from = events.from.as_ref();
                let place = from.map(|from| (from.name.clone(), from.row + nth as u64));
                let record = if events.is_run { at + nth as u64 } else { at };
                // All streams in event time have one transaction for each event.
                let call = functions.event(events.stream, &row).ok()?.into_iter().next()?;
                event(record, place, &call)
            };
            rows.filter_map(one).collect()
        }
        _ => Vec::new(),
    }
}

fn wait(what: &str) -> Error {
    Error::setting(format!("there are {what}, and they wait for their watermark"))
        .help("run it with --processes N until they are executed")
}

fn nobody_sends(stream: &str) -> Error {
    let what =
        format!("events of stream {stream} wait, which only clients of several processes send");
    Error::setting(what).help("run it with --processes N until they are executed")
}
