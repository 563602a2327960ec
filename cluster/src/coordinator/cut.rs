//! Making cuts and snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_function::{Counts, Fault, Tid};

use super::available::{Available, Kind};
use super::choice::Choice;
use super::deaths::Trials;
use super::faults::Stops;
use super::merge::Merging;
use super::{Coordinator, Pending, SourceProgress, Stage};
use crate::effect::{CutPlan, Effect, Packet, Piece, Span, StoredPart};
use crate::event_time::{EventTime, LateEvent, ENDED_US};
use crate::records::{
    Buffered, CutRecord, Form, Left, Manifest, Member, Record, Times, Topic, Waiting,
};
use crate::Settings;

/// The maximum number of cuts that members have not executed when the next one is made.
const CUTS_AHEAD_MAX: u64 = 1;
/// The maximum number of cuts that are not durable when the next one is made.
const CUTS_OPEN_MAX: u64 = 4;

/// A lease divided by this is the wait for a snapshot that has not begun.
const IDLE: u64 = 4;
/// How often that time doubles at most.
const GIVEN_UP_MAX: u32 = 6;

/// While calls wait, an epoch of events by column has this part of its usual length.
const SHORTER: u64 = 4;

/// Returns the most requests of a source in an epoch of a kind.
fn most(kind: Kind, calls_wait: bool, (epoch_max, columns_max): (u64, u64)) -> u64 {
    match kind {
        Kind::Calls => epoch_max,
        Kind::Columns if calls_wait => (columns_max / SHORTER).max(epoch_max).min(columns_max),
        Kind::Columns => columns_max,
    }
}

/// A snapshot that is being taken.
struct Taking {
    cut: Arc<CutRecord>,
    /// The offset of its cut in the log.
    cut_at: u64,
    /// The part of each member.
    parts: BTreeMap<Member, StoredPart>,
    outputs: Vec<u64>,
    /// The first record of each source that it needs, and where the buffered events of each event
    /// source begin.
    buffered: Vec<u64>,
    waiting: Vec<Waiting>,
    /// The number of late events, if a later cut knows it.
    late: Option<u64>,
    /// The counts of transactions, once all members have executed it.
    counts: Option<Arc<Counts>>,
    /// Whether its manifest is being stored.
    is_put: bool,
}

/// A generation that executes.
pub(super) struct Running {
    pub form: Arc<Form>,
    pub since_us: u64,
    /// The last cut that was made, and the last durable one.
    pub epoch: u64,
    pub durable: u64,
    clock_us: i64,
    /// The monotonic time when that cut was made, or became known.
    cut_us: u64,
    base: u64,
    /// The requests of each source that can be read.
    pub available: Vec<Available>,
    event_time: Arc<EventTime>,
    /// The progress of event time at the last cut.
    pub times: Times,
    /// The time when each event source delivered its last event.
    active_us: Vec<u64>,
    /// The buffered events of each member.
    pub buffered: BTreeMap<Member, Buffered>,
    /// The epoch that each member has executed, and the number of its rows that ask for work
    /// outside.
    pub outside: BTreeMap<Member, (u64, u64)>,
    /// The base after all that was recorded when it began.
    recorded: u64,
    /// The last epoch that each member has executed.
    pub executed: BTreeMap<Member, u64>,
    /// The counts of transactions since the beginning, up to the last epoch that all members have
    /// executed, and those of later epochs that some have executed.
    pub counts: Arc<Counts>,
    later_counts: BTreeMap<u64, Counts>,
    /// The base up to which each member has nothing more to append, and the ends of its outputs.
    pub left: BTreeMap<Member, (u64, Vec<u64>)>,
    choice: Choice,
    pub stops: Stops,
    pub trials: Trials,
    /// The kind of the requests in the last cut.
    last_kind: Kind,
    taking: Option<Taking>,
    pub merging: Merging,
    /// The time when the last snapshot was begun.
    taken_us: u64,
    /// The time since which a worker waits to join or to end.
    planned_us: Option<u64>,
    /// The number of snapshots that have been given up since the last one that counts.
    given_up: u32,
}

impl Running {
    /// Creates a generation that continues after the recorded cuts.
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
            settings.resumed.iter().any(has_more)
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
            buffered: BTreeMap::new(),
            outside: BTreeMap::new(),
            executed: BTreeMap::new(),
            counts: manifest.counts.clone(),
            later_counts: BTreeMap::new(),
            left: BTreeMap::new(),
            choice: Choice::new(settings.alternates),
            stops: Stops::of(settings, cuts),
            trials: Trials::default(),
            last_kind: Kind::Columns,
            taking: None,
            merging: Merging::of(&form.manifest),
            taken_us: now_us,
            planned_us: None,
            given_up: 0,
            form,
        }
    }
}

impl Running {
    /// Has the next cut begin at this place, or at a later one.
    pub fn begins_at(&mut self, base: u64) {
        self.base = self.base.max(base);
    }

    /// Returns the base of the next cut.
    pub fn next_base(&self) -> u64 {
        self.base
    }

    /// Whether all members have executed an epoch together.
    pub fn has_executed(&self) -> bool {
        let began = self.form.manifest.epoch;
        let has = |member| self.executed.get(member).is_some_and(|epoch| *epoch > began);
        self.form.assignment.members.iter().all(has)
    }

    /// Returns the epochs whose outputs have left completely, once all members have reported.
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

    /// Notes that a member has executed an epoch, with these counts and this fault. If the report of the epoch before
    /// was lost with its connection, the next generation executes both. Returns the place after the
    /// transactions that all members have executed since the last report.
    pub fn has_counted(
        &mut self,
        member: Member,
        epoch: u64,
        (counts, fault): (&Counts, Option<(Tid, Fault)>),
        now_us: u64,
    ) -> u64 {
        let executed = self.executed.entry(member).or_insert(self.form.manifest.epoch);
        if epoch != *executed + 1 {
            return 0;
        }
        *executed = epoch;
        self.choice.executed(self.executed_by_all(), now_us);
        self.later_counts.entry(epoch).or_default().add(counts);
        self.stops.note(epoch, fault);
        let all = self.executed_by_all();
        self.stops.all_executed(all);
        let counted = all.min(self.stops.before());
        while let Some(first) = self.later_counts.first_entry().filter(|of| *of.key() <= counted) {
            let (epoch, counts) = first.remove_entry();
            Arc::make_mut(&mut self.counts).add(&counts);
            if let Some(taking) = self.taking.as_mut().filter(|of| of.cut.epoch == epoch) {
                taking.counts = Some(self.counts.clone());
            }
        }
        self.trials.all_executed(all)
    }

    /// Returns the last epoch that all members have executed.
    pub fn executed_by_all(&self) -> u64 {
        let began = self.form.manifest.epoch;
        let of = |member| self.executed.get(member).copied().unwrap_or(began);
        self.form.assignment.members.iter().map(of).min().unwrap_or(began)
    }

    /// Whether the last snapshot was begun so long ago.
    fn is_due(&self, now_us: u64, apart_us: u64) -> bool {
        now_us >= self.taken_us.saturating_add(apart_us)
    }

    /// The factor of the time to the next snapshot while the store is away and no requests come.
    fn patience(&self) -> u64 {
        1 << self.given_up.min(GIVEN_UP_MAX)
    }

    /// Whether an epoch may be cut before the one before has been executed, so that members need not
    /// wait for it: it would be a full one. Watermarks depend on what was executed.
    fn is_full(&self, epoch_max: u64, columns_max: u64) -> bool {
        let (kind, calls_wait) = self.next_kind(epoch_max, |_| false);
        let most = most(kind, calls_wait, (epoch_max, columns_max));
        self.event_time.is_empty() && self.available.iter().any(|of| of.requests() >= most)
    }

    /// Returns the kind of the next epoch, and whether calls wait. If a source has calls, and one has
    /// many events by column first, the kinds take turns. Few events go with the calls. `is_paused`
    /// says of which sources no events in event time are taken.
    fn next_kind(&self, few: u64, is_paused: impl Fn(usize) -> bool) -> (Kind, bool) {
        let (mut calls, mut many) = (false, false);
        for (source, available) in self.available.iter().enumerate() {
            if available.has_some(is_paused(source)) {
                let (has_calls, has_many) = available.first_kinds(few);
                (calls, many) = (calls || has_calls, many || has_many);
            }
        }
        let kind = match (calls, many) {
            (true, true) if self.last_kind == Kind::Calls => Kind::Columns,
            (true, _) => Kind::Calls,
            (false, _) => Kind::Columns,
        };
        (kind, calls)
    }

    /// Returns the number of late events.
    pub fn late(&self) -> u64 {
        self.times.late + self.buffered().late
    }

    /// Returns the number of rows that ask for work outside at all members, once all have executed
    /// the last cut.
    pub fn outside(&self) -> Option<u64> {
        let of = |member| {
            let (epoch, rows) = self.outside.get(member)?;
            (*epoch == self.epoch).then_some(*rows)
        };
        self.form.assignment.members.iter().map(of).sum()
    }

    /// Returns the buffered events of all members together.
    pub fn buffered(&self) -> Buffered {
        self.buffered.values().copied().sum()
    }

    /// Returns the event sources that have been silent for too long to hold back the watermark. A
    /// source with requests to be taken is not idle.
    fn idle(&self, now_us: u64) -> Vec<u32> {
        let is_idle = |(nth, active_us): &(u32, &u64)| {
            let source = &self.event_time.sources()[*nth as usize];
            let silent_us = now_us.saturating_sub(**active_us);
            let is_silent = source.idle_us.is_some_and(|us| silent_us >= us.unsigned_abs());
            is_silent && self.available[source.source as usize].is_empty()
        };
        (0..).zip(&self.active_us).filter(is_idle).map(|(nth, _)| nth).collect()
    }

    /// Whether a source that others wait for becomes idle. Then the watermark advances without any
    /// input.
    fn falls_idle(&self, now_us: u64) -> bool {
        let is_new = |nth: &u32| !self.times.idle.contains(nth);
        !self.event_time.is_empty()
            && self.buffered().events > 0
            && self.idle(now_us).iter().any(is_new)
    }

    /// Returns for each source whether no more of its events in event time are taken. If too many
    /// are buffered, only sources that others wait for continue.
    fn paused(&self, buffered_bytes_max: u64) -> Vec<bool> {
        if self.buffered().bytes <= buffered_bytes_max {
            return vec![false; self.available.len()];
        }
        let upto: Vec<u64> = self.available.iter().map(Available::upto).collect();
        // A source that was idle at the last cut but is not any more may be the one that others
        // wait for.
        let mut times = self.times.clone();
        let sources = self.event_time.sources();
        let is_silent =
            |nth: &u32| self.available[sources[*nth as usize].source as usize].is_empty();
        times.idle.retain(is_silent);
        self.event_time.are_behind(&times, &upto).into_iter().map(|is| !is).collect()
    }

    /// Returns the next event if it is late and its stream treats that as an error.
    fn late_event(&self) -> Option<LateEvent> {
        let of = |(source, available): (u32, &Available)| {
            let (from, piece) = available.first()?;
            self.event_time.refused(&self.times.watermarks, source, from, piece)
        };
        (0..).zip(&self.available).find_map(of)
    }

    /// Returns the progress of each source.
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

/// A clock that is wrong, or was wrong when the last cut was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongClock {
    /// The clock is far ahead of that of the last cut, which was made at `last_us`. No cut is made.
    Ahead {
        /// The last cut's clock, in microseconds since 1970.
        last_us: i64,
    },
    /// The clock is far behind that of the last cut.
    Behind {
        /// The last cut's clock, in microseconds since 1970.
        last_us: i64,
    },
}

/// The distance behind the last cut's clock from which one of the two is wrong, in microseconds.
const BEHIND_US: i64 = 60_000_000;

impl WrongClock {
    /// Compares a clock with that of the last cut, which is 0 if there is none. The clock may be
    /// ahead by the time that has passed since that cut was made, and by `jump_us_max`.
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
    /// Compares a clock with that of the last cut.
    pub fn wrong_clock(&self, clock_us: i64, now_us: u64, jump_us_max: i64) -> Option<WrongClock> {
        WrongClock::of(clock_us, self.clock_us, now_us.saturating_sub(self.cut_us), jump_us_max)
    }
}

impl Coordinator {
    /// Makes a cut when all members have executed the one before and there is something to execute. A
    /// full epoch is cut while they execute the one before. Several cuts may be on their way to the
    /// log. If one is lost, no later one of this generation is there.
    pub(super) fn try_cut(&mut self, effects: &mut Vec<Effect>) {
        let Settings { epoch_max, columns_max, snapshot_every, snapshot_us, .. } = self.settings;
        let buffered_bytes_max = self.settings.buffered_bytes_max;
        let clock_jump_us_max = self.settings.clock_jump_us_max;
        let (now_us, clock_us) = (self.now_us, self.clock_us);
        let manifest = self.manifest.clone();
        let Stage::Running(running) = &mut self.stage else { return };
        if running.stops.fault().is_some() {
            return;
        }
        if self.late_event.is_none() {
            // Everything executed before it must be in a snapshot, from which another version can
            // continue.
            self.late_event = running.late_event();
            self.is_ending |= self.late_event.is_some();
        }
        let Buffered { bytes, tables, .. } = running.buffered();
        if self.over_memory.is_none() && bytes + tables > self.settings.memory_bytes_max {
            self.over_memory = Some(bytes + tables);
            self.is_ending = true;
        }
        let is_ending = self.is_ending;
        let is_ahead = running.wrong_clock(clock_us, now_us, clock_jump_us_max)
            == Some(WrongClock::Ahead { last_us: running.clock_us });
        if is_ahead && !is_ending {
            return;
        }
        let is_ahead_of = |executed: u64| running.epoch - executed;
        let is_planned = is_ending || running.planned_us.is_some();
        let ahead_max = match running.is_full(epoch_max, columns_max) && !is_planned {
            true => CUTS_AHEAD_MAX,
            false => 0,
        };
        if is_ahead_of(running.durable) > CUTS_OPEN_MAX
            || is_ahead_of(running.executed_by_all()) > ahead_max
        {
            return;
        }
        let epoch = &running.epoch;
        let paused = running.paused(buffered_bytes_max);
        let has_some = |(available, paused): (&Available, &bool)| available.has_some(*paused);
        let is_new =
            running.available.iter().zip(&paused).any(has_some) || running.falls_idle(now_us);
        // Without new requests a snapshot still has to have the last ones.
        let is_behind = *epoch > manifest.epoch
            && running.taking.is_none()
            && running.is_due(now_us, snapshot_us.saturating_mul(running.patience()));
        match is_ending {
            // The last cut is the one with the snapshot, even if there is nothing new.
            true if running.taking.is_some() || *epoch == manifest.epoch => return,
            false if !is_new && !is_behind => return,
            _ => {}
        }
        let ends = |of: &[Available]| of.iter().map(Available::upto).collect::<Vec<u64>>();
        let from = ends(&running.available);
        let mut given = Vec::new();
        let (kind, calls_wait) = running.next_kind(epoch_max, |source| paused[source]);
        let Running { event_time, times, available, .. } = &mut **running;
        let most = most(kind, calls_wait, (epoch_max, columns_max));
        let mut counts = Vec::new();
        // After a fault the events wait for a function that has been corrected.
        let takes = self.fault.is_none();
        for ((source, available), paused) in (0..).zip(available).zip(paused).filter(|_| takes) {
            let is_refused = |from: u64, piece: &Piece| {
                event_time.refused(&times.watermarks, source, from, piece).is_some()
            };
            counts.push(available.take((kind, most), paused, &is_refused, &mut given));
        }
        // The nodes go on at once when they have executed the epoch before.
        let is_busy = running.executed_by_all() < running.epoch
            || running.available.iter().any(|of| !of.is_empty());
        running.last_kind = kind;
        let executes = match kind {
            _ if self.settings.has_sole_owner => None,
            Kind::Calls => {
                running.choice.pause();
                None
            }
            Kind::Columns => {
                let assignment = &running.form.assignment;
                let mut by_node = vec![0; assignment.members.len()];
                for (source, count) in (0..).zip(&counts) {
                    by_node[usize::from(assignment.reader(source, &self.settings).0)] += count;
                }
                running.choice.choose(running.epoch + 1, &by_node, is_busy)
            }
        };
        let upto = ends(&running.available);
        let mut count = counts.iter().copied().max().unwrap_or(0);
        if !running.event_time.is_empty() {
            // Only the readers know which of the buffered events will be executed.
            count = counts.iter().sum::<u64>() + running.buffered().events;
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
            // Without new events the watermark stays, unless sources fall idle.
            running.times.idle = if takes { running.idle(now_us) } else { Vec::new() };
            running.event_time.advance(&mut running.times, &upto);
            running.times.late = running.late();
            running.buffered.values_mut().for_each(|buffered| buffered.late = 0);
            if let Some(taking) = &mut running.taking {
                taking.late.get_or_insert(running.times.late);
            }
        }
        running.epoch += 1;
        // A wrong clock does not prevent the end.
        let clock_us = if is_ahead || !takes { i64::MIN } else { clock_us };
        (running.clock_us, running.cut_us) = (clock_us.max(running.clock_us + 1), now_us);
        let (epoch, clock_us, base) = (running.epoch, running.clock_us, running.base);
        let times = running.times.clone();
        let stops_on_fault = self.settings.stops_on_fault && takes;
        let cut = Arc::new(CutRecord {
            epoch,
            clock_us,
            base,
            count,
            from,
            upto,
            times,
            by_owner: true,
            stops_on_fault,
        });
        running.base = cut.next_base();
        running.stops.cut(&cut);
        self.follows.cut(&cut);
        let is_due = running.is_due(now_us, snapshot_us);
        let is_wanted = is_ending
            || running.planned_us.is_some()
            || !is_new
            || (epoch.is_multiple_of(snapshot_every) && is_due);
        let takes_snapshot = running.taking.is_none() && is_wanted;
        if takes_snapshot {
            running.taken_us = now_us;
            let (parts, outputs) = (BTreeMap::new(), manifest.outputs.clone());
            let cut = cut.clone();
            let has_times = !running.event_time.is_empty();
            let buffered = if has_times { cut.upto.clone() } else { Vec::new() };
            let (waiting, cut_at, late, counts, is_put) = (Vec::new(), 0, None, None, false);
            let taking =
                Taking { cut, cut_at, parts, outputs, buffered, waiting, late, counts, is_put };
            running.taking = Some(taking);
        }
        let generation = running.form.generation;
        let record = Record::Cut((*cut).clone());
        // Members execute the cut while it becomes durable.
        let parts = self.deaths.begins(&mut running.trials, &cut, self.settings.sources);
        let executes = executes.filter(|_| parts.is_empty());
        let plan = CutPlan { takes_snapshot, executes, parts };
        self.send(&Packet::Cut { generation, cut, plan }, effects);
        self.append(Pending::Cut(epoch), Topic::Cuts, record, effects);
    }

    /// Notes that a cut is durable. Its outputs may leave.
    pub(super) fn cut_durable(&mut self, epoch: u64, offset: u64, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        if let Some(taking) = running.taking.as_mut().filter(|t| t.cut.epoch == epoch) {
            taking.cut_at = offset;
        }
        running.durable = running.durable.max(epoch);
        self.tell_durable(effects);
        self.withdraw(effects);
        self.pass_changes(effects);
        self.try_manifest(effects);
        self.try_cut(effects);
    }

    /// Notes that a member's part of a snapshot is stored, or could not be.
    pub(super) fn part(
        &mut self,
        member: Member,
        epoch: u64,
        part: Option<StoredPart>,
        (outputs, waiting): (&[u64], &[Waiting]),
        effects: &mut Vec<Effect>,
    ) {
        let Stage::Running(running) = &mut self.stage else { return };
        let Some(taking) = running.taking.as_mut().filter(|t| t.cut.epoch == epoch) else { return };
        let Some(part) = part else { return self.give_up(epoch, effects) };
        taking.parts.insert(member, part);
        taking.waiting.extend(waiting);
        for Waiting { event_source, record, .. } in waiting {
            let source = running.event_time.sources().get(*event_source as usize);
            let needed = source.and_then(|of| taking.buffered.get_mut(of.source as usize));
            if let Some(needed) = needed {
                *needed = (*needed).min(*record);
            }
        }
        for (end, more) in taking.outputs.iter_mut().zip(outputs) {
            *end = (*end).max(*more);
        }
        self.try_manifest(effects);
    }

    /// Stores the manifest, once all parts are stored and the cut is durable.
    fn try_manifest(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let released = running.released();
        let Some(taking) = running.taking.as_mut() else { return };
        let epoch = taking.cut.epoch;
        // A member reports its late events before its part. The report may be lost with the connection
        // on which it was sent, and the part comes on the next one.
        let has_executed = |member| running.executed.get(member).is_some_and(|of| *of >= epoch);
        let members = &running.form.assignment.members;
        let is_whole = taking.parts.len() == members.len() && members.iter().all(has_executed);
        if !is_whole || epoch > released || std::mem::replace(&mut taking.is_put, true) {
            return;
        }
        let late = taking.late;
        let times = taking.cut.times.clone();
        let times = Times { late: late.unwrap_or_else(|| running.late()), ..times };
        let Some(taking) = &running.taking else { return };
        let written = self.written.as_ref().unwrap_or(&self.manifest.written).clone();
        let mut objects = running.merging.layout.clone();
        objects.extend(taking.parts.values().flatten().cloned());
        let manifest = Arc::new(Manifest {
            program: self.settings.program,
            generation: running.form.generation,
            epoch,
            clock_us: taking.cut.clock_us,
            base: taking.cut.next_base(),
            inputs: taking.cut.upto.clone(),
            buffered: taking.buffered.clone(),
            waiting: Some(taking.waiting.clone()),
            times,
            outputs: taking.outputs.clone(),
            objects,
            written,
            counts: taking.counts.clone().unwrap_or_default(),
        });
        let token = self.token(Pending::Manifest(manifest.clone()));
        effects.push(Effect::PutManifest { token, manifest });
    }

    /// Appends the record of a manifest that is stored. Gives the snapshot up if it could not be
    /// stored.
    pub(super) fn manifest_put(
        &mut self,
        manifest: Arc<Manifest>,
        is_stored: bool,
        effects: &mut Vec<Effect>,
    ) {
        if !is_stored {
            return self.give_up(manifest.epoch, effects);
        }
        let (wish, record) = (Pending::Snapshot(manifest.clone()), Record::Snapshot(manifest));
        self.append(wish, Topic::Cuts, record, effects);
    }

    /// Notes that the log names the snapshot, so that it counts.
    pub(super) fn snapshot_counts(&mut self, manifest: Arc<Manifest>, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let taken = running.taking.take();
        running.given_up = 0;
        let layout = &mut running.merging.layout;
        match &taken {
            // Objects may have been merged while the manifest was being stored.
            Some(Taking { parts, .. }) => layout.extend(parts.values().flatten().cloned()),
            None => layout.clone_from(&manifest.objects),
        }
        let also = running.merging.more_than(&manifest);
        // Later cuts may come before the snapshot's record.
        let cuts = taken.map_or(0, |taking| taking.cut_at);
        effects.push(Effect::Release { manifest: manifest.clone(), also, cuts });
        let (generation, epoch) = (running.form.generation, manifest.epoch);
        self.cuts.retain(|cut| cut.epoch > epoch);
        self.manifest = manifest;
        let is_planned = running.planned_us.is_some();
        self.send(&Packet::Snapshot { generation, epoch, counts: true }, effects);
        if self.is_ending {
            return self.try_end(effects);
        }
        match is_planned {
            true => self.begin(effects),
            // Read on, so that there is little to read when the next generation begins.
            false => {
                self.read_on(effects);
                self.merge(effects);
            }
        }
    }

    /// Prepares the next generation, in which a worker joins or leaves. No member is lost, so the
    /// generation can wait for a snapshot. Then there is little to execute again, and clients
    /// hardly notice the change.
    pub(super) fn plan(&mut self, is_wanted: bool, effects: &mut Vec<Effect>) {
        let (now_us, lease_us) = (self.now_us, self.settings.lease_us);
        let snapshot = self.manifest.epoch;
        let Stage::Running(running) = &mut self.stage else { return };
        if !is_wanted {
            running.planned_us = None;
            return self.try_cut(effects);
        }
        let since_us = *running.planned_us.get_or_insert(now_us);
        // A snapshot begins with a cut. Without requests there is no cut, and if the store is slow
        // or away, the snapshot does not count soon.
        let patience_us = if running.taking.is_some() { lease_us } else { lease_us / IDLE };
        match running.epoch == snapshot || now_us > since_us + patience_us {
            true => self.begin(effects),
            false => self.try_cut(effects),
        }
    }

    /// Begins to end if all requests of the sources that have ended are in cuts, or if there are no
    /// workers that could execute them.
    pub(super) fn try_drain(&mut self, effects: &mut Vec<Effect>) {
        let Some(ends) = self.drains.as_ref().filter(|_| !self.is_ending) else { return };
        self.is_ending = match &self.stage {
            Stage::Running(running) => {
                running.available.iter().zip(ends).all(|(of, end)| of.upto() >= *end)
            }
            _ => self.seen.is_empty(),
        };
        if self.is_ending {
            self.try_end(effects);
        }
    }

    /// Ends if everything executed is in the snapshot, or if there are no workers that could take
    /// one.
    pub(super) fn try_end(&mut self, effects: &mut Vec<Effect>) {
        let may_end = match &self.stage {
            Stage::Running(running) => {
                running.taking.is_none()
                    && running.epoch == running.durable
                    && running.epoch == self.manifest.epoch
                    // Outputs are written elsewhere, and must all be written.
                    && self.has_left(running)
            }
            _ => self.knows_all_cuts() && self.seen.is_empty(),
        };
        match may_end {
            true => effects.push(Effect::End),
            false => self.try_cut(effects),
        }
    }

    fn give_up(&mut self, epoch: u64, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        running.taking = None;
        running.given_up += 1;
        let (generation, is_planned) = (running.form.generation, running.planned_us.is_some());
        self.send(&Packet::Snapshot { generation, epoch, counts: false }, effects);
        if is_planned {
            self.begin(effects);
        }
    }
}
