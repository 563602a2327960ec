//! The superseded versions of one row: records one after another, with running sums.

use std::ops::Range;

use tidemill_core::Value;

use super::levels::{Level, FAN};
use super::{Floor, Shape, HEADER, STAMP_AT, TIME};
use crate::cells::prefetch_address;
use crate::version::{stamp_word, Seq};

/// Superseded versions of a row, oldest first. The newest version, if the row is there, has the next
/// number.
#[derive(Clone, Debug)]
pub(crate) struct RowHistory {
    /// Per version: time, stamp word, columns, and of each summed column the sum of the versions
    /// before it, in two words, since the first version ever.
    records: Vec<u64>,
    /// The values beside them.
    values: Vec<Value>,
    levels: Vec<Level>,
    /// The number of the first version in `records`.
    base: u64,
    /// So many versions at the front of `records` are gone.
    gone: usize,
    /// The time of the oldest version in `records` that is not gone, if there is one: who looks for
    /// a time need not fetch it.
    oldest_us: i64,
    /// The time of the newest version.
    pub(crate) newest_us: i64,
    /// The numbers that the last snapshot has, the newest version's included.
    pub(crate) stored: Range<u64>,
}

impl Default for RowHistory {
    fn default() -> RowHistory {
        RowHistory {
            records: Vec::new(),
            values: Vec::new(),
            levels: Vec::new(),
            base: 0,
            gone: 0,
            oldest_us: i64::MIN,
            newest_us: i64::MIN,
            stored: 0..0,
        }
    }
}

impl RowHistory {
    /// The number of the oldest version that is there.
    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        self.base + self.gone as u64
    }

    /// The number behind the last superseded version.
    #[inline(always)]
    pub(crate) fn end(&self, shape: &Shape) -> u64 {
        self.base + (self.records.len() / shape.width) as u64
    }

    pub(crate) fn is_empty(&self, shape: &Shape) -> bool {
        self.first() == self.end(shape)
    }

    #[inline(always)]
    fn record(&self, number: u64, shape: &Shape) -> &[u64] {
        let at = (number - self.base) as usize * shape.width;
        &self.records[at..at + shape.width]
    }

    #[inline(always)]
    pub(crate) fn time(&self, number: u64, shape: &Shape) -> i64 {
        self.record(number, shape)[TIME] as i64
    }

    pub(crate) fn seq(&self, number: u64, shape: &Shape) -> Seq {
        self.record(number, shape)[STAMP_AT] >> 1
    }

    /// The columns of a version that are words.
    #[inline(always)]
    pub(crate) fn body(&self, number: u64, shape: &Shape) -> &[u64] {
        &self.record(number, shape)[HEADER..HEADER + shape.body]
    }

    /// Its other columns.
    pub(crate) fn values(&self, number: u64, shape: &Shape) -> &[Value] {
        let at = (number - self.base) as usize * shape.beside;
        &self.values[at..at + shape.beside]
    }

    /// Appends the version that is about to be superseded. Gives how many more bytes it takes.
    pub(crate) fn push(
        &mut self,
        shape: &Shape,
        floor: Floor,
        (stamp, body): (u64, &[u64]),
        beside: &[Value],
    ) -> isize {
        let room = self.records.capacity() - self.records.len();
        let before = if room < shape.width { self.room(shape, floor) } else { None };
        let end = self.end(shape);
        if end.is_multiple_of(FAN) && end > self.base {
            self.settle(shape, end);
        }
        let last = self.records.len().checked_sub(shape.width);
        if self.first() == end {
            self.oldest_us = self.newest_us;
        }
        self.records.extend_from_slice(&[self.newest_us as u64, stamp]);
        self.records.extend_from_slice(body);
        for (nth, word) in shape.sums.iter().enumerate() {
            let sum = match last {
                Some(last) => {
                    let last = &self.records[last..][..shape.width];
                    running(last, shape, nth).wrapping_add(signed(last[HEADER + word]))
                }
                None => 0,
            };
            self.records.extend_from_slice(&[sum as u64, (sum >> 64) as u64]);
        }
        self.values.extend_from_slice(beside);
        let values: usize = beside.iter().map(Value::heap_bytes).sum();
        before.map_or(0, |before| self.bytes() as isize - before as isize) + values as isize
    }

    /// Takes back the last [`RowHistory::push`]; that version is the newest again.
    pub(crate) fn pop(&mut self, shape: &Shape) {
        let at = self.records.len() - shape.width;
        self.newest_us = self.records[at + TIME] as i64;
        self.records.truncate(at);
        self.values.truncate(self.values.len() - shape.beside);
    }

    /// Appends a version of a snapshot as if it were superseded already. Gives how many more bytes it
    /// takes; nothing when another number is next.
    pub(crate) fn restore(
        &mut self,
        shape: &Shape,
        (number, time_us): (u64, i64),
        body: &[u64],
        beside: &[Value],
    ) -> Option<isize> {
        if self.records.is_empty() {
            self.base = number;
        }
        if self.end(shape) != number {
            return None;
        }
        let before = self.bytes() as isize;
        // With room nothing is dropped: what has been stored is there, and goes by and by.
        self.records.reserve(shape.width);
        self.newest_us = time_us;
        let values = self.push(shape, Floor::NONE, (stamp_word(0, true), body), beside);
        Some(self.bytes() as isize - before + values)
    }

    /// Whether the last snapshot has versions that have gone since.
    pub(crate) fn is_stored_in_vain(&self) -> bool {
        self.stored.start < self.first() && !self.stored.is_empty()
    }

    /// Drops what nobody wants. Gives how many bytes the row took before.
    #[cold]
    fn room(&mut self, shape: &Shape, floor: Floor) -> Option<usize> {
        let before = self.bytes();
        self.expire(shape, floor);
        Some(before)
    }

    /// Drops the versions that nobody wants: kept are those of later transactions than the floor's,
    /// and of the earlier ones what the history keeps. Gives the bytes of values that went.
    pub(crate) fn expire(&mut self, shape: &Shape, floor: Floor) -> usize {
        let end = self.end(shape);
        let last = self.partition(self.first()..end, |n| self.seq(n, shape) <= floor.seq);
        let by_count = shape.history.versions.map_or(last, |kept| last.saturating_sub(kept));
        let by_time = shape.history.kept_from(floor.frontier_us);
        let by_time = by_time.map_or(last, |from| self.since(from, shape).min(last));
        let from = by_count.min(by_time).max(self.first());
        let went = (from - self.first()) as usize;
        let at = self.gone * shape.beside;
        let mut bytes = 0;
        for value in &mut self.values[at..at + went * shape.beside] {
            bytes += value.heap_bytes();
            *value = Value::Null;
        }
        self.gone += went;
        let len = self.records.len() / shape.width;
        if self.gone * 2 >= len && self.gone > 0 {
            self.records.drain(..self.gone * shape.width);
            self.values.drain(..self.gone * shape.beside);
            self.base += self.gone as u64;
            self.gone = 0;
            let width = 2 * shape.orders.len();
            let mut first = self.base;
            for level in &mut self.levels {
                first = first.div_ceil(FAN);
                level.drop_before(first, width);
            }
            if self.records.is_empty() {
                self.levels.clear();
            }
        }
        if !self.is_empty(shape) {
            self.oldest_us = self.time(self.first(), shape);
        }
        bytes
    }

    /// Sums up the block of versions that ends before `end`, and what that completes.
    fn settle(&mut self, shape: &Shape, end: u64) {
        if shape.orders.is_empty() {
            return;
        }
        let width = 2 * shape.orders.len();
        let (mut number, mut level) = (end / FAN - 1, 0);
        let mut ranks = vec![0; width];
        loop {
            for (nth, pair) in ranks.chunks_exact_mut(2).enumerate() {
                pair.copy_from_slice(&[u64::MAX, 0]);
                let numbers = number * FAN..(number + 1) * FAN;
                match level {
                    0 => {
                        let from = numbers.start.max(self.first());
                        self.widen_by_records(shape, from..numbers.end, nth, pair);
                    }
                    level => widen_by_blocks(&self.levels[level - 1], numbers, width, nth, pair),
                }
            }
            if self.levels.len() == level {
                self.levels.push(Level::default());
            }
            self.levels[level].push(number, &ranks);
            if !(number + 1).is_multiple_of(FAN) {
                return;
            }
            (number, level) = ((number + 1) / FAN - 1, level + 1);
        }
    }

    fn widen_by_records(&self, shape: &Shape, numbers: Range<u64>, nth: usize, pair: &mut [u64]) {
        let (word, order) = shape.orders[nth];
        for number in numbers {
            let rank = order.rank(self.record(number, shape)[HEADER + word]);
            pair[0] = pair[0].min(rank);
            pair[1] = pair[1].max(rank);
        }
    }

    /// The lowest and the highest rank, in a range that is not empty, of the `nth` ordered column.
    pub(crate) fn extremes(&self, shape: &Shape, numbers: Range<u64>, nth: usize) -> [u64; 2] {
        let width = 2 * shape.orders.len();
        let mut pair = [u64::MAX, 0];
        let (mut from, mut to) = (numbers.start, numbers.end);
        for at in 0..=self.levels.len() {
            let widen = |numbers: Range<u64>, pair: &mut [u64; 2]| match at {
                0 => self.widen_by_records(shape, numbers, nth, pair),
                at => widen_by_blocks(&self.levels[at - 1], numbers, width, nth, pair),
            };
            let settled = self.levels.get(at).map_or(0, |level| level.end(width));
            let (low, high) = (from.div_ceil(FAN), (to / FAN).min(settled));
            if low >= high {
                widen(from..to, &mut pair);
                break;
            }
            widen(from..low * FAN, &mut pair);
            widen(high * FAN..to, &mut pair);
            (from, to) = (low, high);
        }
        pair
    }

    /// The sum of the `nth` summed column up to version `number`, without it.
    #[inline(always)]
    pub(crate) fn sum_before(&self, shape: &Shape, number: u64, nth: usize) -> i128 {
        running(self.record(number, shape), shape, nth)
    }

    /// The number of the first version that is not older than `time_us`; [`RowHistory::end`] when
    /// all are.
    ///
    /// Versions come at a steady pace more often than not, so it is guessed by proportion, and found
    /// from there in steps that double: a few looks that are close together, where halving would be
    /// as many as there are digits in the number of versions, far apart.
    #[inline(always)]
    pub(crate) fn since(&self, time_us: i64, shape: &Shape) -> u64 {
        let (first, end) = (self.first(), self.end(shape));
        if first == end || self.oldest_us >= time_us {
            return first;
        }
        let last = end - 1;
        if self.time(last, shape) < time_us {
            return end;
        }
        // From here on: time(first) < time_us <= time(last).
        let (oldest, newest) = (self.oldest_us, self.time(last, shape));
        let span = newest.wrapping_sub(oldest) as u64 as f64;
        let part = time_us.wrapping_sub(oldest) as u64 as f64;
        let guess = first + ((last - first) as f64 * (part / span)) as u64;
        let guess = guess.clamp(first, last);
        let is_older = |n: u64| self.time(n, shape) < time_us;
        let mut step = 1;
        let (low, high) = if is_older(guess) {
            let mut low = guess;
            while low + step < last && is_older(low + step) {
                low += step;
                step *= 2;
            }
            (low, (low + step).min(last))
        } else {
            let mut high = guess;
            while high > first + step && !is_older(high - step) {
                high -= step;
                step *= 2;
            }
            (high.saturating_sub(step).max(first), high)
        };
        // `low` is older, `high` is not.
        self.partition(low + 1..high, is_older)
    }

    /// The first number of a range for which `is_before` is not true.
    pub(crate) fn partition(&self, numbers: Range<u64>, is_before: impl Fn(u64) -> bool) -> u64 {
        let (mut low, mut high) = (numbers.start, numbers.end);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Asks for where the next version goes, which is beside the last one.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        let end = self.records.as_ptr().wrapping_add(self.records.len());
        prefetch_address(end.wrapping_sub(1));
        prefetch_address(end.wrapping_add(7));
    }

    /// Memory it takes, in bytes, without what its values point at.
    pub(crate) fn bytes(&self) -> usize {
        self.records.capacity() * 8
            + self.values.capacity() * std::mem::size_of::<Value>()
            + self.levels.iter().map(Level::bytes).sum::<usize>()
    }
}

#[inline(always)]
fn running(record: &[u64], shape: &Shape, nth: usize) -> i128 {
    let at = HEADER + shape.body + 2 * nth;
    i128::from(record[at]) | i128::from(record[at + 1]) << 64
}

#[inline(always)]
pub(super) fn signed(word: u64) -> i128 {
    i128::from(word as i64)
}

fn widen_by_blocks(level: &Level, numbers: Range<u64>, width: usize, nth: usize, pair: &mut [u64]) {
    for block in level.blocks(numbers, width) {
        pair[0] = pair[0].min(block[2 * nth]);
        pair[1] = pair[1].max(block[2 * nth + 1]);
    }
}
