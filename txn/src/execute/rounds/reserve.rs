//! Reservations: the rows that a share uses, as a list of marks, which whoever has to keep away from them puts into a
//! filter of its own.
//!
//! It is the list that goes from core to core and not the filter, which has a hundred bits for each row.

use tidemill_table::prefetch_address;

use crate::schedule::sync::{Alone, Place};

/// Bits of a filter for each row that may be in it: one row in so many is taken for another one.
const BITS: usize = 128;

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
    /// How many words there are of each kind, less one.
    mask: usize,
}

impl Filter {
    /// Nothing is in it, and there is room for about so many rows.
    fn clear<const READS: bool>(&mut self, rows: usize) {
        let words = (rows * BITS).next_power_of_two().clamp(1 << 10, 1 << 22) / 64;
        self.mask = words - 1;
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
        let (at, bit) = self.place(mark);
        match READS {
            false => self.words[at] |= 1 << bit,
            true => {
                self.words[2 * at] |= 1 << bit;
                self.words[2 * at + 1] |= u64::from(mark & 1) << bit;
            }
        }
    }

    /// Whether a row must be kept away from: 1 or 0 in the lowest bit. A number, and no choice between two ways: nobody
    /// can guess it.
    #[inline(always)]
    fn meets<const READS: bool>(&self, mark: Mark) -> u64 {
        let (at, bit) = self.place(mark);
        let at = match READS {
            false => at,
            // Who only reads meets those that write.
            true => 2 * at + usize::from(mark & 1 == 0),
        };
        self.words[at] >> bit
    }

    /// Whether any of these must be.
    #[inline(always)]
    pub(super) fn meets_any<const READS: bool>(&self, marks: &[Mark]) -> bool {
        marks.iter().fold(0, |any, mark| any | self.meets::<READS>(*mark)) & 1 == 1
    }

    /// The word and the bit of a row.
    #[inline(always)]
    fn place(&self, mark: Mark) -> (usize, u32) {
        let hash = mark >> 1;
        ((hash as usize / 64) & self.mask, hash % 64)
    }
}
