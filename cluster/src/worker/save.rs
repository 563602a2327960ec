//! Parts of snapshots: rows as an epoch left them, stored during the execution of the next epochs.

use std::sync::Arc;

use tidemill_function::TakenRows;
use tidemill_snapshot::Work;

use super::ranks::Ranks;
use super::{Pending, Stage, Worker};
use crate::effect::{Effect, Packet, StoredPart};
use crate::records::{CutRecord, Waiting};

/// The number of attempts to store a part.
const TRIES_MAX: u32 = 4;

/// A part that is stored, or is being stored.
pub(super) struct Saving {
    epoch: u64,
    name: String,
    rows: Arc<TakenRows>,
    tries: u32,
    is_asked: bool,
    /// The part, once it is stored.
    part: Option<StoredPart>,
    is_reported: bool,
    /// The first offset of each source at which outputs of later epochs may be.
    outputs: Vec<u64>,
    /// Where the buffered events of each event source begin.
    waiting: Vec<Waiting>,
}

impl Worker {
    /// Takes the rows that have changed since the last snapshot.
    pub(super) fn save(&mut self, cut: &CutRecord, effects: &mut Vec<Effect>) {
        let (epoch, base) = (cut.epoch, cut.next_base());
        let (generation, me) = (self.generation, self.me.0);
        let Stage::Running(running) = &mut self.stage else { return };
        let rows = running.node.rows_mut();
        if let Some(before) = running.saving.take() {
            rows.give_up((generation, before.epoch));
        }
        let rows = Arc::new(rows.take((generation, epoch)));
        let mut outputs = running.ends.clone();
        running.verdicts.keep_after(base, self.settings.sources, &mut outputs);
        let waiting = running.ranks.as_ref().map_or_else(Vec::new, Ranks::first);
        let name = format!("part-{generation}-{epoch}-{me}");
        let (tries, is_asked, part, is_reported) = (0, false, None, false);
        running.saving = Some(Saving {
            epoch,
            name,
            rows,
            tries,
            is_asked,
            part,
            is_reported,
            outputs,
            waiting,
        });
        self.save_again(effects);
    }

    /// Stores the part, unless it is stored or being stored.
    pub(super) fn save_again(&mut self, effects: &mut Vec<Effect>) {
        let program = self.settings.program;
        let Stage::Running(running) = &mut self.stage else { return };
        let Some(saving) = &mut running.saving else { return };
        if saving.is_asked || saving.part.is_some() || saving.is_reported {
            return;
        }
        let (epoch, rows) = (saving.epoch, saving.rows.clone());
        saving.is_asked = true;
        saving.tries += 1;
        // Each name is used only once, because an attempt with an unknown outcome may have stored
        // an object.
        let name = format!("{}-{}", saving.name, saving.tries);
        let token = self.token(Pending::Part(epoch));
        effects.push(Effect::PutPart { token, of: (program, epoch), name, rows });
    }

    /// Notes that the part is stored, or is not.
    pub(super) fn part_stored(
        &mut self,
        epoch: u64,
        part: Option<StoredPart>,
        effects: &mut Vec<Effect>,
    ) {
        let generation = self.generation;
        let Stage::Running(running) = &mut self.stage else { return };
        let saving = running.saving.as_mut().filter(|saving| saving.epoch == epoch);
        let Some(saving) = saving else { return };
        saving.is_asked = false;
        saving.part = part;
        if saving.part.is_none() && saving.tries >= TRIES_MAX {
            saving.is_reported = true;
            let (outputs, waiting) = (Vec::new(), Vec::new());
            let part = Packet::Part { generation, epoch, part: None, outputs, waiting };
            return self.send(part, effects);
        }
        self.part_ready(effects);
    }

    /// Reports that the part is stored, once all outputs up to its epoch are in the log. From then
    /// on no worker executes those epochs again.
    pub(super) fn part_ready(&mut self, effects: &mut Vec<Effect>) {
        let generation = self.generation;
        let Stage::Running(running) = &mut self.stage else { return };
        let Some(saving) = &mut running.saving else { return };
        let epoch = saving.epoch;
        let is_leaving = running.held.front().is_some_and(|(of, _)| *of <= epoch)
            || running.appending.first_key_value().is_some_and(|(of, _)| *of <= epoch);
        if saving.part.is_none() || saving.is_reported || is_leaving {
            return;
        }
        saving.is_reported = true;
        let part = saving.part.clone();
        let (outputs, waiting) = (saving.outputs.clone(), saving.waiting.clone());
        self.send(Packet::Part { generation, epoch, part, outputs, waiting }, effects);
    }

    /// Notes whether the snapshot counts. If it does not, its changes belong to the next one.
    pub(super) fn snapshot_ended(&mut self, epoch: u64, counts: bool) {
        let generation = self.generation;
        let Stage::Running(running) = &mut self.stage else { return };
        running.saving.take_if(|saving| saving.epoch == epoch);
        let rows = running.node.rows_mut();
        match counts {
            true => rows.counts((generation, epoch)),
            false => rows.give_up((generation, epoch)),
        }
    }

    /// Merges objects of the newest snapshot.
    pub(super) fn merge(
        &mut self,
        epoch: u64,
        name: String,
        work: Arc<Work>,
        effects: &mut Vec<Effect>,
    ) {
        let of = (self.settings.program, epoch);
        let token = self.token(Pending::Merge(self.generation, name.clone()));
        effects.push(Effect::Merge { token, of, name, work });
    }
}
