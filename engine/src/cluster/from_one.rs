//! The state of an app that ran in one process, as several processes take it over (`moves.rs`).
//!
//! The newest snapshot becomes the first one of the cluster's log. The position of each file becomes a
//! mark (`feeds`), as if the coordinator had read the file. Events that wait for their watermark are
//! received again: from their file, or from the log, where they are put. Cuts after the snapshot can't
//! move, because only the way to run that recorded them can execute them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_cluster::{
    EventSource, EventTime, Log, Manifest, Record, Request, RequestId, Times, Topic,
};
use tidemill_connect::{Place, Polled, Source};
use tidemill_core::{Error, Kind, Position, Result, Row, SourceId, StreamId};
use tidemill_durable::Store;
use tidemill_env::{Env, Lock};
use tidemill_function::{Counts, Functions as _};
use tidemill_place::partition_of_bytes;
use tidemill_txn::execute::HandlerCounts;
use tidemill_txn::order::Run;
use tidemill_txn::program::Program;

use super::ask::answer;
use super::feeds::{Feeds, FilesAt};
use super::retained::RingStore;
use super::sinks::Note;
use super::upgrade::Starting;
use super::ClusterSettings;
use crate::changes::counted;
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
    /// The sources with waiting events, each with the first one. They are received again. In a file all
    /// events from there on wait.
    waits_from: BTreeMap<SourceId, u64>,
    moving: Move,
    _held: Box<dyn Lock>,
}

/// The most waiting events in a record of the log.
const TOGETHER: usize = 256;

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
        let waits_from = left.as_ref().map(|(_, left, _)| waits_from(left)).transpose();
        let waits_from = waits_from.map_err(|error| moved(&dir, error))?.unwrap_or_default();
        let moving = Move::begin(disk, &dir, Way::Several)?;
        Ok(Some(OneState { env: env.clone(), dir, left, waits_from, moving, _held: held }))
    }

    /// Stores the positions of files as marks, in the coordinator's directory.
    ///
    /// # Errors
    /// When a file can't be opened, or the disk fails.
    pub fn mark(&self, spec: &AppSpec, dir: &Path) -> Result<()> {
        let Some((_, left, _)) = &self.left else { return Ok(()) };
        let mut sources = (0..).map(SourceId).zip(&left.internal.facts.sources);
        let mut files = Vec::new();
        for decl in &spec.sources {
            if decl.files.is_none() {
                sources.next();
                continue;
            }
            let (mut places, mut newest_us, mut have_ended) = (Vec::new(), None, true);
            let opened = Feeds::files(decl, &left.stored.program, &self.env)?;
            for ((name, mut file), (source, facts)) in opened.into_iter().zip(sources.by_ref()) {
                let place = match self.waits_from.get(&source) {
                    Some(from) => place_of(&mut *file, &name, *from)?,
                    None => facts.place.clone(),
                };
                newest_us = newest_us.max(self.newest_us(source, facts));
                have_ended &= facts.ended && place == facts.place;
                places.push((name, place));
            }
            files.push(FilesAt { decl, places, newest_us, have_ended });
        }
        Feeds::begin_at(&*self.env.disk, dir, files)
    }

    /// The newest time of a source's events that do not wait. It is unknown where some wait, until they
    /// are received again.
    fn newest_us(&self, source: SourceId, facts: &SourceFacts) -> Option<i64> {
        facts.time_max.filter(|_| !self.waits_from.contains_key(&source))
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
        let to = Stored::on_several(functions.program());
        let mut comparison = Comparison::of(&one.env, left, &to, &BTreeMap::new())?;
        let facts = &left.internal.facts;
        let (epoch, clock_us) = (facts.epoch + 1, facts.clock_us);
        let mut converted = starting.converted(generation, epoch, starting.fingerprint);
        comparison.convert(store, &left.manifest, |table, partition, key, row| {
            converted.push(table, partition, key, row);
        })?;
        // One process has executed the firings of timers up to its last cut.
        for (table, row) in functions.fired(clock_us) {
            let spec = &functions.program().tables[table.index()];
            let (key, bytes) = encoded(spec, &row);
            converted.push(table, partition_of_bytes(spec, &key), &key, &bytes);
        }
        let (_, objects) = converted.end()?;
        self.send_again(left, starting.log, generation)?;
        let mut inputs = vec![0; starting.sources as usize];
        for (source, at, _) in feeds.positions() {
            inputs[source as usize] = at;
        }
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
            buffered: if times.newest.is_empty() { Vec::new() } else { inputs.clone() },
            waiting: Some(Vec::new()),
            inputs,
            times,
            outputs,
            objects,
            written: written.into(),
            counts: counts(facts).into(),
        }))
    }

    /// Appends the waiting events of pushed streams to the log, as if clients had just sent them.
    fn send_again(&self, left: &Left, log: &dyn Log, generation: u64) -> Result<()> {
        let program = &left.stored.program;
        for source in self.one.waits_from.keys().filter(|source| is_pushed(left, **source)) {
            let is_own =
                |run: &&Run| run.source == *source && program.root_stream(run.stream) == run.stream;
            let mut rows: Vec<(u64, StreamId, Row)> = Vec::new();
            for run in left.internal.buffered.iter().filter(is_own) {
                let own = run.offsets.iter().zip(run.batch.rows());
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
            let of_stream = sources().filter(|(_, (source, _))| source.stream == of.stream);
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
                // No executed event is received again, so all others of this time are still to come.
                let mark = Position { time_us: mark.time_us, ..Position::MIN };
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
    if spec.sources.iter().any(|decl| decl.kafka.is_some()) {
        return Err(Error::setting("it reads topics, whose positions can't move yet").help(again));
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

/// Returns the first waiting event of each source.
///
/// # Errors
/// When a source has events behind it that were executed.
fn waits_from(left: &Left) -> Result<BTreeMap<SourceId, u64>> {
    let program = &left.stored.program;
    let (mut roots, mut others) = (BTreeMap::<_, Vec<u64>>::new(), BTreeMap::<_, Vec<u64>>::new());
    let mut is_apart = false;
    for run in &left.internal.buffered {
        let root = program.root_stream(run.stream);
        let of = if root == run.stream { &mut roots } else { &mut others };
        of.entry(run.source).or_default().extend(&run.offsets);
        is_apart |= run.admitted.is_some();
        // Streams without batches have executed the events that wait for a batch of the root.
        let is_whole = |stream: StreamId| {
            program.root_stream(stream) != root
                || program.streams[stream.index()].batch.is_some()
                || program.handlers_on(stream).next().is_none()
        };
        let all = || (0..program.streams.len() as u16).map(StreamId);
        is_apart |= program.streams[root.index()].batch.is_some() && !all().all(is_whole);
    }
    let mut from = BTreeMap::new();
    for (source, offsets) in &mut roots {
        offsets.sort_unstable();
        let next = left.internal.facts.sources[source.index()].next_offset;
        let first = offsets.first().copied().unwrap_or(next);
        is_apart |= !is_pushed(left, *source) && offsets.len() as u64 != next - first;
        from.insert(*source, first);
    }
    let is_alone = |(source, offsets): (&SourceId, &Vec<u64>)| {
        let own = roots.get(source).map_or(&[][..], |own| own);
        offsets.iter().any(|offset| own.binary_search(offset).is_err())
    };
    if is_apart || others.iter().any(is_alone) {
        let waiting = roots.values().chain(others.values()).map(|offsets| offsets.len() as u64);
        let what = format!(
            "{} wait for their batch or their watermark, and others that came after them do not",
            counted(waiting.sum(), "event")
        );
        return Err(Error::setting(what).help("run it without --processes until they are executed"));
    }
    Ok(from)
}

/// Whether the events of a source are pushed.
fn is_pushed(left: &Left, source: SourceId) -> bool {
    let Stored { program, sources, .. } = &left.stored;
    let name = &program.sources[source.index()].name;
    sources.iter().any(|decl| decl.is_pushed() && **name == format!("{}/push", decl.stream))
}

/// Reads a file up to a row, and returns the position before it.
fn place_of(file: &mut dyn Source, name: &str, row: u64) -> Result<Place> {
    while file.place().offset < row {
        let Polled::Rows(_) = file.poll((row - file.place().offset) as usize)? else {
            let what = format!("{name} has fewer rows than before");
            return Err(Error::input(what).help("restore it as it was"));
        };
    }
    Ok(file.place())
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
    let here = starting.ways.rings(starting.program, &[]);
    let is_here =
        |of: &RingFacts| rings.is_dlq(&of.stream) || here.by_name.contains_key(&of.stream);
    let mut facts = rings.facts();
    for of in facts.iter_mut().filter(|of| !is_here(of)) {
        // Rows of such a stream are not counted from now on. The number that is left out tells
        // followers that some are missing.
        (of.next, of.batches) = (of.next + 1, Vec::new());
    }
    facts
}
