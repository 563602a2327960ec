//! Merging of a snapshot's objects in the background, so that their number and the time to load
//! them are bounded. `tidemill_snapshot` says which and when. One worker at a time merges.

use std::sync::Arc;

use tidemill_snapshot::{plan, replace, DataObject, Work};

use super::{Coordinator, Stage};
use crate::effect::{Address, Effect, Packet, StoredPart};
use crate::records::Manifest;

/// The objects of the next snapshot without its own parts, and the merge that is under way.
#[derive(Default)]
pub(super) struct Merging {
    /// The objects of the newest snapshot, with the merges since.
    pub layout: Vec<DataObject>,
    under_way: Option<(String, Arc<Work>)>,
    /// The number of merges so far.
    count: u64,
}

impl Merging {
    /// Begins with the objects of a snapshot.
    pub fn of(manifest: &Manifest) -> Merging {
        Merging { layout: manifest.objects.clone(), ..Merging::default() }
    }

    /// Returns the objects that later snapshots may have, but this one has not.
    pub fn more_than(&self, manifest: &Manifest) -> Vec<String> {
        let names = self.layout.iter().map(|object| &object.name);
        let names = names.chain(self.under_way.iter().map(|(name, _)| name));
        let is_more = |name: &&String| manifest.objects.iter().all(|of| of.name != **name);
        names.filter(is_more).cloned().collect()
    }
}

impl Coordinator {
    /// Has a worker merge objects if that pays off. A worker that is about to join has read the
    /// objects as they are, so none are merged then.
    pub(super) fn merge(&mut self, effects: &mut Vec<Effect>) {
        let is_preparing = !self.preparing.is_empty();
        let Stage::Running(running) = &mut self.stage else { return };
        let (merging, epoch) = (&mut running.merging, self.manifest.epoch);
        if is_preparing || self.is_ending || merging.under_way.is_some() {
            return;
        }
        let Some(work) = plan(&merging.layout) else { return };
        let work = Arc::new(work);
        merging.count += 1;
        let generation = running.form.generation;
        // Objects that this snapshot and earlier ones don't need may be removed later than now.
        let name = format!("merge-{generation}-{}-{}", epoch + 1, merging.count);
        let members = &running.form.assignment.members;
        let member = members[(merging.count % members.len() as u64) as usize];
        merging.under_way = Some((name.clone(), work.clone()));
        let packet = Packet::Merge { generation, epoch, name, work };
        effects.push(Effect::Send { to: Address::Worker(member), packet });
    }

    /// Takes the result of a merge. If it could not be stored, another one is planned after the
    /// next snapshot.
    pub(super) fn merged(
        &mut self,
        name: &str,
        part: Option<StoredPart>,
        effects: &mut Vec<Effect>,
    ) {
        let is_preparing = !self.preparing.is_empty();
        let Stage::Running(running) = &mut self.stage else { return };
        let merging = &mut running.merging;
        let Some((_, work)) = merging.under_way.take_if(|(of, _)| of == name) else { return };
        let Some(object) = part.filter(|_| !is_preparing) else { return };
        if replace(&mut merging.layout, &work, object) {
            self.merge(effects);
        }
    }
}
