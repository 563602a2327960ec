//! Lists of transactions, one for each thread.
//!
//! One pass in stamp order: a transaction goes to the list that holds the latest one that it needs,
//! so that it has not to wait for it, unless that list has become too long. Of every other list it
//! notes the farthest one that it needs, and only where its list does not wait for one behind that
//! anyway. No queues, no counters: in the end a thread knows how far the others must have come.
//!
//! Rows are told apart by a hash only. Two that share a cell are taken for one, which costs a wait at
//! worst, and keeps the plan in the cache however large the tables are.

/// Lists, at most.
pub(crate) const LISTS_MAX: usize = 1 << LIST_BITS;

const LIST_BITS: u32 = 6;

/// A transaction waits until the one of this rank is done, which is in another list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) list: u32,
    pub(crate) rank: u32,
}

/// A row that a transaction uses, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// At most [`Planner::cells`], which stands for none.
    pub(crate) cell: u32,
    /// All bits are set when it is read only.
    reads: u32,
}

impl Use {
    /// In groups of so many, filled up with [`Planner::no_use`]: a loop of a fixed length costs less
    /// than the guess how often it goes round.
    pub(crate) const GROUP: usize = 4;

    /// Of a row in this cell.
    pub(crate) fn of(cell: u32, writes: bool) -> Use {
        Use { cell, reads: if writes { 0 } else { u32::MAX } }
    }
}

/// Who was it: a transaction's number, then its list. Numbers go on from epoch to epoch, so that
/// nothing has to be cleared.
type Who = u32;

/// Who has used the rows of a cell.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// The last one that has written.
    writer: Who,
    /// The last one that has read since; with [`SEVERAL`] when those that have are in several lists.
    reader: Who,
}

const SEVERAL: Who = 1 << 31;

/// Numbers, at most: there is a bit for [`SEVERAL`].
const NUMBERS: usize = 1 << (31 - LIST_BITS);

/// Transactions may go to a list that is so many longer than the shortest one, to be where what they
/// need is.
const SLACK: u64 = 32;

/// Makes the lists of one epoch after the other.
#[derive(Debug)]
pub(crate) struct Planner {
    lists: usize,
    /// And one more, which nobody uses.
    cells: Vec<Cell>,
    /// Numbers up to this are of earlier epochs.
    before: u32,
    /// Numbers up to this are of transactions that are done.
    done: u32,
    /// Of the next transaction.
    rank: u32,
    /// Per list: the ranks of its transactions, once somebody has read.
    ranks: Vec<Vec<u32>>,
    /// By list and other list: one more than the last rank there that the former waits for already.
    waited: Vec<u32>,
    /// By list: what it has to do, in transactions.
    loads: Vec<u64>,
}

impl Planner {
    /// For so many lists, at most [`LISTS_MAX`].
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

    /// Whether an epoch of so many transactions can be planned.
    pub(crate) fn can_plan(transactions: usize) -> bool {
        transactions < NUMBERS
    }

    /// Begins an epoch of so many transactions; those that are not [done](Planner::set_done) use so many rows at most.
    pub(crate) fn begin(&mut self, transactions: usize, uses: usize) {
        const CELLS_MIN: usize = 1 << 10;
        const CELLS_MAX: usize = 1 << 20;
        assert!(Planner::can_plan(transactions), "the epoch is too long to be planned");
        let last = self.before as usize + self.rank as usize;
        // At most one cell of 16 is in use at a time, as long as there may be so many: else
        // too many wait for somebody who has their cell by chance, and not their row.
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

    /// So many of the epoch's transactions are done: nobody waits for one of them.
    pub(crate) fn set_done(&mut self, transactions: usize) {
        self.done = self.before + transactions as u32;
    }

    /// How many rows can be told apart: a power of two.
    pub(crate) fn cells(&self) -> usize {
        self.cells.len() - 1
    }

    /// What stands for no row.
    pub(crate) fn no_use(&self) -> Use {
        Use { cell: self.cells() as u32, reads: u32::MAX }
    }

    /// Where what is known of a cell is, to be asked for ahead of time.
    pub(crate) fn cell_address(&self, cell: u32) -> *const u8 {
        self.cells.as_ptr().wrapping_add(cell as usize).cast()
    }

    /// What a list has to do, in transactions; used to keep them equal.
    pub(crate) fn set_load(&mut self, list: usize, transactions: u64) {
        self.loads[list] = transactions;
    }

    /// Places the next transaction, which uses these rows, in whole [groups](Use::GROUP); gives its
    /// list. Whom it waits for is appended to `waits`. `READS` when any transaction reads rows that it
    /// does not write; all transactions of an epoch are placed with the same.
    #[inline(always)]
    pub(crate) fn place<const READS: bool>(
        &mut self,
        uses: &[Use],
        waits: &mut Vec<Wait>,
    ) -> usize {
        let (groups, _) = uses.as_chunks::<{ Use::GROUP }>();
        // The latest one that it needs. Cells are looked at through a pointer: a check of every one
        // costs as much as the look.
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
            list = self.place_behind::<READS>(latest, list, uses, waits);
        }
        let rank = self.rank;
        let who = (self.before + rank + 1) << LIST_BITS | list as u32;
        if READS {
            self.note(uses, who);
        } else {
            for group in groups {
                for used in group {
                    // Nobody is to be found at what stands for no row.
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

    /// Places the next transaction in the list of the first partition that it uses, where cells are
    /// partitions (S-Store): it waits for whoever has used any of its partitions.
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

    /// Notes what a transaction uses.
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

    /// The list of a transaction that needs others, the latest of which is `latest`; `shortest` is
    /// the one with least to do.
    #[inline(never)]
    fn place_behind<const READS: bool>(
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

    /// Notes that a list waits for a transaction.
    #[inline(always)]
    fn wait_for(&mut self, list: usize, who: Who, waits: &mut Vec<Wait>) {
        let (number, other) = (self.number(who), who as usize % LISTS_MAX);
        if number > self.done && other != list {
            self.wait(list, other, number - self.before - 1, waits);
        }
    }

    /// Notes that a list waits for all transactions that have read, up to this one.
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

    /// Plans transactions in a text, `w` or `r` and a row each, and shows list and waits of each.
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
        // Of what is done nobody asks in which list it was.
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
