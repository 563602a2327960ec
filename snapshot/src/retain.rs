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
    /// `None`, and nothing is removed, while there is no snapshot.
    ///
    /// # Errors
    /// When the store fails, or one of the snapshots to keep has a damaged manifest. Nothing that
    /// is needed has been removed, and another call goes on with the rest.
    pub fn retain(&self, count: usize) -> Result<Option<Kept>> {
        // What is there counts, not what is known here: a manifest whose answer was lost is kept.
        let mut removed = epochs(&*self.store)?;
        let kept = removed.split_off(removed.len().saturating_sub(count.max(1)));
        let mut used: BTreeSet<String> = self.layout.iter().map(|o| o.name.clone()).collect();
        let mut next: Option<(u64, u64)> = None;
        for epoch in &kept {
            let known = self.newest.as_ref().filter(|newest| newest.head.epoch == *epoch);
            let manifest = match known {
                Some(newest) => (**newest).clone(),
                None => manifest_at(&*self.store, self.app, *epoch)?
                    .ok_or_else(|| damage::missing(&name_of(*epoch), "the list of snapshots"))?,
            };
            used.extend(manifest.needs().map(|(name, _)| name.to_owned()));
            let (input, cut) = (manifest.head.input_next, manifest.head.cut_next);
            next = Some(next.map_or((input, cut), |(i, c)| (i.min(input), c.min(cut))));
        }
        let Some((input_next, cut_next)) = next else { return Ok(None) };

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
