//! The work of one thread: reserve, look, execute and settle, round after round.

use std::ops::Range;

use tidemill_table::Seq;

use super::progress::Progress;
use super::reserve::{mark, Filter, Mark, Marks};
use crate::execute::codes::Codes;
use crate::execute::in_place::{Events, Halt, Member};
use crate::execute::segment::{InOrder, Turns};
use crate::order::Ranked;
use crate::pool::{self, Pool};

/// The division of transactions into rounds, and of these into shares.
#[derive(Clone, Copy)]
pub(super) struct Round<'r> {
    /// The epoch's order, up to the last transaction.
    pub(super) order: &'r [Ranked],
    /// The rank of the first transaction.
    pub(super) first: usize,
    /// The number of transactions in a round, except the last one.
    pub(super) len: usize,
    /// The end of each thread's share, as a fraction of the round.
    pub(super) ends: &'r [f64],
}

impl Round<'_> {
    /// Returns the number of rounds.
    pub(super) fn count(&self) -> usize {
        (self.order.len() - self.first).div_ceil(self.len)
    }

    /// Returns a thread's share of a round.
    fn of(&self, thread: usize, round: usize) -> Range<usize> {
        let begin = self.first + round * self.len;
        let len = self.len.min(self.order.len() - begin);
        let end = |thread: usize| begin + (len as f64 * self.ends[thread]) as usize;
        let first = if thread == 0 { begin } else { end(thread - 1) };
        first..if thread + 1 == self.ends.len() { begin + len } else { end(thread) }
    }
}

/// The data that all threads share.
pub(super) struct Shared<'s> {
    pub(super) codes: &'s Codes,
    /// Whether each row is written, by handler.
    pub(super) writes: &'s [Vec<bool>],
    pub(super) round: Round<'s>,
    pub(super) progress: Progress,
    /// The rows of each thread's share, in rounds of even and of odd number.
    pub(super) reserved: &'s [[Marks; 2]],
    /// The rows of each thread's deferred transactions, in rounds of even and of odd number.
    pub(super) put_off: &'s [[Marks; 2]],
    pub(super) pool: &'s dyn Pool,
    /// The number of the transaction before the first one.
    pub(super) before: Seq,
    pub(super) halt: Halt,
}

impl Shared<'_> {
    /// Waits until `holds` returns true. Returns whether to continue. Adds the waiting time in
    /// nanoseconds.
    fn wait(&self, wait_ns: &mut u64, mut holds: impl FnMut() -> bool) -> bool {
        if holds() {
            return !self.halt.is_set();
        }
        let begun = self.pool.now_ns();
        pool::wait(self.pool, || self.halt.is_set() || holds());
        *wait_ns += self.pool.now_ns() - begun;
        !self.halt.is_set()
    }
}

/// The number of parts of a share. Each is in stamp order, and they are executed in this order:
/// 1. transactions that run beside those that later threads have deferred in the round before
/// 2. transactions that wait for these
/// 3. the rest, except deferred transactions
/// 4. deferred transactions
pub(super) const PARTS: usize = 4;
const BESIDE: usize = 0;
const BEHIND: usize = 1;
const REST: usize = 2;
const LATE: usize = 3;

/// The state of a thread.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// The rows of earlier shares of the round, and of its own deferred transactions.
    taken: Filter,
    /// The rows that later threads have deferred in the round before, and the rows of transactions
    /// that wait for these.
    late: Filter,
    /// The events of each lane, in the share and in the rest of it.
    lanes: Vec<Events>,
    rest: Vec<Events>,
    /// The ranks of deferred transactions, of waiting ones, and of both in a stretch.
    off: Vec<usize>,
    waiting: Vec<usize>,
    left_out: Vec<usize>,
    /// The numbers of outputs by stream after [each part](PARTS) of its share, by round.
    pub(super) ends: Vec<[Vec<usize>; PARTS]>,
    pub(super) put_off: u64,
    pub(super) executed: u64,
    pub(super) reserve_ns: u64,
    pub(super) wait_ns: u64,
    /// The time in all, except for waiting, in nanoseconds.
    pub(super) busy_ns: u64,
}

/// Does a thread's work in an epoch. `READS` says whether any transaction reads rows that it does
/// not write.
pub(super) fn walk<const READS: bool>(
    shared: &Shared<'_>,
    member: &mut Member<'_>,
    own: &mut Own,
    thread: usize,
) {
    let Shared { round, progress, pool, .. } = shared;
    let all_begun = pool.now_ns();
    own.ends.clear();
    own.off.clear();
    (own.put_off, own.executed, own.reserve_ns, own.wait_ns) = (0, 0, 0, 0);
    let rounds = round.count();
    if rounds > 0 {
        own.reserve(shared, member, thread, 0);
    }
    for number in 0..rounds {
        Events::stage(&own.lanes, member);
        if !shared.wait(&mut own.wait_ns, || progress.may_execute(thread, number)) {
            return;
        }
        own.look::<READS>(shared, thread, number);
        own.ends.push(Default::default());
        if !own.execute::<READS>(shared, member, thread, number) {
            return;
        }
        progress.executed(thread, number);
        own.executed += round.of(thread, number).len() as u64;
        own.ends(member, REST);
        // While others are not done yet, the next round can be reserved.
        if number + 1 < rounds {
            own.reserve(shared, member, thread, number + 1);
        }
        if thread > 0 {
            if !shared.wait(&mut own.wait_ns, || progress.may_settle(thread, number)) {
                return;
            }
            if !one_by_one(shared, member, &own.off) {
                return shared.halt.set();
            }
        }
        own.ends(member, LATE);
        progress.settled(thread, number);
        own.put_off += own.off.len() as u64;
        own.off.clear();
    }
    own.busy_ns = (pool.now_ns() - all_begun).saturating_sub(own.wait_ns);
}

/// Returns the marks of a transaction, among those of the share.
#[inline(always)]
fn marks_of<'m>(lanes: &[Events], marks: &'m [Mark], ranked: Ranked) -> &'m [Mark] {
    let Events { range, rows, first } = &lanes[ranked.lane as usize];
    &marks[first + (ranked.row as usize - range.start) * rows..][..*rows]
}

/// Executes a stretch of the order except these transactions. Returns whether that was possible.
fn all_but(
    shared: &Shared<'_>,
    member: &mut Member<'_>,
    ranks: Range<usize>,
    left_out: &[usize],
) -> bool {
    let mut at = ranks.start;
    for stop in left_out.iter().copied().chain([ranks.end]) {
        if at < stop && !execute(shared, member, at..stop) {
            shared.halt.set();
            return false;
        }
        at = stop + 1;
    }
    true
}

/// Executes transactions that do not follow one another. Returns whether that was possible.
fn one_by_one(shared: &Shared<'_>, member: &mut Member<'_>, ranks: &[usize]) -> bool {
    let event = |rank: &usize| {
        let Ranked { lane, row } = shared.round.order[*rank];
        (lane as usize, row as usize..row as usize + 1)
    };
    for (lane, event) in ranks.iter().map(event) {
        member.lanes[lane].ask_for_rows(event);
    }
    ranks.iter().all(|rank| {
        let (lane, event) = event(rank);
        member.lanes[lane].stage_only(event);
        execute(shared, member, *rank..rank + 1)
    })
}

/// Executes a stretch of the order. Returns whether that was possible.
fn execute(shared: &Shared<'_>, member: &mut Member<'_>, ranks: Range<usize>) -> bool {
    let seq = shared.before + (ranks.start - shared.round.first) as Seq;
    let order = &shared.round.order[..ranks.end];
    let mut turns = Turns::InOrder(InOrder { order, at: ranks.start, seq, prefetch: true });
    // SAFETY: no other thread uses the rows of these transactions now. Another user of such a row
    // in this round precedes them in their own share, or is deferred and begins when they are done.
    // Or these are the deferred ones, and all others are done. Earlier rounds are done, except
    // transactions that later threads have deferred. Those do not use these rows, or are done, too.
    // Of later rounds, no transaction that uses a row of a deferred one begins. A transaction that
    // is left out of a share for that reason conflicts with none of the later ones that are
    // executed before it.
    unsafe { member.walk(shared.codes, &mut turns) }
}

impl Own {
    /// Records the outputs after a part of the share has been executed.
    fn ends(&mut self, member: &Member<'_>, part: usize) {
        if let Some(ends) = self.ends.last_mut() {
            ends[part].extend(member.outputs());
        }
    }

    /// Reserves the rows of the share of a round: for each event by lane, each of its rows.
    #[inline(never)]
    fn reserve(&mut self, shared: &Shared<'_>, member: &Member<'_>, thread: usize, number: usize) {
        let begun = shared.pool.now_ns();
        let share = shared.round.of(thread, number);
        Events::find(&mut self.lanes, member, &shared.round.order[share.clone()]);
        let mut len = 0;
        for Events { range, rows, first } in self.lanes.iter_mut() {
            *first = len;
            len += range.len() * *rows;
        }
        let lanes = self.lanes.iter().zip(&member.lanes).filter(|(events, _)| !events.is_empty());
        let write = |marks: &mut Vec<Mark>| {
            marks.resize(len, 0);
            for (Events { range, rows, first }, lane) in lanes.clone() {
                for (of, writes) in shared.writes[lane.handler].iter().enumerate() {
                    let mut marks = marks[*first..][..range.len() * rows].chunks_exact_mut(*rows);
                    lane.homes_of(of, range.clone(), |_, hash| {
                        if let Some(marks) = marks.next() {
                            marks[of] = mark(hash, *writes);
                        }
                    });
                }
            }
        };
        // SAFETY: it belongs to this thread. Others read it only between the calls of `reserved`
        // and `executed`, and all of these calls of two rounds ago have returned.
        unsafe { shared.reserved[thread][number % 2].with_mut(write) };
        for (Events { range, .. }, lane) in lanes {
            // The share of the next round has its events of this lane at about this place.
            let after = range.len() * shared.round.len / share.len().max(1);
            lane.ask_for(range.start + after..range.end + after);
        }
        shared.progress.reserved(thread, number);
        self.reserve_ns += shared.pool.now_ns() - begun;
    }

    /// Finds the transactions of the share that conflict with earlier shares or with deferred
    /// transactions, and defers them.
    #[inline(never)]
    fn look<const READS: bool>(&mut self, shared: &Shared<'_>, thread: usize, number: usize) {
        if thread == 0 {
            return;
        }
        let begun = shared.pool.now_ns();
        let even = number % 2;
        // SAFETY: earlier threads have reserved their rows of this round. They write other lists
        // until all threads have executed it.
        unsafe { self.taken.take_all::<READS>(&shared.reserved[..thread], even) };
        let share = shared.round.of(thread, number);
        let mut look = |marks: &[Mark], put_off: &mut Vec<Mark>| {
            put_off.clear();
            for (ranked, rank) in shared.round.order[share.clone()].iter().zip(share.clone()) {
                let marks = marks_of(&self.lanes, marks, *ranked);
                if self.taken.meets_any::<READS>(marks) {
                    marks.iter().for_each(|mark| self.taken.take::<READS>(*mark));
                    put_off.extend_from_slice(marks);
                    self.off.push(rank);
                }
            }
        };
        // SAFETY: both lists belong to this thread. It has written the first for this round, and
        // others may only read it. No thread reads the second before this round is executed. Its
        // former content, of two rounds ago, was last read before all threads had executed the
        // round after that.
        unsafe {
            let (marks, put_off) = (&shared.reserved[thread][even], &shared.put_off[thread][even]);
            marks.with(|marks| put_off.with_mut(|put_off| look(marks, put_off)));
        }
        self.reserve_ns += shared.pool.now_ns() - begun;
    }

    /// Executes the share, except deferred transactions. Returns whether that was possible.
    ///
    /// As long as later threads have not settled the round before, this leaves out transactions
    /// that conflict with theirs. It also leaves out those that conflict with left-out ones. They
    /// follow once that round is settled.
    fn execute<const READS: bool>(
        &mut self,
        shared: &Shared<'_>,
        member: &mut Member<'_>,
        thread: usize,
        number: usize,
    ) -> bool {
        /// The number of transactions that are tested at a time.
        const LOOK_AHEAD: usize = 64;
        let Shared { round, progress, .. } = shared;
        let (share, is_settled) = (round.of(thread, number), || progress.are_settled(number));
        let (mut at, mut off) = (share.start, 0);
        self.waiting.clear();
        if !is_settled() {
            let later = &shared.put_off[thread + 1..];
            // SAFETY: later threads have executed the round before, and so have written their
            // deferred rows of it. They write there again after all threads have executed this one.
            unsafe { self.late.take_all::<READS>(later, (number + 1) % 2) };
        }
        while at < share.end && !is_settled() {
            let ahead = at..share.end.min(at + LOOK_AHEAD);
            self.left_out.clear();
            let look = |marks: &[Mark]| {
                for (ranked, rank) in round.order[ahead.clone()].iter().zip(ahead.clone()) {
                    let marks = marks_of(&self.lanes, marks, *ranked);
                    if self.off.get(off) == Some(&rank) {
                        off += 1;
                    } else if self.late.meets_any::<READS>(marks) {
                        marks.iter().for_each(|mark| self.late.take::<READS>(*mark));
                        self.waiting.push(rank);
                    } else {
                        continue;
                    }
                    self.left_out.push(rank);
                }
            };
            // SAFETY: this thread has written them, and others only read them.
            unsafe { shared.reserved[thread][number % 2].with(look) };
            if !all_but(shared, member, ahead.clone(), &self.left_out) {
                return false;
            }
            at = ahead.end;
        }
        self.ends(member, BESIDE);
        if !self.waiting.is_empty() {
            if !shared.wait(&mut self.wait_ns, is_settled) {
                return false;
            }
            if !one_by_one(shared, member, &self.waiting) {
                shared.halt.set();
                return false;
            }
            Events::find(&mut self.rest, member, &round.order[at..share.end]);
            Events::stage(&self.rest, member);
        }
        self.ends(member, BEHIND);
        all_but(shared, member, at..share.end, &self.off[off..])
    }
}
