//! Keeping the newest snapshots, and removing what none of them needs.

use std::collections::BTreeSet;

use tidemill_core::Result;

use crate::damage;
use crate::manifest::{epochs, manifest_at, name_of};
use crate::snapshots::Snapshots;
use crate::{DATA, INTERNAL};

/// What is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The epochs of the snapshots that are kept, oldest first.
    pub epochs: Vec<u64>,
    /// The first record of the input log that any of them needs.
    pub input_next: u64,
    /// The first record of the cut log that any of them needs.
    pub cut_next: u64,
}

impl Snapshots {
    /// Keeps the newest `count` snapshots (at least 1) and removes all others, objects that none of
    /// them names, and what failures and crashes have left: except what is being written now.
    /// `None`, and nothing is removed, while there is no snapshot. Snapshots whose publishing
    /// failed, and which are there all the same, are kept beside them.
    ///
    /// # Errors
    /// When the store fails, or one of the snapshots to keep has a damaged manifest. Nothing that
    /// is needed has been removed, and another call goes on with the rest.
    pub fn retain(&self, count: usize) -> Result<Option<Kept>> {
        let Some(newest) = &self.newest else { return Ok(None) };
        // A manifest whose answer was lost may be there, newer than what is known here: it stays,
        // but nothing has to give way for it, because it may not survive a crash.
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

        // Manifests first: one that is there has its objects, wherever this ends.
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
        Ok(Some(Kept { epochs: kept, input_next, cut_next }))
    }
}
