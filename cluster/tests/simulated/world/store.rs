//! The calls of the store.

use tidemill_cluster::{put_part, wire, Effect, Input};
use tidemill_snapshot::merge;

use super::World;

impl World {
    /// Performs a call of the store, and returns its answer. A call that fails may have had its
    /// effect, unless it is lost.
    pub(super) fn put(&self, effect: Effect, fails: bool, is_lost: bool) -> Input {
        match effect {
            Effect::PutManifest { token, manifest } => {
                let mut bytes = Vec::new();
                wire::put_manifest_object(&manifest, &mut bytes);
                let put = || self.store.put(&manifest.name(), &bytes);
                let is_stored = !is_lost && put().expect("it has no faults");
                Input::Stored { token, is_stored: is_stored && !fails }
            }
            Effect::PutPart { token, of, name, rows } => {
                let put = || put_part(&*self.store, of, &name, &rows).ok();
                let part = (!is_lost).then(put).flatten();
                Input::PartStored { token, part: part.filter(|_| !fails) }
            }
            Effect::Merge { token, of, name, work } => {
                // Its objects may have been removed with their generation.
                let part = (!is_lost).then(|| merge(&self.store, of, &name, &work).ok()).flatten();
                Input::PartStored { token, part: part.filter(|_| !fails) }
            }
            _ => unreachable!("only calls of the store come here"),
        }
    }
}
