//! The outputs of epochs: held until their epoch is released, then appended, and reported once nothing
//! more follows.

use std::collections::BTreeMap;

use super::{Pending, Stage, Worker};
use crate::effect::{Effect, Packet};
use crate::records::{Emitted, Output, Record, Topic};

/// An output that waits for its epoch to be released.
pub(super) enum Held {
    One(Output),
    /// Emitted events.
    Many(Emitted),
}

impl Held {
    /// Returns the number of outputs.
    pub fn len(&self) -> usize {
        match self {
            Held::One(_) => 1,
            Held::Many(emitted) => emitted.tids.len(),
        }
    }
}

/// The outputs of an epoch for one source.
#[derive(Default)]
struct SourceOutputs {
    outputs: Vec<Output>,
    emitted: Vec<Emitted>,
}

impl SourceOutputs {
    /// Returns the records, each with the number of its outputs.
    fn records(self, (max, bytes_max): (usize, usize)) -> Vec<(usize, Record)> {
        let mut records = Vec::new();
        for outputs in together(self.outputs, max, bytes_max) {
            records.push((outputs.len(), Record::Outputs(outputs)));
        }
        for emitted in self.emitted {
            let rows = emitted.tids.len();
            let mut from = 0;
            while from < rows {
                let mut to = rows.min(from + max);
                let mut some = emitted.slice(from, to);
                while to - from > 1 && some.log_bytes() > bytes_max {
                    to = from + (to - from) / 2;
                    some = emitted.slice(from, to);
                }
                records.push((to - from, Record::Emitted(some)));
                from = to;
            }
        }
        records
    }
}

/// Groups outputs into records of at most `max`, and approximately `bytes_max`.
fn together(outputs: Vec<Output>, max: usize, bytes_max: usize) -> Vec<Vec<Output>> {
    let mut records: Vec<Vec<Output>> = Vec::new();
    let mut bytes = 0;
    for output in outputs {
        let own = output.log_bytes();
        match records.last_mut().filter(|last| last.len() < max && bytes + own <= bytes_max) {
            Some(last) => {
                last.push(output);
                bytes += own;
            }
            None => {
                records.push(vec![output]);
                bytes = own;
            }
        }
    }
    records
}

impl Worker {
    /// Appends outputs whose epoch is released, and that have not left before.
    pub(super) fn let_out(&mut self, effects: &mut Vec<Effect>) {
        let (generation, sources) = (self.generation, u64::from(self.settings.sources));
        let Stage::Running(running) = &mut self.stage else { return };
        let mut append: BTreeMap<(u64, u32), SourceOutputs> = BTreeMap::new();
        let source = |tid: u64| ((tid - 1) % sources) as u32;
        while let Some((epoch, _)) = running.held.front() {
            if *epoch > running.released {
                break;
            }
            let (epoch, held) = running.held.pop_front().expect("the front exists");
            match held {
                Held::One(output) => {
                    let id = output.id();
                    let tid = id.0;
                    if running.known.outputs.remove(&id) {
                        continue;
                    }
                    *running.appending.entry(epoch).or_default() += 1;
                    append.entry((epoch, source(tid.0))).or_default().outputs.push(output);
                }
                Held::Many(emitted) => {
                    let emitted = running.known.unknown(emitted);
                    let mut by_source: Vec<Vec<u32>> = vec![Vec::new(); sources as usize];
                    for (row, tid) in (0..).zip(&emitted.tids) {
                        by_source[source(*tid) as usize].push(row);
                    }
                    for (source, rows) in (0..).zip(by_source).filter(|(_, rows)| !rows.is_empty())
                    {
                        *running.appending.entry(epoch).or_default() += rows.len();
                        let own = emitted.take(&rows);
                        append.entry((epoch, source)).or_default().emitted.push(own);
                    }
                }
            }
        }
        let max = (self.settings.outputs_max, self.settings.output_bytes);
        for ((epoch, source), outputs) in append {
            for (count, record) in outputs.records(max) {
                let token = self.token(Pending::Append { epoch, source, count });
                let topic = Topic::Output(source);
                effects.push(Effect::Append { token, topic, generation, record });
            }
        }
        self.report_outputs(effects);
        self.part_ready(effects);
    }

    /// Notes that outputs are durable.
    pub(super) fn left(
        &mut self,
        epoch: u64,
        source: u32,
        count: usize,
        at: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Stage::Running(running) = &mut self.stage else { return };
        let end = &mut running.ends[source as usize];
        *end = (*end).max(at + 1);
        if let Some(left) = running.appending.get_mut(&epoch) {
            *left -= count;
            if *left == 0 {
                running.appending.remove(&epoch);
            }
        }
        self.report_outputs(effects);
        self.part_ready(effects);
    }

    /// Reports the epochs of which it has nothing more to append, if that has changed.
    pub(super) fn report_outputs(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        if !self.settings.copies_outputs {
            return;
        }
        // An epoch may still change until it is released.
        let mut last = running.executed.min(running.released);
        let held = running.held.front().map(|(epoch, _)| *epoch);
        let appending = running.appending.keys().next().copied();
        for epoch in held.into_iter().chain(appending) {
            last = last.min(epoch - 1);
        }
        let mut base = running.reported_base.unwrap_or(running.form.manifest.base);
        while let Some((_, of)) = running.bases.pop_front_if(|(epoch, _)| *epoch <= last) {
            base = of;
        }
        if running.reported_base.replace(base) != Some(base) {
            self.repeat_outputs(effects);
        }
    }

    /// Repeats the report, because the coordinator ignores it before all members are ready.
    pub(super) fn repeat_outputs(&self, effects: &mut Vec<Effect>) {
        let (generation, Stage::Running(running)) = (self.generation, &self.stage) else { return };
        let Some(base) = running.reported_base else { return };
        let ends =
            running.ends.iter().zip(&running.loaded_ends).map(|(end, loaded)| *end.max(loaded));
        self.send(Packet::Left { generation, base, ends: ends.collect() }, effects);
    }
}
