//! The beginning of a generation. Its number is in the logs before any worker learns of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::available::Available;
use super::cut::Running;
use super::{Coordinator, LeftOut, Pending, Stage};
use crate::effect::{Address, CutPlan, Effect, Packet, Records};
use crate::records::{Assignment, Buffered, Form, Manifest, Member, Record, Topic, Written};

/// A generation whose members go back to the snapshot.
pub(super) struct Forming {
    pub form: Arc<Form>,
    pub since_us: u64,
    /// The members that are ready, with their buffered events.
    formed: BTreeMap<Member, Buffered>,
    /// The requests of each source that can be read, as reported by members that are ready before
    /// others.
    pub available: Vec<Available>,
}

impl Coordinator {
    /// Begins the next generation, whatever the current stage is.
    pub(super) fn begin(&mut self, effects: &mut Vec<Effect>) {
        self.begin_nothing();
        self.read_on(effects);
    }

    /// Reads the cuts from where the last read ended.
    pub(super) fn read_on(&mut self, effects: &mut Vec<Effect>) {
        if self.wishes.values().any(|wish| matches!(wish, Pending::Log)) {
            return;
        }
        let (token, topic, from) = (self.token(Pending::Log), Topic::Cuts, self.read);
        effects.push(Effect::Read { token, topic, from, limit: None });
    }

    /// Takes records of the cuts.
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
                Record::Cut(cut) if cut.epoch > self.manifest.epoch => {
                    if !self.begun.contains(&self.last_generation) {
                        // Another coordinator has made it, and its outputs may have left.
                        self.released = self.released.max(cut.epoch);
                    }
                    self.cuts.push(cut.into());
                }
                Record::Withdrawn { epoch, base } => {
                    self.cuts.retain(|cut| cut.epoch < epoch);
                    self.released = self.released.min(epoch - 1);
                    self.withdrawn_base = base;
                }
                Record::Snapshot(manifest) if manifest.replaces(&self.manifest) => {
                    // Earlier records of the log may have been trimmed.
                    self.last_generation = self.last_generation.max(manifest.generation);
                    self.cuts.retain(|cut| cut.epoch > manifest.epoch);
                    self.manifest = manifest;
                }
                // The first record of a log says where sources and a writer of outputs begin.
                Record::Snapshot(manifest)
                    if self.manifest.epoch == 0 && self.manifest.written.note.is_empty() =>
                {
                    let own = Arc::make_mut(&mut self.manifest);
                    own.written = manifest.written.clone();
                    if manifest.inputs.len() == own.inputs.len() {
                        own.inputs.clone_from(&manifest.inputs);
                    }
                }
                // Own cuts and snapshots since then are newer than these.
                Record::Cut(_) | Record::Snapshot(_) => {}
                Record::Requests(_)
                | Record::Events(_)
                | Record::End
                | Record::Outputs(_)
                | Record::Emitted(_)
                | Record::Answer { .. } => {}
            }
        }
        if self.settings.copies_outputs && self.manifest.written.outputs.is_empty() {
            // Before this start outputs were not written elsewhere, so all that was needed has left.
            let Manifest { base, outputs, written, .. } = Arc::make_mut(&mut self.manifest);
            *written =
                Written { base: *base, outputs: outputs.clone(), note: written.note.clone() }
                    .into();
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

    /// Appends the next number to every topic that generations append to.
    fn fence(&mut self, effects: &mut Vec<Effect>) {
        // A number whose append has an unknown outcome may still appear in the log.
        let tried = self.begun.last().copied().unwrap_or(0);
        let generation = self.last_generation.max(tried) + 1;
        let left = self.settings.sources as usize + 1;
        self.begun.insert(generation);
        self.stage = Stage::Fencing { generation, left };
        // Append to the cuts first. If two coordinators try the same number, one of them gets all
        // topics.
        self.append(Pending::Fence, Topic::Cuts, Record::Generation { generation }, effects);
    }

    /// Stops, because another coordinator has begun a generation since this one started. So of two
    /// live coordinators the later one stays, and they do not outbid each other forever.
    pub(super) fn step_down(&mut self, effects: &mut Vec<Effect>) {
        self.begin_nothing();
        effects.push(Effect::Stop { why: "another coordinator has taken over" });
    }

    fn begin_nothing(&mut self) {
        self.ends();
        self.stage = Stage::Reading;
        self.wishes.clear();
    }

    /// Handles a record that is durable.
    pub(super) fn appended(&mut self, wish: Pending, offset: u64, effects: &mut Vec<Effect>) {
        match wish {
            Pending::Fence => {
                let Stage::Fencing { generation, left } = &mut self.stage else { return };
                let generation = *generation;
                *left -= 1;
                if *left == self.settings.sources as usize {
                    for topic in (0..self.settings.sources).map(Topic::Output) {
                        self.append(
                            Pending::Fence,
                            topic,
                            Record::Generation { generation },
                            effects,
                        );
                    }
                } else if *left == 0 {
                    // Records that others have appended before the fence count.
                    self.stage = Stage::Rereading { generation };
                    self.read_on(effects);
                }
            }
            Pending::Cut(epoch) => self.cut_durable(epoch, offset, effects),
            Pending::Verdict(tid, reason) => self.verdict_recorded(tid, reason, effects),
            Pending::Snapshot(manifest) => self.snapshot_counts(manifest, effects),
            Pending::Withdrawn(fault) => {
                self.ends_by(fault);
                self.begin(effects);
            }
            Pending::Log | Pending::Manifest(_) => {}
        }
    }

    /// Assigns a share to each live worker. Waits if there is none.
    pub(super) fn form(&mut self, generation: u64, effects: &mut Vec<Effect>) {
        // Live workers send a beat soon after the coordinator has begun to listen.
        let began_us = self.started_us.expect("the clock has ticked");
        let members: Vec<Member> = self.candidates().collect();
        if members.is_empty() || self.now_us < began_us + 2 * self.settings.beat_us {
            return;
        }
        self.lost_pairs.formed(generation, &members);
        for member in &self.leaving {
            effects.push(Effect::Send { to: Address::Worker(*member), packet: Packet::Released });
        }
        for LeftOut { member, from, .. } in self.left_out() {
            let packet = Packet::LeftOut { generation, from };
            effects.push(Effect::Send { to: Address::Worker(member), packet });
        }
        let assignment = Assignment::of(members, &self.settings);
        let manifest = self.manifest.clone();
        let form = Arc::new(Form { generation, assignment, manifest });
        let (since_us, formed) = (self.now_us, BTreeMap::new());
        let available = form.manifest.inputs.iter().copied().map(Available::after).collect();
        self.stage = Stage::Forming(Forming { form: form.clone(), since_us, formed, available });
        self.send(&Packet::Form(form), effects);
    }

    /// Notes that a member is ready. When all are, they execute the recorded cuts, and then new
    /// ones.
    pub(super) fn formed(
        &mut self,
        member: Member,
        generation: u64,
        buffered: Buffered,
        effects: &mut Vec<Effect>,
    ) {
        let Stage::Forming(forming) = &mut self.stage else { return };
        if forming.form.generation != generation {
            return;
        }
        forming.formed.insert(member, buffered);
        if forming.formed.len() < forming.form.assignment.members.len() {
            return;
        }
        let (form, available) = (forming.form.clone(), std::mem::take(&mut forming.available));
        let buffered = std::mem::take(&mut forming.formed);
        self.patience = 1;
        self.has_formed();
        let cuts = std::mem::take(&mut self.cuts);
        let mut running = Running::new(form, &cuts, available, self.now_us, &self.settings);
        running.buffered = buffered;
        running.begins_at(self.withdrawn_base);
        let sources = self.settings.sources;
        let trials = &mut running.trials;
        let parts: Vec<_> =
            cuts.iter().map(|cut| self.deaths.begins(trials, cut, sources)).collect();
        self.stage = Stage::Running(Box::new(running));
        self.follow_again(effects);
        for (cut, parts) in cuts.iter().zip(parts) {
            self.follows.cut(cut);
            let (cut, plan) = (cut.clone(), CutPlan { parts, ..CutPlan::default() });
            self.send(&Packet::Cut { generation, cut, plan }, effects);
        }
        // The cuts are needed again if this generation ends before its first snapshot.
        self.cuts = cuts;
        self.tell_durable(effects);
        self.try_cut(effects);
    }
}
