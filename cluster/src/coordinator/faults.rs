//! Faults that end the run: exceptions in functions that no client learns of.
//!
//! Cuts of such a run are durable before they have been executed, as all cuts are. But nothing of
//! their epochs leaves until all members have executed them without a fault. If there is one, its
//! cut and those after it are withdrawn by a record in the log. Members go back, execute what came
//! before, and take a snapshot. The next run finds the event where it was, and executes it with a
//! function that has been corrected.
//!
//! A cut says whether a fault in it ends the run. Faults in others have aborted transactions, as
//! recorded. Outputs of a cut that an earlier run has made may have left, so it is not withdrawn: the
//! run ends, and the next one executes it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidemill_function::{Fault, Tid};

use super::cut::Running;
use super::{Coordinator, Pending, Stage};
use crate::effect::{Effect, Packet};
use crate::records::{CutRecord, Record, Topic};
use crate::Settings;

/// The epochs of which nothing leaves yet because of a possible fault, and the faults in them.
#[derive(Default)]
pub(super) struct Stops {
    is_on: bool,
    /// The epochs that not all members have executed, or that have a fault.
    open: BTreeSet<u64>,
    /// The first fault of each of these, as far as members have reported.
    faults: BTreeMap<u64, (Tid, Fault)>,
    /// The last epoch that all members have executed.
    executed: u64,
    /// The last epoch of which members know that it is released.
    told: u64,
}

impl Stops {
    /// Creates it for a generation that executes recorded cuts again.
    pub fn of(settings: &Settings, cuts: &[Arc<CutRecord>]) -> Stops {
        let mut stops = Stops { is_on: settings.stops_on_fault, ..Stops::default() };
        cuts.iter().for_each(|cut| stops.cut(cut));
        stops
    }

    /// Takes a cut that members are about to execute.
    pub fn cut(&mut self, cut: &CutRecord) {
        if self.is_on && cut.stops_on_fault {
            self.open.insert(cut.epoch);
        }
    }

    /// Notes the first fault of an epoch at a member.
    pub fn note(&mut self, epoch: u64, fault: Option<(Tid, Fault)>) {
        let Some((tid, fault)) = fault.filter(|_| self.open.contains(&epoch)) else { return };
        if self.faults.get(&epoch).is_none_or(|(first, _)| tid < *first) {
            self.faults.insert(epoch, (tid, fault));
        }
    }

    /// Notes that all members have executed the epochs up to this one.
    pub fn all_executed(&mut self, epoch: u64) {
        self.executed = epoch;
        let faults = &self.faults;
        self.open.retain(|of| *of > epoch || faults.contains_key(of));
    }

    /// Returns the last epoch before all that may still be withdrawn, or the greatest number.
    pub fn before(&self) -> u64 {
        self.open.first().map_or(u64::MAX, |first| first - 1)
    }

    /// Returns the first epoch with a fault that all members have executed, and the fault.
    pub fn fault(&self) -> Option<(u64, &Fault)> {
        let (epoch, (_, fault)) = self.faults.first_key_value()?;
        (*epoch <= self.executed).then_some((*epoch, fault))
    }
}

impl Running {
    /// Returns the last durable epoch that is not withdrawn any more.
    pub fn released(&self) -> u64 {
        self.durable.min(self.stops.before())
    }
}

impl Coordinator {
    /// Tells members which epochs are durable, and which are released.
    pub(super) fn tell_durable(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let (epoch, released) = (running.durable, running.released());
        running.stops.told = released;
        self.released = self.released.max(released);
        let generation = running.form.generation;
        self.send(&Packet::Durable { generation, epoch, released }, effects);
    }

    /// Releases epochs that all members have executed without a fault, and withdraws the others.
    pub(super) fn release(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &self.stage else { return };
        if running.stops.told < running.released() {
            self.tell_durable(effects);
        }
        self.withdraw(effects);
    }

    /// Ends because of a fault, and for no other reason.
    pub(super) fn ends_by(&mut self, fault: Fault) {
        (self.fault, self.late_event, self.over_memory) = (Some(fault), None, None);
        self.is_ending = true;
    }

    /// Withdraws the cuts from the first fault on, once all are durable.
    pub(super) fn withdraw(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &self.stage else { return };
        let Some((epoch, fault)) = running.stops.fault() else { return };
        let is_asked = self.wishes.values().any(|wish| matches!(wish, Pending::Withdrawn(_)));
        if running.durable < running.epoch || is_asked || self.fault.is_some() {
            return;
        }
        if epoch <= self.released {
            self.ends_by(fault.clone());
            return effects.push(Effect::End);
        }
        let (wish, record) = (
            Pending::Withdrawn(fault.clone()),
            Record::Withdrawn { epoch, base: running.next_base() },
        );
        self.append(wish, Topic::Cuts, record, effects);
    }
}
