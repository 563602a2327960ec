//! Careful execution after the death of a worker (`coordinator/deaths.rs`): an epoch in parts, and
//! verdicts on transactions, which are not executed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_function::{Call, Functions, Tid};

use super::read::Task;
use super::run::{PartWork, Running};
use super::{Stage, Worker};
use crate::effect::{Effect, Packet};
use crate::records::{base_after, CutRecord};

/// The transactions that end the processes of workers.
#[derive(Default)]
pub(super) struct Verdicts(BTreeMap<Tid, Verdict>);

struct Verdict {
    reason: Arc<str>,
    /// The place of its record in the outputs of a source.
    source: u32,
    at: u64,
}

impl Verdicts {
    /// Takes the record of a verdict at an offset of the outputs of a source.
    pub fn add(&mut self, tid: Tid, reason: &[u8], (source, at): (u32, u64)) {
        let reason = String::from_utf8_lossy(reason).into();
        // The first of two counts.
        self.0.entry(tid).or_insert(Verdict { reason, source, at });
    }

    /// Returns the call that is executed for a task. With a verdict it is another one: the event of
    /// dead letters, which the task becomes, or one that aborts.
    pub fn call(&self, tid: Tid, task: &mut Task, functions: &dyn Functions) -> Call {
        let Some(Verdict { reason, .. }) = self.0.get(&tid) else { return task.call.clone() };
        match functions.dead_letter(&task.call, task.place.as_ref(), reason) {
            Some(letter) => {
                task.call = letter;
                task.call.clone()
            }
            None => functions.refusal(reason),
        }
    }

    /// Changes the offsets at which outputs after a snapshot may be, so that the verdicts on later
    /// transactions are among them.
    pub fn keep_after(&self, base: u64, sources: u32, outputs: &mut [u64]) {
        for (tid, Verdict { source, at, .. }) in &self.0 {
            if base_after(*tid, sources) > base {
                let from = &mut outputs[*source as usize];
                *from = (*from).min(*at);
            }
        }
    }
}

impl Running {
    /// Changes the parts of a cut, so that an event with a verdict is a task of its own, and into those
    /// that begin at some places.
    pub fn divide(
        &self,
        parts: Vec<PartWork>,
        begins: &[u64],
        functions: &dyn Functions,
    ) -> Vec<PartWork> {
        let judged = |tid: &Tid| self.verdicts.0.contains_key(tid);
        if begins.is_empty() && self.verdicts.0.is_empty() {
            return parts;
        }
        let is_whole = begins.is_empty();
        let count = if is_whole { parts.len() } else { begins.len() };
        let mut divided: Vec<PartWork> = (0..count).map(|_| PartWork::default()).collect();
        for (of, part) in parts.into_iter().enumerate() {
            let nth = |tid: Tid| match is_whole {
                true => of,
                false => begins.partition_point(|begin| *begin <= tid.0).saturating_sub(1),
            };
            for (tid, task) in part.tasks {
                divided[nth(tid)].tasks.push((tid, task));
            }
            for run in part.runs {
                run.divide(&nth, &judged, functions, &mut divided);
            }
        }
        divided
    }

    /// Whether all members are about to begin a part.
    fn may_begin(&self, epoch: u64, part: u64) -> bool {
        self.trial == Some((epoch, part, true))
    }
}

impl Worker {
    /// Returns whether the next part may begin: it is not careful, or all members are about to begin it.
    /// Otherwise reports that this one is.
    pub(super) fn may_begin(&mut self, effects: &mut Vec<Effect>) -> bool {
        let generation = self.generation;
        let Stage::Running(running) = &mut self.stage else { return false };
        let Some((cut, plan)) = &running.current else { return true };
        let (epoch, left) = (cut.epoch, running.left);
        let Some((number, _)) = running.parts.front() else { return true };
        let part = number - first_part(cut);
        if plan.parts.is_empty() || running.may_begin(epoch, part) {
            return true;
        }
        let asked = Some((epoch, part, false));
        if std::mem::replace(&mut running.trial, asked) != asked {
            self.send(Packet::Trial { generation, epoch, part, left }, effects);
        }
        false
    }

    /// Begins the part that all members are about to begin.
    pub(super) fn tried(&mut self, epoch: u64, part: u64, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        if running.trial == Some((epoch, part, false)) {
            running.trial = Some((epoch, part, true));
            self.go_on(effects);
        }
    }
}

/// The number of the first part of an epoch. Those of an epoch's parts are above those of the epoch
/// before.
pub(super) fn first_part(cut: &CutRecord) -> u64 {
    /// The bits for the number of a part of an epoch.
    const PARTS_BITS: u32 = 24;
    cut.epoch << PARTS_BITS
}
