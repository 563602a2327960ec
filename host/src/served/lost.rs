//! Appends with an unknown outcome.
//!
//! After such an append, no other of its generation may be appended to the topic. Otherwise the
//! later record would be there and the earlier one not, and the next generation would append that
//! one after it.

use std::collections::BTreeMap;

use tidemill_cluster::Topic;

/// The last generation of each topic that has lost an append.
#[derive(Default)]
pub(super) struct Lost(BTreeMap<Topic, u64>);

impl Lost {
    /// Notes that an append of this generation may or may not be in the topic.
    pub fn add(&mut self, topic: Topic, generation: u64) {
        // Requests have no generation, and none of them waits for another.
        if !matches!(topic, Topic::Input(_)) {
            let last = self.0.entry(topic).or_default();
            *last = generation.max(*last);
        }
    }

    /// Whether an earlier append may be missing.
    pub fn is_before(&self, topic: Topic, generation: u64) -> bool {
        self.0.get(&topic).is_some_and(|last| *last >= generation)
    }
}
