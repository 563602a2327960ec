//! Reservations: the rows that a share uses, as a list of marks, which whoever has to keep away from them puts into a
//! filter of its own.
//!
//! It is the list that goes from core to core and not the filter, which is as long but would come in any order. The filter is a
//! blocked Bloom filter (Putze, Sanders and Singler, "Cache-, hash- and space-efficient Bloom filters", 2007) of blocks
//! of one word: a row is a few bits of one word, so that looking takes one look at memory, and all of it is in the first-level cache.

use tidemill_table::prefetch_address;

use crate::schedule::sync::{Alone, Place};

/// Bits of a filter for each row that may be in it: one row in four hundred is taken for another one.
const BITS: usize = 48;
const WORDS_MIN: usize = 16;

/// What a row can be in a word, chosen by its hash.
const PATTERNS: usize = 512;
const PATTERN_BITS: u32 = 3;
static PATTERN: [u64; PATTERNS] = patterns();

/// Marks of a cache line, and how many are asked for ahead of time.
const LINE: usize = 16;
const AHEAD: usize = 16 * LINE;

/// A row: some bits of its hash, and in the lowest one whether it is written.
pub(super) type Mark = u32;

/// The mark of a row with this hash.
#[inline(always)]
pub(super) fn mark(hash: u64, writes: bool) -> Mark {
    (hash as u32) << 1 | u32::from(writes)
}

/// Marks that one thread writes, and that others look at when it says so.
#[derive(Debug)]
pub(super) struct Marks(Alone<Place<Vec<Mark>>>);

// SAFETY: who looks at them, and when, is said where they are written and looked at.
unsafe impl Sync for Marks {}

impl Default for Marks {
    fn default() -> Marks {
        Marks(Alone(Place::new(Vec::new())))
    }
}

impl Marks {
    /// # Safety
    /// Nobody writes meanwhile.
    pub(super) unsafe fn with<R>(&self, look: impl FnOnce(&[Mark]) -> R) -> R {
        // SAFETY: as the caller says.
        unsafe { self.0 .0.with(|marks| look(marks)) }
    }

    /// # Safety
    /// Nobody looks or writes meanwhile.
    pub(super) unsafe fn with_mut<R>(&self, write: impl FnOnce(&mut Vec<Mark>) -> R) -> R {
        // SAFETY: as the caller says.
        unsafe { self.0 .0.with_mut(write) }
    }
}

/// Rows that a thread must keep away from, as bits. Rows that share a bit are taken for one; then a transaction is put
/// off, or waits, in vain.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// A word of those that are used, and beside it, where some rows are only read, one of those that are written.
    words: Vec<u64>,
    /// How many words there are of each kind.
    count: u64,
}

impl Filter {
    /// Nothing is in it, and there is room for about so many rows.
    fn clear<const READS: bool>(&mut self, rows: usize) {
        let words = (rows * BITS / 64).max(WORDS_MIN);
        self.count = words as u64;
        self.words.clear();
        self.words.resize(words << u32::from(READS), 0);
    }

    /// Only what these lists have is in it: of each thread that of even or of odd rounds.
    ///
    /// # Safety
    /// Nobody writes to the lists meanwhile.
    #[inline(never)]
    pub(super) unsafe fn take_all<const READS: bool>(&mut self, lists: &[[Marks; 2]], of: usize) {
        // SAFETY: as the caller says.
        let rows = lists.iter().map(|marks| unsafe { marks[of].with(<[Mark]>::len) }).sum();
        self.clear::<READS>(rows);
        let mut take = |marks: &[Mark]| {
            // They are in another core's cache, from where they come one by one unless many are asked for.
            let ask = |at: usize| prefetch_address(marks.as_ptr().wrapping_add(at));
            (0..AHEAD).step_by(LINE).for_each(ask);
            for (at, line) in marks.chunks(LINE).enumerate() {
                ask(at * LINE + AHEAD);
                line.iter().for_each(|mark| self.take::<READS>(*mark));
            }
        };
        for marks in lists {
            // SAFETY: as the caller says.
            unsafe { marks[of].with(&mut take) };
        }
    }

    /// Keeps away from a row.
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

    /// Whether a row must be kept away from. Without a choice between two ways: nobody can guess it.
    #[inline(always)]
    fn meets<const READS: bool>(&self, mark: Mark) -> bool {
        let (at, bits) = self.place(mark);
        let at = match READS {
            false => at,
            // Who only reads meets those that write.
            true => 2 * at + usize::from(mark & 1 == 0),
        };
        self.words[at] & bits == bits
    }

    /// Whether any of these must be.
    #[inline(always)]
    pub(super) fn meets_any<const READS: bool>(&self, marks: &[Mark]) -> bool {
        marks.iter().fold(false, |any, mark| any | self.meets::<READS>(*mark))
    }

    /// The word and the bits of a row.
    #[inline(always)]
    fn place(&self, mark: Mark) -> (usize, u64) {
        const HASH_BITS: u32 = Mark::BITS - 1;
        let hash = mark >> 1;
        let (pattern, block) = (hash as usize % PATTERNS, hash / PATTERNS as Mark);
        let at = (u64::from(block) * self.count) >> (HASH_BITS - PATTERNS.ilog2());
        (at as usize, PATTERN[pattern])
    }
}

/// Words of so many bits each, at random.
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

    /// What is in a filter is met, but that of two that only read nobody has to keep away; and of what is not in it few are taken
    /// for what is.
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
