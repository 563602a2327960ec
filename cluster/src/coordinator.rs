//! The coordinator: it decides on members, epochs and snapshots.
//!
//! All of its state is in the log. A coordinator that starts reads the cuts, fences them with the
//! next number, and forms a generation of all workers that are alive. The modules by phase:
//! [`form`] begins generations. [`cut`] makes cuts and snapshots of [`available`] requests.
//! [`deaths`] finds the transactions that end workers. [`merge`] has workers merge the objects of
//! snapshots. [`faults`] withdraws cuts in which functions fail. [`prepare`] has new workers read the snapshot before they join. [`unreachable`] knows
//! which members can't reach each other.

mod available;
mod choice;
mod cut;
mod deaths;
mod faults;
mod follows;
mod form;
mod merge;
mod prepare;
mod unreachable;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;
use tidemill_function::{Counts, Fault, Tid};

use self::cut::Running;
pub use self::cut::WrongClock;
use self::deaths::Deaths;
pub use self::deaths::Suspicion;
use self::follows::Follows;
use self::form::Forming;
use self::prepare::Preparing;
pub use self::unreachable::LeftOut;
use self::unreachable::LostPairs;
use crate::effect::{Address, Effect, Input, Packet, Refused, Token};
use crate::event_time::LateEvent;
use crate::records::{
    Assignment, Buffered, CutRecord, Form, Left, Manifest, Member, Record, Times, Topic, Written,
};
use crate::Settings;

/// The purpose of a request, by which its answer is handled.
enum Pending {
    /// A read of the cuts, from where the last one ended.
    Log,
    /// The fence of a topic.
    Fence,
    /// A cut.
    Cut(u64),
    /// A verdict on a transaction, and the reason.
    Verdict(Tid, String),
    /// The withdrawal of cuts, and the fault that is its reason.
    Withdrawn(Fault),
    /// A manifest. `Snapshot` is the append of its record.
    Manifest(Arc<Manifest>),
    Snapshot(Arc<Manifest>),
}

/// The current activity.
enum Stage {
    /// It reads the cuts, to find the next number.
    Reading,
    /// It appends the number to all topics that generations write.
    Fencing {
        generation: u64,
        left: usize,
    },
    /// It reads records that were appended before the fence.
    Rereading {
        generation: u64,
    },
    /// It waits for members.
    Gathering {
        generation: u64,
    },
    Forming(Forming),
    Running(Box<Running>),
}

/// The maximum factor by which the time to form a generation grows.
const PATIENCE_MAX: u64 = 64;

/// The progress of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceProgress {
    /// The member that reads it.
    pub reader: Member,
    /// The end of the records that are in cuts.
    pub cut: u64,
    /// The number of requests that its generation has taken into cuts.
    pub taken: u64,
    /// The number of requests that can be read and are in no cut.
    pub waiting: u64,
}

/// The progress of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// The running generation, or 0 if there is none.
    pub generation: u64,
    /// Its members.
    pub members: Vec<Member>,
    /// The last cut.
    pub epoch: u64,
    /// The last cut that all members have executed without a fault that ends the run.
    pub executed: u64,
    /// The epoch of the last snapshot.
    pub snapshot: u64,
    /// The progress of each source.
    pub sources: Vec<SourceProgress>,
    /// The progress of event time.
    pub times: Times,
    /// The buffered events, and the number of late events since the beginning.
    pub buffered: Buffered,
    /// The number of rows that ask for work outside, once the last cut has been executed
    /// completely.
    pub outside: Option<u64>,
    /// The workers that are alive but left out, because they can't reach members.
    pub left_out: Vec<LeftOut>,
    /// The counts of transactions since the beginning.
    pub counts: Arc<Counts>,
    /// The functions that gave other results when they ran again since the coordinator has started,
    /// with the number of times.
    pub unstable: BTreeMap<Arc<str>, u64>,
}

/// The state machine of a coordinator process.
pub struct Coordinator {
    settings: Settings,
    stage: Stage,
    wishes: HashMap<Token, Pending, FixedState>,
    tokens: u64,
    now_us: u64,
    clock_us: i64,
    started_us: Option<u64>,
    /// The time when it last looked for a generation of another coordinator.
    looked_us: u64,
    /// The factor by which the time to form a generation has grown since one failed to form.
    patience: u64,
    /// The workers that are alive: the time of the last beat, and the generation in it.
    seen: BTreeMap<Member, (u64, u64)>,
    lost_pairs: LostPairs,
    deaths: Deaths,
    preparing: Preparing,
    /// The workers that want to end.
    leaving: BTreeSet<Member>,
    /// Where the first sources end, if the coordinator must end once they have been executed.
    drains: Option<Vec<u64>>,
    /// Whether the coordinator itself must end, when everything that was executed is in a snapshot.
    is_ending: bool,
    /// The late event that is the reason for ending, if there is one.
    late_event: Option<LateEvent>,
    /// The fault that is the reason for ending, if there is one. The cut of its event is withdrawn.
    fault: Option<Fault>,
    /// The bytes of memory for which it ends, because they are too many.
    over_memory: Option<u64>,
    /// The content of the log: how far it was read, the last generation, the last snapshot, and the
    /// cuts after it.
    read: u64,
    has_read: bool,
    last_generation: u64,
    /// The generations that this process has begun.
    begun: BTreeSet<u64>,
    manifest: Arc<Manifest>,
    /// The outputs that have been written elsewhere, if this is newer than in the snapshot.
    written: Option<Arc<Written>>,
    cuts: Vec<Arc<CutRecord>>,
    /// The last epoch whose outputs may have left.
    released: u64,
    /// The functions that gave other results when they ran again since this process has started, with
    /// the number of times.
    unstable: BTreeMap<Arc<str>, u64>,
    /// The base after all cuts that were withdrawn.
    withdrawn_base: u64,
    follows: Follows,
}

impl Coordinator {
    /// Creates a coordinator that has not read anything yet.
    pub fn new(settings: Settings) -> Coordinator {
        let nothing = vec![0; settings.sources as usize];
        let kept = if settings.copies_outputs { nothing.clone() } else { Vec::new() };
        let manifest = Manifest {
            inputs: nothing.clone(),
            outputs: nothing,
            written: Written { outputs: kept, ..Written::default() }.into(),
            ..Manifest::default()
        };
        Coordinator {
            settings,
            stage: Stage::Reading,
            wishes: HashMap::default(),
            tokens: 0,
            now_us: 0,
            clock_us: 0,
            started_us: None,
            looked_us: 0,
            patience: 1,
            seen: BTreeMap::new(),
            lost_pairs: LostPairs::default(),
            deaths: Deaths::default(),
            preparing: Preparing::default(),
            leaving: BTreeSet::new(),
            drains: None,
            is_ending: false,
            late_event: None,
            fault: None,
            over_memory: None,
            read: 0,
            has_read: false,
            last_generation: 0,
            begun: BTreeSet::new(),
            manifest: manifest.into(),
            written: None,
            cuts: Vec::new(),
            released: 0,
            unstable: BTreeMap::new(),
            withdrawn_base: 0,
            follows: Follows::default(),
        }
    }

    /// Returns the running generation and its members, if there is one.
    pub fn running(&self) -> Option<(u64, &[Member])> {
        match &self.stage {
            Stage::Running(running) => {
                Some((running.form.generation, &running.form.assignment.members))
            }
            _ => None,
        }
    }

    /// Returns the epochs whose outputs have left completely, or `None` until all members have
    /// reported.
    pub fn left(&self) -> Option<Left> {
        match &self.stage {
            Stage::Running(running) => running.left(),
            _ => None,
        }
    }

    /// Returns the bytes of memory of all workers for which it ends, because they are too many.
    pub fn over_memory(&self) -> Option<u64> {
        self.over_memory
    }

    /// Returns the transactions that workers may have died of, if there are some.
    pub fn suspicion(&self) -> Option<Suspicion> {
        self.deaths.suspicion()
    }

    /// Returns the last transaction that is not executed because it has ended workers, and the reason.
    pub fn last_verdict(&self) -> Option<(Tid, &str)> {
        self.deaths.last()
    }

    /// Returns the late event for which it ends, if late events of that stream are errors.
    pub fn late_event(&self) -> Option<&LateEvent> {
        self.late_event.as_ref()
    }

    /// Returns the fault for which it ends, if a fault ends the run.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Whether everything recorded is in the snapshot that counts, and has left if outputs are
    /// written elsewhere.
    pub fn is_whole(&self) -> bool {
        match &self.stage {
            Stage::Running(running) => {
                running.epoch == self.manifest.epoch && self.has_left(running)
            }
            // Without a snapshot it is unknown whether all outputs have left.
            _ => {
                self.knows_all_cuts()
                    && self.cuts.is_empty()
                    && (!self.settings.copies_outputs || self.manifest.epoch == 0)
            }
        }
    }

    /// Whether no generation runs, and all cuts of the log are in memory.
    fn knows_all_cuts(&self) -> bool {
        matches!(self.stage, Stage::Gathering { .. } | Stage::Forming(_))
    }

    /// Whether all outputs up to the snapshot have left, if outputs are written elsewhere.
    fn has_left(&self, running: &Running) -> bool {
        let left = || running.left().is_some_and(|left| left.base >= self.manifest.base);
        !self.settings.copies_outputs || left()
    }

    /// Returns what is wrong with the clock, as far as that can be known, and its time.
    pub fn wrong_clock(&self) -> Option<(WrongClock, i64)> {
        let Stage::Running(running) = &self.stage else { return None };
        let jump_us_max = self.settings.clock_jump_us_max;
        let wrong = running.wrong_clock(self.clock_us, self.now_us, jump_us_max)?;
        Some((wrong, self.clock_us))
    }

    /// Returns the counts of transactions. They are those of the snapshot while transactions after it
    /// run again.
    fn counts(&self) -> &Arc<Counts> {
        match &self.stage {
            Stage::Running(running) => &running.counts,
            _ => &self.manifest.counts,
        }
    }

    /// Returns the progress of the cluster.
    pub fn progress(&self) -> Progress {
        let (snapshot, left_out) = (self.manifest.epoch, self.left_out());
        let mut progress = Progress { snapshot, left_out, ..Progress::default() };
        if let Stage::Running(running) = &self.stage {
            progress.generation = running.form.generation;
            progress.members.clone_from(&running.form.assignment.members);
            progress.epoch = running.epoch;
            progress.executed = running.executed_by_all().min(running.stops.before());
            progress.sources = running.sources(&self.settings);
            (progress.times, progress.buffered) = (running.times.clone(), running.buffered());
            progress.buffered.late = running.late();
            progress.outside = running.outside();
        }
        progress.counts = self.counts().clone();
        progress.unstable.clone_from(&self.unstable);
        progress
    }

    /// Handles an input.
    pub fn handle(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Tick { now_us, clock_us } => {
                (self.now_us, self.clock_us) = (now_us, clock_us);
                if self.started_us.is_none() {
                    self.started_us = Some(now_us);
                    self.read_on(effects);
                }
                self.tick(effects);
            }
            Input::Packet { from: Address::Worker(member), packet } => {
                self.packet(member, packet, effects);
            }
            Input::Broken { to: Address::Worker(member) } => {
                // Messages may be lost, and then a member would wait forever. Its next beat shows
                // whether it is alive.
                self.seen.remove(&member);
                let is_leaving = self.leaving.remove(&member);
                self.preparing.forget(member);
                if self.is_member(member) {
                    self.begin(effects);
                }
                if !is_leaving {
                    self.died(member);
                }
            }
            Input::Appended { token, result } => {
                let Some(wish) = self.wishes.remove(&token) else { return };
                match result {
                    Ok(offset) => self.appended(wish, offset, effects),
                    Err(Refused::Fenced) => self.step_down(effects),
                    // The next generation reads up to its fence, and finds whether the record is
                    // there.
                    Err(Refused::Unknown) => self.begin(effects),
                }
            }
            Input::Records { token, records } => {
                if let Some(Pending::Log) = self.wishes.remove(&token) {
                    self.was_read(records, effects);
                }
            }
            Input::Stored { token, is_stored } => {
                if let Some(Pending::Manifest(manifest)) = self.wishes.remove(&token) {
                    self.manifest_put(manifest, is_stored, effects);
                }
            }
            Input::Written(written) => self.written = Some(written),
            Input::Follow(table) => self.follow(table, effects),
            Input::Drain { ends } => {
                self.drains = Some(ends);
                self.try_drain(effects);
            }
            Input::Leave => {
                self.is_ending = true;
                self.try_end(effects);
            }
            Input::GoOn
            | Input::Packet { .. }
            | Input::Broken { .. }
            | Input::PartStored { .. }
            | Input::Loaded { .. }
            | Input::Answered { .. } => {}
        }
    }

    fn packet(&mut self, member: Member, packet: Packet, effects: &mut Vec<Effect>) {
        match packet {
            Packet::Beat { generation } => {
                self.seen.insert(member, (self.now_us, generation));
            }
            Packet::Prepared => self.preparing.done(member),
            Packet::Formed { generation, buffered } => {
                self.formed(member, generation, buffered, effects);
            }
            Packet::Lost { generation, member: other } => {
                self.lost_pairs.lost(generation, member, other, self.now_us);
                if self.generation() == generation && self.is_member(other) {
                    self.begin(effects);
                }
            }
            Packet::Leaving => {
                self.leaving.insert(member);
                // The next generation releases the others, so none is released twice.
                let is_last = !self.is_ending && self.candidates().next().is_none();
                if !self.is_member(member) || is_last {
                    let to = Address::Worker(member);
                    effects.push(Effect::Send { to, packet: Packet::Released });
                }
            }
            Packet::Available { generation, source, from, pieces } => {
                let available = match &mut self.stage {
                    Stage::Forming(forming) if forming.form.generation == generation => {
                        &mut forming.available
                    }
                    Stage::Running(running) if running.form.generation == generation => {
                        &mut running.available
                    }
                    _ => return,
                };
                if let Some(available) = available.get_mut(source as usize) {
                    available.add(from, &pieces);
                    self.try_cut(effects);
                }
            }
            Packet::Executed { generation, epoch, buffered, counts, fault, unstable } => {
                for (function, times) in unstable {
                    *self.unstable.entry(function).or_default() += times;
                }
                let now_us = self.now_us;
                if let Some(running) = self.of(generation) {
                    running.buffered.insert(member, buffered);
                    let passed = running.has_counted(member, epoch, (&counts, fault), now_us);
                    self.deaths.passed(passed);
                    self.release(effects);
                    self.pass_changes(effects);
                    self.try_cut(effects);
                }
            }
            Packet::Trial { generation, epoch, part, left } if self.of(generation).is_some() => {
                self.tries(member, (epoch, part), left, effects);
            }
            Packet::Changed { generation, epoch, changes } if self.of(generation).is_some() => {
                self.follows.note(member, epoch, changes);
            }
            Packet::Outside { generation, epoch, rows } => {
                if let Some(running) = self.of(generation) {
                    running.outside.insert(member, (epoch, rows));
                }
            }
            Packet::Left { generation, base, ends } => {
                if let Some(running) = self.of(generation) {
                    running.left.insert(member, (base, ends));
                }
            }
            Packet::Part { generation, epoch, part, outputs, waiting }
                if self.of(generation).is_some() =>
            {
                self.part(member, epoch, part, (&outputs, &waiting), effects);
            }
            Packet::Merged { generation, name, part } if self.of(generation).is_some() => {
                self.merged(&name, part, effects);
            }
            _ => {}
        }
    }

    /// Returns the running generation, if it is this one.
    fn of(&mut self, generation: u64) -> Option<&mut Running> {
        match &mut self.stage {
            Stage::Running(running) if running.form.generation == generation => Some(running),
            _ => None,
        }
    }

    fn generation(&self) -> u64 {
        match &self.stage {
            Stage::Reading => 0,
            Stage::Fencing { generation, .. }
            | Stage::Rereading { generation }
            | Stage::Gathering { generation } => *generation,
            Stage::Forming(forming) => forming.form.generation,
            Stage::Running(running) => running.form.generation,
        }
    }

    fn members(&self) -> &[Member] {
        match &self.stage {
            Stage::Forming(forming) => &forming.form.assignment.members,
            Stage::Running(running) => &running.form.assignment.members,
            _ => &[],
        }
    }

    fn is_member(&self, member: Member) -> bool {
        self.members().contains(&member)
    }

    fn tick(&mut self, effects: &mut Vec<Effect>) {
        // A member that loads many rows sends nothing meanwhile. A broken connection shows its
        // death.
        let patience = match self.stage {
            Stage::Forming(_) => self.patience,
            _ => 1,
        };
        let (now_us, lease_us) = (self.now_us, patience * self.settings.lease_us);
        self.seen.retain(|_, (at_us, _)| *at_us + lease_us > now_us);
        self.leaving.retain(|member| self.seen.contains_key(member));
        let good_us = match &self.stage {
            Stage::Running(running) if running.has_executed() => Some(now_us - running.since_us),
            _ => None,
        };
        self.lost_pairs.forget(good_us, now_us, self.settings.lease_us);
        let is_lost = self.members().iter().any(|member| !self.seen.contains_key(member));
        self.begins_part(effects);
        self.try_drain(effects);
        if self.is_ending {
            self.try_end(effects);
        }
        // Another coordinator may have begun a generation, and without new cuts nothing shows it.
        let is_running = matches!(self.stage, Stage::Running(_));
        if is_running && now_us > self.looked_us + self.settings.lease_us {
            self.looked_us = now_us;
            self.read_on(effects);
        }
        match &self.stage {
            Stage::Gathering { generation } => self.form(*generation, effects),
            Stage::Forming(forming) => {
                let is_late = forming.since_us + self.patience * self.settings.form_us < now_us;
                if is_late || is_lost {
                    // There may be many rows to load.
                    self.patience = (2 * self.patience).min(PATIENCE_MAX);
                    self.begin(effects);
                }
            }
            Stage::Running(running) => {
                let generation = running.form.generation;
                // A member that has started again or knows of a later generation, or a new worker.
                let is_settled = running.since_us + self.settings.lease_us < now_us;
                let others = self.candidates().filter(|member| self.seen[member].1 != generation);
                let (back, come): (Vec<_>, Vec<_>) =
                    others.partition(|member| self.is_member(*member));
                let members = &running.form.assignment.members;
                let leaves = members.iter().any(|member| self.leaving.contains(member))
                    && self.candidates().next().is_some();
                let patience = (now_us, self.settings.form_us);
                let mut preparing = std::mem::take(&mut self.preparing);
                let expected = || {
                    let assignment = Assignment::of(self.candidates().collect(), &self.settings);
                    Arc::new(Form { generation, assignment, manifest: self.manifest.clone() })
                };
                let are_ready = preparing.are_ready(&come, expected, patience, effects);
                self.preparing = preparing;
                let is_other = !back.is_empty() || (!come.is_empty() && are_ready);
                if is_lost {
                    self.begin(effects);
                } else {
                    self.plan((is_other && is_settled) || leaves, effects);
                }
            }
            _ => {}
        }
    }

    /// Returns the workers that are alive but left out of the next generation.
    fn left_out(&self) -> Vec<LeftOut> {
        let stays = |member: &&Member| !self.leaving.contains(*member);
        let stay = self.seen.keys().filter(stays);
        self.lost_pairs.left_out(stay, self.now_us, self.settings.lease_us)
    }

    /// Returns the workers that would be members of the next generation.
    fn candidates(&self) -> impl Iterator<Item = Member> + '_ {
        let left_out = self.left_out();
        let is_in = move |member: &Member| {
            !self.leaving.contains(member) && left_out.iter().all(|left| left.member != *member)
        };
        self.seen.keys().copied().filter(is_in)
    }

    /// Sends a packet to all members.
    fn send(&self, packet: &Packet, effects: &mut Vec<Effect>) {
        for member in self.members() {
            effects.push(Effect::Send { to: Address::Worker(*member), packet: packet.clone() });
        }
    }

    fn token(&mut self, wish: Pending) -> Token {
        self.tokens += 1;
        self.wishes.insert(Token(self.tokens), wish);
        Token(self.tokens)
    }

    fn append(&mut self, wish: Pending, topic: Topic, record: Record, effects: &mut Vec<Effect>) {
        let generation = self.generation();
        let token = self.token(wish);
        effects.push(Effect::Append { token, topic, generation, record });
    }
}
