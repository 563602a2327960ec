//! Who has used a row before: what the transactions of blocks wait for.
//!
//! All threads plan, in two steps. Rows are divided into partitions, one for each thread. First every
//! thread notes what its share of the transactions uses, by partition. Then each takes a partition, goes through what
//! all threads have noted of it, in order, and links every use of a row with the one before. It is the
//! two-phase construction of MorphStream (its IV-B), without lists that anybody would have to sort or to walk.
//!
//! Rows are told apart by a hash only. Two that share a cell are taken for one, which costs a wait at
//! worst.

use crate::schedule::sync::{AtomicU32, Ordering};

/// A transaction's use of a row, as it is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// The row's hash; the highest bit is set when it is written.
    row: u32,
    /// Its number among all uses: see [`Links`].
    at: u32,
}

const WRITES: u32 = 1 << 31;

/// The link leads to the last of those that have read a row, and from there to the others.
const READERS: u32 = 1 << 31;

/// Uses have smaller numbers.
pub(crate) const USES_MAX: usize = 1 << 30;

impl Use {
    pub(crate) fn of(hash: u32, writes: bool, at: usize) -> Use {
        debug_assert!(at < USES_MAX);
        Use { row: hash & !WRITES | if writes { WRITES } else { 0 }, at: at as u32 }
    }
}

/// Who has used the rows of a cell last; numbers of uses, and one more.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// When that was: what was earlier does not count any more.
    time: u32,
    /// Who has written.
    writer: u32,
    /// Who has read since, or 0.
    reader: u32,
}

/// The rows of a partition, as one thread goes through their uses.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    cells: Vec<Cell>,
    time: u32,
}

impl Cells {
    /// Begins anew, for about so many uses.
    pub(crate) fn begin(&mut self, uses: usize) {
        /// At most one cell in so many is in use, as long as there may be so many.
        const APART: usize = 16;
        const CELLS: (usize, usize) = (1 << 8, 1 << 18);
        let cells = (uses * APART).next_power_of_two().clamp(CELLS.0, CELLS.1);
        if cells > self.cells.len() || self.time == u32::MAX {
            self.cells = vec![Cell::default(); cells.max(self.cells.len())];
            self.time = 0;
        }
        self.time += 1;
    }

    /// Links the next use of a row of this partition; `are_together` says of two uses that nobody has to wait, because one
    /// thread executes both, in order. `READS` when any row is only read.
    #[inline(always)]
    pub(crate) fn link<const READS: bool>(
        &mut self,
        Use { row, at }: Use,
        links: &Links,
        are_together: impl Fn(u32, u32) -> bool,
    ) {
        let mask = self.cells.len() - 1;
        let cell = &mut self.cells[(row & !WRITES) as usize & mask];
        if cell.time != self.time {
            *cell = Cell { time: self.time, writer: 0, reader: 0 };
        }
        let (writer, reader) = (cell.writer, cell.reader);
        let before = |used: u32| used > 0 && !are_together(used - 1, at);
        if READS && row & WRITES == 0 {
            cell.reader = at + 1;
            if before(writer) {
                links.set(at, writer);
            }
            if reader > 0 {
                links.set_reader(at, reader);
            }
            return;
        }
        (cell.writer, cell.reader) = (at + 1, 0);
        if READS && reader > 0 {
            // Whoever has read has waited for who has written before.
            links.set(at, reader | READERS);
        } else if before(writer) {
            links.set(at, writer);
        }
    }
}

/// Of each use of a row: which ones must be over before. The uses of a transaction have numbers that follow one
/// another.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// One more than the number of a use, perhaps with [`READERS`]; 0 for none.
    before: Box<[AtomicU32]>,
    /// Of uses that only read: the one that has read before, since the row was written. Empty when all write.
    readers: Box<[AtomicU32]>,
}

impl Links {
    /// For so many uses.
    pub(crate) fn new(uses: usize, reads: bool) -> Links {
        let none = |uses: usize| (0..uses).map(|_| AtomicU32::new(0)).collect();
        Links { before: none(uses), readers: none(if reads { uses } else { 0 }) }
    }

    /// How many uses there may be.
    pub(crate) fn room(&self) -> usize {
        self.before.len()
    }

    /// Whether there is room for uses that only read.
    pub(crate) fn reads(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Forgets what these uses wait for.
    #[inline(always)]
    pub(crate) fn clear<const READS: bool>(&self, uses: std::ops::Range<usize>) {
        self.before[uses.clone()].iter().for_each(|link| link.store(0, Ordering::Relaxed));
        if READS {
            self.readers[uses].iter().for_each(|link| link.store(0, Ordering::Relaxed));
        }
    }

    fn set(&self, at: u32, link: u32) {
        self.before[at as usize].store(link, Ordering::Relaxed);
    }

    fn set_reader(&self, at: u32, link: u32) {
        self.readers[at as usize].store(link, Ordering::Relaxed);
    }

    /// Whether any of these uses may have to wait.
    #[inline(always)]
    pub(crate) fn any(&self, uses: std::ops::Range<usize>) -> bool {
        self.before[uses].iter().fold(0, |any, link| any | link.load(Ordering::Relaxed)) != 0
    }

    /// A use that must be over before this one, and is not.
    pub(crate) fn open(&self, at: usize, is_over: impl Fn(usize) -> bool) -> Option<usize> {
        let link = self.before[at].load(Ordering::Relaxed);
        let mut used = link & !READERS;
        while used > 0 {
            let before = used as usize - 1;
            if !is_over(before) {
                return Some(before);
            }
            used = match link & READERS {
                0 => 0,
                _ => self.readers[before].load(Ordering::Relaxed),
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a use waits for.
    fn needs(links: &Links, at: usize) -> Vec<usize> {
        let found = std::cell::RefCell::new(Vec::new());
        links.open(at, |before| {
            found.borrow_mut().push(before);
            true
        });
        found.into_inner()
    }

    /// Uses of rows, two by two by one thread; `w` for one that writes.
    fn linked(uses: &[(u32, char)]) -> Vec<Vec<usize>> {
        let (mut cells, links) = (Cells::default(), Links::new(uses.len(), true));
        cells.begin(uses.len());
        for (at, (row, how)) in uses.iter().enumerate() {
            let used = Use::of(*row, *how == 'w', at);
            cells.link::<true>(used, &links, |one, other| one / 2 == other / 2);
        }
        (0..uses.len()).map(|at| needs(&links, at)).collect()
    }

    #[test]
    fn a_use_waits_for_the_write_before_and_a_write_for_all_reads() {
        let uses = [(1, 'w'), (2, 'w'), (1, 'r'), (3, 'r'), (1, 'r'), (1, 'w'), (1, 'w'), (2, 'r')];
        let found = linked(&uses);
        let wanted: [&[usize]; 8] = [&[], &[], &[0], &[], &[0], &[4, 2], &[5], &[1]];
        assert_eq!(found, wanted);
    }

    #[test]
    fn who_is_together_waits_for_nobody() {
        assert_eq!(linked(&[(1, 'w'), (1, 'w'), (1, 'r'), (1, 'r')])[..2], [[0usize; 0]; 2]);
        // A write behind a read of the same thread still waits for the other reads.
        assert_eq!(linked(&[(9, 'r'), (1, 'r'), (1, 'r'), (1, 'w')])[3], [2, 1]);
    }

    #[test]
    fn what_was_used_before_the_beginning_is_forgotten() {
        let (mut cells, links) = (Cells::default(), Links::new(2, false));
        for at in 0..2 {
            cells.begin(2);
            cells.link::<false>(Use::of(7, true, at), &links, |_, _| false);
        }
        assert!(!links.any(0..2));
    }
}
