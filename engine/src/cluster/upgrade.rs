//! The program that a cluster's state belongs to, and upgrades from one version of it to another.
//!
//! A file of the coordinator's directory describes the program. The log identifies it, too: by the
//! manifest of each snapshot, and at first by an empty one of epoch 0. So another app, another
//! version, or a directory that has lost its file can't continue with state that is not its own.
//!
//! An upgrade takes the newest snapshot, converts its rows as an upgrade in one process does, and
//! stores them as a snapshot of the next epoch. It counts when the cuts name it. The planned
//! upgrade is in the file before, with that epoch. So after any crash the next start knows which
//! program the rows belong to.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_cluster::wire::{put_object, take_object};
use tidemill_cluster::{
    EventSource, EventTime, Log, Manifest, Object, Record, Records, Times, Topic,
};
use tidemill_core::{encode, Error, Key, Kind, Position, Result, StreamTime, TableId, Value};
use tidemill_durable::{name_taken, MemoryStore, Store};
use tidemill_env::Env;
use tidemill_place::partition_of_bytes;
use tidemill_snapshot::{Delta, Head, Snapshots};

use super::ask::{answer, read};
use super::sinks::DeclaredSinks;
use crate::changes::{counted, first_differences, Change};
use crate::compare::Comparison;
use crate::data_dir::replace;
use crate::internal::{Facts, Internal};
use crate::schema::Left;
use crate::settings::{Settings, Upgrade};
use crate::stored::Stored;
use crate::upgrade::{check, refused};

/// The file that describes the program of a cluster's state.
const PROGRAM: &str = "program";

/// Brokers may report a log as too short for a while. After this time it counts as too short. Also
/// the pause between checks.
const SURE_NS: u64 = 5_000_000_000;
const AGAIN_US: u64 = 100_000;

/// Rows by their keys.
type Rows = BTreeMap<(TableId, Key), Arc<[Value]>>;

/// A program, and its identity.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Version {
    fingerprint: String,
    /// The topics that it reads, with their partitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    topics: Vec<(String, u32)>,
    /// The sources of its events with event time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    event_sources: Vec<TimedSource>,
    app: Stored,
}

/// An event source. Positions in cuts refer to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TimedSource {
    stream: String,
    /// The column of its times.
    time: String,
    source: u32,
    group: usize,
}

/// The contents of the file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    is: Version,
    /// The version after an upgrade, and the epoch from which it counts.
    becomes: Option<(u64, Version)>,
}

/// The state according to the cuts.
struct Found {
    /// The last generation.
    generation: u64,
    /// The newest snapshot that counts.
    manifest: Option<Arc<Manifest>>,
    /// The number of cuts after it.
    cuts: usize,
    /// For each source, the number of its records in the cuts or the snapshot.
    needed: Vec<u64>,
}

/// Raises each number to at least the given one.
fn at_least(needed: &mut Vec<u64>, these: &[u64]) {
    needed.resize(needed.len().max(these.len()), 0);
    needed.iter_mut().zip(these).for_each(|(needed, this)| *needed = (*needed).max(*this));
}

/// A cluster that starts.
pub(super) struct Starting<'a> {
    pub env: &'a Env,
    pub dir: &'a Path,
    /// The program as nodes execute it, and its identity.
    pub program: &'a tidemill_txn::Program,
    pub fingerprint: u128,
    pub topics: Vec<(String, u32)>,
    pub event_time: &'a EventTime,
    pub settings: &'a Settings,
    pub log: &'a dyn Log,
    pub store: &'a dyn Store,
    /// The prefix of the names of objects.
    pub prefix: &'a str,
    pub sources: u32,
    /// The number of sources that are files, which come last. Their unread rows are not requests
    /// yet.
    pub feeds: u32,
    /// The sinks.
    pub ways: &'a DeclaredSinks,
    /// Whether requests in the log are in this program's encoding. Requests of people have names,
    /// and any version reads them.
    pub has_own_requests: bool,
}

impl Starting<'_> {
    /// Makes sure that the state belongs to this program. Upgrades it if it belongs to another
    /// version, and then returns the changes.
    ///
    /// # Errors
    /// When the state belongs to another program and no upgrade is allowed, or the upgrade fails.
    /// Nothing has changed then.
    pub fn agree(&self) -> Result<Option<serde_json::Value>> {
        let (sources, sinks) = (Vec::new(), Vec::new());
        let app = Stored { program: self.program.clone(), sources, sinks, codes: BTreeMap::new() };
        let (fingerprint, topics) = (shown(self.fingerprint), self.topics.clone());
        let event_sources = self.event_sources();
        let now = Version { fingerprint, topics, event_sources, app };
        let found = self.newest()?;
        self.check_inputs(&found.needed)?;
        let Some(written) = self.written()? else {
            self.begin(found)?;
            return self.write(&Written { is: now, becomes: None }).map(|()| None);
        };
        let mut is = written.is;
        let was_interrupted = written.becomes.is_some();
        if let (Some((_, next)), Some(manifest)) = (written.becomes, &found.manifest) {
            if shown(manifest.program) == next.fingerprint {
                is = next;
            }
        }
        // The checks come before any write, because the log may be a different one from the
        // upgrade's.
        self.check_log(&is, found.manifest.as_deref())?;
        self.check_sources(&is, found.manifest.as_deref())?;
        if was_interrupted {
            self.write(&Written { is: is.clone(), becomes: None })?;
        }
        if is.fingerprint == now.fingerprint {
            return Ok(None);
        }
        let (was, name) = (&is.app.program.name, &self.program.name);
        if was != name {
            let what = format!("{} belongs to the app {was}, not to {name}", self.dir.display());
            return Err(Error::setting(what).help("give another directory: --data-dir"));
        }
        if self.settings.upgrade == Upgrade::Off {
            let shown = self.dir.display();
            let what = match &*self.differences(&is, &now) {
                "" => format!(
                    "{shown} belongs to another version of the program, or was executed with another \
                     cluster_message_bytes_max, other sinks, or other private functions"
                ),
                differences => format!(
                    "{shown} belongs to another version of the program: {differences}"
                ),
            };
            return Err(Error::setting(what).help(
                "start that version, or let this one take over its data: upgrade=true \
                 (tidemill coordinator --upgrade, tidemill run --processes N --upgrade)",
            ));
        }
        self.upgrade(&is, &now).map(Some)
    }

    /// Names the differences between the program of the state and this one.
    fn differences(&self, is: &Version, now: &Version) -> String {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let left = left(&store, &is.app, Rows::new(), 0);
        let compared = left.and_then(|left| {
            let compared = Comparison::of(self.env, &left, &now.app, &self.settings.renames)?;
            Ok(compared.found().changes.iter().filter_map(Change::shown).collect())
        });
        // The differences only help people.
        let mut named: Vec<String> = compared.unwrap_or_default();
        let topics = |of: &[(String, u32)]| {
            let all = of.iter().map(|(topic, partitions)| format!("{topic} ({partitions})"));
            all.collect::<Vec<_>>().join(", ")
        };
        if is.topics != now.topics {
            let (before, now) = (topics(&is.topics), topics(&now.topics));
            named.push(format!("it read from [{before}], and now reads from [{now}]"));
        }
        first_differences(named)
    }

    fn upgrade(&self, is: &Version, now: &Version) -> Result<serde_json::Value> {
        let Found { generation, manifest, cuts, .. } = self.newest()?;
        let manifest = manifest.unwrap_or_default();
        self.check_behind(&manifest, cuts)?;
        check_topics(&is.topics, &now.topics)?;
        let times = carried(&is.event_sources, &now.event_sources, &manifest)?;
        let rows = self.rows(&manifest)?;
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let left = left(&store, &is.app, rows, manifest.epoch)?;
        let mut comparison = Comparison::of(self.env, &left, &now.app, &self.settings.renames)?;
        let tables = &now.app.program.tables;
        let before = Some((&is.app.program, self.log));
        let mut places = self.ways.begin(self.program, &manifest, before)?;
        let mut converted = Vec::new();
        comparison.convert(&store, &left.manifest, |table, _, key, row| {
            // Other state of an engine in one process does not exist here.
            let Some(spec) = tables.get(table.index()) else { return };
            let mut bytes = row;
            let columns = spec.schema.columns.iter();
            let row: Option<Vec<Value>> =
                columns.map(|column| encode::decode(&column.ty, &mut bytes)).collect();
            converted.extend(row.map(|row| (table, Key(key.into()), Some(Arc::from(row)))));
        })?;
        let found = comparison.found();
        check(&found, self.settings.upgrade)?;
        let (generation, epoch) = (generation + 1, manifest.epoch + 1);
        let said =
            serde_json::json!({"epoch": epoch, "rows": converted.len(), "changes": found.changes});
        let written = Written { is: is.clone(), becomes: Some((epoch, now.clone())) };
        self.write(&written)?;
        // From here on no other process writes, and a process that has begun meanwhile is noticed.
        self.append(generation, Record::Generation { generation })?;
        let object = format!("part-{generation}-{epoch}-0-{:016x}", self.env.random.next_u64());
        self.put(&object, &Object::Part(converted.into()))?;
        let (program, objects) = (self.fingerprint, vec![object]);
        let mut manifest = Manifest { program, generation, epoch, objects, ..(*manifest).clone() };
        for offsets in [&mut manifest.inputs, &mut manifest.outputs] {
            offsets.resize(offsets.len().max(self.sources as usize), 0);
        }
        if !places.outputs.is_empty() {
            places.outputs.resize(manifest.outputs.len(), 0);
        }
        manifest.written = places.into();
        if !waits(&manifest) {
            // The numbers of event sources may have changed.
            manifest.waiting = Some(Vec::new());
        }
        manifest.times = times;
        let manifest = Arc::new(manifest);
        self.put(&manifest.name(), &Object::Manifest(manifest.clone()))?;
        self.append(generation, Record::Snapshot(manifest))?;
        self.write(&Written { is: now.clone(), becomes: None })?;
        Ok(said)
    }

    /// The sources of events with event time.
    fn event_sources(&self) -> Vec<TimedSource> {
        let timed = |of: &EventSource| {
            let spec = &self.program.streams[of.stream.index()].spec;
            let time = match spec.time {
                StreamTime::Event { column } => spec.schema.columns[column].name.to_string(),
                StreamTime::Arrival => String::new(),
            };
            let (source, group) = (of.source, of.group);
            TimedSource { stream: spec.name.to_string(), time, source, group }
        };
        self.event_time.sources().iter().map(timed).collect()
    }

    /// Refuses records that only the other version can execute.
    fn check_behind(&self, manifest: &Manifest, cuts: usize) -> Result<()> {
        // Earlier versions had other rules for late events.
        let is_of_before = manifest.waiting.is_none();
        if (self.has_own_requests || is_of_before) && waits(manifest) {
            return Err(refused(vec![
                "events wait for their watermark, and only the version that they were recorded for can execute \
                 them: run that version until they are executed"
                    .into(),
            ]));
        }
        let mut requests = 0;
        for source in (0..self.sources - self.feeds).filter(|_| self.has_own_requests) {
            let from = manifest.inputs.get(source as usize).copied().unwrap_or(0);
            let found = self.read(Topic::Input(source), from)?.records;
            requests += found.iter().map(|(_, record)| requests_of(record)).sum::<u64>();
        }
        if cuts as u64 + requests == 0 {
            return Ok(());
        }
        Err(refused(vec![format!(
            "{} and {} come after the newest snapshot, and only the version that they were recorded for \
             can execute them: start that version, stop it (with SIGTERM it leaves a snapshot), and upgrade",
            counted(cuts as u64, "recorded cut"),
            counted(requests, "request"),
        )]))
    }

    /// Reads the cuts.
    fn newest(&self) -> Result<Found> {
        let (mut generation, mut cuts, mut needed) = (0, Vec::new(), Vec::new());
        let mut newest: Option<Arc<Manifest>> = None;
        for (_, record) in self.read(Topic::Cuts, 0)?.records {
            match record {
                Record::Generation { generation: begun } => generation = generation.max(begun),
                Record::Cut(cut) => {
                    cuts.push(cut.epoch);
                    at_least(&mut needed, &cut.upto);
                }
                // Of equal snapshots the first counts.
                Record::Snapshot(manifest)
                    if newest.as_ref().is_none_or(|newest| manifest.epoch > newest.epoch) =>
                {
                    generation = generation.max(manifest.generation);
                    at_least(&mut needed, &manifest.inputs);
                    newest = Some(manifest);
                }
                _ => {}
            }
        }
        let last = newest.as_ref().map_or(0, |manifest| manifest.epoch);
        let cuts = cuts.into_iter().filter(|epoch| *epoch > last).count();
        Ok(Found { generation, manifest: newest, cuts, needed })
    }

    /// Refuses a log that has fewer requests than cuts include. A cut is recorded after the
    /// requests that it includes.
    fn check_inputs(&self, needed: &[u64]) -> Result<()> {
        let read: u32 = self.topics.iter().map(|(_, partitions)| partitions).sum();
        let own = self.sources.saturating_sub(read) as usize;
        for (source, needed) in needed.iter().enumerate().take(own) {
            let until_ns = self.env.clock.monotonic_ns() + SURE_NS;
            loop {
                let there = self.read(Topic::Input(source as u32), u64::MAX)?.upto;
                if there >= *needed {
                    break;
                }
                // Brokers that restart may report a lower end for a moment.
                if self.has_own_requests || self.env.clock.monotonic_ns() > until_ns {
                    let what = format!(
                        "the requests of source {source} end at {there} in the log of the cluster {}, but cuts include \
                         {needed} of them",
                        self.prefix
                    );
                    return Err(Error::new(Kind::Io, what).help(
                        "nothing was changed; restore the log, or start from scratch with another directory and another \
                         cluster_name",
                    ));
                }
                self.env.clock.sleep_us(AGAIN_US);
            }
        }
        Ok(())
    }

    /// Refuses a number of sources for requests that differs from the log's. The source of a
    /// request depends on it.
    fn check_sources(&self, is: &Version, manifest: Option<&Manifest>) -> Result<()> {
        let read = |topics: &[(String, u32)]| topics.iter().map(|(_, of)| of).sum::<u32>();
        let all = manifest.map_or(0, |manifest| manifest.inputs.len() as u32);
        // Earlier versions may have left none.
        let Some(had) = all.checked_sub(read(&is.topics)).filter(|_| all > 0) else {
            return Ok(());
        };
        let has = self.sources - read(&self.topics);
        if had == has {
            return Ok(());
        }
        let what = format!(
            "cluster_sources is {has}, but the number of sources of the log of the cluster {} is {had}",
            self.prefix
        );
        Err(Error::setting(what).help(format!(
            "set cluster_sources={had}, because a log keeps the number that it began with; another number needs a new \
             directory, and with a log elsewhere another cluster_name"
        )))
    }

    /// Records in a new log which program it belongs to.
    fn begin(&self, found: Found) -> Result<()> {
        let generation = found.generation;
        let mut manifest = found.manifest;
        if manifest.is_none() {
            let nothing = vec![0; self.sources as usize];
            let (inputs, outputs) = (nothing.clone(), nothing);
            let program = self.fingerprint;
            let mut empty =
                Manifest { program, generation, inputs, outputs, ..Manifest::default() };
            empty.written = self.ways.begin(self.program, &empty, None)?.into();
            self.append(generation, Record::Snapshot(empty.into()))?;
            // Another process that begins at the same time may have been first.
            manifest = self.newest()?.manifest;
        }
        if manifest.is_some_and(|manifest| manifest.program == self.fingerprint) {
            return Ok(());
        }
        let what = format!(
            "the log of the cluster {} belongs to another app or another version of this one, and {} does not \
             say to which",
            self.prefix,
            self.dir.display()
        );
        Err(Error::setting(what).help(
            "give the directory that it had (--data-dir), or start that version in this one once: it writes there \
             what an upgrade needs; or give this cluster another name (cluster_name)",
        ))
    }

    /// Refuses a log that does not belong to the program in the directory.
    fn check_log(&self, is: &Version, manifest: Option<&Manifest>) -> Result<()> {
        let dir = self.dir.display();
        let (what, help) = match manifest {
            Some(manifest) if shown(manifest.program) == is.fingerprint => return Ok(()),
            Some(_) => (
                format!("the log of the cluster {} belongs to another program than {dir}", self.prefix),
                "give the directory that belongs to it (--data-dir), or this cluster another name \
                 (cluster_name)",
            ),
            None => (
                format!(
                    "{dir} belongs to a cluster with data, but the log of the cluster {} is empty",
                    self.prefix
                ),
                "give the log that it had (--log, cluster_name); if that is lost, give a new directory \
                 (--data-dir), or start from scratch (--fresh)",
            ),
        };
        Err(Error::setting(what).help(help))
    }

    /// Reads the rows of a snapshot, encoded.
    fn rows(&self, manifest: &Manifest) -> Result<Rows> {
        let mut rows = BTreeMap::new();
        for name in &manifest.objects {
            let whole = format!("{}/{name}", self.prefix);
            let object = self.store.get(&whole)?.and_then(|bytes| take_object(&bytes));
            let Some(Object::Part(part)) = object else {
                let what =
                    format!("{whole}, an object of the newest snapshot, is missing or damaged");
                return Err(Error::new(Kind::Io, what).help(
                    "restore the place of the snapshots, or give the one that this cluster had",
                ));
            };
            for (table, key, row) in part.iter().cloned() {
                match row {
                    Some(row) => rows.insert((table, key), row),
                    None => rows.remove(&(table, key)),
                };
            }
        }
        Ok(rows)
    }

    fn read(&self, topic: Topic, from: u64) -> Result<Records> {
        read(self.log, topic, from)
    }

    fn append(&self, generation: u64, record: Record) -> Result<()> {
        let appended = answer(|then| self.log.append(Topic::Cuts, generation, record, then))?;
        appended.map(drop).map_err(|why| {
            Error::new(Kind::Io, format!("the upgrade can't be recorded in the log ({why:?})"))
                .help("check that no other coordinator runs and that the log can be written, and start again")
        })
    }

    fn put(&self, name: &str, object: &Object) -> Result<()> {
        let mut bytes = Vec::new();
        put_object(object, &mut bytes);
        let name = format!("{}/{name}", self.prefix);
        match self.store.put(&name, &bytes)? {
            true => Ok(()),
            false => Err(name_taken(&name)),
        }
    }

    fn written(&self) -> Result<Option<Written>> {
        let failed = |e: &std::io::Error| Error::io(format!("reading {}", self.dir.display()), e);
        let mut text = String::new();
        match self.env.disk.open_read(&self.dir.join(PROGRAM)) {
            Ok(mut file) => {
                std::io::Read::read_to_string(&mut file, &mut text).map_err(|e| failed(&e))?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error)),
        }
        serde_json::from_str(&text).map(Some).map_err(|e| {
            let what = format!("{} can't be read: {e}", self.dir.join(PROGRAM).display());
            Error::setting(what).help("it was written by another version of tidemill: use that one")
        })
    }

    fn write(&self, written: &Written) -> Result<()> {
        let text = serde_json::to_string(written).expect("an app is JSON");
        let failed = |e| Error::io(format!("the directory {}", self.dir.display()), &e);
        replace(&*self.env.disk, self.dir, PROGRAM, &text).map_err(failed)
    }
}

/// Refuses topics whose partitions would change their numbers among the sources. New ones come
/// last.
fn check_topics(was: &[(String, u32)], now: &[(String, u32)]) -> Result<()> {
    let is_same = |nth: usize, (topic, partitions): &(String, u32)| {
        now.get(nth).is_some_and(|(name, count)| {
            let may_grow = nth + 1 == was.len() && count > partitions;
            name == topic && (count == partitions || may_grow)
        })
    };
    match was.iter().enumerate().find(|(nth, topic)| !is_same(*nth, topic)) {
        None => Ok(()),
        Some((_, (topic, partitions))) => Err(refused(vec![format!(
            "{topic} was read with {partitions} partitions, and new sources may only come after the existing ones, \
             topics before files: leave the existing streams as they are, in their order, and declare new ones last"
        )])),
    }
}

/// Whether a snapshot has buffered events.
fn waits(manifest: &Manifest) -> bool {
    manifest.inputs_needed().zip(&manifest.inputs).any(|(needed, input)| needed < *input)
}

/// Returns the progress of event time, for a version with other event sources. Buffered events are
/// known by their positions among the sources.
fn carried(was: &[TimedSource], now: &[TimedSource], manifest: &Manifest) -> Result<Times> {
    if was == now || manifest.times.watermarks.is_empty() {
        return Ok(manifest.times.clone());
    }
    if waits(manifest) {
        return Err(refused(vec![
            "events wait for their watermark, but the streams with event time, their sources, or the tables that they \
             share have changed since: run the earlier version until the events are executed, or undo \
             these changes"
                .into(),
        ]));
    }
    let is_same = |of: &TimedSource, other: &TimedSource| {
        (&of.stream, &of.time) == (&other.stream, &other.time)
    };
    let before = |of: &TimedSource| {
        let is_it = |other: &TimedSource| is_same(of, other) && of.source == other.source;
        was.iter().position(is_it)
    };
    let newest = now.iter().map(|of| manifest.times.newest.get(before(of)?).copied().flatten());
    let newest = newest.collect();
    let has_ended = |of: &TimedSource| {
        before(of).is_some_and(|nth| manifest.times.ended.contains(&(nth as u32)))
    };
    let ended = (0..).zip(now).filter(|(_, of)| has_ended(of)).map(|(nth, _)| nth).collect();
    let groups = now.iter().map(|of| of.group + 1).max().unwrap_or(0);
    let mut watermarks = vec![Position::MIN; groups];
    for (of, other) in now.iter().flat_map(|of| was.iter().map(move |other| (of, other))) {
        let before = manifest.times.watermarks.get(other.group).filter(|_| is_same(of, other));
        if let Some(before) = before.filter(|before| **before != Position::MIN) {
            // No earlier event is buffered, from any source.
            let at = Position { time_us: before.time_us, ..Position::MIN };
            watermarks[of.group] = watermarks[of.group].max(at);
        }
    }
    Ok(Times { newest, watermarks, idle: Vec::new(), ended, late: manifest.times.late })
}

/// A fingerprint in the form of the file.
fn shown(fingerprint: u128) -> String {
    format!("{fingerprint:032x}")
}

/// The number of requests in a record.
fn requests_of(record: &Record) -> u64 {
    match record {
        Record::Requests(requests) => requests.len() as u64,
        _ => 0,
    }
}

/// Writes the rows as a snapshot of an engine in one process.
fn left(store: &Arc<dyn Store>, app: &Stored, rows: Rows, epoch: u64) -> Result<Left> {
    let specs = &app.program.tables;
    let (mut delta, mut counts) = (Delta::whole(), vec![0; specs.len()]);
    let mut bytes = Vec::new();
    for ((table, key), row) in rows {
        bytes.clear();
        row.iter().for_each(|value| encode::value(value, &mut bytes));
        counts[table.index()] += 1;
        let partition = partition_of_bytes(&specs[table.index()], &key.0);
        delta.push(table, partition, &key.0, Some(&bytes));
    }
    // The manifest has the progress of event time, by the cluster's sources.
    let watermarks = vec![Position::MIN; app.program.streams.len()];
    let facts = Facts { epoch, tables: counts, watermarks, ..Facts::default() };
    let internal = Internal { facts, buffered: Vec::new(), rings: Vec::new() };
    let head = Head { epoch, fingerprint: 0, program: app.bytes(), input_next: 0, cut_next: 0 };
    let manifest =
        Snapshots::open(store.clone(), 0, 0)?.publish(head, &internal.encode(), &delta)?;
    Ok(Left { manifest: (*manifest).clone(), stored: app.clone(), internal })
}

#[cfg(test)]
mod tests;
