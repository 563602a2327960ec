//! Logs with some topics elsewhere: the cuts, or the inputs of some sources.

use std::ops::Range;
use std::sync::Arc;

use tidemill_core::Error;

use crate::{Log, Record, Records, Refused, Then, ThenEach, Topic};

/// A log with some topics in another one. A generation begins in each topic separately, in the cuts
/// first. So there is no guarantee across topics that two logs could not give.
pub struct SplitLog {
    is_apart: Box<dyn Fn(Topic) -> bool + Send + Sync>,
    apart: Arc<dyn Log>,
    rest: Arc<dyn Log>,
}

impl SplitLog {
    /// Creates a log with the cuts in the first log, and inputs and outputs in the second.
    pub fn cuts(cuts: Arc<dyn Log>, rest: Arc<dyn Log>) -> SplitLog {
        SplitLog { is_apart: Box::new(|topic| topic == Topic::Cuts), apart: cuts, rest }
    }

    /// Creates a log with the inputs of these sources in `inputs`, and the rest in `rest`.
    pub fn inputs(sources: Range<u32>, inputs: Arc<dyn Log>, rest: Arc<dyn Log>) -> SplitLog {
        let is_apart = move |topic| matches!(topic, Topic::Input(of) if sources.contains(&of));
        SplitLog { is_apart: Box::new(is_apart), apart: inputs, rest }
    }

    fn of(&self, topic: Topic) -> &dyn Log {
        match (self.is_apart)(topic) {
            true => &*self.apart,
            false => &*self.rest,
        }
    }
}

impl Log for SplitLog {
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
        self.apart.failed().or_else(|| self.rest.failed())
    }

    fn trouble(&self) -> Option<String> {
        self.apart.trouble().or_else(|| self.rest.trouble())
    }
}
