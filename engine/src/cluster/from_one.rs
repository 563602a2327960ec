//! The state of an app that ran in one process, as several processes take it over (`moves.rs`).
//!
//! The newest snapshot becomes the first one of the cluster's log. The position of each file becomes a
//! mark (`feeds`), as if the coordinator had read the file. Those of topics are in the snapshot
//! (`topics`). Events that wait for their watermark are received again: from their file or topic, or
//! from the log, where they are put. A file leaves out the rows between them, which were executed.
//! Events that wait for their batch become rows. Cuts after the snapshot can't move, because only the
//! way to run that recorded them can execute them.

mod topics;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_cluster::{
    EventSource, EventTime, Log, Manifest, Record, Request, RequestId, Times, Topic,
    Waiting as Since,
};
use tidemill_core::{
    Error, Kind, Position, Result, Row, SourceId, Stamp, StreamId, StreamTime, TableId,
};
use tidemill_durable::Store;
use tidemill_env::{Env, Lock};
use tidemill_function::{Counts, Functions as _};
use tidemill_place::partition_of_bytes;
use tidemill_txn::execute::{HandlerCounts, OpenBatches};
use tidemill_txn::order::Run;
use tidemill_txn::program::Program;

use self::topics::TopicAt;
use super::ask::answer;
use super::feeds::{place_of, Feeds, FileAt, FilesAt};
use super::retained::RingStore;
use super::sinks::Note;
use super::upgrade::Starting;
use super::ClusterSettings;
use crate::compare::{encoded, Comparison};
use crate::data_dir::{hold_free, Site};
use crate::fingerprint;
use crate::functions::AppFunctions;
use crate::internal::{Facts, RingFacts, SourceFacts};
use crate::moves::{settle, Move, Way};
use crate::outlets::sink_keys;
use crate::process_mode;
use crate::requests;
use crate::rings::Rings;
use crate::schema::{records_after, Left};
use crate::spec::AppSpec;
use crate::stored::Stored;

/// The state of one process, which several take over.
pub(super) struct OneState {
    env: Env,
    dir: PathBuf,
    /// It is `None` if nothing was executed yet.
    left: Option<Stopped>,
    /// The events of sources that wait for their watermark. They are received again.
    waiting: BTreeMap<SourceId, Waiting>,
    /// The positions of partitions of topics.
    topics: BTreeMap<SourceId, TopicAt>,
    moving: Move,
    _held: Box<dyn Lock>,
}

/// The most waiting events in a record of the log.
const TOGETHER: usize = 256;

/// The events of a source that wait for their watermark.
struct Waiting {
    /// Their rows, ascending.
    rows: Vec<u64>,
    /// The times at which they stand.
    stands_us: Vec<i64>,
    /// A time of an earlier row, if one of them is late by it.
    newest_us: Option<i64>,
}

impl Waiting {
    /// Returns the time at which the event of a row stands, if that waits.
    fn stands_us(&self, row: u64) -> Option<i64> {
        self.rows.binary_search(&row).ok().map(|nth| self.stands_us[nth])
    }
}

/// The app's id, its newest snapshot, and the store.
type Stopped = (u128, Left, Arc<dyn Store>);

/// Such a state, with the app's functions and files.
#[derive(Clone, Copy)]
pub(super) struct TakenOver<'a> {
    one: &'a OneState,
    functions: &'a AppFunctions,
    feeds: &'a Feeds,
}

impl OneState {
    /// Finds the state of one process around a coordinator's directory, and begins to take it over.
    ///
    /// # Errors
    /// When the state can't move. Nothing has changed then.
    pub fn find(spec: &AppSpec, settings: &ClusterSettings, env: &Env) -> Result<Option<OneState>> {
        let disk = &*env.disk;
        let Some(dir) = process_mode::of_coordinator(disk, &settings.dir)? else { return Ok(None) };
        if settings.fresh {
            process_mode::check_fresh(disk, &dir, Way::Several)?;
        }
        if !disk.exists(&dir).map_err(|e| Error::io(dir.display(), &e))? {
            return Ok(None);
        }
        let held = hold_free(disk, &dir)?;
        settle(disk, &dir)?;
        if process_mode::held(disk, &dir)? != Some(Way::One) {
            return Ok(None);
        }
        let left = newest(spec, settings, (env, &dir)).map_err(|error| moved(&dir, error))?;
        let waiting = left.as_ref().map(|(_, left, _)| waiting(left)).unwrap_or_default();
        let moving = Move::begin(disk, &dir, Way::Several)?;
        let (env, topics) = (env.clone(), BTreeMap::new());
        Ok(Some(OneState { env, dir, left, waiting, topics, moving, _held: held }))
    }

    /// Stores the positions of files as marks, in the coordinator's directory.
    ///
    /// # Errors
    /// When a file can't be opened, or the disk fails.
    pub fn mark(&self, spec: &AppSpec, dir: &Path) -> Result<()> {
        let Some((_, left, _)) = &self.left else { return Ok(()) };
        let mut sources = (0..).map(SourceId).zip(&left.internal.facts.sources);
        let mut sources = sources.by_ref().filter(|(source, _)| !self.topics.contains_key(source));
        let mut files = Vec::new();
        for decl in spec.sources.iter().filter(|decl| decl.kafka.is_none()) {
            if decl.files.is_none() {
                sources.next();
                continue;
            }
            let (mut at, mut newest_us, mut have_ended) = (Vec::new(), None, true);
            let opened = Feeds::files(decl, &left.stored.program, &self.env)?;
            for ((name, mut file), (source, facts)) in opened.into_iter().zip(sources.by_ref()) {
                let (place, left_out) = match self.waiting.get(&source) {
                    Some(Waiting { rows, .. }) => (
                        place_of(&mut *file, &name, rows[0], |_| {})?,
                        between(rows, facts.next_offset),
                    ),
                    None => (facts.place.clone(), Vec::new()),
                };
                newest_us = newest_us.max(self.newest_us(source, facts));
                have_ended &= facts.ended && place == facts.place;
                at.push(FileAt { name, place, left_out, ahead: Vec::new() });
            }
            files.push(FilesAt { decl, files: at, newest_us, have_ended });
        }
        Feeds::begin_at(&*self.env.disk, dir, files)
    }

    /// The newest time of a source's events before those that are received again.
    fn newest_us(&self, source: SourceId, facts: &SourceFacts) -> Option<i64> {
        self.waiting.get(&source).map_or(facts.time_max, |waiting| waiting.newest_us)
    }

    /// Returns it with the app's functions and files, which know the places in a cluster.
    pub fn taken_over<'a>(
        &'a self,
        functions: &'a AppFunctions,
        feeds: &'a Feeds,
    ) -> TakenOver<'a> {
        TakenOver { one: self, functions, feeds }
    }

    /// Ends the move: the state of one process is removed.
    ///
    /// # Errors
    /// When the disk fails. The next start completes it.
    pub fn end(self) -> Result<()> {
        self.moving.end(&*self.env.disk, &self.dir)?;
        let what = format!("{}: several processes have taken over the state", self.dir.display());
        tracing::info!(target: "tidemill::recovery", what, "moved");
        Ok(())
    }
}

impl TakenOver<'_> {
    /// Returns the first snapshot of a cluster with this state, whose rows are stored.
    ///
    /// # Errors
    /// When the snapshot can't be read or stored.
    pub fn manifest(&self, starting: &Starting<'_>, generation: u64) -> Result<Option<Manifest>> {
        let TakenOver { one, functions, feeds } = *self;
        let Some((app, left, store)) = &one.left else { return Ok(None) };
        self.check_letters(left)?;
        let to = Stored::on_several(functions.program());
        let mut comparison = Comparison::of(&one.env, left, &to, &BTreeMap::new())?;
        let facts = &left.internal.facts;
        let (epoch, clock_us) = (facts.epoch + 1, facts.clock_us);
        let mut converted = starting.converted(generation, epoch, starting.fingerprint);
        comparison.convert(store, &left.manifest, |table, partition, key, row| {
            converted.push(table, partition, key, row);
        })?;
        let incomplete = functions.open_batches().into_iter();
        let incomplete = incomplete.flat_map(|open| incomplete_batches(left, open));
        // One process has executed the firings of timers up to its last cut.
        for (table, row) in functions.fired(clock_us).into_iter().chain(incomplete) {
            let spec = &functions.program().tables[table.index()];
            let (key, bytes) = encoded(spec, &row);
            converted.push(table, partition_of_bytes(spec, &key), &key, &bytes);
        }
        let (_, objects) = converted.end()?;
        self.send_again(left, starting.log, generation)?;
        let mut inputs = starting.begins.clone();
        for (source, at, _) in feeds.positions() {
            inputs[source as usize] = at;
        }
        let mut buffered = inputs.clone();
        let mut waiting = Vec::new();
        for (id, at) in &one.topics {
            (inputs[at.source as usize], buffered[at.source as usize]) = (at.next, at.next);
            let stream = left.stored.program.sources[id.index()].stream;
            let event_source = starting.event_time.of(at.source, stream);
            if let (Some(first), Some(event_source)) = (&at.waits, event_source) {
                buffered[at.source as usize] = first.record;
                let (record, newest_us) = (first.record, first.newest_us);
                waiting.push(Since { event_source, record, newest_us });
            }
        }
        waiting.sort_by_key(|of| of.event_source);
        let outputs = vec![0; inputs.len()];
        // Random numbers are made of the places of transactions, and in one process of the numbers of
        // events.
        let offsets = facts.sources.iter().map(|source| source.next_offset);
        let base = offsets.fold(facts.seq, u64::max);
        let times = self.times(left, starting.event_time);
        let rings = retained(left, starting);
        RingStore::open(&starting.store, *app)?.0.save(generation, &rings)?;
        let written = Note::new(*app, &facts.sinks).at(base, outputs.clone());
        Ok(Some(Manifest {
            program: starting.fingerprint,
            generation,
            epoch,
            clock_us,
            base,
            buffered: if times.newest.is_empty() { Vec::new() } else { buffered },
            waiting: Some(waiting),
            inputs,
            times,
            outputs,
            objects,
            written: written.into(),
            counts: counts(facts).into(),
        }))
    }

    /// Refuses waiting events that are dead letters of derived streams, and that workers would read
    /// again. They would be dead letters twice.
    fn check_letters(&self, left: &Left) -> Result<()> {
        let program = &left.stored.program;
        let sources = self.one.waiting.iter().filter(|(id, _)| !self.one.topics.contains_key(id));
        for (source, waiting) in sources {
            for run in left.internal.buffered.iter().filter(|run| run.source == *source) {
                let own = run.offsets.iter().zip(run.batch.rows());
                let waits = |(offset, _): &(&u64, Row)| waiting.rows.binary_search(offset).is_ok();
                let is_root = program.root_stream(run.stream) == run.stream;
                for (_, row) in own.filter(|of| is_root && waits(of)) {
                    if let Some((on, _, fault)) = program.views(run.stream, &row).failed.first() {
                        let (name, on) = (
                            &program.streams[run.stream.index()].spec.name,
                            &program.streams[on.index()].spec.name,
                        );
                        return Err(Error::setting(format!(
                            "events of stream {name} that can't come to stream {on} ({fault}) wait \
                             for their watermark"
                        ))
                        .help("run it in one process until they are executed"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the waiting events of pushed streams to the log, as if clients had just sent them.
    fn send_again(&self, left: &Left, log: &dyn Log, generation: u64) -> Result<()> {
        let program = &left.stored.program;
        for (source, waiting) in &self.one.waiting {
            if !is_pushed(left, *source) {
                continue;
            }
            let is_own =
                |run: &&Run| run.source == *source && program.root_stream(run.stream) == run.stream;
            let mut rows: Vec<(u64, StreamId, Row)> = Vec::new();
            for run in left.internal.buffered.iter().filter(is_own) {
                let own = run.offsets.iter().zip(run.batch.rows());
                let own = own.filter(|(offset, _)| waiting.rows.binary_search(offset).is_ok());
                rows.extend(own.map(|(offset, row)| (*offset, run.stream, row)));
            }
            rows.sort_by_key(|(offset, ..)| *offset);
            for some in rows.chunks(TOGETHER) {
                let mut requests = Vec::new();
                for (_, stream, row) in some {
                    let calls = self.functions.event(*stream, row)?;
                    let request = |call| Request { id: RequestId::from([]), call };
                    requests.extend(calls.into_iter().map(request));
                }
                let record = Record::Requests(requests);
                answer(|then| log.append(Topic::Input(0), generation, record, then))?.map_err(
                    |why| {
                        let what =
                            format!("events that wait can't be recorded in the log ({why:?})");
                        Error::new(Kind::Io, what)
                            .help("check that the log can be written, and start again")
                    },
                )?;
            }
        }
        Ok(())
    }

    /// Returns the progress of event time.
    fn times(&self, left: &Left, event_time: &EventTime) -> Times {
        let (facts, program) = (&left.internal.facts, &left.stored.program);
        let sources = || (0..).map(SourceId).zip(program.sources.iter().zip(&facts.sources));
        let newest = |of: &EventSource| {
            if let Some((id, _)) = self.one.topics.iter().find(|(_, at)| at.source == of.source) {
                return facts.sources[id.index()].time_max;
            }
            let of_stream = sources().filter(|(_, (source, _))| source.stream == of.stream);
            let of_stream = of_stream.filter(|(id, _)| !self.one.topics.contains_key(id));
            // Waiting events of a pushed stream are received again by the first source.
            let is_again = of.source == 0 || self.is_feed(of.source);
            let newest = of_stream.filter_map(|(id, (_, facts))| match is_again {
                true => self.one.newest_us(id, facts),
                false => facts.time_max,
            });
            newest.max()
        };
        let groups = event_time.sources().iter().map(|of| of.group + 1).max().unwrap_or(0);
        let mut watermarks = vec![Position::MIN; groups];
        for of in event_time.sources() {
            let mark = facts.watermarks.get(of.stream.index()).copied().unwrap_or(Position::MIN);
            if mark != Position::MIN && mark != Position::MAX {
                let mark = self.mark(program, mark, event_time);
                watermarks[of.group] = watermarks[of.group].max(mark);
            }
        }
        let ended = (0..).zip(event_time.sources());
        let ended = ended.filter(|(_, of)| {
            self.feeds.positions().any(|feed| (feed.0, feed.2) == (of.source, true))
        });
        Times {
            newest: event_time.sources().iter().map(newest).collect(),
            watermarks,
            idle: Vec::new(),
            ended: ended.map(|(nth, _)| nth).collect(),
            late: facts.counts.late,
        }
    }

    /// Returns a watermark as a position among the event sources. Of the events at its time, workers
    /// receive executed ones again only from topics.
    fn mark(&self, program: &Program, mark: Position, event_time: &EventTime) -> Position {
        let stream = program.sources.get(mark.source.index()).map(|source| source.stream);
        let topic = self.one.topics.get(&mark.source);
        let (source, offset) = topic.map_or((None, 0), |at| (Some(at.source), at.mark));
        let is_it = |of: &&EventSource| {
            Some(of.stream) == stream && source.is_none_or(|source| source == of.source)
        };
        match event_time.sources().iter().position(|of| is_it(&of)) {
            Some(nth) => Position { time_us: mark.time_us, source: SourceId(nth as u32), offset },
            None => Position { time_us: mark.time_us, ..Position::MIN },
        }
    }

    fn is_feed(&self, source: u32) -> bool {
        self.feeds.positions().any(|feed| feed.0 == source)
    }
}

/// Whether one process has left something in a data directory that no snapshot has.
pub(crate) fn is_unfinished(dir: &Path, env: &Env) -> Result<bool> {
    let site = Site::look(&env.disk, dir)?;
    match Left::newest(&*site.store(), site.app)? {
        Some(left) => Ok(records_after(&site, &left.manifest)?.is_some()),
        None => Ok(crate::needed::ends(&site, (0, 0))? != (0, 0)),
    }
}

/// Adds to an error why it concerns the state of one process.
fn moved(dir: &Path, error: Error) -> Error {
    let what = format!(
        "{} holds the state of an app that ran in one process, and several processes can't take it over: {}",
        dir.display(),
        error.what
    );
    Error { what, ..error }
}

/// Reads the newest snapshot of one process, if it can move.
fn newest(
    spec: &AppSpec,
    settings: &ClusterSettings,
    (env, dir): (&Env, &Path),
) -> Result<Option<Stopped>> {
    let again = "run it without --processes, or choose another --data-dir";
    if settings.log.is_some() {
        return Err(Error::setting("the log is in Kafka").help(again));
    }
    let site = Site::look(&env.disk, dir)?;
    if site.name != *spec.program.name {
        let what = format!("it belongs to app '{}', not to '{}'", site.name, spec.program.name);
        return Err(Error::setting(what).help("choose another --data-dir"));
    }
    let unfinished = |why: String| {
        Error::setting(why).help(
            "run it without --processes once more, and stop it with Ctrl-C or SIGTERM: that leaves a snapshot",
        )
    };
    let store = site.store();
    let Some(left) = Left::newest(&*store, site.app)? else {
        let (rows, cuts) = crate::needed::ends(&site, (0, 0))?;
        return match rows + cuts {
            0 => Ok(None),
            _ => Err(unfinished("it has no snapshot".into())),
        };
    };
    if !is_same(&left, spec)? {
        let what = "it belongs to another version of the app, or to other outputs";
        return Err(Error::setting(what).help(
            "let this version take it over first: run it without --processes, with --upgrade, and stop it",
        ));
    }
    if records_after(&site, &left.manifest)?.is_some() {
        return Err(unfinished(
            "it was not stopped cleanly, and no snapshot has its last events".into(),
        ));
    }
    Ok(Some((site.app, left, store)))
}

/// Whether an app has taken a snapshot. Sources don't matter: on several processes clients may send
/// into any stream, and changed files are found later.
fn is_same(left: &Left, spec: &AppSpec) -> Result<bool> {
    let text = |program: &Program| {
        let mut program = program.clone();
        program.sources.clear();
        fingerprint::of_program(&program)
    };
    let mut program = spec.program.clone();
    requests::add(&mut program)?;
    let sinks = left.internal.facts.sinks.iter();
    let sinks: BTreeSet<_> = sinks.map(|of| (of.stream.clone(), of.path.clone())).collect();
    Ok(text(&left.stored.program) == text(&program) && sink_keys(&spec.sinks)? == sinks)
}

/// Whether an event waits for its batch. Otherwise it waits for its watermark.
fn waits_for_batch(left: &Left, run: &Run, row: usize) -> bool {
    let program = &left.stored.program;
    let root = &program.streams[program.root_stream(run.stream).index()].spec;
    let mark = left.internal.facts.watermarks[run.stream.index()];
    root.time == StreamTime::Arrival || run.admitted.is_some() || run.position(row) < mark
}

/// Returns the events that wait for their watermark. All streams of an event wait for the same one.
fn waiting(left: &Left) -> BTreeMap<SourceId, Waiting> {
    let program = &left.stored.program;
    let mut all = BTreeMap::<SourceId, Vec<(u64, i64, i64)>>::new();
    for run in &left.internal.buffered {
        let spec = &program.streams[run.stream.index()].spec;
        let StreamTime::Event { column } = spec.time else { continue };
        if program.root_stream(run.stream) != run.stream {
            continue;
        }
        let times = run.batch.ints(column).expect("it is a time");
        for row in (0..times.len()).filter(|row| !waits_for_batch(left, run, *row)) {
            let own = all.entry(run.source).or_default();
            own.push((run.offsets[row], run.times[row], times[row]));
        }
    }
    let of_source = |(source, mut rows): (SourceId, Vec<(u64, i64, i64)>)| {
        rows.sort_unstable();
        let out_of_orderness_us = program.sources[source.index()].out_of_orderness_us;
        let (mut newest_us, mut before_us) = (None, None);
        for (_, stands_us, own_us) in &rows {
            if stands_us != own_us {
                // It is late, and stands where its source stood.
                let by_us = Some(stands_us.saturating_add(out_of_orderness_us));
                if before_us < by_us {
                    (newest_us, before_us) = (newest_us.max(by_us), by_us);
                }
            }
            before_us = before_us.max(Some(*own_us));
        }
        let stands_us = rows.iter().map(|(_, stands_us, _)| *stands_us).collect();
        let rows = rows.into_iter().map(|(offset, ..)| offset).collect();
        (source, Waiting { rows, stands_us, newest_us })
    };
    all.into_iter().map(of_source).collect()
}

/// Returns the ranges between rows, up to an end.
fn between(rows: &[u64], end: u64) -> Vec<Range<u64>> {
    let ends = rows[1..].iter().copied().chain([end]);
    let ranges = rows.iter().zip(ends).map(|(row, end)| row + 1..end);
    ranges.filter(|range| !range.is_empty()).collect()
}

/// Returns the events that wait for their batch, as rows of several processes.
fn incomplete_batches(left: &Left, open: &OpenBatches) -> Vec<(TableId, Row)> {
    let mut rows = Vec::new();
    for (stream, _) in open.tables() {
        let mut events: Vec<(Stamp, i64, Row)> = Vec::new();
        for run in left.internal.buffered.iter().filter(|run| run.stream == stream) {
            let own = (0..run.offsets.len()).filter(|row| waits_for_batch(left, run, *row));
            events.extend(own.map(|row| (run.stamp(row), run.times[row], run.batch.row(row))));
        }
        if events.is_empty() {
            continue;
        }
        // Those of a stream without event time have one source, and times that do not go back.
        events.sort_by(|a, b| a.0.cmp(&b.0));
        let since_us = events.iter().map(|(_, time_us, _)| *time_us).min().unwrap_or(0);
        let events: Vec<Row> = events.into_iter().map(|(.., row)| row).collect();
        rows.extend(open.rows(&left.stored.program, stream, (&events, since_us)));
    }
    rows
}

/// Whether the events of a source are pushed.
fn is_pushed(left: &Left, source: SourceId) -> bool {
    let Stored { program, sources, .. } = &left.stored;
    let name = &program.sources[source.index()].name;
    sources.iter().any(|decl| decl.is_pushed() && **name == format!("{}/push", decl.stream))
}

/// The counts of transactions.
fn counts(facts: &Facts) -> Counts {
    let of = &facts.counts;
    let HandlerCounts { committed, aborted, faults } = of.of_all();
    Counts {
        events: of.events,
        ended: committed + of.dead + of.late,
        refused: aborted - faults,
        faults,
        dead: of.dead,
        late: of.late,
        reasons: facts.reasons.clone(),
        ..Counts::default()
    }
}

/// Returns the retained rows of streams.
fn retained(left: &Left, starting: &Starting<'_>) -> Vec<RingFacts> {
    let mut rings = Rings::new(&left.stored.program, starting.settings);
    rings.resume(&left.internal);
    starting.retained_here(&rings, rings.facts())
}
