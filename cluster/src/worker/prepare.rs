//! Reading a snapshot before it is needed: whoever is about to come in has most of the rows then, and the others wait
//! for little.

use std::sync::Arc;

use tidemill_function::{Rows, Store as _, Tid};

use super::{Stage, Wish, Worker};
use crate::effect::{Effect, Packet};
use crate::records::{Manifest, Object};

/// The rows of a snapshot's first objects, of whatever owner.
pub(super) struct Prepared {
    manifest: Arc<Manifest>,
    /// So many of its objects are in the rows.
    has: usize,
    pub rows: Rows,
}

impl Prepared {
    /// How many objects of another snapshot are in the rows, if these are the rows to begin with.
    /// With a mistake (`keeps`) they always are.
    pub fn leads_to(&self, manifest: &Manifest, keeps: bool) -> Option<usize> {
        let has = &self.manifest.objects[..self.has];
        (keeps || manifest.objects.starts_with(has)).then_some(self.has)
    }
}

impl Worker {
    /// Begins to read, or goes on to a later snapshot.
    pub(super) fn prepare(&mut self, manifest: Arc<Manifest>, effects: &mut Vec<Effect>) {
        if !matches!(self.stage, Stage::Idle) {
            return;
        }
        if self.kept.as_ref().is_some_and(|kept| kept.leads_to(&manifest)) {
            return self.tell(Packet::Prepared, effects);
        }
        self.kept = None;
        match &mut self.prepared {
            Some(prepared) if prepared.leads_to(&manifest, false).is_some() => {
                prepared.manifest = manifest
            }
            _ => {
                let rows = Rows::new(self.functions.program().tables.len());
                self.prepared = Some(Prepared { manifest, has: 0, rows });
            }
        }
        let is_asked = self.wishes.values().any(|wish| matches!(wish, Wish::Prepare(..)));
        if !is_asked {
            self.prepare_next(effects);
        }
    }

    /// One object after the other: there is time.
    fn prepare_next(&mut self, effects: &mut Vec<Effect>) {
        let Some(prepared) = &self.prepared else { return };
        match prepared.manifest.objects.get(prepared.has).cloned() {
            None => self.tell(Packet::Prepared, effects),
            Some(name) => {
                let token = self.token(Wish::Prepare(name.clone()));
                effects.push(Effect::Get { token, name });
            }
        }
    }

    /// An object has come, or it could not be read: it may have gone with its snapshot. Then it is asked for again
    /// when it is needed.
    pub(super) fn prepare_with(
        &mut self,
        name: &str,
        object: Option<Object>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(prepared) = &mut self.prepared else { return };
        let Some(Object::Part(rows)) = object else { return self.tell(Packet::Prepared, effects) };
        if prepared.manifest.objects.get(prepared.has).is_some_and(|next| next == name) {
            for (table, key, row) in rows.iter() {
                prepared.rows.apply(Tid(0), *table, key, row.clone());
            }
            prepared.has += 1;
        }
        self.prepare_next(effects);
    }
}
