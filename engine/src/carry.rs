//! What an engine keeps beside its tables, for another version of its program: where sources, sinks
//! and watermarks stand, what waits, what has been counted. Everything goes by name; numbers are
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

/// The internal state of `to`, when it goes on where `from` was: as of one epoch later, because a
/// snapshot is named by its epoch. `tables` are the rows of its tables, and their frontiers.
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
    let (parked, rings) = carry.events(internal);
    let watermarks = carry.watermarks()?;
    let counts = carry.counts(&parked);
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
    };
    Ok((Internal { facts, parked, rings }, carry.found))
}

struct Carry<'a> {
    from: &'a Program,
    to: &'a Program,
    facts: &'a Facts,
    /// The numbers of old sources, as they are now.
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

    /// The number of an old input stream that is one still, or of an old derived stream.
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

    /// Where sources stand: a new one at its first row.
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
            if (before.disorder_us, before.idle_us) != (source.disorder_us, source.idle_us) {
                let upgrade = "its place is kept; it holds watermarks back as the app says now";
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
            let upgrade =
                format!("its place behind {} is dropped", counted(old.next_offset, "row"));
            self.found.push(Change::new("source", "removed", &old.name, upgrade));
        }
        places
    }

    /// A place in the new numbers of sources: what was not before it is not before it now.
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

    /// What waits for its watermark, and what is kept of late and bad events and of outputs; and what is
    /// different about streams.
    fn events(&mut self, internal: &Internal) -> (Vec<Run>, Vec<RingFacts>) {
        let (mut parked, mut rings) = (Vec::new(), Vec::new());
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
            let runs = internal.parked.iter().filter(|run| run.stream == id);
            let waiting: u64 = runs.clone().map(|run| run.offsets.len() as u64).sum();
            let Some(new_id) = self.stream(id) else {
                // Of a derived stream nothing is lost that its input does not have.
                let waiting = if is_input { waiting } else { 0 };
                let lost = waiting + kept(late) + kept(dead);
                let upgrade = match lost {
                    0 => "nothing waits on it".to_owned(),
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
                parked.extend(self.input(new_id, runs.clone(), &mut columns));
                let held = waiting + kept(late);
                let names = names_of(&old.spec.schema);
                let owner =
                    Owner { what: "stream", name, old: name, row: "event", rows: waiting, held };
                self.found.extend(columns.found(&names, &owner));
                self.time(id, old, new);
            } else if same_stages(self.from, id, self.to, new_id) {
                parked.extend(runs.filter_map(|run| self.moved(run, new_id)));
            } else {
                let upgrade = "events that wait come to it as the app says now";
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
                    let derived = self.derive(id, &parked);
                    parked.extend(derived);
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
        parked.retain(|run| !run.offsets.is_empty());
        (parked, rings)
    }

    fn added(&mut self, stream: &Stream) {
        self.found.push(Change::new("stream", "added", &*stream.spec.name, "empty"));
    }

    /// An output goes on: what has come out of it is counted and hashed as it was.
    fn output(&mut self, old: &Stream) {
        // The columns of what is aborted are those of the handler's input.
        if matches!(old.origin, Origin::Aborted(_)) {
            return;
        }
        let name = &*old.spec.name;
        match self.to.streams.iter().find(|new| new.is_output() && *new.spec.name == *name) {
            None => {
                let upgrade = "its events are counted no more";
                self.found.push(Change::new("stream", "removed", name, upgrade));
            }
            Some(new) if new.spec.schema != old.spec.schema => {
                let upgrade = "events have the new columns from now on";
                self.found.push(Change::new("stream", "changed", name, upgrade));
            }
            Some(_) => {}
        }
    }

    /// The last rows of an output whose columns are what they were. Of others those who follow them begin
    /// anew, as of rows that are kept no more.
    fn followed(&self, old: &Stream, internal: &Internal) -> Option<RingFacts> {
        let is_same = |new: &&Stream| {
            new.is_output() && new.spec.name == old.spec.name && new.spec.schema == old.spec.schema
        };
        self.to.streams.iter().find(is_same)?;
        internal.rings.iter().find(|facts| facts.stream == *old.spec.name).cloned()
    }

    /// A run, on its new source and stream; `None` when its source has gone.
    fn moved(&self, run: &Run, stream: StreamId) -> Option<Run> {
        let source = self.sources.get(run.source.index()).copied().flatten()?;
        let admitted = run.admitted.map(|(at, epoch)| (self.position(at), epoch));
        Some(Run { stream, source, admitted, ..run.clone() })
    }

    /// The events that wait on an input stream, with their new columns.
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
                format!("{} that wait, of sources that go, are dropped", counted(lost, "event"));
            self.found.push(Change::new("stream", "changed", name, upgrade).loses(true));
        }
        moved
    }

    /// What comes to a derived stream of the events that wait on its input.
    fn derive(&mut self, stream: StreamId, parked: &[Run]) -> Vec<Run> {
        let (root, stages) = stages(self.to, stream);
        let schema = &self.to.streams[stream.index()].spec.schema;
        let (mut derived, mut failed, mut fault) = (Vec::new(), 0, String::new());
        for run in parked.iter().filter(|run| run.stream == root) {
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
                        failed += 1;
                        fault = why.to_string();
                    }
                }
            }
            let batch = builder.finish();
            derived.push(Run { stream, batch, ..run.take(&kept) });
        }
        if failed > 0 {
            self.found.why.push(format!(
                "stream {}: it has no value for {} that wait ({fault}): mend the expression, or run \
                 the version before until they have been executed",
                self.to.streams[stream.index()].spec.name,
                counted(failed, "event")
            ));
        }
        derived
    }

    /// The last rows of a late or dead-letter stream; none of them when one has no place in the new
    /// columns.
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

    /// Where the time of an input stream comes from.
    fn time(&mut self, id: StreamId, old: &Stream, new: &Stream) {
        if old.spec.late != new.spec.late {
            let upgrade = "late events are treated so from now on";
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
            true => "it stands against an upgrade",
            false => "events have the new time from now on",
        };
        let name = &*old.spec.name;
        let change = Change::new("stream", "changed", name, upgrade).loses(stands_against);
        self.found.push(change.from(before).to(now));
        if stands_against {
            self.found.why.push(format!(
                "stream {name} has another time than its events had so far, and there would be no \
                 one order of both: leave the time as it is, or give the stream another name"
            ));
        }
    }

    /// By stream. Streams that share one from now on get the highest: what was executed stays before
    /// what comes.
    fn watermarks(&mut self) -> Result<Vec<Position>> {
        let groups = Groups::of(self.to)?;
        let mut marks = vec![Position::MIN; groups.len];
        let mut before: Vec<(usize, &str, Position)> = Vec::new();
        for (old, stream) in self.from.streams.iter().enumerate() {
            let Some(new) = self.stream(StreamId(old as u16)) else { continue };
            // Of streams without event time it means nothing.
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
                    "it has a table in common with {} now, which is ahead in time: until it has \
                     caught up its events are late",
                    ahead.map_or("another stream", |(_, name, _)| name)
                );
                self.found.push(Change::new("stream", "changed", *name, upgrade).loses(true));
            }
        }
        Ok(groups.of.iter().map(|group| marks[*group]).collect())
    }

    fn counts(&self, parked: &[Run]) -> Counts {
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
        counts.parked = parked.iter().map(|run| run.offsets.len() as u64).sum();
        counts
    }

    /// What has come out of streams that are there still.
    fn outlets(&self) -> BTreeMap<String, OutletFacts> {
        let (before, mut outlets) = (Outlets::of(self.from), Outlets::of(self.to));
        // An output of handlers may have had the name of what is an input now.
        let is_one = |name: &String| {
            let is_hashed = |of: &Outlets| of.by_name.get(name).map(|outlet| outlet.hashed);
            is_hashed(&before) == is_hashed(&outlets)
        };
        let facts = self.facts.outlets.iter().filter(|(name, _)| is_one(name));
        let facts = facts.map(|(name, facts)| (name.clone(), facts.clone())).collect();
        outlets.resume(&facts);
        outlets.facts()
    }

    /// Where sinks stand: a new one at the begin of its file, which must not be there.
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
                        let upgrade = "it stands against an upgrade";
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
                        "it gets what comes from now on",
                    ));
                    if is_there(env, path) {
                        self.found.why.push(format!(
                            "{path} is there already, and what is in it would be lost: write to \
                             another file, or take this one away"
                        ));
                    }
                    SinkPlace::default()
                }
            };
            sinks.push(SinkFacts { stream: stream.clone(), path: path.clone(), place });
        }
        let is_gone = |sink: &&SinkFacts| !keys.contains(&(sink.stream.clone(), sink.path.clone()));
        for sink in self.facts.sinks.iter().filter(is_gone) {
            let upgrade = "what was written stays as it is";
            self.found.push(Change::new("sink", "removed", &sink.path, upgrade));
        }
        Ok(sinks)
    }
}

/// Whether its events come from handlers.
fn has_time(stream: &Stream) -> bool {
    stream.origin == Origin::Input && matches!(stream.spec.time, StreamTime::Event { .. })
}

/// What a file of rows knows of its columns.
fn columns_of(schema: &Schema) -> Vec<(String, String, bool)> {
    let columns = schema.columns.iter();
    columns.map(|c| (c.name.to_string(), c.ty.to_string(), c.nullable)).collect()
}

/// Whether a sink's file has something in it, or has parts.
fn is_there(env: &Env, path: &str) -> bool {
    let parts = PathBuf::from(format!("{path}.parts"));
    env.disk.metadata(Path::new(path)).is_ok_and(|meta| meta.len > 0)
        || env.disk.exists(&parts).unwrap_or(false)
}

/// The input stream that a derived one comes from, and the steps from there, each with the schema of
/// what it makes.
fn stages(program: &Program, stream: StreamId) -> (StreamId, Vec<(&Stage, &Schema)>) {
    let (mut at, mut stages) = (stream, Vec::new());
    while let Origin::Derived { from, stage } = &program.streams[at.index()].origin {
        stages.push((stage, &*program.streams[at.index()].spec.schema));
        at = *from;
    }
    stages.reverse();
    (at, stages)
}

/// Whether events come to a derived stream in the same way in both programs.
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

/// A step without the lines of the user's files.
fn in_words(stage: &Stage) -> serde_json::Value {
    let mut said = serde_json::to_value(stage).unwrap_or_default();
    forget_lines(&mut said);
    said
}
