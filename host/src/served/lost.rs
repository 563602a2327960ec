//! Which appends nobody knows the fate of.
//!
//! Behind one of them no other of its generation may be in the topic: what comes later would be there and what
//! came earlier not, and the next generation would append that behind it.

use std::collections::BTreeMap;

use tidemill_cluster::Topic;

/// For each topic the last generation that has lost an append.
#[derive(Default)]
pub(super) struct Lost(BTreeMap<Topic, u64>);

impl Lost {
    /// An append of this generation may be in the topic or not.
    pub fn add(&mut self, topic: Topic, generation: u64) {
        // Requests are of no generation, and none of them waits for another.
        if !matches!(topic, Topic::Input(_)) {
            let last = self.0.entry(topic).or_default();
            *last = generation.max(*last);
        }
    }

    /// Whether one before may be missing.
    pub fn is_before(&self, topic: Topic, generation: u64) -> bool {
        self.0.get(&topic).is_some_and(|last| *last >= generation)
    }
}
