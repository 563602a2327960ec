//! Workers, a coordinator, a log, a store and clients in one thread, from one seed.
//!
//! The world processes one due event after the other. Chance decides how long each step takes and
//! what fails. Messages between two processes keep their order; others do not. The state machines
//! of the processes are in `tidemill_cluster`.

mod store;
mod trouble;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use tidemill_cluster::{
    load_rows, Address, Coordinator, Counts, Effect, EventSource, EventTime, Events, Input,
    Manifest, Member, Packet, Record, Request, Settings, Topic, Worker, POISON,
};
use tidemill_core::{Batch, Key, Late, Value};
use tidemill_durable::{MemoryStore, Store};
use tidemill_function::{Call, Functions as _};

pub use self::trouble::FaultRates;
use super::log::Log;
use super::script::{OnNodes, Script, CALLS_MAX, DEPTH_MAX, MOVES, OUTBOX, TIMED};
use super::sink::{Sink, Writer};
use super::Dice;

const MS: u64 = 1_000;

/// The time between two ticks of a process, in microseconds.
const TICK_US: u64 = 4 * MS;

/// The number of requests without reply above which work outside is not answered again, where
/// sources have ended.
const BACKLOG: usize = 100;

/// Returns the event sources: none in half of all runs, otherwise two streams on each of `sources`
/// sources.
fn event_time(dice: &mut Dice, sources: u32) -> EventTime {
    if dice.chance(50) {
        return EventTime::default();
    }
    let never_idle = if dice.chance(70) { 0 } else { 40 };
    let mut all = Vec::new();
    for (stream, late) in TIMED.into_iter().zip([Late::Side, Late::Admit]) {
        for source in 0..sources {
            let idle_us = (!dice.chance(never_idle)).then(|| (20 + dice.below(200)) * MS);
            let out_of_orderness_us = dice.below(12) as i64;
            let idle_us = idle_us.map(u64::cast_signed);
            all.push(EventSource { source, stream, group: 0, out_of_orderness_us, idle_us, late });
        }
    }
    EventTime::new(all, Vec::new())
}

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Process {
    Coordinator(u32),
    Worker(Member),
}

enum Machine {
    Coordinator(Box<Coordinator>),
    Worker(Box<Worker>),
}

struct Running {
    machine: Machine,
    frozen_until_us: u64,
    /// The inputs that arrived while the process was frozen.
    inbox: Vec<Input>,
    /// The error of its wall clock, in microseconds.
    clock_off_us: i64,
    /// The writer beside a coordinator that runs.
    writer: Option<Writer>,
    /// The work outside that is to be done.
    work: BTreeMap<Key, Arc<[Value]>>,
}

enum Step {
    Tick(Process),
    Deliver(Process, Input),
    /// A message from one process to another.
    Packet {
        by: Process,
        to: Process,
        input: Input,
    },
    Thaw(Process),
    Append {
        by: Process,
        topic: Topic,
        generation: u64,
        record: Record,
        token: tidemill_cluster::Token,
    },
    /// A call of the store that may change it.
    Put(Process, Effect),
    /// The removal of objects that a snapshot does not need.
    Sweep(Arc<Manifest>, Vec<String>),
    /// Work outside is done, if it is still open. The number says how often it was done before.
    Work(Process, Key, u32),
    Start(Process),
    Trouble,
    Request(u32),
    /// A source ends.
    End(u32),
    RequestAppend {
        client: u32,
        source: u32,
        requests: Vec<(i64, Call)>,
        is_lost: bool,
    },
}

/// A client. It sends one request or several together, and repeats them, perhaps to another source,
/// until they are acknowledged.
struct Client {
    left: u32,
    pending: Vec<(i64, Call)>,
}

/// A simulated cluster.
pub struct World {
    dice: Dice,
    now_us: u64,
    count: u64,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: HashMap<u64, Step>,
    processes: BTreeMap<Process, Running>,
    coordinator: u32,
    members: u32,
    functions: Arc<OnNodes>,
    pub(super) script: Arc<Script>,
    settings: Settings,
    weather: FaultRates,
    until_us: u64,
    pub(super) log: Log,
    pub(super) sink: Sink,
    store: Arc<dyn Store>,
    /// The arrival time of the last message on each connection, in microseconds.
    ways: HashMap<(Process, Process), u64>,
    /// The pairs of processes that can't reach each other, and the end of each cut.
    cuts: BTreeMap<(Process, Process), u64>,
    appends: HashMap<(Process, Topic), u64>,
    /// The last generation of each process that has an append with an unknown outcome.
    barred: HashMap<(Process, Topic), u64>,
    /// The number of sources with events in event time, and those that have ended.
    timed: u32,
    /// The percentage of a client's records that are events of moves.
    moves: u64,
    ended: BTreeSet<u32>,
    log_trouble_until_us: u64,
    store_trouble_until_us: u64,
    clients: Vec<Client>,
    ids: i64,
    /// The acknowledged requests.
    pub(super) acknowledged: Vec<i64>,
    /// A question or work that left before its cut was recorded; a violation.
    pub(super) left_early: Option<String>,
    /// A function that was reported as not deterministic.
    pub(super) unstable: Option<Arc<str>>,
    /// The epochs whose work outside has left.
    worked: BTreeSet<u64>,
    /// The changes that clients of coordinators have followed.
    pub(super) followed: Vec<(Process, Effect)>,
    /// Whether to print what happens.
    pub trace: bool,
}

/// Returns the number of counted transactions.
pub fn counted(counts: &Counts) -> u64 {
    counts.ended + counts.refused + counts.faults
}

impl World {
    /// Creates a cluster from a seed.
    pub fn new(seed: u64) -> World {
        let mut dice = Dice::new(seed);
        let keys = 3 + dice.below(20) as i64;
        let script = Script::random(&mut dice, keys);
        let mut functions = OnNodes::new(&script);
        let sources = 1 + dice.below(4) as u32;
        // Separate generators, so that the draws of the first one stay as they were.
        let mut more = Dice::new(seed ^ 0xE7E7);
        let mut ends = Dice::new(seed ^ 0xE1D);
        let mut begins = Dice::new(seed ^ 0xBE91);
        let mut poisons = Dice::new(seed ^ 0xDEAD);
        functions.poison = poisons.chance(25).then(|| 1 + poisons.below(30) as i64);
        let breaks = poisons.chance(25).then(|| 1 + poisons.below(40) as i64);
        functions.broken = breaks.into();
        // The last source has no such events and does not end, so that all the others may end.
        let timed = if sources > 1 && ends.chance(40) { sources - 1 } else { sources };
        let event_time = Arc::new(event_time(&mut more, timed));
        // A full buffer pauses all sources but those that are behind. A silent source that never
        // falls idle would pause the others for ever.
        let all_fall_idle = event_time.sources().iter().all(|source| source.idle_us.is_some());
        let buffered_bytes_max = match all_fall_idle && more.chance(50) {
            true => 300 + more.below(3_000),
            false => u64::MAX,
        };
        let moves = *more.pick(&[0, 0, 60, 95, 100]);
        let settings = Settings {
            seed: 7,
            program: 0,
            sources,
            followed: dice.below(u64::from(sources)) as u32,
            lease_us: 100 * MS,
            beat_us: 20 * MS,
            form_us: 200 * MS,
            epoch_max: 1 + dice.below(12),
            columns_max: 1 + more.below(30),
            has_sole_owner: false,
            alternates: true,
            outputs_max: 1 + dice.below(4) as usize,
            output_bytes: 1_000,
            copies_outputs: true,
            snapshot_every: 2 + dice.below(6),
            snapshot_us: 0,
            event_time,
            resumed: [].into(),
            buffered_bytes_max,
            memory_bytes_max: u64::MAX,
            stops_on_fault: breaks.is_some(),
            clock_jump_us_max: i64::MAX,
            deaths_max: functions.poison.map_or(u32::MAX, |_| 2 + poisons.below(3) as u32),
            function: tidemill_function::Settings {
                calls_max: CALLS_MAX,
                depth_max: DEPTH_MAX,
                rounds_max: 2 + dice.below(5) as u32,
                begins_max: *begins.pick(&[0, 1, 16]),
                cache: dice.chance(75),
                rerun_every: *begins.pick(&[0, 1, 3]),
                seed,
                ..tidemill_function::Settings::default()
            },
        };
        let weather = match dice.below(7) {
            0 => FaultRates { leaves: 10, ..FaultRates::default() },
            1 => FaultRates { kills: 30, ..FaultRates::default() },
            2 => FaultRates { freezes: 30, coordinators: 20, ..FaultRates::default() },
            3 => FaultRates { breaks: 30, jumps: 20, ..FaultRates::default() },
            4 => FaultRates { logs: 30, stores: 30, kills: 5, ..FaultRates::default() },
            5 => FaultRates { cuts: 20, kills: 2, coordinators: 2, ..FaultRates::default() },
            _ => FaultRates {
                kills: 10,
                freezes: 10,
                coordinators: 10,
                breaks: 10,
                logs: 10,
                stores: 10,
                jumps: 10,
                cuts: 5,
                leaves: 10,
            },
        };
        let until_us = 500 * MS + dice.below(2_500) * MS;
        let workers = 1 + dice.below(4) as u32;
        let clients = 1 + dice.below(6);
        let mut world = World {
            dice,
            now_us: 0,
            count: 0,
            due: BinaryHeap::new(),
            happenings: HashMap::new(),
            processes: BTreeMap::new(),
            coordinator: 0,
            members: 0,
            functions: functions.into(),
            script,
            settings,
            weather,
            until_us,
            log: Log::new(seed % 2 == 1),
            sink: Sink::default(),
            store: Arc::new(MemoryStore::new()),
            ways: HashMap::new(),
            cuts: BTreeMap::new(),
            appends: HashMap::new(),
            barred: HashMap::new(),
            log_trouble_until_us: 0,
            store_trouble_until_us: 0,
            clients: Vec::new(),
            timed,
            moves,
            ended: BTreeSet::new(),
            ids: 0,
            acknowledged: Vec::new(),
            left_early: None,
            unstable: None,
            worked: BTreeSet::new(),
            followed: Vec::new(),
            trace: false,
        };
        world.start_coordinator();
        (0..workers).for_each(|_| world.start_worker());
        for client in 0..clients {
            let left = 5 + world.dice.below(25) as u32;
            world.clients.push(Client { left, pending: Vec::new() });
            let at_us = world.dice.below(200 * MS);
            world.after(at_us, Step::Request(client as u32));
        }
        world.after(50 * MS, Step::Trouble);
        let is_timed = !world.settings.event_time.is_empty();
        let all_end = ends.chance(50);
        for source in (0..timed).filter(|_| is_timed && timed < sources) {
            if all_end || ends.chance(50) {
                let at_us = ends.below(until_us);
                world.after(at_us, Step::End(source));
            }
        }
        world
    }

    /// Returns the counts of transactions that the coordinator knows.
    pub fn counts(&self) -> Counts {
        let process = self.processes.get(&Process::Coordinator(self.coordinator));
        match process.map(|process| &process.machine) {
            Some(Machine::Coordinator(coordinator)) => (*coordinator.progress().counts).clone(),
            _ => Counts::default(),
        }
    }

    /// Returns the number of recorded verdicts on requests that end workers.
    pub fn verdicts(&self) -> usize {
        self.log.answers().filter(|(_, asked, _)| *asked == POISON).count()
    }

    /// Returns the number of sources.
    pub fn sources(&self) -> u32 {
        self.settings.sources
    }

    /// Returns the limits: requests of a source in an epoch, and outputs in a record.
    pub(super) fn limits(&self) -> (u64, u64, usize) {
        let Settings { epoch_max, columns_max, outputs_max, .. } = self.settings;
        (epoch_max, columns_max, outputs_max)
    }

    /// Returns the streams in event time.
    pub(super) fn event_time(&self) -> &EventTime {
        &self.settings.event_time
    }

    /// Returns the workers, with their partitions and progress.
    pub(super) fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.processes.values().filter_map(|process| match &process.machine {
            Machine::Worker(worker) => Some(&**worker),
            Machine::Coordinator(_) => None,
        })
    }

    /// Returns the members of the running generation.
    pub(super) fn members(&self) -> Vec<Member> {
        let coordinator = self.processes.get(&Process::Coordinator(self.coordinator));
        match coordinator.map(|process| &process.machine) {
            Some(Machine::Coordinator(coordinator)) => {
                coordinator.running().map_or(Vec::new(), |(_, members)| members.to_vec())
            }
            _ => Vec::new(),
        }
    }

    /// Returns the worker of a member.
    pub(super) fn worker(&self, member: Member) -> Option<&Worker> {
        match &self.processes.get(&Process::Worker(member))?.machine {
            Machine::Worker(worker) => Some(worker),
            Machine::Coordinator(_) => None,
        }
    }

    /// Runs until faults have ended and all requests are answered on all members. Returns `false`
    /// if that does not happen.
    pub fn run(&mut self) -> bool {
        // Long enough to form generations and to execute the recorded epochs.
        let patience_us = self.until_us + 60_000 * MS;
        while let Some(Reverse((at_us, number))) = self.due.pop() {
            if at_us > patience_us {
                return false;
            }
            self.now_us = at_us;
            let happening = self.happenings.remove(&number).expect("it is due");
            self.happen(happening);
            if self.now_us > self.until_us && number % 64 == 0 && self.is_quiet() {
                return true;
            }
        }
        false
    }

    /// Whether faults and clients have ended, and all members have executed all cuts.
    fn is_quiet(&self) -> bool {
        let is_over =
            self.clients.iter().all(|client| client.left == 0 && client.pending.is_empty());
        let members = self.members();
        let last = self.log.last_epoch();
        let workers = members.iter().filter_map(|member| self.worker(*member));
        let waiting: u64 = workers.map(|worker| worker.waiting().events).sum();
        // Workers may know a cut that is still on its way to the log.
        let coordinator = self.processes.get(&Process::Coordinator(self.coordinator));
        let is_cut = coordinator.is_some_and(|process| match &process.machine {
            Machine::Coordinator(coordinator) => {
                let progress = coordinator.progress();
                let transactions = self.log.transactions() as u64;
                progress.epoch == last && counted(&progress.counts) + waiting >= transactions
            }
            Machine::Worker(_) => false,
        });
        is_over
            && is_cut
            && !members.is_empty()
            && self.log.replies() + waiting as usize >= self.log.requests()
            && self.sink.len() >= self.log.events()
            && members.iter().all(|member| {
                let worker = self.worker(*member);
                let is_done = |worker: &&Worker| {
                    worker.outputs_under_way() == 0
                        && worker.state().is_some_and(|(state, executed)| {
                            // All work outside has been answered.
                            let is_left = state.iter().any(|(table, ..)| table == OUTBOX);
                            executed == last && !is_left
                        })
                };
                worker.filter(is_done).is_some()
            })
    }

    /// Describes the state of a run that does not end.
    pub fn status(&self) -> String {
        let coordinator = self.processes.get(&Process::Coordinator(self.coordinator));
        let generation = coordinator.and_then(|process| match &process.machine {
            Machine::Coordinator(coordinator) => coordinator.running().map(|(g, _)| g),
            Machine::Worker(_) => None,
        });
        let workers: Vec<String> = self.workers().map(|worker| worker.status()).collect();
        let (requests, replies) = (self.log.requests(), self.log.replies());
        let waiting: u64 = self.workers().map(|worker| worker.waiting().events).sum();
        format!(
            "generation {generation:?} of {:?}, epoch {}, {requests} requests, {replies} replies, {waiting} wait, {} events, {} \
             written; {:?} {}",
            self.members(),
            self.log.last_epoch(),
            self.log.events(),
            self.sink.len(),
            self.sink.wrong,
            workers.join("; ")
        )
    }

    fn after(&mut self, in_us: u64, happening: Step) {
        self.at(self.now_us + in_us, happening);
    }

    fn at(&mut self, at_us: u64, happening: Step) {
        self.count += 1;
        self.due.push(Reverse((at_us, self.count)));
        self.happenings.insert(self.count, happening);
    }

    fn start_coordinator(&mut self) {
        self.coordinator += 1;
        let machine = Machine::Coordinator(Box::new(Coordinator::new(self.settings.clone())));
        self.start(Process::Coordinator(self.coordinator), machine);
    }

    fn start_worker(&mut self) {
        self.members += 1;
        let member = Member(self.members);
        let worker = Worker::new(member, self.functions.clone(), self.settings.clone());
        self.start(Process::Worker(member), Machine::Worker(Box::new(worker)));
    }

    fn start(&mut self, process: Process, machine: Machine) {
        self.say(|| format!("{process:?} starts"));
        let (frozen_until_us, inbox, clock_off_us, writer) = (0, Vec::new(), 0, None);
        let work = BTreeMap::new();
        let running = Running { machine, frozen_until_us, inbox, clock_off_us, writer, work };
        self.processes.insert(process, running);
        self.follow(process);
        let in_us = self.dice.below(TICK_US);
        self.after(in_us, Step::Tick(process));
    }

    /// Ends a process. The processes connected to it notice after a delay.
    fn kill(&mut self, process: Process) {
        self.say(|| format!("{process:?} dies"));
        self.processes.remove(&process);
        let others: Vec<Process> = self.processes.keys().copied().collect();
        for other in others {
            self.broken(other, process);
        }
    }

    /// Reports a broken connection to a process, after the messages that have arrived on it.
    fn broken(&mut self, at: Process, to: Process) {
        let to = match to {
            Process::Coordinator(n) if n == self.coordinator => Address::Coordinator,
            Process::Worker(member) => Address::Worker(member),
            Process::Coordinator(_) => return,
        };
        let in_us = self.dice.below(30 * MS);
        self.after(in_us, Step::Deliver(at, Input::Broken { to }));
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>9.3} ms  {}", self.now_us as f64 / 1e3, what());
        }
    }

    fn happen(&mut self, happening: Step) {
        match happening {
            Step::Tick(process) => {
                let Some(running) = self.processes.get(&process) else { return };
                let clock_us = 1_000_000 + self.now_us as i64 + running.clock_off_us;
                let input = Input::Tick { now_us: self.now_us, clock_us };
                if running.frozen_until_us <= self.now_us {
                    self.give(process, input);
                    self.write(process);
                }
                self.after(TICK_US, Step::Tick(process));
            }
            Step::Deliver(process, input) | Step::Packet { to: process, input, .. } => {
                self.give(process, input);
            }
            Step::Thaw(process) => {
                let Some(running) = self.processes.get_mut(&process) else { return };
                if running.frozen_until_us > self.now_us {
                    return;
                }
                self.say(|| format!("{process:?} goes on"));
                let running = self.processes.get_mut(&process).expect("it is there");
                for input in std::mem::take(&mut running.inbox) {
                    self.give(process, input);
                }
            }
            Step::Append { by, topic, generation, record, token } => {
                let fails = self.now_us < self.log_trouble_until_us && self.dice.chance(10);
                let is_lost = fails && self.dice.chance(50);
                // No later append of a generation is there without an earlier one.
                let last = self.barred.entry((by, topic)).or_default();
                let is_barred = generation > 0 && *last >= generation;
                if fails {
                    *last = generation;
                }
                let (fails, is_lost) = (fails || is_barred, is_lost || is_barred);
                self.check_withdrawal(&record);
                let result = match is_lost {
                    true => Err(tidemill_cluster::Refused::Unknown),
                    false => self.log.append(topic, generation, record),
                };
                let result = if fails { Err(tidemill_cluster::Refused::Unknown) } else { result };
                let in_us = self.delay();
                self.after(in_us, Step::Deliver(by, Input::Appended { token, result }));
            }
            Step::Put(by, effect) => {
                let fails = self.now_us < self.store_trouble_until_us && self.dice.chance(60);
                let is_lost = fails && self.dice.chance(70);
                let input = self.put(effect, fails, is_lost);
                let in_us = self.delay();
                self.after(in_us, Step::Deliver(by, input));
            }
            Step::Sweep(manifest, also) => {
                for object in self.store.list("").expect("it has no faults") {
                    if !manifest.keeps(&object.name) && !also.contains(&object.name) {
                        self.store.delete(&object.name).expect("it has no faults");
                    }
                }
            }
            Step::Start(Process::Coordinator(dead)) => {
                if dead == self.coordinator {
                    self.start_coordinator();
                }
            }
            Step::Start(_) => self.start_worker(),
            Step::Work(by, key, times) => self.work(by, key, times),
            Step::Trouble => self.trouble(),
            Step::Request(client) => self.request(client),
            Step::End(source) => {
                self.ended.insert(source);
                let end = Record::End;
                self.log.append(Topic::Input(source), 0, end).expect("inputs have no fence");
            }
            Step::RequestAppend { client, source, requests, is_lost } => {
                let ids: Vec<i64> = requests.iter().map(|(id, _)| *id).collect();
                let is_lost = is_lost || self.ended.contains(&source);
                if !is_lost {
                    let record = self.record(requests);
                    if self.dice.chance(20) {
                        self.log.gap(Topic::Input(source));
                    }
                    self.log.append(Topic::Input(source), 0, record).expect("inputs have no fence");
                }
                let is_unsure = is_lost || self.dice.chance(5);
                let client_state = &mut self.clients[client as usize];
                let is_pending = client_state.pending.first().is_some_and(|(of, _)| *of == ids[0]);
                if !is_unsure && is_pending {
                    client_state.pending.clear();
                    client_state.left -= 1;
                    self.acknowledged.extend(ids);
                }
                let in_us = self.dice.below(60 * MS);
                self.after(in_us, Step::Request(client));
            }
        }
    }

    /// Lets the writer beside a coordinator continue, and report its progress, each at random.
    fn write(&mut self, process: Process) {
        let (sources, until_us) = (self.settings.sources, self.until_us);
        let Some(running) = self.processes.get_mut(&process) else { return };
        let Machine::Coordinator(machine) = &running.machine else { return };
        let Some(left) = machine.left().filter(|_| self.dice.chance(50)) else { return };
        let program = self.functions.program();
        let new = || Writer::new(&left.written, sources, program);
        let writer = running.writer.get_or_insert_with(new);
        let is_last = process == Process::Coordinator(self.coordinator);
        let dice = (&mut self.dice, self.now_us < until_us, is_last);
        if !writer.write(&left, &self.log, &mut self.sink, dice) {
            self.kill(process);
            let in_us = self.dice.below(100 * MS);
            return self.after(in_us, Step::Start(process));
        }
        let written = writer.written();
        if self.dice.chance(30) {
            self.give(process, Input::Written(written));
        }
    }

    /// Sends a client's next requests, or its pending ones again.
    fn request(&mut self, client: u32) {
        if self.clients[client as usize].left == 0 {
            return;
        }
        if self.clients[client as usize].pending.is_empty() {
            let count = if self.dice.chance(70) { 1 } else { 2 + self.dice.below(3) };
            let are_moves = self.moves > 0 && self.dice.chance(self.moves);
            for _ in 0..count {
                self.ids += 1;
                if are_moves {
                    let call = self.script.random_move(&mut self.dice, self.ids);
                    self.clients[client as usize].pending.push((self.ids, call));
                    continue;
                }
                let may_come = (0..self.timed).any(|source| !self.ended.contains(&source));
                let is_timed = !self.settings.event_time.is_empty() && self.dice.chance(60);
                let is_timed = is_timed && may_come;
                let call = match is_timed {
                    // Some events share a time, some are before others, and a few are long before.
                    true => {
                        let most = if self.dice.chance(10) { 40 } else { 8 };
                        let back = self.dice.below(most);
                        let time = (self.ids - back as i64).div_euclid(2);
                        self.script.event_in_time(&mut self.dice, self.ids, time)
                    }
                    false => self.script.request(&mut self.dice, self.ids),
                };
                self.clients[client as usize].pending.push((self.ids, call));
            }
        }
        let requests = self.clients[client as usize].pending.clone();
        let is_timed = requests.iter().any(|(_, call)| Script::timed(call).is_some());
        let may_be = if is_timed { self.timed } else { self.settings.sources };
        let mut source = self.dice.below(may_be.into()) as u32;
        if self.ended.contains(&source) {
            match (0..may_be).find(|source| !self.ended.contains(source)) {
                Some(other) => source = other,
                None => {
                    // All sources for these requests have ended.
                    let client_state = &mut self.clients[client as usize];
                    client_state.pending.clear();
                    client_state.left -= 1;
                    return self.after(MS, Step::Request(client));
                }
            }
        }
        let is_lost = self.now_us < self.log_trouble_until_us && self.dice.chance(20);
        let in_us = self.delay();
        self.after(in_us, Step::RequestAppend { client, source, requests, is_lost });
    }

    /// Returns the record of requests of one kind.
    fn record(&self, requests: Vec<(i64, Call)>) -> Record {
        let rows: Option<Vec<Vec<Value>>> =
            requests.iter().map(|(_, call)| Script::move_event(call)).collect();
        match rows {
            Some(rows) => {
                let schema = self.functions.program().streams[MOVES.index()].spec.schema.clone();
                let batch = Batch::from_rows(schema, rows.iter().map(|row| &row[..]));
                Record::Events(Events { stream: MOVES, from: None, is_run: false, batch })
            }
            None => {
                let request =
                    |(id, call): (i64, Call)| Request { id: id.to_be_bytes().into(), call };
                Record::Requests(requests.into_iter().map(request).collect())
            }
        }
    }

    /// Returns the time that a step takes, in microseconds; mostly short.
    fn delay(&mut self) -> u64 {
        let worst = match self.dice.below(100) {
            0 => 40 * MS,
            1..=9 => 5 * MS,
            _ => MS,
        };
        20 + self.dice.below(worst)
    }

    /// Passes an input to a process and carries out the effects.
    fn give(&mut self, process: Process, input: Input) {
        let now_us = self.now_us;
        let Some(running) = self.processes.get_mut(&process) else { return };
        if running.frozen_until_us > now_us {
            return running.inbox.push(input);
        }
        let mut effects = Vec::new();
        match &mut running.machine {
            Machine::Coordinator(machine) => machine.handle(input, &mut effects),
            Machine::Worker(machine) => machine.handle(input, &mut effects),
        }
        if self.functions.has_struck.swap(false, Ordering::Relaxed) {
            self.say(|| format!("{process:?} has executed what ends it"));
            self.kill(process);
            let in_us = self.dice.below(100 * MS);
            return self.after(in_us, Step::Start(process));
        }
        let has_left = matches!(&running.machine, Machine::Worker(worker) if worker.has_left());
        for effect in effects {
            if self.processes.contains_key(&process) {
                self.effect(process, effect);
            }
        }
        if has_left && self.processes.contains_key(&process) {
            self.kill(process);
            let in_us = self.dice.below(100 * MS);
            self.after(in_us, Step::Start(process));
        }
    }

    fn effect(&mut self, by: Process, effect: Effect) {
        match effect {
            Effect::Send { to, packet } => self.send(by, to, packet),
            Effect::Append { token, topic, generation, record } => {
                let mut in_us = self.delay();
                if self.now_us < self.log_trouble_until_us {
                    in_us += self.dice.below(50 * MS);
                }
                // Appends of one process to a topic keep their order.
                let last = self.appends.entry((by, topic)).or_default();
                let at_us = (self.now_us + in_us).max(*last + 1);
                *last = at_us;
                self.at(at_us, Step::Append { by, topic, generation, record, token });
            }
            Effect::Read { token, topic, from, limit } => {
                let fails = self.now_us < self.log_trouble_until_us && self.dice.chance(20);
                let records = (!fails).then(|| self.log.read(topic, from, limit));
                let in_us = self.delay();
                self.after(in_us, Step::Deliver(by, Input::Records { token, records }));
            }
            Effect::PutManifest { .. } | Effect::PutPart { .. } | Effect::Merge { .. } => {
                let mut in_us = self.delay();
                if self.now_us < self.store_trouble_until_us {
                    in_us += self.dice.below(200 * MS);
                }
                self.after(in_us, Step::Put(by, effect));
            }
            Effect::Load { token, program, objects, partitions, tables } => {
                let fails = self.now_us < self.store_trouble_until_us && self.dice.chance(40);
                let load = || load_rows(&self.store, program, &objects, &partitions, (&tables, 11));
                let rows = (!fails).then(load).and_then(Result::ok);
                let in_us = self.delay();
                self.after(in_us, Step::Deliver(by, Input::Loaded { token, rows }));
            }
            Effect::Outbox { epoch, all, rows } => {
                if !rows.is_empty() && epoch > self.log.last_epoch() {
                    self.left_early.get_or_insert("work left before its cut".into());
                }
                self.worked.extend((!rows.is_empty()).then_some(epoch));
                let running = self.processes.get_mut(&by).expect("it has told this");
                if all {
                    running.work.clear();
                }
                for (_, key, row) in rows {
                    let running = self.processes.get_mut(&by).expect("it has told this");
                    let Some(row) = row else {
                        running.work.remove(&key);
                        continue;
                    };
                    running.work.insert(key.clone(), row);
                    let in_us = self.delay();
                    self.after(in_us, Step::Work(by, key, 0));
                }
            }
            Effect::Ask { token, ask } => {
                if self.executed(by) >= self.log.newest_epoch() {
                    self.left_early.get_or_insert("a question left before its cut".into());
                }
                let answer = (!self.dice.chance(5)).then(|| ask.now());
                let in_us = self.delay() + self.dice.below(10 * MS);
                self.after(in_us, Step::Deliver(by, Input::Answered { token, answer }));
            }
            Effect::Release { manifest, also, cuts } => {
                self.log.trim(Topic::Cuts, cuts);
                for (source, (input, output)) in
                    manifest.inputs_needed().zip(manifest.outputs_needed()).enumerate()
                {
                    self.log.trim(Topic::Input(source as u32), input);
                    self.log.trim(Topic::Output(source as u32), output);
                }
                // Objects are removed in the background, perhaps much later.
                let in_us = self.delay() + self.dice.below(50 * MS);
                self.after(in_us, Step::Sweep(manifest, also));
            }
            Effect::GoOn => self.after(0, Step::Deliver(by, Input::GoOn)),
            Effect::Follows { .. } | Effect::Changed { .. } => self.followed.push((by, effect)),
            Effect::Stop { .. } | Effect::End => {
                self.say(|| format!("{by:?} stops: {effect:?}"));
                self.correct(by);
                self.kill(by);
                let is_replaced = matches!(by, Process::Coordinator(n) if n != self.coordinator);
                if !is_replaced {
                    let in_us = self.dice.below(100 * MS);
                    self.after(in_us, Step::Start(by));
                }
            }
        }
    }

    /// Returns the last epoch that a worker has executed.
    fn executed(&self, by: Process) -> u64 {
        let state = match by {
            Process::Worker(member) => self.worker(member).and_then(Worker::state),
            Process::Coordinator(_) => None,
        };
        state.map_or(0, |(_, executed)| executed)
    }

    /// Does the work that a row asks for and sends the answer; perhaps later, perhaps several
    /// times.
    fn work(&mut self, by: Process, key: Key, times: u32) {
        let row = self.processes.get(&by).and_then(|running| running.work.get(&key)).cloned();
        let Some(row) = row else { return };
        // Where sources have ended, few sources carry all answers.
        let is_slow = || self.log.requests() > self.log.replies() + BACKLOG;
        let holds_back = !self.ended.is_empty() && is_slow();
        if self.dice.chance(70) && !holds_back {
            self.ids += 1;
            let mut source = self.dice.below(self.settings.sources.into()) as u32;
            if self.ended.contains(&source) {
                source = self.settings.sources - 1;
            }
            let id = self.ids;
            let request =
                Request { id: id.to_be_bytes().into(), call: self.script.answer(&row, id) };
            let record = Record::Requests(vec![request]);
            self.log.append(Topic::Input(source), 0, record).expect("inputs have no fence");
        }
        // The delay doubles: answers that arrive faster than they are executed would never end.
        let in_us = self.delay() + ((20 * MS) << times.min(7));
        self.after(in_us, Step::Work(by, key, times + 1));
    }

    fn send(&mut self, by: Process, to: Address, packet: Packet) {
        if let Packet::Executed { unstable, .. } = &packet {
            self.unstable = self.unstable.take().or(unstable.first().map(|of| of.0.clone()));
        }
        let from = match by {
            Process::Coordinator(_) => Address::Coordinator,
            Process::Worker(member) => Address::Worker(member),
        };
        let to = match to {
            Address::Coordinator => Process::Coordinator(self.coordinator),
            Address::Worker(member) => Process::Worker(member),
        };
        if !self.processes.contains_key(&to) {
            // The receiver is gone.
            return self.broken(by, to);
        }
        if self.cuts.get(&(by.min(to), by.max(to))).is_some_and(|until| *until > self.now_us) {
            // The receiver can't be reached.
            return self.broken(by, to);
        }
        let in_us = self.delay();
        let last = self.ways.entry((by, to)).or_default();
        let at_us = (self.now_us + in_us).max(*last + 1);
        *last = at_us;
        let input = Input::Packet { from, packet };
        self.at(at_us, Step::Packet { by, to, input });
    }
}
