//! Going back to the snapshot: rows from its objects, and identities of past outputs from the log.
//!
//! A worker that has executed epochs after that snapshot retains its rows. It undoes the changes
//! since then, and loads only the partitions that it did not own. If streams are in event time, all
//! workers read the buffered events again.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;

use tidemill_core::TableSpec;
use tidemill_function::{NodeId, Rows, Tid};
use tidemill_place::PartitionSet;
use tidemill_txn::program::QuestionId;

use super::careful::Verdicts;
use super::known::Known;
use super::ranks::Ranks;
use super::read::Read;
use super::run::Running;
use super::{Pending, Stage, Worker};
use crate::effect::{Effect, Packet, Records, Token};
use crate::parts::LoadedRows;
use crate::records::{base_after, Form, Manifest, Record, Topic, POISON};

/// The state of a worker that goes back to the snapshot.
pub(super) struct Loading {
    form: Arc<Form>,
    /// Rows that were read ahead.
    prepared: Option<Rows>,
    /// The partitions of the rows that are here.
    had: PartitionSet,
    node: NodeId,
    loads: Vec<Load>,
    /// The end of the outputs of each source.
    outputs: Vec<Option<u64>>,
    pub known: Known,
    /// The buffered events, if streams are in event time.
    ranks: Option<Ranks>,
    /// For each source that is read again for them, the progress and the end.
    again: BTreeMap<u32, (u64, u64)>,
    /// Past answers from outside.
    answers: Vec<(Tid, QuestionId, Arc<[u8]>)>,
    verdicts: Verdicts,
}

/// Rows of some partitions, from the objects of the snapshot from one on.
struct Load {
    from: usize,
    partitions: PartitionSet,
    loaded: Option<LoadedRows>,
}

/// The state of a worker's last generation.
pub(super) struct Survivor {
    rows: Rows,
    /// The partitions that it owned.
    partitions: PartitionSet,
}

impl Survivor {
    pub fn of(mut running: Running) -> Survivor {
        let rows = running.node.take_rows();
        let partitions = running.form.assignment.partitions(running.own);
        Survivor { rows, partitions }
    }

    /// Whether its rows can go back to a snapshot.
    pub fn leads_to(&self, manifest: &Manifest) -> bool {
        self.rows.leads_to(manifest.id())
    }
}

impl Worker {
    /// Returns the request for the rows of some partitions, from objects of a snapshot.
    pub(super) fn load_effect(
        &self,
        token: Token,
        manifest: &Manifest,
        from: usize,
        partitions: PartitionSet,
    ) -> Effect {
        let tables: Arc<[TableSpec]> = self.functions.program().tables.as_slice().into();
        let objects = manifest.objects[from..].to_vec();
        Effect::Load { token, program: self.settings.program, objects, partitions, tables }
    }

    /// Requests the rows that are not here, and all logs of a snapshot.
    pub(super) fn load(&mut self, form: Arc<Form>, node: NodeId, effects: &mut Vec<Effect>) {
        let own = form.assignment.partitions(node);
        let survivor = self.survivor.take_if(|survivor| survivor.leads_to(&form.manifest));
        let prepared = self.prepared.take().filter(|_| survivor.is_none());
        let prepared = prepared.and_then(|of| Some((of.leads_to(&form.manifest)?, of)));
        let objects = form.manifest.objects.len();
        let nothing = || [].into_iter().collect();
        let (had, from) = match (&survivor, &prepared) {
            (Some(survivor), _) => (survivor.partitions.clone(), objects),
            (None, Some((from, of))) => (of.partitions.clone(), *from),
            (None, None) => (nothing(), objects),
        };
        let loads = [(0, own.only(&had, false)), (from, own.only(&had, true))];
        let is_needed = |(from, of): &(usize, PartitionSet)| *from < objects && !of.is_empty();
        let load = |(from, partitions)| Load { from, partitions, loaded: None };
        let loads: Vec<Load> = loads.into_iter().filter(is_needed).map(load).collect();
        self.survivor = survivor;
        let outputs = vec![None; self.settings.sources as usize];
        let (known, answers, verdicts) = Default::default();
        let manifest = form.manifest.clone();
        let prepared = prepared.and_then(|(_, of)| of.rows);
        let event_time = self.settings.event_time.clone();
        let ranks = (!event_time.is_empty()).then(|| Ranks::after(event_time, &manifest));
        let reads = |source: u32| form.assignment.reader(source, &self.settings) == node;
        let again = (0..).zip(manifest.inputs_needed().zip(manifest.inputs.iter().copied()));
        let again = again.filter(|(source, (at, upto))| reads(*source) && at < upto);
        let again: BTreeMap<u32, (u64, u64)> = again.collect();
        let sources: Vec<u32> = again.keys().copied().collect();
        let asked = loads.len();
        let loading = Loading {
            form,
            prepared,
            had,
            node,
            loads,
            outputs,
            known,
            ranks,
            again,
            answers,
            verdicts,
        };
        self.stage = Stage::Loading(Box::new(loading));
        sources.into_iter().for_each(|source| self.read_again(source, effects));
        (0..asked).for_each(|nth| self.ask_for_rows(nth, effects));
        for source in 0..self.settings.sources {
            let from = manifest.outputs.get(source as usize).copied().unwrap_or(0);
            let token = self.token(Pending::Outputs(source));
            let (topic, limit) = (Topic::Output(source), None);
            effects.push(Effect::Read { token, topic, from, limit });
        }
        self.ready(effects);
    }

    /// Requests rows.
    fn ask_for_rows(&mut self, nth: usize, effects: &mut Vec<Effect>) {
        let token = self.token(Pending::Rows(nth));
        let Stage::Loading(loading) = &self.stage else { return };
        let Load { from, partitions, .. } = &loading.loads[nth];
        let manifest = &loading.form.manifest;
        effects.push(self.load_effect(token, manifest, *from, partitions.clone()));
    }

    /// Takes rows. Requests them again if they could not be read.
    pub(super) fn loaded(
        &mut self,
        nth: usize,
        loaded: Option<LoadedRows>,
        effects: &mut Vec<Effect>,
    ) {
        let Stage::Loading(loading) = &mut self.stage else { return };
        if loaded.is_none() {
            return self.ask_for_rows(nth, effects);
        }
        loading.loads[nth].loaded = loaded;
        self.ready(effects);
    }

    /// Takes the outputs of a source since the snapshot.
    pub(super) fn known(
        &mut self,
        source: u32,
        records: Option<Records>,
        effects: &mut Vec<Effect>,
    ) {
        let Stage::Loading(loading) = &mut self.stage else { return };
        let Some(Records { records, upto }) = records else {
            let from = loading.form.manifest.outputs.get(source as usize).copied().unwrap_or(0);
            let token = self.token(Pending::Outputs(source));
            let (topic, limit) = (Topic::Output(source), None);
            return effects.push(Effect::Read { token, topic, from, limit });
        };
        for (at, record) in records {
            match record {
                Record::Outputs(outputs) => {
                    outputs.iter().for_each(|output| loading.known.add(output));
                }
                Record::Emitted(emitted) => loading.known.emitted.extend(emitted.ids()),
                Record::Answer { tid, asked: POISON, answer } => {
                    loading.verdicts.add(tid, &answer, (source, at));
                }
                // The owner of another call's rows may ask the same question.
                Record::Answer { tid, asked, answer } => {
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
            let (of, functions) = (&self.settings.event_time, &*self.functions);
            Read::items((source, offset, record), 0, of, functions, |item| {
                ranks.restore(item, *at..*end, functions);
            });
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
        let is_whole = loading.loads.iter().all(|load| load.loaded.is_some())
            && loading.outputs.iter().all(Option::is_some)
            && loading.again.values().all(|(at, upto)| at >= upto);
        if !is_whole {
            return;
        }
        let program = self.functions.program();
        let (id, node) = (loading.form.manifest.id(), loading.node);
        let own = loading.form.assignment.partitions(node);
        let loses = !loading.had.only(&own, false).is_empty();
        let rows = match self.survivor.take() {
            Some(mut survivor) => {
                survivor.rows.go_back_to(id);
                Some(survivor.rows)
            }
            None => loading.prepared.take(),
        };
        let mut rows = rows.unwrap_or_else(|| Rows::new(&program.tables, self.settings.seed));
        if loses {
            rows.retain(|table, key| {
                let spec = &program.tables[table.index()];
                own.contains(tidemill_place::partition_of_bytes(spec, &key.0))
            });
        }
        for LoadedRows { rows: more, removed } in loading.loads.drain(..).filter_map(|of| of.loaded)
        {
            removed.iter().for_each(|(table, key)| rows.remove(*table, key));
            rows.add(more);
        }
        rows.begin(id);
        let form = loading.form.clone();
        let (mut known, answers) = (take(&mut loading.known), take(&mut loading.answers));
        known.emitted.sort_unstable();
        let (ranks, verdicts) = (loading.ranks.take(), take(&mut loading.verdicts));
        let ends = loading.outputs.iter().map(|end| end.unwrap_or_default()).collect();
        let mut running =
            Running::new(form, node, rows, known, self.functions.clone(), &self.settings);
        running.node = running.node.on(self.pool.clone());
        running.loaded_ends = ends;
        running.ranks = ranks;
        running.verdicts = verdicts;
        if let Some(left) = running.known.last() {
            running.node.output_left(left);
        }
        let base = running.form.manifest.base;
        for (tid, asked, answer) in answers {
            if base_after(tid, self.settings.sources) > base {
                running.node.know(tid, asked, answer);
            }
        }
        let (generation, buffered) = (self.generation, running.buffered());
        self.stage = Stage::Running(Box::new(running));
        self.send(Packet::Formed { generation, buffered }, effects);
        self.report_outputs(effects);
        self.ask(effects);
    }
}
