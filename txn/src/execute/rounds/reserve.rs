//! Reservations: the rows that a share uses, as a list of marks. A thread that has to avoid these
//! rows puts the marks into a filter of its own.
//!
//! The list goes from core to core, and not the filter. The filter is as long, but would be read in
//! random order. It is a blocked Bloom filter with blocks of one word (Putze, Sanders and Singler,
//! "Cache-, hash- and space-efficient Bloom filters", 2007). A row is a few bits of one word. So a
//! lookup is one memory access, and all of it is in the first-level cache.

use tidemill_table::prefetch_address;

use crate::schedule::sync::{CachePadded, Place};

/// The bits of a filter for each row. One row in four hundred is mistaken for another one.
const BITS: usize = 48;
const WORDS_MIN: usize = 16;

/// The number of bit patterns of rows in a word. The hash of a row chooses one.
const PATTERNS: usize = 512;
const PATTERN_BITS: u32 = 3;
static PATTERN: [u64; PATTERNS] = patterns();

/// The marks of a cache line, and how many marks are prefetched.
const LINE: usize = 16;
const AHEAD: usize = 16 * LINE;

/// A row: some bits of its hash, and in the lowest bit whether it is written.
pub(super) type Mark = u32;

/// Returns the mark of a row with this hash.
#[inline(always)]
pub(super) fn mark(hash: u64, writes: bool) -> Mark {
    (hash as u32) << 1 | u32::from(writes)
}

/// Marks that one thread writes, and that others read after it has reported them.
#[derive(Debug)]
pub(super) struct Marks(CachePadded<Place<Vec<Mark>>>);

// SAFETY: the places where they are written and read say who may do so, and when.
unsafe impl Sync for Marks {}

impl Default for Marks {
    fn default() -> Marks {
        Marks(CachePadded(Place::new(Vec::new())))
    }
}

impl Marks {
    /// Calls `look` with the marks.
    ///
    /// # Safety
    /// No thread writes meanwhile.
    pub(super) unsafe fn with<R>(&self, look: impl FnOnce(&[Mark]) -> R) -> R {
        // SAFETY: as the caller guarantees.
        unsafe { self.0 .0.with(|marks| look(marks)) }
    }

    /// Calls `write` with the marks.
    ///
    /// # Safety
    /// No other thread reads or writes meanwhile.
    pub(super) unsafe fn with_mut<R>(&self, write: impl FnOnce(&mut Vec<Mark>) -> R) -> R {
        // SAFETY: as the caller guarantees.
        unsafe { self.0 .0.with_mut(write) }
    }
}

/// The rows that a thread must avoid, as bits. Rows with the same bits are mistaken for one. Then a
/// transaction is deferred, or waits, without need.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// The words of used rows. If some rows are only read, a word of written rows is beside each.
    words: Vec<u64>,
    /// The number of words of each kind.
    count: u64,
}

impl Filter {
    /// Empties the filter, and makes room for about `rows` rows.
    fn clear<const READS: bool>(&mut self, rows: usize) {
        let words = (rows * BITS / 64).max(WORDS_MIN);
        self.count = words as u64;
        self.words.clear();
        self.words.resize(words << u32::from(READS), 0);
    }

    /// Fills the filter with the rows of these lists only: of each thread that of even or of odd
    /// rounds.
    ///
    /// # Safety
    /// No thread writes to the lists meanwhile.
    #[inline(never)]
    pub(super) unsafe fn take_all<const READS: bool>(&mut self, lists: &[[Marks; 2]], of: usize) {
        // SAFETY: as the caller guarantees.
        let rows = lists.iter().map(|marks| unsafe { marks[of].with(<[Mark]>::len) }).sum();
        self.clear::<READS>(rows);
        let mut take = |marks: &[Mark]| {
            // The marks are in another core's cache. They would arrive one by one without
            // prefetching.
            let ask = |at: usize| prefetch_address(marks.as_ptr().wrapping_add(at));
            (0..AHEAD).step_by(LINE).for_each(ask);
            for (at, line) in marks.chunks(LINE).enumerate() {
                ask(at * LINE + AHEAD);
                line.iter().for_each(|mark| self.take::<READS>(*mark));
            }
        };
        for marks in lists {
            // SAFETY: as the caller guarantees.
            unsafe { marks[of].with(&mut take) };
        }
    }

    /// Adds a row.
    #[inline(always)]
    pub(super) fn take<const READS: bool>(&mut self, mark: Mark) {
        let (at, bits) = self.place(mark);
        match READS {
            false => self.words[at] |= bits,
            true => {
                self.words[2 * at] |= bits;
                self.words[2 * at + 1] |= bits & u64::from(mark & 1).wrapping_neg();
            }
        }
    }

    /// Whether a row must be avoided. It has no branch, because no predictor could guess it.
    #[inline(always)]
    fn meets<const READS: bool>(&self, mark: Mark) -> bool {
        let (at, bits) = self.place(mark);
        let at = match READS {
            false => at,
            // A reader conflicts with writers only.
            true => 2 * at + usize::from(mark & 1 == 0),
        };
        self.words[at] & bits == bits
    }

    /// Whether any of these rows must be avoided.
    #[inline(always)]
    pub(super) fn meets_any<const READS: bool>(&self, marks: &[Mark]) -> bool {
        marks.iter().fold(false, |any, mark| any | self.meets::<READS>(*mark))
    }

    /// Returns the word and the bits of a row.
    #[inline(always)]
    fn place(&self, mark: Mark) -> (usize, u64) {
        const HASH_BITS: u32 = Mark::BITS - 1;
        let hash = mark >> 1;
        let (pattern, block) = (hash as usize % PATTERNS, hash / PATTERNS as Mark);
        let at = (u64::from(block) * self.count) >> (HASH_BITS - PATTERNS.ilog2());
        (at as usize, PATTERN[pattern])
    }
}

/// Returns random words with so many bits each.
const fn patterns() -> [u64; PATTERNS] {
    let (mut patterns, mut dice, mut at) = ([0u64; PATTERNS], 0x9e37_79b9_7f4a_7c15u64, 0);
    while at < PATTERNS {
        while patterns[at].count_ones() < PATTERN_BITS {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            patterns[at] |= 1 << (dice >> 58);
        }
        at += 1;
    }
    patterns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows in the filter are found, except that two readers do not conflict. Few other rows are
    /// mistaken for rows in the filter.
    #[test]
    fn a_filter_forgets_nothing_and_takes_little_for_another() {
        let mut dice = 3u64;
        let mut roll = || {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (dice >> 16).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        for rows in [1, 7, 64, 1_000, 40_000] {
            let (mut filter, mut plain) = (Filter::default(), Filter::default());
            filter.clear::<true>(rows);
            plain.clear::<false>(rows);
            let hashes: Vec<u64> = (0..rows).map(|_| roll()).collect();
            let writes = |nth: usize| nth.is_multiple_of(2);
            for (nth, hash) in hashes.iter().enumerate() {
                filter.take::<true>(mark(*hash, writes(nth)));
                plain.take::<false>(mark(*hash, true));
            }
            let mut only_read = 0;
            for (nth, hash) in hashes.iter().enumerate() {
                assert!(plain.meets::<false>(mark(*hash, true)));
                assert!(filter.meets::<true>(mark(*hash, true)));
                let meets_reader = filter.meets::<true>(mark(*hash, false));
                assert!(meets_reader || !writes(nth));
                only_read += usize::from(!writes(nth) && !meets_reader);
            }
            assert!(only_read * 10 >= rows / 2 * 9, "{rows}: {only_read}");
            let others: Vec<Mark> = (0..20_000).map(|_| mark(roll(), true)).collect();
            for met in [
                others.iter().filter(|mark| plain.meets::<false>(**mark)).count(),
                others.iter().filter(|mark| filter.meets::<true>(**mark)).count(),
            ] {
                assert!(met * 100 < others.len(), "{rows}: {met}");
            }
        }
    }
}
