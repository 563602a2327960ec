//! The baseline of GrepSum: the loop that one would write for this workload only.
//!
//! It uses one thread, and open addressing in slots of 128 bytes of which it reads the first line.
//! It prefetches the records of the event 16 ahead. The compiler knows the number of records of a
//! transaction. There are no versions, no outputs and no reports of aborts. Where windows are read,
//! each record has a ring of the values written in the last window, and their sum.

use super::events::Made;
use super::{record, with_length, Form, WINDOW_KEYS, WORDS};
use crate::events::Events;
use crate::execute::Verdicts;
use crate::ring::Ring;
use crate::slots::{Slot, Slots, AHEAD, FREE};
use crate::work::Work;

/// A record: key and value, then padding.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(super) struct Record([i64; WORDS]);

impl Slot for Record {
    const FREE: Record = Record([FREE as i64; WORDS]);

    #[inline(always)]
    fn key(&self) -> u64 {
        self.0[0] as u64
    }
}

/// The baseline's table.
#[derive(Clone, Debug)]
pub(crate) struct Tight {
    records: Slots<Record>,
    /// The rings by key; empty where no windows are read.
    rings: Vec<Ring>,
    /// The number of windows read, and of the values in them.
    read: (u64, u64),
}

impl Tight {
    pub(super) fn new(form: Form) -> Tight {
        let records = Slots::new(form.keys, |key| Record(record(key)));
        let rings = form.windows.map_or(0, |_| form.keys);
        Tight { records, rings: vec![Ring::default(); rings], read: (0, 0) }
    }

    /// Returns the mean number of values in a window, or `None` without windows.
    pub(super) fn versions_read(&self) -> Option<f64> {
        (self.read.0 > 0).then(|| self.read.1 as f64 / self.read.0 as f64)
    }

    /// Returns the words of a record.
    pub(super) fn get(&self, key: u32) -> &[i64; WORDS] {
        &self.records.get(key).0
    }

    /// Executes all events in order.
    pub(super) fn run(&mut self, form: Form, made: &Made, work: Work) -> Verdicts {
        with_length!(form.length, N => self.run_on::<N>(form, made, work))
    }

    #[inline(never)]
    fn run_on<const N: usize>(&mut self, form: Form, made: &Made, work: Work) -> Verdicts {
        let (mut verdicts, all) = (Verdicts::default(), made.all::<N>());
        for at in 0..made.count() {
            if let Some(ahead) = all.get(at + AHEAD) {
                ahead.iter().for_each(|key| self.records.prefetch(*key));
            }
            let (time_us, least) = (at as i64, made.least(at));
            let is_done = match made.read(at) {
                Some(read) => self.look(form, read, time_us, least, work),
                None if made.is_computed(at) => self.follow(form, all[at][0], time_us, least, work),
                None => self.sum(form, &all[at], time_us, least, work),
            };
            if !is_done {
                verdicts.abort(at);
            }
        }
        verdicts
    }

    #[inline(always)]
    fn value(&mut self, key: u32) -> &mut i64 {
        &mut self.records.at(key).0[1]
    }

    /// Writes the result of the records to the first, unless it is too little.
    #[inline(always)]
    fn sum<const N: usize>(
        &mut self,
        form: Form,
        keys: &[u32; N],
        time_us: i64,
        least: i64,
        work: Work,
    ) -> bool {
        let (mut sum, mut worked) = (0, 0);
        for key in keys {
            let value = *self.value(*key);
            worked = work.run(value, worked);
            sum += value;
        }
        if sum < least {
            return false;
        }
        self.write(form, keys[0], time_us, form.written(sum, N));
        true
    }

    /// As [`Tight::sum`], of a record and the one whose key is its value. The latter is written.
    fn follow(&mut self, form: Form, key: u32, time_us: i64, least: i64, work: Work) -> bool {
        let value = *self.value(key);
        let next = (value % form.keys as i64) as u32;
        let there = *self.value(next);
        work.run(there, work.run(value, 0));
        let sum = value + there;
        if sum < least {
            return false;
        }
        self.write(form, next, time_us, form.written(sum, 2));
        true
    }

    #[inline(always)]
    fn write(&mut self, form: Form, key: u32, time_us: i64, value: i64) {
        *self.value(key) = value;
        if let Some(windows) = form.windows {
            self.rings[key as usize].push(windows.size_us, time_us, value);
        }
    }

    /// Sums up the windows of records, and returns whether that is enough.
    fn look(
        &mut self,
        form: Form,
        keys: &[u32; WINDOW_KEYS],
        time_us: i64,
        least: i64,
        work: Work,
    ) -> bool {
        let (mut sum, mut worked) = (0, 0);
        for key in keys {
            let ring = &mut self.rings[*key as usize];
            let value = form.windows.map_or(0, |windows| ring.sum(windows.size_us, time_us));
            worked = work.run(value, worked);
            sum += value;
            self.read.1 += ring.len() as u64;
        }
        self.read.0 += WINDOW_KEYS as u64;
        sum >= least
    }
}
