//! The engine's state beside its tables, for another version of its program: positions of sources
//! and sinks, watermarks, buffered events, counters. All of it is matched by name, and numbers are
//! those of the new program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tidemill_connect::{Place, SinkPlace};
use tidemill_core::{
    Batch, BatchBuilder, Error, Position, Result, Row, Schema, SourceId, StreamId, StreamTime,
};
use tidemill_env::Env;
use tidemill_txn::order::{Groups, Run};
use tidemill_txn::program::{Origin, Program, Stage, Stream};

use crate::changes::{counted, Change, Found};
use crate::convert::{names_of, Columns, Owner};
use crate::counts::Counts;
use crate::fingerprint::forget_lines;
use crate::internal::{Facts, Internal, OutletFacts, RingFacts, SinkFacts, SourceFacts};
use crate::outlets::{dead_schema, sink_keys, Outlets};
use crate::stored::Stored;

/// Returns the internal state of `to`, when it continues the state of `from`. It is as of one epoch
/// later, because a snapshot is named by its epoch. `tables` has the rows of its tables, and their
/// frontiers.
///
/// # Errors
/// When streams of the new program have no common time, or a sink is wrong.
pub(crate) fn carry(
    env: &Env,
    from: &Stored,
    internal: &Internal,
    to: &Stored,
    tables: (Vec<u64>, Vec<i64>),
) -> Result<(Internal, Found)> {
    let mut carry = Carry {
        from: &from.program,
        to: &to.program,
        facts: &internal.facts,
        sources: Vec::new(),
        found: Found::default(),
    };
    carry.sources = carry.new_sources();
    let sources = carry.places();
    let (buffered, rings) = carry.events(internal);
    let watermarks = carry.watermarks()?;
    let counts = carry.counts(&buffered);
    let sinks = carry.sinks(env, to)?;
    let outlets = carry.outlets();
    let Facts { epoch, clock_us, seq, .. } = internal.facts;
    let facts = Facts {
        epoch: epoch + 1,
        clock_us,
        watermarks,
        seq,
        sources,
        tables: tables.0,
        frontiers_us: tables.1,
        counts,
        outlets,
        sinks,
        reasons: internal.facts.reasons.clone(),
        salt: internal.facts.salt,
    };
    Ok((Internal { facts, buffered, rings }, carry.found))
}

/// Computes the events of a derived stream from the buffered events of its input. Returns them, and
/// the number of those that the stream has no value for, with the reason.
pub(crate) fn derived(
    program: &Program,
    stream: StreamId,
    buffered: &[Run],
) -> (Vec<Run>, Option<(u64, String)>) {
    let (root, stages) = stages(program, stream);
    let schema = &program.streams[stream.index()].spec.schema;
    let (mut runs, mut failed) = (Vec::new(), None);
    for run in buffered.iter().filter(|run| run.stream == root) {
        let (mut builder, mut kept) = (BatchBuilder::new(schema.clone()), Vec::new());
        for (index, row) in run.batch.rows().enumerate() {
            let mut event = Ok(Some(row.into_vec()));
            for (stage, schema) in &stages {
                let Ok(Some(row)) = event else { break };
                event = stage.apply(schema, &row);
            }
            match event {
                Ok(Some(row)) => {
                    builder.push(&row);
                    kept.push(index as u32);
                }
                Ok(None) => {}
                Err(why) => {
                    let before = failed.map_or(0, |(count, _)| count);
                    failed = Some((before + 1, why.to_string()));
                }
            }
        }
        let batch = builder.finish();
        runs.push(Run { stream, batch, ..run.take(&kept) });
    }
    (runs, failed)
}

struct Carry<'a> {
    from: &'a Program,
    to: &'a Program,
    facts: &'a Facts,
    /// The new numbers of the old sources.
    sources: Vec<Option<SourceId>>,
    found: Found,
}

impl<'a> Carry<'a> {
    fn new_sources(&self) -> Vec<Option<SourceId>> {
        let new = |old: &SourceFacts| {
            let found = self.to.sources.iter().position(|s| *s.name == *old.name);
            found.map(|index| SourceId(index as u32))
        };
        self.facts.sources.iter().map(new).collect()
    }

    /// The new number of an old stream, if it is still an input stream, or was a derived stream.
    fn stream(&self, old: StreamId) -> Option<StreamId> {
        let old = &self.from.streams[old.index()];
        let is_same = |new: &&Stream| {
            new.spec.name == old.spec.name
                && !new.is_output()
                && !old.is_output()
                && (new.origin == Origin::Input) == (old.origin == Origin::Input)
        };
        let index = self.to.streams.iter().position(|new| is_same(&new));
        index.map(|index| StreamId(index as u16))
    }

    /// The positions of sources. A new one is at its first row.
    fn places(&mut self) -> Vec<SourceFacts> {
        let mut places = Vec::new();
        for (index, source) in self.to.sources.iter().enumerate() {
            let name = source.name.to_string();
            let id = Some(SourceId(index as u32));
            let Some(old) = self.sources.iter().position(|new| *new == id) else {
                let upgrade = "it is read from its first row on";
                self.found.push(Change::new("source", "added", &name, upgrade));
                let place = Place::start();
                let (next_offset, time_max, ended) = (0, None, false);
                places.push(SourceFacts { name, next_offset, time_max, ended, place });
                continue;
            };
            let before = &self.from.sources[old];
            if (before.out_of_orderness_us, before.idle_us)
                != (source.out_of_orderness_us, source.idle_us)
            {
                let upgrade = "it continues at its place, with the new settings for watermarks";
                self.found.push(Change::new("source", "changed", &name, upgrade));
            }
            let mut place = self.facts.sources[old].clone();
            if !has_time(&self.to.streams[source.stream.index()]) {
                place.time_max = None;
            }
            places.push(place);
        }
        let gone = self.facts.sources.iter().zip(&self.sources).filter(|(_, new)| new.is_none());
        for (old, _) in gone {
            let upgrade = format!("its place after {} is dropped", counted(old.next_offset, "row"));
            self.found.push(Change::new("source", "removed", &old.name, upgrade));
        }
        places
    }

    /// A position in the new numbers of sources. Rows that were not before it are not before it
    /// now.
    fn position(&self, at: Position) -> Position {
        if at == Position::MIN || at == Position::MAX {
            return at;
        }
        let behind = self.sources.iter().enumerate().filter_map(|(old, new)| {
            let new = (*new)?;
            match (old as u32).cmp(&at.source.0) {
                std::cmp::Ordering::Less => None,
                std::cmp::Ordering::Equal => Some((new, at.offset)),
                std::cmp::Ordering::Greater => Some((new, 0)),
            }
        });
        let last = SourceId(self.to.sources.len() as u32);
        let (source, offset) = behind.min().unwrap_or((last, 0));
        Position { time_us: at.time_us, source, offset }
    }

    /// Carries over buffered events, and the retained late and bad events and outputs. Notes the
    /// differences of streams.
    fn events(&mut self, internal: &Internal) -> (Vec<Run>, Vec<RingFacts>) {
        let (mut buffered, mut rings) = (Vec::new(), Vec::new());
        for (index, old) in self.from.streams.iter().enumerate() {
            if old.is_output() {
                self.output(old);
                rings.extend(self.followed(old, internal));
                continue;
            }
            let id = StreamId(index as u16);
            let (name, is_input) = (&*old.spec.name, old.origin == Origin::Input);
            let late = internal.rings.iter().find(|facts| facts.stream == format!("{name}.late"));
            let dead = internal.rings.iter().find(|facts| facts.stream == format!("{name}.dead"));
            let kept = |facts: Option<&RingFacts>| {
                facts.map_or(0, |facts| facts.batches.iter().map(|b| b.len() as u64).sum::<u64>())
            };
            let runs = internal.buffered.iter().filter(|run| run.stream == id);
            let waiting: u64 = runs.clone().map(|run| run.offsets.len() as u64).sum();
            let Some(new_id) = self.stream(id) else {
                // A derived stream loses nothing that its input still has.
                let waiting = if is_input { waiting } else { 0 };
                let lost = waiting + kept(late) + kept(dead);
                let upgrade = match lost {
                    0 => "no event waits on it".to_owned(),
                    _ => format!(
                        "{} that wait, and late and bad ones, are dropped",
                        counted(lost, "event")
                    ),
                };
                self.found.push(Change::new("stream", "removed", name, upgrade).loses(lost > 0));
                continue;
            };
            let new = &self.to.streams[new_id.index()];
            let columns = Columns::by_name(&old.spec.schema, &new.spec.schema);
            if is_input {
                let mut columns = columns.clone();
                buffered.extend(self.input(new_id, runs.clone(), &mut columns));
                let held = waiting + kept(late);
                let names = names_of(&old.spec.schema);
                let owner =
                    Owner { what: "stream", name, old: name, row: "event", rows: waiting, held };
                self.found.extend(columns.found(&names, &owner));
                self.time(id, old, new);
            } else if same_stages(self.from, id, self.to, new_id) {
                buffered.extend(runs.filter_map(|run| self.moved(run, new_id)));
            } else {
                let upgrade = "waiting events enter it by its new definition";
                self.found.push(Change::new("stream", "changed", name, upgrade));
            }
            for facts in [late, dead].into_iter().flatten() {
                let mut columns = match facts.stream.ends_with(".late") {
                    true => columns.clone(),
                    false => Columns::by_name(&dead_schema(), &dead_schema()),
                };
                rings.push(self.ring(facts, &mut columns));
            }
        }
        for (index, new) in self.to.streams.iter().enumerate() {
            let id = StreamId(index as u16);
            let old = (0..self.from.streams.len() as u16).map(StreamId);
            let mut old = old.filter(|old| self.stream(*old) == Some(id));
            match (&new.origin, old.next()) {
                (Origin::Derived { .. }, Some(old)) if same_stages(self.from, old, self.to, id) => {
                }
                (Origin::Derived { .. }, old) => {
                    let derived = self.derive(id, &buffered);
                    buffered.extend(derived);
                    if old.is_none() {
                        self.added(new);
                    }
                }
                (Origin::Input, Some(_)) => {}
                (Origin::Input, None) => self.added(new),
                (Origin::Aborted(_), _) => {}
                _ => {
                    let is_same = |old: &Stream| old.is_output() && old.spec.name == new.spec.name;
                    if !self.from.streams.iter().any(is_same) {
                        self.added(new);
                    }
                }
            }
        }
        buffered.retain(|run| !run.offsets.is_empty());
        (buffered, rings)
    }

    fn added(&mut self, stream: &Stream) {
        self.found.push(Change::new("stream", "added", &*stream.spec.name, "empty"));
    }

    /// Notes the changes of an output. It continues with its counts and hash.
    fn output(&mut self, old: &Stream) {
        // The columns of an aborted stream are those of the handler's input.
        if matches!(old.origin, Origin::Aborted(_)) {
            return;
        }
        let name = &*old.spec.name;
        match self.to.streams.iter().find(|new| new.is_output() && *new.spec.name == *name) {
            None => {
                let upgrade = "its events are no longer counted";
                self.found.push(Change::new("stream", "removed", name, upgrade));
            }
            Some(new) if new.spec.schema != old.spec.schema => {
                let upgrade = "events have the new columns from now on";
                self.found.push(Change::new("stream", "changed", name, upgrade));
            }
            Some(_) => {}
        }
    }

    /// The last rows of an output whose columns have not changed. Followers of other outputs start
    /// again, as after rows that are no longer retained.
    fn followed(&self, old: &Stream, internal: &Internal) -> Option<RingFacts> {
        let is_same = |new: &&Stream| {
            new.is_output() && new.spec.name == old.spec.name && new.spec.schema == old.spec.schema
        };
        self.to.streams.iter().find(is_same)?;
        internal.rings.iter().find(|facts| facts.stream == *old.spec.name).cloned()
    }

    /// Moves a run to its new source and stream; `None` when its source has gone.
    fn moved(&self, run: &Run, stream: StreamId) -> Option<Run> {
        let source = self.sources.get(run.source.index()).copied().flatten()?;
        let admitted = run.admitted.map(|(at, epoch)| (self.position(at), epoch));
        Some(Run { stream, source, admitted, ..run.clone() })
    }

    /// Converts the buffered events of an input stream to its new columns.
    fn input<'r>(
        &mut self,
        stream: StreamId,
        runs: impl Iterator<Item = &'r Run>,
        columns: &mut Columns,
    ) -> Vec<Run> {
        let schema = &self.to.streams[stream.index()].spec.schema;
        let (mut moved, mut lost) = (Vec::new(), 0);
        for run in runs {
            let Some(mut run) = self.moved(run, stream) else {
                lost += run.offsets.len() as u64;
                continue;
            };
            if !columns.is_same() || run.batch.schema() != schema {
                let (mut builder, mut kept) = (BatchBuilder::new(schema.clone()), Vec::new());
                for (index, row) in run.batch.rows().enumerate() {
                    if let Some(row) = columns.row(&row) {
                        builder.push(&row);
                        kept.push(index as u32);
                    }
                }
                let batch = builder.finish();
                run = Run { batch, ..run.take(&kept) };
            }
            moved.push(run);
        }
        if lost > 0 {
            let name = &*self.to.streams[stream.index()].spec.name;
            let upgrade =
                format!("{} that wait, of removed sources, are dropped", counted(lost, "event"));
            self.found.push(Change::new("stream", "changed", name, upgrade).loses(true));
        }
        moved
    }

    /// Computes the events of a derived stream from the buffered events of its input.
    fn derive(&mut self, stream: StreamId, buffered: &[Run]) -> Vec<Run> {
        let (runs, failed) = derived(self.to, stream, buffered);
        if let Some((failed, fault)) = failed {
            self.found.why.push(format!(
                "stream {}: it has no value for {} that wait ({fault}): correct the expression, or \
                 run the earlier version until they are executed",
                self.to.streams[stream.index()].spec.name,
                counted(failed, "event")
            ));
        }
        runs
    }

    /// Converts the last rows of a late or dead-letter stream. Drops all of them when one does not
    /// fit the new columns.
    fn ring(&mut self, facts: &RingFacts, columns: &mut Columns) -> RingFacts {
        let RingFacts { stream, next, batches } = facts;
        let schema = columns.to().clone();
        let batches: Vec<Batch> = match columns.is_same() {
            true => batches.clone(),
            false => {
                let convert = |batch: &Batch| {
                    let mut rows = batch.rows().map(|row| columns.row(&row).map(Row::from));
                    let rows: Option<Vec<Row>> = rows.by_ref().collect();
                    rows.map(|rows| Batch::from_rows(schema.clone(), rows.iter().map(|r| &r[..])))
                };
                batches.iter().map(convert).collect::<Option<_>>().unwrap_or_default()
            }
        };
        if batches.is_empty() && !facts.batches.is_empty() {
            let rows = facts.batches.iter().map(|batch| batch.len() as u64).sum();
            let upgrade = format!(
                "the last {}, which do not fit the new columns, are dropped",
                counted(rows, "late event")
            );
            let change = Change::new("stream", "changed", stream, upgrade);
            self.found.push(change.loses(true));
        }
        RingFacts { stream: stream.clone(), next: *next, batches }
    }

    /// Notes a change of an input stream's time.
    fn time(&mut self, id: StreamId, old: &Stream, new: &Stream) {
        if old.spec.late != new.spec.late {
            let upgrade = "late events are treated in the new way from now on";
            let change = Change::new("stream", "changed", &*old.spec.name, upgrade);
            let late = |stream: &Stream| format!("late {:?}", stream.spec.late).to_lowercase();
            self.found.push(change.from(late(old)).to(late(new)));
        }
        let time = |stream: &Stream| match stream.spec.time {
            StreamTime::Arrival => "time of arrival".to_owned(),
            StreamTime::Event { column } => {
                let column = &stream.spec.schema.columns[column];
                format!("time {} ({})", column.name, column.ty)
            }
        };
        let (before, now) = (time(old), time(new));
        if before == now {
            return;
        }
        let mut sources = self.from.sources.iter().zip(&self.facts.sources);
        let is_untouched =
            sources.all(|(source, facts)| source.stream != id || facts.next_offset == 0);
        let stands_against = has_time(old) && has_time(new) && !is_untouched;
        let upgrade = match stands_against {
            true => "it prevents an upgrade",
            false => "events have the new time from now on",
        };
        let name = &*old.spec.name;
        let change = Change::new("stream", "changed", name, upgrade).loses(stands_against);
        self.found.push(change.from(before).to(now));
        if stands_against {
            self.found.why.push(format!(
                "stream {name} has another time than its earlier events, so there is no one order \
                 of both: leave the time as it is, or give the stream another name"
            ));
        }
    }

    /// Returns the watermarks by stream. Streams that share one from now on get the highest, so
    /// that executed events stay before later ones.
    fn watermarks(&mut self) -> Result<Vec<Position>> {
        let groups = Groups::of(self.to)?;
        let mut marks = vec![Position::MIN; groups.len];
        let mut before: Vec<(usize, &str, Position)> = Vec::new();
        for (old, stream) in self.from.streams.iter().enumerate() {
            let Some(new) = self.stream(StreamId(old as u16)) else { continue };
            // The watermark of a stream without event time has no meaning.
            if !has_time(stream) || !has_time(&self.to.streams[new.index()]) {
                continue;
            }
            let (group, mark) = (groups.of[new.index()], self.position(self.facts.watermarks[old]));
            marks[group] = marks[group].max(mark);
            before.push((group, &stream.spec.name, mark));
        }
        for (group, name, mark) in &before {
            if *mark < marks[*group] {
                let ahead = before.iter().find(|(g, _, m)| g == group && *m == marks[*group]);
                let upgrade = format!(
                    "it shares a table with {} now, which is ahead in time: until it has caught up, \
                     its events are late",
                    ahead.map_or("another stream", |(_, name, _)| name)
                );
                self.found.push(Change::new("stream", "changed", *name, upgrade).loses(true));
            }
        }
        Ok(groups.of.iter().map(|group| marks[*group]).collect())
    }

    fn counts(&self, buffered: &[Run]) -> Counts {
        let new = |old: usize| {
            let name = &self.from.handlers.get(old)?.name;
            self.to.handlers.iter().position(|handler| handler.name == *name)
        };
        let mut counts = Counts { unstable: BTreeMap::new(), ..self.facts.counts.clone() };
        counts.handlers = Counts::none(self.to).handlers;
        for (old, count) in self.facts.counts.handlers.iter().enumerate() {
            if let Some(new) = new(old) {
                counts.handlers[new] = *count;
            }
        }
        for (old, unstable) in &self.facts.counts.unstable {
            if let Some(new) = new(*old) {
                counts.unstable.insert(new, unstable.clone());
            }
        }
        counts.buffered = buffered.iter().map(|run| run.offsets.len() as u64).sum();
        counts
    }

    /// The counts of outputs that still exist.
    fn outlets(&self) -> BTreeMap<String, OutletFacts> {
        let (before, mut outlets) = (Outlets::of(self.from), Outlets::of(self.to));
        // An output of handlers may have had the name of a present input.
        let is_one = |name: &String| {
            let is_hashed = |of: &Outlets| of.by_name.get(name).map(|outlet| outlet.hashed);
            is_hashed(&before) == is_hashed(&outlets)
        };
        let facts = self.facts.outlets.iter().filter(|(name, _)| is_one(name));
        let facts = facts.map(|(name, facts)| (name.clone(), facts.clone())).collect();
        outlets.resume(&facts);
        outlets.facts()
    }

    /// Returns the positions of sinks. A new sink is at the beginning of its file, which must not
    /// exist.
    fn sinks(&mut self, env: &Env, to: &Stored) -> Result<Vec<SinkFacts>> {
        let (before, now) = (Outlets::of(self.from), Outlets::of(self.to));
        let keys = sink_keys(&to.sinks)?;
        let mut sinks = Vec::new();
        for (stream, path) in &keys {
            let Some(outlet) = now.by_name.get(stream) else {
                return Err(Error::program(format!("there is no stream {stream} to write")));
            };
            let known = self.facts.sinks.iter().find(|s| s.stream == *stream && s.path == *path);
            let place = match known {
                Some(known) => {
                    let old = before.by_name.get(stream).map(|outlet| columns_of(&outlet.schema));
                    if old != Some(columns_of(&outlet.schema)) {
                        let upgrade = "it prevents an upgrade";
                        self.found.push(Change::new("sink", "changed", path, upgrade).loses(true));
                        self.found.why.push(format!(
                            "{path} has rows with the columns that stream {stream} had: write the \
                             rows with the new ones to another file"
                        ));
                    }
                    known.place.clone()
                }
                None => {
                    self.found.push(Change::new(
                        "sink",
                        "added",
                        path,
                        "it gets the events from now on",
                    ));
                    if is_there(env, path) {
                        self.found.why.push(format!(
                            "{path} is there already, and its contents would be lost: write to \
                             another file, or move this one away"
                        ));
                    }
                    SinkPlace::default()
                }
            };
            sinks.push(SinkFacts { stream: stream.clone(), path: path.clone(), place });
        }
        let is_gone = |sink: &&SinkFacts| !keys.contains(&(sink.stream.clone(), sink.path.clone()));
        for sink in self.facts.sinks.iter().filter(is_gone) {
            let upgrade = "its contents stay as they are";
            self.found.push(Change::new("sink", "removed", &sink.path, upgrade));
        }
        Ok(sinks)
    }
}

/// Whether a stream is an input with event time.
fn has_time(stream: &Stream) -> bool {
    stream.origin == Origin::Input && matches!(stream.spec.time, StreamTime::Event { .. })
}

/// The properties of columns that matter for a file of rows.
fn columns_of(schema: &Schema) -> Vec<(String, String, bool)> {
    let columns = schema.columns.iter();
    columns.map(|c| (c.name.to_string(), c.ty.to_string(), c.nullable)).collect()
}

/// Whether a sink's file has contents, or has parts.
fn is_there(env: &Env, path: &str) -> bool {
    let parts = PathBuf::from(format!("{path}.parts"));
    env.disk.metadata(Path::new(path)).is_ok_and(|meta| meta.len > 0)
        || env.disk.exists(&parts).unwrap_or(false)
}

/// The input stream of a derived one, and the stages from there, each with the schema of its
/// result.
fn stages(program: &Program, stream: StreamId) -> (StreamId, Vec<(&Stage, &Schema)>) {
    let (mut at, mut stages) = (stream, Vec::new());
    while let Origin::Derived { from, stage } = &program.streams[at.index()].origin {
        stages.push((stage, &*program.streams[at.index()].spec.schema));
        at = *from;
    }
    stages.reverse();
    (at, stages)
}

/// Whether events reach a derived stream in the same way in both programs.
fn same_stages(from: &Program, old: StreamId, to: &Program, new: StreamId) -> bool {
    let ((old_root, old), (new_root, new)) = (stages(from, old), stages(to, new));
    let (old_root, new_root) = (&from.streams[old_root.index()], &to.streams[new_root.index()]);
    let same = |((a, a_schema), (b, b_schema)): (&(&Stage, _), &(&Stage, _))| {
        in_words(a) == in_words(b) && *a_schema == *b_schema
    };
    old_root.spec.name == new_root.spec.name
        && old_root.spec.schema == new_root.spec.schema
        && old.len() == new.len()
        && old.iter().zip(&new).all(same)
}

/// A stage as JSON, without the user's lines.
fn in_words(stage: &Stage) -> serde_json::Value {
    let mut said = serde_json::to_value(stage).unwrap_or_default();
    forget_lines(&mut said);
    said
}
