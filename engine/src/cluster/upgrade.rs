//! The program that a cluster's state belongs to, and upgrades from one version of it to another.
//!
//! A file of the coordinator's directory describes the program (`program_file`). The log identifies
//! it, too: by the manifest of each snapshot, and at first by an empty one of epoch 0. So another
//! app, another version, or a directory that has lost its file can't continue with state that is not
//! its own.
//!
//! An upgrade takes the newest snapshot, converts its rows as an upgrade in one process does, and
//! stores them as a snapshot of the next epoch. It counts when the cuts name it. The planned
//! upgrade is in the file before, with that epoch. So after any crash the next start knows which
//! program the rows belong to.
//!
//! A snapshot whose parts are in the format of earlier versions is stored again, of the same epoch.

mod versions;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tidemill_cluster::wire::{put_manifest_object, take_part_of_before};
use tidemill_cluster::{
    EventSource, EventTime, Log, Manifest, Record, Records, Times, Topic, Written as Places,
};
use tidemill_core::{encode, Error, Kind, Position, Result, StreamTime, TableId};
use tidemill_durable::{name_taken, MemoryStore, Store};
use tidemill_env::Env;
use tidemill_place::{partition_of_bytes, Partition};
use tidemill_snapshot::{load, put_rows, Blob, DataObject, Delta, Head, Part};

use super::ask::{answer, read};
use super::from_one::TakenOver;
use super::look::MANIFEST;
use super::program_file::{Kept, TimedSource, Version, Written};
use super::retained::RingStore;
use super::sinks::{DeclaredSinks, Note};
use crate::changes::{counted, first_differences, Change};
use crate::compare::Comparison;
use crate::internal::{Facts, Internal, RingFacts};
use crate::renames::Renames;
use crate::rings::Rings;
use crate::schema::Left;
use crate::settings::{Settings, Upgrade};
use crate::stored::Stored;
use crate::upgrade::{check, refused};

/// Brokers may report a log as too short for a while. After this time it counts as too short. Also
/// the pause between checks.
const SURE_NS: u64 = 5_000_000_000;
const AGAIN_US: u64 = 100_000;

/// The bytes of rows that an upgrade puts into one object.
const OBJECT_BYTES: usize = 128 << 20;

/// The state according to the cuts.
pub(super) struct Found {
    /// The last generation.
    generation: u64,
    /// The newest snapshot that counts.
    pub manifest: Option<Arc<Manifest>>,
    /// The number of cuts after it, and of those of an earlier version of Tidemill, in which one worker
    /// did not execute the whole epoch.
    pub cuts: usize,
    cuts_of_before: usize,
    /// For each source, the number of its records in the cuts or the snapshot.
    needed: Vec<u64>,
}

impl Found {
    /// Reads the cuts.
    ///
    /// # Errors
    /// When the log can't be read.
    pub fn read(log: &dyn Log) -> Result<Found> {
        let (mut generation, mut cuts, mut needed) = (0, Vec::new(), Vec::new());
        let mut newest: Option<Arc<Manifest>> = None;
        for (_, record) in read(log, Topic::Cuts, 0)?.records {
            match record {
                Record::Generation { generation: begun } => generation = generation.max(begun),
                Record::Cut(cut) => {
                    cuts.push((cut.epoch, cut.by_owner));
                    at_least(&mut needed, &cut.upto);
                }
                Record::Withdrawn { epoch, .. } => cuts.retain(|(of, _)| *of < epoch),
                // Of equal snapshots the first counts.
                Record::Snapshot(manifest)
                    if newest.as_ref().is_none_or(|newest| manifest.replaces(newest)) =>
                {
                    generation = generation.max(manifest.generation);
                    at_least(&mut needed, &manifest.inputs);
                    newest = Some(manifest);
                }
                _ => {}
            }
        }
        let last = newest.as_ref().map_or(0, |manifest| manifest.epoch);
        cuts.retain(|(epoch, _)| *epoch > last);
        let cuts_of_before = cuts.iter().filter(|(_, by_owner)| !by_owner).count();
        Ok(Found { generation, manifest: newest, cuts: cuts.len(), cuts_of_before, needed })
    }
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
    /// The topics and files that are read, each with its number of sources.
    pub read: Vec<(String, u32)>,
    /// The first record of each source in a new cluster.
    pub begins: Vec<u64>,
    pub event_time: &'a EventTime,
    pub settings: &'a Settings,
    pub log: &'a dyn Log,
    /// The objects of this cluster.
    pub store: Arc<dyn Store>,
    /// The cluster's name.
    pub name: &'a str,
    /// The settings that the log depends on.
    pub kept: Kept,
    pub sources: u32,
    /// The sinks.
    pub ways: &'a DeclaredSinks,
    /// The state of one process, where this start takes it over.
    pub one: Option<TakenOver<'a>>,
    /// Whether requests in the log are in this program's encoding. Requests of people have names,
    /// and any version reads them.
    pub has_own_requests: bool,
    /// Whether one worker owns all rows.
    pub has_sole_owner: bool,
}

impl Starting<'_> {
    /// Makes sure that the state belongs to this program. Upgrades it if it belongs to another
    /// version, and then returns the changes.
    ///
    /// # Errors
    /// When the state belongs to another program and no upgrade is allowed, or the upgrade fails.
    /// Nothing has changed then.
    pub fn agree(&self) -> Result<Option<serde_json::Value>> {
        let app = Stored::on_several(self.program);
        let (fingerprint, topics) = (shown(self.fingerprint), self.read.clone());
        let event_sources = self.event_sources();
        let now = Version { fingerprint, topics, event_sources, app };
        let (found, written) = (self.newest()?, self.written()?);
        // With another number of sources, the inputs of others would be missed.
        if let Some(written) = written.as_ref().filter(|written| written.becomes.is_none()) {
            self.check_sources(&written.is, found.manifest.as_deref())?;
        }
        self.check_inputs(&found.needed)?;
        self.check_cuts(&found)?;
        let Some(written) = written else {
            self.begin(found)?;
            return self.write(now, None).map(|()| None);
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
            self.write(is.clone(), None)?;
        }
        if let Some(manifest) = found.manifest.filter(|manifest| manifest.is_of_before()) {
            self.convert_format(found.generation, &manifest, &is)?;
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
        let left = left(&store, &is.app, &Manifest::default());
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
        self.check_later_records(&manifest, cuts)?;
        check_topics(&is.topics, &now.topics)?;
        let times = carried(&is.event_sources, &now.event_sources, &manifest)?;
        let (app, objects) = self.with_versions(is, now, &manifest)?;
        let read = Manifest { objects: objects.clone(), ..(*manifest).clone() };
        let mut left = left(&self.store, &app, &read)?;
        let run = Note::of(&manifest.written)?.run();
        left.internal.rings = RingStore::open(&self.store, run)?.1;
        let mut comparison = Comparison::of(self.env, &left, &now.app, &self.settings.renames)?;
        let before = Some((&is.app.program, self.log));
        let mut places = self.ways.begin(self.program, &manifest, &self.store, before)?;
        let (mut retained, rings) = self.retained(&left, now, &places)?;
        let (generation, epoch) = (generation + 1, manifest.epoch + 1);
        let mut converted = self.converted(generation, epoch, self.fingerprint);
        comparison.convert(&self.store, &left.manifest, |table, partition, key, row| {
            converted.push(table, partition, key, row);
        })?;
        if objects != manifest.objects {
            discard(&*self.store, &objects);
        }
        let found = comparison.found();
        check(&found, self.settings.upgrade).inspect_err(|_| converted.discard())?;
        let (rows, objects) = converted.end()?;
        let said = serde_json::json!({"epoch": epoch, "rows": rows, "changes": found.changes});
        self.write(is.clone(), Some((epoch, now.clone())))?;
        // From here on no other process writes, and a process that has begun meanwhile is noticed.
        self.append(generation, Record::Generation { generation })?;
        let program = self.fingerprint;
        let mut manifest = Manifest { program, generation, epoch, objects, ..(*manifest).clone() };
        manifest.inputs.extend(self.begins.iter().skip(manifest.inputs.len()));
        let all = manifest.outputs.len().max(self.sources as usize);
        manifest.outputs.resize(all, 0);
        if !places.outputs.is_empty() {
            places.outputs.resize(manifest.outputs.len(), 0);
        }
        manifest.written = places.into();
        if !waits(&manifest) {
            // The numbers of event sources may have changed.
            manifest.waiting = Some(Vec::new());
        }
        manifest.times = times;
        self.publish(manifest)?;
        retained.save(generation, &rings)?;
        self.write(now.clone(), None)?;
        Ok(said)
    }

    /// Returns the retained rows in the columns of this version. Late ones are converted. Those of
    /// outputs with other columns are dropped when they are read.
    fn retained(
        &self,
        left: &Left,
        now: &Version,
        places: &Places,
    ) -> Result<(RingStore, Vec<RingFacts>)> {
        let run = Note::of(places)?.run();
        let (retained, rings) = RingStore::open(&self.store, run)?;
        let (manifest, stored) = (left.manifest.clone(), left.stored.clone());
        let internal = Internal { rings: rings.clone(), ..left.internal.clone() };
        let left = Left { manifest, stored, internal };
        let renames = &self.settings.renames;
        let carried = Comparison::of(self.env, &left, &now.app, renames)?.internal.rings;
        let carried =
            |of: RingFacts| carried.iter().find(|to| to.stream == of.stream).cloned().unwrap_or(of);
        let rings = rings.into_iter().map(carried).collect();
        let were = Rings::new(&left.stored.program, self.settings);
        Ok((retained, self.retained_here(&were, rings)))
    }

    /// Returns the retained rows of an app that had rings, without those of streams whose rows are not
    /// retained from now on. A number that is left out tells their followers that rows are missing.
    pub fn retained_here(&self, were: &Rings, mut facts: Vec<RingFacts>) -> Vec<RingFacts> {
        let here = self.ways.rings(self.program, &[]);
        let is_here =
            |of: &RingFacts| were.is_dlq(&of.stream) || here.by_name.contains_key(&of.stream);
        for of in facts.iter_mut().filter(|of| !is_here(of)) {
            (of.next, of.batches) = (of.next + 1, Vec::new());
        }
        facts
    }

    /// Returns the version of the state and the objects of the newest snapshot. If an earlier version
    /// of Tidemill has stored versions of rows as rows, it stores them again as versions.
    fn with_versions(
        &self,
        is: &Version,
        now: &Version,
        manifest: &Manifest,
    ) -> Result<(Stored, Vec<DataObject>)> {
        let was = &is.app.program;
        let renames = Renames::of(&self.settings.renames, was, &now.app.program)?;
        let Some(program) = versions::without(was, &now.app.program, &renames) else {
            return Ok((is.app.clone(), manifest.objects.clone()));
        };
        let mut converted =
            self.converted(manifest.generation + 1, manifest.epoch, manifest.program);
        let objects = (manifest.program, &manifest.objects[..]);
        versions::convert(&self.store, objects, (was, &program), &mut converted)?;
        let (_, objects) = converted.end()?;
        Ok((Stored { program, ..is.app.clone() }, objects))
    }

    /// Stores the newest snapshot again, of the same epoch, in the format of this version.
    fn convert_format(&self, generation: u64, manifest: &Manifest, is: &Version) -> Result<()> {
        let generation = generation + 1;
        let mut converted = self.converted(generation, manifest.epoch, manifest.program);
        // Of rows with the same key the last one counts.
        let mut rows = BTreeMap::new();
        for DataObject { name, .. } in &manifest.objects {
            let part = self.store.get(name)?.and_then(|bytes| take_part_of_before(&bytes));
            let Some(part) = part else {
                let what =
                    format!("{name}, an object of the newest snapshot, is missing or damaged");
                return Err(Error::new(Kind::Io, what).help(
                    "restore the place of the snapshots, or give the one that this cluster had",
                ));
            };
            rows.extend(part.into_iter().map(|(table, key, row)| ((table, key), row)));
        }
        let mut bytes = Vec::new();
        for ((table, key), row) in rows {
            let Some(row) = row else { continue };
            bytes.clear();
            row.iter().for_each(|value| encode::value(value, &mut bytes));
            let spec = &is.app.program.tables[table.index()];
            converted.push(table, partition_of_bytes(spec, &key.0), &key.0, &bytes);
        }
        let (_, objects) = converted.end()?;
        self.append(generation, Record::Generation { generation })?;
        self.publish(Manifest { generation, objects, ..manifest.clone() })
    }

    /// Stores a snapshot's manifest, and makes it count.
    fn publish(&self, manifest: Manifest) -> Result<()> {
        let mut bytes = Vec::new();
        put_manifest_object(&manifest, &mut bytes);
        let name = manifest.name();
        if !self.store.put(&name, &bytes)? {
            return Err(name_taken(&name));
        }
        self.append(manifest.generation, Record::Snapshot(manifest.into()))
    }

    /// Begins to store converted rows.
    pub fn converted(&self, generation: u64, epoch: u64, program: u128) -> Converted {
        let name = format!("part-{generation}-{epoch}-0-{:016x}", self.env.random.next_u64());
        let (store, of) = (self.store.clone(), (program, epoch));
        let (delta, bytes, rows, objects) = (Delta::new(), 0, 0, Ok(Vec::new()));
        Converted { store, name, of, delta, bytes, rows, objects }
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
    fn check_later_records(&self, manifest: &Manifest, cuts: usize) -> Result<()> {
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
        for source in (0..self.own()).filter(|_| self.has_own_requests) {
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

    fn newest(&self) -> Result<Found> {
        Found::read(self.log)
    }

    /// Refuses cuts that this version would execute with other places of outputs.
    fn check_cuts(&self, found: &Found) -> Result<()> {
        if !self.has_sole_owner || found.cuts_of_before == 0 {
            return Ok(());
        }
        let many = counted(found.cuts_of_before as u64, "recorded cut");
        let what = format!(
            "{many} of the cluster {} after its newest snapshot can be executed only by the version of Tidemill \
             that made them",
            self.name
        );
        Err(Error::setting(what).help(
            "start the app with that version once more, and stop it cleanly (Ctrl-C or SIGTERM): this version \
             goes on from the snapshot that it leaves",
        ))
    }

    /// Refuses a log that has fewer requests than cuts include. A cut is recorded after the
    /// requests that it includes.
    fn check_inputs(&self, needed: &[u64]) -> Result<()> {
        let own = self.own() as usize;
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
                        self.name
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
        let has = self.own();
        if had == has {
            return Ok(());
        }
        let what = format!(
            "cluster_sources is {has}, but the number of sources of the log of the cluster {} is {had}",
            self.name
        );
        Err(Error::setting(what).help(format!(
            "set cluster_sources={had}, because a log keeps the number that it began with; another number needs a new \
             directory, and with a log elsewhere another cluster_name"
        )))
    }

    /// Records in a new log which program it belongs to.
    fn begin(&self, found: Found) -> Result<()> {
        let mut generation = found.generation;
        let mut manifest = found.manifest;
        if manifest.is_none() {
            if self.one.is_some() {
                generation = generation.max(self.unused_generation()?);
            }
            let (inputs, outputs) = (self.begins.clone(), vec![0; self.sources as usize]);
            let program = self.fingerprint;
            let empty = Manifest { program, generation, inputs, outputs, ..Manifest::default() };
            let moved =
                self.one.as_ref().map(|one| one.manifest(self, generation)).transpose()?.flatten();
            let has_moved = moved.is_some();
            let mut first = moved.unwrap_or(empty);
            first.written = self.ways.begin(self.program, &first, &self.store, None)?.into();
            match has_moved {
                true => self.publish(first)?,
                false => self.append(generation, Record::Snapshot(first.into()))?,
            }
            // Another process that begins at the same time may have been first.
            manifest = self.newest()?.manifest;
        }
        if manifest.is_some_and(|manifest| manifest.program == self.fingerprint) {
            return Ok(());
        }
        let what = format!(
            "the log of the cluster {} belongs to another app or another version of this one, and {} does not \
             say to which",
            self.name,
            self.dir.display()
        );
        Err(Error::setting(what).help(
            "give the directory that it had (--data-dir), or start that version in this one once: it writes there \
             what an upgrade needs; or give this cluster another name (cluster_name)",
        ))
    }

    /// Returns a generation after those of all manifests in the store. A store that is not in the data
    /// directory still has those of an interrupted move.
    fn unused_generation(&self) -> Result<u64> {
        let objects = self.store.list("")?.into_iter();
        let of = |name: &str| {
            let (generation, _) = name.strip_prefix(MANIFEST)?.split_once('-')?;
            generation.parse::<u64>().ok()
        };
        let last = objects.filter_map(|object| of(&object.name)).max();
        Ok(last.map_or(0, |last| last + 1))
    }

    /// Refuses a log that does not belong to the program in the directory.
    fn check_log(&self, is: &Version, manifest: Option<&Manifest>) -> Result<()> {
        let dir = self.dir.display();
        let (what, help) = match manifest {
            Some(manifest) if shown(manifest.program) == is.fingerprint => return Ok(()),
            Some(_) => (
                format!("the log of the cluster {} belongs to another program than {dir}", self.name),
                "give the directory that belongs to it (--data-dir), or this cluster another name \
                 (cluster_name)",
            ),
            None => (
                format!(
                    "{dir} belongs to a cluster with data, but the log of the cluster {} is empty",
                    self.name
                ),
                "give the log that it had (--log, cluster_name); if that is lost, give a new directory \
                 (--data-dir), or start from scratch (--fresh)",
            ),
        };
        Err(Error::setting(what).help(help))
    }

    /// The number of sources of requests.
    fn own(&self) -> u32 {
        let read: u32 = self.read.iter().map(|(_, sources)| sources).sum();
        self.sources - read
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

    fn written(&self) -> Result<Option<Written>> {
        Written::read(&*self.env.disk, self.dir)
    }

    fn write(&self, is: Version, becomes: Option<(u64, Version)>) -> Result<()> {
        let written = Written { is, becomes, cluster: Some(self.kept.clone()) };
        written.write(&*self.env.disk, self.dir)
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

/// Converted rows on their way into objects.
pub(super) struct Converted {
    store: Arc<dyn Store>,
    name: String,
    /// The program and the epoch of the objects.
    of: (u128, u64),
    delta: Delta,
    /// The bytes of the rows in it.
    bytes: usize,
    rows: u64,
    objects: Result<Vec<DataObject>>,
}

impl Converted {
    /// Adds a row.
    pub fn push(&mut self, table: TableId, partition: Partition, key: &[u8], row: &[u8]) {
        self.delta.push(table, partition, key, Some(row));
        self.bytes += key.len() + row.len();
        self.rows += 1;
        if self.bytes > OBJECT_BYTES {
            self.put();
        }
    }

    /// Puts the rows as the next object. After a failure nothing is put any more.
    fn put(&mut self) {
        let (delta, _) = (std::mem::take(&mut self.delta), std::mem::take(&mut self.bytes));
        if let Ok(objects) = &mut self.objects {
            let name = format!("{}-{}", self.name, objects.len());
            match put_rows(&*self.store, self.of, &name, &delta) {
                Ok(object) => objects.extend(object),
                Err(error) => self.objects = Err(error),
            }
        }
    }

    /// Puts the rest. Returns the number of rows, and the objects.
    ///
    /// # Errors
    /// When the store fails.
    pub fn end(mut self) -> Result<(u64, Vec<DataObject>)> {
        self.put();
        Ok((self.rows, self.objects?))
    }

    /// Removes the objects.
    fn discard(&self) {
        self.objects.iter().for_each(|objects| discard(&*self.store, objects));
    }
}

/// Removes objects. If one is left, a later snapshot removes it.
fn discard(store: &dyn Store, objects: &[DataObject]) {
    for object in objects {
        let _ = store.delete(&object.name);
    }
}

/// Returns a snapshot as one of an engine in one process, with the numbers of rows.
///
/// # Errors
/// When its objects can't be read.
pub(super) fn left(store: &Arc<dyn Store>, app: &Stored, manifest: &Manifest) -> Result<Left> {
    let Manifest { program, epoch, objects, .. } = manifest;
    let head =
        Head { epoch: *epoch, fingerprint: 0, program: app.bytes(), input_next: 0, cut_next: 0 };
    let internal = Blob { name: String::new(), len: 0, checksum: 0 };
    let objects = objects.clone();
    let manifest =
        tidemill_snapshot::Manifest { app: *program, head, writer: 0, objects, internal };
    let mut counts = vec![0; app.program.tables.len()];
    let tables = counts.len();
    load(store, &manifest, |row| {
        if let Part::Row(table) = Part::of(row.table, tables) {
            counts[table] += 1;
        }
        Ok(())
    })?;
    // The cluster's manifest has the progress of event time, by the cluster's sources.
    let watermarks = vec![Position::MIN; app.program.streams.len()];
    let facts = Facts { epoch: *epoch, tables: counts, watermarks, ..Facts::default() };
    let internal = Internal { facts, buffered: Vec::new(), rings: Vec::new() };
    Ok(Left { manifest, stored: app.clone(), internal })
}

#[cfg(test)]
mod tests;
