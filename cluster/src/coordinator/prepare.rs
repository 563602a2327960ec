//! Preparation of new workers. They read the snapshot before they join, while the others continue.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::effect::{Address, Effect, Packet};
use crate::records::{Manifest, Member};

/// Workers that are about to join, the time when their preparation began, and whether it is done.
#[derive(Default)]
pub(super) struct Preparing(BTreeMap<Member, (u64, bool)>);

impl Preparing {
    /// Sends the snapshot to new workers. Returns whether all have read it, or have had enough
    /// time.
    pub fn are_ready(
        &mut self,
        come: &[Member],
        manifest: &Arc<Manifest>,
        (now_us, patience_us): (u64, u64),
        effects: &mut Vec<Effect>,
    ) -> bool {
        self.0.retain(|member, _| come.contains(member));
        for member in come {
            self.0.entry(*member).or_insert_with(|| {
                let packet = Packet::Prepare(manifest.clone());
                effects.push(Effect::Send { to: Address::Worker(*member), packet });
                (now_us, manifest.objects.is_empty())
            });
        }
        self.0.values().all(|(since_us, is_done)| *is_done || now_us > since_us + patience_us)
    }

    /// Notes that a worker has read the snapshot.
    pub fn done(&mut self, member: Member) {
        if let Some((_, is_done)) = self.0.get_mut(&member) {
            *is_done = true;
        }
    }

    /// Forgets a worker, because the message to it may be lost.
    pub fn forget(&mut self, member: Member) {
        self.0.remove(&member);
    }
}
