//! The baseline of GrepSum: the loop that one would write for it and for nothing else.
//!
//! One thread; open addressing in slots of 128 bytes, of which it reads the first line; the
//! records of the event 16 ahead are asked for; the number of records of a transaction is known to
//! the compiler; no versions, no outputs, no aborts to be told.

use super::events::Made;
use super::{record, with_length, Form, WORDS};
use crate::events::Events;
use crate::execute::Verdicts;
use crate::slots::{Slot, Slots, AHEAD, FREE};
use crate::work::Work;

/// A record: key and value, then what nobody reads.
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
pub(super) struct Tight(Slots<Record>);

impl Tight {
    pub(super) fn new(form: Form) -> Tight {
        Tight(Slots::new(form.keys, |key| Record(record(key))))
    }

    /// The words of a record.
    pub(super) fn get(&self, key: u32) -> &[i64; WORDS] {
        &self.0.get(key).0
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
                ahead.iter().for_each(|key| self.0.prefetch(*key));
            }
            let is_done = match made.is_computed(at) {
                true => self.follow(form, all[at][0], made.least(at), work),
                false => self.sum(form, &all[at], made.least(at), work),
            };
            if !is_done {
                verdicts.abort(at);
            }
        }
        verdicts
    }

    #[inline(always)]
    fn value(&mut self, key: u32) -> &mut i64 {
        &mut self.0.at(key).0[1]
    }

    /// Writes what the records come to to the first, unless that is too little.
    #[inline(always)]
    fn sum<const N: usize>(&mut self, form: Form, keys: &[u32; N], least: i64, work: Work) -> bool {
        let (mut sum, mut worked) = (0, 0);
        for key in keys {
            let value = *self.value(*key);
            worked = work.run(value, worked);
            sum += value;
        }
        if sum < least {
            return false;
        }
        *self.value(keys[0]) = form.written(sum, N);
        true
    }

    /// As [`Tight::sum`], of a record and the one whose key is its value; that is written.
    fn follow(&mut self, form: Form, key: u32, least: i64, work: Work) -> bool {
        let value = *self.value(key);
        let next = (value % form.keys as i64) as u32;
        let there = *self.value(next);
        work.run(there, work.run(value, 0));
        let sum = value + there;
        if sum < least {
            return false;
        }
        *self.value(next) = form.written(sum, 2);
        true
    }
}
