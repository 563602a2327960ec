//! The superseded versions of one row: records one after another, with running sums.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use tidemill_core::Value;

use super::levels::{Level, FAN};
use super::{Floor, Shape, BEFORE, HEADER, STAMP_AT, TIME};
use crate::cells::prefetch_address;
use crate::version::{stamp_word, Seq};

/// Superseded versions of a row, oldest first. The newest version, if the row is there, has the next
/// number.
///
/// One cache line, so that whoever asks for it ahead of time asks for all of it; what few rows have is
/// behind a pointer.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct RowHistory {
    /// Records, `shape.width` words each (see [`Shape`]).
    records: Vec<u64>,
    /// How many there are.
    len: u32,
    /// So many of them at the front are gone.
    gone: u32,
    /// The number of the first record.
    base: u64,
    /// The time of the newest version.
    pub(crate) newest_us: i64,
    rest: Option<Box<Rest>>,
    found: Found,
}

/// What most rows have nothing of.
#[derive(Clone, Debug, Default)]
struct Rest {
    /// The values beside the records.
    values: Vec<Value>,
    levels: Vec<Level>,
    /// The numbers that the last snapshot has, the newest version's included.
    stored: Range<u64>,
}

/// Which record was the first since some time when somebody asked last. Time goes on: it is that one
/// again, or one of the next few, and whoever asks for memory ahead of time knows which.
///
/// Any number is right, it is only where to look first. So it may be set by who reads.
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

/// How many records are looked at from the one that was found last.
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
    /// The number of the oldest version that is there.
    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        self.base + u64::from(self.gone)
    }

    /// The number behind the last superseded version.
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.base + u64::from(self.len)
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.gone == self.len
    }

    /// The numbers that the last snapshot has, the newest version's included.
    pub(crate) fn stored(&self) -> Range<u64> {
        self.rest.as_ref().map_or(0..0, |rest| rest.stored.clone())
    }

    /// A snapshot has these numbers.
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

    /// The columns of a version that are words.
    #[inline(always)]
    pub(crate) fn body(&self, number: u64, shape: &Shape) -> &[u64] {
        &self.record(number, shape)[shape.body_at..]
    }

    /// Its other columns.
    pub(crate) fn values(&self, number: u64, shape: &Shape) -> &[Value] {
        let at = (number - self.base) as usize * shape.beside;
        self.rest.as_ref().map_or(&[], |rest| &rest.values[at..at + shape.beside])
    }

    /// Appends the version that is about to be superseded. Gives how many more bytes it takes.
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

    /// Takes back the last [`RowHistory::push`]; that version is the newest again.
    pub(crate) fn pop(&mut self, shape: &Shape) {
        let at = self.records.len() - shape.width;
        self.newest_us = self.records[at + TIME] as i64;
        self.records.truncate(at);
        self.len -= 1;
        if let Some(rest) = &mut self.rest {
            rest.values.truncate(rest.values.len() - shape.beside);
            // Blocks that are no longer complete: other versions may come to be in them.
            let (width, mut number) = (2 * shape.orders.len(), self.base + u64::from(self.len));
            for level in &mut rest.levels {
                number /= FAN;
                level.truncate(number, width);
            }
        }
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
        if self.end() != number {
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
        let Some(Rest { stored, .. }) = self.rest.as_deref() else { return false };
        stored.start < self.first() && !stored.is_empty()
    }

    /// Makes room for the record of a version of this number: drops what nobody wants, and takes more memory
    /// where that is not enough. Gives how many bytes the row took before.
    #[cold]
    #[inline(never)]
    fn room(&mut self, shape: &Shape, floor: Floor, seq: Seq) -> usize {
        let before = self.bytes();
        let last = self.last_of(shape, floor);
        // Where the epoch has written the row already, the version that it has found may be the newest again: all
        // that it does may be taken back.
        let until = if seq > floor.seq { last.saturating_sub(1) } else { last };
        self.drop_before(shape, floor, (last, until));
        self.records.reserve(shape.width);
        before
    }

    /// Drops the versions that nobody wants: kept are those of later transactions than the floor's,
    /// and of the earlier ones what the history keeps. Gives the bytes of values that went.
    pub(crate) fn expire(&mut self, shape: &Shape, floor: Floor) -> usize {
        let last = self.last_of(shape, floor);
        self.drop_before(shape, floor, (last, last))
    }

    /// The number behind the last version of the floor's transactions.
    fn last_of(&self, shape: &Shape, floor: Floor) -> u64 {
        self.partition(self.first()..self.end(), |n| self.seq(n, shape) <= floor.seq)
    }

    /// The same up to a number, where those of the floor's transactions are before `last`.
    fn drop_before(&mut self, shape: &Shape, floor: Floor, (last, until): (u64, u64)) -> usize {
        let by_count = shape.history.versions.map_or(last, |kept| last.saturating_sub(kept));
        let by_time = shape.history.kept_from(floor.frontier_us);
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

    /// Frees the memory of what is gone.
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

    /// Sums up the block of versions that ends before `end`, and what that completes.
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

    /// The lowest and the highest rank, in a range that is not empty, of the `nth` ordered column.
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

    /// The sum of the `nth` summed column up to version `number`, without it.
    #[inline(always)]
    pub(crate) fn sum_before(&self, shape: &Shape, number: u64, nth: usize) -> i128 {
        let record = self.record(number, shape);
        let at = HEADER + 2 * nth;
        i128::from(record[at]) | i128::from(record[at + 1]) << 64
    }

    /// The sum of the `nth` summed column up to version `number`, with it.
    #[inline(always)]
    pub(crate) fn sum_with(&self, shape: &Shape, number: u64, nth: usize) -> i128 {
        let own = self.body(number, shape)[shape.sums[nth]];
        self.sum_before(shape, number, nth) + signed(own)
    }

    /// The sum of the `nth` summed column of all versions that are not older than `time_us`.
    #[inline(always)]
    pub(crate) fn sum_since(&self, shape: &Shape, time_us: i64, nth: usize) -> i128 {
        let (since, end) = (self.since(time_us, shape), self.end());
        if since == end {
            return 0;
        }
        self.sum_with(shape, end - 1, nth) - self.sum_before(shape, since, nth)
    }

    /// The number of the first version that is not older than `time_us`; [`RowHistory::end`] when
    /// all are.
    ///
    /// Looked for where it was found last, and behind that.
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

    /// As [`RowHistory::since`], where nothing is known but that not all are older.
    ///
    /// Versions come at a steady pace more often than not, so it is guessed by proportion, and found
    /// from there in steps that double: a few looks that are close together, where halving would be
    /// as many as there are digits in the number of versions, far apart.
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

    /// Asks for where the next version goes, which is beside the last one, and for where a window
    /// begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, shape: &Shape) {
        let records = self.records.as_ptr();
        let end = records.wrapping_add(self.records.len());
        prefetch_address(end.wrapping_sub(shape.width));
        prefetch_address(end.wrapping_add(7));
        prefetch_address(records.wrapping_add(self.found.get() * shape.width));
    }

    /// Memory it takes, in bytes, without what its values point at.
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
