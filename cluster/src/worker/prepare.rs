//! Reading a snapshot before it is needed. A worker that is about to join then has most of the
//! rows, and the others wait only briefly.

use std::sync::Arc;

use tidemill_function::Rows;
use tidemill_place::PartitionSet;

use super::{Pending, Stage, Worker};
use crate::effect::{Effect, Packet, Token};
use crate::parts::LoadedRows;
use crate::records::{Form, Manifest};

/// The rows of a snapshot that the worker will probably own.
pub(super) struct Prepared {
    manifest: Arc<Manifest>,
    pub partitions: PartitionSet,
    token: Token,
    /// The rows, once they are loaded.
    pub rows: Option<Rows>,
}

impl Prepared {
    /// Returns how many objects of another snapshot the rows are from, if they are loaded and that
    /// snapshot begins with the same objects. Versions are loaded from all objects together.
    pub fn leads_to(&self, manifest: &Manifest) -> Option<usize> {
        let has = &self.manifest.objects;
        let Some(rows) = &self.rows else { return None };
        let is_it = match rows.have_versions() {
            true => manifest.objects == *has,
            false => manifest.objects.starts_with(has),
        };
        is_it.then_some(has.len())
    }
}

impl Worker {
    /// Begins to read a snapshot.
    pub(super) fn prepare(&mut self, form: &Form, effects: &mut Vec<Effect>) {
        if !matches!(self.stage, Stage::Idle) {
            return;
        }
        let manifest = &form.manifest;
        let has_survivor =
            self.survivor.as_ref().is_some_and(|survivor| survivor.leads_to(manifest));
        let is_prepared =
            self.prepared.as_ref().is_some_and(|had| had.leads_to(manifest).is_some());
        let node = form.assignment.node_of(self.me).filter(|_| !has_survivor && !is_prepared);
        let Some(node) = node else { return self.send(Packet::Prepared, effects) };
        self.survivor = None;
        let partitions = form.assignment.partitions(node);
        let token = self.token(Pending::Prepare);
        let manifest = manifest.clone();
        effects.push(self.load_effect(token, &manifest, 0, partitions.clone()));
        self.prepared = Some(Prepared { manifest, partitions, token, rows: None });
    }

    /// Takes the rows. If they could not be read, an object may have been removed with its
    /// snapshot. Then they are requested again when they are needed.
    pub(super) fn prepare_with(
        &mut self,
        token: Token,
        loaded: Option<LoadedRows>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(prepared) = self.prepared.as_mut().filter(|of| of.token == token) else { return };
        match loaded {
            Some(loaded) => prepared.rows = Some(loaded.rows),
            None => self.prepared = None,
        }
        self.send(Packet::Prepared, effects);
    }
}
