//! The coordinator: who is a member, what is an epoch, and what is a snapshot.
//!
//! It has no state of its own that the log has not: one that starts reads the cuts, fences them with the next
//! number, and forms a generation of whoever says that it lives. By phase: [`form`] begins generations,
//! [`cut`] makes cuts and snapshots of what is [`available`]; [`prepare`] has newcomers read before they come in; [`quarrel`] knows who
//! can't reach whom.

mod available;
mod cut;
mod form;
mod prepare;
mod quarrel;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;
use tidemill_function::Fault;

use self::cut::Running;
pub use self::cut::WrongClock;
use self::form::Forming;
use self::prepare::Preparing;
pub use self::quarrel::LeftOut;
use self::quarrel::Quarrels;
use crate::effect::{Address, Effect, Input, Packet, Refused, Token};
use crate::event_time::LateEvent;
use crate::records::{CutRecord, Left, Manifest, Member, Parked, Record, Times, Topic, Written};
use crate::Settings;

/// What an answer is for.
enum Wish {
    /// The cuts, on from where it has read.
    Log,
    /// The fence of a topic.
    Fence,
    /// A cut.
    Cut(u64),
    /// A manifest, and its record.
    Manifest(Arc<Manifest>),
    Snapshot(Arc<Manifest>),
}

/// What it is doing.
enum Stage {
    /// It reads the cuts, to know which number is next.
    Reading,
    /// It appends the number to all topics that generations write.
    Fencing {
        generation: u64,
        left: usize,
    },
    /// It reads what was appended before the fence.
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

/// Forming may take so many times longer, at most.
const PATIENCE_MAX: u64 = 64;

/// How far a source has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceProgress {
    /// Who reads it.
    pub reader: Member,
    /// Behind the last record that a cut has.
    pub cut: u64,
    /// How many requests its generation has taken in cuts.
    pub taken: u64,
    /// How many requests can be read that no cut has.
    pub waiting: u64,
}

/// How far a cluster has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The generation that runs; 0 when none does.
    pub generation: u64,
    /// Its members.
    pub members: Vec<Member>,
    /// The last cut.
    pub epoch: u64,
    /// The epoch of the last snapshot.
    pub snapshot: u64,
    /// For each source how far it has come.
    pub sources: Vec<SourceProgress>,
    /// How far event time has come.
    pub times: Times,
    /// Events that wait for their watermark, and how many have ever been late.
    pub parked: Parked,
    /// Rows that ask for work outside, once all of the last cut has been executed.
    pub outside: Option<u64>,
    /// Who lives and is left out, because it can't reach members.
    pub left_out: Vec<LeftOut>,
}

/// The state machine of a coordinator process.
pub struct Coordinator {
    settings: Settings,
    stage: Stage,
    wishes: HashMap<Token, Wish, FixedState>,
    tokens: u64,
    now_us: u64,
    clock_us: i64,
    started_us: Option<u64>,
    /// How many times longer than the first a generation may take to form, since one has not.
    patience: u64,
    /// Who has said that it lives, when, and of which generation it was.
    seen: BTreeMap<Member, (u64, u64)>,
    quarrels: Quarrels,
    preparing: Preparing,
    /// Who wants to end.
    leaving: BTreeSet<Member>,
    /// It is to end itself, when all that was executed is in a snapshot.
    is_ending: bool,
    /// Why, where that is an event that has come too late.
    late_event: Option<LateEvent>,
    /// What the log says: how far it was read, the last generation, the last snapshot, and cuts behind it.
    read: u64,
    has_read: bool,
    last_generation: u64,
    /// The generations that this process has begun.
    begun: BTreeSet<u64>,
    manifest: Arc<Manifest>,
    /// What has been written of what leaves, where that is newer than what the snapshot says.
    written: Option<Arc<Written>>,
    /// Of the newest snapshot, since this process has taken a whole one.
    rows: Option<cut::Rows>,
    cuts: Vec<Arc<CutRecord>>,
}

impl Coordinator {
    /// A process that knows nothing yet.
    pub fn new(settings: Settings) -> Coordinator {
        let nothing = vec![0; settings.sources as usize];
        let kept = if settings.tells_left { nothing.clone() } else { Vec::new() };
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
            patience: 1,
            seen: BTreeMap::new(),
            quarrels: Quarrels::default(),
            preparing: Preparing::default(),
            leaving: BTreeSet::new(),
            is_ending: false,
            late_event: None,
            read: 0,
            has_read: false,
            last_generation: 0,
            begun: BTreeSet::new(),
            manifest: manifest.into(),
            written: None,
            rows: None,
            cuts: Vec::new(),
        }
    }

    /// The generation that runs, and its members, if one does.
    pub fn running(&self) -> Option<(u64, &[Member])> {
        match &self.stage {
            Stage::Running(running) => {
                Some((running.form.generation, &running.form.assignment.members))
            }
            _ => None,
        }
    }

    /// Of which epochs all has left; nothing until all members have said how far they are.
    pub fn left(&self) -> Option<Left> {
        match &self.stage {
            Stage::Running(running) => running.left(),
            _ => None,
        }
    }

    /// The event that has come too late, where that is an error: it ends for that.
    pub fn late_event(&self) -> Option<&LateEvent> {
        self.late_event.as_ref()
    }

    /// Whether all that is recorded is in the snapshot that counts, and has left, where somebody writes that.
    pub fn is_whole(&self) -> bool {
        match &self.stage {
            Stage::Running(running) => {
                running.epoch == self.manifest.epoch && self.has_left(running)
            }
            // Of what is in no snapshot nobody can tell, nor whether all of it has left.
            _ => self.cuts.is_empty() && (!self.settings.tells_left || self.manifest.epoch == 0),
        }
    }

    /// Whether all that is in the snapshot has left, where somebody writes what leaves.
    fn has_left(&self, running: &Running) -> bool {
        let left = || running.left().is_some_and(|left| left.base >= self.manifest.base);
        !self.settings.tells_left || left()
    }

    /// What is wrong with the clock, as far as that can be told, and what it says.
    pub fn wrong_clock(&self) -> Option<(WrongClock, i64)> {
        let Stage::Running(running) = &self.stage else { return None };
        let jump_us_max = self.settings.clock_jump_us_max;
        let wrong = running.wrong_clock(self.clock_us, self.now_us, jump_us_max)?;
        Some((wrong, self.clock_us))
    }

    /// How far the cluster has come.
    pub fn progress(&self) -> Progress {
        let (snapshot, left_out) = (self.manifest.epoch, self.left_out());
        let mut progress = Progress { snapshot, left_out, ..Progress::default() };
        if let Stage::Running(running) = &self.stage {
            progress.generation = running.form.generation;
            progress.members.clone_from(&running.form.assignment.members);
            progress.epoch = running.epoch;
            progress.sources = running.sources(&self.settings);
            (progress.times, progress.parked) = (running.times.clone(), running.parked());
            progress.parked.late = running.late();
            progress.outside = running.outside();
        }
        progress
    }

    /// Takes what has happened.
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
                // Messages may be lost, and then somebody waits for ever. Whether it lives it says itself.
                self.seen.remove(&member);
                self.leaving.remove(&member);
                self.preparing.forget(member);
                if self.is_member(member) {
                    self.begin(effects);
                }
            }
            Input::Appended { token, result } => {
                let Some(wish) = self.wishes.remove(&token) else { return };
                match result {
                    Ok(offset) => self.appended(wish, offset, effects),
                    Err(Refused::Fenced) => self.step_down(effects),
                    // The next generation reads behind its fence what has become of it.
                    Err(Refused::Unknown) => self.begin(effects),
                }
            }
            Input::Records { token, records } => {
                if let Some(Wish::Log) = self.wishes.remove(&token) {
                    self.was_read(records, effects);
                }
            }
            Input::Stored { token, is_stored } => {
                if let Some(Wish::Manifest(manifest)) = self.wishes.remove(&token) {
                    self.manifest_put(manifest, is_stored, effects);
                }
            }
            Input::Written(written) => self.written = Some(written),
            Input::Leave => {
                self.is_ending = true;
                self.try_end(effects);
            }
            Input::Packet { .. }
            | Input::Broken { .. }
            | Input::Got { .. }
            | Input::Answered { .. } => {}
        }
    }

    fn packet(&mut self, member: Member, packet: Packet, effects: &mut Vec<Effect>) {
        match packet {
            Packet::Beat { generation } => {
                self.seen.insert(member, (self.now_us, generation));
            }
            Packet::Prepared => self.preparing.done(member),
            Packet::Formed { generation, parked } => {
                self.formed(member, generation, parked, effects);
            }
            Packet::Lost { generation, member: other } => {
                self.quarrels.lost(generation, member, other, self.now_us);
                if self.generation() == generation && self.is_member(other) {
                    self.begin(effects);
                }
            }
            Packet::Leaving => {
                self.leaving.insert(member);
                // Nobody is told twice what the next generation tells it.
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
            Packet::Executed { generation, epoch, parked } => {
                if let Some(running) = self.of(generation) {
                    running.executed.insert(member, epoch);
                    running.parked.insert(member, parked);
                    self.try_cut(effects);
                }
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
            Packet::Part { generation, epoch, name, rows, outputs, waiting }
                if self.of(generation).is_some() =>
            {
                let part = name.map(|name| (name, rows));
                self.part(member, epoch, part, (&outputs, &waiting), effects);
            }
            _ => {}
        }
    }

    /// The generation that runs, if it is this one.
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
        // Who loads much says nothing meanwhile. One that has died is known by its connection.
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
        self.quarrels.forget(good_us, now_us, self.settings.lease_us);
        let is_lost = self.members().iter().any(|member| !self.seen.contains_key(member));
        if self.is_ending {
            self.try_end(effects);
        }
        match &self.stage {
            Stage::Gathering { generation } => self.form(*generation, effects),
            Stage::Forming(forming) => {
                let is_late = forming.since_us + self.patience * self.settings.form_us < now_us;
                if is_late || is_lost {
                    // Perhaps there is much to load.
                    self.patience = (2 * self.patience).min(PATIENCE_MAX);
                    self.begin(effects);
                }
            }
            Stage::Running(running) => {
                let generation = running.form.generation;
                // A member that has started again or has been told of something later, or somebody new.
                let is_settled = running.since_us + self.settings.lease_us < now_us;
                let others = self.candidates().filter(|member| self.seen[member].1 != generation);
                let (back, come): (Vec<_>, Vec<_>) =
                    others.partition(|member| self.is_member(*member));
                let members = &running.form.assignment.members;
                let leaves = members.iter().any(|member| self.leaving.contains(member))
                    && self.candidates().next().is_some();
                let patience = (now_us, self.settings.form_us);
                let are_ready = self.preparing.are_ready(&come, &self.manifest, patience, effects);
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

    /// Who lives, and is left out of the next generation.
    fn left_out(&self) -> Vec<LeftOut> {
        if self.is_spoiled_by(Fault::LeaveNobodyOut) {
            return Vec::new();
        }
        let stays = |member: &&Member| !self.leaving.contains(*member);
        let stay = self.seen.keys().filter(stays);
        self.quarrels.left_out(stay, self.now_us, self.settings.lease_us)
    }

    /// Who would be a member of the next generation.
    fn candidates(&self) -> impl Iterator<Item = Member> + '_ {
        let left_out = self.left_out();
        let is_in = move |member: &Member| {
            !self.leaving.contains(member) && left_out.iter().all(|left| left.member != *member)
        };
        self.seen.keys().copied().filter(is_in)
    }

    /// Sends the same to all members.
    fn tell(&self, packet: &Packet, effects: &mut Vec<Effect>) {
        for member in self.members() {
            effects.push(Effect::Send { to: Address::Worker(*member), packet: packet.clone() });
        }
    }

    fn token(&mut self, wish: Wish) -> Token {
        self.tokens += 1;
        self.wishes.insert(Token(self.tokens), wish);
        Token(self.tokens)
    }

    fn append(&mut self, wish: Wish, topic: Topic, record: Record, effects: &mut Vec<Effect>) {
        let generation = self.generation();
        let token = self.token(wish);
        effects.push(Effect::Append { token, topic, generation, record });
    }

    fn is_spoiled_by(&self, fault: Fault) -> bool {
        self.settings.function.fault == Some(fault)
    }
}
