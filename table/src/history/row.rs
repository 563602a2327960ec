//! The superseded versions of one row: one record after another, with running sums.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use tidemill_core::Value;

use super::levels::{Level, FAN};
use super::{Floor, Shape, BEFORE, HEADER, STAMP_AT, TIME};
use crate::cells::prefetch_address;
use crate::version::{stamp_word, Seq};

/// The superseded versions of a row, oldest first. The newest version, if the row exists, has the
/// next number.
///
/// It is one cache line, so that one prefetch brings all of it. Data that few rows have is behind a
/// pointer.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct RowHistory {
    /// The records, with `shape.width` words each (see [`Shape`]).
    records: Vec<u64>,
    /// The number of records.
    len: u32,
    /// The number of records at the front that have been dropped.
    gone: u32,
    /// The number of the first record.
    base: u64,
    /// The time of the newest version, in microseconds.
    pub(crate) newest_us: i64,
    rest: Option<Box<Rest>>,
    found: Found,
}

/// The data that most rows do not have.
#[derive(Clone, Debug, Default)]
struct Rest {
    /// The values of columns that have no place in the records.
    values: Vec<Value>,
    levels: Vec<Level>,
    /// The numbers of the versions in the last snapshot, including the newest version.
    stored: Range<u64>,
}

/// The record that the last search by time found.
///
/// Time goes on. So the next search finds the same record or one of the next few, and a prefetch
/// knows which.
///
/// It only says where to look first, so any number is right. Thus readers may set it.
#[derive(Debug, Default)]
struct Found(AtomicU32);

impl Clone for Found {
    fn clone(&self) -> Found {
        Found(AtomicU32::new(self.get() as u32))
    }
}

impl Found {
    #[inline(always)]
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed) as usize
    }

    #[inline(always)]
    fn set(&self, at: usize) {
        self.0.store(at as u32, Ordering::Relaxed);
    }
}

/// The number of records that a search looks at, from the one that was found last.
const NEAR: usize = 4;

impl Default for RowHistory {
    fn default() -> RowHistory {
        RowHistory {
            records: Vec::new(),
            len: 0,
            gone: 0,
            base: 0,
            newest_us: i64::MIN,
            rest: None,
            found: Found::default(),
        }
    }
}

impl RowHistory {
    /// Returns the number of the oldest stored version.
    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        self.base + u64::from(self.gone)
    }

    /// Returns the number after the last superseded version.
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.base + u64::from(self.len)
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.gone == self.len
    }

    /// Returns the numbers of the versions in the last snapshot, including the newest version.
    pub(crate) fn stored(&self) -> Range<u64> {
        self.rest.as_ref().map_or(0..0, |rest| rest.stored.clone())
    }

    /// Records that a snapshot has these numbers.
    pub(crate) fn store(&mut self, numbers: Range<u64>) {
        if self.rest.is_some() || !numbers.is_empty() {
            self.rest().stored = numbers;
        }
    }

    fn rest(&mut self) -> &mut Rest {
        self.rest.get_or_insert_default()
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

    /// Returns the columns of a version that are words.
    #[inline(always)]
    pub(crate) fn body(&self, number: u64, shape: &Shape) -> &[u64] {
        &self.record(number, shape)[shape.body_at..]
    }

    /// Returns the other columns of a version.
    pub(crate) fn values(&self, number: u64, shape: &Shape) -> &[Value] {
        let at = (number - self.base) as usize * shape.beside;
        self.rest.as_ref().map_or(&[], |rest| &rest.values[at..at + shape.beside])
    }

    /// Appends the version that is about to be superseded. Returns the number of bytes that it
    /// adds.
    #[inline]
    pub(crate) fn push(
        &mut self,
        shape: &Shape,
        floor: Floor,
        (stamp, body): (u64, &[u64]),
        beside: &[Value],
    ) -> isize {
        let full = self.records.capacity() - self.records.len() < shape.width;
        let before = if full { self.room(shape, floor, stamp >> 1) } else { 0 };
        let end = self.end();
        if !shape.orders.is_empty() && end.is_multiple_of(FAN) && end > self.base {
            self.settle(shape, end);
        }
        let at = self.records.len();
        let before_us = match self.len {
            0 => i64::MIN,
            _ => self.records[at - shape.width + TIME] as i64,
        };
        self.records.extend_from_slice(&[before_us as u64, self.newest_us as u64, stamp]);
        for nth in 0..shape.sums.len() {
            let sum = match self.len {
                0 => 0,
                _ => self.sum_with(shape, end - 1, nth),
            };
            self.records.extend_from_slice(&[sum as u64, (sum >> 64) as u64]);
        }
        self.records.extend_from_slice(body);
        self.len += 1;
        let mut grown = 0;
        if !beside.is_empty() {
            self.rest().values.extend_from_slice(beside);
            grown += beside.iter().map(Value::heap_bytes).sum::<usize>() as isize;
        }
        if full {
            grown += self.bytes() as isize - before as isize;
        }
        grown
    }

    /// Undoes the last [`RowHistory::push`]. That version is the newest again.
    pub(crate) fn pop(&mut self, shape: &Shape) {
        let at = self.records.len() - shape.width;
        self.newest_us = self.records[at + TIME] as i64;
        self.records.truncate(at);
        self.len -= 1;
        if let Some(rest) = &mut self.rest {
            rest.values.truncate(rest.values.len() - shape.beside);
            // These blocks are no longer complete. Other versions may become part of them.
            let (width, mut number) = (2 * shape.orders.len(), self.base + u64::from(self.len));
            for level in &mut rest.levels {
                number /= FAN;
                level.truncate(number, width);
            }
        }
    }

    /// Appends a version of a snapshot as if it were superseded already.
    ///
    /// Returns the number of bytes that it adds, or `None` if another number is next.
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
        if self.end() != number {
            return None;
        }
        let before = self.bytes() as isize;
        // With enough room, `push` drops nothing. Restored versions that are too old are dropped
        // later, one by one.
        self.records.reserve(shape.width);
        self.newest_us = time_us;
        let values = self.push(shape, Floor::NONE, (stamp_word(0, true), body), beside);
        Some(self.bytes() as isize - before + values)
    }

    /// Whether the last snapshot has versions that have been dropped since.
    pub(crate) fn has_dropped_stored(&self) -> bool {
        let Some(Rest { stored, .. }) = self.rest.as_deref() else { return false };
        stored.start < self.first() && !stored.is_empty()
    }

    /// Makes room for the record of a version at `seq`. Returns the bytes of the row before.
    ///
    /// Drops versions that are not retained, and allocates memory if that is not enough.
    #[cold]
    #[inline(never)]
    fn room(&mut self, shape: &Shape, floor: Floor, seq: Seq) -> usize {
        let before = self.bytes();
        let last = self.last_of(shape, floor);
        // If the epoch has written the row already, the version before the epoch may become the
        // newest again: the whole epoch may be undone.
        let until = if seq > floor.seq { last.saturating_sub(1) } else { last };
        self.drop_before(shape, floor, (last, until));
        self.records.reserve(shape.width);
        before
    }

    /// Drops the versions that are not retained. Returns the bytes of the dropped values.
    ///
    /// Retained are the versions of transactions after the floor, and of earlier ones those that
    /// the history asks for.
    pub(crate) fn expire(&mut self, shape: &Shape, floor: Floor) -> usize {
        let last = self.last_of(shape, floor);
        self.drop_before(shape, floor, (last, last))
    }

    /// Returns the number after the last version of the transactions up to the floor.
    fn last_of(&self, shape: &Shape, floor: Floor) -> u64 {
        self.partition(self.first()..self.end(), |n| self.seq(n, shape) <= floor.seq)
    }

    /// Drops versions as [`RowHistory::expire`] does, but only up to `until`. The versions of
    /// transactions up to the floor are before `last`.
    fn drop_before(&mut self, shape: &Shape, floor: Floor, (last, until): (u64, u64)) -> usize {
        let by_count = shape.history.versions.map_or(last, |kept| last.saturating_sub(kept));
        let by_time = shape.history.retained_from(floor.frontier_us);
        let by_time = by_time.map_or(last, |from| self.since(from, shape).min(last));
        let from = by_count.min(by_time).min(until).max(self.first());
        let gone = (from - self.base) as usize;
        let mut bytes = 0;
        if let Some(rest) = &mut self.rest {
            let went = self.gone as usize * shape.beside..gone * shape.beside;
            for value in &mut rest.values[went] {
                bytes += value.heap_bytes();
                *value = Value::Null;
            }
        }
        self.gone = gone as u32;
        if gone * 2 >= self.len as usize && gone > 0 {
            self.compact(shape);
        }
        bytes
    }

    /// Frees the memory of dropped versions.
    fn compact(&mut self, shape: &Shape) {
        let gone = self.gone as usize;
        self.records.drain(..gone * shape.width);
        self.base += gone as u64;
        self.len -= self.gone;
        self.gone = 0;
        self.found.set(self.found.get().saturating_sub(gone));
        let Some(rest) = &mut self.rest else { return };
        rest.values.drain(..gone * shape.beside);
        let (width, mut first) = (2 * shape.orders.len(), self.base);
        for level in &mut rest.levels {
            first = first.div_ceil(FAN);
            level.drop_before(first, width);
        }
        if self.records.is_empty() {
            rest.levels.clear();
        }
    }

    /// Aggregates the block of versions that ends before `end`, and larger blocks that it
    /// completes.
    fn settle(&mut self, shape: &Shape, end: u64) {
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
                    level => widen_by_blocks(&self.levels()[level - 1], numbers, width, nth, pair),
                }
            }
            let levels = &mut self.rest().levels;
            if levels.len() == level {
                levels.push(Level::default());
            }
            levels[level].push(number, &ranks);
            if !(number + 1).is_multiple_of(FAN) {
                return;
            }
            (number, level) = ((number + 1) / FAN - 1, level + 1);
        }
    }

    fn levels(&self) -> &[Level] {
        self.rest.as_ref().map_or(&[], |rest| &rest.levels)
    }

    fn widen_by_records(&self, shape: &Shape, numbers: Range<u64>, nth: usize, pair: &mut [u64]) {
        let (word, order) = shape.orders[nth];
        for number in numbers {
            let rank = order.rank(self.body(number, shape)[word]);
            pair[0] = pair[0].min(rank);
            pair[1] = pair[1].max(rank);
        }
    }

    /// Returns the lowest and the highest rank of the `nth` ordered column in a range that is not
    /// empty.
    pub(crate) fn extremes(&self, shape: &Shape, numbers: Range<u64>, nth: usize) -> [u64; 2] {
        let (width, levels) = (2 * shape.orders.len(), self.levels());
        let mut pair = [u64::MAX, 0];
        let (mut from, mut to) = (numbers.start, numbers.end);
        for at in 0..=levels.len() {
            let widen = |numbers: Range<u64>, pair: &mut [u64; 2]| match at {
                0 => self.widen_by_records(shape, numbers, nth, pair),
                at => widen_by_blocks(&levels[at - 1], numbers, width, nth, pair),
            };
            let settled = levels.get(at).map_or(0, |level| level.end(width));
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

    /// Returns the sum of the `nth` summed column up to version `number`, without it.
    #[inline(always)]
    pub(crate) fn sum_before(&self, shape: &Shape, number: u64, nth: usize) -> i128 {
        let record = self.record(number, shape);
        let at = HEADER + 2 * nth;
        i128::from(record[at]) | i128::from(record[at + 1]) << 64
    }

    /// Returns the sum of the `nth` summed column up to version `number`, with it.
    #[inline(always)]
    pub(crate) fn sum_with(&self, shape: &Shape, number: u64, nth: usize) -> i128 {
        let own = self.body(number, shape)[shape.sums[nth]];
        self.sum_before(shape, number, nth) + signed(own)
    }

    /// Returns the sum of the `nth` summed column over all versions that are not older than
    /// `time_us`.
    #[inline(always)]
    pub(crate) fn sum_since(&self, shape: &Shape, time_us: i64, nth: usize) -> i128 {
        let (since, end) = (self.since(time_us, shape), self.end());
        if since == end {
            return 0;
        }
        self.sum_with(shape, end - 1, nth) - self.sum_before(shape, since, nth)
    }

    /// Returns the number of the first version that is not older than `time_us`, or
    /// [`RowHistory::end`] if all are older.
    ///
    /// The search begins where the last one ended.
    #[inline(always)]
    pub(crate) fn since(&self, time_us: i64, shape: &Shape) -> u64 {
        let (gone, len) = (self.gone as usize, self.len as usize);
        let time = |at: usize| self.records[at * shape.width + TIME] as i64;
        if gone == len || time(len - 1) < time_us {
            self.found.set(len);
            return self.end();
        }
        let from = self.found.get().clamp(gone, len - 1);
        if from == gone || (self.records[from * shape.width + BEFORE] as i64) < time_us {
            for at in from..(from + NEAR).min(len) {
                if time(at) >= time_us {
                    self.found.set(at);
                    return self.base + at as u64;
                }
            }
        }
        let number = self.search(time_us, shape);
        self.found.set((number - self.base) as usize);
        number
    }

    /// Searches as [`RowHistory::since`] does, but without the last result. Not all versions are
    /// older.
    ///
    /// Versions mostly arrive at a steady pace. So the search guesses by proportion, and continues
    /// from there in steps that double. This takes a few looks that are close together. Bisection
    /// would take as many as the number of versions has binary digits, far apart.
    #[inline(never)]
    fn search(&self, time_us: i64, shape: &Shape) -> u64 {
        let (first, last) = (self.first(), self.end() - 1);
        let (oldest, newest) = (self.time(first, shape), self.time(last, shape));
        if oldest >= time_us {
            return first;
        }
        // From here on: time(first) < time_us <= time(last).
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

    /// Returns the first number of a range for which `is_before` is not true.
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

    /// Prefetches the place of the next version, which is beside the last one, and the place where
    /// a window begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, shape: &Shape) {
        let records = self.records.as_ptr();
        let end = records.wrapping_add(self.records.len());
        prefetch_address(end.wrapping_sub(shape.width));
        prefetch_address(end.wrapping_add(7));
        prefetch_address(records.wrapping_add(self.found.get() * shape.width));
    }

    /// Returns its memory in bytes, without the heap memory of its values.
    pub(crate) fn bytes(&self) -> usize {
        let rest = |rest: &Rest| {
            size_of::<Rest>()
                + rest.values.capacity() * size_of::<Value>()
                + rest.levels.iter().map(Level::bytes).sum::<usize>()
        };
        self.records.capacity() * 8 + self.rest.as_deref().map_or(0, rest)
    }
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
