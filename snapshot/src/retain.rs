//! Retention of the newest snapshots, and removal of objects that none of them needs.

use std::collections::BTreeSet;

use tidemill_core::Result;

use crate::damage;
use crate::manifest::{epochs, manifest_at, name_of};
use crate::snapshots::Snapshots;
use crate::{DATA, INTERNAL};

/// The retained snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The epochs of the retained snapshots, oldest first.
    pub epochs: Vec<u64>,
    /// The first record of the input log that any of them needs.
    pub input_next: u64,
    /// The first record of the cut log that any of them needs.
    pub cut_next: u64,
}

impl Snapshots {
    /// Retains the newest `count` snapshots (at least 1). Removes all others, objects that none of
    /// them names, and leftovers of failures and crashes, except objects that are being written.
    /// Returns `None`, and removes nothing, while there is no snapshot. Snapshots whose publishing
    /// failed, but which exist, are retained beside them.
    ///
    /// # Errors
    /// If the store fails, or a retained snapshot has a damaged manifest. Nothing that is needed
    /// has been removed, and another call continues with the rest.
    pub fn retain(&self, count: usize) -> Result<Option<Retained>> {
        let Some(newest) = &self.newest else { return Ok(None) };
        // There may be a manifest whose answer was lost, newer than the known ones. It stays, but
        // it displaces no other, because it may not survive a crash.
        let mut removed = epochs(&*self.store)?;
        let counted = removed.partition_point(|epoch| *epoch <= newest.head.epoch);
        let kept = removed.split_off(counted.saturating_sub(count.max(1)));
        let mut used: BTreeSet<String> = self.layout.iter().map(|o| o.name.clone()).collect();
        let (mut input_next, mut cut_next) = (newest.head.input_next, newest.head.cut_next);
        for epoch in &kept {
            let manifest = match *epoch == newest.head.epoch {
                true => newest.clone(),
                false => manifest_at(&*self.store, self.app, *epoch)?
                    .ok_or_else(|| damage::missing(&name_of(*epoch), "the list of snapshots"))?
                    .into(),
            };
            used.extend(manifest.needs().map(|(name, _)| name.to_owned()));
            input_next = input_next.min(manifest.head.input_next);
            cut_next = cut_next.min(manifest.head.cut_next);
        }

        // Manifests are removed first, so that an existing one always has its objects.
        for epoch in &removed {
            self.store.delete(&name_of(*epoch))?;
        }
        for prefix in [DATA, INTERNAL] {
            for object in self.store.list(prefix)? {
                if !used.contains(&object.name) && !self.names.is_claimed(&object.name) {
                    self.store.delete(&object.name)?;
                }
            }
        }
        Ok(Some(Retained { epochs: kept, input_next, cut_next }))
    }
}
