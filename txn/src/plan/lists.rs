//! Lists of transactions, one for each thread.
//!
//! One pass in stamp order. A transaction goes to the list that holds the latest transaction it
//! needs, so that it need not wait for it. It goes elsewhere if that list has become too long. From
//! every other list, it notes the last transaction that it needs, unless its own list already waits
//! for that or a later one. There are no queues and no counters. During execution, a thread only
//! needs to know how far the other lists are.
//!
//! Rows are distinguished by hash only. Two rows that share a cell count as one. This costs a wait
//! at worst, and keeps the plan in the cache however large the tables are.

/// The most lists.
pub(crate) const LISTS_MAX: usize = 1 << LIST_BITS;

const LIST_BITS: u32 = 6;

/// A wait for the transaction of this rank, in another list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) list: u32,
    pub(crate) rank: u32,
}

/// A transaction's use of a row, or no use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// The row's cell; [`Planner::cells`] stands for no row.
    pub(crate) cell: u32,
    /// All bits are set if the row is only read.
    reads: u32,
}

impl Use {
    /// The size of groups of uses, filled up with [`Planner::no_use`]. A loop of fixed length costs
    /// less than a mispredicted number of iterations.
    pub(crate) const GROUP: usize = 4;

    /// Makes a use of a row in this cell.
    pub(crate) fn of(cell: u32, writes: bool) -> Use {
        Use { cell, reads: if writes { 0 } else { u32::MAX } }
    }
}

/// A transaction: its number, then its list. Numbers go on from epoch to epoch, so that no cell
/// needs to be cleared.
type Who = u32;

/// The latest uses of a cell's rows.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// The last writer.
    writer: Who,
    /// The last reader since then; with [`SEVERAL`] if the readers since then are in several lists.
    reader: Who,
}

const SEVERAL: Who = 1 << 31;

/// The limit of numbers. One bit is for [`SEVERAL`].
const NUMBERS: usize = 1 << (31 - LIST_BITS);

/// How much longer than the shortest list a list may be to receive a transaction that needs its
/// others.
const SLACK: u64 = 32;

/// Makes the lists of one epoch after the other.
#[derive(Debug)]
pub(crate) struct Planner {
    lists: usize,
    /// The cells, and one more that is never used.
    cells: Vec<Cell>,
    /// The last number of earlier epochs.
    before: u32,
    /// The last number of transactions that are done.
    done: u32,
    /// The rank of the next transaction.
    rank: u32,
    /// Per list: the ranks of its transactions, once a transaction has read without writing.
    ranks: Vec<Vec<u32>>,
    /// Per pair of lists: one more than the last rank of the second that the first already waits
    /// for.
    waited: Vec<u32>,
    /// Per list: its work, in transactions.
    loads: Vec<u64>,
}

impl Planner {
    /// Makes a planner for `lists` lists, at most [`LISTS_MAX`].
    pub(crate) fn new(lists: usize) -> Planner {
        assert!(lists <= LISTS_MAX, "at most {LISTS_MAX} lists");
        Planner {
            lists,
            cells: vec![Cell::default()],
            before: 0,
            done: 0,
            rank: 0,
            ranks: vec![Vec::new(); lists],
            waited: vec![0; lists * lists],
            loads: vec![0; lists],
        }
    }

    /// Whether an epoch of this many transactions can be planned.
    pub(crate) fn can_plan(transactions: usize) -> bool {
        transactions < NUMBERS
    }

    /// Begins an epoch. Its transactions that are not [done](Planner::set_done) have at most `uses`
    /// uses of rows.
    pub(crate) fn begin(&mut self, transactions: usize, uses: usize) {
        const CELLS_MIN: usize = 1 << 10;
        const CELLS_MAX: usize = 1 << 20;
        assert!(Planner::can_plan(transactions), "the epoch is too long to be planned");
        let last = self.before as usize + self.rank as usize;
        // At most one cell in 16 is in use, unless that takes too many cells. Otherwise too many
        // transactions would wait because of a shared cell and not a shared row.
        let cells = (uses * 16).next_power_of_two().clamp(CELLS_MIN, CELLS_MAX);
        if cells > self.cells() || last + transactions >= NUMBERS {
            self.cells = vec![Cell::default(); cells.max(self.cells()) + 1];
            self.before = 0;
        } else {
            self.before = last as u32;
        }
        self.done = self.before;
        self.rank = 0;
        self.ranks.iter_mut().for_each(Vec::clear);
        self.waited.fill(0);
        self.loads.fill(0);
    }

    /// Marks the epoch's first transactions as done, so that no transaction waits for them.
    pub(crate) fn set_done(&mut self, transactions: usize) {
        self.done = self.before + transactions as u32;
    }

    /// Returns the number of cells, a power of two.
    pub(crate) fn cells(&self) -> usize {
        self.cells.len() - 1
    }

    /// Returns the use that stands for no row.
    pub(crate) fn no_use(&self) -> Use {
        Use { cell: self.cells() as u32, reads: u32::MAX }
    }

    /// Returns the address of a cell, for prefetching.
    pub(crate) fn cell_address(&self, cell: u32) -> *const u8 {
        self.cells.as_ptr().wrapping_add(cell as usize).cast()
    }

    /// Sets a list's work, in transactions. The planner balances it.
    pub(crate) fn set_load(&mut self, list: usize, transactions: u64) {
        self.loads[list] = transactions;
    }

    /// Places the next transaction, which has these uses in whole [groups](Use::GROUP), and returns
    /// its list. Appends the transactions that it waits for to `waits`. `READS` must be true if any
    /// transaction of the epoch reads a row without writing it.
    #[inline(always)]
    pub(crate) fn place<const READS: bool>(
        &mut self,
        uses: &[Use],
        waits: &mut Vec<Wait>,
    ) -> usize {
        let (groups, _) = uses.as_chunks::<{ Use::GROUP }>();
        // The latest transaction that it needs. A pointer accesses the cells, because a bounds
        // check for each costs as much as the access.
        let last = self.cells() as u32;
        let cells = self.cells.as_mut_ptr();
        let mut latest = 0;
        for group in groups {
            let mut latests = [0; Use::GROUP];
            for (latest, used) in latests.iter_mut().zip(group) {
                // SAFETY: there are `last + 1` cells.
                let Cell { writer, reader } = unsafe { *cells.add(used.cell.min(last) as usize) };
                let reader = if READS { reader & !SEVERAL & !used.reads } else { 0 };
                *latest = writer.max(reader);
            }
            let [a, b, c, d] = latests;
            latest = latest.max(a.max(b).max(c.max(d)));
        }
        let mut list = 0;
        for other in 1..self.lists {
            list = if self.loads[other] < self.loads[list] { other } else { list };
        }
        if self.number(latest) > self.done {
            list = self.place_after::<READS>(latest, list, uses, waits);
        }
        let rank = self.rank;
        let who = (self.before + rank + 1) << LIST_BITS | list as u32;
        if READS {
            self.note(uses, who);
        } else {
            for group in groups {
                for used in group {
                    // The cell of no row never has a writer.
                    // SAFETY: as above.
                    unsafe {
                        (*cells.add(used.cell.min(last) as usize)).writer = who & !used.reads;
                    }
                }
            }
        }
        self.rank = rank + 1;
        self.loads[list] += 1;
        list
    }

    /// Places the next transaction in the list of the first partition that it uses, if cells are
    /// partitions (S-Store). It waits for all earlier users of any of its partitions.
    pub(crate) fn place_in_partition(&mut self, uses: &[Use], waits: &mut Vec<Wait>) -> usize {
        let none = self.cells() as u32;
        let list = uses.first().map_or(0, |used| used.cell as usize % self.lists);
        for used in uses {
            self.wait_for(list, self.cells[used.cell as usize].writer, waits);
        }
        let who = (self.before + self.rank + 1) << LIST_BITS | list as u32;
        for used in uses.iter().filter(|used| used.cell != none) {
            self.cells[used.cell as usize].writer = who;
        }
        self.rank += 1;
        self.loads[list] += 1;
        list
    }

    #[inline(always)]
    fn number(&self, who: Who) -> u32 {
        who >> LIST_BITS
    }

    /// Records the uses of a transaction.
    #[inline(never)]
    fn note(&mut self, uses: &[Use], who: Who) {
        let none = self.cells() as u32;
        let list = who as usize % LISTS_MAX;
        for used in uses.iter().filter(|used| used.cell != none) {
            let cell = &mut self.cells[used.cell as usize];
            if used.reads == 0 {
                *cell = Cell { writer: who, reader: 0 };
            } else if cell.writer != who {
                let last = cell.reader & !SEVERAL;
                let several = last >> LIST_BITS > self.done
                    && (cell.reader != last || last as usize % LISTS_MAX != list);
                cell.reader = if several { who | SEVERAL } else { who };
            }
        }
        self.ranks[list].push(self.rank);
    }

    /// Returns the list of a transaction that needs others, the latest of which is `latest`.
    /// `shortest` is the list with the least work.
    #[inline(never)]
    fn place_after<const READS: bool>(
        &mut self,
        latest: Who,
        shortest: usize,
        uses: &[Use],
        waits: &mut Vec<Wait>,
    ) -> usize {
        let with = latest as usize % LISTS_MAX;
        let near = self.loads[with] <= self.loads[shortest] + SLACK;
        let list = if near { with } else { shortest };
        for used in uses {
            let Cell { writer, reader } = self.cells[used.cell as usize];
            self.wait_for(list, writer, waits);
            if READS && reader > 0 && used.reads == 0 {
                match reader & SEVERAL {
                    0 => self.wait_for(list, reader, waits),
                    _ => self.wait_for_all(list, reader & !SEVERAL, waits),
                }
            }
        }
        list
    }

    /// Records that a list waits for a transaction.
    #[inline(always)]
    fn wait_for(&mut self, list: usize, who: Who, waits: &mut Vec<Wait>) {
        let (number, other) = (self.number(who), who as usize % LISTS_MAX);
        if number > self.done && other != list {
            self.wait(list, other, number - self.before - 1, waits);
        }
    }

    /// Records that a list waits for all readers up to this transaction.
    #[cold]
    fn wait_for_all(&mut self, list: usize, who: Who, waits: &mut Vec<Wait>) {
        let number = self.number(who);
        if number <= self.done {
            return;
        }
        let rank = number - self.before - 1;
        for other in (0..self.lists).filter(|other| *other != list) {
            let before = self.ranks[other].partition_point(|r| *r <= rank);
            if let Some(last) = before.checked_sub(1).map(|last| self.ranks[other][last]) {
                if self.before + last + 1 > self.done {
                    self.wait(list, other, last, waits);
                }
            }
        }
    }

    #[inline(always)]
    fn wait(&mut self, list: usize, other: usize, rank: u32, waits: &mut Vec<Wait>) {
        let waited = &mut self.waited[list * self.lists + other];
        if *waited <= rank {
            *waited = rank + 1;
            waits.push(Wait { list: other as u32, rank });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plans transactions from a text (`w` or `r` and a row for each use), and shows the list and
    /// waits of each.
    fn check(lists: usize, transactions: &[&str], expected: &[&str]) {
        let mut planner = Planner::new(lists);
        planner.begin(transactions.len(), 100);
        let mut shown = Vec::new();
        for text in transactions {
            let mut uses: Vec<Use> = text
                .split_whitespace()
                .map(|word| {
                    let (kind, row) = word.split_at(1);
                    Use::of(u32::from(row.as_bytes()[0]), kind == "w")
                })
                .collect();
            uses.resize(uses.len().next_multiple_of(Use::GROUP), planner.no_use());
            let mut waits = Vec::new();
            let list = planner.place::<true>(&uses, &mut waits);
            let waits: Vec<String> = waits.iter().map(|w| format!(" after {}", w.rank)).collect();
            shown.push(format!("{list}{}", waits.concat()));
        }
        assert_eq!(shown, expected);
    }

    #[test]
    fn who_needs_nobody_goes_where_least_is_to_be_done() {
        check(3, &["wA", "wB", "wC", "wD"], &["0", "1", "2", "0"]);
    }

    #[test]
    fn who_needs_somebody_goes_to_the_latest_and_waits_for_the_others() {
        check(2, &["wA", "wB", "wA wB", "wA", "wB"], &["0", "1", "1 after 0", "1", "1"]);
    }

    #[test]
    fn a_list_waits_once_for_what_it_has_waited_for() {
        check(
            2,
            &["wA", "wB", "wC", "wD", "rA wD", "rA wC wD"],
            &["0", "1", "0", "1", "1 after 0", "1 after 2"],
        );
    }

    #[test]
    fn readers_do_not_wait_for_readers_and_a_writer_waits_for_all_of_them() {
        check(3, &["wX", "rA", "rA", "rA wY", "wA"], &["0", "1", "2", "0", "0 after 1 after 2"]);
    }

    #[test]
    fn nobody_waits_for_who_is_done() {
        let mut planner = Planner::new(2);
        planner.begin(6, 100);
        let mut waits = Vec::new();
        let mut place = |planner: &mut Planner, row: u32, writes: bool| {
            let mut uses = [planner.no_use(); Use::GROUP];
            uses[0] = Use::of(row, writes);
            waits.clear();
            (planner.place::<true>(&uses, &mut waits), waits.clone())
        };
        assert_eq!(place(&mut planner, 1, true), (0, vec![]));
        assert_eq!(place(&mut planner, 2, false), (1, vec![]));
        planner.set_done(1);
        // The lists of transactions that are done do not matter.
        planner.set_load(0, 40);
        assert_eq!(place(&mut planner, 1, true), (1, vec![]));
        planner.set_load(1, 80);
        let wait = Wait { list: 1, rank: 1 };
        assert_eq!(place(&mut planner, 2, true), (0, vec![wait]));
        planner.set_done(4);
        assert_eq!(place(&mut planner, 2, true), (0, vec![]));
    }

    #[test]
    fn more_rows_than_a_group_has() {
        check(2, &["wA", "wB wC wD wE wF", "wA wE wF"], &["0", "1", "1 after 0"]);
    }

    #[test]
    fn epochs_do_not_wait_for_earlier_ones() {
        let mut planner = Planner::new(2);
        let mut waits = Vec::new();
        for _ in 0..3 {
            planner.begin(2, 4);
            let mut uses = [planner.no_use(); Use::GROUP];
            uses[0] = Use::of(1, true);
            for _ in 0..2 {
                planner.place::<true>(&uses, &mut waits);
            }
            assert!(waits.is_empty());
        }
    }
}
