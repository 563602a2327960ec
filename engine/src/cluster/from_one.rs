//! The state of an app that ran in one process, as several processes take it over (`moves.rs`).
//!
//! The newest snapshot becomes the first one of the cluster's log. The position of each file becomes a
//! mark (`feeds`), as if the coordinator had read the file. Cuts after the snapshot and events that wait
//! can't move, because only the log or the memory of one process has them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_cluster::{EventSource, EventTime, Manifest, Times, Written};
use tidemill_core::{Error, Position, Result};
use tidemill_durable::Store;
use tidemill_env::{hold, Env, Lock};
use tidemill_function::{Counts, Functions as _};
use tidemill_place::partition_of_bytes;
use tidemill_txn::execute::HandlerCounts;

use super::feeds::{Feeds, FilesAt};
use super::sinks::Note;
use super::upgrade::Starting;
use super::ClusterSettings;
use crate::changes::counted;
use crate::compare::{encoded, Comparison};
use crate::data_dir::{taken, Site};
use crate::functions::AppFunctions;
use crate::internal::{Facts, SourceFacts};
use crate::moves::{settle, Move, Way};
use crate::process_mode;
use crate::schema::{records_after, Left};
use crate::spec::AppSpec;
use crate::stored::Stored;

/// The state of one process, which several take over.
pub(super) struct OneState {
    env: Env,
    dir: PathBuf,
    /// It is `None` if nothing was executed yet.
    left: Option<Stopped>,
    moving: Move,
    _held: Box<dyn Lock>,
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
        let io = |e: std::io::Error| Error::io(format!("data directory {}", dir.display()), &e);
        let held = hold(disk, &dir).map_err(io)?.ok_or_else(|| taken(&dir))?;
        settle(disk, &dir)?;
        if process_mode::held(disk, &dir)? != Some(Way::One) {
            return Ok(None);
        }
        let left = newest(spec, settings, (env, &dir)).map_err(|error| moved(&dir, error))?;
        let moving = Move::begin(disk, &dir, Way::Several)?;
        Ok(Some(OneState { env: env.clone(), dir, left, moving, _held: held }))
    }

    /// Stores the positions of files as marks, in the coordinator's directory.
    ///
    /// # Errors
    /// When a file can't be opened, or the disk fails.
    pub fn mark(&self, spec: &AppSpec, dir: &Path) -> Result<()> {
        let Some((_, left, _)) = &self.left else { return Ok(()) };
        let mut sources = left.internal.facts.sources.iter();
        let mut files = Vec::new();
        for decl in &spec.sources {
            if decl.files.is_none() {
                sources.next();
                continue;
            }
            let names = Feeds::names(decl, &left.stored.program, &self.env)?;
            let places = names.into_iter().zip(sources.by_ref());
            let places: Vec<(String, &SourceFacts)> = places.collect();
            let newest_us = places.iter().filter_map(|(_, of)| of.time_max).max();
            let have_ended = places.iter().all(|(_, of)| of.ended);
            let places = places.into_iter().map(|(name, of)| (name, of.place.clone())).collect();
            files.push(FilesAt { decl, places, newest_us, have_ended });
        }
        Feeds::begin_at(&*self.env.disk, dir, files)
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
        let to = Stored {
            program: functions.program().clone(),
            sources: Vec::new(),
            sinks: Vec::new(),
            codes: BTreeMap::new(),
        };
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
        let mut inputs = vec![0; starting.sources as usize];
        for (source, at, _) in feeds.positions() {
            inputs[source as usize] = at;
        }
        let outputs = vec![0; inputs.len()];
        let times = times(facts, &left.stored, (starting.event_time, feeds));
        let written = match facts.sinks.is_empty() {
            true => Written::default(),
            false => Note::new(*app, &facts.sinks).at(facts.seq, outputs.clone()),
        };
        Ok(Some(Manifest {
            program: starting.fingerprint,
            generation,
            epoch,
            clock_us,
            base: facts.seq,
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
    if !left.is_of(&Stored::of(spec, env)?) {
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
    let waiting: u64 = left.internal.buffered.iter().map(|run| run.offsets.len() as u64).sum();
    if waiting > 0 {
        let what = format!("{} wait for their batch or their watermark", counted(waiting, "event"));
        return Err(Error::setting(what).help("run it without --processes until they are executed"));
    }
    Ok(Some((site.app, left, store)))
}

/// The progress of event time.
fn times(facts: &Facts, stored: &Stored, (event_time, feeds): (&EventTime, &Feeds)) -> Times {
    let program = &stored.program;
    let sources = || program.sources.iter().zip(&facts.sources);
    let newest = |of: &EventSource| {
        let of_stream = sources().filter(|(source, _)| source.stream == of.stream);
        of_stream.filter_map(|(_, facts)| facts.time_max).max()
    };
    let groups = event_time.sources().iter().map(|of| of.group + 1).max().unwrap_or(0);
    let mut watermarks = vec![Position::MIN; groups];
    for of in event_time.sources() {
        let mark = facts.watermarks.get(of.stream.index()).copied().unwrap_or(Position::MIN);
        if mark != Position::MIN && mark != Position::MAX {
            // Nothing waits, so no other event of this time is to come before.
            let mark = Position { time_us: mark.time_us, ..Position::MIN };
            watermarks[of.group] = watermarks[of.group].max(mark);
        }
    }
    let have_ended: BTreeSet<u32> = feeds.positions().filter(|of| of.2).map(|of| of.0).collect();
    let has_ended = |of: &EventSource| have_ended.contains(&of.source);
    let ended = (0..).zip(event_time.sources()).filter(|(_, of)| has_ended(of));
    Times {
        newest: event_time.sources().iter().map(newest).collect(),
        watermarks,
        idle: Vec::new(),
        ended: ended.map(|(nth, _)| nth).collect(),
        late: facts.counts.late,
    }
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
