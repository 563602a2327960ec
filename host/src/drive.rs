//! Passes inputs to a state machine, and performs its effects.

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use tidemill_cluster::wire::put_manifest_object;
use tidemill_cluster::{
    load_rows, put_part, Address, Coordinator, Effect, Input, LoadedRows, Manifest, Packet, Record,
    StoredPart, Then, Token, Topic, Worker,
};
use tidemill_core::{Result, TableId};
use tidemill_durable::{Store, Trouble, Within};
use tidemill_env::{panic_message, Env};
use tidemill_function::TableChanges;
use tidemill_mesh::{Lane, Mesh, Peer};
use tidemill_snapshot::merge;

use crate::inbox::Inbox;
use crate::message::Message;
use crate::outside::{Outboxes, Outside};
use crate::store_calls::StoreCalls;
use crate::{Shared, COORDINATOR};

/// The time for which a read waits for records, in microseconds.
const READ_WAIT_US: u64 = 1_000_000;

/// The time after which an object or an answer from outside is requested again, in nanoseconds.
pub(crate) const AGAIN_NS: u64 = 200_000_000;

/// A state machine.
pub(crate) trait Machine {
    /// Handles an input.
    fn handle(&mut self, input: Input, effects: &mut Vec<Effect>);

    /// Returns the generation that its beats name.
    fn generation(&self) -> u64 {
        0
    }
}

/// The time since which a state machine handles inputs, for the thread that sends beats meanwhile.
#[derive(Default)]
pub(crate) struct Busy {
    /// The monotonic time, or 0 if it is idle.
    since_ns: AtomicU64,
    generation: AtomicU64,
}

impl Busy {
    /// Returns its generation, if it has been busy for this long.
    pub fn for_long(&self, now_ns: u64, long_us: u64) -> Option<u64> {
        let since_ns = self.since_ns.load(Ordering::Acquire);
        let is_long = since_ns > 0 && now_ns > since_ns + 1000 * long_us;
        is_long.then(|| self.generation.load(Ordering::Acquire))
    }

    fn begins(&self, now_ns: u64) {
        self.since_ns.store(now_ns.max(1), Ordering::Release);
    }

    fn ends(&self, generation: u64) {
        self.since_ns.store(0, Ordering::Release);
        self.generation.store(generation, Ordering::Release);
    }
}

impl Machine for Worker {
    fn handle(&mut self, input: Input, effects: &mut Vec<Effect>) {
        Worker::handle(self, input, effects);
    }

    fn generation(&self) -> u64 {
        Worker::generation(self)
    }
}

impl Machine for Coordinator {
    fn handle(&mut self, input: Input, effects: &mut Vec<Effect>) {
        Coordinator::handle(self, input, effects);
    }
}

/// The resources that a state machine can reach.
pub(crate) struct Resources {
    pub env: Env,
    pub mesh: Arc<Mesh>,
    pub shared: Shared,
    pub store: StoreCalls,
    pub inbox: Arc<Inbox>,
    pub outside: Arc<Outside>,
    pub busy: Arc<Busy>,
    /// The outboxes of an app with work outside.
    pub outboxes: Option<Arc<dyn Outboxes>>,
    /// The trouble with the rows that were requested last.
    pub reading: Arc<Trouble>,
}

impl Resources {
    /// Creates the resources of a process.
    ///
    /// # Errors
    /// If no thread can be started for the store.
    pub fn new(
        env: &Env,
        mesh: &Arc<Mesh>,
        shared: Shared,
        inbox: Arc<Inbox>,
        cluster: &str,
        outboxes: Option<Arc<dyn Outboxes>>,
    ) -> Result<Resources> {
        Ok(Resources {
            env: env.clone(),
            mesh: mesh.clone(),
            store: StoreCalls::start(env, Arc::new(Within::new(shared.store.clone(), cluster)))?,
            shared,
            outside: Outside::new(env, &inbox),
            inbox,
            busy: Arc::default(),
            outboxes,
            reading: Arc::default(),
        })
    }
}

/// Drives a state machine until its inbox is closed or it has ended as requested (`None`), or until
/// it stops with a reason. A panic is such a reason, and is reported to those that wait for the end
/// of the process.
pub(crate) fn drive<M: Machine>(
    machine: &mut M,
    resources: &Resources,
    tick_us: u64,
    watcher: &mut impl FnMut(&mut M, Seen<'_>),
) -> Option<String> {
    // After a panic, the state machine is only asked for its progress.
    let run = AssertUnwindSafe(|| run(machine, resources, tick_us, watcher));
    match catch_unwind(run) {
        Ok(why) => why.map(str::to_owned),
        Err(panic) => Some(format!(
            "it failed unexpectedly: {} (this is a bug in Tidemill)",
            panic_message(&*panic)
        )),
    }
}

fn run<M: Machine>(
    machine: &mut M,
    resources: &Resources,
    tick_us: u64,
    watcher: &mut impl FnMut(&mut M, Seen<'_>),
) -> Option<&'static str> {
    let mut effects = Vec::new();
    let mut ticked_ns = None;
    loop {
        let now_ns = resources.env.clock.monotonic_ns();
        let due_ns = ticked_ns.map_or(now_ns, |at: u64| at + 1000 * tick_us);
        let wait_us = due_ns.saturating_sub(now_ns) / 1000;
        let inputs = resources.inbox.take(now_ns, wait_us)?;
        resources.busy.begins(resources.env.clock.monotonic_ns());
        for input in inputs {
            machine.handle(input, &mut effects);
        }
        let now_ns = resources.env.clock.monotonic_ns();
        if now_ns >= due_ns {
            ticked_ns = Some(now_ns);
            let (now_us, clock_us) = (now_ns / 1000, resources.env.clock.now_us());
            machine.handle(Input::Tick { now_us, clock_us }, &mut effects);
            watcher(machine, Seen::Tick);
        }
        resources.busy.ends(machine.generation());
        let mut packets: BTreeMap<Peer, Vec<Packet>> = BTreeMap::new();
        let mut appends = Appends::new();
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { to, packet } => {
                    let to = peer(to);
                    watcher(machine, Seen::Sends(to, &packet));
                    packets.entry(to).or_default().push(packet);
                }
                Effect::Append { token, topic, generation, record } => {
                    let (tokens, records) = appends.entry((topic, generation)).or_default();
                    tokens.push(token);
                    records.push(record);
                }
                Effect::Follows { table, since } => watcher(machine, Seen::Follows(table, since)),
                Effect::Changed { epoch, changes } => {
                    watcher(machine, Seen::Changed(epoch, changes));
                }
                // It is handled after all of these.
                Effect::GoOn => resources.inbox.push(Input::GoOn),
                Effect::Stop { why } => return Some(why),
                Effect::End => return None,
                other => resources.perform(other),
            }
        }
        resources.append(appends);
        // All calls and replies are in one lane, in their order, which nodes rely on. A reply that
        // overtook an earlier call would belong to another state. A recovery's reads of the served
        // log use the other lane.
        for (to, packets) in packets {
            resources.mesh.send(to, Lane::Urgent, Message::Packets(packets).bytes());
        }
    }
}

/// An observation of a state machine by its process.
pub(crate) enum Seen<'a> {
    /// It sends this packet.
    Sends(Peer, &'a Packet),
    /// Clients follow a table, from an epoch on.
    Follows(TableId, u64),
    /// An epoch has changed followed tables.
    Changed(u64, Vec<TableChanges>),
    /// A tick has passed.
    Tick,
}

pub(crate) fn peer(address: Address) -> Peer {
    match address {
        Address::Coordinator => COORDINATOR,
        Address::Worker(member) => Peer(member.0),
    }
}

pub(crate) fn address(peer: Peer) -> Address {
    match peer {
        COORDINATOR => Address::Coordinator,
        Peer(number) => Address::Worker(tidemill_cluster::Member(number)),
    }
}

/// Returns the callback for a part that is put or merged.
fn part_stored(inbox: Arc<Inbox>, token: Token) -> Then<Option<StoredPart>> {
    Box::new(move |part| inbox.push(Input::PartStored { token, part }))
}

/// The appends of one turn. Those of one topic are appended together.
type Appends = BTreeMap<(Topic, u64), (Vec<Token>, Vec<Record>)>;

impl Resources {
    /// Returns what holds the process up, as text.
    pub fn trouble(&self) -> Option<String> {
        let store = self.store.trouble().or_else(|| self.reading.now());
        let found = [self.shared.log.trouble(), store];
        let found: Vec<String> = found.into_iter().flatten().collect();
        (!found.is_empty()).then(|| found.join("; "))
    }

    fn append(&self, appends: Appends) {
        for ((topic, generation), (tokens, mut records)) in appends {
            let inbox = self.inbox.clone();
            let log = &self.shared.log;
            match (&tokens[..], records.pop()) {
                (&[token], Some(record)) => {
                    let then = move |result| inbox.push(Input::Appended { token, result });
                    log.append(topic, generation, record, Box::new(then));
                }
                (_, last) => {
                    records.extend(last);
                    let then = move |nth: usize, result| {
                        inbox.push(Input::Appended { token: tokens[nth], result });
                    };
                    log.append_all(topic, generation, records, Arc::new(then));
                }
            }
        }
    }

    fn perform(&self, effect: Effect) {
        let inbox = self.inbox.clone();
        match effect {
            Effect::Read { token, topic, from, limit } => {
                let then = move |records| inbox.push(Input::Records { token, records });
                self.shared.log.read(topic, from, limit, READ_WAIT_US, Box::new(then));
            }
            Effect::PutManifest { token, manifest } => {
                let put = move |store: &Arc<dyn Store>| {
                    let mut bytes = Vec::new();
                    put_manifest_object(&manifest, &mut bytes);
                    store.put(&manifest.name(), &bytes)
                };
                let then = move |is_stored: Option<bool>| {
                    let is_stored = is_stored.unwrap_or(false);
                    inbox.push(Input::Stored { token, is_stored });
                };
                self.store.call(put, Box::new(then));
            }
            Effect::PutPart { token, of, name, rows } => {
                let put = move |store: &Arc<dyn Store>| put_part(&**store, of, &name, &rows);
                self.store.call(put, part_stored(inbox, token));
            }
            Effect::Merge { token, of, name, work } => {
                let merge = move |store: &Arc<dyn Store>| merge(store, of, &name, &work);
                self.store.call(merge, part_stored(inbox, token));
            }
            Effect::Load { token, program, objects, partitions, tables } => {
                let (env, reading) = (self.env.clone(), self.reading.clone());
                let seed = env.random.next_u64();
                let load = move |store: &Arc<dyn Store>| {
                    let tables = (&*tables, seed);
                    let loaded = load_rows(store, program, &objects, &partitions, tables);
                    match &loaded {
                        Ok(_) => reading.is_over(),
                        Err(error) => reading.has(format!("the newest snapshot: {}", error.what)),
                    }
                    loaded
                };
                let then = move |rows: Option<LoadedRows>| match rows {
                    Some(_) => inbox.push(Input::Loaded { token, rows }),
                    None => {
                        let at_ns = env.clock.monotonic_ns() + AGAIN_NS;
                        inbox.push_late(at_ns, Input::Loaded { token, rows });
                    }
                };
                self.store.call(load, Box::new(then));
            }
            Effect::Ask { token, ask } => self.outside.ask(token, ask),
            Effect::Outbox { all, rows, .. } => {
                if let Some(outboxes) = &self.outboxes {
                    outboxes.changed(all, rows);
                }
            }
            Effect::Release { manifest, also, cuts } => self.release(&manifest, also, cuts),
            Effect::Append { .. }
            | Effect::Send { .. }
            | Effect::Follows { .. }
            | Effect::Changed { .. }
            | Effect::GoOn
            | Effect::Stop { .. }
            | Effect::End => {
                unreachable!("the loop does these")
            }
        }
    }

    /// Removes records and objects that are no longer needed.
    fn release(&self, manifest: &Arc<Manifest>, also: Vec<String>, cuts: u64) {
        let log = &self.shared.log;
        log.trim(Topic::Cuts, cuts);
        let (inputs, outputs) = (manifest.inputs_needed(), manifest.outputs_needed());
        for (source, (input, output)) in inputs.zip(outputs).enumerate() {
            log.trim(Topic::Input(source as u32), input);
            log.trim(Topic::Output(source as u32), output);
        }
        // Objects that are not deleted now are deleted after a later snapshot.
        let manifest = manifest.clone();
        let keeps = move |name: &str| manifest.keeps(name) || also.iter().any(|of| of == name);
        self.store.sweep(keeps);
    }
}
