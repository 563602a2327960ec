//! Opens an app: makes all running parts of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_channel::Sender;
use tidemill_connect::push::PushLimits;
use tidemill_connect::{
    files, push, sink, FilesSettings, Place, PushHandle, PushSource, Sink, SinkPlace, SinkSettings,
    Source, Troubles,
};
use tidemill_core::{Error, Result, Schema, SourceId, SourceSpec, StreamId, StreamTime};
use tidemill_env::Env;
use tidemill_flow::{Branch, Input, Stage as FlowStage};
use tidemill_kafka::stream::{open_sink, open_sources, Numbers, RowIds, TopicSource};
use tidemill_log::LogKind;
use tidemill_table::Table;
use tidemill_txn::execute::tables;
use tidemill_txn::order::Newest;
use tidemill_txn::program::{ColumnStage, Origin, Program, Stage};
use tracing::info;

use crate::begins::StartPositions;
use crate::cluster::to_one;
use crate::data_dir::DataDir;
use crate::deliver::Item;
use crate::differences;
use crate::driver::SourceState;
use crate::feed::{Feed, Pace, Places, ToLog};
use crate::file_conflicts;
use crate::full_disk::{patient, SpaceWaits};
use crate::outlets::{NamedSink, Outlets};
use crate::recover::{recover, Recovered};
use crate::requests;
use crate::settings::{Durable, Settings, Upgrade, SEGMENT_BYTES_MIN};
use crate::spec::{AppSpec, SinkDecl, SourceDecl, Target};
use crate::stages::{FailedList, Step};
use crate::stored::Stored;
use crate::upgrade::upgrade;

/// The most rows and bytes that wait in a pushed stream.
const PUSH_LIMITS: PushLimits = PushLimits { rows: 1 << 20, bytes: 64 << 20 };

/// An open app.
pub(crate) struct Opened {
    pub(crate) program: Arc<Program>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) workers: usize,
    /// Pushed streams by name: their sources, and the number of rows of each that are known
    /// already.
    pub(crate) pushed: BTreeMap<String, (SourceId, PushHandle, u64)>,
    pub(crate) sources: Vec<SourceState>,
    pub(crate) tables: Vec<Table>,
    pub(crate) outlets: Outlets,
    /// The target of reports about outputs that wait for disk space.
    pub(crate) waits: SpaceWaits,
    pub(crate) failed: FailedList,
    /// The reports of blocked sources and sinks.
    pub(crate) troubles: Troubles,
    pub(crate) durable: Option<Opening>,
    /// Whether requests have a clock of their own in the epoch that is executed.
    pub(crate) has_request_clock: requests::HasClock,
    /// Whether functions ask outside.
    pub(crate) asks_outside: bool,
}

/// The contents of the data directory.
pub(crate) struct Opening {
    pub(crate) dir: DataDir,
    pub(crate) recovered: Recovered,
    pub(crate) fingerprint: u128,
    /// The program as manifests store it.
    pub(crate) program: Vec<u8>,
    /// The changes of an upgrade.
    pub(crate) upgraded: Option<serde_json::Value>,
}

impl Opening {
    /// The handlers and triggers whose code has changed since the newest snapshot.
    pub(crate) fn changed(&self) -> Vec<String> {
        let before = self.recovered.manifest.as_ref().map(|m| Stored::parse(&m.head.program));
        let (Some(Ok(before)), Ok(now)) = (before, Stored::parse(&self.program)) else {
            return Vec::new();
        };
        let is_other = |(name, code): &(String, String)| {
            before.codes.get(name).is_some_and(|before| before != code)
        };
        now.codes.into_iter().filter(is_other).map(|(name, _)| name).collect()
    }
}

/// A partition's name, its source, and the handle of a pushed one.
type OpenedSource = (String, Reader, Option<PushHandle>);

/// A source partition before the flow gets it.
pub(crate) struct Partition {
    name: String,
    pub(crate) stream: StreamId,
    pub(crate) source: Reader,
    push: Option<PushHandle>,
    pub(crate) is_followed: bool,
    is_topic: bool,
    /// Whether it is checked from time to time only.
    is_paced: bool,
    pub(crate) spec: SourceSpec,
}

pub(crate) fn open(spec: AppSpec, env: &Env, items: &Sender<Item>) -> Result<Opened> {
    let mut program = spec.program.clone();
    let has_request_clock = requests::add(&mut program)?;
    program.check()?;
    let troubles = Troubles::default();
    let partitions = partitions(&program, &spec.sources, env, &troubles)?;
    // The check comes before anything is emptied or opened for writing.
    file_conflicts::check(&spec, &[], env)?;
    program.sources = partitions.iter().map(|p| p.spec.clone()).collect();
    program.check()?;
    let program = Arc::new(program);
    let (sources, sinks) = (spec.sources.clone(), spec.sinks.clone());
    let stored = Stored { program: (*program).clone(), sources, sinks, codes: spec.codes.clone() };
    let takes_over = spec.settings.durable != Durable::None && !spec.settings.fresh;
    if let (Some(path), true) = (&spec.settings.data_dir, takes_over) {
        to_one(&spec, &stored, path, env)?;
    }
    let AppSpec { sinks, keep, settings, asks_outside, .. } = spec;
    let durable = durable(&stored, &settings, env)?;
    let mut begins = match &durable {
        Some(opening) => StartPositions::read(&*env.disk, &opening.dir.path)?,
        None => StartPositions::default(),
    };
    let internal = durable.as_ref().and_then(|d| d.recovered.internal.as_ref());
    let has_snapshots = settings.durable == Durable::LogAndSnapshots;
    let failed = FailedList::default();
    let files = partitions.iter().filter(|p| p.push.is_none()).count();
    let workers = match settings.workers {
        0 => env.threads.cores().min(files + 1),
        n => n,
    };
    // The first worker executes, and the others read files, if there are any. Pushed rows need no
    // decoding. The first worker reads them, because passing a single row to another thread costs
    // more than its transaction.
    let mut readers = (1..workers).cycle();
    let now = env.clock.monotonic_ns();
    let (mut inputs, mut sources) = (Vec::new(), Vec::new());
    let mut pushed = BTreeMap::new();
    let logged_to = durable.as_ref().map(|d| d.recovered.logged_to()).unwrap_or_default();
    for (index, partition) in partitions.into_iter().enumerate() {
        let source = SourceId(index as u32);
        let mut state = SourceState {
            name: partition.spec.name.to_string(),
            next_offset: 0,
            time_max: None,
            ended: false,
            end_seen: false,
            is_push: partition.push.is_some(),
            is_followed: partition.is_followed,
            is_topic: partition.is_topic,
            empty_polls: Arc::default(),
            empty_polls_before: None,
            paused: false,
            active_ns: now,
            gives: false,
            was_idle: false,
            place: Place::start(),
            places: None,
        };
        if let Some(internal) = internal {
            let facts = &internal.facts.sources[index];
            (state.next_offset, state.time_max) = (facts.next_offset, facts.time_max);
            // The end of a file must be seen again, because it may have grown.
            (state.ended, state.end_seen) = (facts.ended, facts.ended && state.is_push);
            state.place = facts.place.clone();
        }
        let newest = Newest::after(state.time_max, partition.spec.out_of_orderness_us);
        let mut reader = partition.source;
        let mut log = None;
        if let Some(Opening { dir, recovered, .. }) = &durable {
            state.places = Some(Places::default());
            match reader {
                Reader::Pushed(ref mut push) => {
                    let from = state.next_offset;
                    push.resume(&state.place)?;
                    let schema = program.streams[partition.stream.index()].spec.schema.clone();
                    let spec = dir.log(LogKind::Input);
                    let rows = recovered.rows(&env.disk, spec, source, schema, from)?;
                    push.replay(Box::new(rows))?;
                    let from = logged_to.get(&source).copied().unwrap_or(0).max(from);
                    log = Some(ToLog { items: items.clone(), from });
                }
                Reader::Read(ref mut source) => source.resume(&match state.place.offset {
                    0 => begins.source(&state.name, source.place()),
                    _ => state.place.clone(),
                })?,
            }
        }

        let stream = &program.streams[partition.stream.index()].spec;
        let time = match stream.time {
            StreamTime::Event { column } => Some(column),
            StreamTime::Arrival => None,
        };
        if let Some(handle) = partition.push {
            let known = log.as_ref().map_or(0, |log| log.from);
            pushed.insert(stream.name.to_string(), (source, handle, known));
        }
        inputs.push(Input {
            source,
            worker: if state.is_push { 0 } else { readers.next().unwrap_or(0) },
            ingress: Box::new(Feed {
                id: source,
                source: reader.boxed(),
                time,
                newest,
                places: state.places.clone(),
                log,
                pace: partition.is_paced.then(|| Pace { clock: env.clock.clone(), look_ns: 0 }),
                empty_polls: state.empty_polls.clone(),
            }),
            branches: branches(&program, partition.stream, &failed)?,
        });
        info!(target: "tidemill::source", source = state.name, row = state.next_offset, "opened");
        sources.push(state);
    }
    let seed = env.random.next_u64();
    let mut tables = tables(&program, seed);
    if let Some(durable) = &durable {
        if has_snapshots {
            tables.iter_mut().for_each(Table::track);
        }
        durable.recovered.load(&mut tables)?;
    }
    let waits = SpaceWaits::default();
    let patient = patient(env, &waits);
    let opening = durable.as_ref();
    let fresh = opening.map_or(settings.fresh, |opening| opening.dir.fresh);
    let opener = Opener { program: &program, fresh, opening, env: &patient, troubles: &troubles };
    let mut outlets = opener.outlets(&sinks, &keep, &mut begins)?;
    for sink in &sinks {
        info!(target: "tidemill::sink", stream = &*sink.stream, "opened");
    }
    if let Some(opening) = &durable {
        // This comes before anything is read or written.
        begins.write(&*env.disk, &opening.dir.path)?;
        if opening.dir.fresh {
            // After a start from scratch, outputs must be new before the data is.
            outlets.sync()?;
        }
        opening.dir.has_begun()?;
    }
    Ok(Opened {
        program,
        inputs,
        workers,
        pushed,
        sources,
        tables,
        outlets,
        waits,
        failed,
        troubles,
        durable,
        has_request_clock,
        asks_outside,
    })
}

/// Opens all sources. Topics report in `troubles` when they are blocked.
pub(crate) fn partitions(
    program: &Program,
    sources: &[SourceDecl],
    env: &Env,
    troubles: &Troubles,
) -> Result<Vec<Partition>> {
    let mut partitions: Vec<Partition> = Vec::new();
    for decl in sources {
        let stream = input_stream(program, &decl.stream).map_err(|e| e.at(decl.at.clone()))?;
        let schema = program.streams[stream.index()].spec.schema.clone();
        let open = || -> Result<Vec<OpenedSource>> {
            let opened = match (&decl.files, &decl.kafka) {
                (None, None) => {
                    let (handle, source) = push(schema.clone(), PUSH_LIMITS);
                    return Ok(vec![("push".into(), Reader::Pushed(source), Some(handle))]);
                }
                (Some(files_json), None) => {
                    let settings = FilesSettings::from_json(&files_json.to_string())?;
                    files::open(&settings, &schema, env)?
                }
                (None, Some(topic)) => {
                    let settings = TopicSource::from_json(&topic.to_string())?;
                    let who = format!("source of {}: topic {}", decl.stream, settings.topic);
                    open_sources(&settings, &schema, env, Numbers::Counted, (troubles, &who))?
                }
                (Some(_), Some(_)) => {
                    let what =
                        format!("a source of stream {} needs either files or a topic", decl.stream);
                    return Err(Error::program(what));
                }
            };
            let opened = opened.into_iter();
            Ok(opened.map(|(name, source)| (name, Reader::Read(source), None)).collect())
        };
        for (partition, source, push) in open().map_err(|e| e.at(decl.at.clone()))? {
            // Two folders may hold files of one name.
            let base = format!("{}/{partition}", decl.stream);
            let same = partitions.iter().filter(|p| p.name == base).count();
            let name = if same == 0 { base.clone() } else { format!("{base}#{}", same + 1) };
            let spec = SourceSpec {
                name: name.clone().into(),
                stream,
                out_of_orderness_us: decl.out_of_orderness_us,
                idle_us: decl.idle_us,
            };
            let is_paced = decl.files.as_ref().is_some_and(|f| f["follow"] == true);
            let is_followed = is_paced || decl.kafka.is_some();
            partitions.push(Partition {
                name: base,
                stream,
                source,
                push,
                is_followed,
                is_topic: decl.kafka.is_some(),
                is_paced,
                spec,
            });
        }
    }
    Ok(partitions)
}

/// Locks the data directory and reads its contents.
fn durable(stored: &Stored, settings: &Settings, env: &Env) -> Result<Option<Opening>> {
    let program = &stored.program;
    let path = match &settings.data_dir {
        Some(path) if settings.durable != Durable::None => path,
        _ => return Ok(None),
    };
    // Without pushed streams the input log holds verdicts at most.
    let has_pushed = stored.sources.iter().any(SourceDecl::is_pushed);
    let segment_bytes = if has_pushed { settings.log_segment_bytes } else { SEGMENT_BYTES_MIN };
    let name = &program.name;
    let dir = DataDir::open(env, path, name, settings.fresh, segment_bytes)?;
    let upgraded = match settings.upgrade {
        Upgrade::Off => None,
        Upgrade::Lossless | Upgrade::Lossy => upgrade(env, &dir, stored, settings)?,
    };
    let text = crate::fingerprint::text(program);
    let fingerprint = crate::fingerprint::of(&text);
    let recovered = recover(&dir, &env.disk, program, &stored.sources, fingerprint)
        .map_err(|error| differences::explained(error, env, &dir, stored, settings))?;
    if let Some(internal) = &recovered.internal {
        let (then, now) = (&internal.facts.sources, &program.sources);
        let same = then.len() == now.len() && then.iter().zip(now).all(|(t, n)| *t.name == *n.name);
        if !same {
            return Err(Error::internal("the sources of a snapshot are not those of its program"));
        }
    }
    Ok(Some(Opening { dir, recovered, fingerprint, program: stored.bytes(), upgraded }))
}

/// A source, whose rows may have to be logged first.
pub(crate) enum Reader {
    Pushed(PushSource),
    /// It can be read again.
    Read(Box<dyn Source>),
}

impl Reader {
    pub(crate) fn boxed(self) -> Box<dyn Source> {
        match self {
            Reader::Pushed(source) => Box::new(source),
            Reader::Read(source) => source,
        }
    }
}

fn input_stream(program: &Program, name: &str) -> Result<StreamId> {
    let found = program.streams.iter().position(|s| &*s.spec.name == name);
    match found {
        Some(index) if program.streams[index].origin == Origin::Input => Ok(StreamId(index as u16)),
        Some(_) => Err(Error::program(format!("stream {name} is not an input"))),
        None => Err(Error::program(format!("there is no stream {name}"))),
    }
}

/// The streams that an input stream feeds and that are used: by handlers, or by readers of their
/// events.
///
/// # Errors
/// If an expression has no type.
pub(crate) fn branches(
    program: &Program,
    root: StreamId,
    failed: &FailedList,
) -> Result<Vec<Branch>> {
    let schema = |stream: StreamId| &program.streams[stream.index()].spec.schema;
    let step = |from: StreamId, stream: StreamId, stage: &Stage| {
        let by_column = ColumnStage::new(stage, schema(from), schema(stream).clone())?;
        let transform = Arc::new(Step { stage: by_column, stream, failed: failed.clone() });
        Ok(match stage {
            Stage::Filter { .. } => FlowStage::Filter(transform),
            Stage::Map { .. } => FlowStage::Map(transform),
        })
    };
    let mut branches = Vec::new();
    for index in 0..program.streams.len() as u16 {
        let stream = StreamId(index);
        if program.root_stream(stream) != root {
            continue;
        }
        let mut stages = Vec::new();
        let mut at = stream;
        while let Origin::Derived { from, stage } = &program.streams[at.index()].origin {
            stages.push(step(*from, at, stage)?);
            at = *from;
        }
        stages.reverse();
        branches.push(Branch { stream, stages });
    }
    Ok(branches)
}

/// Opens the outputs.
struct Opener<'a> {
    program: &'a Program,
    fresh: bool,
    opening: Option<&'a Opening>,
    env: &'a Env,
    troubles: &'a Troubles,
}

impl Opener<'_> {
    fn outlets(
        &self,
        sinks: &[SinkDecl],
        keep: &[String],
        begins: &mut StartPositions,
    ) -> Result<Outlets> {
        let internal = self.opening.and_then(|d| d.recovered.internal.as_ref());
        let has_cuts = self.opening.is_some_and(|d| !d.recovered.cuts.is_empty());
        let mut outlets = Outlets::of(self.program);
        let mut targets = Vec::new();
        for decl in sinks {
            let target = decl.target()?;
            let (stream, name) = (&decl.stream, target.name());
            if targets.iter().any(|(of, t): &(&str, Target)| *of == stream && t.name() == name) {
                let what = format!("stream {stream} is written to {name} twice");
                return Err(Error::program(what).help("remove one of the two").at(decl.at.clone()));
            }
            targets.push((stream.as_str(), target));
        }
        for (decl, (_, target)) in sinks.iter().zip(targets) {
            let outlet = outlets.by_name.get_mut(&decl.stream).ok_or_else(|| {
                Error::program(format!("there is no stream {} to write", decl.stream))
                    .at(decl.at.clone())
            })?;
            let path = target.name();
            let resume = match internal {
                // Everything is written again from the beginning, over the present contents.
                None => has_cuts.then(SinkPlace::default),
                Some(internal) => {
                    let sinks = &internal.facts.sinks;
                    let known = sinks.iter().find(|s| s.stream == decl.stream && s.path == path);
                    let missing = || {
                        Error::setting(format!("{path} was not among the outputs of earlier runs"))
                            .help("leave the outputs as they were; --fresh (fresh=True) starts from scratch")
                            .at(decl.at.clone())
                    };
                    Some(known.ok_or_else(missing)?.place.clone())
                }
            };
            let sink = self
                .sink(&decl.stream, &target, &outlet.schema, resume, begins)
                .map_err(|e| e.at(decl.at.clone()))?;
            outlet.sinks.push(NamedSink { path, sink });
        }
        if let Some(internal) = internal {
            outlets.resume(&internal.facts.outlets);
        }
        if !has_cuts {
            // No rows will be written again, so anything after the written rows is not the
            // engine's.
            outlets.settle()?;
        }
        for name in keep {
            let outlet = outlets
                .by_name
                .get_mut(name)
                .ok_or_else(|| Error::program(format!("there is no stream {name} to retain")))?;
            outlet.keep = true;
        }
        Ok(outlets)
    }

    fn sink(
        &self,
        stream: &str,
        target: &Target,
        schema: &Arc<Schema>,
        resume: Option<SinkPlace>,
        begins: &mut StartPositions,
    ) -> Result<Box<dyn Sink>> {
        let settings = match target {
            Target::File(settings) => {
                let overwrite = settings.overwrite | self.fresh;
                let settings = SinkSettings { overwrite, ..settings.clone() };
                return sink::open(&settings, schema, self.env, resume.as_ref());
            }
            Target::Topic(settings) => settings,
        };
        let path = target.name();
        let who = format!("sink of {stream}: topic {}", settings.topic);
        let run = match self.opening {
            Some(opening) => opening.dir.app,
            // No later run continues there.
            None => u128::from(self.env.random.next_u64()) << 64,
        };
        let app = self.program.name.to_string();
        let ids = RowIds { app, run, stream: stream.to_owned() };
        let is_new = resume.is_none();
        let resume = resume.map(|place| match begins.sink(stream, &path) {
            Some(begin) if place.ends.is_empty() => SinkPlace { ends: begin.ends.clone(), ..place },
            _ => place,
        });
        let said = (self.troubles, &*who);
        let sink = open_sink(settings, schema, self.env, &ids, resume.as_ref(), said)?;
        if is_new && self.opening.is_some() {
            begins.set_sink(stream, &path, sink.place());
        }
        Ok(sink)
    }
}
