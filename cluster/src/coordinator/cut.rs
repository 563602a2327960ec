//! Making cuts and snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_function::Fault;

use super::available::Available;
use super::{Coordinator, SourceProgress, Stage, Wish};
use crate::effect::{Effect, Packet, Piece, Span};
use crate::event_time::{EventTime, LateEvent, ENDED_US};
use crate::records::{
    CutRecord, Form, Left, Manifest, Member, Object, Parked, Record, Times, Topic, Waiting,
};
use crate::Settings;

/// For such a part of a lease a snapshot is waited for that is not begun.
const IDLE: u64 = 4;

/// A snapshot that is being taken.
struct Taking {
    cut: Arc<CutRecord>,
    /// Where its cut is in the log.
    cut_at: u64,
    /// Of each member its object, and how many rows are in it.
    parts: BTreeMap<Member, (String, u64)>,
    outputs: Vec<u64>,
    /// For each source the first record that it needs, and where what waits of each event source begins.
    parked: Vec<u64>,
    waiting: Vec<Waiting>,
    /// How many events have come too late, where later cuts know.
    late: Option<u64>,
    all: bool,
    /// Whether its manifest is on its way.
    is_put: bool,
}

/// How many rows are in a snapshot: those of its whole part, and those that have changed since then, as often
/// as they have.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    whole: u64,
    since: u64,
}

impl Rows {
    /// Whether to read what has changed takes longer than to read the rest: then the next snapshot is a whole one.
    fn is_mostly_changes(self) -> bool {
        self.since > 2 * self.whole
    }
}

/// A generation that executes.
pub(super) struct Running {
    pub form: Arc<Form>,
    pub since_us: u64,
    /// The last cut that was made, and the last durable one.
    pub epoch: u64,
    durable: u64,
    clock_us: i64,
    /// When that cut was made, by the clock that is never set; or since when it is known.
    cut_us: u64,
    base: u64,
    /// For each source what can be read.
    pub available: Vec<Available>,
    event_time: Arc<EventTime>,
    /// How far event time has come at the last cut.
    pub times: Times,
    /// When each event source has given something last.
    active_us: Vec<u64>,
    /// What waits at each member for its watermark.
    pub parked: BTreeMap<Member, Parked>,
    /// By member up to which epoch it has executed, and how many rows ask for work outside there.
    pub outside: BTreeMap<Member, (u64, u64)>,
    /// The base behind all that was recorded when it began.
    recorded: u64,
    /// The last epoch that each member has executed.
    pub executed: BTreeMap<Member, u64>,
    /// Behind which requests each member has nothing more to append, and where all of that is.
    pub left: BTreeMap<Member, (u64, Vec<u64>)>,
    taking: Option<Taking>,
    /// When the last snapshot was begun.
    taken_us: u64,
    /// Since when somebody waits to come in, or to end.
    planned_us: Option<u64>,
}

impl Running {
    /// Goes on behind the recorded cuts.
    pub fn new(
        form: Arc<Form>,
        cuts: &[Arc<CutRecord>],
        mut available: Vec<Available>,
        now_us: u64,
        settings: &Settings,
    ) -> Running {
        let manifest = form.manifest.clone();
        let last = cuts.last();
        let event_time = settings.event_time.clone();
        let times = last.map_or(&manifest.times, |cut| &cut.times);
        let has_begun = !times.watermarks.is_empty();
        let mut times = if has_begun { times.clone() } else { event_time.begin() };
        let epoch = last.map_or(manifest.epoch, |cut| cut.epoch);
        let upto = last.map_or(&manifest.inputs, |cut| &cut.upto);
        available.iter_mut().zip(upto).for_each(|(available, upto)| available.skip(*upto));
        let goes_on = |event_source: &u32| {
            let source = event_time.sources()[*event_source as usize].source;
            let has_more =
                |(of, from): &(u32, u64)| *of == source && upto[source as usize] <= *from;
            settings.goes_on.iter().any(has_more)
        };
        times.ended.retain(|event_source| !goes_on(event_source));
        Running {
            since_us: now_us,
            epoch,
            durable: epoch,
            clock_us: last.map_or(manifest.clock_us, |cut| cut.clock_us),
            cut_us: now_us,
            base: last.map_or(manifest.base, |cut| cut.next_base()),
            recorded: last.map_or(manifest.base, |cut| cut.next_base()),
            available,
            times: Times { idle: Vec::new(), ..times },
            active_us: vec![now_us; event_time.sources().len()],
            event_time,
            parked: BTreeMap::new(),
            outside: BTreeMap::new(),
            executed: BTreeMap::new(),
            left: BTreeMap::new(),
            taking: None,
            taken_us: now_us,
            planned_us: None,
            form,
        }
    }
}

impl Running {
    /// Whether all members have executed something together.
    pub fn has_executed(&self) -> bool {
        let began = self.form.manifest.epoch;
        let has = |member| self.executed.get(member).is_some_and(|epoch| *epoch > began);
        self.form.assignment.members.iter().all(has)
    }

    /// Of which epochs all has left, once all members have said how far they are.
    pub fn left(&self) -> Option<Left> {
        let Form { generation, assignment, manifest } = &*self.form;
        let of = |member| self.left.get(member);
        let all: Option<Vec<_>> = assignment.members.iter().map(of).collect();
        let all = all?;
        let base = all.iter().map(|(base, _)| *base).min()?;
        let mut ends = vec![0; manifest.outputs.len()];
        for (_, of) in all {
            ends.iter_mut().zip(of).for_each(|(end, of)| *end = (*end).max(*of));
        }
        let (recorded, written) = (self.recorded, manifest.written.clone());
        Some(Left { generation: *generation, base, ends, recorded, written })
    }

    /// How many events have come too late.
    pub fn late(&self) -> u64 {
        self.times.late + self.parked().late
    }

    /// How many rows ask for work outside at all members, once all have executed the last cut.
    pub fn outside(&self) -> Option<u64> {
        let of = |member| {
            let (epoch, rows) = self.outside.get(member)?;
            (*epoch == self.epoch).then_some(*rows)
        };
        self.form.assignment.members.iter().map(of).sum()
    }

    /// What waits for its watermark, of all members together.
    pub fn parked(&self) -> Parked {
        self.parked.values().copied().sum()
    }

    /// The event sources that have given nothing for too long to hold the watermark back. One of which something waits
    /// to be taken is none of them.
    fn idle(&self, now_us: u64) -> Vec<u32> {
        let is_idle = |(nth, active_us): &(u32, &u64)| {
            let source = &self.event_time.sources()[*nth as usize];
            let silent_us = now_us.saturating_sub(**active_us);
            let is_silent = source.idle_us.is_some_and(|us| silent_us >= us.unsigned_abs());
            is_silent && self.available[source.source as usize].is_empty()
        };
        (0..).zip(&self.active_us).filter(is_idle).map(|(nth, _)| nth).collect()
    }

    /// Whether somebody falls silent for whom others wait: then the watermark goes on without any input.
    fn falls_idle(&self, now_us: u64) -> bool {
        let is_new = |nth: &u32| !self.times.idle.contains(nth);
        !self.event_time.is_empty()
            && self.parked().events > 0
            && self.idle(now_us).iter().any(is_new)
    }

    /// For each source whether no more events in event time are taken of it: where too many wait, of all but those that
    /// others wait for.
    fn paused(&self, parked_bytes_max: u64) -> Vec<bool> {
        if self.parked().bytes <= parked_bytes_max {
            return vec![false; self.available.len()];
        }
        let upto: Vec<u64> = self.available.iter().map(Available::upto).collect();
        // One that was silent at the last cut, and is not any more, may be the one that others wait for.
        let mut times = self.times.clone();
        let sources = self.event_time.sources();
        let is_silent =
            |nth: &u32| self.available[sources[*nth as usize].source as usize].is_empty();
        times.idle.retain(is_silent);
        self.event_time.are_behind(&times, &upto).into_iter().map(|is| !is).collect()
    }

    /// An event that comes next, too late, where that is an error.
    fn late_event(&self) -> Option<LateEvent> {
        let of = |(source, available): (u32, &Available)| {
            let (from, piece) = available.first()?;
            self.event_time.refused(&self.times.watermarks, source, from, piece)
        };
        (0..).zip(&self.available).find_map(of)
    }

    /// For each source how far it has come.
    pub fn sources(&self, settings: &Settings) -> Vec<SourceProgress> {
        let assignment = &self.form.assignment;
        let of = |(source, available): (u32, &Available)| {
            let reader = assignment.members[usize::from(assignment.reader(source, settings).0)];
            let (taken, waiting) = (available.taken(), available.requests());
            SourceProgress { reader, cut: available.upto(), taken, waiting }
        };
        (0..).zip(&self.available).map(of).collect()
    }
}

/// A clock that can't be right, or could not be when the last cut was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongClock {
    /// It is far ahead of the last cut's, which was made at `last_us`: no cut is made.
    Ahead {
        /// In microseconds since 1970.
        last_us: i64,
    },
    /// It is behind it.
    Behind {
        /// In microseconds since 1970.
        last_us: i64,
    },
}

/// A clock that is so far behind the last cut's is wrong, or that one's was.
const BEHIND_US: i64 = 60_000_000;

impl WrongClock {
    /// What is wrong with a clock beside that of the last cut, 0 where there is none: it may be ahead by the time that has
    /// gone by since that cut was made, and by so much.
    pub fn of(clock_us: i64, last_us: i64, passed_us: u64, jump_us_max: i64) -> Option<WrongClock> {
        let passed_us = i64::try_from(passed_us).unwrap_or(i64::MAX);
        match clock_us.saturating_sub(last_us) {
            _ if last_us == 0 => None,
            by_us if by_us > jump_us_max.saturating_add(passed_us) => {
                Some(WrongClock::Ahead { last_us })
            }
            by_us if by_us < -BEHIND_US => Some(WrongClock::Behind { last_us }),
            _ => None,
        }
    }
}

impl Running {
    /// What is wrong with a clock beside that of the last cut.
    pub fn wrong_clock(&self, clock_us: i64, now_us: u64, jump_us_max: i64) -> Option<WrongClock> {
        WrongClock::of(clock_us, self.clock_us, now_us.saturating_sub(self.cut_us), jump_us_max)
    }
}

impl Coordinator {
    /// Makes a cut when all have executed the one before, that one is durable, and there is something to
    /// execute. One at a time is on its way to the log: were the first of two lost and the second not, there
    /// would be a gap.
    pub(super) fn try_cut(&mut self, effects: &mut Vec<Effect>) {
        let Settings { epoch_max, snapshot_every, snapshot_us, objects_max, .. } = self.settings;
        let parked_bytes_max = self.settings.parked_bytes_max;
        let clock_jump_us_max = self.settings.clock_jump_us_max;
        let (now_us, clock_us) = (self.now_us, self.clock_us);
        let (manifest, rows) = (self.manifest.clone(), self.rows);
        let counts_records = self.is_spoiled_by(Fault::CountRecords);
        let forgets_idle = self.is_spoiled_by(Fault::ForgetIdle);
        let forgets_end = self.is_spoiled_by(Fault::ForgetEnd);
        let pauses_all = self.is_spoiled_by(Fault::PauseAll);
        let Stage::Running(running) = &mut self.stage else { return };
        if self.late_event.is_none() {
            // What was executed before it is to be in a snapshot, from which another version can go on.
            self.late_event = running.late_event();
            self.is_ending |= self.late_event.is_some();
        }
        let is_ending = self.is_ending;
        let is_ahead = running.wrong_clock(clock_us, now_us, clock_jump_us_max)
            == Some(WrongClock::Ahead { last_us: running.clock_us });
        if is_ahead && !is_ending {
            return;
        }
        let Running { form, epoch, durable, executed, .. } = &**running;
        let is_idle =
            |member| executed.get(member).copied().unwrap_or(form.manifest.epoch) == *epoch;
        if epoch > durable || !form.assignment.members.iter().all(is_idle) {
            return;
        }
        let mut paused = running.paused(parked_bytes_max);
        if pauses_all && paused.contains(&true) {
            paused.fill(true);
        }
        let has_some = |(available, paused): (&Available, &bool)| available.has_some(*paused);
        let is_new = running.available.iter().zip(&paused).any(has_some)
            || (running.falls_idle(now_us) && !forgets_idle);
        match is_ending {
            // The last cut is the one with the snapshot, whether there is something new or not.
            true if running.taking.is_some() || *epoch == manifest.epoch => return,
            false if !is_new => return,
            _ => {}
        }
        let ends = |of: &[Available]| of.iter().map(Available::upto).collect::<Vec<u64>>();
        let from = ends(&running.available);
        let mut given = Vec::new();
        let Running { event_time, times, available, .. } = &mut **running;
        let mut counts = Vec::new();
        for ((source, available), paused) in (0..).zip(available).zip(paused) {
            let is_refused = |from: u64, piece: &Piece| {
                event_time.refused(&times.watermarks, source, from, piece).is_some()
            };
            counts.push(available.take(epoch_max, paused, &is_refused, &mut given));
        }
        let upto = ends(&running.available);
        let mut count = counts.iter().copied().max().unwrap_or(0);
        if !running.event_time.is_empty() {
            // Which of those that wait are executed only their readers know.
            count = counts.iter().sum::<u64>() + running.parked().events;
            given.retain(|span| span.newest_us != ENDED_US || !forgets_end);
            for Span { event_source, newest_us, .. } in given {
                let Times { newest, ended, .. } = &mut running.times;
                let of = newest.iter_mut().zip(&mut running.active_us).nth(event_source as usize);
                let Some((newest, active_us)) = of else { continue };
                *active_us = now_us;
                ended.retain(|of| *of != event_source);
                match newest_us {
                    ENDED_US => ended.push(event_source),
                    _ => *newest = (*newest).max(Some(newest_us)),
                }
            }
            running.times.idle = if forgets_idle { Vec::new() } else { running.idle(now_us) };
            running.event_time.advance(&mut running.times, &upto);
            running.times.late = running.late();
            running.parked.values_mut().for_each(|parked| parked.late = 0);
            if let Some(taking) = &mut running.taking {
                taking.late.get_or_insert(running.times.late);
            }
        }
        if counts_records {
            count = upto.iter().zip(&from).map(|(upto, from)| upto - from).max().unwrap_or(0);
        }
        running.epoch += 1;
        // A wrong clock does not keep it from its end.
        let clock_us = if is_ahead { i64::MIN } else { clock_us };
        (running.clock_us, running.cut_us) = (clock_us.max(running.clock_us + 1), now_us);
        let (epoch, clock_us, base) = (running.epoch, running.clock_us, running.base);
        let times = running.times.clone();
        let cut = Arc::new(CutRecord { epoch, clock_us, base, count, from, upto, times });
        running.base = cut.next_base();
        let mut snapshot = None;
        let is_due = now_us >= running.taken_us + snapshot_us;
        let is_wanted = is_ending
            || running.planned_us.is_some()
            || (epoch.is_multiple_of(snapshot_every) && is_due);
        if running.taking.is_none() && is_wanted {
            running.taken_us = now_us;
            let objects = manifest.objects.len() + running.form.assignment.members.len();
            let all = objects > objects_max || rows.is_some_and(Rows::is_mostly_changes);
            let (parts, outputs) = (BTreeMap::new(), manifest.outputs.clone());
            let cut = cut.clone();
            let has_times = !running.event_time.is_empty();
            let parked = if has_times { cut.upto.clone() } else { Vec::new() };
            let (waiting, cut_at, late, is_put) = (Vec::new(), 0, None, false);
            let taking = Taking { cut, cut_at, parts, outputs, parked, waiting, late, all, is_put };
            running.taking = Some(taking);
            snapshot = Some(all);
        }
        let generation = running.form.generation;
        let record = Record::Cut((*cut).clone());
        // It is executed while it becomes durable.
        self.tell(&Packet::Cut { generation, cut, snapshot }, effects);
        self.append(Wish::Cut(epoch), Topic::Cuts, record, effects);
    }

    /// What was executed up to here may leave.
    pub(super) fn cut_durable(&mut self, epoch: u64, offset: u64, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        if let Some(taking) = running.taking.as_mut().filter(|t| t.cut.epoch == epoch) {
            taking.cut_at = offset;
        }
        running.durable = running.durable.max(epoch);
        let (generation, epoch) = (running.form.generation, running.durable);
        self.tell(&Packet::Durable { generation, epoch }, effects);
        self.try_manifest(effects);
        self.try_cut(effects);
    }

    /// A member's part of a snapshot is stored, or could not be.
    pub(super) fn part(
        &mut self,
        member: Member,
        epoch: u64,
        part: Option<(String, u64)>,
        (outputs, waiting): (&[u64], &[Waiting]),
        effects: &mut Vec<Effect>,
    ) {
        let trims = self.is_spoiled_by(Fault::TrimParked);
        let Stage::Running(running) = &mut self.stage else { return };
        let Some(taking) = running.taking.as_mut().filter(|t| t.cut.epoch == epoch) else { return };
        let Some(part) = part else { return self.give_up(epoch, effects) };
        taking.parts.insert(member, part);
        taking.waiting.extend(waiting);
        for Waiting { event_source, record, .. } in waiting.iter().filter(|_| !trims) {
            let source = running.event_time.sources().get(*event_source as usize);
            let needed = source.and_then(|of| taking.parked.get_mut(of.source as usize));
            if let Some(needed) = needed {
                *needed = (*needed).min(*record);
            }
        }
        for (end, more) in taking.outputs.iter_mut().zip(outputs) {
            *end = (*end).max(*more);
        }
        self.try_manifest(effects);
    }

    /// Puts the manifest, once all parts are stored and the cut is durable.
    fn try_manifest(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let Some(taking) = running.taking.as_mut() else { return };
        let epoch = taking.cut.epoch;
        let is_whole = taking.parts.len() == running.form.assignment.members.len();
        if !is_whole || epoch > running.durable || std::mem::replace(&mut taking.is_put, true) {
            return;
        }
        let late = taking.late;
        let times = taking.cut.times.clone();
        let times = Times { late: late.unwrap_or_else(|| running.late()), ..times };
        let Some(taking) = &running.taking else { return };
        let written = self.written.as_ref().unwrap_or(&self.manifest.written).clone();
        let mut objects = if taking.all { Vec::new() } else { self.manifest.objects.clone() };
        objects.extend(taking.parts.values().map(|(name, _)| name.clone()));
        let manifest = Arc::new(Manifest {
            program: self.settings.program,
            generation: running.form.generation,
            epoch,
            clock_us: taking.cut.clock_us,
            base: taking.cut.next_base(),
            inputs: taking.cut.upto.clone(),
            parked: taking.parked.clone(),
            waiting: Some(taking.waiting.clone()),
            times,
            outputs: taking.outputs.clone(),
            objects,
            written,
        });
        let name = manifest.name();
        let token = self.token(Wish::Manifest(manifest.clone()));
        effects.push(Effect::Put { token, name, object: Object::Manifest(manifest) });
    }

    /// The manifest is stored, or could not be; it counts when the log names it.
    pub(super) fn manifest_put(
        &mut self,
        manifest: Arc<Manifest>,
        is_stored: bool,
        effects: &mut Vec<Effect>,
    ) {
        if !is_stored {
            return self.give_up(manifest.epoch, effects);
        }
        let (wish, record) = (Wish::Snapshot(manifest.clone()), Record::Snapshot(manifest));
        self.append(wish, Topic::Cuts, record, effects);
    }

    /// The log names the snapshot.
    pub(super) fn snapshot_counts(&mut self, manifest: Arc<Manifest>, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let taken = running.taking.take();
        if let Some(Taking { parts, all, .. }) = &taken {
            let rows = parts.values().map(|(_, rows)| rows).sum::<u64>();
            // The first one has all that there is.
            match (*all || self.manifest.objects.is_empty(), &mut self.rows) {
                (true, of) => *of = Some(Rows { whole: rows, since: 0 }),
                (false, Some(of)) => of.since += rows,
                (false, None) => {}
            }
        }
        // Later cuts may be before the snapshot's record.
        let cuts = taken.map_or(0, |taking| taking.cut_at);
        effects.push(Effect::Release { manifest: manifest.clone(), cuts });
        let (generation, epoch) = (running.form.generation, manifest.epoch);
        self.cuts.retain(|cut| cut.epoch > epoch);
        self.manifest = manifest;
        let is_planned = running.planned_us.is_some();
        self.tell(&Packet::Snapshot { generation, epoch, counts: true }, effects);
        if self.is_ending {
            return self.try_end(effects);
        }
        match is_planned {
            true => self.begin(effects),
            // So that there is little to read when the next generation begins.
            false => self.read_on(effects),
        }
    }

    /// Somebody waits to come in, or to end. Nobody is lost, so the next generation can wait for a snapshot:
    /// then there is little to execute again, and clients hardly notice.
    pub(super) fn plan(&mut self, is_wanted: bool, effects: &mut Vec<Effect>) {
        let (now_us, lease_us) = (self.now_us, self.settings.lease_us);
        let snapshot = self.manifest.epoch;
        let Stage::Running(running) = &mut self.stage else { return };
        if !is_wanted {
            running.planned_us = None;
            return self.try_cut(effects);
        }
        let since_us = *running.planned_us.get_or_insert(now_us);
        // A snapshot is begun with a cut. Where nothing is asked there is none, and where the store is slow or
        // away it does not count soon.
        let patience_us = if running.taking.is_some() { lease_us } else { lease_us / IDLE };
        match running.epoch == snapshot || now_us > since_us + patience_us {
            true => self.begin(effects),
            false => self.try_cut(effects),
        }
    }

    /// Ends, if all that was executed is in the snapshot, or nobody is there who could take one.
    pub(super) fn try_end(&mut self, effects: &mut Vec<Effect>) {
        let may_end = match &self.stage {
            Stage::Running(running) => {
                running.taking.is_none()
                    && running.epoch == running.durable
                    && running.epoch == self.manifest.epoch
                    // Somebody writes what leaves, all of it.
                    && self.has_left(running)
            }
            _ => self.has_read && self.seen.is_empty(),
        };
        match may_end {
            true => effects.push(Effect::End),
            false => self.try_cut(effects),
        }
    }

    fn give_up(&mut self, epoch: u64, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        running.taking = None;
        let (generation, is_planned) = (running.form.generation, running.planned_us.is_some());
        self.tell(&Packet::Snapshot { generation, epoch, counts: false }, effects);
        if is_planned {
            self.begin(effects);
        }
    }
}
