//! Reading a snapshot before it is needed. A worker that is about to join then has most of the
//! rows, and the others wait only briefly.

use std::sync::Arc;

use tidemill_function::{Rows, Store as _, Tid};

use super::{Pending, Stage, Worker};
use crate::effect::{Effect, Packet};
use crate::records::{Manifest, Object};

/// The rows of a snapshot's first objects, of all owners.
pub(super) struct Prepared {
    manifest: Arc<Manifest>,
    /// The number of its objects whose rows are here.
    has: usize,
    pub rows: Rows,
}

impl Prepared {
    /// Returns how many objects of another snapshot are in the rows, if that snapshot begins with
    /// the same objects. With an injected defect (`keeps`) it does not compare them.
    pub fn leads_to(&self, manifest: &Manifest, keeps: bool) -> Option<usize> {
        let has = &self.manifest.objects[..self.has];
        (keeps || manifest.objects.starts_with(has)).then_some(self.has)
    }
}

impl Worker {
    /// Begins to read a snapshot, or continues with a later one.
    pub(super) fn prepare(&mut self, manifest: Arc<Manifest>, effects: &mut Vec<Effect>) {
        if !matches!(self.stage, Stage::Idle) {
            return;
        }
        if self.kept.as_ref().is_some_and(|kept| kept.leads_to(&manifest)) {
            return self.send(Packet::Prepared, effects);
        }
        self.kept = None;
        match &mut self.prepared {
            Some(prepared) if prepared.leads_to(&manifest, false).is_some() => {
                prepared.manifest = manifest
            }
            _ => {
                let rows = Rows::new(&self.functions.program().tables);
                self.prepared = Some(Prepared { manifest, has: 0, rows });
            }
        }
        let is_asked = self.wishes.values().any(|wish| matches!(wish, Pending::Prepare(..)));
        if !is_asked {
            self.prepare_next(effects);
        }
    }

    /// Requests the next object. One at a time is enough, because there is time.
    fn prepare_next(&mut self, effects: &mut Vec<Effect>) {
        let Some(prepared) = &self.prepared else { return };
        match prepared.manifest.objects.get(prepared.has).cloned() {
            None => self.send(Packet::Prepared, effects),
            Some(name) => {
                let token = self.token(Pending::Prepare(name.clone()));
                effects.push(Effect::Get { token, name });
            }
        }
    }

    /// Takes an object. If it could not be read, it may have been removed with its snapshot. Then
    /// it is requested again when it is needed.
    pub(super) fn prepare_with(
        &mut self,
        name: &str,
        object: Option<Object>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(prepared) = &mut self.prepared else { return };
        let Some(Object::Part(rows)) = object else { return self.send(Packet::Prepared, effects) };
        if prepared.manifest.objects.get(prepared.has).is_some_and(|next| next == name) {
            for (table, key, row) in rows.iter() {
                prepared.rows.apply(Tid(0), *table, key, row.clone());
            }
            prepared.rows.settle();
            prepared.has += 1;
        }
        self.prepare_next(effects);
    }
}
