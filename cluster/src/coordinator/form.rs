//! Beginning a generation: its number is in the logs before anybody hears of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_function::Fault;

use super::available::Available;
use super::cut::Running;
use super::{Coordinator, LeftOut, Stage, Wish};
use crate::effect::{Address, Effect, Packet, Records};
use crate::records::{Assignment, Form, Member, Parked, Record, Topic};

/// A generation whose members go back to the snapshot.
pub(super) struct Forming {
    pub form: Arc<Form>,
    pub since_us: u64,
    /// Who is ready, and what waits at it for its watermark.
    formed: BTreeMap<Member, Parked>,
    /// For each source what can be read, as far as those say who are ready before the others.
    pub available: Vec<Available>,
}

impl Coordinator {
    /// Begins the next generation, whatever was before.
    pub(super) fn begin(&mut self, effects: &mut Vec<Effect>) {
        self.begin_nothing();
        self.read_on(effects);
    }

    /// Reads the cuts on from where it has come to.
    pub(super) fn read_on(&mut self, effects: &mut Vec<Effect>) {
        if self.wishes.values().any(|wish| matches!(wish, Wish::Log)) {
            return;
        }
        let (token, topic, from) = (self.token(Wish::Log), Topic::Cuts, self.read);
        effects.push(Effect::Read { token, topic, from, limit: None });
    }

    /// What the cuts have come to.
    pub(super) fn was_read(&mut self, records: Option<Records>, effects: &mut Vec<Effect>) {
        let Some(Records { records, upto }) = records else { return self.read_on(effects) };
        let is_first = !std::mem::replace(&mut self.has_read, true);
        self.read = upto;
        for (_, record) in records {
            match record {
                Record::Generation { generation } => {
                    if !is_first && !self.begun.contains(&generation) {
                        return self.step_down(effects);
                    }
                    self.last_generation = self.last_generation.max(generation);
                }
                Record::Cut(cut) if cut.epoch > self.manifest.epoch => self.cuts.push(cut.into()),
                Record::Snapshot(manifest) if manifest.epoch > self.manifest.epoch => {
                    // What was before it in the log may have gone.
                    self.last_generation = self.last_generation.max(manifest.generation);
                    self.cuts.retain(|cut| cut.epoch > manifest.epoch);
                    self.manifest = manifest;
                }
                // The first record of a log says where whoever writes what leaves begins.
                Record::Snapshot(manifest)
                    if self.manifest.epoch == 0 && self.manifest.written.note.is_empty() =>
                {
                    Arc::make_mut(&mut self.manifest).written = manifest.written.clone();
                }
                // What it has taken itself meanwhile is newer than what it reads.
                Record::Cut(_) | Record::Snapshot(_) => {}
                Record::Requests(_) | Record::End | Record::Outputs(_) | Record::Answer { .. } => {}
            }
        }
        match self.stage {
            Stage::Reading => self.fence(effects),
            Stage::Rereading { generation } => {
                self.stage = Stage::Gathering { generation };
                self.form(generation, effects);
            }
            _ => {}
        }
    }

    /// Takes the next number, in every topic that generations append to.
    fn fence(&mut self, effects: &mut Vec<Effect>) {
        // A number of which it is not known whether it is in the log may still come into it.
        let tried = self.begun.last().copied().unwrap_or(0);
        let generation = self.last_generation.max(tried) + 1;
        let left = self.settings.sources as usize + 1;
        self.begun.insert(generation);
        self.stage = Stage::Fencing { generation, left };
        // The cuts first: of two that take one number one gets all of it.
        self.append(Wish::Fence, Topic::Cuts, Record::Generation { generation }, effects);
    }

    /// Another coordinator has begun a generation since this one started: that one goes on. So of two that
    /// live the later one stays, and they do not outbid each other for ever.
    pub(super) fn step_down(&mut self, effects: &mut Vec<Effect>) {
        self.begin_nothing();
        effects.push(Effect::Stop { why: "another coordinator has taken over" });
    }

    fn begin_nothing(&mut self) {
        self.stage = Stage::Reading;
        self.wishes.clear();
    }

    /// A record is durable.
    pub(super) fn appended(&mut self, wish: Wish, offset: u64, effects: &mut Vec<Effect>) {
        match wish {
            Wish::Fence => {
                let Stage::Fencing { generation, left } = &mut self.stage else { return };
                let generation = *generation;
                *left -= 1;
                if *left == self.settings.sources as usize {
                    for topic in (0..self.settings.sources).map(Topic::Output) {
                        self.append(Wish::Fence, topic, Record::Generation { generation }, effects);
                    }
                } else if *left == 0 {
                    // What others have appended before the fence counts.
                    self.stage = Stage::Rereading { generation };
                    self.read_on(effects);
                }
            }
            Wish::Cut(epoch) => self.cut_durable(epoch, offset, effects),
            Wish::Snapshot(manifest) => self.snapshot_counts(manifest, effects),
            Wish::Log | Wish::Manifest(_) => {}
        }
    }

    /// Hands whoever lives its part; waits for somebody where nobody does.
    pub(super) fn form(&mut self, generation: u64, effects: &mut Vec<Effect>) {
        // Those that live say so soon after it has begun to listen.
        let began_us = self.started_us.expect("the clock has ticked");
        let members: Vec<Member> = self.candidates().collect();
        if members.is_empty() || self.now_us < began_us + 2 * self.settings.beat_us {
            return;
        }
        self.quarrels.formed(generation, &members);
        for member in &self.leaving {
            effects.push(Effect::Send { to: Address::Worker(*member), packet: Packet::Released });
        }
        for LeftOut { member, from, .. } in self.left_out() {
            let packet = Packet::LeftOut { generation, from };
            effects.push(Effect::Send { to: Address::Worker(member), packet });
        }
        let (assignment, manifest) = (Assignment::equal(members), self.manifest.clone());
        let form = Arc::new(Form { generation, assignment, manifest });
        let (since_us, formed) = (self.now_us, BTreeMap::new());
        let available = form.manifest.inputs.iter().copied().map(Available::behind).collect();
        self.stage = Stage::Forming(Forming { form: form.clone(), since_us, formed, available });
        self.tell(&Packet::Form(form), effects);
    }

    /// A member is ready; when all are, they execute the recorded cuts, and then new ones.
    pub(super) fn formed(
        &mut self,
        member: Member,
        generation: u64,
        parked: Parked,
        effects: &mut Vec<Effect>,
    ) {
        let Stage::Forming(forming) = &mut self.stage else { return };
        if forming.form.generation != generation {
            return;
        }
        forming.formed.insert(member, parked);
        if forming.formed.len() < forming.form.assignment.members.len() {
            return;
        }
        let (form, available) = (forming.form.clone(), std::mem::take(&mut forming.available));
        let parked = std::mem::take(&mut forming.formed);
        self.patience = 1;
        if self.is_spoiled_by(Fault::CutAnew) {
            self.cuts.clear();
        }
        let cuts = std::mem::take(&mut self.cuts);
        let mut running = Running::new(form, &cuts, available, self.now_us, &self.settings);
        running.parked = parked;
        if self.is_spoiled_by(Fault::ForgetTimes) {
            running.times.newest.fill(None);
        }
        let epoch = running.epoch;
        self.stage = Stage::Running(Box::new(running));
        for cut in &cuts {
            self.tell(&Packet::Cut { generation, cut: cut.clone(), snapshot: None }, effects);
        }
        // They are read again if this generation does not get as far as a snapshot.
        self.cuts = cuts;
        self.tell(&Packet::Durable { generation, epoch }, effects);
        self.try_cut(effects);
    }
}
