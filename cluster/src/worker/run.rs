//! Executing cuts, and releasing their outputs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use tidemill_core::{Key, LateRow, TableId};
use tidemill_function::{
    Call, Clock, Event, Functions, Message, Node, NodeId, Outbox, Path, Question, Rows, Sequencing,
    Stored, Tid,
};

use super::ranks::{bytes, Before, Ranks, Read};
use super::save::Saving;
use super::{Pending, Stage, Worker};
use crate::effect::{Address, Effect, Packet, Piece, Span};
use crate::event_time::Ranked;
use crate::records::{Buffered, CutRecord, Form, Output, Record, Request, RequestId, Topic};
use crate::Settings;

/// The maximum bytes of outputs in one record. A log might refuse larger records.
const TOGETHER_BYTES: usize = 128 << 10;
/// The place of the event that reports a request's result: after all events of its transaction.
const LAST: [u32; 1] = [u32::MAX];
/// The bits for the number of a part of an epoch. Numbers of an epoch's parts are above those of
/// the epoch before.
const PARTS_BITS: u32 = 24;
/// The approximate number of pieces with events in event time that an epoch takes of a source.
const PIECES: u64 = 4;
/// The maximum number of calls that are reported as not deterministic.
const NAMED_MAX: usize = 100;

/// A source that this worker reads.
pub(super) struct Source {
    /// Its number.
    source: u32,
    /// Requests that no epoch has taken yet. `bytes` is the approximate memory that they take.
    pub requests: VecDeque<Read>,
    pub bytes: u64,
    /// The end of the records that epochs have taken.
    pub taken: u64,
    /// The end of the records that have been read.
    pub upto: u64,
    /// The end of the source, once that has been read.
    ends_at: Option<u64>,
    /// The earlier events of each event source.
    before: Vec<Before>,
    pub is_asked: bool,
}

impl Source {
    /// Takes records that have been read. Returns the report for the coordinator.
    pub fn take(
        &mut self,
        records: Vec<(u64, Record)>,
        upto: u64,
        functions: &dyn Functions,
        settings: &Settings,
    ) -> Vec<Piece> {
        let (had, from) = (self.requests.len(), self.upto);
        for (offset, record) in records {
            if record == Record::End {
                self.ends_at = Some(offset);
            }
            let Record::Requests(requests) = record else { continue };
            if offset >= from {
                let before = &mut self.before;
                let read = |(nth, request)| {
                    let (at, of) = ((offset, nth), &settings.event_time);
                    Read::new(at, request, self.source, of, functions).known(before)
                };
                self.bytes += requests.iter().map(bytes).sum::<u64>();
                self.requests.extend((0..).zip(requests).map(read));
            }
        }
        self.upto = upto.max(from);
        self.pieces(had, from, settings)
    }

    /// Returns all records that no epoch has taken, for a coordinator that may have missed some of
    /// them. Offsets without a request are included. Returns `None` if there are none.
    pub fn open(&self, settings: &Settings) -> Option<(u64, Vec<Piece>)> {
        (self.upto > self.taken).then(|| (self.taken, self.pieces(0, self.taken, settings)))
    }

    /// Takes all requests before an offset.
    fn until(&mut self, upto: u64) -> Vec<Read> {
        self.taken = upto;
        let count = self.requests.partition_point(|read| read.at.0 < upto);
        let taken: Vec<Read> = self.requests.drain(..count).collect();
        self.bytes -= taken.iter().map(|read| bytes(&read.request)).sum::<u64>();
        taken
    }

    /// Returns the pieces from the `nth` request on.
    fn pieces(&self, nth: usize, from: u64, settings: &Settings) -> Vec<Piece> {
        // Pieces with events in event time are not divided. So they are small enough that an epoch
        // takes several.
        let timed_max = (settings.epoch_max / PIECES).max(1);
        let mut pieces: Vec<Piece> = Vec::new();
        let (mut at, mut is_run) = (from, false);
        let mut times: BTreeMap<u32, Span> = BTreeMap::new();
        let push = |pieces: &mut Vec<Piece>, end: u64, requests: u64| {
            pieces.push(Piece { end, requests, times: [].into() });
        };
        let requests: Vec<&Read> = self.requests.range(nth..).collect();
        for record in requests.chunk_by(|one, other| one.at.0 == other.at.0) {
            let (offset, count) = (record[0].at.0, record.len() as u64);
            if offset > at {
                push(&mut pieces, offset, 0);
                is_run = false;
            }
            at = offset + 1;
            let is_timed = record.iter().any(|read| read.timed.is_some());
            let has_room = |run: &&mut Piece| {
                is_run
                    && count == 1
                    && run.times.is_empty() != is_timed
                    && (!is_timed || run.requests < timed_max)
            };
            match pieces.last_mut().filter(has_room) {
                Some(run) => (run.end, run.requests) = (at, run.requests + 1),
                None => {
                    times.clear();
                    push(&mut pieces, at, count);
                }
            }
            if is_timed {
                for read in record {
                    let Some((event_source, time_us)) = read.timed else { continue };
                    let one = Span::of(event_source, time_us);
                    let span = times.entry(event_source).or_insert(one);
                    *span = span.with(time_us);
                    let late = |bound_us| LateRow { offset, time_us, bound_us };
                    span.late = span.late.or(read.late_us.map(late));
                }
                let last = pieces.last_mut().expect("it was pushed");
                last.times = times.values().copied().collect();
            }
            is_run = count == 1;
        }
        if let Some(end) = self.ends_at.filter(|end| (at..self.upto).contains(end)) {
            if end > at {
                push(&mut pieces, end, 0);
            }
            at = end + 1;
            push(&mut pieces, at, 0);
            let last = pieces.last_mut().expect("it was pushed");
            last.times = settings.event_time.end_of(self.source).collect();
        }
        if self.upto > at {
            push(&mut pieces, self.upto, 0);
        }
        pieces
    }
}

/// Requests with their places, by part of an epoch.
pub(super) type Parts = Vec<Vec<(Tid, Request)>>;

/// The requests of a cut.
enum Coming {
    /// Some have not been read yet.
    Later,
    /// All have been read.
    All(Parts),
    /// There are more than the cut has places for.
    TooMany,
}

/// A generation that executes.
pub(super) struct Running {
    pub form: Arc<Form>,
    /// Its node.
    pub own: NodeId,
    pub node: Node,
    pub inputs: BTreeMap<u32, Source>,
    /// The buffered events, if streams are in event time.
    pub ranks: Option<Ranks>,
    /// The client's ids of received requests without a reply. The calls are retained, too, if their
    /// results may be reported to others.
    open: HashMap<Tid, (RequestId, Option<Call>), FixedState>,
    /// Cuts to be executed, and whether snapshots must be taken after them.
    pub cuts: VecDeque<(Arc<CutRecord>, bool)>,
    /// The cut that is being executed. `parts` has its parts that have not begun, each with its
    /// number.
    pub current: Option<(Arc<CutRecord>, bool)>,
    pub parts: VecDeque<(u64, Vec<(Tid, Call)>)>,
    /// The last epoch in the rows. `durable` is the last epoch whose cut is durable.
    pub executed: u64,
    pub durable: u64,
    /// Outputs that wait for their cut to be durable.
    pub held: VecDeque<(u64, Output)>,
    /// Questions to the outside that wait for the cuts of their epochs.
    pub questions: VecDeque<(u64, Question)>,
    /// Rows of outboxes that have changed since the last report. `tells_outbox` says whether there
    /// was one.
    pub outbox: BTreeMap<(TableId, Key), Stored>,
    pub tells_outbox: bool,
    /// The rows of outboxes in the last report.
    pub outside: BTreeSet<(TableId, Key)>,
    /// The outputs that left before.
    pub known: HashSet<(Tid, Option<Path>)>,
    /// The number of outputs of each epoch that are being appended.
    pub appending: BTreeMap<u64, usize>,
    /// The end of the outputs of each source, as far as this worker knows.
    pub ends: Vec<u64>,
    /// For each source, an offset after the outputs that had left when it went back to the
    /// snapshot.
    pub loaded_ends: Vec<u64>,
    /// The bases after the epochs whose outputs may not have been appended completely.
    /// `reported_base` is the last base in a report to the coordinator.
    bases: VecDeque<(u64, u64)>,
    reported_base: Option<u64>,
    pub saving: Option<Saving>,
}

impl Running {
    pub fn new(
        form: Arc<Form>,
        node: NodeId,
        rows: Rows,
        known: HashSet<(Tid, Option<Path>)>,
        functions: Arc<dyn Functions>,
        settings: &Settings,
    ) -> Running {
        let manifest = form.manifest.clone();
        let of = |offsets: &[u64], source: u32| offsets.get(source as usize).copied().unwrap_or(0);
        let own = (0..settings.sources).filter(|s| form.assignment.reader(*s, settings) == node);
        let source = |source| {
            let upto = of(&manifest.inputs, source);
            let requests = VecDeque::new();
            let newest = settings.event_time.newest(&manifest.times);
            let before = newest.into_iter().map(Before::new).collect();
            let of = Source {
                source,
                requests,
                bytes: 0,
                taken: upto,
                upto,
                ends_at: None,
                before,
                is_asked: false,
            };
            (source, of)
        };
        let inputs = own.map(source).collect();
        let ends = (0..settings.sources).map(|source| of(&manifest.outputs, source)).collect();
        let owners = form.assignment.owners.clone();
        Running {
            node: Node::new(node, functions, owners, settings.function, rows),
            inputs,
            ranks: None,
            open: HashMap::default(),
            cuts: VecDeque::new(),
            current: None,
            parts: VecDeque::new(),
            executed: manifest.epoch,
            durable: manifest.epoch,
            held: VecDeque::new(),
            questions: VecDeque::new(),
            outbox: BTreeMap::new(),
            tells_outbox: false,
            outside: BTreeSet::new(),
            known,
            appending: BTreeMap::new(),
            ends,
            loaded_ends: Vec::new(),
            bases: VecDeque::new(),
            reported_base: None,
            saving: None,
            own: node,
            form,
        }
    }

    /// Returns the buffered events.
    pub fn buffered(&self) -> Buffered {
        self.ranks.as_ref().map_or_else(Buffered::default, Ranks::buffered)
    }

    /// Takes the requests of a cut that this worker received, each with its place. If there are
    /// streams in event time, others must know of them first. Then `tells` gets the report for
    /// them.
    fn requests(
        &mut self,
        cut: &CutRecord,
        settings: &Settings,
        functions: &dyn Functions,
        tells: &mut Option<Vec<Ranked>>,
    ) -> Coming {
        let sources = settings.sources;
        let order = Sequencing { sources, base: cut.base };
        let upto = |source: u32| cut.upto[source as usize];
        if self.inputs.iter().any(|(&source, input)| input.upto < upto(source)) {
            return Coming::Later;
        }
        let parts = match &mut self.ranks {
            None => {
                let mut requests = Vec::new();
                for (&source, input) in &mut self.inputs {
                    let own = input.until(upto(source));
                    if own.len() as u64 > cut.count {
                        return Coming::TooMany;
                    }
                    let placed = |(nth, read): (u64, Read)| (order.tid(source, nth), read.request);
                    requests.extend((0..).zip(own).map(placed));
                }
                vec![requests]
            }
            Some(ranks) => {
                if !ranks.has_own() {
                    let read = |(&source, input): (&u32, &mut Source)| {
                        let own = input.until(upto(source));
                        own.into_iter().map(move |read| (source, read))
                    };
                    let read = self.inputs.iter_mut().flat_map(read).collect();
                    *tells = Some(ranks.take(cut, read, functions));
                }
                let others = self.form.assignment.members.len() - 1;
                let part_max = settings.epoch_max * u64::from(sources);
                match ranks.places(cut.epoch, order, others, part_max, functions) {
                    None => return Coming::Later,
                    Some((_, places)) if places > cut.count => return Coming::TooMany,
                    Some((parts, _)) => parts,
                }
            }
        };
        for (tid, Request { id, call }) in parts.iter().flatten() {
            let kept = settings.copies_outputs.then(|| call.clone());
            self.open.insert(*tid, (id.clone(), kept));
        }
        Coming::All(parts)
    }
}

/// Groups outputs into records of at most `max`.
fn together(outputs: Vec<Output>, max: usize) -> Vec<Vec<Output>> {
    let mut records: Vec<Vec<Output>> = Vec::new();
    let mut bytes = 0;
    for output in outputs {
        let own = output.log_bytes();
        match records.last_mut().filter(|last| last.len() < max && bytes + own <= TOGETHER_BYTES) {
            Some(last) => {
                last.push(output);
                bytes += own;
            }
            None => {
                records.push(vec![output]);
                bytes = own;
            }
        }
    }
    records
}

impl Worker {
    /// Executes epochs as long as it can. A node without others ends an epoch as it begins it.
    pub(super) fn go_on(&mut self, effects: &mut Vec<Effect>) {
        while self.begin_next(effects) {
            let Stage::Running(running) = &self.stage else { return };
            // It must send beats meanwhile. The next tick begins the rest.
            if running.form.assignment.members.len() == 1 && !running.parts.is_empty() {
                return;
            }
        }
    }

    /// Begins the next epoch, or the next part of one, if it can.
    fn begin_next(&mut self, effects: &mut Vec<Effect>) -> bool {
        let Stage::Running(running) = &mut self.stage else { return false };
        if running.node.is_running() || (running.current.is_none() && !self.take_next(effects)) {
            return false;
        }
        let Stage::Running(running) = &mut self.stage else { return false };
        let Some((number, requests)) = running.parts.pop_front() else { return false };
        let now_us = running.current.as_ref().map_or(0, |(cut, _)| cut.clock_us);
        let marks_us = running.ranks.as_ref().map_or_else(|| [].into(), Ranks::marks_us);
        let mut out = Outbox::default();
        running.node.begin(number, Clock { now_us, marks_us }, requests, &mut out);
        self.take(out, effects);
        true
    }

    /// Takes the next cut, if all of its requests have been read.
    fn take_next(&mut self, effects: &mut Vec<Effect>) -> bool {
        let Stage::Running(running) = &mut self.stage else { return false };
        let Some((cut, _)) = running.cuts.front() else { return false };
        let cut = cut.clone();
        let mut tells = None;
        let coming = running.requests(&cut, &self.settings, &*self.functions, &mut tells);
        if let Some(ranks) = tells {
            let (generation, from, epoch) = (self.generation, running.own, cut.epoch);
            for member in running.form.assignment.members.iter().filter(|of| **of != self.me) {
                let ranks = ranks.clone();
                let packet = Packet::Ranks { generation, from, epoch, ranks };
                effects.push(Effect::Send { to: Address::Worker(*member), packet });
            }
        }
        let parts = match coming {
            Coming::All(parts) => parts,
            Coming::Later => return false,
            Coming::TooMany => {
                // Other sources have the places after these, so two requests would have the same
                // place.
                let why = "a cut in the log has more requests than were counted when it was made: \
                           this version reads them differently, or the log has been changed";
                effects.push(Effect::Stop { why });
                return false;
            }
        };
        running.current = running.cuts.pop_front();
        running.bases.push_back((cut.epoch, cut.next_base()));
        let first = cut.epoch << PARTS_BITS;
        let part = |(number, requests): (u64, Vec<(Tid, Request)>)| {
            (number, requests.into_iter().map(|(tid, request)| (tid, request.call)).collect())
        };
        running.parts = (first..).zip(parts).map(part).collect();
        true
    }

    /// Takes a message of another node.
    pub(super) fn receive(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let mut out = Outbox::default();
        running.node.receive(from, message, &mut out);
        self.take(out, effects);
        self.go_on(effects);
    }

    /// Sends the messages of a node, and handles its events.
    pub(super) fn take(&mut self, out: Outbox, effects: &mut Vec<Effect>) {
        let generation = self.generation;
        let Stage::Running(running) = &mut self.stage else { return };
        let from = running.form.assignment.node_of(self.me).expect("it is a member");
        for (to, message) in out.messages {
            let to = Address::Worker(running.form.assignment.members[usize::from(to.0)]);
            let packet = Packet::Node { generation, from, message };
            effects.push(Effect::Send { to, packet });
        }
        let mut has_committed = false;
        let epoch = running.current.as_ref().map_or(0, |(cut, _)| cut.epoch);
        for event in out.events {
            let output = match event {
                Event::Replied { tid, outcome } => {
                    let (id, call) = running.open.remove(&tid).expect("it came in here");
                    let told = call.and_then(|call| self.functions.result_event(&call, &outcome));
                    if let Some((stream, row)) = told {
                        let path = LAST.as_slice().into();
                        running.held.push_back((epoch, Output::Event { tid, path, stream, row }));
                    }
                    Output::Reply { tid, id, outcome }
                }
                Event::Emitted { tid, path, stream, row } => {
                    Output::Event { tid, path, stream, row }
                }
                Event::Committed { .. } => {
                    has_committed = true;
                    continue;
                }
                Event::Outbox { table, key, row } => {
                    running.outbox.insert((table, key), row);
                    continue;
                }
                Event::Asked(question) => {
                    running.questions.push_back((epoch, question));
                    continue;
                }
                Event::NotDeterministic { call, .. } => {
                    if self.not_deterministic.len() < NAMED_MAX {
                        self.not_deterministic.push(call);
                    }
                    continue;
                }
            };
            running.held.push_back((epoch, output));
        }
        let is_whole = has_committed && running.parts.is_empty();
        self.let_out(effects);
        self.ask_outside(effects);
        if is_whole {
            self.executed(epoch, effects);
        }
    }

    /// Appends outputs whose cut is durable, and that have not left before.
    pub(super) fn let_out(&mut self, effects: &mut Vec<Effect>) {
        let (generation, sources) = (self.generation, u64::from(self.settings.sources));
        let Stage::Running(running) = &mut self.stage else { return };
        let mut leaving: BTreeMap<(u64, u32), Vec<Output>> = BTreeMap::new();
        while let Some((epoch, _)) = running.held.front() {
            if *epoch > running.durable {
                break;
            }
            let (epoch, output) = running.held.pop_front().expect("the front exists");
            if !running.known.remove(&output.id()) {
                *running.appending.entry(epoch).or_default() += 1;
                let source = ((output.id().0 .0 - 1) % sources) as u32;
                leaving.entry((epoch, source)).or_default().push(output);
            }
        }
        for ((epoch, source), outputs) in leaving {
            for outputs in together(outputs, self.settings.outputs_max) {
                let count = outputs.len();
                let token = self.token(Pending::Leaving { epoch, source, count });
                let (topic, record) = (Topic::Output(source), Record::Outputs(outputs));
                effects.push(Effect::Append { token, topic, generation, record });
            }
        }
        self.report_outputs(effects);
        self.part_ready(effects);
    }

    /// Notes that outputs are durable.
    pub(super) fn left(
        &mut self,
        epoch: u64,
        source: u32,
        count: usize,
        at: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Stage::Running(running) = &mut self.stage else { return };
        let end = &mut running.ends[source as usize];
        *end = (*end).max(at + 1);
        if let Some(left) = running.appending.get_mut(&epoch) {
            *left -= count;
            if *left == 0 {
                running.appending.remove(&epoch);
            }
        }
        self.report_outputs(effects);
        self.part_ready(effects);
    }

    /// Notes that an epoch has been executed.
    fn executed(&mut self, epoch: u64, effects: &mut Vec<Effect>) {
        let generation = self.generation;
        let Stage::Running(running) = &mut self.stage else { return };
        running.executed = epoch;
        let buffered = running.buffered();
        let current = running.current.take();
        if current.is_some_and(|(_, takes_snapshot)| takes_snapshot) {
            self.save(epoch, effects);
        }
        self.report_outbox(effects);
        self.send(Packet::Executed { generation, epoch, buffered }, effects);
        self.report_outputs(effects);
    }

    /// Reports the epochs of which it has nothing more to append, if that has changed.
    pub(super) fn report_outputs(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        if !self.settings.copies_outputs {
            return;
        }
        // An epoch may still change as long as its cut is not durable.
        let mut last = running.executed.min(running.durable);
        let held = running.held.front().map(|(epoch, _)| *epoch);
        let appending = running.appending.keys().next().copied();
        for epoch in held.into_iter().chain(appending) {
            last = last.min(epoch - 1);
        }
        let mut base = running.reported_base.unwrap_or(running.form.manifest.base);
        while let Some((_, of)) = running.bases.pop_front_if(|(epoch, _)| *epoch <= last) {
            base = of;
        }
        if running.reported_base.replace(base) != Some(base) {
            self.repeat_outputs(effects);
        }
    }

    /// Repeats the report, because the coordinator ignores it before all members are ready.
    pub(super) fn repeat_outputs(&self, effects: &mut Vec<Effect>) {
        let (generation, Stage::Running(running)) = (self.generation, &self.stage) else { return };
        let Some(base) = running.reported_base else { return };
        let ends =
            running.ends.iter().zip(&running.loaded_ends).map(|(end, loaded)| *end.max(loaded));
        self.send(Packet::Left { generation, base, ends: ends.collect() }, effects);
    }
}
