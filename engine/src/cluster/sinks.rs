//! Sinks of an app on several processes. The coordinator writes outputs to topics and files, and
//! retains the last ones (`retained`).
//!
//! Outputs are in the log. When all outputs of an epoch are there, its events are put into the one
//! order, over all sources, and written. So each event is a row with a number, as in one process,
//! and the same means make sure that each row is written once. The manifests of snapshots have the
//! sinks' positions. After a start the coordinator reads the outputs from there, and asks each sink
//! how many rows it has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidemill_cluster::{Log, Manifest, OutputReader, Records, Topic, Written};
use tidemill_connect::{sink, Sink, SinkPlace, SinkSettings, Troubles};
use tidemill_core::{Error, Kind, Late, Result, Schema, StreamId, StreamTime};
use tidemill_durable::Store;
use tidemill_env::{Env, Handle};
use tidemill_host::{CoordinatorProcess, Left};
use tidemill_kafka::stream::{open_sink, RowIds};
use tidemill_txn::program::{Origin, Program, Stream};

use super::ask::answer;
use super::delivered::Delivered;
use super::panics::catch_panic;
use super::retained::{Retaining, RingStore};
use crate::full_disk::{patient, SpaceWaiter, SpaceWaits};
use crate::internal::{RingFacts, SinkFacts};
use crate::requests::is_hidden;
use crate::rings::Rings;
use crate::settings::Settings;
use crate::spec::{AppSpec, SinkDecl, Target};

/// The most records that are read at once, and the most rows that are written at once.
const READ: usize = 1024;
const WRITTEN: usize = 1 << 16;
/// How long a read waits for records that exist already, in microseconds.
const READ_WAIT_US: u64 = 200_000;
/// How long the thread waits for outputs before it checks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// The shortest period of reports to the coordinator about the written rows, in nanoseconds.
const TELL_NS: u64 = 1_000_000_000;
/// The share of the time that reports may take: one part of so many.
const TELL_SHARE: u64 = 20;
/// How long the end waits for unwritten rows.
const END: Duration = Duration::from_secs(15);
/// How long it waits where the output is complete for good.
const END_OF_ALL: Duration = Duration::from_secs(60);
/// The pause before a log that does not answer is asked again, in microseconds.
const AGAIN_US: u64 = 50_000;

/// The note about sinks in a manifest.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Note {
    /// A part of the ids of rows, in hexadecimal digits. A start from scratch gets a different one.
    run: String,
    pub sinks: Vec<SinkFacts>,
    /// The number of the next row of each stream whose rows are retained.
    #[serde(default)]
    rows: BTreeMap<String, u64>,
}

impl Note {
    /// Creates the note of a run with these sinks.
    pub fn new(run: u128, sinks: &[SinkFacts]) -> Note {
        Note { run: format!("{run:032x}"), sinks: sinks.to_vec(), rows: BTreeMap::new() }
    }

    /// Reads the note of a manifest.
    ///
    /// # Errors
    /// When another version of Tidemill has written it.
    pub fn of(written: &Written) -> Result<Note> {
        if written.note.is_empty() {
            return Ok(Note::default());
        }
        serde_json::from_slice(&written.note).map_err(|e| {
            Error::new(
                Kind::Io,
                format!("the places of sinks in the newest snapshot can't be read: {e}"),
            )
            .help("another version of tidemill has written them: use that version")
        })
    }

    /// The run, which is 0 where an earlier version wrote no note.
    pub fn run(&self) -> u128 {
        // `begin` has written it as hexadecimal digits, and a manifest is checked as a whole.
        u128::from_str_radix(&self.run, 16).unwrap_or_default()
    }

    /// The number of the next row of each stream whose rows are retained.
    pub fn rows(&self) -> impl Iterator<Item = (&String, u64)> {
        self.rows.iter().map(|(stream, rows)| (stream, *rows))
    }

    fn place(&self, way: &DeclaredSink) -> Option<&SinkPlace> {
        let is_it = |of: &&SinkFacts| of.stream == way.stream && of.path == way.name;
        self.sinks.iter().find(is_it).map(|of| &of.place)
    }

    /// Returns a manifest's part about sinks that have all outputs up to a base.
    pub fn at(&self, base: u64, outputs: Vec<u64>) -> Written {
        let note = serde_json::to_vec(self).expect("places are JSON").into();
        Written { base, outputs, note }
    }
}

/// A sink that the app declares.
struct DeclaredSink {
    stream: String,
    /// The name of the sink among those of its stream.
    name: String,
    target: Target,
    at: String,
    /// The position of a new sink.
    begins: SinkPlace,
}

/// The sinks that an app declares.
pub(super) struct DeclaredSinks {
    env: Env,
    app: String,
    all: Vec<DeclaredSink>,
    fresh: bool,
    troubles: Troubles,
    /// The target of reports about files that wait for disk space.
    waits: SpaceWaits,
    /// The limits of retained rows.
    settings: Settings,
    /// Whether outputs are written or retained.
    leave: bool,
}

/// Whether outputs of an app are written to sinks, or retained.
pub(super) fn outputs_leave(spec: &AppSpec) -> bool {
    let is_read = |stream: &Stream| match (&stream.origin, &stream.spec.time) {
        (Origin::Emitted, _) => !is_hidden(&stream.spec.name),
        (Origin::Input, StreamTime::Event { .. }) => stream.spec.late == Late::Side,
        // Its map or filter may have dead letters, as rows of files and topics may be.
        (Origin::Derived { .. }, _) => true,
        _ => false,
    };
    !spec.sinks.is_empty()
        || spec.sources.iter().any(|decl| !decl.is_pushed())
        || spec.program.streams.iter().any(is_read)
}

impl DeclaredSinks {
    /// Opens the sinks of an app. Their topics exist and can be written.
    ///
    /// # Errors
    /// When one can't be written, with the user's line.
    pub fn open(
        spec: &AppSpec,
        program: &Program,
        fresh: bool,
        env: &Env,
    ) -> Result<DeclaredSinks> {
        let (app, troubles) = (program.name.to_string(), Troubles::default());
        let (waits, settings) = (SpaceWaits::default(), spec.settings.clone());
        let env = patient(env, &waits);
        let (all, leave) = (Vec::new(), outputs_leave(spec));
        let mut ways = DeclaredSinks { env, app, all, fresh, troubles, waits, settings, leave };
        for decl in &spec.sinks {
            let (SinkDecl { stream, at, .. }, target) = (decl.clone(), decl.target()?);
            let name = target.name();
            if ways.all.iter().any(|way| (&way.stream, &way.name) == (&stream, &name)) {
                let what = format!("stream {stream} is written to {name} twice");
                return Err(Error::program(what).help("remove one of the two").at(at));
            }
            ways.all.push(DeclaredSink { stream, name, target, at, begins: SinkPlace::default() });
        }
        for nth in 0..ways.all.len() {
            if let Target::Topic(_) = ways.all[nth].target {
                let (_, schema) = ways.stream(program, &ways.all[nth])?;
                ways.all[nth].begins = ways.sink(&ways.all[nth], &schema, 0, None)?.place();
            }
        }
        Ok(ways)
    }

    /// Creates the rings of the streams whose rows are retained, with those that were `found`.
    pub fn rings(&self, program: &Program, found: &[RingFacts]) -> Rings {
        let written: BTreeSet<String> = self.all.iter().map(|way| way.stream.clone()).collect();
        let mut rings = Rings::on_several(program, &self.settings, &written, found);
        rings.restore(found);
        rings
    }

    /// Whether outputs are neither written nor retained.
    pub fn are_none(&self) -> bool {
        !self.leave
    }

    /// The number and the columns of a sink's stream in a version of the program.
    fn stream(&self, program: &Program, way: &DeclaredSink) -> Result<(StreamId, Arc<Schema>)> {
        let is_it = |stream: &Stream| *stream.spec.name == *way.stream;
        let found = program.streams.iter().position(is_it);
        let found = found.ok_or_else(|| {
            let what = format!("there is no stream {} to write", way.stream);
            Error::program(what).at(way.at.clone())
        })?;
        Ok((StreamId(found as u16), program.streams[found].spec.schema.clone()))
    }

    /// Opens a sink: as a new one, or at a position.
    fn sink(
        &self,
        way: &DeclaredSink,
        schema: &Arc<Schema>,
        run: u128,
        resume: Option<&SinkPlace>,
    ) -> Result<Box<dyn Sink>> {
        let opened = match &way.target {
            Target::File(settings) => {
                let overwrite = settings.overwrite | self.fresh;
                let settings = SinkSettings { overwrite, ..settings.clone() };
                sink::open(&settings, schema, &self.env, resume)
            }
            Target::Topic(settings) => {
                let ids = RowIds { app: self.app.clone(), run, stream: way.stream.clone() };
                let who = format!("sink of {}: topic {}", way.stream, settings.topic);
                open_sink(settings, schema, &self.env, &ids, resume, (&self.troubles, &who))
            }
        };
        opened.map_err(|error| error.at(way.at.clone()))
    }

    /// Returns the positions of sinks where a log begins, or where another version of the app
    /// continues it. Existing sinks keep their positions, and new ones begin now. Before that, the
    /// outputs of the earlier version are written to the sinks that still exist. Streams keep the
    /// numbers of their retained rows.
    ///
    /// # Errors
    /// When a new sink can't be opened, or outputs can't be read or written.
    pub fn begin(
        &self,
        program: &Program,
        manifest: &Manifest,
        store: &Arc<dyn Store>,
        before: Option<(&Program, &dyn Log)>,
    ) -> Result<Written> {
        let known = match before {
            Some((program, log)) => self.catch_up(program, manifest, store, log)?,
            None => Note::of(&manifest.written)?,
        };
        let mut run = known.run.clone();
        if run.is_empty() {
            let random = [self.env.random.next_u64(), self.env.random.next_u64()];
            run = random.iter().map(|half| format!("{half:016x}")).collect();
        }
        let mut note = Note { run, ..Note::default() };
        let (_, retained) = RingStore::open(store, note.run())?;
        for (name, _) in self.rings(program, &[]).streams() {
            let next = retained.iter().find(|facts| facts.stream == name).map_or(0, |of| of.next);
            note.rows.insert(name, next);
        }
        for way in &self.all {
            let (_, schema) = self.stream(program, way)?;
            let place = match (known.place(way), &way.target) {
                (Some(place), _) => place.clone(),
                (None, Target::Topic(_)) => way.begins.clone(),
                // An existing file is refused, or replaced.
                (None, Target::File(_)) => {
                    self.sink(way, &schema, 0, None)?;
                    SinkPlace::default()
                }
            };
            note.sinks.push(SinkFacts {
                stream: way.stream.clone(),
                path: way.name.clone(),
                place,
            });
        }
        let outputs = match self.are_none() {
            // Nobody reads them.
            true => Vec::new(),
            false => manifest.outputs.clone(),
        };
        Ok(note.at(manifest.base, outputs))
    }

    /// Writes and retains all outputs up to a snapshot, by the program that has executed them.
    ///
    /// # Errors
    /// When outputs can't be read or written.
    pub fn catch_up(
        &self,
        program: &Program,
        manifest: &Manifest,
        store: &Arc<dyn Store>,
        log: &dyn Log,
    ) -> Result<Note> {
        let written = &manifest.written;
        let note = Note::of(written)?;
        if written.outputs.is_empty() || written.base >= manifest.base {
            return Ok(note);
        }
        let mut ends = Vec::new();
        for source in 0..manifest.outputs.len() as u32 {
            ends.push(super::ask::read(log, Topic::Output(source), u64::MAX)?.upto);
        }
        let (base, recorded) = (manifest.base, manifest.base);
        let written = written.clone();
        let left = Left { generation: u64::MAX, base, ends, recorded, written };
        let delivered = Arc::new(Delivered::new(self.rings(program, &[])));
        let mut writer = Writer::open(self, program, &left, (store, delivered), true)?;
        let never = AtomicBool::new(false);
        writer.write(&left, log, &never)?;
        writer.retaining.save(manifest.generation)?;
        Note::of(&writer.written()?)
    }
}

/// An open sink.
struct Open {
    stream: String,
    name: String,
    sink: Box<dyn Sink>,
    /// The user's line of its declaration.
    at: String,
}

/// Writes the outputs.
struct Writer {
    env: Env,
    run: String,
    sinks: Vec<(StreamId, Open)>,
    retaining: Retaining,
    leaving: OutputReader,
    is_settled: bool,
}

/// The store of retained rows, and their followers.
type Retained<'a> = (&'a Arc<dyn Store>, Arc<Delivered>);

impl Writer {
    /// Opens all sinks at their positions. Sinks without a position are an error, or are left out
    /// with `skips`.
    fn open(
        ways: &DeclaredSinks,
        program: &Program,
        left: &Left,
        (store, delivered): Retained<'_>,
        skips: bool,
    ) -> Result<Writer> {
        let note = Note::of(&left.written)?;
        let retaining = Retaining::open(delivered, program, (store, note.run()), &note.rows)?;
        let mut sinks = Vec::new();
        for way in &ways.all {
            let Some(place) = note.place(way) else {
                if skips {
                    continue;
                }
                let what = format!("{} was not among the outputs of earlier runs", way.name);
                return Err(Error::setting(what)
                    .help("leave the outputs as they were")
                    .at(way.at.clone()));
            };
            let (id, schema) = match (ways.stream(program, way), skips) {
                (Err(_), true) => continue,
                (found, _) => found?,
            };
            let sink = ways.sink(way, &schema, note.run(), Some(place))?;
            let (stream, name, at) = (way.stream.clone(), way.name.clone(), way.at.clone());
            sinks.push((id, Open { stream, name, sink, at }));
        }
        let mut wanted: BTreeMap<StreamId, Arc<Schema>> = retaining.wanted(program).collect();
        for (id, _) in &sinks {
            wanted.insert(*id, program.streams[id.index()].spec.schema.clone());
        }
        let leaving = OutputReader::after(&left.written, left.ends.len() as u32, wanted);
        let env = ways.env.clone();
        Ok(Writer { env, run: note.run, sinks, retaining, leaving, is_settled: false })
    }

    /// Writes all outputs up to `left`. Returns whether they could be read.
    fn write(&mut self, left: &Left, log: &dyn Log, is_over: &AtomicBool) -> Result<bool> {
        while let Some((source, from)) = self.leaving.missing(left) {
            match read(log, source, from) {
                Some(records) => self.leaving.take(source, records),
                None => {
                    if let Some(error) = log.failed() {
                        return Err(error);
                    }
                    if is_over.load(Ordering::Acquire) {
                        return Ok(false);
                    }
                    self.env.clock.sleep_us(AGAIN_US);
                }
            }
        }
        // A later generation has begun, and reports more.
        let Some(ready) = self.leaving.ready(left) else { return Ok(true) };
        self.retaining.take(&ready);
        for (stream, batch) in ready {
            for (_, open) in self.sinks.iter_mut().filter(|(of, _)| *of == stream) {
                for from in (0..batch.len()).step_by(WRITTEN) {
                    let some = batch.slice(from, WRITTEN.min(batch.len() - from));
                    let written = open.sink.write(&some).and_then(|()| open.sink.commit());
                    written.map_err(|error| error.at(open.at.clone()))?;
                }
            }
        }
        if left.base >= left.recorded && !std::mem::replace(&mut self.is_settled, true) {
            self.retaining.settle();
            for (_, open) in &mut self.sinks {
                open.sink.settle().map_err(|error| error.at(open.at.clone()))?;
            }
        }
        Ok(true)
    }

    /// Completes the sinks.
    fn finish(&mut self) -> Result<()> {
        let finish = |(_, open): &mut (StreamId, Open)| {
            open.sink.finish().map_err(|error| error.at(open.at.clone()))
        };
        self.sinks.iter_mut().try_for_each(finish)
    }

    /// Stores the retained rows. A failure is a trouble, and the next time may succeed. Returns
    /// whether all rows are stored.
    fn save(&mut self, generation: u64, troubles: &Troubles) -> bool {
        let saved = self.retaining.save(generation);
        match &saved {
            Ok(()) => troubles.clear(RETAINED),
            Err(error) => troubles.report(RETAINED, &error.what),
        }
        saved.is_ok()
    }

    /// Returns the durable positions of all sinks and of the retained rows, which were stored.
    fn written(&mut self) -> Result<Written> {
        let rows = self.retaining.rows();
        let mut note = Note { run: self.run.clone(), sinks: Vec::new(), rows };
        for (_, open) in &mut self.sinks {
            let place = open.sink.sync().map_err(|error| error.at(open.at.clone()))?;
            let (stream, path) = (open.stream.clone(), open.name.clone());
            note.sinks.push(SinkFacts { stream, path, place });
        }
        let (base, outputs) = self.leaving.place();
        Ok(note.at(base, outputs))
    }
}

/// Reads some outputs of a source.
fn read(log: &dyn Log, source: u32, from: u64) -> Option<Records> {
    let found = answer(|then| {
        log.read(Topic::Output(source), from, Some(READ), READ_WAIT_US, then);
    });
    found.ok().flatten()
}

/// The state that the thread shares.
#[derive(Default)]
struct SinkState {
    is_ending: AtomicBool,
    /// Whether the thread should end even with unwritten rows.
    gives_up: AtomicBool,
    /// Whether the output is complete for good.
    is_all: AtomicBool,
    has_ended: AtomicBool,
    failed: Mutex<Option<Error>>,
    /// The number of rows of each sink.
    rows: Mutex<Vec<(String, String, u64)>>,
}

/// Reports files that wait for disk space.
struct Room {
    state: Arc<SinkState>,
    troubles: Troubles,
}

/// The names of reports among the troubles of sinks.
const ROOM: &str = "sinks";
const RETAINED: &str = "retained rows";

impl SpaceWaiter for Room {
    fn gives_up(&self) -> bool {
        self.state.gives_up.load(Ordering::Acquire) || self.troubles.is_over()
    }

    fn stall(&self, error: Error) {
        self.troubles.report(ROOM, &error.what);
    }

    fn has_room(&self) {
        self.troubles.clear(ROOM);
    }
}

/// The sinks of an app, which are written until this is dropped.
pub(super) struct Sinks {
    state: Arc<SinkState>,
    troubles: Troubles,
    /// Files wait for disk space as long as this exists.
    _room: Arc<dyn SpaceWaiter>,
    // The lock is there only because a handle can't be shared between threads.
    thread: Mutex<Option<Handle>>,
}

impl Sinks {
    /// Begins to write outputs, if there are sinks.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub fn start(
        ways: DeclaredSinks,
        program: Arc<Program>,
        coordinator: &Arc<CoordinatorProcess>,
        log: Arc<dyn Log>,
        (store, delivered): (Arc<dyn Store>, Arc<Delivered>),
    ) -> Result<Sinks> {
        let (state, troubles) = (Arc::<SinkState>::default(), ways.troubles.clone());
        let room: Arc<dyn SpaceWaiter> =
            Arc::new(Room { state: state.clone(), troubles: troubles.clone() });
        if ways.are_none() {
            delivered.settle();
            state.has_ended.store(true, Ordering::Release);
            return Ok(Sinks { state, troubles, _room: room, thread: Mutex::new(None) });
        }
        // This can't fail: it is set only here.
        let _ = ways.waits.set(Arc::downgrade(&room));
        let (env, coordinator, own) = (ways.env.clone(), coordinator.clone(), state.clone());
        let run = move || {
            let retained = (&store, delivered);
            let body = || run(&ways, &program, &coordinator, &*log, retained, &own);
            let done = catch_panic("sinks", body);
            *own.failed.lock() = done.err();
            own.has_ended.store(true, Ordering::Release);
        };
        let thread = env.threads.spawn("cluster-sinks", Box::new(run));
        let thread = thread.map_err(|e| Error::io("starting a thread", &e))?;
        Ok(Sinks { state, troubles, _room: room, thread: Mutex::new(Some(thread)) })
    }

    /// The error that has ended the writing, if there is one.
    pub fn failed(&self) -> Option<Error> {
        self.state.failed.lock().clone()
    }

    /// The reasons why sinks are blocked.
    pub fn troubles(&self) -> Vec<String> {
        self.troubles.all().into_iter().map(|(who, what)| format!("{who}: {what}")).collect()
    }

    /// Each stream, its target, and the number of rows there.
    pub fn rows(&self) -> Vec<(String, String, u64)> {
        self.state.rows.lock().clone()
    }

    /// Writes the remaining outputs and ends, with a limit of time. If the output is complete for
    /// good, the files are completed.
    ///
    /// # Errors
    /// The error of writing. An error when it takes too long to complete the sinks for good.
    pub fn finish(&self, env: &Env, is_all: bool) -> Result<()> {
        self.state.is_all.store(is_all, Ordering::Release);
        self.state.is_ending.store(true, Ordering::Release);
        let wait = if is_all { END_OF_ALL } else { END };
        let until_ns = env.clock.monotonic_ns() + wait.as_nanos() as u64;
        while !self.state.has_ended.load(Ordering::Acquire) {
            if env.clock.monotonic_ns() > until_ns {
                self.state.gives_up.store(true, Ordering::Release);
                let why = self.troubles().first().map_or(String::new(), |why| format!(": {why}"));
                let what = format!(
                    "the outputs could not be written within {} seconds{why}",
                    wait.as_secs()
                );
                let error = Error::resource(what);
                let again = "start the app again: it writes the rest, and nothing twice";
                return if is_all { Err(error.help(again)) } else { Ok(()) };
            }
            env.clock.sleep_us(1_000);
        }
        self.failed().map_or(Ok(()), Err)
    }
}

impl Drop for Sinks {
    fn drop(&mut self) {
        self.state.is_ending.store(true, Ordering::Release);
        self.state.gives_up.store(true, Ordering::Release);
        self.troubles.give_up();
        if let Some(thread) = self.thread.lock().take() {
            // The thread has reported why it ended, even after a panic.
            let _ = thread.join();
        }
    }
}

/// Writes until it should end and all outputs are written.
fn run(
    ways: &DeclaredSinks,
    program: &Program,
    coordinator: &CoordinatorProcess,
    log: &dyn Log,
    retained: Retained<'_>,
    state: &SinkState,
) -> Result<()> {
    let mut writer: Option<Writer> = None;
    let (mut report_ns, mut is_news, mut unwritten, mut generation) = (0, false, None, 0);
    loop {
        let is_ending = state.is_ending.load(Ordering::Acquire);
        let left = coordinator.left(LOOK).or(unwritten.take());
        let gives_up = left.is_some() && state.gives_up.load(Ordering::Acquire);
        if gives_up || left.is_none() && is_ending {
            unwritten = left;
            break;
        }
        if let Some(left) = left {
            let open = match &mut writer {
                Some(open) => open,
                // The sinks are opened after the generation has begun. Then no earlier one writes
                // any more.
                None => writer.insert(Writer::open(ways, program, &left, retained.clone(), false)?),
            };
            generation = left.generation;
            let is_written = open.write(&left, log, &state.gives_up)?;
            is_news |= is_written;
            let of = |(_, open): &(StreamId, Open)| {
                (open.stream.clone(), open.name.clone(), open.sink.place().rows)
            };
            *state.rows.lock() = open.sinks.iter().map(of).collect();
            // A later report covers this one.
            unwritten = (!is_written).then_some(left);
        }
        let now_ns = || ways.env.clock.monotonic_ns();
        if let (Some(writer), true) = (&mut writer, is_news && now_ns() > report_ns) {
            let begun_ns = now_ns();
            is_news = !writer.save(generation, &ways.troubles);
            if !is_news {
                coordinator.has_written(writer.written()?);
            }
            let ended_ns = now_ns();
            report_ns = ended_ns + TELL_NS.max(TELL_SHARE * (ended_ns - begun_ns));
        }
    }
    let Some(writer) = &mut writer else { return Ok(()) };
    // Rows that can't be stored are in the log, and the next start reads them there.
    writer.save(generation, &ways.troubles);
    writer.written()?;
    match state.is_all.load(Ordering::Acquire) && unwritten.is_none() {
        true => writer.finish(),
        false => Ok(()),
    }
}
