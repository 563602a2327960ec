//! What one thread does: reserve, look, execute, settle; round after round.

use std::ops::Range;

use tidemill_table::Seq;

use super::progress::Progress;
use super::reserve::{mark, Filter, Mark, Marks};
use crate::execute::codes::Codes;
use crate::execute::in_place::{Events, Halt, Member};
use crate::execute::segment::{InOrder, Turns};
use crate::order::Ranked;
use crate::pool::{self, Pool};

/// How transactions are cut: into rounds, and these into shares.
#[derive(Clone, Copy)]
pub(super) struct Round<'r> {
    /// The epoch's order, up to the last one.
    pub(super) order: &'r [Ranked],
    /// The rank of the first one.
    pub(super) first: usize,
    /// Transactions of one, but of the last.
    pub(super) len: usize,
    /// Where each thread's share ends, as a part of the round.
    pub(super) ends: &'r [f64],
}

impl Round<'_> {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        (self.order.len() - self.first).div_ceil(self.len)
    }

    /// A thread's share of one.
    fn of(&self, thread: usize, round: usize) -> Range<usize> {
        let begin = self.first + round * self.len;
        let len = self.len.min(self.order.len() - begin);
        let end = |thread: usize| begin + (len as f64 * self.ends[thread]) as usize;
        let first = if thread == 0 { begin } else { end(thread - 1) };
        first..if thread + 1 == self.ends.len() { begin + len } else { end(thread) }
    }
}

/// What all threads see.
pub(super) struct Shared<'s> {
    pub(super) codes: &'s Codes,
    /// Per handler: whether each of its rows is written.
    pub(super) writes: &'s [Vec<bool>],
    pub(super) round: Round<'s>,
    pub(super) progress: Progress,
    /// Per thread: the rows of its share, in rounds of even and of odd number.
    pub(super) reserved: &'s [[Marks; 2]],
    /// The same of what it puts off of it.
    pub(super) put_off: &'s [[Marks; 2]],
    pub(super) pool: &'s dyn Pool,
    /// The number of the transaction before the first one.
    pub(super) before: Seq,
    pub(super) halt: Halt,
}

impl Shared<'_> {
    /// Waits; whether to go on. Nanoseconds that it took are added.
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

/// What a thread keeps to itself.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// What earlier shares of the round use, and what it has put off itself.
    taken: Filter,
    /// What later threads have put off in the round before.
    late: Filter,
    /// By lane: its events in the share.
    lanes: Vec<Events>,
    /// Ranks of what is put off.
    off: Vec<usize>,
    /// Ranks of what waits until the round before is settled; none of them is put off.
    waiting: Vec<usize>,
    /// By round: how many outputs there were by stream after its share, and after what of it was put
    /// off.
    pub(super) ends: Vec<[Vec<usize>; 2]>,
    pub(super) put_off: u64,
    pub(super) executed: u64,
    pub(super) reserve_ns: u64,
    pub(super) wait_ns: u64,
    /// In all, but for waiting.
    pub(super) busy_ns: u64,
}

/// What a thread does in an epoch. `READS` when any transaction reads rows that it does not write.
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
        let share = round.of(thread, number);
        own.look::<READS>(shared, thread, number);
        own.executed += share.len() as u64;
        let (mut at, mut waiting) = (share.start, 0);
        for stop in own.off.iter().copied().chain([share.end]) {
            while let Some(waits) = own.waiting.get(waiting).copied().filter(|rank| *rank < stop) {
                waiting += 1;
                if !execute(shared, member, at..waits) {
                    return shared.halt.set();
                }
                if !shared.wait(&mut own.wait_ns, || progress.are_settled(number)) {
                    return;
                }
                at = waits;
            }
            if !execute(shared, member, at..stop) {
                return shared.halt.set();
            }
            at = stop + 1;
        }
        progress.executed(thread, number);
        let ends = own.ends_of(member);
        // Where others are not done yet, the next round can be reserved meanwhile.
        if number + 1 < rounds {
            own.reserve(shared, member, thread, number + 1);
        }
        if thread > 0 {
            if !shared.wait(&mut own.wait_ns, || progress.may_settle(thread, number)) {
                return;
            }
            own.ask_for_off(shared, member);
            for rank in &own.off {
                let Ranked { lane, row } = round.order[*rank];
                member.lanes[lane as usize].stage_only(row as usize..row as usize + 1);
                if !execute(shared, member, *rank..rank + 1) {
                    return shared.halt.set();
                }
            }
        }
        progress.settled(thread, number);
        own.put_off += own.off.len() as u64;
        own.off.clear();
        let late = own.ends_of(member);
        own.ends.push([ends, late]);
    }
    own.busy_ns = (pool.now_ns() - all_begun).saturating_sub(own.wait_ns);
}

/// Executes a stretch of the order; whether it could.
fn execute(shared: &Shared<'_>, member: &mut Member<'_>, ranks: Range<usize>) -> bool {
    let seq = shared.before + (ranks.start - shared.round.first) as Seq;
    let order = &shared.round.order[..ranks.end];
    let mut turns = Turns::InOrder(InOrder { order, at: ranks.start, seq, prefetch: true });
    // SAFETY: whoever uses a row of these transactions in this round is before them in their own
    // share, or is put off, and begins when they are done; or these are put off, and all others are
    // done. Rounds before are done but for what later threads have put off, which does not use their rows
    // or is done, too; of later ones nobody begins what uses a row of what is put off.
    unsafe { member.walk(shared.codes, &mut turns) }
}

impl Own {
    fn ends_of(&self, member: &Member<'_>) -> Vec<usize> {
        member.outputs().collect()
    }

    /// Reserves what the share of a round uses: of each event by lane, of each of its rows.
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
        // SAFETY: it is this thread's, and others look at it between the calls of `reserved` and `executed` only: those of two
        // rounds ago all have been executed.
        unsafe { shared.reserved[thread][number % 2].with_mut(write) };
        for (Events { range, .. }, lane) in lanes {
            // About where the share of the next round has its events of this lane.
            let after = range.len() * shared.round.len / share.len().max(1);
            lane.ask_for(range.start + after..range.end + after);
        }
        shared.progress.reserved(thread, number);
        self.reserve_ns += shared.pool.now_ns() - begun;
    }

    /// Looks which transactions of the share meet what earlier shares use, or what is put off: these are put off. And
    /// which meet what later threads have put off in the round before: these wait, unless that is settled by now.
    #[inline(never)]
    fn look<const READS: bool>(&mut self, shared: &Shared<'_>, thread: usize, number: usize) {
        let Shared { round, progress, pool, .. } = shared;
        self.waiting.clear();
        let is_settled = progress.are_settled(number);
        if thread == 0 && is_settled {
            return;
        }
        let begun = pool.now_ns();
        let (even, before) = (number % 2, (number + 1) % 2);
        if thread > 0 {
            // SAFETY: earlier threads have reserved their rows of this round, and write others when it is executed by all.
            unsafe { self.taken.take_all::<READS>(&shared.reserved[..thread], even) };
        }
        let later = if is_settled { shared.put_off.len() } else { thread + 1 };
        // SAFETY: later threads have executed the round before, and so put off what they do of it; they write there again when
        // this one is executed by all.
        let late = unsafe { self.late.take_all::<READS>(&shared.put_off[later..], before) };
        let share = round.of(thread, number);
        let mut look = |marks: &[Mark], put_off: &mut Vec<Mark>| {
            put_off.clear();
            for (ranked, rank) in round.order[share.clone()].iter().zip(share.clone()) {
                let Events { range, rows, first } = &self.lanes[ranked.lane as usize];
                let marks = &marks[first + (ranked.row as usize - range.start) * rows..][..*rows];
                let meets = |filter: &Filter| {
                    marks.iter().fold(0, |any, mark| any | filter.meets::<READS>(*mark)) & 1 == 1
                };
                if thread > 0 && meets(&self.taken) {
                    marks.iter().for_each(|mark| self.taken.take::<READS>(*mark));
                    put_off.extend_from_slice(marks);
                    self.off.push(rank);
                } else if late > 0 && meets(&self.late) {
                    self.waiting.push(rank);
                }
            }
        };
        // SAFETY: both are this thread's. It has written the first for this round, which others may look at, too; at the second
        // nobody does before this round is executed, and what is in it, of two rounds ago, nobody has looked at since the round
        // after that was executed by all.
        unsafe {
            let (marks, put_off) = (&shared.reserved[thread][even], &shared.put_off[thread][even]);
            marks.with(|marks| put_off.with_mut(|put_off| look(marks, put_off)));
        }
        self.reserve_ns += pool.now_ns() - begun;
    }

    /// Asks for the rows of what is put off.
    fn ask_for_off(&self, shared: &Shared<'_>, member: &Member<'_>) {
        for rank in &self.off {
            let Ranked { lane, row } = shared.round.order[*rank];
            member.lanes[lane as usize].ask_for_rows(row as usize..row as usize + 1);
        }
    }
}
