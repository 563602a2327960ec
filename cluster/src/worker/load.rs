//! Going back to the snapshot: rows from its objects, and identities of past outputs from the log.
//!
//! A worker that has executed epochs after that snapshot retains its rows. It undoes the changes
//! since then, and reads only the rows that it did not own. If streams are in event time, all
//! workers read the buffered events again.

use std::collections::{BTreeMap, HashSet};
use std::mem::take;
use std::sync::Arc;

use tidemill_core::{Key, TableId};
use tidemill_function::{InjectedDefect, NodeId, Owners, Path, Rows, Store, Tid};
use tidemill_place::{Partition, PARTITIONS};
use tidemill_txn::program::QuestionId;

use super::ranks::{Ranks, Read};
use super::run::Running;
use super::{Pending, Stage, Worker};
use crate::effect::{Effect, Packet, Records};
use crate::records::{
    behind as behind_of, Form, Manifest, Member, Object, Output, PartRows, Record, Topic,
};
use crate::state::State;

/// The state of a worker that goes back to the snapshot.
pub(super) struct Loading {
    form: Arc<Form>,
    /// The rows of the first objects, if they were read ahead.
    prepared: Option<Rows>,
    node: NodeId,
    objects: Vec<Option<PartRows>>,
    /// The end of the outputs of each source.
    outputs: Vec<Option<u64>>,
    pub known: HashSet<(Tid, Option<Path>)>,
    /// The buffered events, if streams are in event time.
    ranks: Option<Ranks>,
    /// For each source that is read again for them, the progress and the end.
    again: BTreeMap<u32, (u64, u64)>,
    /// Past answers from outside.
    answers: Vec<(Tid, QuestionId, Arc<[u8]>)>,
}

/// The state of a worker's last generation.
pub(super) struct Kept {
    state: State,
    owners: Owners,
    node: NodeId,
    since: u64,
}

impl Kept {
    pub fn of(mut running: Running) -> Kept {
        let state = std::mem::take(running.node.store_mut());
        let owners = running.form.assignment.owners.clone();
        let node = running.own;
        Kept { state, owners, node, since: running.since }
    }

    /// Whether its rows can go back to a snapshot.
    pub fn leads_to(&self, manifest: &Manifest) -> bool {
        self.state.leads_to(manifest.id())
    }

    fn owns(&self, partition: Partition) -> bool {
        self.owners.of(partition) == self.node
    }

    /// Whether it has all rows of an object. This holds if it stored the object itself, and owned
    /// nothing then that it does not own now.
    fn has(&self, me: Member, object: &str) -> bool {
        let mut parts = object.split('-').skip(1);
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
        let (generation, _, member) = (number(), number(), number());
        generation.is_some_and(|of| of >= self.since) && member == Some(me.0.into())
    }
}

impl Worker {
    /// Requests all objects and logs of a snapshot.
    pub(super) fn load(&mut self, form: Arc<Form>, node: NodeId, effects: &mut Vec<Effect>) {
        let id = form.manifest.id();
        let kept = self.kept.as_mut();
        if let Some(kept) = kept {
            match self.settings.function.fault {
                Some(InjectedDefect::KeepState) => {
                    kept.state = State::new(take(&mut kept.state.rows), id)
                }
                Some(InjectedDefect::KeepLayers) => kept.state.spoil_layers(),
                Some(InjectedDefect::KeepParts) => kept.since = 0,
                _ => {}
            }
        }
        let kept = self.kept.take_if(|kept| kept.leads_to(&form.manifest));
        let prepared = self.prepared.take().filter(|_| kept.is_none());
        let keeps = self.is_spoiled_by(InjectedDefect::KeepPrepared);
        let prepared =
            prepared.and_then(|had| Some((had.leads_to(&form.manifest, keeps)?, had.rows)));
        let has = prepared.as_ref().map_or(0, |(has, _)| *has);
        // Objects whose rows are all here are not read.
        let owners = &form.assignment.owners;
        let gains = |kept: &Kept| {
            let mut own = (0..PARTITIONS).map(Partition).filter(|p| owners.of(*p) == node);
            own.any(|partition| !kept.owns(partition))
        };
        let gains = kept.as_ref().is_none_or(gains);
        let is_there = |(nth, name): (usize, &String)| {
            let has_all = |kept: &Kept| !gains || kept.has(self.me, name);
            (nth < has || kept.as_ref().is_some_and(has_all)).then(Arc::default)
        };
        let objects: Vec<_> = form.manifest.objects.iter().enumerate().map(is_there).collect();
        self.kept = kept;
        let asked: Vec<bool> = objects.iter().map(Option::is_none).collect();
        let outputs = vec![None; self.settings.sources as usize];
        let (known, answers) = (HashSet::new(), Vec::new());
        let manifest = form.manifest.clone();
        let prepared = prepared.map(|(_, rows)| rows);
        let event_time = self.settings.event_time.clone();
        let ranks = (!event_time.is_empty())
            .then(|| Ranks::after(event_time, &manifest, self.settings.function.fault));
        let own = |source: u32| form.assignment.reader(source, &self.settings) == node;
        let again = (0..).zip(manifest.inputs_needed().zip(manifest.inputs.iter().copied()));
        let again = again.filter(|(source, (at, upto))| {
            own(*source) && at < upto && !self.is_spoiled_by(InjectedDefect::ForgetBuffered)
        });
        let again: BTreeMap<u32, (u64, u64)> = again.collect();
        let sources: Vec<u32> = again.keys().copied().collect();
        let loading =
            Loading { form, prepared, node, objects, outputs, known, ranks, again, answers };
        self.stage = Stage::Loading(Box::new(loading));
        sources.into_iter().for_each(|source| self.read_again(source, effects));
        for (nth, name) in manifest.objects.iter().enumerate().filter(|(nth, _)| asked[*nth]) {
            let token = self.token(Pending::Object(nth));
            effects.push(Effect::Get { token, name: name.clone() });
        }
        for source in 0..self.settings.sources {
            let from = manifest.outputs.get(source as usize).copied().unwrap_or(0);
            let token = self.token(Pending::Outputs(source));
            let (topic, limit) = (Topic::Output(source), None);
            effects.push(Effect::Read { token, topic, from, limit });
        }
        self.ready(effects);
    }

    /// Takes an object. Requests it again if it could not be read.
    pub(super) fn loaded(&mut self, nth: usize, object: Option<Object>, effects: &mut Vec<Effect>) {
        let Stage::Loading(loading) = &mut self.stage else { return };
        match object {
            Some(Object::Part(rows)) => loading.objects[nth] = Some(rows),
            Some(Object::Manifest(_)) => {
                return effects.push(Effect::Stop { why: "a part of the snapshot is a manifest" });
            }
            None => {
                let name = loading.form.manifest.objects[nth].clone();
                let token = self.token(Pending::Object(nth));
                return effects.push(Effect::Get { token, name });
            }
        }
        self.ready(effects);
    }

    /// Takes the outputs of a source since the snapshot.
    pub(super) fn known(
        &mut self,
        source: u32,
        records: Option<Records>,
        effects: &mut Vec<Effect>,
    ) {
        let forgets = self.is_spoiled_by(InjectedDefect::ReplyAgain);
        let forgets_answers = self.is_spoiled_by(InjectedDefect::ForgetAnswers);
        let known_max = if self.is_spoiled_by(InjectedDefect::KnowFirst) { 1 } else { usize::MAX };
        let Stage::Loading(loading) = &mut self.stage else { return };
        let Some(Records { records, upto }) = records else {
            let from = loading.form.manifest.outputs.get(source as usize).copied().unwrap_or(0);
            let token = self.token(Pending::Outputs(source));
            let (topic, limit) = (Topic::Output(source), None);
            return effects.push(Effect::Read { token, topic, from, limit });
        };
        for (_, record) in records {
            match record {
                Record::Outputs(outputs) => {
                    let count = if forgets { 0 } else { outputs.len().min(known_max) };
                    loading.known.extend(outputs[..count].iter().map(Output::id));
                }
                // The owner of another call's rows may ask the same question.
                Record::Answer { tid, asked, answer } if !forgets_answers => {
                    loading.answers.push((tid, asked, answer));
                }
                _ => {}
            }
        }
        loading.outputs[source as usize] = Some(upto);
        self.ready(effects);
    }

    /// Reads on in the records of a source that may have buffered events.
    fn read_again(&mut self, source: u32, effects: &mut Vec<Effect>) {
        let limit = Some(self.ahead_max());
        let Stage::Loading(loading) = &self.stage else { return };
        let (from, _) = loading.again[&source];
        let (token, topic) = (self.token(Pending::Buffered(source)), Topic::Input(source));
        effects.push(Effect::Read { token, topic, from, limit });
    }

    /// Takes such records.
    pub(super) fn buffered(
        &mut self,
        source: u32,
        records: Option<Records>,
        effects: &mut Vec<Effect>,
    ) {
        let Stage::Loading(loading) = &mut self.stage else { return };
        let Loading { ranks: Some(ranks), again, .. } = &mut **loading else { return };
        let (at, end) = again.get_mut(&source).expect("a read of this source");
        let Records { records, upto } = records.unwrap_or_default();
        for (offset, record) in records {
            let Record::Requests(requests) = record else { continue };
            if (*at..*end).contains(&offset) {
                let (of, functions) = (&self.settings.event_time, &*self.functions);
                for (nth, request) in (0..).zip(requests) {
                    ranks.restore(Read::new((offset, nth), request, source, of, functions));
                }
            }
        }
        *at = upto.max(*at);
        match *at < *end {
            true => self.read_again(source, effects),
            false => self.ready(effects),
        }
    }

    /// Continues when everything has been read.
    fn ready(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Loading(loading) = &mut self.stage else { return };
        let is_whole = loading.objects.iter().all(Option::is_some)
            && loading.outputs.iter().all(Option::is_some)
            && loading.again.values().all(|(at, upto)| at >= upto);
        if !is_whole {
            return;
        }
        let program = self.functions.program();
        let owners = &loading.form.assignment.owners;
        let (id, node) = (loading.form.manifest.id(), loading.node);
        let partition = |table: TableId, key: &Key| {
            tidemill_place::partition_of_bytes(&program.tables[table.index()], &key.0)
        };
        let is_own = |partition: Partition| owners.of(partition) == node;
        let all = || (0..PARTITIONS).map(Partition);
        let mut had = self.kept.take();
        let kept = had.as_mut().map(|kept| take(&mut kept.state));
        let mut rows = match kept {
            Some(state) => state.back_to(id),
            None => {
                let mut prepared = loading.prepared.take();
                if let Some(rows) = &mut prepared {
                    rows.retain(|table, key| is_own(partition(table, key)));
                }
                prepared.unwrap_or_else(|| Rows::new(&program.tables))
            }
        };
        let loses = |kept: &Kept| all().any(|partition| kept.owns(partition) && !is_own(partition));
        let since = match &had {
            Some(kept) if !loses(kept) => kept.since,
            _ => self.generation,
        };
        if had.as_ref().is_some_and(loses) {
            rows.retain(|table, key| is_own(partition(table, key)));
        }
        for (table, key, row) in loading.objects.iter().flatten().flat_map(|part| part.iter()) {
            let partition = partition(*table, key);
            let has = had.as_ref().is_some_and(|kept| kept.owns(partition));
            if is_own(partition) && !has {
                rows.apply(Tid(0), *table, key, row.clone());
            }
        }
        let state = State::new(rows, id);
        let form = loading.form.clone();
        let (known, answers) = (take(&mut loading.known), take(&mut loading.answers));
        let ranks = loading.ranks.take();
        let behind = loading.outputs.iter().map(|end| end.unwrap_or_default()).collect();
        let mut running =
            Running::new(form, since, node, state, known, self.functions.clone(), &self.settings);
        running.behind = behind;
        running.ranks = ranks;
        let left = running.known.iter().map(|(tid, _)| *tid).max();
        if let Some(left) = left.filter(|_| !self.is_spoiled_by(InjectedDefect::JudgeAgain)) {
            running.node.output_left(left);
        }
        let base = running.form.manifest.base;
        for (tid, asked, answer) in answers {
            if behind_of(tid, self.settings.sources) > base {
                running.node.know(tid, asked, answer);
            }
        }
        if self.is_spoiled_by(InjectedDefect::SkipRequest) {
            running.skip();
        }
        let (generation, buffered) = (self.generation, running.buffered());
        self.stage = Stage::Running(Box::new(running));
        self.send(Packet::Formed { generation, buffered }, effects);
        self.report_outputs(effects);
        self.ask(effects);
    }
}
