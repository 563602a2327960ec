//! Links between the uses of rows, which decide the waits of transactions in blocks.
//!
//! All threads plan, in two steps. Rows are divided into partitions, one for each thread. First
//! every thread notes the uses in its share of the transactions, by partition. Then each thread
//! takes a partition, goes through all threads' notes on it in order, and links every use of a row
//! with the use before. This is MorphStream's two-phase construction (MorphStream, section IV-B),
//! without lists to sort or walk.
//!
//! Rows are distinguished by hash only. Two rows that share a cell count as one, which costs a wait
//! at worst.

use crate::schedule::sync::{AtomicU32, Ordering};

/// A noted use of a row by a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// The row's hash. The highest bit is set if the row is written.
    row: u32,
    /// The number of the use: see [`Links`].
    at: u32,
}

const WRITES: u32 = 1 << 31;

/// A flag of links: the link leads to the last reader of a row, and from there to the other
/// readers.
const READERS: u32 = 1 << 31;

/// The limit of use numbers.
pub(crate) const USES_MAX: usize = 1 << 30;

impl Use {
    pub(crate) fn of(hash: u32, writes: bool, at: usize) -> Use {
        debug_assert!(at < USES_MAX);
        Use { row: hash & !WRITES | if writes { WRITES } else { 0 }, at: at as u32 }
    }
}

/// The latest uses of a cell's rows. Each is one more than the number of a use.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// The planning in which the cell was used. Uses of earlier plannings do not count.
    time: u32,
    /// The last write, or 0.
    writer: u32,
    /// The last read since the write, or 0.
    reader: u32,
}

/// The rows of a partition, whose uses one thread links.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    cells: Vec<Cell>,
    time: u32,
}

impl Cells {
    /// Clears the cells, for about `uses` uses.
    pub(crate) fn begin(&mut self, uses: usize) {
        /// The number of cells for each use, unless there would be too many.
        const APART: usize = 16;
        const CELLS: (usize, usize) = (1 << 8, 1 << 18);
        let cells = (uses * APART).next_power_of_two().clamp(CELLS.0, CELLS.1);
        if cells > self.cells.len() || self.time == u32::MAX {
            self.cells = vec![Cell::default(); cells.max(self.cells.len())];
            self.time = 0;
        }
        self.time += 1;
    }

    /// Links the next use of a row of this partition. `are_together` returns whether one thread
    /// executes two uses in order, so that neither waits. `READS` must be true if any row is only
    /// read.
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
            // The readers have waited for the writer before them.
            links.set(at, reader | READERS);
        } else if before(writer) {
            links.set(at, writer);
        }
    }
}

/// The earlier uses that each use of a row waits for. The uses of a transaction have consecutive
/// numbers.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// One more than the number of a use, perhaps with [`READERS`]; 0 for none.
    before: Box<[AtomicU32]>,
    /// For uses that only read: the read before, since the last write of the row. Empty if all uses
    /// write.
    readers: Box<[AtomicU32]>,
}

impl Links {
    /// Makes links for this many uses.
    pub(crate) fn new(uses: usize, reads: bool) -> Links {
        let none = |uses: usize| (0..uses).map(|_| AtomicU32::new(0)).collect();
        Links { before: none(uses), readers: none(if reads { uses } else { 0 }) }
    }

    /// Returns the number of uses that it has room for.
    pub(crate) fn room(&self) -> usize {
        self.before.len()
    }

    /// Whether there is room for uses that only read.
    pub(crate) fn reads(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Clears the links of these uses.
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

    /// Returns an earlier use that this use waits for and that is not over.
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

    /// Returns all uses that a use waits for.
    fn needs(links: &Links, at: usize) -> Vec<usize> {
        let found = std::cell::RefCell::new(Vec::new());
        links.open(at, |before| {
            found.borrow_mut().push(before);
            true
        });
        found.into_inner()
    }

    /// Links uses of rows, where one thread executes two consecutive uses; `w` marks a write.
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
        // A write after a read by the same thread still waits for the other reads.
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
