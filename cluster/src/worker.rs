//! A worker: one member's part of a generation.
//!
//! The modules by phase: [`prepare`] reads the rows that a new worker will need. [`load`] goes back
//! to the snapshot. [`known`] has the outputs that left before. [`run`] executes cuts, and
//! [`outputs`] appends their outputs. [`careful`] does so after a death. [`ranks`] finds the order
//! of events in event time. [`read`] finds the tasks in records. [`outside`] asks the questions of
//! functions. [`save`] stores parts of snapshots.

mod careful;
mod follows;
mod known;
mod letters;
mod load;
mod outputs;
mod outside;
mod prepare;
mod ranks;
mod read;
mod run;
mod save;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;
use tidemill_function::{Functions, Question, Rows};
use tidemill_txn::pool::{Pool, SingleThread};

use self::load::{Loading, Survivor};
use self::prepare::Prepared;
use self::run::Running;
use crate::effect::{Address, Effect, Input, Packet, Records, Refused, Token};
use crate::records::{Buffered, Form, Member, Topic};
use crate::Settings;

/// The number of epochs whose requests are read before they are executed.
const AHEAD_EPOCHS_MAX: u64 = 8;
/// The same for epochs by column.
const AHEAD_COLUMNS_MAX: u64 = 3;
/// The maximum bytes of these requests, for each source.
const AHEAD_BYTES_MAX: u64 = 32 << 20;
/// The most bytes that all sources of a worker read ahead together, approximately.
const AHEAD_ALL_BYTES_MAX: u64 = 96 << 20;

/// The purpose of a request, by which its answer is handled.
enum Pending {
    /// Rows of the snapshot.
    Rows(usize),
    /// Rows of a snapshot, read before they are needed.
    Prepare,
    /// The outputs of a source.
    Outputs(u32),
    /// The requests of a source.
    Requests(u32),
    /// Records of a source up to the snapshot's cut that may have buffered events.
    Buffered(u32),
    /// The append of outputs of an epoch to a source's outputs.
    Append { epoch: u64, source: u32, count: usize },
    /// An answer from outside.
    Outside(Question),
    /// The append of an answer to the outputs of the question's source.
    Answer(Question, Arc<[u8]>),
    /// A part of the snapshot after this epoch, which may have been given up since.
    Part(u64),
    /// A merge in a generation, and the name of its object.
    Merge(u64, String),
}

/// The current activity.
enum Stage {
    /// It belongs to no generation.
    Idle,
    /// It goes back to the snapshot.
    Loading(Box<Loading>),
    /// It executes cuts.
    Running(Box<Running>),
}

/// The state machine of a worker process.
pub struct Worker {
    me: Member,
    functions: Arc<dyn Functions>,
    settings: Settings,
    stage: Stage,
    /// The rows of its last generation, until it has those of the next.
    survivor: Option<Survivor>,
    /// The rows of a snapshot that it has read ahead, if it has no others.
    prepared: Option<Prepared>,
    /// The last generation that it knows of.
    generation: u64,
    /// The members that it could not reach, if that generation excludes it for this reason.
    left_out: Vec<Member>,
    /// Whether it must end. `has_left` says whether it may.
    is_leaving: bool,
    has_left: bool,
    /// Whether it has been promised [`Input::GoOn`].
    goes_on: bool,
    wishes: HashMap<Token, Pending, FixedState>,
    tokens: u64,
    now_us: u64,
    beaten_us: Option<u64>,
    /// The functions of the epoch that runs that gave another result when they ran again.
    unstable: BTreeMap<Arc<str>, u64>,
    pool: Arc<dyn Pool>,
}

impl Worker {
    /// Creates a worker that belongs to no generation yet.
    pub fn new(me: Member, functions: Arc<dyn Functions>, settings: Settings) -> Worker {
        Worker {
            me,
            functions,
            settings,
            stage: Stage::Idle,
            survivor: None,
            prepared: None,
            generation: 0,
            left_out: Vec::new(),
            is_leaving: false,
            has_left: false,
            goes_on: false,
            wishes: HashMap::default(),
            tokens: 0,
            now_us: 0,
            beaten_us: None,
            unstable: BTreeMap::new(),
            pool: Arc::new(SingleThread),
        }
    }

    /// Executes epochs by column on these threads.
    #[must_use]
    pub fn on(self, pool: Arc<dyn Pool>) -> Worker {
        Worker { pool, ..self }
    }

    /// Returns the rows that it owns, if it executes cuts, and the last epoch in them.
    pub fn state(&self) -> Option<(&Rows, u64)> {
        match &self.stage {
            Stage::Running(running) => Some((running.node.rows(), running.executed)),
            _ => None,
        }
    }

    /// Returns the generation that it belongs to, or 0 if it belongs to none.
    pub fn generation(&self) -> u64 {
        match &self.stage {
            Stage::Idle => 0,
            _ => self.generation,
        }
    }

    /// Returns the number of outputs of executed epochs that are not durable yet.
    pub fn outputs_under_way(&self) -> usize {
        match &self.stage {
            Stage::Running(running) => {
                running.held.iter().map(|(_, held)| held.len()).sum::<usize>()
                    + running.appending.values().sum::<usize>()
            }
            _ => 0,
        }
    }

    /// Returns its buffered events, if it executes cuts.
    pub fn waiting(&self) -> Buffered {
        match &self.stage {
            Stage::Running(running) => running.buffered(),
            _ => Buffered::default(),
        }
    }

    /// Returns its current activity as text.
    pub fn status(&self) -> String {
        let (me, generation) = (self.me.0, self.generation);
        match &self.stage {
            Stage::Idle if !self.left_out.is_empty() => {
                let from: Vec<u32> = self.left_out.iter().map(|member| member.0).collect();
                format!("{me} is left out of generation {generation}: it can't reach {from:?}")
            }
            Stage::Idle => format!("{me} is idle, after generation {generation}"),
            Stage::Loading(_) => format!("{me} goes back to the snapshot for generation {generation}"),
            Stage::Running(running) => format!(
                "{me} has executed epoch {} of generation {generation}, {} cuts wait, epoch {:?} runs, \
                 {} outputs are under way",
                running.executed,
                running.cuts.len(),
                running.current.as_ref().map(|(cut, _)| cut.epoch),
                self.outputs_under_way(),
            ),
        }
    }

    /// Whether it was asked to leave, and may end now.
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// Handles an input.
    pub fn handle(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Tick { now_us, .. } => self.tick(now_us, effects),
            Input::GoOn => {
                self.goes_on = false;
                self.begin_all(effects);
            }
            Input::Packet { packet, .. } => self.packet(packet, effects),
            Input::Broken { to: Address::Worker(member) } => {
                let generation = self.generation;
                if !matches!(self.stage, Stage::Idle) {
                    self.send(Packet::Lost { generation, member }, effects);
                }
            }
            // Only coordinators handle this.
            Input::Written(_) | Input::Follow(_) => {}
            // A beat finds lost messages. A worker that has not executed an epoch that others wait
            // for belongs to an earlier generation, or will learn of the next.
            Input::Broken { to: Address::Coordinator } => {
                self.beaten_us = None;
                // The coordinator that would release it has given it up.
                self.has_left |= self.is_leaving;
            }
            Input::Leave => {
                self.is_leaving = true;
                match self.stage {
                    Stage::Idle => self.has_left = true,
                    _ => self.send(Packet::Leaving, effects),
                }
            }
            Input::Appended { token, result } => match (self.wishes.remove(&token), result) {
                (Some(Pending::Append { epoch, source, count }), Ok(offset)) => {
                    self.left(epoch, source, count, offset, effects);
                }
                (Some(Pending::Answer(question, answer)), Ok(offset)) => {
                    self.answer_durable(&question, answer, offset, effects);
                }
                (Some(_), Ok(_)) | (None, _) => {}
                // This includes an unknown outcome. The next generation reads the outputs up to its
                // fence, and later appends do not count.
                (Some(_), Err(Refused::Fenced | Refused::Unknown)) => self.forget(effects),
            },
            Input::Records { token, records } => match self.wishes.remove(&token) {
                Some(Pending::Outputs(source)) => self.known(source, records, effects),
                Some(Pending::Requests(source)) => self.requests(source, records, effects),
                Some(Pending::Buffered(source)) => self.buffered(source, records, effects),
                _ => {}
            },
            Input::Loaded { token, rows } => match self.wishes.remove(&token) {
                Some(Pending::Rows(nth)) => self.loaded(nth, rows, effects),
                Some(Pending::Prepare) => self.prepare_with(token, rows, effects),
                _ => {}
            },
            Input::Answered { token, answer } => {
                if let Some(Pending::Outside(question)) = self.wishes.remove(&token) {
                    self.answered(question, answer, effects);
                }
            }
            Input::PartStored { token, part } => match self.wishes.remove(&token) {
                Some(Pending::Part(epoch)) => self.part_stored(epoch, part, effects),
                Some(Pending::Merge(generation, name)) => {
                    self.send(Packet::Merged { generation, name, part }, effects);
                }
                _ => {}
            },
            // Only coordinators store manifests.
            Input::Drain { .. } | Input::Stored { .. } => {}
        }
    }

    fn tick(&mut self, now_us: u64, effects: &mut Vec<Effect>) {
        self.now_us = now_us;
        if self.beaten_us.is_none_or(|at| now_us >= at + self.settings.beat_us) {
            self.beaten_us = Some(now_us);
            self.send(Packet::Beat { generation: self.generation() }, effects);
            self.send_again(effects);
            if self.is_leaving {
                self.send(Packet::Leaving, effects);
            }
        }
        self.ask(effects);
        self.save_again(effects);
        self.go_on(effects);
    }

    fn packet(&mut self, packet: Packet, effects: &mut Vec<Effect>) {
        let is_of = |generation: u64| generation == self.generation;
        match packet {
            Packet::Form(form) if form.generation > self.generation => self.form(form, effects),
            Packet::Prepare(form) => self.prepare(&form, effects),
            Packet::Released if self.is_leaving => {
                self.forget(effects);
                self.has_left = true;
            }
            Packet::LeftOut { generation, from } if generation > self.generation => {
                self.forget(effects);
                (self.generation, self.left_out) = (generation, from);
            }
            Packet::Cut { generation, cut, plan } if is_of(generation) => {
                if let Stage::Running(running) = &mut self.stage {
                    // If one was lost with its connection, the next generation executes it.
                    if cut.epoch == running.last_cut() + 1 {
                        running.cuts.push_back((cut, plan));
                        self.go_on(effects);
                    }
                }
            }
            Packet::Tried { generation, epoch, part } if is_of(generation) => {
                self.tried(epoch, part, effects);
            }
            Packet::Durable { generation, epoch, released } if is_of(generation) => {
                if let Stage::Running(running) = &mut self.stage {
                    running.durable = running.durable.max(epoch);
                    running.released = running.released.max(released);
                    running.recorded.get_or_insert(epoch);
                    self.let_out(effects);
                    self.ask_outside(effects);
                    self.report_outbox(effects);
                }
            }
            Packet::Follow { generation, tables, passed } if is_of(generation) => {
                self.follow(&tables, passed);
            }
            Packet::Snapshot { generation, epoch, counts } if is_of(generation) => {
                self.snapshot_ended(epoch, counts);
            }
            Packet::Merge { generation, epoch, name, work } if is_of(generation) => {
                self.merge(epoch, name, work, effects);
            }
            Packet::Ranks { generation, from, epoch, ranks } if is_of(generation) => {
                if let Stage::Running(running) = &mut self.stage {
                    running.ranks.iter_mut().for_each(|of| of.receive(epoch, from, ranks.clone()));
                    self.go_on(effects);
                }
            }
            // No node executes anything before all are ready.
            Packet::Node { generation, from, message } if is_of(generation) => {
                self.receive(from, message, effects);
            }
            _ => {}
        }
    }

    /// Leaves the generation, because a later one has begun or is about to begin without it.
    fn forget(&mut self, effects: &mut Vec<Effect>) {
        if let Stage::Running(running) = std::mem::replace(&mut self.stage, Stage::Idle) {
            if running.tells_outbox {
                let (epoch, rows) = (running.executed, Vec::new());
                effects.push(Effect::Outbox { epoch, all: true, rows });
            }
            self.survivor = Some(Survivor::of(*running));
        }
        self.wishes.clear();
        self.beaten_us = None;
    }

    fn send(&self, packet: Packet, effects: &mut Vec<Effect>) {
        effects.push(Effect::Send { to: Address::Coordinator, packet });
    }

    fn token(&mut self, wish: Pending) -> Token {
        self.tokens += 1;
        self.wishes.insert(Token(self.tokens), wish);
        Token(self.tokens)
    }

    /// Reports again what can be read and is in no epoch, because packets may have been lost.
    fn send_again(&self, effects: &mut Vec<Effect>) {
        let (generation, Stage::Running(running)) = (self.generation, &self.stage) else { return };
        for (&source, input) in &running.inputs {
            if let Some((from, pieces)) = input.open(&self.settings) {
                self.send(Packet::Available { generation, source, from, pieces }, effects);
            }
        }
        self.repeat_outputs(effects);
    }

    /// Returns the maximum number of requests of a source that are read ahead. Requests that can't
    /// be executed soon may stay in the log.
    fn ahead_max(&self) -> usize {
        let Settings { epoch_max, columns_max, .. } = self.settings;
        (AHEAD_EPOCHS_MAX * epoch_max).max(AHEAD_COLUMNS_MAX * columns_max) as usize
    }

    /// Requests more records of its sources.
    fn ask(&mut self, effects: &mut Vec<Effect>) {
        let ahead_max = self.ahead_max();
        let Stage::Running(running) = &mut self.stage else { return };
        let mut reads = Vec::new();
        // All events of an epoch may go to one worker in one message.
        let bytes_max =
            AHEAD_BYTES_MAX.min(AHEAD_ALL_BYTES_MAX / running.inputs.len().max(1) as u64);
        for (&source, input) in &mut running.inputs {
            let has_room = input.items.tasks < ahead_max as u64 && input.items.bytes < bytes_max;
            // A recorded cut may have more requests than are read ahead with the present settings.
            let next = running.cuts.front().map_or(0, |(cut, _)| cut.upto[source as usize]);
            if !input.is_asked && (has_room || input.upto < next) {
                input.is_asked = true;
                reads.push((source, input.upto));
            }
        }
        for (source, from) in reads {
            let (token, topic) = (self.token(Pending::Requests(source)), Topic::Input(source));
            effects.push(Effect::Read { token, topic, from, limit: Some(ahead_max) });
        }
    }

    /// Takes requests that were read.
    fn requests(&mut self, source: u32, records: Option<Records>, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let input = running.inputs.get_mut(&source).expect("a read of an own source");
        input.is_asked = false;
        let Some(Records { records, upto }) = records else { return };
        if upto > input.upto {
            let (from, generation) = (input.upto, self.generation);
            let pieces = input.take(records, upto, &*self.functions, &self.settings);
            self.send(Packet::Available { generation, source, from, pieces }, effects);
            self.go_on(effects);
            self.ask(effects);
        }
    }

    /// Begins a generation.
    fn form(&mut self, form: Arc<Form>, effects: &mut Vec<Effect>) {
        self.forget(effects);
        self.left_out.clear();
        self.generation = form.generation;
        let Some(node) = form.assignment.node_of(self.me) else { return };
        self.load(form, node, effects);
    }
}
