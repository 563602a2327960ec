//! Preparation of new workers. They read the snapshot before they join, while the others continue.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::effect::{Address, Effect, Packet};
use crate::records::{Form, Member};

/// Workers that are about to join, the time when their preparation began, and whether it is done.
#[derive(Default)]
pub(super) struct Preparing(BTreeMap<Member, (u64, bool)>);

impl Preparing {
    /// Sends the snapshot, in the expected generation, to new workers. Returns whether all have read
    /// it, or have had enough time.
    pub fn are_ready(
        &mut self,
        come: &[Member],
        expected: impl Fn() -> Arc<Form>,
        (now_us, patience_us): (u64, u64),
        effects: &mut Vec<Effect>,
    ) -> bool {
        self.0.retain(|member, _| come.contains(member));
        for member in come {
            self.0.entry(*member).or_insert_with(|| {
                let form = expected();
                let is_done = form.manifest.objects.is_empty();
                let packet = Packet::Prepare(form);
                effects.push(Effect::Send { to: Address::Worker(*member), packet });
                (now_us, is_done)
            });
        }
        self.0.values().all(|(since_us, is_done)| *is_done || now_us > since_us + patience_us)
    }

    /// Whether no worker is about to join.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
