//! The effect of the settings on generations, cuts and snapshots, and the end, on a coordinator
//! whose log, store and members answer at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tidemill_cluster::{
    Address, Buffered, Coordinator, CutRecord, Effect, EventTime, Fault, Form, Input, Manifest,
    Member, Packet, Piece, Record, Records, Settings, Topic,
};
use tidemill_function::Tid;
use tidemill_snapshot::{DataObject, Work, SHARDS};

const MS: u64 = 1_000;

/// The values that the documentation gives for settings of the same name.
fn settings() -> Settings {
    Settings {
        seed: 7,
        program: 0,
        sources: 2,
        followed: 0,
        lease_us: 2_000 * MS,
        beat_us: 100 * MS,
        form_us: 10_000 * MS,
        epoch_max: 250,
        columns_max: 100,
        has_sole_owner: false,
        alternates: false,
        outputs_max: 1,
        output_bytes: 1_000,
        copies_outputs: false,
        snapshot_every: 1,
        snapshot_us: 1_000 * MS,
        event_time: Arc::new(EventTime::default()),
        resumed: [].into(),
        buffered_bytes_max: u64::MAX,
        memory_bytes_max: u64::MAX,
        stops_on_fault: false,
        clock_jump_us_max: i64::MAX,
        deaths_max: u32::MAX,
        function: tidemill_function::Settings::default(),
    }
}

/// A coordinator with its environment, and a record of its effects.
struct Run {
    machine: Coordinator,
    /// Inputs that have not been handed over yet.
    inbox: VecDeque<Input>,
    now_us: u64,
    members: Vec<Member>,
    /// Whether the members do not get ready, though they are alive.
    is_stuck: bool,
    /// Whether they do not execute cuts.
    is_slow: bool,
    /// The bytes of a member's rows that change between two snapshots, of 200.
    changes: u64,
    /// The merges, and whether none can be stored.
    merges: Vec<(Member, Arc<Work>)>,
    merges_fail: bool,
    /// Whether manifests can't be stored.
    store_fails: bool,
    log: BTreeMap<Topic, Vec<Record>>,
    /// The number of requests of the first source that can be read.
    requests: u64,
    /// The generations, each with the time when it began to form.
    forms: Vec<(u64, Arc<Form>)>,
    cuts: Vec<Arc<CutRecord>>,
    /// The times when snapshots were begun.
    snapshots: Vec<u64>,
    manifests: Vec<Arc<Manifest>>,
    /// The faults that a member reports, by epoch.
    faults: BTreeMap<u64, (Tid, Fault)>,
    /// The last epoch whose outputs may leave.
    released: u64,
    /// Whether everything executed was in a snapshot, after each input.
    wholes: Vec<bool>,
    /// Whether the coordinator has ended.
    has_ended: bool,
}

impl Run {
    fn new(settings: Settings, members: u32) -> Run {
        let mut run = Run {
            machine: Coordinator::new(settings),
            inbox: VecDeque::new(),
            now_us: 0,
            members: (1..=members).map(Member).collect(),
            is_stuck: false,
            is_slow: false,
            changes: 1,
            merges: Vec::new(),
            merges_fail: false,
            store_fails: false,
            log: BTreeMap::new(),
            requests: 0,
            forms: Vec::new(),
            cuts: Vec::new(),
            snapshots: Vec::new(),
            manifests: Vec::new(),
            faults: BTreeMap::new(),
            released: 0,
            wholes: Vec::new(),
            has_ended: false,
        };
        run.tick();
        run
    }

    /// A millisecond passes, and all members send beats.
    fn tick(&mut self) {
        let generation = self.forms.last().map_or(0, |(_, form)| form.generation);
        for member in self.members.clone() {
            self.say(member, Packet::Beat { generation });
        }
        self.now_us += MS;
        let clock_us = self.now_us.cast_signed();
        self.give(Input::Tick { now_us: self.now_us, clock_us });
    }

    fn until(&mut self, mut is_so: impl FnMut(&Run) -> bool) {
        while !is_so(self) {
            assert!(self.now_us < 1_000_000 * MS, "the condition never holds");
            self.tick();
        }
    }

    /// Makes more of the first source available: records of these numbers of requests.
    fn offer(&mut self, pieces: &[Piece]) {
        let Some((_, form)) = self.forms.last() else { panic!("no generation forms") };
        let (generation, from) = (form.generation, self.requests);
        self.requests = pieces.last().map_or(from, |piece| piece.end);
        let pieces = pieces.to_vec();
        let packet = Packet::Available { generation, source: 0, from, pieces };
        self.say(self.members[0], packet);
    }

    fn say(&mut self, member: Member, packet: Packet) {
        self.give(Input::Packet { from: Address::Worker(member), packet });
    }

    /// Hands over an input, and performs the effects, one after the other.
    fn give(&mut self, input: Input) {
        self.inbox.push_back(input);
        if self.inbox.len() > 1 {
            return;
        }
        while let Some(input) = self.inbox.front().cloned() {
            let mut effects = Vec::new();
            self.machine.handle(input, &mut effects);
            self.wholes.push(self.machine.is_whole());
            effects.into_iter().for_each(|effect| self.act(effect));
            self.inbox.pop_front();
        }
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Append { token, topic, record, .. } => {
                if let Record::Snapshot(manifest) = &record {
                    self.manifests.push(manifest.clone());
                }
                let records = self.log.entry(topic).or_default();
                records.push(record);
                let result = Ok(records.len() as u64 - 1);
                self.give(Input::Appended { token, result });
            }
            Effect::Read { token, topic, from, .. } => {
                let there = self.log.get(&topic).map_or(&[][..], |records| records);
                let upto = there.len() as u64;
                let records = (0..upto).zip(there.iter().cloned());
                let records = records.skip_while(|(offset, _)| *offset < from).collect();
                let records = Some(Records { records, upto });
                self.give(Input::Records { token, records });
            }
            Effect::End => self.has_ended = true,
            Effect::PutManifest { token, .. } => {
                let is_stored = !self.store_fails;
                self.give(Input::Stored { token, is_stored });
            }
            Effect::Send { to: Address::Worker(member), packet } => self.react(member, packet),
            _ => {}
        }
    }

    /// Performs a member's reaction to a packet.
    fn react(&mut self, member: Member, packet: Packet) {
        if !self.members.contains(&member) {
            return;
        }
        let is_first = member == self.members[0];
        match packet {
            Packet::Form(form) => {
                let generation = form.generation;
                if is_first {
                    self.forms.push((self.now_us, form));
                }
                if !self.is_stuck {
                    self.say(member, Packet::Formed { generation, buffered: Buffered::default() });
                }
            }
            Packet::Merge { generation, name, work, .. } => {
                self.merges.push((member, work.clone()));
                let part = (!self.merges_fail).then(|| {
                    let bytes = work.inputs().map(|object| object.shards[0]).max();
                    Some(object(&name, bytes.unwrap_or_default()))
                });
                self.say(member, Packet::Merged { generation, name, part });
            }
            Packet::Durable { released, .. } => self.released = released,
            Packet::Cut { generation, cut, plan } => {
                let takes_snapshot = plan.takes_snapshot;
                let epoch = cut.epoch;
                if is_first {
                    self.cuts.push(cut);
                    self.snapshots.extend(takes_snapshot.then_some(self.now_us));
                }
                if takes_snapshot {
                    let bytes = if self.manifests.is_empty() { 200 } else { self.changes };
                    let part = Some(Some(object(&format!("{member:?}-{epoch}"), bytes)));
                    let (outputs, waiting) = (vec![0, 0], Vec::new());
                    self.say(member, Packet::Part { generation, epoch, part, outputs, waiting });
                }
                if self.is_slow {
                    return;
                }
                self.say(
                    member,
                    Packet::Executed {
                        generation,
                        epoch,
                        buffered: Buffered::default(),
                        counts: Default::default(),
                        fault: self.faults.get(&epoch).cloned(),
                        unstable: Vec::new(),
                    },
                );
            }
            _ => {}
        }
    }
}

/// Creates an object with so many bytes in one shard.
fn object(name: &str, bytes: u64) -> DataObject {
    let mut shards = [0; SHARDS];
    shards[0] = bytes;
    DataObject { name: name.into(), len: bytes, root: 0, level: 0, shards }
}

/// Creates a piece of single requests up to an offset.
fn run(end: u64, requests: u64) -> Piece {
    Piece { end, requests, by_column: false, times: [].into() }
}

#[test]
fn a_generation_that_does_not_begin_is_given_up_and_the_next_has_twice_as_long() {
    for form_us in [10_000 * MS, 70 * MS] {
        let mut run = Run::new(Settings { form_us, ..settings() }, 2);
        run.is_stuck = true;
        run.until(|run| run.forms.len() == 4);
        let since: Vec<u64> = run.forms.iter().map(|(at_us, _)| *at_us).collect();
        let waited: Vec<u64> = since.windows(2).map(|two| two[1] - two[0]).collect();
        // The coordinator looks at the clock once a millisecond.
        assert_eq!(waited, [form_us + MS, 2 * form_us + MS, 4 * form_us + MS]);
        assert!(run.machine.running().is_none());
        run.is_stuck = false;
        run.until(|run| run.machine.running().is_some());
        assert_eq!(run.forms.len(), 5);
        // A running generation is not given up.
        (0..2 * form_us / MS).for_each(|_| run.tick());
        assert_eq!(run.forms.len(), 5);
    }
}

#[test]
fn an_epoch_has_so_many_requests_of_a_source_or_those_of_one_message() {
    for epoch_max in [250, 2_500, 1] {
        let mut all = Run::new(Settings { epoch_max, ..settings() }, 2);
        all.until(|all| all.machine.running().is_some());
        let end = 10 * epoch_max;
        // All of it can be read before the first cut is made.
        let more = epoch_max + 1;
        all.offer(&[run(end, end), run(end + 1, more), run(end + 2, 2 * more)]);
        all.until(|all| all.cuts.last().is_some_and(|cut| cut.upto[0] == end + 2));
        let counts: Vec<u64> = all.cuts.iter().map(|cut| cut.count).collect();
        assert_eq!(counts, [vec![epoch_max; 10], vec![more, 2 * more]].concat());
    }
}

#[test]
fn a_cut_that_is_ahead_has_its_own_time() {
    let mut all = Run::new(settings(), 2);
    all.until(|all| all.machine.running().is_some());
    all.is_slow = true;
    for nth in 1..=2 {
        (0..10).for_each(|_| all.tick());
        all.offer(&[run(nth * 250, 250)]);
        // The second cut is made while the first one is executed, because it is a full one.
        assert_eq!(all.cuts.len() as u64, nth);
        assert_eq!(all.cuts.last().map(|cut| cut.clock_us), Some(all.now_us.cast_signed()));
    }
}

#[test]
fn snapshots_are_so_long_apart() {
    for snapshot_us in [1_000 * MS, 50 * MS] {
        let mut all = Run::new(Settings { snapshot_us, ..settings() }, 2);
        all.until(|all| all.machine.running().is_some());
        for _ in 0..10 * snapshot_us / MS {
            all.offer(&[run(all.requests + 1, 1)]);
            all.tick();
        }
        let apart = all.snapshots.windows(2).map(|two| two[1] - two[0]);
        assert!(apart.into_iter().all(|us| us == snapshot_us), "{:?}", all.snapshots);
        assert_eq!(all.manifests.len(), all.snapshots.len());
        assert!((9..=11).contains(&all.snapshots.len()), "{:?}", all.snapshots);
        assert!(all.cuts.len() as u64 >= 10 * snapshot_us / MS, "there are many more cuts");
    }
}

#[test]
fn the_last_requests_are_in_a_snapshot_though_no_more_come() {
    let mut all = Run::new(settings(), 2);
    all.until(|all| all.machine.running().is_some());
    all.offer(&[run(1, 1)]);
    all.until(|all| !all.manifests.is_empty());
    // These come when no snapshot is due.
    all.offer(&[run(2, 1)]);
    all.until(|all| all.cuts.last().is_some_and(|cut| cut.upto[0] == 2));
    let of = |all: &Run| all.manifests.last().map(|manifest| (manifest.epoch, manifest.inputs[0]));
    all.until(|all| of(all).is_some_and(|(_, input)| input == 2));
    let apart = all.snapshots[1] - all.snapshots[0];
    assert!((1_000 * MS..1_050 * MS).contains(&apart), "{apart}");
    // Then there is nothing to do.
    let cuts = all.cuts.len();
    assert_eq!(of(&all).map(|(epoch, _)| epoch), all.cuts.last().map(|cut| cut.epoch));
    (0..10_000).for_each(|_| all.tick());
    assert_eq!((all.cuts.len(), all.manifests.len()), (cuts, 2));
    // While the store is away, there are fewer and fewer cuts for it.
    all.store_fails = true;
    all.offer(&[run(3, 1)]);
    (0..200_000).for_each(|_| all.tick());
    assert!((7..11).contains(&(all.cuts.len() - cuts)), "{}", all.cuts.len() - cuts);
    all.store_fails = false;
    all.until(|all| of(all).is_some_and(|(_, input)| input == 3));
}

#[test]
fn workers_merge_the_objects_in_turn_and_snapshots_stay_small() {
    for (members, changes, merges_fail) in [(1, 5, false), (3, 99, false), (2, 50, true)] {
        let mut all = Run::new(Settings { snapshot_us: 0, ..settings() }, members);
        (all.changes, all.merges_fail) = (changes, merges_fail);
        all.until(|all| all.machine.running().is_some());
        while all.manifests.len() < 120 {
            all.offer(&[run(all.requests + 1, 1)]);
            all.tick();
        }
        let most = all.manifests.iter().map(|manifest| manifest.objects.len()).max().unwrap();
        let mergers: BTreeSet<Member> = all.merges.iter().map(|(member, _)| *member).collect();
        match merges_fail {
            // Nothing is lost. Each snapshot is followed by another attempt.
            true => assert_eq!((most, all.merges.len()), (240, 120)),
            false => {
                assert!(most < 50, "{most} objects");
                assert_eq!(mergers.len(), members as usize);
            }
        }
        // A snapshot has the objects of the one before, except for merged ones.
        for two in all.manifests.windows(2) {
            let is_merged = |name: &String| {
                all.merges.iter().any(|(_, work)| work.inputs().any(|of| of.name == *name))
            };
            let names = two.iter().map(|of| of.objects.iter().map(|object| object.name.clone()));
            let [before, after] = [names.clone().next(), names.clone().nth(1)];
            let after: BTreeSet<String> = after.unwrap().collect();
            assert!(before.unwrap().all(|name| after.contains(&name) || is_merged(&name)));
        }
    }
}

#[test]
fn requests_that_have_come_are_executed_before_the_end() {
    let mut all = Run::new(settings(), 2);
    all.until(|all| all.machine.running().is_some());
    all.offer(&[run(400, 400)]);
    all.give(Input::Drain { ends: vec![1_000, 0] });
    all.until(|all| all.cuts.last().is_some_and(|cut| cut.upto[0] == 400));
    // The last ones are in the log, and become available later.
    (0..100).for_each(|_| all.tick());
    assert!(!all.has_ended);
    all.offer(&[run(1_000, 600)]);
    all.until(|all| all.has_ended);
    assert_eq!(all.cuts.last().unwrap().upto[0], 1_000);
    assert_eq!(all.wholes.last(), Some(&true));
    // Without workers nothing can be executed.
    let mut all = Run::new(settings(), 0);
    all.give(Input::Drain { ends: vec![1_000, 0] });
    all.until(|all| all.has_ended);
}

#[test]
fn a_coordinator_that_has_lost_its_workers_knows_that_its_last_cuts_are_in_no_snapshot() {
    for ends_at_once in [true, false] {
        let mut all = Run::new(Settings { snapshot_us: 900_000 * MS, ..settings() }, 2);
        all.until(|all| all.machine.running().is_some());
        all.offer(&[run(1, 1)]);
        all.until(|all| !all.cuts.is_empty());
        assert!(all.manifests.is_empty());
        // While it reads the log again, its own cuts are not in its memory.
        all.wholes.clear();
        all.members.clear();
        if ends_at_once {
            all.give(Input::Leave);
        }
        all.until(|all| all.machine.running().is_none());
        all.give(Input::Leave);
        all.until(|all| all.has_ended);
        assert!(all.wholes.iter().all(|is_whole| !is_whole));
    }
}

/// Returns the faults of a run: one in an epoch.
fn fault_in(epoch: u64) -> BTreeMap<u64, (Tid, Fault)> {
    let fault = Fault { what: "function pay failed".into(), line: Some("app.py:3".into()) };
    [(epoch, (Tid(9), fault))].into()
}

#[test]
fn a_fault_withdraws_its_cut_and_ends_the_run_after_a_snapshot() {
    let settings = Settings { stops_on_fault: true, snapshot_us: 900_000 * MS, ..settings() };
    let mut all = Run::new(settings, 2);
    all.until(|all| all.machine.running().is_some());
    all.faults = fault_in(2);
    for end in 1..=2 {
        all.offer(&[run(end, 1)]);
        all.until(|all| all.cuts.len() as u64 >= end);
    }
    all.until(|all| all.has_ended);
    assert_eq!(all.machine.fault(), Some(&all.faults[&2].1));
    assert!(all.machine.is_whole());
    let of = |all: &Run, wanted: fn(&Record) -> bool| {
        all.log[&Topic::Cuts].iter().filter(|record| wanted(record)).count()
    };
    assert_eq!(of(&all, |record| matches!(record, Record::Withdrawn { epoch: 2, .. })), 1);
    // The last cut has nothing in it, and begins after the places of the one that was withdrawn.
    let (last, withdrawn) = (all.cuts.last().unwrap(), &all.cuts[1]);
    assert_eq!((last.epoch, last.count, &last.upto), (2, 0, &withdrawn.from));
    assert_eq!((last.base, last.stops_on_fault), (withdrawn.next_base(), false));
    assert_eq!(all.manifests.last().unwrap().inputs, withdrawn.from);
}

#[test]
fn nothing_of_an_epoch_is_released_before_all_have_executed_it() {
    let mut all = Run::new(Settings { stops_on_fault: true, ..settings() }, 2);
    all.until(|all| all.machine.running().is_some());
    all.is_slow = true;
    all.offer(&[run(1, 1)]);
    all.until(|all| all.machine.progress().epoch == 1);
    (0..5).for_each(|_| all.tick());
    let generation = all.forms[0].1.generation;
    for (nth, member) in all.members.clone().into_iter().enumerate() {
        assert_eq!(all.released, 0, "{nth} have executed it");
        let (buffered, counts) = (Buffered::default(), Default::default());
        let (epoch, fault, unstable) = (1, None, Vec::new());
        let executed = Packet::Executed { generation, epoch, buffered, counts, fault, unstable };
        all.say(member, executed);
    }
    assert_eq!(all.released, 1);
}

#[test]
fn a_fault_of_an_earlier_run_that_went_on_ends_no_later_one() {
    let settings = Settings { snapshot_us: 900_000 * MS, ..settings() };
    let mut all = Run::new(settings.clone(), 2);
    all.until(|all| all.machine.running().is_some());
    all.faults = fault_in(1);
    all.offer(&[run(1, 1)]);
    all.until(|all| all.machine.progress().executed == 1);
    assert!(!all.has_ended && all.released == 1 && all.manifests.is_empty());
    // The coordinator dies, and the next one executes that cut again.
    all.machine = Coordinator::new(Settings { stops_on_fault: true, ..settings });
    (all.forms, all.released) = (Vec::new(), 0);
    all.until(|all| all.machine.progress().executed == 1);
    assert!(all.machine.fault().is_none() && all.released == 1);
}

#[test]
fn what_another_coordinator_has_recorded_is_not_withdrawn() {
    let settings = Settings { stops_on_fault: true, snapshot_us: 900_000 * MS, ..settings() };
    let mut all = Run::new(settings.clone(), 2);
    all.until(|all| all.machine.running().is_some());
    all.offer(&[run(1, 1)]);
    all.until(|all| all.released == 1);
    // Its outputs have left. Now the function fails in it, such as without a file that it reads.
    all.faults = fault_in(1);
    all.machine = Coordinator::new(settings);
    (all.forms, all.released) = (Vec::new(), 0);
    all.until(|all| all.has_ended);
    assert_eq!(all.machine.fault(), Some(&all.faults[&1].1));
    assert!(all.released == 0 && !all.machine.is_whole());
    let is_withdrawn = |record: &Record| matches!(record, Record::Withdrawn { .. });
    assert!(!all.log[&Topic::Cuts].iter().any(is_withdrawn));
}
