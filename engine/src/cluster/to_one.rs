//! The state of an app that ran on several processes, as one process takes it over (`moves.rs`).
//!
//! The newest snapshot of the coordinator's directory becomes one of the data directory. The marks of
//! files become positions. Events that wait become buffered ones (`waiting`). Cuts and requests after
//! the snapshot can't move, because only the way to run that recorded them can execute them.

mod waiting;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tidemill_cluster::{Manifest, Record, Topic};
use tidemill_connect::Place;
use tidemill_core::{Error, Position, Result, SourceId, SourceSpec, StreamTime};
use tidemill_durable::{DirStore, Store, Within};
use tidemill_env::Env;
use tidemill_function::{Call, Functions as _};
use tidemill_host::FileLog;
use tidemill_log::{Log, LogKind};
use tidemill_snapshot::{Delta, Snapshots};
use tidemill_txn::execute::HandlerCounts;
use tidemill_txn::order::Groups;
use tidemill_txn::program::Program;

use self::waiting::{Numbers, Waiting};
use super::ask::read;
use super::backends;
use super::feeds::{Feeds, FilesAt};
use super::program_file::{sources_read, TimedSource, Version, Written};
use super::retained::RingStore;
use super::sinks::{DeclaredSinks, Note};
use super::topics::{sources as sources_of_topics, ReadTopic, Topics};
use super::upgrade::{left, Found};
use super::{log_of, ClusterSettings};
use crate::changes::counted;
use crate::compare::Comparison;
use crate::counts::Counts;
use crate::data_dir::{hold_free, log_spec, write_identity};
use crate::fingerprint;
use crate::functions::{AppFunctions, Nobody};
use crate::internal::{Facts, SourceFacts};
use crate::moves::{settle, Move, Way};
use crate::process_mode::{self, CLUSTER};
use crate::schema::Left;
use crate::settings::{OnFault, SEGMENT_BYTES_MIN};
use crate::spec::AppSpec;
use crate::stored::Stored;

/// Takes over the state of several processes, if a data directory holds it. `to` is the app as
/// manifests of one process store it.
///
/// # Errors
/// When the state can't move. Nothing has changed then, but outputs that had not left may have been
/// written.
pub(crate) fn to_one(spec: &AppSpec, to: &Stored, dir: &Path, env: &Env) -> Result<()> {
    let disk = &*env.disk;
    if process_mode::held(disk, dir)? != Some(Way::Several) {
        return Ok(());
    }
    let io = |e: std::io::Error| Error::io(format!("data directory {}", dir.display()), &e);
    let _held = hold_free(disk, dir)?;
    settle(disk, dir)?;
    let cluster = dir.join(CLUSTER);
    let moved = |error: Error| {
        let what = format!(
            "{} holds the state of an app on several processes, and one process can't take it over: {}",
            dir.display(),
            error.what
        );
        Error { what, ..error }
    };
    let several = Several::open(spec, &cluster, env).map_err(moved)?;
    let (left, run) = several.left(spec, to, &cluster, env).map_err(moved)?;
    let mut comparison = Comparison::of(env, &left, to, &BTreeMap::new())?;
    let mut delta = Delta::whole();
    comparison.convert(&several.store, &left.manifest, |table, partition, key, row| {
        delta.push(table, partition, key, Some(row));
    })?;
    let random = || u128::from(env.random.next_u64()) << 64 | u128::from(env.random.next_u64());
    // Rows in topics of sinks have it in their ids.
    let app = if run == 0 { random() } else { run };
    let moving = Move::begin(disk, dir, Way::One)?;
    write_identity(disk, dir, app, &spec.program.name).map_err(io)?;
    for kind in [LogKind::Cuts, LogKind::Input] {
        let spec = log_spec(dir, app, kind, SEGMENT_BYTES_MIN);
        Log::open(env.disk.clone(), spec, 0)?.commit()?;
    }
    let mut head = left.manifest.head.clone();
    head.epoch = comparison.internal.facts.epoch;
    head.fingerprint = fingerprint::of_program(&to.program);
    head.program = to.bytes();
    let store = DirStore::alone(env.disk.clone(), dir.join("store"));
    store.sweep()?;
    Snapshots::open(Arc::new(store), app, env.random.next_u64())?.publish(
        head,
        &comparison.internal.encode(),
        &delta,
    )?;
    drop(several);
    moving.end(disk, dir)?;
    let what = format!("{}: one process has taken over the state", dir.display());
    tracing::info!(target: "tidemill::recovery", what, "moved");
    Ok(())
}

/// Returns the settings with which to finish what several processes have left in a coordinator's
/// directory, if no snapshot has it. Where this is unknown, a start finds out.
pub(crate) fn unfinished(cluster: &Path, env: &Env) -> Result<Option<serde_json::Value>> {
    let Some(written) = Written::read(&*env.disk, cluster)? else { return Ok(None) };
    let log = cluster.join("log");
    if !env.disk.exists(&log).map_err(|e| Error::io(log.display(), &e))? {
        return Ok(None);
    }
    let found = newest_of(&written, cluster, env, |_| false)?.1;
    if let NewestFound::Whole(_) = found {
        return Ok(None);
    }
    Ok(Some(written.cluster.map_or_else(|| serde_json::json!({}), |kept| kept.settings())))
}

/// The newest snapshot of a served log, or why it does not have everything.
enum NewestFound {
    Whole(Arc<Manifest>),
    Unfinished(String),
}

/// Reads a served log for its newest snapshot. Calls that are `left` may come after it.
fn newest_of(
    written: &Written,
    cluster: &Path,
    env: &Env,
    left: impl Fn(&Call) -> bool,
) -> Result<(FileLog, NewestFound)> {
    let (held, app) = (tidemill_host::hold(env, cluster)?, log_of(&written.name()));
    let log = FileLog::open(env, cluster.join("log"), app, held, SEGMENT_BYTES_MIN)?;
    let Found { manifest, cuts, .. } = Found::read(&log)?;
    let Some(manifest) = manifest else {
        return Ok((log, NewestFound::Unfinished("it has no snapshot".into())));
    };
    let mut unfinished = (cuts > 0).then(|| {
        let cuts = counted(cuts as u64, "recorded cut");
        format!("it was not stopped cleanly, and {cuts} came after the newest snapshot")
    });
    if manifest.is_of_before() {
        // The next start on several processes converts it.
        unfinished = Some("its newest snapshot is one of an earlier version of tidemill".into());
    }
    let own = manifest.inputs.len().saturating_sub(written.is.sources_read());
    let is_left = |record: &Record| match record {
        Record::Requests(requests) => requests.iter().all(|request| left(&request.call)),
        _ => false,
    };
    for (source, from) in (0..).zip(&manifest.inputs[..own]) {
        let later = read(&log, Topic::Input(source), *from)?.records;
        if unfinished.is_none() && !later.iter().all(|(_, record)| is_left(record)) {
            unfinished = Some("requests were recorded, and not executed".into());
        }
    }
    Ok((log, unfinished.map_or(NewestFound::Whole(manifest), NewestFound::Unfinished)))
}

/// The contents of a coordinator's directory.
struct Several {
    functions: Arc<AppFunctions>,
    is: Version,
    manifest: Arc<Manifest>,
    store: Arc<dyn Store>,
    log: FileLog,
    /// The topics that the app reads.
    topics: (Vec<ReadTopic>, RefCell<Topics>),
}

impl Several {
    /// Reads them, if the state can move.
    fn open(spec: &AppSpec, cluster: &Path, env: &Env) -> Result<Several> {
        let again = "run it with --processes N, or choose another --data-dir";
        let unfinished = |why: String| {
            Error::setting(why).help(
                "run it with --processes N once more, and stop it with Ctrl-C or SIGTERM: that leaves a snapshot",
            )
        };
        let upgrade =
            "let this version take it over first: run it with --processes N and --upgrade, and stop it";
        let disk = &*env.disk;
        let exists = |name: &str| {
            let path = cluster.join(name);
            disk.exists(&path).map_err(|e| Error::io(path.display(), &e))
        };
        let written = Written::read(disk, cluster)?;
        let Some(written) = written.filter(|written| written.becomes.is_none()) else {
            return Err(unfinished("its last start or upgrade was not completed".into()));
        };
        let is = written.is.clone();
        if !exists("log")? {
            return Err(Error::setting("its log is in Kafka, or missing").help(again));
        }
        let name = written.name();
        let functions = functions(spec)?;
        if !is_same(&is.app.program, functions.program()) {
            let what = "it belongs to another version of the app";
            return Err(Error::setting(what).help(upgrade));
        }
        let topics = Topics::open(spec, &functions, &ClusterSettings::default(), env)?;
        let topics_read = topics.read();
        if !is.reads(&sources_read(&topics_read, spec)) {
            return Err(Error::setting("it was read from other topics or partitions").help(upgrade));
        }
        // Answers to work outside are asked for again, because the rows of that work are there.
        let is_answer = |call: &Call| functions.is_answer(call, &spec.externals);
        let (log, manifest) = match newest_of(&written, cluster, env, is_answer)? {
            (log, NewestFound::Whole(manifest)) => (log, manifest),
            (_, NewestFound::Unfinished(why)) => return Err(unfinished(why)),
        };
        let is_beside = written.cluster.as_ref().is_none_or(|kept| kept.snapshots.is_none());
        if is_beside && !exists("snapshots")? && !manifest.objects.is_empty() {
            return Err(Error::setting("its snapshots are missing").help(again));
        }
        let store = Arc::new(Within::new(backends::kept_store(cluster, &written, env)?, &name));
        let topics = (topics_read, RefCell::new(topics));
        Ok(Several { functions, is, manifest, store, log, topics })
    }

    /// Returns the state as that of an app in one process, and the run in the ids of sinks' rows.
    fn left(&self, spec: &AppSpec, to: &Stored, cluster: &Path, env: &Env) -> Result<(Left, u128)> {
        let Several { is, manifest, .. } = self;
        let mut left = left(&self.store, &is.app, manifest)?;
        let inputs = &manifest.inputs[self.first_file(spec)..];
        let mut files = Feeds::stand_at(spec, &self.functions, (cluster, inputs), env)?;
        let numbers = Numbers::of(to, &files, &self.topics.0);
        let mut waiting = Waiting::new(self.functions.program(), &numbers);
        self.waiting(spec, cluster, env, &mut waiting)?;
        for (nth, files) in files.iter_mut().enumerate() {
            waiting.ahead(nth, files)?;
        }
        let note = self.sinks(spec, env)?;
        left.internal.rings = RingStore::open(&self.store, note.run())?.1;
        let program = &mut left.stored.program;
        program.sources.clone_from(&to.program.sources);
        let newest = newest(&is.event_sources, manifest);
        let mut watermarks = vec![Position::MIN; program.streams.len()];
        for of in &is.event_sources {
            let stream = program.streams.iter().position(|stream| *stream.spec.name == *of.stream);
            let mark = manifest.times.watermarks.get(of.group).copied();
            if let (Some(stream), Some(mark)) = (stream, mark.filter(|mark| *mark != Position::MIN))
            {
                watermarks[stream] = Position { time_us: mark.time_us, ..Position::MIN };
            }
        }
        let frontiers_us = Groups::of(program)?.frontiers_us(&watermarks, manifest.clock_us);
        let topics = self.topics(spec, &numbers, env)?;
        let sources = sources(to, files, &newest, topics);
        let incomplete = self.incomplete_batches(&left)?;
        waiting.incomplete(incomplete, &watermarks, &sources)?;
        let sources = waiting.received(sources);
        left.internal.buffered = waiting.runs()?;
        let facts = Facts {
            epoch: manifest.epoch,
            clock_us: manifest.clock_us,
            watermarks,
            // It is not below the places of transactions, which random numbers are made of. So they
            // are higher if several processes take the state over again.
            seq: manifest.base.saturating_mul(manifest.inputs.len() as u64),
            sources,
            frontiers_us,
            counts: counts(&left.stored, manifest),
            sinks: note.sinks.clone(),
            reasons: manifest.counts.reasons.clone(),
            salt: env.random.next_u64() | 1,
            ..std::mem::take(&mut left.internal.facts)
        };
        left.internal.facts = facts;
        left.stored.sources.clone_from(&to.sources);
        left.stored.sinks.clone_from(&to.sinks);
        Ok((left, note.run()))
    }

    /// The number of sources of requests.
    fn own(&self, spec: &AppSpec) -> usize {
        self.first_file(spec) - sources_of_topics(&self.topics.0) as usize
    }

    /// The number of sources of requests and topics.
    fn first_file(&self, spec: &AppSpec) -> usize {
        let files = spec.sources.iter().filter(|decl| decl.files.is_some()).count();
        self.manifest.inputs.len() - files
    }

    /// Returns the positions of the topics' partitions.
    fn topics(
        &self,
        spec: &AppSpec,
        numbers: &Numbers,
        env: &Env,
    ) -> Result<BTreeMap<SourceId, SourceFacts>> {
        let Several { manifest, is, topics: (read, topics), .. } = self;
        let decls = spec.sources.iter().filter(|decl| decl.kafka.is_some());
        let mut found = BTreeMap::new();
        for ((nth, topic), decl) in read.iter().enumerate().zip(decls) {
            for (of, (partition, _)) in topic.begins.iter().enumerate() {
                let number = found.len();
                let source = self.own(spec) + number;
                let place = topics.borrow_mut().place((nth, of), manifest.inputs[source], env);
                let place = place.map_err(|error| error.at(decl.at.clone()))?;
                let is_it = |of: &TimedSource| of.source as usize == source;
                let timed = is.event_sources.iter().position(is_it);
                let time_max = timed.and_then(|timed| *manifest.times.newest.get(timed)?);
                let name = format!("{}/{}/{partition}", decl.stream, topic.topic());
                let (next_offset, ended) = (place.offset, false);
                let facts = SourceFacts { name, next_offset, time_max, ended, place };
                found.insert(numbers.topics[number], facts);
            }
        }
        Ok(found)
    }

    /// Writes and retains all outputs that have not left, and returns the positions of the sinks.
    fn sinks(&self, spec: &AppSpec, env: &Env) -> Result<Note> {
        let program = self.functions.program();
        let sinks = DeclaredSinks::open(spec, program, false, env)?;
        let note = sinks.catch_up(program, &self.manifest, &self.store, &self.log)?;
        let had = note.sinks.iter().map(|sink| (sink.stream.clone(), sink.path.clone())).collect();
        match crate::outlets::sink_keys(&spec.sinks)? == had {
            true => Ok(note),
            false => Err(Error::setting("it was run with other outputs").help(
                "leave the outputs as they were, or change them with --processes N --upgrade",
            )),
        }
    }
}

/// The newest time of each stream's events.
fn newest(event_sources: &[TimedSource], manifest: &Manifest) -> BTreeMap<String, i64> {
    let mut newest = BTreeMap::new();
    for (of, time_us) in event_sources.iter().zip(&manifest.times.newest) {
        if let Some(time_us) = time_us {
            let known = newest.entry(of.stream.clone()).or_insert(*time_us);
            *known = (*time_us).max(*known);
        }
    }
    newest
}

/// The positions of sources. Pushed rows are numbered from 0, because their log starts again, and those
/// that wait are the first ones.
fn sources(
    to: &Stored,
    files: Vec<FilesAt<'_>>,
    newest: &BTreeMap<String, i64>,
    mut topics: BTreeMap<SourceId, SourceFacts>,
) -> Vec<SourceFacts> {
    let is_timed = |source: &SourceSpec| {
        let spec = &to.program.streams[source.stream.index()].spec;
        matches!(spec.time, StreamTime::Event { .. }).then(|| &*spec.name)
    };
    let mut specs = to.program.sources.iter();
    let mut sources = Vec::new();
    let mut files = files.into_iter();
    for decl in &to.sources {
        while let Some(facts) = topics.remove(&SourceId(sources.len() as u32)) {
            sources.push(facts);
            specs.next();
        }
        if decl.kafka.is_some() {
            continue;
        }
        if decl.files.is_none() {
            let Some(source) = specs.next() else { break };
            let time_max = is_timed(source).and_then(|stream| newest.get(stream).copied());
            let (name, place) = (source.name.to_string(), Place::start());
            sources.push(SourceFacts { name, next_offset: 0, time_max, ended: false, place });
            continue;
        }
        let Some(FilesAt { files, newest_us, have_ended, .. }) = files.next() else { break };
        for (file, source) in files.into_iter().zip(specs.by_ref()) {
            let place = file.place;
            let is_begun = place.offset > 0;
            let time_max = is_timed(source).and(newest_us).filter(|_| is_begun);
            let (name, next_offset) = (source.name.to_string(), place.offset);
            sources.push(SourceFacts { name, next_offset, time_max, ended: have_ended, place });
        }
    }
    sources
}

/// Returns the counts of transactions of several processes as those of one.
pub(super) fn counts(stored: &Stored, manifest: &Manifest) -> Counts {
    let of = &manifest.counts;
    let committed = of.ended.saturating_sub(of.dead + of.late);
    Counts {
        events: of.events,
        epochs: manifest.epoch,
        dead: of.dead,
        late: of.late,
        on_several: HandlerCounts { committed, aborted: of.refused + of.faults, faults: of.faults },
        ..Counts::none(&stored.program)
    }
}

/// Returns the functions of an app, none of which can be called.
fn functions(spec: &AppSpec) -> Result<Arc<AppFunctions>> {
    // A fault ends the run in one process, which does not matter here.
    let mut of_nodes = spec.clone();
    of_nodes.settings.on_fault = OnFault::Abort;
    AppFunctions::new(&of_nodes, Arc::new(Nobody))
}

fn is_same(one: &Program, other: &Program) -> bool {
    fingerprint::of_program(one) == fingerprint::of_program(other)
}

/// Returns an app as the manifests of several processes store it, or `None` if that is `known`.
///
/// # Errors
/// When the app can't run on several processes.
pub(crate) fn stored_on_several(spec: &AppSpec, known: &Program) -> Result<Option<Stored>> {
    let functions = functions(spec)?;
    let program = functions.program();
    Ok((!is_same(known, program)).then(|| Stored::on_several(program)))
}
