//! Going back to the snapshot: rows from its objects, and what has left since from the outputs.

use std::collections::HashSet;
use std::sync::Arc;

use tidemill_core::{Key, TableId};
use tidemill_function::{Fault, NodeId, Path, Rows, Store, Stored, Tid};

use super::run::Running;
use super::{Stage, Wish, Worker};
use crate::effect::{Effect, Packet, Records};
use crate::records::{Form, Object, Record, Topic};
use crate::state::State;

/// What is still to come.
pub(super) struct Loading {
    form: Arc<Form>,
    node: NodeId,
    objects: Vec<Option<Vec<(TableId, Key, Stored)>>>,
    outputs: Vec<Option<()>>,
    pub known: HashSet<(Tid, Option<Path>)>,
    /// A mistake: the rows that it had.
    kept: Option<State>,
}

impl Worker {
    /// Asks for all that a snapshot is made of.
    pub(super) fn load(
        &mut self,
        form: Arc<Form>,
        node: NodeId,
        kept: Option<State>,
        effects: &mut Vec<Effect>,
    ) {
        let objects = vec![None; form.manifest.objects.len()];
        let outputs = vec![None; self.settings.sources as usize];
        let known = HashSet::new();
        let manifest = form.manifest.clone();
        self.stage =
            Stage::Loading(Box::new(Loading { form, node, objects, outputs, known, kept }));
        for (nth, name) in manifest.objects.iter().enumerate() {
            let token = self.token(Wish::Object(nth));
            effects.push(Effect::Get { token, name: name.clone() });
        }
        for source in 0..self.settings.sources {
            let from = manifest.outputs.get(source as usize).copied().unwrap_or(0);
            let token = self.token(Wish::Outputs(source));
            let (topic, limit) = (Topic::Output(source), None);
            effects.push(Effect::Read { token, topic, from, limit });
        }
        self.ready(effects);
    }

    /// An object has come; one that has not is asked for again.
    pub(super) fn loaded(&mut self, nth: usize, object: Option<Object>, effects: &mut Vec<Effect>) {
        let Stage::Loading(loading) = &mut self.stage else { return };
        match object {
            Some(Object::Part(rows)) => loading.objects[nth] = Some(rows),
            Some(Object::Manifest(_)) => {
                return effects.push(Effect::Stop { why: "a manifest stands where a part should" });
            }
            None => {
                let name = loading.form.manifest.objects[nth].clone();
                let token = self.token(Wish::Object(nth));
                return effects.push(Effect::Get { token, name });
            }
        }
        self.ready(effects);
    }

    /// What has left of a source's requests since the snapshot.
    pub(super) fn known(
        &mut self,
        source: u32,
        records: Option<Records>,
        effects: &mut Vec<Effect>,
    ) {
        let forgets = self.is_spoiled_by(Fault::ReplyAgain);
        let Stage::Loading(loading) = &mut self.stage else { return };
        let Some(Records { records, .. }) = records else {
            let from = loading.form.manifest.outputs.get(source as usize).copied().unwrap_or(0);
            let token = self.token(Wish::Outputs(source));
            let (topic, limit) = (Topic::Output(source), None);
            return effects.push(Effect::Read { token, topic, from, limit });
        };
        let ids = records.iter().filter_map(|(_, record)| match record {
            Record::Output(output) if !forgets => Some(output.id()),
            _ => None,
        });
        loading.known.extend(ids);
        loading.outputs[source as usize] = Some(());
        self.ready(effects);
    }

    /// Goes on when all has come.
    fn ready(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Loading(loading) = &mut self.stage else { return };
        let is_whole = loading.objects.iter().all(Option::is_some)
            && loading.outputs.iter().all(Option::is_some);
        if !is_whole {
            return;
        }
        let program = self.functions.program();
        let owners = &loading.form.assignment.owners;
        let mut rows = Rows::new(program.tables.len());
        for (table, key, row) in
            std::mem::take(&mut loading.objects).into_iter().flatten().flatten()
        {
            let spec = &program.tables[table.index()];
            let partition = tidemill_place::partition_of_bytes(spec, &key.0);
            if owners.of(partition) == loading.node {
                rows.apply(Tid(0), table, &key, row);
            }
        }
        let state = loading.kept.take().unwrap_or_else(|| State::new(rows));
        let (form, node) = (loading.form.clone(), loading.node);
        let known = std::mem::take(&mut loading.known);
        let mut running =
            Running::new(form, node, state, known, self.functions.clone(), &self.settings);
        if self.is_spoiled_by(Fault::SkipRequest) {
            running.skip();
        }
        self.stage = Stage::Running(Box::new(running));
        let generation = self.generation;
        self.tell(Packet::Formed { generation }, effects);
        self.ask(effects);
    }
}
