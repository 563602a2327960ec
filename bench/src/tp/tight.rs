//! The baseline of Toll Processing: the loop that one would write for this workload only.
//!
//! It uses one thread and one table, since both tables have the same key, with open addressing in
//! slots of 32 bytes (key, mean, set). All segments exist from the beginning. The count is that of
//! the set's bits. It prefetches the slot of the event 16 ahead. There are no versions, no outputs
//! and no reports of aborts.

use super::events::Event;
use super::{bit, mean, SPEED_END, WORD_VEHICLES};
use crate::execute::Verdicts;
use crate::slots::{Slot, Slots, AHEAD, FREE};
use crate::work::Work;

/// The state of a segment.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(super) struct Segment {
    key: u64,
    /// The mean speed; 0 before the first report.
    pub(super) mean: f64,
    /// The set: vehicles 1 to 50, and 51 to 100.
    pub(super) vehicles: [i64; 2],
}

impl Slot for Segment {
    const FREE: Segment = Segment { key: FREE, mean: 0.0, vehicles: [0; 2] };

    #[inline(always)]
    fn key(&self) -> u64 {
        self.key
    }
}

/// The baseline's table.
#[derive(Clone, Debug)]
pub(crate) struct Tight(Slots<Segment>);

impl Tight {
    pub(super) fn new(keys: usize) -> Tight {
        Tight(Slots::new(keys, |key| Segment { key, ..Segment::FREE }))
    }

    pub(super) fn get(&self, segment: u32) -> &Segment {
        self.0.get(segment)
    }

    /// Executes all events in order.
    #[inline(never)]
    pub(super) fn run(&mut self, events: &[Event], work: Work) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for (at, event) in events.iter().enumerate() {
            if let Some(ahead) = events.get(at + AHEAD) {
                self.0.prefetch(ahead.segment);
            }
            let (vehicle, speed) = (i64::from(event.vehicle), i64::from(event.speed));
            if speed >= SPEED_END {
                verdicts.abort(at);
                continue;
            }
            let segment = self.0.at(event.segment);
            segment.mean = mean(segment.mean, speed);
            let worked = work.run(segment.mean.to_bits() as i64, 0);
            let word = &mut segment.vehicles[usize::from(vehicle > WORD_VEHICLES)];
            *word |= bit(vehicle);
            work.run(*word, worked);
        }
        verdicts
    }
}
