//! The state of an app at an earlier cut, in tables of its own. It loads the newest snapshot at or
//! before the cut, and replays the recorded cuts after it. It writes nothing, so it works beside a
//! running engine and with the files of a stopped one.

use std::sync::Arc;

use tidemill_connect::{Polled, Source, Troubles};
use tidemill_core::{Error, Kind, LateRow, Result, SourceId, StreamTime};
use tidemill_durable::Store;
use tidemill_env::{Clock, Env};
use tidemill_flow::{Bad, Branch, Parcel, Stage};
use tidemill_log::{LogKind, Reader as LogReader};
use tidemill_snapshot::{epochs, open_at, Manifest};
use tidemill_table::Table;
use tidemill_txn::execute::{tables, Serial};
use tidemill_txn::order::{CutInput, Groups, Newest, Run, Sequencer};
use tidemill_txn::pool::SingleThread;
use tidemill_txn::program::Program;

use crate::begins::StartPositions;
use crate::counts::Counts;
use crate::data_dir::Site;
use crate::internal::{Facts, Internal};
use crate::needed::Needed;
use crate::open::{branches, partitions, Reader};
use crate::outlets::Outlets;
use crate::quarantine;
use crate::records::{self, CutRecord, Verdict};
use crate::recover::{load, rows_of, Written};
use crate::rings::Rings;
use crate::settings::Settings;
use crate::spec::SourceDecl;
use crate::stages::FailedList;
use crate::stored::without_body;

/// The rows that are read from a source at a time.
const ROWS_MAX: u64 = 16_384;
/// How often a source without rows is polled, and the number of polls after which there is a pause
/// between them.
const PENDING_MAX: u64 = 10_000;
const LOOKS: u64 = 100;
const PENDING_US: u64 = 1_000;
/// How often a load is repeated when the running engine has removed its files.
const TRIES: usize = 3;

/// A choice of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The cut of an epoch.
    Epoch(u64),
    /// The last cut whose clock is not after this.
    Time(i64),
    /// The last recorded cut.
    Newest,
}

/// The needs of a query of an earlier state.
pub(crate) struct Basis<'a> {
    pub(crate) env: &'a Env,
    pub(crate) site: &'a Site,
    pub(crate) program: &'a Arc<Program>,
    pub(crate) fingerprint: u128,
    pub(crate) decls: &'a [SourceDecl],
    pub(crate) settings: &'a Settings,
    /// Checked from time to time; an error ends the query.
    pub(crate) go_on: &'a dyn Fn() -> Result<()>,
}

/// The state after a cut.
pub(crate) struct Past {
    pub(crate) tables: Vec<Table>,
    pub(crate) epoch: u64,
    pub(crate) clock_us: i64,
    pub(crate) rings: Rings,
    /// Recorded cuts after it that were not replayed, because a handler's function is not
    /// available.
    pub(crate) unreplayed: u64,
}

impl Basis<'_> {
    /// Returns the state at a moment.
    ///
    /// # Errors
    /// When it is no longer or not yet available, when something is damaged, or when the input has
    /// changed.
    pub(crate) fn at(&self, moment: Moment) -> Result<Past> {
        let store = self.site.store();
        for _ in 1..TRIES {
            let before = epochs(&*store)?;
            match self.try_at(&store, &before, moment) {
                // A running engine has taken the next snapshot, and removed this one.
                Err(error) if error.kind == Kind::Io && epochs(&*store)? != before => {}
                done => return done,
            }
        }
        self.try_at(&store, &epochs(&*store)?, moment)
    }

    fn try_at(&self, store: &Arc<dyn Store>, epochs: &[u64], moment: Moment) -> Result<Past> {
        let (mut found, mut later) = (None, None);
        for epoch in epochs.iter().rev() {
            if matches!(moment, Moment::Epoch(wanted) if wanted < *epoch) {
                later = Some(*epoch);
                continue;
            }
            let manifest = open_at(&**store, self.site.app, *epoch)?;
            let written = Written::by(Some(&manifest), self.fingerprint).map(drop);
            written.map_err(|error| later.map_or(error, before_upgrade))?;
            later = Some(*epoch);
            let internal = Internal::decode(self.program, &manifest.internal(&**store)?)?;
            if matches!(moment, Moment::Time(us) if us < internal.facts.clock_us) {
                continue;
            }
            found = Some((manifest, internal));
            break;
        }
        let mut replay = Replay::new(self, store, found)?;
        if replay.is_there(moment) {
            return Ok(replay.past(0));
        }
        if let Some((handler, what)) = without_body(self.program) {
            if moment == Moment::Newest {
                let unreplayed = replay.cuts.try_fold(0, |count, cut| cut.map(|_| count + 1))?;
                return Ok(replay.past(unreplayed));
            }
            let at = replay.facts.epoch;
            return Err(Error::setting(format!(
                "that state can't be computed: the cuts after epoch {at} would have to be \
                 replayed, and handler {handler} is {what}"
            ))
            .help(format!("ask as of epoch {at}, where there is a snapshot, or for the present")));
        }
        while let Some(record) = replay.next()? {
            if matches!(moment, Moment::Time(us) if record.cut.clock_us > us) {
                break;
            }
            (self.go_on)()?;
            replay.make(record)?;
            if replay.is_there(moment) {
                break;
            }
        }
        match moment {
            Moment::Epoch(epoch) if replay.facts.epoch < epoch => {
                let last = replay.facts.epoch;
                Err(Error::setting(format!("epoch {epoch} does not exist yet; the last is {last}")))
            }
            _ => Ok(replay.past(0)),
        }
    }

    /// The error when there is no snapshot to begin with, and the first cuts are gone.
    fn missing(&self, store: &dyn Store) -> Error {
        let oldest = epochs(store).ok().and_then(|epochs| epochs.first().copied());
        let error = Error::setting("the state before the oldest snapshot is no longer retained");
        match oldest {
            Some(epoch) => error.help(format!("ask for epoch {epoch} or later")),
            None => error,
        }
    }
}

/// The error for a moment before an upgrade of the program at epoch `first`.
fn before_upgrade(first: u64) -> Error {
    Error::setting("another version of the program ran then, before an upgrade")
        .help(format!("ask for epoch {first} or later"))
}

/// A source that is read again.
struct Reading {
    id: SourceId,
    source: Box<dyn Source>,
    is_push: bool,
    time: Option<usize>,
    newest: Newest,
    /// The late rows up to the present cut.
    late: Vec<LateRow>,
    next_offset: u64,
    branches: Vec<Branch>,
}

/// Replays recorded cuts.
struct Replay<'a> {
    basis: &'a Basis<'a>,
    manifest: Option<Manifest>,
    written: Written,
    facts: Facts,
    tables: Vec<Table>,
    rings: Rings,
    cuts: LogReader,
    /// The parts that are needed from the first cut on.
    works: Option<Works>,
    buffered: Vec<Run>,
}

struct Works {
    readings: Vec<Reading>,
    sequencer: Sequencer,
    groups: Groups,
    serial: Serial,
    outlets: Outlets,
    verdicts: Vec<Verdict>,
    failed: FailedList,
}

impl<'a> Replay<'a> {
    fn new(
        basis: &'a Basis<'a>,
        store: &Arc<dyn Store>,
        found: Option<(Manifest, Internal)>,
    ) -> Result<Replay<'a>> {
        let program = basis.program;
        let seed = basis.env.random.next_u64();
        let mut tables = tables(program, seed);
        let mut rings = Rings::new(program, basis.settings);
        let mut facts = Facts { counts: Counts::none(program), ..Facts::default() };
        let mut buffered = Vec::new();
        let mut manifest = None;
        if let Some((of, internal)) = found {
            load(store, &of, &internal, &mut tables)?;
            rings.resume(&internal);
            (facts, buffered, manifest) = (internal.facts, internal.buffered, Some(of));
        }
        let from = manifest.as_ref().map_or(0, |m| m.head.cut_next);
        let cuts =
            tidemill_log::read(basis.site.disk.clone(), &basis.site.log(LogKind::Cuts), from)
                .map_err(|error| match (&manifest, error.kind) {
                    (None, Kind::Input) => basis.missing(&**store),
                    _ => error,
                })?;
        let written = Written::by(manifest.as_ref(), basis.fingerprint)?;
        Ok(Replay { basis, manifest, written, facts, tables, rings, cuts, works: None, buffered })
    }

    fn is_there(&self, moment: Moment) -> bool {
        matches!(moment, Moment::Epoch(epoch) if epoch == self.facts.epoch)
    }

    fn past(self, unreplayed: u64) -> Past {
        let Facts { epoch, clock_us, .. } = self.facts;
        Past { tables: self.tables, epoch, clock_us, rings: self.rings, unreplayed }
    }

    fn next(&mut self) -> Result<Option<CutRecord>> {
        let Some(record) = self.cuts.next() else { return Ok(None) };
        let (record, _) = records::cut(&record?)?;
        self.written.check(&record)?;
        Ok(Some(record))
    }

    /// Opens the sources at their positions in the snapshot.
    fn begin(&mut self) -> Result<Works> {
        let Basis { site, program, env, .. } = *self.basis;
        let input_from = self.manifest.as_ref().map_or(0, |m| m.head.input_next);
        let mut verdicts = Vec::new();
        let log = site.log(LogKind::Input);
        let cuts_from = self.manifest.as_ref().map_or(0, |m| m.head.cut_next);
        let needed = Needed::of(&site.disk, &site.log(LogKind::Cuts), cuts_from)?;
        let inputs = tidemill_log::read(site.disk.clone(), &log, input_from)?;
        for record in inputs.needing(needed.records) {
            let record = record?;
            if record.kind == records::VERDICT {
                verdicts.push(records::take_verdict(&record.bytes)?);
            }
        }
        let partitions = partitions(program, self.basis.decls, env, &Troubles::default())?;
        let mut begins = StartPositions::read(&*site.disk, &site.path)?;
        let same = partitions.len() == program.sources.len()
            && partitions.iter().zip(&program.sources).all(|(p, s)| p.spec.name == s.name);
        if !same {
            return Err(Error::input("the files of the sources have changed")
                .help("restore them; a query as of a snapshot's epoch does not need them"));
        }
        let failed = FailedList::default();
        let mut readings = Vec::new();
        for (index, partition) in partitions.into_iter().enumerate() {
            let id = SourceId(index as u32);
            let stream = &program.streams[partition.stream.index()].spec;
            let facts = self.facts.sources.get(index);
            let next_offset = facts.map_or(0, |f| f.next_offset);
            let is_push = matches!(partition.source, Reader::Pushed(_));
            let source: Box<dyn Source> = match partition.source {
                Reader::Pushed(mut push) => {
                    if let Some(facts) = facts {
                        push.resume(&facts.place)?;
                    }
                    let records = tidemill_log::read(site.disk.clone(), &log, input_from)?;
                    push.replay(Box::new(rows_of(
                        records,
                        id,
                        stream.schema.clone(),
                        next_offset,
                    )))?;
                    Box::new(push)
                }
                Reader::Read(mut source) => {
                    source.resume(&match facts.filter(|facts| facts.place.offset > 0) {
                        None => begins.source(&partition.spec.name, source.place()),
                        Some(facts) => facts.place.clone(),
                    })?;
                    source
                }
            };
            readings.push(Reading {
                id,
                source,
                is_push,
                time: match stream.time {
                    StreamTime::Event { column } => Some(column),
                    StreamTime::Arrival => None,
                },
                newest: Newest::after(
                    facts.and_then(|f| f.time_max),
                    partition.spec.out_of_orderness_us,
                ),
                late: Vec::new(),
                next_offset,
                branches: branches(program, partition.stream, &failed)?,
            });
        }
        let mut serial = Serial::new(program.clone(), 0);
        let mut outlets = Outlets::of(program);
        let sequencer = match &self.manifest {
            None => Sequencer::new(program.clone())?,
            Some(_) => {
                serial = serial.after(self.facts.seq);
                outlets.resume(&self.facts.outlets);
                let buffered = std::mem::take(&mut self.buffered);
                let internal = Internal { facts: self.facts.clone(), buffered, rings: Vec::new() };
                Sequencer::restore(program.clone(), internal.sequencer())?
            }
        };
        let groups = Groups::of(program)?;
        Ok(Works { readings, sequencer, groups, serial, outlets, verdicts, failed })
    }

    /// Replays a cut, and compares its results with the record.
    fn make(&mut self, record: CutRecord) -> Result<()> {
        let mut works = match self.works.take() {
            Some(works) => works,
            None => self.begin()?,
        };
        let program = self.basis.program;
        let CutRecord { cut, output_hash, places, .. } = record;
        let (mut runs, mut bad) = (Vec::new(), Vec::new());
        for (reading, wanted) in works.readings.iter_mut().zip(&cut.offsets) {
            reading.read_to(*wanted, &mut runs, &mut bad, &*self.basis.env.clock)?;
            let recorded = places.iter().find(|(source, _)| *source == reading.id);
            if let (false, Some((_, place))) = (reading.is_push, recorded) {
                let name = &program.sources[reading.id.index()].name;
                reading.source.place().check(name, place)?;
            }
        }
        let input = CutInput {
            runs,
            offsets: cut.offsets.clone(),
            times_max: works.readings.iter().map(|r| r.newest.us()).collect(),
            late: works.readings.iter_mut().flat_map(Reading::late).collect(),
            clock_us: cut.clock_us,
            idle: cut.idle.clone(),
            ended: cut.ended.clone(),
            watermarks_max: Some(cut.watermarks.clone()),
        };
        let other = |what: &str| {
            Error::internal(format!("epoch {} was replayed, and {what}", cut.epoch))
                .help("the input has changed: restore the files")
        };
        let sequenced = works.sequencer.cut(&SingleThread, input)?;
        if sequenced.cut != cut {
            return Err(other("the cut differs from the recorded one"));
        }
        let (mut epoch, late) = (sequenced.epoch, sequenced.late);
        let undecoded = bad.len();
        quarantine::set_aside(&works.verdicts, cut.epoch, &mut epoch, &mut bad);
        let outcome = works.serial.run(&mut self.tables, &epoch)?;
        let frontiers_us = works.groups.frontiers_us(&cut.watermarks, cut.clock_us);
        for (table, frontier_us) in self.tables.iter_mut().zip(frontiers_us) {
            table.frontier(frontier_us);
            table.commit(outcome.seq);
        }
        let dead = quarantine::dead(program, &works.failed, &cut.offsets, bad);
        let dead_rows = dead.iter().map(|(_, batch)| batch.len()).sum();
        self.facts.counts.add(program, &epoch, &outcome, &late, undecoded, dead_rows);
        self.facts.counts.buffered = works.sequencer.buffered_rows() as u64;
        let outputs = outcome
            .outputs
            .into_iter()
            .map(|output| (program.streams[output.stream.index()].spec.name.clone(), output.batch));
        for (stream, batch) in
            dead.into_iter().chain(quarantine::late(program, late)).chain(outputs)
        {
            works.outlets.count(&stream, &batch);
            self.rings.push(&stream, &batch);
        }
        if works.outlets.hash() != output_hash {
            return Err(other("its outputs differ from the recorded ones"));
        }
        (self.facts.epoch, self.facts.clock_us) = (cut.epoch, cut.clock_us);
        let bytes: usize = self.tables.iter().map(Table::bytes).sum();
        let max = self.basis.settings.memory_bytes_max;
        if bytes + works.sequencer.buffered_bytes() > max {
            return Err(Error::resource(format!(
                "the tables as of epoch {} take more than memory_bytes_max ({max})",
                cut.epoch
            )));
        }
        self.works = Some(works);
        Ok(())
    }
}

impl Reading {
    /// Returns the late rows since the last call.
    fn late(&mut self) -> impl Iterator<Item = (SourceId, LateRow)> + use<> {
        let id = self.id;
        std::mem::take(&mut self.late).into_iter().map(move |row| (id, row))
    }

    /// Reads up to an offset, through all stages.
    fn read_to(
        &mut self,
        wanted: u64,
        runs: &mut Vec<Run>,
        bad: &mut Vec<(SourceId, Bad)>,
        clock: &dyn Clock,
    ) -> Result<()> {
        let mut pending = 0;
        while self.next_offset < wanted {
            let rows_max = (wanted - self.next_offset).min(ROWS_MAX);
            let chunk = match self.source.poll(rows_max as usize)? {
                Polled::Rows(chunk) => chunk,
                // A followed folder may need more than one check, and a broker needs time.
                Polled::Pending if pending < PENDING_MAX => {
                    pending += 1;
                    if pending > LOOKS {
                        clock.sleep_us(PENDING_US);
                    }
                    continue;
                }
                Polled::Pending | Polled::End => {
                    return Err(Error::input(format!(
                        "a source ends at row {}, and rows up to {wanted} were read before",
                        self.next_offset
                    ))
                    .help("restore its input"));
                }
            };
            pending = 0;
            let times = crate::feed::times(&chunk.batch, self.time)?;
            if self.time.is_some() {
                self.late.extend(self.newest.take_all(&chunk.offsets, &times));
            }
            self.next_offset = chunk.next_offset;
            bad.extend(chunk.bad.into_iter().map(|b| {
                let (offset, origin, line) = (b.offset, b.origin, b.line);
                (self.id, Bad { offset, origin, line, raw: b.raw, reason: b.reason })
            }));
            for branch in &self.branches {
                let mut parcel = Parcel {
                    source: self.id,
                    stream: branch.stream,
                    batch: chunk.batch.clone(),
                    offsets: chunk.offsets.clone(),
                    times: times.clone(),
                };
                for stage in &branch.stages {
                    parcel = match stage {
                        Stage::Map(transform) | Stage::Filter(transform) => {
                            transform.apply(parcel)?
                        }
                    };
                }
                let Parcel { source, stream, batch, offsets, times } = parcel;
                runs.push(Run { stream, source, batch, offsets, times, admitted: None });
            }
        }
        Ok(())
    }
}
