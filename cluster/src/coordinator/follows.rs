//! The tables whose changes clients follow.
//!
//! Each member notes what an epoch changes in rows of its own. When the epoch is durable and all
//! have executed it, its changes are passed on, epoch by epoch. Epochs that a later generation
//! executes again were passed on before. So there is no verdict on any of their transactions any
//! more. Nothing is noted while nobody follows a table.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_core::TableId;
use tidemill_function::{TableChanges, Tid};

use super::{Coordinator, Stage};
use crate::effect::{Effect, Packet};
use crate::records::{CutRecord, Member};

/// The followed tables, and what members have noted.
#[derive(Default)]
pub(super) struct Follows {
    tables: BTreeSet<TableId>,
    /// Those that are followed after an epoch that is not durable yet.
    pending: BTreeMap<TableId, u64>,
    /// The last epoch whose changes were passed on.
    last: u64,
    /// The base after that epoch, once it is known.
    base: u64,
    /// The bases after later epochs.
    bases: BTreeMap<u64, u64>,
    /// The notes of later epochs.
    noted: BTreeMap<u64, BTreeMap<Member, Vec<TableChanges>>>,
}

impl Follows {
    /// Takes the changes that a member has noted in an epoch.
    pub fn note(&mut self, member: Member, epoch: u64, changes: Vec<TableChanges>) {
        if epoch > self.last {
            self.noted.entry(epoch).or_default().insert(member, changes);
        }
    }

    /// Takes a cut that members are about to execute.
    pub fn cut(&mut self, cut: &CutRecord) {
        if !self.tables.is_empty() && cut.epoch > self.last {
            self.bases.insert(cut.epoch, cut.next_base());
        }
    }

    /// Takes the changes of the next epoch.
    fn next(&mut self) -> Effect {
        self.last += 1;
        self.base = self.bases.remove(&self.last).unwrap_or(self.base);
        let mut all: BTreeMap<TableId, TableChanges> = BTreeMap::new();
        let noted = self.noted.remove(&self.last).unwrap_or_default();
        for TableChanges { table, rows } in noted.into_values().flatten() {
            let none = || TableChanges { table, rows: Some(Vec::new()) };
            let of = all.entry(table).or_insert_with(none);
            match (&mut of.rows, rows) {
                (Some(all), Some(rows)) => all.extend(rows),
                _ => of.rows = None,
            }
        }
        Effect::Changed { epoch: self.last, changes: all.into_values().collect() }
    }
}

impl Coordinator {
    /// Follows a table from the next cut on.
    pub(super) fn follow(&mut self, table: TableId, effects: &mut Vec<Effect>) {
        let is_first = self.follows.tables.is_empty();
        if !self.follows.tables.insert(table) {
            return;
        }
        let Stage::Running(running) = &self.stage else {
            // The next generation executes all cuts after the snapshot again.
            let epoch = self.manifest.epoch;
            self.follows.pending.insert(table, epoch);
            self.follows.last = if is_first { epoch } else { self.follows.last };
            return;
        };
        let (generation, durable) = (running.form.generation, running.durable);
        self.follows.pending.insert(table, running.epoch);
        self.follows.last = if is_first { durable } else { self.follows.last };
        let passed = self.passed();
        self.send(&Packet::Follow { generation, tables: vec![table], passed }, effects);
        self.pass_changes(effects);
    }

    /// Has the members of a new generation follow the tables, before they execute anything.
    pub(super) fn follow_again(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &self.stage else { return };
        self.follows.noted.clear();
        if self.follows.tables.is_empty() {
            return;
        }
        let (generation, epoch) = (running.form.generation, running.form.manifest.epoch);
        // Cuts that were not durable may have been lost. Those that are here are durable.
        let now = running.epoch;
        self.follows.pending.values_mut().for_each(|since| *since = now);
        if self.follows.last < epoch {
            // Nobody executes these epochs again.
            self.follows.last = epoch;
            let none = |table: &TableId| TableChanges { table: *table, rows: None };
            let changes = self.follows.tables.iter().map(none).collect();
            effects.push(Effect::Changed { epoch, changes });
        }
        let tables = self.follows.tables.iter().copied().collect();
        let passed = self.passed();
        self.send(&Packet::Follow { generation, tables, passed }, effects);
        // Perhaps no cut comes for long.
        self.pass_changes(effects);
    }

    /// The last transaction whose changes may have been passed on.
    fn passed(&self) -> Tid {
        Tid(self.follows.base * u64::from(self.settings.sources))
    }

    /// Passes on the changes of epochs that are durable and that all members have executed.
    pub(super) fn pass_changes(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &self.stage else { return };
        if self.follows.tables.is_empty() {
            return;
        }
        let durable = running.durable;
        let upto = running.released().min(running.executed_by_all());
        self.follows.pending.retain(|table, since| {
            let (table, since) = (*table, *since);
            if since <= durable {
                effects.push(Effect::Follows { table, since });
            }
            since > durable
        });
        while self.follows.last < upto {
            effects.push(self.follows.next());
        }
    }
}
