//! The simulated log service: partitions of records, each with a fence.

use std::collections::BTreeMap;

use tidemill_cluster::{CutRecord, Output, Record, Records, Refused, Topic};
use tidemill_function::Tid;
use tidemill_txn::program::QuestionId;

/// The log.
#[derive(Default)]
pub(super) struct Log {
    topics: BTreeMap<Topic, Partition>,
    /// Whether a fenced append of outputs reports success, as in a log where only readers judge
    /// records.
    conceals: bool,
}

#[derive(Default)]
struct Partition {
    /// All records that were ever appended, for the checkers.
    records: Vec<Record>,
    /// The first record that is still read; earlier ones are trimmed.
    first: u64,
    generation: u64,
}

impl Log {
    pub fn new(conceals: bool) -> Log {
        Log { topics: BTreeMap::new(), conceals }
    }

    /// Appends a record, unless a later generation has appended or this generation has begun
    /// already.
    pub fn append(
        &mut self,
        topic: Topic,
        generation: u64,
        record: Record,
    ) -> Result<u64, Refused> {
        let partition = self.topics.entry(topic).or_default();
        let begins = matches!(record, Record::Generation { .. });
        let is_late =
            partition.generation > generation || (begins && partition.generation == generation);
        if is_late {
            let must_count = matches!(record, Record::Answer { .. });
            let is_output = matches!(topic, Topic::Output(_)) && !begins && !must_count;
            return match self.conceals && is_output {
                true => Ok(partition.records.len() as u64),
                false => Err(Refused::Fenced),
            };
        }
        partition.generation = partition.generation.max(generation);
        partition.records.push(record);
        Ok(partition.records.len() as u64 - 1)
    }

    /// Adds an offset without a record.
    pub fn gap(&mut self, topic: Topic) {
        self.topics.entry(topic).or_default().records.push(Record::Requests(Vec::new()));
    }

    pub fn read(&self, topic: Topic, from: u64, limit: Option<usize>) -> Records {
        let first = self.topics.get(&topic).map_or(0, |partition| partition.first);
        let from = from.max(first);
        let there = self.records(topic).get(from as usize..).unwrap_or_default();
        let there = &there[..there.len().min(limit.unwrap_or(usize::MAX))];
        let upto = from + there.len() as u64;
        let is_gap = |record: &Record| matches!(record, Record::Requests(some) if some.is_empty());
        let records = (from..).zip(there.iter().cloned()).filter(|(_, record)| !is_gap(record));
        Records { records: records.collect(), upto }
    }

    pub fn trim(&mut self, topic: Topic, below: u64) {
        let partition = self.topics.entry(topic).or_default();
        partition.first = partition.first.max(below);
    }

    pub fn records(&self, topic: Topic) -> &[Record] {
        self.topics.get(&topic).map_or(&[], |partition| &partition.records)
    }

    /// Returns all outputs, by source.
    pub fn outputs(&self) -> Vec<Output> {
        let of_outputs = self.topics.iter().filter(|(t, _)| matches!(t, Topic::Output(_)));
        let mut outputs = Vec::new();
        for record in of_outputs.flat_map(|(_, partition)| &partition.records) {
            match record {
                Record::Outputs(some) => outputs.extend_from_slice(some),
                Record::Emitted(emitted) => {
                    for ((tid, ordinal), row) in emitted.ids().zip(emitted.batch.rows()) {
                        let (tid, path) = (Tid(tid), [ordinal].as_slice().into());
                        outputs.push(Output::Event { tid, path, stream: emitted.stream, row });
                    }
                }
                _ => {}
            }
        }
        outputs
    }

    /// Returns all answers from outside.
    pub fn answers(&self) -> impl Iterator<Item = (Tid, QuestionId, &[u8])> + '_ {
        let records = self.topics.values().flat_map(|partition| &partition.records);
        records.filter_map(|record| match record {
            Record::Answer { tid, asked, answer } => Some((*tid, *asked, &answer[..])),
            _ => None,
        })
    }

    /// Returns the cuts that count, each with the base before it.
    pub fn cuts(&self) -> Vec<(&CutRecord, u64)> {
        let (mut cuts, mut next) = (Vec::new(), 0);
        for record in self.records(Topic::Cuts) {
            match record {
                Record::Cut(cut) => {
                    cuts.push((cut, next));
                    next = cut.next_base();
                }
                Record::Withdrawn { epoch, base } => {
                    cuts.retain(|(cut, _)| cut.epoch < *epoch);
                    next = next.max(*base);
                }
                _ => {}
            }
        }
        cuts
    }

    pub fn last_epoch(&self) -> u64 {
        self.cuts().last().map_or(0, |(cut, _)| cut.epoch)
    }

    /// Returns the newest epoch of all cuts, with those that were withdrawn.
    pub fn newest_epoch(&self) -> u64 {
        let epoch = |record: &Record| match record {
            Record::Cut(cut) => cut.epoch,
            _ => 0,
        };
        self.records(Topic::Cuts).iter().map(epoch).max().unwrap_or(0)
    }

    /// Returns the number of times that cuts were withdrawn.
    pub fn withdrawals(&self) -> usize {
        let is_it = |record: &&Record| matches!(record, Record::Withdrawn { .. });
        self.records(Topic::Cuts).iter().filter(is_it).count()
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> usize {
        let inputs = self.topics.iter().filter(|(t, _)| matches!(t, Topic::Input(_)));
        let count = |record: &Record| match record {
            Record::Requests(requests) => requests.len(),
            _ => 0,
        };
        inputs.flat_map(|(_, partition)| &partition.records).map(count).sum()
    }

    /// Returns the number of requests and events.
    pub fn transactions(&self) -> usize {
        let inputs = self.topics.iter().filter(|(t, _)| matches!(t, Topic::Input(_)));
        let records = inputs.flat_map(|(_, partition)| &partition.records);
        records.map(|record| super::script::Script::calls(record).len()).sum()
    }

    /// Returns the number of events among the outputs.
    pub fn events(&self) -> usize {
        self.outputs().iter().filter(|output| matches!(output, Output::Event { .. })).count()
    }

    pub fn replies(&self) -> usize {
        self.outputs().iter().filter(|output| matches!(output, Output::Reply { .. })).count()
    }
}
