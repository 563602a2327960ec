//! Cuts in one log, all else in another.

use std::sync::Arc;

use tidemill_cluster::{Record, Records, Refused, Topic};
use tidemill_core::Error;

use crate::{Log, Then, ThenEach};

/// A log whose cuts are somewhere else. A generation begins in each topic by itself, in the cuts first, so that
/// nothing is promised between topics that two logs could not keep.
pub struct CutsApart {
    cuts: Arc<dyn Log>,
    rest: Arc<dyn Log>,
}

impl CutsApart {
    /// Cuts in the first one, inputs and outputs in the second.
    pub fn new(cuts: Arc<dyn Log>, rest: Arc<dyn Log>) -> CutsApart {
        CutsApart { cuts, rest }
    }

    fn of(&self, topic: Topic) -> &dyn Log {
        match topic {
            Topic::Cuts => &*self.cuts,
            Topic::Input(_) | Topic::Output(_) => &*self.rest,
        }
    }
}

impl Log for CutsApart {
    fn append(
        &self,
        topic: Topic,
        generation: u64,
        record: Record,
        then: Then<Result<u64, Refused>>,
    ) {
        self.of(topic).append(topic, generation, record, then);
    }

    fn append_all(&self, topic: Topic, generation: u64, records: Vec<Record>, then: ThenEach) {
        self.of(topic).append_all(topic, generation, records, then);
    }

    fn read(
        &self,
        topic: Topic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Records>>,
    ) {
        self.of(topic).read(topic, from, limit, wait_us, then);
    }

    fn trim(&self, topic: Topic, below: u64) {
        self.of(topic).trim(topic, below);
    }

    fn failed(&self) -> Option<Error> {
        self.cuts.failed().or_else(|| self.rest.failed())
    }

    fn trouble(&self) -> Option<String> {
        self.cuts.trouble().or_else(|| self.rest.trouble())
    }
}
